//! The threads of a region.
//!
//! A *handler* for each CPU sleeps until there is a fault, asks the pager, submits the page that is
//! waited for to its own queue, posts what is read ahead, and only then waits (Ultraswap section
//! 3.2). It is pinned: a fault is heard of first on the CPU that it happened on, where the answer
//! costs no interrupt of another one.
//!
//! The *background's thread* has a queue for what nobody waits for, and reclaims: the free pool
//! tells when (`nyx_policy::paging::pool`). It has a second queue for pages that are waited for and
//! that no handler can read: memory came free only here, the kernel has none yet, or a caller fixes
//! them.
//!
//! What they never do: touch the view; run a signal's handler; go on after a panic, since whoever
//! touches the region would wait for ever: that ends the process.
//!
//! *Thread safety*: each thread owns its desks; all else is [`Shared`].

use super::core::{Kind, Move, Shared};
use super::device::{Desk, Hurried};
use super::error::{RegionError, Trying};
use super::uffd::PAGE_BYTES;
use nyx_base::{Clock, Nanos};
use nyx_policy::paging::pager;
use nyx_policy::paging::pool::{Act, Pool};
use rustix::event::{Timespec, epoll};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::thread::JoinHandle;

/// Handlers at most: all that sleep are woken by each fault.
const HANDLERS_MAX: usize = 8;
/// Pages that are freed, and writes that are begun, under one hold of the lock; other CPUs are told
/// once of all that lie side by side.
const BATCH_PAGES: u32 = 32;
/// After so many requests that were refused one after the other it rests before it reclaims.
const REFUSED_MAX: u32 = 16;
/// Of so many pages that were moved the pager is told at once, and of what came with the last.
const MOVED_TOGETHER: u32 = 32;
/// What is held until it is paid for, or there is memory, is tried again after this.
const HELD: Nanos = Nanos::from_millis(1);
/// Where nothing can be freed it is tried again after this.
const STUCK: Nanos = Nanos::from_millis(10);

/// The CPUs that this process may run on.
pub(super) fn cpus() -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(None) else {
        return vec![0];
    };
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .collect()
}

/// So many handlers are made where nobody says how many.
pub(super) fn handlers_default() -> usize {
    cpus().len().clamp(1, HANDLERS_MAX)
}

thread_local! {
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is one of a region's or an arena's: what the preload library has in
/// place of the system's calls is not for it.
pub fn is_own() -> bool {
    IS_OWN.get()
}

/// A thread of a region, pinned to a CPU where one is named.
pub(crate) fn start(
    name: &str,
    cpu: Option<usize>,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, RegionError> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    let body = move || {
        let guard = EndsAll;
        IS_OWN.set(true);
        block_signals();
        if let Some(cpu) = cpu {
            let mut one = CpuSet::new();
            one.set(cpu);
            if let Err(error) = sched_setaffinity(None, &one) {
                tracing::warn!(cpu, %error, "a region's thread could not be pinned");
            }
        }
        work();
        std::mem::forget(guard);
    };
    builder.spawn(body).trying("start a thread of a region")
}

/// CPU time of a thread.
pub(super) fn cpu_time(thread: &JoinHandle<()>) -> Nanos {
    let mut clock = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the thread was not joined; both calls write to what they are given.
    let is_told = unsafe {
        libc::pthread_getcpuclockid(thread.as_pthread_t(), &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut time) == 0
    };
    match is_told {
        true => Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64),
        // One that has ended.
        false => Nanos::ZERO,
    }
}

/// Ends the process where a thread panics.
struct EndsAll;

impl Drop for EndsAll {
    fn drop(&mut self) {
        tracing::error!("a thread of a region panicked: nobody answers its faults any more");
        end();
    }
}

/// Ends the process, past what the program would do then: that may touch the region.
pub(crate) fn end() -> ! {
    // SAFETY: the process ends here, whatever its handler of this signal was.
    unsafe { libc::signal(libc::SIGABRT, libc::SIG_DFL) };
    std::process::abort();
}

/// A signal's handler of the program could touch the region here, and would wait for itself.
///
/// Those that were blocked before.
pub(crate) fn block_signals() -> libc::sigset_t {
    // SAFETY: sets of signals are plain data, of which zeros are one; the calls fill what they are
    // given, and blocking concerns this thread only.
    unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        let mut before = all;
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    }
}

/// A handler's life: until a doorbell is touched.
pub(super) fn handle(shared: &Shared, mut desk: Desk) {
    loop {
        let heard = shared.memory.next().expect("a userfaultfd tells of faults");
        let Some((page, fault)) = heard else {
            continue;
        };
        let now = shared.clock.now();
        if page >= shared.pages {
            if is_answered_here(shared, page) {
                return;
            }
            continue;
        }
        shared.fault(page, fault.is_write, now, &mut desk);
        while let Some(moved) = desk.wait() {
            shared.moved(&[moved], Some(&mut desk));
        }
        // What waits for memory the background's thread looks after: others may be answered.
        if desk.pending() > 0 {
            shared.post(desk.give_up());
        }
    }
}

/// Answers a doorbell; false where another handler has. Who touches it is heard of again where a
/// signal wakes him before the answer, and each doorbell ends one handler.
fn is_answered_here(shared: &Shared, doorbell: u32) -> bool {
    let answered = shared.memory.zero(doorbell..doorbell + 1, false);
    let woken = shared.memory.wake(doorbell);
    woken.expect("who waits for a doorbell can be woken");
    match answered {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => false,
        Err(error) => panic!("a doorbell cannot be answered: {error}"),
    }
}

/// The background's thread.
pub(super) struct Background {
    shared: Arc<Shared>,
    critical: Desk,
    background: Desk,
    pool: Pool,
    /// Used pages until which it reclaims, once it does.
    down_to: Option<u32>,
    posted: Vec<Move>,
    /// What is done, and whether it went well.
    moved: Vec<(Move, bool)>,
    /// What is to be done for a reclaim.
    acts: Vec<pager::Act>,
    /// Whether it has slept since the device refused many writes.
    is_rested: bool,
}

impl Background {
    pub(super) fn new(
        shared: Arc<Shared>,
        critical: Desk,
        background: Desk,
        pool: Pool,
    ) -> Background {
        Background {
            shared,
            critical,
            background,
            pool,
            down_to: None,
            posted: Vec::with_capacity(64),
            moved: Vec::with_capacity(MOVED_TOGETHER as usize),
            acts: Vec::with_capacity(64),
            is_rested: false,
        }
    }

    /// Its life: until the region is over.
    pub(super) fn run(mut self) {
        let woken = self.watch().expect("events of ours can be watched");
        while !self.shared.is_over.load(Acquire) {
            let hurried = self.shared.hurried();
            self.set_off_posted();
            if hurried > Hurried::Nothing {
                self.background.hurry(hurried);
            }
            let is_moved = self.take_in();
            let sleep = match self.reclaim() {
                time if self.critical.has_to_look() || self.background.has_to_look() => {
                    time.min(HELD)
                }
                time => time,
            };
            let low_pages = self.shared.low_pages.load(Relaxed);
            let is_idle = !is_moved && sleep > Nanos::ZERO;
            if is_idle && self.shared.lock().may_sleep(low_pages) {
                self.sleep(&woken, sleep);
            }
        }
        // What is on its way is waited for where the desks are dropped.
    }

    fn watch(&mut self) -> io::Result<OwnedFd> {
        let woken = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // For edges: nothing has to be read back.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&woken, self.shared.bell(), data, flags)?;
        for desk in [&mut self.critical, &mut self.background] {
            if let Some(event) = desk.event() {
                epoll::add(&woken, event, data, flags)?;
            }
        }
        Ok(woken)
    }

    fn set_off_posted(&mut self) {
        self.shared.lock().take_posted(&mut self.posted);
        // What is waited for goes first, on a queue of its own.
        let is_critical = |what: &mut Move| what.kind == Kind::Critical;
        self.critical.push(self.posted.extract_if(.., is_critical));
        self.background.push(self.posted.drain(..));
    }

    /// Tells the pager of all that is done; whether there was any.
    fn take_in(&mut self) -> bool {
        let mut is_moved = false;
        for desk in [&mut self.critical, &mut self.background] {
            loop {
                let (moved, mut pages) = (&mut self.moved, 0);
                while pages < MOVED_TOGETHER
                    && let Some(done) = desk.next()
                {
                    pages += done.0.pages;
                    moved.push(done);
                }
                if moved.is_empty() {
                    break;
                }
                // Neighbours are mapped by one call.
                moved.sort_unstable_by_key(|(what, _)| what.page);
                self.shared.moved(moved, None);
                moved.clear();
                is_moved = true;
            }
        }
        is_moved
    }

    /// Frees what the pool wants free; how long it may sleep then.
    fn reclaim(&mut self) -> Nanos {
        if self.background.refused() >= REFUSED_MAX && !self.is_rested {
            // It would only be told no again; a fault that finds no memory tries all the same.
            self.is_rested = true;
            return STUCK;
        }
        self.is_rested = false;
        let mut core = self.shared.lock_politely();
        let (used, limit) = (core.pager.used_pages(), core.pager.limit_pages());
        // Of those that wait some may wait for what is held; so does a limit that was lowered.
        let is_urgent = core.pager.waiting() > 0 || used > limit;
        self.background.set_urgent(is_urgent);
        let bytes = |pages: u32| u64::from(pages) * PAGE_BYTES as u64;
        let now = self.shared.clock.now();
        let down_to = match self.down_to {
            Some(down_to) => down_to,
            None => match self.pool.look(now, bytes(used), bytes(limit)) {
                Act::Sleep(time) if used <= limit => {
                    let low = self.pool.levels(bytes(limit)).low / PAGE_BYTES as u64;
                    self.shared.low_pages.store(low as u32, Relaxed);
                    return time;
                }
                Act::Sleep(_) => limit,
                Act::Reclaim { down_to } => (down_to / PAGE_BYTES as u64) as u32,
            },
        };
        self.down_to = Some(down_to);
        // Nobody needs to tell it that little is free.
        self.shared.low_pages.store(0, Relaxed);
        let wanted = used.saturating_sub(down_to);
        // What was written is freed first, then more writes begin beside those on their way.
        let acts = &mut self.acts;
        let freed = (self.shared).begin_reclaim(&mut core, wanted.min(BATCH_PAGES), acts);
        if freed < wanted.min(BATCH_PAGES) {
            let begun = (self.background.pending() + core.posted.len()) as u32;
            let most = (begun + BATCH_PAGES).min(wanted - freed);
            self.shared.begin_reclaim(&mut core, most, acts);
        }
        let is_begun = !core.posted.is_empty() || !acts.is_empty();
        let left = core.pager.used_pages();
        drop(core);
        self.shared.finish_reclaim(acts, &mut self.background);
        acts.clear();
        if left <= down_to {
            self.down_to = None;
            self.pool.reclaimed(now, bytes(left));
        } else if left == used && !is_begun {
            if self.background.pending() == 0 {
                // Nothing can be freed now.
                self.down_to = None;
                self.pool.reclaimed(now, bytes(left));
            }
            // It goes on when what is on its way is done.
            return STUCK;
        }
        Nanos::ZERO
    }

    fn sleep(&self, woken: &OwnedFd, time: Nanos) {
        let time = Timespec {
            tv_sec: (time.0 / 1_000_000_000) as i64,
            tv_nsec: (time.0 % 1_000_000_000) as i64,
        };
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 3];
        // Interrupted or not: it looks at all that there may be.
        let _ = epoll::wait(woken, &mut events, Some(&time));
    }
}
