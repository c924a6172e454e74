//! Programs in less memory than they use, in turns with the kernel alone, with the reclaimer and
//! with the program's own paging.
//!
//! Real figures: each run is a real program in a real control group on a real device. What it never
//! does: run what is in its log already, or tell a figure that was not measured.
//!
//! *Thread safety*: one thread, and one such process at a time in a target directory.

mod disks;
mod drawing;
mod faults;
mod launch;
mod log;
mod plan;
mod ram_disk;
mod table;

use clap::Parser;
use nyx_swap::arena::LIBRARY;
use plan::{Device, Engine, Key, Program};
use std::fs::{self, File};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Compare the kernel's swap alone with the engines of `nyx swap run`, in turns.
///
/// Each program first runs once without a limit: that is its peak of memory, and the checksum that
/// its result must have. Then it runs with a limit of some percent of that peak on a device, once
/// per engine, in turns (A B C, C B A), so that what else the machine does falls on all.
#[derive(Parser, Debug)]
#[command(after_help = "Examples:
  cargo build --release -p nyx -p nyx-preload -p nyx-swap --lib --bins --examples
  target/release/examples/pairs --device zram                 all programs; hours on a slow device
  target/release/examples/pairs --program sort --ratios 60,40 --device zram,loop --rounds 5
  target/release/examples/pairs --scale 16 --rounds 1 --ratios 60     a quick look
  target/release/examples/pairs --program kmeans,lu,inference --python venv/bin/python
  target/release/examples/pairs --program sort,lu --threads 2 --python venv/bin/python
  target/release/examples/pairs --time-faults --ratios 60     P50 and P99 of the programs' faults
  target/release/examples/pairs --table-only

Engines:
  linux        the kernel alone: --pool off --oom kill
  linux-wait   the kernel alone, but a program waits for writes instead of being killed:
               --pool off --oom wait
  kernel       the kernel's swap with the reclaimer: --pool auto --oom wait
  uffd         the program itself, through the preload library: --engine uffd --oom wait. Its pages
               go to the directory of the swap file (disk), or to a second loop or zram device. The
               pager is in the program's process, and so is its CPU time. A run in which a process
               went without is no good one.
  ideal        the same, its pages in a file in memory that is not the program's: what is left is
               the pager and a copy

P50 and P99 of a touch are the program's own, with each engine: touch-in-order with --ratios 50 is
section 4.2 of Ultraswap, and touch-random the same in no order.

Needs root, and that nothing else runs: others' memory and CPU time are in the figures. A line of
JSON per run is appended to pairs/runs.jsonl in the target directory, and pairs/table.md and
pairs/figure.svg are made of them. A run that is there is not run again: the same command goes on
where it was ended. Remove the file to begin anew, as after a change of the code. A failed or
timed-out run of a program is a result too; a run that could not begin is none, and is tried
again.")]
struct Args {
    /// What runs [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    program: Vec<Program>,
    /// Where memory goes: `zram`; `disk`, a file in the target directory; `loop`, a loop device on
    /// a file in memory, as a very fast disk.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "zram")]
    device: Vec<Device>,
    /// Limits, in percent of the peak without a limit. Below 16 MiB a limit is refused.
    #[arg(long, value_delimiter = ',', default_value = "80,60,40,20", value_name = "PERCENT",
        value_parser = clap::value_parser!(u8).range(1..=100))]
    ratios: Vec<u8>,
    /// Who sends memory to swap [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    engines: Vec<Engine>,
    /// Runs of each engine.
    #[arg(long, value_name = "N", default_value = "3")]
    rounds: u32,
    /// A run is ended after so long, and counts as failed.
    #[arg(long, value_name = "SECONDS", default_value = "900")]
    timeout: u64,
    /// Runs k-means, LU and inference; needs numpy, scipy, scikit-learn, onnx and onnxruntime.
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,
    /// Divide the sizes of the programs' input, for tests.
    #[arg(long, value_name = "N", default_value = "1")]
    scale: NonZeroU32,
    /// Threads that a program computes with; those that touch pages have one. Engine `kernel` and
    /// `uffd` have threads of their own beside, which want a CPU too.
    #[arg(long, value_name = "N", default_value = "1")]
    threads: NonZeroU32,
    /// Time each fault of the programs too, from outside. That makes them slower: these runs have a
    /// log and a table of their own, pairs/faults.jsonl and faults.md.
    #[arg(long)]
    time_faults: bool,
    /// Run nothing; make the table and the figure of what is there.
    #[arg(long)]
    table_only: bool,
}

/// What lies beside this executable.
#[derive(Debug)]
pub(crate) struct Places {
    nyx: PathBuf,
    examples: PathBuf,
    /// Of the profile: `release` or `debug`.
    build: String,
    /// Everything that is written.
    out: PathBuf,
}

impl Places {
    fn find() -> Result<Places> {
        let own = std::env::current_exe()?;
        let examples = own.parent().ok_or("this executable has no directory")?;
        let build = examples.parent().ok_or("not in target/*/examples")?;
        let target = build.parent().ok_or("not in target/*/examples")?;
        let name = build.file_name().unwrap_or_default();
        Ok(Places {
            nyx: build.join("nyx"),
            examples: examples.to_owned(),
            build: name.to_string_lossy().into_owned(),
            out: target.join("pairs"),
        })
    }

    fn check(&self, engines: &[Engine]) -> Result<()> {
        let programs = ["touch", "programs"].map(|name| self.examples.join(name));
        let library = self.nyx.with_file_name(LIBRARY);
        let has_arena = engines.iter().any(|engine| engine.has_arena());
        let library = has_arena.then_some(&library);
        for path in programs.iter().chain([&self.nyx]).chain(library) {
            if !path.exists() {
                let path = path.display();
                return Err(format!(
                    "there is no {path}: cargo build --release -p nyx -p nyx-preload -p nyx-swap \
                     --lib --bins --examples"
                )
                .into());
            }
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(missed) => {
            eprintln!("pairs: {missed} runs could not begin; the same command tries them again");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("pairs: {error}");
            ExitCode::FAILURE
        }
    }
}

/// How many runs could not begin.
fn run(args: &Args) -> Result<usize> {
    let places = Places::find()?;
    fs::create_dir_all(&places.out)?;
    let lock = File::create(places.out.join("lock"))?;
    lock.try_lock()
        .map_err(|error| format!("another `pairs` runs in this target directory: {error}"))?;
    let name = if args.time_faults { "faults" } else { "runs" };
    let mut log = log::Log::open(&places.out.join(name).with_extension("jsonl"))?;
    let mut missed = 0;
    if !args.table_only {
        places.check(&or_all(&args.engines, &Engine::ALL))?;
        disks::take_down(&places.out)?;
        let programs = or_all(&args.program, &Program::ALL);
        for program in programs {
            missed += sweep(args, &places, &mut log, program)?;
        }
    }
    match args.time_faults {
        true => write_table(&places.out.join("faults.md"), log.rows())?,
        false => write_results(&places.out, log.rows())?,
    }
    Ok(missed)
}

fn or_all<T: Copy>(some: &[T], all: &[T]) -> Vec<T> {
    if some.is_empty() { all } else { some }.to_vec()
}

/// All runs of one program that are not in the log.
fn sweep(args: &Args, places: &Places, log: &mut log::Log, program: Program) -> Result<usize> {
    if args.threads.get() > 1 && !program.has_threads() {
        eprintln!(
            "pairs: {program} has one thread, and is not run by {}",
            args.threads
        );
        return Ok(0);
    }
    let kind = plan::Kind {
        program,
        scale: args.scale.get(),
        threads: args.threads.get(),
        build: places.build.clone(),
    };
    let timeout = Duration::from_secs(args.timeout);
    let engines = or_all(&args.engines, &Engine::ALL);
    let runner = launch::Runner {
        places,
        python: &args.python,
        timeout,
        times_faults: args.time_faults,
    };
    if let Err(error) = runner.prepare(&kind) {
        eprintln!("pairs: {program} cannot run: {error}");
        return Ok(1);
    }
    let first = Key::unlimited(kind.clone(), &args.device);
    if log.baseline(&kind).is_none() {
        let told = runner.run(&first, None, launch::Disks::default());
        if !keep(log, told)? {
            return Ok(1);
        }
    }
    let Some(base) = log.baseline(&kind).cloned() else {
        eprintln!("pairs: {program} failed without a limit; it is not run with one");
        return Ok(0);
    };
    let mut missed = 0;
    for &device in &args.device {
        let keys = plan::turns(&kind, device, &args.ratios, args.rounds, &engines);
        let keys: Vec<Key> = keys.into_iter().filter(|key| !log.has(key)).collect();
        if keys.is_empty() {
            continue;
        }
        let bytes = launch::swap_bytes(base.report.as_ref());
        let has = |engine| keys.iter().any(|key| key.engine == engine);
        let wanted = [has(Engine::Uffd), has(Engine::Ideal)];
        let disks = disks::Disks::make(&places.out, device, bytes, wanted)?;
        for key in &keys {
            let told = runner.run(key, Some(&base), disks.as_seen());
            missed += usize::from(!keep(log, told)?);
        }
    }
    Ok(missed)
}

/// Appends a run to the log; false where it could not begin.
fn keep(log: &mut log::Log, told: Result<log::Row>) -> Result<bool> {
    match told {
        Ok(row) => {
            eprintln!("pairs: {}", row.summary());
            log.append(row)?;
            Ok(true)
        }
        Err(error) => {
            eprintln!("pairs: {error}");
            Ok(false)
        }
    }
}

/// The table and the figure.
fn write_results(out: &Path, rows: &[log::Row]) -> Result<()> {
    write_table(&out.join("table.md"), rows)?;
    if let Some(svg) = drawing::svg(rows)? {
        let figure = out.join("figure.svg");
        fs::write(&figure, svg)?;
        eprintln!("pairs: drawn, {}", figure.display());
    }
    Ok(())
}

fn write_table(path: &Path, rows: &[log::Row]) -> Result<()> {
    fs::write(path, table::markdown(rows))?;
    eprintln!("pairs: {} runs, {}", rows.len(), path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_library_is_needed_by_one_engine_only() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places {
            nyx: dir.path().join("nyx"),
            examples: dir.path().to_owned(),
            build: "release".to_owned(),
            out: dir.path().to_owned(),
        };
        for name in ["nyx", "touch", "programs"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        assert!(places.check(&[Engine::Linux, Engine::Kernel]).is_ok());
        let error = places.check(&Engine::ALL).unwrap_err().to_string();
        assert!(error.contains(LIBRARY), "{error}");
    }

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
        let words = "pairs --program sort,touch-random --ratios 80,20 --engines linux,kernel";
        let args = Args::parse_from(words.split(' '));
        assert_eq!(args.program, [Program::Sort, Program::TouchRandom]);
        assert_eq!(args.ratios, [80, 20]);
        assert_eq!(args.engines, [Engine::Linux, Engine::Kernel]);
        for wrong in [
            "pairs --ratios 0",
            "pairs --engines unlimited",
            "pairs --engines auto",
            "pairs --scale 0",
            "pairs --threads 0",
        ] {
            assert!(Args::try_parse_from(wrong.split(' ')).is_err(), "{wrong}");
        }
    }
}
