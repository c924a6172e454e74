//! `nyx swap attach`: a reclaimer for a process that has a limit already.

use super::run::write;
use super::{MemoryArg, Terms, entering, memory, tell, watching};
use crate::{Exit, Failure};
use nyx_policy::paging::pool::Rule;
use nyx_swap::kernel::{Plan, Reads, Session};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Keep memory free for a process that runs, in the control group in which it is.
///
/// A service that systemd limits (MemoryMax=), or a container (--memory), is in such a group. Its
/// limit stays, unless --memory sets another, which is undone at the end. A process that shares its
/// group with others shares what is kept free.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  nyx swap attach 4711
  nyx swap attach 4711 --memory 2G --device zram

Ends with the process, or by SIGINT or SIGTERM; the process goes on as it was then.")]
pub(super) struct Args {
    /// The process.
    #[arg(value_name = "PID")]
    pid: u32,
    /// The group's limit from now on: a size (512M), a percentage of what it uses at any time
    /// (20%), or `auto`: as little as slows it down by --max-slowdown [default: the one it has].
    #[arg(long, short, value_name = "SIZE|PERCENT|auto", value_parser = memory)]
    memory: Option<MemoryArg>,
    #[command(flatten)]
    terms: Terms,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let plan = Plan {
        memory: args.memory.map(|memory| args.terms.memory(memory)),
        source: args.terms.source(),
        area_size: args.terms.device_size,
        rule: args.terms.pool.unwrap_or(Rule::Demand),
        oom_waits: false,
        reads: Reads::Kernel,
        cpu: args.terms.cpu,
        probe: None,
        enter: entering,
        watch: Some(watching),
        is_over: Arc::default(),
        arena: None,
        meter: None,
    };
    let is_over = &plan.is_over;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(is_over))
            .map_err(|error| Failure::new(Exit::Os, format!("cannot watch signals: {error}")))?;
    }
    let mut session = Session::attach(&plan, args.pid, tell)?;
    let limit = session.group().limit().map(nyx_base::Bytes);
    eprintln!(
        "nyx: keeping memory free in {} for {} processes, limit {}",
        session.group().dir().display(),
        session.processes().len(),
        limit.map_or("none yet".to_owned(), |limit| limit.to_string()),
    );
    session.wait(|| is_over.load(Relaxed))?;
    let (report, left) = session.finish();
    left.iter().for_each(tell);
    eprint!("{report}");
    args.terms
        .report
        .as_deref()
        .map_or(Ok(()), |path| write(path, &report))
}
