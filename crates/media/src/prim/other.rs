//! The primitives where there is no assembly for them: portable copies, fences, no flush.
//!
//! What it never does: pretend. [`flush_level`] says `None`, so that a DAX mapping is refused here
//! instead of losing data.

use super::{CopyLevel, FlushLevel, LINE_BYTES, Line, WORD_BYTES, portable};
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence as atomic_fence};

pub(super) fn copy_level() -> CopyLevel {
    CopyLevel::Portable
}

pub(super) fn flush_level() -> FlushLevel {
    FlushLevel::None
}

/// # Safety
///
/// As [`super::Prim::copy`].
pub(super) unsafe fn copy(_: CopyLevel, into: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { portable::copy(into, from, len) }
}

/// # Safety
///
/// As [`super::Prim::copy`], for `lines` whole lines.
pub(super) unsafe fn copy_lines_nt(_: CopyLevel, into: *mut u8, from: *const u8, lines: usize) {
    // SAFETY: the caller's promise.
    unsafe { portable::copy(into, from, lines * LINE_BYTES) }
}

/// # Safety
///
/// As [`super::Prim::copy`], for `words` words of 8 bytes.
pub(super) unsafe fn copy_words_nt(into: *mut u8, from: *const u8, words: usize) {
    // SAFETY: the caller's promise.
    unsafe { portable::copy(into, from, words * WORD_BYTES) }
}

/// # Safety
///
/// None needed; the signature follows the processors that do flush.
pub(super) unsafe fn flush_lines(_: FlushLevel, _: *const u8, _: usize) {}

/// Stores a word in one piece, as a release store that the compiler keeps in its place.
#[inline]
pub fn store_word(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Release);
    compiler_fence(Ordering::SeqCst);
}

/// As [`super::Prim::find_word`].
#[inline]
pub(super) fn find_word(_: CopyLevel, line: &Line, word: u64) -> Option<usize> {
    let mut words = line.0.iter();
    words.position(|other| other.load(Ordering::Acquire) == word)
}

pub(super) fn fence() {
    atomic_fence(Ordering::SeqCst);
}

/// Does nothing: there is no portable prefetch.
#[inline]
pub fn prefetch(_: *const u8, _: usize) {}

/// Does nothing: there is no portable prefetch.
#[inline]
pub fn prefetch_once(_: *const u8, _: usize) {}

/// Does nothing: there is no portable prefetch.
#[inline]
pub fn prefetch_write(_: *const u8, _: usize) {}
