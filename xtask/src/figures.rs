//! The figures of the paper's evaluation, one run each, by the optimised binary: a figure whose
//! expectations do not come out fails.
//!
//! What it never does: know what a figure shows. The scenario files say it.

use crate::run::{Report, output, root};
use crate::smoke::build;
use std::process::Command;

/// Those that would take minutes, on a device of an eighth. docs/runs has them at full size.
const LONG: [&str; 2] = ["fig10a-weights", "fig10b-sizes"];

/// Builds the binary and runs every scenario that is a figure or a table.
pub(crate) fn run(report: &mut Report) {
    let binary = match build() {
        Ok(binary) => binary,
        Err(why) => return report.check("optimised build", Err(why)),
    };
    for name in names() {
        let mut nyx = Command::new(&binary);
        nyx.args(["sim", "figures", &name, "--seeds", "1", "--quiet"]);
        if LONG.contains(&name.as_str()) {
            nyx.args(["--model", "optane-2dimm/8"]);
        }
        report.check(&name, output(&mut nyx).map(|_| ()));
    }
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
