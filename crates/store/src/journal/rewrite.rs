//! Writing all of a tenant to its journal again, so that what is older can go.
//!
//! Chains of the hash are looked at in their order, some at a time, and each item in them that has
//! not ended is appended as it is then, under the chain's lock. So what the journal has from the
//! begin of a rewriting on is all of the tenant, whatever changes meanwhile: a change is behind
//! the item that it changes, or made the item what it was when it was appended.
//!
//! What it never does: hold up a request for longer than one chain takes.
//!
//! *Thread safety*: any worker may take steps; one at a time does.

use super::{Change, FILES_MIN, Journal, Kind, files};
use crate::config::StoreError;
use crate::request::KeyHash;
use crate::store::Store;
use crate::writer::Writer;
use nyx_base::{Instant, UnixSeconds, WorkerId};
use nyx_index::Place;
use nyx_tier::Lane;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::Release};
use std::sync::{Mutex, PoisonError};

/// Chains that one call of [`Store::rewrite`] looks at.
const CHAINS_AT_ONCE: u64 = 16;
/// A journal is written anew when it is so many times what the tenant holds.
const TIMES_HELD: u64 = 2;
/// And whatever its tenant's budget says when it is so many times that.
const TIMES_URGENT: u64 = 4;

/// How far a rewriting is.
#[derive(Debug, Default)]
pub(super) struct Rewrite {
    /// One is to begin, or is under way.
    wanted: AtomicBool,
    /// It is not to wait for its tenant's budget.
    is_urgent: AtomicBool,
    at: Mutex<Option<At>>,
    /// Once it has ended: files before this number can go when what was appended up to there is
    /// durable.
    done: Mutex<Option<(u64, u64)>>,
    ended: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct At {
    /// The file that was open at its begin.
    from: u64,
    /// The journal has the flush that is to come, if there is one.
    has_flush: bool,
    chain: u64,
}

impl Rewrite {
    pub(super) fn ended(&self) -> u64 {
        self.ended.load(Relaxed)
    }
}

impl Journal {
    /// Asks for a rewriting.
    pub(crate) fn want_rewrite(&self) {
        self.rewrite.wanted.store(true, Release);
    }

    /// Asks for one if the journal has come to be much longer than what its tenant holds.
    fn look_at_length(&self, held_bytes: u64) {
        let files = self.lock().files.len();
        let length = files.saturating_sub(FILES_MIN) as u64 * self.file_bytes as u64;
        let is_removing = self.rewrite.done().is_some();
        if length > TIMES_HELD * held_bytes && !is_removing {
            self.want_rewrite();
        }
        let is_urgent = length > TIMES_URGENT * held_bytes;
        self.rewrite.is_urgent.store(is_urgent, Relaxed);
    }

    /// Removes the files that a rewriting has made superfluous, once it is durable; whether it is.
    fn remove_old(&self) -> bool {
        let durable = self.durable();
        let Some((before, _)) = self.rewrite.done().filter(|&(_, upto)| upto <= durable) else {
            return false;
        };
        // The oldest first, so that those that stay follow each other.
        while let Some(oldest) = self.oldest_before(before) {
            if let Err(error) = files::remove(&self.config.dir, [oldest.as_path()].into_iter()) {
                self.say(Some(error.to_string()));
                return true;
            }
            self.lock().files.pop_front();
        }
        *self
            .rewrite
            .done
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = None;
        true
    }

    fn oldest_before(&self, before: u64) -> Option<PathBuf> {
        let tail = self.lock();
        let (number, path) = tail.files.front()?;
        (*number < before).then(|| path.clone())
    }

    /// Where a rewriting begins: with the file that is open.
    fn begin_rewrite(&self) -> Option<At> {
        let from = self.lock().open.as_ref()?.number;
        Some(At {
            from,
            has_flush: false,
            chain: 0,
        })
    }

    fn end_rewrite(&self, at: At) {
        let done = Some((at.from, self.appended()));
        *self
            .rewrite
            .done
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = done;
        self.rewrite.wanted.store(false, Release);
        self.rewrite.ended.fetch_add(1, Relaxed);
        self.ask();
    }

    /// Whether the steps of a rewriting leave room enough for changes.
    fn has_plenty(&self) -> bool {
        let tail = self.lock();
        tail.next.is_some() || tail.has(self.file_bytes / 2)
    }
}

impl Rewrite {
    fn done(&self) -> Option<(u64, u64)> {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a store does with its journal.
impl Store {
    /// The store's journal, if it has one.
    #[inline]
    pub fn journal(&self) -> Option<&Journal> {
        self.journal.as_deref()
    }

    /// Makes durable what the journal was appended before, and how much that is; removes what is no
    /// longer needed of it. Waits for the disk: call it from a thread of its own.
    ///
    /// Errors: after one, [`Journal::ready`] says so for ever.
    pub fn sync(&self, now: Instant) -> Result<u64, StoreError> {
        let (Some(journal), Some(kept)) = (&self.journal, &self.kept) else {
            return Ok(0);
        };
        let (seq, held_bytes) = {
            let mut space = self.space.lock();
            (space.next_seq(), space.used())
        };
        let durable = journal.sync(seq, kept.numbered(), now);
        if journal.has_failed() {
            // The kernel may say next time that all is well: whoever goes on with the image begins
            // another journal.
            kept.numbered().store(0, Release);
        }
        let durable = durable?;
        if journal.remove_old() {
            kept.journal_is_whole().store(1, Release);
        }
        journal.look_at_length(held_bytes);
        Ok(durable)
    }

    /// Whether all of the store is to be appended to its journal again, and can be: what was found
    /// in an image has been looked at.
    #[inline]
    pub fn is_rewriting(&self) -> bool {
        let wanted = |journal: &Journal| journal.rewrite.wanted.load(Relaxed);
        self.journal.as_deref().is_some_and(wanted) && !self.is_sweeping()
    }

    /// Whether that, and the look at what was found, is not to wait for the tenant's budget: the
    /// disk is everybody's.
    pub fn must_rewrite(&self) -> bool {
        let rewrite = self.journal().map(|journal| &journal.rewrite);
        rewrite.is_some_and(|it| it.wanted.load(Relaxed) && it.is_urgent.load(Relaxed))
    }

    /// Appends the items of some chains to the journal; true where there are more. Bounded work:
    /// call it from the tick.
    pub fn rewrite(&self, w: &mut Writer, lane: &mut Lane<'_>, now: UnixSeconds) -> bool {
        let Some(journal) = self.journal.as_deref().filter(|_| self.is_rewriting()) else {
            return false;
        };
        let Ok(mut state) = journal.rewrite.at.try_lock() else {
            return true;
        };
        let Some(mut at) = state.take().or_else(|| journal.begin_rewrite()) else {
            return true;
        };
        at.has_flush =
            at.has_flush || journal.has_plenty() && self.tell_flush_to_come(journal, now);
        let end = self.index.chains().min(at.chain + CHAINS_AT_ONCE);
        while at.has_flush
            && at.chain < end
            && journal.has_plenty()
            && self.rewrite_chain(journal, w.worker(), lane, (at.chain, now))
        {
            at.chain += 1;
        }
        let more = at.chain < self.index.chains();
        match more {
            true => *state = Some(at),
            false => journal.end_rewrite(at),
        }
        more
    }

    /// Appends the items of one chain; whether there was room for all of them.
    fn rewrite_chain(
        &self,
        journal: &Journal,
        worker: WorkerId,
        lane: &mut Lane<'_>,
        (chain, now): (u64, UnixSeconds),
    ) -> bool {
        let guard = self.index.lock(worker, chain);
        let mut has_room = true;
        guard.each(|place| {
            has_room = has_room && self.rewrite_item(journal, lane, place, now);
        });
        has_room
    }

    /// Appends the item of the key that has this hash, if there is one; whether there was room.
    pub(super) fn rewrite_key(
        &self,
        journal: &Journal,
        worker: WorkerId,
        lane: &mut Lane<'_>,
        (hash, now): (KeyHash, UnixSeconds),
    ) -> bool {
        let Some(chunks) = &self.items.chunks else {
            return true;
        };
        let guard = self.index.lock(worker, hash.0);
        let mut has_room = true;
        guard.each(|place| {
            let header = chunks.header(place);
            if self.hash(chunks.key(place, &header)) == hash {
                has_room = self.rewrite_item(journal, lane, place, now);
            }
        });
        has_room
    }

    /// Appends an item, unless it has ended; whether there was room.
    fn rewrite_item(
        &self,
        journal: &Journal,
        lane: &mut Lane<'_>,
        place: Place,
        now: UnixSeconds,
    ) -> bool {
        let Some(chunks) = &self.items.chunks else {
            return true;
        };
        let header = chunks.header(place);
        let state = chunks.state(place);
        let change = Change {
            flags: header.flags,
            expiry: Some(header.expiry),
            cas: header.cas,
            stale: state.is_stale(),
            win_sent: state.is_win_sent(),
            ..Change::new(Kind::Set, chunks.key(place, &header), now)
        };
        let value_len = header.value_len as usize;
        let Some(room) = journal.room(change.len_with(value_len)) else {
            return false;
        };
        // With the journal's lock: a flush is not behind which this is appended.
        if self.is_ended(&header, place, now) {
            return true;
        }
        let spot = self.items.spot(place, &header);
        let source = self.items.source(spot, header.value_len);
        let source = source.expect("a tenant with a journal has no deep device");
        room.write_from(&change, value_len, |value| {
            if !value.is_empty() {
                source.read(lane, 0, value);
            }
        });
        true
    }

    /// Appends the flush that is to come, if there is one; whether there was room.
    fn tell_flush_to_come(&self, journal: &Journal, now: UnixSeconds) -> bool {
        // Under the lock no other flush is asked for.
        let _space = self.space.lock();
        let at = self.flush_due();
        if at == UnixSeconds::NEVER {
            return true;
        }
        let change = Change {
            expiry: Some(at),
            ..Change::new(Kind::FlushLater, &[], now)
        };
        journal
            .room(change.len())
            .map(|room| room.write(&change))
            .is_some()
    }
}
