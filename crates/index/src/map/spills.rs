//! What buckets of the map have no room for. Spills are taken fresh in the order of their memory,
//! or from a list of those that were used before.
//!
//! What it never does: give memory back to the system, look at an entry but to empty a spill.
//!
//! *Thread safety*: a short spin lock guards the list. It is taken while a stripe is locked, never
//! the other way round. A reader that comes too late may still walk a spill that is on the list or
//! in another chain; the version of the stripe that it began at tells it so.

use super::bucket::{Bucket, LINK_INDEX_MAX, Link, SPILL_BYTES, SPILL_ENTRIES, Spill};
use super::buckets::{Memory, reserve};
use crate::sync::{Locks, Ordering, Word};
use Ordering::Relaxed;
use nyx_media::MediaError;

// SAFETY: all fields are atomics, of which any bytes are a valid value.
#[cfg(not(any(loom, shuttle)))]
unsafe impl nyx_media::dram::Words for Spill {}

/// What was taken out of a chain of spills.
pub(super) struct Popped {
    pub(super) word: u64,
    pub(super) value: u64,
    /// The first spill of the chain now.
    pub(super) link: Option<Link>,
}

/// The spills.
#[derive(Debug)]
pub(super) struct Spills {
    memory: Memory<Spill>,
    /// One.
    locks: Locks,
    /// Those that were used and are in no chain, as a chain; what their links say of entries means
    /// nothing.
    free: Spill,
    /// How many were ever used.
    fresh: Word,
}

impl Spills {
    pub(super) fn reserve(count: u64) -> Result<Spills, MediaError> {
        // No link leads further.
        let count = count.min(LINK_INDEX_MAX + 1);
        Ok(Spills {
            memory: reserve(count, Spill::empty)?,
            locks: Locks::new(1),
            free: Spill::empty(),
            fresh: Word::new(0),
        })
    }

    /// Bytes of memory that were ever used.
    pub(super) fn bytes(&self) -> u64 {
        self.fresh.load(Relaxed) * SPILL_BYTES
    }

    /// Panics where there is no such spill; links that were stored are those of spills.
    #[inline]
    pub(super) fn at(&self, link: Link) -> &Spill {
        &self.memory[link.index() as usize]
    }

    /// The spills of a chain. A reader who is too late may be led on for ever.
    #[inline]
    pub(super) fn chain(&self, first: Option<Link>) -> impl Iterator<Item = &Spill> {
        let first = first.map(|link| self.at(link));
        std::iter::successors(first, |spill| spill.next().map(|link| self.at(link)))
    }

    /// Asks for the first spill of a chain to be brought near. The link may be none of a spill.
    #[inline]
    pub(super) fn prefetch(&self, link: Link) {
        if let Some(spill) = self.memory.get(link.index() as usize) {
            let spill = std::ptr::from_ref(spill);
            nyx_media::prim::prefetch_write(spill.cast(), SPILL_BYTES as usize);
        }
    }

    /// Adds an entry to a full bucket that is not spilled, and is then: the last one in place goes
    /// with it. As [`Spills::push`].
    pub(super) fn spill(
        &self,
        bucket: &Bucket,
        word: u64,
        value: u64,
        fresh: impl FnOnce() -> Option<u64>,
    ) -> Option<Link> {
        let last = bucket.last();
        let (last_word, last_value) = last.read();
        let link = self.push(None, last_word, last_value, fresh)?;
        last.clear();
        self.push(Some(link), word, value, || None)
    }

    /// Adds an entry to a chain; its link then, to one of `fresh` where the first was full. Holder
    /// of the chain's lock only, who has marked it as changing.
    pub(super) fn push(
        &self,
        chain: Option<Link>,
        word: u64,
        value: u64,
        fresh: impl FnOnce() -> Option<u64>,
    ) -> Option<Link> {
        let link = match chain {
            Some(link) if link.entries() < SPILL_ENTRIES => {
                Link::to(link.index(), link.entries() + 1)
            }
            _ => {
                let link = Link::to(fresh()?, 1);
                self.at(link).set_next(chain);
                link
            }
        };
        self.at(link).entry(link.entries() - 1).fill(word, value);
        Some(link.with_all_of(chain).with(word))
    }

    /// Takes the last entry out of the first spill of a chain; as [`Spills::push`].
    pub(super) fn pop(&self, link: Link) -> Popped {
        let (chain, spill, entries) = (Some(link), self.at(link), link.entries());
        let last = spill.entry(entries - 1);
        let (word, value) = last.read();
        last.clear();
        let link = match entries {
            1 => {
                let next = spill.next();
                self.give_back(link.index());
                next
            }
            _ => Some(Link::to(link.index(), entries - 1)),
        };
        let link = link.map(|link| link.with_all_of(chain));
        Popped { word, value, link }
    }

    /// The number of an empty spill, for whoever holds the lock of the bucket that it is for.
    pub(super) fn take(&self) -> Option<u64> {
        self.locked(|spills| {
            if let Some(free) = spills.free.next() {
                spills.free.set_next(spills.at(free).next());
                return Some(free.index());
            }
            let fresh = spills.fresh.load(Relaxed);
            (fresh < spills.memory.len() as u64).then(|| {
                spills.fresh.store(fresh + 1, Relaxed);
                fresh
            })
        })
    }

    /// Takes back an empty spill that is in no chain.
    pub(super) fn give_back(&self, index: u64) {
        self.locked(|spills| {
            let link = Link::to(index, 1);
            spills.at(link).set_next(spills.free.next());
            spills.free.set_next(Some(link));
        });
    }

    fn locked<T>(&self, work: impl FnOnce(&Spills) -> T) -> T {
        let _lock = self.locks.lock(0);
        work(self)
    }
}
