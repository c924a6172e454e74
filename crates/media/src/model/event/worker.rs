//! One simulated thread: what it fetches and how, the operation that it is issuing, those that are
//! not complete, and what it saw.
//!
//! What it never does: touch a partition or the list of events; the simulation moves it.

use super::partition::Write;
use super::{Access, Seen, Thread};
use crate::model::{Params, TICKS_PER_NS, ticks};
use std::collections::VecDeque;

/// How a thread fetches lines, in ticks and lines.
pub(super) struct Fetch {
    pub(super) base: u64,
    pub(super) latency: u64,
    pub(super) gap: u64,
    pub(super) in_flight: usize,
    pub(super) window: usize,
    pub(super) waste_lines: f64,
}

/// A thread at work.
pub(super) struct Worker {
    pub(super) spec: Thread,
    pub(super) fetch: Fetch,
    /// The operation that is being issued: its next line and its end, in bytes.
    pub(super) next_byte: u64,
    pub(super) end_byte: u64,
    /// When the next operation is to begin.
    pub(super) next_start: u64,
    pub(super) outstanding: usize,
    /// Operations not complete yet: start and lines left, oldest first.
    pub(super) ops: VecDeque<(u64, usize)>,
    /// The number of the oldest of them.
    pub(super) first_op: u64,
    /// Writes that the thread has yet to put into a buffer, and their lines.
    pub(super) deposits: VecDeque<(u64, Write)>,
    pub(super) stepping: bool,
    /// In a module's queue for room in its buffer.
    pub(super) waiting: bool,
    pub(super) latencies: Vec<u64>,
    pub(super) waste: f64,
}

impl Worker {
    pub(super) fn new(params: &Params, spec: Thread) -> Worker {
        Worker {
            spec,
            fetch: Fetch::of(params, spec),
            next_byte: 0,
            end_byte: 0,
            next_start: 0,
            outstanding: 0,
            ops: VecDeque::new(),
            first_op: 0,
            deposits: VecDeque::new(),
            stepping: false,
            waiting: false,
            latencies: Vec::new(),
            waste: 0.0,
        }
    }

    /// The next line of the operation: its number, its units and its pieces of 64 B.
    pub(super) fn take_piece(&mut self, params: &Params) -> (u64, u64, u64) {
        let (line_bytes, unit) = (params.media.line_bytes, params.media.unit_bytes);
        let (from, line) = (self.next_byte, self.next_byte / line_bytes);
        let to = self.end_byte.min((line + 1) * line_bytes);
        self.next_byte = to;
        (
            line,
            to.div_ceil(unit) - from / unit,
            to.div_ceil(64) - from / 64,
        )
    }

    /// The only operation of a thread that has one at a time.
    pub(super) fn complete_oldest(&mut self, now: u64, counted_from: u64) {
        if !self.ops.is_empty() {
            self.complete(self.first_op, now, counted_from);
        }
    }

    /// Ends an operation and forgets those at the front that have ended.
    pub(super) fn complete(&mut self, op: u64, now: u64, counted_from: u64) {
        let (start, left) = &mut self.ops[(op - self.first_op) as usize];
        *left = 0;
        if now >= counted_from {
            self.latencies.push(now - *start);
        }
        while self.ops.front().is_some_and(|&(_, left)| left == 0) {
            self.ops.pop_front();
            self.first_op += 1;
        }
    }

    pub(super) fn seen(&mut self, counted_ns: f64) -> Seen {
        self.latencies.sort_unstable();
        let count = self.latencies.len();
        let ns = |ticks: u64| ticks as f64 / TICKS_PER_NS as f64;
        let ops_per_s = count as f64 / counted_ns * 1e9;
        let rank = (count * 99 / 100).min(count.saturating_sub(1));
        Seen {
            ops_per_s,
            bytes_per_s: ops_per_s * self.spec.op_bytes as f64,
            latency_ns_mean: self.latencies.iter().map(|&l| ns(l)).sum::<f64>() / count as f64,
            latency_ns_p99: self.latencies.get(rank).map_or(f64::NAN, |&l| ns(l)),
        }
    }
}

impl Fetch {
    fn of(params: &Params, spec: Thread) -> Fetch {
        let lines = spec.op_bytes.div_ceil(params.media.line_bytes);
        let window = params.window_lines(spec.op_bytes, lines);
        let (base, latency, gap, window) = match spec.access {
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
        Fetch {
            base: ticks(base),
            latency: ticks(latency),
            gap: ticks(gap),
            in_flight: in_flight.max(1),
            window: window as usize,
            waste_lines: match spec.access {
                Access::Load => params.waste_lines(spec.op_bytes),
                _ => 0.0,
            },
        }
    }
}
