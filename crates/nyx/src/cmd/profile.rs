//! `nyx profile`: measures the MaxIOPS and the latency prices of a device, prints them with its
//! rate card, writes them as a file that `nyx serve` loads, and draws the first (NyxCache section
//! 3.3, figure 3).
//!
//! What it never does: overwrite a file that holds anything. It measures by writing, so it makes a
//! medium of its own and removes it afterwards.

mod curve;
mod full;

use crate::cmd::print;
use crate::{Exit, Failure};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use nyx_base::{Bytes, Clock};
use nyx_media::model::Params;
use nyx_media::profile::{
    Effort, Identity, Latency, Profile, Progress, STEP_BYTES, VICTIM_BYTES, measure, simulate,
};
use nyx_media::{Emulated, Evidence, Mapped, MediaError, Op, TscClock};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Measure a device: its MaxIOPS by size, what operations cost on it, and what they do to latency.
///
/// With --model alone the model is profiled in virtual time. With --model and --device it is laid
/// over that medium and measured in real time. Without --model the medium itself is measured.
///
/// --full evaluates the device instead, for people: latency and bandwidth by size, order and number
/// of threads, readers beside writers, and DRAM and a disk beside it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  nyx profile                                       this machine's memory
  nyx profile --path nyx-data/probe --size 1GiB     the file system of that directory
  nyx profile --model optane-2dimm/8 --svg curve.svg
                                                    a model in virtual time, with its curve
  nyx profile --effort full --out main.profile.toml thoroughly, into a file that serve reads
  nyx profile --full --out report                   all of section 2 of Han et al., this memory
  nyx profile --full --device dax --path /mnt/pmem/probe --size 4GiB --out report
  nyx profile --full --device anon --model optane-2dimm --seconds 60 --disk none

--full repeats the evaluation in section 2 of Han et al., \"Rethinking Index Design Based on
Persistent Memory Device\":
  tables 3 to 6    latency of reads and writes of 8 B to 16 MiB, random and sequential, one thread
  tables 7 and 8   the same of small random accesses, beside DRAM
  figures 1 and 2  how latency grows with size and threads
  figures 3 to 7   bandwidth by size and threads: which size is enough for the most, whether large
                   accesses get less, and whether a fence behind each 256 B helps them
  figures 8 to 10  latency with size alone, and with threads
  figures 11 to 14 what readers lose beside writers and writers beside readers, 256 B
Published values stand beside tables 3 to 8; of its figures the paper publishes none. A model is
also run in virtual time, in columns of its own.
It takes (normal effort, up to four threads) two to four minutes; quick half a minute, full ten to
fifteen; --seconds says how long in all, single large accesses on slow devices apart. It fills the
medium, then a file of the same --size on the --disk and as much memory, one after the other, and
removes each; an interrupted run leaves the medium's file. --out DIR gets report.md,
evaluation.json (all readings) and fig01.svg to fig14.svg, about 1 MiB. A machine that is busy
otherwise makes noise; noisy readings are marked.")]
pub struct Args {
    /// The medium to measure [default: anon, or file where --path is given].
    #[arg(long, value_enum)]
    device: Option<Device>,
    /// A file to be made for measuring; its filesystem is what is measured.
    #[arg(long, value_name = "FILE")]
    path: Option<PathBuf>,
    /// The size of the medium [default: 256MiB, 1GiB with --full]. Several times the largest
    /// cache, or accesses end there.
    #[arg(long, value_name = "SIZE")]
    size: Option<Bytes>,
    /// A device model: a preset such as optane-2dimm/8, or FILE.toml.
    #[arg(long, value_name = "NAME|FILE.toml")]
    model: Option<String>,
    /// How thoroughly to measure: about a second, ten seconds, or a minute; with --full as below.
    #[arg(long, value_enum, default_value = "normal")]
    effort: EffortArg,
    /// Write the profile to this file; with --full report, drawings and readings into this
    /// directory.
    #[arg(long, value_name = "FILE|DIR")]
    out: Option<PathBuf>,
    /// Draw the curves to this file.
    #[arg(long, value_name = "FILE", conflicts_with = "full")]
    svg: Option<PathBuf>,
    /// Print the profile, or the evaluation, as JSON.
    #[arg(long)]
    json: bool,
    /// Evaluate the device in full, as below.
    #[arg(long)]
    full: bool,
    /// --full: measure for so many seconds in all, whatever the effort.
    #[arg(long, value_name = "N", requires = "full",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// --full: up to so many threads: 1, 2, 4... [default: twice the processors, at most 16].
    #[arg(long, value_name = "N", requires = "full",
          value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: Option<u8>,
    /// --full: the disk beside, by a directory on it; none for none [default: nyx-data where it is
    /// there, or else the current directory].
    #[arg(long, value_name = "DIR|none", requires = "full")]
    disk: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Device {
    File,
    Anon,
    Dax,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EffortArg {
    Quick,
    Normal,
    Full,
}

/// Said where a profile goes without.
const NO_LATENCY: &str =
    "No latency prices: measuring them takes two processors that are not too busy.\n";

/// The sizes that the printed table shows; the file has all of them.
const SHOWN_BYTES: [usize; 17] = [
    64, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 3584, 4096,
];

/// The size of a medium where nothing else is said.
const SIZE_DEFAULT: Bytes = Bytes::mib(256);

/// Profiles and reports.
pub fn run(args: Args) -> Result<(), Failure> {
    if args.full {
        return full::run(&args);
    }
    let bar = ProgressBar::no_length().with_style(
        ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}").expect("a constant template"),
    );
    let profile = profile(&args, &mut |progress| report(&bar, progress))?;
    bar.finish_and_clear();
    if let Some(path) = &args.out {
        profile.save(path).map_err(failure)?;
    }
    if let Some(path) = &args.svg {
        let svg = curve::draw(&profile)
            .map_err(|e| Failure::new(Exit::Software, format!("cannot draw the curves: {e}")))?;
        std::fs::write(path, svg).map_err(|e| Failure::uncreatable(path, &e))?;
    }
    match args.json {
        true => print(&json(&profile)),
        false => print(&text(&profile)),
    }
}

/// What is to be measured.
enum Subject {
    /// A model in virtual time.
    Model(Params),
    /// A medium, with a model over it if there is one.
    Medium(Device, Option<Params>),
}

impl Args {
    fn subject(&self) -> Result<Subject, Failure> {
        let params = self.model.as_deref().map(Params::resolve).transpose();
        let params = params.map_err(failure)?;
        Ok(match (self.device, &self.path, params) {
            (Some(device), _, params) => Subject::Medium(device, params),
            (None, Some(_), params) => Subject::Medium(Device::File, params),
            (None, None, Some(params)) => Subject::Model(params),
            (None, None, None) => Subject::Medium(Device::Anon, None),
        })
    }
}

impl EffortArg {
    fn effort(self) -> Effort {
        match self {
            EffortArg::Quick => Effort::Quick,
            EffortArg::Normal => Effort::Normal,
            EffortArg::Full => Effort::Full,
        }
    }
}

fn profile(args: &Args, progress: &mut dyn FnMut(Progress)) -> Result<Profile, Failure> {
    let effort = args.effort.effort();
    let (device, params) = match args.subject()? {
        Subject::Model(params) => return Ok(simulate(&params, effort, progress)),
        Subject::Medium(device, params) => (device, params),
    };
    let size = args.size.unwrap_or(SIZE_DEFAULT);
    let scratch = Scratch::make(device, args.path.as_deref(), size)?;
    let clock = Arc::new(TscClock::start());
    let identity = Identity::of(&scratch.medium, params.as_ref());
    scratch
        .medium
        .pretouch(std::thread::available_parallelism().map_or(1, usize::from));
    let medium = scratch.medium.clone();
    Ok(match params {
        None => measure(&medium, identity, &*clock, effort, progress),
        Some(params) => {
            let clock_handle: Arc<dyn Clock> = clock.clone();
            let emulated = Emulated::in_real_time(medium, params, clock_handle);
            measure(&emulated, identity, &*clock, effort, progress)
        }
    })
}

/// A medium made for measuring, whose file goes when it does.
struct Scratch {
    medium: Arc<Mapped>,
}

impl Scratch {
    fn make(device: Device, path: Option<&Path>, size: Bytes) -> Result<Scratch, Failure> {
        let largest = (64 * STEP_BYTES) as u64;
        if size.0 < largest {
            return Err(Failure::usage(format!(
                "--size is {size}, but a profile needs {} or more",
                Bytes(largest)
            )));
        }
        let made = match (device, path) {
            (Device::Anon, None) => Mapped::anonymous(size.0),
            (Device::Anon, Some(_)) => {
                return Err(Failure::usage(
                    "--device anon has no file: leave --path out",
                ));
            }
            (_, None) => return Err(Failure::usage("--device file and dax need a --path")),
            (_, Some(path)) if path.exists() => {
                return Err(Failure::usage(format!(
                    "{} exists, and measuring would overwrite it: give a path that does not exist",
                    path.display()
                )));
            }
            (Device::File, Some(path)) => Mapped::file(path, size.0),
            (Device::Dax, Some(path)) => Mapped::dax(path, size.0),
        };
        Ok(Scratch {
            medium: Arc::new(made.map_err(failure)?),
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(path) = self.medium.path() {
            // Nothing to be done where it fails; the next run names the file.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn failure(error: MediaError) -> Failure {
    let code = match &error {
        MediaError::UnknownModel { .. } | MediaError::BadModel { .. } => Exit::Usage,
        MediaError::Length { .. } => Exit::Usage,
        MediaError::Reserve { .. } => Exit::Os,
        MediaError::NoDax { .. } => Exit::Unavailable,
        _ => Exit::Io,
    };
    Failure::new(code, error.to_string())
}

fn report(bar: &ProgressBar, progress: Progress) {
    let Progress {
        points,
        points_total,
        op,
        bytes,
        threads,
        ops_per_s,
    } = progress;
    bar.set_length(points_total as u64);
    bar.set_position(points as u64);
    let op = match op {
        Op::Read => "read",
        Op::Write => "write",
    };
    bar.set_message(format!(
        "{op} {bytes} B, {threads} threads: {}",
        short(ops_per_s)
    ));
}

/// A rate in a few characters.
fn short(ops_per_s: f64) -> String {
    match ops_per_s {
        rate if rate >= 1e6 => format!("{:.2} M/s", rate / 1e6),
        rate if rate >= 1e3 => format!("{:.1} k/s", rate / 1e3),
        rate => format!("{rate:.0} /s"),
    }
}

/// A device in a few words.
fn name(device: &Identity) -> String {
    let medium = match (device.kind.as_str(), &device.path) {
        ("none", _) => None,
        (kind, Some(path)) => Some(format!("{kind} {path}")),
        (kind, None) => Some(format!("{kind} memory")),
    };
    match (&device.model, medium) {
        (Some(model), Some(medium)) => format!("{model} over {medium}"),
        (Some(model), None) => model.clone(),
        (None, medium) => medium.unwrap_or_default(),
    }
}

fn text(profile: &Profile) -> String {
    let mut out = String::new();
    let counts: Vec<String> = profile.thread_counts.iter().map(usize::to_string).collect();
    let sizes = match profile.measured_bytes.len() {
        64 => "every size measured".to_owned(),
        n => format!("{n} sizes measured, the others interpolated"),
    };
    let evidence = profile.evidence;
    let (name, counts) = (name(&profile.device), counts.join(", "));
    let _ = writeln!(
        out,
        "MaxIOPS of {name} ({evidence}; {counts} threads; {sizes})"
    );
    let _ = writeln!(
        out,
        "{:>8}  {:>12} {:>7} {:>7}  {:>12} {:>7} {:>7}",
        "bytes", "reads/s", "GB/s", "threads", "writes/s", "GB/s", "threads",
    );
    for bytes in SHOWN_BYTES {
        let _ = write!(out, "{bytes:>8}");
        for op in [Op::Read, Op::Write] {
            let step = bytes / STEP_BYTES - 1;
            let rate = profile.max_ops_per_s(op)[step];
            let (gb_per_s, threads) = (rate * bytes as f64 / 1e9, profile.best_threads(op)[step]);
            let _ = write!(out, "  {rate:>12.0} {gb_per_s:>7.2} {threads:>7}");
        }
        out.push('\n');
    }
    let _ = writeln!(out, "\n{}\n", profile.rate_card());
    match profile.latency() {
        Some(latency) => latency_text(latency, evidence, &mut out),
        None => out.push_str(NO_LATENCY),
    }
    out
}

/// How long single accesses take, and what others cost in latency.
fn latency_text(latency: &Latency, evidence: Evidence, out: &mut String) {
    let _ = writeln!(
        out,
        "Latency, {evidence}: of a single access on the idle device; what a whole device of such\n\
         accesses would add to the mean of a reader of {VICTIM_BYTES} B, measured at a quarter of \
         it;\nand its price, relative to reading 1 KiB"
    );
    let _ = writeln!(
        out,
        "{:>8}  {:>9} {:>17} {:>6}  {:>9} {:>17} {:>6}",
        "bytes", "read ns", "adds ns", "price", "write ns", "adds ns", "price",
    );
    let prices = [Op::Read, Op::Write].map(|op| latency.probed_prices(op));
    for (at, bytes) in latency.bytes().iter().enumerate() {
        let _ = write!(out, "{bytes:>8}");
        for (op, prices) in [Op::Read, Op::Write].into_iter().zip(&prices) {
            let delays = latency.delays(op);
            let (growth, error) = (delays.growth_ns[at], delays.growth_error_ns[at]);
            let adds = format!("{growth:.0} +- {error:.0}");
            let (idle, price) = (delays.idle_ns[at], prices[at]);
            let _ = write!(out, "  {idle:>9.0} {adds:>17} {price:>6.2}");
        }
        out.push('\n');
    }
}

fn json(profile: &Profile) -> String {
    let value = serde_json::json!({ "profile": profile, "rate_card": profile.rate_card() });
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        let words = std::iter::once("profile").chain(line.split_whitespace());
        Line::try_parse_from(words).expect(line).args
    }

    fn profiled(line: &str) -> Result<Profile, Failure> {
        profile(&args(line), &mut |_| {})
    }

    #[test]
    fn a_model_alone_is_simulated_and_a_medium_is_real() {
        let simulated = profiled("--model optane-2dimm/8 --effort quick").expect("a model");
        assert_eq!(simulated.evidence, Evidence::Simulated);
        let out = text(&simulated);
        assert!(
            out.contains("MaxIOPS of optane-2dimm/8 (simulated; 24 threads"),
            "{out}"
        );
        assert!(out.contains("Rate card"), "{out}");
        assert!(out.contains("Latency, simulated"), "{out}");
        let last = out.lines().last().expect("a table");
        assert!(
            last.trim_start().starts_with("4096") && last.contains("+-"),
            "{out}"
        );
        let real = profiled("--size 4MiB --effort quick").expect("memory");
        assert_eq!(real.evidence, Evidence::Real);
        let out = text(&real);
        assert!(
            out.contains("anon memory (real;") && out.contains("7 sizes measured"),
            "{out}"
        );
    }

    #[test]
    fn a_file_is_made_measured_and_removed_but_never_overwritten() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("scratch");
        let line = format!(
            "--path {} --size 1MiB --model ull-ssd --effort quick",
            path.display()
        );
        let profile = profiled(&line).expect("a file");
        assert_eq!(
            (profile.evidence, profile.device.kind.as_str()),
            (Evidence::Emulated, "file")
        );
        assert!(!path.exists());
        std::fs::write(&path, b"precious").expect("a file");
        let refused = profiled(&line).expect_err("the file exists");
        assert!(refused.message.contains("scratch exists"), "{refused}");
        assert_eq!(std::fs::read(&path).expect("still there"), b"precious");
    }

    #[test]
    fn what_makes_no_sense_is_a_usage_error() {
        for line in [
            "--model nonesuch",
            "--device file",
            "--device anon --path /tmp/x",
            "--size 100",
            "--device dax --path /proc --size 1MiB",
        ] {
            let failure = profiled(line).expect_err(line);
            assert_eq!(failure.code, Exit::Usage, "{line}: {failure}");
        }
    }

    #[test]
    fn json_has_both_curves_and_the_card() {
        let profile = profiled("--model cxl --effort quick").expect("a model");
        let value: serde_json::Value = serde_json::from_str(&json(&profile)).expect("JSON");
        let reads = value["profile"]["read"]["max_ops_per_s"]
            .as_array()
            .expect("a list");
        assert_eq!(reads.len(), 64);
        let idle = &value["profile"]["latency"]["write"]["idle_ns"];
        assert_eq!(idle.as_array().map(Vec::len), Some(4));
        assert!(value["rate_card"]["rates"][0]["write_std_ops"].is_number());
    }
}
