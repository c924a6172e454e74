//! Requests carried out by system calls of the thread that sets them off: for devices which are
//! done within the call, as compressed or plain memory behind a block device is. io_uring hands
//! each of their requests to a thread of the kernel, which takes longer than the request.
//!
//! What it never does: return from [`Driver::kick`] before all is done; have two under way at once.
//!
//! *Thread safety*: one thread's.

use super::{BlockFile, BlockOp, Driver, HOLE, Job, Landed, event};
use crate::MediaError;
use crate::header::file_error;
use rustix::fs::{fallocate, fdatasync};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub(super) struct Calls {
    device: Arc<BlockFile>,
    taken: Vec<Job>,
    landed: Vec<Landed>,
    event: OwnedFd,
    /// Whether somebody wants to know that something has landed.
    is_watched: bool,
}

// SAFETY: the addresses in the jobs are lent to whoever has this.
unsafe impl Send for Calls {}

impl Calls {
    pub(super) fn new(device: &Arc<BlockFile>, depth: u32) -> Result<Calls, MediaError> {
        let event = event::make().map_err(file_error(device.path(), "make an event for it"))?;
        Ok(Calls {
            device: device.clone(),
            taken: Vec::with_capacity(depth as usize),
            landed: Vec::with_capacity(depth as usize),
            event,
            is_watched: false,
        })
    }
}

// SAFETY: a job is carried out once, in `kick`, and told of afterwards.
unsafe impl Driver for Calls {
    unsafe fn push(&mut self, job: Job) {
        self.taken.push(job);
    }

    fn kick(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        for job in self.taken.drain(..) {
            // SAFETY: the bytes are lent to it until it has landed, which is below.
            let result = unsafe { carry_out(&self.device, job) };
            let flight = job.flight;
            self.landed.push(Landed { flight, result });
        }
        if self.is_watched {
            event::signal(&self.event);
        }
    }

    fn collect(&mut self, landed: &mut Vec<Landed>) {
        landed.append(&mut self.landed);
    }

    fn rest(&mut self) {
        // Nothing is under way but what was not set off.
        self.kick();
    }

    fn event(&mut self) -> Option<BorrowedFd<'_>> {
        if !self.is_watched {
            self.is_watched = true;
            // What was done before this would be told of to nobody.
            event::signal(&self.event);
        }
        Some(self.event.as_fd())
    }

    fn describe(&self) -> String {
        "system calls".to_owned()
    }
}

/// Does a job, by one system call; bytes, or an error's number below zero.
///
/// # Safety
///
/// The bytes at its address are the caller's, and for a read nobody else's.
pub(super) unsafe fn carry_out(device: &BlockFile, job: Job) -> i64 {
    let file = device.file();
    let (at, len) = (job.at, job.len_bytes as usize);
    let write = |flags| {
        let address = job.address.expect("a write has bytes");
        // SAFETY: the caller's word.
        let bytes = unsafe { std::slice::from_raw_parts(address.as_ptr(), len) };
        pwritev2(file, &[IoSlice::new(bytes)], at, flags)
    };
    let done: Result<usize, Errno> = match job.op {
        BlockOp::Read => {
            let address = job.address.expect("a read has a place");
            // SAFETY: the caller's word.
            let bytes = unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), len) };
            let into = &mut [IoSliceMut::new(bytes)];
            preadv2(file, into, at, ReadWriteFlags::empty())
        }
        BlockOp::Write => write(ReadWriteFlags::empty()),
        BlockOp::WriteDurably => write(ReadWriteFlags::DSYNC),
        BlockOp::Flush => fdatasync(file).map(|()| 0),
        BlockOp::Zero => fallocate(file, HOLE, at, job.len_bytes).map(|()| 0),
    };
    match done {
        Ok(bytes) => bytes as i64,
        Err(error) => -i64::from(error.raw_os_error()),
    }
}
