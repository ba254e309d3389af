//! What the checks and the hashes of a directory are keyed by (section 15 of FORMAT.md).

use core::hash::Hasher as _;

use siphasher::sip::SipHasher13;

use crate::format::segments::run_entry::RunEntry;

/// The key of the hashes of a store: its uuid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IdHash([u8; 16]);

impl IdHash {
    /// The hashes of the store with this uuid.
    pub const fn new(uuid: [u8; 16]) -> Self {
        Self(uuid)
    }

    /// The hash by which a run is found: of its id alone.
    pub fn of_run(self, run: &str) -> u32 {
        self.of(&[run])
    }

    /// The hash by which the versions of a document are found.
    pub fn of_document(self, namespace: &str, key: &str) -> u32 {
        self.of_both(namespace, key)
    }

    /// The hash of both ids of a run, by which no directory finds it.
    pub(crate) fn of_both(self, agent: &str, run: &str) -> u32 {
        self.of(&[agent, run])
    }

    /// The hash by which a directory finds an entry.
    pub(super) fn of_entry(self, entry: &RunEntry) -> u32 {
        self.of_ids(entry.run.as_str(), entry.agent.as_str(), entry.document)
    }

    pub(super) fn of_ids(self, run: &str, agent: &str, document: bool) -> u32 {
        if document { self.of_document(agent, run) } else { self.of_run(run) }
    }

    fn of(self, texts: &[&str]) -> u32 {
        let mut hash = SipHasher13::new_with_key(&self.0);
        for (number, text) in texts.iter().enumerate() {
            if number > 0 {
                // No text has this byte.
                hash.write(&[0xff]);
            }
            hash.write(text.as_bytes());
        }
        u32::try_from(hash.finish() >> 32).unwrap_or_default()
    }
}

/// What the checks and the hashes of a directory are keyed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryKey {
    /// The salt of the segment.
    pub salt: u64,
    /// Where the log of the segment ends.
    pub end: u32,
    /// The hashes of ids.
    pub ids: IdHash,
}

impl DirectoryKey {
    pub(super) fn salted(&self) -> crc32fast::Hasher {
        let mut salted = crc32fast::Hasher::new();
        salted.update(&self.salt.to_le_bytes());
        salted.update(&self.end.to_le_bytes());
        salted
    }
}

/// The check of bytes that stand at `at` of a directory.
pub(super) fn check_at(salted: &crc32fast::Hasher, at: usize, bytes: &[u8]) -> u32 {
    let mut crc = salted.clone();
    crc.update(&u32::try_from(at).unwrap_or(u32::MAX).to_le_bytes());
    crc.update(bytes);
    crc.finalize()
}
