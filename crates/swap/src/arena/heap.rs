//! The memory of the preload library itself: a heap without a lock.
//!
//! Who needs memory in that library may be anywhere: in a signal's handler in the middle of the C
//! library's `malloc`, so that must not be called; in a thread that answers faults; on a stack of
//! the arena, which waits for that thread at any touch; in a child of `fork`. With a lock each of
//! them may wait for another, or for itself. So a block is taken and given back by one atomic bit:
//! nobody waits, no signal has to be blocked, and a child misses only what other threads had.
//!
//! * Small blocks are powers of two; those of a size lie in *slabs*, each with a bit for each block
//!   in its head. Slabs are never given back: a program's metadata is small.
//! * Larger ones are mappings of their own.
//!
//! What it never does: call the C library's heap, or anything of the program's that has its name;
//! take memory of an arena; wait; keep anything of a thread.
//!
//! *Thread safety*: all of it, in handlers of signals too. *Errors*: null where the kernel has no
//! memory.

use crate::region::PAGE_BYTES;
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Acquire, Ordering::Relaxed};
use std::sync::atomic::{Ordering::AcqRel, Ordering::Release};

/// A slab begins at a multiple of it, so that a block says where its slab is.
const SLAB_BYTES: usize = 256 << 10;
const SMALLEST_BYTES: usize = 16;
const LARGEST_BYTES: usize = 32 << 10;
/// Powers of two from the smallest to the largest.
const CLASSES: usize = (LARGEST_BYTES / SMALLEST_BYTES).ilog2() as usize + 1;
const WORD_BITS: usize = u64::BITS as usize;
const WORDS: usize = SLAB_BYTES / SMALLEST_BYTES / WORD_BITS;

/// See the module.
#[derive(Debug)]
pub struct Heap {
    classes: [Class; CLASSES],
}

/// The slabs of one size.
#[derive(Debug)]
struct Class {
    block_bytes: usize,
    /// The newest, which knows the next older; none is ever taken out.
    newest: AtomicPtr<Slab>,
    /// Where there was room last; it is looked at first.
    likely: AtomicPtr<Slab>,
}

/// The head of a slab; zeros are one.
#[derive(Debug)]
struct Slab {
    older: AtomicPtr<Slab>,
    /// A bit for each block, the head's own too: whether somebody has it.
    taken: [AtomicU64; WORDS],
}

impl Heap {
    /// One with nothing in it.
    #[expect(clippy::new_without_default, reason = "it is a static's")]
    pub const fn new() -> Heap {
        let mut classes = [const { Class::new(0) }; CLASSES];
        let mut number = 0;
        while number < CLASSES {
            classes[number].block_bytes = SMALLEST_BYTES << number;
            number += 1;
        }
        Heap { classes }
    }

    /// Whose block that is; none where it is a mapping.
    fn class(&self, layout: Layout) -> Option<&Class> {
        let bytes = layout.size().max(layout.align()).max(SMALLEST_BYTES);
        let above = bytes.div_ceil(SMALLEST_BYTES).next_power_of_two();
        self.classes.get(above.ilog2() as usize)
    }
}

// SAFETY: a block is one whose bit was clear and is set by who has it, or a new mapping; it is as
// large as its class, or its mapping, and lies at a multiple of that, or of what was asked for.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.class(layout) {
            Some(class) => class.take(),
            None => map(layout.size(), layout.align()),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's word.
        let at = unsafe { self.alloc(layout) };
        // New mappings are zeros.
        if !at.is_null() && self.class(layout).is_some() {
            // SAFETY: so much was just given.
            unsafe { at.write_bytes(0, layout.size()) };
        }
        at
    }

    // SAFETY: as the trait has it.
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        match self.class(layout) {
            // SAFETY: the caller's word, that it was given for this layout, and so by this class.
            Some(class) => unsafe { class.give_back(at) },
            None => unmap(at, layout.size().next_multiple_of(PAGE_BYTES)),
        }
    }

    // SAFETY: as the trait has it.
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        // SAFETY: the caller's word.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_bytes, layout.align()) };
        match (self.class(layout), self.class(new_layout)) {
            (Some(old), Some(new)) if ptr::eq(old, new) => return at,
            (None, None) if layout.align() <= PAGE_BYTES => {
                return remap(at, layout.size(), new_bytes);
            }
            _ => {}
        }
        // SAFETY: as above; both have so much, and are apart.
        unsafe {
            let new = self.alloc(new_layout);
            if !new.is_null() {
                new.copy_from_nonoverlapping(at, layout.size().min(new_bytes));
                self.dealloc(at, layout);
            }
            new
        }
    }
}

impl Class {
    const fn new(block_bytes: usize) -> Class {
        Class {
            block_bytes,
            newest: AtomicPtr::new(null_mut()),
            likely: AtomicPtr::new(null_mut()),
        }
    }

    fn take(&self) -> *mut u8 {
        let likely = self.likely.load(Acquire);
        if let Some(block) = self.take_of(likely) {
            return block;
        }
        let mut slab = self.newest.load(Acquire);
        while !slab.is_null() {
            if let Some(block) = self.take_of(slab) {
                self.likely.store(slab, Release);
                return block;
            }
            // SAFETY: slabs stay.
            slab = unsafe { (*slab).older.load(Relaxed) };
        }
        self.take_of_new()
    }

    /// A block of a slab that is free; none where none is, or there is no slab.
    fn take_of(&self, slab: *mut Slab) -> Option<*mut u8> {
        // SAFETY: it is null, or a slab, which stays.
        let taken = &unsafe { slab.as_ref() }?.taken;
        let words = (SLAB_BYTES / self.block_bytes).div_ceil(WORD_BITS);
        for (number, word) in taken[..words].iter().enumerate() {
            let mut seen = word.load(Relaxed);
            while seen != !0 {
                let bit = seen.trailing_ones() as usize;
                // Who had it is done with it.
                seen = word.fetch_or(1 << bit, Acquire);
                if seen & (1 << bit) == 0 {
                    let place = (number * WORD_BITS + bit) * self.block_bytes;
                    return Some(slab.cast::<u8>().wrapping_add(place));
                }
            }
        }
        None
    }

    /// The first block of a new slab.
    fn take_of_new(&self) -> *mut u8 {
        let slab = map(SLAB_BYTES, SLAB_BYTES).cast::<Slab>();
        if slab.is_null() {
            return null_mut();
        }
        let blocks = SLAB_BYTES / self.block_bytes;
        let first = size_of::<Slab>().div_ceil(self.block_bytes);
        // SAFETY: it is a new mapping, larger than a head and at a multiple of more than that
        // needs; zeros are a head.
        let head = unsafe { &*slab };
        // The head's own, the caller's, and in the last word those that are none.
        let none = blocks..blocks.next_multiple_of(WORD_BITS);
        for block in (0..=first).chain(none) {
            head.taken[block / WORD_BITS].fetch_or(1 << (block % WORD_BITS), Relaxed);
        }
        let mut newest = self.newest.load(Relaxed);
        loop {
            head.older.store(newest, Relaxed);
            // AcqRel: who comes by the newest to an older one is to see that one's head.
            match (self.newest).compare_exchange_weak(newest, slab, AcqRel, Relaxed) {
                Ok(_) => break,
                Err(other) => newest = other,
            }
        }
        self.likely.store(slab, Release);
        slab.cast::<u8>().wrapping_add(first * self.block_bytes)
    }

    /// # Safety
    ///
    /// It was given by this class, and nobody uses it any more.
    unsafe fn give_back(&self, at: *mut u8) {
        let place = at.addr() % SLAB_BYTES;
        let (slab, block) = (
            at.wrapping_sub(place).cast::<Slab>(),
            place / self.block_bytes,
        );
        // SAFETY: the slab in which it lies, which stays.
        let word = unsafe { &(*slab).taken[block / WORD_BITS] };
        word.fetch_and(!(1 << (block % WORD_BITS)), Release);
        self.likely.store(slab, Release);
    }
}

/// A new mapping; null where there is no memory. All are made by number: the functions of these
/// names are the preload library's own, and give memory of the arena.
fn map(bytes: usize, align: usize) -> *mut u8 {
    let bytes = bytes.next_multiple_of(PAGE_BYTES);
    let more = align.saturating_sub(PAGE_BYTES);
    let (access, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    let (anywhere, len) = (0usize, bytes + more);
    // SAFETY: new memory, at an address of the kernel's choice.
    let at = unsafe { libc::syscall(libc::SYS_mmap, anywhere, len, access, flags, -1, 0usize) };
    if at == -1 {
        return null_mut();
    }
    let at = ptr::with_exposed_provenance_mut::<u8>(at as usize);
    let before = at.addr().next_multiple_of(align) - at.addr();
    let first = at.wrapping_add(before);
    unmap(at, before);
    unmap(first.wrapping_add(bytes), more - before);
    first
}

/// The same bytes in a mapping of another length; null where there is no memory.
fn remap(at: *mut u8, bytes: usize, new_bytes: usize) -> *mut u8 {
    let [old, new] = [bytes, new_bytes].map(|bytes| bytes.next_multiple_of(PAGE_BYTES));
    // SAFETY: a mapping of this heap's, whose owner goes on with the address that is returned.
    let at = unsafe { libc::syscall(libc::SYS_mremap, at, old, new, libc::MREMAP_MAYMOVE) };
    match at {
        -1 => null_mut(),
        at => ptr::with_exposed_provenance_mut(at as usize),
    }
}

fn unmap(at: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: a part of a mapping of this heap's that nobody has.
        unsafe { libc::syscall(libc::SYS_munmap, at, bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    /// A block, and what all of its bytes are.
    struct Block<'a> {
        heap: &'a Heap,
        at: *mut u8,
        layout: Layout,
        is: u8,
    }

    // SAFETY: it is the only one that uses the block.
    unsafe impl Send for Block<'_> {}

    impl Drop for Block<'_> {
        fn drop(&mut self) {
            self.check(self.layout.size());
            // SAFETY: it was given for this layout.
            unsafe { self.heap.dealloc(self.at, self.layout) };
        }
    }

    impl<'a> Block<'a> {
        fn new(heap: &'a Heap, rng: &mut fastrand::Rng) -> Block<'a> {
            let most = 1 << rng.u32(1..19);
            let bytes = rng.usize(1..=most);
            let align = 1 << rng.u32(0..15);
            let layout = Layout::from_size_align(bytes, align).expect("small");
            let is_zero = rng.bool();
            // SAFETY: it has a size.
            let at = unsafe {
                match is_zero {
                    true => heap.alloc_zeroed(layout),
                    false => heap.alloc(layout),
                }
            };
            assert!(!at.is_null());
            let mut block = Block {
                heap,
                at,
                layout,
                is: 0,
            };
            if is_zero {
                block.check(bytes);
            }
            block.fill(rng.u8(..));
            block
        }

        fn fill(&mut self, is: u8) {
            assert!(self.at.addr().is_multiple_of(self.layout.align()));
            // SAFETY: it has so much.
            unsafe { self.at.write_bytes(is, self.layout.size()) };
            self.is = is;
        }

        fn check(&self, bytes: usize) {
            // SAFETY: it has so much.
            let held = unsafe { std::slice::from_raw_parts(self.at, bytes) };
            assert!(
                held.iter().all(|&byte| byte == self.is),
                "{:?}",
                self.layout
            );
        }

        fn resize(&mut self, rng: &mut fastrand::Rng) {
            let most = 1 << rng.u32(1..19);
            let bytes = rng.usize(1..=most);
            let common = bytes.min(self.layout.size());
            // SAFETY: it was given for this layout.
            self.at = unsafe { self.heap.realloc(self.at, self.layout, bytes) };
            assert!(!self.at.is_null());
            let layout = Layout::from_size_align(bytes, self.layout.align());
            self.layout = layout.expect("small");
            self.check(common);
            self.fill(rng.u8(..));
        }
    }

    /// Takes, resizes and gives back at random, also what other threads have taken.
    fn churn<'a>(heap: &'a Heap, seed: u64, shared: &Mutex<Vec<Block<'a>>>) {
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..2_000 {
            let shared = || shared.lock().expect("nobody panics with it");
            let old = {
                let mut all = shared();
                let count = all.len();
                (rng.usize(..200) < count).then(|| all.swap_remove(rng.usize(..count)))
            };
            let block = match old {
                Some(_) if rng.bool() => continue,
                Some(mut block) => {
                    block.resize(&mut rng);
                    block
                }
                None => Block::new(heap, &mut rng),
            };
            shared().push(block);
        }
    }

    #[test]
    fn blocks_of_four_threads_are_apart_and_keep_what_they_hold() {
        for seed in 0..4 {
            let (heap, shared) = (Heap::new(), Mutex::new(Vec::new()));
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let (heap, shared) = (&heap, &shared);
                    scope.spawn(move || churn(heap, seed * 4 + thread, shared));
                }
            });
        }
    }

    /// So that a program that goes on for long does not grow.
    #[test]
    fn what_is_given_back_is_taken_again() {
        let heap = Heap::new();
        for bytes in [16, 100, 4096, LARGEST_BYTES] {
            let layout = Layout::from_size_align(bytes, 8).expect("small");
            // SAFETY: it has a size.
            let take = |_| unsafe { heap.alloc(layout) };
            let slabs = |all: &[*mut u8]| -> BTreeSet<usize> {
                all.iter().map(|at| at.addr() / SLAB_BYTES).collect()
            };
            let first: Vec<_> = (0..3 * SLAB_BYTES / bytes).map(take).collect();
            for &at in &first {
                // SAFETY: it was given for this layout, and is given back once.
                unsafe { heap.dealloc(at, layout) };
            }
            let second: Vec<_> = (0..first.len()).map(take).collect();
            assert!(
                slabs(&second).is_subset(&slabs(&first)),
                "blocks of {bytes}"
            );
        }
    }
}
