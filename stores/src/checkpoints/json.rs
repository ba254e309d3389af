//! Documents and values as JSON, and the schema that documents have.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::{CheckpointError, Defect};
use crate::objects;
use runlog::{Error, Result};

/// The newest schema of the documents.
pub(super) const SCHEMA_VERSION: u32 = 1;

/// The field that all documents have.
#[derive(Deserialize)]
struct Schema {
    schema_version: Option<u64>,
}

/// A value as JSON.
pub(super) fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|source| Error::Json { source: std::sync::Arc::new(source) })
}

/// Reads a document, or its first line, and returns the defect if it is not valid.
pub(super) fn read_json<T: DeserializeOwned>(
    bytes: &[u8],
    namespace: &str,
    key: &str,
) -> Result<T, CheckpointError> {
    let damaged = |defect| CheckpointError::damaged(namespace, key, defect);
    let schema: Schema = objects::from_slice(bytes).map_err(|_| damaged(Defect::Shape))?;
    match schema.schema_version {
        None | Some(0) => Err(damaged(Defect::NoSchema)),
        Some(found) if found > SCHEMA_VERSION.into() => Err(CheckpointError::NewerSchema {
            namespace: namespace.to_owned(),
            key: key.to_owned(),
            found,
            known: SCHEMA_VERSION,
        }),
        Some(_) => objects::from_slice(bytes).map_err(|_| damaged(Defect::Shape)),
    }
}
