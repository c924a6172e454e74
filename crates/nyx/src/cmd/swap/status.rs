//! `nyx swap status`: who runs in less memory than they use.

use crate::Failure;
use nyx_base::Bytes;
use nyx_swap::kernel::{Group, Record, Registry};
use std::fmt::Write;

/// Show programs that run under `nyx swap`, and how they fare.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  nyx swap status
  nyx swap status --json

INLINE counts how often a program had to reclaim for itself (with cgroup v1 at most so often). A
launcher that is gone is marked; its program goes on within its limit, and the next `nyx swap run`
takes down what is left of it once it has ended.")]
pub(super) struct Args {
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
}

/// How one program fares.
#[derive(Debug, serde::Serialize)]
struct Line {
    program: Option<u32>,
    launcher: u32,
    launcher_runs: bool,
    limit_bytes: Option<u64>,
    used_bytes: u64,
    swapped_bytes: u64,
    faults: u64,
    major_faults: u64,
    inline_reclaims: u64,
    stalled_s: Option<f64>,
    swap: Option<std::path::PathBuf>,
    command: Vec<String>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let records = Registry::seen()
        .into_iter()
        .flat_map(|registry| registry.records());
    let lines: Vec<Line> = records.filter_map(|record| Line::of(&record)).collect();
    if args.json {
        for line in &lines {
            println!(
                "{}",
                serde_json::to_string(line).expect("a line can be written")
            );
        }
    } else {
        print!("{}", table(&lines));
    }
    Ok(())
}

impl Line {
    /// None where its group is gone.
    fn of(record: &Record) -> Option<Line> {
        let group = Group::at(record.groups.first()?.clone()).ok()?;
        let group = group.telling_stalls_by(record.groups.get(1).cloned());
        let counts = group.counts();
        Some(Line {
            program: record.program,
            launcher: record.launcher.pid,
            launcher_runs: record.launcher.runs(),
            limit_bytes: group.limit(),
            used_bytes: group.used().ok()?,
            swapped_bytes: counts.swapped,
            faults: counts.faults,
            major_faults: counts.major_faults,
            inline_reclaims: counts.inline_reclaims,
            stalled_s: counts.stalled.map(|stalled| stalled.as_secs_f64()),
            swap: record.swap.clone(),
            command: record.command.clone(),
        })
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
