//! What two devices give together, by the paper's formulas: bandwidth of reads from the rates of
//! both devices, for caching by the hit ratio, for splitting by the share of the fast device.
//!
//! Rates and results are in the same unit, whichever that is. *One* is a single request at a time,
//! so that devices work one after the other; *many* is enough of them to keep both busy.
//!
//! Source: Orthus, section 2 (equations 1 to 7, and those of splitting).

use super::Both;
use super::Side::{Deep, Fast};

/// B_cache,1: what is missed is read from the deep device and installed in the fast one.
pub fn cache_one(rates: Both<f64>, hits: f64) -> f64 {
    let (hit, miss) = (1.0 / rates[Fast], 1.0 / rates[Fast] + 1.0 / rates[Deep]);
    1.0 / (hits * hit + (1.0 - hits) * miss)
}

/// B_cache,many: all requests need the fast device, misses the deep one as well.
pub fn cache_many(rates: Both<f64>, hits: f64) -> f64 {
    1.0 / (1.0 / rates[Fast]).max((1.0 - hits) / rates[Deep])
}

/// B_split,1, with a share `split` on the fast device.
pub fn split_one(rates: Both<f64>, split: f64) -> f64 {
    1.0 / (split / rates[Fast] + (1.0 - split) / rates[Deep])
}

/// B_split,many.
pub fn split_many(rates: Both<f64>, split: f64) -> f64 {
    1.0 / (split / rates[Fast]).max((1.0 - split) / rates[Deep])
}

/// The most that many requests can get where hits may be read from either device and nothing is
/// installed any more: both rates, as long as the fast device has enough of what is asked for.
pub fn nhc_many(rates: Both<f64>, hits: f64) -> f64 {
    split_many(rates, best_load_admit(rates, hits) * hits)
}

/// The load_admit that gives [`nhc_many`]. 1 where there are no hits.
pub fn best_load_admit(rates: Both<f64>, hits: f64) -> f64 {
    let fast = rates[Fast] / (rates[Fast] + rates[Deep]);
    if hits > fast { fast / hits } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Optane SSD and flash of the paper's table, reads in GB/s.
    const RATES: Both<f64> = Both([2.5, 3.0]);

    fn is(found: f64, expected: f64) {
        assert!(
            (found / expected - 1.0).abs() < 1e-3,
            "{found}, not {expected}"
        );
    }

    #[test]
    fn the_formulas_are_the_papers() {
        // (R_hi R_lo) / (H R_lo + (1 - H) (R_hi + R_lo)).
        is(cache_one(RATES, 0.8), 7.5 / (0.8 * 3.0 + 0.2 * 5.5));
        is(cache_many(RATES, 0.8), 2.5);
        is(cache_many(Both([15.0, 0.5]), 0.8), 2.5);
        is(split_one(RATES, 0.25), 1.0 / (0.1 + 0.25));
        is(split_many(RATES, 0.25), 4.0);
        is(split_many(RATES, 1.0), 2.5);
        is(split_many(RATES, 0.0), 3.0);
    }

    #[test]
    fn both_devices_give_their_sum_while_hits_suffice() {
        for hits in [1.0, 0.9, 0.5] {
            is(nhc_many(RATES, hits), 5.5);
            is(best_load_admit(RATES, hits) * hits, 2.5 / 5.5);
        }
        // DRAM before flash at a hit ratio of 0.8: misses fill the flash.
        let rates = Both([15.0, 3.0]);
        is(nhc_many(rates, 0.8), 15.0);
        is(nhc_many(rates, 0.5), 6.0);
        is(best_load_admit(rates, 0.5), 1.0);
        is(nhc_many(rates, 0.0), 3.0);
        assert!(cache_many(rates, 1.0) < nhc_many(rates, 1.0));
    }
}
