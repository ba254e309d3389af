//! Policies for serde (feature `serde`): what is not named is left out, `null` is "no limit".
//!
//! Names that are not known are refused: a misspelled exception must not delete more than was
//! meant.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::retention::{Limit, Limits, Retention, Scope};
use crate::types::AgentId;

impl<T: Serialize> Serialize for Limit<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Inherited | Self::Unlimited => serializer.serialize_none(),
            Self::AtMost(limit) => serializer.serialize_some(limit),
        }
    }
}

impl<'de, T: Deserialize<'de> + Default + PartialEq> Deserialize<'de> for Limit<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Option::deserialize(from).map(Self::new)
    }
}

/// The exceptions for statuses.
#[derive(Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Statuses {
    #[serde(skip_serializing_if = "is_default")]
    in_progress: Limits,
    #[serde(skip_serializing_if = "is_default")]
    completed: Limits,
    #[serde(skip_serializing_if = "is_default")]
    failed: Limits,
    #[serde(skip_serializing_if = "is_default")]
    cancelled: Limits,
    #[serde(skip_serializing_if = "is_default")]
    interrupted: Limits,
}

/// What a [`Scope`] and a [`Retention`] look like. One has no use for some fields of the other, and
/// refuses them.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Form {
    #[serde(skip_serializing_if = "is_default")]
    keep_newest: Limit<u64>,
    #[serde(skip_serializing_if = "is_default")]
    max_age: Limit<Duration>,
    #[serde(skip_serializing_if = "is_default")]
    max_bytes: Limit<u64>,
    #[serde(skip_serializing_if = "is_default")]
    statuses: Statuses,
    #[serde(skip_serializing_if = "is_default")]
    agents: BTreeMap<AgentId, Scope>,
    #[serde(skip_serializing_if = "is_default")]
    only_agents: BTreeSet<AgentId>,
    #[serde(skip_serializing_if = "is_default")]
    protect_newest: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Form {
    fn scope(&self) -> Scope {
        let Statuses { in_progress, completed, failed, cancelled, interrupted } = self.statuses;
        Scope {
            any: Limits {
                keep_newest: self.keep_newest,
                max_age: self.max_age,
                max_bytes: self.max_bytes,
            },
            each: [in_progress, completed, failed, cancelled, interrupted],
        }
    }
}

impl From<Scope> for Form {
    fn from(Scope { any, each }: Scope) -> Self {
        let [in_progress, completed, failed, cancelled, interrupted] = each;
        Self {
            keep_newest: any.keep_newest,
            max_age: any.max_age,
            max_bytes: any.max_bytes,
            statuses: Statuses { in_progress, completed, failed, cancelled, interrupted },
            ..Self::default()
        }
    }
}

impl TryFrom<Form> for Scope {
    type Error = &'static str;

    fn try_from(form: Form) -> Result<Self, Self::Error> {
        let is_of_one = form.agents.is_empty() && form.only_agents.is_empty();
        if !is_of_one || form.protect_newest {
            return Err("limits of one agent name no other agents, and do not protect the newest");
        }
        Ok(form.scope())
    }
}

impl From<Retention> for Form {
    fn from(policy: Retention) -> Self {
        Self {
            agents: policy.agents,
            only_agents: policy.only,
            protect_newest: policy.protects_newest,
            ..Self::from(policy.all)
        }
    }
}

impl From<Form> for Retention {
    fn from(form: Form) -> Self {
        Self {
            all: form.scope(),
            agents: form.agents,
            only: form.only_agents,
            protects_newest: form.protect_newest,
        }
    }
}
