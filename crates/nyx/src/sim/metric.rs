//! What can be said of a run in one number: the columns of tables, what expectations are about, and
//! what is drawn.
//!
//! What this module never does: average over runs, or judge.

use super::file::Case;
use super::run::{Run, settled};
use crate::config::Target;
use nyx_policy::Act;
use nyx_sim::scenario::{PartOutcome, WindowOutcome};

/// A target is kept again from the first of so many windows in a row that keep it.
const KEPT_WINDOWS: usize = 3;
/// A tenant has settled when no later window is further than this below what it has at the end.
const SETTLED: f64 = 0.9;

/// A figure by its name.
#[derive(Debug)]
pub struct Metric {
    /// As scenario files write it, with its unit.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Digits after the point.
    pub digits: usize,
    /// Whether tables show it.
    pub is_column: bool,
    of: Of,
}

#[derive(Debug)]
enum Of {
    /// Of a tenant after the settling, and of one window of it by the window's length in seconds.
    Windows(fn(&Look<'_>) -> Option<f64>, fn(&WindowOutcome, f64) -> f64),
    /// Of a tenant.
    Tenant(fn(&Look<'_>) -> Option<f64>),
    /// Of all of them together.
    All(fn(&Case, &Run) -> Option<f64>),
}

/// A tenant in a run.
struct Look<'a> {
    case: &'a Case,
    run: &'a Run,
    tenant: usize,
}

/// All of them.
pub const METRICS: [Metric; 20] = [
    Metric {
        name: "ops/s",
        about: "requests answered per second",
        digits: 0,
        is_column: true,
        of: Of::Windows(
            |look| Some(look.had().ops_per_s),
            |window, s| window.ops as f64 / s,
        ),
    },
    Metric {
        name: "hits/s",
        about: "requests per second that found their value, or wrote one",
        digits: 0,
        is_column: false,
        of: Of::Tenant(|look| Some(look.had().ops_per_s * look.hit_ratio()?)),
    },
    Metric {
        name: "MB/s",
        about: "bytes to and from the device",
        digits: 1,
        is_column: true,
        of: Of::Windows(
            |look| Some(look.had().bytes_per_s / 1e6),
            |window, s| window.bytes as f64 / s / 1e6,
        ),
    },
    Metric {
        name: "device %",
        about: "device time charged, as a part of the device",
        digits: 2,
        is_column: true,
        of: Of::Windows(
            |look| Some(look.had().share * 100.0),
            |window, s| window.used.as_secs_f64() / s * 100.0,
        ),
    },
    Metric {
        name: "mean us",
        about: "mean latency",
        digits: 2,
        is_column: true,
        of: Of::Windows(
            |look| Some(look.had().latencies.mean_ns()? / 1e3),
            |window, _| window.mean_ns / 1e3,
        ),
    },
    Metric {
        name: "P50 us",
        about: "latency that half of the requests do not exceed",
        digits: 2,
        is_column: true,
        of: Of::Windows(
            |look| look.quantile_us(0.5),
            |window, _| window.p50_ns / 1e3,
        ),
    },
    Metric {
        name: "P99 us",
        about: "latency that 99 of 100 requests do not exceed",
        digits: 2,
        is_column: true,
        of: Of::Windows(
            |look| look.quantile_us(0.99),
            |window, _| window.p99_ns / 1e3,
        ),
    },
    Metric {
        name: "P99.9 us",
        about: "latency that 999 of 1000 requests do not exceed",
        digits: 2,
        is_column: true,
        of: Of::Windows(
            |look| look.quantile_us(0.999),
            |window, _| window.p999_ns / 1e3,
        ),
    },
    Metric {
        name: "slowdown",
        about: "slower than alone by this factor: in requests per second in a closed loop, in \
                mean latency in an open one (run.alone)",
        digits: 3,
        is_column: true,
        of: Of::Tenant(|look| look.had().slowdown),
    },
    Metric {
        name: "worst slowdown",
        about: "the largest slowdown of any window (run.alone)",
        digits: 3,
        is_column: false,
        of: Of::Tenant(|look| look.worst_slowdown()),
    },
    Metric {
        name: "bound kept",
        about: "performance as a part of what its weight is of the performance alone: at least 1 \
                is the time-sharing bound (run.alone)",
        digits: 3,
        is_column: false,
        of: Of::Tenant(|look| Some(1.0 / look.had().slowdown? / look.entitled())),
    },
    Metric {
        name: "worst bound kept",
        about: "the same in the worst window",
        digits: 3,
        is_column: false,
        of: Of::Tenant(|look| Some(1.0 / look.worst_slowdown()? / look.entitled())),
    },
    Metric {
        name: "dip %",
        about: "how far the worst window is below the mean, in requests",
        digits: 1,
        is_column: false,
        of: Of::Tenant(|look| look.dip()),
    },
    Metric {
        name: "throttles",
        about: "how often a policy that tells its reasons throttled it",
        digits: 0,
        is_column: false,
        of: Of::Tenant(|look| Some(look.throttles() as f64)),
    },
    Metric {
        name: "missed %",
        about: "windows in which its target was missed",
        digits: 1,
        is_column: false,
        of: Of::Tenant(|look| look.missed()),
    },
    Metric {
        name: "kept after ms",
        about: "from when the last load began until its target was kept in three windows in a row",
        digits: 0,
        is_column: false,
        of: Of::Tenant(|look| look.kept_after_ms()),
    },
    Metric {
        name: "settled after ms",
        about: "from the begin until it had, and went on to have, nine tenths of the requests \
                that it has at the end",
        digits: 0,
        is_column: false,
        of: Of::Tenant(|look| look.settled_after_ms()),
    },
    Metric {
        name: "reached after ms",
        about: "from the begin until it first had nine tenths of the requests that it has at \
                the end",
        digits: 0,
        is_column: false,
        of: Of::Tenant(|look| look.reached_after_ms()),
    },
    Metric {
        name: "unfairness",
        about: "the largest slowdown over the smallest (run.alone)",
        digits: 3,
        is_column: false,
        of: Of::All(unfairness),
    },
    Metric {
        name: "device busy %",
        about: "how much of the time the device was busy, by the model's own count",
        digits: 1,
        is_column: false,
        of: Of::All(|_, run| Some(run.busy * 100.0)),
    },
];

impl Metric {
    /// By its name; the error lists them.
    pub fn named(name: &str) -> Result<&'static Metric, String> {
        let found = METRICS.iter().find(|metric| metric.name == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
            format!(
                "there is no metric {name:?}: it is one of {}",
                names.join(", ")
            )
        })
    }

    /// Whether each tenant has its own.
    pub fn is_of_tenants(&self) -> bool {
        !matches!(self.of, Of::All(_))
    }

    /// Of a tenant in a run, or of all; none where it was not measured, or there was nothing to
    /// measure.
    pub fn value(&self, case: &Case, run: &Run, tenant: usize) -> Option<f64> {
        match self.of {
            Of::Windows(of, _) | Of::Tenant(of) => of(&Look { case, run, tenant }),
            Of::All(of) => of(case, run),
        }
    }

    /// Of one window of a tenant, where it is something that windows have.
    pub fn of_window(&self) -> Option<fn(&WindowOutcome, f64) -> f64> {
        match self.of {
            Of::Windows(_, of) => Some(of),
            _ => None,
        }
    }
}

impl<'a> Look<'a> {
    fn had(&self) -> &'a super::run::Had {
        &self.run.tenants[self.tenant]
    }

    fn part(&self) -> &'a PartOutcome {
        &self.run.outcome.parts[self.tenant]
    }

    fn windows(&self) -> &'a [WindowOutcome] {
        settled(self.case, self.part())
    }

    fn quantile_us(&self, quantile: f64) -> Option<f64> {
        Some(self.had().latencies.quantile_ns(quantile)? / 1e3)
    }

    fn hit_ratio(&self) -> Option<f64> {
        let done = self.part().done;
        (done.ops > 0).then(|| done.hits as f64 / done.ops as f64)
    }

    fn worst_slowdown(&self) -> Option<f64> {
        let alone = settled(self.case, self.run.alone[self.tenant].as_ref()?);
        let is_open = super::run::is_open(self.case, self.tenant);
        let pairs = alone.iter().zip(self.windows());
        let slowdown = |(alone, now): (&WindowOutcome, &WindowOutcome)| match is_open {
            true => now.mean_ns / alone.mean_ns,
            false => alone.ops as f64 / now.ops as f64,
        };
        let pairs = pairs.filter(|(alone, _)| alone.ops > 0);
        pairs.map(slowdown).max_by(f64::total_cmp)
    }

    /// Its weight's part of all weights.
    fn entitled(&self) -> f64 {
        let weights = self.case.config.tenants.iter().map(|one| one.terms.weight);
        self.case.config.tenants[self.tenant].terms.weight / weights.sum::<f64>()
    }

    fn dip(&self) -> Option<f64> {
        let ops = || self.windows().iter().map(|window| window.ops as f64);
        let mean = ops().sum::<f64>() / self.windows().len() as f64;
        let least = ops().min_by(f64::total_cmp)?;
        (mean > 0.0).then_some((1.0 - least / mean) * 100.0)
    }

    fn throttles(&self) -> usize {
        let decisions = self.run.outcome.decisions.iter();
        let is_throttle = |act: &Act| matches!(act, Act::Throttle { .. });
        decisions
            .filter(|one| one.tenant == self.tenant && is_throttle(&one.act))
            .count()
    }

    /// Whether a window keeps the tenant's target; none where it has none.
    fn is_kept(&self, window: &WindowOutcome) -> Option<bool> {
        let length_s = self.case.run.window.as_secs_f64();
        Some(match self.case.config.tenants[self.tenant].terms.target? {
            Target::MeanNs(most) => window.mean_ns <= most as f64,
            Target::QuantileNs(part, most) => window
                .latencies
                .quantile_ns(part)
                .is_none_or(|ns| ns <= most as f64),
            Target::OpsPerS(least) => window.ops as f64 / length_s >= least as f64,
        })
    }

    fn missed(&self) -> Option<f64> {
        let kept = self.windows().iter().map(|window| self.is_kept(window));
        let kept: Vec<bool> = kept.collect::<Option<_>>()?;
        let missed = kept.iter().filter(|is_kept| !**is_kept).count();
        Some(missed as f64 / kept.len() as f64 * 100.0)
    }

    fn kept_after_ms(&self) -> Option<f64> {
        let all = self.part().windows.iter();
        let kept: Vec<bool> = all
            .map(|window| self.is_kept(window))
            .collect::<Option<_>>()?;
        let last = self.case.loads.iter().map(|load| load.from.0).max()?;
        let first = (last / self.case.run.window.0) as usize;
        let next = kept.get(first..)?.windows(KEPT_WINDOWS);
        let at = next
            .enumerate()
            .find(|(_, next)| next.iter().all(|is| *is))?
            .0;
        Some((at + 1) as f64 * self.case.run.window.as_secs_f64() * 1e3)
    }

    /// Requests in a window that are nearly as many as at the end.
    fn nearly_all(&self) -> f64 {
        let end = self.windows();
        let ops = end.iter().map(|window| window.ops as f64);
        SETTLED * ops.sum::<f64>() / end.len() as f64
    }

    fn settled_after_ms(&self) -> Option<f64> {
        let (all, enough) = (&self.part().windows, self.nearly_all());
        let is_below = |window: &WindowOutcome| (window.ops as f64) < enough;
        let windows = all.iter().rposition(is_below).map_or(0, |at| at + 1);
        Some(windows as f64 * self.case.run.window.as_secs_f64() * 1e3)
    }

    fn reached_after_ms(&self) -> Option<f64> {
        let (mut all, enough) = (self.part().windows.iter(), self.nearly_all());
        let windows = all.position(|window| window.ops as f64 >= enough)?;
        Some(windows as f64 * self.case.run.window.as_secs_f64() * 1e3)
    }
}

fn unfairness(_: &Case, run: &Run) -> Option<f64> {
    let slowdowns: Vec<f64> = run
        .tenants
        .iter()
        .map(|had| had.slowdown)
        .collect::<Option<_>>()?;
    let most = slowdowns.iter().copied().max_by(f64::total_cmp)?;
    let least = slowdowns.iter().copied().min_by(f64::total_cmp)?;
    Some(most / least)
}
