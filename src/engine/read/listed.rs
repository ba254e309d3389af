//! All runs as of one moment, without an allocation for each: [`Listed`].

use crate::gc::{Candidate, Inventory};
use crate::index::RowSummary;
use crate::types::{AgentId, RunId};

/// All runs as of one moment. A run takes 56 bytes and its id.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listed {
    pub(crate) inventory: Inventory,
    /// The run ids, concatenated, and where each of them ends.
    ids: String,
    ends: Vec<usize>,
}

impl Listed {
    /// Adds the run of a row. Documents are left out.
    pub(crate) fn add_row(&mut self, row: &RowSummary<'_>) {
        if row.document {
            return;
        }
        // Ids in rows were checked when the rows were read.
        let known = self.inventory.agent(row.agent).cloned();
        let Some(agent) = known.or_else(|| AgentId::new(row.agent).ok()) else { return };
        let run = Candidate {
            run_no: row.run_no,
            status: row.status,
            created_at: row.created_at,
            ended_at: row.ended_at.unwrap_or(row.last_at),
            bytes: row.stored,
            held: row.held,
        };
        self.add(&agent, row.run, run);
    }

    /// Adds a run.
    pub(crate) fn add(&mut self, agent: &AgentId, id: &str, run: Candidate) {
        self.ids.push_str(id);
        self.ends.push(self.ids.len());
        self.inventory.push(agent, run);
    }

    /// The run at this place of the inventory, with its ids.
    pub(crate) fn get(&self, place: usize) -> Option<(&AgentId, RunId, &Candidate)> {
        let (agent, run) = self.inventory.get(place)?;
        let start = place.checked_sub(1).and_then(|before| self.ends.get(before));
        let id = self.ids.get(start.copied().unwrap_or_default()..*self.ends.get(place)?)?;
        Some((agent, RunId::new(id).ok()?, run))
    }
}
