//! What a page holds whose touches are timed.
//!
//! What it never does: time it.

/// Bytes that do not compress, the same for each page each time.
pub(crate) fn fill(bytes: &mut [u8], page: u64) {
    let mut state = (page + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for word in bytes.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
}
