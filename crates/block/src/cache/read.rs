//! Reads: hits from either device, misses that fill lines, misses that do not.
//!
//! What it never does: return a block that is dirty from the deep device.

use super::jobs::{Hold, Step};
use super::{Cache, Refusal};
use crate::fast::Fast;
use crate::geometry::{Mask, Part, runs, span};
use crate::mode::Mode;
use nyx_media::queue::{BLOCK_BYTES, Request};
use nyx_policy::nhc::{Kind, Side};
use std::ops::Range;

impl<F: Fast> Cache<F> {
    /// Blocks of a stripe that the fast device has, and those of them that only it has.
    pub(super) fn has(&self, stripe: u64, mask: Mask) -> (Mask, Mask) {
        let parts = self.geometry.lines_of(stripe, mask);
        parts.fold((0, 0), |(valid, dirty), part| {
            let slot = self.lines.find(part.line);
            slot.map_or((valid, dirty), |slot| {
                let slot = self.lines.slot(slot);
                (
                    valid | (slot.valid & part.blocks) << part.first_block,
                    dirty | (slot.dirty & part.blocks) << part.first_block,
                )
            })
        })
    }

    pub(super) fn start_read(&mut self, id: u32) {
        let job = self.jobs.get(id);
        let (stripe, mask) = (job.stripe, job.mask());
        let len_bytes = job.bytes.end - job.bytes.start;
        let is_blocked = |hold, mask| self.jobs.is_blocked(Some(id), stripe, hold, mask);
        let (valid, dirty) = self.has(stripe, mask);
        if valid == mask {
            if is_blocked(Hold::Quick, mask) {
                return;
            }
            self.count_read(id, true);
            let side = match dirty {
                0 if self.mode == Mode::PassThrough => Side::Deep,
                0 => self.router.side(len_bytes),
                _ => Side::Fast,
            };
            self.each_slot(stripe, mask, |cache, _, slot| cache.lines.used(slot));
            match side {
                Side::Fast => self.read_fast(id),
                Side::Deep => {
                    self.figures.hits_deep += 1;
                    self.look(id, mask);
                }
            }
            return;
        }
        let admits = self.mode.admits_reads() && self.router.admits() && !self.is_broken;
        let rounded = self.geometry.whole_lines(stripe, mask);
        let (hold, held) = match admits {
            true => (Hold::Solo, rounded),
            false => (Hold::Look, mask),
        };
        if is_blocked(hold, held) {
            return;
        }
        self.count_read(id, false);
        match admits && self.admit(id, rounded) {
            true => self.fill(id, rounded),
            false => self.look(id, mask),
        }
    }

    fn count_read(&mut self, id: u32, is_hit: bool) {
        let job = self.jobs.get_mut(id);
        if std::mem::replace(&mut job.is_counted, true) {
            return;
        }
        self.figures.reads += 1;
        self.figures.hits += u64::from(is_hit);
        self.figures.read_bytes += job.bytes.end - job.bytes.start;
        self.router.looked(is_hit);
    }

    /// Does something with each line of a mask that has a slot.
    pub(super) fn each_slot(
        &mut self,
        stripe: u64,
        mask: Mask,
        mut each: impl FnMut(&mut Self, Part, u32),
    ) {
        for part in self.geometry.lines_of(stripe, mask) {
            if let Some(slot) = self.lines.find(part.line) {
                each(self, part, slot);
            }
        }
    }

    fn read_fast(&mut self, id: u32) {
        let job = self.jobs.get(id);
        let (stripe, mask) = (job.stripe, job.mask());
        let len_bytes = job.bytes.end - job.bytes.start;
        let flight = self.router.begin(Side::Fast, Kind::Read, len_bytes);
        self.copy_out(id, stripe, mask);
        self.router.end(flight, true);
        self.finish(id, Ok(()));
    }

    /// Copies blocks from the fast device into a piece's buffer, of its bytes only.
    fn copy_out(&mut self, id: u32, stripe: u64, mask: Mask) {
        let job = self.jobs.get_mut(id);
        let wanted = job.bytes.clone();
        let mut buffer = job.buffer.take().expect("it has one");
        self.each_slot(stripe, mask, |cache, part, slot| {
            let first_byte = u64::from(part.first_block) * BLOCK_BYTES;
            for run in runs(part.blocks) {
                let begin = (first_byte + run.start).max(wanted.start);
                let end = (first_byte + run.end).min(wanted.end);
                if begin < end {
                    let at = cache.geometry.data_at(slot) + begin - first_byte;
                    cache
                        .fast
                        .read(at, &mut buffer[begin as usize..end as usize]);
                }
            }
        });
        self.jobs.get_mut(id).buffer = Some(buffer);
    }

    /// Reads from the deep device and caches nothing.
    fn look(&mut self, id: u32, mask: Mask) {
        self.hold(id, Hold::Look, mask, Step::Look);
        self.read_deep(id, span(mask));
    }

    fn read_deep(&mut self, id: u32, bytes: Range<u64>) {
        let job = self.jobs.get_mut(id);
        let at = job.begin() + bytes.start;
        let mut into = job.buffer.take().expect("it has one");
        into.narrow(bytes.start as usize..bytes.end as usize);
        self.ask(id, Request::Read { at, into });
    }

    pub(super) fn end_look(&mut self, id: u32, result: Result<(), Refusal>) {
        let job = self.jobs.get(id);
        let (stripe, mask) = (job.stripe, job.mask());
        let (valid, dirty) = self.has(stripe, mask);
        if result.is_err() && valid == mask {
            // The fast device has it all.
            return self.read_fast(id);
        }
        if result.is_ok() && dirty != 0 {
            self.copy_out(id, stripe, dirty);
        }
        self.finish(id, result);
    }

    /// Takes slots for the lines of a mask that have none; whether there is anything to fill.
    fn admit(&mut self, id: u32, mask: Mask) -> bool {
        let stripe = self.jobs.get(id).stripe;
        // First those that are there: they are not given up for the others.
        self.each_slot(stripe, mask, |cache, part, slot| {
            cache.lines.used(slot);
            cache.pin(id, part, slot);
        });
        let pinned = self.jobs.get(id).pinned;
        for part in self.geometry.lines_of(stripe, mask & !pinned) {
            if let Some(slot) = self.allocate(part.line) {
                self.pin(id, part, slot);
            }
        }
        let any = self.jobs.get(id).pinned != 0;
        if !any {
            self.unpin(id);
        }
        any
    }

    /// Reads what lines lack from the deep device, and what the client wants.
    fn fill(&mut self, id: u32, mask: Mask) {
        let stripe = self.jobs.get(id).stripe;
        let (valid, _) = self.has(stripe, mask);
        self.hold(id, Hold::Solo, mask, Step::Fill);
        self.read_deep(id, span(mask & !valid));
    }

    pub(super) fn end_fill(&mut self, id: u32, result: Result<(), Refusal>) {
        let job = self.jobs.get(id);
        let (stripe, mask, held) = (job.stripe, job.mask(), job.held);
        if result.is_err() {
            return self.finish(id, result);
        }
        let (valid, _) = self.has(stripe, held);
        self.copy_out(id, stripe, mask & valid);
        let buffer = self.jobs.get_mut(id).buffer.take().expect("it has one");
        self.each_slot(stripe, held & !valid, |cache, part, slot| {
            cache.copy_in(part, slot, &buffer);
            cache.freshen(slot);
        });
        self.jobs.get_mut(id).buffer = Some(buffer);
        self.finish(id, Ok(()));
    }

    /// Copies blocks of a stripe's buffer to a slot.
    pub(super) fn copy_in(&mut self, part: Part, slot: u32, buffer: &[u8]) {
        let first_byte = u64::from(part.first_block) * BLOCK_BYTES;
        for run in runs(part.blocks) {
            let bytes = first_byte + run.start..first_byte + run.end;
            let at = self.block_at(slot, &run);
            self.fast
                .write(at, &buffer[bytes.start as usize..bytes.end as usize]);
        }
        self.lines.slot_mut(slot).valid |= part.blocks;
    }

    /// A line that is whole and clean is to be told of.
    pub(super) fn freshen(&mut self, slot: u32) {
        let full = self.geometry.full(self.lines.slot(slot).line);
        let state = self.lines.slot_mut(slot);
        if state.valid == full && state.dirty == 0 && !state.is_fresh {
            state.is_fresh = true;
            self.rounds.fresh.push(slot);
        }
    }
}
