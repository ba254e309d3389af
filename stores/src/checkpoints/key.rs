//! The owner of checkpoints: tenant and thread.

use core::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use runlog::{Error, Result};

/// A tenant: any text that is not empty. A tenant never sees data of another.
///
/// In JSON it is a string; an empty one is refused. The default tenant is "default".
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TenantId(Arc<str>);

impl TenantId {
    /// Uses the text unchanged.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is empty.
    pub fn new(id: &str) -> Result<Self> {
        if id.is_empty() {
            return Err(Error::InvalidArgument { what: "the id of a tenant is not empty" });
        }
        Ok(Self(Arc::from(id)))
    }

    /// The id as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for TenantId {
    fn default() -> Self {
        Self(Arc::from("default"))
    }
}

impl TryFrom<String> for TenantId {
    type Error = Error;

    fn try_from(id: String) -> Result<Self> {
        Self::new(&id)
    }
}

impl TryFrom<&str> for TenantId {
    type Error = Error;

    fn try_from(id: &str) -> Result<Self> {
        Self::new(id)
    }
}

impl From<TenantId> for String {
    fn from(id: TenantId) -> Self {
        id.as_str().to_owned()
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A conversation thread of a tenant. Neither of the two ids is empty; they may have any
/// characters.
///
/// A thread id has at most 512 bytes; a tenant and the name of the store together at most 470. With
/// longer ones every call fails with [`Error::InvalidId`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct ThreadKey {
    tenant_id: TenantId,
    thread_id: String,
}

/// A key as it comes in JSON.
#[derive(Deserialize)]
struct Unchecked {
    tenant_id: TenantId,
    thread_id: String,
}

impl TryFrom<Unchecked> for ThreadKey {
    type Error = Error;

    fn try_from(key: Unchecked) -> Result<Self> {
        Self::new(key.tenant_id, key.thread_id)
    }
}

impl ThreadKey {
    /// A thread of a tenant.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the thread's id is empty.
    pub fn new(tenant_id: TenantId, thread_id: impl Into<String>) -> Result<Self> {
        let thread_id = thread_id.into();
        if thread_id.is_empty() {
            return Err(Error::InvalidArgument { what: "the id of a thread is not empty" });
        }
        Ok(Self { tenant_id, thread_id })
    }

    /// The tenant.
    pub fn tenant_id(&self) -> &TenantId {
        &self.tenant_id
    }

    /// The thread.
    pub fn thread_id(&self) -> &str {
        &self.thread_id
    }
}

impl fmt::Display for ThreadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {:?} of tenant {:?}", self.thread_id, self.tenant_id)
    }
}
