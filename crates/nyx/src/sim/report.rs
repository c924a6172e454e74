//! What came out, as a table for people and as JSON for programs.
//!
//! What this module never does: leave out a run.

use super::expect::Verdict;
use super::file::Case;
use super::metric::{METRICS, Metric};
use super::run::{Result, Run, over_runs};
use nyx_sim::emulated::Disturbance;
use std::fmt::Write as _;

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
    let value = |metric: &Metric, at: usize| -> Vec<f64> {
        let runs = result.runs.iter();
        runs.filter_map(|run| metric.value(case, run, at)).collect()
    };
    let tenants = case.config.tenants.len();
    let shown: Vec<&Metric> = METRICS
        .iter()
        .filter(|metric| metric.is_column)
        .filter(|metric| (0..tenants).any(|at| !value(metric, at).is_empty()))
        .collect();
    let _ = write!(text, "  {:<12}", "tenant");
    for column in &shown {
        let _ = write!(text, "{:>WIDTH$}", column.name);
    }
    text.push('\n');
    for (at, name) in result.names.iter().enumerate().take(tenants) {
        let _ = write!(text, "  {name:<12}");
        for column in &shown {
            let _ = write!(text, "{:>WIDTH$}", cell(&value(column, at), column.digits));
        }
        text.push('\n');
    }
    let busy: Vec<f64> = result.runs.iter().map(|run| run.busy * 100.0).collect();
    let runs = result.runs.len();
    let _ = writeln!(
        text,
        "  device busy {} %, {runs} runs, {}",
        cell(&busy, 1),
        case.run.detail.evidence()
    );
    text + &disturbance(result)
}

/// How far runs in real time were disturbed, in a line; nothing where they were simulated.
fn disturbance(result: &Result) -> String {
    let all = result.runs.iter().map(|run| &run.outcome.disturbance);
    let all: Vec<&Disturbance> = all.flatten().collect();
    let Some(first) = all.first() else {
        return String::new();
    };
    let percent = |of: &dyn Fn(&Disturbance) -> f64| {
        let values: Vec<f64> = all.iter().map(|one| of(one) * 100.0).collect();
        cell(&values, 1)
    };
    let waited = result.names.iter().take(first.waited.len()).enumerate();
    let waited = waited.map(|(at, name)| format!("{name} {} %", percent(&|one| one.waited[at])));
    format!(
        "  {} threads, without a CPU in {} % of their time, {} windows disturbed; clients waited \
         for a thread: {}\n",
        first.threads,
        percent(&|one| one.lost),
        all.iter().map(|one| one.windows).sum::<usize>(),
        waited.collect::<Vec<String>>().join(", ")
    )
}

fn cell(values: &[f64], digits: usize) -> String {
    match (values.is_empty(), over_runs(values)) {
        (true, _) => "-".into(),
        (false, (mean, None)) => format!("{mean:.digits$}"),
        (false, (mean, Some(half))) => format!("{mean:.digits$} +-{half:.digits$}"),
    }
}

/// What came of the expectations, a line each.
pub fn verdicts(verdicts: &[Verdict]) -> String {
    let mut text = String::new();
    for verdict in verdicts {
        let word = if verdict.is_kept { "holds" } else { "FAILS" };
        let (held, runs) = (verdict.held, verdict.found.len());
        let _ = writeln!(
            text,
            "  {word}  {}: {} (must be {}; {held} of {runs} runs)",
            verdict.says,
            verdict.ours(),
            verdict.must,
        );
    }
    text
}

/// The head of the table of figures, as Markdown.
pub fn figures_head() -> String {
    let columns = [
        "figure",
        "what the paper says",
        "must",
        "goal",
        "ours",
        "runs that hold, reach the goal",
        "evidence",
    ];
    let rule = "---|".repeat(columns.len());
    format!("| {} |\n|{rule}\n", columns.join(" | "))
}

/// The rows of one figure.
pub fn figure_rows(name: &str, case: &Case, verdicts: &[Verdict]) -> String {
    let mut text = String::new();
    for verdict in verdicts {
        let word = if verdict.is_kept { "" } else { "**fails** " };
        let goal = verdict.goal.as_deref().unwrap_or("-");
        let (held, runs) = (verdict.held, verdict.found.len());
        let reached = match verdict.goal {
            Some(_) => format!(", {}", verdict.reached),
            None => String::new(),
        };
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {goal} | {word}{} | {held}{reached} of {runs} | {} |",
            verdict.says,
            verdict.must,
            verdict.ours(),
            case.run.detail.evidence(),
        );
    }
    text
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
        .map(|run| run_json(case, result, run))
        .collect();
    let evidence = case.run.detail.evidence().to_string();
    serde_json::json!({ "evidence": evidence, "settings": settings, "runs": runs })
}

fn run_json(case: &Case, result: &Result, run: &Run) -> serde_json::Value {
    let tenants = result.names.iter().take(run.tenants.len()).enumerate();
    let tenants = tenants.map(|(at, name)| {
        let metrics = METRICS.iter().filter(|metric| metric.is_of_tenants());
        let values = metrics.map(|metric| {
            let value = metric.value(case, run, at);
            (metric.name.to_owned(), value.into())
        });
        let name = ("tenant".to_owned(), name.clone().into());
        serde_json::Value::Object(std::iter::once(name).chain(values).collect())
    });
    let tenants: Vec<serde_json::Value> = tenants.collect();
    let all = METRICS.iter().filter(|metric| !metric.is_of_tenants());
    let all = all.map(|metric| (metric.name.to_owned(), metric.value(case, run, 0).into()));
    let all: serde_json::Map<String, serde_json::Value> = all.collect();
    let decisions: Vec<String> = decisions(result, run).lines().map(str::to_owned).collect();
    let disturbance = run.outcome.disturbance.as_ref().map(|one| {
        serde_json::json!({
            "threads": one.threads, "lost": one.lost, "windows": one.windows, "waited": one.waited,
        })
    });
    serde_json::json!({
        "seed": run.seed, "all": all, "tenants": tenants, "decisions": decisions,
        "disturbance": disturbance,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::file::{Instead, scenario};
    use crate::sim::run::{Devices, run_all};

    const ONE: &str = "
[run]
detail = \"DETAIL\"
length = \"40ms\"
window = \"10ms\"
[[device]]
model = \"optane-2dimm/8\"
[[tenant]]
name = \"a\"
[[load]]
tenant = \"a\"
clients = 2
";

    #[test]
    fn numbers_say_of_which_kind_they_are() {
        let kinds = [
            ("engine", "simulated"),
            ("device", "simulated"),
            ("emulated", "emulated"),
        ];
        let mut devices = Devices::default();
        for (detail, kind) in kinds {
            let text = ONE.replace("DETAIL", detail);
            let cases = scenario(&text, &Instead::default()).expect("sound").cases;
            let results = run_all(&cases, &mut devices, &|_, _| ()).expect("it runs");
            let (case, result) = (&cases[0], &results[0]);
            assert!(result.runs[0].tenants[0].ops_per_s > 0.0, "{detail}");
            let (text, json) = (table(case, result), json(case, result));
            for word in ["simulated", "emulated"] {
                assert_eq!(text.contains(word), word == kind, "{text}");
            }
            assert_eq!(json["evidence"], kind);
            // What was in real time says what was in its way.
            let real = kind == "emulated";
            assert_eq!(text.contains("waited for a thread: a "), real, "{text}");
            assert_eq!(json["runs"][0]["disturbance"].is_object(), real, "{json}");
        }
    }
}
