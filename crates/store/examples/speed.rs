//! How fast a store is in process and how much memory it takes, over real DRAM: GET hits and
//! overwriting SETs of 32 B keys and 100 B values in batches of 16 with the three stages of
//! prefetching, by one and two threads; and bytes per item of 20 B keys and 100 B values. With
//! `--image DIR`, what it costs to survive: a store with an image in that directory and one
//! without, both with their values in a file there, in turns.
//!
//! What it never does: state a figure that it did not measure in this run.
//!
//! `cargo run --release -p nyx-store --example speed [-- --image /dev/shm] [millions of items]`

#![allow(
    clippy::disallowed_methods,
    reason = "a driver: it measures real time on real threads"
)]

use clap::Parser;
use nyx_base::{CachePadded, Clock, Instant, TenantId, UnixSeconds, WorkerId};
use nyx_gate::cost::STEPS;
use nyx_gate::{Account, Budget, CostTable, Device};
use nyx_media::Media;
use nyx_media::mapped::Mapped;
use nyx_store::{
    Durability, Eras, Eviction, Keep, KeyHash, Layout, Likely, Purpose, Put, PutOutcome, Store,
    StoreConfig, Writer,
};
use nyx_tier::{Lane, Tolls};
use rustix::time::{ClockId, clock_gettime};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::time::Duration;

const TENANT: TenantId = TenantId(0);
const BATCH: usize = 16;
const NOW: UnixSeconds = UnixSeconds(1_800_000_000);
const RUN: Duration = Duration::from_secs(1);

/// Runs of each of two stores that are compared.
const ROUNDS: usize = 5;

/// How fast a store is in process, and how much memory it takes.
#[derive(Parser)]
struct Args {
    /// Millions of items, one run for each.
    #[arg(default_values_t = [1, 10])]
    millions: Vec<u64>,
    /// Compare a store with an image, in a directory of its own here, with one without.
    #[arg(long, value_name = "DIR")]
    image: Option<PathBuf>,
}

/// Nothing is paced here.
struct Still;

impl Clock for Still {
    fn now(&self) -> Instant {
        Instant(0)
    }
    fn spin_until(&self, _until: Instant) {}
}

struct Rig {
    store: Store,
    eras: Arc<Eras>,
    device: Arc<Device>,
}

impl Rig {
    fn new(size: u64, workers: u16) -> Rig {
        Rig::over(
            Mapped::anonymous(size).expect("memory"),
            size,
            workers,
            None,
        )
    }

    /// With values in a file, and with an image beside it if `survives`.
    fn in_files(directory: &Path, size: u64, workers: u16, survives: bool) -> Rig {
        let medium = Mapped::file(&directory.join("values"), size).expect("room on the disk");
        let keep = survives.then(|| Keep {
            path: directory.join("image"),
            name: "speed".to_owned(),
            durability: Durability::Crash,
            data_id: medium.id().expect("it is a file"),
            purpose: Purpose::Serve,
            journal: None,
        });
        Rig::over(medium, size, workers, keep)
    }

    fn over(medium: Mapped, size: u64, workers: u16, keep: Option<Keep>) -> Rig {
        let config = StoreConfig {
            size,
            medium_base: 0,
            medium_len: size,
            segment_bytes: 1 << 20,
            item_len_max: 1 << 20,
            eviction: Eviction::S3Fifo,
            layout: Layout::Split,
            workers,
            hash_seed: fastrand::u64(..),
            keep,
            order: None,
            deep: None,
        };
        let eras = Arc::new(Eras::new(workers));
        let media: Arc<dyn Media> = Arc::new(medium);
        let rates = [1e7; STEPS];
        let cost = CostTable::from_max_iops(&rates, &rates);
        let device = Arc::new(Device {
            name: "dram".to_owned(),
            media,
            cost,
        });
        let store = Store::new(config, eras.clone()).expect("a good shape");
        Rig {
            store,
            eras,
            device,
        }
    }

    fn tolls(&self, worker: u16) -> Tolls {
        let mut tolls = Tolls::new(WorkerId(worker), Arc::new(Still));
        let account = Arc::new(CachePadded(Account::default()));
        tolls.open(
            TENANT,
            self.device.clone(),
            account,
            Arc::new(Budget::unlimited()),
        );
        tolls
    }

    fn fill(&self, items: u64, key_len: usize) {
        let mut tolls = self.tolls(0);
        let mut writer = self.store.writer(WorkerId(0));
        for first in (0..items).step_by(BATCH) {
            self.eras.enter(WorkerId(0));
            let batch = Batch::new(&self.store, key_len, |at| (first + at as u64) % items);
            batch.set(&self.store, &mut writer, &mut tolls.lane(TENANT));
        }
        self.eras.leave(WorkerId(0));
    }
}

/// Keys that a worker's clients sent in one batch of events.
struct Batch {
    keys: [[u8; 32]; BATCH],
    hashes: [KeyHash; BATCH],
    key_len: usize,
}

impl Batch {
    fn new(store: &Store, key_len: usize, mut id: impl FnMut(usize) -> u64) -> Batch {
        let mut keys = [[b'k'; 32]; BATCH];
        for (at, key) in keys.iter_mut().enumerate() {
            key[..8].copy_from_slice(&id(at).to_le_bytes());
        }
        let hashes = keys.map(|key| store.hash(&key[..key_len]));
        Batch {
            keys,
            hashes,
            key_len,
        }
    }

    fn prefetch(&self, store: &Store) -> [Option<Likely>; BATCH] {
        self.hashes
            .iter()
            .for_each(|&hash| store.prefetch_bucket(hash));
        self.hashes.map(|hash| store.prefetch_item(hash))
    }

    fn get(&self, store: &Store, lane: &mut Lane<'_>, out: &mut [u8]) -> u64 {
        self.prefetch(store)
            .into_iter()
            .flatten()
            .for_each(|likely| store.prefetch_value(lane, likely));
        let mut hits = 0;
        for (key, &hash) in self.keys.iter().zip(&self.hashes) {
            if let Some(item) = store.get(lane, &key[..self.key_len], hash, NOW) {
                item.mark_access(lane, NOW);
                item.read(lane, &mut out[..item.value_len()]);
                hits += 1;
            }
        }
        hits
    }

    fn set(&self, store: &Store, writer: &mut Writer, lane: &mut Lane<'_>) -> u64 {
        self.prefetch(store);
        let value = [b'v'; 100];
        for (key, &hash) in self.keys.iter().zip(&self.hashes) {
            let put = Put::set(&key[..self.key_len], hash, &value);
            let outcome = store.put(writer, lane, &put, NOW);
            assert!(matches!(outcome, PutOutcome::Stored { .. }), "{outcome:?}");
        }
        BATCH as u64
    }
}

/// What a run of some threads gave.
struct Rate {
    /// Millions of operations in a second of the clock, by all threads together.
    wall: f64,
    /// Millions of operations in a second of CPU time, by each thread.
    cpu: f64,
}

/// CPU time that this thread has had, in seconds: what it did not get is not its fault.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// How fast `threads` threads are, all keys equally likely.
fn measure(rig: &Rig, items: u64, threads: u16, set_percent: u32) -> Rate {
    let barrier = Barrier::new(usize::from(threads));
    let work = |id: u16| {
        let worker = WorkerId(id);
        let (mut tolls, mut writer) = (rig.tolls(id), rig.store.writer(worker));
        let mut rng = fastrand::Rng::with_seed(u64::from(id));
        let mut out = [0; 4096];
        barrier.wait();
        let (begin, begin_cpu_s) = (std::time::Instant::now(), cpu_s());
        let mut done = 0;
        while begin.elapsed() < RUN {
            for _ in 0..64 {
                rig.eras.enter(worker);
                let batch = Batch::new(&rig.store, 32, |_| rng.u64(..items));
                let lane = &mut tolls.lane(TENANT);
                done += match rng.u32(..100) < set_percent {
                    true => batch.set(&rig.store, &mut writer, lane),
                    false => batch.get(&rig.store, lane, &mut out),
                };
            }
        }
        rig.eras.leave(worker);
        let millions = done as f64 / 1e6;
        (
            millions / begin.elapsed().as_secs_f64(),
            millions / (cpu_s() - begin_cpu_s),
        )
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|id| scope.spawn(move || work(id)))
            .collect();
        let count = threads.len() as f64;
        let rates = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        let (wall, cpu) = rates.fold((0.0, 0.0), |sum, rate| (sum.0 + rate.0, sum.1 + rate.1));
        Rate {
            wall,
            cpu: cpu / count,
        }
    })
}

/// Resident bytes of this process.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
    let pages: u64 = statm
        .split(' ')
        .nth(1)
        .and_then(|n| n.parse().ok())
        .expect("a number");
    pages * 4096
}

/// Bytes of room per item where a tenant is nearly full, and where it has room to spare: how much
/// has to be moved for each overwrite depends on it.
const ROOMS_BYTES: [(u64, &str); 2] = [(190, "nearly full"), (400, "roomy")];

fn speed(millions: u64) {
    let items = millions * 1_000_000;
    println!("{millions} M items, 32 B keys, 100 B values (real DRAM), millions a second:");
    for (room, name) in ROOMS_BYTES {
        let rig = Rig::new(items * room + (64 << 20), 2);
        let begin = std::time::Instant::now();
        rig.fill(items, 32);
        let fill = items as f64 / 1e6 / begin.elapsed().as_secs_f64();
        println!(
            "  {name}, {room} B an item; first sets, memory touched for the first time: {fill:.2}"
        );
        // Overwriting until every segment was used: what is measured is the steady state.
        measure(&rig, items, 2, 100);
        for (name, set_percent) in [("get hits", 0), ("90/10 get/set", 10), ("sets", 100)] {
            let moved = rig.store.figures().relocations;
            let one = measure(&rig, items, 1, set_percent);
            let moved = rig.store.figures().relocations - moved;
            let two = measure(&rig, items, 2, set_percent);
            println!(
                "    {name:<14} wall: {:6.2} by 1 thread, {:6.2} by 2  \
                 per CPU-second: {:6.2}, {:6.2}  moved for each: {:.2}",
                one.wall,
                two.wall,
                one.cpu,
                two.cpu,
                moved as f64 / 1e6 / one.wall / RUN.as_secs_f64(),
            );
        }
    }
}

fn memory() {
    let items = 5_000_000;
    let before = resident_bytes();
    let rig = Rig::new(items * 160 + (16 << 20), 1);
    rig.fill(items, 20);
    let resident = resident_bytes() - before;
    println!("5 M items, 20 B keys, 100 B values, bytes per item:");
    tell_memory(&rig, items, resident);
}

fn tell_memory(rig: &Rig, items: u64, resident: u64) {
    let figures = rig.store.figures();
    assert_eq!(figures.items, items, "nothing was evicted");
    println!(
        "  resident, process and medium   {:6.1}",
        resident as f64 / items as f64
    );
    println!(
        "  accounted                      {:6.1}",
        figures.used_bytes as f64 / items as f64
    );
    println!(
        "  of that: keys {:.1}, values {:.1}, index {:.1}",
        figures.key_bytes as f64 / items as f64,
        figures.value_bytes as f64 / items as f64,
        figures.index_bytes as f64 / items as f64
    );
}

/// What it costs to survive: memory first, then CPU time, in turns.
fn survival(directory: &Path, millions: u64) {
    let items = millions * 1_000_000;
    let names = ["none", "crash"];
    let directories = names.map(|name| directory.join(name));
    for (name, directory) in names.iter().zip(&directories) {
        std::fs::create_dir_all(directory).expect("a directory");
        let before = resident_bytes();
        let rig = Rig::in_files(directory, items * 200 + (16 << 20), 1, *name == "crash");
        rig.fill(items, 20);
        let resident = resident_bytes() - before;
        println!("{millions} M items, 20 B keys, 100 B values, durability {name}, bytes per item:");
        tell_memory(&rig, items, resident);
        drop(rig);
        std::fs::remove_dir_all(directory).expect("our own");
    }
    let rigs = [0, 1].map(|at| {
        std::fs::create_dir_all(&directories[at]).expect("a directory");
        let rig = Rig::in_files(&directories[at], items * 400 + (64 << 20), 1, at == 1);
        rig.fill(items, 32);
        measure(&rig, items, 1, 100);
        rig
    });
    println!("{millions} M items, 32 B keys, 100 B values, ns of CPU time each, one thread:");
    for (what, set_percent) in [("get hits", 0), ("sets", 100)] {
        let mut ns = [const { Vec::new() }; 2];
        for round in 0..2 * ROUNDS {
            let rate = measure(&rigs[round % 2], items, 1, set_percent);
            ns[round % 2].push(1000.0 / rate.cpu);
        }
        let median = ns.map(|mut ns| {
            ns.sort_by(f64::total_cmp);
            ns[ROUNDS / 2]
        });
        println!(
            "  {what:<10} none {:6.1}   crash {:6.1}   {:.3} times",
            median[0],
            median[1],
            median[1] / median[0]
        );
    }
}

fn main() {
    let args = Args::parse();
    if let Some(directory) = &args.image {
        let own = directory.join(format!("nyx-speed-{}", std::process::id()));
        args.millions
            .iter()
            .for_each(|&millions| survival(&own, millions));
        std::fs::remove_dir_all(&own).expect("our own");
        return;
    }
    memory();
    args.millions.iter().for_each(|&millions| speed(millions));
}
