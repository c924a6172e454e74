//! How soon a server that was killed serves again, and whether it has what it had: fills a tenant
//! with `durability = "crash"`, kills the server (`kill -9`), and starts it again and again, each
//! time killed while it still looks through what it found.
//!
//! The time is that from starting the process to the right answer of a get, with connecting tried
//! every half millisecond. Numbers are *real*.
//!
//! What it never does: judge. It prints every round.
//!
//! `cargo run --release -p nyx --example survive [-- --items 10000000]`

mod rig;

use clap::Parser;
use nyx::{Exit, Failure};
use rig::{Running, build};
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// A key that every start is asked for, and its value.
const PROBE: (&str, &str) = ("probe:of:the:example", "it is there");
/// After this long a server that does not answer never will.
const PATIENCE: Duration = Duration::from_secs(120);
const RETRY: Duration = Duration::from_micros(500);
/// Bytes that one item takes in memory besides its value, generously.
const ITEM_BYTES: u64 = 120;

/// Fills a tenant, kills its server and measures how soon it serves again.
#[derive(Parser)]
#[command(after_help = "Examples:
  survive                                 10 million items on tmpfs, 12 kills in a row
  survive --items 100000 --dir /var/tmp   a few, on a disk")]
struct Args {
    /// Items of 20 bytes of key.
    #[arg(long, default_value_t = 10_000_000)]
    items: u64,
    /// Bytes of each value.
    #[arg(long, default_value_t = 64)]
    value_len: u64,
    /// How often it is killed.
    #[arg(long, default_value_t = 12)]
    rounds: usize,
    /// Where data and image are, in a directory that is removed in the end.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("survive: {failure}");
            ExitCode::from(failure.code as u8)
        }
    }
}

fn failed(what: &str, error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Os, format!("{what}: {error}"))
}

/// What is asked of a server.
struct Client {
    stream: UnixStream,
    answers: BufReader<UnixStream>,
}

impl Client {
    fn ask(&mut self, request: &str, end: &str) -> Result<Vec<String>, Failure> {
        let lost = |error| failed("the server", error);
        self.stream.write_all(request.as_bytes()).map_err(lost)?;
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if self.answers.read_line(&mut line).map_err(lost)? == 0 {
                return Err(failed("the server", "it has closed the connection"));
            }
            let line = line.trim_end().to_owned();
            let is_last = line == end;
            lines.push(line);
            if is_last {
                return Ok(lines);
            }
        }
    }

    fn stat(&mut self, name: &str) -> Result<u64, Failure> {
        let lines = self.ask("stats tenants\r\n", "END")?;
        let head = format!("STAT first:{name} ");
        let value = lines.iter().find_map(|line| line.strip_prefix(&head));
        Ok(value
            .and_then(|value| value.parse().ok())
            .unwrap_or_default())
    }
}

/// Where everything is.
struct Place {
    nyx: PathBuf,
    directory: tempfile::TempDir,
}

impl Place {
    fn door(&self) -> PathBuf {
        self.directory.path().join("door")
    }

    fn configure(&self, args: &Args) -> Result<(), Failure> {
        let size = (args.items * (args.value_len + ITEM_BYTES)).max(64 << 20) >> 10;
        let (path, door) = (self.directory.path(), self.door());
        let text = format!(
            "[server]\nlisten = [\"unix:{}\"]\nworkers = 2\ndata_dir = {path:?}\n\
             [policy]\nkind = \"none\"\n\
             [[device]]\nkind = \"file\"\nsize = \"{size}KiB\"\n\
             [[tenant]]\nname = \"first\"\ndurability = \"crash\"\n",
            door.display()
        );
        let written = std::fs::write(path.join("nyx.toml"), text);
        written.map_err(|error| failed("the configuration", error))
    }

    /// Starts a server and waits until it has the probe's value, if it is to have it.
    fn start(&self, has_probe: bool) -> Result<(Running, Client, Duration), Failure> {
        let began = Instant::now();
        let child = Command::new(&self.nyx)
            .args(["serve", "--config"])
            .arg(self.directory.path().join("nyx.toml"))
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| failed("nyx serve", error))?;
        let server = Running(child);
        let stream = loop {
            match UnixStream::connect(self.door()) {
                Ok(stream) => break stream,
                Err(error) if began.elapsed() > PATIENCE => return Err(failed("nyx serve", error)),
                Err(_) => std::thread::sleep(RETRY),
            }
        };
        let answers = stream
            .try_clone()
            .map_err(|error| failed("a socket", error))?;
        let mut client = Client {
            stream,
            answers: BufReader::new(answers),
        };
        let found = client.ask(&format!("get {}\r\n", PROBE.0), "END")?;
        let took = began.elapsed();
        let is_there = found.iter().any(|line| line == PROBE.1);
        match is_there == has_probe {
            true => Ok((server, client, took)),
            false => Err(failed("the probe", "it is not there")),
        }
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    let directory = tempfile::tempdir_in(&args.dir);
    let place = Place {
        nyx: build().map_err(|why| Failure::new(Exit::Os, why))?,
        directory: directory.map_err(|error| failed("a directory", error))?,
    };
    place.configure(args)?;
    let (server, mut client, took) = place.start(false)?;
    println!("first start, with a profile made: {:.0} ms", millis(took));
    let set = format!("set {} 0 0 {}\r\n{}\r\n", PROBE.0, PROBE.1.len(), PROBE.1);
    client.ask(&set, "STORED")?;
    fill(args, &place)?;
    let items = client.stat("items")?;
    println!(
        "{items} items, {} evicted; killed",
        client.stat("evictions")?
    );
    drop(server);
    println!("round  ready_ms");
    let mut times = Vec::new();
    for round in 0..args.rounds {
        let (_server, _, took) = place.start(true)?;
        println!("{round:>5}  {:>8.1}", millis(took));
        times.push(took);
    }
    times.sort_unstable();
    let (median, worst) = (times.get(times.len() / 2), times.last());
    let told = |time: Option<&Duration>| time.map_or(0.0, |time| millis(*time));
    println!(
        "median {:.1} ms, worst {:.1} ms, real",
        told(median),
        told(worst)
    );
    look_through(&place)
}

fn fill(args: &Args, place: &Place) -> Result<(), Failure> {
    let status = Command::new(&place.nyx)
        .args(["bench", "-s", &format!("unix:{}", place.door().display())])
        .args(["-k", &args.items.to_string(), "--key-len", "20"])
        .args(["-l", &args.value_len.to_string(), "--duration", "1s"])
        .stdout(Stdio::null())
        .status()
        .map_err(|error| failed("nyx bench", error))?;
    match status.success() {
        true => Ok(()),
        false => Err(failed("nyx bench", status)),
    }
}

/// Lets it look through everything, once.
fn look_through(place: &Place) -> Result<(), Failure> {
    let (_server, mut client, _) = place.start(true)?;
    let began = Instant::now();
    let all = client.stat("swept_chains_all")?;
    while client.stat("swept_chains")? < all {
        std::thread::sleep(Duration::from_millis(100));
    }
    println!(
        "all looked through after {:.1} s: {} items, {} places dropped",
        began.elapsed().as_secs_f64(),
        client.stat("items")?,
        client.stat("swept_dropped")?
    );
    Ok(())
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
