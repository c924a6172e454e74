//! Counters that one thread writes and any thread reads, and the padding that keeps two writers off
//! one cache line.
//!
//! *Thread safety*: `Counter::add` is a relaxed load and a relaxed store, not a read-modify-write:
//! it costs what a plain increment costs, and loses counts if two threads add to one counter. Give
//! each worker its own (NyxCache section 3.3: "counters are maintained per-thread and only lazily
//! combined when needed").

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A value alone on its cache lines. 128 bytes, because the adjacent-line prefetcher of common
/// x86 parts pulls lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CachePadded<T>(pub T);

impl<T> Deref for CachePadded<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for CachePadded<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// A monotonic count with a single writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A counter at zero.
    pub const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    /// Adds `n`. Only the counter's one writer may call this. Wraps.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// The count, possibly a little old.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
