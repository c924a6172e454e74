//! What the launcher and the preload library tell each other: terms, in an environment variable
//! that every program which the first one starts has too, and figures, in a file for each process.
//!
//! What it never does: more than to write that down and read it.

use nyx_base::Latencies;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The variable that has the terms. A process that has none, or none that can be read, is left as
/// it is by the preload library.
pub const TERMS: &str = "NYX_SWAP_ARENA";
/// The preload library's file name; it lies beside the launcher.
pub const LIBRARY: &str = "libnyx_preload.so";

/// What an arena may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Bytes that the whole group may have in memory.
    pub limit_bytes: u64,
    /// Bytes of an arena: of addresses, and of its file of pages.
    pub len_bytes: u64,
    /// Where pages go: a directory, in which each process makes a file that has no name; or a block
    /// device, or a file behind its first page, all of which the first process takes that wants
    /// some.
    pub pages: PathBuf,
    /// The group's `memory.stat`, by which is seen what the rest of the program has in memory.
    pub stat: Option<PathBuf>,
    /// A directory in which each process keeps its figures.
    pub figures: Option<PathBuf>,
    /// The purse out of which arenas pay for their device; none where it is nobody else's.
    pub purse: Option<PathBuf>,
}

impl Terms {
    /// The variable and its value.
    pub fn variable(&self) -> (&'static str, OsString) {
        let text = serde_json::to_string(self).expect("terms can be written");
        (TERMS, text.into())
    }

    /// Those of this process; none where there are none, an error where they cannot be read.
    pub fn of_process() -> Option<Result<Terms, serde_json::Error>> {
        let text = std::env::var_os(TERMS)?;
        Some(serde_json::from_slice(text.as_encoded_bytes()))
    }
}

/// What an arena did, or several together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaFigures {
    /// Processes that had one.
    pub processes: u64,
    /// Why a process has none, where it was to.
    pub refused: Option<String>,
    /// Faults that needed the device.
    pub major_faults: u64,
    /// Faults that did not.
    pub minor_faults: u64,
    /// Pages read ahead.
    pub ahead_pages: u64,
    /// Pages written.
    pub written_pages: u64,
    /// Faults that had to reclaim.
    pub inline_reclaims: u64,
    /// Faults that gave SIGBUS.
    pub failed: u64,
    /// Copies that were made for children of `fork`.
    pub forks: u64,
    /// CPU time of the threads that answer faults and reclaim.
    pub cpu_ns: u64,
    /// Half of the faults took no longer, from their being heard of until their answer; of several
    /// processes the longest of all.
    pub p50_ns: u64,
    /// The same of 99 in 100.
    pub p99_ns: u64,
}

impl ArenaFigures {
    /// How long faults took.
    #[must_use]
    pub fn with_faults(self, faults: &Latencies) -> ArenaFigures {
        let of = |part| faults.quantile_ns(part).map_or(0, |time| time as u64);
        ArenaFigures {
            p50_ns: of(0.5),
            p99_ns: of(0.99),
            ..self
        }
    }

    /// Adds what another process did.
    pub fn add(&mut self, other: ArenaFigures) {
        self.processes += other.processes;
        self.refused = self.refused.take().or(other.refused);
        self.major_faults += other.major_faults;
        self.minor_faults += other.minor_faults;
        self.ahead_pages += other.ahead_pages;
        self.written_pages += other.written_pages;
        self.inline_reclaims += other.inline_reclaims;
        self.failed += other.failed;
        self.forks += other.forks;
        self.cpu_ns += other.cpu_ns;
        self.p50_ns = self.p50_ns.max(other.p50_ns);
        self.p99_ns = self.p99_ns.max(other.p99_ns);
    }

    /// Writes them for that process; who reads meanwhile has the old ones or the new.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn write(&self, dir: &Path, pid: u32) -> io::Result<()> {
        let path = dir.join(format!("arena-{pid}.json"));
        let new = path.with_extension("new");
        fs::write(&new, serde_json::to_vec(self)?)?;
        fs::rename(new, path)
    }

    /// All that processes wrote in a directory; none where none did.
    pub fn read_all(dir: &Path) -> Option<ArenaFigures> {
        let mut sum: Option<ArenaFigures> = None;
        for entry in fs::read_dir(dir).ok()?.flatten() {
            let is_done = entry.path().extension().is_some_and(|end| end == "json");
            let text = fs::read(entry.path()).unwrap_or_default();
            if let (true, Ok(one)) = (is_done, serde_json::from_slice(&text)) {
                sum.get_or_insert_default().add(one);
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_processes_are_added_up() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(ArenaFigures::read_all(dir.path()), None);
        let one = ArenaFigures {
            processes: 1,
            major_faults: 5,
            p99_ns: 7,
            ..ArenaFigures::default()
        };
        let other = ArenaFigures {
            refused: Some("no userfaultfd".to_owned()),
            ..one.clone()
        };
        one.write(dir.path(), 1).unwrap();
        other.write(dir.path(), 2).unwrap();
        fs::write(dir.path().join("arena-3.new"), "{").unwrap();
        let sum = ArenaFigures::read_all(dir.path()).unwrap();
        assert_eq!((sum.processes, sum.major_faults, sum.p99_ns), (2, 10, 7));
        assert_eq!(sum.refused, other.refused);
    }

    #[test]
    fn terms_are_read_as_they_were_written() {
        let terms = Terms {
            limit_bytes: 1 << 29,
            len_bytes: 1 << 34,
            pages: "/var/tmp".into(),
            stat: None,
            figures: Some("/run/nyx".into()),
            purse: Some("/run/nyx/purse".into()),
        };
        let (name, value) = terms.variable();
        assert_eq!(name, TERMS);
        let read: Terms = serde_json::from_slice(value.as_encoded_bytes()).unwrap();
        assert_eq!(read, terms);
    }
}
