//! The reclaimer: a thread beside a group's programs that keeps memory free for them, and sets the
//! group's limit where that is not a number (Ultraswap section 3.2). It goes to whichever CPU is
//! idle; kept to one, it would put off a program there while another CPU has nothing to do
//! (decision 0016). Where none is idle the program goes before it, and reclaims for itself what it
//! cannot wait for (decision 0018).
//!
//! What it never does: decide (`nyx_policy::paging` does); let the group have more than its limit;
//! end with the group in a worse state than it had: where it cannot reclaim, the program does.
//!
//! It also stands between the program and the kernel's out-of-memory killer, where the group can do
//! that (version 1). With a device that takes a while to write, all of a group's pages may be on
//! their way to it: the kernel finds nothing to reclaim and kills, though swap is nearly empty. So
//! the program waits instead, the reclaimer frees what has been written meanwhile, and only where
//! swap is full, or nothing can be freed for long, the kernel may do what it does.
//!
//! *Thread safety*: one thread, and one that has the kernel count; both stop when they are told to
//! or dropped.

use super::area::Area;
use super::aside::{AFTER_PROGRAMS, Aside, BEFORE_PROGRAMS, allowed_cpus};
use super::group::{Group, UNLIMITED, is_partial};
use super::hierarchy::Version;
use crate::error::SwapError;
use nyx_base::{Instant, Nanos};
use nyx_policy::paging::budget::{Finder, Pressure, share_of};
use nyx_policy::paging::pool::{Act, Pool, Rule};
use rustix::thread::CpuSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::Thread;

/// Pages that the kernel takes for one CPU at once (`MEMCG_CHARGE_BATCH`). As many for each CPU are
/// the least that is kept free.
const CHARGED_AT_ONCE_BYTES: u64 = 64 * 4096;
/// A group that cannot be read or reclaimed is tried again after this time.
const RETRY: Nanos = Nanos::from_millis(100);

/// Who waits for memory is killed where nothing could be freed for so long.
const PATIENCE: Nanos = Nanos::from_secs(10);
/// Swap is full where less of it is free.
const FULL_BYTES: u64 = 1 << 20;
/// While a group's programs reclaim for themselves its pages are counted so often. What was counted
/// before they began to may be some seconds old until the next look.
const COUNTS_AGE: Nanos = Nanos::from_millis(4);
/// So often it is looked whether they do.
const COUNTS_LOOK: Nanos = Nanos::from_millis(10);
/// Nothing was freed: the next try is that much later, and later still where nobody waits for it.
const LOOK_WAITING: Nanos = Nanos::from_millis(1);

/// How much memory a group may have.
#[derive(Clone, Debug)]
pub enum Amount {
    /// What its limit says.
    Fixed,
    /// So many percent of what it has in memory and on swap.
    Percent(u8),
    /// As little as slows it down by this part of its time.
    Slowdown(f64),
}

/// What a reclaimer is to do.
#[derive(Clone, Debug)]
pub struct Orders {
    /// How much is kept free.
    pub rule: Rule,
    /// How much the group may have.
    pub amount: Amount,
    /// Whether a program for which nothing can be freed waits, where it can, or is killed.
    pub oom_waits: bool,
    /// Where the reclaimer runs, and who reads ahead; none is any CPU for the reclaimer.
    pub cpu: Option<usize>,
}

/// What a reclaimer did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// How often it reclaimed.
    pub times: u64,
    /// Bytes that were less used after than before, at least so many: the program took some
    /// meanwhile.
    pub bytes: u64,
    /// How often the program waited for it where the kernel would have killed it.
    pub rescues: u64,
    /// CPU time that it took, and who has the kernel count.
    pub cpu: Nanos,
    /// On which CPU it was kept; none where it was on any.
    pub on_cpu: Option<usize>,
}

/// What the thread shares with its owner.
#[derive(Debug, Default)]
struct Shared {
    times: AtomicU64,
    bytes: AtomicU64,
    rescues: AtomicU64,
}

/// See the module.
#[derive(Debug)]
pub struct Reclaimer {
    shared: Arc<Shared>,
    aside: Aside,
    counting: Option<Aside>,
    on_cpu: Option<usize>,
    floor_bytes: u64,
}

impl Reclaimer {
    /// Begins to keep memory free in `group`, whose memory goes to `area`.
    pub fn start(group: Arc<Group>, area: Area, orders: Orders) -> Result<Reclaimer, SwapError> {
        let shared = Arc::new(Shared::default());
        let (cpus, _) = allowed_cpus();
        if let Some(cpu) = orders.cpu.filter(|&cpu| cpu >= CpuSet::MAX_CPU) {
            return Err(SwapError::Unusable {
                path: format!("CPU {cpu}").into(),
                reason: format!("CPUs have numbers below {}", CpuSet::MAX_CPU),
            });
        }
        let floor_bytes = CHARGED_AT_ONCE_BYTES * cpus;
        let is_kernel_alone = !orders.oom_waits && orders.rule == Rule::Off;
        let counting = (!is_kernel_alone).then(|| Counting::start(Arc::clone(&group)));
        let counting = counting.transpose()?;
        let oom_waits = orders.oom_waits && group.set_oom_waits(true);
        let mut work = Work {
            oom_waits,
            waits: oom_waits,
            group,
            area,
            pool: Pool::new(orders.rule, floor_bytes),
            floor_bytes,
            looked: Instant(0),
            stuck: None,
            pause: Pause(LOOK_WAITING),
            amount: Setter::new(orders.amount),
            has_failed: false,
            shared: Arc::clone(&shared),
            clock: std::time::Instant::now(),
        };
        let turn = move || ControlFlow::Continue(work.turn_or_rest());
        // A CPU that it was given is its own.
        let nicer = match orders.cpu {
            Some(_) => BEFORE_PROGRAMS,
            None => AFTER_PROGRAMS,
        };
        Ok(Reclaimer {
            shared,
            aside: Aside::start("nyx-reclaimer", (orders.cpu, nicer), turn)?,
            counting,
            on_cpu: orders.cpu,
            floor_bytes,
        })
    }

    /// What it did until now.
    pub fn reclaimed(&self) -> Reclaimed {
        Reclaimed {
            times: self.shared.times.load(Relaxed),
            bytes: self.shared.bytes.load(Relaxed),
            rescues: self.shared.rescues.load(Relaxed),
            cpu: self.aside.cpu() + self.counting.as_ref().map_or(Nanos(0), Aside::cpu),
            on_cpu: self.on_cpu,
        }
    }

    /// To wake it.
    pub(super) fn thread(&self) -> Thread {
        self.aside.thread()
    }

    /// What is kept free at least, in bytes.
    pub(super) fn floor_bytes(&self) -> u64 {
        self.floor_bytes
    }

    /// Ends it; what it did.
    pub fn stop(mut self) -> Reclaimed {
        self.aside.end();
        self.counting.iter_mut().for_each(Aside::end);
        self.reclaimed()
    }
}

/// Until the next try, where nothing could be freed and nobody waits for it: trying again at once
/// would only burn the CPU.
struct Pause(Nanos);

impl Pause {
    /// That after a try; the first, unless it was futile as those before it.
    fn after(&mut self, is_futile: bool) -> Nanos {
        let (pause, next) = match is_futile {
            true => (self.0, Nanos((self.0.0 * 2).min(RETRY.0))),
            false => (LOOK_WAITING, LOOK_WAITING),
        };
        self.0 = next;
        pause
    }
}

/// What the thread has.
struct Work {
    group: Arc<Group>,
    area: Area,
    pool: Pool,
    floor_bytes: u64,
    amount: Setter,
    /// Whether the program is to wait where the kernel would kill it.
    oom_waits: bool,
    /// Whether it does.
    waits: bool,
    /// When it was last looked at whether it waits though there is room.
    looked: Instant,
    /// Since when it waits and nothing was freed.
    stuck: Option<Instant>,
    pause: Pause,
    /// Whether it was said that a turn failed.
    has_failed: bool,
    shared: Arc<Shared>,
    clock: std::time::Instant,
}

impl Drop for Work {
    /// However it ends: nobody would wake a program that waits.
    fn drop(&mut self) {
        if self.waits {
            self.group.set_oom_waits(false);
        }
    }
}

impl Work {
    fn turn_or_rest(&mut self) -> Option<Nanos> {
        self.turn().unwrap_or_else(|error| {
            if !std::mem::replace(&mut self.has_failed, true) {
                tracing::warn!(%error, "the reclaimer rests; the program reclaims for itself");
            }
            Some(RETRY)
        })
    }

    /// One look, and what follows from it; how long to wait until the next.
    fn turn(&mut self) -> Result<Option<Nanos>, SwapError> {
        let used = self.group.used()?;
        let limit = self.amount.limit(&self.group, self.now(), used)?;
        let Some(limit) = limit else {
            return Ok(Some(RETRY));
        };
        let is_waiting = self.waits
            && limit.saturating_sub(used) < self.floor_bytes
            && self.group.is_under_oom();
        if !is_waiting {
            self.stuck = None;
        }
        self.look_after_waiting(used, limit)?;
        let down_to = match self.pool.look(self.now(), used, limit) {
            Act::Reclaim { down_to } => down_to,
            // Without a pool, as much as wakes it.
            Act::Sleep(_) if is_waiting => limit - self.floor_bytes.min(limit / 8),
            Act::Sleep(time) => return Ok(Some(time)),
        };
        let is_done = self.group.reclaim(down_to, limit)?;
        let after = self.group.used()?;
        self.pool.reclaimed(self.now(), after);
        let freed = used.saturating_sub(after);
        self.shared.times.fetch_add(1, Relaxed);
        self.shared.bytes.fetch_add(freed, Relaxed);
        if is_waiting {
            self.shared.rescues.fetch_add(1, Relaxed);
            self.judge(freed);
            if freed == 0 {
                // What was freed by others meanwhile wakes nobody.
                self.group.wake(limit)?;
            }
        }
        let is_futile = freed == 0 && !is_done && !is_waiting;
        let pause = self.pause.after(is_futile);
        Ok((freed == 0).then_some(pause))
    }

    /// What is to be seen to now and then: a program that waits though there is room, or in a group
    /// of its own, would wait for ever; one that was not to wait since swap was full may again.
    fn look_after_waiting(&mut self, used: u64, limit: u64) -> Result<(), SwapError> {
        let now = self.now();
        if !self.oom_waits || now.since(self.looked) < RETRY {
            return Ok(());
        }
        self.looked = now;
        let has_room = limit.saturating_sub(used) >= self.floor_bytes;
        if !self.waits && has_room && self.area.free().is_some_and(|free| free >= FULL_BYTES) {
            self.waits = self.group.set_oom_waits(true);
        }
        if self.waits {
            self.group.let_below_be_killed();
            if used < limit && self.group.is_under_oom() {
                self.group.wake(limit)?;
            }
        }
        Ok(())
    }

    /// The program waits for memory: lets the kernel kill it where none will come.
    fn judge(&mut self, freed: u64) {
        if freed > 0 {
            self.stuck = None;
            return;
        }
        let now = self.now();
        let stuck = *self.stuck.get_or_insert(now);
        let is_full = self.area.free().is_some_and(|free| free < FULL_BYTES);
        if is_full || now.since(stuck) > PATIENCE {
            tracing::warn!("neither memory nor swap is left: the kernel may kill the program");
            self.group.set_oom_waits(false);
            self.waits = false;
        }
    }

    fn now(&self) -> Instant {
        Instant(self.clock.elapsed().as_nanos() as u64)
    }
}

/// Has the kernel count a group's pages while its programs reclaim for themselves, so that they
/// find what can be freed: what a program asks of the kernel fails where they do not, and a program
/// that is not to wait is killed (decision 0019). It goes before programs, unlike the reclaimer,
/// which may be put off while the limit of a group of version 1 is lowered.
struct Counting {
    group: Arc<Group>,
    inline: u64,
}

impl Counting {
    fn start(group: Arc<Group>) -> Result<Aside, SwapError> {
        let mut counting = Counting { group, inline: 0 };
        let turn = move || ControlFlow::Continue(Some(counting.look()));
        Aside::start("nyx-counts", (None, BEFORE_PROGRAMS), turn)
    }

    /// How long to wait until the next look.
    fn look(&mut self) -> Nanos {
        let before = std::mem::replace(&mut self.inline, self.group.inline_reclaims());
        if self.inline == before {
            return COUNTS_LOOK;
        }
        self.group.recount();
        COUNTS_AGE
    }
}

/// Sets the limit where it changes.
struct Setter {
    amount: Amount,
    finder: Option<Finder>,
    thought: Instant,
}

/// A limit that follows what the program has is looked at so often at most.
const FOLLOW: Nanos = Nanos::from_millis(2);

impl Setter {
    fn new(amount: Amount) -> Setter {
        let finder = match amount {
            Amount::Slowdown(most) => Some(Finder::new(most)),
            _ => None,
        };
        Setter {
            amount,
            finder,
            thought: Instant(0),
        }
    }

    /// The limit in force, after it was thought over.
    fn limit(&mut self, group: &Group, now: Instant, used: u64) -> Result<Option<u64>, SwapError> {
        let limit = group.shown_limit();
        let is_anothers = group.last_set().is_some_and(|last| last != limit);
        if is_anothers && !matches!(self.amount, Amount::Fixed) {
            tracing::warn!(limit, "somebody else has set a limit, which stays as it is");
            self.amount = Amount::Fixed;
        }
        let known = |limit: u64| (limit < UNLIMITED).then_some(limit);
        let new = match self.amount {
            Amount::Fixed => None,
            Amount::Percent(percent) => {
                if now.since(self.thought) < FOLLOW {
                    return Ok(known(limit));
                }
                self.thought = now;
                share_of(percent, used + group.swapped().unwrap_or(0), limit)
            }
            Amount::Slowdown(_) => {
                let stalled = group.stalled().unwrap_or_default();
                let finder = self.finder.as_mut().expect("it is made with the amount");
                finder.step(now, Pressure { used, stalled })
            }
        };
        let Some(new) = new else {
            return Ok(known(limit));
        };
        let is_set = lower_limit(group, new, (used, limit));
        if let Some(finder) = self.finder.as_mut().filter(|_| !matches!(is_set, Ok(true))) {
            finder.refused(limit);
        }
        Ok(known(if is_set? { new } else { limit }))
    }
}

/// So much more is reclaimed before a limit is lowered: one part in so many.
const LOWER_ONE_IN: u64 = 64;

/// Sets a limit, after what is above it was reclaimed; false where that could not be. Version 1
/// does both at once; a limit of version 2 that is below what is used kills.
pub(super) fn lower_limit(
    group: &Group,
    new: u64,
    (used, limit): (u64, u64),
) -> Result<bool, SwapError> {
    if group.version() == Version::V2 && new < used {
        // A little more, since the program goes on meanwhile.
        group.reclaim(new - new / LOWER_ONE_IN, limit)?;
        if group.used()? > new {
            return Ok(false);
        }
    }
    match group.set_limit(Some(new)) {
        Err(SwapError::Os { error, .. }) if is_partial(&error) => Ok(false),
        other => other.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// Something like a group of version 1, of plain files.
    fn group(dir: &Path, limit: u64) -> Group {
        fs::write(dir.join("memory.usage_in_bytes"), "0").unwrap();
        fs::write(dir.join("memory.limit_in_bytes"), limit.to_string()).unwrap();
        Group::at(dir.to_owned()).unwrap()
    }

    /// Whoever opens the counts finds a pipe, and who writes to that waits for a reader.
    #[test]
    fn the_kernel_counts_while_programs_reclaim_for_themselves() {
        let dir = tempfile::tempdir().unwrap();
        let group = group(dir.path(), 64 << 20);
        let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        let stat = dir.path().join("memory.stat");
        rustix::fs::mknodat(rustix::fs::CWD, &stat, fifo, mode, 0).unwrap();
        let failed = |count: &str| fs::write(dir.path().join("memory.failcnt"), count).unwrap();
        failed("0\n");
        let mut counting = Counting {
            group: Arc::new(group),
            inline: 0,
        };
        // Nobody writes: a count would wait for ever.
        assert_eq!(counting.look(), COUNTS_LOOK);
        for count in ["7\n", "9\n"] {
            failed(count);
            let stat = stat.clone();
            let counted =
                std::thread::spawn(move || drop(fs::OpenOptions::new().write(true).open(stat)));
            assert_eq!(counting.look(), COUNTS_AGE);
            counted.join().unwrap();
        }
        assert_eq!(counting.look(), COUNTS_LOOK);
    }

    /// Plain files free nothing, and what is asked of them stands there one after the other.
    #[test]
    fn a_limit_that_is_refused_is_asked_for_again_and_not_a_lower_one() {
        let dir = tempfile::tempdir().unwrap();
        let limit: u64 = 1 << 30;
        for (name, text) in [
            ("memory.current", limit.to_string()),
            ("memory.max", limit.to_string()),
            ("memory.reclaim", String::new()),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let group = Group::at(dir.path().to_owned()).unwrap();
        let mut setter = Setter::new(Amount::Slowdown(0.05));
        for second in 0..5 {
            let now = Instant(second * 1_000_000_000);
            assert_eq!(setter.limit(&group, now, limit).unwrap(), Some(limit));
        }
        let asked = fs::read_to_string(dir.path().join("memory.reclaim")).unwrap();
        // The first second is only looked at.
        let once = &asked[..asked.len() / 4];
        assert!(!once.is_empty());
        assert_eq!(asked, once.repeat(4));
    }

    #[test]
    fn tries_that_free_nothing_become_seldom() {
        let mut pause = Pause(LOOK_WAITING);
        let times = [1, 2, 4, 8, 16, 32, 64, 100, 100];
        for _ in 0..2 {
            let futile = times.map(|_| pause.after(true));
            assert_eq!(futile, times.map(Nanos::from_millis));
            assert_eq!(pause.after(false), LOOK_WAITING);
        }
    }

    #[test]
    fn a_limit_of_somebody_else_holds_at_once_and_from_then_on() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, theirs, used) = (64 << 20, 48 << 20, 40 << 20);
        let group = group(dir.path(), ours);
        group.set_limit(Some(ours)).unwrap();
        let mut fixed = Setter::new(Amount::Fixed);
        let mut percent = Setter::new(Amount::Percent(50));
        let now = Instant(1);
        assert_eq!(fixed.limit(&group, now, used).unwrap(), Some(ours));
        let file = dir.path().join("memory.limit_in_bytes");
        fs::write(&file, theirs.to_string()).unwrap();
        for setter in [&mut fixed, &mut percent] {
            for second in 1..3 {
                let now = Instant(second * 1_000_000_000);
                assert_eq!(setter.limit(&group, now, used).unwrap(), Some(theirs));
            }
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), theirs.to_string());
    }
}
