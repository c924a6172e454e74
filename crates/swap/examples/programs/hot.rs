//! Memory of which a quarter is used all the time and the rest never again, as of a service that
//! has loaded more than it needs: how much may a program do without?
//!
//! What it never does: touch what is cold before its end.
//!
//! *Thread safety*: one thread.

use crate::checksum;

/// 1 GiB of them.
pub(crate) const NUMBERS: usize = 1 << 27;
/// Touches of what is hot, at random: some 80 s of them.
pub(crate) const TOUCHES: usize = 1 << 32;
const HOT_ONE_IN: usize = 4;
const SEED: u64 = 42;

/// Writes so many numbers, and adds to one of the first quarter so often; the checksum of those.
pub(crate) fn run(numbers: usize, touches: usize) -> u64 {
    let mut rng = fastrand::Rng::with_seed(SEED);
    let mut numbers: Vec<u64> = (0..numbers).map(|_| rng.u64(..)).collect();
    let hot = (numbers.len() / HOT_ONE_IN).max(1);
    let (hot, cold) = numbers.split_at_mut(hot);
    for touch in 0..touches {
        let place = rng.usize(..hot.len());
        hot[place] = hot[place].wrapping_add(touch as u64);
    }
    let ends = [cold.first(), cold.last()].into_iter().flatten();
    checksum(hot.iter().chain(ends).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hot_changes_and_what_is_cold_does_not() {
        assert_eq!(run(5000, 100), run(5000, 100));
        assert_ne!(run(5000, 100), run(5000, 101));
        let untouched = {
            let mut rng = fastrand::Rng::with_seed(SEED);
            let all: Vec<u64> = (0..5000).map(|_| rng.u64(..)).collect();
            checksum(all[..1250].iter().chain([&all[1250], &all[4999]]).copied())
        };
        assert_eq!(run(5000, 0), untouched);
    }
}
