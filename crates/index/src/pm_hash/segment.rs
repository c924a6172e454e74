//! One segment: its buckets and its link.
//!
//! The link stands in the last slot of the first bucket, which has one less: the right sibling's
//! address, of which the lowest bits, zero in an address, are the depth.

use super::bucket::{self, Bucket};
use nyx_media::Pmem;
use nyx_media::pmem::Word;
use std::sync::atomic::Ordering::Acquire;

/// The word of the link, in the first bucket.
const LINK: usize = bucket::WORDS - 2;
const DEPTH_MASK: u64 = 0x3f;

/// Where the chain goes on, and how deep the segment is once its last split is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// The address of the right sibling, or 0.
    pub(super) right: u64,
    pub(super) depth: u32,
}

/// The words of a segment. Copies are cheap.
#[derive(Debug)]
pub(super) struct Segment<'p, P> {
    pm: &'p P,
    pub(super) at: u64,
    words: &'p [Word],
    slots: usize,
}

impl<P> Clone for Segment<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Segment<'_, P> {}

impl<'p, P: Pmem> Segment<'p, P> {
    /// `words` are those of whole buckets, with so many slots each.
    #[inline]
    pub(super) fn new(pm: &'p P, at: u64, words: &'p [Word], slots: usize) -> Self {
        Segment {
            pm,
            at,
            words,
            slots,
        }
    }

    #[inline]
    pub(super) fn bucket(&self, place: usize) -> Bucket<'p, P> {
        let words = &self.words[place * bucket::WORDS..][..bucket::WORDS];
        let slots = match place {
            0 => self.slots.min(bucket::SLOTS_MAX - 1),
            _ => self.slots,
        };
        Bucket::new(self.pm, words, slots)
    }

    /// The address of a bucket.
    #[inline]
    pub(super) fn bucket_at(&self, place: usize) -> u64 {
        self.at + (place * bucket::WORDS * size_of::<Word>()) as u64
    }

    pub(super) fn link(&self) -> Link {
        let word = self.words[LINK].load(Acquire);
        Link {
            right: word & !DEPTH_MASK,
            depth: (word & DEPTH_MASK) as u32,
        }
    }

    /// Stores the link.
    pub(super) fn set_link(&self, link: Link) {
        let word = link.right | u64::from(link.depth);
        self.pm.store(&self.words[LINK], word);
    }

    /// Before anything depends on it.
    pub(super) fn make_link_durable(&self) {
        self.pm.persist(&self.words[LINK..=LINK]);
    }
}
