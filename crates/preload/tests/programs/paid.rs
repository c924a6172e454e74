//! A program whose device is somebody else's too: what its arena moves is paid for, and it computes
//! the same, however little it is granted.

use crate::rig::{self, MIB, Room, begin_with, built, can_page, dir, run};
use nyx_swap::region::{CREDIT_PS, Prices, Till};
use std::fs::File;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const ROOM: Option<Room> = Some(Room {
    limit: 2 * MIB,
    len: 1 << 30,
});
const PAGE_BYTES: u64 = 4096;
/// What is granted at once: a few requests.
const GRANT_PS: u64 = 10 * PAGE_PS;

/// Of a page, in picoseconds; each further one of a request takes half of that.
const PAGE_PS: u64 = 20_000_000;
const PRICES: Prices = Prices {
    read_ps: [PAGE_PS, PAGE_PS / 2],
    write_ps: [PAGE_PS, PAGE_PS / 2],
};

#[test]
fn what_an_arena_moves_is_paid_for_and_the_program_computes_the_same() {
    let name = "what_an_arena_moves_is_paid_for";
    if !can_page(name) {
        return;
    }
    let command = || {
        let mut command = Command::new(&built().abuse);
        command.arg("heap-sizes").stdin(Stdio::null());
        command
    };
    let plain = run(&mut command(), None).well(name);
    let own = dir();
    let till = Till::create(&own.path().join(rig::PURSE)).expect("a file");
    till.set_prices(&PRICES, 1);
    let stdout = File::create(own.path().join("stdout")).expect("a file");
    let going = begin_with(command().stdout(stdout), ROOM, own);
    let (is_over, mut granted_ps, mut least_ps) = (AtomicBool::new(false), 0, 0);
    let ended = std::thread::scope(|scope| {
        let ended = scope.spawn(|| {
            let ended = going.end();
            is_over.store(true, SeqCst);
            ended
        });
        while !is_over.load(SeqCst) {
            till.grant(Some(GRANT_PS));
            granted_ps += GRANT_PS as i64;
            till.wait(till.rung(), Duration::from_millis(1));
            least_ps = till.left_ps().min(least_ps);
        }
        ended.join().expect("it ends, or the test has failed")
    });
    let (ended, spent) = (ended.well(name), till.spent());
    let figures = ended.paged(name);
    assert!(plain.stdout == ended.stdout && plain.stderr == ended.stderr);
    // Figures are told a second apart: they may be behind.
    let read_pages = figures.major_faults + figures.ahead_pages;
    assert!(
        read_pages > 0 && spent.read_bytes >= read_pages * PAGE_BYTES,
        "{figures:?} {spent:?}"
    );
    assert!(spent.writes > 0 && spent.holds > 0, "{spent:?}");
    let pages = (spent.read_bytes + spent.written_bytes) / PAGE_BYTES;
    let requests = spent.reads + spent.writes;
    let price_ps = ((requests + pages) * PAGE_PS / 2) as i64;
    assert_eq!(till.left_ps(), granted_ps - price_ps);
    // Each of its queues may overdraw by a request of 32 pages.
    assert!(
        least_ps > -(CREDIT_PS + 20 * 33 * PAGE_PS as i64 / 2),
        "{least_ps}"
    );
}
