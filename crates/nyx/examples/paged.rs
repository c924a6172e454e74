//! A tenant whose values do not fit memory, without a change of the store: the same GETs on memory
//! (`anon`), on a paged device all of which may be in memory, and on one of which half may.
//!
//! Servers take turns, each with one worker; all of its threads are on one CPU, those that page
//! too, and the load generator has the other. Numbers are *real*.
//!
//! What it never does: judge. It prints every round and medians of them.
//!
//! `cargo run --release -p nyx --example paged -- --dir /var/tmp`

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
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::ExitCode;

/// What a value of 1 KiB takes of the tenant beside itself, at most: header, key, index, and what a
/// store keeps free.
const BESIDE_BYTES: u64 = 256;

/// GETs on memory, and on paged memory.
#[derive(Parser)]
#[command(after_help = "Examples:
  paged --dir /var/tmp                          256 MiB, half of it on that disk
  paged --dir /dev/shm                          the other half in memory too: what paging costs
  paged --dir /mnt/nvme --size 4GiB --rounds 5")]
struct Args {
    /// Where pages go: a directory, in which everything is made and removed.
    #[arg(long)]
    dir: PathBuf,
    /// The device's size; it is filled with values.
    #[arg(long, default_value = "256MiB")]
    size: Bytes,
    /// Bytes of a value.
    #[arg(long, default_value_t = 1024)]
    value_len: u64,
    /// The binary; the optimised one is built where none is named.
    #[arg(long)]
    nyx: Option<PathBuf>,
    /// Rounds of all servers.
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
            eprintln!("paged: {failure}");
            ExitCode::from(failure.code as u8)
        }
    }
}

/// What values are in: its name, and where it pages how many percent of it may be in memory.
const SERVERS: [(&str, Option<u64>); 3] = [
    ("anon", None),
    ("paged, all in memory", Some(100)),
    ("paged, half in memory", Some(50)),
];

/// What is read.
const LOADS: [&str; 2] = ["uniform", "zipf:0.99"];

/// The columns of each load, and with how many decimals.
const COLUMNS: [(&str, usize); 7] = [
    ("GET/s", 0),
    ("P50 us", 0),
    ("P99 us", 0),
    ("CPU us/GET", 2),
    ("hit %", 1),
    ("waits/1000 GET", 1),
    ("wait P50 us", 0),
];

fn config(args: &Args, dir: &std::path::Path, percent: Option<u64>, port: u16) -> String {
    let (data, size) = (dir.display(), args.size.0);
    let device = match percent {
        None => "kind = \"anon\"".to_owned(),
        Some(percent) => {
            let memory = size / 100 * percent;
            format!("kind = \"paged\"\npath = \"{data}\"\nmemory = \"{memory}\"")
        }
    };
    format!(
        "[server]\nlisten = [\"127.0.0.1:{port}\"]\nworkers = 1\ndata_dir = \"{data}\"\n\
         [policy]\nkind = \"none\"\n\
         [[device]]\nname = \"values\"\nsize = \"{size}\"\n{device}\n\
         [[tenant]]\nname = \"first\"\n"
    )
}

/// What the device tells since its start; nothing where it does not page.
fn told(port: u16, name: &str) -> Result<f64, Failure> {
    let begin = format!("STAT values:{name} ");
    let told = || -> std::io::Result<f64> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.write_all(b"stats devices\r\n")?;
        for line in BufReader::new(stream).lines() {
            let line = line?;
            if let Some(count) = line.strip_prefix(&begin) {
                return Ok(count.trim().parse().unwrap_or(f64::NAN));
            }
            if line == "END" {
                break;
            }
        }
        Ok(0.0)
    };
    told().map_err(|error| failed("stats devices", error))
}

fn round(
    args: &Args,
    nyx: &std::path::Path,
    percent: Option<u64>,
) -> Result<Vec<Vec<f64>>, Failure> {
    let directory = tempfile::tempdir_in(&args.dir);
    let directory = directory.map_err(|error| failed("a directory", error))?;
    let port = free_port()?;
    let text = config(args, directory.path(), percent, port);
    let server = Loaded::start(&serves(nyx, directory.path(), &text)?, port)?;
    let keys = args.size.0 / (args.value_len + BESIDE_BYTES);
    let of = format!(
        "--keys {keys} --key-len 20 --value-len {} --mix get:1",
        args.value_len
    );
    server.bench(nyx, &format!("{of} --ops 1 --warm-up 0s"))?;
    let mut all = Vec::new();
    for load in LOADS {
        let seconds = args.seconds;
        let before = told(port, "fault_waits")?;
        let words = format!("--no-fill --warm-up 1s --duration {seconds}s --popularity {load}");
        let found = server.bench(nyx, &format!("{of} {words}"))?;
        let total = |path: &str| figure(&found, &format!("total/{path}"));
        // Those of the warm-up are among them.
        let gets = total("ops_per_s") * (seconds + 1) as f64;
        all.push(vec![
            total("ops_per_s"),
            total("reads/p50_us"),
            total("reads/p99_us"),
            figure(&found, "server/cpu_us_per_op"),
            100.0 * total("hit_ratio"),
            1000.0 * (told(port, "fault_waits")? - before) / gets,
            told(port, "fault_wait_ns_p50")? / 1e3,
        ]);
    }
    server.stop()?;
    Ok(all)
}

fn row(server: &str, load: &str, told: &[f64]) {
    let cells = told.iter().zip(COLUMNS);
    let cells: Vec<String> = cells
        .map(|(value, (title, decimals))| format!("{value:>width$.decimals$}", width = title.len()))
        .collect();
    println!("| {server:<29} | {load:<9} | {} |", cells.join(" | "));
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn run(args: &Args) -> Result<(), Failure> {
    let nyx = match &args.nyx {
        Some(nyx) => nyx.clone(),
        None => rig::build().map_err(|why| Failure::new(Exit::Os, why))?,
    };
    let (size, len) = (args.size, args.value_len);
    println!("values of {len} B in {size}, 32 connections, one request each; real\n");
    let titles = COLUMNS.map(|column| column.0).join(" | ");
    println!("| {:<29} | {:<9} | {titles} |", "server", "GETs");
    println!("|---|---|{}", "--:|".repeat(COLUMNS.len()));
    let mut all = SERVERS.map(|_| LOADS.map(|_| Vec::new()));
    for _ in 0..args.rounds {
        for ((name, percent), all) in SERVERS.into_iter().zip(&mut all) {
            let told = round(args, &nyx, percent)?;
            for ((load, all), told) in LOADS.iter().zip(all).zip(told) {
                row(name, load, &told);
                all.push(told);
            }
        }
    }
    for ((name, _), all) in SERVERS.into_iter().zip(all) {
        for (load, all) in LOADS.iter().zip(all) {
            let of = |at: usize| median(all.iter().map(|told: &Vec<f64>| told[at]).collect());
            let medians: Vec<f64> = (0..COLUMNS.len()).map(of).collect();
            row(&format!("{name}, median"), load, &medians);
        }
    }
    Ok(())
}
