//! The acknowledgements that the writing process sends to the checking one.
//!
//! 16 bytes each, little-endian: 0 what (u8), 1 level (u8), 2 zero (u16), 4 run (u32), 8 sequence
//! (u64). Each one is written with one call and is shorter than the atomic writes of a pipe, so a
//! kill leaves only whole ones in the pipe.

use std::io::{self, Read, Write};

use super::workload::RunNumber;

/// One acknowledgement: the store returned from a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) run: RunNumber,
    pub(crate) what: What,
    pub(crate) level: Level,
}

/// What was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Start,
    Record(u64),
    End,
}

/// The failure that it survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Process,
    Disk,
}

const LEN: usize = 16;

impl Ack {
    /// Writes it in one piece.
    pub(crate) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let (what, seq) = match self.what {
            What::Start => (0, 0),
            What::Record(seq) => (1, seq),
            What::End => (2, 0),
        };
        let level = match self.level {
            Level::Process => 0,
            Level::Disk => 1,
        };
        let mut bytes = [0; LEN];
        bytes[0] = what;
        bytes[1] = level;
        bytes[4..8].copy_from_slice(&self.run.0.to_le_bytes());
        bytes[8..].copy_from_slice(&seq.to_le_bytes());
        to.write_all(&bytes)?;
        to.flush()
    }

    /// Reads the next one; nothing at the end.
    pub(crate) fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut bytes = [0; LEN];
        match from.read_exact(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            other => other?,
        }
        let [what, level, _, _, r0, r1, r2, r3, seq @ ..] = bytes;
        let seq = u64::from_le_bytes(seq);
        let (what, level) = match (what, level) {
            (0, 1) => (What::Start, Level::Disk),
            (1, 0) => (What::Record(seq), Level::Process),
            (1, 1) => (What::Record(seq), Level::Disk),
            (2, 1) => (What::End, Level::Disk),
            _ => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "no acknowledgement"));
            }
        };
        let run = RunNumber(u32::from_le_bytes([r0, r1, r2, r3]));
        Ok(Some(Self { run, what, level }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let acks = [
            Ack { run: RunNumber(7), what: What::Start, level: Level::Disk },
            Ack { run: RunNumber(u32::MAX), what: What::Record(1 << 40), level: Level::Process },
            Ack { run: RunNumber(0), what: What::Record(0), level: Level::Disk },
            Ack { run: RunNumber(7), what: What::End, level: Level::Disk },
        ];
        let mut bytes = Vec::new();
        for ack in acks {
            ack.write(&mut bytes).expect("a vector takes all");
        }
        let mut from = &bytes[..];
        for ack in acks {
            assert_eq!(Ack::read(&mut from).expect("an ack"), Some(ack));
        }
        assert_eq!(Ack::read(&mut from).expect("the end"), None);
    }
}
