//! A map in DRAM of 8-byte keys and values, a hash table that has its entries inline: a look-up
//! waits for memory once.
//!
//! Linear hashing (Litwin, "Linear hashing", VLDB'80) over buckets of two cache lines ([`bucket`],
//! [`buckets`]). The table grows by a few buckets at a time, in the order of their memory, and
//! hashes nothing again: what it keeps of a key is its hash, from which nothing is lost. What a
//! bucket has no room for goes to smaller ones ([`spills`]). Two bits for each hash that a bucket
//! has, its mark, lie among other marks: of ten who look for what is not there nine see that from
//! the mark alone. Eight buckets share a lock and a version, their stripe ([`stripe`]). A key takes
//! 27 to 30 bytes.
//!
//! **Readers** take no lock. They read the mark and the stripe, in either order, an entry, and the
//! stripe again. Who finds nothing, or the hash unmarked, looks at the number of buckets again: a
//! split may have taken the key elsewhere.
//!
//! **Writers** lock the stripe of the one bucket that they change, and then look at the number of
//! buckets again.
//! * A value is replaced by a store; an entry is added to an empty place by storing its mark, then
//!   its value, then the hash. Neither makes a reader's work void: it finds all or nothing of it,
//!   and nothing that it read before has become wrong. The version stays. (Were the mark stored
//!   after the hash, one reader could find the entry, all its bits set for another that is taken
//!   out just then, and a later one its hash unmarked.)
//! * All else (an entry is taken away or moved, spills are changed, a split) is told by the stripe
//!   before the first store, and a new version is there after the last. Whoever read a part of it
//!   sees the one or the other when it looks again, since stores release and loads acquire; whoever
//!   began within, and found the hash marked, waits. So a place is filled again under another
//!   version than it was emptied under, and the value of one key is not taken for that of another,
//!   nor for a link.
//! * A mark loses bits within such a change only, and after the entry that they were for is gone.
//!   Whoever sees that it lost them, and everybody later, finds either no entry or the change.
//!
//! **Splits** are made by one worker at a time, a few buckets at once: of one stripe after the
//! other it takes the lock, says that it changes, and moves entries to new buckets, which nobody
//! sees; it publishes the number of buckets, and only then takes bits from the marks of the old
//! ones, and gives their stripes back, under new versions.
//! * A reader that believes an old bucket has read it before the split, when its key belonged there
//!   (its version is the old one); or it has the new version, and with it the new number of
//!   buckets, and sees that the key belongs elsewhere. So does who finds the hash unmarked. What it
//!   finds it found where the key belongs, since entries are taken out of the old bucket while its
//!   stripe says that it changes.
//! * A writer that gets the lock of an old bucket after the split has the new number of buckets
//!   with it, and goes elsewhere; one that had the lock before keeps the split waiting.
//! * Nobody goes back: as the number of buckets grows, where a hash belongs only moves on.
//!
//! What it never does: shrink, free what a reader may look at (so it needs no eras), refuse a key
//! while it holds fewer than it was made for, however uneven their hashes.
//!
//! *Thread safety*: all methods take `&self`. Each worker is one thread at a time. A worker holds
//! at most one stripe's lock, but for splits, and there is one of those; who holds one waits only
//! for the lock of the list of spills, and who splits for writers.
//!
//! *Invariants*: a hash is in the chain of the bucket where it belongs or nowhere, once, and it is
//! marked wherever a reader can find it. A bucket with spills has no empty place but that of the
//! link. All spills of a chain but the first are full, and entries of a spill lie one behind the
//! other from the first place on.

mod bucket;
mod buckets;
mod spills;
mod split;
mod stripe;

#[cfg(test)]
mod interleavings;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::Index;
use crate::heap::Full;
use crate::ordered::{END, PutError, Unsound, together};
use crate::sync::{AtomicU64, Ordering, Wait, Word};
use Ordering::{Acquire, Relaxed, Release};
use bucket::{Entry, Link, SPILL_BYTES, SPILL_ENTRIES, Spill};
use buckets::{Buckets, Place};
use nyx_base::{CachePadded, WorkerId};
use nyx_media::MediaError;
use nyx_media::prim::Prim;
use spills::Spills;
use stripe::Seen;

/// The table grows when there are more entries than this in ten buckets.
const LOAD: u64 = 52;
/// Buckets of an empty table. A few under a model checker, which makes them all.
const BUCKETS_MIN: u64 = if cfg!(any(loom, shuttle)) { 4 } else { 64 };
/// Buckets that are split at once, some stripes.
const SPLIT_BUCKETS: u64 = if cfg!(any(loom, shuttle)) { 4 } else { 16 };
/// A worker tells the others of so many entries at once, and looks whether the table has to grow.
const TOLD: u64 = 64;

const FACTOR: u64 = 0xd6e8_feb8_6659_fd93;

/// The hash of a key: its high bits and its low ones are as good as drawn, no two keys have the
/// same, and zero is that of [`END`], which is no key.
#[inline]
pub(crate) fn hash_of(key: u64) -> u64 {
    let mixed = key.wrapping_sub(END).wrapping_mul(FACTOR);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(FACTOR);
    mixed ^ mixed >> 32
}

/// Whether so many entries are too many for so many buckets.
fn is_crowded(entries: u64, buckets: u64) -> bool {
    entries * 10 > buckets * LOAD
}

/// The map.
#[derive(Debug)]
pub struct DramMap {
    prim: Prim,
    buckets: Buckets,
    spills: Spills,
    growing: CachePadded<Word>,
    /// Entries that workers told each other of.
    told: CachePadded<AtomicU64>,
    tallies: Box<[CachePadded<Tally>]>,
}

/// What one worker did; nobody else stores to it.
#[derive(Debug)]
struct Tally {
    /// Entries added less entries removed, modulo 2^64.
    changes: AtomicU64,
    /// What of that it told.
    told: AtomicU64,
}

/// A locked bucket.
struct Held<'m> {
    place: Place<'m>,
    /// What its stripe was.
    before: Seen,
}

impl<'m> Held<'m> {
    fn is_spilled(&self) -> bool {
        self.before.is_spilled(self.place.slot)
    }

    fn may_have(&self, hash: u64) -> bool {
        self.place.mark.look().may_have(hash)
    }

    /// Its first spill.
    fn link(&self) -> Option<Link> {
        self.place.link(self.before)
    }

    /// An empty place.
    #[inline]
    fn vacancy(&self, prim: Prim) -> Option<Entry<'m>> {
        match self.is_spilled() {
            true => None,
            false => self.place.bucket.vacancy(prim),
        }
    }

    /// Adds an entry in an empty place, and gives the lock back.
    #[inline]
    fn fill(&self, vacancy: Entry<'_>, hash: u64, value: u64) {
        // The mark first: who finds the hash unmarked later than somebody found it would go back.
        self.place.mark.add(hash);
        vacancy.fill(hash, value);
        self.unlock();
    }

    /// Gives the lock back; nothing that a reader looked at has become wrong.
    #[inline]
    fn unlock(&self) {
        self.place.stripe.unlock(self.before);
    }

    /// From now on nobody believes what he reads in the bucket.
    fn begin_change(&self) {
        self.place.stripe.begin_change(self.before);
    }

    /// Gives the lock back after that.
    fn unlock_changed(&self, is_spilled: bool) {
        let after = self.before.spilled(self.place.slot, is_spilled);
        self.place.stripe.unlock_changed(after);
    }
}

impl DramMap {
    /// An empty map for at least so many keys, which so many workers change. Its memory is taken as
    /// it grows.
    pub fn new(keys_max: u64, workers: u16) -> Result<DramMap, MediaError> {
        let buckets = (keys_max.div_ceil(LOAD) * 10).max(BUCKETS_MIN);
        // Were all in one chain, or in chains that begin with a spill of one entry each, this is
        // enough: no chain has more spills than a third of its keys.
        let spills = keys_max / SPILL_ENTRIES as u64 + 1;
        let tally = || Tally {
            changes: AtomicU64::new(0),
            told: AtomicU64::new(0),
        };
        Ok(DramMap {
            prim: Prim::detect(),
            buckets: Buckets::reserve(buckets.next_multiple_of(SPLIT_BUCKETS), BUCKETS_MIN)?,
            spills: Spills::reserve(spills)?,
            growing: CachePadded(Word::new(0)),
            told: CachePadded(AtomicU64::new(0)),
            tallies: (0..workers).map(|_| CachePadded(tally())).collect(),
        })
    }

    /// The bytes of memory that it uses.
    pub fn bytes(&self) -> u64 {
        self.buckets.bytes() + self.spills.bytes()
    }

    /// How many keys it holds; exact while nobody changes it.
    pub fn len(&self) -> u64 {
        let changes = self.tallies.iter();
        let sum = changes.fold(0u64, |sum, tally| {
            sum.wrapping_add(tally.changes.load(Relaxed))
        });
        // A removal may be seen before the insertion that another worker made.
        sum.cast_signed().max(0).cast_unsigned()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Asks for the memory that a look-up of `key` reads first to be brought near.
    #[inline]
    pub fn prefetch(&self, key: u64) {
        let Place {
            stripe,
            mark,
            bucket,
            ..
        } = self.buckets.home(hash_of(key)).place;
        mark.prefetch();
        stripe.prefetch();
        bucket.prefetch();
    }

    /// Gives `key` this value unless it has one. Tells whether it did.
    pub fn put_new(&self, worker: WorkerId, key: u64, value: u64) -> Result<bool, PutError> {
        PutError::check(key)?;
        let hash = hash_of(key);
        let held = self.lock(hash);
        if self.seek(&held, hash).is_some() {
            held.unlock();
            return Ok(false);
        }
        self.add(worker, &held, hash, value)?;
        Ok(true)
    }

    /// Locks the bucket of `hash`, where it is free.
    #[inline]
    fn try_lock(&self, hash: u64) -> Option<Held<'_>> {
        let home = self.buckets.home(hash);
        let place = home.place;
        place.bucket.prefetch_write();
        place.mark.prefetch_write();
        nyx_media::observed::read(std::slice::from_ref(place.stripe));
        let before = place.stripe.try_lock()?;
        // A split may have moved the key before the lock was taken, and none can now. (Who is
        // refused without need tries again.)
        if !self.buckets.is_same(home) {
            place.stripe.unlock(before);
            return None;
        }
        nyx_media::observed::read(std::slice::from_ref(place.bucket));
        Some(Held { place, before })
    }

    /// Waits for the lock of the bucket of `hash`.
    fn lock(&self, hash: u64) -> Held<'_> {
        let mut wait = Wait::new();
        loop {
            match self.try_lock(hash) {
                Some(held) => return held,
                None => wait.turn(),
            }
        }
    }

    /// The entry of `hash` in a locked bucket.
    fn seek<'m>(&'m self, held: &Held<'m>, hash: u64) -> Option<Entry<'m>> {
        if !held.may_have(hash) {
            return None;
        }
        let own = held.place.bucket.find(self.prim, hash);
        if own.is_some() {
            return own;
        }
        let link = held.link().filter(|link| link.may_have(hash));
        let mut entries = self.spills.chain(link).flat_map(Spill::entries);
        entries.find(|entry| entry.word.load(Relaxed) == hash)
    }

    /// Adds an entry that a locked bucket does not have, and gives the lock back.
    fn add(
        &self,
        worker: WorkerId,
        held: &Held<'_>,
        hash: u64,
        value: u64,
    ) -> Result<(), PutError> {
        match held.vacancy(self.prim) {
            Some(entry) => held.fill(entry, hash, value),
            None => self.add_spilled(held, hash, value)?,
        }
        if self.tally(worker, 1) {
            self.tell(worker);
        }
        Ok(())
    }

    fn add_spilled(&self, held: &Held<'_>, hash: u64, value: u64) -> Result<(), PutError> {
        let (bucket, link) = (held.place.bucket, held.link());
        held.begin_change();
        let take = || self.spills.take();
        let pushed = match link {
            None => self.spills.spill(bucket, hash, value, take),
            link => self.spills.push(link, hash, value, take),
        };
        if pushed.is_none() {
            held.unlock_changed(held.is_spilled());
            return Err(PutError::Full(Full {
                asked_bytes: SPILL_BYTES,
                heap_bytes: self.bytes(),
            }));
        }
        bucket.set_link(pushed);
        held.place.mark.add(hash);
        held.unlock_changed(true);
        Ok(())
    }

    /// Takes an entry out of a locked bucket, and gives the lock back. The last of the first spill
    /// goes to its place.
    fn take_out(&self, held: &Held<'_>, entry: Entry<'_>) {
        let Place { bucket, mark, .. } = held.place;
        held.begin_change();
        let Some(link) = held.link() else {
            entry.clear();
            mark.set(bucket.mark());
            return held.unlock_changed(false);
        };
        let word = entry.word.load(Relaxed);
        let popped = self.spills.pop(link);
        // It may be the very one that was popped, and its spill another bucket's by now.
        if popped.word != word {
            entry.fill(popped.word, popped.value);
        }
        bucket.set_link(popped.link);
        if popped.link.is_none() {
            mark.set(bucket.mark());
        }
        held.unlock_changed(popped.link.is_some());
    }

    /// Counts an entry more (1), or less (-1); whether to [`DramMap::tell`].
    #[inline]
    fn tally(&self, worker: WorkerId, change: i64) -> bool {
        let changes = &self.tallies[worker.index()].changes;
        let now = (changes.load(Relaxed)).wrapping_add(change.cast_unsigned());
        changes.store(now, Relaxed);
        now.is_multiple_of(TOLD)
    }

    /// Tells the others of what a worker added and removed, and has the table grow. The caller
    /// holds no lock.
    #[cold]
    fn tell(&self, worker: WorkerId) {
        let tally = &self.tallies[worker.index()];
        let changes = tally.changes.load(Relaxed);
        let untold = changes.wrapping_sub(tally.told.load(Relaxed));
        // Else who adds and removes the same again and again would tell of it each time.
        if untold.cast_signed().unsigned_abs() >= TOLD {
            tally.told.store(changes, Relaxed);
            self.told.fetch_add(untold, Relaxed);
            self.grow();
        }
    }

    /// What [`Index::put`] does where it is not as simple as mostly.
    #[cold]
    fn put_slowly(
        &self,
        worker: WorkerId,
        held: Option<Held<'_>>,
        hash: u64,
        value: u64,
    ) -> Result<Option<u64>, PutError> {
        let held = held.unwrap_or_else(|| self.lock(hash));
        let Some(entry) = self.seek(&held, hash) else {
            self.add(worker, &held, hash, value)?;
            return Ok(None);
        };
        let before = entry.value.load(Relaxed);
        entry.value.store(value, Release);
        held.unlock();
        Ok(Some(before))
    }

    /// The value of `hash`.
    ///
    /// A core looks for keys that follow each other at once, as far ahead as it can begin
    /// instructions: so there are few of them here, calls are the last thing that is done, and
    /// branches are such that can be guessed.
    #[inline]
    fn find(&self, hash: u64) -> Option<u64> {
        let home = self.buckets.home(hash);
        let Place {
            stripe,
            slot,
            mark,
            bucket,
        } = home.place;
        if !mark.look().may_have(hash) {
            return match self.buckets.is_same(home) {
                true => None,
                false => self.find_slowly(hash),
            };
        }
        nyx_media::observed::read(std::slice::from_ref(stripe));
        let before = stripe.look();
        if before.is_changing() {
            return self.find_slowly(hash);
        }
        bucket.prefetch_values();
        nyx_media::observed::read(std::slice::from_ref(bucket));
        match bucket.find(self.prim, hash) {
            // An empty one.
            Some(_) if hash == 0 => None,
            Some(entry) => {
                let value = entry.value.load(Acquire);
                match before.is_same(stripe.look()) {
                    true => Some(value),
                    false => self.find_slowly(hash),
                }
            }
            None => {
                // Not a branch for each.
                let may_be_spilled = before.is_spilled(slot) & bucket.may_spill(hash);
                let is_same = before.is_same(stripe.look());
                match !may_be_spilled && is_same && self.buckets.is_same(home) {
                    true => None,
                    false => self.find_slowly(hash),
                }
            }
        }
    }

    /// The same where it is not as simple as mostly.
    #[cold]
    fn find_slowly(&self, hash: u64) -> Option<u64> {
        if hash == 0 {
            return None;
        }
        let mut wait = Wait::new();
        loop {
            if let Some(found) = self.look(hash) {
                return found;
            }
            wait.turn();
        }
    }

    /// The value of `hash`, or none; nothing where it was being changed.
    fn look(&self, hash: u64) -> Option<Option<u64>> {
        let home = self.buckets.home(hash);
        let Place {
            stripe,
            mark,
            bucket,
            ..
        } = home.place;
        let before = stripe.look();
        if before.is_changing() {
            return None;
        }
        if !mark.look().may_have(hash) {
            return self.buckets.is_home(home, hash).then_some(None);
        }
        let is_still = || before.is_same(stripe.look());
        if let Some(entry) = bucket.find(self.prim, hash) {
            let value = entry.value.load(Acquire);
            return is_still().then_some(Some(value));
        }
        let link = home.place.link(before);
        // Else it may be the value of an entry.
        if !is_still() {
            return None;
        }
        for spill in self.spills.chain(link.filter(|link| link.may_have(hash))) {
            let mut entries = spill.entries();
            if let Some(entry) = entries.find(|entry| entry.word.load(Acquire) == hash) {
                let value = entry.value.load(Acquire);
                return is_still().then_some(Some(value));
            }
            // Else it could be led on for ever.
            if !is_still() {
                return None;
            }
        }
        (is_still() && self.buckets.is_home(home, hash)).then_some(None)
    }
}

impl Index for DramMap {
    #[inline]
    fn get(&self, key: u64) -> Result<Option<u64>, Unsound> {
        Ok(self.find(hash_of(key)))
    }

    fn get_many(&self, keys: &[u64], values: &mut [Option<u64>]) -> Result<(), Unsound> {
        for (keys, values) in together(keys, values) {
            keys.iter().for_each(|&key| self.prefetch(key));
            for (&key, value) in keys.iter().zip(values) {
                *value = self.get(key)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn put(&self, worker: WorkerId, key: u64, value: u64) -> Result<Option<u64>, PutError> {
        PutError::check(key)?;
        let hash = hash_of(key);
        let Some(held) = self.try_lock(hash) else {
            return self.put_slowly(worker, None, hash, value);
        };
        if held.may_have(hash)
            && let Some(entry) = held.place.bucket.find(self.prim, hash)
        {
            let before = entry.value.load(Relaxed);
            entry.value.store(value, Release);
            held.unlock();
            return Ok(Some(before));
        }
        match held.vacancy(self.prim) {
            // Without an empty place it may be spilled.
            None => self.put_slowly(worker, Some(held), hash, value),
            Some(entry) => {
                held.fill(entry, hash, value);
                if self.tally(worker, 1) {
                    self.tell(worker);
                }
                Ok(None)
            }
        }
    }

    fn remove(&self, worker: WorkerId, key: u64) -> Result<Option<u64>, PutError> {
        if key == END {
            return Ok(None);
        }
        let hash = hash_of(key);
        let held = self.lock(hash);
        let Some(entry) = self.seek(&held, hash) else {
            held.unlock();
            return Ok(None);
        };
        let value = entry.value.load(Relaxed);
        self.take_out(&held, entry);
        if self.tally(worker, -1) {
            self.tell(worker);
        }
        Ok(Some(value))
    }
}
