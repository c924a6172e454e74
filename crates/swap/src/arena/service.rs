//! The thread that has an arena's region, and does with it what threads of the program ask for.
//!
//! It has a table of file descriptors of its own, as the region's threads have that it starts: a
//! program that closes what it does not know of (daemons do), lists what it has open, or has as
//! many as it may, neither harms the arena nor sees it. So no thread of the program may call the
//! region.
//!
//! While nobody asks, it looks after the limit and writes figures down.
//!
//! What it never does: touch the arena's memory; take a signal of the program.
//!
//! *Thread safety*: asked from any thread; answers in turn.

use super::handoff::Queue;
use super::press::{self, Press};
use super::terms::{ArenaFigures, Terms};
use super::undisturbed::Undisturbed;
use super::{budget, guard, says};
use crate::region::{Device, PAGE_BYTES, Purse, Region, RegionError, Still, threads};
use nyx_media::MediaError;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{
    PidfdFlags, PidfdGetfdFlags, Resource, getpid, getrlimit, pidfd_getfd, pidfd_open,
};
use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, FileType, OpenOptions};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The limit is thought over so often.
const LOOK: Duration = Duration::from_millis(20);
/// Figures are written so often.
const TELL: Duration = Duration::from_secs(1);

type Job = Box<dyn FnOnce(&mut Served) + Send>;

/// What the thread has.
struct Served {
    region: Region,
    terms: Terms,
    forks: u64,
    told: Instant,
    press: Press,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}

/// See the module.
pub(super) struct Service {
    jobs: Arc<Queue<Job>>,
    /// Where the arena is.
    pub(super) range: Range<usize>,
}

/// All stands still until this is dropped, or the process is another one.
#[derive(Debug)]
pub(super) struct Pause {
    pub(super) still: Still,
    over: Arc<Queue<()>>,
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.over.put(());
    }
}

impl Service {
    /// Makes the arena's region, on a thread of its own.
    pub(super) fn start(terms: &Terms) -> Result<Service, RegionError> {
        let (jobs, answer) = (Queue::new(), Queue::new());
        let (asked, answering, terms) = (jobs.clone(), answer.clone(), terms.clone());
        threads::start("nyx-arena", None, move || match make(&terms) {
            Err(error) => answering.put(Err(error)),
            Ok(region) => {
                let begin = region.as_ptr() as usize;
                answering.put(Ok(begin..begin + region.len_bytes()));
                let served = Served {
                    region,
                    terms,
                    forks: 0,
                    told: Instant::now(),
                    press: Press::new(),
                };
                served.serve(&asked);
            }
        })?;
        let range = answer.take()?;
        Ok(Service { jobs, range })
    }

    fn ask<T: Send + 'static>(&self, what: impl FnOnce(&mut Served) -> T + Send + 'static) -> T {
        // The queues have locks, which others may need while this thread handles a signal.
        let _undisturbed = Undisturbed::new();
        let answer = Queue::new();
        let answering = answer.clone();
        self.jobs
            .put(Box::new(move |served| answering.put(what(served))));
        answer.take()
    }

    /// These bytes read as zeros, and take nothing; how many pages are pinned, and keep what they
    /// have.
    pub(super) fn forget(&self, bytes: Range<usize>) -> u32 {
        self.ask(move |served| served.region.dont_need(bytes).unwrap_or(0))
    }

    /// They are the region's no more.
    pub(super) fn lose(&self, bytes: Range<usize>) {
        self.ask(move |served| drop(served.region.lose(bytes)));
    }

    /// They will be touched.
    pub(super) fn will_need(&self, bytes: Range<usize>) {
        self.ask(move |served| drop(served.region.will_need(bytes)));
    }

    /// They stay in memory until they are unpinned; false where they cannot.
    pub(super) fn pin(&self, bytes: Range<usize>) -> bool {
        self.ask(move |served| served.region.pin(bytes).is_ok())
    }

    pub(super) fn unpin(&self, bytes: Range<usize>) {
        self.ask(move |served| served.region.unpin(bytes));
    }

    /// Writes the figures down now.
    pub(super) fn tell(&self) {
        self.ask(Served::tell);
    }

    /// Nothing of the arena changes until the answer is dropped. The descriptors that a copy is
    /// made of go to the other end of `socket`, a socket of the program's, unless that is refused.
    pub(super) fn pause(&self, socket: RawFd) -> (Pause, io::Result<()>) {
        let (answer, over) = (Queue::new(), Queue::new());
        let (answering, is_over) = (answer.clone(), over.clone());
        self.jobs.put(Box::new(move |served| {
            served.forks += 1;
            let frozen = served.region.freeze();
            let lent = lend(socket, &frozen.descriptors());
            answering.put((frozen.still(), lent));
            is_over.take();
        }));
        let (still, lent) = answer.take();
        (Pause { still, over }, lent)
    }
}

/// Sends descriptors of ours to the other end of a socket of the program's.
fn lend(socket: RawFd, descriptors: &[BorrowedFd<'_>; 2]) -> io::Result<()> {
    let process = pidfd_open(getpid(), PidfdFlags::empty())?;
    let socket = pidfd_getfd(&process, socket, PidfdGetfdFlags::empty())?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut sent = SendAncillaryBuffer::new(&mut space);
    sent.push(SendAncillaryMessage::ScmRights(descriptors));
    let byte = [IoSlice::new(&[0])];
    sendmsg(&socket, &byte, &mut sent, SendFlags::NOSIGNAL)?;
    Ok(())
}

impl Served {
    fn serve(mut self, asked: &Queue<Job>) -> ! {
        let mut looked = Instant::now();
        loop {
            if let Some(job) = asked.take_within(LOOK) {
                job(&mut self);
            }
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                self.think_over();
            }
            if self.told.elapsed() >= TELL {
                self.tell();
            }
        }
    }

    fn think_over(&mut self) {
        let stat = self.terms.stat.as_ref();
        let stat = stat.and_then(|path| fs::read_to_string(path).ok());
        let Some(stat) = stat else {
            return;
        };
        let Some(outside) = budget::outside(&stat) else {
            return;
        };
        // One that cannot be is not asked for.
        let limit_bytes = budget::of_arena(self.terms.limit_bytes, outside);
        let _ = self.region.set_limit(limit_bytes);
        let counts = self.region.counts();
        let read = counts.major_faults + counts.ahead;
        let all = || match press::has_room(outside) {
            true => press::private(&press::maps()),
            false => VecDeque::new(),
        };
        let step = self.press.step(Instant::now(), (outside, read), all);
        step.iter().for_each(press::send_away);
    }

    fn tell(&mut self) {
        self.told = Instant::now();
        let Some(dir) = &self.terms.figures else {
            return;
        };
        let figures = self.region.figures();
        let counts = figures.counts;
        let told = ArenaFigures {
            processes: 1,
            major_faults: counts.major_faults,
            minor_faults: counts.minor_faults + counts.write_faults,
            ahead_pages: counts.ahead,
            written_pages: counts.writes,
            inline_reclaims: counts.inline_reclaims,
            failed: counts.failed,
            forks: self.forks,
            cpu_ns: self.region.cpu_time().0,
            ..ArenaFigures::default()
        };
        // Nobody is harmed by figures that are old.
        let _ = told
            .with_faults(&figures.faults)
            .write(dir, std::process::id());
    }
}

fn make(terms: &Terms) -> Result<Region, RegionError> {
    let not_safe = |reason: &str| RegionError::NotSafe {
        reason: reason.to_owned(),
    };
    if let Some(reason) = guard::obstacle(guard::OURS) {
        return Err(not_safe(reason));
    }
    // Pages are written to files: to that of the region's memory too.
    if let Some(most) = getrlimit(Resource::Fsize).current
        && most < super::file_bytes(terms.len_bytes)
    {
        let wanted = super::file_bytes(terms.len_bytes);
        return Err(not_safe(&format!(
            "files of this process may be no longer than {most} bytes (ulimit -f), and an arena's \
             has {wanted}"
        )));
    }
    own_descriptors().map_err(|error| RegionError::Os {
        what: "have descriptors of its own",
        error,
    })?;
    says::start()?;
    let device = device(terms)?;
    let device = match &terms.purse {
        Some(path) => device.metered(open(path)?),
        None => device,
    };
    let len_bytes = terms.len_bytes.min(device.len_bytes());
    let least = super::LIMIT_BYTES_MIN.min(len_bytes);
    let limit_bytes = terms.limit_bytes.clamp(least, len_bytes);
    let region = Region::new(len_bytes, limit_bytes, &device)?;
    // The region's own rings are there by now.
    if let Err(error) = guard::refuse() {
        return Err(not_safe(&format!(
            "the program cannot be kept from io_uring, by which devices write into memory: {error}"
        )));
    }
    // One that another thread has made meanwhile.
    match guard::obstacle(guard::PROGRAMS) {
        Some(reason) => Err(not_safe(reason)),
        None => Ok(region),
    }
}

/// Where pages go.
fn device(terms: &Terms) -> Result<Device, MediaError> {
    let kind = fs::metadata(&terms.pages).map(|metadata| metadata.file_type());
    if kind.as_ref().is_ok_and(FileType::is_dir) {
        return Device::sparse(&terms.pages, terms.len_bytes);
    }
    let device = Device::open_fastest(&terms.pages)?;
    let len = device.len_bytes().saturating_sub(PAGE_BYTES as u64);
    match kind.is_ok_and(|kind| kind.is_file()) {
        // Its header says that it may be overwritten, the next time too.
        true => Ok(device.part(PAGE_BYTES as u64, len)),
        false => Ok(device),
    }
}

fn open(purse: &Path) -> Result<Arc<Purse>, RegionError> {
    let opened = Purse::open(purse).map(Arc::new);
    opened.map_err(|error| RegionError::Os {
        what: "open the purse of its tenant",
        error,
    })
}

/// Leaves the table of the program, and keeps nothing of it.
fn own_descriptors() -> io::Result<()> {
    // SAFETY: the call takes numbers only. This thread is new, and has none of the program's
    // descriptors behind a Rust value: what it closes is a copy.
    let closed = unsafe { libc::close_range(0, !0, libc::CLOSE_RANGE_UNSHARE as _) };
    if closed != 0 {
        return Err(io::Error::last_os_error());
    }
    // What writes to 1 or 2 must not meet a file of the region there.
    for _ in 0..3 {
        let nothing = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/null")?;
        std::mem::forget(nothing);
    }
    Ok(())
}
