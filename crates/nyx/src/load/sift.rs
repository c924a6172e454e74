//! Leaves out of the latencies what somebody else on the machine did to them.
//!
//! Where the server's threads, or the generator's own, were ready and had no CPU, requests waited
//! for whoever had it. A run is looked at in slices; the latencies of a slice in which that
//! happened, and of the next one, in which what piled up is answered, are set aside and counted. It
//! depends on what the kernel says of the threads and never on a latency.
//!
//! What it never does: leave out operations or errors, or tell the server's threads that share a
//! CPU with each other from those that share it with somebody else.

use super::{LoadError, cpu};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The shortest slice, in nanoseconds.
const SLICE_NS: u64 = 10_000_000;
/// A thread that waited longer than this in a slice was disturbed, in nanoseconds. Being woken on a
/// CPU that is idle counts some microseconds, and there may be a hundred of that in a slice.
const WAITED_NS_MAX: u64 = 500_000;
/// The longest `schedstat`, in bytes.
const SCHEDSTAT_BYTES_MAX: usize = 128;

/// See the module. Belongs to one generator thread.
pub(crate) struct Sift {
    threads: Vec<Thread>,
    begun_ns: u64,
    was_disturbed: bool,
}

/// A thread that is watched.
struct Thread {
    schedstat: File,
    waited_ns: u64,
}

impl Sift {
    /// Watches the calling thread and those of process `pid`.
    pub(crate) fn new(pid: u32) -> Result<Sift, LoadError> {
        let mut threads = vec![Thread::open(Path::new("/proc/thread-self"))?];
        let tasks = PathBuf::from(format!("/proc/{pid}/task"));
        let entries = std::fs::read_dir(&tasks).map_err(|error| cpu::unreadable(&tasks, error))?;
        for entry in entries {
            let entry = entry.map_err(|error| cpu::unreadable(&tasks, error))?;
            threads.push(Thread::open(&entry.path())?);
        }
        Ok(Sift {
            threads,
            begun_ns: 0,
            was_disturbed: true,
        })
    }

    /// Whether the latencies since the last slice's end count; nothing while the slice goes on.
    pub(crate) fn slice(&mut self, now_ns: u64) -> Option<bool> {
        if now_ns < self.begun_ns.saturating_add(SLICE_NS) {
            return None;
        }
        self.begun_ns = now_ns;
        let waited = self.threads.iter_mut().map(Thread::waited_ns);
        let is_disturbed = waited.max().unwrap_or(0) > WAITED_NS_MAX;
        let was_disturbed = std::mem::replace(&mut self.was_disturbed, is_disturbed);
        Some(!is_disturbed && !was_disturbed)
    }
}

impl Thread {
    fn open(task: &Path) -> Result<Thread, LoadError> {
        let path = task.join("schedstat");
        let schedstat = File::open(&path).map_err(|error| cpu::unreadable(&path, error))?;
        Ok(Thread {
            schedstat,
            waited_ns: 0,
        })
    }

    /// For how long it waited for a CPU since the last call. A thread that has ended waits no more.
    fn waited_ns(&mut self) -> u64 {
        let mut text = [0; SCHEDSTAT_BYTES_MAX];
        let read = self.schedstat.read_at(&mut text, 0).unwrap_or(0);
        let text = std::str::from_utf8(&text[..read]).unwrap_or_default();
        let waited_ns = cpu::schedstat_ns(text).map_or(self.waited_ns, |times| times.1);
        let before_ns = std::mem::replace(&mut self.waited_ns, waited_ns);
        waited_ns.saturating_sub(before_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn of(text: &str) -> (tempfile::TempDir, Sift) {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("schedstat"), text).expect("a file");
        let sift = Sift {
            threads: vec![Thread::open(dir.path()).expect("a thread")],
            begun_ns: 0,
            was_disturbed: false,
        };
        (dir, sift)
    }

    #[test]
    fn a_slice_counts_unless_somebody_waited_in_it_or_in_the_one_before() {
        let (dir, mut sift) = of("900 100 5\n");
        let waited = |ns: u64| {
            std::fs::write(dir.path().join("schedstat"), format!("900 {ns} 5\n")).expect("a file");
        };
        assert_eq!(sift.slice(9 * MS), None, "it goes on");
        assert_eq!(sift.slice(10 * MS), Some(true));
        waited(100 + WAITED_NS_MAX);
        assert_eq!(sift.slice(19 * MS), None);
        assert_eq!(sift.slice(20 * MS), Some(true), "as much as waking counts");
        waited(101 + 2 * WAITED_NS_MAX);
        assert_eq!(sift.slice(30 * MS), Some(false));
        assert_eq!(sift.slice(40 * MS), Some(false), "what piled up");
        assert_eq!(sift.slice(50 * MS), Some(true));
    }

    #[test]
    fn own_threads_can_be_watched_and_a_process_that_is_not_there_is_named() {
        let sift = Sift::new(std::process::id()).expect("own procfs");
        assert!(sift.threads.len() >= 2);
        let error = Sift::new(u32::MAX).err().expect("no such process");
        assert!(
            error.to_string().contains("/proc/4294967295/task"),
            "{error}"
        );
    }
}
