//! The ids with which the payloads of BIND, START and PUT begin (section 11 of FORMAT.md).
//!
//! They have a checksum of their own. So damage of what follows them costs that, and no run its
//! name.

use crate::error::Damage;
use crate::format::codec::{Decoded, Reader, Writer, check_crc};
use crate::format::frames::frame::FrameKind;
use crate::types::{AgentId, RunId, RunNo};

/// The length of the ids of a run with names of this length together.
pub const fn ids_len(names: usize) -> usize {
    8 + names
}

/// Appends the ids of a run: the payload of BIND, and that of START in front of the metadata.
pub fn encode_ids(agent: &AgentId, run: &RunId, out: &mut Vec<u8>) {
    encode(agent, run, &[], out);
}

/// Appends the ids of a document and the version that the PUT evicts, or 0. The kind of the record
/// follows them.
pub fn encode_put(namespace: &AgentId, key: &RunId, replaced: RunNo, out: &mut Vec<u8>) {
    encode(namespace, key, &replaced.0.to_le_bytes(), out);
}

fn encode(agent: &AgentId, run: &RunId, more: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    Writer::new(out)
        .zeros(4)
        .id_len(agent.as_str())
        .id_len(run.as_str())
        .bytes(agent.as_str().as_bytes())
        .bytes(run.as_str().as_bytes())
        .bytes(more);
    let crc = crc32fast::hash(&out[start + 4..]);
    out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Reads the ids in the payload of BIND or START, and what follows them.
pub fn decode_ids(payload: &[u8]) -> Decoded<(AgentId, RunId, &[u8])> {
    let (agent, run, behind) = decode(payload, 0)?;
    Ok((agent, run, behind.rest()))
}

/// Reads the ids in the payload of PUT, the version that it evicts, if any, and what follows them.
pub fn decode_put(payload: &[u8]) -> Decoded<(AgentId, RunId, Option<RunNo>, &[u8])> {
    let (namespace, key, mut behind) = decode(payload, 8)?;
    let replaced = Some(RunNo(behind.u64()?)).filter(|run_no| *run_no != RunNo(0));
    Ok((namespace, key, replaced, behind.rest()))
}

/// The ids, and a reader of what follows them, of which the checksum covers `more` bytes.
fn decode(payload: &[u8], more: usize) -> Decoded<(AgentId, RunId, Reader<'_>)> {
    let mut reader = Reader::new(payload);
    let crc = reader.u32()?;
    let checked = reader.rest();
    let (agent_len, run_len) = (usize::from(reader.u16()?), usize::from(reader.u16()?));
    let checked = checked.get(..4 + agent_len + run_len + more).ok_or(Damage::Truncated)?;
    check_crc(crc, crc32fast::hash(checked))?;
    let agent = reader.id(agent_len, AgentId::new)?;
    Ok((agent, reader.id(run_len, RunId::new)?, reader))
}

/// The ids in the payload of a frame of this kind, if they check. What follows them need not.
pub fn names_in(kind: FrameKind, payload: &[u8]) -> Option<(AgentId, RunId)> {
    match kind {
        FrameKind::Bind | FrameKind::Start => {
            decode_ids(payload).ok().map(|(agent, run, _)| (agent, run))
        }
        FrameKind::Put => decode_put(payload).ok().map(|(agent, run, ..)| (agent, run)),
        _ => None,
    }
}

/// The version that a PUT evicts. What follows the ids need not check.
pub fn replaced_by(payload: &[u8]) -> Option<RunNo> {
    decode_put(payload).ok()?.2
}

/// The payload of a PUT without the version that it evicts.
pub fn without_replaced(payload: &[u8]) -> Decoded<Vec<u8>> {
    let (namespace, key, _, record) = decode_put(payload)?;
    let mut out = Vec::with_capacity(payload.len());
    encode_put(&namespace, &key, RunNo(0), &mut out);
    out.extend_from_slice(record);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_although_what_follows_them_is_damaged() {
        let (space, key) = (AgentId::new("space").unwrap(), RunId::new("key").unwrap());
        let mut put = Vec::new();
        encode_put(&space, &key, RunNo(7), &mut put);
        let ids = put.len();
        put.extend_from_slice(b"record");
        for place in 0..put.len() {
            let mut damaged = put.clone();
            damaged[place] ^= 1;
            let names = names_in(FrameKind::Put, &damaged);
            assert_eq!(names.is_some(), place >= ids, "byte {place}");
            assert_eq!(replaced_by(&damaged), (place >= ids).then_some(RunNo(7)));
        }
        let without = without_replaced(&put).unwrap();
        assert_eq!(decode_put(&without), Ok((space, key, None, &b"record"[..])));
        assert_eq!(without.len(), put.len());
    }
}
