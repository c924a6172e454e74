//! The hash index: linear hashing over cache-line buckets, shared by all workers of a tenant.
//!
//! Readers take no lock. A bucket's header is the version of its whole chain (a sequence lock): a
//! reader takes the tags, then a place, and looks at the place only if the version still stands, so
//! that it never follows a torn pair. Writers lock the one chain that they change. The table grows
//! one bucket at a time (Litwin, "Linear hashing", VLDB'80): no pause, and memory is touched only
//! as it is needed. A full bucket chains to overflow buckets; at [`ITEMS_PER_BUCKET`] the index
//! takes about 10 bytes per item.
//!
//! What it never does: read a key, free the memory that a place means, grow beyond
//! [`Hash::set_limit`].
//!
//! *Thread safety*: all methods take `&self`. Places that were removed may still be handed to the
//! `is_it` of readers that began before: their memory must stay what it was until those readers are
//! done (eras). A guard's methods run under its lock: they must not lock another bucket.
//!
//! *Invariants*: a key's place lies in the chain of bucket `home(hash, count)` for every value of
//! `count` that a reader may still use without noticing: a split publishes the new count before it
//! gives back the lock of the bucket that it split, and who finds nothing looks at the count again.

mod bucket;
mod pool;
#[cfg(not(loom))]
mod revive;

#[cfg(test)]
mod loom;
#[cfg(all(test, not(loom)))]
mod revive_tests;
#[cfg(test)]
mod tests;

#[cfg(not(loom))]
pub use revive::{HashGround, Revived, Unfit, Unsaid};

use crate::sync::{AtomicU64, Ordering, Wait};
use crate::{Place, Places};
use Ordering::{Acquire, Relaxed, Release};
use bucket::{BUCKET_BYTES, Bucket, Memory};
use nyx_base::{CachePadded, WorkerId};
use nyx_media::MediaError;
use pool::Pool;

/// The table grows when there are more items than this per bucket, in eighths.
const ITEMS_PER_BUCKET_EIGHTHS: u64 = 60;
/// The average that the table grows at.
pub const ITEMS_PER_BUCKET: f64 = ITEMS_PER_BUCKET_EIGHTHS as f64 / 8.0;
/// Buckets of an empty table: one page.
const BUCKETS_MIN: u64 = 64;

/// What a table is made for.
#[derive(Clone, Copy, Debug)]
pub struct HashShape {
    /// The most items that it will ever hold, for the address space to reserve.
    pub items_max: u64,
    /// How many workers will change it.
    pub workers: u16,
    /// Whether to ask for 2 MiB pages.
    pub huge: bool,
}

/// Why there is no bucket more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The limit is reached.
    Limit,
    /// There is no memory: all that was reserved is used, or a disk is full.
    Memory,
}

/// The table.
#[derive(Debug)]
pub struct Hash {
    memory: Memory,
    pool: Pool,
    /// Buckets in use; only the holder of `growing` stores to it.
    count: CachePadded<AtomicU64>,
    growing: CachePadded<AtomicU64>,
    /// Bytes in use by buckets of both kinds, and the most that may be.
    bytes: CachePadded<AtomicU64>,
    limit: AtomicU64,
    /// Items inserted less items removed, per worker and modulo 2^64; each has one writer.
    changes: Box<[CachePadded<AtomicU64>]>,
    /// Of a table in an image: how far it reaches, for whoever opens it next.
    #[cfg(not(loom))]
    kept: Option<revive::Kept>,
    /// Of a table that was found in an image: which chains may be used.
    #[cfg(not(loom))]
    revival: Option<Box<revive::Revival>>,
}

/// A slot of a locked chain.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    bucket: Link,
    slot: usize,
    /// The place in it.
    pub place: Place,
}

/// A bucket of a chain: the first, or one of the pool's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    First,
    Pool(u32),
}

/// A locked chain; dropping it unlocks.
#[derive(Debug)]
pub struct Guard<'h> {
    hash: &'h Hash,
    first: &'h Bucket,
    worker: WorkerId,
    tag: u16,
    changed: bool,
}

/// The tag of a hash: bits that do not choose the bucket, never zero.
#[inline]
fn tag_of(hash: u64) -> u16 {
    ((hash >> 48) as u16).max(1)
}

/// The bucket of a hash in a table of `count` buckets.
#[inline]
fn home(hash: u64, count: u64) -> u64 {
    let mask = count.next_power_of_two() - 1;
    let at = hash & mask;
    if at < count { at } else { at & (mask >> 1) }
}

impl HashShape {
    /// Linear hashing needs items / ITEMS_PER_BUCKET buckets; overflow stays well below that.
    fn buckets_max(&self) -> u64 {
        (self.items_max * 8 / ITEMS_PER_BUCKET_EIGHTHS + 1).max(BUCKETS_MIN)
    }
}

impl Hash {
    /// An empty table whose limit is what it uses at first.
    pub fn new(shape: HashShape) -> Result<Hash, MediaError> {
        let most = shape.buckets_max();
        let memory = Memory::reserve(most, shape.huge)?;
        let pool = Pool::over(Memory::reserve(most, shape.huge)?, 0);
        let bytes = BUCKETS_MIN * BUCKET_BYTES;
        Ok(Hash::of_parts(
            memory,
            pool,
            BUCKETS_MIN,
            bytes,
            shape.workers,
        ))
    }

    /// A table of `count` buckets; `bytes` are in use and the limit.
    fn of_parts(memory: Memory, pool: Pool, count: u64, bytes: u64, workers: u16) -> Hash {
        Hash {
            memory,
            pool,
            count: CachePadded(AtomicU64::new(count)),
            growing: CachePadded(AtomicU64::new(0)),
            bytes: CachePadded(AtomicU64::new(bytes)),
            limit: AtomicU64::new(bytes),
            changes: (0..workers)
                .map(|_| CachePadded(AtomicU64::new(0)))
                .collect(),
            #[cfg(not(loom))]
            kept: None,
            #[cfg(not(loom))]
            revival: None,
        }
    }

    #[cfg(loom)]
    fn is_reviving(&self) -> bool {
        false
    }

    /// Tells whoever opens the image next of one bucket more.
    fn keep_count(&self, count: u64) {
        #[cfg(not(loom))]
        if let Some(kept) = &self.kept {
            kept.set_count(count);
        }
        let _ = count;
    }

    fn keep_fresh(&self, fresh: u32) {
        #[cfg(not(loom))]
        if let Some(kept) = &self.kept {
            kept.set_fresh(u64::from(fresh));
        }
        let _ = fresh;
    }

    /// Notes that an item is on its way into bucket `noted - 1` of the pool; zero: it is there.
    fn note_move(&self, worker: WorkerId, noted: u64) {
        #[cfg(not(loom))]
        if let Some(kept) = &self.kept {
            kept.note(worker).store(noted, Release);
        }
        let _ = (worker, noted);
    }

    /// The most bytes that it may use; at least what it uses.
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Lets it use up to `bytes`; less than it uses means: no more.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
    }

    /// How many chains there are; it grows only. The chain of the hash `at` is chain `at` where
    /// that is below, and what a split takes from it goes to a later one.
    pub fn chains(&self) -> u64 {
        self.count.load(Acquire)
    }

    /// The place of some item that is likely the one, for prefetching. Its key is not checked.
    #[inline]
    pub fn candidate(&self, hash: u64) -> Option<Place> {
        let bucket = self.memory.bucket(home(hash, self.count.load(Acquire)));
        let tags = bucket.tags();
        match tags.matches(tag_of(hash)).next() {
            Some(slot) => {
                let place = bucket.place(slot);
                (!tags.is_locked() && bucket.header() == tags.header()).then_some(place)
            }
            None => {
                if let Some(next) = bucket.link(tags) {
                    self.pool.prefetch(next);
                }
                None
            }
        }
    }

    /// Locks the chain of `hash` for `worker`.
    #[inline]
    pub fn lock(&self, worker: WorkerId, hash: u64) -> Guard<'_> {
        let mut wait = Wait::new();
        loop {
            let at = home(hash, self.count.load(Acquire));
            let first = self.memory.bucket(at);
            if first.try_lock().is_none() {
                wait.turn();
                continue;
            }
            let guard = Guard {
                hash: self,
                first,
                worker,
                tag: tag_of(hash),
                changed: false,
            };
            // A split may have moved the key before the lock was taken, and none can now.
            if home(hash, self.count.load(Acquire)) == at {
                return guard;
            }
        }
    }

    /// Whether there are more items than the table is meant for: call [`Hash::grow`].
    #[inline]
    pub fn is_crowded(&self) -> bool {
        let count = self.count.load(Relaxed);
        self.len() * 8 > count * ITEMS_PER_BUCKET_EIGHTHS
            && count < self.memory.capacity()
            && !self.is_reviving()
    }

    /// Splits one bucket. `hash_of` gives the hash of the item at a place, `prefetch` brings what
    /// that will read near. False where another worker is at it; `Full` where there is no room.
    ///
    /// The caller holds no guard and keeps the places alive (an era). Not while the table is being
    /// revived.
    pub fn grow(
        &self,
        prefetch: impl Fn(Place),
        mut hash_of: impl FnMut(Place) -> u64,
    ) -> Result<bool, Full> {
        if self
            .growing
            .compare_exchange(0, 1, Acquire, Relaxed)
            .is_err()
        {
            return Ok(false);
        }
        debug_assert!(!self.is_reviving());
        let count = self.count.load(Relaxed);
        let result = match (count < self.memory.capacity(), self.claim()) {
            (true, true) => self.split(count, &prefetch, &mut hash_of),
            (true, false) => Err(Full::Limit),
            (false, claimed) => {
                self.unclaim(claimed);
                Err(Full::Memory)
            }
        };
        self.growing.store(0, Release);
        result.map(|()| true)
    }

    /// Splits into bucket `count`, which is claimed. Holder of `growing` only.
    fn split(
        &self,
        count: u64,
        prefetch: &impl Fn(Place),
        hash_of: &mut impl FnMut(Place) -> u64,
    ) -> Result<(), Full> {
        let from = count - (count + 1).next_power_of_two() / 2;
        let (first, new) = (self.memory.bucket(from), self.memory.bucket(count));
        let mut wait = Wait::new();
        while first.try_lock().is_none() {
            wait.turn();
        }
        // The new bucket is in nobody's sight until the count says so: no lock is needed. A chain
        // as long as the old one holds whatever moves, so that nothing can fail halfway.
        if let Err(full) = self.prepare(count, self.buckets(first).count() - 1) {
            self.unclaim(true);
            first.unlock(false);
            return Err(full);
        }
        self.each(first, |_, _, place| prefetch(place));
        self.each(first, |bucket, slot, place| {
            if home(hash_of(place), count + 1) == count {
                let (into, vacancy) = self.vacancy(new).expect("the chains are equally long");
                into.fill(vacancy, bucket.tag(slot), place);
                bucket.set_tag(slot, 0);
            }
        });
        self.tidy(first);
        self.tidy(new);
        self.keep_count(count + 1);
        self.count.store(count + 1, Release);
        first.unlock(true);
        Ok(())
    }

    /// Makes an empty chain of a new bucket and `more`.
    fn prepare(&self, count: u64, more: usize) -> Result<(), Full> {
        if !self.memory.allocate(count) {
            return Err(Full::Memory);
        }
        let new = self.memory.bucket(count);
        // In an image that was damaged it need not be blank.
        new.wipe();
        for _ in 0..more {
            match self.take() {
                Ok(next) => self.last(new).set_next(Some(next)),
                Err(full) => {
                    self.tidy(new);
                    return Err(full);
                }
            }
        }
        Ok(())
    }

    fn last<'h>(&'h self, first: &'h Bucket) -> &'h Bucket {
        let last = self.buckets(first).last();
        last.expect("a chain has its first bucket")
    }

    /// Calls `each` for every place. Sees each item once if nobody changes the table meanwhile; the
    /// order is that of the buckets. For tests and figures.
    pub fn for_each(&self, mut each: impl FnMut(Place)) {
        for at in 0..self.count.load(Acquire) {
            self.each(self.memory.bucket(at), |_, _, place| each(place));
        }
    }

    /// Takes the bytes of one bucket, if the limit allows.
    fn claim(&self) -> bool {
        let before = self.bytes.fetch_add(BUCKET_BYTES, Relaxed);
        let granted = before + BUCKET_BYTES <= self.limit.load(Relaxed);
        if !granted {
            self.bytes.fetch_sub(BUCKET_BYTES, Relaxed);
        }
        granted
    }

    /// Gives back the bytes of one bucket that were taken for nothing.
    fn unclaim(&self, claimed: bool) {
        if claimed {
            self.bytes.fetch_sub(BUCKET_BYTES, Relaxed);
        }
    }

    /// An empty bucket of the pool: one that was used before, or a fresh one.
    fn take(&self) -> Result<u32, Full> {
        if let Some(at) = self.pool.take_used() {
            return Ok(at);
        }
        if !self.claim() {
            return Err(Full::Limit);
        }
        let fresh = self.pool.take_fresh(|fresh| self.keep_fresh(fresh));
        fresh.ok_or_else(|| {
            self.unclaim(true);
            Full::Memory
        })
    }

    /// The buckets of a chain, first to last.
    fn buckets<'h>(&'h self, first: &'h Bucket) -> impl Iterator<Item = &'h Bucket> {
        std::iter::successors(Some(first), |bucket| {
            bucket.next().map(|at| self.pool.bucket(at))
        })
    }

    fn each(&self, first: &Bucket, mut each: impl FnMut(&Bucket, usize, Place)) {
        for bucket in self.buckets(first) {
            for slot in (0..bucket.usable()).filter(|&slot| bucket.tag(slot) != 0) {
                each(bucket, slot, bucket.place(slot));
            }
        }
    }

    fn vacancy<'h>(&'h self, first: &'h Bucket) -> Option<(&'h Bucket, usize)> {
        self.buckets(first)
            .find_map(|bucket| Some((bucket, bucket.vacancy()?)))
    }

    /// Adds a bucket to a chain. The link takes the place of the last slot's item, which moves into
    /// the new bucket; a note says so until the link is made, since a process that is killed
    /// between would leave it in no chain.
    fn lengthen(&self, worker: WorkerId, first: &Bucket) -> Result<(), Full> {
        let next = self.take()?;
        let last = self.last(first);
        let (tag, place) = (last.tag(bucket::LINK_SLOT), last.place(bucket::LINK_SLOT));
        if tag != 0 {
            self.pool.bucket(next).fill(0, tag, place);
            self.note_move(worker, u64::from(next) + 1);
            last.set_tag(bucket::LINK_SLOT, 0);
        }
        last.set_next(Some(next));
        self.note_move(worker, 0);
        Ok(())
    }

    /// Fills the holes of a chain from its end and gives back the buckets that this empties.
    fn tidy(&self, first: &Bucket) {
        loop {
            let mut before_last = None;
            let mut last = first;
            while let Some(at) = last.next() {
                before_last = Some((last, at));
                last = self.pool.bucket(at);
            }
            let Some((before, at)) = before_last else {
                return;
            };
            let Some(full) = (0..last.usable()).find(|&slot| last.tag(slot) != 0) else {
                before.set_next(None);
                last.clear();
                self.pool.give_back(at);
                continue;
            };
            match self.vacancy(first) {
                Some((hole, vacancy)) if !std::ptr::eq(hole, last) => {
                    hole.fill(vacancy, last.tag(full), last.place(full));
                    last.set_tag(full, 0);
                }
                _ => return,
            }
        }
    }
}

impl Hash {
    /// One writer per counter: a load and a store, no read-modify-write.
    fn count_items(&self, worker: WorkerId, change: u64) {
        let changes = &self.changes[worker.index()];
        changes.store(changes.load(Relaxed).wrapping_add(change), Relaxed);
    }

    fn bytes_used(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

impl Places for Hash {
    #[inline]
    fn find(&self, hash: u64, mut is_it: impl FnMut(Place) -> bool) -> Option<Place> {
        let tag = tag_of(hash);
        let mut wait = Wait::new();
        'again: loop {
            let at = home(hash, self.count.load(Acquire));
            let first = self.memory.bucket(at);
            let mut tags = first.tags();
            let header = tags.header();
            if tags.is_locked() {
                wait.turn();
                continue;
            }
            let mut bucket = first;
            loop {
                for slot in tags.matches(tag) {
                    let place = bucket.place(slot);
                    if first.header() != header {
                        continue 'again;
                    }
                    if is_it(place) {
                        return Some(place);
                    }
                }
                let next = bucket.link(tags);
                if first.header() != header {
                    continue 'again;
                }
                let Some(next) = next else { break };
                bucket = self.pool.bucket(next);
                tags = bucket.tags();
            }
            if home(hash, self.count.load(Acquire)) == at {
                return None;
            }
        }
    }

    #[inline]
    fn prefetch(&self, hash: u64) {
        self.memory.prefetch(home(hash, self.count.load(Relaxed)));
    }

    fn len(&self) -> u64 {
        let changes = self.changes.iter();
        #[cfg(not(loom))]
        let found = self.revived_items();
        #[cfg(loom)]
        let found = 0;
        let add =
            |sum: u64, change: &CachePadded<AtomicU64>| sum.wrapping_add(change.load(Relaxed));
        let sum = changes.fold(found, add);
        // A removal may be seen before the insertion that another worker made.
        sum.cast_signed().max(0).cast_unsigned()
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

impl Guard<'_> {
    fn bucket(&self, link: Link) -> &Bucket {
        match link {
            Link::First => self.first,
            Link::Pool(at) => self.hash.pool.bucket(at),
        }
    }

    /// The slot of the item of which `is_it` says so.
    #[inline]
    pub fn find(&self, mut is_it: impl FnMut(Place) -> bool) -> Option<Slot> {
        let mut link = Link::First;
        loop {
            let bucket = self.bucket(link);
            let tags = bucket.tags();
            for slot in tags.matches(self.tag) {
                let place = bucket.place(slot);
                if is_it(place) {
                    return Some(Slot {
                        bucket: link,
                        slot,
                        place,
                    });
                }
            }
            link = Link::Pool(bucket.link(tags)?);
        }
    }

    /// Calls `each` with every place of the chain.
    pub fn each(&self, mut each: impl FnMut(Place)) {
        self.hash.each(self.first, |_, _, place| each(place));
    }

    /// Adds a place. `Full` where that takes a bucket more than the limit allows.
    #[inline]
    pub fn insert(&mut self, place: Place) -> Result<(), Full> {
        if self.hash.vacancy(self.first).is_none() {
            self.hash.lengthen(self.worker, self.first)?;
        }
        self.changed = true;
        let (bucket, slot) = self
            .hash
            .vacancy(self.first)
            .expect("the chain was lengthened");
        bucket.fill(slot, self.tag, place);
        self.count(1);
        Ok(())
    }

    /// Puts another place into a slot that [`Guard::find`] gave.
    #[inline]
    pub fn replace(&mut self, slot: Slot, place: Place) {
        self.changed = true;
        self.bucket(slot.bucket).set_place(slot.slot, place);
    }

    /// Empties a slot that [`Guard::find`] gave. Slots found before are no longer valid.
    pub fn remove(&mut self, slot: Slot) {
        self.changed = true;
        self.bucket(slot.bucket).set_tag(slot.slot, 0);
        self.hash.tidy(self.first);
        self.count(u64::MAX);
    }

    fn count(&self, change: u64) {
        self.hash.count_items(self.worker, change);
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.first.unlock(self.changed);
    }
}
