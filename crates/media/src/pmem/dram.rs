//! Words of anonymous memory, which end with the process: for those parts of an index that are
//! built anew after a restart, so that one tree can be either.
//!
//! What it never does: flush, fence.

use super::{Pmem, Word};
use crate::MediaError;
use std::sync::atomic::Ordering::Release;

/// Where the words are: a model checker has to make its own.
#[cfg(not(any(loom, shuttle)))]
type Words = crate::Mapped;
#[cfg(any(loom, shuttle))]
type Words = Box<[Word]>;

/// See the module. Zero at first; memory is not taken until it is touched.
#[derive(Debug)]
pub struct Dram(Words);

impl Dram {
    /// So many bytes, on 2 MiB pages where the kernel has them.
    #[cfg(not(any(loom, shuttle)))]
    pub fn new(len: u64) -> Result<Dram, MediaError> {
        crate::Mapped::anonymous(len).map(Dram)
    }

    /// So many bytes.
    #[cfg(any(loom, shuttle))]
    pub fn new(len: u64) -> Result<Dram, MediaError> {
        Ok(Dram(
            (0..len / super::WORD_BYTES).map(|_| Word::new(0)).collect(),
        ))
    }

    /// As [`Pmem::fetch`], for what is looked at once and soon: it takes no place in the larger
    /// caches, where the processor can do so.
    #[inline]
    #[cfg(not(any(loom, shuttle)))]
    pub fn fetch_once(&self, at: u64, len: usize) {
        if self.holds(at, len as u64) {
            let words = self.0.words(at, len / super::WORD_BYTES as usize);
            crate::observed::fetch_once(words);
            crate::prim::prefetch_once(words.as_ptr().cast(), len);
        }
    }

    /// Does nothing.
    #[cfg(any(loom, shuttle))]
    pub fn fetch_once(&self, _: u64, _: usize) {}
}

impl Pmem for Dram {
    #[cfg(not(any(loom, shuttle)))]
    fn size_bytes(&self) -> u64 {
        Pmem::size_bytes(&self.0)
    }

    #[cfg(any(loom, shuttle))]
    fn size_bytes(&self) -> u64 {
        self.0.len() as u64 * super::WORD_BYTES
    }

    #[inline]
    #[cfg(not(any(loom, shuttle)))]
    fn words(&self, at: u64, count: usize) -> &[Word] {
        let words = self.0.words(at, count);
        crate::observed::read(words);
        words
    }

    #[cfg(any(loom, shuttle))]
    fn words(&self, at: u64, count: usize) -> &[Word] {
        &self.0[(at / super::WORD_BYTES) as usize..][..count]
    }

    #[inline]
    fn store(&self, word: &Word, value: u64) {
        word.store(value, Release);
    }

    #[inline]
    fn flush(&self, _: &[Word]) {}

    #[inline]
    fn fence(&self) {}

    #[inline]
    #[cfg(not(any(loom, shuttle)))]
    fn fetch(&self, at: u64, len: usize) {
        if crate::observed::IS_ON && self.holds(at, len as u64) {
            crate::observed::fetch(self.0.words(at, len / super::WORD_BYTES as usize));
        }
        Pmem::fetch(&self.0, at, len);
    }
}
