//! Rounds: what a flush waits for, lines that were written back, lines that are to be told of.
//!
//! A round flushes the deep device, where something was written there since the last flush, and
//! then makes durable what the fast device alone has: first the bytes, then the records that tell
//! of them. Whoever comes while a round is under way waits for the next one, so that a round
//! serves all who came before it.
//!
//! What it never does: answer a flush of which a part failed.
//!
//! *Invariant*: what a record tells of was durable before it was stored.

use super::{Cache, Command, FLUSH, Outcome, Refusal};
use crate::fast::{Fast, NotDurable};
use crate::geometry::{Mask, RECORD_BYTES, runs};
use crate::lines::Told;
use nyx_media::queue::Request;
use std::ops::Range;

/// Blocks of a slot that the deep device was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cleaned {
    pub(super) slot: u32,
    pub(super) blocks: Mask,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Rounds {
    /// Requests that wrote the deep device.
    pub(super) written: u64,
    /// Those of them that were flushed for certain.
    flushed: u64,
    /// Slots whose dirty blocks are not durable.
    pub(super) touched: Vec<u32>,
    /// Slots that are to be told of as clean.
    pub(super) fresh: Vec<u32>,
    /// Blocks that were written back and not flushed.
    pub(super) cleaned: Vec<Cleaned>,
    /// Flushes that wait for the next round.
    waiting: Vec<u64>,
    publishes: bool,
    current: Option<Round>,
}

#[derive(Debug, Default)]
struct Round {
    tokens: Vec<u64>,
    /// Of [`Rounds::written`] when it began.
    target: u64,
    fresh: Vec<u32>,
    cleaned: Vec<Cleaned>,
}

impl Rounds {
    /// What whoever was here before has written may not have been flushed.
    pub(super) fn new() -> Rounds {
        Rounds {
            written: 1,
            flushed: 0,
            touched: Vec::new(),
            fresh: Vec::new(),
            cleaned: Vec::new(),
            waiting: Vec::new(),
            publishes: false,
            current: None,
        }
    }

    /// Whether blocks were written back of which it is not settled yet whether they are clean.
    pub(super) fn is_settling(&self) -> bool {
        let current = self.current.as_ref();
        !self.cleaned.is_empty() || current.is_some_and(|round| !round.cleaned.is_empty())
    }

    pub(super) fn is_busy(&self) -> bool {
        self.current.is_some() || !self.waiting.is_empty() || !self.cleaned.is_empty()
    }
}

impl<F: Fast> Cache<F> {
    /// Makes durable whatever was answered until now; its outcome has this token.
    pub fn flush(&mut self, token: u64) {
        self.rounds.waiting.push(token);
        self.begin_round();
    }

    /// Has lines told of that are whole and clean, so that they are there after a restart.
    pub fn publish(&mut self) {
        self.rounds.publishes |= !self.rounds.fresh.is_empty();
        self.begin_round();
    }

    /// Begins a round, unless one is under way or none is needed.
    pub(super) fn begin_round(&mut self) {
        let rounds = &mut self.rounds;
        let is_needed =
            !rounds.waiting.is_empty() || !rounds.cleaned.is_empty() || rounds.publishes;
        if rounds.current.is_some() || !is_needed {
            return;
        }
        let fresh = match std::mem::take(&mut rounds.publishes) {
            true => std::mem::take(&mut rounds.fresh),
            false => Vec::new(),
        };
        for &slot in &fresh {
            self.lines.slot_mut(slot).is_fresh = false;
        }
        rounds.current = Some(Round {
            tokens: std::mem::take(&mut rounds.waiting),
            target: rounds.written,
            fresh,
            cleaned: std::mem::take(&mut rounds.cleaned),
        });
        if rounds.written == rounds.flushed {
            return self.deep_flushed(Ok(()));
        }
        self.commands.push_back(Command {
            is_critical: true,
            request: Request::Flush,
            tag: FLUSH,
        });
    }

    /// The deep device has flushed what had been written when the round began.
    pub(super) fn deep_flushed(&mut self, result: Result<(), Refusal>) {
        let round = self.rounds.current.take().expect("a round is under way");
        let result = match result {
            Ok(()) => {
                self.rounds.flushed = self.rounds.flushed.max(round.target);
                let settled = self.settle(&round);
                self.is_broken |= settled.is_err();
                settled.map_err(|NotDurable| Refusal::Io)
            }
            Err(refusal) => {
                self.give_up(&round);
                Err(refusal)
            }
        };
        self.figures.flushes += round.tokens.len() as u64;
        for token in round.tokens {
            self.figures.refused += u64::from(result.is_err());
            self.outcomes.push_back(Outcome {
                token,
                buffer: None,
                result,
            });
        }
        self.begin_round();
    }

    /// Makes durable what the fast device has, and what it tells.
    fn settle(&mut self, round: &Round) -> Result<(), NotDurable> {
        if self.is_broken {
            return Err(NotDurable);
        }
        let touched = std::mem::take(&mut self.rounds.touched);
        let fresh: Vec<u32> = (round.fresh.iter().copied())
            .filter(|&slot| self.is_to_publish(slot))
            .collect();
        let mut bytes: Vec<Range<u64>> = Vec::new();
        for &slot in &touched {
            let dirty = self.lines.slot(slot).dirty;
            self.lines.slot_mut(slot).is_touched = false;
            bytes.extend(self.bytes_of(slot, dirty));
        }
        for &slot in &fresh {
            let valid = self.lines.slot(slot).valid;
            bytes.extend(self.bytes_of(slot, valid));
        }
        self.fast.persist(&mut bytes)?;
        let mut records = bytes;
        records.clear();
        let mut tell = |cache: &mut Self, slot, told| {
            if cache.lines.slot(slot).told != told {
                let at = cache.store(slot, told);
                records.push(at..at + RECORD_BYTES);
            }
        };
        for &slot in &touched {
            let dirty = self.lines.slot(slot).dirty;
            if dirty != 0 {
                tell(self, slot, Told::Dirty(dirty));
            }
        }
        for &slot in &fresh {
            tell(self, slot, Told::Clean);
        }
        for &Cleaned { slot, blocks } in &round.cleaned {
            let state = self.lines.slot(slot);
            let told = match state.told {
                Told::Dirty(told) if told & !(blocks & state.cleaning) != 0 => {
                    Told::Dirty(told & !(blocks & state.cleaning))
                }
                _ => Told::Free,
            };
            tell(self, slot, told);
        }
        self.fast.persist(&mut records)?;
        self.mark_clean(&round.cleaned);
        Ok(())
    }

    /// What was written back, and not written to since, is clean.
    fn mark_clean(&mut self, cleaned: &[Cleaned]) {
        for &Cleaned { slot, blocks } in cleaned {
            let state = self.lines.slot_mut(slot);
            let done = blocks & state.cleaning;
            state.cleaning &= !done;
            state.dirty &= !done;
            self.claim(slot);
            let state = self.lines.slot(slot);
            if state.dirty == 0 {
                self.lines.sort(slot);
                self.freshen(slot);
            }
        }
    }

    /// The deep device did not flush: what was written back stays dirty; what was to be told of as
    /// clean may not be what the deep device has.
    fn give_up(&mut self, round: &Round) {
        for &Cleaned { slot, blocks } in &round.cleaned {
            self.lines.slot_mut(slot).cleaning &= !blocks;
        }
        self.cleaner.pause();
        let fresh = std::mem::take(&mut self.rounds.fresh);
        for &slot in &fresh {
            self.lines.slot_mut(slot).is_fresh = false;
        }
        for slot in round.fresh.iter().copied().chain(fresh) {
            let state = self.lines.slot(slot);
            let is_lone = state.pins == 0 && state.dirty == 0 && state.valid != 0;
            if is_lone && state.told == Told::Free {
                self.lines.free(slot);
            }
        }
    }

    fn is_to_publish(&mut self, slot: u32) -> bool {
        let state = self.lines.slot(slot);
        let is_whole = state.valid != 0 && state.valid == self.geometry.full(state.line);
        if state.pins > 0 {
            // Later.
            self.freshen(slot);
            return false;
        }
        is_whole && state.dirty == 0 && state.told == Told::Free && !state.is_fresh
    }

    fn bytes_of(&self, slot: u32, blocks: Mask) -> impl Iterator<Item = Range<u64>> + use<F> {
        let at = self.geometry.data_at(slot);
        runs(blocks).map(move |run| at + run.start..at + run.end)
    }
}
