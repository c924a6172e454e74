//! After a restart: which blocks are in use. Whoever owns the heap's roots names every block that
//! is reachable; all others of the past are free.
//!
//! A sweep may run while the heap is used. Blocks linked since the heap was opened are new ones,
//! about which the sweep has nothing to find out; old ones that are freed meanwhile are taken off
//! at its end, whether it saw them or not. What must not happen is that an old block moves from
//! where the sweep has yet to look to where it has already looked: indexes split to the right,
//! sweeps go to the right, and of what is taken out of an index nothing is left that could move.

use super::bits::Bits;
use super::{Class, Heap};
use crate::sync::Ordering::Release;
use crate::sync::lock;
use nyx_media::Pmem;

/// A reference that cannot be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// There is no block, or one of another size.
    #[error("address {at} is not that of a block of {} bytes", .class.bytes())]
    NoBlock {
        /// Where it points.
        at: u64,
        /// What it should be.
        class: Class,
    },
    /// Two references to one block.
    #[error("the block at {at} is referred to twice")]
    Twice {
        /// Which.
        at: u64,
    },
}

/// What a sweep found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Old blocks that are in use.
    pub used_blocks: u64,
    /// And their bytes.
    pub used_bytes: u64,
    /// Old blocks that are free.
    pub free_blocks: u64,
    /// Old chunks of which nothing was in use.
    pub empty_chunks: u64,
}

/// See the module. Marks may be made in any order; see [`Sweep::finish`].
#[derive(Debug)]
pub struct Sweep<'h, P> {
    heap: &'h Heap<P>,
    /// One bit per block of each old chunk, made when the first is found.
    used: Vec<Option<Bits>>,
    old: Bits,
    /// The era in which the last mark was made.
    sealed: Option<u64>,
}

impl<P: Pmem> Heap<P> {
    /// Begins to find out which blocks of the past are in use. One at a time. Where others use the
    /// heap meanwhile, whoever marks is within an era while it does, and no more when it finishes.
    pub fn sweep(&self) -> Sweep<'_, P> {
        Sweep {
            heap: self,
            used: vec![None; self.layout.chunk_count as usize],
            old: lock(&self.old).chunks.clone(),
            sealed: None,
        }
    }
}

impl<P: Pmem> Sweep<'_, P> {
    /// Says that there is a block of `class` in use at `at`.
    pub fn mark(&mut self, at: u64, class: Class) -> Result<(), Damage> {
        self.heap.check(at, class)?;
        match self.set(at, class, true) {
            true => Err(Damage::Twice { at }),
            false => Ok(()),
        }
    }

    /// Says whether the block at `at`, of `class`, is in use; tells what was said before. Of a new
    /// one nothing is known.
    fn set(&mut self, at: u64, class: Class, in_use: bool) -> bool {
        let layout = &self.heap.layout;
        let (chunk, offset) = layout.place(at).expect("the address of a block");
        if !self.old.has(chunk.into()) {
            return false;
        }
        let blocks = layout.chunk_bytes / class.bytes();
        let used = self.used[chunk as usize].get_or_insert_with(|| Bits::none(blocks));
        used.set(offset / class.bytes(), in_use)
    }

    /// The same of a block that was handed out once.
    fn set_known(&mut self, at: u64, in_use: bool) {
        let class = self.heap.class_of(at).expect("the address of a block");
        self.set(at, class, in_use);
    }

    /// Frees all that was not named, once no worker is at what it was at when the last was: a block
    /// that was unlinked before it could be named has then been retired. Until then the sweep comes
    /// back, to be finished later; nothing may be marked any more.
    pub fn finish(mut self) -> Result<Swept, Self> {
        let sealed = *self.sealed.get_or_insert_with(|| self.heap.eras.retire());
        if !self.heap.eras.is_over(sealed) {
            return Err(self);
        }
        let mut old = lock(&self.heap.old);
        if self.heap.is_swept() {
            // By another sweep, or there was nothing old.
            return Ok(Swept::default());
        }
        self.spare_limbo();
        for at in std::mem::take(&mut old.freed) {
            self.set_known(at, false);
        }
        let mut swept = Swept::default();
        for chunk in 0..self.heap.layout.chunk_count {
            if self.old.has(chunk.into()) {
                let used = self.used[chunk as usize].take();
                self.settle(chunk, used, &mut swept);
            }
        }
        old.chunks.clear();
        self.heap.swept.store(1, Release);
        Ok(swept)
    }

    /// What waits in limbo becomes free when its era is over, and not twice.
    fn spare_limbo(&mut self) {
        let heap = self.heap;
        for hand in &heap.workers {
            for &(_, at) in &lock(hand).limbo {
                self.set_known(at, true);
            }
        }
    }

    /// Puts the free blocks of a chunk, or the chunk, where they are found.
    fn settle(&self, chunk: u32, used: Option<Bits>, swept: &mut Swept) {
        let heap = self.heap;
        let class = heap.layout.class(&heap.pm, chunk);
        let class = class.ok().flatten().expect("an old chunk has a size");
        let in_use = used.as_ref().map_or(0, Bits::count);
        let blocks = heap.layout.chunk_bytes / class.bytes();
        swept.used_blocks += in_use;
        swept.used_bytes += in_use * class.bytes();
        swept.free_blocks += blocks - in_use;
        match used.filter(|_| in_use > 0) {
            None => {
                swept.empty_chunks += 1;
                heap.layout.set_class(&heap.pm, chunk, None);
                lock(&heap.chunks).empty.push(chunk);
            }
            Some(used) if in_use < blocks => {
                let mut shelf = lock(&heap.classes[class.0 as usize]);
                shelf.partly.push((chunk, used));
            }
            Some(_) => {}
        }
    }
}
