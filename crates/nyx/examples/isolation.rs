//! What a noisy neighbour does to a latency-critical tenant of a real server, and what each policy
//! does about it: the critical tenant's latencies as its clients see them, beside how much of the
//! device was in use and what the neighbour got. Isolation bought by idling is worthless.
//!
//! For each cell a `nyx serve` of its own is started on a unix socket, over a modelled device in
//! real time, and a `nyx bench` that plays both tenants on another CPU: an open loop of gets for
//! the critical one, whose latencies count from when a request was due, and a closed loop of sets
//! for the neighbour. Numbers are *emulated*. Cells take turns, so that the machine's drift hits
//! all of them.
//!
//! What it never does: judge. It prints medians, spreads and every run, disturbed ones included.
//!
//! `cargo run --release -p nyx --example isolation [-- --runs 5 --seconds 8]`

#[path = "rig/figure.rs"]
mod figure;
mod rig;

use clap::{Parser, ValueEnum};
use figure::figure;
use nyx::{Exit, Failure};
use rig::{Running, build};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// The server's first worker is bound to CPU 0, the clients to this one.
const GENERATOR_CPU: &str = "1";
/// After this long a server that does not answer never will.
const PATIENCE: Duration = Duration::from_secs(60);
/// Accounts are read so long after the window's beginning and before its end.
const MARGIN: Duration = Duration::from_millis(200);
/// Where more than this part of the critical tenant's latencies were set aside, because somebody
/// else had the server's CPU or its clients', a run is called disturbed.
const DISTURBED: f64 = 0.05;
const CRITICAL_BYTES: usize = 1024;
const NEIGHBOUR_BYTES: usize = 4096;
const NEIGHBOUR_CONNECTIONS: usize = 4;

/// Measures a critical tenant's latencies alone, beside a noisy neighbour, and under each policy.
///
/// The critical tenant gets 1 KiB at random times, whether it is answered in time or not. The
/// neighbour sets 4 KiB, as fast as it is answered. Each policy is told the same promise in its
/// own words: a target for qos and caladan, a slowdown limit for slowdown, and a part of the device
/// for the neighbour under all others, which bytes and ops take as a part of the bytes and
/// operations that the device can read.
#[derive(Parser)]
#[command(after_help = "Examples:
  isolation                                  all cells, five runs of 8 s each
  isolation --policies none,limit,qos        some of them (alone is always measured)
  isolation --runs 1 --policies qos --tell   one, and what the policy decided
  isolation --model optane-2dimm/8 --rate 8000")]
struct Args {
    /// Measured time of each cell, in seconds.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..=3600))]
    seconds: u64,
    /// Load before that, in seconds: policies are to have settled.
    #[arg(long, default_value_t = 4)]
    warm_up: u64,
    /// Runs of each cell.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// The device model.
    #[arg(long, default_value = "optane-2dimm/64")]
    model: String,
    /// Who decides, in the cells with a neighbour.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Cell::WITH_NEIGHBOUR)]
    policies: Vec<Cell>,
    /// The critical tenant's gets a second.
    #[arg(long, default_value_t = 4000)]
    rate: u64,
    /// What qos and caladan promise the critical tenant, as the server sees it.
    #[arg(long, default_value = "p99 300us")]
    target: String,
    /// How many times slower than alone slowdown lets the critical tenant get.
    #[arg(long, default_value_t = 2.0)]
    slowdown_limit: f64,
    /// The neighbour's part of the device, in percent: its limit, or its weight.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u8).range(1..=99))]
    limit: u8,
    /// How many sets the neighbour sends at a time on each of its four connections.
    #[arg(long, default_value_t = 8)]
    depth: u64,
    /// The server's workers. With one, pinned to a CPU of its own, the clients have the other.
    #[arg(long, default_value_t = 1)]
    workers: u16,
    /// Print what the policies decided.
    #[arg(long)]
    tell: bool,
    /// The nyx binary; built where it is not given.
    #[arg(long)]
    nyx: Option<PathBuf>,
}

/// What is measured: the critical tenant alone, or beside its neighbour under some policy.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Cell {
    Alone,
    None,
    Bytes,
    Ops,
    Partition,
    Caladan,
    Memguard,
    Limit,
    Qos,
    Slowdown,
    Share,
}

impl Cell {
    const WITH_NEIGHBOUR: [Cell; 10] = [
        Cell::None,
        Cell::Bytes,
        Cell::Ops,
        Cell::Partition,
        Cell::Caladan,
        Cell::Memguard,
        Cell::Limit,
        Cell::Qos,
        Cell::Slowdown,
        Cell::Share,
    ];

    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn kind(self) -> String {
        match self {
            Cell::Alone => Cell::None.name(),
            other => other.name(),
        }
    }

    /// What the policy is told of the critical tenant and of its neighbour.
    fn terms(self, args: &Args) -> [String; 2] {
        let none = String::new;
        let limit = args.limit;
        match self {
            Cell::Alone | Cell::None => [none(), none()],
            Cell::Bytes | Cell::Ops | Cell::Limit => [none(), format!("limit = \"{limit}%\"")],
            Cell::Partition | Cell::Memguard | Cell::Share => [
                format!("weight = {}", 100 - limit),
                format!("weight = {limit}"),
            ],
            Cell::Caladan | Cell::Qos => [format!("target = \"{}\"", args.target), none()],
            Cell::Slowdown => [format!("slowdown_limit = {}", args.slowdown_limit), none()],
        }
    }

    fn config(self, args: &Args, dir: &Path) -> String {
        let [critical, neighbour] = self.terms(args);
        format!(
            r#"
[server]
listen = ["unix:{dir}/door"]
data_dir = "{dir}/data"
workers = {workers}
pin_workers = true
[policy]
kind = "{kind}"
# What is promised is to be tried, not judged beforehand.
oversubscribe = true
[[device]]
name = "main"
kind = "anon"
size = "192MiB"
model = "{model}"
[[tenant]]
name = "critical"
size = "64MiB"
key_prefix = "c:"
{critical}
[[tenant]]
name = "neighbour"
size = "64MiB"
key_prefix = "n:"
{neighbour}
"#,
            dir = dir.display(),
            workers = args.workers,
            kind = self.kind(),
            model = args.model,
        )
    }
}

fn failed(what: &str, why: impl ToString) -> Failure {
    Failure::new(Exit::Software, format!("{what}: {}", why.to_string()))
}

/// A running server; it ends with the value.
struct Server {
    process: Running,
    door: PathBuf,
}

impl Server {
    fn start(nyx: &Path, config: &str, dir: &Path) -> Result<Server, Failure> {
        let file = dir.join("nyx.toml");
        let door = dir.join("door");
        std::fs::write(&file, config).map_err(|error| failed("the configuration", error))?;
        let child = Command::new(nyx)
            .env_clear()
            .args(["serve", "-qq", "--config"])
            .arg(&file)
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| failed("nyx serve", error))?;
        let process = Running(child);
        let mut server = Server { process, door };
        let deadline = Instant::now() + PATIENCE;
        while server.stats("tenants").is_err() {
            let ended = server.process.0.try_wait().ok().flatten();
            if let Some(status) = ended {
                return Err(failed("nyx serve", status));
            }
            if Instant::now() > deadline {
                return Err(failed("nyx serve", "it does not answer"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Names and values.
    fn stats(&self, what: &str) -> Result<Vec<(String, String)>, Failure> {
        let told = |error| failed("nyx serve", error);
        let mut stream = UnixStream::connect(&self.door).map_err(told)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(told)?;
        let request = format!("stats {what}\r\n");
        stream.write_all(request.as_bytes()).map_err(told)?;
        let mut found = Vec::new();
        for line in BufReader::new(stream).lines() {
            let line = line.map_err(told)?;
            let mut words = line.splitn(3, ' ');
            match (words.next(), words.next(), words.next()) {
                (Some("STAT"), Some(name), Some(value)) => found.push((name.into(), value.into())),
                (Some("END"), ..) => return Ok(found),
                _ => return Err(failed("nyx serve", format!("answers {line:?}"))),
            }
        }
        Err(failed("nyx serve", "it ended in the middle of an answer"))
    }

    /// Seconds of the device that the critical tenant and its neighbour have used, and when.
    fn used_s(&self) -> Result<([f64; 2], Instant), Failure> {
        let (stats, at) = (self.stats("tenants")?, Instant::now());
        let of = |tenant: &str| -> Result<f64, Failure> {
            let name = format!("{tenant}:device_seconds");
            let stat = stats.iter().find(|one| one.0 == name);
            let seconds = stat.and_then(|one| one.1.parse().ok());
            seconds.ok_or_else(|| failed(&name, "not told"))
        };
        Ok(([of("critical")?, of("neighbour")?], at))
    }

    /// A load generator that plays some tenants, by their words for `nyx bench --tenant`.
    fn bench(&self, nyx: &Path, tenants: &[String], args: &[&str]) -> Result<Child, Failure> {
        Command::new(nyx)
            .env_clear()
            .args(["bench", "--no-progress", "--json", "-", "--server"])
            .arg(format!("unix:{}", self.door.display()))
            .args(["--pin", GENERATOR_CPU, "--key-len=16"])
            .args([
                "--set-aside",
                "--server-pid",
                &self.process.0.id().to_string(),
            ])
            .args(tenants.iter().flat_map(|words| ["--tenant", words]))
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed("nyx bench", error))
    }
}

/// What a load generator found.
fn found(bench: Child) -> Result<Value, Failure> {
    let told = |error: &dyn ToString| failed("nyx bench", error.to_string());
    let output = bench.wait_with_output().map_err(|error| told(&error))?;
    if !output.status.success() {
        return Err(told(&output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| told(&error))
}

/// One run of one cell.
#[derive(Clone, Copy)]
struct Run {
    /// P50, P90, P99, P99.9 of the critical tenant, as its clients see it.
    latency_us: [f64; 4],
    /// Its gets a second.
    gets_per_s: f64,
    /// What its neighbour wrote.
    mb_per_s: f64,
    /// What the critical tenant and its neighbour used of the device.
    shares: [f64; 2],
    /// CPUs of the server and of both generators.
    cpus: [f64; 2],
    /// For which part of the window the server's threads, and the critical tenant's clients, were
    /// ready and had no CPU.
    waited: [f64; 2],
    /// The part of the critical tenant's latencies that were set aside for that.
    aside: f64,
    /// The machine's load of the last minute.
    load: f64,
}

/// The columns after the first, and with how many decimals.
const COLUMNS: [(&str, usize); 13] = [
    ("P50 us", 0),
    ("P90 us", 0),
    ("P99 us", 0),
    ("P99.9 us", 0),
    ("gets/s", 0),
    ("neighbour MB/s", 1),
    ("device %", 1),
    ("critical's %", 1),
    ("server CPUs", 2),
    ("clients' CPUs", 2),
    ("no CPU %", 1),
    ("set aside %", 1),
    ("load", 1),
];

impl Run {
    fn figures(&self) -> [f64; COLUMNS.len()] {
        let [p50, p90, p99, p999] = self.latency_us;
        let [critical, neighbour] = self.shares;
        [
            p50,
            p90,
            p99,
            p999,
            self.gets_per_s,
            self.mb_per_s,
            (critical + neighbour) * 100.0,
            critical * 100.0,
            self.cpus[0],
            self.cpus[1],
            self.waited[0].max(self.waited[1]) * 100.0,
            self.aside * 100.0,
            self.load,
        ]
    }

    fn is_disturbed(&self) -> bool {
        self.aside > DISTURBED
    }
}

fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next().and_then(|one| one.parse().ok());
    first.unwrap_or(f64::NAN)
}

/// The words of a tenant for `nyx bench`.
fn words(args: &Args, cell: Cell) -> Vec<String> {
    let critical = format!(
        "name=critical prefix=c: keys=10000 value-len={CRITICAL_BYTES} mix=get:100 \
         connections=16 rate={}",
        args.rate
    );
    let neighbour = format!(
        "name=neighbour prefix=n: keys=4000 value-len={NEIGHBOUR_BYTES} mix=set:100 \
         connections={NEIGHBOUR_CONNECTIONS}"
    );
    match cell {
        Cell::Alone => vec![critical],
        _ => vec![critical, neighbour],
    }
}

/// One run of one cell, on a server of its own.
fn measure(args: &Args, nyx: &Path, dir: &Path, cell: Cell) -> Result<Run, Failure> {
    let server = Server::start(nyx, &cell.config(args, dir), dir)?;
    let words = words(args, cell);
    // The critical tenant's values, first of all.
    found(server.bench(nyx, &words[..1], &["--depth=16", "--ops=1", "--warm-up=0"])?)?;
    let frame = [
        "--no-fill".to_owned(),
        format!("--depth={}", args.depth),
        format!("--warm-up={}", args.warm_up),
        format!("--duration={}", args.seconds),
    ];
    let bench = server.bench(nyx, &words, &frame.each_ref().map(String::as_str))?;
    let begin = Instant::now() + Duration::from_secs(args.warm_up);
    sleep_until(begin + MARGIN);
    let (before, since) = server.used_s()?;
    sleep_until(begin + Duration::from_secs(args.seconds) - MARGIN);
    let (after, until) = server.used_s()?;
    let bench = found(bench)?;
    if args.tell {
        for (name, value) in server.stats("policy")? {
            eprintln!("    {name} {value}");
        }
    }
    let of = |path: &str| figure(&bench, path);
    let aside = of("tenants/0/aside");
    let counted = of("tenants/0/reads/count");
    let sets_per_s = match cell {
        Cell::Alone => 0.0,
        _ => of("tenants/1/ops_per_s"),
    };
    let elapsed_s = (until - since).as_secs_f64();
    Ok(Run {
        latency_us: ["p50", "p90", "p99", "p999"]
            .map(|name| of(&format!("tenants/0/reads/{name}_us"))),
        gets_per_s: of("tenants/0/ops_per_s"),
        mb_per_s: sets_per_s * NEIGHBOUR_BYTES as f64 / 1e6,
        shares: std::array::from_fn(|at| (after[at] - before[at]) / elapsed_s),
        cpus: ["server", "generator"].map(|who| of(&format!("{who}/cpus"))),
        waited: ["server", "generator"].map(|who| of(&format!("{who}/wait_share"))),
        aside: aside / (aside + counted),
        load: load(),
    })
}

fn sleep_until(then: Instant) {
    std::thread::sleep(then.saturating_duration_since(Instant::now()));
}

/// The middle of some figures, or the mean of the two in the middle; the least and the most.
fn spread(mut figures: Vec<f64>) -> [f64; 3] {
    figures.sort_unstable_by(f64::total_cmp);
    let half = figures.len() / 2;
    let median = match figures.len() % 2 {
        1 => figures[half],
        _ => (figures[half - 1] + figures[half]) / 2.0,
    };
    [median, figures[0], figures[figures.len() - 1]]
}

fn heads() -> String {
    let names = COLUMNS.map(|column| column.0).join(" | ");
    let lines = "---:|".repeat(COLUMNS.len());
    format!("| cell | {names} |\n|---|{lines}")
}

/// Medians with the least and the most in brackets, and how many runs were disturbed.
fn summary(cells: &[(Cell, Vec<Run>)]) -> String {
    let mut text = heads().replace("| load |\n", "| load | disturbed |\n") + "---:|\n";
    for (cell, runs) in cells {
        let _ = write!(text, "| {} |", cell.name());
        for (at, (_, decimals)) in COLUMNS.iter().enumerate() {
            let figures = runs.iter().map(|run| run.figures()[at]).collect();
            let [median, least, most] = spread(figures);
            let _ = write!(
                text,
                " {median:.decimals$} [{least:.decimals$}, {most:.decimals$}] |"
            );
        }
        let disturbed = runs.iter().filter(|run| run.is_disturbed()).count();
        let _ = writeln!(text, " {disturbed} of {} |", runs.len());
    }
    text
}

fn row(cell: Cell, run: &Run) -> String {
    let mut text = format!("| {} |", cell.name());
    for ((_, decimals), figure) in COLUMNS.iter().zip(run.figures()) {
        let _ = write!(text, " {figure:.decimals$} |");
    }
    if run.is_disturbed() {
        text.push_str(" disturbed");
    }
    text
}

/// Keeps the processors from sleeping as long as the file lives, if this user may. A virtual
/// processor that sleeps is given to others, and waking it takes up to milliseconds: on a quiet
/// machine that would be the tail that is measured.
fn keep_awake() -> std::io::Result<File> {
    let mut file = File::options().write(true).open("/dev/cpu_dma_latency")?;
    // The latency that is borne, in microseconds: none. (Zero is zero in any byte order.)
    file.write_all(&[0; 4])?;
    Ok(file)
}

fn run(args: &Args) -> Result<(), Failure> {
    let awake = keep_awake();
    match &awake {
        Ok(_) => println!("processors are kept awake (/dev/cpu_dma_latency)"),
        Err(why) => println!("processors may sleep: /dev/cpu_dma_latency: {why}"),
    }
    let nyx = args.nyx.clone().map_or_else(build, Ok);
    let nyx = nyx.map_err(|why| Failure::new(Exit::Software, why))?;
    let dir = tempfile::tempdir().map_err(|error| failed("a directory", error))?;
    let mut cells = vec![(Cell::Alone, Vec::new())];
    let others = args.policies.iter().filter(|cell| **cell != Cell::Alone);
    cells.extend(others.map(|&cell| (cell, Vec::new())));
    println!(
        "emulated: {} in real time, {} worker(s); critical: {} gets/s of 1 KiB at random times; \
         neighbour: sets of 4 KiB, {NEIGHBOUR_CONNECTIONS} connections with {} at a time; target \
         {}, slowdown limit {}, neighbour's part {} %; {} runs by turns, {} s each after {} s\n",
        args.model,
        args.workers,
        args.rate,
        args.depth,
        args.target,
        args.slowdown_limit,
        args.limit,
        args.runs,
        args.seconds,
        args.warm_up
    );
    println!("{}", heads());
    for _ in 0..args.runs {
        for (cell, runs) in &mut cells {
            let run = measure(args, &nyx, dir.path(), *cell)?;
            println!("{}", row(*cell, &run));
            runs.push(run);
        }
    }
    println!(
        "\nEmulated; medians of {} runs, the least and the most in brackets. Latencies of moments \
         in which somebody else had the CPU of the server or of its clients are set aside; where \
         those are more than {:.0} % a run counts as disturbed.\n\n{}",
        args.runs,
        DISTURBED * 100.0,
        summary(&cells)
    );
    Ok(())
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("isolation: {failure}");
            ExitCode::from(failure.code as u8)
        }
    }
}
