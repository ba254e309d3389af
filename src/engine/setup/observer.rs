//! Telling the embedder what the engine is doing besides answering calls.

use core::fmt;
use std::sync::Arc;

/// Something the engine does that takes longer than an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activity {
    /// Putting the store in order while it is opened.
    Recovery,
    /// Going on in the next segment.
    Roll,
    /// Writing the directory of a full segment, and noting that it is durable.
    Seal,
    /// Setting a segment aside for later.
    Reserve,
    /// A sync of the file.
    Sync,
    /// Bringing the index up to the last sealed segment.
    IndexCheckpoint,
    /// Building the index anew.
    IndexRebuild,
    /// Giving the space of dead segments back.
    Reclaim,
    /// Moving living runs out of segments that are mostly dead.
    Compaction,
}

/// Whether an activity begins or ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It begins.
    Begin,
    /// It is over, with or without success.
    End,
}

/// Is told what the engine does. Called from whatever thread does it, with locks of the engine
/// held: an observer must return quickly and must not call the store.
pub trait Observer: fmt::Debug + Send + Sync + 'static {
    /// An activity begins or ends.
    fn observe(&self, activity: Activity, phase: Phase);
}

/// An activity under way; its end is told when this is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    observer: Option<Arc<dyn Observer>>,
    activity: Activity,
    #[cfg(feature = "tracing")]
    _span: tracing::span::EnteredSpan,
}

impl Watch {
    pub(crate) fn begin(observer: Option<&Arc<dyn Observer>>, activity: Activity) -> Self {
        if let Some(observer) = observer {
            observer.observe(activity, Phase::Begin);
        }
        Self {
            observer: observer.cloned(),
            activity,
            #[cfg(feature = "tracing")]
            _span: tracing::debug_span!("runlog", activity = ?activity).entered(),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(observer) = &self.observer {
            observer.observe(self.activity, Phase::End);
        }
    }
}
