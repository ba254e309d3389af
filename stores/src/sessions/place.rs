//! The blocking part of the store: how sessions are stored, and what the thread does for each call.
//!
//! The parts of sessions are documents, each part in a namespace of its own with the ids as keys:
//! `\0sessions/<name>/<part>`. Beside them are `head` (see `snapshot.rs`) and `lease`. A write is
//! one batch of the parts, the head and the check of the lease.

use core::time::Duration;
use std::sync::Arc;

use super::error::{Part, SessionError};
use super::lease::{Fence, Found, Granted, WriterLease, fence, fenced};
use super::watch::Hub;
use crate::objects::readable;
use crate::worker::Later;
use runlog::{
    Batch, Committed, Document, Error, Expected, Lsn, NewRecord, Result, RunLog, Timestamp, Version,
};

/// The prefix of the namespaces of sessions. Callers should not use it.
const NAMESPACE: &str = "\0sessions/";

/// How many ids one step lists.
const PAGE: usize = 500;

/// Where the sessions of a store are.
#[derive(Debug)]
pub(super) struct Place {
    log: RunLog,
    name: String,
    pub(super) hub: Arc<Hub>,
    /// The thread that does the calls waits for the disk for them.
    later: Later,
}

/// A part to write, as JSON; `None` to remove it.
pub(super) type NewPart = (Part, Option<Vec<u8>>);

/// The condition of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Anything,
    /// There is no session.
    NoSession,
    /// The head has this version: nothing was written since.
    Head(Version),
    /// A condition that never holds.
    Nothing,
}

/// What happens to the lease of the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnLease {
    Stays,
    /// It is deleted with its session.
    Ends,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.hub.end();
    }
}

impl Place {
    pub(super) fn new(log: &RunLog, name: &str, later: Later) -> Self {
        Self { log: log.clone(), name: name.to_owned(), hub: Arc::new(Hub::new()), later }
    }

    fn space(&self, what: &str) -> String {
        format!("{NAMESPACE}{}/{what}", self.name)
    }

    fn head(&self) -> String {
        self.space("head")
    }

    /// The bytes of a part, unchanged.
    pub(super) fn part(&self, part: Part, id: &str) -> Result<Option<Document>> {
        self.log.docs().get(&self.space(part.as_str()), id)
    }

    /// Writes parts of a session, all of them or none. Returns whether the condition held.
    pub(super) fn write(
        &self,
        (session, caller): (&str, Option<&WriterLease>),
        parts: &[NewPart],
        wanted: Wanted,
    ) -> Result<bool, SessionError> {
        let head = self.head();
        let spaces: Vec<String> = parts.iter().map(|(part, _)| self.space(part.as_str())).collect();
        let (of_head, of_session) = match wanted {
            Wanted::Anything => (Expected::Anything, Expected::Anything),
            Wanted::NoSession => (Expected::Anything, Expected::Absent),
            Wanted::Head(version) => (Expected::Version(version), Expected::Anything),
            Wanted::Nothing => return Ok(false),
        };
        let mut batch = Batch::new();
        batch.put_if(&head, session, NewRecord::json(b"{}"), of_head);
        for ((part, bytes), space) in parts.iter().zip(&spaces) {
            let expected = if *part == Part::Session { of_session } else { Expected::Anything };
            match bytes {
                Some(bytes) => batch.put_if(space, session, NewRecord::json(bytes), expected),
                None => batch.delete(space, session),
            };
        }
        let committed = match self.commit((session, caller), &batch, OwnLease::Stays) {
            Err(SessionError::Store(Error::Conflict { .. })) if wanted != Wanted::Anything => {
                return Ok(false);
            }
            committed => committed?,
        };
        self.tell(session, committed.versions.first().copied().flatten(), committed.lsn);
        Ok(true)
    }

    /// Removes all parts of a session and the lease that allows it.
    pub(super) fn delete(
        &self,
        session: &str,
        caller: Option<&WriterLease>,
    ) -> Result<(), SessionError> {
        if caller.is_some() && self.is_gone(session)? {
            // An earlier attempt may have deleted it, and the lease with it.
            self.later.once_durable();
            return Ok(());
        }
        let head = self.head();
        let spaces = Part::OF_SESSION.map(|part| self.space(part.as_str()));
        let mut batch = Batch::new();
        batch.delete(&head, session);
        for space in &spaces {
            batch.delete(space, session);
        }
        let writes = batch.len();
        let committed = self.commit((session, caller), &batch, OwnLease::Ends)?;
        if committed.versions.iter().take(writes).any(Option::is_some) {
            self.tell(session, None, committed.lsn);
        }
        Ok(())
    }

    /// Whether there is neither the session nor a lease of it.
    fn is_gone(&self, session: &str) -> Result<bool> {
        Ok(self.lease(session)?.is_none() && self.version(session)?.is_none())
    }

    /// Reports a change to watchers, once it survives power loss.
    fn tell(&self, session: &str, version: Option<Version>, lsn: Lsn) {
        let (hub, session) = (Arc::clone(&self.hub), session.to_owned());
        self.later.then(move || hub.tell(&session, version, lsn));
    }

    /// Commits writes of a session, if the lease allows it at that moment.
    fn commit(
        &self,
        (session, caller): (&str, Option<&WriterLease>),
        writes: &Batch<'_>,
        own: OwnLease,
    ) -> Result<Committed, SessionError> {
        let space = self.space("lease");
        // Most sessions have no lease, so the first attempt assumes that.
        let mut found = match caller {
            Some(_) => self.lease(session)?,
            None => None,
        };
        loop {
            let fence = self.told(fence(session, caller, found.as_ref(), self.log.now()))?;
            let mut batch: Batch<'_> = writes.clone();
            batch.defer_sync();
            self.later.once_durable();
            match fence {
                Fence::Absent => batch.expect(&space, session, Expected::Absent),
                Fence::Keep(version) if own == OwnLease::Stays => {
                    batch.expect(&space, session, Expected::Version(version))
                }
                Fence::Keep(version) | Fence::End(version) => {
                    batch.delete_if(&space, session, Expected::Version(version))
                }
            };
            match self.log.commit(&batch) {
                Err(Error::Conflict { namespace, .. }) if namespace == space => {
                    found = self.lease(session)?;
                }
                done => return Ok(done?),
            }
        }
    }

    /// Writes or removes the checkpoint of a run, which may belong to a session.
    pub(super) fn write_checkpoint(
        &self,
        run: &str,
        (session, caller): (Option<&str>, Option<&WriterLease>),
        bytes: Option<&[u8]>,
    ) -> Result<(), SessionError> {
        let space = self.space(Part::LoopCheckpoint.as_str());
        let mut batch = Batch::new();
        batch.defer_sync();
        self.later.once_durable();
        match bytes {
            Some(bytes) => batch.put(&space, run, NewRecord::json(bytes)),
            None => batch.delete(&space, run),
        };
        let session = session.or(caller.map(|caller| caller.session.as_str()));
        match session {
            Some(session) => drop(self.commit((session, caller), &batch, OwnLease::Stays)?),
            None => drop(self.log.commit(&batch)?),
        }
        Ok(())
    }

    /// All parts of a session at one moment, and the version of its head then.
    pub(super) fn snapshot(&self, session: &str) -> Result<(Version, [Option<Document>; 6])> {
        let mut head = self.version(session)?;
        loop {
            let mut parts = [const { None }; 6];
            for (place, part) in parts.iter_mut().zip(Part::OF_SESSION) {
                *place = self.part(part, session)?;
            }
            let now = self.version(session)?;
            if now.is_none() {
                // Parts that were read may belong to a session that appeared and disappeared
                // meanwhile.
                return Ok((Version::default(), [const { None }; 6]));
            }
            if now == head {
                return Ok((head.unwrap_or_default(), parts));
            }
            // Another caller wrote in between.
            head = now;
        }
    }

    /// The version of the head of a session.
    pub(super) fn version(&self, session: &str) -> Result<Option<Version>> {
        self.log.docs().version_of(&self.head(), session)
    }

    pub(super) fn exists(&self, session: &str) -> Result<bool> {
        let version = self.log.docs().version_of(&self.space(Part::Session.as_str()), session)?;
        Ok(version.is_some())
    }

    pub(super) fn list(&self) -> Result<Vec<String>> {
        let space = self.space(Part::Session.as_str());
        let (mut ids, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = self.log.docs().list(&space, "", after.as_deref(), PAGE)?;
            ids.extend(page.documents.into_iter().map(|listed| listed.key));
            after = page.next;
            if after.is_none() {
                return Ok(ids);
            }
        }
    }

    /// Writes something that survives power loss, reads it and removes it.
    pub(super) fn check_health(&self) -> Result<()> {
        let space = self.space("health");
        let mut batch = Batch::new();
        self.log.commit(batch.defer_sync().put(&space, "check", NewRecord::json(b"{}")))?;
        self.later.once_durable();
        // It may be missing: another caller may check at the same time.
        self.log.docs().get(&space, "check")?;
        let mut batch = Batch::new();
        batch.defer_sync().delete(&space, "check");
        self.log.commit(&batch).map(|_| ())
    }

    /// A refusal, once the lease that justifies it is durable: a power cut must not take the lease
    /// back after the refusal.
    fn told<R>(&self, answer: Result<R, SessionError>) -> Result<R, SessionError> {
        if matches!(answer, Err(SessionError::LeaseHeld { .. } | SessionError::Fenced { .. })) {
            self.later.once_durable();
        }
        answer
    }

    /// The lease of a session, expired or not.
    fn lease(&self, session: &str) -> Result<Option<Found>> {
        let found = self.log.docs().get(&self.space("lease"), session)?;
        found.as_ref().map(Found::read).transpose()
    }

    /// The lease of a session, if it has not expired.
    pub(super) fn current_lease(&self, session: &str) -> Result<Option<WriterLease>> {
        let found = self.lease(session)?.filter(|found| found.granted.until > self.log.now().0);
        Ok(found.map(|found| found.lease(session)))
    }

    pub(super) fn acquire(
        &self,
        session: &str,
        holder: &str,
        ttl: Duration,
    ) -> Result<WriterLease, SessionError> {
        loop {
            let (found, now) = (self.lease(session)?, self.log.now());
            if let Some(found) = &found
                && found.granted.until > now.0
                && found.granted.holder != holder
            {
                return self.told(Err(found.held(session)));
            }
            let until = later(now, ttl);
            let granted = Granted { holder: holder.to_owned(), until: until.0, epoch: None };
            if let Some(version) = self.grant(session, &granted, found.as_ref())? {
                let (session, holder) = (session.to_owned(), holder.to_owned());
                return Ok(WriterLease { session, holder, epoch: version.0, until });
            }
        }
    }

    pub(super) fn renew(
        &self,
        lease: &WriterLease,
        ttl: Duration,
    ) -> Result<WriterLease, SessionError> {
        loop {
            let found = self.lease(&lease.session)?;
            let Some(own) = found.as_ref().filter(|found| found.epoch() == lease.epoch) else {
                return self.told(Err(fenced(lease, found.as_ref())));
            };
            let (holder, epoch) = (own.granted.holder.clone(), lease.epoch);
            let until = later(self.log.now(), ttl);
            let granted = Granted { holder: holder.clone(), until: until.0, epoch: Some(epoch) };
            if self.grant(&lease.session, &granted, Some(own))?.is_some() {
                return Ok(WriterLease { session: lease.session.clone(), holder, epoch, until });
            }
        }
    }

    /// Releases a lease. Returns whether the caller still had it.
    pub(super) fn release(&self, lease: &WriterLease) -> Result<bool> {
        let space = self.space("lease");
        loop {
            let found = self.lease(&lease.session)?;
            let Some(own) = found.filter(|found| found.epoch() == lease.epoch) else {
                self.later.once_durable();
                return Ok(false);
            };
            let mut batch = Batch::new();
            batch.defer_sync().delete_if(&space, &lease.session, Expected::Version(own.version));
            match self.log.commit(&batch) {
                Ok(_) => {
                    self.later.once_durable();
                    return Ok(true);
                }
                // It was renewed or taken meanwhile.
                Err(Error::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes a lease in place of the found one; `None` if that changed meanwhile.
    fn grant(
        &self,
        session: &str,
        granted: &Granted,
        found: Option<&Found>,
    ) -> Result<Option<Version>> {
        let expected = found.map_or(Expected::Absent, |found| Expected::Version(found.version));
        let value = readable::<Granted>(granted)?;
        let space = self.space("lease");
        let mut batch = Batch::new();
        batch.defer_sync().put_if(&space, session, NewRecord::json(&value), expected);
        self.later.once_durable();
        match self.log.commit(&batch) {
            Ok(committed) => Ok(committed.versions.first().copied().flatten()),
            Err(Error::Conflict { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn later(now: Timestamp, ttl: Duration) -> Timestamp {
    let ttl = i64::try_from(ttl.as_nanos()).unwrap_or(i64::MAX);
    Timestamp(now.0.saturating_add(ttl))
}
