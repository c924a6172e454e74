//! Writing dirty lines back: the least recently used first, in runs of neighbours.
//!
//! A run is copied from the fast device, written to the deep one, and clean when the deep device
//! has flushed it ([`super::rounds`]). Clients may write the same blocks meanwhile; those stay
//! dirty.
//!
//! What it never does: try again before it is told to, where a write failed.

use super::jobs::{Hold, Job, Step, Verb};
use super::rounds::Cleaned;
use super::{Cache, STRIPE_BYTES};
use crate::fast::Fast;
use crate::geometry::{Mask, runs};
use nyx_media::queue::{BLOCK_BYTES, Buffer, Pool, Request};

/// Runs that are written at once, at most.
const RUNS: u32 = 32;
/// Dirty lines that are looked at for one to begin with.
const TRIED: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(super) struct Cleaner {
    pool: Option<Pool>,
    in_flight: u32,
    is_paused: bool,
}

impl Cleaner {
    pub(super) fn new() -> Cleaner {
        Cleaner {
            pool: None,
            in_flight: 0,
            is_paused: false,
        }
    }

    /// Nothing is begun until the next [`Cache::resume_cleaning`].
    pub(super) fn pause(&mut self) {
        self.is_paused = true;
    }

    fn buffer(&mut self) -> Option<Buffer> {
        self.pool.as_ref().and_then(Pool::take)
    }
}

impl<F: Fast> Cache<F> {
    /// Gives it the buffers that lines are written back from: [`Self::CLEANING_BUFFERS`] of a
    /// stripe's size.
    pub fn clean_from(&mut self, pool: Pool) {
        assert_eq!(pool.slot_bytes() as u64, STRIPE_BYTES, "slots of a stripe");
        self.cleaner.pool = Some(pool);
    }

    /// Buffers that are of use to [`Self::clean_from`].
    pub const CLEANING_BUFFERS: u32 = RUNS;

    /// After writes that failed, tries again.
    pub fn resume_cleaning(&mut self) {
        self.cleaner.is_paused = false;
    }

    /// Begins to write lines back until no more than `most_lines` are dirty.
    pub fn clean(&mut self, most_lines: u32) {
        // One batch after the other: a block that is written again meanwhile is not taken for one
        // that was flushed.
        if self.cleaner.is_paused || self.cleaner.in_flight > 0 || self.rounds.is_settling() {
            return;
        }
        let Some(mut wanted) = self.lines.dirty_count().checked_sub(most_lines) else {
            return;
        };
        // They are written as a batch, and flushed once.
        while wanted > 0 && self.cleaner.in_flight < RUNS {
            let Some((stripe, mask)) = self.next_run() else {
                break;
            };
            let Some(buffer) = self.cleaner.buffer() else {
                break;
            };
            let lines = self.geometry.lines_of(stripe, mask).count() as u32;
            wanted = wanted.saturating_sub(lines);
            self.begin_clean(stripe, mask, buffer);
        }
    }

    /// The run of dirty blocks around the least recently used one that nobody keeps.
    fn next_run(&self) -> Option<(u64, Mask)> {
        let mut oldest = self.lines.oldest_dirty().take(TRIED);
        oldest.find_map(|slot| {
            let state = self.lines.slot(slot);
            let (stripe, first_block) = self.geometry.place_of(state.line);
            let todo = (state.dirty & !state.cleaning) << first_block;
            let mine = todo & todo.wrapping_neg();
            if mine == 0 {
                return None;
            }
            let parts = self.geometry.lines_of(stripe, Mask::MAX);
            let dirty = parts.fold(0, |dirty, part| {
                let state = self.lines.find(part.line).map(|slot| self.lines.slot(slot));
                let todo = state.map_or(0, |state| state.dirty & !state.cleaning);
                dirty | todo << part.first_block
            });
            let run = runs(dirty)
                .map(crate::geometry::blocks_of)
                .find(|run| run & mine != 0)?;
            let is_kept = self.jobs.is_blocked(None, stripe, Hold::Clean, run);
            (!is_kept).then_some((stripe, run))
        })
    }

    fn begin_clean(&mut self, stripe: u64, mask: Mask, mut buffer: Buffer) {
        let bytes = crate::geometry::span(mask);
        self.each_slot(stripe, mask, |cache, part, slot| {
            let first_byte = u64::from(part.first_block) * BLOCK_BYTES;
            for run in runs(part.blocks) {
                let at = cache.block_at(slot, &run);
                let begin = (first_byte + run.start) as usize;
                let end = (first_byte + run.end) as usize;
                cache.fast.read(at, &mut buffer[begin..end]);
            }
            cache.lines.slot_mut(slot).cleaning |= part.blocks;
        });
        buffer.narrow(bytes.start as usize..bytes.end as usize);
        let at = stripe * STRIPE_BYTES + bytes.start;
        let id = self.jobs.add(Job {
            token: 0,
            verb: Verb::Write,
            stripe,
            bytes,
            buffer: None,
            spare: None,
            hold: Hold::Clean,
            held: mask,
            step: Step::Clean,
            pinned: 0,
            flight: None,
            is_counted: true,
        });
        self.cleaner.in_flight += 1;
        let request = Request::Write {
            at,
            from: buffer,
            is_durable: false,
        };
        self.ask(id, request);
    }

    pub(super) fn end_clean(&mut self, id: u32, is_done: bool) {
        let (job, bucket) = self.jobs.remove(id);
        self.woken.push(bucket);
        self.cleaner.in_flight -= 1;
        self.rounds.written += 1;
        match is_done {
            true => self.figures.cleaned += 1,
            false => {
                self.figures.clean_errors += 1;
                self.cleaner.pause();
            }
        }
        self.each_slot(job.stripe, job.held, |cache, part, slot| {
            let blocks = part.blocks;
            match is_done {
                true => cache.rounds.cleaned.push(Cleaned { slot, blocks }),
                false => cache.lines.slot_mut(slot).cleaning &= !blocks,
            }
        });
        if self.cleaner.in_flight == 0 {
            self.begin_round();
        }
    }
}
