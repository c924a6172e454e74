//! Ultraswap section 4.2 on a region: an array is written once and read once, in less memory than
//! it has; by random pages and in their order.
//!
//! `region --dir DIR` has the device be a file without a name there; on tmpfs (`/dev/shm`) that is
//! a copy to DRAM. Prints a line of JSON for each pass: how long the first touch of each page took,
//! faults, and CPU time of all threads. Real figures, of this process and machine.
//!
//! What it never does: leave the file.

#[path = "shared/pages.rs"]
mod pages;

use clap::Parser;
use nyx_policy::paging::pager::{Counts, Prefetch};
use nyx_policy::paging::pool::Rule;
use nyx_swap::region::{Device, Region, Shape};
use pages::fill;
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

const PAGE_BYTES: usize = 4096;

/// An array in less memory than it has.
#[derive(Parser)]
struct Args {
    /// MiB of the array.
    #[arg(long, default_value_t = 100)]
    mib: usize,
    /// MiB of it in memory.
    #[arg(long, default_value_t = 50)]
    limit_mib: usize,
    /// Where the device's file is.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Leave all reclaim to the faults.
    #[arg(long)]
    no_reclaimer: bool,
    /// Read nothing ahead.
    #[arg(long)]
    no_prefetch: bool,
}

#[derive(serde::Serialize)]
struct Pass {
    kind: &'static str,
    order: &'static str,
    pass: &'static str,
    pages: usize,
    touch_ns_p50: u64,
    touch_ns_p90: u64,
    touch_ns_p99: u64,
    touch_ns_p999: u64,
    handler_ns_p50: Option<u64>,
    handler_ns_p99: Option<u64>,
    major_faults: u64,
    minor_faults: u64,
    ahead: u64,
    ahead_hits: u64,
    inline_reclaims: u64,
    writes: u64,
    run_ms: f64,
    /// CPU time of all threads for each fault, less what the pass computes with each page.
    cpu_us_per_fault: f64,
    /// The same of the thread that touches.
    own_cpu_us_per_fault: f64,
    resident_mib: u64,
    wrong: usize,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let mut shape = Shape::new((args.mib << 20) as u64, (args.limit_mib << 20) as u64);
    if args.no_reclaimer {
        shape.pool = Rule::Off;
    }
    if args.no_prefetch {
        shape.prefetch = Prefetch::Off;
    }
    for order in ["random", "sequential"] {
        let device = Device::temporary(&args.dir, shape.len_bytes)?;
        let region = Region::with(shape, &device)?;
        let mut pages: Vec<usize> = (0..args.mib * (1 << 20) / PAGE_BYTES).collect();
        let mut rng = fastrand::Rng::with_seed(42);
        for pass in ["write", "read"] {
            if order == "random" {
                rng.shuffle(&mut pages);
            }
            let pass = Run::new(&region).pass(order, pass, &pages);
            println!("{}", serde_json::to_string(&pass)?);
            assert_eq!(pass.wrong, 0, "pages are not what was written");
        }
    }
    Ok(())
}

/// How things stand where a pass begins.
struct Run<'a> {
    region: &'a Region,
    counts: Counts,
    faults: nyx_base::Latencies,
    began: Instant,
    cpu_ns: u64,
    own_cpu_ns: u64,
}

fn cpu_ns(of: ClockId) -> u64 {
    let time = clock_gettime(of);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl<'a> Run<'a> {
    fn new(region: &'a Region) -> Run<'a> {
        let figures = region.figures();
        Run {
            region,
            counts: figures.counts,
            faults: figures.faults,
            began: Instant::now(),
            cpu_ns: cpu_ns(ClockId::ProcessCPUTime),
            own_cpu_ns: own_cpu_ns(),
        }
    }

    fn pass(self, order: &'static str, pass: &'static str, pages: &[usize]) -> Pass {
        let mut times = Vec::with_capacity(pages.len());
        let (mut wrong, mut expected) = (0, [0u8; PAGE_BYTES]);
        for &page in pages {
            fill(&mut expected, page as u64);
            let at = self.region.as_ptr().wrapping_add(page * PAGE_BYTES);
            let touch = Instant::now();
            match pass {
                // SAFETY: the page lies in the region, which lives, and no other thread uses it.
                "write" => unsafe { at.write_volatile(1) },
                // SAFETY: as above.
                _ => drop(black_box(unsafe { at.read_volatile() })),
            }
            times.push(touch.elapsed().as_nanos() as u64);
            // SAFETY: as above.
            let bytes = unsafe { std::slice::from_raw_parts_mut(at, PAGE_BYTES) };
            match pass {
                "write" => bytes.copy_from_slice(&expected),
                _ => wrong += usize::from(bytes != expected),
            }
        }
        self.told(order, pass, times, wrong)
    }

    fn told(
        self,
        order: &'static str,
        pass: &'static str,
        mut times: Vec<u64>,
        wrong: usize,
    ) -> Pass {
        let run_ms = self.began.elapsed().as_secs_f64() * 1e3;
        let cpu_ns = cpu_ns(ClockId::ProcessCPUTime) - self.cpu_ns;
        let own_cpu_ns = own_cpu_ns() - self.own_cpu_ns;
        let (now, before) = (self.region.figures(), self.counts);
        let spent_ns = computed_ns(times.len());
        let per_fault = |ns: u64| {
            let faults = now.faults.since(&self.faults).count().max(1);
            ns.saturating_sub(spent_ns) as f64 / 1e3 / faults as f64
        };
        let faults = now.faults.since(&self.faults);
        let handler = |quantile| faults.quantile_ns(quantile).map(|ns| ns as u64);
        times.sort_unstable();
        let at = |permille: usize| times[(times.len() * permille / 1000).min(times.len() - 1)];
        let counts = now.counts;
        Pass {
            kind: "real",
            order,
            pass,
            pages: times.len(),
            touch_ns_p50: at(500),
            touch_ns_p90: at(900),
            touch_ns_p99: at(990),
            touch_ns_p999: at(999),
            handler_ns_p50: handler(0.5),
            handler_ns_p99: handler(0.99),
            major_faults: counts.major_faults - before.major_faults,
            minor_faults: counts.minor_faults - before.minor_faults,
            ahead: counts.ahead - before.ahead,
            ahead_hits: counts.ahead_hits - before.ahead_hits,
            inline_reclaims: counts.inline_reclaims - before.inline_reclaims,
            writes: counts.writes - before.writes,
            run_ms,
            cpu_us_per_fault: per_fault(cpu_ns),
            own_cpu_us_per_fault: per_fault(own_cpu_ns),
            resident_mib: self.region.resident_bytes().unwrap_or_default() >> 20,
            wrong,
        }
    }
}

fn own_cpu_ns() -> u64 {
    cpu_ns(ClockId::ThreadCPUTime)
}

/// CPU time of what a pass computes with so many pages, on ordinary memory.
fn computed_ns(pages: usize) -> u64 {
    let (mut from, mut to) = ([0u8; PAGE_BYTES], vec![0u8; PAGE_BYTES]);
    let before = own_cpu_ns();
    for page in 0..pages {
        fill(&mut from, page as u64);
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
    }
    own_cpu_ns() - before
}
