//! All that a store answers, as text, to compare two stores or two moments of one.

use std::collections::BTreeMap;
use std::fmt::Debug;

use runlog::{ReadLog, RunQuery};

/// The answers to all questions about runs and about the documents of one namespace, by question.
/// An error is an answer too.
pub(crate) fn answers(log: &impl ReadLog, space: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let page = log.list_runs(&RunQuery::new().limit(100_000));
    for run in page.iter().flat_map(|page| &page.runs) {
        let name = format!("{}/{}", run.agent, run.run);
        let metadata = log.metadata(run).map(|one| one.map(|one| one.payload().to_vec()));
        let outcome = log.outcome(run).map(|one| one.map(|one| one.payload().to_vec()));
        all.insert(format!("{name} summary"), text(&(log.run(run), metadata, outcome)));
        let records = match log.trace(run) {
            Ok(trace) => trace.map(|item| {
                text(&item.map(|record| {
                    let at = (record.seq(), record.lsn(), record.timestamp());
                    (at, record.kind().map(str::to_owned), record.payload().to_vec())
                }))
            }),
            Err(error) => {
                all.insert(format!("{name} trace"), text(&error));
                continue;
            }
        };
        all.extend((0..).zip(records).map(|(seq, record)| (format!("{name} {seq:06}"), record)));
    }
    all.insert("runs".to_owned(), text(&page));
    all.insert("agents".to_owned(), text(&log.agents(None, 1000)));
    all.insert("held".to_owned(), text(&log.held_runs()));
    let receipts = log.receipts(10_000).map(|all| {
        let said = all.into_iter().map(|one| (one.agent, one.run, one.deleted_at, one.bytes));
        said.collect::<Vec<_>>()
    });
    all.insert("receipts".to_owned(), text(&receipts));
    let page = log.list_documents(space, "", None, 1000);
    for document in page.iter().flat_map(|page| &page.documents) {
        let key = &document.key;
        let found = log.document(space, key);
        let found = found.map(|one| one.map(|one| (one.version(), one.payload().to_vec())));
        let version = log.document_version(space, key);
        all.insert(format!("document {key}"), text(&(found, version)));
    }
    all.insert("documents".to_owned(), text(&page));
    all
}

/// The first question that two stores answer differently, and both answers.
pub(crate) fn first_difference(
    one: &BTreeMap<String, String>,
    other: &BTreeMap<String, String>,
) -> Option<String> {
    let questions = one.keys().chain(other.keys());
    let mut differing = questions.filter(|question| one.get(*question) != other.get(*question));
    let question = differing.next()?;
    Some(format!("{question}:\n{:?}\nand not\n{:?}", one.get(question), other.get(question)))
}

/// The beginning of a value, and a check of all of it.
fn text(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    let check = crc32fast::hash(text.as_bytes());
    format!("{} {check:08x}", text.chars().take(120).collect::<String>())
}
