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

use super::area;
use super::group::{Group, UNLIMITED, processes_below, with_below};
use super::hierarchy::Version;
use super::report::Figures;
use super::rotation::Rotation;
use super::table;
use super::zram::Zram;
use crate::arena::ArenaFigures;
use crate::error::{SwapError, Trying};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Of no limit it is said that this run set it.
#[allow(clippy::reversed_empty_ranges, reason = "it holds none")]
const NO_LIMITS: RangeInclusive<u64> = 1..=0;

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
    pub program: Option<Process>,
    /// Who takes down at once where the launcher is killed.
    pub watcher: Option<Process>,
    /// What was run.
    pub command: Vec<String>,
    /// The group with the limit, the first, and all others that belong to it.
    pub groups: Vec<PathBuf>,
    /// Swap areas that it turned on, and those of runs that ended before it, which it used too.
    pub areas: Vec<OwnArea>,
    /// Areas of others to which its memory goes.
    pub uses: Uses,
    /// The limit that a group had which it did not make, in bytes: it gets it back.
    pub limit_before: Option<Option<u64>>,
    /// It gets it back where the limit that it has is one of these, which this run may have set:
    /// another is somebody else's, and stays.
    pub limits_set: RangeInclusive<u64>,
    /// The limit that its programs keep, in bytes, where it is a number: version 1 lowers it to
    /// reclaim, and a launcher that is killed just then leaves it so.
    #[serde(default)]
    pub limit: Option<u64>,
    #[serde(skip)]
    path: PathBuf,
}

/// A swap area that a run turned on.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OwnArea {
    /// A file or a device.
    pub path: PathBuf,
    /// What its header says of it: another area at this path has another.
    pub uuid: [u8; area::UUID_BYTES],
    /// The file, if it was made for it.
    pub file: Option<OwnFile>,
    /// The zram device, if it was taken for it.
    pub zram: Option<Zram>,
    /// What its disk says when it is turned on and off, where that is to be doubted.
    #[serde(default)]
    pub rotation: Option<Rotation>,
}

/// Swap areas that a run found on.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Uses {
    /// None: it brought its own.
    #[default]
    None,
    /// All that the machine has.
    Machine,
    /// One.
    Area(PathBuf),
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
    /// A swap area that holds memory of a process that goes on and was only attached to.
    InUse {
        /// The area.
        area: PathBuf,
        /// Processes of the group.
        pids: Vec<u32>,
    },
    /// The system refused something.
    Refused(SwapError),
}

/// Another group that is at its limit has room again before long, or ends.
const OFF_AGAIN: (u32, Duration) = (200, Duration::from_millis(50));
/// A group whose last process has ended can still be busy for a moment.
const REMOVE_AGAIN: (u32, Duration) = (100, Duration::from_millis(10));
/// A lock that another has is tried again after this time.
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// Who takes down what a killed launcher left looks so often whether its programs go on.
const WATCH_PAUSE: Duration = Duration::from_millis(200);

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

    /// The same, unless it is over meanwhile.
    pub fn lock_unless(&self, is_over: &AtomicBool) -> Result<Lock, SwapError> {
        let file = self.open_lock()?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Lock(file)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).trying("lock", &self.dir),
            }
            if is_over.load(Relaxed) {
                return Err(SwapError::Interrupted);
            }
            thread::sleep(LOCK_PAUSE);
        }
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
            watcher: None,
            command,
            groups: Vec::new(),
            areas: Vec::new(),
            uses: Uses::None,
            limit_before: None,
            limits_set: 0..=UNLIMITED,
            limit: None,
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

    /// Where it is written.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory in which processes with an arena keep their figures. It goes with the record.
    pub(super) fn arena_dir(&self) -> PathBuf {
        self.path.with_extension("arena")
    }

    /// What arenas of its processes did; none where none did anything.
    pub fn arena(&self) -> Option<ArenaFigures> {
        ArenaFigures::read_all(&self.arena_dir())
    }

    /// What is written there now: others may have handed it an area. Under the registry's lock.
    pub(super) fn again(&self) -> Record {
        Record::read(&self.path).unwrap_or_else(|| self.clone())
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
        self.restore_rotations();
        if let Some(running) = self.running() {
            self.let_go();
            let mut rest = self.clone();
            // Somebody may lower it from now on.
            let saved = rest.limit.take().and_then(|_| rest.save().err());
            let refused = saved.map(Residue::Refused);
            return [running].into_iter().chain(refused).collect();
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
        let mut rest = self.clone();
        // What was given back once is not touched again.
        rest.limits_set = NO_LIMITS;
        rest.areas.clear();
        for area in &self.areas {
            let pids = self.users_of(area);
            if !pids.is_empty() {
                let area = area.path.clone();
                left.push(Residue::InUse { area, pids });
            } else if area.is_replaced() || self.hands_on(area) {
                continue;
            } else if let Err(error) = area.take_down() {
                left.push(Residue::Refused(error));
            } else {
                continue;
            }
            rest.areas.push(area.clone());
        }
        let saved = match left.is_empty() {
            true => {
                Figures::remove(self);
                remove_tree(&self.arena_dir()).and_then(|()| remove_file(&self.path))
            }
            false => rest.save(),
        };
        left.extend(saved.err().map(Residue::Refused));
        left
    }

    /// Programs go on without their launcher: nobody would wake who waits for memory any more, nor
    /// raise a limit that was lowered. Needs no lock.
    fn let_go(&self) {
        let made = self.groups.first().filter(|_| self.limit_before.is_none());
        let Some(Ok(group)) = made.map(|group| Group::at(group.clone())) else {
            return;
        };
        group.set_oom_waits(false);
        let is_lowered =
            |limit: &u64| group.version() == Version::V1 && group.shown_limit() < *limit;
        if let Some(limit) = self.limit.filter(is_lowered)
            && let Err(error) = group.set_limit(Some(limit))
        {
            tracing::warn!(limit, %error, "programs go on with a lower limit in bytes");
        }
    }

    /// What disks said before, where somebody was killed while they said otherwise.
    fn restore_rotations(&self) {
        let rotations = self.areas.iter().filter_map(|area| area.rotation.as_ref());
        for rotation in rotations {
            if let Err(error) = rotation.restore() {
                // All else is to be taken down nevertheless.
                tracing::warn!(%error, "a disk does not say any more that it rotates, as it did");
            }
        }
    }

    /// Processes that were attached to, go on, and may have memory on an area.
    fn users_of(&self, area: &OwnArea) -> Vec<u32> {
        let is_used = table::used(&area.path).is_some_and(|bytes| bytes > 0);
        match self.limit_before.is_some() && is_used {
            true => self
                .groups
                .iter()
                .flat_map(|group| processes_below(group))
                .collect(),
            false => Vec::new(),
        }
    }

    /// Hands an area on to a run that uses it and goes on, which then takes it down; false where
    /// there is none. Under the registry's lock.
    fn hands_on(&self, area: &OwnArea) -> bool {
        let Some(dir) = self.path.parent() else {
            return false;
        };
        let uses = |other: &Record| match &other.uses {
            Uses::None => false,
            Uses::Machine => true,
            Uses::Area(path) => *path == area.path,
        };
        let mut records = Registry::at(dir.to_owned()).records().into_iter();
        let heir = records.find(|other| {
            let goes_on = || other.launcher.runs() || other.running().is_some();
            other.path != self.path && uses(other) && goes_on()
        });
        heir.is_some_and(|mut heir| {
            heir.areas.push(area.clone());
            heir.save().is_ok()
        })
    }

    /// Programs that are still in its groups.
    fn running(&self) -> Option<Residue> {
        let made = self.groups.iter().filter(|_| self.limit_before.is_none());
        made.filter_map(|group| {
            let pids = processes_below(group);
            let group = group.clone();
            (!pids.is_empty()).then_some(Residue::Running { group, pids })
        })
        .next()
    }
}

impl OwnArea {
    /// Whether something else stands at its path.
    fn is_replaced(&self) -> bool {
        let is_other_file = self.file.as_ref().is_some_and(OwnFile::is_replaced);
        is_other_file || area::uuid(&self.path).is_ok_and(|uuid| uuid != self.uuid)
    }

    /// A device that is still on is not reset, nor a file removed.
    fn take_down(&self) -> Result<(), SwapError> {
        turn_off(&self.path, self.rotation.as_ref())?;
        self.zram.as_ref().map_or(Ok(()), Zram::take_down)?;
        let path = self.file.as_ref().map(|file| file.path.as_path());
        path.map_or(Ok(()), remove_file)
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

/// Waits until `launcher` ends, whose other end the launcher has, and takes down what is written in
/// `record` then: at once what nobody needs, and the rest when its programs have ended. For a
/// process of its own.
pub fn watch(record: &Path, launcher: &mut impl io::Read) -> Result<(), SwapError> {
    io::copy(launcher, &mut io::sink()).trying("wait for the launcher of", record)?;
    let registry = Registry::at(record.parent().unwrap_or(record).to_owned());
    loop {
        // Who has the lock may take minutes to turn swap off.
        let killed = Record::read(record).filter(|record| !record.launcher.runs());
        killed.iter().for_each(Record::let_go);
        let lock = registry.lock()?;
        let Some(record) = Record::read(record) else {
            return Ok(());
        };
        if !record.launcher.runs() {
            let left = record.take_down();
            let is_refused = |residue: &Residue| matches!(residue, Residue::Refused(_));
            if left.iter().any(is_refused) {
                // The next run tells.
                return Ok(());
            }
        }
        drop(lock);
        thread::sleep(WATCH_PAUSE);
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

/// With those that programs made below it.
fn remove_group(group: &Path) -> Result<(), SwapError> {
    with_below(group)
        .iter()
        .try_for_each(|group| remove_one_group(group))
}

fn remove_one_group(group: &Path) -> Result<(), SwapError> {
    let remove = || fs::remove_dir(group);
    let removed = again_while(io::ErrorKind::ResourceBusy, REMOVE_AGAIN, remove);
    gone(removed).trying("remove the control group", group)
}

/// Does it, so many times more where it fails by that, with a pause before each.
fn again_while(
    kind: io::ErrorKind,
    (times, pause): (u32, Duration),
    act: impl Fn() -> io::Result<()>,
) -> io::Result<()> {
    let mut done = act();
    for _ in 0..times {
        match &done {
            Err(error) if error.kind() == kind => thread::sleep(pause),
            _ => break,
        }
        done = act();
    }
    done
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

/// Where another group is at its limit, what it has in the area finds no room at this moment: areas
/// of runs beside each other are used in turns. Each try brings some of it back.
fn turn_off(path: &Path, rotation: Option<&Rotation>) -> Result<(), SwapError> {
    if !table::is_on(path)? {
        return Ok(());
    }
    let turn_off = || {
        let turn_off = || table::turn_off(path);
        let done = again_while(io::ErrorKind::OutOfMemory, OFF_AGAIN, turn_off);
        done.trying("turn off swap on", path)
    };
    match rotation {
        Some(rotation) => rotation.during(turn_off),
        None => turn_off(),
    }
}

fn remove_file(path: &Path) -> Result<(), SwapError> {
    gone(fs::remove_file(path)).trying("remove", path)
}

fn remove_tree(path: &Path) -> Result<(), SwapError> {
    gone(fs::remove_dir_all(path)).trying("remove", path)
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
    fn what_fails_by_one_kind_of_error_is_done_again_so_many_times() {
        let busy = io::ErrorKind::ResourceBusy;
        let run = |fails: u32, kind: io::ErrorKind| {
            let done = std::cell::Cell::new(0);
            let result = again_while(busy, (3, Duration::ZERO), || {
                done.set(done.get() + 1);
                match done.get() <= fails {
                    true => Err(kind.into()),
                    false => Ok(()),
                }
            });
            (result.map_err(|error| error.kind()), done.get())
        };
        assert_eq!(run(0, busy), (Ok(()), 1));
        assert_eq!(run(3, busy), (Ok(()), 4));
        assert_eq!(run(9, busy), (Err(busy), 4));
        let other = io::ErrorKind::NotFound;
        assert_eq!(run(9, other), (Err(other), 1));
    }

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

    /// Of a launcher that is gone, whose program goes on in something like a group of version 1.
    fn record_of_running(dir: &Path, registry: &Registry) -> (Record, PathBuf) {
        let group = dir.join("group");
        fs::create_dir(&group).unwrap();
        let (shown, own) = ((60 << 20).to_string(), std::process::id().to_string());
        for (name, text) in [
            ("memory.usage_in_bytes", "0"),
            ("memory.limit_in_bytes", &shown),
            ("memory.oom_control", "1"),
            ("cgroup.procs", &own),
        ] {
            fs::write(group.join(name), text).unwrap();
        }
        let gone = Process {
            pid: std::process::id(),
            start_ticks: 1,
        };
        let mut record = registry.record_of(gone, Vec::new());
        record.groups.push(group.clone());
        record.limit = Some(64 << 20);
        (record, group)
    }

    #[test]
    fn a_program_whose_launcher_was_killed_has_its_limit_and_does_not_wait() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::at(dir.path().to_owned());
        let (record, group) = record_of_running(dir.path(), &registry);
        let read = |name: &str| fs::read_to_string(group.join(name)).unwrap();
        let left = record.take_down();
        assert!(matches!(left[..], [Residue::Running { .. }]), "{left:?}");
        assert_eq!(read("memory.limit_in_bytes"), (64 << 20).to_string());
        assert_eq!(read("memory.oom_control"), "0");
        // Later it is somebody else who lowers it.
        fs::write(group.join("memory.limit_in_bytes"), "4096").unwrap();
        record.again().take_down();
        assert_eq!(read("memory.limit_in_bytes"), "4096");
    }

    #[test]
    fn who_waits_for_memory_need_not_wait_for_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::at(dir.path().to_owned());
        let (record, group) = record_of_running(dir.path(), &registry);
        record.save().unwrap();
        let lock = registry.lock().unwrap();
        let path = record.path().to_owned();
        let watcher = thread::spawn(move || watch(&path, &mut io::empty()));
        // It would wait for ever.
        while fs::read_to_string(group.join("memory.oom_control")).unwrap() != "0" {
            thread::sleep(LOCK_PAUSE);
        }
        fs::remove_file(record.path()).unwrap();
        drop(lock);
        watcher.join().unwrap().unwrap();
    }

    /// Of a disk whose attribute is that file.
    fn denied(word: &Path) -> Rotation {
        let rotation = serde_json::json!({
            "attribute": word,
            "rotates": false,
            "is_denied": true,
        });
        serde_json::from_value(rotation).unwrap()
    }

    /// A record of a swap file on such a disk, and that file.
    fn record_of_denied(registry: &Registry, word: &Path) -> (Record, PathBuf) {
        let swap = registry.dir.join("swap");
        let made = File::create(&swap).unwrap();
        let mut record = registry.record(Vec::new());
        record.areas.push(OwnArea {
            rotation: Some(denied(word)),
            ..own_area(&swap, &made)
        });
        (record, swap)
    }

    #[test]
    fn what_a_disk_said_is_restored_where_its_launcher_was_killed() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::at(dir.path().to_owned());
        let word = dir.path().join("rotational");
        fs::write(&word, "0").unwrap();
        let (record, swap) = record_of_denied(&registry, &word);
        record.save().unwrap();
        assert!(registry.records()[0].take_down().is_empty());
        assert_eq!(fs::read_to_string(&word).unwrap(), "1");
        assert!(registry.records().is_empty() && !swap.exists());
    }

    #[test]
    fn a_word_that_cannot_be_restored_keeps_nothing_from_being_taken_down() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::at(dir.path().to_owned());
        // What cannot be written, by root neither.
        let word = dir.path().join("rotational");
        fs::create_dir(&word).unwrap();
        let (record, swap) = record_of_denied(&registry, &word);
        assert!(record.take_down().is_empty());
        assert!(registry.records().is_empty() && !swap.exists());
    }

    fn own_area(path: &Path, made: &File) -> OwnArea {
        OwnArea {
            path: path.to_owned(),
            uuid: [7; area::UUID_BYTES],
            file: Some(OwnFile::of(path.to_owned(), made).unwrap()),
            zram: None,
            rotation: None,
        }
    }

    #[test]
    fn an_area_that_was_made_anew_in_the_same_file_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("swap");
        let made = File::create(&path).unwrap();
        made.set_len(1 << 20).unwrap();
        let mut record = Registry::at(dir.path().to_owned()).record(Vec::new());
        record.areas.push(own_area(&path, &made));
        area::format(&path, 1 << 20, [8; area::UUID_BYTES]).unwrap();
        assert!(record.take_down().is_empty());
        assert!(path.exists(), "another has made it an area of its own");
        area::format(&path, 1 << 20, [7; area::UUID_BYTES]).unwrap();
        assert!(record.take_down().is_empty());
        assert!(!path.exists());
    }

    #[test]
    fn an_area_goes_to_who_uses_it_and_the_last_takes_it_down() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::at(dir.path().to_owned());
        let [path, elsewhere] = ["swap", "elsewhere"].map(|name| dir.path().join(name));
        let made = File::create(&path).unwrap();
        let own = Process::of(std::process::id()).unwrap();
        let mut children: Vec<_> = (0..3)
            .map(|_| Command::new("cat").stdin(Stdio::piped()).spawn().unwrap())
            .collect();
        let record = |at: usize, uses: Uses| {
            let launcher = Process::of(children[at].id()).unwrap();
            let mut record = registry.record_of(launcher, Vec::new());
            record.uses = uses;
            record.save().unwrap();
            record
        };
        let other = record(0, Uses::Area(elsewhere));
        let users = [
            record(1, Uses::Area(path.clone())),
            record(2, Uses::Machine),
        ];
        let mut first = registry.record_of(own, Vec::new());
        first.areas.push(own_area(&path, &made));
        first.save().unwrap();
        let mut ending = first;
        for _ in 0..users.len() {
            assert!(ending.take_down().is_empty());
            assert!(path.exists(), "somebody uses it");
            assert!(!ending.path().exists());
            let has_it = |user: &&Record| user.path().exists() && !user.again().areas.is_empty();
            ending = users.iter().find(has_it).unwrap().again();
        }
        assert!(other.again().areas.is_empty());
        assert!(ending.take_down().is_empty());
        assert!(!path.exists(), "nobody uses it any more");
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_file_that_stands_where_one_was_made_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::at(dir.path().to_owned());
        let [path, other] = ["swap", "other"].map(|name| dir.path().join(name));
        let made = File::create(&path).unwrap();
        let mut record = registry.record(Vec::new());
        record.areas.push(own_area(&path, &made));
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
        record.areas.push(own_area(&file, &made));
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
