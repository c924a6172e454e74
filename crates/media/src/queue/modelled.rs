//! A modelled device in real time: another driver carries requests out, and what has landed is held
//! back until the model would be done with it.
//!
//! What it never does: be faster than the driver below. Times are true where that one is much
//! faster than the model, such as a file on tmpfs.
//!
//! *Thread safety*: all queues to one device share an [`Emulation`], whose lock is held for some
//! ten nanoseconds per request.

use super::{BlockOp, Driver, Job, Landed, event};
use crate::TscClock;
use crate::model::block::BlockModel;
use nyx_base::{Clock, Instant, Nanos};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

/// Of a flight that is not under way.
const NEVER: Instant = Instant(u64::MAX);
/// Who was waited for in vain looks again after so long.
const LATE_NS: u64 = 20_000;

/// A modelled device and the clock that it runs by.
#[derive(Debug)]
pub struct Emulation {
    model: BlockModel,
    clock: TscClock,
}

impl Emulation {
    /// One that begins now.
    pub fn new(model: BlockModel) -> Emulation {
        Emulation {
            model,
            clock: TscClock::start(),
        }
    }

    /// The model, to stall it or slow it down; and what its clock says.
    pub fn model(&mut self) -> (&mut BlockModel, Instant) {
        (&mut self.model, self.clock.now())
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Modelled {
    inner: Box<dyn Driver>,
    device: Arc<Mutex<Emulation>>,
    clock: TscClock,
    /// When the model is done with each flight.
    due: Box<[Instant]>,
    /// What the inner driver is done with, by when it may be told.
    held: BinaryHeap<Reverse<(Instant, u32, i64)>>,
    landed: Vec<Landed>,
    timer: OwnedFd,
    /// When it rings.
    rings: Instant,
}

impl Modelled {
    pub(super) fn new(
        inner: Box<dyn Driver>,
        device: Arc<Mutex<Emulation>>,
        depth: u32,
    ) -> io::Result<Modelled> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let clock = lock(&device).clock;
        Ok(Modelled {
            inner,
            clock,
            device,
            due: vec![NEVER; depth as usize].into(),
            held: BinaryHeap::with_capacity(depth as usize),
            landed: Vec::with_capacity(depth as usize),
            timer: timerfd_create(TimerfdClockId::Monotonic, flags)?,
            rings: NEVER,
        })
    }

    /// Moves what the inner driver is done with to what is held.
    fn pull(&mut self) {
        self.inner.collect(&mut self.landed);
        for landed in self.landed.drain(..) {
            let due = self.due[landed.flight as usize];
            self.held.push(Reverse((due, landed.flight, landed.result)));
        }
    }

    /// Has the timer ring when the model is done with the first of all.
    fn set_timer(&mut self) {
        let first = *self.due.iter().min().expect("a queue has a depth");
        let now = self.clock.now();
        // Of what is late already it is the driver below that is waited for: it rings again soon.
        let at = match first {
            NEVER => return,
            first => first.max(now + Nanos(LATE_NS)),
        };
        if self.rings > now && self.rings <= at {
            return;
        }
        self.rings = at;
        let wait_ns = self.rings.since(now).0;
        let value = Timespec {
            tv_sec: (wait_ns / 1_000_000_000) as i64,
            tv_nsec: (wait_ns % 1_000_000_000) as i64,
        };
        let timer = Itimerspec {
            it_interval: Timespec::default(),
            it_value: value,
        };
        let set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer);
        set.expect("a timer of ours can be set");
    }
}

fn lock(device: &Mutex<Emulation>) -> MutexGuard<'_, Emulation> {
    device.lock().expect("no holder panics")
}

// SAFETY: jobs are the inner driver's, which keeps the promise; what it tells of is told once.
unsafe impl Driver for Modelled {
    unsafe fn push(&mut self, job: Job) {
        let mut device = lock(&self.device);
        let now = self.clock.now();
        self.due[job.flight as usize] = match job.op {
            BlockOp::Read => device.model.submit(now, false, job.len_bytes),
            BlockOp::Write | BlockOp::WriteDurably => device.model.submit(now, true, job.len_bytes),
            BlockOp::Flush => device.model.flush(now),
            // Telling a device of zeroes moves none.
            BlockOp::Zero => device.model.submit(now, true, 0),
        };
        drop(device);
        // SAFETY: as the caller promises.
        unsafe { self.inner.push(job) }
    }

    fn kick(&mut self) {
        self.inner.kick();
        self.set_timer();
    }

    fn collect(&mut self, landed: &mut Vec<Landed>) {
        self.pull();
        let now = self.clock.now();
        while let Some(held) = self.held.peek_mut()
            && held.0.0 <= now
        {
            let Reverse((_, flight, result)) = PeekMut::pop(held);
            self.due[flight as usize] = NEVER;
            landed.push(Landed { flight, result });
        }
        self.set_timer();
    }

    fn rest(&mut self) {
        self.set_timer();
        event::sleep(&self.timer);
    }

    fn event(&mut self) -> Option<BorrowedFd<'_>> {
        Some(self.timer.as_fd())
    }

    fn describe(&self) -> String {
        let name = lock(&self.device).model.params().name.clone();
        format!("emulated {name} over {}", self.inner.describe())
    }
}
