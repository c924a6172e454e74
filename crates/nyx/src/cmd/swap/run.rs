//! `nyx swap run`: a program, from its start to its report.

use super::program::{self, Unreachable};
use super::tenant::{Teller, TenantArgs};
use super::{MemoryArg, NOT_FOUND, NOT_RUNNABLE, Terms};
use super::{entering, entering_with, memory, tell, watching};
use crate::{Exit, Failure};
use nyx_policy::paging::pool::Rule;
use nyx_swap::SwapError;
use nyx_swap::kernel::{Arena, Entry, Plan, Probe, Reads, Report, Session, Source};
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Origin, Process};
use std::ffi::OsString;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;

/// Run a program in less memory than it uses.
///
/// It runs in a control group with a limit; what is above that goes to swap on the device. A
/// reclaimer beside it, on whichever CPU is idle, sends it there ahead of need, so that the program
/// seldom has to.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  nyx swap run --memory 20% --device zram -- python kmeans.py
  nyx swap run --memory 512M --device /var/tmp/swap -- ./server --threads 8
  nyx swap run --memory auto --max-slowdown 5% -- ./batch-job
  nyx swap run --memory 512M --pool off --oom kill -- ./job    the kernel alone, to compare
  nyx swap run --memory 2G --device /var/tmp/swap --engine uffd -- ./job
  nyx swap run --memory 2G --pages /mnt/ssd --engine uffd --tenant batch -- ./job

Ends with the program's exit code, or 128 and the number of the signal that ended it; 126 and 127
as a shell has them. SIGTERM and SIGHUP go on to the program. What it started and left behind is
waited for. A signal that comes before the program has begun ends all. Killed itself, it leaves the
program to go on within its limit; a small process (nyx swap watch) takes down what is left when
that ends, or the next run does.")]
pub(super) struct Args {
    /// What the program may have: a size (512M), a percentage of what it uses at any time (20%), or
    /// `auto`: as little as slows it down by --max-slowdown.
    #[arg(long, short, value_name = "SIZE|PERCENT|auto", value_parser = memory)]
    memory: MemoryArg,
    /// Who pages. `kernel`: the kernel's own swap, for any program. `uffd`: the program itself, for
    /// what it has by large `malloc` and `mmap`, through a library that is loaded before its own;
    /// all else goes to swap as ever. It is refused, with the reason, where that cannot be right,
    /// as for static programs. `auto` takes `kernel`, the safe one.
    #[arg(long, value_enum, value_name = "ENGINE", default_value = "auto")]
    engine: Engine,
    /// Where pages go with --engine uffd: a directory, in which there is a file without a name
    /// then; a block device, which is overwritten; or a file with a swap header (mkswap), which is
    /// overwritten behind that, as one that fills a tmpfs on slow memory (CXL). An arena is as long
    /// as --device-size says [default: the directory of --device, where that is a file; else
    /// /var/tmp].
    #[arg(long, value_name = "DIR|DEVICE|FILE")]
    pages: Option<PathBuf>,
    #[command(flatten)]
    tenant: TenantArgs,
    #[command(flatten)]
    terms: Terms,
    /// What becomes of the program where the kernel finds nothing to reclaim just now, since all is
    /// still being written: `wait` until something is (cgroup v1), or `kill`, as the kernel does.
    /// Where swap is full it is killed either way.
    #[arg(long, value_name = "WHAT", default_value = "wait", value_parser = ["wait", "kill"])]
    oom: String,
    /// Who reads ahead what is on swap: `on` has a thread beside the reclaimer hear of the
    /// program's faults (perf events) and ask for what comes next before it is wanted, in larger
    /// pieces than the kernel does; `off` leaves it to the kernel. `auto` is `off` on zram, where
    /// to read takes a CPU, with --pool off and with --engine uffd, which reads ahead by itself.
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    read_ahead: ReadAhead,
    /// Do not measure how long swapped pages take to come back, by a small process beside the
    /// program.
    #[arg(long)]
    no_probe: bool,
    /// End the program (SIGKILL) where this process is killed.
    #[arg(long)]
    end_with_launcher: bool,
    /// Say nothing at the end.
    #[arg(long)]
    no_report: bool,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// `--engine`.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
#[value(rename_all = "lower")]
enum Engine {
    Auto,
    Kernel,
    Uffd,
}

/// `--read-ahead`.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
#[value(rename_all = "lower")]
enum ReadAhead {
    Auto,
    On,
    Off,
}

impl From<ReadAhead> for Reads {
    fn from(when: ReadAhead) -> Reads {
        match when {
            ReadAhead::Auto => Reads::Auto,
            ReadAhead::On => Reads::Ahead,
            ReadAhead::Off => Reads::Kernel,
        }
    }
}

/// Where pages go that have no better place: not to memory, as in `/tmp` they may.
const PAGES: &str = "/var/tmp";
/// A page on swap is touched so often.
const PROBE_EVERY_MS: u32 = 20;

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let arena = args.arena()?;
    let teller = args.tenant.start()?;
    // With an arena the program keeps memory free for itself.
    let rule = if arena.is_some() {
        Rule::Off
    } else {
        Rule::Demand
    };
    let rule = args.terms.pool.unwrap_or(rule);
    if args.read_ahead == ReadAhead::On && rule == Rule::Off {
        return Err(Failure::usage(
            "--read-ahead on needs memory that is kept free for it: --pool off (so with --engine \
             uffd) keeps none",
        ));
    }
    let plan = Plan {
        memory: Some(args.terms.memory(args.memory)),
        source: args.terms.source(),
        area_size: args.terms.device_size,
        rule,
        oom_waits: args.oom == "wait",
        reads: args.read_ahead.into(),
        cpu: args.terms.cpu,
        probe: (!args.no_probe).then(prober).transpose()?,
        enter: match args.end_with_launcher {
            true => entering_to_end,
            false => entering,
        },
        watch: Some(watching),
        is_over: Arc::default(),
        arena,
        meter: teller.as_ref().map(Teller::meter),
    };
    // Before anything is made: a signal that comes meanwhile ends this, and what was made goes.
    let (signals, ended_by) = (signals()?, end_by(&plan.is_over)?);
    let session = Session::start(&plan, &args.command, tell);
    let ended_by = ended_by.load(Relaxed);
    let mut session = match session {
        Err(SwapError::Interrupted) => std::process::exit(128 + ended_by as i32),
        other => other?,
    };
    if plan.is_over.load(Relaxed)
        && let Some(signal) = Signal::from_named_raw(ended_by as i32)
    {
        // It came when the program was about to begin, which may not have had it.
        session.remote().send(signal);
    }
    pass_on(signals, &session);
    session.wait(|| false)?;
    let (mut report, left) = session.finish();
    report.tenant = teller.map(Teller::finish);
    left.iter().for_each(tell);
    if !args.no_report {
        eprint!("{report}");
    }
    if let Some(path) = &args.terms.report {
        write(path, &report)?;
    }
    std::process::exit(report.status.map_or(0, code));
}

impl Args {
    /// What the program gets so that it pages for itself; ends this process as a shell does where
    /// there is no such program.
    fn arena(&self) -> Result<Option<Arena>, Failure> {
        if self.engine != Engine::Uffd {
            return match &self.pages {
                Some(_) => Err(Failure::usage("--pages is for --engine uffd")),
                None if self.tenant.is_given() => Err(Failure::usage(
                    "--tenant is for --engine uffd: the kernel lets nobody decide which of its \
                     reads and writes go first",
                )),
                None => Ok(None),
            };
        }
        let command = self.command.first().expect("clap has seen to one");
        match program::check(command) {
            Ok(()) => {}
            Err(error @ Unreachable::Ignored { .. }) => {
                return Err(Failure::new(Exit::Unavailable, error.to_string()));
            }
            Err(error) => {
                eprintln!("nyx: {error}");
                let is_there = matches!(error, Unreachable::NotRunnable(..));
                std::process::exit(if is_there { NOT_RUNNABLE } else { NOT_FOUND });
            }
        }
        Ok(Some(Arena {
            library: Arena::library()?,
            pages: self.pages(),
            len_bytes: self.terms.device_size,
        }))
    }

    fn pages(&self) -> PathBuf {
        let beside = match &self.terms.device {
            Some(Source::Path(path)) if !is_block_device(path) => path.parent(),
            _ => Some(Path::new(PAGES)),
        };
        let beside = beside.filter(|dir| !dir.as_os_str().is_empty());
        let given = self.pages.as_deref().or(beside);
        given.unwrap_or(Path::new(".")).to_owned()
    }
}

fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|data| data.file_type().is_block_device())
}

/// Writes a report as JSON.
pub(super) fn write(path: &Path, report: &Report) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(report).expect("a report can be written");
    std::fs::write(path, text + "\n").map_err(|error| Failure::uncreatable(path, &error))
}

/// As a shell has it.
fn code(status: ExitStatus) -> i32 {
    let signal = status.signal().map(|signal| 128 + signal);
    status.code().or(signal).unwrap_or(Exit::Software as i32)
}

fn prober() -> Result<Probe, Failure> {
    let own = std::env::current_exe();
    let own =
        own.map_err(|error| Failure::new(Exit::Os, format!("cannot find itself: {error}")))?;
    let every = PROBE_EVERY_MS.to_string();
    let words = ["swap", "probe", "--every-ms", &every];
    let words = words.iter().map(OsString::from);
    Ok(Probe {
        command: [own.into_os_string()].into_iter().chain(words).collect(),
    })
}

fn entering_to_end(entry: &Entry<'_>) -> Command {
    entering_with(&["--end-with-launcher"], entry)
}

fn signals() -> Result<SignalsInfo<WithOrigin>, Failure> {
    let all = [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];
    SignalsInfo::new(all)
        .map_err(|error| Failure::new(Exit::Os, format!("cannot watch signals: {error}")))
}

/// Lets a signal that asks for an end set `is_over`; which one it was.
fn end_by(is_over: &Arc<AtomicBool>) -> Result<Arc<AtomicUsize>, Failure> {
    let ended_by = Arc::new(AtomicUsize::new(0));
    for signal in [SIGINT, SIGQUIT, SIGTERM, SIGHUP] {
        flag::register_usize(signal, Arc::clone(&ended_by), signal as usize)
            .and_then(|_| flag::register(signal, Arc::clone(is_over)))
            .map_err(|error| Failure::new(Exit::Os, format!("cannot watch signals: {error}")))?;
    }
    Ok(ended_by)
}

/// Hands signals on to the program. What comes from the terminal it has already.
fn pass_on(mut signals: SignalsInfo<WithOrigin>, session: &Session) {
    let remote = session.remote();
    thread::spawn(move || {
        for origin in signals.forever() {
            if let Some(signal) = meant_for_program(&origin) {
                remote.send(signal);
            }
        }
    });
}

fn meant_for_program(origin: &Origin) -> Option<Signal> {
    let is_sent = |process: &Process| process.pid > 0;
    let is_of_terminal = !origin.process.as_ref().is_some_and(is_sent);
    match origin.signal {
        SIGINT | SIGQUIT if is_of_terminal => None,
        signal => Signal::from_named_raw(signal),
    }
}
