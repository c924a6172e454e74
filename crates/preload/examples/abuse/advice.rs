//! madvise, mlock and what they promise about contents.
//!
//! What it never does: ask when memory is given back; only what it holds.

use crate::Case;
use crate::memory::{Block, KIB, MIB, PAGE, press, stamp, word};
use crate::sys;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

pub(crate) const CASES: &[Case] = &[
    ("advice-dont-need", dont_need),
    ("advice-free", free),
    ("advice-keeps", keeps),
    ("advice-populate", populate),
    ("advice-fork", across_forks),
    ("advice-refused", refused),
    ("advice-posix", posix),
    ("advice-process", process),
    ("locked", locked),
    ("locked-all", locked_all),
];

fn advise(block: Block, range: std::ops::Range<usize>, advice: i32) {
    let said = sys::madvise(block.at + range.start, range.len(), advice);
    said.unwrap_or_else(|why| panic!("madvise {advice} of {range:x?}: errno {why}"));
}

fn dont_need() {
    let block = Block::filled(2 * MIB, 1);
    press();
    advise(block, MIB..MIB + 5 * PAGE, libc::MADV_DONTNEED);
    block.zero(MIB..MIB + 5 * PAGE);
    block.check(0..MIB, 1);
    block.check(MIB + 5 * PAGE..2 * MIB, 1);
    // A length that is no whole page counts as one.
    advise(block, 0..PAGE + 1, libc::MADV_DONTNEED);
    block.zero(0..2 * PAGE);
    block.check(2 * PAGE..MIB, 1);
    // What is written afterwards stays, through memory and device.
    for round in 2..6 {
        advise(block, 0..2 * MIB, libc::MADV_DONTNEED);
        block.zero(0..PAGE);
        block.fill(0..2 * MIB, round);
        press();
        block.check(0..2 * MIB, round);
    }
    advise(block, 0..2 * MIB, libc::MADV_DONTNEED);
    block.zero(0..2 * MIB);
}

fn free() {
    let block = Block::filled(MIB, 11);
    advise(block, 0..512 * KIB, libc::MADV_FREE);
    // Written again: that stays. The others are as they were, or zeros, page by page.
    for page in (0..128).step_by(2) {
        block.fill(page * PAGE..(page + 1) * PAGE, 12);
    }
    press();
    for page in 0..128 {
        let range = page * PAGE..(page + 1) * PAGE;
        match page % 2 {
            0 => block.check(range, 12),
            _ if word(block.at + range.start).load(Relaxed) == 0 => block.zero(range),
            _ => block.check(range, 11),
        }
    }
    block.check(512 * KIB..MIB, 11);
}

fn keeps() {
    let block = Block::filled(MIB, 21);
    let kinds = [
        libc::MADV_NORMAL,
        libc::MADV_RANDOM,
        libc::MADV_SEQUENTIAL,
        libc::MADV_WILLNEED,
        libc::MADV_HUGEPAGE,
        libc::MADV_NOHUGEPAGE,
        libc::MADV_DONTDUMP,
        libc::MADV_DODUMP,
        libc::MADV_COLD,
        libc::MADV_PAGEOUT,
        libc::MADV_MERGEABLE,
        libc::MADV_UNMERGEABLE,
        libc::MADV_COLLAPSE,
    ];
    for kind in kinds {
        press();
        // A kernel may be built without huge or merged pages.
        match sys::madvise(block.at, MIB, kind) {
            Ok(()) | Err(libc::EINVAL | libc::EAGAIN | libc::ENOMEM | libc::EBUSY) => {}
            said => panic!("madvise {kind}: {said:?}"),
        }
        block.check(0..MIB, 21);
    }
    // Huge pages, over all of it and more than once.
    let large = Block::map(8 * MIB);
    let _ = sys::madvise(large.at, large.len, libc::MADV_HUGEPAGE);
    large.fill(0..large.len, 22);
    let _ = sys::madvise(large.at, large.len, libc::MADV_COLLAPSE);
    press();
    large.check(0..large.len, 22);
}

fn populate() {
    let block = Block::filled(MIB, 31);
    press();
    for kind in [libc::MADV_POPULATE_READ, libc::MADV_POPULATE_WRITE] {
        match sys::madvise(block.at, MIB, kind) {
            Ok(()) | Err(libc::EINVAL) => {}
            said => panic!("madvise {kind}: {said:?}"),
        }
        block.check(0..MIB, 31);
    }
}

fn across_forks() {
    let wiped = Block::filled(512 * KIB, 41);
    let kept = Block::filled(512 * KIB, 42);
    let gone = Block::filled(512 * KIB, 43);
    let said = sys::madvise(wiped.at, 256 * KIB, libc::MADV_WIPEONFORK);
    let is_refused = sys::is_paged() && said == Err(libc::EINVAL);
    assert!(is_refused || said == Ok(()), "{said:?}");
    if !is_refused {
        advise(kept, 0..512 * KIB, libc::MADV_WIPEONFORK);
    }
    advise(kept, 0..512 * KIB, libc::MADV_KEEPONFORK);
    advise(gone, 0..256 * KIB, libc::MADV_DONTFORK);
    press();
    let child = sys::fork(|| {
        match is_refused {
            true => wiped.check(0..256 * KIB, 41),
            false => wiped.zero(0..256 * KIB),
        }
        wiped.check(256 * KIB..512 * KIB, 41);
        kept.check(0..512 * KIB, 42);
        match sys::can_read(gone.at) {
            // The library's children have it all the same.
            true => assert!(sys::is_paged() && gone.wrong(0..256 * KIB, 43).is_none()),
            false => assert!(!sys::can_read(gone.at + 256 * KIB - 8)),
        }
        gone.check(256 * KIB..512 * KIB, 43);
        wiped.fill(0..512 * KIB, 44);
        0
    });
    sys::passed(child);
    wiped.check(0..512 * KIB, 41);
    gone.check(0..512 * KIB, 43);
    advise(gone, 0..256 * KIB, libc::MADV_DOFORK);
    sys::passed(sys::fork(|| {
        gone.check(0..512 * KIB, 43);
        0
    }));
}

fn refused() {
    let block = Block::filled(MIB, 51);
    let said = sys::madvise(block.at + 8, PAGE, libc::MADV_DONTNEED);
    assert_eq!(said, Err(libc::EINVAL));
    assert_eq!(sys::madvise(block.at, PAGE, 12_345), Err(libc::EINVAL));
    // Over a hole: the hole is told; what is there is done all the same, or with the library not.
    sys::munmap(block.at + 512 * KIB, PAGE).expect("a hole");
    let said = sys::madvise(block.at + 256 * KIB, 512 * KIB, libc::MADV_DONTNEED);
    assert_eq!(said, Err(libc::ENOMEM));
    block.check(0..256 * KIB, 51);
    for part in [256 * KIB..512 * KIB, 512 * KIB + PAGE..768 * KIB] {
        match sys::is_paged() && word(block.at + part.start).load(Relaxed) != 0 {
            true => block.check(part, 51),
            false => block.zero(part),
        }
    }
    block.check(768 * KIB..MIB, 51);
}

fn posix() {
    let block = Block::filled(MIB, 81);
    press();
    // SAFETY: what the memory holds does not change.
    let advise = |at: usize, len: usize, advice: i32| unsafe {
        libc::posix_madvise(ptr::with_exposed_provenance_mut(at), len, advice)
    };
    for kind in libc::POSIX_MADV_NORMAL..=libc::POSIX_MADV_DONTNEED {
        assert_eq!(advise(block.at, MIB, kind), 0);
        press();
        block.check(0..MIB, 81);
    }
    let kind = libc::POSIX_MADV_WILLNEED;
    assert_eq!(advise(block.at + 8, PAGE, kind), libc::EINVAL);
    // Private memory has no part that could be taken out of its file.
    assert_eq!(advise(block.at, MIB, libc::MADV_REMOVE), libc::EINVAL);
    block.check(0..MIB, 81);
    sys::munmap(block.at + 512 * KIB, PAGE).expect("a hole");
    assert_eq!(advise(block.at, MIB, kind), libc::ENOMEM);
    block.check(0..512 * KIB, 81);
    block.check(512 * KIB + PAGE..MIB, 81);
}

/// Advice of a process to itself, by the call's name and by its number.
fn process() {
    let block = Block::filled(2 * MIB, 91);
    let part = |place: usize, len: usize| libc::iovec {
        iov_base: ptr::with_exposed_provenance_mut(block.at + place),
        iov_len: len,
    };
    let parts = [part(0, 256 * KIB), part(MIB, 64 * KIB)];
    let open = |pid: u32| {
        // SAFETY: the call takes numbers only.
        let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        assert!(process >= 0, "errno {}", sys::errno());
        process as i32
    };
    let own = open(std::process::id());
    for by in advisers() {
        block.fill(0..block.len, 91);
        press();
        match by(own, &parts, libc::MADV_COLD) {
            Err(libc::ENOSYS | libc::EPERM) => return eprintln!("skipped: no such call here"),
            said => assert_eq!(said, Ok(320 * KIB)),
        }
        block.check(0..block.len, 91);
        match by(own, &parts, libc::MADV_DONTNEED) {
            // Before Linux 6.13: then nothing has changed.
            Err(libc::EINVAL) => {
                block.check(0..block.len, 91);
                return eprintln!("skipped: this Linux takes no such advice");
            }
            said => assert_eq!(said, Ok(320 * KIB)),
        }
        for part in [0..256 * KIB, MIB..MIB + 64 * KIB] {
            block.zero(part);
        }
        block.check(256 * KIB..MIB, 91);
        block.check(MIB + 64 * KIB..2 * MIB, 91);
        // As far as it goes.
        let odd = [part(512 * KIB, PAGE), part(768 * KIB + 8, PAGE)];
        assert_eq!(by(own, &odd, libc::MADV_DONTNEED), Ok(PAGE));
        block.zero(512 * KIB..512 * KIB + PAGE);
        block.check(768 * KIB..MIB, 91);
        // Another's memory is not this one's.
        let (from, to) = sys::pipe();
        let child = sys::fork(|| {
            sys::close(to);
            let mut byte = 0u8;
            sys::read(from, (&raw mut byte).expose_provenance(), 1).expect("the end");
            0
        });
        sys::close(from);
        let other = open(child as u32);
        let said = by(other, &[part(MIB + 512 * KIB, PAGE)], libc::MADV_DONTNEED);
        assert!(matches!(said, Err(libc::EINVAL | libc::EPERM)), "{said:?}");
        block.check(MIB + 512 * KIB..2 * MIB, 91);
        sys::close(to);
        sys::passed(child);
    }
}

/// What gives advice to a process.
type Adviser = Box<dyn Fn(i32, &[libc::iovec], i32) -> sys::Said<usize>>;

fn advisers() -> Vec<Adviser> {
    // SAFETY: such is its type.
    type Named = unsafe extern "C" fn(i32, *const libc::iovec, usize, i32, u32) -> isize;
    let numbered: Adviser = Box::new(|process, parts, advice| {
        let (number, count) = (libc::SYS_process_madvise, parts.len());
        // SAFETY: so many parts are there; the caller knows what they hold afterwards.
        let said = unsafe { libc::syscall(number, process, parts.as_ptr(), count, advice, 0) };
        sys::counted(said as isize)
    });
    // SAFETY: the name ends.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"process_madvise".as_ptr()) };
    if at.is_null() {
        return vec![numbered];
    }
    // SAFETY: that is its type.
    let named = unsafe { std::mem::transmute::<*mut libc::c_void, Named>(at) };
    let named: Adviser = Box::new(move |process, parts, advice| {
        // SAFETY: as above.
        sys::counted(unsafe { named(process, parts.as_ptr(), parts.len(), advice, 0) })
    });
    vec![numbered, named]
}

fn locked() {
    let block = Block::filled(512 * KIB, 61);
    press();
    // A machine may allow none.
    if let Err(why) = sys::mlock(block.at, 64 * KIB) {
        assert!(why == libc::ENOMEM || why == libc::EPERM, "errno {why}");
        return;
    }
    press();
    block.check(0..512 * KIB, 61);
    let said = sys::mincore(block.at, 64 * KIB).expect("mapped");
    assert!(
        said.iter().all(|page| page & 1 == 1),
        "locked and not there"
    );
    block.fill(0..64 * KIB, 62);
    // Twice is once.
    sys::mlock(block.at, 32 * KIB).expect("locked again");
    sys::munlock(block.at, 64 * KIB).expect("unlocked");
    press();
    block.check(0..64 * KIB, 62);
    block.check(64 * KIB..512 * KIB, 61);
    // Freed while it is locked.
    sys::mlock(block.at, 64 * KIB).expect("locked");
    block.unmap();
    let again = Block::map(512 * KIB);
    again.zero(0..512 * KIB);
    again.fill(0..512 * KIB, 63);
    press();
    again.check(0..512 * KIB, 63);
    assert_eq!(word(again.at).load(Relaxed), stamp(63, 0));
}

fn locked_all() {
    let block = Block::filled(MIB, 71);
    let said = sys::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE);
    match sys::is_paged() {
        // All of it in memory is what there is no room for.
        true => assert_eq!(said, Err(libc::ENOMEM)),
        false => assert!(matches!(said, Ok(()) | Err(libc::ENOMEM | libc::EPERM))),
    }
    block.check(0..MIB, 71);
    Block::filled(8 * MIB, 72).check(0..8 * MIB, 72);
}
