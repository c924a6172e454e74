//! Persistent memory as words: what an index that lives on a medium is written against.
//!
//! [`crate::Media`] copies bytes in and out; a persistent index works in place, on 8-byte words
//! that are stored whole or not at all, written back line by line and ordered by fences
//! ([`Pmem`]). What a crash may leave of that is the model of [`crash`], which every index is run
//! against.
//!
//! The model of persistence (that of x86 with asynchronous DRAM refresh):
//!
//! * a store of a word is whole or absent after a crash, never torn;
//! * stores to one cache line ([`LINE_BYTES`]) become durable in the order in which they were made,
//!   at any time after they were made;
//! * stores to different lines become durable in any order, except that after [`Pmem::flush`] of a
//!   line and a [`Pmem::fence`] by the same thread everything stored to that line before the flush
//!   is durable.
//!
//! What this module never does: allocate, lock, or hand out a plain reference to bytes on the
//! medium. Words are atomics, so a racing reader is never undefined behaviour.
//!
//! Source: HybridIndex+ sections 2.2 and 3; Intel SDM volume 1, section 11.4.4 (store order).

pub mod crash;
pub mod distant;
mod dram;
mod mapped;

pub use crate::prim::LINE_BYTES;
pub use dram::Dram;

#[cfg(loom)]
pub use loom::sync::atomic::AtomicU64 as Word;
#[cfg(shuttle)]
pub use shuttle::sync::atomic::AtomicU64 as Word;
#[cfg(not(any(loom, shuttle)))]
pub use std::sync::atomic::AtomicU64 as Word;

/// The size of a word in bytes.
pub const WORD_BYTES: u64 = 8;
/// Words of a cache line.
pub const LINE_WORDS: usize = LINE_BYTES / WORD_BYTES as usize;

/// Byte-addressable memory whose words survive.
///
/// Addresses are offsets in bytes from its begin, so that what lies in it means the same wherever
/// it is mapped next time.
///
/// *Thread safety*: shared by all workers. Loads go to the words directly
/// (`Word::load(Acquire)`); stores go through [`Pmem::store`], which no compiler may drop, merge or
/// reorder, and which is a release store for readers.
pub trait Pmem: Send + Sync {
    /// Its size in bytes.
    fn size_bytes(&self) -> u64;

    /// The `count` words from address `at` on.
    ///
    /// Panics where `at` is no multiple of [`WORD_BYTES`] or the words leave the medium: addresses
    /// that come from the medium itself are checked before ([`Pmem::holds`]).
    fn words(&self, at: u64, count: usize) -> &[Word];

    /// Stores a word. Durable once its line is flushed and fenced, at the earliest now.
    #[track_caller]
    fn store(&self, word: &Word, value: u64);

    /// Writes back every line that one of these words lies on.
    #[track_caller]
    fn flush(&self, words: &[Word]);

    /// Waits until what this thread flushed is durable.
    #[track_caller]
    fn fence(&self);

    /// Asks for `len` bytes from `at` on to be brought near; costs and promises nothing.
    fn fetch(&self, at: u64, len: usize) {
        let _ = (at, len);
    }

    /// Whether `len` bytes from `at` on are words of this medium.
    fn holds(&self, at: u64, len: u64) -> bool {
        let end = at.checked_add(len);
        at.is_multiple_of(WORD_BYTES) && end.is_some_and(|end| end <= self.size_bytes())
    }

    /// Flush and fence in one.
    #[track_caller]
    fn persist(&self, words: &[Word]) {
        self.flush(words);
        self.fence();
    }
}

/// A shared memory is a memory.
impl<P: Pmem + ?Sized> Pmem for &P {
    fn size_bytes(&self) -> u64 {
        (**self).size_bytes()
    }

    #[inline]
    fn words(&self, at: u64, count: usize) -> &[Word] {
        (**self).words(at, count)
    }

    #[inline]
    #[track_caller]
    fn store(&self, word: &Word, value: u64) {
        (**self).store(word, value);
    }

    #[inline]
    #[track_caller]
    fn flush(&self, words: &[Word]) {
        (**self).flush(words);
    }

    #[inline]
    #[track_caller]
    fn fence(&self) {
        (**self).fence();
    }

    #[inline]
    fn fetch(&self, at: u64, len: usize) {
        (**self).fetch(at, len);
    }

    #[inline]
    #[track_caller]
    fn persist(&self, words: &[Word]) {
        (**self).persist(words);
    }
}
