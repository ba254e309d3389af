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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Damage;

    #[test]
    fn what_was_encoded_is_decoded_and_a_long_host_is_cut() {
        let mut owner = Owner { pid: 7, host: "box".into(), since: Timestamp(5) };
        assert_eq!(decode(&encode(&owner)), Ok(owner.clone()));
        owner.host = "\u{fc}".repeat(300);
        let read = decode(&encode(&owner)).unwrap();
        assert_eq!(read.host, "\u{fc}".repeat(127));
    }

    #[test]
    fn a_host_that_is_longer_than_any_that_is_written_is_refused() {
        let mut page = encode(&Owner { pid: 7, host: "box".into(), since: Timestamp(5) });
        page[12..14].copy_from_slice(&256_u16.to_le_bytes());
        let crc = crc32fast::hash(&page[..CHECKED_LEN]);
        page[CHECKED_LEN..CHECKED_LEN + 4].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(decode(&page), Err(Damage::OutOfRange { found: 256, max: 255 }));
    }
}
