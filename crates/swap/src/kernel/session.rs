//! A program that has less memory than it uses, from its start to its report.
//!
//! What it never does: leave something behind, unless it is killed: then the next one takes it down
//! ([`Registry`]). What was set up before an error is taken down too.
//!
//! One that is dropped is taken down; programs of it that go on do so within their limit.
//!
//! *Thread safety*: one owner; [`Remote`] sends signals from anywhere.

use super::area::{Area, Source};
use super::faults::Faults;
use super::group::{Counts, Group, RUN_PREFIX, UNLIMITED};
use super::hierarchy::{Hierarchy, Version};
use super::preload::{Arena, Preload};
use super::probe::ProbeReport;
use super::readahead::{ReadAhead, Reader};
use super::reclaimer::{Amount, Orders, Reclaimer, lower_limit};
use super::record::{Lock, Process, Record, Registry, Residue};
use super::report::{Figures, Outcome, Report};
use super::watcher::Watcher;
use crate::error::{SwapError, Trying};
use crate::region::Till;
use nyx_base::Nanos;
use nyx_policy::paging::budget::{BUDGET_BYTES_MIN, share_of};
use nyx_policy::paging::pool::Rule;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What is used is looked at so often, for the report.
const LOOK: Duration = Duration::from_millis(200);
/// Figures are written for others so often.
const TELL: Duration = Duration::from_secs(1);
/// Touches that a report keeps at most.
const SAMPLES_MOST: usize = 1 << 20;

/// How much memory a program gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Memory {
    /// So many bytes.
    Bytes(u64),
    /// So many percent of what it has in memory and on swap, at any time.
    Percent(u8),
    /// As little as slows it down by this part of its time (0.05).
    Slowdown(f64),
}

/// Who reads ahead what a program has on swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    /// A thread of this process, where there is a reclaimer and a device that reads by itself.
    #[default]
    Auto,
    /// A thread of this process.
    Ahead,
    /// The kernel alone.
    Kernel,
}

/// How a program is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How much memory it gets; none leaves a group that is attached to its limit.
    pub memory: Option<Memory>,
    /// Where the rest goes.
    pub source: Source,
    /// Bytes of swap that is made for it; none for what [`Area::set_up`] thinks right.
    pub area_size: Option<u64>,
    /// How much is kept free.
    pub rule: Rule,
    /// Whether the program waits where the kernel finds nothing to reclaim just now, instead of
    /// being killed. A group that is attached to is left as it is.
    pub oom_waits: bool,
    /// Who reads ahead; for [`Session::attach`] the kernel alone.
    pub reads: Reads,
    /// To which CPU the reclaimer is kept, and who reads ahead; none leaves the former to any.
    pub cpu: Option<usize>,
    /// A page on swap is touched so often to see how long that takes; none for never.
    pub probe: Option<Probe>,
    /// Makes the command that calls [`super::enter`].
    pub enter: fn(&Entry<'_>) -> Command,
    /// Makes the command that calls [`super::watch`] for this record, at the end of a pipe; none
    /// leaves it to the next run to take down what is left where this process is killed.
    pub watch: Option<fn(&Path) -> Command>,
    /// Nothing is begun any more where this is set before the program is.
    pub is_over: Arc<AtomicBool>,
    /// The program pages for itself as far as this goes; none leaves all to the kernel. Not for
    /// [`Session::attach`].
    pub arena: Option<Arena>,
    /// Who grants the arena's device time: gets the till before the program begins. None where the
    /// device is nobody else's.
    pub meter: Option<SyncSender<Till>>,
}

impl Plan {
    fn area(&self, record: &mut Record) -> Result<Area, SwapError> {
        // Without a reclaimer all is the kernel's, as it stands.
        let is_believed = self.rule == Rule::Off;
        Area::set_up(&self.source, self.area_size, is_believed, record)
    }

    /// Whether somebody is to hear of faults; what the program pages for itself is not the
    /// kernel's.
    fn hears(&self, area: &Area) -> bool {
        match self.reads {
            Reads::Auto => self.rule != Rule::Off && self.arena.is_none() && !area.is_zram(),
            // Without a reclaimer there is no room for it.
            Reads::Ahead => self.rule != Rule::Off,
            Reads::Kernel => false,
        }
    }
}

/// What enters groups, and what it is then.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The groups' directories.
    pub groups: &'a [PathBuf],
    /// Variables that the command gets beyond those of this process.
    pub variables: &'a [(OsString, OsString)],
    /// The command.
    pub command: &'a [OsString],
}

/// How touches are measured.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The command line of a process that writes a touch's nanoseconds per line
    /// ([`super::probe()`]).
    pub command: Vec<OsString>,
}

/// See the module.
#[derive(Debug)]
pub struct Session {
    registry: Registry,
    record: Record,
    group: Arc<Group>,
    area: Area,
    rule: Rule,
    program: Program,
    probe: Option<Prober>,
    reclaimer: Option<Reclaimer>,
    reader: Option<Result<Reader, String>>,
    before: Counts,
    began: Instant,
    peaks: Peaks,
    watcher: Option<Watcher>,
    told: Option<Instant>,
    has_arena: bool,
    is_finished: bool,
}

/// What runs.
#[derive(Debug)]
struct Program {
    /// None where it was there before.
    child: Option<Child>,
    watch: Arc<OwnedFd>,
    status: Option<ExitStatus>,
}

/// The most that was seen.
#[derive(Clone, Copy, Debug, Default)]
struct Peaks {
    used: u64,
    swapped: u64,
}

/// Sends signals to a session's program, from any thread.
#[derive(Clone, Debug)]
pub struct Remote {
    watch: Arc<OwnedFd>,
    group: Arc<Group>,
    is_own: bool,
}

impl Session {
    /// Sets all up and starts `command`. `told` hears of what earlier runs left that could not be
    /// taken down.
    pub fn start(
        plan: &Plan,
        command: &[OsString],
        told: impl FnMut(&Residue),
    ) -> Result<Session, SwapError> {
        // Where no program can be limited nothing is made at all, nor where it can have no arena.
        let hierarchy = Hierarchy::find()?;
        let arena = plan.arena.as_ref();
        let arena = arena.map(|arena| Preload::check(arena, plan.memory));
        let arena = arena.transpose()?;
        let registry = Registry::open()?;
        let lock = registry.lock_unless(&plan.is_over)?;
        registry.take_down_orphans(&lock).iter().for_each(told);
        let record = registry.record(words(command));
        let mut setup = Setup {
            record,
            lock: Some(lock),
        };
        let area = plan.area(&mut setup.record)?;
        goes_on(plan)?;
        if let Some(Memory::Bytes(bytes)) = plan.memory {
            setup.record.limit = Some(bytes);
        }
        let group = Arc::new(setup.make_group(&hierarchy)?);
        is_told(plan, &group)?;
        if let Some(bytes) = plan.memory.and_then(first_limit) {
            group.set_limit(Some(bytes))?;
        }
        let dirs: Vec<PathBuf> = group.dirs().map(Path::to_owned).collect();
        let entry = |command, variables| {
            (plan.enter)(&Entry {
                groups: &dirs,
                variables,
                command,
            })
        };
        let probe = plan.probe.as_ref();
        let probe = probe.map(|probe| Prober::start(entry(&probe.command, &[])));
        let probe = probe.transpose()?;
        let variables = arena.as_ref();
        let meter = plan.meter.as_ref();
        let variables = variables.map(|arena| arena.variables(&group, &setup.record, meter));
        let variables = variables.transpose()?.unwrap_or_default();
        let watcher = setup.watch(plan)?;
        let reclaimer = start_reclaimer(plan, &group, &area)?;
        goes_on(plan)?;
        // Of all that this thread starts from here on.
        let faults = plan.hears(&area).then(Faults::of_children);
        let began = Instant::now();
        let program = setup.begin(entry(command, &variables))?;
        let reader = faults.map(|faults| start_reader(faults, &group, &reclaimer));
        let session = Session::of(plan, setup, (registry, group, area, program, reclaimer));
        Ok(session.with(|session| {
            session.probe = probe;
            session.reader = reader;
            session.began = began;
            session.has_arena = arena.is_some();
            session.watcher = watcher;
        }))
    }

    /// Keeps memory free for a process that runs, in the group in which it is.
    pub fn attach(plan: &Plan, pid: u32, told: impl FnMut(&Residue)) -> Result<Session, SwapError> {
        let refused = |reason: &str| SwapError::NotAttachable {
            pid,
            reason: reason.to_owned(),
        };
        let watch = watch(pid)?;
        let registry = Registry::open()?;
        let lock = registry.lock_unless(&plan.is_over)?;
        registry.take_down_orphans(&lock).iter().for_each(told);
        let group = Hierarchy::of_process(pid)?.group().ok_or_else(|| {
            refused(
                "it is in no control group of its own, and memory that it has stays where it is",
            )
        })??;
        let group = Arc::new(group);
        let before = group.limit();
        if before.is_none() && plan.memory.is_none() {
            return Err(refused("its group has no limit: give one (--memory)"));
        }
        let dir = group.dir().to_owned();
        let mut records = registry.records().into_iter();
        let is_its = |other: &Record| other.groups.contains(&dir) && other.launcher.runs();
        if let Some(other) = records.find(is_its) {
            let owner = other.launcher.pid;
            return Err(refused(&format!(
                "process {owner} keeps memory free for its group already"
            )));
        }
        let mut record = registry.record(vec![name_of(pid)]);
        record.program = Process::of(pid);
        record.groups.push(dir);
        record.limit_before = Some(before);
        record.save()?;
        let mut setup = Setup {
            record,
            lock: Some(lock),
        };
        let area = plan.area(&mut setup.record)?;
        let counts = group.counts();
        limit_attached(plan, &group, before, pid)?;
        setup.record.limits_set = limits_to_be_set(plan, &group);
        setup.record.save()?;
        let watcher = setup.watch(plan)?;
        goes_on(plan)?;
        let reclaimer = start_reclaimer(plan, &group, &area)?;
        let program = Program {
            child: None,
            watch,
            status: None,
        };
        let session = Session::of(plan, setup, (registry, group, area, program, reclaimer));
        Ok(session.with(|session| {
            session.before = counts;
            session.watcher = watcher;
        }))
    }

    fn with(mut self, change: impl FnOnce(&mut Session)) -> Session {
        change(&mut self);
        self
    }

    /// All is set up; what the group counts from its beginning is this session's.
    fn of(
        plan: &Plan,
        setup: Setup,
        (registry, group, area, program, reclaimer): (
            Registry,
            Arc<Group>,
            Area,
            Program,
            Reclaimer,
        ),
    ) -> Session {
        Session {
            registry,
            record: setup.keep(),
            group,
            area,
            rule: plan.rule,
            program,
            probe: None,
            reclaimer: Some(reclaimer),
            reader: None,
            before: Counts::default(),
            began: Instant::now(),
            peaks: Peaks::default(),
            watcher: None,
            told: None,
            has_arena: false,
            is_finished: false,
        }
    }

    /// Sends signals to the program.
    pub fn remote(&self) -> Remote {
        Remote {
            watch: Arc::clone(&self.program.watch),
            group: Arc::clone(&self.group),
            is_own: self.program.child.is_some(),
        }
    }

    /// The group in which the program runs.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Where its memory goes.
    pub fn area(&self) -> &Area {
        &self.area
    }

    /// Waits until the program ends, and all that it started, or until `is_over`, which is asked
    /// five times a second.
    pub fn wait(&mut self, mut is_over: impl FnMut() -> bool) -> Result<(), SwapError> {
        while !self.program.is_over()? && !is_over() {
            self.peaks.look(&self.group);
            self.tell();
            let mut fds = [PollFd::new(&*self.program.watch, PollFlags::IN)];
            let time = Timespec {
                tv_sec: 0,
                tv_nsec: LOOK.as_nanos() as i64,
            };
            // An interruption is as good as an end: all is looked at anew.
            let _ = poll(&mut fds, Some(&time));
        }
        self.end_probe();
        while self.program.child.is_some() && !self.group.processes().is_empty() && !is_over() {
            self.peaks.look(&self.group);
            self.tell();
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Writes what only this process knows for [`Figures::read`].
    fn tell(&mut self) {
        if self.told.is_some_and(|told| told.elapsed() < TELL) {
            return;
        }
        self.told = Some(Instant::now());
        let reclaimed = self.reclaimer.as_ref().map(Reclaimer::reclaimed);
        let reclaimed = reclaimed.unwrap_or_default();
        let figures = Figures {
            reclaims: reclaimed.times,
            reclaimed_bytes: reclaimed.bytes,
            reclaimer_cpu_ns: reclaimed.cpu.0,
            touches: self.probe.as_ref().map(Prober::touches),
            read_ahead: self.read_ahead(),
        };
        // Who looks goes without.
        let _ = figures.write(&self.record);
    }

    /// What was read ahead until now; none where nothing can be.
    fn read_ahead(&self) -> Option<ReadAhead> {
        let reader = self.reader.as_ref()?.as_ref().ok()?;
        reader.done().ok()
    }

    /// Processes of the program that go on.
    pub fn processes(&self) -> Vec<u32> {
        self.group.processes()
    }

    /// Takes all down; how the program fared, and what could not be taken down.
    pub fn finish(mut self) -> (Report, Vec<Residue>) {
        self.end_probe();
        let ran = self.began.elapsed();
        let reads = self
            .reader
            .take()
            .map(|reader| reader.and_then(Reader::stop));
        let reclaimed = self.reclaimer.take().map(Reclaimer::stop);
        self.peaks.look(&self.group);
        let counts = self.group.counts();
        let outcome = Outcome {
            command: self.record.command.clone(),
            status: self.program.status,
            ran: Nanos(ran.as_nanos() as u64),
            counts: counts.since(&self.before),
            peak: counts.peak.unwrap_or(self.peaks.used).max(self.peaks.used),
            swapped_peak: self.peaks.swapped,
            limit: self.group.limit(),
            version: self.group.version(),
            rule: self.rule,
            area: self.area.clone(),
            reclaimed: reclaimed.unwrap_or_default(),
            reads,
            probe: self.probe.take().map(|probe| probe.touches()),
            arena: self
                .has_arena
                .then(|| self.record.arena().unwrap_or_default()),
        };
        (Report::of(outcome), self.take_down())
    }

    fn end_probe(&mut self) {
        if let Some(probe) = &mut self.probe {
            probe.end();
        }
    }

    fn take_down(&mut self) -> Vec<Residue> {
        self.is_finished = true;
        Figures::remove(&self.record);
        let _lock = match self.registry.lock() {
            Ok(lock) => lock,
            Err(error) => return vec![Residue::Refused(error)],
        };
        self.record = self.record.again();
        if let Some(before) = self.record.limit_before {
            let before = before.unwrap_or(UNLIMITED);
            let last = self.group.last_set().unwrap_or(before);
            self.record.limits_set = last..=last;
            // Without it the next run knows less, where something is left for it.
            let _ = self.record.save();
        }
        let left = self.record.take_down();
        if let Some(watcher) = self.watcher.take().filter(|_| !left.is_empty()) {
            watcher.leave();
        }
        left
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        self.end_probe();
        (self.reader, self.reclaimer) = (None, None);
        for residue in self.take_down() {
            tracing::warn!(?residue, "left behind");
        }
    }
}

impl Remote {
    /// Sends a signal to the program; to what it left behind, where it has ended. Nothing where the
    /// program is not this session's.
    pub fn send(&self, signal: Signal) {
        if !self.is_own {
            return;
        }
        if pidfd_send_signal(&*self.watch, signal).is_err() {
            for pid in self.group.processes() {
                let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
                // One that has ended needs none.
                let _ = pid.map(|pid| kill_process(pid, signal));
            }
        }
    }
}

impl Program {
    /// Whether it has ended.
    fn is_over(&mut self) -> Result<bool, SwapError> {
        let Some(child) = &mut self.child else {
            let mut fds = [PollFd::new(&*self.watch, PollFlags::IN)];
            let none = Timespec::default();
            return Ok(poll(&mut fds, Some(&none)).is_ok_and(|ready| ready > 0));
        };
        if self.status.is_none() {
            let status = child.try_wait();
            self.status = status.trying("wait for", Path::new("the program"))?;
        }
        Ok(self.status.is_some())
    }
}

impl Peaks {
    fn look(&mut self, group: &Group) {
        self.used = self.used.max(group.used().unwrap_or(0));
        self.swapped = self.swapped.max(group.swapped().unwrap_or(0));
    }
}

/// What was set up, until the session has it: else it is taken down.
struct Setup {
    record: Record,
    lock: Option<Lock>,
}

impl Setup {
    /// Starts who takes down where this process is killed.
    fn watch(&mut self, plan: &Plan) -> Result<Option<Watcher>, SwapError> {
        let Some(watch) = plan.watch else {
            return Ok(None);
        };
        let watcher = Watcher::start(watch(self.record.path()))?;
        self.record.watcher = watcher.process();
        self.record.save()?;
        Ok(Some(watcher))
    }

    /// Starts the program.
    fn begin(&mut self, mut enter: Command) -> Result<Program, SwapError> {
        let child = enter.spawn();
        let mut child = child.trying("start", Path::new(enter.get_program()))?;
        self.record.program = Process::of(child.id());
        let watched = self.record.save().and_then(|()| watch(child.id()));
        let watch = watched.inspect_err(|_| {
            // Nobody would look after it.
            let _ = child.kill();
            let _ = child.wait();
        })?;
        Ok(Program {
            child: Some(child),
            watch,
            status: None,
        })
    }

    fn make_group(&mut self, hierarchy: &Hierarchy) -> Result<Group, SwapError> {
        let name = format!("{RUN_PREFIX}{}", self.record.launcher.name());
        let places = hierarchy.places(&name).into_iter();
        let dirs = places.flat_map(|(dir, pressure)| [Some(dir), pressure]);
        let mut dirs: Vec<PathBuf> = dirs.flatten().collect();
        dirs.dedup();
        self.record.groups = dirs;
        self.record.save()?;
        let group = hierarchy.create(&name)?;
        // That of a run around this one may wait.
        group.set_oom_waits(false);
        self.record.groups = group.dirs().map(Path::to_owned).collect();
        self.record.save()?;
        Ok(group)
    }

    fn keep(mut self) -> Record {
        self.lock = None;
        self.record.clone()
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        if self.lock.is_some() {
            for residue in self.record.take_down() {
                tracing::warn!(?residue, "left behind");
            }
        }
    }
}

/// A process that touches pages on swap, and who listens to it.
#[derive(Debug)]
struct Prober {
    child: Child,
    samples: Arc<Mutex<Vec<u64>>>,
}

impl Prober {
    fn start(mut command: Command) -> Result<Prober, SwapError> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.spawn();
        let mut child = child.trying("start", Path::new(command.get_program()))?;
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let samples = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&samples);
        thread::spawn(move || {
            let samples = lines
                .map_while(Result::ok)
                .filter_map(|line| line.parse().ok());
            for sample in samples.take(SAMPLES_MOST) {
                heard
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(sample);
            }
        });
        Ok(Prober { child, samples })
    }

    fn end(&mut self) {
        // One that has ended needs neither.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// What was heard until now.
    fn touches(&self) -> ProbeReport {
        let samples = self.samples.lock();
        let mut samples = samples.unwrap_or_else(PoisonError::into_inner).clone();
        ProbeReport::of(&mut samples)
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.end();
    }
}

fn start_reclaimer(plan: &Plan, group: &Arc<Group>, area: &Area) -> Result<Reclaimer, SwapError> {
    let orders = Orders {
        rule: plan.rule,
        amount: match plan.memory {
            Some(Memory::Percent(percent)) => Amount::Percent(percent),
            Some(Memory::Slowdown(most)) => Amount::Slowdown(most),
            Some(Memory::Bytes(_)) | None => Amount::Fixed,
        },
        oom_waits: plan.oom_waits,
        cpu: plan.cpu,
    };
    Reclaimer::start(Arc::clone(group), area.clone(), orders)
}

/// Begins to read ahead; why not, where that cannot be.
fn start_reader(
    faults: io::Result<Faults>,
    group: &Arc<Group>,
    reclaimer: &Reclaimer,
) -> Result<Reader, String> {
    let faults = faults.map_err(|error| format!("faults cannot be heard of (perf): {error}"))?;
    let (spare, cpu) = (reclaimer.floor_bytes() / 2, reclaimer.reclaimed().on_cpu);
    let reader = Reader::start(faults, Arc::clone(group), spare, reclaimer.thread(), cpu);
    reader.map_err(|error| error.to_string())
}

fn goes_on(plan: &Plan) -> Result<(), SwapError> {
    match plan.is_over.load(Relaxed) {
        true => Err(SwapError::Interrupted),
        false => Ok(()),
    }
}

/// Gives a group that is there the limit with which it is to begin, if it is to have another.
fn limit_attached(
    plan: &Plan,
    group: &Group,
    before: Option<u64>,
    pid: u32,
) -> Result<(), SwapError> {
    is_told(plan, group)?;
    let (used, limit) = (group.used()?, before.unwrap_or(NO_LIMIT));
    let first = match plan.memory {
        Some(Memory::Percent(percent)) => {
            share_of(percent, used + group.swapped().unwrap_or(0), limit)
        }
        other => other.and_then(first_limit),
    };
    let Some(first) = first else {
        return Ok(());
    };
    if lower_limit(group, first, (used, limit))? {
        return Ok(());
    }
    let freed = used.saturating_sub(group.used()?);
    let wanted = used.saturating_sub(first);
    let reason = format!("{freed} bytes of its memory could be reclaimed, of {wanted}");
    Err(SwapError::NotAttachable { pid, reason })
}

/// The limits that a group which is attached to may be found with where this process is killed.
fn limits_to_be_set(plan: &Plan, group: &Group) -> RangeInclusive<u64> {
    let limit = group.shown_limit();
    match (plan.memory, group.version()) {
        (Some(Memory::Percent(_) | Memory::Slowdown(_)), _) => 0..=UNLIMITED,
        // It is lowered to reclaim.
        (_, Version::V1) => 0..=limit,
        (_, Version::V2) => limit..=limit,
    }
}

/// For a group that has none.
const NO_LIMIT: u64 = u64::MAX >> 1;

/// Refuses an amount that nobody could find here.
fn is_told(plan: &Plan, group: &Group) -> Result<(), SwapError> {
    let (memory, missing) = match plan.memory {
        Some(Memory::Slowdown(_)) if group.stalled().is_none() => (
            "--memory auto",
            "stalls are told by cgroup v2 with PSI, which is not mounted or not on (psi=1)",
        ),
        Some(Memory::Percent(_)) if group.swapped().is_none() => (
            "a percentage",
            "the kernel does not count what groups have on swap (swapaccount=1)",
        ),
        _ => return Ok(()),
    };
    Err(SwapError::Untold { memory, missing })
}

/// The limit with which a program starts; none where it begins without one.
fn first_limit(memory: Memory) -> Option<u64> {
    match memory {
        Memory::Bytes(bytes) => Some(bytes),
        Memory::Percent(_) => Some(BUDGET_BYTES_MIN),
        Memory::Slowdown(_) => None,
    }
}

fn watch(pid: u32) -> Result<Arc<OwnedFd>, SwapError> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let number = number.ok_or_else(|| SwapError::NotAttachable {
        pid,
        reason: "there is no such process".to_owned(),
    })?;
    let path = PathBuf::from(format!("/proc/{pid}"));
    let watch = pidfd_open(number, PidfdFlags::empty()).trying("watch the process", &path)?;
    Ok(Arc::new(watch))
}

fn words(command: &[OsString]) -> Vec<String> {
    command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

fn name_of(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.map_or_else(|_| format!("process {pid}"), |name| name.trim().to_owned())
}
