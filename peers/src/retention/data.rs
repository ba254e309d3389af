//! The data that all engines get: the same steps in the same order with the same payloads.

use core::fmt;

use runlog_sim::SplitMix64;

/// Records of a completed run.
pub(crate) const RECORDS: u32 = 30;
/// Bytes of a record.
pub(crate) const RECORD_LEN: usize = 256;
/// The number of agents, which alternate.
pub(crate) const AGENTS: u32 = 50;
/// How many runs are written at once, and how many are in progress at the end.
pub(crate) const AT_ONCE: u32 = 64;
/// How many completed runs of each agent are kept.
pub(crate) const KEEP: u32 = 100;

/// Which runs there are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Data {
    pub(crate) completed: u32,
    scattered: bool,
}

/// One step.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    Start { run: u32 },
    Append { run: u32, seq: u32 },
    End { run: u32 },
}

impl Data {
    pub(crate) fn new(completed: u32, scattered: bool) -> Self {
        Self { completed, scattered }
    }

    /// Runs are numbered in the order in which they start, those in progress too.
    pub(crate) fn runs(self) -> u32 {
        self.completed + AT_ONCE
    }

    /// Whether a run is in progress at the end: the last ones, or one in this many.
    pub(crate) fn is_in_progress(self, run: u32) -> bool {
        if self.scattered {
            let each = self.runs() / AT_ONCE;
            run.is_multiple_of(each) && run / each < AT_ONCE
        } else {
            run >= self.completed
        }
    }

    /// Does all steps.
    pub(crate) fn each_step(self, mut step: impl FnMut(Step)) {
        let numbers: Vec<u32> = (0..self.runs()).collect();
        for group in numbers.chunks(AT_ONCE as usize) {
            for &run in group {
                step(Step::Start { run });
            }
            for seq in 0..RECORDS {
                for &run in group {
                    step(Step::Append { run, seq });
                }
            }
            for &run in group.iter().filter(|run| !self.is_in_progress(**run)) {
                step(Step::End { run });
            }
        }
    }

    /// The completed runs of an agent that are kept, newest first.
    pub(crate) fn kept_of(self, agent: u32) -> Vec<u32> {
        let runs = (0..self.runs()).rev();
        let own = runs.filter(|run| agent_of(*run) == agent && !self.is_in_progress(*run));
        own.take(KEEP as usize).collect()
    }

    /// The runs in progress.
    pub(crate) fn in_progress(self) -> Vec<u32> {
        (0..self.runs()).filter(|run| self.is_in_progress(*run)).collect()
    }
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.scattered { "scattered" } else { "the latest" };
        write!(
            f,
            "{} completed runs of {RECORDS} x {RECORD_LEN} B over {AGENTS} agents, \
             {AT_ONCE} in progress ({place}), keep {KEEP}",
            self.completed
        )
    }
}

pub(crate) fn agent_of(run: u32) -> u32 {
    run % AGENTS
}

pub(crate) fn agent_name(agent: u32) -> String {
    format!("agent-{agent:02}")
}

pub(crate) fn run_name(run: u32) -> String {
    format!("run-{run:08}")
}

/// The bytes of a record: random letters.
pub(crate) fn payload(run: u32, seq: u32) -> [u8; RECORD_LEN] {
    let mut random = SplitMix64::new(u64::from(run) << 32 | u64::from(seq));
    let mut bytes = [b'"'; RECORD_LEN];
    for word in bytes[1..RECORD_LEN - 1].chunks_mut(8) {
        let letters = random.next_u64().to_le_bytes().map(|byte| b'a' + byte % 26);
        word.copy_from_slice(&letters[..word.len()]);
    }
    bytes
}
