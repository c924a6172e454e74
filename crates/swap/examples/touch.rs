//! Ultraswap section 4.2: an array is written once and read once, in less memory than it has.
//!
//! `touch MIB [sequential|random]` prints a line of JSON: how long the first touch of each page
//! took, per pass, and what was not as it was written. Real figures, of this process.

#[path = "shared/pages.rs"]
mod pages;

use pages::fill;
use std::hint::black_box;
use std::time::Instant;

const PAGE_BYTES: usize = 4096;
/// A touch that takes longer waited, for a device or for memory.
const WAIT_NS: u64 = 20_000;

#[derive(serde::Serialize)]
struct Pass {
    pass: &'static str,
    pages: usize,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    max_ns: u64,
    mean_ns: u64,
    /// Touches that took longer than [`WAIT_NS`].
    waits: usize,
    run_ms: f64,
    wrong: usize,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let mib: usize = args.next().and_then(|mib| mib.parse().ok()).unwrap_or(100);
    let is_random = args.next().as_deref() == Some("random");
    let pages = mib * (1 << 20) / PAGE_BYTES;
    let mut rng = fastrand::Rng::with_seed(42);
    let mut order: Vec<usize> = (0..pages).collect();
    if is_random {
        rng.shuffle(&mut order);
    }
    // What is timed lies in memory before the limit is felt.
    let mut times = vec![1u64; pages];
    let mut array = vec![0u8; (pages + 1) * PAGE_BYTES];
    let ahead = array.as_ptr().align_offset(PAGE_BYTES);
    let array = &mut array[ahead..];

    let begin = Instant::now();
    for (time, &page) in times.iter_mut().zip(&order) {
        let bytes = &mut array[page * PAGE_BYTES..][..PAGE_BYTES];
        let touch = Instant::now();
        bytes[0] = black_box(1);
        *time = touch.elapsed().as_nanos() as u64;
        fill(bytes, page as u64);
    }
    print("write", begin, &mut times, 0);

    if is_random {
        rng.shuffle(&mut order);
    }
    let mut expected = [0u8; PAGE_BYTES];
    let mut wrong = 0;
    let begin = Instant::now();
    for (time, &page) in times.iter_mut().zip(&order) {
        let bytes = &array[page * PAGE_BYTES..][..PAGE_BYTES];
        let touch = Instant::now();
        black_box(bytes[0]);
        *time = touch.elapsed().as_nanos() as u64;
        fill(&mut expected, page as u64);
        wrong += usize::from(bytes != expected);
    }
    print("read", begin, &mut times, wrong);
    assert_eq!(wrong, 0, "pages are not what was written");
}

fn print(pass: &'static str, begin: Instant, times: &mut [u64], wrong: usize) {
    let run_ms = begin.elapsed().as_secs_f64() * 1e3;
    times.sort_unstable();
    let at = |permille: usize| times[(times.len() * permille / 1000).min(times.len() - 1)];
    let pass = Pass {
        pass,
        pages: times.len(),
        p50_ns: at(500),
        p90_ns: at(900),
        p99_ns: at(990),
        p999_ns: at(999),
        max_ns: at(1000),
        mean_ns: times.iter().sum::<u64>() / times.len() as u64,
        waits: times.iter().filter(|&&ns| ns > WAIT_NS).count(),
        run_ms,
        wrong,
    };
    println!(
        "{}",
        serde_json::to_string(&pass).expect("a pass can be written")
    );
}
