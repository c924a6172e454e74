//! The eight bytes of a word at once: which of them are a given one (for fingerprints of keys), and
//! which bits are set.

/// One in each byte.
const ONES: u64 = u64::from_le_bytes([1; 8]);

/// The bytes of `word` that are `tag`, one bit each.
#[inline]
pub(crate) fn same_bytes(word: u64, tag: u8) -> u64 {
    let low = ONES * 0x7f;
    let differ = word ^ (ONES * u64::from(tag));
    // The high bit of each byte that is zero.
    let zero = !(((differ & low) + low) | differ | low);
    (zero >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// The bits that are set, lowest first.
pub(crate) fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        bit
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_the_same_are_told_exactly() {
        let mut rng = nyx_base::Rng::with_seed(1);
        for _ in 0..10_000 {
            let bytes: [u8; 8] = std::array::from_fn(|_| [0, 1, 0x7f, 0x80, 0xff][rng.usize(0..5)]);
            let tag = [0, 1, 0x7f, 0x80, 0xff][rng.usize(0..5)];
            let expected = (0..8).filter(|&at| bytes[at] == tag);
            let found = same_bytes(u64::from_le_bytes(bytes), tag);
            assert!(ones(found).eq(expected), "{bytes:x?} {tag:x}");
        }
    }
}
