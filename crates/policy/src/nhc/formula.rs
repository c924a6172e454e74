//! What two devices give together, by the paper's formulas: bandwidth of reads from the rates of
//! both devices, for caching by the hit ratio, for splitting by the share of the fast device.
//!
//! Rates and results are in the same unit, whichever that is. *One* is a single request at a time,
//! so that devices work one after the other; *many* is enough of them to keep both busy.
//!
//! The paper has reads only, and a miss that is installed takes what a read does of the fast
//! device. With [`Rates`] of reads and writes apart the same thoughts give what measurements can be
//! put beside: an install is a write, and a part of the requests may write too. Where writes are as
//! fast as reads and nobody writes these are the paper's.
//!
//! Source: Orthus, section 2 (equations 1 to 7, and those of splitting).

use super::Both;
use super::Side::{Deep, Fast};

/// Rates of reads and of writes, all in one unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Of reads.
    pub reads: Both<f64>,
    /// Of writes.
    pub writes: Both<f64>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// The share of reads that the fast device has.
    pub hits: f64,
    /// The share of requests that write something new, to either device.
    pub writes: f64,
}

/// What a request takes of both devices on the mean, in time by the rates' unit.
#[derive(Clone, Copy, Debug)]
struct Work(Both<f64>);

impl Work {
    /// Of reads and writes that go to the fast device with these shares.
    fn shared(rates: &Rates, mix: Mix, reads: f64, writes: f64) -> Work {
        let of = |side, reads, writes| {
            (1.0 - mix.writes) * reads / rates.reads[side]
                + mix.writes * writes / rates.writes[side]
        };
        Work(Both([
            of(Fast, reads, writes),
            of(Deep, 1.0 - reads, 1.0 - writes),
        ]))
    }

    /// Of a cache that installs whatever is missed, and takes what is written.
    fn cached(rates: &Rates, mix: Mix) -> Work {
        let mut work = Work::shared(rates, mix, mix.hits, 1.0);
        work.0[Fast] += (1.0 - mix.writes) * (1.0 - mix.hits) / rates.writes[Fast];
        work
    }

    /// One request after the other.
    fn one(self) -> f64 {
        1.0 / (self.0[Fast] + self.0[Deep])
    }

    /// Both devices at work.
    fn many(self) -> f64 {
        1.0 / self.0[Fast].max(self.0[Deep])
    }
}

/// [`cache_one`] of a cache whose installs are writes.
pub fn installs_one(rates: &Rates, mix: Mix) -> f64 {
    Work::cached(rates, mix).one()
}

/// [`cache_many`] of a cache whose installs are writes.
pub fn installs_many(rates: &Rates, mix: Mix) -> f64 {
    Work::cached(rates, mix).many()
}

/// [`split_one`], with this share of hits and of writes on the fast device.
pub fn shared_one(rates: &Rates, mix: Mix, share: f64) -> f64 {
    Work::shared(rates, mix, share * mix.hits, share).one()
}

/// [`split_many`], with this share of hits and of writes on the fast device.
pub fn shared_many(rates: &Rates, mix: Mix, share: f64) -> f64 {
    Work::shared(rates, mix, share * mix.hits, share).many()
}

/// [`nhc_many`], where writes may go to either device too, and the load_admit of reads that gives
/// it; 1 where there are no hits.
pub fn either_many(rates: &Rates, mix: Mix) -> (f64, f64) {
    // What the fast device is given takes its time and spares the deep one's: the best lies where
    // both take as long, or at the end, with one of both kinds wholly on one device.
    let evenly = |from: Work, to: Work| {
        let (behind, ahead) = (from.0[Deep] - from.0[Fast], to.0[Fast] - to.0[Deep]);
        match behind + ahead > 0.0 {
            true => (behind / (behind + ahead)).clamp(0.0, 1.0),
            false => 0.0,
        }
    };
    let work = |reads, writes| Work::shared(rates, mix, reads, writes);
    let hits = mix.hits;
    let writes_even = [0.0, hits].map(|reads| (reads, evenly(work(reads, 0.0), work(reads, 1.0))));
    let reads_even =
        [0.0, 1.0].map(|writes| (hits * evenly(work(0.0, writes), work(hits, writes)), writes));
    let tried = writes_even.into_iter().chain(reads_even);
    let given = tried.map(|(reads, writes)| (work(reads, writes).many(), reads));
    let (most, reads) = given.fold((0.0, 0.0), |best, next| match next.0 > best.0 {
        true => next,
        false => best,
    });
    (most, if hits > 0.0 { reads / hits } else { 1.0 })
}

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

    #[test]
    fn with_writes_as_fast_as_reads_and_nobody_writing_they_are_the_papers() {
        for reads in [RATES, Both([15.0, 0.5]), Both([3.0, 0.5])] {
            let rates = Rates {
                reads,
                writes: reads,
            };
            for hits in [0.0, 0.3, 0.5, 0.8, 0.95, 1.0] {
                let mix = Mix { hits, writes: 0.0 };
                is(installs_one(&rates, mix), cache_one(reads, hits));
                is(installs_many(&rates, mix), cache_many(reads, hits));
                let (most, load_admit) = either_many(&rates, mix);
                is(most, nhc_many(reads, hits));
                is(load_admit, best_load_admit(reads, hits));
                let all = Mix { hits: 1.0, ..mix };
                is(shared_one(&rates, all, hits), split_one(reads, hits));
                is(shared_many(&rates, all, hits), split_many(reads, hits));
            }
        }
    }

    /// The factors of reads, of writes and of both, over a cache that has all on the fast device.
    #[test]
    fn writes_go_where_they_are_cheap() {
        let rates = Rates {
            reads: Both([6.8, 2.5]),
            writes: Both([2.3, 2.3]),
        };
        let gain = |writes| {
            let mix = Mix { hits: 1.0, writes };
            either_many(&rates, mix).0 / installs_many(&rates, mix)
        };
        is(gain(0.0), 9.3 / 6.8);
        is(gain(1.0), 2.0);
        is(gain(0.5), 2.0);
        let half = Mix {
            hits: 1.0,
            writes: 0.5,
        };
        assert!(either_many(&rates, half).1 > 0.999, "the NVM keeps reads");
        // A finer look finds nothing better.
        for mix in [
            half,
            Mix {
                hits: 0.4,
                writes: 0.2,
            },
        ] {
            let most = either_many(&rates, mix).0;
            for at in 0..=10_000 {
                let (reads, writes) = (f64::from(at / 100) / 100.0, f64::from(at % 100) / 100.0);
                let found = Work::shared(&rates, mix, reads * mix.hits, writes).many();
                assert!(found <= most * (1.0 + 1e-9), "{reads} {writes}: {found}");
            }
        }
    }

    #[test]
    fn an_install_takes_what_a_write_does() {
        let rates = Rates {
            reads: Both([6.8, 2.5]),
            writes: Both([2.3, 2.3]),
        };
        let mix = Mix {
            hits: 0.5,
            writes: 0.0,
        };
        is(installs_many(&rates, mix), 1.0 / (0.5 / 6.8 + 0.5 / 2.3));
        let miss = 1.0 / 2.5 + 1.0 / 2.3;
        is(installs_one(&rates, mix), 1.0 / (0.5 / 6.8 + 0.5 * miss));
    }
}
