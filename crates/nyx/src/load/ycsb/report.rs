//! What a run of YCSB gave, as tables and as JSON (docs/bench.md has the schema).
//!
//! What it never does: give a kind of operation that did not happen a line.

use super::{KINDS, Kind};
use crate::load::link::Ask;
use crate::load::plan::Plan;
use crate::load::report::{
    Cpu, EVIDENCE, Latency, errors, errors_line, fixed, reservations, table,
};
use crate::load::run::{Outcome, TenantResult};
use crate::load::tally::{Counts, Tally};
use nyx_sim::workload::ycsb::Core;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// A run of `nyx bench --ycsb`.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    schema: &'static str,
    evidence: &'static str,
    /// What was asked for, by option.
    settings: BTreeMap<&'static str, String>,
    load: Option<Loaded>,
    workloads: Vec<Played>,
}

impl Report {
    /// Of what [`super::play`] gave.
    pub(crate) fn new(
        settings: BTreeMap<&'static str, String>,
        load: Option<Loaded>,
        workloads: Vec<Played>,
    ) -> Report {
        Report {
            schema: "nyx.bench.ycsb/1",
            evidence: EVIDENCE,
            settings,
            load,
            workloads,
        }
    }
}

/// The load of the records.
#[derive(Debug, Serialize)]
pub(crate) struct Loaded {
    records: u64,
    elapsed_s: f64,
    records_per_s: f64,
    errors: BTreeMap<&'static str, u64>,
}

impl Loaded {
    /// Of the first run, by `plan`.
    pub(super) fn of(plan: &Plan, outcome: &Outcome) -> Loaded {
        let records = plan.tenants.iter().map(|t| t.spec.keys).sum();
        let mut counts = Counts::default();
        outcome.tenants.iter().for_each(|t| counts.add(&t.fill));
        let elapsed_s = outcome.fill.as_secs_f64();
        Loaded {
            records,
            elapsed_s,
            records_per_s: records as f64 / elapsed_s,
            errors: errors(&counts),
        }
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "load        {} records in {:.2} s, {:.0} a second\n",
            self.records, self.elapsed_s, self.records_per_s
        );
        text += &errors_line("load errors", &self.errors);
        text
    }
}

/// What was done of one kind.
#[derive(Debug, Serialize)]
struct OfKind {
    kind: &'static str,
    count: u64,
    ops_per_s: f64,
    latency: Option<Latency>,
}

impl OfKind {
    fn row(&self) -> Vec<String> {
        let us = |f: fn(&Latency) -> f64| self.latency.as_ref().map_or("-".into(), |l| fixed(f(l)));
        vec![
            self.kind.to_owned(),
            self.count.to_string(),
            format!("{:.0}", self.ops_per_s),
            us(|l| l.mean_us),
            us(|l| l.p50_us),
            us(|l| l.p95_us),
            us(|l| l.p99_us),
            us(|l| l.p999_us),
            us(|l| l.max_us),
        ]
    }
}

const HEADS: [&str; 9] = [
    "", "ops", "ops/s", "mean us", "p50", "p95", "p99", "p99.9", "max",
];

/// What one workload gave.
#[derive(Debug, Serialize)]
pub(crate) struct Played {
    workload: &'static str,
    mix: &'static str,
    /// Records when it began.
    records: u64,
    /// Records that it added, the warm-up's included.
    inserted: u64,
    elapsed_s: f64,
    ops: u64,
    ops_per_s: f64,
    kinds: Vec<OfKind>,
    /// All operations.
    all: Option<Latency>,
    /// Reads, those of read-modify-writes included.
    hits: u64,
    misses: u64,
    hit_ratio: Option<f64>,
    /// Stores that followed a miss.
    fills: u64,
    /// Records that scans gave.
    scanned: u64,
    errors: BTreeMap<&'static str, u64>,
    unsent: u64,
    aside: u64,
    server: Option<Cpu>,
    generator: Cpu,
}

impl Played {
    /// Of a run of `core` by `plan`.
    pub(super) fn of(core: Core, plan: &Plan, outcome: Outcome) -> Played {
        let elapsed = outcome.elapsed;
        let records = plan.tenants.iter().map(|t| t.spec.keys).sum();
        let (mut sum, mut unsent) = (plan.tally(), 0);
        for TenantResult {
            mut tally,
            unsent: more,
            ..
        } in outcome.tenants
        {
            tally.drain_into(&mut sum);
            unsent += more;
        }
        let counts = sum.counts;
        let kinds = kinds(&mut sum, elapsed);
        Played {
            workload: core.name(),
            mix: core.mix(),
            records,
            inserted: outcome.records.saturating_sub(records),
            elapsed_s: elapsed.as_secs_f64(),
            ops: counts.total_ops(),
            ops_per_s: counts.total_ops() as f64 / elapsed.as_secs_f64(),
            kinds,
            all: Latency::of(&sum.all()),
            hits: counts.hits,
            misses: counts.misses,
            hit_ratio: counts.hit_ratio(),
            fills: counts.ops[Ask::Fill as usize],
            scanned: counts.scanned,
            errors: errors(&counts),
            unsent,
            aside: sum.aside,
            server: (outcome.server.as_ref()).map(|used| Cpu::of(used, outcome.keys, elapsed)),
            generator: Cpu::of(&outcome.client, outcome.keys, elapsed),
        }
    }

    /// Values that were not what had been stored, and records out of their order.
    pub(crate) fn corrupt(&self) -> u64 {
        self.errors.get("corrupt").copied().unwrap_or(0)
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "\nworkload {}  {}; {} records",
            self.workload, self.mix, self.records
        );
        if self.inserted > 0 {
            let _ = write!(text, " and {} inserted", self.inserted);
        }
        let mut rows: Vec<Vec<String>> = self.kinds.iter().map(OfKind::row).collect();
        let total = OfKind {
            kind: "total",
            count: self.ops,
            ops_per_s: self.ops_per_s,
            latency: self.all,
        };
        rows.push(total.row());
        let _ = write!(text, "\n{}", table(&HEADS, &rows));
        if let Some(ratio) = self.hit_ratio {
            let _ = write!(text, "hits {:.2} %, ", ratio * 100.0);
        }
        if self.scanned > 0 {
            let per_s = self.scanned as f64 / self.elapsed_s;
            let _ = write!(text, "{per_s:.0} records a second by scans, ");
        }
        if self.fills > 0 {
            let _ = write!(text, "{} stored after a miss, ", self.fills);
        }
        let _ = writeln!(text, "window {:.2} s, evidence {EVIDENCE}", self.elapsed_s);
        text.extend(self.server.map(|cpu| cpu.line("server")));
        text += &self.generator.line("generator");
        text += &errors_line("errors", &self.errors);
        text += &reservations(self.ops, self.aside, self.unsent);
        text
    }
}

/// What was done, by kind, of those that were.
fn kinds(tally: &mut Tally, elapsed: Duration) -> Vec<OfKind> {
    let counts = tally.counts;
    let ops = |ask: Ask| counts.ops[ask as usize];
    let read_misses = counts.misses - counts.look_misses;
    let done = [
        (Kind::Read, ops(Ask::Get).saturating_sub(read_misses)),
        (Kind::ReadMiss, read_misses),
        (Kind::Scan, ops(Ask::Scan)),
        (Kind::Rmw, ops(Ask::Rmw)),
        (Kind::Update, ops(Ask::Set)),
        (Kind::Insert, ops(Ask::Insert)),
    ];
    (done.into_iter())
        .filter(|&(_, count)| count > 0)
        .map(|(kind, count)| OfKind {
            kind: KINDS[kind as usize],
            count,
            ops_per_s: count as f64 / elapsed.as_secs_f64(),
            latency: Latency::of(tally.class(kind as usize)),
        })
        .collect()
}
