//! Words of a mapping: anonymous memory, a file's pages, persistent memory.
//!
//! What it never does: `msync`. Lines of a page-cache file reach the disk in any order and at any
//! time, whatever is fenced; who needs a file to survive a power failure syncs it as a whole.
#![cfg(not(any(loom, shuttle)))]

use super::{Pmem, WORD_BYTES, Word};
use crate::prim;
use crate::{Mapped, Media};

impl Pmem for Mapped {
    fn size_bytes(&self) -> u64 {
        Media::len(self) / WORD_BYTES * WORD_BYTES
    }

    #[inline]
    fn words(&self, at: u64, count: usize) -> &[Word] {
        assert!(
            at.is_multiple_of(WORD_BYTES),
            "address {at} is not one of a word"
        );
        let base = self.at(at, count as u64 * WORD_BYTES);
        // SAFETY: the range is inside of the mapping, which lives as long as `self`; a mapping
        // begins at a page, the medium a page later at most, so that words are aligned; every bit
        // pattern is an atomic, and all other access to these bytes is by atomics or assembly.
        unsafe { std::slice::from_raw_parts(base.cast::<Word>(), count) }
    }

    #[inline]
    fn store(&self, word: &Word, value: u64) {
        prim::store_word(word, value);
    }

    #[inline]
    fn flush(&self, words: &[Word]) {
        // The page cache outlives the process as it is, caches and all.
        if self.flushes() {
            // SAFETY: the words are mapped, since there is a reference to them.
            unsafe { self.prim().flush(words.as_ptr().cast(), size_of_val(words)) };
        }
    }

    #[inline]
    fn fence(&self) {
        if self.flushes() {
            prim::fence();
        }
    }

    #[inline]
    fn fetch(&self, at: u64, len: usize) {
        // Any address is allowed here, one that a damaged image gives too.
        prim::prefetch(self.base().wrapping_add(at as usize), len);
    }
}
