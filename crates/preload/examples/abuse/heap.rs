//! malloc and its kin, small and large, and an arena that is full.
//!
//! What it never does: call them for what Rust's own allocator has.

use crate::Case;
use crate::memory::{Block, KIB, MIB, press, word};
use crate::sys;
use libc::c_void;
use std::hint::black_box;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

pub(crate) const CASES: &[Case] = &[
    ("heap-sizes", sizes),
    ("heap-aligned", aligned),
    ("heap-usable", usable),
    ("heap-realloc", realloc),
    ("heap-zeroed", zeroed),
    ("heap-refused", refused),
    ("heap-threads", threads),
    ("heap-vectors", vectors),
    ("full", full),
];

// SAFETY: as the C library declares them; what they return is the caller's.
unsafe extern "C" {
    fn memalign(align: usize, len: usize) -> *mut c_void;
    fn valloc(len: usize) -> *mut c_void;
    fn pvalloc(len: usize) -> *mut c_void;
    fn reallocarray(at: *mut c_void, count: usize, len: usize) -> *mut c_void;
}

fn block(at: *mut c_void, len: usize) -> Block {
    assert!(!at.is_null(), "{len} bytes: errno {}", sys::errno());
    let at = at.expose_provenance();
    assert!(at.is_multiple_of(16), "{at:x}");
    Block { at, len: len & !7 }
}

fn pointer(block: Block) -> *mut c_void {
    ptr::with_exposed_provenance_mut(block.at)
}

pub(crate) fn malloc(len: usize) -> Block {
    // SAFETY: a new block.
    block(unsafe { libc::malloc(len) }, len)
}

pub(crate) fn calloc(len: usize) -> Block {
    // SAFETY: a new block.
    block(unsafe { libc::calloc(len.div_ceil(8), 8) }, len)
}

pub(crate) fn resized(old: Block, len: usize) -> Block {
    // SAFETY: the caller goes on with the new block.
    block(unsafe { libc::realloc(pointer(old), len) }, len)
}

pub(crate) fn free(block: Block) {
    // SAFETY: the caller has no more use for it.
    unsafe { libc::free(pointer(block)) }
}

fn sizes() {
    let lens: Vec<usize> = [128 * KIB, 256 * KIB, MIB, 3 * MIB]
        .into_iter()
        .flat_map(|len| [len - 4096, len - 16, len - 1, len, len + 1, len + 4097])
        .chain([1, 24, 1000, 100 * KIB, 0])
        .collect();
    for round in 0..3 {
        let blocks: Vec<Block> = lens.iter().map(|&len| malloc(len)).collect();
        for (seed, block) in blocks.iter().enumerate() {
            block.fill(0..block.len, seed as u64 + round);
        }
        for (seed, block) in blocks.into_iter().enumerate() {
            block.check(0..block.len, seed as u64 + round);
            free(block);
        }
    }
    // SAFETY: nothing is freed.
    unsafe { libc::free(ptr::null_mut()) };
}

fn aligned() {
    for shift in 6..=21 {
        let align = 1usize << shift;
        for len in [100, 128 * KIB - 1, 128 * KIB, 128 * KIB + 1, MIB] {
            let mut at = ptr::null_mut();
            // SAFETY: new blocks, and room for the address.
            let all = unsafe {
                assert_eq!(libc::posix_memalign(&raw mut at, align, len), 0);
                let whole = len.next_multiple_of(align);
                let other = libc::aligned_alloc(align, whole);
                [(at, len), (other, whole), (memalign(align, len), len)]
            };
            for (seed, (at, len)) in all.into_iter().enumerate() {
                let block = block(at, len);
                assert!(block.at.is_multiple_of(align), "{block:x?} by {align}");
                block.fill(0..block.len, seed as u64);
            }
            for (seed, (at, len)) in all.into_iter().enumerate() {
                let block = block(at, len);
                block.check(0..block.len, seed as u64);
                // They grow like any other.
                let block = resized(block, len + MIB);
                block.check(0..len & !7, seed as u64);
                free(block);
            }
        }
    }
    // SAFETY: new blocks.
    let (a, b) = unsafe { (valloc(200 * KIB), pvalloc(200 * KIB + 1)) };
    for at in [a, b] {
        let block = block(at, 200 * KIB);
        assert!(block.at.is_multiple_of(4096));
        block.fill(0..block.len, 5);
        block.check(0..block.len, 5);
        free(block);
    }
}

fn usable() {
    for len in [
        10,
        100 * KIB,
        128 * KIB,
        128 * KIB + 1,
        MIB - 1,
        5 * MIB + 3,
    ] {
        let block = malloc(len);
        // SAFETY: a block that lives.
        let usable = unsafe { libc::malloc_usable_size(pointer(block)) };
        assert!(usable >= len, "{usable} of {len} bytes");
        let all = Block {
            at: block.at,
            len: usable & !7,
        };
        all.fill(0..all.len, 6);
        let next = malloc(len);
        next.fill(0..next.len, 7);
        all.check(0..all.len, 6);
        let grown = resized(all, len + 64 * KIB);
        grown.check(0..block.len, 6);
        free(grown);
        free(next);
    }
    // SAFETY: no block has no bytes.
    assert_eq!(unsafe { libc::malloc_usable_size(ptr::null_mut()) }, 0);
}

fn realloc() {
    let mut rng = fastrand::Rng::with_seed(8);
    for seed in 0..6 {
        // SAFETY: as malloc.
        let mut now = block(unsafe { libc::realloc(ptr::null_mut(), 100) }, 100);
        now.fill(0..now.len, seed);
        for step in 0..40 {
            let len = match step % 4 {
                0 => rng.usize(16..4 * KIB),
                1 => rng.usize(4 * MIB..6 * MIB),
                2 => rng.usize(120 * KIB..140 * KIB),
                _ => rng.usize(64 * KIB..2 * MIB),
            };
            let old = now.len;
            now = resized(now, len);
            now.check(0..old.min(now.len), seed);
            now.fill(0..now.len, seed);
            if step % 10 == 0 {
                press();
            }
        }
        free(now);
    }
    // To nothing is as free.
    let last = malloc(MIB);
    // SAFETY: a block that nobody uses any more.
    let nothing = unsafe { libc::realloc(pointer(last), 0) };
    assert!(nothing.is_null());
}

fn zeroed() {
    for round in 0..20 {
        let len = [128 * KIB, 300 * KIB, MIB][round % 3] + round * 8;
        let dirty = malloc(len);
        dirty.fill(0..dirty.len, round as u64);
        if round % 5 == 0 {
            press();
        }
        free(dirty);
        let clean = calloc(len);
        clean.zero(0..clean.len);
        clean.fill(0..clean.len, 3);
        // Grown, as glibc's recalloc would: what is new need not be zero.
        let grown = resized(clean, len * 2);
        grown.check(0..clean.len, 3);
        free(grown);
    }
}

fn refused() {
    // A compiler knows malloc, and what is not used is not asked for.
    let is_refused = |at: *mut c_void| black_box(at).is_null() && sys::errno() == libc::ENOMEM;
    // SAFETY: what is refused is not made.
    unsafe {
        for len in [usize::MAX, usize::MAX / 2, 1 << 62].map(black_box) {
            assert!(is_refused(libc::malloc(len)));
            assert!(is_refused(libc::calloc(len, 2)));
            assert!(is_refused(memalign(4096, len)));
        }
        let half = black_box(1 << 33);
        assert!(is_refused(libc::calloc(half, half)));
        assert!(is_refused(reallocarray(ptr::null_mut(), half, half)));
        let mut at = ptr::null_mut();
        let odd = libc::posix_memalign(&raw mut at, 24, MIB);
        assert_eq!(odd, libc::EINVAL);
        let much = libc::posix_memalign(&raw mut at, 4096, usize::MAX / 2);
        assert_eq!(much, libc::ENOMEM);
    }
    // A block that cannot grow is as it was.
    let block = malloc(MIB);
    block.fill(0..MIB, 9);
    // SAFETY: refused, so the old one lives.
    assert!(is_refused(unsafe {
        libc::realloc(pointer(block), black_box(usize::MAX / 2))
    }));
    block.check(0..MIB, 9);
    // SAFETY: the caller goes on with the new block.
    let more = unsafe { reallocarray(pointer(block), 256 * KIB, 8) };
    let more = self::block(more, 2 * MIB);
    more.check(0..MIB, 9);
    free(more);
}

/// What one thread allocates another frees.
fn threads() {
    let (to, from) = std::sync::mpsc::sync_channel::<(u64, Block)>(32);
    let from = std::sync::Mutex::new(from);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let to = to.clone();
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(number);
                for seed in 0..100 {
                    let block = malloc(rng.usize(64 * KIB..512 * KIB));
                    block.fill(0..block.len, seed);
                    to.send((seed, block)).expect("taken");
                }
            });
        }
        drop(to);
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let next = from.lock().expect("whole").recv();
                    let Ok((seed, block)) = next else { break };
                    block.check(0..block.len, seed);
                    free(block);
                }
            });
        }
    });
}

/// Rust's own allocator, which grows its vectors by realloc.
fn vectors() {
    let mut all: Vec<Vec<u64>> = vec![Vec::new(); 8];
    for number in 0..400_000u64 {
        all[number as usize % 8].push(number);
    }
    for (i, one) in all.iter().enumerate() {
        assert_eq!(one.len(), 50_000);
        let is_right = |(at, &held): (usize, &u64)| held == (at * 8 + i) as u64;
        assert!(one.iter().enumerate().all(is_right));
    }
}

/// More than the suite lets an arena have: the rest is usual memory.
fn full() {
    for round in 0..3 {
        let heap: Vec<Block> = (0..40).map(|_| malloc(MIB)).collect();
        let maps: Vec<Block> = (0..40).map(|_| Block::map(MIB)).collect();
        let one = Block::filled(48 * MIB, 99);
        for (seed, block) in heap.iter().chain(&maps).enumerate() {
            block.fill(0..MIB, seed as u64 + round);
        }
        let heap: Vec<Block> = heap.into_iter().map(|old| resized(old, 2 * MIB)).collect();
        let grow = |old: Block| {
            let at = sys::mremap(old.at, MIB, 2 * MIB, libc::MREMAP_MAYMOVE, 0);
            Block {
                at: at.expect("moved"),
                len: 2 * MIB,
            }
        };
        let maps: Vec<Block> = maps.into_iter().map(grow).collect();
        sys::passed(sys::fork(|| {
            one.check(0..48 * MIB, 99);
            let all = heap.iter().chain(&maps).enumerate();
            all.for_each(|(seed, block)| block.check(0..MIB, seed as u64 + round));
            0
        }));
        for (seed, block) in heap.iter().chain(&maps).enumerate() {
            block.check(0..MIB, seed as u64 + round);
        }
        assert_ne!(word(one.at).load(Relaxed), 0);
        heap.into_iter().for_each(free);
        maps.into_iter().for_each(Block::unmap);
        one.unmap();
    }
}
