//! The payload of EVICT: the deleted runs and their receipts (section 11 of FORMAT.md).

use crate::format::codec::{Decoded, Reader, Writer, check_flags};
use crate::types::{AgentId, RunId, RunNo, Timestamp};

/// The length of an item without its ids.
pub const EVICTION_ITEM_LEN: usize = 32;
const WITH_RECEIPT: u8 = 1;

/// One run that is deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Eviction {
    /// The run.
    pub run_no: RunNo,
    /// What remains to report the deletion, if anything.
    pub receipt: Option<EvictionReceipt>,
}

/// What the store keeps about a deleted run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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
        let ids = |kept: &EvictionReceipt| kept.run.as_str().len() + kept.agent.as_str().len();
        EVICTION_ITEM_LEN + self.receipt.as_ref().map_or(0, ids)
    }

    /// Appends the item.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.u64(self.run_no.0);
        let Some(kept) = &self.receipt else {
            writer.zeros(EVICTION_ITEM_LEN - 8);
            return;
        };
        let (run, agent) = (kept.run.as_str(), kept.agent.as_str());
        writer
            .i64(kept.at.0)
            .u64(kept.bytes)
            .id_len(run)
            .id_len(agent)
            .u8(kept.rule)
            .u8(WITH_RECEIPT)
            .zeros(2)
            .bytes(run.as_bytes())
            .bytes(agent.as_bytes());
    }
}

/// Reads the items of an EVICT payload.
pub fn decode_evictions(payload: &[u8]) -> Decoded<Vec<Eviction>> {
    read_items(payload, |run_no, item, reader| {
        let Some(item) = item else { return Ok(Eviction { run_no, receipt: None }) };
        let run = reader.id(item.run_len, RunId::new)?;
        let agent = reader.id(item.agent_len, AgentId::new)?;
        let (at, rule, bytes) = (item.at, item.rule, item.bytes);
        let receipt = Some(EvictionReceipt { agent, run, at, rule, bytes });
        Ok(Eviction { run_no, receipt })
    })
}

/// The runs of an EVICT payload, and whether each has a receipt.
pub fn evicted_runs(payload: &[u8]) -> Decoded<Vec<(RunNo, bool)>> {
    read_items(payload, |run_no, item, reader| {
        if let Some(item) = &item {
            reader.text(item.run_len)?;
            reader.text(item.agent_len)?;
        }
        Ok((run_no, item.is_some()))
    })
}

/// For each receipt of an EVICT payload: its time and its run, which are its key, and the length of
/// its item.
pub fn receipts_at(payload: &[u8]) -> Decoded<Vec<((Timestamp, RunNo), usize)>> {
    let items = read_items(payload, |run_no, item, reader| {
        let Some(item) = item else { return Ok(None) };
        let ids = reader.bytes(item.run_len + item.agent_len)?;
        Ok(Some(((item.at, run_no), EVICTION_ITEM_LEN + ids.len())))
    })?;
    Ok(items.into_iter().flatten().collect())
}

/// The fixed-length part of a receipt.
struct Item {
    at: Timestamp,
    bytes: u64,
    run_len: usize,
    agent_len: usize,
    rule: u8,
}

/// Calls `read` for each item, with the reader at the ids of its receipt.
fn read_items<T>(
    payload: &[u8],
    read: impl Fn(RunNo, Option<Item>, &mut Reader<'_>) -> Decoded<T>,
) -> Decoded<Vec<T>> {
    let mut reader = Reader::new(payload);
    let mut items = Vec::with_capacity(payload.len() / EVICTION_ITEM_LEN);
    while !reader.rest().is_empty() {
        let run_no = RunNo(reader.u64()?);
        let mut fields = Reader::new(reader.bytes(EVICTION_ITEM_LEN - 8)?);
        let mut bare = fields.clone();
        let item = Item {
            at: Timestamp(fields.i64()?),
            bytes: fields.u64()?,
            run_len: fields.u16()?.into(),
            agent_len: fields.u16()?.into(),
            rule: fields.u8()?,
        };
        let flags = fields.u8()?;
        check_flags(flags, WITH_RECEIPT)?;
        fields.zeros(2)?;
        let receipt = if flags == 0 { bare.zeros(24).map(|_| None)? } else { Some(item) };
        items.push(read(run_no, receipt, &mut reader)?);
    }
    Ok(items)
}
