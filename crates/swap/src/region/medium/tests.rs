//! A medium that pages: bytes against a model, its limit, others that have all of its memory, a
//! device that fails for a while and for good, and no userfaultfd.
//!
//! What it never does: pass where such a medium is to be had and does not do what it says.

use super::*;
use nyx_media::queue::{BlockOp, Refusals};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const BYTES: u64 = PAGE_BYTES as u64;
const PAGES: u64 = 64;
const LIMIT_PAGES: u64 = 16;

/// A file without a name for pages.
fn device() -> Device {
    let shared = Path::new("/dev/shm");
    let dir = match shared.is_dir() {
        true => shared.to_owned(),
        false => std::env::temp_dir(),
    };
    Device::temporary(&dir, PAGES * BYTES).expect("room for a device")
}

/// A medium of 64 pages less 100 bytes with 16 in memory; none where it cannot be had here.
fn made(name: &str, device: &Device) -> Option<Paged> {
    match Paged::new("far", PAGES * BYTES - 100, LIMIT_PAGES * BYTES, device) {
        Err(reason @ (RegionError::NoUserfaultfd { .. } | RegionError::NotSafe { .. })) => {
            eprintln!("skipped {name}: {reason}");
            None
        }
        medium => Some(medium.expect("made")),
    }
}

fn read(medium: &Paged, at: u64, len: usize) -> Vec<u8> {
    let mut into = vec![0; len];
    medium.read(&mut Front::default(), at, &mut into);
    into
}

fn write(medium: &Paged, at: u64, from: &[u8]) {
    medium.write(&mut Front::default(), at, from, Via::NonTemporal);
}

/// Each page is of its own number, so that most are on the device.
fn fill(medium: &Paged) {
    for page in 1..PAGES - 1 {
        write(medium, page * BYTES, &[page as u8; PAGE_BYTES]);
    }
}

#[test]
fn what_is_read_is_what_was_written_and_no_more_is_in_memory_than_may_be() {
    let Some(medium) = made("what_is_read_is_what_was_written", &device()) else {
        return;
    };
    let len = medium.len();
    assert_eq!(len, PAGES * BYTES - 100);
    let mut bytes = vec![0u8; len as usize];
    let mut rng = fastrand::Rng::with_seed(1);
    for step in 0..4_000 {
        let at = rng.usize(..bytes.len());
        let most = bytes.len() - at;
        // Some are of more than may be in memory.
        let wanted = if step % 16 == 0 { most } else { 5 * PAGE_BYTES };
        let piece = at..at + rng.usize(..=most.min(wanted));
        if rng.bool() {
            bytes[piece.clone()].fill_with(|| rng.u8(..));
            write(&medium, at as u64, &bytes[piece]);
        } else {
            let found = read(&medium, at as u64, piece.len());
            assert!(found == bytes[piece.clone()], "step {step}: {piece:?}");
        }
        let resident = medium.region.resident_bytes().expect("told");
        assert!(resident <= LIMIT_PAGES * BYTES, "step {step}: {resident}");
    }
    let mut told = Vec::new();
    medium.tell(&mut |name, value| told.push((name, value)));
    let figure = |name| told.iter().find(|one| one.0 == name).expect(name).1;
    assert_eq!(figure("memory_limit_bytes"), LIMIT_PAGES * BYTES);
    assert!(figure("memory_bytes") <= LIMIT_PAGES * BYTES);
    assert!(figure("major_faults") + figure("read_ahead_pages") > 1_000);
    assert!(figure("written_pages") > 1_000 && figure("paged_out_bytes") > 0);
    let (waits, half) = (figure("fault_waits"), figure("fault_wait_ns_p50"));
    assert!(waits > 500 && half > 0 && half <= figure("fault_wait_ns_p99"));
    assert_eq!((figure("failed_faults"), figure("refused_pages")), (0, 0));
}

#[test]
fn what_is_beyond_its_end_is_a_bug_of_the_caller() {
    let Some(medium) = made("what_is_beyond_its_end", &device()) else {
        return;
    };
    let end = medium.len();
    assert_eq!(read(&medium, end - 1, 1), [0]);
    for at in [end, u64::MAX] {
        let beyond = catch_unwind(AssertUnwindSafe(|| read(&medium, at, 1)));
        assert!(beyond.is_err(), "{at}");
    }
}

#[test]
fn threads_that_want_more_together_than_may_be_in_memory_take_turns() {
    let Some(medium) = made("threads_that_want_more_together", &device()) else {
        return;
    };
    fill(&medium);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let all = medium
            .region
            .fix(0..LIMIT_PAGES as usize * PAGE_BYTES)
            .expect("room");
        let waits = scope.spawn(|| {
            let found = read(&medium, 40 * BYTES, PAGE_BYTES);
            assert!(is_over.load(SeqCst), "all of memory was fixed until then");
            found
        });
        // That is no failure, however long it takes.
        std::thread::sleep(PATIENCE + 3 * AGAIN);
        is_over.store(true, SeqCst);
        drop(all);
        assert_eq!(waits.join().expect("it goes on"), [40; PAGE_BYTES]);
    });
}

/// A medium whose pages are on a device, and what has that refuse reads.
fn refusing(name: &str) -> Option<(Paged, Arc<AtomicBool>)> {
    let refuse = Arc::new(AtomicBool::new(false));
    let asked = refuse.clone();
    let rule = move |op, _| (op == BlockOp::Read && asked.load(SeqCst)).then_some(libc::EIO);
    let medium = made(name, &device().refusing(Refusals::new(rule)))?;
    fill(&medium);
    Some((medium, refuse))
}

#[test]
fn a_page_that_cannot_be_read_for_a_while_comes_late_and_is_right() {
    let Some((medium, refuse)) = refusing("a_page_that_cannot_be_read_for_a_while") else {
        return;
    };
    refuse.store(true, SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(PATIENCE / 4);
            refuse.store(false, SeqCst);
        });
        for page in 1..PAGES - 1 {
            let found = read(&medium, page * BYTES, PAGE_BYTES);
            assert_eq!(found, [page as u8; PAGE_BYTES]);
        }
    });
    assert!(medium.figures().counts.failed > 0, "it came to that");
}

#[test]
fn a_page_that_cannot_be_read_ends_whoever_wants_it_with_medium_byte_and_reason() {
    let Some((medium, refuse)) = refusing("a_page_that_cannot_be_read_ends_whoever_wants_it")
    else {
        return;
    };
    refuse.store(true, SeqCst);
    let began = Instant::now();
    let ended = catch_unwind(AssertUnwindSafe(|| {
        (1..PAGES - 1).for_each(|page| drop(read(&medium, page * BYTES + 7, 9)));
    }));
    let said = ended.expect_err("most pages are on the device");
    let said = said.downcast_ref::<String>().expect("words");
    assert!(began.elapsed() >= PATIENCE, "{said}");
    let words = "medium \"far\" cannot read 9 bytes at ";
    let (_, at) = said.split_once(words).expect(said);
    let at: u64 = at.split_once(',').expect(said).0.parse().expect(said);
    assert_eq!(at % BYTES, 7, "{said}");
    let page = at - 7;
    let reason = format!("the page at byte {page} cannot be had: the device cannot read it");
    assert!(said.contains(&reason), "{said}");
    // Others go on, and so does it once the device reads again.
    refuse.store(false, SeqCst);
    assert_eq!(read(&medium, at, 9), [(page / BYTES) as u8; 9]);
}

/// From now on this thread gets no userfaultfd: neither the call nor a request of its device's.
fn forbid_userfaultfd() {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const IS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const END: u32 = libc::BPF_RET | libc::BPF_K;
    const NEW: u32 = 0xaa00;
    let step = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let number = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    // The low half of the second argument, on machines that have it first.
    let request = std::mem::offset_of!(libc::seccomp_data, args) as u32 + 8;
    let no = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let program = [
        step(LOAD, 0, 0, number),
        step(IS, 4, 0, libc::SYS_userfaultfd as u32),
        step(IS, 0, 2, libc::SYS_ioctl as u32),
        step(LOAD, 0, 0, request),
        step(IS, 1, 0, NEW),
        step(END, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(END, 0, 0, no),
    ];
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the first call takes numbers only; of the second the kernel copies the program.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn without_a_userfaultfd_there_is_none_and_the_reason_is_told() {
    let told = std::thread::scope(|scope| {
        let alone = scope.spawn(|| {
            forbid_userfaultfd();
            Paged::new("far", PAGES * BYTES, LIMIT_PAGES * BYTES, &device())
                .expect_err("it is forbidden")
                .to_string()
        });
        alone.join().expect("it ends")
    });
    for words in ["no userfaultfd", "Operation not permitted", "seccomp"] {
        assert!(told.contains(words), "{told}");
    }
}
