//! What the primitives cost on this machine: nanoseconds per copy by size and level, next to
//! `memcpy`, over a small working set (in cache) and a large one (random, from memory); and one
//! reading of the clock. Evidence: real.
//!
//! `cargo run --release -p nyx-media --example copies`

use nyx_base::Clock;
use nyx_media::prim::{CopyLevel, Prim};
use nyx_media::{Region, TscClock};
use std::hint::black_box;

const SIZES: [usize; 8] = [16, 64, 100, 128, 256, 512, 1024, 4096];
const SMALL_BYTES: usize = 16 << 10;
const LARGE_BYTES: usize = 256 << 20;

/// Every `STRIDE`-th offset, visited in an order that no prefetcher guesses.
fn offsets(span: usize, size: usize) -> impl Fn(usize) -> usize {
    let slots = span / size;
    move |i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) % slots * size
}

/// The median of several rounds, in nanoseconds per call.
fn ns_per_call(calls: usize, mut call: impl FnMut(usize)) -> f64 {
    let mut rounds: Vec<f64> = (0..9)
        .map(|_| {
            let start = std::time::Instant::now();
            (0..calls).for_each(&mut call);
            start.elapsed().as_nanos() as f64 / calls as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn row(name: &str, span: usize, calls: usize, mut copy: impl FnMut(usize, usize)) {
    print!("{name:<22}");
    for size in SIZES {
        let at = offsets(span, size);
        print!(
            "{:>8.1}",
            ns_per_call(calls, |i| copy(at(i), black_box(size)))
        );
    }
    println!();
}

fn table(region: &Region, span: usize, calls: usize) {
    let mut near = vec![1u8; 4096];
    let (base, near) = (region.base().as_ptr(), near.as_mut_ptr());
    print!("{:<22}", format!("{} KiB, ns", span >> 10));
    SIZES.iter().for_each(|size| print!("{size:>8}"));
    println!();
    row("(the loop alone)", span, calls, |at, size| {
        black_box((at, size));
    });
    row("memcpy out", span, calls, |at, size| {
        // SAFETY: `at + size` lies inside the region, `size` inside `near`; one thread.
        unsafe { std::ptr::copy_nonoverlapping(base.add(at), near, size) }
        black_box(near);
    });
    let best = Prim::detect();
    let levels = [CopyLevel::Sse2, CopyLevel::Avx2, CopyLevel::Avx512];
    for prim in levels.into_iter().filter_map(|level| best.with_copy(level)) {
        let name = format!("{:?}", prim.copy_level());
        row(&format!("{name} out"), span, calls, |at, size| {
            // SAFETY: as above.
            unsafe { prim.copy(near, base.add(at), size) }
        });
        row(&format!("{name} in, cached"), span, calls, |at, size| {
            // SAFETY: as above.
            unsafe { prim.copy(base.add(at), near, size) }
        });
        row(&format!("{name} in, nt+fence"), span, calls, |at, size| {
            // SAFETY: as above.
            unsafe { prim.copy_nt(base.add(at), near, size) }
        });
    }
    println!();
}

fn main() {
    let clock = TscClock::start();
    let now = ns_per_call(1_000_000, |_| {
        black_box(clock.now());
    });
    println!(
        "{}: {now:.1} ns a reading; best: {:?}\n",
        clock.describe(),
        Prim::detect()
    );
    let region = Region::reserve(LARGE_BYTES, true).expect("memory for the large working set");
    for at in (0..LARGE_BYTES).step_by(4096) {
        // SAFETY: inside the region; one thread.
        unsafe { region.base().as_ptr().add(at).write(1) }
    }
    table(&region, SMALL_BYTES, 1_000_000);
    table(&region, LARGE_BYTES, 100_000);
}
