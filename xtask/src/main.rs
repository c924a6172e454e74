//! `cargo xtask`: everything that CI runs, and what else a contributor does to the tree.
//!
//! What it never does: hold a rule. Rules are tests (`xtask/tests/tidy`) and lints; this runs them.

mod doc_tests;
mod figures;
mod fuzz;
mod packages;
mod run;
mod smoke;
mod steps;
mod vm;

use run::Report;
use std::process::ExitCode;

const USAGE: &str = "cargo xtask COMMAND

  test [STEP...]      run every check that CI runs, or only these steps
  steps               list the steps of test
  docs                write docs/knobs.md from the knob table
  fuzz [SECONDS]      run the libFuzzer targets (needs cargo-fuzz), 60 s each by default
  smoke               build the optimised binary and talk to it
  vm-test             cut the power of an emulated machine with persistent memory
  swap-test           run nyx swap in emulated machines, with cgroup v2, v1 and none";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["test", steps @ ..] => steps::test(steps),
        ["steps"] => {
            steps::list();
            ExitCode::SUCCESS
        }
        ["smoke"] => steps::test(&["smoke"]),
        ["vm-test"] => steps::test(&["vm"]),
        ["swap-test"] => steps::test(&["swap"]),
        ["docs"] => only("docs", steps::write_docs),
        ["fuzz"] => only("fuzz", |report| fuzz::libfuzzer(report, 60)),
        ["fuzz", seconds] if seconds.parse::<u64>().is_ok() => {
            let seconds = seconds.parse().unwrap_or(60);
            only("fuzz", |report| fuzz::libfuzzer(report, seconds))
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(64)
        }
    }
}

/// Runs one thing that is no check of `test`.
fn only(name: &str, run: impl FnOnce(&mut Report)) -> ExitCode {
    let mut report = Report::new();
    report.step(name, run);
    report.end()
}
