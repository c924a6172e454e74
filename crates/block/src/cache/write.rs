//! Writes and zeroes: into the fast device alone, through to the deep one, or past the fast one.
//!
//! A piece goes as a whole one way or the other. Into the fast device alone go pieces in mode
//! write-back for whose lines there are slots. All others go to the deep device, and what the fast
//! one has of them is written too, or dropped, as the mode says; a dirty line is written in any
//! case and stays dirty.
//!
//! What it never does: change a slot's bytes while the fast device tells them as clean.

use super::jobs::{Hold, Step};
use super::{Cache, Refusal, Verb};
use crate::fast::Fast;
use crate::geometry::{Mask, blocks_of, span};
use crate::lines::Told;
use crate::mode::Mode;
use nyx_media::queue::{BLOCK_BYTES, Request};

impl<F: Fast> Cache<F> {
    pub(super) fn start_write(&mut self, id: u32) {
        let job = self.jobs.get(id);
        let (stripe, mask) = (job.stripe, job.mask());
        if self.is_broken {
            return self.finish(id, Err(Refusal::Io));
        }
        if !job.is_whole() {
            return self.start_edges(id);
        }
        // Whoever finds slots that tell nothing wrong writes at once; else it must be alone.
        let is_back = self.mode == Mode::WriteBack;
        let is_ready = is_back && self.stored.is_empty() && self.is_ready(stripe, mask);
        let hold = if is_ready { Hold::Quick } else { Hold::Solo };
        if self.jobs.is_blocked(Some(id), stripe, hold, mask) {
            return;
        }
        self.count_write(id);
        if is_back && self.admit_all(id) {
            self.tell_dirty(stripe, mask);
            if self.stored.is_empty() {
                return self.end_mark(id, Ok(()));
            }
            self.hold(id, Hold::Solo, mask, Step::Mark);
            return self.marked.push(id);
        }
        self.start_through(id, Step::Through);
    }

    pub(super) fn start_zero(&mut self, id: u32) {
        let job = self.jobs.get(id);
        let (stripe, mask) = (job.stripe, job.mask());
        if self.is_broken {
            return self.finish(id, Err(Refusal::Io));
        }
        if self.jobs.is_blocked(Some(id), stripe, Hold::Solo, mask) {
            return;
        }
        self.count_write(id);
        self.start_through(id, Step::Zero);
    }

    fn count_write(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        if !std::mem::replace(&mut job.is_counted, true) {
            self.figures.writes += 1;
            self.figures.written_bytes += job.bytes.end - job.bytes.start;
        }
    }

    /// Gets the blocks of which only a part is written, in the spare buffer.
    fn start_edges(&mut self, id: u32) {
        let job = self.jobs.get(id);
        let (stripe, bytes) = (job.stripe, job.bytes.clone());
        if self
            .jobs
            .is_blocked(Some(id), stripe, Hold::Solo, job.mask())
        {
            return;
        }
        let edge = |at: u64, byte: u64| match at.is_multiple_of(BLOCK_BYTES) {
            true => 0,
            false => blocks_of(byte..byte + 1),
        };
        let edges = edge(bytes.start, bytes.start) | edge(bytes.end, bytes.end - 1);
        let (valid, _) = self.has(stripe, edges);
        self.count_write(id);
        self.hold(id, Hold::Solo, self.jobs.get(id).mask(), Step::Edges);
        if valid == edges {
            return self.end_edges(id, Ok(()));
        }
        let from = span(edges);
        let job = self.jobs.get_mut(id);
        let at = job.begin() + from.start;
        let mut into = job.spare.take().expect("a write of parts has one");
        into.narrow(from.start as usize..from.end as usize);
        self.ask(id, Request::Read { at, into });
    }

    /// Lays what is written over the blocks that were read, and goes on with whole blocks.
    pub(super) fn end_edges(&mut self, id: u32, result: Result<(), Refusal>) {
        if result.is_err() {
            return self.finish(id, result);
        }
        let job = self.jobs.get_mut(id);
        let (stripe, mask, bytes) = (job.stripe, job.mask(), job.bytes.clone());
        let payload = job.buffer.take().expect("it has one");
        let mut whole = job.spare.take().expect("a write of parts has one");
        self.each_slot(stripe, mask, |cache, part, slot| {
            let valid = cache.lines.slot(slot).valid & part.blocks;
            let first_byte = u64::from(part.first_block) * BLOCK_BYTES;
            for run in crate::geometry::runs(valid) {
                let at = cache.block_at(slot, &run);
                let begin = (first_byte + run.start) as usize;
                let end = (first_byte + run.end) as usize;
                cache.fast.read(at, &mut whole[begin..end]);
            }
        });
        let (begin, end) = (bytes.start as usize, bytes.end as usize);
        whole[begin..end].copy_from_slice(&payload[begin..end]);
        let job = self.jobs.get_mut(id);
        (job.buffer, job.spare) = (Some(whole), Some(payload));
        job.bytes = span(mask);
        self.start_write(id);
    }

    /// Whether each line of a mask has a slot that is not told as clean.
    fn is_ready(&self, stripe: u64, mask: Mask) -> bool {
        let mut parts = self.geometry.lines_of(stripe, mask);
        parts.all(|part| {
            let slot = self.lines.find(part.line);
            slot.is_some_and(|slot| self.lines.slot(slot).told != Told::Clean)
        })
    }

    /// Pins slots for all lines of a piece; none where one cannot be had.
    fn admit_all(&mut self, id: u32) -> bool {
        let job = self.jobs.get(id);
        let (stripe, mask) = (job.stripe, job.mask());
        self.each_slot(stripe, mask, |cache, part, slot| cache.pin(id, part, slot));
        let pinned = self.jobs.get(id).pinned;
        for part in self.geometry.lines_of(stripe, mask & !pinned) {
            match self.allocate(part.line) {
                Some(slot) => self.pin(id, part, slot),
                None => {
                    self.unpin(id);
                    return false;
                }
            }
        }
        true
    }

    /// Has those blocks told as dirty that are about to be written and lie in lines which are told
    /// as clean.
    fn tell_dirty(&mut self, stripe: u64, mask: Mask) {
        self.each_slot(stripe, mask, |cache, part, slot| {
            if cache.lines.slot(slot).told == Told::Clean {
                cache.tell(slot, Told::Dirty(part.blocks));
                let state = cache.lines.slot_mut(slot);
                // The deep device has them as well, until they are written.
                state.dirty |= part.blocks;
                cache.lines.sort(slot);
            }
        });
    }

    /// Writes the fast device alone.
    pub(super) fn end_mark(&mut self, id: u32, result: Result<(), Refusal>) {
        if result.is_err() {
            return self.finish(id, result);
        }
        let job = self.jobs.get_mut(id);
        let (stripe, mask) = (job.stripe, job.mask());
        let buffer = job.buffer.take().expect("it has one");
        self.each_slot(stripe, mask, |cache, part, slot| {
            cache.copy_in(part, slot, &buffer);
            let state = cache.lines.slot_mut(slot);
            state.dirty |= part.blocks;
            state.cleaning &= !part.blocks;
            cache.claim(slot);
            cache.lines.sort(slot);
            cache.touch(slot);
        });
        self.jobs.get_mut(id).buffer = Some(buffer);
        self.figures.writes_fast += 1;
        self.finish(id, Ok(()));
    }

    /// The next flush makes its bytes durable.
    fn touch(&mut self, slot: u32) {
        let state = self.lines.slot_mut(slot);
        if !std::mem::replace(&mut state.is_touched, true) {
            self.rounds.touched.push(slot);
        }
    }

    /// Writes the deep device, when nothing is told as clean any more that is being written.
    fn start_through(&mut self, id: u32, step: Step) {
        let job = self.jobs.get(id);
        let (stripe, mask) = (job.stripe, job.mask());
        let drops = self.mode.drops_written() || step == Step::Zero;
        self.hold(id, Hold::Solo, mask, step);
        self.each_slot(stripe, mask, |cache, part, slot| {
            let state = cache.lines.slot_mut(slot);
            if state.dirty == 0 {
                if drops {
                    state.valid &= !part.blocks;
                }
                cache.tell(slot, Told::Free);
            }
            // What is being written back now is not what the deep device will have.
            cache.lines.slot_mut(slot).cleaning &= !part.blocks;
            cache.pin(id, part, slot);
        });
        if self.mode.admits_writes() && step == Step::Through {
            let pinned = self.jobs.get(id).pinned;
            for part in self.geometry.lines_of(stripe, mask & !pinned) {
                if let Some(slot) = self.allocate(part.line) {
                    self.pin(id, part, slot);
                }
            }
        }
        match self.stored.is_empty() {
            true => self.go_deep(id),
            false => self.marked.push(id),
        }
    }

    /// Asks the deep device for what a piece has to do there.
    pub(super) fn go_deep(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        let bytes = span(job.mask());
        let at = job.begin() + bytes.start;
        let request = match job.step {
            Step::Zero => Request::Zero {
                at,
                len_bytes: bytes.end - bytes.start,
            },
            _ => {
                let mut from = job.buffer.take().expect("it has one");
                from.narrow(bytes.start as usize..bytes.end as usize);
                Request::Write {
                    at,
                    from,
                    is_durable: false,
                }
            }
        };
        self.ask(id, request);
    }

    /// The deep device cannot make zeroes: they are written.
    pub(super) fn write_zeroes(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        job.step = Step::Through;
        if let Some(buffer) = &mut job.buffer {
            buffer.fill(0);
        }
        self.go_deep(id);
    }

    /// The deep device was written: what the fast one has of it is written too.
    pub(super) fn end_through(&mut self, id: u32, result: Result<(), Refusal>) {
        let job = self.jobs.get_mut(id);
        let (stripe, mask) = (job.stripe, job.mask());
        let is_zero = job.verb == Verb::Zero;
        let drops = self.mode.drops_written() || is_zero;
        let mut buffer = job.buffer.take().expect("it has one");
        let lines = self.geometry.whole_lines(stripe, mask);
        if is_zero && self.has(stripe, lines).1 != 0 {
            buffer.fill(0);
        }
        self.rounds.written += 1;
        self.each_slot(stripe, mask, |cache, part, slot| {
            let is_dirty = cache.lines.slot(slot).dirty != 0;
            if result.is_err() {
                // Nobody knows what the deep device has now; of dirty blocks nobody asks.
                let state = cache.lines.slot_mut(slot);
                state.valid &= !part.blocks | state.dirty;
            } else if is_dirty || !drops {
                cache.copy_in(part, slot, &buffer);
                if is_dirty {
                    cache.touch(slot);
                }
                cache.lines.used(slot);
                cache.freshen(slot);
            } else {
                // Also where it was dirty when this began.
                cache.lines.slot_mut(slot).valid &= !part.blocks;
            }
        });
        self.jobs.get_mut(id).buffer = Some(buffer);
        self.finish(id, result);
    }
}
