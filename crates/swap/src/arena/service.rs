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

use super::terms::{ArenaFigures, Terms};
use super::{budget, guard};
use crate::region::{Device, Region, RegionError, Shape, Still, threads};
use rustix::thread::gettid;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
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
}

/// See the module.
#[derive(Debug)]
pub(super) struct Service {
    jobs: SyncSender<Job>,
    /// Where the arena is.
    pub(super) range: Range<usize>,
}

/// All stands still until this is dropped, or the process is another one.
#[derive(Debug)]
pub(super) struct Pause {
    pub(super) still: Still,
    /// The thread whose table of descriptors has what `still` names.
    pub(super) thread: i32,
    _over: SyncSender<()>,
}

impl Service {
    /// Makes the arena's region, on a thread of its own.
    pub(super) fn start(terms: &Terms) -> Result<Service, RegionError> {
        if let Some(reason) = guard::obstacle() {
            let reason = reason.to_owned();
            return Err(RegionError::NotSafe { reason });
        }
        let (answer, answered) = mpsc::sync_channel(1);
        let (jobs, asked) = mpsc::sync_channel(16);
        let terms = terms.clone();
        threads::start("nyx-arena", None, move || match make(&terms) {
            Err(error) => drop(answer.send(Err(error))),
            Ok(region) => {
                let begin = region.as_ptr() as usize;
                let _ = answer.send(Ok(begin..begin + region.len_bytes()));
                let now = Instant::now();
                let served = Served {
                    region,
                    terms,
                    forks: 0,
                    told: now,
                };
                served.serve(&asked);
            }
        })?;
        let range = answered.recv().expect("it answers, or the process ends")?;
        Ok(Service { jobs, range })
    }

    fn ask<T: Send + 'static>(&self, what: impl FnOnce(&mut Served) -> T + Send + 'static) -> T {
        let (answer, answered) = mpsc::sync_channel(1);
        let job: Job = Box::new(move |served| {
            let _ = answer.send(what(served));
        });
        let gone = "the thread that has the arena ends with the process";
        self.jobs.send(job).expect(gone);
        answered.recv().expect(gone)
    }

    /// These bytes read as zeros, and take nothing.
    pub(super) fn forget(&self, bytes: Range<usize>) {
        // What is pinned keeps what it has: whoever pinned it uses it.
        self.ask(move |served| drop(served.region.dont_need(bytes)));
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

    /// Nothing of the arena changes until the answer is dropped.
    pub(super) fn pause(&self) -> Pause {
        let (answer, answered) = mpsc::sync_channel(1);
        let (over, is_over) = mpsc::sync_channel(1);
        let job: Job = Box::new(move |served| {
            served.forks += 1;
            let frozen = served.region.freeze();
            let _ = answer.send((frozen.still(), gettid().as_raw_nonzero().get()));
            // By an error: the other end was dropped.
            let _ = is_over.recv();
        });
        let gone = "the thread that has the arena ends with the process";
        self.jobs.send(job).expect(gone);
        let (still, thread) = answered.recv().expect(gone);
        Pause {
            still,
            thread,
            _over: over,
        }
    }
}

impl Served {
    fn serve(mut self, asked: &Receiver<Job>) {
        let mut looked = Instant::now();
        loop {
            match asked.recv_timeout(LOOK) {
                Ok(job) => job(&mut self),
                Err(RecvTimeoutError::Timeout) => {}
                // The arena is never dropped.
                Err(RecvTimeoutError::Disconnected) => return,
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

    fn think_over(&self) {
        let stat = self.terms.stat.as_ref();
        let stat = stat.and_then(|path| fs::read_to_string(path).ok());
        let Some(stat) = stat else {
            return;
        };
        if let Some(bytes) = budget::of_arena(self.terms.limit_bytes, &stat) {
            // One that cannot be is not asked for.
            let _ = self.region.set_limit(bytes);
        }
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
            refused: None,
            major_faults: counts.major_faults,
            minor_faults: counts.minor_faults,
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
    own_descriptors().map_err(|error| RegionError::Os {
        what: "have descriptors of its own",
        error,
    })?;
    let metadata = fs::metadata(&terms.pages);
    let is_dir = metadata.is_ok_and(|metadata| metadata.is_dir());
    let device = match is_dir {
        true => Device::sparse(&terms.pages, terms.len_bytes)?,
        false => Device::open(&terms.pages)?,
    };
    let len_bytes = terms.len_bytes.min(device.len_bytes());
    let least = super::LIMIT_BYTES_MIN.min(len_bytes);
    let limit_bytes = terms.limit_bytes.clamp(least, len_bytes);
    let region = Region::with(Shape::new(len_bytes, limit_bytes), &device)?;
    // The region's own rings are there by now.
    match guard::refuse() {
        Ok(()) => Ok(region),
        Err(error) => Err(RegionError::NotSafe {
            reason: format!(
                "the program cannot be kept from io_uring, by which devices write into memory: \
                 {error}"
            ),
        }),
    }
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

/// Writes a line where the program's errors go, from a thread that has not its descriptors.
pub(super) fn complain(line: &str) {
    // The first thread's descriptors are the program's. Where they may not be opened again, as
    // those of somebody else, nothing is said.
    if let Ok(mut errors) = OpenOptions::new().append(true).open("/proc/self/fd/2") {
        let _ = errors.write_all(format!("nyx: {line}\n").as_bytes());
    }
}
