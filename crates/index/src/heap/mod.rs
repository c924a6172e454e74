//! A persistent heap: blocks of fixed sizes on a [`Pmem`], addressed by their offset.
//!
//! Only which chunk serves which size is persistent; which blocks are in use is kept in DRAM and
//! found out anew after a restart by whoever knows what is reachable ([`Heap::sweep`]). So an
//! allocation costs no flush, no crash can leak a block or hand one out twice, and there is no log
//! to replay. Until a sweep is over, new blocks come from chunks that were never used, so that a
//! server can work at once.
//!
//! On the medium (`docs/format.md`, "Heap"): a superblock, a table with one word per chunk, the
//! chunks. Chunks and blocks of [`PM_UNIT_BYTES`] and more are aligned to that unit.
//!
//! The order that matters: a chunk's word is durable before a block of it is handed out; nothing
//! else is persisted here. It is the caller's part to make a block durable before it links to it,
//! and its unlinking durable before it [`retire`](Heap::retire)s it.
//!
//! What it never does: move a block, give a chunk that serves one size to another while it runs,
//! wait.
//!
//! *Thread safety*: all methods take `&self`. A worker has free blocks of its own, behind a lock
//! that nobody else takes; the lists that workers share are locked once per [`BATCH`] blocks.
//!
//! Locks are taken in this order: `old`, a worker's, a size's, `chunks`.
//!
//! *Invariants*: a block is in exactly one place: linked by its owner, on one free list, in limbo,
//! or (before a sweep is over) not yet accounted for. An old chunk is one that had a size when the
//! heap was opened; none of its blocks is handed out before the sweep is over.
//!
//! Source: RECIPE (SOSP'19) for collecting after a crash instead of logging allocations.

mod bits;
mod layout;
mod sweep;

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::eras::Eras;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock};
use nyx_base::{Bytes, CachePadded, WorkerId};
use nyx_media::MediaError;
use nyx_media::pmem::{Dram, Pmem, Word};
use std::collections::VecDeque;
use std::sync::Arc;

use Ordering::{Acquire, Release};
use bits::Bits;
pub use layout::{CHUNK_BYTES, HeapError, ROOTS};
use layout::{Layout, Superblock};
pub use sweep::{Damage, Sweep, Swept};

/// Persistent memory is read and written in units of this many bytes inside of the device
/// (HybridIndex+ section 2.3).
pub const PM_UNIT_BYTES: u64 = 256;

/// The sizes of blocks, in bytes. Those of [`PM_UNIT_BYTES`] and more are multiples of it.
pub const CLASS_BYTES: [u64; 14] = [
    16, 32, 48, 64, 96, 128, 192, 256, 512, 768, 1024, 1280, 2048, 4096,
];
/// How many blocks go between a worker and the shared list at a time.
const BATCH: usize = 32;

/// No block of that size is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no block of {asked_bytes} bytes is left in a heap of {}", Bytes(*.heap_bytes))]
pub struct Full {
    /// What was asked for.
    pub asked_bytes: u64,
    /// How large the heap is.
    pub heap_bytes: u64,
}

impl Full {
    /// The machine has no such memory left.
    pub(crate) fn of_dram(bytes: u64) -> Full {
        Full {
            asked_bytes: bytes,
            heap_bytes: 0,
        }
    }
}

/// Which of [`CLASS_BYTES`] a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class(u8);

impl Class {
    /// The smallest that holds `bytes`; none where that is more than the largest has.
    pub const fn of(bytes: u64) -> Option<Class> {
        let mut class = 0;
        while class < CLASS_BYTES.len() {
            if CLASS_BYTES[class] >= bytes {
                return Some(Class(class as u8));
            }
            class += 1;
        }
        None
    }

    /// Its size in bytes.
    pub const fn bytes(self) -> u64 {
        CLASS_BYTES[self.0 as usize]
    }
}

/// See the module.
#[derive(Debug)]
pub struct Heap<P> {
    pm: P,
    layout: Layout,
    generation: u64,
    eras: Arc<Eras>,
    chunks: Mutex<Chunks>,
    /// The most bytes of chunks that may serve a size.
    limit_bytes: AtomicU64,
    classes: [Mutex<Shelf>; CLASS_BYTES.len()],
    workers: Box<[CachePadded<Mutex<Hand>>]>,
    old: Mutex<Old>,
    /// Whether no chunk is old any more: 1 or 0. Stored under the lock of `old`.
    swept: AtomicU64,
}

/// Chunks that serve no size.
#[derive(Debug, Default)]
struct Chunks {
    /// From here on none was ever used.
    fresh: u32,
    empty: Vec<u32>,
}

/// Free blocks of one size.
#[derive(Debug, Default)]
struct Shelf {
    free: Vec<u64>,
    /// Old chunks with their blocks that are in use, one bit each.
    partly: Vec<(u32, Bits)>,
    /// The rest of the chunk that was taken last: from here, to there.
    rest: (u64, u64),
}

/// What a worker has at hand.
#[derive(Debug, Default)]
struct Hand {
    free: [Vec<u64>; CLASS_BYTES.len()],
    /// Retired blocks with their eras, oldest first.
    limbo: VecDeque<(u64, u64)>,
}

/// Chunks that were in use when the heap was opened.
#[derive(Debug)]
struct Old {
    /// One bit per chunk; none is left after the sweep.
    chunks: Bits,
    /// Blocks of them that were freed before the sweep was over.
    freed: Vec<u64>,
}

impl Heap<Dram> {
    /// An empty heap in DRAM for blocks of so many bytes in all. Memory is taken as it grows.
    pub(crate) fn in_dram(bytes: u64, eras: Arc<Eras>) -> Result<Heap<Dram>, MediaError> {
        let (least, most) = (*CHUNK_BYTES.start(), *CHUNK_BYTES.end());
        let chunk_bytes = (bytes / 64).next_power_of_two().clamp(least, most);
        // For the table of chunks, what workers have at hand, and a chunk of each size.
        let spare = 2 + u64::from(eras.workers()) + CLASS_BYTES.len() as u64;
        let memory = Dram::new(bytes.next_multiple_of(chunk_bytes) + spare * chunk_bytes)?;
        let heap = Heap::format(memory, chunk_bytes, 0, eras);
        Ok(heap.expect("there is room for a chunk"))
    }
}

impl<P: Pmem> Heap<P> {
    /// Makes `pm` an empty heap, whatever was on it. `id` tells it from others.
    pub fn format(pm: P, chunk_bytes: u64, id: u64, eras: Arc<Eras>) -> Result<Heap<P>, HeapError> {
        Superblock::write(&pm, chunk_bytes, id)?;
        Heap::open(pm, eras)
    }

    /// The heap that is on `pm`. Reads the superblock and one word per chunk, whatever there is in
    /// the chunks.
    pub fn open(pm: P, eras: Arc<Eras>) -> Result<Heap<P>, HeapError> {
        let superblock = Superblock::read(&pm)?;
        let layout = superblock.layout;
        let generation = superblock.begin(&pm)?;
        let mut fresh = 0;
        let mut chunks = Bits::none(layout.chunk_count.into());
        let mut empty = Vec::new();
        for chunk in 0..layout.chunk_count {
            if layout.class(&pm, chunk)?.is_some() {
                chunks.set(chunk.into(), true);
                empty.extend(fresh..chunk);
                fresh = chunk + 1;
            }
        }
        let workers = (0..eras.workers()).map(|_| CachePadded(Mutex::default()));
        Ok(Heap {
            pm,
            layout,
            generation,
            chunks: Mutex::new(Chunks { fresh, empty }),
            limit_bytes: AtomicU64::new(u64::MAX),
            classes: std::array::from_fn(|_| Mutex::default()),
            workers: workers.collect(),
            swept: AtomicU64::new(u64::from(chunks.count() == 0)),
            old: Mutex::new(Old {
                chunks,
                freed: Vec::new(),
            }),
            eras,
        })
    }

    /// The memory that it lies on.
    #[inline]
    pub fn pm(&self) -> &P {
        &self.pm
    }

    /// The eras after which blocks are used again.
    #[inline]
    pub fn eras(&self) -> &Arc<Eras> {
        &self.eras
    }

    /// How often it was opened, this time included. Locks on the medium that carry another number
    /// are leftovers of a process that is gone.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// What it was told apart by when it was formatted.
    pub fn id(&self) -> u64 {
        self.layout.id
    }

    #[inline]
    fn roots(&self) -> &[Word] {
        self.pm.words(layout::ROOTS_AT, ROOTS)
    }

    /// Root `index`, below [`ROOTS`]: where whoever uses the heap finds what is its. Zero at first.
    #[inline]
    pub fn read_root(&self, index: usize) -> u64 {
        self.roots()[index].load(Acquire)
    }

    /// Makes root `index` mean `value`, durably.
    pub fn set_root(&self, index: usize, value: u64) {
        self.pm.store(&self.roots()[index], value);
        self.pm.persist(self.roots());
    }

    /// A block for `worker`, with whatever is in it.
    pub fn take(&self, worker: WorkerId, class: Class) -> Result<u64, Full> {
        let taken = self.try_take(worker, class);
        if taken.is_ok() {
            return taken;
        }
        // What this worker retired may be free by now.
        self.release(worker);
        self.try_take(worker, class)
    }

    fn try_take(&self, worker: WorkerId, class: Class) -> Result<u64, Full> {
        let mut hand = lock(&self.workers[worker.index()]);
        let free = &mut hand.free[class.0 as usize];
        if free.is_empty() {
            self.fetch(class, free)?;
        }
        Ok(free.pop().expect("fetched at least one"))
    }

    /// Takes a block back that nobody can know of: one that was never linked, or whose era is over.
    pub fn give_back(&self, worker: WorkerId, at: u64) {
        let mut old = self.unaccounted();
        let mut hand = lock(&self.workers[worker.index()]);
        self.keep(&mut old, &mut hand, at);
    }

    /// Takes a block back that was unlinked, durably, and that readers may still look at.
    pub fn retire(&self, worker: WorkerId, at: u64) {
        let era = self.eras.retire();
        let mut hand = lock(&self.workers[worker.index()]);
        hand.limbo.push_back((era, at));
        drop(hand);
        self.release(worker);
    }

    /// Makes free what `worker` retired in eras that are over.
    fn release(&self, worker: WorkerId) {
        let mut old = self.unaccounted();
        let mut hand = lock(&self.workers[worker.index()]);
        while let Some(&(era, at)) = hand.limbo.front() {
            if !self.eras.is_over(era) {
                return;
            }
            hand.limbo.pop_front();
            self.keep(&mut old, &mut hand, at);
        }
    }

    /// What a sweep that is not over has to be told of. Held while a block leaves limbo, so that a
    /// sweep that ends finds it there, or among those that were freed, or free.
    fn unaccounted(&self) -> Option<MutexGuard<'_, Old>> {
        (!self.is_swept()).then(|| lock(&self.old))
    }

    /// Puts a free block where blocks are taken from.
    fn keep(&self, old: &mut Option<MutexGuard<'_, Old>>, hand: &mut Hand, at: u64) {
        let (chunk, _) = self.layout.place(at).expect("the address of a block");
        if let Some(old) = old.as_mut().filter(|old| old.chunks.has(chunk.into())) {
            old.freed.push(at);
            return;
        }
        let class = self.class_of(at).expect("the address of a block");
        let free = &mut hand.free[class.0 as usize];
        free.push(at);
        if free.len() > 2 * BATCH {
            let surplus = free.split_off(BATCH);
            lock(&self.classes[class.0 as usize]).free.extend(surplus);
        }
    }

    /// The size of the block at `at`; none where no block can be.
    pub fn class_of(&self, at: u64) -> Option<Class> {
        let (chunk, offset) = self.layout.place(at)?;
        let class = self.layout.class(&self.pm, chunk).ok()??;
        let is_block = offset.is_multiple_of(class.bytes())
            && offset + class.bytes() <= self.layout.chunk_bytes;
        is_block.then_some(class)
    }

    /// Refuses an address that was read from the medium and is not that of a block of `class`.
    pub(crate) fn check(&self, at: u64, class: Class) -> Result<(), Damage> {
        match self.class_of(at) == Some(class) {
            true => Ok(()),
            false => Err(Damage::NoBlock { at, class }),
        }
    }

    /// Puts at least one free block into `into`.
    fn fetch(&self, class: Class, into: &mut Vec<u64>) -> Result<(), Full> {
        let mut shelf = lock(&self.classes[class.0 as usize]);
        if shelf.free.is_empty() {
            self.unpack(class, &mut shelf);
        }
        if !shelf.free.is_empty() {
            let from = shelf.free.len().saturating_sub(BATCH);
            into.extend(shelf.free.drain(from..));
            return Ok(());
        }
        if shelf.rest.0 + class.bytes() > shelf.rest.1 {
            shelf.rest = self.claim(class)?;
        }
        let (from, end) = shelf.rest;
        let most = ((end - from) / class.bytes()).min(BATCH as u64);
        // The last is handed out first.
        into.extend((0..most).rev().map(|i| from + i * class.bytes()));
        shelf.rest.0 += most * class.bytes();
        Ok(())
    }

    /// Turns the free bits of one old chunk into blocks.
    fn unpack(&self, class: Class, shelf: &mut Shelf) {
        while let Some((chunk, used)) = shelf.partly.pop() {
            let begin = self.layout.begin(chunk);
            let blocks = self.layout.chunk_bytes / class.bytes();
            let free = (0..blocks).filter(|&block| !used.has(block));
            shelf.free.extend(free.map(|i| begin + i * class.bytes()));
            if !shelf.free.is_empty() {
                return;
            }
        }
    }

    /// A whole chunk for `class`: from its first byte to its last.
    fn claim(&self, class: Class) -> Result<(u64, u64), Full> {
        let mut chunks = lock(&self.chunks);
        let limit_bytes = self.limit_bytes.load(Acquire);
        let full = Full {
            asked_bytes: class.bytes(),
            heap_bytes: self.pm.size_bytes().min(limit_bytes),
        };
        if self.bytes_of(&chunks) + self.layout.chunk_bytes > limit_bytes {
            return Err(full);
        }
        let chunk = match chunks.empty.pop() {
            Some(chunk) => chunk,
            None if chunks.fresh < self.layout.chunk_count => {
                chunks.fresh += 1;
                chunks.fresh - 1
            }
            None => return Err(full),
        };
        self.layout.set_class(&self.pm, chunk, Some(class));
        let begin = self.layout.begin(chunk);
        Ok((begin, begin + self.layout.chunk_bytes))
    }

    /// Bytes of chunks that serve a size.
    pub fn claimed_bytes(&self) -> u64 {
        self.bytes_of(&lock(&self.chunks))
    }

    fn bytes_of(&self, chunks: &Chunks) -> u64 {
        (u64::from(chunks.fresh) - chunks.empty.len() as u64) * self.layout.chunk_bytes
    }

    /// Bytes of a chunk: [`Heap::claimed_bytes`] grows by so many at a time.
    pub fn chunk_bytes(&self) -> u64 {
        self.layout.chunk_bytes
    }

    /// Lets [`Heap::claimed_bytes`] come to `bytes`, or stay where it is above that. Without a
    /// limit at first.
    pub fn set_limit(&self, bytes: u64) {
        self.limit_bytes.store(bytes, Release);
    }

    /// Whether every block of the past is accounted for.
    #[inline]
    pub fn is_swept(&self) -> bool {
        self.swept.load(Acquire) != 0
    }

    /// The words of a block that is `bytes` long, if one can be at `at`: for addresses that were
    /// read from the medium. Whether it is a block of that size only [`Heap::class_of`] knows.
    #[inline]
    pub fn block(&self, at: u64, bytes: u64) -> Option<&[Word]> {
        let align = (1 << bytes.trailing_zeros()).min(PM_UNIT_BYTES);
        let can_be =
            at >= self.layout.chunks_at && at.is_multiple_of(align) && self.pm.holds(at, bytes);
        can_be.then(|| self.pm.words(at, (bytes / 8) as usize))
    }
}
