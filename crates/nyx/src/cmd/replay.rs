//! `nyx replay`: recorded requests, played against a server.
//!
//! What it never does: change what a trace asks for without saying so: requests left out and values
//! cut short are counted in the table.

use crate::Failure;
use crate::cmd::bench::deliver;
use crate::load::LoadError;
use crate::load::address::{Address, Login};
use crate::load::duration;
use crate::load::engine::EngineTarget;
use crate::load::replay::{Manner, SocketTarget, Target};
use crate::load::report::{self, Done, EVIDENCE, fixed, percent, table};
use nyx_base::Bytes;
use nyx_sim::workload::Op;
use nyx_sim::workload::trace::{Format, Reader, Request};
use nyx_store::Eviction;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to wait after a `flush_all`: memcached's clock has whole seconds, and what is stored in
/// the second of a flush is flushed with the rest.
const FLUSH_SETTLES: Duration = Duration::from_secs(2);
/// How many requests pass between two looks at the clock for the progress line.
const TELL_EVERY: u64 = 4096;

/// Play recorded requests against a server: miss ratio, byte miss ratio, latencies.
///
/// Reads are look-aside: a get that misses is followed by a set of the trace's size. Traces may be
/// packed by gzip, xz or zstd; their format is told from their first bytes and their name.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Formats: twitter, meta, oracle (oracleGeneral), cloudphysics, keys, cache2k, \
adaptsize, arc.

Examples:
  nyx replay cluster52.sort.zst                      as fast as the server answers
  nyx replay --flush --as-gets *.oracleGeneral.zst   miss ratios as a cache simulator counts them
  nyx replay --speed 10 --server unix:/run/nyx.sock cluster52.csv
                                                     ten times as fast as it was recorded
  nyx replay --flush --server lru=127.0.0.1:11211 --server s3=127.0.0.1:11212 web.trace.xz
                                                     one table for several servers or tenants
  nyx replay --engine 64MiB --as-gets web.trace.xz   miss ratio of every eviction policy"
)]
pub struct Args {
    /// Traces, played one after the other.
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Where the server listens: HOST:PORT or unix:PATH, with a name for the table in front of it
    /// if you like. Give it once for each server [default: 127.0.0.1:11211].
    #[arg(short, long, value_name = "[NAME=]ADDRESS", value_parser = named)]
    server: Vec<Named>,
    /// Play into a cache of this size in this process instead, without sockets: once for each
    /// eviction policy.
    #[arg(long, value_name = "SIZE", conflicts_with = "server")]
    engine: Option<Bytes>,
    /// The eviction policies of --engine: fifo, lru, lfu, s3-fifo, merge [default: all].
    #[arg(
        long,
        value_name = "POLICY",
        value_delimiter = ',',
        requires = "engine"
    )]
    eviction: Vec<Eviction>,
    /// Log in by memcached's ASCII authentication.
    #[arg(long, value_name = "USER:PASSWORD")]
    login: Option<Login>,
    /// The traces' format, where it is not recognised.
    #[arg(long)]
    format: Option<Format>,
    /// Play this many requests of each trace.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Empty the cache (flush_all) before each trace.
    #[arg(long)]
    flush: bool,
    /// Count every request as a read, as cache simulators do.
    #[arg(long)]
    as_gets: bool,
    /// Multiply values' lengths.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    scale_size: f64,
    /// Length of values where the trace has none, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    value_len: u32,
    /// Values longer than this are cut to it, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 1_000_000)]
    value_len_max: u32,
    /// Keep the trace's times, this many times faster; without it, as fast as the server answers.
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    speed: Option<f64>,
    /// What every key begins with.
    #[arg(long, default_value = "")]
    prefix: String,
    /// Connections. A key always uses the same one.
    #[arg(short, long, value_name = "N", default_value_t = 16,
        value_parser = clap::value_parser!(u64).range(1..=10_000))]
    connections: u64,
    /// Requests outstanding on a connection at most. One connection of depth 1 keeps the trace's
    /// exact order.
    #[arg(short, long, value_name = "N", default_value_t = 16,
        value_parser = clap::value_parser!(u64).range(1..=10_000))]
    depth: u64,
    /// Poll without sleeping.
    #[arg(long)]
    busy_poll: bool,
    /// Check every byte of every hit.
    #[arg(long)]
    verify: bool,
    /// End with an error when nothing moves for this long.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    stall: Duration,
    /// Write the result as JSON to a file, or - for standard output instead of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Say nothing while it runs.
    #[arg(long)]
    no_progress: bool,
}

/// A server and what the table calls it.
#[derive(Clone, Debug)]
struct Named {
    name: String,
    address: Address,
}

fn named(text: &str) -> Result<Named, String> {
    // A path may hold an equals sign; a name has neither slash nor colon.
    let (name, address) = match text.split_once('=') {
        Some((name, address)) if !name.contains(['/', ':']) => (name, address),
        _ => (text, text),
    };
    Ok(Named {
        name: name.to_owned(),
        address: address.parse()?,
    })
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if (1e-9..=1e9).contains(&factor) => Ok(factor),
        _ => Err("a factor is a number above 0".to_owned()),
    }
}

/// One trace against one server.
#[derive(Debug, Serialize)]
struct Played {
    trace: String,
    format: String,
    server: String,
    requests: u64,
    miss_ratio: Option<f64>,
    byte_miss_ratio: Option<f64>,
    /// Values that were cut to the longest length.
    cut_values: u64,
    elapsed_s: f64,
    #[serde(flatten)]
    done: Done,
    #[serde(skip)]
    read_bytes: u64,
    #[serde(skip)]
    missed_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Replay {
    schema: &'static str,
    evidence: &'static str,
    runs: Vec<Played>,
}

/// Plays every trace against every server, and prints what came out.
pub fn run(args: Args) -> Result<(), Failure> {
    let mut runs = Vec::new();
    for trace in &args.traces {
        match args.engine {
            Some(size) => play_into_engines(&args, trace, size, &mut runs)?,
            None => play_against_servers(&args, trace, &mut runs)?,
        }
    }
    let text = text(&runs);
    let replay = Replay {
        schema: "nyx.replay/1",
        evidence: EVIDENCE,
        runs,
    };
    deliver(args.json.as_deref(), &report::json(&replay), &text)
}

fn play_into_engines(
    args: &Args,
    trace: &Path,
    size: Bytes,
    runs: &mut Vec<Played>,
) -> Result<(), Failure> {
    let all = Eviction::ALL;
    let chosen = if args.eviction.is_empty() {
        &all[..]
    } else {
        &args.eviction
    };
    for &eviction in chosen {
        let mut target = EngineTarget::new(size, eviction, args.value_len_max)?;
        runs.push(play(
            args,
            trace,
            &format!("{eviction} {size}"),
            &mut target,
        )?);
    }
    Ok(())
}

fn play_against_servers(args: &Args, trace: &Path, runs: &mut Vec<Played>) -> Result<(), Failure> {
    let here = [named("127.0.0.1:11211").map_err(Failure::usage)?];
    let servers = if args.server.is_empty() {
        &here[..]
    } else {
        &args.server
    };
    for server in servers {
        if args.flush {
            flush(args, server)?;
        }
        let manner = Manner {
            address: server.address.clone(),
            login: args.login.clone(),
            prefix: args.prefix.clone(),
            connections: args.connections as usize,
            depth: args.depth as usize,
            busy_poll: args.busy_poll,
            verify: args.verify,
            stall: args.stall,
        };
        let mut target = SocketTarget::new(manner)?;
        runs.push(play(args, trace, &server.name, &mut target)?);
    }
    Ok(())
}

fn flush(args: &Args, server: &Named) -> Result<(), Failure> {
    let reply = server.address.ask(args.login.as_ref(), b"flush_all\r\n")?;
    match reply.as_str() {
        "OK" => {
            std::thread::sleep(FLUSH_SETTLES);
            Ok(())
        }
        _ => Err(LoadError::Protocol {
            address: server.address.clone(),
            what: "flush_all",
            reply,
        }
        .into()),
    }
}

/// Plays one trace against one target.
fn play(
    args: &Args,
    trace: &Path,
    server: &str,
    target: &mut dyn Target,
) -> Result<Played, Failure> {
    let reader = Reader::open(trace, args.format).map_err(LoadError::from)?;
    let format = reader.format().to_string();
    let (mut requests, mut cut_values, mut first_at) = (0, 0, None);
    let start = Instant::now();
    let mut told = Told::new(args, start);
    for request in reader {
        let request = request.map_err(LoadError::from)?;
        if args.limit.is_some_and(|limit| requests >= limit) {
            break;
        }
        let (request, cut) = adapted(args, request);
        cut_values += u64::from(cut);
        let since = request.at.since(*first_at.get_or_insert(request.at));
        let due = args
            .speed
            .map(|s| start + Duration::from_secs_f64(since.as_secs_f64() / s));
        target.request(&request, due)?;
        requests += 1;
        if requests % TELL_EVERY == 0 {
            told.tell(requests, target);
        }
    }
    target.finish()?;
    let elapsed = start.elapsed();
    told.end();
    let tally = target.tally();
    let counts = tally.counts;
    let ratio = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
    Ok(Played {
        trace: trace
            .file_name()
            .unwrap_or(trace.as_os_str())
            .to_string_lossy()
            .into_owned(),
        format,
        server: server.to_owned(),
        requests,
        miss_ratio: ratio(counts.misses, counts.hits + counts.misses),
        byte_miss_ratio: ratio(counts.missed_bytes, counts.read_bytes),
        cut_values,
        elapsed_s: elapsed.as_secs_f64(),
        read_bytes: counts.read_bytes,
        missed_bytes: counts.missed_bytes,
        done: Done::of(server, tally, 0, elapsed),
    })
}

/// The request as the options change it, and whether its value was cut.
fn adapted(args: &Args, mut request: Request) -> (Request, bool) {
    if args.as_gets {
        request.op = Op::Get;
    }
    let len = f64::from(request.value_len.unwrap_or(args.value_len)) * args.scale_size;
    let cut = len > f64::from(args.value_len_max);
    request.value_len = Some((len.round() as u64).min(u64::from(args.value_len_max)) as u32);
    (request, cut)
}

/// The progress line.
struct Told {
    on: bool,
    start: Instant,
    last: Instant,
    told: bool,
}

impl Told {
    fn new(args: &Args, start: Instant) -> Told {
        let on = !args.no_progress && std::io::stderr().is_terminal();
        Told {
            on,
            start,
            last: start,
            told: false,
        }
    }

    fn tell(&mut self, requests: u64, target: &mut dyn Target) {
        if !self.on || self.last.elapsed() < Duration::from_secs(1) {
            return;
        }
        self.last = Instant::now();
        self.told = true;
        let counts = target.tally().counts;
        eprint!(
            "\r{:4.0} s  {requests:>11} requests  {:>9.0} a second  misses {} %  errors {}   ",
            self.start.elapsed().as_secs_f64(),
            requests as f64 / self.start.elapsed().as_secs_f64(),
            percent(counts.misses, counts.hits + counts.misses),
            counts.errors(),
        );
        // A terminal that went away does not end the run.
        let _ = std::io::stderr().flush();
    }

    fn end(&self) {
        if self.told {
            eprintln!();
        }
    }
}

fn text(runs: &[Played]) -> String {
    let rows: Vec<Vec<String>> = (runs.iter())
        .map(|run| {
            let reads = run.done.reads.as_ref();
            vec![
                run.trace.clone(),
                run.server.clone(),
                run.requests.to_string(),
                (run.done.hits + run.done.misses).to_string(),
                percent(run.done.misses, run.done.hits + run.done.misses),
                percent(run.missed_bytes, run.read_bytes),
                format!("{:.0}", run.requests as f64 / run.elapsed_s),
                reads.map_or("-".into(), |l| fixed(l.p50_us)),
                reads.map_or("-".into(), |l| fixed(l.p99_us)),
                run.cut_values.to_string(),
                run.done.errors.values().sum::<u64>().to_string(),
            ]
        })
        .collect();
    let heads = [
        "trace",
        "server",
        "requests",
        "gets",
        "miss %",
        "byte miss %",
        "requests/s",
        "get p50 us",
        "p99",
        "cut",
        "errors",
    ];
    format!("{}\nevidence {EVIDENCE}\n", table(&heads, &rows))
}
