//! A hash table on persistent memory that is whole at any moment, so that opening it takes the same
//! time whatever is in it.
//!
//! **Where a key is.** The upper bits of its hash lead to a segment, 16 buckets of 256 bytes; lower
//! bits name two of these, and the key is in one of them: a new one goes where there is more room,
//! so that segments are some 94 % full when they are split. A bucket is one unit of persistent
//! memory; a look-up reads a line of the directory, and in one bucket or two the line of
//! fingerprints and, mostly, one slot (`bucket.rs`, which has the order of stores within a bucket).
//!
//! **Segments** are a chain in the order of hashes, each with the address of its right sibling and
//! its depth in one word, its *link*. What leads to them is a directory (`directory.rs`), a tree of
//! tables by six bits of the hash each, which grows by single tables where segments are split. It
//! may lag: a segment that does not have a hash any more leads on to the right. The directory is on
//! the medium; nothing is kept in DRAM, so that there is nothing to be built after a restart.
//!
//! **A split**, of which every prefix is a table with all entries, each once:
//!
//! 1. a segment of empty buckets is durable where nobody knows of it;
//! 2. the left one's link, to it and with the new depth, is durable: from here on the split is
//!    under way, and is known to be by buckets of less depth than the link has;
//! 3. bucket by bucket, at its own time, the upper half goes over: it is copied, slot for slot, and
//!    durable, and then one store cedes it. Until then the left bucket has the entries, whatever is
//!    in the right one;
//! 4. the directory is told.
//!
//! A crash leaves a split under way, or a directory that lags. Readers need not care. A writer that
//! goes right finishes the split that it finds (steps 3 and 4, as often as need be), as does who
//! wants to split the segment again. So the right one of a split under way is never itself split.
//!
//! Where the heap has no room for a table of the directory, the directory lags and nothing else.
//!
//! **Hashes are not uniform** (`hash_of`): were they, all segments would be full at about the same
//! time, and the table would take 20 bytes per key at one time and 39 soon after. As they are, some
//! are always being split, and it takes 28 to 30 whatever the number of keys.
//!
//! What it never does: give a segment back (one that is emptied is filled again), move an entry
//! between the two buckets, wait for a writer while reading.
//!
//! *Thread safety*: all methods take `&self`; a worker is within an era while it calls them. A
//! writer locks the two buckets of its key, the one further left in the segment first; a split
//! locks the segment, against other splits, and then one bucket at a time.
//!
//! *Invariants*: along the chain the spans of one bucket's place are all hashes, each once, where
//! those that are not ceded yet count for nothing; the directory leads to the segment that has a
//! hash or to one left of it, and to none whose left sibling is being split to make it.
//!
//! Source: Fagin et al., "Extendible Hashing" (TODS'79); Martin, "Spiral Storage" (1979), for
//! hashes that are not uniform. The buckets of one unit, fingerprints and locks that are void after
//! a restart are ideas of Lu et al., "Dash" (VLDB'20); the word that commits and the chain are
//! those of our trees. HybridIndex+ section 3.1, figure 15, of which it is the persistent half.

mod bucket;
mod check;
mod directory;
mod segment;

#[cfg(all(test, not(any(loom, shuttle))))]
mod crash;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::heap::{Class, Full, Heap, Sweep};
use crate::map;
use crate::ordered::{Census, PutError, Steps, TOGETHER, Unordered, Unsound, together};
use crate::sync::{Locks, Mutex};
use crate::{Index, Persistent};
use bucket::{Bucket, DEPTH_MAX, Locked, Meta, Span};
use nyx_base::WorkerId;
use nyx_media::Pmem;
use nyx_media::pmem::LINE_BYTES;
use segment::{Link, Segment};
use std::sync::Arc;

/// Buckets of a segment.
pub const BUCKETS: usize = 16;
/// Slots of a bucket; of the first one fewer, where the link is.
pub const SLOTS: usize = bucket::SLOTS_MAX;
/// Bits of a hash that a table of the directory is for.
pub const BITS: u32 = 6;
/// Locks that segments share while they are split.
const LOCKS: usize = 64;

/// The table. `BUCKETS`, `SLOTS` and `BITS` are others only in tests.
#[derive(Debug)]
pub struct PmHash<
    P,
    const BUCKETS: usize = { self::BUCKETS },
    const SLOTS: usize = { self::SLOTS },
    const BITS: u32 = { self::BITS },
> {
    heap: Arc<Heap<P>>,
    root: usize,
    /// Held while a segment is split.
    splits: Locks,
    /// Held while the directory is told.
    telling: Mutex<()>,
}

/// The hash of a key. The bits below those that a span has are as good as drawn. Those above are
/// spread: there are twice as many keys to a stretch of the lowest hashes as of the highest, and in
/// between fewer and fewer. So there are full segments and empty ones at any time, and not all of
/// them are split within the same few keys.
#[inline]
fn hash_of(key: u64) -> u64 {
    const THIRD: u64 = u64::MAX / 3;
    const BELOW: u64 = u64::MAX >> DEPTH_MAX;
    let high = |a: u64, b: u64| ((u128::from(a) * u128::from(b)) >> 64) as u64;
    let drawn = map::hash_of(key);
    // (2x + x^2) / 3, for x in [0, 1).
    let spread = high(drawn, 2 * THIRD) + high(high(drawn, drawn), THIRD);
    spread & !BELOW | drawn & BELOW
}

/// The two places in a segment where a key may be, in ascending order.
#[inline]
fn places<const BUCKETS: usize>(hash: u64) -> [usize; 2] {
    // The lowest byte is the fingerprint.
    let one = (hash >> 8) as usize % BUCKETS;
    let other = (one + 1 + usize::from((hash >> 12) as u8) % (BUCKETS - 1)) % BUCKETS;
    [one.min(other), one.max(other)]
}

/// The two buckets of a key, locked.
struct Pair<'t, P: Pmem> {
    segment: Segment<'t, P>,
    buckets: [Locked<'t, P>; 2],
    hash: u64,
}

impl<P: Pmem> Pair<'_, P> {
    /// The bucket and its slot that hold `key`.
    fn find(&self, key: u64) -> Option<(&Locked<'_, P>, usize)> {
        let tag = bucket::tag(self.hash);
        let find = |bucket: &Locked<'_, P>| bucket.find(bucket.meta(), tag, key);
        self.buckets
            .iter()
            .find_map(|bucket| Some((bucket, find(bucket)?)))
    }

    /// The bucket with more room, if there is any.
    fn roomy(&self) -> Option<&Locked<'_, P>> {
        let [one, other] = &self.buckets;
        let roomy = if other.vacancies() > one.vacancies() {
            other
        } else {
            one
        };
        (roomy.vacancies() > 0).then_some(roomy)
    }
}

impl<P: Pmem, const BUCKETS: usize, const SLOTS: usize, const BITS: u32>
    PmHash<P, BUCKETS, SLOTS, BITS>
{
    const SEGMENT_BYTES: u64 = (BUCKETS * bucket::WORDS) as u64 * 8;
    const SEGMENT: Class = match Class::of(Self::SEGMENT_BYTES) {
        Some(class) if class.bytes() == Self::SEGMENT_BYTES => class,
        _ => panic!("there are no blocks as large as a segment"),
    };
    const FITS: () = assert!(BUCKETS.is_power_of_two() && BUCKETS >= 2 && BUCKETS <= 16);
    const SLOTS_FIT: () = assert!(SLOTS >= 2 && SLOTS <= bucket::SLOTS_MAX);

    #[inline]
    fn segment(&self, at: u64) -> Result<Segment<'_, P>, Unsound> {
        let words = self.heap.block(at, Self::SEGMENT_BYTES);
        let words = words.ok_or(Unsound::NoNode { at })?;
        Ok(Segment::new(self.heap.pm(), at, words, SLOTS))
    }

    /// The segment to the right of one that does not have a hash any more.
    fn right_of<'t>(&'t self, segment: Segment<'t, P>) -> Result<Segment<'t, P>, Unsound> {
        self.segment(segment.link().right)
    }

    fn steps(&self) -> Steps {
        Steps::among(&self.heap, Self::SEGMENT_BYTES)
    }

    /// What `read` finds in the bucket at `place` that has `hash`, from `segment` on to the right.
    #[inline]
    fn read<'t, T>(
        &'t self,
        mut segment: Segment<'t, P>,
        hash: u64,
        place: usize,
        mut read: impl FnMut(Bucket<'_, P>, Meta) -> T,
    ) -> Result<T, Unsound> {
        let mut steps = self.steps();
        loop {
            let bucket = segment.bucket(place);
            let seen = bucket.look(self.heap.generation());
            let meta = bucket.meta();
            if !meta.span().has(hash) {
                // The link was stored before the bucket was ceded, so that it leads on.
                segment = steps.to(self.right_of(segment)?)?;
                continue;
            }
            let found = read(bucket, meta);
            if bucket.is_same(seen) {
                bucket.make_durable(seen);
                return Ok(found);
            }
        }
    }

    /// The value of `key`, from `segment` on to the right.
    #[inline]
    fn find<'t>(
        &'t self,
        segment: Segment<'t, P>,
        hash: u64,
        key: u64,
    ) -> Result<Option<u64>, Unsound> {
        let find = |bucket: Bucket<'_, P>, meta| {
            let slot = bucket.find(meta, bucket::tag(hash), key);
            slot.map(|slot| bucket.value(slot))
        };
        let [one, other] = places::<BUCKETS>(hash);
        match self.read(segment, hash, one, find)? {
            Some(value) => Ok(Some(value)),
            None => self.read(segment, hash, other, find),
        }
    }

    /// Asks for the fingerprints in both buckets to be brought near.
    #[inline]
    fn fetch(&self, segment: Segment<'_, P>, hash: u64) {
        for place in places::<BUCKETS>(hash) {
            let at = segment.bucket_at(place);
            self.heap.pm().fetch(at, LINE_BYTES);
        }
    }

    /// Asks for the slots with the right fingerprints to be brought near.
    #[inline]
    fn fetch_slots(&self, segment: Segment<'_, P>, hash: u64) {
        for place in places::<BUCKETS>(hash) {
            let bucket = segment.bucket(place);
            for slot in bucket.alike(bucket.meta(), bucket::tag(hash)) {
                let at = segment.bucket_at(place) + bucket::slot_at(slot);
                self.heap.pm().fetch(at, bucket::SLOT_BYTES);
            }
        }
    }

    /// Locks the two buckets that have `hash`.
    fn lock(&self, worker: WorkerId, hash: u64) -> Result<Pair<'_, P>, PutError> {
        let generation = self.heap.generation();
        let mut steps = self.steps();
        let mut segment = self.descend(hash)?;
        loop {
            let lock = |place| segment.bucket(place).lock(generation);
            let buckets = places::<BUCKETS>(hash).map(lock);
            if buckets.iter().all(|bucket| bucket.span().has(hash)) {
                return Ok(Pair {
                    segment,
                    buckets,
                    hash,
                });
            }
            drop(buckets);
            let right = steps.to(self.right_of(segment)?)?;
            let _split = self.splits.lock(map::hash_of(segment.at));
            self.finish(worker, segment)?;
            segment = right;
        }
    }

    /// A durable segment of empty buckets that nobody knows of.
    fn draft(&self, worker: WorkerId, span: Span, right: u64) -> Result<Segment<'_, P>, PutError> {
        let segment = self.segment(self.heap.take(worker, Self::SEGMENT)?)?;
        for place in 0..BUCKETS {
            segment.bucket(place).draft(span, self.heap.generation());
        }
        let depth = span.depth;
        segment.set_link(Link { right, depth });
        segment.make_link_durable();
        Ok(segment)
    }

    /// Splits a segment that is full at this depth, unless somebody else did.
    fn split(&self, worker: WorkerId, at: u64, depth: u32) -> Result<(), PutError> {
        let _split = self.splits.lock(map::hash_of(at));
        let left = self.segment(at)?;
        let link = left.link();
        let mut spans = (0..BUCKETS).map(|place| left.bucket(place).span());
        if link.depth != depth || spans.any(|span| span.depth != depth) {
            return self.finish(worker, left);
        }
        if depth >= DEPTH_MAX {
            return Err(PutError::Full(Full {
                asked_bytes: Self::SEGMENT_BYTES,
                heap_bytes: self.heap.pm().size_bytes(),
            }));
        }
        let upper = left.bucket(0).span().upper();
        let right = self.draft(worker, upper, link.right)?;
        left.set_link(Link {
            right: right.at,
            depth: depth + 1,
        });
        self.finish(worker, left)
    }

    /// Finishes the last split of a segment, whether it was under way or not. Whoever calls it has
    /// locked the segment against others who would.
    fn finish(&self, worker: WorkerId, left: Segment<'_, P>) -> Result<(), PutError> {
        let link = left.link();
        let right = self.segment(link.right)?;
        // A writer that is gone may have stored it and no more.
        left.make_link_durable();
        for place in 0..BUCKETS {
            let bucket = left.bucket(place).lock(self.heap.generation());
            if bucket.span().depth < link.depth {
                bucket.cede(right.bucket(place), hash_of);
            }
        }
        let span = Span {
            low: right.bucket(0).span().low,
            depth: link.depth,
        };
        match self.tell(worker, span, right.at) {
            // It is reached from the left.
            Err(PutError::Full(_)) => Ok(()),
            done => done,
        }
    }
}

impl<P: Pmem, const BUCKETS: usize, const SLOTS: usize, const BITS: u32> Index
    for PmHash<P, BUCKETS, SLOTS, BITS>
{
    fn get(&self, key: u64) -> Result<Option<u64>, Unsound> {
        let hash = hash_of(key);
        let segment = self.descend(hash)?;
        self.fetch(segment, hash);
        self.find(segment, hash, key)
    }

    fn get_many(&self, keys: &[u64], values: &mut [Option<u64>]) -> Result<(), Unsound> {
        for (keys, values) in together(keys, values) {
            let mut ways = [None; TOGETHER];
            for (way, &key) in ways.iter_mut().zip(keys) {
                let hash = hash_of(key);
                let segment = self.descend(hash)?;
                self.fetch(segment, hash);
                *way = Some((segment, hash, key));
            }
            let ways = ways.into_iter().flatten();
            for (segment, hash, _) in ways.clone() {
                self.fetch_slots(segment, hash);
            }
            for ((segment, hash, key), value) in ways.zip(values) {
                *value = self.find(segment, hash, key)?;
            }
        }
        Ok(())
    }

    fn put(&self, worker: WorkerId, key: u64, value: u64) -> Result<Option<u64>, PutError> {
        PutError::check(key)?;
        let hash = hash_of(key);
        loop {
            let pair = self.lock(worker, hash)?;
            if let Some((bucket, slot)) = pair.find(key) {
                let before = bucket.value(slot);
                bucket.update(slot, value);
                return Ok(Some(before));
            }
            if let Some(bucket) = pair.roomy() {
                bucket.insert(bucket::tag(hash), key, value);
                return Ok(None);
            }
            let (at, depth) = (pair.segment.at, pair.buckets[0].span().depth);
            drop(pair);
            self.split(worker, at, depth)?;
        }
    }

    fn remove(&self, worker: WorkerId, key: u64) -> Result<Option<u64>, PutError> {
        let pair = self.lock(worker, hash_of(key))?;
        let Some((bucket, slot)) = pair.find(key) else {
            return Ok(None);
        };
        let before = bucket.value(slot);
        bucket.remove(slot);
        Ok(Some(before))
    }
}

/// The order is that of hashes.
impl<P: Pmem, const BUCKETS: usize, const SLOTS: usize, const BITS: u32> Unordered
    for PmHash<P, BUCKETS, SLOTS, BITS>
{
    fn walk(&self, from: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>, Unsound> {
        into.clear();
        let segment = self.descend(from)?;
        let mut last = u64::MAX;
        for place in 0..BUCKETS {
            let before = into.len();
            let span = self.read(segment, from, place, |bucket, meta| {
                into.truncate(before);
                into.extend(bucket.entries(meta));
                meta.span()
            })?;
            // In a split under way some buckets go further than others.
            last = last.min(span.last());
        }
        into.retain(|&(key, _)| (from..=last).contains(&hash_of(key)));
        // A key that went and came again may have been in both of its buckets.
        into.sort_unstable_by_key(|entry| entry.0);
        into.dedup_by_key(|entry| entry.0);
        Ok(last.checked_add(1))
    }
}

impl<P: Pmem, const BUCKETS: usize, const SLOTS: usize, const BITS: u32> Persistent<P>
    for PmHash<P, BUCKETS, SLOTS, BITS>
{
    fn open(heap: Arc<Heap<P>>, root: usize, worker: WorkerId) -> Result<Self, PutError> {
        let ((), ()) = (Self::FITS, Self::SLOTS_FIT);
        let table = PmHash {
            heap,
            root,
            splits: Locks::new(LOCKS),
            telling: Mutex::new(()),
        };
        if table.heap.read_root(root) == 0 {
            let first = table.draft(worker, Span::ALL, 0)?;
            let directory = table.draft_directory(worker, first.at)?;
            table.heap.set_root(root, directory);
        }
        table.descend(0)?;
        Ok(table)
    }

    fn heap(&self) -> &Arc<Heap<P>> {
        &self.heap
    }

    fn mark(&self, sweep: &mut Sweep<'_, P>) -> Result<u64, Unsound> {
        self.mark_all(sweep)
    }

    fn check(&self) -> Result<Census, Unsound> {
        self.count_all()
    }
}
