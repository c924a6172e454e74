//! What came out, as a table for people and as JSON for programs.
//!
//! What this module never does: leave out a run.

use super::file::Case;
use super::run::{Had, Result, Run, over_runs};
use std::fmt::Write as _;

/// A figure that is shown for each tenant.
struct Column {
    name: &'static str,
    of: fn(&Had) -> Option<f64>,
    digits: usize,
}

const COLUMNS: [Column; 8] = [
    Column {
        name: "ops/s",
        of: |had| Some(had.ops_per_s),
        digits: 0,
    },
    Column {
        name: "MB/s",
        of: |had| Some(had.bytes_per_s / 1e6),
        digits: 1,
    },
    Column {
        name: "device %",
        of: |had| Some(had.share * 100.0),
        digits: 2,
    },
    Column {
        name: "mean us",
        of: |had| Some(had.latencies.mean_ns()? / 1e3),
        digits: 2,
    },
    Column {
        name: "P50 us",
        of: |had| Some(had.latencies.quantile_ns(0.5)? / 1e3),
        digits: 2,
    },
    Column {
        name: "P99 us",
        of: |had| Some(had.latencies.quantile_ns(0.99)? / 1e3),
        digits: 2,
    },
    Column {
        name: "P99.9 us",
        of: |had| Some(had.latencies.quantile_ns(0.999)? / 1e3),
        digits: 2,
    },
    Column {
        name: "slowdown",
        of: |had| had.slowdown,
        digits: 3,
    },
];
const WIDTH: usize = 16;

/// One case: a line of what was set, and one for each tenant; means over runs, with intervals of
/// 95 % where there are several.
pub fn table(case: &Case, result: &Result) -> String {
    let mut text = String::new();
    let settings = case
        .settings
        .iter()
        .map(|(name, value)| format!("{name} = {value}"));
    let settings: Vec<String> = settings.collect();
    if !settings.is_empty() {
        let _ = writeln!(text, "{}", settings.join(", "));
    }
    let shown: Vec<&Column> = COLUMNS
        .iter()
        .filter(|column| {
            result
                .runs
                .iter()
                .any(|run| run.tenants.iter().any(|t| (column.of)(t).is_some()))
        })
        .collect();
    let _ = write!(text, "  {:<12}", "tenant");
    for column in &shown {
        let _ = write!(text, "{:>WIDTH$}", column.name);
    }
    text.push('\n');
    for (at, name) in result
        .names
        .iter()
        .enumerate()
        .take(case.config.tenants.len())
    {
        let _ = write!(text, "  {name:<12}");
        for column in &shown {
            let values: Vec<f64> = result
                .runs
                .iter()
                .filter_map(|run| (column.of)(&run.tenants[at]))
                .collect();
            let _ = write!(text, "{:>WIDTH$}", cell(&values, column.digits));
        }
        text.push('\n');
    }
    let busy: Vec<f64> = result.runs.iter().map(|run| run.busy * 100.0).collect();
    let runs = result.runs.len();
    let _ = writeln!(
        text,
        "  device busy {} %, {runs} runs, simulated",
        cell(&busy, 1)
    );
    text
}

fn cell(values: &[f64], digits: usize) -> String {
    match (values.is_empty(), over_runs(values)) {
        (true, _) => "-".into(),
        (false, (mean, None)) => format!("{mean:.digits$}"),
        (false, (mean, Some(half))) => format!("{mean:.digits$} +-{half:.digits$}"),
    }
}

/// What the policy did in one run, a line each.
pub fn decisions(result: &Result, run: &Run) -> String {
    let mut text = String::new();
    for decision in &run.outcome.decisions {
        let at_ms = decision.at.0 as f64 / 1e6;
        let name = result.names.get(decision.tenant).map_or("", String::as_str);
        let _ = writeln!(
            text,
            "  {at_ms:>9.1} ms  {name} {}: {}",
            decision.act, decision.why
        );
    }
    text
}

/// One case as JSON: settings, and for each run what each tenant had.
pub fn json(case: &Case, result: &Result) -> serde_json::Value {
    let settings: serde_json::Map<String, serde_json::Value> = case
        .settings
        .iter()
        .map(|(name, value)| (name.clone(), value.clone().into()))
        .collect();
    let runs: Vec<serde_json::Value> = result
        .runs
        .iter()
        .map(|run| run_json(result, run))
        .collect();
    serde_json::json!({ "evidence": "simulated", "settings": settings, "runs": runs })
}

fn run_json(result: &Result, run: &Run) -> serde_json::Value {
    let tenants: Vec<serde_json::Value> = run
        .tenants
        .iter()
        .zip(&result.names)
        .map(|(had, name)| {
            let mut one = serde_json::Map::new();
            one.insert("tenant".into(), name.clone().into());
            for column in &COLUMNS {
                one.insert(column.name.into(), (column.of)(had).into());
            }
            one.into()
        })
        .collect();
    let decisions: Vec<String> = decisions(result, run).lines().map(str::to_owned).collect();
    serde_json::json!({
        "seed": run.seed, "device busy": run.busy, "tenants": tenants, "decisions": decisions,
    })
}
