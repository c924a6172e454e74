//! What a run made: written down before it is made, so that whoever comes next can take it down.
//!
//! A run that ends takes down what it made itself. One that is killed cannot; the next run finds
//! its record, sees that its launcher is gone, and does it. Programs that outlive their launcher
//! are left alone: their group stays until they end.
//!
//! What it never does: take down what has an owner; end a process.
//!
//! *Thread safety*: [`Registry::lock`] keeps all runs of one user apart while one of them sets
//! up or takes down.

use super::group::{Group, UNLIMITED};
use super::table;
use super::zram::Zram;
use crate::error::{SwapError, Trying};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Names the directory of the records in the environment. What records name is taken down: nobody
/// else may write there.
const PLACE_VARIABLE: &str = "NYX_SWAP_STATE";

/// Where the records of this user are.
#[derive(Clone, Debug)]
pub struct Registry {
    dir: PathBuf,
}

/// Held by whoever sets up or takes down.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "the file is locked while it is open")] File);

/// What a run made.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Record {
    /// The launcher.
    pub launcher: Process,
    /// The program, once it runs.
    pub program: Option<u32>,
    /// What was run.
    pub command: Vec<String>,
    /// The group with the limit, the first, and all others that belong to it.
    pub groups: Vec<PathBuf>,
    /// A swap area that it turned on.
    pub swap: Option<PathBuf>,
    /// A file that it made.
    pub file: Option<OwnFile>,
    /// A zram device that it took.
    pub zram: Option<Zram>,
    /// The limit that a group had which it did not make, in bytes: it gets it back.
    pub limit_before: Option<Option<u64>>,
    /// It gets it back where the limit that it has is one of these, which this run may have set:
    /// another is somebody else's, and stays.
    pub limits_set: RangeInclusive<u64>,
    #[serde(skip)]
    path: PathBuf,
}

/// A file that can be told from another one that stands at its path later.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OwnFile {
    /// Its path.
    pub path: PathBuf,
    /// Its filesystem's number.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

/// A process that can be told from a later one of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it began, in ticks since the machine did.
    pub start_ticks: u64,
}

/// What could not be taken down.
#[derive(Debug)]
pub enum Residue {
    /// Programs of a run whose launcher is gone go on, within their limit.
    Running {
        /// Their group.
        group: PathBuf,
        /// They.
        pids: Vec<u32>,
    },
    /// The system refused something.
    Refused(SwapError),
}

/// A group whose last process has ended can still be busy for a moment.
const REMOVE_TRIES: u32 = 100;
const REMOVE_PAUSE: Duration = Duration::from_millis(10);

impl Registry {
    /// That of this user: where [`PLACE_VARIABLE`] says, or else under `/run`, or where runtime
    /// files of users are.
    pub fn open() -> Result<Registry, SwapError> {
        Registry::first_of(places())
    }

    /// The first in which this user may lock: one that is there may be another user's.
    fn first_of(places: Vec<PathBuf>) -> Result<Registry, SwapError> {
        let mut refused = None;
        for dir in places {
            let made = fs::create_dir_all(&dir).trying("make", &dir);
            let registry = Registry { dir };
            match made.and_then(|()| registry.open_lock()) {
                Ok(_) => return Ok(registry),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.expect("there is a first place"))
    }

    /// All that this user may see, those of others too.
    pub fn seen() -> Vec<Registry> {
        let dirs = places().into_iter();
        dirs.map(Registry::at).collect()
    }

    /// One in a directory that is there.
    pub fn at(dir: PathBuf) -> Registry {
        Registry { dir }
    }

    /// Waits until nobody else sets up or takes down.
    pub fn lock(&self) -> Result<Lock, SwapError> {
        let file = self.open_lock()?;
        flock(&file, FlockOperation::LockExclusive).trying("lock", &self.dir)?;
        Ok(Lock(file))
    }

    fn open_lock(&self) -> Result<File, SwapError> {
        let path = self.dir.join("lock");
        File::create(&path).trying("make", &path)
    }

    /// A new record of this process; nothing is written yet.
    pub fn record(&self, command: Vec<String>) -> Record {
        let launcher = Process::of(std::process::id()).expect("this process runs");
        self.record_of(launcher, command)
    }

    fn record_of(&self, launcher: Process, command: Vec<String>) -> Record {
        Record {
            path: self.dir.join(format!("{}.json", launcher.name())),
            launcher,
            program: None,
            command,
            groups: Vec::new(),
            swap: None,
            file: None,
            zram: None,
            limit_before: None,
            limits_set: 0..=UNLIMITED,
        }
    }

    /// All records. What is not there or cannot be read is none.
    pub fn records(&self) -> Vec<Record> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        let mut records: Vec<Record> = paths
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| extension == "json")
            })
            .filter_map(|path| Record::read(&path))
            .collect();
        records.sort_by_key(|record| record.launcher.start_ticks);
        records
    }

    /// Takes down what runs left whose launcher is gone; what could not be. Under the lock.
    pub fn take_down_orphans(&self, _lock: &Lock) -> Vec<Residue> {
        let orphans = self.records().into_iter();
        let orphans = orphans.filter(|record| !record.launcher.runs());
        orphans.flat_map(|record| record.take_down()).collect()
    }
}

impl Record {
    fn read(path: &Path) -> Option<Record> {
        let text = fs::read(path).ok()?;
        let record: Record = serde_json::from_slice(&text).ok()?;
        Some(Record {
            path: path.to_owned(),
            ..record
        })
    }

    /// Writes it, whole or not at all.
    pub fn save(&self) -> Result<(), SwapError> {
        let text = serde_json::to_vec_pretty(self).expect("a record can be written");
        let new = self.path.with_extension("new");
        fs::write(&new, text).trying("write", &new)?;
        fs::rename(&new, &self.path).trying("write", &self.path)
    }

    /// Takes down what it names, in the order in which that can be, and forgets the record where
    /// all of it is gone. What could not be taken down. Under the registry's lock.
    pub fn take_down(&self) -> Vec<Residue> {
        if let Some(running) = self.running() {
            // Nobody would wake who waits for memory any more.
            if let Some(group) = self.groups.first()
                && let Ok(group) = Group::at(group.clone())
            {
                group.set_oom_waits(false);
            }
            return vec![running];
        }
        let mut left = Vec::new();
        let mut note =
            |result: Result<(), SwapError>| left.extend(result.err().map(Residue::Refused));
        for group in &self.groups {
            note(match self.limit_before {
                None => remove_group(group),
                Some(limit) => give_back_limit(group, limit, &self.limits_set),
            });
        }
        if !left.is_empty() {
            // Somebody may still need what is on swap.
            return left;
        }
        let mut note =
            |result: Result<(), SwapError>| left.extend(result.err().map(Residue::Refused));
        if self.file.as_ref().is_some_and(OwnFile::is_replaced) {
            // What stands there now was not made here, nor turned on.
            let _ = fs::remove_file(&self.path);
            return left;
        }
        // A device that is still on is not to be reset, nor a file removed.
        let is_off = self.swap.as_deref().map_or(Ok(()), turn_off);
        if let Err(error) = is_off {
            note(Err(error));
        } else {
            note(self.zram.as_ref().map_or(Ok(()), Zram::take_down));
            let path = self.file.as_ref().map(|file| file.path.as_path());
            note(path.map_or(Ok(()), remove_file));
        }
        if left.is_empty() {
            let _ = fs::remove_file(&self.path);
        }
        left
    }

    /// Programs that are still in its groups.
    fn running(&self) -> Option<Residue> {
        let made = self.groups.iter().filter(|_| self.limit_before.is_none());
        made.filter_map(|group| {
            let text = fs::read_to_string(group.join("cgroup.procs")).ok()?;
            let pids: Vec<u32> = text.lines().filter_map(|pid| pid.parse().ok()).collect();
            let group = group.clone();
            (!pids.is_empty()).then_some(Residue::Running { group, pids })
        })
        .next()
    }
}

impl OwnFile {
    /// One that was just made at this path.
    pub(super) fn of(path: PathBuf, file: &File) -> io::Result<OwnFile> {
        let data = file.metadata()?;
        Ok(OwnFile {
            path,
            device: data.dev(),
            inode: data.ino(),
        })
    }

    /// Whether something else stands at its path.
    fn is_replaced(&self) -> bool {
        let data = fs::symlink_metadata(&self.path);
        data.is_ok_and(|data| (data.dev(), data.ino()) != (self.device, self.inode))
    }
}

impl Process {
    /// One that runs; none where it does not.
    pub fn of(pid: u32) -> Option<Process> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let start_ticks = start_ticks_of_running(&text)?;
        Some(Process { pid, start_ticks })
    }

    /// A name that no other process has had since the machine began.
    pub(super) fn name(&self) -> String {
        format!("{}-{}", self.pid, self.start_ticks)
    }

    /// Whether it still runs.
    pub fn runs(&self) -> bool {
        Process::of(self.pid).as_ref() == Some(self)
    }
}

/// Where records may be, best first; at least one.
fn places() -> Vec<PathBuf> {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    match of(PLACE_VARIABLE) {
        Some(dir) => vec![PathBuf::from(dir)],
        None => [Some("/run".into()), of("XDG_RUNTIME_DIR")]
            .into_iter()
            .flatten()
            .map(|parent| Path::new(&parent).join("nyx/swap"))
            .collect(),
    }
}

/// Field 22 of proc_pid_stat(5); none of a process that has ended and is only not waited for yet,
/// which field 3 tells. The second is a name in brackets, which may hold anything.
fn start_ticks_of_running(stat: &str) -> Option<u64> {
    let (_, after) = stat.rsplit_once(')')?;
    let mut fields = after.split_whitespace();
    let state = fields.next()?;
    let has_ended = matches!(state, "Z" | "X" | "x");
    fields.nth(18).filter(|_| !has_ended)?.parse().ok()
}

fn remove_group(group: &Path) -> Result<(), SwapError> {
    let mut tries = 0;
    loop {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && tries < REMOVE_TRIES => {
                tries += 1;
                thread::sleep(REMOVE_PAUSE);
            }
            other => return gone(other).trying("remove the control group", group),
        }
    }
}

fn give_back_limit(
    group: &Path,
    limit: Option<u64>,
    set: &RangeInclusive<u64>,
) -> Result<(), SwapError> {
    if !group.exists() {
        return Ok(());
    }
    let group = Group::at(group.to_owned())?;
    match set.contains(&group.shown_limit()) {
        true => group.set_limit(limit),
        false => Ok(()),
    }
}

fn turn_off(path: &Path) -> Result<(), SwapError> {
    match table::is_on(path)? {
        true => table::turn_off(path).trying("turn off swap on", path),
        false => Ok(()),
    }
}

fn remove_file(path: &Path) -> Result<(), SwapError> {
    gone(fs::remove_file(path)).trying("remove", path)
}

/// What is not there need not be removed.
fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_told_from_a_later_one_of_its_number() {
        let own = Process::of(std::process::id()).unwrap();
        assert!(own.runs());
        let later = Process {
            start_ticks: own.start_ticks + 1,
            ..own
        };
        assert!(!later.runs());
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4 5 6 7 8 9 10 11 12 20 0 1 0 4711 9 9";
        assert_eq!(start_ticks_of_running(stat), Some(4711));
    }

    #[test]
    fn a_process_that_has_ended_and_is_not_waited_for_does_not_run() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        assert!(process.runs());
        drop(child.stdin.take());
        // Its end is seen, and it stays a zombie.
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&child)), ended).unwrap();
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        assert!(stat.contains(") Z "), "{stat}");
        assert!(!process.runs());
        child.wait().unwrap();
    }

    #[test]
    fn a_place_in_which_nobody_may_lock_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let [theirs, own] = ["theirs", "own"].map(|name| dir.path().join(name));
        // A lock that cannot be opened, by root neither.
        fs::create_dir_all(theirs.join("lock")).unwrap();
        let found = Registry::first_of(vec![theirs.clone(), own.clone()]).unwrap();
        assert_eq!(found.dir, own);
        let error = Registry::first_of(vec![theirs.clone()]).unwrap_err();
        let lock = theirs.join("lock").display().to_string();
        assert!(error.to_string().contains(&lock), "{error}");
    }

    #[test]
    fn a_later_process_of_the_same_number_has_a_record_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::at(dir.path().to_owned());
        let own = Process::of(std::process::id()).unwrap();
        let launchers = [own.start_ticks, own.start_ticks + 1];
        let launchers = launchers.map(|start_ticks| Process { start_ticks, ..own });
        for launcher in launchers {
            registry.record_of(launcher, Vec::new()).save().unwrap();
        }
        let found: Vec<Process> = registry.records().iter().map(|one| one.launcher).collect();
        assert_eq!(found, launchers);
    }

    #[test]
    fn a_limit_is_given_back_only_where_nobody_else_has_set_another() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("group");
        fs::create_dir(&group).unwrap();
        fs::write(group.join("memory.usage_in_bytes"), "0").unwrap();
        let limit = group.join("memory.limit_in_bytes");
        let (before, ours, theirs) = (64 << 20, 32 << 20, 48 << 20);
        let mut record = Registry::at(dir.path().to_owned()).record(Vec::new());
        record.groups.push(group);
        record.limit_before = Some(Some(before));
        for (set, now, after) in [
            (ours..=ours, ours, before),
            (ours..=ours, theirs, theirs),
            // A launcher that was killed: what it was about is not known better.
            (0..=ours, ours - 4096, before),
            (0..=ours, theirs, theirs),
            (0..=UNLIMITED, theirs, before),
        ] {
            fs::write(&limit, now.to_string()).unwrap();
            record.limits_set = set.clone();
            assert!(record.take_down().is_empty());
            let left = fs::read_to_string(&limit).unwrap();
            assert_eq!(left, after.to_string(), "{set:?}, {now}");
        }
    }

    #[test]
    fn a_file_that_stands_where_one_was_made_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::at(dir.path().to_owned());
        let [path, other] = ["swap", "other"].map(|name| dir.path().join(name));
        let made = File::create(&path).unwrap();
        let mut record = registry.record(Vec::new());
        record.file = Some(OwnFile::of(path.clone(), &made).unwrap());
        record.swap = Some(path.clone());
        record.save().unwrap();
        fs::write(&other, "theirs").unwrap();
        fs::rename(&other, &path).unwrap();
        assert!(record.take_down().is_empty());
        assert_eq!(fs::read(&path).unwrap(), b"theirs");
        assert!(registry.records().is_empty(), "its own file is gone");
    }

    #[test]
    fn a_record_is_found_again_and_only_without_its_launcher_taken_down() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::at(dir.path().to_owned());
        let file = dir.path().join("swap");
        let made = File::create(&file).unwrap();
        let mut record = registry.record(vec!["sort".to_owned()]);
        record.file = Some(OwnFile::of(file.clone(), &made).unwrap());
        record.save().unwrap();
        assert_eq!(registry.records(), std::slice::from_ref(&record));

        let lock = registry.lock().unwrap();
        assert!(registry.take_down_orphans(&lock).is_empty());
        assert!(file.exists(), "its launcher runs");

        record.launcher.start_ticks += 1;
        record.save().unwrap();
        assert!(registry.take_down_orphans(&lock).is_empty());
        assert!(!file.exists());
        assert!(registry.records().is_empty());
        // Once more: nothing is left, and nothing is wrong with that.
        assert!(record.take_down().is_empty());
    }
}
