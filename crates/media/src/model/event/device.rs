//! The simulated device and its threads' memory pipelines, moved from outside in virtual time.
//!
//! What it never does: decide what a thread does next or when; it asks.

use super::partition::{NOBODY, Partition, Read, Rules, Write};
use super::queue::{Event, Queue};
use super::worker::{Grain, Issue, Pending, Worker};
use super::{Access, Kind};
use crate::model::{Params, device_time, mix, ticks};
use nyx_base::{DevicePs, Rng};
use std::collections::VecDeque;

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Begins an operation now.
    Begin {
        /// Of the so-many-th kind.
        kind: usize,
        /// Where, in bytes.
        address: u64,
        /// Told when it is done; whatever the driver likes.
        tag: u64,
    },
    /// Wants to be asked again at this time, in ticks.
    At(u64),
    /// Has nothing to do until one of its operations is done, or it is woken.
    Idle,
}

/// The threads of a device, as whoever drives it plays them. Times are in ticks of
/// [`TICKS_PER_NS`](crate::model::TICKS_PER_NS).
pub trait Threads {
    /// A thread could begin an operation now: its window has room after what it began last.
    /// `rng` is the device's, so that one seed makes one outcome.
    fn next(&mut self, thread: usize, now: u64, rng: &mut Rng) -> Next;

    /// An operation is done: the bytes have arrived, or the stores are buffered.
    fn done(&mut self, thread: usize, tag: u64, now: u64);
}

/// One module's write buffer.
#[derive(Debug, Default)]
struct Module {
    /// Lines in it.
    held: u32,
    /// Threads that wait for room.
    waiting: VecDeque<u32>,
}

/// A device in virtual time. See the module.
#[derive(Debug)]
pub struct Device {
    params: Params,
    rules: Rules,
    grain: Grain,
    kinds: Vec<Issue>,
    now: u64,
    events: Queue,
    partitions: Vec<Partition>,
    modules: Vec<Module>,
    workers: Vec<Worker>,
    /// Ticks of service of a unit read and written.
    read_unit: u64,
    write_unit: u64,
    nt_64b: u64,
    clwb_line: u64,
    busy: u64,
    rng: Rng,
}

impl Device {
    /// An idle device at time zero, with threads that sleep until they are woken.
    pub fn new(params: &Params, kinds: &[Kind], threads: usize, seed: u64) -> Device {
        let (media, writes) = (&params.media, &params.writes);
        assert!(
            threads <= usize::from(u16::MAX) && params.partitions() <= usize::from(u16::MAX),
            "{threads} threads on {} partitions",
            params.partitions()
        );
        let units = (media.line_bytes / media.unit_bytes) as f64;
        let modules = 0..media.modules;
        let of_module =
            |module| (0..media.partitions_per_module).map(move |_| Partition::of_module(module));
        let mut device = Device {
            rules: Rules {
                batch_lines: writes.batch_lines,
                guard_reads: writes.guard_reads,
                buffer_lines: writes.buffer_lines,
                age: ticks(writes.age_ns),
            },
            grain: Grain::of(params),
            kinds: kinds.iter().map(|&kind| Issue::of(params, kind)).collect(),
            now: 0,
            events: Queue::new(),
            partitions: modules.clone().flat_map(of_module).collect(),
            modules: modules.map(|_| Module::default()).collect(),
            workers: (0..threads).map(|_| Worker::default()).collect(),
            read_unit: ticks(media.read_ns / units),
            write_unit: 0,
            nt_64b: ticks(params.store.nt_64b_ns),
            clwb_line: ticks(params.store.clwb_line_ns),
            busy: 0,
            rng: Rng::with_seed(seed),
            params: params.clone(),
        };
        device.set_writers(0);
        device
    }

    /// How many threads write from now on: beyond [`writers_free`](crate::model::Writes) a module
    /// they slow each other down.
    pub fn set_writers(&mut self, writers: usize) {
        let (media, writes) = (&self.params.media, &self.params.writes);
        let units = (media.line_bytes / media.unit_bytes) as f64;
        let crowd = writers as f64 / media.modules as f64 - f64::from(writes.writers_free);
        let crowded = 1.0 + writes.writer_penalty * crowd.max(0.0);
        self.write_unit = ticks(media.write_ns / units * crowded);
    }

    /// Asks a thread at `time`, in ticks, what it does; not before now.
    pub fn wake(&mut self, thread: usize, time: u64) {
        if !self.workers[thread].stepping {
            self.step_at(time.max(self.now), thread as u32);
        }
    }

    /// Moves on until just before the time `until`, in ticks.
    pub fn advance(&mut self, until: u64, threads: &mut dyn Threads) {
        while let Some((time, event)) = self.events.pop_before(until) {
            self.now = time;
            self.handle(event, threads);
        }
        self.now = self.now.max(until);
    }

    /// Device time used so far; a second of it is a second in which every partition is busy.
    pub fn busy(&self) -> DevicePs {
        device_time(self.busy, self.partitions.len())
    }

    fn handle(&mut self, event: Event, threads: &mut dyn Threads) {
        match event {
            Event::Step(thread) => {
                self.workers[thread as usize].stepping = false;
                self.arrive(thread);
                self.step(thread, threads);
            }
            Event::Fetch { place, units } => self.queue_vain(usize::from(place), units),
            Event::Served(place) => {
                let partition = &mut self.partitions[place as usize];
                let (module, written) = (partition.module, partition.finish());
                self.make_room(module, written, threads);
                self.serve(place as usize);
            }
            Event::Aged(place) => {
                self.partitions[place as usize].ageing = false;
                self.serve(place as usize);
            }
            Event::Line { thread, op } => self.line_arrived(u32::from(thread), op, threads),
        }
    }

    /// The read that a thread has issued reaches its partition, and what is read in vain after it.
    fn arrive(&mut self, thread: u32) {
        let worker = &mut self.workers[thread as usize];
        let Some((piece, vain)) = worker.issued.take() else {
            return;
        };
        let read = Read {
            thread,
            op: worker.last_op(),
            kind: worker.kind,
            units: piece.units,
        };
        let place = self.place(piece.line);
        self.partitions[place].reads.push_back(read);
        self.serve(place);
        let whole = 1 << (self.grain.line - self.grain.unit);
        for ahead in 1..=u64::from(vain) {
            self.queue_vain(self.place(piece.line + ahead), whole);
        }
    }

    fn queue_vain(&mut self, place: usize, units: u32) {
        let read = Read {
            thread: NOBODY,
            op: 0,
            kind: 0,
            units,
        };
        self.partitions[place].reads.push_back(read);
        self.serve(place);
    }

    /// Lets an idle partition begin the next thing.
    fn serve(&mut self, place: usize) {
        let partition = &mut self.partitions[place];
        if partition.busy {
            return;
        }
        let full = self.modules[partition.module].held >= self.rules.buffer_lines;
        let ready = partition.batch_ready(self.now, &self.rules, full);
        if ready && (partition.reads.is_empty() || partition.passed >= self.rules.guard_reads) {
            let took = partition.begin_batch(self.rules.batch_lines);
            self.busy += took;
            self.events
                .push(self.now + took, Event::Served(place as u32));
        } else if let Some(read) = partition.begin_read(ready) {
            let took = u64::from(read.units) * self.read_unit;
            self.busy += took;
            self.events
                .push(self.now + took, Event::Served(place as u32));
            if read.thread != NOBODY {
                let latency = self.kinds[read.kind as usize].latency;
                let (thread, op) = (read.thread as u16, read.op);
                self.events
                    .push(self.now + latency, Event::Line { thread, op });
            }
        } else if let Some(oldest) = partition.oldest_write()
            && !partition.ageing
        {
            partition.ageing = true;
            self.events
                .push(oldest + self.rules.age, Event::Aged(place as u32));
        }
    }

    /// `written` lines have left a module's buffer; threads that wait for room go on.
    fn make_room(&mut self, module: usize, written: u32, threads: &mut dyn Threads) {
        self.modules[module].held -= written;
        for _ in 0..written {
            let Some(thread) = self.modules[module].waiting.pop_front() else {
                return;
            };
            self.workers[thread as usize].waiting = false;
            self.step(thread, threads);
        }
    }

    /// Lets a thread do what it can do now.
    fn step(&mut self, thread: u32, threads: &mut dyn Threads) {
        let worker = &self.workers[thread as usize];
        if worker.stepping || worker.waiting {
            return;
        }
        if !self.deposit_all(thread, threads) {
            return;
        }
        let worker = &self.workers[thread as usize];
        if worker.next_byte == worker.end_byte && !self.begin_op(thread, threads) {
            return;
        }
        let kind = self.workers[thread as usize].kind;
        let issue = self.kinds[kind as usize];
        if issue.access.is_serial() {
            self.issue_store(thread, issue);
        } else {
            self.issue_load(thread, issue);
        }
    }

    /// Puts the thread's writes into their buffers; false where it has to wait for room.
    fn deposit_all(&mut self, thread: u32, threads: &mut dyn Threads) -> bool {
        while let Some(&(line, write)) = self.workers[thread as usize].deposits.front() {
            let place = self.place(line);
            let module = &mut self.modules[self.partitions[place].module];
            if module.held >= self.rules.buffer_lines {
                module.waiting.push_back(thread);
                self.workers[thread as usize].waiting = true;
                return false;
            }
            module.held += 1;
            self.workers[thread as usize].deposits.pop_front();
            self.partitions[place].buffer(Write {
                came: self.now,
                ..write
            });
            self.serve(place);
        }
        let worker = &mut self.workers[thread as usize];
        if worker.storing && worker.next_byte == worker.end_byte {
            worker.storing = false;
            let tag = worker.complete(worker.last_op());
            threads.done(thread as usize, tag, self.now);
        }
        true
    }

    /// Begins the thread's next operation if it has one and its window has room.
    fn begin_op(&mut self, thread: u32, threads: &mut dyn Threads) -> bool {
        let worker = &mut self.workers[thread as usize];
        if worker.outstanding > 0 && worker.outstanding >= self.kinds[worker.kind as usize].window {
            return false;
        }
        let next = threads.next(thread as usize, self.now, &mut self.rng);
        let (kind, address, tag) = match next {
            Next::Begin { kind, address, tag } => (kind, address, tag),
            Next::At(time) => {
                self.step_at(time.max(self.now), thread);
                return false;
            }
            Next::Idle => return false,
        };
        let issue = &self.kinds[kind];
        worker.kind = kind as u32;
        worker.storing = issue.access.is_serial();
        worker.next_byte = address;
        worker.end_byte = address + issue.op_bytes;
        let last_line = (worker.end_byte - 1) >> self.grain.line;
        let lines = last_line - (address >> self.grain.line) + 1;
        worker.ops.push_back(Pending {
            tag,
            kind: kind as u32,
            lines: lines as u32,
        });
        let base = issue.base;
        if base > 0 {
            self.step_at(self.now + base, thread);
        }
        base == 0
    }

    fn step_at(&mut self, time: u64, thread: u32) {
        self.workers[thread as usize].stepping = true;
        self.events.push(time, Event::Step(thread));
    }

    /// Issues the next line of a load, or of a store's fill.
    fn issue_load(&mut self, thread: u32, issue: Issue) {
        let worker = &mut self.workers[thread as usize];
        if worker.outstanding >= issue.in_flight {
            return;
        }
        let piece = worker.take_piece(self.grain);
        worker.outstanding += 1;
        let mut vain = 0;
        if worker.next_byte == worker.end_byte {
            worker.waste += issue.waste_lines;
            vain = worker.waste as u32;
            worker.waste -= f64::from(vain);
        }
        worker.issued = Some((piece, vain));
        self.step_at(self.now + issue.gap, thread);
    }

    /// Spends the thread's time for the next line of a store that bypasses the cache or is flushed
    /// out of it; then it is deposited. A flushed line is read first, for which nobody waits: its
    /// usual time is part of the thread's.
    fn issue_store(&mut self, thread: u32, issue: Issue) {
        let worker = &mut self.workers[thread as usize];
        let piece = worker.take_piece(self.grain);
        let write = Write {
            came: 0,
            work: u64::from(piece.units) * self.write_unit,
            places: 1,
        };
        worker.deposits.push_back((piece.line, write));
        let took = match issue.access {
            Access::StoreNt => piece.chunks * self.nt_64b,
            _ => self.clwb_line,
        };
        if issue.access == Access::StoreClwb {
            let (place, units) = (self.place(piece.line) as u16, piece.units);
            self.events.push(self.now, Event::Fetch { place, units });
        }
        self.step_at(self.now + took, thread);
    }

    fn line_arrived(&mut self, thread: u32, op: u32, threads: &mut dyn Threads) {
        let worker = &mut self.workers[thread as usize];
        worker.outstanding -= 1;
        let pending = worker.op(op);
        pending.lines -= 1;
        let (complete, kind) = (pending.lines == 0, pending.kind);
        if self.kinds[kind as usize].access == Access::Store {
            self.evict(thread, kind);
        }
        if complete {
            let tag = self.workers[thread as usize].complete(op);
            threads.done(thread as usize, tag, self.now);
        }
        self.step(thread, threads);
    }

    /// For a line that was stored to, the cache evicts older ones in no order, and each piece is
    /// served alone.
    fn evict(&mut self, thread: u32, kind: u32) {
        let evict_bytes = self.params.store.evict_bytes;
        let op_bytes = self.kinds[kind as usize].op_bytes;
        let line_bytes = self.params.media.line_bytes.min(op_bytes);
        let work = evict_bytes.div_ceil(self.params.media.unit_bytes) * self.write_unit;
        for _ in 0..line_bytes.div_ceil(evict_bytes) {
            let write = Write {
                came: 0,
                work,
                places: self.rules.batch_lines,
            };
            let line = self.rng.u64(..);
            self.workers[thread as usize]
                .deposits
                .push_back((line, write));
        }
    }

    fn place(&self, line: u64) -> usize {
        ((u128::from(mix(line)) * self.partitions.len() as u128) >> 64) as usize
    }
}
