//! The ghost queue of S3-FIFO (SOSP'23, section 4): fingerprints of keys that lately left the small
//! queue; a key that comes back while it is remembered goes to the main queue at once.
//!
//! Fingerprints lie in sets of one cache line, first in first out within each set, so that a look
//! costs one line. Two keys with the same 16 bits in one set are taken for each other: about one
//! look in two thousand, and it costs no more than a place in the main queue.
//!
//! What it never does: hold keys, grow.
//!
//! *Thread safety*: inserted into by the reclaimer alone, asked by any worker. Lost races cost a
//! remembered key.

use nyx_media::dram::Words;
use nyx_media::{Array, MediaError};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering::Relaxed};

/// Fingerprints of a set: one cache line.
const WAYS: usize = 32;

/// The fingerprints.
#[derive(Debug)]
pub(crate) struct Ghost {
    sets: Array<Set>,
    /// Nothing was ever inserted: asking costs no cache miss then.
    is_empty: AtomicBool,
}

#[derive(Debug)]
#[repr(align(64))]
struct Set([AtomicU16; WAYS]);

// SAFETY: atomics, of which any bytes are a valid value.
unsafe impl Words for Set {}

impl Ghost {
    /// Bytes of a ghost queue of about `keys` keys.
    pub(crate) fn bytes(keys: u64) -> u64 {
        keys.div_ceil(WAYS as u64).next_power_of_two() * size_of::<Set>() as u64
    }

    /// A ghost queue that remembers about `keys` keys.
    pub(crate) fn new(keys: u64) -> Result<Ghost, MediaError> {
        let sets = keys.div_ceil(WAYS as u64).next_power_of_two();
        Ok(Ghost {
            sets: Array::reserve(sets as usize, false)?,
            is_empty: AtomicBool::new(true),
        })
    }

    fn set(&self, hash: u64) -> (&Set, u16) {
        let set = &self.sets[(hash >> 20) as usize & (self.sets.len() - 1)];
        (set, (hash as u16).max(1))
    }

    /// Remembers a key, and forgets the one that its set has remembered longest.
    pub(crate) fn insert(&self, hash: u64) {
        self.is_empty.store(false, Relaxed);
        let (set, mut fingerprint) = self.set(hash);
        for way in &set.0 {
            let older = way.load(Relaxed);
            way.store(fingerprint, Relaxed);
            fingerprint = older;
        }
    }

    /// Whether the key is remembered; it no longer is.
    pub(crate) fn take(&self, hash: u64) -> bool {
        if self.is_empty.load(Relaxed) {
            return false;
        }
        let (set, fingerprint) = self.set(hash);
        let found = set.0.iter().find(|way| way.load(Relaxed) == fingerprint);
        found.inspect(|way| way.store(0, Relaxed)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_a_set_is_forgotten() {
        let ghost = Ghost::new(WAYS as u64).expect("memory");
        for key in 1..=WAYS as u64 + 1 {
            ghost.insert(key);
        }
        assert!(!ghost.take(1));
        assert!(ghost.take(2));
        assert!(!ghost.take(2), "a key is taken once");
        assert!(ghost.take(WAYS as u64 + 1));
    }
}
