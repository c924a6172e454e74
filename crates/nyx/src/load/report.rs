//! What a run gave, as a table for people and as JSON for programs (docs/bench.md has the schema).
//!
//! What it never does: put numbers of different kinds of evidence into one column. What comes from
//! here is always *real*: this machine's clocks and sockets.

use super::cpu::Used;
use super::link::ASKS;
use super::run::Outcome;
use super::tally::{Counts, Tally, ratio};
use super::wire::REFUSALS;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// The kind of evidence that everything measured over sockets is.
pub(crate) const EVIDENCE: &str = "real";

/// An open loop that leaves more than this share of its requests unsent has not reached its rate;
/// below it they are those of its last moments.
const RATE_MISSED_SHARE: f64 = 0.01;

/// A latency distribution, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Latency {
    /// Requests.
    pub(crate) count: u64,
    /// Their mean.
    pub(crate) mean_us: f64,
    /// The shortest.
    pub(crate) min_us: f64,
    /// The median.
    pub(crate) p50_us: f64,
    /// 90 percent are not longer.
    pub(crate) p90_us: f64,
    /// 95 percent are not longer.
    pub(crate) p95_us: f64,
    /// 99 percent are not longer.
    pub(crate) p99_us: f64,
    /// 99.9 percent are not longer.
    pub(crate) p999_us: f64,
    /// The longest.
    pub(crate) max_us: f64,
}

impl Latency {
    /// Of a histogram in nanoseconds; `None` where it is empty.
    pub(crate) fn of(histogram: &Histogram<u64>) -> Option<Latency> {
        let us = |ns: u64| ns as f64 / 1e3;
        let quantile = |q| us(histogram.value_at_quantile(q));
        (!histogram.is_empty()).then(|| Latency {
            count: histogram.len(),
            mean_us: histogram.mean() / 1e3,
            min_us: us(histogram.min()),
            p50_us: quantile(0.5),
            p90_us: quantile(0.9),
            p95_us: quantile(0.95),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: us(histogram.max()),
        })
    }
}

/// What was done, counted.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Done {
    /// Whose; `total` is everybody's.
    pub(crate) name: String,
    /// Keys finished, without fills after a miss.
    pub(crate) ops: u64,
    /// The same, a second.
    pub(crate) ops_per_s: f64,
    /// Keys finished by kind of request.
    pub(crate) by_kind: BTreeMap<&'static str, u64>,
    /// Keys read and found.
    pub(crate) hits: u64,
    /// Keys read and not found.
    pub(crate) misses: u64,
    /// Hits of all keys read.
    pub(crate) hit_ratio: Option<f64>,
    /// Errors by kind.
    pub(crate) errors: BTreeMap<&'static str, u64>,
    /// Requests of an open loop that were due at the end and had not been sent.
    pub(crate) unsent: u64,
    /// Latencies that were set aside.
    pub(crate) aside: u64,
    /// Reads.
    pub(crate) reads: Option<Latency>,
    /// Everything else.
    pub(crate) writes: Option<Latency>,
}

impl Done {
    /// Of a tally over `elapsed`.
    pub(crate) fn of(name: &str, tally: &mut Tally, unsent: u64, elapsed: Duration) -> Done {
        let counts = tally.counts;
        Done {
            name: name.to_owned(),
            ops: counts.total_ops(),
            ops_per_s: counts.total_ops() as f64 / elapsed.as_secs_f64(),
            by_kind: named(&ASKS, &counts.ops),
            hits: counts.hits,
            misses: counts.misses,
            hit_ratio: counts.hit_ratio(),
            errors: errors(&counts),
            unsent,
            aside: tally.aside,
            reads: Latency::of(tally.reads()),
            writes: Latency::of(tally.writes()),
        }
    }

    fn row(&self) -> Vec<String> {
        let reads =
            |f: fn(&Latency) -> f64| self.reads.as_ref().map_or("-".into(), |l| fixed(f(l)));
        let writes =
            |f: fn(&Latency) -> f64| self.writes.as_ref().map_or("-".into(), |l| fixed(f(l)));
        vec![
            self.name.clone(),
            self.ops.to_string(),
            format!("{:.0}", self.ops_per_s),
            self.hit_ratio
                .map_or("-".into(), |r| format!("{:.2}", r * 100.0)),
            reads(|l| l.p50_us),
            reads(|l| l.p99_us),
            reads(|l| l.p999_us),
            reads(|l| l.max_us),
            writes(|l| l.p50_us),
            writes(|l| l.p99_us),
            self.errors.values().sum::<u64>().to_string(),
        ]
    }
}

const HEADS: [&str; 11] = [
    "tenant",
    "ops",
    "ops/s",
    "hit %",
    "read p50 us",
    "p99",
    "p99.9",
    "max",
    "write p50 us",
    "p99",
    "errors",
];

fn named<const N: usize>(names: &[&'static str; N], n: &[u64; N]) -> BTreeMap<&'static str, u64> {
    names
        .iter()
        .copied()
        .zip(n.iter().copied())
        .filter(|&(_, n)| n > 0)
        .collect()
}

/// Errors by kind, those that happened.
pub(crate) fn errors(counts: &Counts) -> BTreeMap<&'static str, u64> {
    let mut errors = named(&REFUSALS, &counts.refused);
    if counts.corrupt > 0 {
        errors.insert("corrupt", counts.corrupt);
    }
    errors
}

/// CPU time over a number of keys.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Cpu {
    /// Microseconds of CPU time for one key.
    pub(crate) cpu_us_per_op: f64,
    /// CPUs in use.
    pub(crate) cpus: f64,
    /// Time that ready threads waited for a CPU, of the window: above a few percent the machine was
    /// shared and the figure is not to be trusted.
    pub(crate) wait_share: f64,
    /// The part of the CPU time that was spent in user mode.
    pub(crate) user_share: Option<f64>,
}

impl Cpu {
    /// Of what was used for `keys` keys in `elapsed`.
    pub(crate) fn of(used: &Used, keys: u64, elapsed: Duration) -> Cpu {
        let window_ns = elapsed.as_nanos() as f64;
        Cpu {
            cpu_us_per_op: used.cpu_ns as f64 / 1e3 / keys.max(1) as f64,
            cpus: used.cpu_ns as f64 / window_ns,
            wait_share: used.wait_ns as f64 / window_ns,
            user_share: used.user_share,
        }
    }

    /// For people: a line that says who used it.
    pub(crate) fn line(&self, who: &str) -> String {
        let user = self
            .user_share
            .map_or(String::new(), |s| format!(", user {:.0} %", s * 100.0));
        format!(
            "{who:9} CPU {:.3} us/op ({:.2} CPUs{user}, waited {:.1} % of the window for one)\n",
            self.cpu_us_per_op,
            self.cpus,
            self.wait_share * 100.0
        )
    }
}

/// A run of `nyx bench`.
#[derive(Debug, Serialize)]
pub(crate) struct Bench {
    /// The schema's name and version.
    schema: &'static str,
    /// What kind of evidence the numbers are.
    evidence: &'static str,
    /// What was asked for, by option.
    settings: BTreeMap<&'static str, String>,
    /// The length of the measured window, in seconds.
    elapsed_s: f64,
    /// Everybody together.
    pub(crate) total: Done,
    /// Each tenant.
    tenants: Vec<Done>,
    /// The server's CPU time, where its process was named.
    pub(crate) server: Option<Cpu>,
    /// The generator's CPU time.
    generator: Cpu,
    /// Errors while the keys were stored.
    fill_errors: BTreeMap<&'static str, u64>,
}

impl Bench {
    /// Of what a run gave.
    pub(crate) fn new(outcome: Outcome, settings: BTreeMap<&'static str, String>) -> Bench {
        let elapsed = outcome.elapsed;
        let (mut sum, mut unsent, mut fill) = (Tally::new(), 0, Counts::default());
        let mut tenants = Vec::new();
        for mut tenant in outcome.tenants {
            tenants.push(Done::of(
                &tenant.name,
                &mut tenant.tally,
                tenant.unsent,
                elapsed,
            ));
            tenant.tally.drain_into(&mut sum);
            unsent += tenant.unsent;
            fill.add(&tenant.fill);
        }
        Bench {
            schema: "nyx.bench/1",
            evidence: EVIDENCE,
            settings,
            elapsed_s: elapsed.as_secs_f64(),
            total: Done::of("total", &mut sum, unsent, elapsed),
            tenants,
            server: outcome
                .server
                .map(|used| Cpu::of(&used, outcome.keys, elapsed)),
            generator: Cpu::of(&outcome.client, outcome.keys, elapsed),
            fill_errors: errors(&fill),
        }
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut rows: Vec<Vec<String>> = self.tenants.iter().map(Done::row).collect();
        if self.tenants.len() > 1 {
            rows.push(self.total.row());
        }
        let mut text = table(&HEADS, &rows);
        let _ = writeln!(
            text,
            "\nwindow {:.2} s, evidence {}",
            self.elapsed_s, self.evidence
        );
        for (who, cpu) in [
            ("server", self.server.as_ref()),
            ("generator", Some(&self.generator)),
        ] {
            text.extend(cpu.map(|cpu| cpu.line(who)));
        }
        for (what, errors) in [
            ("errors", &self.total.errors),
            ("fill errors", &self.fill_errors),
        ] {
            text += &errors_line(what, errors);
        }
        text += &reservations(self.total.ops, self.total.aside, self.total.unsent);
        text
    }
}

/// Errors by kind as a line; nothing where there were none.
pub(crate) fn errors_line(what: &str, errors: &BTreeMap<&'static str, u64>) -> String {
    if errors.is_empty() {
        return String::new();
    }
    let list: Vec<String> = errors.iter().map(|(k, n)| format!("{k} {n}")).collect();
    format!("{what}: {}\n", list.join(", "))
}

/// What a reader of the figures has to know: latencies set aside, requests not sent.
pub(crate) fn reservations(ops: u64, aside: u64, unsent: u64) -> String {
    let mut text = String::new();
    if aside > 0 {
        let _ = writeln!(
            text,
            "{aside} latencies were set aside: somebody else had the CPU"
        );
    }
    if unsent > 0 {
        let share = unsent as f64 / (ops + unsent) as f64;
        let verdict = match share > RATE_MISSED_SHARE {
            true => ": the rate was not reached",
            false => "",
        };
        let _ = writeln!(
            text,
            "{unsent} requests were due and not sent at the end{verdict}"
        );
    }
    text
}

/// Columns of text: the first to the left, the others to the right.
pub(crate) fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let widths: Vec<usize> = (0..heads.len())
        .map(|i| {
            rows.iter()
                .map(|r| r[i].len())
                .max()
                .unwrap_or(0)
                .max(heads[i].len())
        })
        .collect();
    let mut text = String::new();
    let heads: Vec<String> = heads.iter().map(|&h| h.to_owned()).collect();
    for row in std::iter::once(&heads).chain(rows) {
        for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match i {
                0 => write!(text, "{cell:width$}"),
                _ => write!(text, "  {cell:>width$}"),
            };
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    text
}

/// A figure with as many decimals as say something.
pub(crate) fn fixed(x: f64) -> String {
    match x {
        x if x < 10.0 => format!("{x:.2}"),
        x if x < 100.0 => format!("{x:.1}"),
        x => format!("{x:.0}"),
    }
}

/// A share in percent, or a dash.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    ratio(part, whole).map_or("-".to_owned(), |r| format!("{:.2}", r * 100.0))
}

/// JSON with a line end, for a file or standard output.
pub(crate) fn json<T: Serialize>(report: &T) -> String {
    let mut text = serde_json::to_string_pretty(report)
        .expect("reports are plain numbers and strings, which JSON can hold");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up() {
        let rows = vec![
            vec!["a".to_owned(), "1".to_owned()],
            vec!["bcd".to_owned(), "22".to_owned()],
        ];
        assert_eq!(
            table(&["x", "count"], &rows),
            "x    count\na        1\nbcd     22\n"
        );
    }

    #[test]
    fn cpu_time_is_split_over_keys_and_the_window() {
        let used = Used {
            cpu_ns: 500_000_000,
            wait_ns: 10_000_000,
            user_share: None,
        };
        let cpu = Cpu::of(&used, 1_000_000, Duration::from_secs(1));
        assert_eq!(
            (cpu.cpu_us_per_op, cpu.cpus, cpu.wait_share),
            (0.5, 0.5, 0.01)
        );
    }
}
