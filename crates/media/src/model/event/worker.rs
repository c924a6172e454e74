//! One simulated thread: the operation that it is issuing and those that are not complete; and how
//! operations of a kind are issued.
//!
//! What it never does: touch a partition or the list of events; the simulation moves it.

use super::partition::Write;
use super::{Access, Kind};
use crate::model::{Params, ticks};
use std::collections::VecDeque;

/// How operations of one kind are issued: times in ticks, amounts in lines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Issue {
    pub(super) access: Access,
    pub(super) op_bytes: u64,
    pub(super) base: u64,
    pub(super) latency: u64,
    pub(super) gap: u64,
    pub(super) in_flight: usize,
    pub(super) window: usize,
    pub(super) waste_lines: f64,
}

/// An operation that is not complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) tag: u64,
    pub(super) kind: u32,
    /// Lines that are still to come; none once it is complete.
    pub(super) lines: u32,
}

/// The next piece of an operation, within one line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) line: u64,
    pub(super) units: u32,
    /// In 64 B of the thread's own work.
    pub(super) chunks: u64,
}

/// Sizes of lines and units as shifts: both are powers of two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grain {
    pub(super) line: u32,
    pub(super) unit: u32,
}

/// A thread at work.
#[derive(Debug, Default)]
pub(super) struct Worker {
    /// What the operation in hand, or else the last, is one of.
    pub(super) kind: u32,
    /// The operation that is being issued: its next line and its end, in bytes.
    pub(super) next_byte: u64,
    pub(super) end_byte: u64,
    /// A read that it has issued and that has not reached its partition, and how many lines behind
    /// it are read in vain.
    pub(super) issued: Option<(Piece, u32)>,
    /// A store in hand, whose lines are brought to the device one after the other.
    pub(super) storing: bool,
    pub(super) outstanding: usize,
    /// Operations not complete yet, oldest first.
    pub(super) ops: VecDeque<Pending>,
    /// The number of the oldest of them.
    pub(super) first_op: u32,
    /// Writes that the thread has yet to put into a buffer, and their lines.
    pub(super) deposits: VecDeque<(u64, Write)>,
    pub(super) stepping: bool,
    /// In a module's queue for room in its buffer.
    pub(super) waiting: bool,
    pub(super) waste: f64,
}

impl Worker {
    /// The next piece of the operation in hand.
    pub(super) fn take_piece(&mut self, grain: Grain) -> Piece {
        let from = self.next_byte;
        let line = from >> grain.line;
        let to = self.end_byte.min((line + 1) << grain.line);
        self.next_byte = to;
        let unit = 1 << grain.unit;
        Piece {
            line,
            units: (((to + unit - 1) >> grain.unit) - (from >> grain.unit)) as u32,
            chunks: to.div_ceil(64) - from / 64,
        }
    }

    /// The number of the operation in hand, or else of the last.
    pub(super) fn last_op(&self) -> u32 {
        self.first_op.wrapping_add(self.ops.len() as u32 - 1)
    }

    /// An operation that is not forgotten yet.
    pub(super) fn op(&mut self, op: u32) -> &mut Pending {
        &mut self.ops[op.wrapping_sub(self.first_op) as usize]
    }

    /// Ends an operation and forgets those at the front that have ended; gives its tag.
    pub(super) fn complete(&mut self, op: u32) -> u64 {
        let pending = self.op(op);
        pending.lines = 0;
        let tag = pending.tag;
        while self.ops.front().is_some_and(|oldest| oldest.lines == 0) {
            self.ops.pop_front();
            self.first_op = self.first_op.wrapping_add(1);
        }
        tag
    }
}

impl Grain {
    pub(super) fn of(params: &Params) -> Grain {
        Grain {
            line: params.media.line_bytes.ilog2(),
            unit: params.media.unit_bytes.ilog2(),
        }
    }
}

impl Issue {
    pub(super) fn of(params: &Params, kind: Kind) -> Issue {
        let Kind { access, op_bytes } = kind;
        let lines = op_bytes.div_ceil(params.media.line_bytes);
        let window = params.window_lines(op_bytes, lines);
        let (base, latency, gap, window) = match access {
            Access::Load => (0.0, params.load.latency_ns, params.load.gap_ns, window),
            Access::LoadDependent => (0.0, params.load.latency_ns, params.load.gap_ns, 1),
            Access::LoadNoPrefetch => {
                let loads = &params.load_no_prefetch;
                let most = params.window.lines_max_no_prefetch;
                (0.0, loads.latency_ns, loads.gap_ns, window.min(most))
            }
            Access::LoadNt => (0.0, params.load_nt.latency_ns, params.load_nt.gap_ns, 1),
            Access::Store => (0.0, params.store.fill_ns, params.load.gap_ns, window),
            Access::StoreClwb => (params.store.clwb_base_ns, params.store.clwb_line_ns, 0.0, 1),
            Access::StoreNt => (0.0, 0.0, 0.0, 1),
        };
        let in_flight = if gap > 0.0 {
            ((latency + gap) / gap).ceil() as usize
        } else {
            1
        };
        Issue {
            access,
            op_bytes,
            base: ticks(base),
            latency: ticks(latency),
            gap: ticks(gap),
            in_flight: in_flight.max(1),
            window: window as usize,
            waste_lines: match access {
                Access::Load => params.waste_lines(op_bytes),
                _ => 0.0,
            },
        }
    }
}
