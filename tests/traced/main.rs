//! What `tracing` receives: one span name for each activity, and an event for each failure.
//!
//! A separate program, one test at a time: `tracing` remembers whether there is a subscriber, and a
//! thread of another test without one may be the first to ask.

#![allow(clippy::pedantic, reason = "tests count and compare; the strict lints are for what ships")]

#[allow(dead_code, reason = "the other tests use more of it")]
#[path = "../it/support/background.rs"]
mod background;
#[allow(dead_code, reason = "the other tests use more of it")]
#[path = "../it/support/told.rs"]
mod told;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use runlog::env::{Environment, Step};
use runlog::{Activity, Options, Outcome, RunLog, TailWriter, Timestamp};
use runlog_sim::{OpKind, SimClock, SimDisk};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::background::Background;
use crate::told::Told;

/// Held by the test that runs.
static ALONE: Mutex<()> = Mutex::new(());

/// An event: its level, the spans that it is in, and its fields as texts.
#[derive(Debug, Clone)]
struct Seen {
    level: Level,
    within: Vec<&'static str>,
    fields: BTreeMap<&'static str, String>,
}

/// Keeps the names of spans and the events of one thread.
#[derive(Debug, Default, Clone)]
struct Kept {
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    next: AtomicU64,
    names: Mutex<Vec<&'static str>>,
    open: Mutex<Vec<Id>>,
    events: Mutex<Vec<Seen>>,
}

impl Kept {
    fn name(&self, id: &Id) -> &'static str {
        self.state.names.lock().unwrap()[usize::try_from(id.into_u64() - 1).unwrap()]
    }

    /// The events since the last call.
    fn take_events(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state.events.lock().unwrap())
    }
}

struct Fields<'s>(&'s mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl Subscriber for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "runlog"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        assert_eq!(span.metadata().level(), &Level::DEBUG);
        self.state.names.lock().unwrap().push(span.metadata().name());
        Id::from_u64(self.state.next.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let within = self.state.open.lock().unwrap().iter().map(|id| self.name(id)).collect();
        let mut fields = BTreeMap::new();
        event.record(&mut Fields(&mut fields));
        let seen = Seen { level: *event.metadata().level(), within, fields };
        self.state.events.lock().unwrap().push(seen);
    }

    fn enter(&self, span: &Id) {
        self.state.open.lock().unwrap().push(span.clone());
    }

    fn exit(&self, span: &Id) {
        assert_eq!(self.state.open.lock().unwrap().pop().as_ref(), Some(span));
    }
}

/// A store whose work is all done by this thread, and the recorder of its events.
fn open(told: &Arc<Told>) -> (RunLog, SimDisk, Background) {
    let (disk, background) = (SimDisk::new(), Background::default());
    let told: Arc<Told> = Arc::clone(told);
    let environment =
        Environment::system().clock(Arc::new(SimClock::new(Timestamp(1_000_000_000))));
    let options = Options::new().extent_size(64 << 10).observer(told).environment(environment);
    let options = options.tail_writer(TailWriter::Pwrite).scheduler(Arc::new(background.clone()));
    (options.create_storage(Arc::new(disk.clone())).unwrap(), disk, background)
}

fn live(log: &RunLog, background: &Background) {
    for number in 0..18 {
        let run = log.start_run("agent", &format!("secret-{number}"), ()).unwrap();
        let _ = run.append(&[b'x'; 20_000]).unwrap();
        let _ = run.end(&Outcome::completed()).unwrap();
    }
    for step in Step::ALL {
        background.run(step);
    }
    for number in (0..18).filter(|number| number % 3 != 0) {
        log.delete_run(("agent", format!("secret-{number}").as_str())).unwrap();
    }
    for step in Step::ALL {
        background.run(step);
    }
}

#[test]
fn each_activity_is_a_span_with_its_name() {
    let _alone = ALONE.lock().unwrap();
    let (kept, told) = (Kept::default(), Arc::new(Told::default()));
    tracing::subscriber::with_default(kept.clone(), || {
        let (log, _, background) = open(&told);
        live(&log, &background);
        log.close().unwrap();
    });
    let mut spans = kept.state.names.lock().unwrap().clone();
    let mut ends: Vec<Activity> = told.take().into_iter().map(|end| end.activity).collect();
    assert_eq!(spans.len(), ends.len(), "one span for each");
    spans.sort_unstable();
    spans.dedup();
    ends.sort_unstable();
    ends.dedup();
    let mut expected: Vec<String> = ends.iter().map(|it| format!("runlog.{}", it.name())).collect();
    expected.sort_unstable();
    assert_eq!(spans, expected);
    assert_eq!(ends.len(), 11, "the test has all activities: {ends:?}");
    assert!(kept.take_events().is_empty(), "nothing failed");
}

#[test]
fn each_failure_is_an_event_within_the_span_of_its_activity() {
    let _alone = ALONE.lock().unwrap();
    let (kept, told) = (Kept::default(), Arc::new(Told::default()));
    tracing::subscriber::with_default(kept.clone(), || {
        let (log, disk, background) = open(&told);
        live(&log, &background);
        kept.take_events();

        // A temporary failure.
        let run = log.start_run("agent", "long", ()).unwrap();
        for _ in 0..12 {
            let _ = run.append(&[b'x'; 8_000]).unwrap();
        }
        drop(run);
        disk.fail_next(OpKind::Allocate, ErrorKind::TimedOut);
        background.run(Step::Reserve);
        let failed = told.take_failures();
        let events = kept.take_events();
        assert!(!events.is_empty());
        assert_eq!(events.len(), failed.len(), "{events:?}");
        for (event, (activity, error)) in events.iter().zip(failed) {
            assert_eq!((event.level, &*event.fields["message"]), (Level::WARN, "failed"));
            assert_eq!(event.fields["activity"], activity.name());
            assert!(event.fields["error"].starts_with(&error.to_string()), "{event:?}");
            assert!(event.fields["error"].ends_with("timed out"), "{event:?}");
            assert!(event.fields.contains_key("took_us"));
        }

        // A full disk, and space again.
        let run = log.start_run("agent", "run", ()).unwrap();
        disk.set_capacity(disk.allocated());
        while run.append(&[b'x'; 4_000]).is_ok() {}
        disk.set_capacity(u64::MAX);
        let _ = run.append(&[b'x'; 4_000]).unwrap();
        let told_of = |message: &str, events: &[Seen]| {
            events.iter().filter(|event| event.fields["message"] == message).count()
        };
        let events = kept.take_events();
        assert_eq!(told_of("disk full", &events), 1, "{events:?}");
        assert_eq!(told_of("space again", &events), 1, "{events:?}");

        // Poison.
        disk.fail_next(OpKind::Sync, ErrorKind::TimedOut);
        assert!(log.sync().is_err());
        let events = kept.take_events();
        let levels: Vec<_> =
            events.iter().map(|event| (event.level, &*event.fields["message"])).collect();
        assert_eq!(levels, [(Level::ERROR, "poisoned"), (Level::WARN, "failed")]);
        assert!(events.iter().all(|event| event.within == ["runlog.sync"]), "{events:?}");
        drop((run, log));
        let events = kept.take_events();
        assert!(events.iter().any(|event| event.within == ["runlog.close"]), "{events:?}");
        let texts = format!("{events:?}");
        assert!(!texts.contains("secret") && !texts.contains("xxxx"), "{texts}");
    });
}
