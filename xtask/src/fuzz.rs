//! Random input for the parsers: a short run in this process, or libFuzzer when it is asked for.
//!
//! What it never does: judge an input itself. The rooms' `fuzzing::check_*` functions panic.

use crate::run::{Report, cargo, output, root};
use fastrand::Rng;
use nyx_proto::fuzzing;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::thread::{Builder, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// How long the targets run in `cargo xtask test`, all beside each other: two CPUs give each half.
const TIME: Duration = Duration::from_secs(10);

type Check = fn(&[u8]);

const TARGETS: &[(&str, Check)] = &[
    ("parse", fuzzing::check_parse),
    ("auth", fuzzing::check_auth),
    ("responses", fuzzing::check_responses),
    ("nbd", nyx_block::wire::fuzzing::check_nbd),
];

/// Runs each target on random and mutated bytes; the seed is new each time and told on failure.
pub(crate) fn driver(report: &mut Report) {
    let seed = std::env::var("NYX_FUZZ_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    std::thread::scope(|scope| {
        let start = |&(name, check): &(&'static str, Check)| {
            // A panic tells the thread's name.
            let thread = Builder::new().name(name.to_owned());
            (
                name,
                thread.spawn_scoped(scope, move || run_target(check, seed)),
            )
        };
        let started: Vec<_> = TARGETS.iter().map(start).collect();
        for (name, target) in started {
            let result = match target.map(ScopedJoinHandle::join) {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err("the driver itself panicked".to_owned()),
                Err(error) => Err(format!("no thread: {error}")),
            };
            report.check(name, result);
        }
    });
}

fn run_target(check: Check, seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let mut input: Vec<u8> = Vec::new();
    let start = Instant::now();
    while start.elapsed() < TIME {
        input = next_input(&mut rng, input);
        // The message of the panic goes to standard error by itself.
        if catch_unwind(AssertUnwindSafe(|| check(&input))).is_err() {
            let shown = input.escape_ascii();
            return Err(format!("panics (NYX_FUZZ_SEED={seed}) on b\"{shown}\""));
        }
    }
    Ok(())
}

/// Fresh bytes half of the time, otherwise the last input with a small change.
fn next_input(rng: &mut Rng, mut last: Vec<u8>) -> Vec<u8> {
    const LEN_MAX: usize = 4096;
    if rng.bool() || last.is_empty() || last.len() > LEN_MAX {
        let pieces = rng.usize(1..20);
        last.clear();
        fuzzing::soup(rng, pieces, &mut last);
        return last;
    }
    let at = rng.usize(..last.len());
    match rng.u8(..4) {
        0 => last[at] = rng.u8(..),
        1 => last.insert(at, rng.u8(..)),
        2 => last.truncate(at),
        _ => last.extend_from_within(at..),
    }
    last
}

/// Runs cargo-fuzz on every target of `fuzz/`. A stable compiler obeys by `RUSTC_BOOTSTRAP`.
pub(crate) fn libfuzzer(report: &mut Report, seconds: u64) {
    if output(Command::new("cargo-fuzz").arg("--version")).is_err() {
        report.skip(
            "libFuzzer",
            "cargo-fuzz is missing: cargo install cargo-fuzz",
        );
        return;
    }
    let dictionary = root().join("fuzz/memcached.dict");
    for (name, _) in TARGETS {
        let mut command = cargo("fuzz");
        command
            .env("RUSTC_BOOTSTRAP", "1")
            .args(["run", name, "--"]);
        command.arg(format!("-max_total_time={seconds}"));
        command.arg(format!("-dict={}", dictionary.display()));
        report.command(name, &mut command);
    }
}
