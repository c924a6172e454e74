//! A device that refuses some requests: what it refuses is not carried out, and fails with the
//! number of an error. For tests of whoever has to live with that.
//!
//! What it never does: change a request that it lets pass.
//!
//! *Thread safety*: all queues to one device may share its [`Refusals`], which are asked by each
//! queue's thread.

use super::{BLOCK_BYTES, BlockOp, Driver, Job, Landed, event};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Which request is refused, by its first byte, and with which of the system's numbers.
type Rule = dyn Fn(BlockOp, u64) -> Option<i32> + Send + Sync;

/// What a device refuses. Copies share the rule.
#[derive(Clone)]
pub struct Refusals(Arc<Rule>);

impl Refusals {
    /// Those for which the rule gives an error's number. It is asked for each block of a request
    /// until it refuses one, or of each piece where a request is done in pieces.
    pub fn new(rule: impl Fn(BlockOp, u64) -> Option<i32> + Send + Sync + 'static) -> Refusals {
        Refusals(Arc::new(rule))
    }
}

impl fmt::Debug for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Refusals")
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Refusing {
    inner: Box<dyn Driver>,
    refusals: Refusals,
    refused: Vec<Landed>,
}

impl Refusing {
    pub(super) fn new(inner: Box<dyn Driver>, refusals: Refusals) -> Refusing {
        let refused = Vec::new();
        Refusing {
            inner,
            refusals,
            refused,
        }
    }
}

// SAFETY: a job is either the inner driver's, which keeps the promise, or refused: then its bytes
// are never touched, and it is told of once.
unsafe impl Driver for Refusing {
    unsafe fn push(&mut self, job: Job) {
        let ends = job.at + job.len_bytes.max(1);
        let mut blocks = (job.at..ends).step_by(BLOCK_BYTES as usize);
        let Some(code) = blocks.find_map(|at| (self.refusals.0)(job.op, at)) else {
            // SAFETY: as the caller promises.
            return unsafe { self.inner.push(job) };
        };
        self.refused.push(Landed {
            flight: job.flight,
            result: -i64::from(code.abs().max(1)),
        });
        if let Some(event) = self.inner.event() {
            event::signal(event);
        }
    }

    fn kick(&mut self) {
        self.inner.kick();
    }

    fn collect(&mut self, landed: &mut Vec<Landed>) {
        landed.append(&mut self.refused);
        self.inner.collect(landed);
    }

    fn rest(&mut self) {
        if self.refused.is_empty() {
            self.inner.rest();
        }
    }

    fn event(&mut self) -> Option<BorrowedFd<'_>> {
        self.inner.event()
    }

    fn describe(&self) -> String {
        format!("{}, some refused", self.inner.describe())
    }
}
