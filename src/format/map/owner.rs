//! The owner page: which process holds the writer lock. It is for people only, since the lock
//! itself decides. A page that fails its check is treated as absent.

use crate::error::Owner;
use crate::format::codec::{Decoded, at_most, open_checked, put_checked};
use crate::format::layout::PAGE_LEN;
use crate::types::Timestamp;

const MAGIC: [u8; 8] = *b"RLOGOWN1";
const MAX_HOST_LEN: usize = 255;
const CHECKED_LEN: usize = 8 + 4 + 2 + 2 + 8 + 256;

/// The page's bytes. A longer host name is cut at a character boundary.
pub fn encode(owner: &Owner) -> Vec<u8> {
    let mut cut = owner.host.len().min(MAX_HOST_LEN);
    while !owner.host.is_char_boundary(cut) {
        cut -= 1;
    }
    let host = owner.host.get(..cut).unwrap_or_default();
    put_checked(&MAGIC, (CHECKED_LEN, PAGE_LEN), |out| {
        out.u32(owner.pid)
            .u16(u16::try_from(host.len()).expect("cut to 255 bytes"))
            .zeros(2)
            .i64(owner.since.0)
            .bytes(host.as_bytes());
    })
}

/// Reads a page.
pub fn decode(page: &[u8]) -> Decoded<Owner> {
    let mut reader = open_checked(page, &MAGIC, CHECKED_LEN)?;
    let (pid, host_len) = (reader.u32()?, reader.u16()?);
    let since = Timestamp(reader.zeros(2)?.i64()?);
    at_most(host_len, MAX_HOST_LEN as u64)?;
    Ok(Owner { pid, host: reader.text(host_len.into())?.to_owned(), since })
}
