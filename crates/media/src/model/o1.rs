//! The device model in constant work per line: per partition a clock until which it is busy with
//! reads, and an amount of write work that waits. No queue, no event, so it can run in real time
//! on the path of an access, shared by several threads.
//!
//! Against the event simulation ([`super::event`]), with the preset `optane-2dimm`: throughput is
//! within 8 % for few threads and 2 % at saturation (cached stores up to 15 % low), a victim beside
//! writers or small readers within 5 points of its throughput and 5 % of its P99. Beside readers
//! of 4 KiB a victim suffers up to 15 points too much: the lines of one access are queued at once.
//! Threads that wait for each of their 4 KiB answers are up to 15 % too fast.
//! Tails under saturation are claimed from the event simulation only. It does not know how many
//! threads write, so [`super::Writes::writer_penalty`] is not applied.
//!
//! What it never does: read a clock, wait, or allocate; it says until when to wait.
//!
//! *Thread safety*: one mutex per module, held for the arithmetic of one line and never while
//! waiting. *Invariants*: times are in ticks of 1/16 ns (36 years to overflow); a partition's
//! clocks never go back.

use super::{Params, TICKS_PER_NS, device_time, mix, ticks};
use crate::Front;
use nyx_base::{CachePadded, DevicePs, Instant};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Prefetch waste is accumulated in parts of a line.
const WASTE_UNIT: f64 = 65_536.0;

/// When an access lets its thread go on, and when its bytes are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The issuing thread may begin its next access.
    pub free: Instant,
    /// The bytes have arrived, or the stores are buffered.
    pub done: Instant,
}

/// The model of one device. See the module.
#[derive(Debug)]
pub struct Model {
    params: Params,
    modules: Vec<CachePadded<Mutex<Module>>>,
    service: Service,
    load: LoadTicks,
    fill: LoadTicks,
    nt_64b: u64,
}

/// Service times of a partition, in ticks.
#[derive(Clone, Copy, Debug)]
struct Service {
    read_unit: u64,
    write_unit: u64,
    batch: u64,
    buffer: u64,
    age: u64,
    guard: u32,
}

/// How a thread loads, in ticks.
#[derive(Clone, Copy, Debug)]
struct LoadTicks {
    latency: u64,
    gap: u64,
    in_flight: usize,
}

#[derive(Debug)]
struct Module {
    partitions: Vec<Partition>,
    busy: u64,
}

#[derive(Clone, Debug, Default)]
struct Partition {
    /// Busy with reads, and with batches that reads did not hold up, until then.
    free: u64,
    /// A batch of writes that began in idle time is running until then.
    batch_end: u64,
    /// Write work that waits, in ticks of service.
    backlog: u64,
    /// When the youngest of it came.
    written: u64,
    /// Reads that have passed a whole batch that waits.
    passed: u32,
}

/// One line of an access.
#[derive(Clone, Copy)]
struct Piece {
    line: u64,
    units: u64,
    /// In 64 B of the thread's own work.
    chunks: u64,
}

impl Model {
    /// An idle device.
    pub fn new(params: Params) -> Model {
        let geometry = &params.media;
        let units_per_line = (geometry.line_bytes / geometry.unit_bytes) as f64;
        let write_line = ticks(geometry.write_ns);
        let service = Service {
            read_unit: ticks(geometry.read_ns / units_per_line),
            write_unit: ticks(geometry.write_ns / units_per_line),
            batch: u64::from(params.writes.batch_lines) * write_line,
            buffer: u64::from(params.writes.buffer_lines) * write_line,
            age: ticks(params.writes.age_ns),
            guard: params.writes.guard_reads,
        };
        let module = || Module {
            partitions: vec![Partition::default(); geometry.partitions_per_module],
            busy: 0,
        };
        let modules = (0..geometry.modules)
            .map(|_| CachePadded(Mutex::new(module())))
            .collect();
        let load = LoadTicks::new(params.load.latency_ns, params.load.gap_ns);
        let fill = LoadTicks::new(params.store.fill_ns, params.load.gap_ns);
        let nt_64b = ticks(params.store.nt_64b_ns);
        Model {
            params,
            modules,
            service,
            load,
            fill,
            nt_64b,
        }
    }

    /// Its parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The device time that everything accepted so far takes: a second of it is a second in which
    /// every partition is busy. What the processor's time adds is not in it.
    pub fn busy(&self) -> DevicePs {
        let sum: u64 = self.modules.iter().map(|module| lock(module).busy).sum();
        device_time(sum, self.params.partitions())
    }

    /// Loads `len` bytes at `at`, issued at `now` by the thread of `front`.
    pub fn read(&self, front: &mut Front, now: Instant, at: u64, len: u64) -> Timing {
        if len == 0 {
            return Timing {
                free: now,
                done: now,
            };
        }
        let start = now.0 * TICKS_PER_NS;
        let (mut issued, mut done, mut lines) = (start, 0, 0);
        for piece in self.pieces(at, len) {
            issued = self.load.next_issue(front, issued);
            done = done.max(self.load_piece(front, self.load, [start, issued], piece));
            lines += 1;
        }
        self.waste(front, start, at + len, len);
        self.timing(front, issued, done, len, lines)
    }

    /// Stores `len` bytes at `at` non-temporally: the thread goes on as soon as they are buffered.
    pub fn write_nt(&self, now: Instant, at: u64, len: u64) -> Timing {
        if len == 0 {
            return Timing {
                free: now,
                done: now,
            };
        }
        let mut clock = now.0 * TICKS_PER_NS;
        for piece in self.pieces(at, len) {
            clock += piece.chunks * self.nt_64b;
            clock += self.store(piece.line, clock, piece.units * self.service.write_unit);
        }
        let free = to_instant(clock);
        Timing { free, done: free }
    }

    /// Stores `len` bytes at `at` through the cache: lines are read first and evicted later, a
    /// piece at a time.
    pub fn write_cached(&self, front: &mut Front, now: Instant, at: u64, len: u64) -> Timing {
        if len == 0 {
            return Timing {
                free: now,
                done: now,
            };
        }
        let (evict, unit) = (self.params.store.evict_bytes, self.params.media.unit_bytes);
        let evict_units = evict.div_ceil(unit);
        let start = now.0 * TICKS_PER_NS;
        let (mut issued, mut done, mut lines) = (start, 0, 0);
        for piece in self.pieces(at, len) {
            issued = self.fill.next_issue(front, issued);
            done = done.max(self.load_piece(front, self.fill, [start, issued], piece));
            let evictions = (piece.chunks * 64).div_ceil(evict);
            let work = evictions * evict_units * self.service.write_unit;
            issued += self.store(piece.line, issued, work);
            lines += 1;
        }
        self.timing(front, issued, done, len, lines)
    }

    /// When all that the thread has loaded is there.
    pub fn settled(&self, front: &Front) -> Instant {
        to_instant(front.fewer_than(1, 0))
    }

    fn timing(&self, front: &Front, issued: u64, done: u64, len: u64, lines: u64) -> Timing {
        let window = self
            .params
            .window_lines(len, lines)
            .min(Front::LINES as u64) as usize;
        let free = front.fewer_than(window, issued);
        Timing {
            free: to_instant(free),
            done: to_instant(done.max(issued)),
        }
    }

    /// Loads a line at `issued`, for an operation that began at `start`, and notes its arrival.
    fn load_piece(
        &self,
        front: &mut Front,
        load: LoadTicks,
        [start, issued]: [u64; 2],
        piece: Piece,
    ) -> u64 {
        let work = piece.units * self.service.read_unit;
        let done = issued + load.latency + self.fetch(piece.line, start, issued, work);
        front.push(done, issued);
        done
    }

    /// The lines that the prefetcher reads in vain behind an operation of `len` bytes.
    fn waste(&self, front: &mut Front, start: u64, end: u64, len: u64) {
        front.waste += (self.params.waste_lines(len) * WASTE_UNIT) as u64;
        let next = end.div_ceil(self.params.media.line_bytes);
        for line in next..next + front.waste / WASTE_UNIT as u64 {
            let units = self.params.media.line_bytes / self.params.media.unit_bytes;
            self.fetch(line, start, start, units * self.service.read_unit);
        }
        front.waste %= WASTE_UNIT as u64;
    }

    /// Serves a read of `work` ticks, see [`Partition::read`].
    fn fetch(&self, line: u64, now: u64, issued: u64, work: u64) -> u64 {
        let (module, partition) = self.place(line);
        let mut module = lock(&self.modules[module]);
        module.busy += work;
        module.partitions[partition].read(&self.service, now, issued, work)
    }

    /// Buffers a write of `work` ticks that comes at `now`; returns how long the thread waits for
    /// room in the buffer.
    fn store(&self, line: u64, now: u64, work: u64) -> u64 {
        let (module, partition) = self.place(line);
        let mut module = lock(&self.modules[module]);
        module.busy += work;
        for p in &mut module.partitions {
            p.advance(&self.service, now);
        }
        module.partitions[partition].write(&self.service, now, work);
        let backlog: u64 = module.partitions.iter().map(|p| p.backlog).sum();
        backlog.saturating_sub(self.service.buffer) / module.partitions.len() as u64
    }

    /// The module and the partition within it that hold a line.
    fn place(&self, line: u64) -> (usize, usize) {
        let per_module = self.params.media.partitions_per_module;
        let all = u128::from(self.params.partitions() as u64);
        let chosen = ((u128::from(mix(line)) * all) >> 64) as usize;
        (chosen / per_module, chosen % per_module)
    }

    /// The lines of `[at, at + len)`, which is not empty.
    fn pieces(&self, at: u64, len: u64) -> impl Iterator<Item = Piece> + use<> {
        let (line_bytes, unit_bytes) = (self.params.media.line_bytes, self.params.media.unit_bytes);
        let end = at + len;
        (at / line_bytes..end.div_ceil(line_bytes)).map(move |line| {
            let from = at.max(line * line_bytes);
            let to = end.min((line + 1) * line_bytes);
            Piece {
                line,
                units: to.div_ceil(unit_bytes) - from / unit_bytes,
                chunks: to.div_ceil(64) - from / 64,
            }
        })
    }
}

impl Partition {
    /// Serves in the idle time before `now` what waits: whole batches, and then an old rest.
    fn advance(&mut self, service: &Service, now: u64) {
        let idle_from = self.free.max(self.batch_end);
        if now <= idle_from || self.backlog == 0 {
            return;
        }
        let batches = (self.backlog / service.batch).min((now - idle_from).div_ceil(service.batch));
        if batches > 0 {
            self.backlog -= batches * service.batch;
            self.batch_end = idle_from + batches * service.batch;
        }
        let old_at = self
            .batch_end
            .max(self.free)
            .max(self.written + service.age);
        if self.backlog < service.batch && old_at < now {
            self.batch_end = old_at + self.backlog;
            self.backlog = 0;
        }
    }

    /// Serves a read of an operation that begins at `now`, whose line comes at `issued`; returns
    /// how long the line waits. Its work is booked from `now` on: booked from `issued`, it would
    /// leave a gap before it that no other thread's line could fill any more.
    fn read(&mut self, service: &Service, now: u64, issued: u64, work: u64) -> u64 {
        self.advance(service, now);
        let mut start = now.max(self.free);
        if self.batch_end > start {
            start = self.batch_end;
            self.passed = 0;
        } else if self.backlog >= service.batch {
            if self.passed >= service.guard {
                start += service.batch;
                self.backlog -= service.batch;
                self.passed = 0;
            } else {
                self.passed += 1;
            }
        }
        self.free = start + work;
        start.saturating_sub(issued)
    }

    /// Buffers a write; the one that completes a batch of an idle partition starts it.
    fn write(&mut self, service: &Service, now: u64, work: u64) {
        self.backlog += work;
        self.written = self.written.max(now);
        if self.backlog >= service.batch && now >= self.free.max(self.batch_end) {
            self.backlog -= service.batch;
            self.batch_end = now + service.batch;
        }
    }
}

impl LoadTicks {
    fn new(latency_ns: f64, gap_ns: f64) -> LoadTicks {
        let in_flight = ((latency_ns + gap_ns) / gap_ns).ceil() as usize;
        let in_flight = in_flight.clamp(1, Front::LINES);
        LoadTicks {
            latency: ticks(latency_ns),
            gap: ticks(gap_ns),
            in_flight,
        }
    }

    /// When the thread's next line is issued: a gap after the last one, and not before fewer than
    /// the most lines are in flight.
    fn next_issue(&self, front: &Front, now: u64) -> u64 {
        front.fewer_than(self.in_flight, now.max(front.issued)) + self.gap
    }
}

fn to_instant(ticks: u64) -> Instant {
    Instant(ticks.div_ceil(TICKS_PER_NS))
}

/// The state behind the lock is arithmetic that a panic elsewhere cannot leave half done.
fn lock(module: &CachePadded<Mutex<Module>>) -> MutexGuard<'_, Module> {
    module.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
