//! Requests through io_uring: the file and the pools are registered, one system call sets off all
//! that was submitted.
//!
//! A ring of events has its work done in the thread that asks (`DEFER_TASKRUN`, `SINGLE_ISSUER`)
//! where the kernel knows that: no interrupt lands in the middle of something else, and a flag in
//! shared memory tells a spinning thread when entering the kernel is worth it. It is made disabled
//! and enabled by the first thread that uses it, which it then belongs to.
//!
//! What it never does: register what the kernel has no room for (`RLIMIT_MEMLOCK`); it goes on
//! without.
//!
//! Source: Ultraswap section 3.1; io_uring_setup(2).

use super::{BlockFile, BlockOp, Driver, HOLE, Job, Landed, Pool, event};
use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::{Errno, ReadWriteFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// How long a kernel's thread spins after the last request.
const THREAD_IDLE_MS: u32 = 1;

/// How it is known that something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completion {
    /// By interrupts.
    Events,
    /// By asking the device.
    Polled,
    /// By interrupts; a thread of the kernel takes what is submitted.
    Thread,
}

/// See the module.
pub(super) struct Uring {
    ring: IoUring,
    /// The ring refers to it.
    device: Arc<BlockFile>,
    completion: Completion,
    event: Option<OwnedFd>,
    /// Whether somebody wants to know of it: until then the kernel need not signal anything.
    is_watched: bool,
    /// The mappings that the kernel was told of live as long as these.
    registered: Vec<Pool>,
    is_deferred: bool,
    is_enabled: bool,
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

impl Uring {
    pub(super) fn new(
        device: &Arc<BlockFile>,
        pools: &[Pool],
        depth: u32,
        completion: Completion,
    ) -> io::Result<Uring> {
        let (ring, is_deferred) = ring(depth, completion)?;
        let submitter = ring.submitter();
        submitter.register_files(&[device.file().as_raw_fd()])?;
        let event = match completion {
            Completion::Polled => None,
            Completion::Events | Completion::Thread => Some(event::make()?),
        };
        let registered = match register(&ring, pools) {
            Ok(()) => pools.to_vec(),
            Err(_) => Vec::new(),
        };
        Ok(Uring {
            ring,
            device: device.clone(),
            completion,
            event,
            is_watched: false,
            registered,
            is_deferred,
            is_enabled: !is_deferred,
        })
    }

    /// A ring that is deferred belongs to the thread that enables it.
    fn enable(&mut self) {
        if !self.is_enabled {
            let enabled = self.ring.submitter().register_enable_rings();
            enabled.expect("a disabled ring can be enabled");
            self.is_enabled = true;
        }
    }

    fn entry(&self, job: Job) -> squeue::Entry {
        let file = types::Fixed(0);
        let len = job.len_bytes as u32;
        let durably = ReadWriteFlags::DSYNC.bits() as i32;
        let flags = match job.op {
            BlockOp::WriteDurably => durably,
            _ => 0,
        };
        let address = job.address.map_or(std::ptr::null_mut(), |at| at.as_ptr());
        let pool = job.pool.filter(|_| !self.registered.is_empty());
        let entry = match (job.op, pool) {
            (BlockOp::Read, Some(pool)) => {
                let read = opcode::ReadFixed::new(file, address, len, pool);
                read.offset(job.at).build()
            }
            (BlockOp::Read, None) => {
                let read = opcode::Read::new(file, address, len);
                read.offset(job.at).build()
            }
            (BlockOp::Write | BlockOp::WriteDurably, Some(pool)) => {
                let write = opcode::WriteFixed::new(file, address, len, pool);
                write.offset(job.at).rw_flags(flags).build()
            }
            (BlockOp::Write | BlockOp::WriteDurably, None) => {
                let write = opcode::Write::new(file, address, len);
                write.offset(job.at).rw_flags(flags).build()
            }
            (BlockOp::Flush, _) => {
                let flush = opcode::Fsync::new(file);
                flush.flags(types::FsyncFlags::DATASYNC).build()
            }
            (BlockOp::Zero, _) => {
                let zero = opcode::Fallocate::new(file, job.len_bytes);
                zero.offset(job.at).mode(HOLE.bits() as i32).build()
            }
        };
        entry.user_data(u64::from(job.flight))
    }

    /// Enters the kernel: sets off what was submitted, and waits for `done` completions.
    fn enter(&self, done: usize) {
        loop {
            match self.ring.submitter().submit_and_wait(done) {
                Ok(_) => return,
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::INTR) => continue,
                    // The kernel has no room for more just now; what it has will be done, and what
                    // it has not stays where it is until the next time.
                    Some(Errno::AGAIN | Errno::BUSY) => return,
                    _ => panic!("{}: io_uring: {error}", self.device.path().display()),
                },
            }
        }
    }
}

// SAFETY: an entry is pushed for each job, which the kernel completes once; its address is not used
// here afterwards. A ring that is dropped with entries in flight would not keep its promise, and a
// queue that is dropped waits for them.
unsafe impl Driver for Uring {
    unsafe fn push(&mut self, job: Job) {
        self.enable();
        let entry = self.entry(job);
        // SAFETY: the buffer and the file live until the job has landed, as the caller promises and
        // as `device` and `registered` see to.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the ring is as deep as its queue");
    }

    fn kick(&mut self) {
        if !self.ring.submission().is_empty() {
            self.enter(0);
        }
    }

    fn collect(&mut self, landed: &mut Vec<Landed>) {
        let is_waiting = self.ring.completion().is_empty();
        let submission = self.ring.submission();
        let has_work = match self.completion {
            Completion::Polled => true,
            Completion::Events | Completion::Thread => submission.taskrun(),
        };
        // What the kernel had no room for is submitted again.
        let is_worth_it = has_work || !submission.is_empty();
        drop(submission);
        if is_waiting && is_worth_it && self.is_enabled {
            self.enter(0);
        }
        landed.extend(self.ring.completion().map(|entry| Landed {
            flight: entry.user_data() as u32,
            result: entry.result().into(),
        }));
    }

    fn rest(&mut self) {
        self.enter(1);
    }

    fn event(&mut self) -> Option<BorrowedFd<'_>> {
        let event = self.event.as_ref()?;
        if !self.is_watched {
            let registered = self.ring.submitter().register_eventfd(event.as_raw_fd());
            registered.expect("an event of ours, and the first one");
            self.is_watched = true;
            // What was done before this would be told of to nobody.
            event::signal(event);
        }
        Some(event.as_fd())
    }

    fn describe(&self) -> String {
        let how = match self.completion {
            Completion::Events if self.is_deferred => "io_uring, deferred",
            Completion::Events => "io_uring",
            Completion::Polled => "io_uring, polled",
            Completion::Thread => "io_uring, taken by a thread of the kernel",
        };
        let pools = match self.registered.is_empty() {
            true => "",
            false => ", registered buffers",
        };
        format!("{how}{pools}")
    }
}

/// A ring, and whether it has its work done in the thread that asks.
fn ring(depth: u32, completion: Completion) -> io::Result<(IoUring, bool)> {
    let mut builder = IoUring::builder();
    builder.setup_cqsize(depth.max(2)).setup_clamp().dontfork();
    // One that is refused at once does not keep back those behind it.
    builder.setup_submit_all();
    match completion {
        Completion::Polled => {
            builder.setup_iopoll();
        }
        Completion::Thread => {
            builder.setup_sqpoll(THREAD_IDLE_MS);
        }
        Completion::Events => {
            let mut deferred = builder.clone();
            deferred.setup_single_issuer().setup_defer_taskrun();
            deferred.setup_taskrun_flag().setup_r_disabled();
            if let Ok(ring) = deferred.build(depth) {
                return Ok((ring, true));
            }
        }
    }
    Ok((builder.build(depth)?, false))
}

/// Tells the kernel of all slots of all pools, each pool as one buffer.
fn register(ring: &IoUring, pools: &[Pool]) -> io::Result<()> {
    if pools.is_empty() {
        return Ok(());
    }
    let vectors: Vec<libc::iovec> = pools
        .iter()
        .map(|pool| {
            let (base, len) = pool.memory();
            libc::iovec {
                iov_base: base.as_ptr().cast(),
                iov_len: len,
            }
        })
        .collect();
    // SAFETY: the mappings live as long as the pools, of which the driver keeps copies until the
    // ring, which is dropped before them, is gone.
    unsafe { ring.submitter().register_buffers(&vectors) }
}
