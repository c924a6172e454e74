//! `nyx profile --full`: the evaluation of Han et al. (section 2) on any medium, with DRAM and a
//! disk beside it, as tables, drawings and JSON.
//!
//! What it never does: put its figures where a server would charge by them.

use super::{Args, Scratch, Subject, failure, name};
use crate::cmd::print;
use crate::evaluation::figures::{self, FIGURES, Figure};
use crate::evaluation::grid;
use crate::evaluation::machine::{Machine, filesystem};
use crate::evaluation::report::report;
use crate::evaluation::{Beside, Evaluation, VERSION};
use crate::{Exit, Failure};
use indicatif::{ProgressBar, ProgressStyle};
use nyx_base::{Bytes, Nanos};
use nyx_media::evaluate::{
    Disk, Flow, LARGEST_BYTES, Order, Part, Plan, Point, Reading, Sheet, Target, Work, measure,
    simulate,
};
use nyx_media::model::Params;
use nyx_media::profile::Identity;
use nyx_media::{Emulated, Mapped, TscClock};
use std::cell::Cell;
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a medium and the memory beside it have where nothing else is said.
const SIZE_DEFAULT: Bytes = Bytes::gib(1);
/// The largest access must have a choice of places.
const SIZE_LEAST: Bytes = Bytes(2 * LARGEST_BYTES as u64);
/// Threads where nothing else is said: twice the processors, but no more than these.
const THREADS_DEFAULT_MOST: usize = 16;
/// The directory of media and profiles, on whose disk is measured where it is there.
const DATA_DIRECTORY: &str = "nyx-data";
/// `--disk` without a disk.
const NO_DISK: &str = "none";
/// A disk is read and written in multiples of this.
const DISK_GRAIN_BYTES: u64 = 4096;
/// So much memory stays in the nearest cache.
const NEAR_BYTES: u64 = 4096;
/// How often it is told how far it is where there is no terminal.
const TELL: Duration = Duration::from_secs(10);

/// Measures, reports, and writes what `--out` asks for.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(directory) = &args.out {
        prepare(directory)?;
    }
    let evaluation = evaluate(args)?;
    let text = match args.json {
        true => json(&evaluation),
        false => report(&evaluation, false),
    };
    if let Some(directory) = &args.out {
        save(directory, &evaluation)?;
    }
    print(&text)
}

/// Makes the directory, and finds out now and not after minutes whether it can be written to.
fn prepare(directory: &Path) -> Result<(), Failure> {
    let uncreatable = |error| Failure::uncreatable(directory, &error);
    std::fs::create_dir_all(directory).map_err(uncreatable)?;
    let path = directory.join("report.md");
    let opened = OpenOptions::new().append(true).create(true).open(&path);
    opened
        .map(drop)
        .map_err(|error| Failure::uncreatable(&path, &error))
}

fn save(directory: &Path, evaluation: &Evaluation) -> Result<(), Failure> {
    let write = |name: String, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).map_err(|error| Failure::uncreatable(&path, &error))
    };
    write("report.md".into(), &report(evaluation, true))?;
    write("evaluation.json".into(), &json(evaluation))?;
    FIGURES.iter().try_for_each(|figure: &Figure| {
        let svg = figure
            .svg(evaluation)
            .map_err(|message| Failure::new(Exit::Software, message))?;
        write(format!("{}.svg", figure.file_name()), &svg)
    })
}

fn json(evaluation: &Evaluation) -> String {
    let value = serde_json::to_value(evaluation).expect("numbers, strings and lists are JSON");
    format!("{value:#}\n")
}

fn evaluate(args: &Args) -> Result<Evaluation, Failure> {
    let subject = args.subject()?;
    let machine = Machine::here();
    let size = args.size.unwrap_or(SIZE_DEFAULT);
    let threads_default = (2 * machine.cpus).min(THREADS_DEFAULT_MOST);
    let threads = args.threads.map_or(threads_default, usize::from);
    affordable(args, size, threads, &machine)?;
    let disk = disk_directory(args)?;
    let parts = parts(matches!(subject, Subject::Medium(..)), disk.is_some());
    let plan = plan(args, threads, &parts);
    let run = Run {
        clock: Arc::new(TscClock::start()),
        progress: Progress::new(points(&plan, &subject, &parts)),
        plan: &plan,
    };
    let device = match subject {
        Subject::Model(params) => run.model(&params),
        Subject::Medium(device, params) => {
            let scratch = Scratch::make(device, args.path.as_deref(), size)?;
            run.medium(&scratch.medium, params)?
        }
    };
    let disk = run.disk(disk.as_deref(), size);
    let (dram, loop_ns) = run.dram(size)?;
    run.progress.bar.finish_and_clear();
    let made = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    Ok(Evaluation {
        version: VERSION,
        name: name(&device.identity),
        made_unix_s: made.as_secs(),
        device: device.identity,
        machine,
        loop_ns,
        own: device.own,
        model: device.model,
        dram,
        dram_bytes: size.0,
        disk,
        plan,
    })
}

/// What was measured of the device itself.
struct Measured {
    identity: Identity,
    own: Sheet,
    model: Option<Sheet>,
}

/// An error where the sizes cannot be right, or would have the process killed.
fn affordable(args: &Args, size: Bytes, threads: usize, machine: &Machine) -> Result<(), Failure> {
    if size < SIZE_LEAST {
        return Err(Failure::usage(format!(
            "--size is {size}, but accesses of up to {} need {SIZE_LEAST} or more",
            Bytes(LARGEST_BYTES as u64)
        )));
    }
    // A medium and the memory beside it are not there at the same time.
    let buffers = Bytes((threads * LARGEST_BYTES) as u64);
    let memory = Bytes(machine.memory_bytes);
    match size.0.saturating_add(buffers.0) <= memory.0 {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "--size is {size} and the buffers of {threads} threads are up to {buffers}, which is \
             more than the machine's memory, {memory}{}",
            match args.path {
                Some(_) => ": as much memory as medium is measured beside it",
                None => "",
            }
        ))),
    }
}

/// Where the disk beside is measured: where `--disk` says, else in the data directory if there is
/// one, else here. None where none is wanted.
fn disk_directory(args: &Args) -> Result<Option<PathBuf>, Failure> {
    let named = args.disk.as_deref();
    if named == Some(Path::new(NO_DISK)) {
        return Ok(None);
    }
    let directory = named.map(Path::to_owned).unwrap_or_else(|| {
        let data = Path::new(DATA_DIRECTORY);
        match data.is_dir() {
            true => data.to_owned(),
            false => PathBuf::from("."),
        }
    });
    match directory.is_dir() {
        true => Ok(Some(directory)),
        false => Err(Failure::usage(format!(
            "--disk {}: not a directory; name one on the disk to be measured, or {NO_DISK}",
            directory.display()
        ))),
    }
}

/// The parts that are measured in real time, by their names.
fn parts(has_medium: bool, has_disk: bool) -> Vec<Part> {
    let device = has_medium.then_some(Part::Whole);
    let disk = has_disk.then_some(Part::Disk);
    device
        .into_iter()
        .chain(disk)
        .chain([Part::Memory])
        .collect()
}

/// How long everything is measured: as the effort says, or `--seconds` in all.
fn plan(args: &Args, threads: usize, parts: &[Part]) -> Plan {
    let plan = Plan::of(args.effort.effort(), threads);
    match args.seconds {
        None => plan,
        Some(seconds) => {
            let points = parts.iter().map(|&part| plan.points(part).len()).sum();
            plan.lasting(Nanos::from_secs(seconds), points)
        }
    }
}

/// All points, those of the model too.
fn points(plan: &Plan, subject: &Subject, parts: &[Part]) -> usize {
    let model = match subject {
        Subject::Model(_) | Subject::Medium(_, Some(_)) => Some(Part::Model),
        Subject::Medium(_, None) => None,
    };
    let all = parts.iter().copied().chain(model);
    all.map(|part| plan.points(part).len()).sum()
}

/// Brings every page in.
fn touch(medium: &Mapped) {
    medium.pretouch(std::thread::available_parallelism().map_or(1, usize::from));
}

/// One evaluation under way.
struct Run<'a> {
    clock: Arc<TscClock>,
    plan: &'a Plan,
    progress: Progress,
}

impl Run<'_> {
    fn measure(
        &self,
        name: &'static str,
        target: &dyn Target,
        part: Part,
    ) -> Result<Sheet, Failure> {
        let failed = |error| Failure::new(Exit::Io, format!("the {name} failed: {error}"));
        self.try_measure(name, target, part).map_err(failed)
    }

    fn try_measure(
        &self,
        name: &'static str,
        target: &dyn Target,
        part: Part,
    ) -> io::Result<Sheet> {
        let points = self.plan.points(part);
        self.progress.begin(name);
        measure(target, &*self.clock, self.plan, &points, &mut |reading| {
            self.progress.tell(reading);
        })
    }

    fn simulate(&self, params: &Params) -> Sheet {
        self.progress.begin("model");
        let points = self.plan.points(Part::Model);
        simulate(params, &points, &mut |reading| self.progress.tell(reading))
    }

    /// A model in virtual time.
    fn model(&self, params: &Params) -> Measured {
        Measured {
            identity: Identity::of_model(params),
            own: self.simulate(params),
            model: None,
        }
    }

    /// A medium in real time, and the model that is laid over it in virtual time.
    fn medium(&self, medium: &Arc<Mapped>, params: Option<Params>) -> Result<Measured, Failure> {
        let identity = Identity::of(medium, params.as_ref());
        let model = params.as_ref().map(|params| self.simulate(params));
        touch(medium);
        let own = match params {
            None => self.measure("device", medium, Part::Whole)?,
            Some(params) => {
                let emulated = Emulated::in_real_time(medium.clone(), params, self.clock.clone());
                self.measure("device", &emulated, Part::Whole)?
            }
        };
        Ok(Measured {
            identity,
            own,
            model,
        })
    }

    /// This machine's memory, and what the loop of a chained read takes by itself.
    fn dram(&self, size: Bytes) -> Result<(Sheet, f64), Failure> {
        let memory = |bytes| Mapped::anonymous(bytes).map_err(failure);
        let near = memory(NEAR_BYTES)?;
        let flow = Flow {
            work: Work::ReadChained,
            order: Order::Random,
            bytes: 8,
            threads: 1,
        };
        let point = Point { flow, beside: None };
        let failed = |error| Failure::new(Exit::Io, format!("the memory failed: {error}"));
        let read = measure(&near, &*self.clock, self.plan, &[point], &mut |_| {});
        let loop_ns = read.map_err(failed)?.readings[0].latency_ns;
        let dram = memory(size.0)?;
        touch(&dram);
        Ok((self.measure("DRAM", &dram, Part::Memory)?, loop_ns))
    }

    /// A file on the disk; what keeps it from being measured is told in the report.
    fn disk(&self, directory: Option<&Path>, size: Bytes) -> Beside {
        let Some(directory) = directory else {
            return Beside {
                name: NO_DISK.into(),
                sheet: None,
                skipped: Some("--disk none".into()),
            };
        };
        let name = filesystem(directory).unwrap_or_else(|| directory.display().to_string());
        self.progress.begin("disk");
        let path = directory.join(format!("nyx-disk-{}.tmp", std::process::id()));
        let len_bytes = size.0 / DISK_GRAIN_BYTES * DISK_GRAIN_BYTES;
        let made = Disk::make(&path, len_bytes).map_err(|error| error.to_string());
        let sheet = made.and_then(|disk| {
            let measured = self.try_measure("disk", &disk, Part::Disk);
            measured.map_err(|error| format!("{}: {error}", path.display()))
        });
        match sheet {
            Ok(sheet) => Beside {
                name,
                sheet: Some(sheet),
                skipped: None,
            },
            Err(why) => Beside {
                name,
                sheet: None,
                skipped: Some(why),
            },
        }
    }
}

/// How far it is: a bar on a terminal, and else a line in the log now and then.
struct Progress {
    bar: ProgressBar,
    started: Instant,
    told: Cell<Instant>,
}

impl Progress {
    fn new(points: usize) -> Progress {
        let style = "{prefix:>6} {wide_bar} {pos}/{len}, {eta} left  {msg}";
        let style = ProgressStyle::with_template(style).expect("a constant template");
        let now = Instant::now();
        Progress {
            bar: ProgressBar::new(points as u64).with_style(style),
            started: now,
            told: Cell::new(now),
        }
    }

    fn begin(&self, part: &'static str) {
        self.bar.set_prefix(part);
        self.bar.set_message("getting ready");
    }

    fn tell(&self, reading: &Reading) {
        // Of a mixture the first reading is the point.
        if reading.beside.is_none() || reading.flow.work != Work::Write {
            self.bar.inc(1);
        }
        let Flow { bytes, threads, .. } = reading.flow;
        let (latency, rate) = (
            grid::time(reading.latency_ns),
            grid::gb_per_s(reading.bytes_per_s),
        );
        let (bytes, threads) = (grid::size(bytes), figures::threads(threads));
        self.bar
            .set_message(format!("{bytes}, {threads}: {latency}, {rate} GB/s"));
        if self.bar.is_hidden() && self.told.get().elapsed() >= TELL {
            self.told.set(Instant::now());
            let (done, of) = (self.bar.position(), self.bar.length().unwrap_or_default());
            let took_s = self.started.elapsed().as_secs_f64();
            let left_s = (took_s / done.max(1) as f64 * of.saturating_sub(done) as f64).round();
            tracing::info!(points = done, of, left_s, "evaluating");
        }
    }
}
