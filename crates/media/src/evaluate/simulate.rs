//! Evaluates a device model in virtual time, on the event model: the same points, exact, the same
//! on every machine. Readings are *simulated*.
//!
//! Reads are those of a processor whose prefetcher is off, as in the paper. The model knows neither
//! fences nor a buffer in front of reads, so that a sequence costs what random addresses do.
//!
//! What it never does: read a clock.

use super::{Flow, Order, Point, Reading, Sheet, Work};
use crate::Evidence;
use crate::model::event::{Access, Device, Kind, Next, Threads};
use crate::model::{Params, TICKS_PER_NS, ticks};
use nyx_base::Rng;

/// The addresses of the threads lie in this span.
const SPAN_BYTES: u64 = 10 << 30;
/// The threads of a point move so many lines before anything is counted, to fill what is buffered,
const WARM_LINES: u64 = 2_000;
/// and so many that are;
const COUNTED_LINES: u64 = 20_000;
/// but each at least so many accesses.
const ACCESSES_LEAST: u64 = 3;
/// The device is moved on by so much at a time, until everybody is done.
const STEP_NS: f64 = 100_000.0;

/// Evaluates `params` at `points`, which have no fenced writes, and tells of each reading.
///
/// Panics at a point with fences: the model knows none.
pub fn simulate(params: &Params, points: &[Point], progress: &mut dyn FnMut(&Reading)) -> Sheet {
    let mut readings = Vec::new();
    for &point in points {
        for reading in read_point(params, point) {
            progress(&reading);
            readings.push(reading);
        }
    }
    Sheet {
        evidence: Evidence::Simulated,
        readings,
    }
}

fn read_point(params: &Params, point: Point) -> Vec<Reading> {
    let flows: Vec<Flow> = std::iter::once(point.flow).chain(point.beside).collect();
    let of_thread: Vec<usize> = flows
        .iter()
        .enumerate()
        .flat_map(|(at, flow)| std::iter::repeat_n(at, flow.threads))
        .collect();
    let kinds: Vec<Kind> = flows.iter().map(|&flow| kind(flow)).collect();
    let mut device = Device::new(params, &kinds, of_thread.len(), 1);
    let is_writer = |&&at: &&usize| flows[at].work == Work::Write;
    device.set_writers(of_thread.iter().filter(is_writer).count());
    let lines_per_access = |flow: Flow| (flow.bytes as u64).div_ceil(params.media.line_bytes);
    let mut loops = Loops {
        threads: Vec::new(),
    };
    for (thread, &at) in of_thread.iter().enumerate() {
        let flow = flows[at];
        let lines = lines_per_access(flow) * of_thread.len() as u64;
        let slots = SPAN_BYTES / flow.bytes as u64;
        loops.threads.push(Loop {
            flow,
            kind: at,
            warm: (WARM_LINES / lines).max(1),
            counted: (COUNTED_LINES / lines).max(ACCESSES_LEAST),
            slot: slots / of_thread.len() as u64 * thread as u64,
            done: 0,
            first: 0,
            last: 0,
            waited: 0,
        });
        device.wake(thread, 0);
    }
    let mut until = 0;
    while loops.threads.iter().any(|one| !one.is_done()) {
        until += ticks(STEP_NS);
        device.advance(until, &mut loops);
    }
    let seen = flows.iter().enumerate().map(|(at, &flow)| {
        let own = loops.threads.iter().filter(|one| one.kind == at);
        let others = flows.iter().copied().find(|&other| other != flow);
        reading(flow, others, &own.collect::<Vec<_>>())
    });
    seen.collect()
}

fn kind(flow: Flow) -> Kind {
    let access = match flow.work {
        Work::ReadChained => Access::LoadDependent,
        Work::Read => Access::LoadNoPrefetch,
        Work::Write => Access::StoreNt,
        Work::WriteFenced => panic!("the model knows no fences"),
    };
    Kind {
        access,
        op_bytes: flow.bytes as u64,
    }
}

fn reading(flow: Flow, beside: Option<Flow>, threads: &[&Loop]) -> Reading {
    let ns = |ticks: u64| ticks as f64 / TICKS_PER_NS as f64;
    let latency = |one: &&Loop| ns(one.waited) / one.counted as f64;
    let rate = |one: &&Loop| one.counted as f64 / ns(one.last - one.first) * 1e9;
    Reading {
        flow,
        beside,
        latency_ns: threads.iter().map(latency).sum::<f64>() / threads.len() as f64,
        bytes_per_s: threads.iter().map(rate).sum::<f64>() * flow.bytes as f64,
        spread: 0.0,
        rounds: 1,
        is_quiet: true,
    }
}

/// Threads in closed loops.
struct Loops {
    threads: Vec<Loop>,
}

#[derive(Clone, Debug)]
struct Loop {
    flow: Flow,
    kind: usize,
    /// Accesses before anything is counted, and those that are.
    warm: u64,
    counted: u64,
    /// The next place of a sequence.
    slot: u64,
    done: u64,
    /// When the last access that is not counted ended, and the last that is, in ticks.
    first: u64,
    last: u64,
    /// How long those that are counted took together.
    waited: u64,
}

impl Loop {
    fn is_done(&self) -> bool {
        self.done >= self.warm + self.counted
    }
}

impl Threads for Loops {
    fn next(&mut self, thread: usize, now: u64, rng: &mut Rng) -> Next {
        let one = &mut self.threads[thread];
        let slots = SPAN_BYTES / one.flow.bytes as u64;
        let slot = match one.flow.order {
            Order::Random => rng.u64(0..slots),
            Order::Sequential => {
                one.slot = (one.slot + 1) % slots;
                one.slot
            }
        };
        Next::Begin {
            kind: one.kind,
            address: slot * one.flow.bytes as u64,
            tag: now,
        }
    }

    fn done(&mut self, thread: usize, tag: u64, now: u64) {
        let one = &mut self.threads[thread];
        if one.is_done() {
            // It goes on so that the others are not alone.
            return;
        }
        one.done += 1;
        match one.done <= one.warm {
            true => one.first = now,
            false => {
                one.waited += now - tag;
                one.last = now;
            }
        }
    }
}

#[cfg(test)]
mod tests;
