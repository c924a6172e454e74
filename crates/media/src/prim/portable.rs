//! Copies by relaxed atomics, for processors without assembly of their own here, for Miri, and as
//! the reference that the others are tested against.
//!
//! What it never does: tear a byte. Larger units may tear, as they may with any copy.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Copies `len` bytes, each by one relaxed load and one relaxed store.
///
/// # Safety
///
/// As [`super::Prim::copy`].
pub(super) unsafe fn copy(into: *mut u8, from: *const u8, len: usize) {
    for i in 0..len {
        // SAFETY: in range by the caller's promise; an `AtomicU8` has the layout of a `u8`, and
        // every racing access to the medium is atomic as well.
        unsafe {
            let byte = AtomicU8::from_ptr(from.add(i).cast_mut()).load(Relaxed);
            AtomicU8::from_ptr(into.add(i)).store(byte, Relaxed);
        }
    }
}
