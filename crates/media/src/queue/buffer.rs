//! Buffers that a device reads into and writes from: slots of one mapping that the kernel can be
//! told of once, or of memory that is lent, where each slot is asked for by its number.
//!
//! What it never does: allocate after a pool was made; let two owners have one slot.
//!
//! *Thread safety*: a [`Pool`] is shared by whoever has a copy of it; a [`Buffer`] is one owner's.
//! *Invariants*: the number of a slot is either free or in exactly one [`Buffer`]; only the owner
//! of that, or the driver that a queue lent its address to, touches the slot's bytes. Who lends
//! memory keeps the latter.

use super::BLOCK_BYTES;
use crate::MediaError;
use crate::mapping::Mapping;
use crossbeam_queue::ArrayQueue;
use rustix::mm::Advice;
use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A slot is no larger, in bytes: the kernel moves less than twice that at once.
pub const SLOT_BYTES_MAX: usize = 1 << 30;

/// Slots of equal size in one piece of memory. Copies are cheap and share them.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Slots>);

#[derive(Debug)]
struct Slots {
    memory: Memory,
    slot_bytes: usize,
    free: Free,
}

#[derive(Debug)]
enum Memory {
    Own(Mapping),
    Lent {
        base: NonNull<u8>,
        /// The memory lives as long as this.
        _owner: Arc<dyn Any + Send + Sync>,
    },
}

// SAFETY: the address never changes; bytes are reached through buffers only, each of which has one
// owner. `Mapping` and the owner are `Send` and `Sync` themselves.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn base(&self) -> NonNull<u8> {
        match self {
            Memory::Own(mapping) => mapping.base(),
            Memory::Lent { base, .. } => *base,
        }
    }
}

/// Which slots nobody has.
#[derive(Debug)]
enum Free {
    /// Any of them is as good as another.
    Any(Box<ArrayQueue<u32>>),
    /// Asked for by number: whether it is taken.
    Named(Box<[AtomicBool]>),
}

impl Pool {
    /// So many slots of so many bytes each, rounded up to whole blocks. Reserved, not committed: a
    /// slot takes memory when it is first used.
    ///
    /// Panics where either is zero, or a slot is larger than [`SLOT_BYTES_MAX`].
    pub fn new(slots: u32, slot_bytes: usize) -> Result<Pool, MediaError> {
        assert!(
            slots > 0 && slot_bytes > 0,
            "{slots} slots of {slot_bytes} bytes"
        );
        assert!(slot_bytes <= SLOT_BYTES_MAX, "slots of {slot_bytes} bytes");
        let slot_bytes = slot_bytes.next_multiple_of(BLOCK_BYTES as usize);
        let len_bytes = u64::from(slots) * slot_bytes as u64;
        let refused = |source| MediaError::Reserve { len_bytes, source };
        let memory = Mapping::anonymous(len_bytes as usize).map_err(refused)?;
        let _ = memory.advise(0, memory.len(), Advice::LinuxHugepage);
        let free = ArrayQueue::new(slots as usize);
        (0..slots).for_each(|slot| free.push(slot).expect("as many as there are"));
        Ok(Pool(Arc::new(Slots {
            memory: Memory::Own(memory),
            slot_bytes,
            free: Free::Any(Box::new(free)),
        })))
    }

    /// Slots of memory that is somebody else's, which is to be read into and written from where it
    /// lies. They are had by [`Self::take_named`] only, and a queue is not to be told of this pool:
    /// the kernel would keep all of it in memory.
    ///
    /// Panics as [`Self::new`] does, and where `slot_bytes` is not whole blocks.
    ///
    /// # Safety
    ///
    /// At `base`, a multiple of a block, are so many slots, which may be read and written as long
    /// as `owner` lives.
    pub unsafe fn lent(
        base: NonNull<u8>,
        slots: u32,
        slot_bytes: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Pool {
        let is_whole = slot_bytes.is_multiple_of(BLOCK_BYTES as usize);
        assert!(
            slots > 0 && slot_bytes > 0 && is_whole && slot_bytes <= SLOT_BYTES_MAX,
            "{slots} slots of {slot_bytes} bytes"
        );
        let _owner = owner;
        Pool(Arc::new(Slots {
            memory: Memory::Lent { base, _owner },
            slot_bytes,
            free: Free::Named((0..slots).map(|_| AtomicBool::new(false)).collect()),
        }))
    }

    /// A slot that nobody has, as one whole; none where all are in use, and of memory that is lent.
    /// What it held before is still in it.
    pub fn take(&self) -> Option<Buffer> {
        match &self.0.free {
            Free::Any(free) => Some(self.buffer(free.pop()?, 1)),
            Free::Named(_) => None,
        }
    }

    /// Those slots of memory that is lent, as one whole; none where somebody has one of them.
    ///
    /// Panics where there are no such slots, they are more than [`SLOT_BYTES_MAX`], or the memory
    /// is not lent.
    ///
    /// # Safety
    ///
    /// While a request reads into the slots, nobody else reads or writes their bytes. Where
    /// somebody else writes to them while a request writes them to a device, what is there
    /// afterwards is anything, and nobody looks at the bytes through the buffer.
    pub unsafe fn take_named(&self, slots: Range<u32>) -> Option<Buffer> {
        let Free::Named(taken) = &self.0.free else {
            panic!("a pool of its own memory gives any slot");
        };
        let max = SLOT_BYTES_MAX / self.0.slot_bytes;
        assert!((1..=max).contains(&slots.len()), "slots {slots:?}");
        let wanted = &taken[slots.start as usize..slots.end as usize];
        let is_had = |taken: &AtomicBool| !taken.swap(true, Ordering::Acquire);
        let had = wanted.iter().take_while(|taken| is_had(taken)).count();
        let buffer = self.buffer(slots.start, had as u32);
        // Those that were had are given back where some were not.
        (had == wanted.len()).then_some(buffer)
    }

    fn buffer(&self, slot: u32, slots: u32) -> Buffer {
        Buffer {
            pool: self.clone(),
            slot,
            slots,
            begin: 0,
            end: slots * self.0.slot_bytes as u32,
        }
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.0.slot_bytes
    }

    /// Slots that nobody has now.
    pub fn free(&self) -> usize {
        match &self.0.free {
            Free::Any(free) => free.len(),
            Free::Named(taken) => {
                let is_free = |taken: &&AtomicBool| !taken.load(Ordering::Relaxed);
                taken.iter().filter(is_free).count()
            }
        }
    }

    /// All slots, for the kernel.
    pub(super) fn memory(&self) -> (NonNull<u8>, usize) {
        let slots = match &self.0.free {
            Free::Any(free) => free.capacity(),
            Free::Named(taken) => taken.len(),
        };
        (self.0.memory.base(), self.0.slot_bytes * slots)
    }

    /// Whether both are the same slots.
    pub(super) fn is(&self, other: &Pool) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A slot of a [`Pool`], several side by side of memory that is lent, or a part of that; given back
/// when it is dropped.
pub struct Buffer {
    pool: Pool,
    slot: u32,
    /// So many.
    slots: u32,
    begin: u32,
    end: u32,
}

impl Buffer {
    /// Leaves only these bytes of its slots to be seen and moved; what is outside stays as it is.
    ///
    /// Panics where they leave the slots.
    pub fn narrow(&mut self, to: Range<usize>) {
        let max = self.slots as usize * self.pool.0.slot_bytes;
        assert!(to.start <= to.end && to.end <= max, "{to:?} of {max} bytes");
        (self.begin, self.end) = (to.start as u32, to.end as u32);
    }

    /// The pool that it is of.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Where its bytes begin.
    pub(super) fn address(&self) -> NonNull<u8> {
        let at = self.slot as usize * self.pool.0.slot_bytes + self.begin as usize;
        // SAFETY: slots lie within the mapping, which is as long as all of them, and `begin` lies
        // within those of this.
        unsafe { self.pool.0.memory.base().add(at) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let len = (self.end - self.begin) as usize;
        // SAFETY: the mapping lives as long as the pool that this holds; its bytes are zero or were
        // written; this is its slots' only owner, and a queue that lends the address to a driver
        // has taken it and gives it back when the driver is done.
        unsafe { std::slice::from_raw_parts(self.address().as_ptr(), len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = (self.end - self.begin) as usize;
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.address().as_ptr(), len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &self.pool.0.free {
            Free::Any(free) => free.push(self.slot).expect("no slot is given back twice"),
            Free::Named(taken) => {
                let ours = self.slot as usize..(self.slot + self.slots) as usize;
                let ours = taken[ours].iter();
                ours.for_each(|taken| taken.store(false, Ordering::Release));
            }
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Buffer(slot {}, {} of them, {}..{})",
            self.slot, self.slots, self.begin, self.end
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_handed_out_once_and_come_back() {
        let pool = Pool::new(3, 5000).expect("memory");
        assert_eq!((pool.slot_bytes(), pool.free()), (8192, 3));
        let mut taken: Vec<Buffer> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!((taken.len(), pool.free()), (3, 0));
        for (n, buffer) in taken.iter_mut().enumerate() {
            assert_eq!(buffer.len(), 8192);
            assert_eq!(buffer.address().as_ptr() as usize % 4096, 0);
            buffer.fill(n as u8 + 1);
        }
        assert!((0..3).all(|n| taken[n].iter().all(|&byte| byte == n as u8 + 1)));
        drop(taken);
        assert_eq!(pool.free(), 3);
    }

    #[test]
    fn a_narrow_buffer_shows_its_part_and_leaves_the_rest() {
        let pool = Pool::new(1, 4096).expect("memory");
        let mut buffer = pool.take().expect("free");
        buffer.fill(1);
        buffer.narrow(100..200);
        buffer.fill(2);
        assert_eq!(buffer.len(), 100);
        buffer.narrow(0..4096);
        assert_eq!(buffer.iter().filter(|&&byte| byte == 2).count(), 100);
        assert_eq!(
            (buffer[99], buffer[100], buffer[199], buffer[200]),
            (1, 2, 2, 1)
        );
    }

    #[test]
    fn slots_of_lent_memory_are_had_by_their_numbers_and_by_one_owner() {
        let lender = Pool::new(1, 3 * 4096).expect("memory");
        let whole = lender.take().expect("free");
        let base = whole.address();
        // SAFETY: the slot is 3 blocks long and lives as long as its buffer, which is the owner.
        let pool = unsafe { Pool::lent(base, 3, 4096, Arc::new(whole)) };
        // SAFETY: nobody else has the memory.
        let take = |slots| unsafe { pool.take_named(slots) };
        let mut second = take(1..2).expect("free");
        assert!(take(1..2).is_none() && pool.take().is_none());
        // What was had of several is given back where not all are.
        assert!(take(0..3).is_none() && take(1..3).is_none());
        assert_eq!(
            second.address().as_ptr() as usize,
            base.as_ptr() as usize + 4096
        );
        second.fill(3);
        assert_eq!(pool.free(), 2);
        drop(second);
        assert_eq!(take(1..2).expect("free again")[9], 3);
        let mut last = take(1..3).expect("both are free");
        assert_eq!((last.len(), last[9], pool.free()), (2 * 4096, 3, 1));
        last.narrow(4096..8192);
        last.fill(5);
        drop(last);
        assert_eq!(take(2..3).expect("free again")[0], 5);
        assert_eq!(pool.free(), 3);
        assert_eq!(lender.free(), 0);
        drop(pool);
        assert_eq!(lender.free(), 1);
    }

    #[test]
    #[should_panic(expected = "0..5000 of 4096 bytes")]
    fn no_part_leaves_its_slot() {
        let pool = Pool::new(1, 4096).expect("memory");
        pool.take().expect("free").narrow(0..5000);
    }
}
