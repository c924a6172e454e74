//! A sort in place: the standard library's unstable one, whose first passes run through all memory.
//!
//! What it never does: trust itself; that the result is in order is checked.
//!
//! *Thread safety*: one thread.

use crate::checksum;

/// 1 GiB of them.
pub(crate) const NUMBERS: usize = 1 << 28;
const SEED: u64 = 42;

/// Sorts so many random numbers; the checksum of the result.
pub(crate) fn run(numbers: usize) -> u64 {
    let mut numbers = random(numbers);
    numbers.sort_unstable();
    assert!(numbers.is_sorted(), "numbers are not in order");
    checksum(numbers.iter().map(|&number| u64::from(number)))
}

fn random(numbers: usize) -> Vec<u32> {
    let mut rng = fastrand::Rng::with_seed(SEED);
    (0..numbers).map(|_| rng.u32(..)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_sort_has_the_checksum_of_the_same_numbers_in_order() {
        let mut counts = BTreeMap::new();
        for number in random(5000) {
            *counts.entry(number).or_insert(0usize) += 1;
        }
        let sorted = counts.into_iter();
        let sorted = sorted.flat_map(|(number, times)| std::iter::repeat_n(number.into(), times));
        assert_eq!(run(5000), checksum(sorted));
        assert_ne!(run(5000), run(5001));
    }
}
