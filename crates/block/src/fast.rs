//! The fast device as the cache uses it: bytes, words and barriers.
//!
//! What it never does: order anything by itself. What was written reaches the medium at any time
//! after that, in any order, unless a [`Fast::persist`] lies between.
//!
//! *Thread safety*: one thread's.

use nyx_media::mapped::Kind;
use nyx_media::{Front, Mapped, Media, Via};
use std::ops::Range;
use std::sync::Arc;

/// A medium that did not take what was to be made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the fast device did not take what was to be made durable")]
pub struct NotDurable;

/// Byte-addressable memory that survives. Addresses are offsets from its begin.
pub trait Fast {
    /// Its size in bytes.
    fn len_bytes(&self) -> u64;

    /// Copies bytes from `at` on.
    fn read(&mut self, at: u64, into: &mut [u8]);

    /// Copies bytes to `at`.
    fn write(&mut self, at: u64, from: &[u8]);

    /// A word; `at` is a multiple of 8.
    fn word(&mut self, at: u64) -> u64;

    /// Stores a word: after a crash it is there as a whole or not at all.
    fn store(&mut self, at: u64, word: u64);

    /// Returns when everything that was written to these ranges is durable. May sort them.
    #[track_caller]
    fn persist(&mut self, ranges: &mut [Range<u64>]) -> Result<(), NotDurable>;
}

/// A mapped medium, or a model of a device over one.
pub struct MappedFast {
    medium: Arc<Mapped>,
    media: Arc<dyn Media>,
    front: Front,
}

impl MappedFast {
    /// Over a mapping; `media` is the mapping itself, or a model over it.
    pub fn new(medium: Arc<Mapped>, media: Arc<dyn Media>) -> MappedFast {
        let front = Front::default();
        MappedFast {
            medium,
            media,
            front,
        }
    }

    /// The mapping.
    pub fn medium(&self) -> &Arc<Mapped> {
        &self.medium
    }
}

impl Fast for MappedFast {
    fn len_bytes(&self) -> u64 {
        self.media.len()
    }

    fn read(&mut self, at: u64, into: &mut [u8]) {
        self.media.read(&mut self.front, at, into);
        self.media.settle(&mut self.front);
    }

    fn write(&mut self, at: u64, from: &[u8]) {
        self.media
            .write(&mut self.front, at, from, Via::NonTemporal);
    }

    fn word(&mut self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.media.read(&mut self.front, at, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn store(&mut self, at: u64, word: u64) {
        assert!(at.is_multiple_of(8), "a word at {at}");
        // Eight bytes that lie at a multiple of eight are copied by whole stores of them.
        let bytes = word.to_le_bytes();
        self.media.write(&mut self.front, at, &bytes, Via::Cached);
    }

    /// Cache lines are flushed range by range; a file's pages are synced in one call from the first
    /// range to the last, since each call waits for the disk and passes over clean pages.
    fn persist(&mut self, ranges: &mut [Range<u64>]) -> Result<(), NotDurable> {
        let failed = self.medium.failed_syncs();
        let begin = ranges.iter().map(|range| range.start).min();
        let end = ranges.iter().map(|range| range.end).max();
        let (Some(begin), Some(end)) = (begin, end) else {
            return Ok(());
        };
        if self.medium.kind() == Kind::Dax {
            ranges.sort_unstable_by_key(|range| (range.start, range.end));
            let mut done = 0;
            for range in ranges {
                let begin = range.start.max(done);
                if begin < range.end {
                    let len = range.end - begin;
                    self.media.persist(&mut self.front, begin, len);
                    done = range.end;
                }
            }
        } else {
            self.media.persist(&mut self.front, begin, end - begin);
        }
        match self.medium.failed_syncs() == failed {
            true => Ok(()),
            false => Err(NotDurable),
        }
    }
}
