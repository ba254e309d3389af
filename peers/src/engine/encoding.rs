//! The keys and values of runs and records in key-value stores. Keys sort as bytes.
//!
//! | table | key | value |
//! |---|---|---|
//! | runs | id of the run | number of the run, whether it has ended, agent |
//! | by agent | agent, a zero byte, number of the run | id of the run |
//! | records | number of the run, sequence | length of the kind, kind, payload |

use super::{New, Run};

/// Bytes of a run's value before the agent.
const RUN_HEAD: usize = 9;

/// Key and value of a record.
#[derive(Debug, Default)]
pub(super) struct RecordBytes {
    value: Vec<u8>,
}

impl RecordBytes {
    /// The value, in a reused buffer.
    pub(super) fn of(&mut self, new: New<'_>) -> &[u8] {
        self.value.clear();
        self.value.push(u8::try_from(new.kind.len()).unwrap());
        self.value.extend_from_slice(new.kind.as_bytes());
        self.value.extend_from_slice(new.payload);
        &self.value
    }
}

pub(super) fn record_key(run: u64, seq: u32) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&run.to_be_bytes());
    key[8..].copy_from_slice(&seq.to_be_bytes());
    key
}

/// The range of keys of a run's records.
pub(super) fn records_of(run: u64) -> ([u8; 12], [u8; 12]) {
    (record_key(run, 0), record_key(run, u32::MAX))
}

pub(super) fn seq_of(key: &[u8]) -> u64 {
    u64::from(u32::from_be_bytes(key[8..12].try_into().unwrap()))
}

/// Kind and payload.
pub(super) fn record_of(value: &[u8]) -> (&str, &[u8]) {
    let (kind, payload) = value[1..].split_at(usize::from(value[0]));
    (std::str::from_utf8(kind).unwrap(), payload)
}

pub(super) fn run_value(run: &Run, ended: bool) -> Vec<u8> {
    let mut value = run.number.to_be_bytes().to_vec();
    value.push(u8::from(ended));
    value.extend_from_slice(run.agent.as_bytes());
    value
}

pub(super) fn number_of(run_value: &[u8]) -> u64 {
    u64::from_be_bytes(run_value[..8].try_into().unwrap())
}

pub(super) fn agent_of(run_value: &[u8]) -> &str {
    std::str::from_utf8(&run_value[RUN_HEAD..]).unwrap()
}

pub(super) fn agent_key(agent: &str, run: u64) -> Vec<u8> {
    let mut key = agent.as_bytes().to_vec();
    key.push(0);
    key.extend_from_slice(&run.to_be_bytes());
    key
}
