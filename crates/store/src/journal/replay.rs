//! Storing what a journal has, when the image of its tenant cannot be used.
//!
//! What it never does: serve: nobody else uses the store meanwhile.

use super::files::{self, Found};
use super::reading::Reading;
use super::{Change, Journal, Kind, Replayed};
use crate::change::Invalidation;
use crate::config::StoreError;
use crate::kept::Kept;
use crate::request::{Condition, KeyHash, Put, PutOutcome, Side};
use crate::store::Store;
use crate::writer::Writer;
use nyx_base::UnixSeconds;
use nyx_tier::Lane;
use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Release;

/// Changes between two calls of who wants to know how far it is.
const RECORDS_TOLD: u64 = 1 << 16;

/// What is to be done before anything else.
#[derive(Debug, Default)]
pub(crate) struct First {
    /// Files to be read, where the image cannot be used.
    pub(crate) files: Vec<Found>,
    /// Where it can: hashes of keys that a killed process was changing, in image and journal.
    pub(crate) again: Vec<u64>,
    /// The image has a flush that the journal has not.
    pub(crate) flush: bool,
}

impl First {
    pub(crate) fn is_any(&self) -> bool {
        self.flush || !self.files.is_empty() || !self.again.is_empty()
    }
}

impl Store {
    /// Whether [`Store::replay`] is to be called before anything else.
    pub fn is_to_replay(&self) -> bool {
        self.journal().is_some_and(Journal::is_replaying)
    }

    /// Makes image and journal the same, and goes on with both: stores what the journal has, where
    /// the image cannot be used (until this has returned it is worth nothing); tells the journal of
    /// what the image has of changes in the middle of which a process was killed, where it can.
    /// `tell` is called now and then.
    ///
    /// Errors: where a file cannot be read, or none can be made.
    pub fn replay(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        now: UnixSeconds,
        tell: &mut dyn FnMut(&Replayed),
    ) -> Result<Replayed, StoreError> {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let First {
            files,
            again,
            flush,
        } = std::mem::take(&mut *first);
        let (Some(journal), Some(kept)) = (&self.journal, &self.kept) else {
            return Ok(Replayed::default());
        };
        let mut done = Replayed::default();
        if let Some(newest) = files.last().map(|last| last.number) {
            let mut replay = Replay {
                store: self,
                w,
                lane,
                flush_at: None,
                damaged: 0,
                bases: BTreeSet::new(),
            };
            let mut each = |change: &Change<'_>, read: &mut Replayed| {
                replay.make(change, read);
                if read.changes.is_multiple_of(RECORDS_TOLD) {
                    tell(read);
                }
            };
            let mut reading = Reading::new(&mut each);
            let last = reading.all(&files)?;
            done = reading.read;
            if let Some(at) = replay.flush_at {
                self.flush(at, now);
            }
            // The hand need not be one that goes on.
            w.seal_all(&self.items, &self.space, |_| true);
            let number = journal.end_at(files, last)?.unwrap_or(newest);
            journal.begin(number + 1, kept.numbered())?;
            kept.journal_is_whole().store(1, Release);
            if done.damaged > 0 {
                want_whole(journal, kept);
            }
            kept.in_use()?;
        }
        if flush {
            journal.append(&Change::new(Kind::Flush, &[], now));
        }
        for hash in again {
            self.approach(hash);
            let mut tell = || self.rewrite_key(journal, w.worker(), lane, (KeyHash(hash), now));
            let is_told = tell() || {
                journal.prepare_next(kept.numbered());
                tell()
            };
            if !is_told {
                want_whole(journal, kept);
            }
        }
        kept.flush_told();
        kept.forget_intents();
        journal.wait_for_replay(false);
        Ok(done)
    }
}

/// The journal lacks something until all of the tenant is written to it again.
fn want_whole(journal: &Journal, kept: &Kept) {
    kept.journal_is_whole().store(0, Release);
    journal.want_rewrite();
}

struct Replay<'r, 'l> {
    store: &'r Store,
    w: &'r mut Writer,
    lane: &'r mut Lane<'l>,
    /// When all is to be flushed that there is then.
    flush_at: Option<UnixSeconds>,
    /// Places at which something was lost so far, and the hashes of the keys that were set behind
    /// the last of them.
    damaged: u64,
    bases: BTreeSet<u64>,
}

impl Replay<'_, '_> {
    /// Makes a change again, as of the second at which it was made. Where that cannot be, its item
    /// ends: an older one must not stay.
    fn make(&mut self, change: &Change<'_>, read: &mut Replayed) {
        let (store, now) = (self.store, change.at);
        let (key, hash) = (change.key, store.hash(change.key));
        // Behind what is lost nobody knows what something was added to, unless that is there too.
        if self.damaged != read.damaged {
            self.damaged = read.damaged;
            self.bases.clear();
        }
        let has_base = self.damaged == 0 || self.bases.contains(&hash.0);
        let made = match change.kind {
            Kind::Set => {
                if self.damaged > 0 {
                    self.bases.insert(hash.0);
                }
                self.set(change, read)
            }
            Kind::Delete => false,
            Kind::Touch => {
                let expiry = change.expiry.unwrap_or(UnixSeconds::NEVER);
                let touched = store.touch(self.w, self.lane, key, hash, expiry, now);
                touched.is_touched()
            }
            Kind::Append => has_base && self.extend(change, Side::Append, read),
            Kind::Prepend => has_base && self.extend(change, Side::Prepend, read),
            Kind::Invalidate => {
                let asked = Invalidation {
                    key,
                    hash,
                    condition: Condition::Always,
                    expiry: change.expiry,
                    cas: change.cas,
                };
                store.invalidate(self.w, self.lane, &asked, now);
                true
            }
            Kind::Flush => {
                self.flush_at = None;
                store.flush(UnixSeconds(0), now);
                true
            }
            Kind::FlushLater => {
                self.flush_at = change.expiry;
                true
            }
        };
        if !made {
            store.delete(self.w, self.lane, key, hash, Condition::Always, now);
        }
    }

    fn set(&mut self, change: &Change<'_>, read: &mut Replayed) -> bool {
        let put = Put {
            key: change.key,
            hash: self.store.hash(change.key),
            value: change.value,
            flags: change.flags,
            expiry: change.expiry.unwrap_or(UnixSeconds::NEVER),
            condition: Condition::Always,
            cas: change.cas,
            stale: change.stale,
            win_sent: change.win_sent,
        };
        let outcome = self.store.put(self.w, self.lane, &put, change.at);
        is_made(outcome, read)
    }

    fn extend(&mut self, change: &Change<'_>, side: Side, read: &mut Replayed) -> bool {
        let put = Put {
            value: change.value,
            cas: change.cas,
            ..Put::set(change.key, self.store.hash(change.key), &[])
        };
        let outcome = self.store.extend(self.w, self.lane, &put, side, change.at);
        // What was appended to may have gone since it was stored again.
        outcome == PutOutcome::NotStored || is_made(outcome, read)
    }
}

fn is_made(outcome: PutOutcome, read: &mut Replayed) -> bool {
    let made = matches!(outcome, PutOutcome::Stored { .. });
    read.dropped += u64::from(!made);
    made
}
impl Journal {
    /// Ends the journal that was found in a file, at a place; the number of its last file, if it
    /// has one. What is behind that was not durable, and goes.
    fn end_at(
        &self,
        mut files: Vec<Found>,
        end: Option<(u64, usize)>,
    ) -> Result<Option<u64>, StoreError> {
        let (number, at) = end.unwrap_or((u64::MAX, usize::MAX));
        let last = files.partition_point(|one| one.number <= number);
        let behind = files[last..].iter().map(|one| one.path.as_path());
        files::remove(&self.config.dir, behind)?;
        files.truncate(last);
        let newest = files.last().map(|last| last.number);
        self.adopt(files, (at != usize::MAX).then_some(at))?;
        Ok(newest)
    }
}
