//! How fast the event model runs, for those who plan a simulation: real time and lines a second for
//! some mixes of threads on `optane-2dimm`.
//!
//! What it never does: measure a device; only the simulation's own speed is *real* here.
//!
//! `cargo run --release -p nyx-media --example events`

use nyx_media::model::Params;
use nyx_media::model::event::{Access, Thread, run};
use std::time::Instant;

const LENGTH_NS: u64 = 20_000_000;
const RUNS: usize = 5;

fn threads(access: Access, op_bytes: u64, count: usize) -> Vec<Thread> {
    let thread = Thread {
        access,
        op_bytes,
        ops_per_s: None,
    };
    vec![thread; count]
}

fn main() {
    let params = Params::resolve("optane-2dimm").expect("a preset");
    let mixes = [
        ("1 x 256 B loads", threads(Access::Load, 256, 1)),
        ("16 x 4 KiB loads", threads(Access::Load, 4096, 16)),
        ("8 x 256 B NT stores", threads(Access::StoreNt, 256, 8)),
        (
            "4 x 1 KiB loads, 4 x 4 KiB loads, 4 x 1 KiB NT stores",
            [
                threads(Access::Load, 1024, 4),
                threads(Access::Load, 4096, 4),
                threads(Access::StoreNt, 1024, 4),
            ]
            .concat(),
        ),
    ];
    println!("{LENGTH_NS} ns of virtual time, the best of {RUNS} runs");
    for (name, threads) in mixes {
        let (mut best_s, mut lines) = (f64::INFINITY, 0.0);
        for seed in 0..RUNS as u64 {
            let begin = Instant::now();
            let outcome = run(&params, &threads, LENGTH_NS, seed);
            best_s = best_s.min(begin.elapsed().as_secs_f64());
            let bytes_per_s: f64 = outcome.threads.iter().map(|seen| seen.bytes_per_s).sum();
            lines = bytes_per_s / params.media.line_bytes as f64 * LENGTH_NS as f64 / 1e9;
        }
        println!(
            "{name}: {:.1} ms, {:.1} million lines a second",
            best_s * 1e3,
            lines / best_s / 1e6
        );
    }
}
