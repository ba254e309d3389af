//! What the metadata of an imported run say: from which file it came, and in which format.

use std::fmt::Write as _;

use runlog::RunMetadata;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::encoding::Encoding;
use super::{Format, Layout};

/// Where an imported run comes from, as the metadata of its start say it.
///
/// All of it is of the moment when the run was started: a file that grew since has more bytes.
/// Imports of the first versions said no more than the name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The name of the file.
    pub imported_from: String,
    /// Where it lay: the run is that of this file, or of one of the same name that it moved to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Its format, if it was known then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// How its bytes became records.
    #[serde(default)]
    pub layout: Layout,
    /// How its characters are written.
    #[serde(default, skip_serializing_if = "Encoding::is_plain")]
    pub encoding: Encoding,
    /// How many bytes it had, unpacked if it was compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// `sha256:` and the digest of these bytes in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// How many records they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<u64>,
    /// What stands between two steps of a document that follow one another.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub join: String,
}

impl Origin {
    /// What the metadata say, if the run was imported by this command.
    pub fn of(metadata: Option<&RunMetadata>) -> Option<Self> {
        serde_json::from_slice(metadata?.payload()).ok()
    }

    /// As the payload of the start.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The digest of these bytes.
pub fn digest(bytes: &[u8]) -> String {
    digest_text(&Sha256::digest(bytes))
}

/// A digest as `sha256:` and the digits that `sha256sum` prints.
pub fn digest_text(digest: &[u8]) -> String {
    digest.iter().fold("sha256:".to_owned(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
