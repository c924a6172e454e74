//! A persistent memory that is as far away as AEP (Optane), in real time: the words are those of
//! another memory, and a thread that would wait for the device is kept busy for as long as the
//! device takes longer than DRAM. Numbers from here are [`crate::Evidence::Emulated`].
//!
//! **What is added.** Never a latency as such, always a difference, since the access beneath takes
//! its own time:
//!
//! * a read that leaves the caches: table 7's latency of AEP for as many bytes less this machine's
//!   DRAM ([`dram_ns`], [`Kind::Aep`]), or less the paper's DRAM ([`Kind::AepAbove`], for machines
//!   whose DRAM is nearly as slow as AEP); lines of a 256-byte unit that was just read cost 100 ns
//!   less (tables 4 and 7), nothing where this machine's DRAM takes that long anyway;
//! * a fence: table 8's difference for as many bytes as were written back;
//! * 7 GB/s of reading and 2 GB/s of writing (section 2.3), in whole units, shared by all threads.
//!
//! **What leaves the caches** cannot be asked of a processor. Each thread has a model of its part
//! of the last-level cache (8 ways, the one that came first goes), of the 12 lines that it can wait
//! for at once, and of the units that the device has at hand. A line that was prefetched is there
//! when it would be, so that batched look-ups gain what they would: after what this machine's DRAM
//! takes and the difference, counted from when it was asked for.
//!
//! **What the model takes itself** is part of the wait where there is one. Where all is near it is
//! in the way, and keeps the processor from beginning what comes next, so that there is as little
//! of it as may be.
//!
//! **Virtual time.** With [`Machine::simulated`] nobody waits, and the processor is a model too:
//! all that AEP and DRAM take is counted, and a constant for each place that is looked at. Indexes
//! tell of what they read of DRAM with the feature `simulate` ([`crate::observed`]). Numbers from
//! there are [`crate::Evidence::Simulated`].
//!
//! **What is left out.** Which words of a slice are read is not seen: a slice counts as read when
//! it is asked for ([`Pmem::words`]), at most [`SLICE_BYTES_MAX`] of it, so that a node's latency
//! is that of one read of its size. That is too much for who looks at one line only (at most 55
//! ns), and too little for two lines one after the other, or a leaf of more than 512 bytes that is
//! read whole. Loads that do not depend on each other overlap on a processor; here only prefetches
//! do. A written line that is evicted without a flush costs nothing, a flushed one stays near. A
//! line that another thread changed stays near, and threads do not share what they read. How
//! readers and writers slow each other down (figures 11 to 14) is left out: the paper's text has no
//! values. A unit of which one line is near takes the place of a whole one in the modelled cache.
//! The model's own memory is 1/128 of that and competes for the real one, and it takes one unit in
//! 4,096 for another one of its set; what it costs is measured with [`Kind::None`].
//!
//! *Thread safety*: as the memory's beneath. A thread's model belongs to one [`Machine`]; a thread
//! that turns to another begins with nothing near.
#![cfg(not(any(loom, shuttle)))]

mod chase;
mod model;
mod queue;

use super::{Pmem, WORD_BYTES, Word};
use crate::TscClock;
use crate::observed::Observer;
use crate::prim::{LINE_BYTES, PREFETCH_LINES_MAX};
use nyx_base::{Clock, Instant, Nanos};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use chase::{cache_share_bytes, dram_ns};
use model::{Device, Near, Whole};
pub use model::{Extra, Kind, TooSlow};
use queue::Queue;

/// Of a slice of words so many bytes at most count as read: indexes look at a few lines of a node
/// of more.
pub const SLICE_BYTES_MAX: u64 = 512;

/// A device with the processors before it: what all memories on it share.
#[derive(Debug)]
pub struct Machine<C = TscClock> {
    clock: C,
    device: Device,
    /// Where all time is virtual, DRAM takes time too.
    dram: Device,
    cache_bytes: u64,
    /// What a processor takes itself for a place that it looks at; nothing where it is a real one.
    look_ns: u64,
    id: u64,
}

impl<C: Clock> Machine<C> {
    /// With `extra` latency, and `cache_bytes` of the last-level cache for each thread.
    pub fn new(extra: Extra, cache_bytes: u64, clock: C) -> Machine<C> {
        Machine {
            clock,
            device: Device::new(extra, Queue::in_order),
            dram: Device::new(Extra::none(), Queue::in_order),
            cache_bytes,
            look_ns: 0,
            id: next_id(),
        }
    }

    /// A simulated one, for clocks whose time is virtual: AEP and DRAM with all that they take
    /// (tables 3 to 8), threads with `cache_bytes` each for lines of both, and `look_ns` for each
    /// place that is looked at, whether it is near or not. Its DRAM is told of reads as an
    /// [`Observer`].
    pub fn simulated(cache_bytes: u64, look_ns: u64, clock: C) -> Machine<C> {
        Machine {
            clock,
            device: Device::new(Extra::whole(Whole::Aep), Queue::calendar),
            dram: Device::new(Extra::whole(Whole::Dram), Queue::calendar),
            cache_bytes,
            look_ns,
            id: next_id(),
        }
    }

    /// What it adds to accesses.
    pub fn extra(&self) -> &Extra {
        self.device.extra()
    }

    /// Has this thread's model told, and waits as it says.
    #[inline]
    fn wait(
        &self,
        device: &Device,
        ask: impl FnOnce(&mut Near, &Device, &dyn Fn() -> u64) -> Option<u64>,
    ) {
        thread_local! {
            static NEAR: RefCell<Option<(u64, Near)>> = const { RefCell::new(None) };
        }
        let until = NEAR.with_borrow_mut(|near| {
            let near = match near {
                Some((id, near)) if *id == self.id => near,
                other => &mut other.insert((self.id, Near::new(self.cache_bytes))).1,
            };
            ask(near, device, &|| self.clock.now().0)
        });
        if let Some(until) = until {
            self.clock.spin_until(Instant(until));
        }
    }

    /// Reads lines of one of the two.
    #[inline]
    fn read(&self, device: &Device, (first, end): (u64, u64)) {
        if self.look_ns > 0 {
            self.clock
                .spin_until(self.clock.now() + Nanos(self.look_ns));
        }
        self.wait(device, |near, device, now| {
            near.read(device, first, end, now)
        });
    }

    /// Asks for lines of one of the two.
    #[inline]
    fn fetch(&self, device: &Device, (first, end): (u64, u64)) {
        self.wait(device, |near, device, now| {
            near.prefetch(device, first, end, now);
            None
        });
    }
}

fn next_id() -> u64 {
    static IDS: AtomicU64 = AtomicU64::new(0);
    IDS.fetch_add(1, Relaxed)
}

/// Reads of DRAM.
impl<C: Clock> Observer for Machine<C> {
    fn read(&self, at: usize, bytes: usize) {
        let bytes = (bytes as u64).min(SLICE_BYTES_MAX);
        Machine::read(self, &self.dram, lines(at, bytes));
    }

    fn fetch(&self, at: usize, bytes: usize) {
        let bytes = bytes.min(PREFETCH_LINES_MAX * LINE_BYTES) as u64;
        Machine::fetch(self, &self.dram, lines(at, bytes));
    }

    fn fetch_once(&self, at: usize, bytes: usize) {
        let bytes = bytes.min(PREFETCH_LINES_MAX * LINE_BYTES) as u64;
        let (first, end) = lines(at, bytes);
        self.wait(&self.dram, |near, device, now| {
            near.prefetch_once(device, first, end, now);
            None
        });
    }
}

/// See the module.
#[derive(Debug)]
pub struct Distant<P, C = TscClock> {
    memory: P,
    machine: Arc<Machine<C>>,
}

impl<P: Pmem, C: Clock> Distant<P, C> {
    /// `memory`, on that machine.
    pub fn new(memory: P, machine: Arc<Machine<C>>) -> Distant<P, C> {
        Distant { memory, machine }
    }
}

/// The numbers of the lines that `bytes` from address `at` on lie on, as a cache has them: memories
/// on one machine do not meet.
#[inline]
fn lines(at: usize, bytes: u64) -> (u64, u64) {
    let (at, line) = (at as u64, LINE_BYTES as u64);
    (at / line, (at + bytes).div_ceil(line))
}

impl<P: Pmem, C: Clock> Pmem for Distant<P, C> {
    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }

    #[inline]
    fn words(&self, at: u64, count: usize) -> &[Word] {
        let words = self.memory.words(at, count);
        let bytes = (count as u64 * WORD_BYTES).min(SLICE_BYTES_MAX);
        let machine = &self.machine;
        machine.read(&machine.device, lines(words.as_ptr().addr(), bytes));
        words
    }

    #[inline]
    #[track_caller]
    fn store(&self, word: &Word, value: u64) {
        self.memory.store(word, value);
    }

    #[inline]
    #[track_caller]
    fn flush(&self, words: &[Word]) {
        let (first, end) = lines(words.as_ptr().addr(), size_of_val(words) as u64);
        self.machine.wait(&self.machine.device, |near, _, _| {
            near.flush(first, end);
            None
        });
        self.memory.flush(words);
    }

    #[inline]
    #[track_caller]
    fn fence(&self) {
        let machine = &self.machine;
        machine.wait(&machine.device, |near, device, now| near.fence(device, now));
        self.memory.fence();
    }

    #[inline]
    fn fetch(&self, at: u64, len: usize) {
        let len = len.min(PREFETCH_LINES_MAX * LINE_BYTES) as u64;
        let at = at / WORD_BYTES * WORD_BYTES;
        // Any address may be asked for, one that a damaged image gives too.
        if self.memory.holds(at, len.next_multiple_of(WORD_BYTES)) {
            // Before the model, whose own time is part of the wait.
            self.memory.fetch(at, len as usize);
            let machine = &self.machine;
            let at = self.memory.words(at, 1).as_ptr().addr();
            machine.fetch(&machine.device, lines(at, len));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulate::tests::Virtual;
    use crate::pmem::Dram;

    type Memory = Distant<Dram, Virtual>;

    const ABOVE: Kind = Kind::AepAbove { dram_ns: 0.0 };

    fn memory(kind: Kind) -> Memory {
        let extra = Extra::new(kind).expect("no bounds");
        let machine = Machine::new(extra, 1 << 20, Virtual::default());
        Distant::new(Dram::new(1 << 20).expect("memory"), Arc::new(machine))
    }

    /// What `act` takes, in nanoseconds.
    fn took(memory: &Memory, act: impl FnOnce(&Memory)) -> u64 {
        let clock = &memory.machine.clock;
        let before = clock.now();
        act(memory);
        clock.now().since(before).0
    }

    #[test]
    fn words_are_those_beneath_and_waited_for_once() {
        let memory = memory(ABOVE);
        let store = |memory: &Memory| memory.store(&memory.words(4096, 1)[0], 7);
        assert_eq!(took(&memory, store), 161);
        let read = |memory: &Memory| assert_eq!(memory.words(4096, 1)[0].load(Relaxed), 7);
        assert_eq!(took(&memory, read), 0);
        let node = |memory: &Memory| assert_eq!(memory.words(8192, 512).len(), 512);
        assert_eq!(took(&memory, node), 216, "512 bytes of a slice of 4096");
        let persist = |memory: &Memory| memory.persist(memory.words(8192, 32));
        assert_eq!(took(&memory, persist), 18, "256 bytes");
    }

    #[test]
    fn what_was_fetched_is_waited_for_once_for_all() {
        let memory = memory(ABOVE);
        let batch = |memory: &Memory| {
            (1..=8).for_each(|at| memory.fetch(at * 4096, 8));
            (1..=8).for_each(|at| assert_eq!(memory.words(at * 4096, 1).len(), 1));
        };
        // Eight units of 36 ns each are read by then.
        let together = took(&memory, batch);
        assert!((161..300).contains(&together), "{together} ns");
        let beyond = |memory: &Memory| memory.fetch(u64::MAX - 7, 8);
        assert_eq!(took(&memory, beyond), 0);
    }

    #[test]
    fn the_same_memory_adds_nothing() {
        let memory = memory(Kind::None);
        let all = |memory: &Memory| {
            (0..100).for_each(|at| memory.persist(memory.words(at * 4096, 64)));
        };
        assert_eq!(took(&memory, all), 0);
    }

    #[test]
    fn a_simulated_machine_counts_all_that_either_memory_takes() {
        let machine = Arc::new(Machine::simulated(1 << 20, 10, Virtual::default()));
        let memory = Distant::new(Dram::new(1 << 20).expect("memory"), machine.clone());
        let read = |at| move |memory: &Memory| assert_eq!(memory.words(at, 1).len(), 1);
        assert_eq!(took(&memory, read(4096)), 10 + 201);
        assert_eq!(took(&memory, read(4096)), 10, "near");
        assert_eq!(
            took(&memory, read(4096 + 64)),
            10 + 101,
            "of a unit at hand"
        );
        let persist = |memory: &Memory| memory.persist(memory.words(4096, 8));
        assert_eq!(took(&memory, persist), 10 + 190);
        let other = [0u64; 64];
        let dram = |at: usize| {
            let at = other[at..].as_ptr().addr().next_multiple_of(64);
            took(&memory, |memory| Observer::read(&*memory.machine, at, 8))
        };
        assert_eq!([dram(0), dram(0), dram(8)], [10 + 40, 10, 10 + 40]);
    }

    #[test]
    fn each_thread_has_its_own_lines_near() {
        let memory = memory(ABOVE);
        let read = |memory: &Memory| assert_eq!(memory.words(4096, 1).len(), 1);
        assert_eq!(took(&memory, read), 161);
        let other = std::thread::scope(|scope| scope.spawn(|| took(&memory, read)).join());
        assert_eq!(other.expect("no panic"), 161);
        assert_eq!(took(&memory, read), 0);
    }
}
