//! What a device's operations do to latency: how long a single access takes on the idle device, and
//! by how much a victim's mean latency grows where others use the device. The second is the
//! *latency price* of an operation, beside its price in capacity, 1/MaxIOPS: a device second of
//! small writes may hurt a reader several times as much as one of reads (NyxCache figure 1; ReFlex
//! weighs writes for the same reason).
//!
//! The victim is one thread of random reads of [`VICTIM_BYTES`], each of which needs what the one
//! before brought. Aggressors use about [`MEASURED_SHARE`] of the device; the growth is divided by
//! the share that they did use. *It is not linear*: the growth per share of reads rises with their
//! load `s` as 1/(1 - s), because reads queue behind reads; that of writes hardly depends on it,
//! because what a read waits for is the batch under way. A quarter is the documented point: enough
//! to be measured, and where devices are run that promise latencies. Prices between the sizes that
//! are probed are interpolated.
//!
//! What this file never does: take a difference for a price that may be noise.

use super::{STEP_BYTES, STEPS};
use crate::Op;
use serde::{Deserialize, Serialize};

/// The sizes that are probed, smallest first.
pub const PROBED_BYTES: [usize; 4] = [64, 256, 1024, 4096];
/// The size of the victim's reads.
pub const VICTIM_BYTES: usize = 256;
/// The share of the device that the aggressors are to use.
pub const MEASURED_SHARE: f64 = 0.25;
/// The operation whose latency price is one: a read of this size, as in rate cards.
pub(super) const STANDARD_BYTES: usize = 1024;
/// Two growths differ from so many standard errors of their difference on.
const SIGNIFICANT: f64 = 3.0;
/// Aggressors that used less of the device say nothing.
const SHARE_LEAST: f64 = 1e-3;
/// Fewer rounds than this do not know how far they err: the error is as large as the growth.
const ROUNDS_LEAST: usize = 5;
/// Of a normal distribution: its standard deviation by its median absolute deviation, and the
/// standard error of a median by that of a mean.
const DEVIATION_OF_MAD: f64 = 1.4826;
const MEDIAN_OF_MEAN: f64 = 1.2533;

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// The sizes of the entries in `read` and `write`.
    bytes: Vec<usize>,
    read: Delays,
    write: Delays,
}

/// Latencies of one kind of operation, by size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delays {
    /// Mean latency of a single access on the idle device.
    pub idle_ns: Vec<f64>,
    /// By how much the victim's mean latency grows per whole device that is used by these.
    pub growth_ns: Vec<f64>,
    /// The standard error of that.
    pub growth_error_ns: Vec<f64>,
    /// The share of the device that the aggressors used.
    pub share: Vec<f64>,
}

/// What one round found: the victim's mean latency without aggressors and with them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) without_ns: f64,
    pub(super) with_ns: f64,
    /// The share of the device that the aggressors used.
    pub(super) share: f64,
}

impl Latency {
    /// From what was measured of reads and of writes, with an entry for each of [`PROBED_BYTES`].
    pub(super) fn new([read, write]: [Delays; 2]) -> Latency {
        Latency {
            bytes: PROBED_BYTES.to_vec(),
            read,
            write,
        }
    }

    /// The sizes that were probed, smallest first.
    pub fn bytes(&self) -> &[usize] {
        &self.bytes
    }

    /// What was measured, with an entry for each of [`Self::bytes`].
    pub fn delays(&self, op: Op) -> &Delays {
        match op {
            Op::Read => &self.read,
            Op::Write => &self.write,
        }
    }

    /// The mean latency of a single access of `bytes` on the idle device, interpolated between the
    /// sizes that were probed.
    pub fn idle_ns(&self, op: Op, bytes: usize) -> f64 {
        self.between(&self.delays(op).idle_ns, bytes)
    }

    /// By how many nanoseconds the victim's mean latency grows per whole device of reads of 1 KiB,
    /// whose latency price is one; at least its own error.
    pub fn standard_growth_ns(&self) -> f64 {
        let (growth, error) = self.standard();
        growth.max(error)
    }

    /// Latency prices relative to that of reading 1 KiB; entry `i` is for `(i + 1) * 64` bytes. A
    /// price that cannot be told from one is one.
    pub fn prices(&self, op: Op) -> [f64; STEPS] {
        let prices = self.probed_prices(op);
        std::array::from_fn(|i| self.between(&prices, (i + 1) * STEP_BYTES))
    }

    /// The prices of the sizes that were probed.
    pub fn probed_prices(&self, op: Op) -> Vec<f64> {
        let (standard, standard_error) = self.standard();
        let delays = self.delays(op);
        let price = |(&growth, &error): (&f64, &f64)| {
            let noise = SIGNIFICANT * f64::hypot(error, standard_error);
            match (growth - standard).abs() <= noise {
                true => 1.0,
                false => growth.max(error) / self.standard_growth_ns(),
            }
        };
        let growths = delays.growth_ns.iter().zip(&delays.growth_error_ns);
        growths.map(price).collect()
    }

    fn standard(&self) -> (f64, f64) {
        let of = |values: &[f64]| self.between(values, STANDARD_BYTES);
        (of(&self.read.growth_ns), of(&self.read.growth_error_ns))
    }

    /// A value for `bytes`, linear between the sizes that were probed and constant outside.
    fn between(&self, values: &[f64], bytes: usize) -> f64 {
        let last = self.bytes.len() - 1;
        match self.bytes.iter().position(|&size| size >= bytes) {
            None => values[last],
            Some(0) => values[0],
            Some(above) => {
                let (from, to) = (self.bytes[above - 1], self.bytes[above]);
                let part = (bytes - from) as f64 / (to - from) as f64;
                values[above - 1] + part * (values[above] - values[above - 1])
            }
        }
    }

    /// What is wrong with it, as a profile's file says it.
    pub(super) fn validate(&self) -> Result<(), String> {
        let sizes = self.bytes.len();
        let ordered = self.bytes.windows(2).all(|pair| pair[0] < pair[1]);
        if sizes == 0 || !ordered {
            return Err("latency.bytes is empty or not in order".to_owned());
        }
        for (op, delays) in [("read", &self.read), ("write", &self.write)] {
            // What is measured may be noise around nothing, but not what it is divided by.
            let lists = [
                ("idle_ns", &delays.idle_ns, 0.0),
                ("growth_ns", &delays.growth_ns, f64::NEG_INFINITY),
                ("growth_error_ns", &delays.growth_error_ns, 0.0),
                ("share", &delays.share, 0.0),
            ];
            for (name, values, above) in lists {
                if values.len() != sizes {
                    let n = values.len();
                    return Err(format!("latency.{op}.{name} has {n} values, not {sizes}"));
                }
                let bad = values.iter().find(|v| !(v.is_finite() && **v > above));
                if let Some(value) = bad {
                    return Err(format!("latency.{op}.{name} holds {value}"));
                }
            }
        }
        Ok(())
    }
}

impl Delays {
    /// Adds a size: its idle latency, and what the rounds say of the growth. Their median is taken,
    /// which a round that the machine disturbed does not move. None where no round says anything,
    /// because nobody used the device or the victim never came to an end.
    pub(super) fn push(&mut self, idle_ns: f64, rounds: &[Round]) -> Option<()> {
        let growth = |round: &Round| {
            let growth = (round.with_ns - round.without_ns) / round.share;
            (round.share >= SHARE_LEAST && growth.is_finite()).then_some((growth, round.share))
        };
        let (growths, shares): (Vec<f64>, Vec<f64>) = rounds.iter().filter_map(growth).unzip();
        if !idle_ns.is_finite() {
            return None;
        }
        let growth = median(&growths)?;
        let deviations: Vec<f64> = growths.iter().map(|one| (one - growth).abs()).collect();
        let deviation = DEVIATION_OF_MAD * median(&deviations)?;
        let error = match growths.len() {
            n if n < ROUNDS_LEAST => growth.abs(),
            n => MEDIAN_OF_MEAN * deviation / (n as f64).sqrt(),
        };
        self.idle_ns.push(hundredths(idle_ns).max(0.01));
        self.growth_ns.push(hundredths(growth));
        self.growth_error_ns.push(hundredths(error).max(0.01));
        self.share.push((median(&shares)? * 1e4).round() / 1e4);
        Some(())
    }
}

/// Times are kept to a hundredth of a nanosecond: less than any of them is known.
fn hundredths(ns: f64) -> f64 {
    (ns * 100.0).round() / 100.0
}

/// The middle one of some values, the upper of two; none of none.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(growths_ns: &[f64]) -> Vec<Round> {
        let round = |growth| Round {
            without_ns: 100.0,
            with_ns: 100.0 + growth / 4.0,
            share: 0.25,
        };
        growths_ns.iter().copied().map(round).collect()
    }

    /// Growths with their errors, reads first.
    fn latency(growths: [[(f64, f64); 4]; 2]) -> Latency {
        let delays = |of: [(f64, f64); 4]| Delays {
            idle_ns: vec![100.0, 200.0, 400.0, 1000.0],
            growth_ns: of.map(|one| one.0).to_vec(),
            growth_error_ns: of.map(|one| one.1).to_vec(),
            share: vec![0.25; 4],
        };
        Latency::new(growths.map(delays))
    }

    #[test]
    fn a_disturbed_round_moves_neither_the_growth_nor_its_error_much() {
        let [mut quiet, mut disturbed] = [Delays::default(), Delays::default()];
        quiet.push(50.0, &rounds(&[300.0, 310.0, 290.0, 305.0, 295.0]));
        disturbed.push(50.0, &rounds(&[300.0, 310.0, 290.0, 305.0, 1e6]));
        assert_eq!(quiet.growth_ns, [300.0]);
        assert_eq!(disturbed.growth_ns, [305.0]);
        assert!(quiet.growth_error_ns[0] < 7.0 && disturbed.growth_error_ns[0] < 7.0);
    }

    #[test]
    fn who_used_nothing_says_nothing_and_few_rounds_know_no_error() {
        let mut delays = Delays::default();
        let idle = Round {
            share: 0.0,
            ..rounds(&[300.0])[0]
        };
        assert_eq!(delays.push(50.0, &[idle]), None);
        let endless = Round {
            with_ns: f64::NAN,
            ..rounds(&[300.0])[0]
        };
        assert_eq!(delays.push(50.0, &[endless]), None);
        assert_eq!(delays.push(f64::NAN, &rounds(&[300.0])), None);
        delays.push(50.0, &[idle, rounds(&[300.0])[0]]);
        assert_eq!(
            (delays.growth_ns[0], delays.growth_error_ns[0]),
            (300.0, 300.0)
        );
    }

    #[test]
    fn prices_are_relative_to_reading_1_kib_and_interpolated() {
        let reads = [(60.0, 1.0), (60.0, 1.0), (120.0, 1.0), (240.0, 1.0)];
        let found = latency([reads, [(360.0, 1.0); 4]]);
        assert_eq!(found.probed_prices(Op::Read), [0.5, 0.5, 1.0, 2.0]);
        let [read, write] = [Op::Read, Op::Write].map(|op| found.prices(op));
        assert_eq!((read[0], read[3], read[9], read[15]), (0.5, 0.5, 0.75, 1.0));
        assert_eq!((read[39], read[63], write[7]), (1.5, 2.0, 3.0));
        let idle = |bytes| found.idle_ns(Op::Read, bytes);
        assert_eq!(
            [idle(1), idle(160), idle(640), idle(9999)],
            [100.0, 150.0, 300.0, 1000.0]
        );
    }

    #[test]
    fn noise_makes_no_price() {
        // Nothing is known: all that is not measured well enough costs the same.
        let vague = latency([[(5.0, 40.0); 4], [(-30.0, 50.0); 4]]);
        assert_eq!(vague.probed_prices(Op::Write), [1.0; 4]);
        // Reads do no harm that could be seen, writes do: their price is what is sure of it.
        let writes = latency([[(1.0, 10.0); 4], [(500.0, 10.0); 4]]);
        assert_eq!(writes.probed_prices(Op::Read), [1.0; 4]);
        assert_eq!(writes.probed_prices(Op::Write), [50.0; 4]);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_name() {
        let whole = latency([[(5.0, 1.0); 4]; 2]);
        assert_eq!(whole.validate(), Ok(()));
        let refused = |change: &dyn Fn(&mut Latency), reason: &str| {
            let mut broken = whole.clone();
            change(&mut broken);
            let error = broken.validate().expect_err(reason);
            assert!(error.contains(reason), "{error}");
        };
        refused(&|l| l.bytes.swap(0, 1), "not in order");
        refused(&|l| l.read.share.truncate(3), "latency.read.share has 3");
        refused(&|l| l.write.share[1] = 0.0, "latency.write.share holds 0");
        refused(
            &|l| l.read.idle_ns[0] = f64::NAN,
            "latency.read.idle_ns holds NaN",
        );
        refused(
            &|l| l.read.growth_error_ns[0] = -1.0,
            "growth_error_ns holds -1",
        );
        let mut noisy = whole.clone();
        noisy.read.growth_ns[0] = -1.0;
        assert_eq!(
            noisy.validate(),
            Ok(()),
            "noise around nothing may be below it"
        );
    }
}
