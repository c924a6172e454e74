//! How a program fared with the memory that it had.
//!
//! What it never does: measure; it puts together what others counted.

use super::area::Area;
use super::group::Counts;
use super::hierarchy::Version;
use super::probe::ProbeReport;
use super::readahead::ReadAhead;
use super::reclaimer::Reclaimed;
use super::record::Record;
use crate::arena::ArenaFigures;
use crate::region::Spent;
use nyx_base::{Bytes, Nanos};
use nyx_policy::paging::pool::Rule;
use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

/// What was seen of a program.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) command: Vec<String>,
    pub(super) status: Option<ExitStatus>,
    pub(super) ran: Nanos,
    pub(super) counts: Counts,
    pub(super) peak: u64,
    pub(super) swapped_peak: u64,
    pub(super) limit: Option<u64>,
    pub(super) version: Version,
    pub(super) rule: Rule,
    pub(super) area: Area,
    pub(super) reclaimed: Reclaimed,
    /// None where nobody was to; else what was done, or why nothing could be.
    pub(super) reads: Option<Result<ReadAhead, String>>,
    pub(super) probe: Option<ProbeReport>,
    pub(super) arena: Option<ArenaFigures>,
}

/// What only the launcher knows of a program that runs. It is written beside the record each
/// second, for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Figures {
    /// How often the reclaimer reclaimed.
    pub reclaims: u64,
    /// Bytes that it freed, at least.
    pub reclaimed_bytes: u64,
    /// Its CPU time.
    pub reclaimer_cpu_ns: u64,
    /// How long touches of swapped pages took; none where they are not measured.
    pub touches: Option<ProbeReport>,
    /// What was read ahead; none where the kernel alone does.
    #[serde(default)]
    pub read_ahead: Option<ReadAhead>,
}

impl Figures {
    fn path(record: &Record) -> PathBuf {
        record.path().with_extension("figures")
    }

    /// Those of a run; none before the first.
    pub fn read(record: &Record) -> Option<Figures> {
        serde_json::from_slice(&fs::read(Figures::path(record)).ok()?).ok()
    }

    pub(super) fn write(&self, record: &Record) -> io::Result<()> {
        let path = Figures::path(record);
        let new = path.with_extension("figures-new");
        fs::write(&new, serde_json::to_vec(self)?)?;
        fs::rename(&new, path)
    }

    /// Nobody writes them any more.
    pub(super) fn remove(record: &Record) {
        let _ = fs::remove_file(Figures::path(record));
    }
}

/// A report, for people (`Display`) and as JSON.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Report {
    /// What ran.
    pub command: Vec<String>,
    /// How it ended; none where it goes on.
    #[serde(skip)]
    pub status: Option<ExitStatus>,
    /// The same in words.
    pub ended: Option<String>,
    /// For so long, in seconds.
    pub run_s: f64,
    /// CPU time of all of its processes, in seconds; none where no group counts it.
    pub cpu_s: Option<f64>,
    /// Of that, in the kernel.
    pub system_cpu_s: Option<f64>,
    /// The limit at the end, in bytes.
    pub limit_bytes: Option<u64>,
    /// Most bytes in memory.
    pub peak_bytes: u64,
    /// Most bytes on swap, as seen five times a second.
    pub swapped_peak_bytes: u64,
    /// Where those were; none for the machine's swap.
    pub swap: Option<PathBuf>,
    /// Bytes of that.
    pub swap_bytes: u64,
    /// Whether it was turned on as one that does not rotate, though its disk says so.
    pub is_swap_doubted: bool,
    /// Faults of any kind.
    pub faults: u64,
    /// Faults that waited for the device.
    pub major_faults: u64,
    /// How often the program had to reclaim for itself.
    pub inline_reclaims: u64,
    /// Whether `inline_reclaims` counts failed attempts to take memory (cgroup v1), which are more.
    pub inline_is_upper_bound: bool,
    /// Whether a reclaimer ran at all.
    pub has_reclaimer: bool,
    /// How often the reclaimer reclaimed.
    pub reclaims: u64,
    /// Bytes that it freed, at least.
    pub reclaimed_bytes: u64,
    /// How often the program waited for it where the kernel would have killed it.
    pub rescues: u64,
    /// Its CPU time, in seconds.
    pub reclaimer_cpu_s: f64,
    /// On which CPU it was kept; none where it was on any.
    pub reclaimer_on_cpu: Option<usize>,
    /// What was read ahead; none where the kernel alone does.
    pub read_ahead: Option<ReadAhead>,
    /// Why nothing could be read ahead there, though it was to be.
    pub read_ahead_refused: Option<String>,
    /// How long at least one thread stalled for memory, in seconds; none where nobody tells.
    pub stalled_s: Option<f64>,
    /// So much longer than with all of its memory it took, as stalls have it: 0.1 for a tenth.
    pub slowdown: Option<f64>,
    /// How long a touch of a page on swap took, where that was measured.
    pub touches: Option<ProbeReport>,
    /// Processes that were killed for want of memory and swap.
    pub oom_kills: u64,
    /// What arenas did, of all processes that had one; none with engine `kernel`.
    pub arena: Option<ArenaFigures>,
    /// What they used of the device as somebody's tenant.
    pub tenant: Option<TenantUse>,
}

/// What a program used of a device as a tenant of a server.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct TenantUse {
    /// The tenant.
    pub name: String,
    /// Where its server listens.
    pub server: String,
    /// Requests that read and wrote, and their bytes.
    #[serde(flatten)]
    pub spent: Spent,
    /// Time of the device that they took by its prices, in seconds.
    pub device_s: f64,
    /// Why the server could not be asked last, if it could not.
    pub lost: Option<String>,
}

impl fmt::Display for TenantUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spent {
            reads,
            read_bytes,
            writes,
            written_bytes,
            holds,
        } = self.spent;
        let (name, device_s) = (&self.name, self.device_s);
        writeln!(
            f,
            "  tenant     {name} of {}: {device_s:.3} s of the device, held {holds} times",
            self.server
        )?;
        writeln!(
            f,
            "             {reads} reads of {}, {writes} writes of {}",
            Bytes(read_bytes),
            Bytes(written_bytes)
        )?;
        match &self.lost {
            Some(reason) => writeln!(f, "  unmetered  in part: {reason}"),
            None => Ok(()),
        }
    }
}

impl Report {
    pub(super) fn of(outcome: Outcome) -> Report {
        let counts = outcome.counts;
        let run_s = outcome.ran.as_secs_f64();
        let stalled_s = counts.stalled.map(Nanos::as_secs_f64);
        let (read_ahead, read_ahead_refused) = match outcome.reads {
            None => (None, None),
            Some(Ok(done)) => (Some(done), None),
            Some(Err(why)) => (None, Some(why)),
        };
        let slowdown = stalled_s.map(|stalled| stalled / (run_s - stalled).max(1e-9));
        Report {
            command: outcome.command,
            status: outcome.status,
            ended: outcome.status.map(|status| status.to_string()),
            run_s,
            cpu_s: counts
                .cpu
                .map(|[user, system]| user.as_secs_f64() + system.as_secs_f64()),
            system_cpu_s: counts.cpu.map(|[_, system]| system.as_secs_f64()),
            limit_bytes: outcome.limit,
            peak_bytes: outcome.peak,
            swapped_peak_bytes: outcome.swapped_peak,
            swap: outcome.area.path,
            swap_bytes: outcome.area.size,
            is_swap_doubted: outcome.area.is_doubted,
            faults: counts.faults,
            major_faults: counts.major_faults,
            inline_reclaims: counts.inline_reclaims,
            inline_is_upper_bound: outcome.version == Version::V1,
            has_reclaimer: outcome.rule != Rule::Off,
            reclaims: outcome.reclaimed.times,
            reclaimed_bytes: outcome.reclaimed.bytes,
            rescues: outcome.reclaimed.rescues,
            reclaimer_cpu_s: outcome.reclaimed.cpu.as_secs_f64(),
            reclaimer_on_cpu: outcome.reclaimed.on_cpu,
            read_ahead,
            read_ahead_refused,
            stalled_s,
            slowdown,
            touches: outcome.probe.filter(|probe| probe.samples > 0),
            oom_kills: counts.oom_kills,
            arena: outcome.arena,
            tenant: None,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.command.first().map_or("", String::as_str);
        let ended = self.ended.as_deref().unwrap_or("goes on");
        writeln!(f, "{name}: {ended} after {:.2} s", self.run_s)?;
        if let (Some(cpu), Some(system)) = (self.cpu_s, self.system_cpu_s) {
            writeln!(
                f,
                "  cpu        {cpu:.2} s, {system:.2} s of it in the kernel"
            )?;
        }
        let limit = self.limit_bytes.map_or("no limit".to_owned(), |limit| {
            format!("limit {}", Bytes(limit))
        });
        let (peak, swapped) = (Bytes(self.peak_bytes), Bytes(self.swapped_peak_bytes));
        writeln!(f, "  memory     {peak} at most, {limit}")?;
        let swap = self
            .swap
            .as_ref()
            .map_or("the machine's swap".to_owned(), |path| {
                path.display().to_string()
            });
        writeln!(
            f,
            "  on swap    {swapped} at most, of {} on {swap}",
            Bytes(self.swap_bytes)
        )?;
        if self.is_swap_doubted {
            let why = "a virtual disk cannot know whether it rotates";
            writeln!(f, "             read ahead by address: {why}")?;
        }
        writeln!(
            f,
            "  faults     {} major, {} in all",
            self.major_faults, self.faults
        )?;
        if let Some(touches) = self.touches {
            self.show_touches(f, touches)?;
        }
        self.show_reclaim(f)?;
        self.show_read_ahead(f)?;
        if let Some(arena) = &self.arena {
            show_arena(f, arena)?;
        }
        if let Some(tenant) = &self.tenant {
            tenant.fmt(f)?;
        }
        if let (Some(stalled), Some(slowdown)) = (self.stalled_s, self.slowdown) {
            let percent = slowdown * 100.0;
            writeln!(
                f,
                "  stalled    {stalled:.2} s for memory (PSI, some): about {percent:.1} % slower"
            )?;
        }
        match self.rescues {
            0 => {}
            times => writeln!(
                f,
                "  waited     {times} times where the kernel would have killed it (--oom kill)"
            )?,
        }
        match self.oom_kills {
            0 => Ok(()),
            kills => writeln!(
                f,
                "  killed     {kills} processes of it, since memory and swap were full"
            ),
        }
    }
}

impl Report {
    fn show_touches(&self, f: &mut fmt::Formatter<'_>, touches: ProbeReport) -> fmt::Result {
        write!(f, "  swap-in    P50 {}", Nanos(touches.p50_ns))?;
        if touches.p99_ns > 0 {
            write!(f, ", P99 {}", Nanos(touches.p99_ns))?;
        }
        writeln!(
            f,
            ", of {} pages of its own that a probe touched",
            touches.samples
        )
    }

    fn show_reclaim(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at_most = if self.inline_is_upper_bound {
            "at most "
        } else {
            ""
        };
        write!(f, "  reclaim    {at_most}{} inline", self.inline_reclaims)?;
        let (bytes, cpu) = (Bytes(self.reclaimed_bytes), self.reclaimer_cpu_s);
        if !self.has_reclaimer {
            write!(f, ", no reclaimer")?;
            if cpu > 0.0 {
                write!(
                    f,
                    "; {cpu:.2} s of CPU to have the kernel count (--oom wait)"
                )?;
            }
            return writeln!(f);
        }
        write!(
            f,
            ", {} ahead, {bytes} or more; reclaimer {cpu:.2} s of CPU",
            self.reclaims
        )?;
        end_with_cpu(f, self.reclaimer_on_cpu)
    }
}

impl Report {
    fn show_read_ahead(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.read_ahead_refused {
            return writeln!(f, "  ahead      by the kernel alone: {why}");
        }
        let Some(done) = self.read_ahead else {
            return Ok(());
        };
        let (pages, seconds) = (done.pages, Nanos(done.cpu_ns).as_secs_f64());
        write!(f, "  ahead      {pages} pages read")?;
        let looked_at = done.used_pages + done.unused_pages;
        if let Some(percent) = (done.used_pages * 100).checked_div(looked_at) {
            write!(f, ", {percent} % of {looked_at} used")?;
        }
        if done.sent_pages > 0 {
            write!(f, ", {} sent away behind", done.sent_pages)?;
        }
        write!(f, "; {seconds:.2} s of CPU")?;
        end_with_cpu(f, done.on_cpu)
    }
}

/// Ends a line after "CPU" with its number, where a thread was kept to one.
fn end_with_cpu(f: &mut fmt::Formatter<'_>, cpu: Option<usize>) -> fmt::Result {
    match cpu {
        Some(cpu) => writeln!(f, " {cpu}"),
        None => writeln!(f),
    }
}

/// What the program did for itself, beside what the kernel counts above.
fn show_arena(f: &mut fmt::Formatter<'_>, arena: &ArenaFigures) -> fmt::Result {
    match arena.processes {
        0 => writeln!(f, "  arena      no process had one")?,
        processes => {
            let times = match arena.major_faults + arena.minor_faults {
                0 => String::new(),
                _ => format!(
                    ", P50 {}, P99 {} to an answer",
                    Nanos(arena.p50_ns),
                    Nanos(arena.p99_ns)
                ),
            };
            writeln!(
                f,
                "  arena      of {processes} processes: faults {} major, {} minor{times}",
                arena.major_faults, arena.minor_faults
            )?;
            writeln!(
                f,
                "             {} inline reclaims; pages {} read ahead, {} written; pager {:.2} s \
                 of CPU, in that of the program",
                arena.inline_reclaims,
                arena.ahead_pages,
                arena.written_pages,
                Nanos(arena.cpu_ns).as_secs_f64()
            )?;
        }
    }
    if arena.failed > 0 {
        writeln!(f, "  failed     {} faults of it gave SIGBUS", arena.failed)?;
    }
    match &arena.refused {
        Some(reason) => writeln!(f, "  refused    a process ran without arena: {reason}"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(arena: ArenaFigures) -> String {
        struct Shown(ArenaFigures);
        impl fmt::Display for Shown {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                show_arena(f, &self.0)
            }
        }
        Shown(arena).to_string()
    }

    #[test]
    fn an_arena_is_shown_with_what_it_did_and_who_went_without() {
        let arena = ArenaFigures {
            processes: 2,
            refused: Some("no userfaultfd".to_owned()),
            major_faults: 31,
            minor_faults: 32,
            ahead_pages: 33,
            written_pages: 34,
            inline_reclaims: 35,
            failed: 36,
            forks: 0,
            cpu_ns: 1_250_000_000,
            p50_ns: 5_000,
            p99_ns: 70_000,
        };
        let text = shown(arena.clone());
        for part in [
            "of 2 processes",
            "31 major, 32 minor",
            "P50 5000 ns, P99 70.0 us",
            "35 inline reclaims",
            "33 read ahead, 34 written",
            "1.25 s of CPU",
            "36 faults of it gave SIGBUS",
            "a process ran without arena: no userfaultfd",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let none = shown(ArenaFigures::default());
        assert_eq!(none, "  arena      no process had one\n");
        let idle = ArenaFigures {
            processes: 1,
            ..ArenaFigures::default()
        };
        assert!(!shown(idle).contains("P50"), "nothing was measured");
    }
}
