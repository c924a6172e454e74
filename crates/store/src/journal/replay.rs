//! Storing what a journal has, when the image of its tenant cannot be used.
//!
//! What it never does: serve: nobody else uses the store meanwhile.

use super::files::{self, Found};
use super::{Change, FOLLOWS_WHOLE, Journal, Kind, SYNCED, record};
use crate::change::Invalidation;
use crate::config::StoreError;
use crate::request::{Condition, Put, PutOutcome, Side};
use crate::store::Store;
use crate::writer::Writer;
use nyx_base::UnixSeconds;
use nyx_gate::Lane;
use nyx_media::{LogFile, MediaError};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Release;

/// Records between two calls of who wants to know how far it is.
const RECORDS_TOLD: u64 = 1 << 16;

/// What a journal had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Changes that were made again.
    pub changes: u64,
    /// Bytes of them in the journal.
    pub bytes: u64,
    /// Bytes of all of its files.
    pub file_bytes: u64,
    /// Places at which something had been synced and is no longer what it was. Changes that were
    /// there are lost.
    pub damaged: u64,
    /// Items for which there was no room, or no longer any.
    pub dropped: u64,
}

/// How the reading of a file ended.
enum Ending {
    /// At its end.
    Whole,
    /// Where the journal does.
    Torn(usize),
}

/// What is known of a file before it is read.
#[derive(Clone, Copy, Debug)]
struct Known {
    number: u64,
    /// A later file says that it was synced whole.
    is_durable: bool,
    /// Up to here it was synced.
    synced: usize,
    /// Where it ends, as it says.
    end: Option<usize>,
}

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
                done,
                tell,
            };
            let last = replay.all(&files)?;
            let flush_at = replay.flush_at;
            done = replay.done;
            if let Some(at) = flush_at {
                self.flush(at, now);
            }
            // The hand need not be one that goes on.
            w.seal_all(&self.items, &self.space, |_| true);
            let number = journal.end_at(files, last)?.unwrap_or(newest);
            journal.begin(number + 1, kept.numbered())?;
            kept.journal_is_whole().store(1, Release);
            kept.in_use()?;
        }
        if flush {
            journal.append(&Change::new(Kind::Flush, &[], now));
        }
        for &hash in &again {
            self.approach(hash);
            self.rewrite_chain(journal, w.worker(), lane, (hash, now));
        }
        kept.flush_told();
        kept.forget_intents();
        journal.wait_for_replay(false);
        Ok(done)
    }
}

struct Replay<'r, 'l> {
    store: &'r Store,
    w: &'r mut Writer,
    lane: &'r mut Lane<'l>,
    /// When all is to be flushed that there is then.
    flush_at: Option<UnixSeconds>,
    done: Replayed,
    tell: &'r mut dyn FnMut(&Replayed),
}

impl Replay<'_, '_> {
    /// Makes all changes again; the file in which the journal ends, and where.
    fn all(&mut self, files: &[Found]) -> Result<Option<(u64, usize)>, StoreError> {
        let durable_upto = files.iter().rposition(|one| one.word(FOLLOWS_WHOLE) == 1);
        let mut follows = files.first().map_or(0, |one| one.number);
        for (at, file) in files.iter().enumerate() {
            let known = Known {
                number: file.number,
                is_durable: durable_upto.is_some_and(|upto| at < upto),
                synced: file.word(SYNCED) as usize,
                end: file.end(),
            };
            let is_missed = file.number != follows || file.page.is_none();
            let is_lost = is_missed && !file.is_blank;
            self.done.damaged += u64::from(is_lost);
            if is_missed && !known.is_durable && durable_upto != Some(at) {
                // Nothing says that there was anything durable in it, or behind it.
                let before = at.checked_sub(1).map_or(0, |before| files[before].number);
                return Ok(Some((before, usize::MAX)));
            }
            follows = file.number + 1;
            if file.page.is_none() {
                continue;
            }
            if let Ending::Torn(end) = self.file(file, known)? {
                return Ok(Some((file.number, end)));
            }
        }
        Ok(None)
    }

    fn file(&mut self, file: &Found, known: Known) -> Result<Ending, StoreError> {
        let bytes = match LogFile::read(&file.path, true) {
            Ok(read) => read.bytes,
            Err(error @ MediaError::File { .. }) => return Err(error.into()),
            Err(_) => {
                self.done.damaged += 1;
                return Ok(Ending::Whole);
            }
        };
        self.done.file_bytes += bytes.len() as u64;
        let end = known.end.unwrap_or(bytes.len()).min(bytes.len());
        let mut at = 0;
        while at < end {
            let seed = record::seed(known.number, at);
            if let Some((change, len)) = Change::decode(&bytes[at..], seed) {
                self.make(&change);
                at += len;
                self.count(len);
                continue;
            }
            // What had been synced has another record behind it; else the journal ends here.
            let was_synced = known.is_durable && known.end.is_some() || at < known.synced;
            let looks_on = was_synced || known.is_durable;
            let next = looks_on.then(|| next_record(&bytes[..end], at, known.number));
            let next = next.flatten();
            self.done.damaged += u64::from(was_synced || next.is_some());
            match next {
                Some(next) => at = next,
                None if known.is_durable => return Ok(Ending::Whole),
                None => return Ok(Ending::Torn(at)),
            }
        }
        let is_whole = known.is_durable || known.end == Some(at);
        Ok(if is_whole {
            Ending::Whole
        } else {
            Ending::Torn(at)
        })
    }

    fn count(&mut self, len: usize) {
        self.done.changes += 1;
        self.done.bytes += len as u64;
        if self.done.changes.is_multiple_of(RECORDS_TOLD) {
            (self.tell)(&self.done);
        }
    }

    /// Makes a change again, as of the second at which it was made. Where that cannot be, its item
    /// ends: an older one must not stay.
    fn make(&mut self, change: &Change<'_>) {
        let (store, now) = (self.store, change.at);
        let (key, hash) = (change.key, store.hash(change.key));
        // Behind what is lost nobody knows what something was added to.
        let has_base = self.done.damaged == 0;
        let made = match change.kind {
            Kind::Set => self.set(change),
            Kind::Delete => false,
            Kind::Touch => {
                let expiry = change.expiry.unwrap_or(UnixSeconds::NEVER);
                store.touch(self.w, self.lane, key, hash, expiry, now)
            }
            Kind::Append => has_base && self.extend(change, Side::Append),
            Kind::Prepend => has_base && self.extend(change, Side::Prepend),
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

    fn set(&mut self, change: &Change<'_>) -> bool {
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
        self.is_made(outcome)
    }

    fn extend(&mut self, change: &Change<'_>, side: Side) -> bool {
        let put = Put {
            value: change.value,
            cas: change.cas,
            ..Put::set(change.key, self.store.hash(change.key), &[])
        };
        let outcome = self.store.extend(self.w, self.lane, &put, side, change.at);
        // What was appended to may have gone since it was stored again.
        outcome == PutOutcome::NotStored || self.is_made(outcome)
    }

    fn is_made(&mut self, outcome: PutOutcome) -> bool {
        let made = matches!(outcome, PutOutcome::Stored { .. });
        self.done.dropped += u64::from(!made);
        made
    }
}

/// Where the next record begins behind one that is none.
fn next_record(bytes: &[u8], from: usize, number: u64) -> Option<usize> {
    let mut places = (from + record::ALIGN..bytes.len()).step_by(record::ALIGN);
    places.find(|&at| Change::decode(&bytes[at..], record::seed(number, at)).is_some())
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
