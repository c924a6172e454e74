//! One partition of the simulated medium: a queue of reads, a queue of writes, one server that is
//! never interrupted.
//!
//! What it never does: know of threads or of the other partitions; who waits is the simulation's.

use std::collections::VecDeque;

/// Nobody waits for what a prefetcher reads in vain, or a flush reads for its line.
pub(super) const NOBODY: u32 = u32::MAX;

/// A line, or a part of it, that is to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    /// Who waits for it, or [`NOBODY`].
    pub(super) thread: u32,
    /// For which of that thread's operations, and of which kind that is.
    pub(super) op: u32,
    pub(super) kind: u32,
    pub(super) units: u32,
}

/// A write that waits in the buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    /// When it was buffered, in ticks.
    pub(super) came: u64,
    /// How long it takes, in ticks.
    pub(super) work: u64,
    /// How much of a batch it fills: one line, or all of it where it is served alone.
    pub(super) places: u32,
}

/// How writes are served; times in ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) batch_lines: u32,
    pub(super) guard_reads: u32,
    pub(super) buffer_lines: u32,
    pub(super) age: u64,
}

/// See the module. Times and work in ticks.
#[derive(Debug, Default)]
pub(super) struct Partition {
    pub(super) reads: VecDeque<Read>,
    writes: VecDeque<Write>,
    /// The places that all of `writes` fill.
    places: u32,
    /// Its module.
    pub(super) module: usize,
    pub(super) busy: bool,
    /// An event will look at the age of the oldest write.
    pub(super) ageing: bool,
    /// Reads that have passed a batch that waits.
    pub(super) passed: u32,
    /// Writes in the batch that is being served.
    in_batch: u32,
}

impl Partition {
    pub(super) fn of_module(module: usize) -> Partition {
        Partition {
            module,
            ..Partition::default()
        }
    }

    pub(super) fn buffer(&mut self, write: Write) {
        self.places += write.places;
        self.writes.push_back(write);
    }

    /// When the write that has waited longest came.
    pub(super) fn oldest_write(&self) -> Option<u64> {
        self.writes.front().map(|write| write.came)
    }

    /// Whether its writes are to be served: a whole batch, a full buffer, or an old one.
    pub(super) fn batch_ready(&self, now: u64, rules: &Rules, full: bool) -> bool {
        self.places >= rules.batch_lines
            || self
                .oldest_write()
                .is_some_and(|came| full || came + rules.age <= now)
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
    pub(super) fn begin_read(&mut self, batch_waits: bool) -> Option<Read> {
        let read = self.reads.pop_front()?;
        self.busy = true;
        self.passed += u32::from(batch_waits);
        Some(read)
    }

    /// Ends what it was doing; returns how many writes that was.
    pub(super) fn finish(&mut self) -> u32 {
        self.busy = false;
        std::mem::take(&mut self.in_batch)
    }
}
