//! Graphs that run, stop, and go on, with each checkpoint in the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use entelix_core::{Error, ExecutionContext, Result, TenantId, ThreadKey};
use entelix_graph::{Checkpoint, CheckpointId, Checkpointer, Command, CompiledGraph, StateGraph};
use entelix_runnable::{Runnable, RunnableLambda};
use runlog_conformance::entelix::EntelixCheckpointer;
use serde::{Deserialize, Serialize};

use super::{LIVES, Life, World, context, key, key_of};

/// What the graphs of these tests count, and the nodes that they went through.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Tea {
    cups: i64,
    trail: Vec<String>,
}

/// The adapter, on a store that is opened anew for each call of the graph.
struct Restless(Arc<World>);

impl Restless {
    fn store(&self) -> EntelixCheckpointer<Tea> {
        EntelixCheckpointer::new(&self.0.log())
    }
}

#[async_trait]
impl Checkpointer<Tea> for Restless {
    async fn put(&self, checkpoint: Checkpoint<Tea>) -> Result<()> {
        self.store().put(checkpoint).await
    }

    async fn get_latest(&self, key: &ThreadKey) -> Result<Option<Checkpoint<Tea>>> {
        self.store().get_latest(key).await
    }

    async fn get_by_id(
        &self,
        key: &ThreadKey,
        id: &CheckpointId,
    ) -> Result<Option<Checkpoint<Tea>>> {
        self.store().get_by_id(key, id).await
    }

    async fn list_history(&self, key: &ThreadKey, limit: usize) -> Result<Vec<Checkpoint<Tea>>> {
        self.store().list_history(key, limit).await
    }

    async fn update_state(
        &self,
        key: &ThreadKey,
        parent_id: &CheckpointId,
        new_state: Tea,
    ) -> Result<CheckpointId> {
        self.store().update_state(key, parent_id, new_state).await
    }
}

/// A store in each life.
fn each() -> impl Iterator<Item = Arc<Restless>> {
    LIVES.into_iter().map(|life: Life| Arc::new(Restless(World::new(life))))
}

fn node(name: &'static str, cups: i64, calls: &Arc<AtomicUsize>) -> RunnableLambda<Tea, Tea> {
    let calls = calls.clone();
    RunnableLambda::new(move |mut tea: Tea, _context| {
        let calls = calls.clone();
        async move {
            calls.fetch_add(1, Ordering::Relaxed);
            tea.cups += cups;
            tea.trail.push(name.to_owned());
            Ok::<_, Error>(tea)
        }
    })
}

/// Boils, brews and pours: 1, 10 and 100 cups. And how many nodes were run.
fn graph(store: &Arc<Restless>) -> (CompiledGraph<Tea>, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let graph = StateGraph::<Tea>::new()
        .add_node("boil", node("boil", 1, &calls))
        .add_node("brew", node("brew", 10, &calls))
        .add_node("pour", node("pour", 100, &calls))
        .add_edge("boil", "brew")
        .add_edge("brew", "pour")
        .set_entry_point("boil")
        .add_finish_point("pour")
        .with_checkpointer(store.clone())
        .compile()
        .unwrap();
    (graph, calls)
}

fn tea(cups: i64, trail: &[&str]) -> Tea {
    Tea { cups, trail: trail.iter().map(ToString::to_string).collect() }
}

/// Runs the graph from its beginning to its end.
async fn run(store: &Arc<Restless>, context: &ExecutionContext) -> Tea {
    graph(store).0.invoke(Tea::default(), context).await.unwrap()
}

#[tokio::test]
async fn each_node_leaves_a_checkpoint_that_knows_which_is_next() {
    for store in each() {
        run(&store, &context("t")).await;
        let history = store.list_history(&key("t"), 10).await.unwrap();
        let found: Vec<_> =
            history.iter().map(|found| (found.state.cups, found.next_node.as_deref())).collect();
        assert_eq!(found, [(111, None), (11, Some("pour")), (1, Some("brew"))]);
        assert!(history.iter().all(|found| found.tenant_id == "default"));
        assert!(history.is_sorted_by(|left, right| left.step > right.step));
    }
}

#[tokio::test]
async fn without_a_thread_there_are_no_checkpoints() {
    for store in each() {
        run(&store, &ExecutionContext::new()).await;
        let tenant = runlog_stores::checkpoints::TenantId::default();
        assert!(store.store().store().threads(&tenant, None, 9).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_graph_that_has_ended_is_resumed_at_its_end() {
    for store in each() {
        run(&store, &context("t")).await;
        let (graph, calls) = graph(&store);
        let resumed = graph.resume(&context("t")).await.unwrap();
        assert_eq!(resumed, tea(111, &["boil", "brew", "pour"]));
        assert_eq!(calls.load(Ordering::Relaxed), 0, "no node ran again");
    }
}

#[tokio::test]
async fn a_graph_goes_on_where_its_latest_checkpoint_says() {
    for store in each() {
        let state = tea(999, &["boil"]);
        let left = Checkpoint::new(&key("t"), 1, state, Some("brew".into()));
        store.put(left).await.unwrap();
        let (graph, calls) = graph(&store);
        let resumed = graph.resume(&context("t")).await.unwrap();
        assert_eq!(resumed, tea(1109, &["boil", "brew", "pour"]));
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }
}

#[tokio::test]
async fn what_cannot_be_resumed_is_an_error_that_says_why() {
    for store in each() {
        let (graph, _) = graph(&store);
        let unknown = graph.resume(&context("ghost")).await.unwrap_err();
        assert!(matches!(unknown, Error::InvalidRequest(_)), "{unknown}");
        let nameless = graph.resume(&ExecutionContext::new()).await.unwrap_err();
        assert!(matches!(nameless, Error::Config(_)), "{nameless}");
        let id = CheckpointId::new();
        let unknown = graph.resume_from(&id, Command::Resume, &context("t")).await.unwrap_err();
        assert!(matches!(unknown, Error::InvalidRequest(_)), "{unknown}");
    }
}

#[tokio::test]
async fn tenants_with_the_same_thread_never_see_one_another() {
    for store in each() {
        for tenant in ["alpha", "bravo"] {
            let context = context("t").with_tenant_id(TenantId::new(tenant));
            run(&store, &context).await;
        }
        let (alpha, bravo) = (key_of("alpha", "t"), key_of("bravo", "t"));
        let history = store.list_history(&bravo, 10).await.unwrap();
        assert_eq!(history.len(), 3);
        assert_eq!(store.list_history(&alpha, 10).await.unwrap().len(), 3);
        for found in history {
            assert!(store.get_by_id(&alpha, &found.id).await.unwrap().is_none());
            let branch = store.update_state(&alpha, &found.id, Tea::default()).await;
            assert!(matches!(branch, Err(Error::InvalidRequest(_))));
        }
        assert!(store.get_latest(&key("t")).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_history_has_as_many_as_asked_for_the_newest_first() {
    for store in each() {
        run(&store, &context("t")).await;
        for (limit, cups) in [(0, &[][..]), (1, &[111]), (2, &[111, 11]), (9, &[111, 11, 1])] {
            let history = store.list_history(&key("t"), limit).await.unwrap();
            assert!(history.iter().map(|found| &found.state.cups).eq(cups), "{limit}");
        }
    }
}

#[tokio::test]
async fn a_graph_goes_on_from_an_old_checkpoint_with_another_state() {
    for store in each() {
        run(&store, &context("t")).await;
        let first = store.list_history(&key("t"), 9).await.unwrap().pop().unwrap();
        assert_eq!(first.next_node.as_deref(), Some("brew"));
        let (graph, _) = graph(&store);
        let update = Command::Update(tea(1000, &["boil"]));
        let resumed = graph.resume_from(&first.id, update, &context("t")).await.unwrap();
        assert_eq!(resumed, tea(1110, &["boil", "brew", "pour"]));
    }
}

#[tokio::test]
async fn a_branch_is_what_the_thread_goes_on_with() {
    for store in each() {
        run(&store, &context("t")).await;
        let first = store.list_history(&key("t"), 9).await.unwrap().pop().unwrap();
        let branch = store.update_state(&key("t"), &first.id, tea(-5, &["boil"])).await.unwrap();
        let latest = store.get_latest(&key("t")).await.unwrap().unwrap();
        assert_eq!((&latest.id, latest.parent_id.as_ref()), (&branch, Some(&first.id)));
        assert_eq!((latest.step, &latest.next_node), (first.step + 1, &first.next_node));
        let (graph, calls) = graph(&store);
        let resumed = graph.resume_from(&branch, Command::Resume, &context("t")).await.unwrap();
        assert_eq!(resumed, tea(105, &["boil", "brew", "pour"]));
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        assert_eq!(store.list_history(&key("t"), 99).await.unwrap().len(), 6);
        let again = graph.resume(&context("t")).await.unwrap();
        assert_eq!(again, resumed, "the branch is the latest");
    }
}
