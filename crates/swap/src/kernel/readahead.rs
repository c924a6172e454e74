//! Reads ahead for the programs of a group, from a thread beside the reclaimer: what
//! [`nyx_policy::paging::readahead`] wants of what [`Faults`] hears is asked for by
//! `process_madvise` (`MADV_WILLNEED`), which begins to read it into the kernel's swap cache, in
//! pieces as large as it lies on the device. Who wants a page of those then has it within a
//! microsecond. What leaves behind a stream is told of likewise (`MADV_PAGEOUT`).
//!
//! What it never does: change what a program sees; send away what another process has too (the
//! kernel leaves that); ask for more than is free ahead of the group's limit when it looks. (With
//! control groups of version 1 the limit is lower for the moments of a reclaim: what is asked for
//! just then is reclaimed for by this thread. Waiting for those to be over left twice as many
//! faults with a read.)
//!
//! *Thread safety*: one thread, which stops when it is told to or dropped.

use super::area::PAGE_BYTES;
use super::aside::{Aside, BEFORE_ALL, allowed_cpus};
use super::faults::Faults;
use super::group::{Group, UNLIMITED};
use crate::error::SwapError;
use nyx_base::{Instant, Nanos};
use nyx_policy::paging::readahead::{self, Counts, Memory, Next, SPAN_PAGES_MAX, Span};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::Duration;

/// And so much is left free at most.
const SPARE_ONE_IN: u64 = 32;
/// There is little room where less than this part of the limit is free, one in so many: as much as
/// the pool has at most.
const SHORT_ONE_IN: u64 = 8;
/// Pages that are told of at once: the program can change no mapping meanwhile.
const REQUEST_PAGES_MOST: u64 = 256;
/// Processes whose memory is at hand.
const PROCESSES: usize = 64;
/// One of which nothing is seen is looked for again after this time: it may have executed another
/// program.
const AGAIN: Duration = Duration::from_millis(10);
/// Nobody listens for at least so many times as long as it takes to say so to all threads.
const REST_TIMES: u32 = 20;
/// Bits of an entry of `/proc/PID/pagemap`.
const MAPPED: u64 = 1 << 63;
const ON_SWAP: u64 = 1 << 62;

/// What reading ahead did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReadAhead {
    /// Pages that were asked for.
    pub pages: u64,
    /// Of those that the program has passed since, how many it used.
    pub used_pages: u64,
    /// And how many it did not.
    pub unused_pages: u64,
    /// Pages that were sent away behind what goes through memory in order.
    #[serde(default)]
    pub sent_pages: u64,
    /// CPU time that it took.
    pub cpu_ns: u64,
    /// On which CPU it was kept; none where it was on any.
    #[serde(default)]
    pub on_cpu: Option<usize>,
}

/// What was done by the thread, or why it could not go on.
type Told = Arc<Mutex<Result<Counts, String>>>;

/// See the module.
#[derive(Debug)]
pub(super) struct Reader {
    told: Told,
    aside: Aside,
    on_cpu: Option<usize>,
}

impl Reader {
    /// Begins to read ahead in `group` for programs whose `faults` are heard of. So much memory is
    /// left free, or less where that is much of the limit, and `reclaimer` is woken where there is
    /// none. It is kept to that CPU, or to the last that may be used, of several (decision 0016).
    pub(super) fn start(
        faults: Faults,
        group: Arc<Group>,
        spare_bytes: u64,
        reclaimer: Thread,
        cpu: Option<usize>,
    ) -> Result<Reader, SwapError> {
        let told = Told::new(Mutex::new(Ok(Counts::default())));
        let mut work = Work {
            faults,
            policy: readahead::Readahead::new(0),
            programs: Programs {
                group,
                spare_bytes,
                reclaimer,
                room_bytes: 0,
                limit_bytes: 0,
                open: Vec::with_capacity(PROCESSES),
                is_woken: false,
                is_known: false,
                pending: None,
                refused: None,
            },
            is_resting: false,
            clock: std::time::Instant::now(),
        };
        let on_cpu = cpu.or(allowed_cpus().1);
        let teller = Arc::clone(&told);
        let turn = move || {
            let turn = work.turn();
            let said = turn.as_ref().map(|_| work.policy.counts());
            *locked(&teller) = said.map_err(ToString::to_string);
            match turn {
                Ok(pause) => ControlFlow::Continue(Some(pause)),
                Err(_) => ControlFlow::Break(()),
            }
        };
        Ok(Reader {
            told,
            aside: Aside::start("nyx-readahead", (on_cpu, BEFORE_ALL), turn)?,
            on_cpu,
        })
    }

    /// What it did until now, or why it could not go on.
    pub(super) fn done(&self) -> Result<ReadAhead, String> {
        let counts = locked(&self.told).clone()?;
        Ok(ReadAhead {
            pages: counts.asked,
            used_pages: counts.used,
            unused_pages: counts.unused,
            sent_pages: counts.sent,
            cpu_ns: self.aside.cpu().0,
            on_cpu: self.on_cpu,
        })
    }

    /// Ends it; what it did, or why it could not go on.
    pub(super) fn stop(mut self) -> Result<ReadAhead, String> {
        self.aside.end();
        self.done()
    }
}

fn locked(told: &Told) -> MutexGuard<'_, Result<Counts, String>> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the thread has.
struct Work {
    faults: Faults,
    policy: readahead::Readahead,
    programs: Programs,
    /// Whether nobody listens.
    is_resting: bool,
    clock: std::time::Instant,
}

impl Work {
    /// One look at what was heard, and what follows from it; how long to wait until the next.
    fn turn(&mut self) -> io::Result<Nanos> {
        if std::mem::take(&mut self.is_resting) {
            self.faults.set_heard(true)?;
        }
        let now = Instant(self.clock.elapsed().as_nanos() as u64);
        let policy = &mut self.policy;
        self.faults.take(|fault| policy.hear(now, fault));
        self.programs.look_anew();
        policy.set_memory(self.programs.limit_bytes / PAGE_BYTES);
        let next = policy.act(now, &mut self.programs);
        if let Some(error) = self.programs.refused.take() {
            return Err(error);
        }
        match next {
            Next::Look(time) => Ok(time),
            Next::Rest(time) => {
                let begin = self.clock.elapsed();
                self.faults.set_heard(false)?;
                self.is_resting = true;
                let took = self.clock.elapsed() - begin;
                Ok(time.max(Nanos((took * REST_TIMES).as_nanos() as u64)))
            }
        }
    }
}

/// The group's programs, as far as the kernel lets others see and advise them.
struct Programs {
    group: Arc<Group>,
    spare_bytes: u64,
    reclaimer: Thread,
    /// What may be taken before it is looked again.
    room_bytes: u64,
    limit_bytes: u64,
    /// The one that was used last is the last.
    open: Vec<Program>,
    /// Whether the reclaimer was woken since there was room.
    is_woken: bool,
    /// Whether the kernel has ever taken an advice.
    is_known: bool,
    /// To be told of at once with what lies beside it.
    pending: Option<(Advice, Span)>,
    /// The kernel lets nobody advise, or not this process.
    refused: Option<io::Error>,
}

/// What the kernel is told of memory, as it names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
enum Advice {
    WillNeed = libc::MADV_WILLNEED,
    PageOut = libc::MADV_PAGEOUT,
}

struct Program {
    process: u32,
    /// None of one that has ended, or is not to be seen or advised.
    handle: Option<(OwnedFd, File)>,
    opened: std::time::Instant,
}

impl Program {
    fn open(process: u32) -> Program {
        let handle = || {
            let pid = Pid::from_raw(i32::try_from(process).ok()?)?;
            let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            let pages = File::open(format!("/proc/{process}/pagemap")).ok()?;
            Some((pidfd, pages))
        };
        Program {
            process,
            handle: handle(),
            opened: std::time::Instant::now(),
        }
    }

    /// Which pages of a span have that bit; none where nothing of its memory is to be seen.
    fn which(&self, span: Span, bit: u64) -> Option<u64> {
        let (_, pages) = self.handle.as_ref()?;
        let mut bytes = [0; SPAN_PAGES_MAX as usize * 8];
        let bytes = &mut bytes[..span.pages as usize * 8];
        let read = pages.read_at(bytes, span.first * 8).ok()?;
        let entries = bytes[..read].chunks_exact(8).enumerate();
        let has = entries.filter(|(_, entry)| {
            let entry = u64::from_le_bytes((*entry).try_into().expect("they are eight"));
            entry & bit != 0
        });
        let which = has.fold(0, |all, (page, _)| all | 1 << page);
        (read > 0).then_some(which)
    }
}

impl Programs {
    /// How much is free is looked at once somebody wants to know; what the limit is, now.
    fn look_anew(&mut self) {
        // Version 1 is reclaimed by a lower limit for a moment.
        let own = self.group.last_set();
        let limit = own.unwrap_or_else(|| self.group.shown_limit());
        self.limit_bytes = if limit < UNLIMITED { limit } else { 0 };
        self.room_bytes = 0;
    }

    /// Looks how much is free.
    fn look(&mut self) {
        self.look_anew();
        let used = self.group.used().unwrap_or(u64::MAX);
        let free = self.limit_bytes.saturating_sub(used);
        self.room_bytes = free.saturating_sub(self.spare_bytes());
    }

    /// What is left free: half of what the pool has at least, so that there is room for a request
    /// of as much.
    fn spare_bytes(&self) -> u64 {
        self.spare_bytes.min(self.limit_bytes / SPARE_ONE_IN)
    }

    fn of(&mut self, process: u32) -> &mut Program {
        match self.open.iter().position(|one| one.process == process) {
            Some(place) => {
                let last = self.open.len() - 1;
                self.open.swap(place, last);
            }
            None => {
                if self.open.len() == PROCESSES {
                    self.open.remove(0);
                }
                self.open.push(Program::open(process));
            }
        }
        self.open.last_mut().expect("it was just put there")
    }

    /// Tells of a span, at once with what lies beside it.
    fn tell(&mut self, advice: Advice, span: Span) {
        let both = self.pending.take().and_then(|(other, before)| {
            let both = beside(advice, before, span).filter(|_| other == advice);
            if both.is_none() {
                self.advise(other, before);
            }
            both
        });
        self.pending = Some((advice, both.unwrap_or(span)));
    }

    /// Begins to read or to send away.
    fn advise(&mut self, advice: Advice, span: Span) {
        let program = self.of(span.process);
        let Some((pidfd, _)) = &program.handle else {
            return;
        };
        let (at, bytes) = (span.first * PAGE_BYTES, u64::from(span.pages) * PAGE_BYTES);
        match advise(pidfd, advice, at, bytes) {
            // It has ended, or is somebody else's by now.
            Err(Errno::SRCH | Errno::ACCESS) => program.handle = None,
            Err(error @ (Errno::PERM | Errno::NOSYS)) => self.refuse(error),
            // Linux 5.10 knows other advice only.
            Err(error @ Errno::INVAL) if !self.is_known && advice == Advice::WillNeed => {
                self.refuse(error);
            }
            // A hole in its memory, and others that are no harm.
            Err(_) => {}
            Ok(()) => self.is_known |= advice == Advice::WillNeed,
        }
        // What others took meanwhile is seen before more is asked for.
        self.room_bytes = 0;
    }

    fn refuse(&mut self, error: Errno) {
        let error = io::Error::from(error);
        let why = format!("the kernel takes no advice (process_madvise): {error}");
        self.refused = Some(io::Error::new(error.kind(), why));
    }

    /// Which pages of a span have that bit. A handle is of the memory that a process had when it
    /// was opened, and not of what it executed since.
    fn which(&mut self, span: Span, bit: u64) -> u64 {
        let program = self.of(span.process);
        if let Some(which) = program.which(span, bit) {
            return which;
        }
        if program.opened.elapsed() < AGAIN {
            return 0;
        }
        *program = Program::open(span.process);
        program.which(span, bit).unwrap_or(0)
    }
}

impl Memory for Programs {
    fn on_device(&mut self, span: Span) -> u64 {
        self.which(span, ON_SWAP)
    }

    fn mapped(&mut self, span: Span) -> u64 {
        self.which(span, MAPPED)
    }

    fn will_need(&mut self, span: Span) -> bool {
        let bytes = u64::from(span.pages) * PAGE_BYTES;
        if self.room_bytes < bytes {
            // What is told is charged, and seen.
            self.submit();
            self.look();
        }
        // A request begins where there is room for a large one: a program that catches up with
        // what is being read waits once for each.
        let least = match self.pending {
            None => bytes.max(self.spare_bytes()),
            Some(_) => bytes,
        };
        if self.room_bytes < least {
            if !std::mem::replace(&mut self.is_woken, true) {
                self.reclaimer.unpark();
            }
            return false;
        }
        self.is_woken = false;
        self.room_bytes -= bytes;
        self.tell(Advice::WillNeed, span);
        true
    }

    fn send_away(&mut self, span: Span) {
        self.tell(Advice::PageOut, span);
    }

    fn submit(&mut self) {
        if let Some((advice, span)) = self.pending.take() {
            self.advise(advice, span);
        }
    }

    fn is_short(&mut self) -> bool {
        let used = self.group.used().unwrap_or(u64::MAX);
        self.limit_bytes.saturating_sub(used) < self.limit_bytes / SHORT_ONE_IN
    }

    fn worked(&mut self) -> Nanos {
        // Where that is not to be known it never seems to work.
        self.group.cpu().map_or(Nanos(0), |[user, _]| user)
    }
}

/// Both as one, where they lie side by side. Pages between them that are not on swap are no harm
/// where it is read; where it leaves they would leave too.
fn beside(advice: Advice, a: Span, b: Span) -> Option<Span> {
    let between_most = match advice {
        Advice::WillNeed => u64::from(SPAN_PAGES_MAX) - 1,
        Advice::PageOut => 0,
    };
    let both = a.joined(b, between_most);
    both.filter(|both| u64::from(both.pages) <= REQUEST_PAGES_MOST)
}

/// Tells of a range of another process's addresses: that what is on swap of it will be needed,
/// which begins to read it, or that what is in memory will not be for long, which sends it there.
fn advise(process: &OwnedFd, advice: Advice, at: u64, bytes: u64) -> Result<(), Errno> {
    let range = libc::iovec {
        iov_base: at as *mut _,
        iov_len: bytes as usize,
    };
    // SAFETY: the call reads one range, which is there; what that names is another process's, and
    // both advices change nothing that it could see.
    let advised = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_raw_fd(),
            &raw const range,
            1,
            advice as i32,
            0,
        )
    };
    match advised {
        0.. => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;
    use std::thread;

    fn span(process: u32, first: u64, pages: u32) -> Span {
        Span {
            process,
            first,
            pages,
        }
    }

    #[test]
    fn spans_side_by_side_are_one_request_and_others_are_not() {
        let one = span(1, 100, 64);
        assert_eq!(
            beside(Advice::WillNeed, one, span(1, 164, 8)),
            Some(span(1, 100, 72))
        );
        assert_eq!(
            beside(Advice::WillNeed, one, span(1, 60, 40)),
            Some(span(1, 60, 104))
        );
        assert_eq!(
            beside(Advice::WillNeed, one, span(1, 170, 8)),
            Some(span(1, 100, 78))
        );
        assert_eq!(beside(Advice::WillNeed, one, span(1, 300, 8)), None);
        assert_eq!(beside(Advice::WillNeed, one, span(2, 164, 8)), None);
        assert_eq!(
            beside(Advice::WillNeed, one, span(1, 120, 8)),
            None,
            "they overlap"
        );
        assert_eq!(
            beside(Advice::WillNeed, span(1, 100, 200), span(1, 300, 57)),
            None,
            "too many"
        );
    }

    #[test]
    fn what_leaves_and_what_comes_are_told_apart_and_nothing_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let mut programs = programs(dir.path(), 0);
        let (left, right) = (span(u32::MAX, 0, 64), span(u32::MAX, 64, 64));
        programs.send_away(left);
        programs.send_away(right);
        let both = span(u32::MAX, 0, 128);
        assert_eq!(programs.pending, Some((Advice::PageOut, both)));
        programs.room_bytes = 1 << 20;
        // What leaves is told before what comes.
        assert!(programs.will_need(span(u32::MAX, 128, 64)));
        let comes = (Advice::WillNeed, span(u32::MAX, 128, 64));
        assert_eq!(programs.pending, Some(comes));
        programs.submit();
        assert_eq!(programs.pending, None);
        // What lies between two that leave stays.
        programs.send_away(span(u32::MAX, 0, 8));
        programs.send_away(span(u32::MAX, 10, 8));
        let second = (Advice::PageOut, span(u32::MAX, 10, 8));
        assert_eq!(programs.pending, Some(second));
    }

    #[test]
    fn there_is_little_room_where_less_than_an_eighth_is_free() {
        let dir = tempfile::tempdir().unwrap();
        for (used, is_short) in [(0, false), (895 << 10, false), (897 << 10, true)] {
            let mut programs = programs(dir.path(), used);
            programs.look_anew();
            assert_eq!(programs.is_short(), is_short, "{used} bytes of a MiB");
        }
        assert_eq!(
            programs(dir.path(), 0).worked(),
            Nanos(0),
            "nobody counts it here"
        );
    }

    /// A group of plain files, with so much used of a MiB.
    fn programs(dir: &Path, used: u64) -> Programs {
        fs::write(dir.join("memory.usage_in_bytes"), used.to_string()).unwrap();
        fs::write(dir.join("memory.limit_in_bytes"), (1 << 20).to_string()).unwrap();
        Programs {
            group: Arc::new(Group::at(dir.to_owned()).unwrap()),
            spare_bytes: 256 << 10,
            reclaimer: thread::current(),
            room_bytes: 0,
            limit_bytes: 0,
            open: Vec::new(),
            is_woken: false,
            is_known: false,
            pending: None,
            refused: None,
        }
    }

    #[test]
    fn what_a_process_has_mapped_is_seen_and_of_one_that_is_gone_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut programs = programs(dir.path(), 0);
        let own = std::process::id();
        let bytes = vec![1u8; 20 * PAGE_BYTES as usize];
        let first = (bytes.as_ptr() as u64).div_ceil(PAGE_BYTES);
        let touched = span(own, first, 16);
        assert_eq!(programs.mapped(touched), 0xffff);
        assert_eq!(programs.on_device(touched), 0);
        // The address space has no such pages.
        assert_eq!(programs.mapped(span(own, 1 << 51, 16)), 0);
        // Another program is in its place: what was opened before is of nobody any more.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        programs.of(own).handle = Program::open(child.id()).handle;
        child.wait().unwrap();
        // However long that took, and without waiting for the time to try again.
        let now = std::time::Instant::now();
        programs.of(own).opened = now + Duration::from_secs(3600);
        assert_eq!(programs.mapped(touched), 0);
        programs.of(own).opened = now - AGAIN;
        assert_eq!(programs.mapped(touched), 0xffff);
        // Nobody has that number: it is above what the kernel gives.
        let nobody = span(u32::MAX, first, 16);
        assert_eq!(
            (programs.mapped(nobody), programs.on_device(nobody)),
            (0, 0)
        );
        assert!(programs.will_need(nobody));
        programs.submit();
        assert!(programs.refused.is_none());
    }

    #[test]
    fn nothing_is_read_without_room_and_the_reclaimer_is_woken() {
        let dir = tempfile::tempdir().unwrap();
        let pages = span(std::process::id(), 0, 64);
        let mut full = programs(dir.path(), (1 << 20) - (280 << 10));
        assert!(!full.will_need(pages), "248 KiB are to spare");
        assert!(full.pending.is_none());
        // It was woken: this returns at once, or the test hangs.
        thread::park();
        let mut free = programs(dir.path(), (1 << 20) - (600 << 10));
        assert!(free.will_need(pages) && free.will_need(pages));
        assert!(free.pending.is_some());
        fs::write(
            dir.path().join("memory.usage_in_bytes"),
            (900 << 10).to_string(),
        )
        .unwrap();
        assert!(!free.will_need(pages), "two of 256 KiB were to spare");
        assert!(
            free.pending.is_none(),
            "they are told before it is looked again"
        );
        // A group without a limit has no use for it.
        fs::write(
            dir.path().join("memory.limit_in_bytes"),
            UNLIMITED.to_string(),
        )
        .unwrap();
        free.look();
        assert_eq!((free.limit_bytes, free.room_bytes), (0, 0));
    }

    #[test]
    fn many_processes_are_held_at_once_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let mut programs = programs(dir.path(), 0);
        let own = std::process::id();
        for other in 0..3 * PROCESSES as u32 {
            programs.mapped(span(u32::MAX - other, 0, 1));
            programs.mapped(span(own, 0, 1));
        }
        assert_eq!(programs.open.len(), PROCESSES);
        assert!(programs.open.iter().any(|one| one.process == own));
    }
}
