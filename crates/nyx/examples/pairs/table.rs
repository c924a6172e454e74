//! A table of runs, in Markdown.
//!
//! What it never does: compare runs that failed, or of which one is missing; put runs of different
//! builds or sizes into one row.

use crate::log::{FaultTimes, Report, Row};
use crate::plan::{Device, Engine, Kind};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Runs that differ by engine and round only.
type Place = (Kind, Device, u8);

const HEAD: &str = "# Programs in less memory than they use

Real figures: real programs, real control groups, this machine's devices, in real time. Medians of
runs that ended well with the right result; the engines took turns. `linux` is the kernel alone
(`--pool off --oom kill`), `linux-wait` the same but for `--oom wait`, `kernel` the kernel's swap
with the reclaimer (`--pool auto --oom wait`), `uffd` the program itself through the preload library
(`--engine uffd`), and the kernel alone for what that does not reach.
";

/// Whose run times are divided by whose.
const COMPARED: [(Engine, Engine); 7] = [
    (Engine::Kernel, Engine::Linux),
    (Engine::Kernel, Engine::LinuxWait),
    (Engine::Uffd, Engine::Linux),
    (Engine::Uffd, Engine::LinuxWait),
    (Engine::Uffd, Engine::Kernel),
    (Engine::Kernel, Engine::Ideal),
    (Engine::Uffd, Engine::Ideal),
];

pub(crate) fn markdown(rows: &[Row]) -> String {
    // Sorted, so that equal logs make equal tables.
    let mut places: BTreeMap<Place, Vec<&Row>> = BTreeMap::new();
    for row in rows
        .iter()
        .filter(|row| row.key.engine != Engine::Unlimited)
    {
        let key = &row.key;
        let place = (key.kind.clone(), key.device, key.ratio_percent);
        places.entry(place).or_default().push(row);
    }
    let mut text = HEAD.to_owned();
    text += &unlimited(rows);
    text += &ratios(&places);
    text += &means(&places);
    text += &medians(&places);
    text += &faults(&places);
    text += &failures(&places);
    text
}

fn unlimited(rows: &[Row]) -> String {
    let mut text = "\n## Without a limit\n
| program | peak, MiB | run, s | CPU, s |
|---|---|---|---|
"
    .to_owned();
    for row in rows
        .iter()
        .filter(|row| row.key.engine == Engine::Unlimited)
    {
        let Some(report) = row.report.as_ref().filter(|_| row.is_good()) else {
            continue;
        };
        let (peak, cpu) = (mib(report.peak_bytes), cell(report.cpu_s, 2));
        let _ = writeln!(
            text,
            "| {} | {peak} | {:.2} | {cpu} |",
            row.key.kind, report.run_s
        );
    }
    text
}

fn ratios(places: &BTreeMap<Place, Vec<&Row>>) -> String {
    let mut text = "\n## Run time as a part of other engines'\n
Median of the rounds in which both ended well (least to most, rounds):
below 1 the first is faster.\n
| program | device | memory |"
        .to_owned();
    for (engine, other) in COMPARED {
        let _ = write!(text, " {engine} / {other} |");
    }
    let _ = writeln!(text, "\n{}|", "|---".repeat(3 + COMPARED.len()));
    for ((kind, device, percent), rows) in places {
        let _ = write!(text, "| {kind} | {device} | {percent} % |");
        for (engine, other) in COMPARED {
            let ratios = Spread::of(&paired(rows, engine, other));
            let ratios = ratios.map_or("-".to_owned(), |ratios| ratios.to_string());
            let _ = write!(text, " {ratios} |");
        }
        text += "\n";
    }
    text
}

/// Of all limits together.
fn means(places: &BTreeMap<Place, Vec<&Row>>) -> String {
    let mut text = "\n## The same on average\n
Geometric mean of the medians above (least to most, how many limits):\n
| program | device |"
        .to_owned();
    let mut shelves: BTreeMap<(Option<&Kind>, Device), Vec<&Vec<&Row>>> = BTreeMap::new();
    for ((kind, device, _), rows) in places {
        shelves.entry((Some(kind), *device)).or_default().push(rows);
        // Of all programs, first.
        shelves.entry((None, *device)).or_default().push(rows);
    }
    for (engine, other) in COMPARED {
        let _ = write!(text, " {engine} / {other} |");
    }
    let _ = writeln!(text, "\n{}|", "|---".repeat(2 + COMPARED.len()));
    for ((kind, device), limits) in &shelves {
        let name = kind.map_or("all".to_owned(), |kind| kind.to_string());
        let _ = write!(text, "| {name} | {device} |");
        for (engine, other) in COMPARED {
            let ratios = limits
                .iter()
                .filter_map(|rows| median(paired(rows, engine, other)));
            let mean = Spread::geometric(&ratios.collect::<Vec<f64>>());
            let _ = write!(
                text,
                " {} |",
                mean.map_or("-".to_owned(), |mean| mean.to_string())
            );
        }
        text += "\n";
    }
    text
}

/// Nothing where nobody has timed them.
fn faults(places: &BTreeMap<Place, Vec<&Row>>) -> String {
    let mut lines = String::new();
    for ((kind, device, percent), rows) in places {
        for engine in engines(rows) {
            let of_it = rows.iter().filter(|row| row.key.engine == engine);
            let good = of_it.filter(|row| row.is_good());
            let all: Vec<&FaultTimes> = good.filter_map(|row| row.faults.as_ref()).collect();
            if all.is_empty() {
                continue;
            }
            let of = |figure: fn(&FaultTimes) -> u64, unit: f64, digits| {
                let figures = all.iter().map(|times| figure(times) as f64 / unit);
                cell(median(figures.collect()), digits)
            };
            let _ = writeln!(
                lines,
                "| {kind} | {device} | {percent} % | {engine} | {} | {} | {} | {} | {} | {} | {} | \
                 {} |",
                all.len(),
                of(|times| times.count, 1e3, 1),
                of(|times| times.p50_ns, 1e3, 1),
                of(|times| times.p99_ns, 1e3, 1),
                of(|times| times.p999_ns, 1e3, 1),
                of(|times| times.longest_ns, 1e6, 1),
                of(|times| times.sum_ns, 1e9, 2),
                of(|times| times.lost, 1.0, 0),
            );
        }
    }
    if lines.is_empty() {
        return lines;
    }
    let head = "\n## Faults\n
Of all of the program's processes, timed by events of the kernel where a fault begins and where it
is over; medians of runs. Lost are events that nobody heard of. Run times above are longer for it.\n
| program | device | memory | engine | runs | thousands | P50, us | P99, us | P99.9, us | \
longest, ms | all together, s | lost |
|---|---|---|---|---|---|---|---|---|---|---|---|
";
    head.to_owned() + &lines
}

fn medians(places: &BTreeMap<Place, Vec<&Row>>) -> String {
    let mut text = "\n## Medians\n
Inline reclaims of the kernel are at most so many with cgroup v1. P50 and P99 are of the
first touch of a page, reading, as the program itself has them. The pager of `uffd` is in the
program's process: its CPU time is in `CPU`, the reclaimer's and that of who reads ahead are not.
Major faults and inline reclaims of `uffd` are its own and the kernel's.\n
| program | device | memory | engine | good runs | run, s | CPU, s | of it pager, s | \
reclaimer CPU, s | reader CPU, s | major faults | inline reclaims | \
rescues | P50, us | P99, us |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
"
    .to_owned();
    for ((kind, device, percent), rows) in places {
        for engine in engines(rows) {
            let all = || rows.iter().filter(|row| row.key.engine == engine);
            let good: Vec<&Row> = all().filter(|row| row.is_good()).copied().collect();
            let counts = format!("{} of {}", good.len(), all().count());
            let of = |figure: fn(&Report) -> Option<f64>, digits| {
                let figures = good
                    .iter()
                    .filter_map(|row| row.report.as_ref().and_then(figure));
                cell(median(figures.collect()), digits)
            };
            let us = |touch: fn(&Row) -> Option<u64>| {
                let touches = good.iter().filter_map(|row| touch(row));
                cell(median(touches.map(|ns| ns as f64 / 1e3).collect()), 1)
            };
            let _ = writeln!(
                text,
                "| {kind} | {device} | {percent} % | {engine} | {counts} | {} | {} | {} | {} | \
                 {} | {} | {} | {} | {} | {} |",
                of(|report| Some(report.run_s), 2),
                of(|report| report.cpu_s, 2),
                of(|report| Some(report.arena.as_ref()?.cpu_ns as f64 / 1e9), 2),
                of(|report| Some(report.reclaimer_cpu_s), 2),
                of(
                    |report| Some(report.read_ahead.as_ref()?.cpu_ns as f64 / 1e9),
                    2
                ),
                of(|report| Some(report.all_major_faults() as f64), 0),
                of(|report| Some(report.all_inline_reclaims() as f64), 0),
                of(|report| Some(report.rescues as f64), 0),
                us(|row| row.touch_p50_ns),
                us(|row| row.touch_p99_ns),
            );
        }
    }
    text
}

fn failures(places: &BTreeMap<Place, Vec<&Row>>) -> String {
    let mut text = "\n## Runs that failed\n\n".to_owned();
    let mut count = 0;
    for rows in places.values() {
        for row in rows.iter().filter(|row| !row.is_good()) {
            let kills = row.report.as_ref().map_or(0, |report| report.oom_kills);
            let oom = if kills > 0 { ", out of memory" } else { "" };
            let _ = writeln!(text, "* {}: {}{oom}", row.key, row.failure());
            count += 1;
        }
    }
    if count == 0 {
        text += "None.\n";
    }
    text
}

fn engines(rows: &[&Row]) -> BTreeSet<Engine> {
    rows.iter().map(|row| row.key.engine).collect()
}

/// How long `engine` ran as a part of `other`, in each round in which both are good.
fn paired(rows: &[&Row], engine: Engine, other: Engine) -> Vec<f64> {
    let times = |engine: Engine| -> BTreeMap<u32, f64> {
        let rows = rows
            .iter()
            .filter(|row| row.key.engine == engine && row.is_good());
        rows.filter_map(|row| Some((row.key.round, row.report.as_ref()?.run_s)))
            .collect()
    };
    let others = times(other);
    let pairs = times(engine).into_iter();
    pairs
        .filter_map(|(round, s)| others.get(&round).map(|other| s / other))
        .filter(|ratio| ratio.is_finite())
        .collect()
}

/// The middle one, or the mean of the middle two.
pub(crate) fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_unstable_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() {
        0 => None,
        count if count % 2 == 1 => Some(figures[middle]),
        _ => Some((figures[middle - 1] + figures[middle]) / 2.0),
    }
}

/// A median or a mean, with what it is of.
struct Spread {
    middle: f64,
    least: f64,
    most: f64,
    count: usize,
}

impl Spread {
    fn of(figures: &[f64]) -> Option<Spread> {
        Some(Spread {
            middle: median(figures.to_vec())?,
            least: figures.iter().copied().fold(f64::INFINITY, f64::min),
            most: figures.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            count: figures.len(),
        })
    }

    fn geometric(figures: &[f64]) -> Option<Spread> {
        let logarithms: f64 = figures.iter().map(|figure| figure.ln()).sum();
        let middle = (logarithms / figures.len() as f64).exp();
        Some(Spread {
            middle,
            ..Spread::of(figures)?
        })
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (middle, least, most) = (self.middle, self.least, self.most);
        write!(f, "{middle:.2} ({least:.2} to {most:.2}, {})", self.count)
    }
}

fn cell(figure: Option<f64>, digits: usize) -> String {
    figure.map_or("-".to_owned(), |figure| format!("{figure:.digits$}"))
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::tests::row;
    use crate::log::{Arena, Reader};

    #[test]
    fn a_median_is_the_middle_or_the_mean_of_the_middle_two() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), Some(2.5));
    }

    #[test]
    fn only_rounds_in_which_both_are_good_make_a_pair() {
        let mut failed = row(Engine::Linux, 3, 1.0);
        failed.is_success = false;
        let rows = [
            row(Engine::Linux, 1, 2.0),
            row(Engine::Kernel, 1, 1.0),
            row(Engine::Kernel, 2, 9.0),
            failed,
            row(Engine::Kernel, 3, 9.0),
            row(Engine::Kernel, 4, 3.0),
            row(Engine::Linux, 4, 4.0),
        ];
        let rows: Vec<&Row> = rows.iter().collect();
        assert_eq!(paired(&rows, Engine::Kernel, Engine::Linux), [0.5, 0.75]);
        assert!(paired(&rows, Engine::Kernel, Engine::LinuxWait).is_empty());
        let spread = Spread::of(&[0.5, 0.75]).unwrap();
        assert_eq!(spread.to_string(), "0.62 (0.50 to 0.75, 2)");
        let mean = Spread::geometric(&[0.5, 2.0]).unwrap();
        assert_eq!(mean.to_string(), "1.00 (0.50 to 2.00, 2)");
        assert!(Spread::geometric(&[]).is_none());
    }

    #[test]
    fn faults_that_were_timed_have_a_table_and_others_have_none() {
        let mut rows = vec![row(Engine::Kernel, 1, 1.0), row(Engine::Kernel, 2, 1.0)];
        assert!(!markdown(&rows).contains("## Faults"));
        for (row, thousands) in rows.iter_mut().zip([1, 3]) {
            row.faults = Some(FaultTimes {
                count: thousands * 1_000,
                p50_ns: 1_500,
                p99_ns: 20_000,
                p999_ns: 300_000,
                longest_ns: 4_000_000,
                sum_ns: 5_000_000_000,
                lost: 6,
            });
        }
        let line = "| kernel | 2 | 2.0 | 1.5 | 20.0 | 300.0 | 4.0 | 5.00 | 6 |\n";
        assert!(markdown(&rows).contains(line));
    }

    #[test]
    fn the_table_has_medians_ratios_and_what_failed() {
        let mut failed = row(Engine::Linux, 3, 100.0);
        failed.is_success = false;
        failed.ended = "signal: 9 (SIGKILL)".to_owned();
        let mut rows = vec![row(Engine::Unlimited, 0, 1.0), failed];
        for (round, linux, kernel) in [(1, 2.0, 1.0), (2, 4.0, 3.0)] {
            rows.push(row(Engine::Linux, round, linux));
            let mut kernel = row(Engine::Kernel, round, kernel);
            let cpu_ns = 250_000_000;
            kernel.report.as_mut().unwrap().read_ahead = Some(Reader { cpu_ns });
            rows.push(kernel);
        }
        let mut own = row(Engine::Uffd, 2, 3.0);
        own.report = Some(Report {
            run_s: 3.0,
            major_faults: 3,
            inline_reclaims: 4,
            arena: Some(Arena {
                processes: 1,
                major_faults: 4,
                inline_reclaims: 5,
                cpu_ns: 500_000_000,
                ..Arena::default()
            }),
            ..Report::default()
        });
        rows.push(own);
        let text = markdown(&rows);
        for line in [
            "Real figures",
            "| program | device | memory | kernel / linux | kernel / linux-wait | uffd / linux |",
            "| sort | zram | 60 % | 0.62 (0.50 to 0.75, 2) | - | 0.75 (0.75 to 0.75, 1) | - | \
             1.00 (1.00 to 1.00, 1) | - | - |\n",
            "| sort | zram | 60 % | linux | 2 of 3 | 3.00 | - | - |",
            "| sort | zram | 60 % | uffd | 1 of 1 | 3.00 | - | 0.50 | 0.00 | - | 7 | 9 | 0 |",
            "| sort | zram | 60 % | kernel | 2 of 2 | 2.00 | - | - | 0.00 | 0.25 | 0 |",
            "| all | zram | 0.62 (0.62 to 0.62, 1) | - | 0.75 (0.75 to 0.75, 1) |",
            "| sort | zram | 0.62 (0.62 to 0.62, 1) | - | 0.75 (0.75 to 0.75, 1) |",
            "* sort, zram, 60 %, linux, round 3: signal: 9 (SIGKILL)\n",
            "| sort | 0 | 1.00 | - |\n",
        ] {
            assert!(text.contains(line), "no {line} in\n{text}");
        }
        assert!(
            !text.contains("100.00"),
            "a failed run has no figures in\n{text}"
        );
        assert!(markdown(&[]).ends_with("None.\n"));
    }
}
