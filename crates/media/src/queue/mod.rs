//! Requests to a device of blocks: a [`Queue`] for each worker, device and class.
//!
//! A queue is one thread's. Whoever reads for a client that waits has one, whoever prefetches,
//! fills or writes back has another, and completions never cross: a critical read waits for its own
//! service and never for what somebody else put before it. Requests are neither merged nor sorted.
//!
//! **Three request functions** (Ultraswap section 3.1, figure 5) are three ways to use the same
//! four calls:
//!
//! * *poll*: [`Queue::poll`] submits and spins until the request is done.
//! * *split*: [`Queue::submit`] and [`Queue::kick`], something else meanwhile, then
//!   [`Queue::wait`].
//! * *interrupt*: submit and kick; [`Queue::event`] becomes readable when something is done, and
//!   [`Queue::reap`] tells what. [`Queue::rest`] sleeps until then.
//!
//! **Bytes** lie in a [`Buffer`], a slot of a [`Pool`] that the kernel was told of once. A request
//! owns its buffer until it is done, so that nobody sees bytes that a device is writing. It is done
//! as a whole or has failed: short transfers are gone on with.
//!
//! **Drivers**: io_uring (`uring.rs`), with completion polling where the device has it; threads
//! with `preadv2` and `pwritev2` where io_uring is forbidden (`threads.rs`); those calls by the
//! thread itself for devices that are done within them (`calls.rs`); a modelled device, or one that
//! refuses requests, laid over any (`modelled.rs`, `refusing.rs`).
//!
//! What it never does: allocate for a request; look at the bytes; retry what the device refused.
//!
//! *Thread safety*: a queue is used by one thread from its first request on. *Invariants*: what a
//! driver was lent is in `flights` until the driver has said that it is done with it; who drops a
//! queue waits for what is in flight.
//!
//! Source: Ultraswap sections 3.1 and 3.2.

mod buffer;
mod calls;
mod deep;
mod event;
mod file;
mod flights;
mod modelled;
mod refusing;
mod support;
#[cfg(test)]
mod tests;
mod threads;
mod uring;

pub use buffer::{Buffer, Pool, SLOT_BYTES_MAX};
pub use deep::DeepFile;
pub use file::BlockFile;
pub use flights::Ticket;
pub use modelled::Emulation;
pub use refusing::Refusals;
pub use support::Support;

use crate::header::file_error;
use crate::{MediaError, TscClock};
use flights::Flights;
use nyx_base::{Clock, Instant, LatencyCounter, Nanos};
use rustix::fs::FallocateFlags;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use uring::Completion;

/// Addresses and lengths of requests are multiples of this.
pub const BLOCK_BYTES: u64 = 4096;
/// Requests that a queue may have in flight, at most.
pub const DEPTH_MAX: u32 = 4096;

/// How a range of a file is made zero: without changing its length.
const HOLE: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// What is asked of a device. Ranges are whole blocks within it.
#[derive(Debug)]
pub enum Request {
    /// Fills the buffer with what is there from `at` on.
    Read {
        /// The first byte.
        at: u64,
        /// Where to.
        into: Buffer,
    },
    /// Writes the buffer there.
    Write {
        /// The first byte.
        at: u64,
        /// What.
        from: Buffer,
        /// Whether it is durable when it is done (FUA).
        is_durable: bool,
    },
    /// Makes durable what was written and done before it was submitted.
    Flush,
    /// Makes a range zero, giving its room back where the file system can.
    Zero {
        /// The first byte.
        at: u64,
        /// How many.
        len_bytes: u64,
    },
}

/// The kind of a [`Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOp {
    /// [`Request::Read`].
    Read,
    /// [`Request::Write`].
    Write,
    /// [`Request::Write`] that is durable.
    WriteDurably,
    /// [`Request::Flush`].
    Flush,
    /// [`Request::Zero`].
    Zero,
}

impl fmt::Display for BlockOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BlockOp::Read => "read",
            BlockOp::Write | BlockOp::WriteDurably => "write",
            BlockOp::Flush => "flush",
            BlockOp::Zero => "zero",
        })
    }
}

/// A request that is done.
#[derive(Debug)]
pub struct Done {
    /// What it was submitted with.
    pub tag: u64,
    /// What it did.
    pub op: BlockOp,
    /// Its buffer, also where it failed; what a failed read left in it is anything.
    pub buffer: Option<Buffer>,
    /// Whether it was done.
    pub result: Result<(), BlockError>,
    /// From its submission until this was seen.
    pub took: Nanos,
}

/// Why a request was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockError {
    /// What was asked.
    pub op: BlockOp,
    /// The first byte.
    pub at: u64,
    /// How many.
    pub len_bytes: u64,
    /// The system's number of the error; none where the device ended before the request did.
    pub os_error: Option<i32>,
}

impl std::error::Error for BlockError {}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BlockError {
            op, at, len_bytes, ..
        } = self;
        write!(f, "{op} of {len_bytes} bytes at {at}: ")?;
        match self.os_error {
            Some(code) => io::Error::from_raw_os_error(code).fmt(f),
            None => f.write_str("the device ends there"),
        }
    }
}

/// What a queue is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueShape {
    /// Requests in flight, at most; 1 to [`DEPTH_MAX`].
    pub depth: u32,
    /// Who carries requests out.
    pub through: Through,
}

/// Who carries requests out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Through {
    /// io_uring where it is allowed, threads elsewhere.
    #[default]
    Auto,
    /// io_uring; completions are interrupts.
    Uring,
    /// io_uring that polls the device ([`Support::is_polled`] tells where it can). A flush, zeroes
    /// and [`Queue::rest`]'s sleep are not to be had there: the kernel refuses the first two as
    /// invalid.
    UringPolled,
    /// io_uring whose requests a thread of the kernel takes; it spins for a millisecond after the
    /// last one. For machines with processors to spare.
    UringThread,
    /// Threads of this process.
    Threads,
    /// System calls of the thread that sets requests off, one after the other: for a device that is
    /// done within them, as zram is ([`Support::critical`] tells).
    Calls,
}

/// Requests of one thread to one device. See the module.
#[derive(Debug)]
pub struct Queue {
    device: Arc<BlockFile>,
    driver: Box<dyn Driver>,
    /// Left as it is where a queue cannot wait for its driver: then nobody gets the buffers.
    flights: ManuallyDrop<Flights>,
    landed: Vec<Landed>,
    clock: TscClock,
    reads: LatencyCounter,
    writes: LatencyCounter,
}

/// What a driver is lent.
#[derive(Clone, Copy, Debug)]
struct Job {
    flight: u32,
    op: BlockOp,
    at: u64,
    /// What is left to do.
    len_bytes: u64,
    /// Where, for reads and writes.
    address: Option<NonNull<u8>>,
    /// Which of the pools that the kernel was told of this is of.
    pool: Option<u16>,
}

/// What a driver says of a job: bytes, or an error's number below zero.
#[derive(Clone, Copy, Debug)]
struct Landed {
    flight: u32,
    result: i64,
}

/// Carries jobs out.
///
/// # Safety
///
/// It touches the bytes at a job's address from [`Driver::push`] until it has told of it in
/// [`Driver::collect`], exactly once, and never after. A read writes all bytes that it tells of.
unsafe trait Driver: Send + fmt::Debug {
    /// Takes a job. At most as many as the queue is deep are there at once, each of which has a
    /// number of its own.
    ///
    /// # Safety
    ///
    /// The bytes at its address are the driver's until it has landed, and the driver lives as long.
    unsafe fn push(&mut self, job: Job);

    /// Makes sure that what was taken is on its way.
    fn kick(&mut self);

    /// Adds what has landed since, waiting for nothing.
    fn collect(&mut self, landed: &mut Vec<Landed>);

    /// Sleeps until something may have landed, where something is on its way.
    fn rest(&mut self);

    /// Becomes readable when something has landed.
    fn event(&mut self) -> Option<BorrowedFd<'_>>;

    /// Who carries jobs out, for people.
    fn describe(&self) -> String;
}

impl Queue {
    /// A queue to a device, for buffers of any pools; those named are registered where the kernel
    /// lets us, which saves time for each request.
    ///
    /// Panics where the depth is out of its range.
    pub fn new(
        device: &Arc<BlockFile>,
        pools: &[Pool],
        shape: QueueShape,
    ) -> Result<Queue, MediaError> {
        let driver = driver(device, pools, shape)?;
        Ok(Queue::over(device, pools, shape.depth, driver))
    }

    /// The same on a modelled device: each request is carried out, and held back until the model
    /// would be done with it. All queues to one device share its model.
    pub fn emulated(
        device: &Arc<BlockFile>,
        pools: &[Pool],
        shape: QueueShape,
        model: &Arc<Mutex<Emulation>>,
    ) -> Result<Queue, MediaError> {
        let inner = driver(device, pools, shape)?;
        let modelled = modelled::Modelled::new(inner, model.clone(), shape.depth);
        let driver = modelled.map_err(file_error(device.path(), "make a timer for it"))?;
        Ok(Queue::over(device, pools, shape.depth, Box::new(driver)))
    }

    /// The same on a device that refuses what it is told to, for tests of whoever uses it.
    pub fn refusing(
        device: &Arc<BlockFile>,
        pools: &[Pool],
        shape: QueueShape,
        refusals: &Refusals,
    ) -> Result<Queue, MediaError> {
        let inner = driver(device, pools, shape)?;
        let driver = Box::new(refusing::Refusing::new(inner, refusals.clone()));
        Ok(Queue::over(device, pools, shape.depth, driver))
    }

    fn over(device: &Arc<BlockFile>, pools: &[Pool], depth: u32, driver: Box<dyn Driver>) -> Queue {
        Queue {
            device: device.clone(),
            driver,
            flights: ManuallyDrop::new(Flights::new(depth, pools)),
            landed: Vec::with_capacity(depth as usize),
            clock: TscClock::start(),
            reads: LatencyCounter::default(),
            writes: LatencyCounter::default(),
        }
    }

    /// Takes a request, to be told of with `tag`. It is on its way after [`Self::kick`] at the
    /// latest. Gives it back where the queue is full.
    ///
    /// Panics where a range is not whole blocks of the device, or has none.
    pub fn submit(&mut self, request: Request, tag: u64) -> Result<Ticket, Request> {
        self.check(&request);
        let (ticket, job) = self.flights.begin(request, tag, self.clock.now())?;
        // SAFETY: the buffer lies in `flights` until the job has landed, and the queue is not
        // dropped before.
        unsafe { self.driver.push(job) };
        Ok(ticket)
    }

    /// Sets off all that was submitted: one system call, or none. Worth it after each request that
    /// somebody waits for: requests that are set off together tend to be done together, and leave
    /// the device less to do meanwhile (a seventh fewer reads per second at depth 32 on a virtual
    /// disk, `docs/runs/2026-11-23-queues.md`).
    pub fn kick(&mut self) {
        self.driver.kick();
    }

    /// Something that is done, in the order in which it was; waits for nothing.
    pub fn reap(&mut self) -> Option<Done> {
        if !self.flights.has_landed() {
            self.collect();
        }
        let done = self.flights.next()?;
        Some(self.counted(done))
    }

    /// Spins until that request is done. Others that are done meanwhile are told of by
    /// [`Self::reap`], and their event may be over: who sleeps by events reaps before that.
    ///
    /// Panics where the ticket's request was told of before, or is another queue's.
    pub fn wait(&mut self, ticket: Ticket) -> Done {
        self.kick();
        loop {
            if let Some(done) = self.flights.take(ticket) {
                return self.counted(done);
            }
            if self.collect() == 0 {
                std::hint::spin_loop();
            }
        }
    }

    /// Submits and spins until it is done. Gives the request back where the queue is full.
    pub fn poll(&mut self, request: Request, tag: u64) -> Result<Done, Request> {
        let ticket = self.submit(request, tag)?;
        Ok(self.wait(ticket))
    }

    /// Sleeps until something is done. Returns at once where nothing is in flight, or something is
    /// done already.
    pub fn rest(&mut self) {
        self.kick();
        while self.flights.in_flight() > 0 && !self.flights.has_landed() {
            if self.collect() == 0 {
                self.driver.rest();
            }
        }
    }

    /// Becomes readable each time that something is done, to be watched for edges; who was woken
    /// reaps until there is nothing. A polled queue has none: it is to be reaped while something is
    /// in flight. To be asked for by the thread that uses the queue.
    pub fn event(&mut self) -> Option<BorrowedFd<'_>> {
        self.driver.event()
    }

    /// Requests that were submitted and are not done.
    pub fn in_flight(&self) -> u32 {
        self.flights.in_flight()
    }

    /// The device.
    pub fn device(&self) -> &Arc<BlockFile> {
        &self.device
    }

    /// How long reads took, from their submission until they were told of.
    pub fn reads(&self) -> &LatencyCounter {
        &self.reads
    }

    /// How long writes took.
    pub fn writes(&self) -> &LatencyCounter {
        &self.writes
    }

    /// Who carries requests out, for people.
    pub fn describe(&self) -> String {
        self.driver.describe()
    }

    /// Takes what has landed in; how many requests are done by that.
    fn collect(&mut self) -> usize {
        self.driver.collect(&mut self.landed);
        let (landed, mut rests) = (self.landed.len(), 0);
        for landed in self.landed.drain(..) {
            if let Some(rest) = self.flights.land(landed) {
                // SAFETY: as in `submit`.
                unsafe { self.driver.push(rest) };
                rests += 1;
            }
        }
        if rests > 0 {
            self.driver.kick();
        }
        landed - rests
    }

    fn counted(&self, (mut done, began): (Done, Instant)) -> Done {
        done.took = self.clock.now().since(began);
        match done.op {
            BlockOp::Read => self.reads.add(done.took, 1),
            BlockOp::Write | BlockOp::WriteDurably => self.writes.add(done.took, 1),
            BlockOp::Flush | BlockOp::Zero => {}
        }
        done
    }

    fn check(&self, request: &Request) {
        let (at, len) = match request {
            Request::Read { at, into } => (*at, into.len() as u64),
            Request::Write { at, from, .. } => (*at, from.len() as u64),
            Request::Zero { at, len_bytes } => (*at, *len_bytes),
            Request::Flush => return,
        };
        let end = at.checked_add(len);
        let max = self.device.len_bytes();
        let is_whole = at.is_multiple_of(BLOCK_BYTES) && len.is_multiple_of(BLOCK_BYTES);
        assert!(
            len > 0 && is_whole && end.is_some_and(|end| end <= max),
            "{len} bytes at {at} of a device of {max} bytes: not whole blocks of it"
        );
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        while self.in_flight() > 0 {
            self.rest();
            while self.flights.next().is_some() {}
        }
        // SAFETY: this is the end of the queue, and no driver has a buffer any more. Where waiting
        // panicked this is not reached, and buffers that a device may still write stay taken.
        unsafe { ManuallyDrop::drop(&mut self.flights) }
    }
}

/// The driver of a shape.
fn driver(
    device: &Arc<BlockFile>,
    pools: &[Pool],
    shape: QueueShape,
) -> Result<Box<dyn Driver>, MediaError> {
    let QueueShape { depth, through } = shape;
    assert!((1..=DEPTH_MAX).contains(&depth), "a queue of depth {depth}");
    let threads = || -> Result<Box<dyn Driver>, MediaError> {
        Ok(Box::new(threads::Threads::new(device, depth)?))
    };
    let uring = |completion| -> Result<Box<dyn Driver>, MediaError> {
        let driver = uring::Uring::new(device, pools, depth, completion);
        let failed = file_error(device.path(), "make an io_uring for it");
        Ok(Box::new(driver.map_err(failed)?))
    };
    match through {
        Through::Threads => threads(),
        Through::Calls => Ok(Box::new(calls::Calls::new(device, depth)?)),
        Through::Auto => uring(Completion::Events).or_else(|_| threads()),
        Through::Uring => uring(Completion::Events),
        Through::UringPolled => uring(Completion::Polled),
        Through::UringThread => uring(Completion::Thread),
    }
}
