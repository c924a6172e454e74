//! The device model as an event simulation in virtual time: the reference for the O(1) model and
//! the only one from which tails are claimed. Partitions with queues, reads first, writes in
//! batches of K, at most M reads past a waiting batch, a buffer of Q lines per module; threads in
//! a closed loop or with Poisson arrivals (NyxCache section 2.2, tables and figures 1 to 3).
//!
//! What it never does: touch memory, read a clock, or give two results for one seed. Numbers from
//! here are *simulated*.

use super::{Params, device_time, mix, ticks};
use nyx_base::{DevicePs, Rng};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

mod partition;
mod worker;

use partition::{Partition, Request, Write};
use worker::Worker;

/// What a simulated thread does, over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Ordinary loads.
    Load,
    /// Ordinary loads, each of which needs what the one before brought.
    LoadDependent,
    /// Loads with the prefetcher switched off.
    LoadNoPrefetch,
    /// Non-temporal loads.
    LoadNt,
    /// Ordinary stores: lines are filled first and evicted later.
    Store,
    /// Ordinary stores, each followed by a flush of its lines.
    StoreClwb,
    /// Non-temporal stores.
    StoreNt,
}

/// One simulated thread: operations of one kind and size at random addresses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thread {
    /// What it does.
    pub access: Access,
    /// On how many bytes at a time, at least one.
    pub op_bytes: u64,
    /// How often, as a Poisson process; none for a closed loop.
    pub ops_per_s: Option<f64>,
}

/// What one thread saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Completed operations per second.
    pub ops_per_s: f64,
    /// Bytes of those per second.
    pub bytes_per_s: f64,
    /// Mean latency from the intended start; not a number where nothing was completed.
    pub latency_ns_mean: f64,
    /// Its 99th percentile; not a number where nothing was completed.
    pub latency_ns_p99: f64,
}

/// The outcome of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// In the order of the threads.
    pub threads: Vec<Seen>,
    /// Device time used; a second of it is a second in which every partition is busy.
    pub busy: DevicePs,
}

/// The addresses of one thread lie in so many bytes.
const SPAN_BYTES: u64 = 10 << 30;

/// Runs `threads` against an idle device for `length_ns`, of which the first tenth warms up and
/// is not counted.
pub fn run(params: &Params, threads: &[Thread], length_ns: u64, seed: u64) -> Outcome {
    let mut sim = Sim::new(params, threads, seed);
    let end = ticks(length_ns as f64);
    sim.counted_from = end / 10;
    for thread in 0..threads.len() {
        sim.at(0, Event::Step(thread));
    }
    while let Some(Reverse((time, _, event))) = sim.events.pop() {
        if time > end {
            break;
        }
        sim.now = time;
        sim.handle(event);
    }
    let counted_ns = length_ns as f64 * 0.9;
    Outcome {
        threads: sim
            .threads
            .iter_mut()
            .map(|thread| thread.seen(counted_ns))
            .collect(),
        busy: device_time(sim.busy, sim.partitions.len()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A thread looks what it can do.
    Step(usize),
    /// A read reaches its partition.
    Arrive(Request),
    /// A partition has finished what it was doing.
    Served(usize),
    /// A waiting write of a partition may have grown old.
    Aged(usize),
    /// A line's bytes have arrived at the thread.
    Line(Request),
}

struct Sim<'a> {
    params: &'a Params,
    now: u64,
    counted_from: u64,
    sequence: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    partitions: Vec<Partition>,
    /// Lines in each module's buffer, and the threads that wait for room.
    held: Vec<u32>,
    waiting: Vec<VecDeque<usize>>,
    threads: Vec<Worker>,
    /// Ticks of service of a unit read and written.
    read_unit: u64,
    write_unit: u64,
    busy: u64,
    rng: Rng,
}

impl<'a> Sim<'a> {
    fn new(params: &'a Params, threads: &[Thread], seed: u64) -> Sim<'a> {
        let media = &params.media;
        let units = (media.line_bytes / media.unit_bytes) as f64;
        let writers = threads.iter().filter(|t| t.access.writes()).count() as f64;
        let crowd = writers / media.modules as f64 - f64::from(params.writes.writers_free);
        let crowded = 1.0 + params.writes.writer_penalty * crowd.max(0.0);
        Sim {
            params,
            now: 0,
            counted_from: 0,
            sequence: 0,
            events: BinaryHeap::new(),
            partitions: (0..params.partitions())
                .map(|_| Partition::default())
                .collect(),
            held: vec![0; media.modules],
            waiting: vec![VecDeque::new(); media.modules],
            threads: threads
                .iter()
                .map(|&thread| Worker::new(params, thread))
                .collect(),
            read_unit: ticks(media.read_ns / units),
            write_unit: ticks(media.write_ns / units * crowded),
            busy: 0,
            rng: Rng::with_seed(seed),
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Step(thread) => {
                self.threads[thread].stepping = false;
                self.step(thread);
            }
            Event::Arrive(request) => {
                let place = self.place(request.line);
                self.partitions[place].reads.push_back(request);
                self.serve(place);
            }
            Event::Served(place) => {
                let written = self.partitions[place].finish();
                self.make_room(place / self.params.media.partitions_per_module, written);
                self.serve(place);
            }
            Event::Aged(place) => {
                self.partitions[place].ageing = false;
                self.serve(place);
            }
            Event::Line(request) => self.line_arrived(request),
        }
    }

    /// Lets an idle partition begin the next thing.
    fn serve(&mut self, place: usize) {
        let module = place / self.params.media.partitions_per_module;
        let writes = &self.params.writes;
        let full = self.held[module] >= writes.buffer_lines;
        let age = ticks(writes.age_ns);
        let partition = &mut self.partitions[place];
        if partition.busy {
            return;
        }
        let ready = partition.batch_ready(self.now, writes, full, age);
        if ready && (partition.reads.is_empty() || partition.passed >= writes.guard_reads) {
            let took = partition.begin_batch(writes.batch_lines);
            self.busy += took;
            self.at(self.now + took, Event::Served(place));
        } else if let Some(request) = partition.begin_read(ready) {
            let took = request.units * self.read_unit;
            self.busy += took;
            self.at(self.now + took, Event::Served(place));
            if let Some(thread) = request.thread {
                let latency = self.threads[thread].fetch.latency;
                self.at(self.now + latency, Event::Line(request));
            }
        } else if let Some(oldest) = partition.oldest_write()
            && !partition.ageing
        {
            partition.ageing = true;
            self.at(oldest + age, Event::Aged(place));
        }
    }

    /// `written` lines have left a module's buffer; threads that wait for room go on.
    fn make_room(&mut self, module: usize, written: u32) {
        self.held[module] -= written;
        for _ in 0..written {
            let Some(thread) = self.waiting[module].pop_front() else {
                return;
            };
            self.threads[thread].waiting = false;
            self.step(thread);
        }
    }

    /// Lets a thread do what it can do now.
    fn step(&mut self, thread: usize) {
        if self.threads[thread].stepping || self.threads[thread].waiting {
            return;
        }
        if !self.deposit_all(thread) {
            return;
        }
        if self.threads[thread].next_byte == self.threads[thread].end_byte && !self.begin_op(thread)
        {
            return;
        }
        match self.threads[thread].spec.access {
            Access::StoreNt | Access::StoreClwb => self.issue_store(thread),
            _ => self.issue_load(thread),
        }
    }

    /// Puts the thread's writes into their buffers; false where it has to wait for room.
    fn deposit_all(&mut self, thread: usize) -> bool {
        while let Some(&(line, write)) = self.threads[thread].deposits.front() {
            let place = self.place(line);
            let module = place / self.params.media.partitions_per_module;
            if self.held[module] >= self.params.writes.buffer_lines {
                self.waiting[module].push_back(thread);
                self.threads[thread].waiting = true;
                return false;
            }
            self.threads[thread].deposits.pop_front();
            self.held[module] += 1;
            self.partitions[place].buffer(Write {
                came: self.now,
                ..write
            });
            self.serve(place);
        }
        let worker = &mut self.threads[thread];
        let serial = matches!(worker.spec.access, Access::StoreNt | Access::StoreClwb);
        if serial && worker.next_byte == worker.end_byte {
            worker.complete_oldest(self.now, self.counted_from);
        }
        true
    }

    /// Begins the thread's next operation if its time has come and its window has room.
    fn begin_op(&mut self, thread: usize) -> bool {
        let worker = &mut self.threads[thread];
        if worker.outstanding >= worker.fetch.window {
            return false;
        }
        if worker.next_start > self.now {
            let start = worker.next_start;
            self.step_at(start, thread);
            return false;
        }
        let bytes = worker.spec.op_bytes;
        worker.next_byte = self.rng.u64(0..SPAN_BYTES / bytes) * bytes;
        worker.end_byte = worker.next_byte + bytes;
        let line = self.params.media.line_bytes;
        let lines = worker.end_byte.div_ceil(line) - worker.next_byte / line;
        let start = match worker.spec.ops_per_s {
            None => self.now,
            Some(rate) => {
                let start = worker.next_start;
                let pause = -(1.0 - self.rng.f64()).ln() / rate * 1e9;
                worker.next_start = start + ticks(pause);
                start
            }
        };
        worker.ops.push_back((start, lines as usize));
        let base = worker.fetch.base;
        if base > 0 {
            self.step_at(self.now + base, thread);
        }
        base == 0
    }

    fn step_at(&mut self, time: u64, thread: usize) {
        self.threads[thread].stepping = true;
        self.at(time, Event::Step(thread));
    }

    /// Issues the next line of a load, or of a store's fill.
    fn issue_load(&mut self, thread: usize) {
        let worker = &mut self.threads[thread];
        if worker.outstanding >= worker.fetch.in_flight {
            return;
        }
        let (line, units, _) = worker.take_piece(self.params);
        worker.outstanding += 1;
        let op = worker.first_op + worker.ops.len() as u64 - 1;
        let there = self.now + worker.fetch.gap;
        let last = worker.next_byte == worker.end_byte;
        let mut vain = 0;
        if last {
            worker.waste += worker.fetch.waste_lines;
            vain = worker.waste as u64;
            worker.waste -= vain as f64;
        }
        self.at(
            there,
            Event::Arrive(Request {
                thread: Some(thread),
                op,
                line,
                units,
            }),
        );
        let whole = self.params.media.line_bytes / self.params.media.unit_bytes;
        for ahead in 1..=vain {
            let request = Request {
                thread: None,
                op,
                line: line + ahead,
                units: whole,
            };
            self.at(there, Event::Arrive(request));
        }
        self.step_at(there, thread);
    }

    /// Spends the thread's time for the next line of a store that bypasses the cache or is flushed
    /// out of it; then it is deposited. A flushed line is read first, for which nobody waits: its
    /// usual time is part of the thread's.
    fn issue_store(&mut self, thread: usize) {
        let worker = &mut self.threads[thread];
        let (line, units, chunks) = worker.take_piece(self.params);
        let write = Write {
            came: 0,
            work: units * self.write_unit,
            places: 1,
        };
        worker.deposits.push_back((line, write));
        let store = &self.params.store;
        let took = match worker.spec.access {
            Access::StoreNt => chunks * ticks(store.nt_64b_ns),
            _ => ticks(store.clwb_line_ns),
        };
        if worker.spec.access == Access::StoreClwb {
            let op = worker.first_op;
            self.at(
                self.now,
                Event::Arrive(Request {
                    thread: None,
                    op,
                    line,
                    units,
                }),
            );
        }
        self.step_at(self.now + took, thread);
    }

    fn line_arrived(&mut self, request: Request) {
        let Some(thread) = request.thread else { return };
        let store = &self.params.store;
        let worker = &mut self.threads[thread];
        worker.outstanding -= 1;
        let unit = self.params.media.unit_bytes;
        if worker.spec.access == Access::Store {
            // The cache evicts older lines in no order, and each is served alone.
            let places = self.params.writes.batch_lines;
            let line_bytes = self.params.media.line_bytes.min(worker.spec.op_bytes);
            let work = store.evict_bytes.div_ceil(unit) * self.write_unit;
            for _ in 0..line_bytes.div_ceil(store.evict_bytes) {
                let write = Write {
                    came: 0,
                    work,
                    places,
                };
                worker.deposits.push_back((self.rng.u64(..), write));
            }
        }
        let op = &mut worker.ops[(request.op - worker.first_op) as usize];
        op.1 -= 1;
        if op.1 == 0 {
            worker.complete(request.op, self.now, self.counted_from);
        }
        self.step(thread);
    }

    fn place(&self, line: u64) -> usize {
        ((u128::from(mix(line)) * self.partitions.len() as u128) >> 64) as usize
    }
}

impl Access {
    fn writes(self) -> bool {
        matches!(self, Access::Store | Access::StoreClwb | Access::StoreNt)
    }
}

#[cfg(test)]
mod tests;
