//! What an index costs per operation on this machine's DRAM, one thread, CPU time: inserts of
//! distinct keys in random order, look-ups (each key found by the value of the one before, so that
//! they do not overlap), look-ups of 64 keys at once, look-ups of keys that are not there, scans of
//! 100, updates, and bytes per key. Beside `std`'s ordered map, in one run and by turns.
//!
//! What it never does: state a figure that it did not measure in this run. All are *real*; with
//! `--flush` cache lines are written back, which on DRAM costs what it does on persistent memory
//! less the device's own time.
//!
//! `cargo run --release -p nyx-index --example indexes [-- --keys 10000000 --rounds 3]`

#![allow(clippy::disallowed_methods, reason = "a driver: it measures real time")]

use clap::Parser;
use nyx_base::{Bytes, WorkerId};
use nyx_index::fast_fair::FastFair;
use nyx_index::fp_tree::FpTree;
use nyx_index::heap::Heap;
use nyx_index::hybrid::Hybrid;
use nyx_index::hybrid_plus::HybridPlus;
use nyx_index::map::DramMap;
use nyx_index::pm_hash::PmHash;
use nyx_index::skip_list::SkipList;
use nyx_index::{Eras, Index, Ordered, Persistent};
use nyx_media::Mapped;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Arc;

const WORKER: WorkerId = WorkerId(0);
const SCAN: usize = 100;
/// Keys that are looked up at once.
const BATCH: usize = 64;
const CHUNK_BYTES: u64 = 2 << 20;

/// Measures indexes, one thread, on DRAM.
#[derive(Parser)]
struct Args {
    /// Keys.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    keys: u64,
    /// Rounds by turns; medians are told.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Only indexes whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
}

/// What is measured, the same for all.
trait Candidate {
    fn insert(&mut self, key: u64, value: u64);
    fn get(&self, key: u64) -> Option<u64>;
    /// The values of keys, at once.
    fn get_many(&self, keys: &[u64], values: &mut [Option<u64>]);
    /// Sums the values of [`SCAN`] keys from `key` on; none where there is no order of keys.
    fn scan(&self, key: u64) -> Option<u64>;
    /// What it holds of its medium, in bytes; none where it does not tell.
    fn bytes(&self) -> Option<u64>;
}

struct Ours<I> {
    index: I,
    scan: fn(&I, u64) -> Option<u64>,
}

/// One of ours, on memory whose lines are written back or not.
fn ours<I: Persistent<Mapped> + Ordered + 'static>(keys: u64, flushes: bool) -> Box<dyn Candidate> {
    made(keys, flushes, scan_of::<I>)
}

/// The same of any, with how to scan it.
fn made<I: Persistent<Mapped> + 'static>(
    keys: u64,
    flushes: bool,
    scan: fn(&I, u64) -> Option<u64>,
) -> Box<dyn Candidate> {
    let bytes = keys * 40 + (64 << 20);
    let pm = Mapped::anonymous(bytes).expect("memory");
    let eras = Arc::new(Eras::new(1));
    let heap = Heap::format(pm.with_flushes(flushes), CHUNK_BYTES, 1, eras);
    let heap = Arc::new(heap.expect("room for a heap"));
    let index = I::open(heap, 0, WORKER).expect("room for an index");
    Box::new(Ours { index, scan })
}

fn scan_of<I: Ordered>(index: &I, key: u64) -> Option<u64> {
    let (mut sum, mut left) = (0u64, SCAN);
    let each = |_, value| {
        sum = sum.wrapping_add(value);
        left -= 1;
        match left {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    };
    index.scan(key..=u64::MAX, each).expect("sound");
    Some(sum)
}

impl<I: Persistent<Mapped>> Candidate for Ours<I> {
    fn insert(&mut self, key: u64, value: u64) {
        self.index.put(WORKER, key, value).expect("room");
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.index.get(key).expect("sound")
    }

    fn get_many(&self, keys: &[u64], values: &mut [Option<u64>]) {
        self.index.get_many(keys, values).expect("sound");
    }

    fn scan(&self, key: u64) -> Option<u64> {
        (self.scan)(&self.index, key)
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.index.heap().claimed_bytes())
    }
}

/// The map of HybridIndex+ alone.
struct InDram(DramMap);

impl InDram {
    fn new(keys: u64) -> InDram {
        InDram(DramMap::new(keys, 1).expect("memory"))
    }
}

impl Candidate for InDram {
    fn insert(&mut self, key: u64, value: u64) {
        self.0.put(WORKER, key, value).expect("room");
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(key).expect("sound")
    }

    fn get_many(&self, keys: &[u64], values: &mut [Option<u64>]) {
        self.0.get_many(keys, values).expect("sound");
    }

    fn scan(&self, _: u64) -> Option<u64> {
        None
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.0.bytes())
    }
}

impl Candidate for BTreeMap<u64, u64> {
    fn insert(&mut self, key: u64, value: u64) {
        BTreeMap::insert(self, key, value);
    }

    fn get(&self, key: u64) -> Option<u64> {
        BTreeMap::get(self, &key).copied()
    }

    fn get_many(&self, keys: &[u64], values: &mut [Option<u64>]) {
        for (key, value) in keys.iter().zip(values) {
            *value = BTreeMap::get(self, key).copied();
        }
    }

    fn scan(&self, key: u64) -> Option<u64> {
        let values = self.range(key..).take(SCAN).map(|(_, &value)| value);
        Some(values.fold(0, u64::wrapping_add))
    }

    fn bytes(&self) -> Option<u64> {
        None
    }
}

/// CPU time of this thread, in nanoseconds.
fn cpu_ns() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// Nanoseconds of CPU per call.
fn timed(count: u64, mut each: impl FnMut(u64)) -> f64 {
    let before = cpu_ns();
    (0..count).for_each(&mut each);
    (cpu_ns() - before) / count as f64
}

/// The `at`th of distinct keys in random order: an odd multiple, so that halves of neighbours are
/// free, mixed by an invertible function.
fn key(at: u64) -> u64 {
    let mut key = at.wrapping_mul(2).wrapping_add(1);
    key = (key ^ key >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    key = (key ^ key >> 27).wrapping_mul(0x81da_def4_bc2d_d44d);
    (key ^ key >> 33) >> 1
}

const COLUMNS: [&str; 6] = ["insert", "look-up", "batched", "miss", "scan 100", "update"];

/// Nanoseconds by [`COLUMNS`]; none where it cannot be asked.
fn measure(index: &mut dyn Candidate, keys: u64) -> [Option<f64>; COLUMNS.len()] {
    let insert = timed(keys, |at| index.insert(key(at), at));
    let mut last = 0;
    let looks = keys.min(2_000_000);
    // The next key depends on the value that was found.
    let hit = timed(looks, |at| {
        let at = (at.wrapping_mul(0x9e37_79b9) + (last & 1)) % keys;
        last = index.get(key(at)).expect("it was put");
    });
    let (mut batch, mut values) = ([0; BATCH], [None; BATCH]);
    let batched = timed(looks / BATCH as u64, |at| {
        for (number, batched) in (0..).zip(&mut batch) {
            let at = at * BATCH as u64 + number;
            *batched = key((at.wrapping_mul(0x9e37_79b9) + (last & 1)) % keys);
        }
        index.get_many(&batch, &mut values);
        last = values[0].expect("it was put");
    });
    let batched = batched / BATCH as f64;
    let mut found = 0;
    let miss = timed(looks, |at| {
        let at = keys + (at + found) % keys;
        found = u64::from(index.get(key(at)).is_some());
    });
    let scans = looks / 20;
    let scan = index.scan(key(0)).map(|_| {
        timed(scans, |at| {
            black_box(index.scan(key(at.wrapping_mul(0x9e37_79b9) % keys)));
        })
    });
    let update = timed(looks, |at| {
        index.insert(key(at.wrapping_mul(0x9e37_79b9) % keys), at);
    });
    let [insert, hit, batched, miss, update] = [insert, hit, batched, miss, update].map(Some);
    [insert, hit, batched, miss, scan, update]
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

type Make = fn(u64) -> Box<dyn Candidate>;

const CANDIDATES: [(&str, Make); 12] = [
    ("fast-fair", |keys| ours::<FastFair<Mapped>>(keys, false)),
    ("fast-fair, flushing", |keys| {
        ours::<FastFair<Mapped>>(keys, true)
    }),
    ("fp-tree", |keys| ours::<FpTree<Mapped>>(keys, false)),
    ("fp-tree, flushing", |keys| {
        ours::<FpTree<Mapped>>(keys, true)
    }),
    ("skip-list", |keys| ours::<SkipList<Mapped>>(keys, false)),
    ("skip-list, flushing", |keys| {
        ours::<SkipList<Mapped>>(keys, true)
    }),
    ("pm-hash", |keys| {
        made::<PmHash<Mapped>>(keys, false, |_, _| None)
    }),
    ("pm-hash, flushing", |keys| {
        made::<PmHash<Mapped>>(keys, true, |_, _| None)
    }),
    ("hybrid", |keys| ours::<Hybrid<PmHash<Mapped>>>(keys, false)),
    ("hybrid+", |keys| {
        ours::<HybridPlus<FastFair<Mapped>>>(keys, false)
    }),
    ("dram-map", |keys| Box::new(InDram::new(keys))),
    ("std BTreeMap", |_| Box::new(BTreeMap::new())),
];

fn main() {
    let args = Args::parse();
    println!(
        "real: DRAM, one thread, ns of CPU per operation, {} keys of 8 bytes with values of 8 \
         bytes, medians of {} rounds by turns\n",
        args.keys, args.rounds
    );
    let chosen: Vec<_> = CANDIDATES
        .iter()
        .filter(|(name, _)| name.contains(&args.only))
        .collect();
    let mut all = vec![Vec::new(); chosen.len()];
    let mut bytes = vec![None; chosen.len()];
    for _ in 0..args.rounds {
        for (at, (_, make)) in chosen.iter().enumerate() {
            let mut index = make(args.keys);
            all[at].push(measure(&mut *index, args.keys));
            bytes[at] = index.bytes();
        }
    }
    println!("| index | {} | bytes/key | in all |", COLUMNS.join(" | "));
    println!("|---|{}", "---:|".repeat(COLUMNS.len() + 2));
    for (at, (name, _)) in chosen.iter().enumerate() {
        let columns = (0..COLUMNS.len()).map(|column| {
            let of = all[at].iter().map(|round: &[Option<f64>; _]| round[column]);
            let of: Option<Vec<f64>> = of.collect();
            of.map_or("-".to_owned(), |of| format!("{:.0}", median(of)))
        });
        let columns: Vec<String> = columns.collect();
        let per_key = bytes[at].map_or("-".to_owned(), |bytes: u64| {
            format!("{:.1}", bytes as f64 / args.keys as f64)
        });
        let in_all = bytes[at].map_or("-".to_owned(), |bytes| Bytes(bytes).to_string());
        println!(
            "| {name} | {} | {per_key} | {in_all} |",
            columns.join(" | ")
        );
    }
}
