//! The same load against several servers, in interleaved rounds: A B A B ...
//!
//! A machine that is shared drifts by more than servers differ. Rounds that take turns let the
//! drift hit all servers alike, and medians over the rounds leave out the worst of it.
//!
//! What it never does: compare runs that were not made side by side.

use super::LoadError;
use super::address::Address;
use super::plan::Plan;
use super::report::{Bench, EVIDENCE, fixed, table};
use super::run::{self, Frame};
use serde::Serialize;
use std::collections::BTreeMap;
use std::str::FromStr;

/// Above this share of the window that the server's threads waited for a CPU, a round is called
/// disturbed.
const DISTURBED_WAIT_SHARE: f64 = 0.15;

/// A server to compare: `NAME=ADDRESS,PID`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rival {
    name: String,
    address: Address,
    pid: u32,
}

impl FromStr for Rival {
    type Err = String;

    fn from_str(text: &str) -> Result<Rival, String> {
        let form = || format!("{text:?} is no server to compare: write NAME=ADDRESS,PID");
        let (name, rest) = text.split_once('=').ok_or_else(form)?;
        let (address, pid) = rest.rsplit_once(',').ok_or_else(form)?;
        Ok(Rival {
            name: name.to_owned(),
            address: address.parse()?,
            pid: pid.parse().map_err(|_| form())?,
        })
    }
}

/// A comparison.
#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    schema: &'static str,
    evidence: &'static str,
    settings: BTreeMap<&'static str, String>,
    servers: Vec<Compared>,
}

/// One server's rounds and their medians.
#[derive(Debug, Serialize)]
struct Compared {
    name: String,
    rounds: Vec<Round>,
    median: Round,
    best_cpu_us_per_op: f64,
    /// The median CPU time of an operation, against the first server's.
    cpu_ratio: f64,
    /// The median throughput, against the first server's.
    ops_ratio: f64,
    disturbed_rounds: usize,
}

/// One round of one server.
#[derive(Clone, Copy, Debug, Serialize)]
struct Round {
    ops_per_s: f64,
    server_cpu_us_per_op: f64,
    p50_us: f64,
    p99_us: f64,
    hit_ratio: f64,
    wait_share: f64,
    errors: u64,
}

impl Round {
    fn of(bench: &Bench) -> Round {
        let latency = bench.total.reads.or(bench.total.writes);
        Round {
            ops_per_s: bench.total.ops_per_s,
            server_cpu_us_per_op: bench.server.map_or(f64::NAN, |s| s.cpu_us_per_op),
            p50_us: latency.map_or(f64::NAN, |l| l.p50_us),
            p99_us: latency.map_or(f64::NAN, |l| l.p99_us),
            hit_ratio: bench.total.hit_ratio.unwrap_or(f64::NAN),
            wait_share: bench.server.map_or(f64::NAN, |s| s.wait_share),
            errors: bench.total.errors.values().sum(),
        }
    }

    fn median(rounds: &[Round]) -> Round {
        let of = |field: fn(&Round) -> f64| median(rounds.iter().map(field).collect());
        Round {
            ops_per_s: of(|r| r.ops_per_s),
            server_cpu_us_per_op: of(|r| r.server_cpu_us_per_op),
            p50_us: of(|r| r.p50_us),
            p99_us: of(|r| r.p99_us),
            hit_ratio: of(|r| r.hit_ratio),
            wait_share: of(|r| r.wait_share),
            errors: rounds.iter().map(|r| r.errors).sum(),
        }
    }
}

/// The middle of `values`, or the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() % 2 {
        1 => values[half],
        _ => (values[half - 1] + values[half]) / 2.0,
    }
}

/// Runs `rounds` rounds against each of the `rivals`; keys are stored in the first one alone.
pub(crate) fn compare(
    plan: &Plan,
    frame: &Frame,
    rivals: &[Rival],
    rounds: usize,
    settings: BTreeMap<&'static str, String>,
) -> Result<Comparison, LoadError> {
    let mut results = vec![Vec::with_capacity(rounds); rivals.len()];
    for round in 0..rounds {
        for (rival, results) in rivals.iter().zip(&mut results) {
            let mut plan = plan.clone();
            plan.fill &= round == 0;
            plan.tenants
                .iter_mut()
                .for_each(|t| t.address = rival.address.clone());
            let frame = Frame {
                server_pid: Some(rival.pid),
                ..*frame
            };
            let result = Round::of(&Bench::new(run::run(&plan, &frame)?, BTreeMap::new()));
            if frame.progress {
                eprintln!(
                    "round {} of {rounds}  {:12} {:>9.0} ops/s  {:.3} us/op",
                    round + 1,
                    rival.name,
                    result.ops_per_s,
                    result.server_cpu_us_per_op
                );
            }
            results.push(result);
        }
    }
    let first = Round::median(&results[0]);
    let servers = rivals
        .iter()
        .zip(results)
        .map(|(rival, rounds)| compared(rival, rounds, &first));
    Ok(Comparison {
        schema: "nyx.bench.pair/1",
        evidence: EVIDENCE,
        settings,
        servers: servers.collect(),
    })
}

fn compared(rival: &Rival, rounds: Vec<Round>, first: &Round) -> Compared {
    let median = Round::median(&rounds);
    Compared {
        name: rival.name.clone(),
        best_cpu_us_per_op: (rounds.iter().map(|r| r.server_cpu_us_per_op))
            .fold(f64::INFINITY, f64::min),
        cpu_ratio: median.server_cpu_us_per_op / first.server_cpu_us_per_op,
        ops_ratio: median.ops_per_s / first.ops_per_s,
        disturbed_rounds: rounds
            .iter()
            .filter(|r| r.wait_share > DISTURBED_WAIT_SHARE)
            .count(),
        median,
        rounds,
    }
}

impl Comparison {
    /// For people.
    pub(crate) fn text(&self) -> String {
        let rows: Vec<Vec<String>> = (self.servers.iter())
            .map(|s| {
                vec![
                    s.name.clone(),
                    format!("{:.3}", s.median.server_cpu_us_per_op),
                    format!("{:.3}", s.best_cpu_us_per_op),
                    format!("{:.2}", s.cpu_ratio),
                    format!("{:.0}", s.median.ops_per_s),
                    format!("{:.2}", s.ops_ratio),
                    fixed(s.median.p50_us),
                    fixed(s.median.p99_us),
                    format!("{:.2}", s.median.hit_ratio * 100.0),
                    s.median.errors.to_string(),
                    format!("{} of {}", s.disturbed_rounds, s.rounds.len()),
                ]
            })
            .collect();
        let heads = [
            "server",
            "CPU us/op",
            "best",
            "ratio",
            "ops/s",
            "ratio",
            "p50 us",
            "p99 us",
            "hit %",
            "errors",
            "disturbed",
        ];
        let rounds = self.servers.first().map_or(0, |s| s.rounds.len());
        format!(
            "{}\nmedians of {rounds} interleaved rounds, ratios to the first server, evidence {}\n",
            table(&heads, &rows),
            self.evidence
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_ignore_one_bad_round() {
        assert_eq!(median(vec![9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![1.0, 2.0, 4.0, 900.0]), 3.0);
    }

    #[test]
    fn rivals_are_named_addressed_and_measured() {
        let rival: Rival = "mc=127.0.0.1:11211,42".parse().expect("in form");
        assert_eq!((rival.name.as_str(), rival.pid), ("mc", 42));
        let rival: Rival = "nyx=unix:/tmp/a,b.sock,7".parse().expect("in form");
        assert_eq!(rival.address, Address::Unix("/tmp/a,b.sock".into()));
        for text in ["mc", "mc=127.0.0.1:1", "mc=127.0.0.1:1,x"] {
            assert!(text.parse::<Rival>().is_err(), "{text}");
        }
    }
}
