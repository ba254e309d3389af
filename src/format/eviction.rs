//! The payload of EVICT: which runs are deleted, and what is kept to tell of it.
//!
//! An item is of one run. It says that the run is deleted, wherever its frames are, and for good:
//! run numbers are never used again. With its receipt it also says which run that was, when it was
//! deleted, by which rule, and how large it was; compaction leaves old receipts out and keeps the
//! items as long as frames of their runs are left.
//!
//! ```text
//!  0 u64 run number   8 i64 time   16 u64 bytes   24 u16 length of the run id
//! 26 u16 length of the agent id   28 u8 rule   29 u8 flags (1: with receipt)   30 u16 zero
//! 32 run id, agent id
//! ```

use super::codec::{Decoded, Reader, Writer};
use crate::error::Damage;
use crate::types::{AgentId, RunId, RunNo, Timestamp};

/// The length of an item without its ids.
pub const EVICTION_ITEM_LEN: usize = 32;
const WITH_RECEIPT: u8 = 1;

/// One run that is deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// The run.
    pub run_no: RunNo,
    /// What is kept to tell of it.
    pub receipt: Option<EvictionReceipt>,
}

/// What is kept of a run that was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvictionReceipt {
    /// The agent.
    pub agent: AgentId,
    /// The run.
    pub run: RunId,
    /// When it was deleted.
    pub at: Timestamp,
    /// The code of the rule by which it was deleted.
    pub rule: u8,
    /// The bytes of its frames.
    pub bytes: u64,
}

impl Eviction {
    /// How many bytes [`Eviction::encode`] appends.
    pub fn encoded_len(&self) -> usize {
        let ids = self.receipt.as_ref();
        EVICTION_ITEM_LEN
            + ids.map_or(0, |kept| kept.run.as_str().len() + kept.agent.as_str().len())
    }

    /// Appends the item.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let len = |id: &str| u16::try_from(id.len()).expect("ids are at most 512 bytes");
        let mut writer = Writer::new(out);
        writer.u64(self.run_no.0);
        match &self.receipt {
            None => _ = writer.zeros(24),
            Some(kept) => {
                let (run, agent) = (kept.run.as_str(), kept.agent.as_str());
                writer
                    .i64(kept.at.0)
                    .u64(kept.bytes)
                    .u16(len(run))
                    .u16(len(agent))
                    .u8(kept.rule)
                    .u8(WITH_RECEIPT)
                    .zeros(2)
                    .bytes(run.as_bytes())
                    .bytes(agent.as_bytes());
            }
        }
    }
}

/// Reads the items of an EVICT payload.
pub fn decode_evictions(payload: &[u8]) -> Decoded<Vec<Eviction>> {
    let mut reader = Reader::new(payload);
    let mut items = Vec::new();
    while !reader.rest().is_empty() {
        items.push(decode_item(&mut reader)?);
    }
    Ok(items)
}

/// The runs of an EVICT payload, and whether there is a receipt.
pub fn evicted_runs(payload: &[u8]) -> Decoded<Vec<(RunNo, bool)>> {
    let mut reader = Reader::new(payload);
    let mut runs = Vec::with_capacity(payload.len() / EVICTION_ITEM_LEN);
    while !reader.rest().is_empty() {
        let item = Item::read(&mut reader)?;
        reader.text(item.run_len)?;
        reader.text(item.agent_len)?;
        runs.push((item.run_no, item.with_receipt));
    }
    Ok(runs)
}

/// What there is to know of a receipt without the ids in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiptAt {
    /// The run.
    pub run_no: RunNo,
    /// When it was deleted.
    pub at: Timestamp,
    /// How many bytes the item with the receipt has.
    pub len: usize,
}

/// The receipts of an EVICT payload, without their ids.
pub fn receipts_at(payload: &[u8]) -> Decoded<Vec<ReceiptAt>> {
    let mut reader = Reader::new(payload);
    let mut receipts = Vec::with_capacity(payload.len() / EVICTION_ITEM_LEN);
    while !reader.rest().is_empty() {
        let item = Item::read(&mut reader)?;
        let ids = item.run_len + item.agent_len;
        reader.bytes(ids)?;
        if item.with_receipt {
            let len = EVICTION_ITEM_LEN + ids;
            receipts.push(ReceiptAt { run_no: item.run_no, at: item.at, len });
        }
    }
    Ok(receipts)
}

/// The part of an item that has a fixed length.
struct Item {
    run_no: RunNo,
    at: Timestamp,
    bytes: u64,
    run_len: usize,
    agent_len: usize,
    rule: u8,
    with_receipt: bool,
}

impl Item {
    fn read(reader: &mut Reader<'_>) -> Decoded<Self> {
        let (run_no, at) = (RunNo(reader.u64()?), Timestamp(reader.i64()?));
        let bytes = reader.u64()?;
        let (run_len, agent_len) = (usize::from(reader.u16()?), usize::from(reader.u16()?));
        let (rule, flags) = (reader.u8()?, reader.u8()?);
        reader.zeros(2)?;
        if flags & !WITH_RECEIPT != 0 {
            return Err(Damage::ReservedNotZero);
        }
        let with_receipt = flags & WITH_RECEIPT != 0;
        let bare = at.0 == 0 && bytes == 0 && run_len == 0 && agent_len == 0 && rule == 0;
        if !with_receipt && !bare {
            return Err(Damage::ReservedNotZero);
        }
        Ok(Self { run_no, at, bytes, run_len, agent_len, rule, with_receipt })
    }
}

fn decode_item(reader: &mut Reader<'_>) -> Decoded<Eviction> {
    let item = Item::read(reader)?;
    let range = |len: usize| Damage::OutOfRange { found: len as u64, max: 512 };
    let receipt = if item.with_receipt {
        let run = RunId::new(reader.text(item.run_len)?).map_err(|_| range(item.run_len))?;
        let agent =
            AgentId::new(reader.text(item.agent_len)?).map_err(|_| range(item.agent_len))?;
        Some(EvictionReceipt { agent, run, at: item.at, rule: item.rule, bytes: item.bytes })
    } else {
        None
    };
    Ok(Eviction { run_no: item.run_no, receipt })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<Eviction> {
        let receipt = EvictionReceipt {
            agent: AgentId::new("planner").unwrap(),
            run: RunId::new("r/\0\u{e9}").unwrap(),
            at: Timestamp(-5),
            rule: 3,
            bytes: 1 << 40,
        };
        vec![
            Eviction { run_no: RunNo(7), receipt: None },
            Eviction { run_no: RunNo(u64::MAX), receipt: Some(receipt) },
            Eviction { run_no: RunNo(0), receipt: None },
        ]
    }

    #[test]
    fn evictions_come_back_with_and_without_receipts() {
        let mut bytes = Vec::new();
        for eviction in sample() {
            let before = bytes.len();
            eviction.encode(&mut bytes);
            assert_eq!(bytes.len() - before, eviction.encoded_len());
        }
        assert_eq!(decode_evictions(&bytes), Ok(sample()));
        let numbers = [(RunNo(7), false), (RunNo(u64::MAX), true), (RunNo(0), false)];
        assert_eq!(evicted_runs(&bytes), Ok(numbers.to_vec()));
        for len in 0..bytes.len() {
            let cut = decode_evictions(&bytes[..len]);
            assert!(cut.is_err() || sample().starts_with(&cut.unwrap()), "{len}");
        }
    }

    #[test]
    fn an_item_without_a_receipt_is_zero_behind_its_run() {
        let mut bytes = Vec::new();
        sample()[0].encode(&mut bytes);
        for at in 8..EVICTION_ITEM_LEN {
            let mut bad = bytes.clone();
            bad[at] = 2;
            assert!(decode_evictions(&bad).is_err() && evicted_runs(&bad).is_err(), "{at}");
        }
    }
}
