//! Figures 8 and 13 of NyxCache on the event model, for many seeds: each run is printed, good or
//! bad, and then what all runs of a kind come to. See `nyx_sim::figures`.
//!
//! What it never does: choose seeds. They are 1 to N. Numbers are *simulated*.
//!
//! `cargo run --release -p nyx-sim --example figures -- (8 | 13) [seeds] [open]`

use nyx_base::Nanos;
use nyx_policy::Policy;
use nyx_policy::baselines::Unlimited;
use nyx_policy::sharing::qos::Mode;
use nyx_sim::figures::{self, COMPRESSED, Demand, Findings, TARGET, median};
use nyx_sim::modelled::Modelled;

const STEPS: [f64; 5] = [0.1e9, 0.25e9, 0.5e9, 1.0e9, 1.5e9];

#[derive(Clone, Copy, PartialEq)]
enum Who {
    Nobody,
    Nyx(Mode),
    Caladan,
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Who::Nobody => "nobody",
            Who::Nyx(Mode::Adaptive) => "nyx",
            Who::Nyx(Mode::Paper) => "nyx (paper)",
            Who::Caladan => "caladan-like",
        }
    }

    fn policy(self, step: f64) -> Box<dyn Policy> {
        match self {
            Who::Nobody => Box::new(Unlimited),
            Who::Nyx(mode) => figures::nyx(mode, step),
            Who::Caladan => figures::caladan_like(step),
        }
    }
}

/// Time for as many steps of an experiment as it takes to stop the writer, and to settle.
fn length(step: f64) -> Nanos {
    let steps = (figures::WRITER_BYTES_PER_S / step).ceil() as u64;
    Nanos::from_millis(260 + 140 * steps)
}

fn runs(device: &Modelled, who: Who, step: f64, seeds: u64, demand: Demand) -> Vec<Findings> {
    let run = |seed| {
        let scenario = figures::qos(device.clone(), who.policy(step), demand, length(step), seed);
        Findings::of(&scenario.run_library())
    };
    (1..=seeds)
        .map(|seed| {
            let found = run(seed);
            show(who, step, seed, &found);
            found
        })
        .collect()
}

fn show(who: Who, step: f64, seed: u64, found: &Findings) {
    let kept = match found.kept_after {
        Some(after) => format!("after {:.0} ms", after.as_secs_f64() * 1e3),
        None => "never".to_owned(),
    };
    let [p50, p99, p999] = found.settled_ns.map(|ns| ns / 1e3);
    println!(
        "{:12} step {:.2} seed {seed:2}: P99 {:.2} us, then P50 {p50:.2} P99 {p99:.2} P99.9 \
         {p999:.2} us, target kept {kept}; reader {:.2}, writer {:.2} GB/s; throttled {:?}",
        who.name(),
        step / 1e9,
        found.before_ns_p99 / 1e3,
        found.reader_bytes_per_s / 1e9,
        found.writer_bytes_per_s / 1e9,
        found.throttled,
    );
}

fn sum_up(who: Who, step: f64, all: &[Findings]) {
    let sorted = |of: fn(&Findings) -> f64| {
        let mut values: Vec<f64> = all.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        [
            values[0],
            median(values.iter().copied()),
            values[values.len() - 1],
        ]
    };
    let reader = sorted(|found| found.reader_bytes_per_s / 1e9);
    let writer = sorted(|found| found.writer_bytes_per_s / 1e9);
    let tail = sorted(|found| found.settled_ns[1] / 1e3);
    let count = |is: fn(&Findings) -> bool| all.iter().filter(|found| is(found)).count();
    let right = count(Findings::only_the_writer_was_throttled);
    let kept = count(|found| found.settled_ns[1] <= TARGET.0 as f64);
    let latest = all.iter().filter_map(|found| found.kept_after).max();
    let first_kept = match latest {
        None => "never".to_owned(),
        Some(after) => {
            let after_s = after.as_secs_f64();
            format!(
                "after {after_s:.2} s at most, x {COMPRESSED} = {:.1} s",
                after_s * COMPRESSED
            )
        }
    };
    println!(
        "= {:12} step {:.2}: least, median, most: P99 {tail:.2?} us, reader {reader:.2?}, writer \
         {writer:.2?} GB/s; only the writer throttled {right}, target kept at the end {kept} of \
         {}, and first {first_kept}",
        who.name(),
        step / 1e9,
        all.len(),
    );
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let figure = args.first().map_or("8", String::as_str);
    let seeds = args
        .get(1)
        .map_or(10, |n| n.parse().expect("seeds: a number"));
    let demand = match args.get(2).map(String::as_str) {
        Some("open") => Demand::Open,
        _ => Demand::Closed,
    };
    let device = Modelled::named("optane-2dimm").expect("a preset");
    let nyx = [Who::Nyx(Mode::Adaptive), Who::Nyx(Mode::Paper)];
    let cells: Vec<(Who, f64)> = match figure {
        "13" => nyx
            .into_iter()
            .flat_map(|who| STEPS.map(|step| (who, step)))
            .collect(),
        _ => [Who::Nobody, nyx[0], nyx[1], Who::Caladan]
            .map(|who| (who, 0.5e9))
            .to_vec(),
    };
    let found: Vec<Vec<Findings>> = cells
        .iter()
        .map(|&(who, step)| runs(&device, who, step, seeds, demand))
        .collect();
    for (&(who, step), found) in cells.iter().zip(&found) {
        sum_up(who, step, found);
    }
}
