//! The figures of the paper's evaluation, one run each, by the optimised binary: a figure whose
//! expectations do not come out fails.
//!
//! What it never does: know what a figure shows. The scenario files say it.
//!
//! *Thread safety*: a figure is one thread's of a process of its own, in virtual time, so that as
//! many are run beside each other as there are processors.

use crate::run::{Report, output, root};
use crate::smoke::build;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

/// Those that would take minutes, on a device of an eighth. docs/runs has them at full size.
const LONG: [&str; 2] = ["fig10a-weights", "fig10b-sizes"];

/// Builds the binary and runs every scenario that is a figure or a table.
pub(crate) fn run(report: &mut Report) {
    let binary = match build() {
        Ok(binary) => binary,
        Err(why) => return report.check("optimised build", Err(why)),
    };
    for (name, outcome) in run_all(&binary, names()) {
        report.check(&name, outcome);
    }
}

/// Every figure's outcome, in no order.
fn run_all(binary: &Path, names: Vec<String>) -> Vec<(String, Result<(), String>)> {
    let next = Mutex::new(names.into_iter());
    let work = || {
        let one = || next.lock().expect("nobody panics with it").next();
        let outcomes = std::iter::from_fn(one).map(|name| {
            let outcome = run_one(binary, &name);
            (name, outcome)
        });
        outcomes.collect::<Vec<_>>()
    };
    let threads = thread::available_parallelism().map_or(1, |count| count.get());
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let outcomes = workers.into_iter().map(|worker| worker.join());
        outcomes.flat_map(|all| all.expect("no panic")).collect()
    })
}

fn run_one(binary: &Path, name: &str) -> Result<(), String> {
    let mut nyx = Command::new(binary);
    nyx.args(["sim", "figures", name, "--seeds", "1", "--quiet"]);
    if LONG.contains(&name) {
        nyx.args(["--model", "optane-2dimm/8"]);
    }
    output(&mut nyx).map(|_| ())
}

/// The scenarios that `nyx sim figures` has.
fn names() -> Vec<String> {
    let files = std::fs::read_dir(root().join("config/scenarios"));
    let files = files.into_iter().flatten().flatten();
    let stem = |file: std::fs::DirEntry| {
        let name = file.file_name().into_string().ok()?;
        Some(name.strip_suffix(".toml")?.to_owned())
    };
    let mut names: Vec<String> = files
        .filter_map(stem)
        .filter(|name| name.starts_with("fig") || name.starts_with("table"))
        .collect();
    names.sort();
    names
}
