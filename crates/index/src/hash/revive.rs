//! A table that was found in an image: what its last user, who may have been killed in the middle
//! of anything, left behind is put right by whoever touches it first.
//!
//! No chain is believed before it was looked at, once: its lock is taken away, links that lead
//! nowhere or to a bucket of another chain are cut, places that are no item of this chain are
//! dropped, and what is left is counted. [`Hash::sweep`] does it for all chains, in the background;
//! [`Hash::revive`] for the one chain that a request needs now.
//!
//! What a killed worker can leave, and why nothing is lost:
//!
//! * a lock: nobody holds one of a chain that was not looked at yet, so it means nothing;
//! * an item twice in a chain (`tidy` copies before it removes): one of them is dropped;
//! * a bucket of the pool that belongs to no chain, or a list of free ones that was being changed:
//!   the list is forgotten, and made anew of what no chain was seen to use when all were seen;
//! * the item that a chain's last slot held, on its way into the bucket that is linked there
//!   (`lengthen`; the link takes the slot's own place): the bucket is noted before, and the item is
//!   put back if the link was not made;
//! * a bucket that is not in use yet and holds what a split had moved there: it all goes back, and
//!   the split is made another time.
//!
//! In an image that was damaged otherwise, items may be lost; none that is dropped or kept is ever
//! taken for another: keys are compared by whoever asks.
//!
//! What it never does: trust a number that it read. A count that is not one is an error
//! ([`Unfit`]), for which the table is made anew from the items.
//!
//! *Thread safety*: as `hash`. A chain is put right by one worker, while all others that need it
//! wait. The table does not grow before all chains are sound.

use super::bucket::{self, BUCKET_BYTES, Bucket, Memory};
use super::pool::Pool;
use super::{BUCKETS_MIN, Hash, HashShape, home, tag_of};
use crate::Place;
use crate::sync::Wait;
use nyx_base::{CachePadded, WorkerId};
use nyx_media::{Array, MediaError, Region};
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Nobody has looked at the chain.
const UNSEEN: u8 = 0;
/// Somebody is at it.
const BUSY: u8 = 1;
/// The chain is sound: its items are items.
const SOUND: u8 = 2;
/// Its items were read and are whole.
const WHOLE: u8 = 3;

/// Workers that may change a table that is kept.
const WORKERS_MAX: usize = 1024;
/// Words of the part that says how far the table reaches, before the workers' notes.
const KEPT_WORDS: usize = 8;
const COUNT: usize = 0;
const FRESH: usize = 1;
/// A count has 40 bits; above them are bits that tell whether it is one.
const COUNT_BITS: u32 = 40;
/// No chain is longer than this; what is, leads around.
const CHAIN_MAX: usize = 4096;

/// Where a table is kept: three parts of an image.
#[derive(Debug)]
pub struct HashGround {
    /// [`HashShape::buckets_bytes`].
    pub buckets: Region,
    /// As many.
    pub pool: Region,
    /// [`HashGround::KEPT_BYTES`].
    pub kept: Region,
}

impl HashGround {
    /// Bytes of the third part.
    pub const KEPT_BYTES: u64 = 8 * (KEPT_WORDS + WORKERS_MAX) as u64;
}

/// A table in an image that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its table says that it has {0:#x} buckets, which cannot be")]
pub struct Unfit(pub u64);

/// What will say how far a table reaches, once it has all that it is to have.
#[derive(Debug)]
pub struct Unsaid(Kept);

/// How far a table reaches, in its image.
#[derive(Debug)]
pub(super) struct Kept(Array<AtomicU64>);

impl Kept {
    fn over(region: Region) -> Kept {
        Kept(Array::over(region, KEPT_WORDS + WORKERS_MAX))
    }

    /// Buckets that are in use. Stored before anybody may use one more.
    pub(super) fn set_count(&self, count: u64) {
        self.0[COUNT].store(sealed(count), Release);
    }

    /// Buckets of the pool that were used, ever. Stored before they are.
    pub(super) fn set_fresh(&self, fresh: u64) {
        self.0[FRESH].store(sealed(fresh), Release);
    }

    /// Where a worker notes the bucket that an item is on its way to, plus one.
    pub(super) fn note(&self, worker: WorkerId) -> &AtomicU64 {
        &self.0[KEPT_WORDS + worker.index()]
    }

    fn unsealed(&self, word: usize, most: u64) -> Result<u64, Unfit> {
        let found = self.0[word].load(Relaxed);
        let count = found & ((1 << COUNT_BITS) - 1);
        match sealed(count) == found && count <= most {
            true => Ok(count),
            false => Err(Unfit(found)),
        }
    }
}

/// A count with bits that only it has.
fn sealed(count: u64) -> u64 {
    let check = (count + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> COUNT_BITS;
    count | check << COUNT_BITS
}

/// What is known of a table that was found.
#[derive(Debug)]
pub(super) struct Revival {
    /// Whether any chain may not be whole.
    pub(super) goes_on: CachePadded<AtomicBool>,
    chains: Array<AtomicU8>,
    /// Buckets of the pool that a chain was seen to use, a bit each.
    used: Array<AtomicU64>,
    fresh: u64,
    next: CachePadded<AtomicU64>,
    whole: AtomicU64,
    dropped: AtomicU64,
    /// Items of chains that were put right, less those dropped since; modulo 2^64.
    items: AtomicU64,
}

/// How much of a table that was found has been looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Revived {
    /// Chains that are whole.
    pub chains: u64,
    /// Chains that there are.
    pub chains_all: u64,
    /// Places that were dropped: what a killed worker had not finished, or damage.
    pub dropped: u64,
}

impl HashShape {
    /// Bytes of one of the two parts that hold buckets.
    pub fn buckets_bytes(&self) -> u64 {
        self.buckets_max() * BUCKET_BYTES
    }
}

impl Hash {
    /// An empty table in an image.
    pub fn create(shape: HashShape, ground: HashGround) -> Result<Hash, MediaError> {
        let (mut hash, Unsaid(kept)) = Hash::remake(shape, ground)?;
        kept.set_fresh(0);
        kept.set_count(BUCKETS_MIN);
        hash.kept = Some(kept);
        Ok(hash)
    }

    /// An empty table in an image, whatever was there. Whoever opens the image before
    /// [`Hash::doubted`] is given what says how far it reaches finds that it is [`Unfit`].
    pub fn remake(shape: HashShape, ground: HashGround) -> Result<(Hash, Unsaid), MediaError> {
        let HashGround {
            buckets,
            pool,
            kept,
        } = ground;
        let (hash, kept) = (
            Hash::over(shape, buckets, pool, (BUCKETS_MIN, 0)),
            Kept::over(kept),
        );
        kept.0.allocate(0, kept.0.len()).map_err(no_room)?;
        if !hash.memory.allocate(0) {
            return Err(no_room(std::io::ErrorKind::StorageFull.into()));
        }
        // Zero is no count. First of all: what is stored next is no table yet.
        kept.0.iter().for_each(|word| word.store(0, Release));
        // All others are wiped when they come into use.
        (0..BUCKETS_MIN).for_each(|at| hash.memory.bucket(at).wipe());
        Ok((hash, Unsaid(kept)))
    }

    /// The table that was made anew, as if it had been found: it is one from now on, and nothing of
    /// it is believed before it was looked at.
    pub fn doubted(self, Unsaid(kept): Unsaid) -> Result<Hash, MediaError> {
        let (count, fresh) = (self.count.load(Relaxed), self.pool.fresh());
        let pool = Pool::over(self.pool.into_memory(), fresh as u32);
        let bytes = (count + fresh) * BUCKET_BYTES;
        let workers = self.changes.len() as u16;
        let mut hash = Hash::of_parts(self.memory, pool, count, bytes, workers);
        hash.revival = Some(Box::new(Revival::of(count, fresh)?));
        kept.set_fresh(fresh);
        kept.set_count(count);
        hash.kept = Some(kept);
        Ok(hash)
    }

    /// The table that was left in an image. Nothing may be asked of it before
    /// [`Hash::put_right`], and nothing of a chain before [`Hash::revive`].
    pub fn open(shape: HashShape, ground: HashGround) -> Result<Result<Hash, Unfit>, MediaError> {
        let HashGround {
            buckets,
            pool,
            kept,
        } = ground;
        let kept = Kept::over(kept);
        kept.0.allocate(0, kept.0.len()).map_err(no_room)?;
        let most = shape.buckets_max();
        let counts = kept.unsealed(COUNT, most).and_then(|count| {
            let fresh = kept.unsealed(FRESH, most)?;
            (count >= BUCKETS_MIN)
                .then_some((count, fresh))
                .ok_or(Unfit(count))
        });
        let (count, fresh) = match counts {
            Ok(counts) => counts,
            Err(unfit) => return Ok(Err(unfit)),
        };
        let revival = Revival::of(count, fresh)?;
        let mut hash = Hash::over(shape, buckets, pool, (count, fresh));
        hash.kept = Some(kept);
        hash.revival = Some(Box::new(revival));
        Ok(Ok(hash))
    }

    fn over(shape: HashShape, buckets: Region, pool: Region, counts: (u64, u64)) -> Hash {
        let (most, (count, fresh)) = (shape.buckets_max() as usize, counts);
        let memory = Memory::over(Array::over(buckets, most));
        let pool = Pool::over(Memory::over(Array::over(pool, most)), fresh as u32);
        let bytes = (count + fresh) * BUCKET_BYTES;
        Hash::of_parts(memory, pool, count, bytes, shape.workers)
    }

    /// Bytes that the image has for a table which was found, what is allocated ahead included.
    pub fn found_bytes(&self) -> u64 {
        let fresh = self.revival.as_ref().map_or(0, |revival| revival.fresh);
        let allocated = |buckets| self.memory.allocated(buckets) * BUCKET_BYTES;
        allocated(self.count.load(Relaxed)) + allocated(fresh)
    }

    /// Makes sure that all of a table that was found can be touched: a copy of an image may have
    /// holes that the image had not.
    pub fn allocate_found(&self) -> std::io::Result<()> {
        let Some(revival) = &self.revival else {
            return Ok(());
        };
        self.memory.allocate_all(self.count.load(Relaxed))?;
        self.pool.allocate_all(revival.fresh)
    }

    /// Items of chains that were found, modulo 2^64.
    pub(super) fn revived_items(&self) -> u64 {
        let revival = self.revival.as_ref();
        revival.map_or(0, |revival| revival.items.load(Relaxed))
    }

    /// Whether chains have to be revived before they are used.
    #[inline]
    pub fn is_reviving(&self) -> bool {
        match &self.revival {
            None => false,
            Some(revival) => revival.goes_on.load(Acquire),
        }
    }

    /// How far that is.
    pub fn revived(&self) -> Option<Revived> {
        let revival = self.revival.as_ref()?;
        Some(Revived {
            chains: revival.whole.load(Relaxed),
            chains_all: revival.chains.len() as u64,
            dropped: revival.dropped.load(Relaxed),
        })
    }

    /// What has to be done before the first request: takes back a split that was not finished, and
    /// puts back items that were on their way. `item` gives the hash of the item at a place, where
    /// there is one. For one worker, before any other uses the table.
    pub fn put_right(&self, worker: WorkerId, item: &mut dyn FnMut(Place) -> Option<u64>) {
        let (Some(kept), Some(revival)) = (&self.kept, &self.revival) else {
            return;
        };
        // What follows may itself have to note something.
        let notes = (0..WORKERS_MAX).map(|at| kept.note(WorkerId(at as u16)));
        let noted: Vec<u64> = notes.clone().map(|note| note.load(Relaxed)).collect();
        let on_their_way = noted.iter().filter(|at| (1..=revival.fresh).contains(at));
        for at in on_their_way {
            self.put_back(worker, self.pool.bucket((at - 1) as u32), item);
        }
        let count = self.count.load(Relaxed);
        // Where the bucket has no block there is nothing in it, and to look would be fatal.
        if count < self.memory.capacity() && self.memory.allocate(count) {
            let half_made = self.memory.bucket(count);
            self.put_back(worker, half_made, item);
            half_made.wipe();
        }
        for (note, _) in notes.zip(&noted).filter(|(_, noted)| **noted != 0) {
            note.store(0, Release);
        }
    }

    /// Puts the items of a chain that is in no use into their own chains, unless they are there.
    fn put_back(
        &self,
        worker: WorkerId,
        first: &Bucket,
        item: &mut dyn FnMut(Place) -> Option<u64>,
    ) {
        let mut found = Vec::new();
        let mut bucket = first;
        for _ in 0..CHAIN_MAX {
            let filled = (0..bucket.usable()).filter(|&slot| bucket.tag(slot) != 0);
            found.extend(filled.map(|slot| (bucket.tag(slot), bucket.place(slot))));
            match bucket
                .next()
                .filter(|&next| u64::from(next) < self.pool.len())
            {
                Some(next) => bucket = self.pool.bucket(next),
                None => break,
            }
        }
        for (tag, place) in found {
            let Some(hash) = item(place).filter(|&hash| tag_of(hash) == tag) else {
                continue;
            };
            self.revive(hash, item);
            let mut guard = self.lock(worker, hash);
            if guard.find(|other| other == place).is_none() {
                self.set_limit(self.limit().max(self.bytes_used() + BUCKET_BYTES));
                // The slot that the item left is free, so that nothing more is needed.
                let _ = guard.insert(place);
            }
        }
    }

    /// Makes the chain of `hash` sound, unless it is; returns whether its items were read and are
    /// whole. `item` gives the hash of the item at a place, where there is one.
    pub fn revive(&self, hash: u64, item: &mut dyn FnMut(Place) -> Option<u64>) -> bool {
        let at = home(hash, self.count.load(Acquire));
        self.revive_chain(at, item)
    }

    fn revive_chain(&self, at: u64, item: &mut dyn FnMut(Place) -> Option<u64>) -> bool {
        let Some(revival) = &self.revival else {
            return true;
        };
        // Chains that a split made later are of sound ones.
        let Some(state) = revival.chains.get(at as usize) else {
            return true;
        };
        let mut wait = Wait::new();
        loop {
            match state.compare_exchange(UNSEEN, BUSY, Acquire, Acquire) {
                Ok(_) => {
                    let kept = self.mend(revival, at, item);
                    revival.items.fetch_add(kept, Relaxed);
                    state.store(SOUND, Release);
                    return false;
                }
                Err(BUSY) => wait.turn(),
                Err(state) => return state == WHOLE,
            }
        }
    }

    /// Puts one chain right; how many items it has.
    fn mend(&self, revival: &Revival, at: u64, item: &mut dyn FnMut(Place) -> Option<u64>) -> u64 {
        let count = self.count.load(Relaxed);
        let first = self.memory.bucket(at);
        first.free();
        let mut kept: Vec<Place> = Vec::new();
        let mut bucket = first;
        loop {
            let next = bucket.next();
            let usable = next.filter(|&next| revival.takes(next));
            if usable != next {
                bucket.set_next(None);
                bucket.set_tag(bucket::LINK_SLOT, 0);
                revival.dropped.fetch_add(1, Relaxed);
            } else if next.is_some() {
                bucket.set_tag(bucket::LINK_SLOT, 0);
            }
            for slot in (0..bucket.usable()).filter(|&slot| bucket.tag(slot) != 0) {
                let place = bucket.place(slot);
                let belongs = |hash| tag_of(hash) == bucket.tag(slot) && home(hash, count) == at;
                match !kept.contains(&place) && item(place).is_some_and(belongs) {
                    true => kept.push(place),
                    false => {
                        bucket.set_tag(slot, 0);
                        revival.dropped.fetch_add(1, Relaxed);
                    }
                }
            }
            match usable {
                Some(next) => bucket = self.pool.bucket(next),
                None => break,
            }
        }
        self.tidy(first);
        kept.len() as u64
    }

    /// Looks at the next chain; false where there is none left. `item` as above; `is_whole` reads
    /// an item and says whether it is what was stored, else it is dropped. May be called by several
    /// workers at once.
    pub fn sweep(
        &self,
        item: &mut dyn FnMut(Place) -> Option<u64>,
        is_whole: &mut dyn FnMut(Place) -> bool,
    ) -> bool {
        let Some(revival) = self.revival.as_ref().filter(|_| self.is_reviving()) else {
            return false;
        };
        let all = revival.chains.len() as u64;
        let at = revival.next.fetch_add(1, Relaxed);
        if at >= all {
            revival.next.store(all, Relaxed);
            return false;
        }
        if !self.revive_chain(at, item) {
            self.read_chain(at, revival, is_whole);
        }
        if revival.whole.fetch_add(1, Relaxed) + 1 == all {
            self.free_unused(revival);
            revival.goes_on.store(false, Release);
        }
        at + 1 < all
    }

    /// Reads every item of a chain, and drops those that are not whole.
    fn read_chain(&self, at: u64, revival: &Revival, is_whole: &mut dyn FnMut(Place) -> bool) {
        let first = self.memory.bucket(at);
        let mut dropped = 0;
        let mut wait = Wait::new();
        while first.try_lock().is_none() {
            wait.turn();
        }
        // Under the lock: an item that moves meanwhile would be looked at where it was. The table
        // does not grow now, so that who waits for this lock waits for nobody else.
        self.each(first, |bucket, slot, place| {
            if !is_whole(place) {
                bucket.set_tag(slot, 0);
                dropped += 1;
            }
        });
        self.tidy(first);
        // Before anybody changes it: who counts the dead asks whether the sweep was here.
        revival.chains[at as usize].store(WHOLE, Release);
        first.unlock(dropped > 0);
        revival.dropped.fetch_add(dropped, Relaxed);
        revival.items.fetch_sub(dropped, Relaxed);
    }

    /// Gives back the buckets of the pool that no chain uses.
    fn free_unused(&self, revival: &Revival) {
        for at in (0..revival.fresh).filter(|&at| !revival.is_used(at)) {
            self.pool.bucket(at as u32).wipe();
            self.pool.give_back(at as u32);
        }
    }
}

impl Revival {
    /// Nothing is known of `count` chains, and `fresh` buckets of the pool.
    fn of(count: u64, fresh: u64) -> Result<Revival, MediaError> {
        Ok(Revival {
            goes_on: CachePadded(AtomicBool::new(true)),
            chains: Array::reserve(count as usize, false)?,
            used: Array::reserve((fresh as usize).div_ceil(64), false)?,
            fresh,
            next: CachePadded(AtomicU64::new(0)),
            whole: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            items: AtomicU64::new(0),
        })
    }

    /// Takes a bucket of the pool for a chain; false where it is none, or another chain's.
    fn takes(&self, at: u32) -> bool {
        let at = u64::from(at);
        if at >= self.fresh {
            return false;
        }
        let bit = 1 << (at % 64);
        self.used[(at / 64) as usize].fetch_or(bit, Relaxed) & bit == 0
    }

    fn is_used(&self, at: u64) -> bool {
        self.used[(at / 64) as usize].load(Relaxed) >> (at % 64) & 1 == 1
    }
}

fn no_room(source: std::io::Error) -> MediaError {
    MediaError::Reserve {
        len_bytes: HashGround::KEPT_BYTES,
        source,
    }
}
