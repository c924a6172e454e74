//! CPU time of processes, from procfs, and pinning of threads.
//!
//! What it never does: change another process.

use super::LoadError;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// CPU time of a process, by thread, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Thread id -> nanoseconds on a CPU, nanoseconds waiting for one.
    threads: BTreeMap<u32, (u64, u64)>,
    /// Clock ticks in user mode and in the kernel, of the whole process.
    ticks: (u64, u64),
}

/// CPU time that a process used between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Used {
    /// Nanoseconds on a CPU, all threads.
    pub(crate) cpu_ns: u64,
    /// Nanoseconds that its threads were ready and waited for a CPU.
    pub(crate) wait_ns: u64,
    /// The part of the CPU time that was user mode, by ticks; `None` below one tick.
    pub(crate) user_share: Option<f64>,
}

impl Reading {
    /// Reads the CPU time of process `pid`.
    pub(crate) fn of(pid: u32) -> Result<Reading, LoadError> {
        let stat_path = PathBuf::from(format!("/proc/{pid}/stat"));
        let stat = fs::read_to_string(&stat_path).map_err(|e| unreadable(&stat_path, e))?;
        let bad = || unreadable(&stat_path, io::Error::other("not in the form of proc(5)"));
        let ticks = ticks(&stat).ok_or_else(bad)?;
        let tasks_path = PathBuf::from(format!("/proc/{pid}/task"));
        let mut threads = BTreeMap::new();
        for entry in fs::read_dir(&tasks_path).map_err(|e| unreadable(&tasks_path, e))? {
            let path = entry.map_err(|e| unreadable(&tasks_path, e))?.path();
            let id = path
                .file_name()
                .and_then(|n| n.to_str())
                .and_then(|n| n.parse().ok());
            // A thread may end between the listing and the reading.
            let schedstat = fs::read_to_string(path.join("schedstat")).ok();
            if let (Some(id), Some(times)) = (id, schedstat.as_deref().and_then(schedstat_ns)) {
                threads.insert(id, times);
            }
        }
        Ok(Reading { threads, ticks })
    }

    /// What was used since `earlier`. What a thread used that has ended since is not in it.
    pub(crate) fn since(&self, earlier: &Reading) -> Used {
        let mut used = Used::default();
        for (id, &(cpu_ns, wait_ns)) in &self.threads {
            let (cpu_0, wait_0) = earlier.threads.get(id).copied().unwrap_or_default();
            used.cpu_ns += cpu_ns.saturating_sub(cpu_0);
            used.wait_ns += wait_ns.saturating_sub(wait_0);
        }
        let user = self.ticks.0.saturating_sub(earlier.ticks.0);
        let system = self.ticks.1.saturating_sub(earlier.ticks.1);
        used.user_share = super::tally::ratio(user, user + system);
        used
    }
}

/// Why what procfs should tell is not known.
pub(crate) fn unreadable(path: &Path, source: io::Error) -> LoadError {
    LoadError::System {
        what: format!("cannot read {}", path.display()),
        source,
    }
}

/// utime and stime of `/proc/PID/stat`. The name in parentheses may hold anything.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let user = fields.nth(11)?.parse().ok()?;
    Some((user, fields.next()?.parse().ok()?))
}

/// Time on a CPU and time waiting for one, of `schedstat`, in nanoseconds.
pub(crate) fn schedstat_ns(text: &str) -> Option<(u64, u64)> {
    let mut fields = text.split_ascii_whitespace();
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Binds the calling thread to one CPU.
pub(crate) fn pin(cpu: usize) -> Result<(), LoadError> {
    let failed = |source: io::Error| LoadError::System {
        what: format!("cannot bind a thread to CPU {cpu}"),
        source,
    };
    if cpu >= CpuSet::MAX_CPU {
        return Err(failed(io::Error::other(format!(
            "CPUs are numbered below {}",
            CpuSet::MAX_CPU
        ))));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|e| failed(e.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn procfs_lines_are_read() {
        let stat = "42 (a) (b)) S 1 2 3 4 5 6 7 8 9 10 700 300 0 0 20 0 1 0 9 8 7";
        assert_eq!(ticks(stat), Some((700, 300)));
        assert_eq!(ticks("42 (a) S 1"), None);
        assert_eq!(schedstat_ns("123 45 6\n"), Some((123, 45)));
    }

    #[test]
    fn new_threads_count_from_nothing_and_old_ones_from_before() {
        let reading = |threads: &[(u32, (u64, u64))], ticks| Reading {
            threads: threads.iter().copied().collect(),
            ticks,
        };
        let before = reading(&[(1, (100, 10))], (10, 10));
        let after = reading(&[(1, (150, 15)), (2, (7, 1))], (13, 11));
        let used = after.since(&before);
        assert_eq!(
            (used.cpu_ns, used.wait_ns, used.user_share),
            (57, 6, Some(0.75))
        );
    }

    #[test]
    fn this_process_can_be_read_and_a_process_that_is_not_there_is_named() {
        let before = Reading::of(std::process::id()).expect("own procfs");
        let sum: u64 = (0..3_000_000u64).fold(0, |a, b| std::hint::black_box(a ^ b));
        let after = Reading::of(std::process::id()).expect("own procfs");
        assert!(after.since(&before).cpu_ns > 0, "{sum}");
        let error = Reading::of(u32::MAX)
            .expect_err("no such process")
            .to_string();
        assert!(error.contains("/proc/4294967295/stat"), "{error}");
    }
}
