//! Buffers that a device reads into and writes from: slots of one mapping that the kernel can be
//! told of once.
//!
//! What it never does: allocate after a pool was made; let two owners have one slot.
//!
//! *Thread safety*: a [`Pool`] is shared by whoever has a copy of it; a [`Buffer`] is one owner's.
//! *Invariants*: the number of a slot is either in `free` or in exactly one [`Buffer`]; only the
//! owner of that, or the driver that a queue lent its address to, touches the slot's bytes.

use super::BLOCK_BYTES;
use crate::MediaError;
use crate::mapping::Mapping;
use crossbeam_queue::ArrayQueue;
use rustix::mm::Advice;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// A slot is no larger, in bytes: the kernel moves less than twice that at once.
pub const SLOT_BYTES_MAX: usize = 1 << 30;

/// Slots of equal size in one piece of memory. Copies are cheap and share them.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Slots>);

#[derive(Debug)]
struct Slots {
    memory: Mapping,
    slot_bytes: usize,
    free: ArrayQueue<u32>,
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
            memory,
            slot_bytes,
            free,
        })))
    }

    /// A slot that nobody has, as one whole; none where all are in use. What it held before is
    /// still in it.
    pub fn take(&self) -> Option<Buffer> {
        let slot = self.0.free.pop()?;
        Some(Buffer {
            pool: self.clone(),
            slot,
            begin: 0,
            end: self.0.slot_bytes as u32,
        })
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.0.slot_bytes
    }

    /// Slots that nobody has now.
    pub fn free(&self) -> usize {
        self.0.free.len()
    }

    /// All slots, for the kernel.
    pub(super) fn memory(&self) -> (NonNull<u8>, usize) {
        let memory = &self.0.memory;
        (memory.base(), self.0.slot_bytes * self.0.free.capacity())
    }

    /// Whether both are the same slots.
    pub(super) fn is(&self, other: &Pool) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A slot of a [`Pool`], or a part of it; given back when it is dropped.
pub struct Buffer {
    pool: Pool,
    slot: u32,
    begin: u32,
    end: u32,
}

impl Buffer {
    /// Leaves only these bytes of the slot to be seen and moved; what is outside stays as it is.
    ///
    /// Panics where they leave the slot.
    pub fn narrow(&mut self, to: Range<usize>) {
        let max = self.pool.0.slot_bytes;
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
        // within the slot.
        unsafe { self.pool.0.memory.base().add(at) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let len = (self.end - self.begin) as usize;
        // SAFETY: the mapping lives as long as the pool that this holds; its bytes are zero or were
        // written; this is the slot's only owner, and a queue that lends the address to a driver
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
        let slot = self.pool.0.free.push(self.slot);
        slot.expect("no slot is given back twice");
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Buffer(slot {}, {}..{})",
            self.slot, self.begin, self.end
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
    #[should_panic(expected = "0..5000 of 4096 bytes")]
    fn no_part_leaves_its_slot() {
        let pool = Pool::new(1, 4096).expect("memory");
        pool.take().expect("free").narrow(0..5000);
    }
}
