//! The buckets of the map, their marks and stripes, how many there are, and which is that of a
//! hash. Linear hashing: the lowest bits of a hash are the number of its bucket, as many bits as
//! the numbers have, or one less where there is no such bucket yet.
//!
//! What it never does: split.
//!
//! *Thread safety*: the number of buckets grows, by one worker at a time. Two words tell of it, the
//! number and the bits that there is a bucket for whatever they are; a reader would take longer to
//! make the second of the first than to load it. The second is stored before the first and loaded
//! after it, so it belongs to that number or to a later one. One bit more than belongs to the
//! number does no harm: there is no bucket for the highest then, and without it the same is left.
//! More than one bit more is the number of a time long past, and who relies on where a hash belongs
//! looks at the number again; until then it leads to some bucket that there is.

use super::bucket::{Bucket, Link};
use super::stripe::{MarkWord, STRIPE_BUCKETS, Seen, Stripe};
use crate::sync::{Ordering, Word};
use Ordering::{Acquire, Release};
use nyx_base::CachePadded;
use nyx_media::MediaError;

#[cfg(not(any(loom, shuttle)))]
pub(super) type Memory<T> = nyx_media::Array<T>;
/// A model checker has to make its own atomics.
#[cfg(any(loom, shuttle))]
pub(super) type Memory<T> = Box<[T]>;

// SAFETY: all fields are atomics, of which any bytes are a valid value.
#[cfg(not(any(loom, shuttle)))]
unsafe impl nyx_media::dram::Words for Bucket {}
// SAFETY: as above.
#[cfg(not(any(loom, shuttle)))]
unsafe impl nyx_media::dram::Words for MarkWord {}
// SAFETY: as above.
#[cfg(not(any(loom, shuttle)))]
unsafe impl nyx_media::dram::Words for Stripe {}

/// Memory for so many, all of them empty, which is zero; it is taken from the system when it is
/// touched.
#[cfg(not(any(loom, shuttle)))]
pub(super) fn reserve<T: nyx_media::dram::Words>(
    count: u64,
    _: fn() -> T,
) -> Result<Memory<T>, MediaError> {
    Memory::reserve(count as usize, true)
}

#[cfg(any(loom, shuttle))]
pub(super) fn reserve<T>(count: u64, empty: fn() -> T) -> Result<Memory<T>, MediaError> {
    Ok((0..count).map(|_| empty()).collect())
}

/// See the module.
#[derive(Debug)]
pub(super) struct Buckets {
    memory: Memory<Bucket>,
    /// As many.
    marks: Memory<MarkWord>,
    /// One for [`STRIPE_BUCKETS`].
    stripes: Memory<Stripe>,
    extent: CachePadded<Extent>,
}

#[derive(Debug)]
struct Extent {
    /// Buckets in use: two or more.
    count: Word,
    /// The bits of a hash that there is a bucket for, whatever they are: one less than count all
    /// buckets.
    bits: Word,
}

/// What [`Extent::bits`] is for so many buckets.
fn bits(count: u64) -> u64 {
    u64::MAX >> (count - 1).leading_zeros() >> 1
}

/// Where a hash belonged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home<'m> {
    pub(super) place: Place<'m>,
    at: u64,
    count: u64,
}

/// All that there is of a bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'m> {
    pub(super) stripe: &'m Stripe,
    /// Which of the stripe's buckets it is.
    pub(super) slot: u64,
    pub(super) mark: &'m MarkWord,
    pub(super) bucket: &'m Bucket,
}

impl Place<'_> {
    /// The first spill of the bucket, where its stripe was that. To others than the holder of the
    /// lock it may be the value of an entry, if the stripe is not the same any more.
    #[inline]
    pub(super) fn link(&self, before: Seen) -> Option<Link> {
        match before.is_spilled(self.slot) {
            true => self.bucket.link(),
            false => None,
        }
    }
}

impl Buckets {
    /// Panics where there is no memory for `count`.
    pub(super) fn reserve(capacity: u64, count: u64) -> Result<Buckets, MediaError> {
        assert!((2..=capacity).contains(&count));
        Ok(Buckets {
            memory: reserve(capacity, Bucket::empty)?,
            marks: reserve(capacity, MarkWord::empty)?,
            stripes: reserve(capacity.div_ceil(STRIPE_BUCKETS), Stripe::empty)?,
            extent: CachePadded(Extent {
                count: Word::new(count),
                bits: Word::new(bits(count)),
            }),
        })
    }

    /// How many there is room for.
    pub(super) fn capacity(&self) -> u64 {
        self.memory.len() as u64
    }

    /// How many are in use.
    #[inline]
    pub(super) fn count(&self) -> u64 {
        self.extent.count.load(Acquire)
    }

    /// Bytes of memory that are in use.
    pub(super) fn bytes(&self) -> u64 {
        let each = size_of::<Bucket>() + size_of::<MarkWord>();
        let count = self.count();
        count * each as u64 + count.div_ceil(STRIPE_BUCKETS) * size_of::<Stripe>() as u64
    }

    /// There are so many now. Whoever splits only.
    ///
    /// Panics where there is no memory for so many.
    pub(super) fn set_count(&self, count: u64) {
        assert!(count <= self.capacity());
        self.extent.bits.store(bits(count), Release);
        self.extent.count.store(count, Release);
    }

    /// Panics where there is no such bucket.
    #[inline]
    pub(super) fn at(&self, at: u64) -> Place<'_> {
        assert!(at < self.capacity(), "no bucket {at}");
        // SAFETY: just checked.
        unsafe { self.place(at) }
    }

    /// # Safety
    ///
    /// There is memory for that bucket.
    #[inline]
    unsafe fn place(&self, at: u64) -> Place<'_> {
        let stripe = (at / STRIPE_BUCKETS) as usize;
        // SAFETY: the caller's promise; there are as many marks, and stripes for all of them
        // (`Buckets::reserve`).
        unsafe {
            Place {
                stripe: self.stripes.get_unchecked(stripe),
                slot: at % STRIPE_BUCKETS,
                mark: self.marks.get_unchecked(at as usize),
                bucket: self.memory.get_unchecked(at as usize),
            }
        }
    }

    /// Where `hash` belongs.
    #[inline]
    pub(super) fn home(&self, hash: u64) -> Home<'_> {
        let count = self.count();
        let bits = self.extent.bits.load(Acquire);
        let at = hash & (bits << 1 | 1);
        let at = if at < count { at } else { hash & bits };
        debug_assert!(at < self.capacity());
        // SAFETY: `at` is below `count`, or not above `bits`, which is below the number of buckets
        // that there were when it was stored (`bits()`); there was never more than there is memory
        // for (`Buckets::set_count`).
        let place = unsafe { self.place(at) };
        // A core does not wait for the one before it begins with the other.
        nyx_media::observed::fetch(std::slice::from_ref(place.stripe));
        nyx_media::observed::read(std::slice::from_ref(place.mark));
        Home { place, at, count }
    }

    /// Whether the number of buckets is what it was.
    #[inline]
    pub(super) fn is_same(&self, home: Home<'_>) -> bool {
        self.count() == home.count
    }

    /// Whether `hash` still belongs there.
    pub(super) fn is_home(&self, home: Home<'_>, hash: u64) -> bool {
        self.is_same(home) || self.home(hash).at == home.at
    }
}
