//! `nyx swap status`: who runs in less memory than they use.

use crate::Failure;
use nyx_base::Bytes;
use nyx_swap::arena::ArenaFigures;
use nyx_swap::kernel::{Figures, Group, Record, Registry};
use std::fmt::Write;

/// Show programs that run under `nyx swap`, and how they fare.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  nyx swap status
  nyx swap status --json
  nyx swap status --metrics > /var/lib/prometheus/node-exporter/nyx_swap.prom

INLINE counts how often a program had to reclaim for itself (with cgroup v1 at most so often). A
launcher that is gone is marked; its program goes on within its limit, and the next `nyx swap run`
takes down what is left of it once it has ended.")]
pub(super) struct Args {
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
    /// In the text format of Prometheus, for its textfile collector.
    #[arg(long, conflicts_with = "json")]
    metrics: bool,
}

/// How one program fares.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub(crate) struct Line {
    pub(crate) program: Option<u32>,
    pub(crate) launcher: u32,
    pub(crate) launcher_runs: bool,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) used_bytes: u64,
    pub(crate) swapped_bytes: u64,
    pub(crate) faults: u64,
    pub(crate) major_faults: u64,
    pub(crate) inline_reclaims: u64,
    pub(crate) stalled_s: Option<f64>,
    pub(crate) swap: Option<std::path::PathBuf>,
    /// Of the last second; none where nobody tells any more.
    pub(crate) figures: Option<Figures>,
    /// Of processes that page for themselves; none where none does.
    pub(crate) arena: Option<ArenaFigures>,
    pub(crate) command: Vec<String>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let lines = programs();
    if args.json {
        for line in &lines {
            println!(
                "{}",
                serde_json::to_string(line).expect("a line can be written")
            );
        }
    } else if args.metrics {
        print!("{}", metrics(&lines));
    } else {
        print!("{}", table(&lines));
    }
    Ok(())
}

/// All that run.
pub(crate) fn programs() -> Vec<Line> {
    let records = Registry::seen()
        .into_iter()
        .flat_map(|registry| registry.records());
    records.filter_map(|record| Line::of(&record)).collect()
}

impl Line {
    /// Whether both are of one run.
    pub(crate) fn is_same(&self, other: &Line) -> bool {
        (self.launcher, self.program) == (other.launcher, other.program)
    }

    /// None where its group is gone.
    fn of(record: &Record) -> Option<Line> {
        let group = Group::at(record.groups.first()?.clone()).ok()?;
        let group = group.telling_stalls_by(record.groups.get(1).cloned());
        let counts = group.counts();
        Some(Line {
            program: record.program.map(|program| program.pid),
            launcher: record.launcher.pid,
            launcher_runs: record.launcher.runs(),
            limit_bytes: group.limit(),
            used_bytes: group.used().ok()?,
            swapped_bytes: counts.swapped,
            faults: counts.faults,
            major_faults: counts.major_faults,
            inline_reclaims: counts.inline_reclaims,
            stalled_s: counts.stalled.map(|stalled| stalled.as_secs_f64()),
            swap: record.areas.first().map(|area| area.path.clone()),
            figures: Figures::read(record),
            arena: record.arena(),
            command: record.command.clone(),
        })
    }
}

/// What a metric is called, its kind, what it says, and what it is of a line.
type Metric = (
    &'static str,
    &'static str,
    &'static str,
    fn(&Line) -> Option<f64>,
);

/// Seconds and bytes, as Prometheus has them.
const METRICS: [Metric; 22] = [
    ("resident_bytes", "gauge", "Bytes in memory.", |line| {
        Some(line.used_bytes as f64)
    }),
    ("swapped_bytes", "gauge", "Bytes on swap.", |line| {
        Some(line.swapped_bytes as f64)
    }),
    (
        "limit_bytes",
        "gauge",
        "Bytes that may be in memory.",
        |line| Some(line.limit_bytes? as f64),
    ),
    ("faults_total", "counter", "Faults of any kind.", |line| {
        Some(line.faults as f64)
    }),
    (
        "major_faults_total",
        "counter",
        "Faults that waited for a device.",
        |line| Some(line.major_faults as f64),
    ),
    (
        "inline_reclaims_total",
        "counter",
        "How often the program had to reclaim for itself; with cgroup v1 at most so often.",
        |line| Some(line.inline_reclaims as f64),
    ),
    (
        "stalled_seconds_total",
        "counter",
        "How long at least one thread stalled for memory.",
        |line| line.stalled_s,
    ),
    (
        "reclaims_total",
        "counter",
        "How often the reclaimer reclaimed.",
        |line| Some(line.figures?.reclaims as f64),
    ),
    (
        "reclaimed_bytes_total",
        "counter",
        "Bytes that the reclaimer freed, at least.",
        |line| Some(line.figures?.reclaimed_bytes as f64),
    ),
    (
        "reclaimer_cpu_seconds_total",
        "counter",
        "CPU time of the reclaimer.",
        |line| Some(line.figures?.reclaimer_cpu_ns as f64 / 1e9),
    ),
    (
        "read_ahead_pages_total",
        "counter",
        "Pages that were read ahead beside what the kernel reads ahead.",
        |line| Some(line.figures?.read_ahead?.pages as f64),
    ),
    (
        "read_ahead_used_pages_total",
        "counter",
        "Of those that the program has passed since, pages that it used.",
        |line| Some(line.figures?.read_ahead?.used_pages as f64),
    ),
    (
        "read_ahead_unused_pages_total",
        "counter",
        "Of those that the program has passed since, pages that it did not use.",
        |line| Some(line.figures?.read_ahead?.unused_pages as f64),
    ),
    (
        "read_ahead_sent_pages_total",
        "counter",
        "Pages that were sent away behind what the program goes through in order.",
        |line| Some(line.figures?.read_ahead?.sent_pages as f64),
    ),
    (
        "read_ahead_cpu_seconds_total",
        "counter",
        "CPU time of who reads ahead.",
        |line| Some(line.figures?.read_ahead?.cpu_ns as f64 / 1e9),
    ),
    (
        "launcher_up",
        "gauge",
        "Whether the launcher runs.",
        |line| Some(f64::from(u8::from(line.launcher_runs))),
    ),
    (
        "touches_total",
        "counter",
        "Swapped pages of its own that the probe touched.",
        |line| Some(line.figures?.touches?.samples as f64),
    ),
    (
        "arena_major_faults_total",
        "counter",
        "Faults of processes that page for themselves, which waited for a device.",
        |line| Some(line.arena.as_ref()?.major_faults as f64),
    ),
    (
        "arena_minor_faults_total",
        "counter",
        "Faults of processes that page for themselves, which waited for none.",
        |line| Some(line.arena.as_ref()?.minor_faults as f64),
    ),
    (
        "arena_inline_reclaims_total",
        "counter",
        "How often such a fault had to reclaim.",
        |line| Some(line.arena.as_ref()?.inline_reclaims as f64),
    ),
    (
        "arena_written_pages_total",
        "counter",
        "Pages that such processes wrote to their device.",
        |line| Some(line.arena.as_ref()?.written_pages as f64),
    ),
    (
        "arena_cpu_seconds_total",
        "counter",
        "CPU time of such processes' pagers, which is in that of the programs.",
        |line| Some(line.arena.as_ref()?.cpu_ns as f64 / 1e9),
    ),
];

/// What a time is called, what it says, and its median and 99th percentile in nanoseconds.
type Time = (&'static str, &'static str, fn(&Line) -> Option<[u64; 2]>);

const TIMES: [Time; 2] = [
    (
        "in_seconds",
        "How long a touch of a swapped page took.",
        |line| {
            let touches = line.figures?.touches?;
            Some([touches.p50_ns, touches.p99_ns])
        },
    ),
    (
        "arena_fault_seconds",
        "How long faults waited for their answer in a process that pages for itself.",
        |line| {
            let arena = line.arena.as_ref()?;
            Some([arena.p50_ns, arena.p99_ns])
        },
    ),
];

/// The text format of Prometheus, version 0.0.4.
fn metrics(lines: &[Line]) -> String {
    let mut text = String::new();
    for (name, kind, help, value) in METRICS {
        let _ = writeln!(text, "# HELP nyx_swap_{name} {help}");
        let _ = writeln!(text, "# TYPE nyx_swap_{name} {kind}");
        for line in lines {
            if let Some(value) = value(line) {
                let _ = writeln!(text, "nyx_swap_{name}{{{}}} {value}", line.labels());
            }
        }
    }
    for (name, help, times) in TIMES {
        let _ = writeln!(text, "# HELP nyx_swap_{name} {help}");
        let _ = writeln!(text, "# TYPE nyx_swap_{name} gauge");
        for line in lines {
            let [p50_ns, p99_ns] = times(line).unwrap_or_default();
            // Too few have no tail.
            for (quantile, ns) in [("0.5", p50_ns), ("0.99", p99_ns)] {
                if ns > 0 {
                    let (labels, seconds) = (line.labels(), ns as f64 / 1e9);
                    let _ = writeln!(
                        text,
                        "nyx_swap_{name}{{{labels},quantile=\"{quantile}\"}} {seconds}"
                    );
                }
            }
        }
    }
    text
}

impl Line {
    /// Which program it is.
    fn labels(&self) -> String {
        let pid = self.program.map_or(String::new(), |pid| pid.to_string());
        let name = self.command.first().map_or("", String::as_str);
        let name = name.replace('\\', "\\\\").replace('"', "\\\"");
        let name = name.replace('\n', "\\n");
        let launcher = self.launcher;
        format!("pid=\"{pid}\",launcher=\"{launcher}\",program=\"{name}\"")
    }
}

fn table(lines: &[Line]) -> String {
    if lines.is_empty() {
        return "no program runs under nyx swap\n".to_owned();
    }
    let mut text = String::new();
    let mut row = |cells: [&str; 8]| {
        let [pid, limit, used, swapped, major, inline, stalled, command] = cells;
        let _ = writeln!(
            text,
            "{pid:>8} {limit:>11} {used:>11} {swapped:>11} {major:>12} {inline:>10} {stalled:>10}  \
             {command}"
        );
    };
    row([
        "PID",
        "LIMIT",
        "IN MEMORY",
        "ON SWAP",
        "MAJOR FAULTS",
        "INLINE",
        "STALLED",
        "COMMAND",
    ]);
    for line in lines {
        let pid = line.program.map_or("-".to_owned(), |pid| pid.to_string());
        let limit = line
            .limit_bytes
            .map_or("none".to_owned(), |limit| Bytes(limit).to_string());
        let stalled = line
            .stalled_s
            .map_or("-".to_owned(), |stalled| format!("{stalled:.2} s"));
        let gone = if line.launcher_runs {
            ""
        } else {
            " (its launcher is gone)"
        };
        row([
            &pid,
            &limit,
            &Bytes(line.used_bytes).to_string(),
            &Bytes(line.swapped_bytes).to_string(),
            &line.major_faults.to_string(),
            &line.inline_reclaims.to_string(),
            &stalled,
            &format!("{}{gone}", line.command.join(" ")),
        ]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_swap::kernel::{ProbeReport, ReadAhead};

    /// Of a program of which all is known but its stalls.
    fn line() -> Line {
        let touches = ProbeReport {
            samples: 200,
            p50_ns: 4_000,
            p99_ns: 250_000,
        };
        let read_ahead = ReadAhead {
            pages: 31,
            used_pages: 32,
            unused_pages: 33,
            sent_pages: 35,
            cpu_ns: 750_000_000,
            on_cpu: Some(1),
        };
        Line {
            program: Some(7),
            launcher: 6,
            launcher_runs: true,
            limit_bytes: Some(1 << 20),
            used_bytes: 4096,
            swapped_bytes: 0,
            faults: 12,
            major_faults: 3,
            inline_reclaims: 2,
            stalled_s: None,
            swap: None,
            figures: Some(Figures {
                reclaims: 5,
                reclaimed_bytes: 8192,
                reclaimer_cpu_ns: 1_500_000_000,
                touches: Some(touches),
                read_ahead: Some(read_ahead),
            }),
            arena: Some(ArenaFigures {
                major_faults: 21,
                minor_faults: 22,
                inline_reclaims: 23,
                written_pages: 24,
                cpu_ns: 2_500_000_000,
                p50_ns: 3_000,
                p99_ns: 125_000,
                ..ArenaFigures::default()
            }),
            command: vec!["a\"b\\c\nd".to_owned()],
        }
    }

    #[test]
    fn metrics_are_text_that_prometheus_reads() {
        let labels = r#"pid="7",launcher="6",program="a\"b\\c\nd""#;
        let text = metrics(&[line()]);
        for expected in [
            format!("nyx_swap_resident_bytes{{{labels}}} 4096\n"),
            format!("nyx_swap_limit_bytes{{{labels}}} 1048576\n"),
            format!("nyx_swap_faults_total{{{labels}}} 12\n"),
            format!("nyx_swap_inline_reclaims_total{{{labels}}} 2\n"),
            format!("nyx_swap_reclaimer_cpu_seconds_total{{{labels}}} 1.5\n"),
            format!("nyx_swap_read_ahead_pages_total{{{labels}}} 31\n"),
            format!("nyx_swap_read_ahead_used_pages_total{{{labels}}} 32\n"),
            format!("nyx_swap_read_ahead_unused_pages_total{{{labels}}} 33\n"),
            format!("nyx_swap_read_ahead_sent_pages_total{{{labels}}} 35\n"),
            format!("nyx_swap_read_ahead_cpu_seconds_total{{{labels}}} 0.75\n"),
            format!("nyx_swap_in_seconds{{{labels},quantile=\"0.5\"}} 0.000004\n"),
            format!("nyx_swap_in_seconds{{{labels},quantile=\"0.99\"}} 0.00025\n"),
            format!("nyx_swap_arena_major_faults_total{{{labels}}} 21\n"),
            format!("nyx_swap_arena_minor_faults_total{{{labels}}} 22\n"),
            format!("nyx_swap_arena_inline_reclaims_total{{{labels}}} 23\n"),
            format!("nyx_swap_arena_written_pages_total{{{labels}}} 24\n"),
            format!("nyx_swap_arena_cpu_seconds_total{{{labels}}} 2.5\n"),
            format!("nyx_swap_arena_fault_seconds{{{labels},quantile=\"0.5\"}} 0.000003\n"),
            format!("nyx_swap_arena_fault_seconds{{{labels},quantile=\"0.99\"}} 0.000125\n"),
        ] {
            assert!(text.contains(&expected), "{expected}{text}");
        }
        // Where nobody tells, there is no value.
        assert!(!text.contains("nyx_swap_stalled_seconds_total{"));
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        for sample in samples {
            let (_, value) = sample.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{sample}");
        }
    }
}
