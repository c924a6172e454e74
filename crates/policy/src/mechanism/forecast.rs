//! Predicts how long a tenant's accesses would take beside those who are there already, so that who
//! asks to be admitted can be told before and not after (NyxCache section 3.4 assumes such
//! admission control for its quality of service).
//!
//! What is known: how long an access takes on the idle device, and what the residents use, as
//! device time and as harm; both come from the device's profile. What is assumed, as little as
//! explains what devices do:
//!
//! * An access consists of *lines* that go to random places of the device at a steady gap and wait
//!   there independently; the access ends with its last line.
//! * A line finds its place busy with probability equal to the share in use. If it is with a write,
//!   it waits for the rest of a batch that began at any time: uniform. If with reads, it waits for
//!   those who are there: exponential. The means of both are what the profile measured.
//! * Reads queue behind reads: all waits grow by 1/(1 - share of reads), the mean wait of the class
//!   that goes first in a queue with priorities (Cobham 1954). The profile's prices of reads
//!   contain that at the share at which they were measured, and it is taken out of them first.
//! * A write ends when it is buffered. While the device keeps up with its writes that does not
//!   depend on the others.
//!
//! The P99 rests on the shape of the waits and on their being independent, not only on their means,
//! so it is worth less than the mean and told for a device in moderate use only. How good both are
//! against the event model is asserted in `crates/sim/tests/forecast.rs`.
//!
//! What it never does: give a number where it is known to be bad. Near saturation a little more
//! load makes any difference; and where reads and writes are both many, reads do not always go
//! first, because batches of writes that waited too long are put between them. There it cannot
//! tell. Nor does it know that closed loops slow down beside each other: whoever asks gives what
//! the residents use, and the newcomer's own use as one of them if that is not small.

use std::fmt;

/// Above this share of the device in use nothing is told,
pub const SHARE_MOST: f64 = 0.75;
/// nor where the product of the shares of reads and of writes is above this,
pub const MIXTURE_MOST: f64 = 0.07;
/// and above this share in use no P99.
pub const P99_SHARE_MOST: f64 = 0.4;
/// A wait is followed until it is less likely than this.
const NEGLIGIBLE: f64 = 1e-6;
/// Steps of the integral over waits.
const STEPS: u32 = 400;

/// What all forecasts for a device rest upon, from its profile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Basis {
    /// By how many nanoseconds a single line's mean latency grows per whole device of standard
    /// operations, whose latency price is one.
    pub standard_growth_ns: f64,
    /// The share of the device at which prices were measured.
    pub measured_share: f64,
}

/// What one kind of operation of a tenant uses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Used {
    /// The share of the device.
    pub share: f64,
    /// The same weighted by latency prices.
    pub harm: f64,
}

/// What a tenant uses, or all of them together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Of that by reading.
    pub reads: Used,
    /// Of that by writing.
    pub writes: Used,
}

/// An access whose latency is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Access {
    /// A read.
    Read {
        /// Its mean latency on the idle device.
        idle_ns: f64,
        /// The same of a read of a single line.
        line_idle_ns: f64,
        /// How many lines it has, at least one.
        lines: u32,
    },
    /// A write.
    Write {
        /// Its mean latency on the idle device.
        idle_ns: f64,
    },
}

/// What an access will take, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// On average.
    pub mean_ns: f64,
    /// The P99: a weaker statement, see the module. None above [`P99_SHARE_MOST`].
    pub p99_ns: Option<f64>,
}

/// Why there is no forecast.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CannotTell {
    /// The device is too close to saturation.
    Saturation {
        /// The share of it in use.
        share: f64,
    },
    /// Reads and writes are both too many.
    Mixture {
        /// The share of the device that is used by reading.
        reads: f64,
        /// The share that is used by writing.
        writes: f64,
    },
    /// What is given makes no sense: not finite, negative, or no line.
    Figures,
}

impl fmt::Display for CannotTell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CannotTell::Saturation { share } => write!(
                f,
                "cannot tell: {:.0} % of the device are in use, and above {:.0} % a little more \
                 makes any difference",
                share * 100.0,
                SHARE_MOST * 100.0
            ),
            CannotTell::Mixture { reads, writes } => write!(
                f,
                "cannot tell: reads use {:.0} % of the device and writes {:.0} %, and with so much \
                 of both nobody knows who waits for whom",
                reads * 100.0,
                writes * 100.0
            ),
            CannotTell::Figures => f.write_str("cannot tell: the figures make no sense"),
        }
    }
}

impl std::ops::Add for Used {
    type Output = Used;
    fn add(self, other: Used) -> Used {
        Used {
            share: self.share + other.share,
            harm: self.harm + other.harm,
        }
    }
}

impl std::ops::Add for Load {
    type Output = Load;
    fn add(self, other: Load) -> Load {
        Load {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
        }
    }
}

impl Access {
    /// A read of `bytes` where lines have `line_bytes`.
    pub fn read(bytes: usize, line_bytes: usize, idle_ns: f64, line_idle_ns: f64) -> Access {
        Access::Read {
            idle_ns,
            line_idle_ns,
            lines: u32::try_from(bytes.div_ceil(line_bytes)).unwrap_or(u32::MAX),
        }
    }

    /// Its mean latency on the idle device.
    pub fn idle_ns(self) -> f64 {
        match self {
            Access::Read { idle_ns, .. } | Access::Write { idle_ns } => idle_ns,
        }
    }

    fn is_sound(self) -> bool {
        let is_time = |ns: f64| ns.is_finite() && ns > 0.0;
        match self {
            Access::Read {
                idle_ns,
                line_idle_ns,
                lines,
            } => is_time(idle_ns) && is_time(line_idle_ns) && lines > 0,
            Access::Write { idle_ns } => is_time(idle_ns),
        }
    }
}

impl Basis {
    /// What `access` will take beside `load`.
    pub fn forecast(self, access: Access, load: Load) -> Result<Forecast, CannotTell> {
        let figures = [load.reads, load.writes].map(|used| [used.share, used.harm]);
        let basis = [self.standard_growth_ns, self.measured_share];
        let mut all = figures.iter().flatten().chain(&basis);
        let sound = all.all(|figure| figure.is_finite() && *figure >= 0.0);
        if !sound || self.measured_share >= 1.0 || !access.is_sound() {
            return Err(CannotTell::Figures);
        }
        let (reads, writes) = (load.reads.share, load.writes.share);
        let share = reads + writes;
        if share > SHARE_MOST {
            return Err(CannotTell::Saturation { share });
        }
        if reads * writes > MIXTURE_MOST {
            return Err(CannotTell::Mixture { reads, writes });
        }
        let is_moderate = share <= P99_SHARE_MOST;
        Ok(match access {
            Access::Write { idle_ns } => Forecast {
                mean_ns: idle_ns,
                p99_ns: is_moderate.then_some(idle_ns),
            },
            Access::Read {
                idle_ns,
                line_idle_ns,
                lines,
            } => {
                let gap_ns = (idle_ns - line_idle_ns).max(0.0) / f64::from((lines - 1).max(1));
                let wait = self.wait(load);
                Forecast {
                    mean_ns: idle_ns + wait.mean_of_last_ns(lines, gap_ns),
                    p99_ns: is_moderate
                        .then(|| idle_ns + wait.quantile_of_last_ns(0.99, lines, gap_ns)),
                }
            }
        })
    }

    fn wait(self, load: Load) -> Wait {
        let stretch = 1.0 / (1.0 - load.reads.share);
        // Per unit of harm, without the queueing among the reads themselves.
        let reads = self.standard_growth_ns * (1.0 - self.measured_share) * load.reads.harm;
        let writes = self.standard_growth_ns * load.writes.harm;
        let part = |used: Used, growth_ns: f64| match used.share > 0.0 {
            true => growth_ns * stretch / used.share,
            false => 0.0,
        };
        Wait {
            reads: load.reads.share,
            reads_ns: part(load.reads, reads),
            writes: load.writes.share,
            writes_ns: part(load.writes, writes),
        }
    }
}

/// How long a line waits: with which probability behind reads and behind a batch of writes, and how
/// long then on average.
#[derive(Clone, Copy, Debug)]
struct Wait {
    reads: f64,
    reads_ns: f64,
    writes: f64,
    writes_ns: f64,
}

impl Wait {
    /// How likely a line waits longer than `ns`.
    fn longer_than(self, ns: f64) -> f64 {
        if ns < 0.0 {
            return 1.0;
        }
        let exponential = match self.reads_ns > 0.0 {
            true => self.reads * (-ns / self.reads_ns).exp(),
            false => 0.0,
        };
        let uniform = match self.writes_ns > 0.0 {
            true => self.writes * (1.0 - ns / (2.0 * self.writes_ns)).max(0.0),
            false => 0.0,
        };
        exponential + uniform
    }

    /// How likely the last of `lines`, issued `gap_ns` apart, comes more than `ns` later than it
    /// does on the idle device.
    fn last_later_than(self, ns: f64, lines: u32, gap_ns: f64) -> f64 {
        let mut none = 1.0;
        for before_the_last in 0..lines {
            let longer = self.longer_than(ns + gap_ns * f64::from(before_the_last));
            if longer < NEGLIGIBLE {
                break;
            }
            none *= 1.0 - longer;
        }
        1.0 - none
    }

    /// A wait that is hardly ever exceeded.
    fn longest_ns(self, lines: u32, gap_ns: f64) -> f64 {
        let mut ns = self.reads_ns.max(2.0 * self.writes_ns).max(1.0);
        while self.last_later_than(ns, lines, gap_ns) > NEGLIGIBLE {
            ns *= 2.0;
        }
        ns
    }

    /// The mean of how much later the last comes: the integral of that probability, by Simpson's
    /// rule.
    fn mean_of_last_ns(self, lines: u32, gap_ns: f64) -> f64 {
        let step_ns = self.longest_ns(lines, gap_ns) / f64::from(STEPS);
        let weighted = (0..=STEPS).map(|step| {
            let weight = match step {
                0 | STEPS => 1.0,
                odd if odd % 2 == 1 => 4.0,
                _ => 2.0,
            };
            weight * self.last_later_than(f64::from(step) * step_ns, lines, gap_ns)
        });
        weighted.sum::<f64>() * step_ns / 3.0
    }

    /// How much later the last comes in all but `1 - q` of the cases, by bisection.
    fn quantile_of_last_ns(self, q: f64, lines: u32, gap_ns: f64) -> f64 {
        let (mut low, mut high) = (0.0, self.longest_ns(lines, gap_ns));
        if self.last_later_than(low, lines, gap_ns) <= 1.0 - q {
            return 0.0;
        }
        for _ in 0..50 {
            let middle = (low + high) / 2.0;
            match self.last_later_than(middle, lines, gap_ns) > 1.0 - q {
                true => low = middle,
                false => high = middle,
            }
        }
        high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASIS: Basis = Basis {
        standard_growth_ns: 100.0,
        measured_share: 0.25,
    };
    const LINE: Access = Access::Read {
        idle_ns: 500.0,
        line_idle_ns: 500.0,
        lines: 1,
    };
    const SIXTEEN: Access = Access::Read {
        idle_ns: 1250.0,
        line_idle_ns: 500.0,
        lines: 16,
    };

    fn used(share: f64, price: f64) -> Used {
        Used {
            share,
            harm: share * price,
        }
    }

    fn load(reads: f64, writes: f64) -> Load {
        Load {
            reads: used(reads, 1.0),
            writes: used(writes, 3.0),
        }
    }

    fn told(access: Access, load: Load) -> Forecast {
        BASIS.forecast(access, load).expect("far from saturation")
    }

    fn p99_ns(access: Access, load: Load) -> f64 {
        told(access, load).p99_ns.expect("in moderate use")
    }

    #[test]
    fn beside_nobody_an_access_takes_what_it_takes_alone() {
        for (access, idle_ns) in [(LINE, 500.0), (SIXTEEN, 1250.0)] {
            let alone = told(access, Load::default());
            assert_eq!((alone.mean_ns, alone.p99_ns), (idle_ns, Some(idle_ns)));
        }
        let write = told(Access::Write { idle_ns: 70.0 }, load(0.2, 0.2));
        assert_eq!((write.mean_ns, write.p99_ns), (70.0, Some(70.0)));
    }

    /// What the profile measured comes out again: that is what prices mean.
    #[test]
    fn the_measured_point_is_met() {
        let beside_reads = told(LINE, load(0.25, 0.0)).mean_ns - 500.0;
        assert!((beside_reads - 0.25 * 100.0).abs() < 0.1, "{beside_reads}");
        let beside_writes = told(LINE, load(0.0, 0.25)).mean_ns - 500.0;
        assert!(
            (beside_writes - 0.25 * 300.0).abs() < 0.1,
            "{beside_writes}"
        );
    }

    #[test]
    fn reads_queue_behind_reads_and_writes_do_not_queue_behind_writes() {
        let grown = |load| told(LINE, load).mean_ns - 500.0;
        let ratio = grown(load(0.6, 0.0)) / grown(load(0.3, 0.0));
        assert!((ratio - 2.0 * 0.7 / 0.4).abs() < 0.01, "{ratio}");
        let ratio = grown(load(0.0, 0.6)) / grown(load(0.0, 0.3));
        assert!((ratio - 2.0).abs() < 0.01, "{ratio}");
    }

    #[test]
    fn the_tail_behind_writes_is_the_rest_of_a_batch_and_behind_reads_a_queue() {
        // Uniform up to 600 ns with probability 0.25: in one of a hundred above 576 ns.
        let p99 = p99_ns(LINE, load(0.0, 0.25)) - 500.0;
        assert!((p99 - 600.0 * (1.0 - 0.01 / 0.25)).abs() < 0.1, "{p99}");
        // Exponential with mean 100 ns, likewise.
        let p99 = p99_ns(LINE, load(0.25, 0.0)) - 500.0;
        assert!((p99 - 100.0 * 25f64.ln()).abs() < 0.1, "{p99}");
        let rare = p99_ns(LINE, load(0.0, 0.005));
        assert_eq!(rare, 500.0, "hardly ever one waits");
        assert_eq!(
            told(LINE, load(0.0, 0.45)).p99_ns,
            None,
            "not in moderate use"
        );
    }

    #[test]
    fn of_several_lines_the_last_counts_and_early_ones_wait_in_its_shadow() {
        let wait = BASIS.wait(load(0.0, 0.3));
        let one = wait.mean_of_last_ns(1, 50.0);
        let together = wait.mean_of_last_ns(16, 0.0);
        let apart = wait.mean_of_last_ns(16, 50.0);
        assert!(one < apart && apart < together, "{one} {apart} {together}");
        // The largest of n uniform waits up to 600 ns, each with probability 0.3.
        let n = 16.0;
        let largest = 600.0 * (1.0 - (1.0 - 0.7f64.powf(n + 1.0)) / (0.3 * (n + 1.0)));
        assert!((together - largest).abs() < 0.5, "{together} {largest}");
    }

    #[test]
    fn loads_add_up_and_more_of_either_is_never_better() {
        assert_eq!(load(0.1, 0.2) + load(0.2, 0.0), load(0.1 + 0.2, 0.2));
        for access in [LINE, SIXTEEN] {
            let mut before = told(access, Load::default());
            for step in 1..=5 {
                let share = f64::from(step) / 20.0;
                let now = told(access, load(share, share));
                assert!(now.mean_ns > before.mean_ns);
                assert!(now.p99_ns.is_none_or(|ns| Some(ns) > before.p99_ns));
                before = now;
            }
        }
    }

    #[test]
    fn near_saturation_and_on_nonsense_it_cannot_tell() {
        let error = BASIS.forecast(LINE, load(0.7, 0.06)).expect_err("76 %");
        assert!(error.to_string().contains("76 % of the device"), "{error}");
        let error = BASIS
            .forecast(LINE, load(0.3, 0.25))
            .expect_err("much of both");
        let said = error.to_string();
        assert!(
            said.contains("30 % of the device and writes 25 %"),
            "{said}"
        );
        let write = Access::Write { idle_ns: 70.0 };
        assert!(BASIS.forecast(write, load(0.0, 0.9)).is_err());
        let none = Access::Read {
            idle_ns: 500.0,
            line_idle_ns: 500.0,
            lines: 0,
        };
        let nonsense = [
            BASIS.forecast(none, load(0.1, 0.1)),
            BASIS.forecast(LINE, load(-0.1, 0.1)),
            BASIS.forecast(LINE, load(f64::NAN, 0.1)),
            BASIS.forecast(Access::Write { idle_ns: 0.0 }, load(0.1, 0.1)),
        ];
        for one in nonsense {
            assert_eq!(one, Err(CannotTell::Figures));
        }
    }
}
