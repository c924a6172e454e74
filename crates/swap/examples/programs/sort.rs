//! A sort in place: the standard library's unstable one, whose first passes run through all memory.
//!
//! What it never does: trust itself; that the result is in order is checked.
//!
//! *Thread safety*: threads have parts of the numbers that do not overlap.

use crate::checksum;

/// 1 GiB of them.
pub(crate) const NUMBERS: usize = 1 << 28;
const SEED: u64 = 42;

/// Sorts so many random numbers; the checksum of the result.
pub(crate) fn run(numbers: usize, threads: usize) -> u64 {
    let mut numbers = random(numbers);
    sort(&mut numbers, threads);
    assert!(numbers.is_sorted(), "numbers are not in order");
    checksum(numbers.iter().map(|&number| u64::from(number)))
}

/// Parts the numbers between the threads, lesser and greater ones, as a quicksort does.
fn sort(numbers: &mut [u32], threads: usize) {
    if threads < 2 || numbers.is_empty() {
        return numbers.sort_unstable();
    }
    let lower = threads / 2;
    let middle = numbers.len() / threads * lower;
    let (less, _, greater) = numbers.select_nth_unstable(middle);
    std::thread::scope(|scope| {
        scope.spawn(|| sort(less, lower));
        sort(greater, threads - lower);
    });
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
        let expected = checksum(sorted);
        for threads in [1, 2, 3, 8] {
            assert_eq!(run(5000, threads), expected, "{threads} threads");
        }
        assert_ne!(run(5000, 1), run(5001, 1));
        assert_eq!(run(2, 8), run(2, 1));
    }
}
