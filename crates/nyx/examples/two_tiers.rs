//! A cache that is larger than its memory, beside memcached's extstore on the same disk: both are
//! filled with values of 1 to 16 KiB until they hold what they can, read, killed and started again.
//!
//! Servers take turns (A B A B), each with one thread on a CPU of its own; the load generator has
//! the other. Bytes written are those that the system counts for the process. Numbers are *real*.
//!
//! What it never does: judge. It prints every round and medians of them.
//!
//! `cargo run --release -p nyx --example two_tiers -- --dir /var/tmp` (needs Debian's memcached)

mod rig;

use clap::Parser;
use nyx::{Exit, Failure};
use nyx_base::Bytes;
use rig::{Running, build};
use serde_json::Value;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
/// Both servers' CPU, and the generator's.
const CPUS: [&str; 2] = ["0", "1"];
/// Values are of so many bytes, all lengths alike.
const VALUE_LEN: &str = "1024-16384";
const VALUE_LEN_MEAN: u64 = 8704;
/// Passes over all keys in which what is missing is stored again, at most.
const PASSES_MOST: usize = 6;

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

fn failed(what: &str, error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Os, format!("{what}: {error}"))
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

    /// What a server of Nyx's is told. `durability` where it is to survive.
    fn configure(&self) -> Result<(), Failure> {
        let (dir, port) = (self.dir.display(), self.port);
        let (memory, deep) = (self.args.memory.0 >> 10, self.deep_bytes() >> 10);
        let text = format!(
            r#"
[server]
listen = ["127.0.0.1:{port}"]
workers = 1
data_dir = "{dir}/data"
[policy]
kind = "none"
[[device]]
name = "memory"
kind = "anon"
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
"#
        );
        let file = self.dir.join("nyx.toml");
        std::fs::write(file, text).map_err(|error| failed("the configuration", error))
    }

    fn command(&self, who: Who) -> Command {
        let mut command = Command::new("taskset");
        command.args(["-c", CPUS[0]]);
        match who {
            Who::Nyx => {
                command.arg(&self.nyx).args(["serve", "-qq", "--config"]);
                command.arg(self.dir.join("nyx.toml"));
            }
            Who::Memcached => {
                let megabytes = |bytes: u64| (bytes >> 20).to_string();
                let path = self.dir.join("ext").display().to_string();
                let ext = format!("ext_path={path}:{}m", megabytes(self.deep_bytes()));
                command.args(["memcached", "-l", "127.0.0.1", "-t", "1", "-u", "root"]);
                command.args(["-p", &self.port.to_string()]);
                command.args(["-m", &megabytes(self.args.memory.0), "-o", &ext]);
            }
        }
        command
    }

    /// Starts a server and waits until it answers.
    fn start(&self, who: Who) -> Result<Running, Failure> {
        let spawned = self.command(who).stdin(Stdio::null()).spawn();
        let mut server = Running(spawned.map_err(|error| failed(who.name(), error))?);
        let deadline = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if let Some(status) = server.0.try_wait().ok().flatten() {
                return Err(failed(who.name(), status));
            }
            if Instant::now() > deadline {
                return Err(failed(who.name(), "it does not answer"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// What a load generator found.
    fn bench(&self, server: &Running, args: &[&str]) -> Result<Value, Failure> {
        let told = |error: &dyn std::fmt::Display| failed("nyx bench", error);
        let output = Command::new(&self.nyx)
            .args(["bench", "--no-progress", "--json", "-", "--pin", CPUS[1]])
            .args(["--server", &format!("127.0.0.1:{}", self.port)])
            .args(["--server-pid", &server.0.id().to_string()])
            .args(["--keys", &self.keys().to_string(), "--key-len", "20"])
            .args(["--value-len", VALUE_LEN, "--connections", "32", "--verify"])
            .args(args)
            .output()
            .map_err(|error| told(&error))?;
        if !output.status.success() {
            return Err(told(&String::from_utf8_lossy(&output.stderr)));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| told(&error))
    }

    /// One pass over all keys; the part of them that was there.
    fn pass(&self, server: &Running, args: &[&str]) -> Result<f64, Failure> {
        let keys = self.keys().to_string();
        let pass = ["--no-fill", "--warm-up", "0s", "--ops", &keys];
        let of = ["--mix", "get:1", "--popularity", "scan"];
        let found = self.bench(server, &[&pass[..], &of, args].concat())?;
        Ok(figure(&found, "total/hit_ratio"))
    }
}

/// A figure by its path. What was not measured is no number.
fn figure(of: &Value, path: &str) -> f64 {
    let found = path.split('/').try_fold(of, |of, step| of.get(step));
    found.and_then(Value::as_f64).unwrap_or(f64::NAN)
}

/// Bytes that the system has written for a process.
fn written_bytes(server: &Running) -> f64 {
    let io = std::fs::read_to_string(format!("/proc/{}/io", server.0.id()));
    let io = io.unwrap_or_default();
    let line = io
        .lines()
        .find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|bytes| bytes.parse().ok())
        .unwrap_or(f64::NAN)
}

/// The columns after the server's name, and with how many decimals.
const COLUMNS: [(&str, usize); 12] = [
    ("passes", 0),
    ("held %", 1),
    ("written/set", 2),
    ("zipf hit %", 1),
    ("P50 us", 0),
    ("P99 us", 0),
    ("CPU us/op", 2),
    ("uniform hit %", 1),
    ("P50 us", 0),
    ("P99 us", 0),
    ("after kill %", 1),
    ("after stop %", 1),
];

/// One server's round.
fn round(place: &Place<'_>, who: Who) -> Result<Vec<f64>, Failure> {
    for name in ["deep", "ext"] {
        // There is none the first time.
        let _ = std::fs::remove_file(place.dir.join(name));
    }
    let _ = std::fs::remove_dir_all(place.dir.join("data"));
    let server = place.start(who)?;
    let mut set = place.keys() as f64;
    place.bench(
        &server,
        &["--mix", "get:1", "--ops", "1", "--warm-up", "0s"],
    )?;
    let mut held = place.pass(&server, &["--fill-on-miss"])?;
    let mut passes = 1;
    while held < 1.0 && passes < PASSES_MOST {
        set += (1.0 - held) * place.keys() as f64;
        held = place.pass(&server, &["--fill-on-miss"])?;
        passes += 1;
    }
    let written = written_bytes(&server) / (set * VALUE_LEN_MEAN as f64);
    let mut told = vec![passes as f64, 100.0 * held, written];
    let duration = format!("{}s", place.args.seconds);
    for popularity in ["zipf:0.99", "uniform"] {
        let of = ["--no-fill", "--mix", "get:1", "--popularity", popularity];
        let found = place.bench(&server, &[&of[..], &["--duration", &duration]].concat())?;
        told.push(100.0 * figure(&found, "total/hit_ratio"));
        told.push(figure(&found, "total/reads/p50_us"));
        told.push(figure(&found, "total/reads/p99_us"));
        if popularity != "uniform" {
            told.push(figure(&found, "server/cpu_us_per_op"));
        }
    }
    drop(server);
    let server = place.start(who)?;
    told.push(100.0 * place.pass(&server, &[])?);
    stop(server)?;
    let server = place.start(who)?;
    told.push(100.0 * place.pass(&server, &[])?);
    Ok(told)
}

/// Stops a server in order.
fn stop(mut server: Running) -> Result<(), Failure> {
    let pid = server.0.id().to_string();
    let asked = Command::new("kill").args(["-TERM", &pid]).status();
    asked.map_err(|error| failed("kill", error))?;
    let ended = server.0.wait();
    ended.map_err(|error| failed("a server", error)).map(drop)
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

fn free_port() -> Result<u16, Failure> {
    let listener = TcpListener::bind(("127.0.0.1", 0));
    let address = listener.and_then(|listener| listener.local_addr());
    Ok(address.map_err(|error| failed("a port", error))?.port())
}

fn run(args: &Args) -> Result<(), Failure> {
    let directory = tempfile::tempdir_in(&args.dir);
    let directory = directory.map_err(|error| failed("a directory", error))?;
    let place = Place {
        args,
        nyx: build().map_err(|why| Failure::new(Exit::Os, why))?,
        dir: Path::to_path_buf(directory.path()),
        port: free_port()?,
    };
    place.configure()?;
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
