//! The steps of `cargo xtask test`, cheapest first.
//!
//! What they never do: depend on each other. Each builds what it needs, so any can run alone.

use crate::run::{Report, cargo, output, root};
use crate::{doc_tests, figures, fuzz, packages, smoke, vm};
use std::process::{Command, ExitCode};

struct Step {
    name: &'static str,
    what: &'static str,
    run: fn(&mut Report),
}

/// Clippy and the tests share the dev profile; the smoke test and the figures have one that is
/// optimised as a release is.
const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        what: "cargo fmt --check",
        run: fmt,
    },
    Step {
        name: "clippy",
        what: "clippy on every target, warnings denied",
        run: clippy,
    },
    Step {
        name: "tidy",
        what: "rules of the house, as tests of xtask",
        run: tidy,
    },
    Step {
        name: "test",
        what: "the tests of every room",
        run: test_rooms,
    },
    Step {
        name: "doc",
        what: "rustdoc, warnings denied",
        run: doc,
    },
    Step {
        name: "deny",
        what: "cargo-deny, where it is installed",
        run: deny,
    },
    Step {
        name: "fuzz",
        what: "the parsers' properties over random input",
        run: fuzz::driver,
    },
    Step {
        name: "smoke",
        what: "the optimised binary, by its users' means",
        run: smoke::run,
    },
    Step {
        name: "vm",
        what: "power cuts of an emulated machine with persistent memory",
        run: vm::run,
    },
    Step {
        name: "figures",
        what: "the figures of the paper's evaluation, one run each",
        run: figures::run,
    },
];

/// Steps that run only where they are named: they take longer than CI has.
const NAMED: &[Step] = &[Step {
    name: "swap",
    what: "programs under nyx swap in emulated machines with cgroup v2, v1 and none",
    run: vm::swap::run,
}];

/// Runs all of CI's steps, or those that are named.
pub(crate) fn test(names: &[&str]) -> ExitCode {
    let unknown = names
        .iter()
        .find(|name| all().all(|step| step.name != **name));
    if let Some(name) = unknown {
        eprintln!("there is no step {name}; `cargo xtask steps` lists them");
        return ExitCode::from(64);
    }
    let mut report = Report::new();
    let is_of_ci = |step: &Step| STEPS.iter().any(|one| one.name == step.name);
    for step in all().filter(|step| match names {
        [] => is_of_ci(step),
        names => names.contains(&step.name),
    }) {
        report.step(step.name, step.run);
    }
    report.end()
}

fn all() -> impl Iterator<Item = &'static Step> {
    STEPS.iter().chain(NAMED)
}

/// Prints the steps.
pub(crate) fn list() {
    for Step { name, what, .. } in all() {
        println!("{name:<8} {what}");
    }
}

/// Writes `docs/knobs.md` from what the binary says.
pub(crate) fn write_docs(report: &mut Report) {
    let mut nyx = cargo("run");
    nyx.args(["--quiet", "--package", "nyx", "--", "knobs", "--markdown"]);
    // Only standard output is the page; warnings of a build go to standard error.
    let page = nyx
        .output()
        .map_err(|error| error.to_string())
        .and_then(|output| match output.status.success() {
            true => Ok(output.stdout),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        });
    let path = root().join("docs/knobs.md");
    let written = page.and_then(|page| std::fs::write(path, page).map_err(|e| e.to_string()));
    report.check("docs/knobs.md", written);
}

fn fmt(report: &mut Report) {
    report.command("cargo fmt", cargo("fmt").args(["--all", "--check"]));
}

fn clippy(report: &mut Report) {
    let args = ["--workspace", "--all-targets", "--", "-D", "warnings"];
    report.command("cargo clippy", cargo("clippy").args(args));
}

fn tidy(report: &mut Report) {
    report.cargo_test(&["--package", "xtask"]);
}

fn test_rooms(report: &mut Report) {
    // Clients of the block export; its tests say what they leave out.
    for (program, package) in [
        ("fio", "fio"),
        ("nbdcopy", "libnbd-bin"),
        ("qemu-img", "qemu-utils"),
    ] {
        if let Err(why) = packages::program(program, package) {
            report.skip(&format!("tests of nyx block with {program}"), &why);
        }
    }
    // Examples without tests are not built here: clippy has checked them, though nobody links them.
    report.cargo_test(&["--workspace", "--exclude", "xtask", "--tests"]);
    match doc_tests::packages() {
        Ok(packages) => {
            let named = packages.iter().flat_map(|name| ["--package", name]);
            report.cargo_test(&["--doc"].into_iter().chain(named).collect::<Vec<_>>());
        }
        Err(why) => report.check("tests in documentation", Err(why)),
    }
    // What is compiled with this feature only.
    let simulate = ["--package", "nyx-media", "--features", "simulate"];
    report.cargo_test(&[&simulate[..], &["--lib", "observed"]].concat());
}

fn doc(report: &mut Report) {
    // With private items, because headers link to the private modules that they explain; so such
    // links are what is wanted.
    let args = [
        "--workspace",
        "--no-deps",
        "--document-private-items",
        "--exclude",
        "xtask",
    ];
    report.command(
        "cargo doc",
        cargo("doc").args(args).env(
            "RUSTDOCFLAGS",
            "-D warnings -A rustdoc::private-intra-doc-links",
        ),
    );
}

fn deny(report: &mut Report) {
    if output(Command::new("cargo-deny").arg("--version")).is_err() {
        report.skip(
            "cargo deny",
            "cargo-deny is not installed; tidy checks the licences",
        );
        return;
    }
    let args = ["--offline", "check", "licenses", "bans", "sources"];
    report.command("cargo deny", cargo("deny").args(args));
}
