//! [`ClarkSink`]: where the recorder of clark-agent sends its records, for two of its versions.
//!
//! A record goes over as JSON, so that whatever a version has that the store does not know stays
//! in it.

use async_trait::async_trait;
use runlog::Error;
use runlog_stores::trajectory::TrajectoryLog;
use serde::Serialize;

/// A `TrajectorySink` of clark-agent 0.2 and 0.4 that writes into a [`TrajectoryLog`].
#[derive(Debug, Clone)]
pub struct ClarkSink {
    log: TrajectoryLog,
    durable: bool,
}

/// Why a record was not stored.
enum Refusal {
    /// It is the record's fault.
    Rejected(String),
    /// It is the store's.
    Io(String),
}

impl ClarkSink {
    /// Records survive the death of the process once they are recorded.
    pub fn new(log: TrajectoryLog) -> Self {
        Self { log, durable: false }
    }

    /// Records survive power loss once they are recorded. Other tasks go on meanwhile.
    pub fn durable(log: TrajectoryLog) -> Self {
        Self { log, durable: true }
    }

    async fn store(&self, record: &(impl Serialize + Sync)) -> Result<(), Refusal> {
        let json =
            serde_json::to_vec(record).map_err(|error| Refusal::Rejected(error.to_string()))?;
        let recorded = self.log.record_bytes(&json).map_err(refusal)?;
        if self.durable {
            recorded.durable().await.map_err(refusal)?;
        }
        Ok(())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` wants")]
fn refusal(error: Error) -> Refusal {
    let text = error.to_string();
    match error {
        Error::InvalidId { .. }
        | Error::TooLarge { .. }
        | Error::Json { .. }
        | Error::InvalidArgument { .. } => Refusal::Rejected(text),
        _ => Refusal::Io(text),
    }
}

#[async_trait]
impl clark_agent_0_2::TrajectorySink for ClarkSink {
    async fn record(
        &self,
        record: clark_agent_0_2::TrajectoryRecord,
    ) -> Result<(), clark_agent_0_2::TrajectoryError> {
        use clark_agent_0_2::TrajectoryError;
        self.store(&record).await.map_err(|refusal| match refusal {
            Refusal::Rejected(text) => TrajectoryError::Rejected(text),
            Refusal::Io(text) => TrajectoryError::Io(text),
        })
    }
}

#[async_trait]
impl clark_agent_0_4::TrajectorySink for ClarkSink {
    async fn record(
        &self,
        record: clark_agent_0_4::TrajectoryRecord,
    ) -> Result<(), clark_agent_0_4::TrajectoryError> {
        use clark_agent_0_4::TrajectoryError;
        self.store(&record).await.map_err(|refusal| match refusal {
            Refusal::Rejected(text) => TrajectoryError::Rejected(text),
            Refusal::Io(text) => TrajectoryError::Io(text),
        })
    }
}
