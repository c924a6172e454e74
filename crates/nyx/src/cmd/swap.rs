//! `nyx swap`: programs that have less memory than they use.
//!
//! What it never does: set anything up itself (`nyx-swap` does).

mod attach;
mod program;
mod run;
mod status;
mod tenant;

pub(crate) use status::{Line as Program, programs};

use crate::{Exit, Failure};
use clap::{Args as ClapArgs, Subcommand};
use nyx_base::Bytes;
use nyx_policy::paging::budget::BUDGET_BYTES_MIN;
use nyx_policy::paging::pool::Rule;
use nyx_swap::SwapError;
use nyx_swap::kernel::{self, Entry, Memory, Residue, Source};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Run programs in less memory than they use, with the rest on a fast device.
#[derive(ClapArgs, Debug)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  nyx swap run --memory 20% --device zram -- python kmeans.py
  nyx swap run --memory 512M --device /var/tmp/swap -- ./server --threads 8
  nyx swap run --memory auto --max-slowdown 5% -- ./batch-job
  nyx swap status                        who runs so, and how they fare
  nyx swap attach 4711                   keep memory free for a process that has a limit already

What runs made is written down in /run/nyx/swap, or $XDG_RUNTIME_DIR/nyx/swap where that is refused.
The environment variable NYX_SWAP_STATE names another directory, which nobody else may write to;
runs of one directory do not know of those of another.

docs/swap.md says when to use what, what it costs, and what it cannot do."
)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    Run(run::Args),
    Status(status::Args),
    Attach(attach::Args),
    /// Enter control groups and become a command.
    #[command(hide = true)]
    Enter {
        /// A group's directory.
        #[arg(long)]
        group: Vec<PathBuf>,
        /// A variable of the command, and its value: NAME=VALUE.
        #[arg(long)]
        variable: Vec<OsString>,
        /// End with the process that started this one.
        #[arg(long)]
        end_with_launcher: bool,
        /// The command.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Wait until the launcher at the other end of standard input is gone, and take down what it
    /// made.
    #[command(hide = true)]
    Watch {
        /// The record of what it made.
        #[arg(long)]
        record: PathBuf,
    },
    /// Touch pages on swap and write how long that takes.
    #[command(hide = true)]
    Probe {
        /// Milliseconds between two touches.
        #[arg(long)]
        every_ms: u64,
    },
}

/// Does what the command line says.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.action {
        Action::Run(args) => run::run(args),
        Action::Status(args) => status::run(&args),
        Action::Attach(args) => attach::run(args),
        Action::Enter {
            group,
            variable,
            end_with_launcher,
            command,
        } => {
            let variables: Vec<_> = variable.iter().filter_map(|text| name_of(text)).collect();
            let entry = Entry {
                groups: &group,
                variables: &variables,
                command: &command,
            };
            Err(enter(&entry, end_with_launcher))
        }
        Action::Watch { record } => {
            // The next run tells what could not be.
            let _ = kernel::watch(&record, &mut io::stdin().lock());
            Ok(())
        }
        Action::Probe { every_ms } => {
            // Whoever reads may be gone: that is how it ends.
            let _ = kernel::probe(Duration::from_millis(every_ms), &mut io::stdout());
            Ok(())
        }
    }
}

/// The exit codes of a shell for a command that cannot be run.
const NOT_FOUND: i32 = 127;
const NOT_RUNNABLE: i32 = 126;

/// A variable and its value.
fn name_of(text: &OsStr) -> Option<(OsString, OsString)> {
    let bytes = text.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    let [name, value] = [&bytes[..at], &bytes[at + 1..]].map(OsStr::from_bytes);
    Some((name.to_owned(), value.to_owned()))
}

fn enter(entry: &Entry<'_>, ends_with_launcher: bool) -> Failure {
    use rustix::process::{Signal, set_parent_process_death_signal};
    if ends_with_launcher {
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
    let error = kernel::enter(entry);
    let program = entry.command.first().map(|word| word.to_string_lossy());
    eprintln!("nyx: cannot run {}: {error}", program.unwrap_or_default());
    std::process::exit(match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_RUNNABLE,
    })
}

/// This binary again, as what enters groups and becomes a command.
fn entering(entry: &Entry<'_>) -> Command {
    entering_with(&[], entry)
}

/// This binary again, as what takes down where this process is killed.
fn watching(record: &Path) -> Command {
    let mut watch = Command::new("/proc/self/exe");
    watch.args(["swap", "watch", "--record"]).arg(record);
    watch
}

fn entering_with(flags: &[&str], entry: &Entry<'_>) -> Command {
    let mut enter = Command::new("/proc/self/exe");
    enter.args(["swap", "enter"]).args(flags);
    for group in entry.groups {
        enter.arg("--group").arg(group);
    }
    // Not in its own environment: they are the command's, and the library is not for this binary.
    for (name, value) in entry.variables {
        let mut text = name.clone();
        text.push("=");
        text.push(value);
        enter.arg("--variable").arg(text);
    }
    enter.arg("--").args(entry.command);
    enter
}

/// What a run and an attachment have in common.
#[derive(ClapArgs, Debug)]
struct Terms {
    /// Percent of its time that the program may lose, with --memory auto.
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = percent)]
    max_slowdown: f64,
    /// Where memory goes that is not in memory: `zram`, a block device with a swap header, or a
    /// file, made where there is none and removed at the end [default: the machine's swap].
    #[arg(long, value_name = "FILE|zram")]
    device: Option<Source>,
    /// Size of a file or a zram device that is made [default: as much as the machine has memory;
    /// of a file no more than half of what is free on its disk].
    #[arg(long, value_name = "SIZE", requires = "device", value_parser = size)]
    device_size: Option<u64>,
    /// How much is kept free, so that the program need not reclaim for itself: `auto` for as much
    /// as it takes until more is freed, a percentage of the limit, `paper` for 30 % of it, `off`
    /// for the kernel alone [default: auto; with --engine uffd off].
    #[arg(long, value_name = "RULE", value_parser = pool)]
    pool: Option<Rule>,
    /// The CPU to which the reclaimer is kept, where it goes before programs, and who reads ahead
    /// [default: the reclaimer goes to any that is idle, and after the program where none is; who
    /// reads ahead is on the last one that may be used].
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Write the report to this file too, as JSON.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

impl Terms {
    fn source(&self) -> Source {
        self.device.clone().unwrap_or(Source::Machine)
    }

    /// `auto` is known by what may be lost.
    fn memory(&self, memory: MemoryArg) -> Memory {
        match memory {
            MemoryArg::Bytes(bytes) => Memory::Bytes(bytes),
            MemoryArg::Percent(percent) => Memory::Percent(percent),
            MemoryArg::Auto => Memory::Slowdown(self.max_slowdown),
        }
    }
}

/// `--memory`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemoryArg {
    Bytes(u64),
    Percent(u8),
    Auto,
}

fn memory(text: &str) -> Result<MemoryArg, String> {
    if text == "auto" {
        return Ok(MemoryArg::Auto);
    }
    if let Some(number) = text.strip_suffix('%') {
        let percent = number
            .parse::<u8>()
            .ok()
            .filter(|percent| (1..=100).contains(percent));
        let percent = percent.ok_or_else(|| format!("{text:?} is no whole percentage, 1% to 100%"));
        return percent.map(MemoryArg::Percent);
    }
    let bytes = size(text)?;
    if bytes < BUDGET_BYTES_MIN {
        let (is, least) = (Bytes(bytes), Bytes(BUDGET_BYTES_MIN));
        return Err(format!(
            "{is} are too few for any program; at least {least}"
        ));
    }
    Ok(MemoryArg::Bytes(bytes))
}

/// A size; `512M` is taken for `512MiB`, as control groups and systemd take it.
fn size(text: &str) -> Result<u64, String> {
    let is_short = text.ends_with(['K', 'M', 'G', 'T']);
    let text = if is_short {
        format!("{text}iB")
    } else {
        text.to_owned()
    };
    text.parse::<Bytes>().map(|bytes| bytes.0)
}

/// A percentage, as a part of one.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    let percent = number.filter(|percent| *percent >= 0.1 && *percent <= 1000.0);
    let percent = percent.ok_or_else(|| format!("{text:?} is no percentage, 0.1% to 1000%"))?;
    Ok(percent / 100.0)
}

fn pool(text: &str) -> Result<Rule, String> {
    match text {
        "auto" => Ok(Rule::Demand),
        "paper" => Ok(Rule::Paper),
        "off" => Ok(Rule::Off),
        text => {
            let number = text
                .strip_suffix('%')
                .and_then(|number| number.parse().ok());
            let percent = number.filter(|percent| (1..=90).contains(percent));
            percent.map(Rule::Percent).ok_or_else(|| {
                format!("{text:?} is not auto, paper, off or a percentage, 1% to 90%")
            })
        }
    }
}

/// Says what earlier runs left that could not be taken down.
fn tell(residue: &Residue) {
    match residue {
        Residue::Running { group, pids } => eprintln!(
            "nyx: processes {pids:?} go on without their launcher, within the limit of {}",
            group.display()
        ),
        Residue::InUse { area, pids } => eprintln!(
            "nyx: {} stays on: memory of processes {pids:?}, which go on, is there",
            area.display()
        ),
        Residue::Refused(error) => eprintln!("nyx: an earlier run left something behind: {error}"),
    }
}

impl From<SwapError> for Failure {
    fn from(error: SwapError) -> Failure {
        let code = match &error {
            error if error.is_permission() => Exit::NoPerm,
            SwapError::Unusable { .. } | SwapError::NotAttachable { .. } => Exit::Usage,
            SwapError::NoController
            | SwapError::NoGroup(_)
            | SwapError::NoSwap
            | SwapError::NoArena { .. }
            | SwapError::Untold { .. } => Exit::Unavailable,
            _ => Exit::Os,
        };
        let hint = match code {
            Exit::NoPerm if rustix::process::geteuid().is_root() => {
                "\nThis is root, without a capability (CAP_SYS_ADMIN) or in a container that may \
                 not do that."
            }
            Exit::NoPerm => {
                "\nControl groups and swap belong to root: use sudo, or have the group delegated \
                 (systemd-run --user --scope -p Delegate=yes nyx swap run ...) and swap turned on \
                 beforehand."
            }
            _ => "",
        };
        Failure::new(code, format!("{error}{hint}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bytes_a_percentage_or_auto() {
        assert_eq!(memory("512M"), Ok(MemoryArg::Bytes(512 << 20)));
        assert_eq!(memory("2GiB"), Ok(MemoryArg::Bytes(2 << 30)));
        assert_eq!(memory("20%"), Ok(MemoryArg::Percent(20)));
        assert_eq!(memory("auto"), Ok(MemoryArg::Auto));
        for wrong in ["0%", "101%", "1M", "20", "x", "%", "512MB", ""] {
            assert!(memory(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pool_is_named_or_a_percentage() {
        assert_eq!(pool("auto"), Ok(Rule::Demand));
        assert_eq!(pool("paper"), Ok(Rule::Paper));
        assert_eq!(pool("off"), Ok(Rule::Off));
        assert_eq!(pool("10%"), Ok(Rule::Percent(10)));
        for wrong in ["0%", "91%", "10", "on"] {
            assert!(pool(wrong).is_err(), "{wrong}");
        }
        assert_eq!(percent("5%"), Ok(0.05));
        assert!(percent("0").is_err() && percent("five").is_err());
    }
}
