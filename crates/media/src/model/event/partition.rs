//! One partition of the simulated medium: a queue of reads, a queue of writes, one server that is
//! never interrupted.
//!
//! What it never does: know of threads or of the other partitions; who waits is the simulation's.

use crate::model::Writes;
use std::collections::VecDeque;

/// A line that is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Request {
    /// Who waits for it; nobody for what a prefetcher reads in vain.
    pub(super) thread: Option<usize>,
    /// For which of that thread's operations.
    pub(super) op: u64,
    pub(super) line: u64,
    pub(super) units: u64,
}

/// A write that waits in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Write {
    /// When it was buffered, in ticks.
    pub(super) came: u64,
    /// How long it takes, in ticks.
    pub(super) work: u64,
    /// How much of a batch it fills: one line, or all of it where it is served alone.
    pub(super) places: u32,
}

/// See the module. Times and work in ticks.
#[derive(Debug, Default)]
pub(super) struct Partition {
    pub(super) reads: VecDeque<Request>,
    writes: VecDeque<Write>,
    /// The places that all of `writes` fill.
    places: u32,
    pub(super) busy: bool,
    /// An event will look at the age of the oldest write.
    pub(super) ageing: bool,
    /// Reads that have passed a batch that waits.
    pub(super) passed: u32,
    /// Writes in the batch that is being served.
    in_batch: u32,
}

impl Partition {
    pub(super) fn buffer(&mut self, write: Write) {
        self.places += write.places;
        self.writes.push_back(write);
    }

    /// When the write that has waited longest came.
    pub(super) fn oldest_write(&self) -> Option<u64> {
        self.writes.front().map(|write| write.came)
    }

    /// Whether its writes are to be served: a whole batch, a full buffer, or an old one.
    pub(super) fn batch_ready(&self, now: u64, rules: &Writes, full: bool, age: u64) -> bool {
        self.places >= rules.batch_lines
            || self
                .oldest_write()
                .is_some_and(|came| full || came + age <= now)
    }

    /// Begins a batch that fills at most `most` places; returns how long it takes.
    pub(super) fn begin_batch(&mut self, most: u32) -> u64 {
        let (mut places, mut took) = (0, 0);
        while let Some(write) = self
            .writes
            .front()
            .filter(|write| places + write.places <= most)
        {
            (places, took) = (places + write.places, took + write.work);
            self.writes.pop_front();
            self.in_batch += 1;
        }
        self.places -= places;
        (self.busy, self.passed) = (true, 0);
        took
    }

    /// Begins the oldest read, if there is one.
    pub(super) fn begin_read(&mut self, batch_waits: bool) -> Option<Request> {
        let request = self.reads.pop_front()?;
        self.busy = true;
        self.passed += u32::from(batch_waits);
        Some(request)
    }

    /// Ends what it was doing; returns how many writes that was.
    pub(super) fn finish(&mut self) -> u32 {
        self.busy = false;
        std::mem::take(&mut self.in_batch)
    }
}
