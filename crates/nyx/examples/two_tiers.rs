//! A cache that is larger than its memory, beside memcached's extstore on the same disk: both are
//! filled with values of 1 to 16 KiB at a pace that the disk takes, read, changed, killed and
//! started again.
//!
//! Servers take turns (A B A B), each with one thread for its requests on a CPU of its own (there
//! are memcached's threads for its disk as well); the load generator has the other. Nyx's memory is
//! a file on tmpfs, which survives the process as memory of a restart does. Bytes written are those
//! that the system counts for the process. Numbers are *real*.
//!
//! What it never does: judge. It prints every round and medians of them.
//!
//! `cargo run --release -p nyx --example two_tiers -- --dir /var/tmp` (needs Debian's memcached)

#[path = "rig/figure.rs"]
mod figure;
#[path = "rig/loaded.rs"]
mod loaded;
mod rig;

use clap::Parser;
use figure::figure;
use loaded::{Loaded, failed, free_port, serves};
use nyx::{Exit, Failure};
use nyx_base::Bytes;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Values are of so many bytes, all lengths alike.
const VALUE_LEN: &str = "1024-16384";
const VALUE_LEN_MEAN: u64 = 8704;

/// Two tiers beside memcached's extstore.
#[derive(Parser)]
#[command(after_help = "Examples:
  two_tiers --dir /var/tmp                      256 MiB of memory and 1 GiB of that disk
  two_tiers --dir /mnt/nvme --memory 4GiB --rounds 5")]
struct Args {
    /// The disk: a directory, in which everything is made and removed.
    #[arg(long)]
    dir: PathBuf,
    /// Memory of each server.
    #[arg(long, default_value = "256MiB")]
    memory: Bytes,
    /// How many times that the deep device has.
    #[arg(long, default_value_t = 4)]
    times: u64,
    /// What is stored, in percent of both.
    #[arg(long, default_value_t = 70)]
    percent: u64,
    /// Bytes that both are filled with a second; more than the disk takes is dropped.
    #[arg(long, default_value = "32MiB")]
    fill_per_s: Bytes,
    /// A directory in memory, for Nyx's.
    #[arg(long, default_value = "/dev/shm")]
    shm: PathBuf,
    /// Rounds of both servers.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of reading, for each order of popularity.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("two_tiers: {failure}");
            ExitCode::from(failure.code as u8)
        }
    }
}

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Who {
    Nyx,
    Memcached,
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Who::Nyx => "nyx",
            Who::Memcached => "memcached",
        }
    }
}

/// Where everything is.
struct Place<'a> {
    args: &'a Args,
    nyx: PathBuf,
    dir: PathBuf,
    shm: PathBuf,
    port: u16,
}

impl Place<'_> {
    fn deep_bytes(&self) -> u64 {
        self.args.memory.0 * self.args.times
    }

    fn keys(&self) -> u64 {
        let all = self.args.memory.0 + self.deep_bytes();
        all / 100 * self.args.percent / VALUE_LEN_MEAN
    }

    /// What a server of Nyx's is told.
    fn config(&self) -> String {
        let (dir, shm, port) = (self.dir.display(), self.shm.display(), self.port);
        let (memory, deep) = (self.args.memory.0 >> 10, self.deep_bytes() >> 10);
        format!(
            r#"
[server]
listen = ["127.0.0.1:{port}"]
workers = 1
data_dir = "{dir}/data"
image_dir = "{shm}/images"
[policy]
kind = "none"
[[device]]
name = "memory"
kind = "file"
path = "{shm}/memory"
size = "{memory}KiB"
[[device]]
name = "disk"
kind = "block"
path = "{dir}/deep"
size = "{deep}KiB"
[[tenant]]
name = "first"
item_len_max = "64KiB"
tiers = ["memory", "disk"]
durability = "crash"
"#
        )
    }

    fn command(&self, who: Who) -> Result<Command, Failure> {
        match who {
            Who::Nyx => serves(&self.nyx, &self.dir, &self.config()),
            Who::Memcached => {
                let mut command = Command::new("memcached");
                let megabytes = |bytes: u64| (bytes >> 20).to_string();
                let path = self.dir.join("ext").display().to_string();
                // By default it gives what remains of an item its memory so late that it loses a
                // fifth of what it is filled with, at 16 MiB/s; 3 is the least that it takes.
                let deep = megabytes(self.deep_bytes());
                let ext = format!("ext_path={path}:{deep}m,slab_automove_window=3");
                command.args(["-l", "127.0.0.1", "-t", "1", "-u", "root"]);
                command.args(["-p", &self.port.to_string()]);
                command.args(["-m", &megabytes(self.args.memory.0), "-o", &ext]);
                Ok(command)
            }
        }
    }

    fn start(&self, who: Who) -> Result<Loaded, Failure> {
        Loaded::start(&self.command(who)?, self.port)
    }

    /// Forgets what servers before have left.
    fn clear(&self) -> Result<(), Failure> {
        for dir in [&self.dir, &self.shm] {
            let made = std::fs::remove_dir_all(dir).and_then(|()| std::fs::create_dir(dir));
            made.map_err(|error| failed(&dir.display().to_string(), error))?;
        }
        Ok(())
    }

    fn bench(&self, server: &Loaded, words: &str) -> Result<Value, Failure> {
        let keys = self.keys();
        let of = format!("--keys {keys} --key-len 20 --value-len {VALUE_LEN} {words}");
        server.bench(&self.nyx, &of)
    }

    /// Stores all keys at their pace.
    fn fill(&self, server: &Loaded) -> Result<(), Failure> {
        let rate = (self.args.fill_per_s.0 / VALUE_LEN_MEAN).max(1);
        let words = format!("--mix get:1 --ops 1 --warm-up 0s --fill-rate {rate}");
        self.bench(server, &words).map(drop)
    }

    /// Reads all keys once, in an order of no pattern; the part of them that was there.
    fn held(&self, server: &Loaded) -> Result<f64, Failure> {
        let keys = self.keys();
        let words = format!("--no-fill --warm-up 0s --ops {keys} --mix get:1 --popularity uniform");
        let found = self.bench(server, &words)?;
        Ok(100.0 * figure(&found, "total/hit_ratio"))
    }
}

/// Bytes that the system has written for a process.
fn written_bytes(server: &Loaded) -> f64 {
    let io = std::fs::read_to_string(format!("/proc/{}/io", server.pid()));
    let io = io.unwrap_or_default();
    let mut lines = io.lines();
    let line = lines.find_map(|line| line.strip_prefix("write_bytes: "));
    let bytes = line.and_then(|bytes| bytes.parse().ok());
    bytes.unwrap_or(f64::NAN)
}

/// The columns after the server's name, and with how many decimals.
const COLUMNS: [(&str, usize); 16] = [
    ("held %", 1),
    ("written/set", 2),
    ("zipf hit %", 1),
    ("P50 us", 0),
    ("P99 us", 0),
    ("CPU us/op", 2),
    ("uniform hit %", 1),
    ("P50 us", 0),
    ("P99 us", 0),
    ("CPU us/op", 2),
    ("mixed: P50 us", 0),
    ("P99 us", 0),
    ("written/set", 2),
    ("held %", 1),
    ("after kill %", 1),
    ("after stop %", 1),
];

/// What is read, and changed.
const LOADS: [&str; 3] = [
    "--mix get:1 --popularity zipf:0.99",
    "--mix get:1 --popularity uniform",
    "--mix get:70,set:30 --popularity zipf:0.99",
];

/// One server's round.
fn round(place: &Place<'_>, who: Who) -> Result<Vec<f64>, Failure> {
    place.clear()?;
    let server = place.start(who)?;
    let mean = VALUE_LEN_MEAN as f64;
    place.fill(&server)?;
    let written = written_bytes(&server) / (place.keys() as f64 * mean);
    let mut told = vec![place.held(&server)?, written];
    let seconds = place.args.seconds;
    for load in LOADS {
        let before = written_bytes(&server);
        let words = format!("--no-fill --warm-up 0s --duration {seconds}s {load}");
        let found = place.bench(&server, &words)?;
        let of = |path: &str| figure(&found, &format!("total/{path}"));
        let latencies = [of("reads/p50_us"), of("reads/p99_us")];
        if load == LOADS[2] {
            told.extend(latencies);
            told.push((written_bytes(&server) - before) / (of("by_kind/set") * mean));
        } else {
            told.push(100.0 * of("hit_ratio"));
            told.extend(latencies);
            told.push(figure(&found, "server/cpu_us_per_op"));
        }
    }
    told.push(place.held(&server)?);
    drop(server);
    let server = place.start(who)?;
    told.push(place.held(&server)?);
    server.stop()?;
    let server = place.start(who)?;
    told.push(place.held(&server)?);
    Ok(told)
}

fn row(name: &str, told: &[f64]) {
    let cells = told.iter().zip(COLUMNS);
    let cells: Vec<String> = cells
        .map(|(value, (title, decimals))| format!("{value:>width$.decimals$}", width = title.len()))
        .collect();
    println!("| {name:<16} | {} |", cells.join(" | "));
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn run(args: &Args) -> Result<(), Failure> {
    let directory = tempfile::tempdir_in(&args.dir);
    let directory = directory.map_err(|error| failed("a directory", error))?;
    let shm = tempfile::tempdir_in(&args.shm);
    let shm = shm.map_err(|error| failed("a directory in memory", error))?;
    let place = Place {
        args,
        nyx: rig::build().map_err(|why| Failure::new(Exit::Os, why))?,
        dir: directory.path().join("servers"),
        shm: shm.path().join("servers"),
        port: free_port()?,
    };
    for dir in [&place.dir, &place.shm] {
        std::fs::create_dir(dir).map_err(|error| failed("a directory", error))?;
    }
    let (keys, memory, deep) = (place.keys(), args.memory, Bytes(place.deep_bytes()));
    println!("{keys} values of {VALUE_LEN} B, {memory} of memory, {deep} of the disk; real\n");
    println!(
        "| {:<16} | {} |",
        "server",
        COLUMNS.map(|column| column.0).join(" | ")
    );
    println!("|---|{}", "--:|".repeat(COLUMNS.len()));
    let mut all = [Vec::new(), Vec::new()];
    for _ in 0..args.rounds {
        for (who, all) in [Who::Nyx, Who::Memcached].into_iter().zip(&mut all) {
            let told = round(&place, who)?;
            row(who.name(), &told);
            all.push(told);
        }
    }
    for (who, all) in [Who::Nyx, Who::Memcached].into_iter().zip(all) {
        let of = |at: usize| median(all.iter().map(|told| told[at]).collect());
        let medians: Vec<f64> = (0..COLUMNS.len()).map(of).collect();
        row(&format!("{}, median", who.name()), &medians);
    }
    Ok(())
}
