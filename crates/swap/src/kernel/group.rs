//! A control group with a limit of memory: what it uses, what it counts, and how it is reclaimed.
//!
//! Version 2 has a file to reclaim by (`memory.reclaim`). Version 1 has none, but whoever lowers a
//! limit below what is used reclaims until it fits, and the new limit holds only then: so it is
//! lowered by what is to be free and put back at once.
//!
//! What it never does: start a thread; hold a lock; remove a group that has processes.
//!
//! *Thread safety*: shared; a limit is set by one thread at a time, since version 1 lowers it.

use super::hierarchy::Version;
use crate::error::{SwapError, Trying};
use nyx_base::Nanos;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A limit that version 1 shows where there is none is above this.
const NO_LIMIT: u64 = 1 << 60;
/// That of a group without one.
pub(super) const UNLIMITED: u64 = u64::MAX;
/// No limit that can be.
const NEVER: u64 = u64::MAX - 1;
/// Groups of runs have names that begin so.
pub(super) const RUN_PREFIX: &str = "nyx-swap-";
/// Longest file of one number.
const NUMBER_BYTES: usize = 32;

/// See the module.
#[derive(Debug)]
pub struct Group {
    version: Version,
    dir: PathBuf,
    /// Where stalls are told, if it is another one.
    pressure: Option<PathBuf>,
    used: File,
    limit: File,
    /// The limit that was set last, as the kernel shows it.
    last_set: AtomicU64,
    /// Version 2's.
    reclaim: Option<File>,
}

/// What a group counts, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Faults of any kind.
    pub faults: u64,
    /// Faults that waited for a device.
    pub major_faults: u64,
    /// How often a process found no memory free and had to reclaim for itself. Version 1 counts
    /// attempts to take memory that failed, which are at least as many.
    pub inline_reclaims: u64,
    /// Bytes on swap now.
    pub swapped: u64,
    /// Bytes that were used at most; none where the kernel does not tell (version 2 before 5.19).
    pub peak: Option<u64>,
    /// Processes that were killed since there was neither memory nor swap.
    pub oom_kills: u64,
    /// How long at least one of its threads stalled for memory; none where no group tells of it.
    pub stalled: Option<Nanos>,
    /// CPU time of its threads, outside of the kernel and in it; none where no group tells of it.
    pub cpu: Option<[Nanos; 2]>,
}

impl Counts {
    /// What was counted since `earlier`; what is a state stays as it is.
    pub fn since(&self, earlier: &Counts) -> Counts {
        let less = |now: Nanos, before: Option<Nanos>| {
            Nanos(now.0.saturating_sub(before.unwrap_or_default().0))
        };
        let cpu_before = earlier.cpu.unwrap_or_default();
        Counts {
            faults: self.faults.saturating_sub(earlier.faults),
            major_faults: self.major_faults.saturating_sub(earlier.major_faults),
            inline_reclaims: self.inline_reclaims.saturating_sub(earlier.inline_reclaims),
            oom_kills: self.oom_kills.saturating_sub(earlier.oom_kills),
            stalled: self.stalled.map(|now| less(now, earlier.stalled)),
            cpu: self.cpu.map(|[user, system]| {
                [
                    less(user, Some(cpu_before[0])),
                    less(system, Some(cpu_before[1])),
                ]
            }),
            ..*self
        }
    }
}

impl Group {
    /// One that is there.
    pub(crate) fn open(
        version: Version,
        dir: PathBuf,
        pressure: Option<PathBuf>,
    ) -> Result<Group, SwapError> {
        let open = |name: &str, (reads, writes)| {
            let path = dir.join(name);
            let file = OpenOptions::new().read(reads).write(writes).open(&path);
            file.trying("open", &path)
        };
        let (used, limit) = match version {
            Version::V1 => ("memory.usage_in_bytes", "memory.limit_in_bytes"),
            Version::V2 => ("memory.current", "memory.max"),
        };
        let reclaim = match version {
            Version::V1 => None,
            Version::V2 => Some(open("memory.reclaim", (false, true))?),
        };
        Ok(Group {
            version,
            used: open(used, (true, false))?,
            limit: open(limit, (true, true))?,
            last_set: AtomicU64::new(NEVER),
            reclaim,
            dir,
            pressure,
        })
    }

    /// One that is there, of either version.
    pub fn at(dir: PathBuf) -> Result<Group, SwapError> {
        let version = match dir.join("memory.limit_in_bytes").exists() {
            true => Version::V1,
            false => Version::V2,
        };
        Group::open(version, dir, None)
    }

    /// The same; stalls and CPU time are told by that group of version 2.
    pub fn telling_stalls_by(self, pressure: Option<PathBuf>) -> Group {
        Group { pressure, ..self }
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// All directories that belong to it: a process that is to be in the group is put in each.
    pub fn dirs(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.dir), self.pressure.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
    }

    /// Of control groups.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Bytes that it uses.
    pub fn used(&self) -> Result<u64, SwapError> {
        let number = number_in(&self.used).trying("read what is used in", &self.dir)?;
        Ok(number.unwrap_or(0))
    }

    /// Bytes that it has on swap alone: a page that was read back and is still there too counts as
    /// used. None where the kernel does not count them.
    pub fn swapped(&self) -> Option<u64> {
        let of_file = |name: &str| self.text(name).and_then(|text| number(&text));
        match self.version {
            Version::V2 => {
                let all = of_file("memory.swap.current")?;
                let in_both = field(&self.text("memory.stat")?, "swapcached");
                Some(all.saturating_sub(in_both.unwrap_or(0)))
            }
            // The statistics would tell too, but take a hundred times longer.
            Version::V1 => {
                let both = of_file("memory.memsw.usage_in_bytes")?;
                Some(both.saturating_sub(self.used().ok()?))
            }
        }
    }

    /// Bytes that it may use; none where it is not limited.
    pub fn limit(&self) -> Option<u64> {
        let shown = self.shown_limit();
        (shown != UNLIMITED).then_some(shown)
    }

    /// Limits it. Where it uses more, the caller reclaims until it does not.
    pub fn set_limit(&self, bytes: Option<u64>) -> Result<(), SwapError> {
        let text = match (bytes, self.version) {
            (Some(bytes), _) => bytes.to_string(),
            (None, Version::V1) => "-1".to_owned(),
            (None, Version::V2) => "max".to_owned(),
        };
        put(&self.limit, &text).trying("limit", &self.dir)?;
        self.last_set.store(bytes.map_or(UNLIMITED, shown), Relaxed);
        Ok(())
    }

    /// The limit in force, or [`UNLIMITED`].
    pub(super) fn shown_limit(&self) -> u64 {
        self.read_limit().unwrap_or(UNLIMITED)
    }

    /// The same, where it can be read.
    fn read_limit(&self) -> io::Result<u64> {
        let bytes = number_in(&self.limit)?;
        Ok(bytes.filter(|&bytes| bytes < NO_LIMIT).unwrap_or(UNLIMITED))
    }

    /// What [`Group::shown_limit`] is where nobody has set a limit after this process last did;
    /// none where it never did.
    pub(super) fn last_set(&self) -> Option<u64> {
        let last = self.last_set.load(Relaxed);
        (last != NEVER).then_some(last)
    }

    /// Reclaims until `down_to` bytes are used, of the `limit` that it has, as far as that can be;
    /// false where it could not. The caller does the work, and waits: for as long as programs take
    /// what it frees.
    pub fn reclaim(&self, down_to: u64, limit: u64) -> Result<bool, SwapError> {
        if self.reclaim_once(down_to, limit)? {
            return Ok(true);
        }
        self.recount();
        self.reclaim_once(down_to, limit)
    }

    /// False where nothing more could be freed just now.
    fn reclaim_once(&self, down_to: u64, limit: u64) -> Result<bool, SwapError> {
        let freed = match &self.reclaim {
            Some(file) => {
                let used = self.used()?;
                match used.checked_sub(down_to) {
                    None | Some(0) => Ok(()),
                    Some(bytes) => put(file, &bytes.to_string()),
                }
            }
            None => {
                let freed = put(&self.limit, &down_to.to_string());
                // Another's is left, which was set at the same moment.
                let is_ours = |now| [shown(down_to), shown(limit)].contains(&now);
                // One that cannot be read may be the lowered one.
                if self.read_limit().map_or(true, is_ours) {
                    self.set_limit(Some(limit))?;
                }
                freed
            }
        };
        match freed {
            Err(error) if is_partial(&error) => Ok(false),
            other => other.trying("reclaim memory of", &self.dir).map(|()| true),
        }
    }

    /// Has the kernel count its pages anew. It looks for pages that are not in use, when the list
    /// of them is short, by a count that is up to some seconds old: until the count is taken again
    /// it finds none to free, and kills, though nearly all could go (decision 0017). Who reads
    /// what it counts has it count, where that is off by more than 64 pages for each CPU.
    pub(super) fn recount(&self) {
        // Where it cannot be read, all is as without it.
        let _ = self.text("memory.stat");
    }

    /// Whether a process that finds neither memory nor anything to reclaim waits instead of being
    /// killed. Version 1 can do that; false where it cannot be had. Who waits is woken by the next
    /// [`Group::reclaim`]. A group that is made below begins with what this one has.
    pub fn set_oom_waits(&self, waits: bool) -> bool {
        if !waits {
            self.let_below_be_killed();
        }
        self.version == Version::V1 && set_oom_waits(&self.dir, waits)
    }

    /// Nobody wakes those who wait at the limit of a group that a program made below. Those of runs
    /// of their own are their launchers'.
    pub(super) fn let_below_be_killed(&self) {
        if self.version != Version::V1 {
            return;
        }
        let of_a_run = |dir: &Path| {
            let below = dir.strip_prefix(&self.dir).unwrap_or(dir).components();
            let mut names = below.map(|name| name.as_os_str().to_string_lossy());
            names.any(|name| name.starts_with(RUN_PREFIX))
        };
        let groups = with_below(&self.dir).into_iter();
        for dir in groups.filter(|dir| *dir != self.dir && !of_a_run(dir)) {
            set_oom_waits(&dir, false);
        }
    }

    /// Wakes who waits so, where there is a page of room though nothing was reclaimed: the kernel
    /// does that where a limit is raised. It is never above what it is to be.
    pub(super) fn wake(&self, limit: u64) -> Result<(), SwapError> {
        let page = rustix::param::page_size() as u64;
        self.reclaim(limit.saturating_sub(page), limit).map(|_| ())
    }

    /// Whether a process waits so.
    pub fn is_under_oom(&self) -> bool {
        let text = self.text("memory.oom_control");
        text.and_then(|text| field(&text, "under_oom")) == Some(1)
    }

    /// What it counts.
    pub fn counts(&self) -> Counts {
        let stat = self.text("memory.stat").unwrap_or_default();
        let (prefix, events, peak) = match self.version {
            Version::V1 => ("total_", "memory.oom_control", "memory.max_usage_in_bytes"),
            Version::V2 => ("", "memory.events", "memory.peak"),
        };
        let events = self.text(events).unwrap_or_default();
        let of_stat = |name: &str| field(&stat, &format!("{prefix}{name}")).unwrap_or(0);
        Counts {
            faults: of_stat("pgfault"),
            major_faults: of_stat("pgmajfault"),
            inline_reclaims: self.inline_reclaims(),
            swapped: self.swapped().unwrap_or(0),
            peak: self.text(peak).and_then(|text| number(&text)),
            oom_kills: field(&events, "oom_kill").unwrap_or(0),
            stalled: self.stalled(),
            cpu: self.cpu(),
        }
    }

    /// [`Counts::inline_reclaims`] alone.
    pub(super) fn inline_reclaims(&self) -> u64 {
        let count = match self.version {
            Version::V1 => self.text("memory.failcnt").and_then(|text| number(&text)),
            Version::V2 => self
                .text("memory.events")
                .and_then(|text| field(&text, "max")),
        };
        count.unwrap_or(0)
    }

    /// CPU time of its programs, and of the kernel for them; none where that is not counted.
    pub(super) fn cpu(&self) -> Option<[Nanos; 2]> {
        let dir = self.pressure.as_ref().unwrap_or(&self.dir);
        let text = fs::read_to_string(dir.join("cpu.stat")).ok()?;
        let time = |name: &str| field(&text, name).map(Nanos::from_micros);
        Some([time("user_usec")?, time("system_usec")?])
    }

    /// How long at least one of its threads stalled for memory.
    pub fn stalled(&self) -> Option<Nanos> {
        let dir = self.pressure.as_ref().unwrap_or(&self.dir);
        let text = fs::read_to_string(dir.join("memory.pressure")).ok()?;
        stalled(&text)
    }

    /// The processes in it, and in groups that they made below it.
    pub fn processes(&self) -> Vec<u32> {
        processes_below(&self.dir)
    }

    /// Puts a process in it.
    pub fn add(&self, pid: u32) -> Result<(), SwapError> {
        for dir in self.dirs() {
            let path = dir.join("cgroup.procs");
            fs::write(&path, pid.to_string()).trying("put a process in", &path)?;
        }
        Ok(())
    }

    fn text(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.dir.join(name)).ok()
    }
}

/// As [`Group::set_oom_waits`], of the group at `dir` alone.
fn set_oom_waits(dir: &Path, waits: bool) -> bool {
    fs::write(
        dir.join("memory.oom_control"),
        if waits { "1" } else { "0" },
    )
    .is_ok()
}

/// The processes in a group and in all below it.
pub(super) fn processes_below(dir: &Path) -> Vec<u32> {
    let texts = with_below(dir).into_iter();
    let texts = texts.filter_map(|dir| fs::read_to_string(dir.join("cgroup.procs")).ok());
    texts
        .flat_map(|text| {
            let pids = text.lines().filter_map(|line| line.parse().ok());
            pids.collect::<Vec<u32>>()
        })
        .collect()
}

/// A group and all below it, in the order in which they can be removed.
pub(super) fn with_below(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let below = dirs.flat_map(|entry| with_below(&entry.path()));
    below.chain([dir.to_owned()]).collect()
}

/// The number in a control file; none where it holds a word.
fn number_in(file: &File) -> io::Result<Option<u64>> {
    let mut text = [0; NUMBER_BYTES];
    let len = file.read_at(&mut text, 0)?;
    Ok(str::from_utf8(&text[..len]).ok().and_then(number))
}

/// A control file takes what is written in one piece.
fn put(mut file: &File, text: &str) -> io::Result<()> {
    io::Write::write_all(&mut file, text.as_bytes())
}

/// A limit as it is read again: in whole pages.
fn shown(bytes: u64) -> u64 {
    match bytes < NO_LIMIT {
        true => bytes - bytes % rustix::param::page_size() as u64,
        false => UNLIMITED,
    }
}

/// Whether as much was done as could be just now.
pub(super) fn is_partial(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, ResourceBusy, WouldBlock};
    matches!(error.kind(), WouldBlock | ResourceBusy | Interrupted)
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The value of a line `name value`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == name).then(|| number(value)).flatten()
    })
}

/// The total of the line `some` of a pressure file, which is in microseconds.
fn stalled(text: &str) -> Option<Nanos> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let total = some
        .split(' ')
        .find_map(|word| word.strip_prefix("total="))?;
    number(total).map(Nanos::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        let stat = "cache 0\npgmajfault 12\ntotal_pgmajfault 34\n";
        assert_eq!(field(stat, "total_pgmajfault"), Some(34));
        assert_eq!(field(stat, "pgfault"), None);
        let pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234\nfull avg10=0.00 total=9";
        assert_eq!(stalled(pressure), Some(Nanos::from_micros(1234)));
        assert_eq!(stalled(""), None);
        assert_eq!(number("512\n"), Some(512));
        assert_eq!(number("max\n"), None);
    }

    /// Something like a group of version 2 that uses 20480 bytes, of plain files.
    fn v2(dir: &Path) -> Group {
        for (name, text) in [
            ("memory.current", "20480"),
            ("memory.max", "max"),
            ("memory.reclaim", ""),
        ] {
            fs::write(dir.join(name), text).unwrap();
        }
        Group::at(dir.to_owned()).unwrap()
    }

    #[test]
    fn a_page_in_memory_and_on_swap_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        let stat = "anon 20480\nswapcached 8192\n";
        for (name, text) in [("memory.swap.current", "16384"), ("memory.stat", stat)] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let group = v2(dir.path());
        assert_eq!((group.version(), group.limit()), (Version::V2, None));
        assert_eq!(
            (group.used().unwrap(), group.swapped()),
            (20480, Some(8192))
        );
    }

    /// A full pipe answers as the kernel does where it finds nothing to free. Whoever opens the
    /// counts has it emptied.
    #[test]
    fn where_nothing_can_be_freed_it_has_the_kernel_count_and_tries_again() {
        let dir = tempfile::tempdir().unwrap();
        let stat = dir.path().join("memory.stat");
        let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &stat, fifo, mode, 0).unwrap();
        let (mut asked, mut asks) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&asks, true).unwrap();
        let mut filled_bytes = 0;
        while let Ok(written) = io::Write::write(&mut asks, &[0; 4096]) {
            filled_bytes += written;
        }
        let group = Group {
            reclaim: Some(File::from(std::os::fd::OwnedFd::from(asks))),
            ..v2(dir.path())
        };
        let (counts, counted) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // Until somebody reads it.
            let open = OpenOptions::new().write(true).open(stat).unwrap();
            let mut filled = vec![0; filled_bytes];
            io::Read::read_exact(&mut asked, &mut filled).unwrap();
            counts.send(asked).unwrap();
            // From here on whoever reads has read all.
            drop(open);
        });
        assert!(group.reclaim(4096, UNLIMITED).unwrap());
        drop(group);
        let mut asked = counted.try_recv().expect("nobody had it count");
        let mut text = String::new();
        io::Read::read_to_string(&mut asked, &mut text).unwrap();
        assert_eq!(text, "16384");
    }

    /// Something like a group of version 1 with a limit of a page, of plain files.
    fn v1(dir: &Path) -> Group {
        fs::write(dir.join("memory.usage_in_bytes"), "0").unwrap();
        fs::write(dir.join("memory.limit_in_bytes"), "4096").unwrap();
        Group::at(dir.to_owned()).unwrap()
    }

    #[test]
    fn a_lowered_limit_is_put_back_even_where_it_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memory.limit_in_bytes");
        let group = v1(dir.path());
        let group = Group {
            limit: OpenOptions::new()
                .write(true)
                .truncate(true)
                .open(&path)
                .unwrap(),
            ..group
        };
        assert!(group.reclaim(4096, 8192).unwrap());
        // What the kernel takes one after the other stands there one after the other.
        assert_eq!(fs::read_to_string(path).unwrap(), "40968192");
    }

    #[test]
    fn groups_below_do_not_wait_where_nobody_wakes_them() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["", "made/below", "nyx-swap-1-2", "nyx-swap-1-2/made"];
        let control = |name: &str| dir.path().join(name).join("memory.oom_control");
        for name in names {
            fs::create_dir_all(dir.path().join(name)).unwrap();
            fs::write(control(name), "1").unwrap();
        }
        let group = v1(dir.path());
        let waits = || names.map(|name| fs::read_to_string(control(name)).unwrap());
        group.let_below_be_killed();
        assert_eq!(waits(), ["1", "0", "1", "1"]);
        assert!(group.set_oom_waits(false));
        assert_eq!(waits(), ["0", "0", "1", "1"]);
        assert!(group.set_oom_waits(true));
        assert_eq!(waits(), ["1", "0", "1", "1"]);
    }

    #[test]
    fn a_process_in_a_group_below_is_one_of_the_group() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        fs::write(below.join("cgroup.procs"), "12\n13\n").unwrap();
        fs::write(dir.path().join("cgroup.procs"), "11\n").unwrap();
        assert_eq!(processes_below(dir.path()), [12, 13, 11]);
        let order = [below, dir.path().join("a"), dir.path().to_owned()];
        assert_eq!(with_below(dir.path()), order);
    }
}
