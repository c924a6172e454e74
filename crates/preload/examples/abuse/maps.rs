//! mmap, munmap and mremap, of whole blocks and of parts.
//!
//! What it never does: ask more than the manual promises.

use crate::Case;
use crate::memory::{Block, KIB, MIB, PAGE, press, word};
use crate::sys::{self, PRIVATE, RW};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;

pub(crate) const CASES: &[Case] = &[
    ("map", map),
    ("map-kinds", map_kinds),
    ("map-refused", map_refused),
    ("unmap-parts", unmap_parts),
    ("unmap-across", unmap_across),
    ("unmap-again", unmap_again),
    ("remap-grow", remap_grow),
    ("remap-in-place", remap_in_place),
    ("remap-shrink", remap_shrink),
    ("remap-part", remap_part),
    ("remap-fixed", remap_fixed),
    ("remap-dont-unmap", remap_dont_unmap),
    ("fixed-anonymous", fixed_anonymous),
    ("fixed-file", fixed_file),
    ("fixed-reserve", fixed_reserve),
    ("fixed-segment", fixed_segment),
    ("many-maps", many_maps),
];

fn map() {
    let blocks: Vec<Block> = (0..8).map(|seed| Block::filled(MIB, seed)).collect();
    let other = sys::mmap64(MIB).expect("mmap64");
    let other = Block {
        at: other,
        len: MIB,
    };
    other.zero(0..MIB);
    for (seed, block) in blocks.iter().enumerate() {
        block.check(0..MIB, seed as u64);
        sys::mincore(block.at, MIB).expect("mapped");
    }
    other.unmap();
    blocks.into_iter().for_each(Block::unmap);
}

fn map_kinds() {
    let kinds = [
        libc::MAP_NORESERVE,
        libc::MAP_POPULATE,
        libc::MAP_STACK,
        libc::MAP_LOCKED,
    ];
    for (seed, kind) in kinds.into_iter().enumerate() {
        // Locked memory may be refused, as a machine allows.
        let Ok(at) = sys::mmap(0, MIB, RW, PRIVATE | kind, -1) else {
            assert_eq!(kind, libc::MAP_LOCKED);
            continue;
        };
        let block = Block { at, len: MIB };
        block.zero(0..MIB);
        block.fill(0..MIB, seed as u64);
        press();
        block.check(0..MIB, seed as u64);
        block.unmap();
    }
    // A hint is no more than that.
    let hint = Block::map(MIB);
    let at = sys::mmap(hint.at, MIB, RW, PRIVATE, -1).expect("mapped elsewhere");
    assert!(at.abs_diff(hint.at) >= MIB);
    // No whole number of pages.
    let odd = Block::filled(MIB + 8, 3);
    odd.check(0..MIB + 8, 3);
    odd.zero(MIB + 8..MIB + PAGE);
    sys::munmap(odd.at, MIB + 1).expect("the rest of the last page too");
    assert!(sys::is_gone(odd.at + MIB));
    // Shared memory stays shared with a child.
    let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let at = sys::mmap(0, MIB, RW, shared, -1).expect("shared memory");
    sys::passed(sys::fork(|| {
        word(at + MIB / 2).store(11, Relaxed);
        0
    }));
    assert_eq!(word(at + MIB / 2).load(Relaxed), 11);
}

fn map_refused() {
    let map = |len, flags, fd| sys::mmap(0, len, RW, flags, fd);
    assert_eq!(map(0, PRIVATE, -1), Err(libc::EINVAL));
    assert_eq!(map(1 << 60, PRIVATE, -1), Err(libc::ENOMEM));
    assert_eq!(map(usize::MAX - 8, PRIVATE, -1), Err(libc::ENOMEM));
    assert_eq!(map(MIB, libc::MAP_ANONYMOUS, -1), Err(libc::EINVAL));
    assert_eq!(map(MIB, libc::MAP_PRIVATE, -1), Err(libc::EBADF));
    let block = Block::filled(MIB, 1);
    assert_eq!(sys::munmap(block.at + 8, PAGE), Err(libc::EINVAL));
    assert_eq!(sys::munmap(block.at, 0), Err(libc::EINVAL));
    assert_eq!(sys::mprotect(block.at + 8, PAGE, RW), Err(libc::EINVAL));
    let remap = |at, len, new_len, flags| sys::mremap(at, len, new_len, flags, 0);
    let moving = libc::MREMAP_MAYMOVE;
    assert_eq!(
        remap(block.at + 8, PAGE, 2 * PAGE, moving),
        Err(libc::EINVAL)
    );
    assert_eq!(remap(block.at, MIB, 0, moving), Err(libc::EINVAL));
    assert_eq!(remap(block.at, MIB, MIB, 1 << 20), Err(libc::EINVAL));
    let no_replace = PRIVATE | libc::MAP_FIXED_NOREPLACE;
    let said = sys::mmap(block.at + PAGE, MIB, RW, no_replace, -1);
    assert_eq!(said, Err(libc::EEXIST));
    block.check(0..MIB, 1);
}

fn unmap_parts() {
    let block = Block::filled(2 * MIB, 5);
    press();
    let holes = [
        0..64 * KIB,
        MIB..MIB + 3 * PAGE,
        2 * MIB - 128 * KIB..2 * MIB,
    ];
    for hole in &holes {
        sys::munmap(block.at + hole.start, hole.len()).expect("unmapped");
        assert!(sys::is_gone(block.at + hole.start));
        assert!(sys::is_gone(block.at + hole.end - 8));
    }
    block.check(64 * KIB..MIB, 5);
    block.check(MIB + 3 * PAGE..2 * MIB - 128 * KIB, 5);
    // What comes new lies in the holes or elsewhere, holds zeros and is nobody else's.
    let new: Vec<Block> = (0..16).map(|_| Block::map(128 * KIB)).collect();
    for (seed, new) in new.iter().enumerate() {
        new.zero(0..new.len);
        new.fill(0..new.len, seed as u64);
    }
    block.check(64 * KIB..MIB, 5);
    block.check(MIB + 3 * PAGE..2 * MIB - 128 * KIB, 5);
    for (seed, new) in new.into_iter().enumerate() {
        new.check(0..new.len, seed as u64);
        new.unmap();
    }
    // Over all, holes too.
    sys::munmap(block.at + 64 * KIB, 2 * MIB - 192 * KIB).expect("unmapped");
    assert!(sys::is_gone(block.at + MIB - 8));
}

/// One call over the end of a block and the beginning of the next.
fn unmap_across() {
    let mut blocks: Vec<Block> = (0..6).map(|_| Block::map(256 * KIB)).collect();
    blocks.sort_by_key(|block| block.at);
    for (seed, block) in blocks.iter().enumerate() {
        block.fill(0..block.len, seed as u64);
    }
    press();
    let half = 128 * KIB;
    for (a, pair) in blocks.windows(2).enumerate() {
        let [first, second] = [pair[0], pair[1]];
        let is_whole = a == 0 || blocks[a - 1].at + 2 * half < first.at;
        if first.at + first.len == second.at {
            sys::munmap(first.at + half, 2 * half).expect("unmapped across");
            assert!(sys::is_gone(first.at + half) && sys::is_gone(second.at));
            second.check(half..2 * half, a as u64 + 1);
        }
        if is_whole {
            first.check(0..half, a as u64);
        }
    }
}

fn unmap_again() {
    for round in 0..100 {
        let block = Block::map(512 * KIB);
        block.zero(0..block.len);
        block.fill(0..block.len, round);
        block.check(0..block.len, round);
        block.unmap();
        assert!(sys::is_gone(block.at));
        // It is not there: not an error.
        assert_eq!(sys::munmap(block.at, block.len), Ok(()));
    }
}

fn remap(block: Block, new_len: usize, flags: i32, to: usize) -> Block {
    let at = sys::mremap(block.at, block.len, new_len, flags, to);
    let at = at.unwrap_or_else(|why| panic!("mremap of {block:x?} to {new_len}: errno {why}"));
    Block { at, len: new_len }
}

fn remap_grow() {
    let mut block = Block::filled(256 * KIB, 9);
    let mut known = block.len;
    for len in [MIB, 3 * MIB + PAGE, 8 * MIB, 16 * MIB] {
        press();
        let old = block;
        block = remap(block, len, libc::MREMAP_MAYMOVE, 0);
        block.check(0..known, 9);
        block.zero(known..len);
        if block.at != old.at {
            assert!(sys::is_gone(old.at), "the old place is gone");
        }
        known = known.max(len.min(2 * MIB));
        block.fill(0..known, 9);
    }
    // Small ones become large, large ones small.
    let small = Block::filled(64 * KIB, 2);
    let large = remap(small, MIB, libc::MREMAP_MAYMOVE, 0);
    large.check(0..64 * KIB, 2);
    large.zero(64 * KIB..MIB);
    let small = remap(large, 32 * KIB, libc::MREMAP_MAYMOVE, 0);
    small.check(0..32 * KIB, 2);
    block.check(0..known, 9);
}

fn remap_in_place() {
    let block = Block::filled(MIB, 4);
    match sys::mremap(block.at, MIB, 2 * MIB, 0, 0) {
        Ok(at) => {
            assert_eq!(at, block.at);
            let block = Block { at, len: 2 * MIB };
            block.zero(MIB..2 * MIB);
            block.fill(MIB..2 * MIB, 4);
            press();
            block.check(0..2 * MIB, 4);
        }
        Err(why) => {
            assert_eq!(why, libc::ENOMEM);
            block.check(0..MIB, 4);
        }
    }
    // There is something behind it.
    let block = Block::filled(2 * MIB, 6);
    let said = sys::mremap(block.at, MIB, MIB + PAGE, 0, 0);
    assert_eq!(said, Err(libc::ENOMEM));
    block.check(0..2 * MIB, 6);
}

fn remap_shrink() {
    let block = Block::filled(2 * MIB, 8);
    press();
    let block = remap(block, 512 * KIB, 0, 0);
    assert!(sys::is_gone(block.at + 512 * KIB));
    block.check(0..512 * KIB, 8);
    // What was cut off does not come back.
    let block = remap(block, 2 * MIB, libc::MREMAP_MAYMOVE, 0);
    block.check(0..512 * KIB, 8);
    block.zero(512 * KIB..2 * MIB);
    // As long as before.
    let same = remap(block, 2 * MIB, 0, 0);
    assert_eq!(same.at, block.at);
}

/// The middle of a block moves away from it.
fn remap_part() {
    let block = Block::filled(2 * MIB, 12);
    press();
    let at = sys::mremap(
        block.at + MIB,
        256 * KIB,
        512 * KIB,
        libc::MREMAP_MAYMOVE,
        0,
    )
    .expect("moved");
    for place in (0..256 * KIB).step_by(8) {
        let value = word(at + place).load(Relaxed);
        assert_eq!(value, crate::memory::stamp(12, MIB + place));
    }
    let moved = Block { at, len: 512 * KIB };
    moved.zero(256 * KIB..512 * KIB);
    assert!(sys::is_gone(block.at + MIB));
    block.check(0..MIB, 12);
    block.check(MIB + 256 * KIB..2 * MIB, 12);
}

fn remap_fixed() {
    let both = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // Onto another block, which is gone then.
    let (from, to) = (Block::filled(MIB, 1), Block::filled(2 * MIB, 2));
    press();
    let moved = remap(from, MIB, both, to.at + 512 * KIB);
    assert_eq!(moved.at, to.at + 512 * KIB);
    moved.check(0..MIB, 1);
    assert!(sys::is_gone(from.at));
    to.check(0..512 * KIB, 2);
    to.check(MIB + 512 * KIB..2 * MIB, 2);
    // To addresses that are nobody's, and larger.
    let place = sys::mmap(0, 8 * MIB, libc::PROT_NONE, PRIVATE, -1).expect("addresses");
    sys::munmap(place, 8 * MIB).expect("free addresses");
    let far = remap(moved, 4 * MIB, both, place);
    assert_eq!(far.at, place);
    far.check(0..MIB, 1);
    far.zero(MIB..4 * MIB);
    far.fill(0..4 * MIB, 3);
    press();
    far.check(0..4 * MIB, 3);
    // And back, smaller.
    let back = remap(far, MIB, both, to.at);
    back.check(0..MIB, 3);
    assert!(sys::is_gone(far.at) && sys::is_gone(far.at + 3 * MIB));
    to.check(MIB + 512 * KIB..2 * MIB, 2);
    // Onto itself is refused.
    let said = sys::mremap(back.at, MIB, MIB, both, back.at + PAGE);
    assert_eq!(said, Err(libc::EINVAL));
    back.check(0..MIB, 3);
}

fn remap_dont_unmap() {
    let block = Block::filled(MIB, 21);
    press();
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    let at = match sys::mremap(block.at, MIB, MIB, flags, 0) {
        Ok(at) => at,
        // Before Linux 5.7, and where an engine cannot: it is said, and nothing has changed.
        Err(why) => {
            assert_eq!(why, libc::EINVAL);
            return block.check(0..MIB, 21);
        }
    };
    let moved = Block { at, len: MIB };
    moved.check(0..MIB, 21);
    block.zero(0..MIB);
    block.fill(0..MIB, 22);
    moved.fill(0..MIB, 23);
    press();
    block.check(0..MIB, 22);
    moved.check(0..MIB, 23);
}

const FIXED: i32 = PRIVATE | libc::MAP_FIXED;

fn fixed_anonymous() {
    let block = Block::filled(2 * MIB, 31);
    press();
    for (len, prot) in [(16 * KIB, RW), (512 * KIB, RW), (PAGE, libc::PROT_READ)] {
        let at = sys::mmap(block.at + MIB, len, prot, FIXED, -1).expect("mapped there");
        assert_eq!(at, block.at + MIB);
        let new = Block { at, len };
        new.zero(0..len);
        if prot == RW {
            new.fill(0..len, 32);
            press();
            new.check(0..len, 32);
        }
        block.check(0..MIB, 31);
        block.check(MIB + 512 * KIB..2 * MIB, 31);
    }
    block.unmap();
    assert!(sys::is_gone(block.at + MIB) && sys::is_gone(block.at));
}

fn fixed_file() {
    let mut file = tempfile();
    let held: Vec<u8> = (0..64 * KIB).map(|i| (i % 251) as u8).collect();
    file.write_all(&held).expect("written");
    let block = Block::filled(MIB, 41);
    press();
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
    let at = block.at + 512 * KIB;
    let said = sys::mmap(at, 64 * KIB, RW, flags, file.as_raw_fd());
    assert_eq!(said, Ok(at));
    for place in (0..64 * KIB).step_by(8) {
        let bytes = word(at + place).load(Relaxed).to_le_bytes();
        assert_eq!(bytes, held[place..place + 8]);
    }
    block.check(0..512 * KIB, 41);
    block.check(576 * KIB..MIB, 41);
    // Part of it and part of what is around it.
    sys::munmap(at - 32 * KIB, 64 * KIB).expect("unmapped");
    assert!(sys::is_gone(at - 8) && sys::is_gone(at));
    assert!(sys::can_read(at + 32 * KIB));
    block.check(0..480 * KIB, 41);
    block.unmap();
}

/// A segment of shared memory, attached over a part.
fn fixed_segment() {
    const LEN: usize = 64 * KIB;
    // SAFETY: the call takes numbers only.
    let segment = unsafe { libc::shmget(libc::IPC_PRIVATE, LEN - 8, 0o600) };
    if segment == -1 {
        return eprintln!("skipped: no segments here: errno {}", sys::errno());
    }
    let attach = |at: usize, flags: i32| {
        // SAFETY: what was there is given up.
        let at = unsafe { libc::shmat(segment, std::ptr::with_exposed_provenance(at), flags) };
        match at.expose_provenance() {
            usize::MAX => Err(sys::errno()),
            at => Ok(at),
        }
    };
    let attached = || {
        // SAFETY: zeros are filled by the call.
        unsafe {
            let mut about = std::mem::zeroed::<libc::shmid_ds>();
            let said = libc::shmctl(segment, libc::IPC_STAT, &raw mut about);
            (said, about.shm_nattch)
        }
    };
    let block = Block::filled(2 * MIB, 61);
    press();
    // Not unless it is asked for, and not anywhere.
    assert_eq!(attach(block.at + MIB, 0), Err(libc::EINVAL));
    let odd = block.at + MIB + 8;
    assert_eq!(attach(odd, libc::SHM_REMAP), Err(libc::EINVAL));
    block.check(0..block.len, 61);
    let at = attach(odd, libc::SHM_REMAP | libc::SHM_RND);
    assert_eq!(at, Ok(block.at + MIB));
    let other = attach(0, 0).expect("attached");
    // It goes with whoever has it.
    // SAFETY: it stays where it is attached.
    unsafe { libc::shmctl(segment, libc::IPC_RMID, std::ptr::null_mut()) };
    let own = Block {
        at: block.at + MIB,
        len: LEN,
    };
    own.zero(0..LEN);
    own.fill(0..LEN, 62);
    press();
    Block {
        at: other,
        len: LEN,
    }
    .check(0..LEN, 62);
    block.check(0..MIB, 61);
    block.check(MIB + LEN..2 * MIB, 61);
    assert_eq!(attached(), (0, 2));
    block.unmap();
    assert_eq!(attached(), (0, 1), "unmapped with the rest");
    assert!(sys::is_gone(own.at));
    let new = Block::map(2 * MIB);
    new.zero(0..new.len);
}

/// As allocators do it: addresses first, memory in them later.
fn fixed_reserve() {
    let len = 8 * MIB;
    let at = sys::mmap(0, len, libc::PROT_NONE, PRIVATE, -1).expect("addresses");
    let block = Block { at, len };
    for part in 0..8 {
        let at = at + part * MIB;
        match part % 2 {
            0 => sys::mprotect(at, MIB, RW).expect("memory"),
            _ => drop(sys::mmap(at, MIB, RW, FIXED, -1).expect("memory")),
        }
        block.fill(part * MIB..(part + 1) * MIB, 51);
    }
    press();
    block.check(0..len, 51);
    // Given up, and taken again.
    sys::mmap(at + MIB, MIB, libc::PROT_NONE, FIXED, -1).expect("given up");
    assert!(sys::is_gone(at + MIB));
    sys::mprotect(at + MIB, MIB, RW).expect("taken again");
    block.zero(MIB..2 * MIB);
    block.check(2 * MIB..len, 51);
    block.unmap();
}

/// More blocks than one would write down by hand, freed in another order.
fn many_maps() {
    let mut blocks: Vec<(usize, Block)> = (0..600)
        .map(|seed| (seed, Block::map(128 * KIB + seed % 5 * PAGE)))
        .collect();
    for (seed, block) in &blocks {
        block.fill(0..PAGE, *seed as u64);
        block.fill(block.len - PAGE..block.len, *seed as u64);
    }
    fastrand::Rng::with_seed(3).shuffle(&mut blocks);
    for (seed, block) in blocks {
        block.check(0..PAGE, seed as u64);
        block.check(block.len - PAGE..block.len, seed as u64);
        block.zero(PAGE..block.len - PAGE);
        block.unmap();
    }
}

/// A file without a name, in the working directory.
pub(crate) fn tempfile() -> File {
    tempfile::tempfile_in(".").expect("a file")
}
