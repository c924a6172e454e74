//! `nyx bench`: a load generator for any server of memcached's protocol.
//!
//! What it never does: serve. It measures over sockets, so what it prints is evidence of kind
//! *real*.

mod ycsb;

use crate::cmd::print;
use crate::load::address::{Address, Login};
use crate::load::pair::{self, Rival};
use crate::load::plan::{Plan, Tenant};
use crate::load::report::{self, Bench};
use crate::load::run::{self, Frame, Until};
use crate::load::{LoadError, duration};
use crate::{Exit, Failure};
use nyx_sim::workload::{Lengths, OpMix, Popularity, Spec, TtlMix, preset};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Keys where none are asked for.
const KEYS: u64 = 1_000_000;
/// With keys not asked for, all keys and values together stay below this, in bytes.
const FOOTPRINT_BYTES: f64 = (1u64 << 30) as f64;
/// Connections where none are asked for.
const CONNECTIONS: u64 = 64;
/// The longest pipeline and the most keys of one get.
const DEPTH_MAX: u64 = 10_000;

/// Measure a memcached-protocol server: throughput, latencies, hit ratio, CPU time of an operation.
///
/// Stores all keys, warms up, then measures. A closed loop (the default) keeps every connection
/// busy; with --rate it is an open loop, whose latencies count from when a request was due.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  nyx bench                                      100 B gets of a million keys on 127.0.0.1:11211
  nyx bench --depth 16 --busy-poll --pin 1 --server-pid 4242
                                                 the server's CPU time for a pipelined get
  nyx bench --mix get:90,set:10 --popularity zipf:0.99 --value-len 64-4096 --fill-on-miss
  nyx bench --rate 20000 --duration 60s          latencies of 20,000 requests a second
  nyx bench --workload twitter:52 --fill-on-miss a published cache: keys, lengths, mix, TTLs
  nyx bench --tenant 'name=web prefix=web: rate=5000' --tenant 'name=batch login=b:pw mix=set:100'
  nyx bench --depth 16 --busy-poll --pair nyx=127.0.0.1:11211,4242 --pair mc=127.0.0.1:11212,4243
                                                 two servers, in seven interleaved rounds each
  nyx bench --ycsb A..F --server-pid 4242        YCSB's core workloads, one after the other
  nyx bench --ycsb C --value-len 16384 --keys 200000 --fill-on-miss
                                                 reads of 16 KiB, look-aside")]
pub struct Args {
    /// Where the server listens: HOST:PORT or unix:PATH.
    #[arg(short, long, value_name = "ADDRESS", default_value = "127.0.0.1:11211")]
    server: Address,
    /// The server's process: its CPU time is measured.
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    /// Leave out of the latencies the moments in which the server or the generator waited for a CPU
    /// that somebody else had.
    #[arg(long, requires = "server_pid")]
    set_aside: bool,
    /// Compare servers in interleaved rounds; give it once for each.
    #[arg(long, value_name = "NAME=ADDRESS,PID", conflicts_with_all = ["server", "server_pid"])]
    pair: Vec<Rival>,
    /// Rounds of a comparison.
    #[arg(long, value_name = "N", default_value_t = 7,
        value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Play a tenant of its own: `key=value` words of name, server, prefix, login, connections,
    /// rate, workload, keys, key-len, value-len, popularity, mix, ttl. What is left out is as given
    /// by the options. Give it once for each tenant.
    #[arg(long, value_name = "WORDS")]
    tenant: Vec<String>,
    #[command(flatten)]
    load: Load,
    #[command(flatten)]
    ycsb: ycsb::Options,
    #[command(flatten)]
    drive: Drive,
    /// Write the result as JSON to a file, or - for standard output instead of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Say nothing while it runs.
    #[arg(long)]
    no_progress: bool,
}

/// What is asked for.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Workload")]
struct Load {
    /// A published cache: twitter:CLUSTER or meta:CACHE. The options below change parts of it.
    #[arg(short, long, value_name = "PRESET")]
    workload: Option<String>,
    /// Distinct keys [default: 1000000, or as many as 1 GiB holds].
    #[arg(short, long, value_name = "N", visible_alias = "records")]
    keys: Option<u64>,
    /// Length of a key in bytes, prefix included [default: 32].
    #[arg(long, value_name = "BYTES")]
    key_len: Option<usize>,
    /// What every key begins with.
    #[arg(long, default_value = "")]
    prefix: String,
    /// Length of a value in bytes: 100, 64-4096, or meta:CACHE [default: 100; 1000 with --ycsb].
    #[arg(short = 'l', long, value_name = "LENGTHS")]
    value_len: Option<Lengths>,
    /// Which keys: uniform, zipf:ALPHA, hotspot:KEYS%:REQUESTS%, scan, latest:ALPHA, meta:CACHE
    /// [default: uniform; zipf:0.99 with --ycsb].
    #[arg(short, long, value_name = "LAW")]
    popularity: Option<Popularity>,
    /// Which operations, by weight: get:90,set:10 of get, set, delete, incr, touch [default: get].
    #[arg(short, long, value_name = "MIX")]
    mix: Option<OpMix>,
    /// Times to live of what is stored, in seconds, by weight: 3600 or 60:80,3600:20
    /// [default: 0, for ever].
    #[arg(long, value_name = "TTLS")]
    ttl: Option<TtlMix>,
    /// Keys of one get.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..=DEPTH_MAX))]
    multiget: u64,
    /// Do not store the keys first.
    #[arg(long, visible_alias = "skip-load")]
    no_fill: bool,
    /// Keys of each tenant that are stored a second at first [default: as fast as the server takes
    /// them]. A server that drops what it cannot write to its disk in time needs it.
    #[arg(long, value_name = "R", value_parser = rate, conflicts_with = "no_fill")]
    fill_rate: Option<f64>,
    /// Store a key after a get that missed it.
    #[arg(long)]
    fill_on_miss: bool,
    /// Check every byte of every hit; a wrong one fails the run.
    #[arg(long)]
    verify: bool,
    /// Requests a second of each tenant, over all its connections: an open loop.
    #[arg(short, long, value_name = "R", value_parser = rate)]
    rate: Option<f64>,
    /// An open loop's requests come evenly, instead of at random (Poisson).
    #[arg(long)]
    even: bool,
    /// Seed of everything random.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// How it is asked.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Driver")]
struct Drive {
    /// Connections of each tenant [default: 64; 32 with --ycsb].
    #[arg(short, long, value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=60_000))]
    connections: Option<u64>,
    /// Requests in one batch of a connection; outstanding at most, in an open loop.
    #[arg(short, long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..=DEPTH_MAX))]
    depth: u64,
    /// Generator threads.
    #[arg(short, long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..=256))]
    threads: u64,
    /// CPUs that the threads are bound to, in turn: 1 or 2,3.
    #[arg(long, value_name = "CPUS", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Poll without sleeping, so that the server does not pay for waking the generator.
    #[arg(long)]
    busy_poll: bool,
    /// Load before the measured window.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    warm_up: Duration,
    /// The measured window.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// End after this many keys, over all tenants, instead of after a time.
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "duration")]
    ops: Option<u64>,
    /// End with an error when nothing moves for this long.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    stall: Duration,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.001..=1e9).contains(&rate) => Ok(rate),
        _ => Err("a rate is a number of requests a second above 0".to_owned()),
    }
}

/// Measures, and prints what came out.
pub fn run(args: Args) -> Result<(), Failure> {
    let plan = plan(&args)?;
    let until = match args.drive.ops {
        Some(keys) => Until::Keys(keys),
        None => Until::Elapsed(args.drive.duration),
    };
    let frame = Frame {
        warm_up: args.drive.warm_up,
        until,
        server_pid: args.server_pid,
        progress: !args.no_progress && std::io::stderr().is_terminal(),
    };
    if let Some(cores) = args.ycsb.cores() {
        return ycsb::run(&args, &plan, &frame, cores);
    }
    let settings = settings(&args, &plan);
    if !args.pair.is_empty() {
        let rounds = args.rounds as usize;
        let result = pair::compare(&plan, &frame, &args.pair, rounds, settings)?;
        return deliver(args.json.as_deref(), &report::json(&result), &result.text());
    }
    let bench = Bench::new(run::run(&plan, &frame)?, settings);
    deliver(args.json.as_deref(), &report::json(&bench), &bench.text())?;
    match bench.total.errors.get("corrupt") {
        Some(corrupt) => {
            let message = format!("{corrupt} values were not what had been stored");
            Err(Failure::new(Exit::Software, message))
        }
        None => Ok(()),
    }
}

/// Writes JSON where it is wanted, and the table to standard output unless JSON goes there.
pub(crate) fn deliver(to: Option<&Path>, json: &str, text: &str) -> Result<(), Failure> {
    match to {
        Some(path) if path == Path::new("-") => print(json),
        Some(path) => {
            std::fs::write(path, json).map_err(|e| Failure::uncreatable(path, &e))?;
            print(text)
        }
        None => print(text),
    }
}

fn plan(args: &Args) -> Result<Plan, Failure> {
    let plain = One {
        name: "default".to_owned(),
        address: args.server.clone(),
        login: None,
        connections: args.drive.connections.unwrap_or(match args.ycsb.cores() {
            Some(_) => ycsb::CLIENTS,
            None => CONNECTIONS,
        }),
        load: args.load.clone(),
    };
    let ones: Vec<One> = match args.tenant.is_empty() {
        true => vec![plain],
        false => (args.tenant.iter().enumerate())
            .map(|(i, words)| plain.clone().changed(i, words))
            .collect::<Result<_, Failure>>()?,
    };
    let (ones, ycsb) = match args.ycsb.cores() {
        Some(cores) => ycsb::tenant(ones, cores, args.ycsb.scan_len_max())?,
        None => (ones, None),
    };
    let tenants: Vec<Tenant> = (ones.into_iter())
        .map(One::tenant)
        .collect::<Result<_, Failure>>()?;
    let threads = args.drive.threads as usize;
    if let Some(t) = tenants.iter().find(|t| t.connections < threads) {
        let (n, name) = (t.connections, &t.name);
        let message = format!("{threads} threads cannot share {n} connections of tenant {name:?}");
        return Err(Failure::usage(message));
    }
    Ok(Plan {
        tenants,
        threads,
        pins: args.drive.pin.clone(),
        depth: args.drive.depth as usize,
        multiget: args.load.multiget as usize,
        poisson: !args.load.even,
        busy_poll: args.drive.busy_poll,
        fill: !args.load.no_fill,
        fill_rate: args.load.fill_rate,
        fill_on_miss: args.load.fill_on_miss,
        verify: args.load.verify || ycsb.is_some(),
        stall: args.drive.stall,
        sift: args.server_pid.filter(|_| args.set_aside),
        seed: args.load.seed,
        ycsb,
    })
}

/// One tenant, as the command line describes it.
#[derive(Clone)]
struct One {
    name: String,
    address: Address,
    login: Option<Login>,
    connections: u64,
    load: Load,
}

impl One {
    /// With the changes of a --tenant option.
    fn changed(mut self, index: usize, words: &str) -> Result<One, Failure> {
        self.name = format!("tenant-{index}");
        for word in words.split_ascii_whitespace() {
            let (key, value) = word.split_once('=').ok_or_else(|| {
                Failure::usage(format!(
                    "--tenant {words:?}: {word:?} is not of the form key=value"
                ))
            })?;
            self.change(key, value)
                .map_err(|e| Failure::usage(format!("--tenant {words:?}: {word:?}: {e}")))?;
        }
        Ok(self)
    }

    fn change(&mut self, key: &str, value: &str) -> Result<(), String> {
        fn some<T: std::str::FromStr<Err: ToString>>(text: &str) -> Result<Option<T>, String> {
            text.parse().map(Some).map_err(|e: T::Err| e.to_string())
        }
        let load = &mut self.load;
        match key {
            "name" => self.name = value.to_owned(),
            "server" => self.address = value.parse()?,
            "prefix" => load.prefix = value.to_owned(),
            "login" => self.login = Some(value.parse()?),
            "connections" => {
                self.connections = value.parse().map_err(|_| "not a number of connections")?;
            }
            "rate" => load.rate = Some(rate(value)?),
            "workload" => load.workload = Some(value.to_owned()),
            "keys" => load.keys = some(value)?,
            "key-len" => load.key_len = some(value)?,
            "value-len" => load.value_len = some(value)?,
            "popularity" => load.popularity = some(value)?,
            "mix" => load.mix = some(value)?,
            "ttl" => load.ttl = some(value)?,
            _ => {
                return Err(
                    "known words: name, server, prefix, login, connections, rate, \
                            workload, keys, key-len, value-len, popularity, mix, ttl"
                        .to_owned(),
                );
            }
        }
        Ok(())
    }

    fn tenant(self) -> Result<Tenant, Failure> {
        if self.connections == 0 {
            return Err(Failure::usage(format!(
                "tenant {:?} needs a connection",
                self.name
            )));
        }
        Ok(Tenant {
            spec: spec(&self.load)?,
            name: self.name,
            address: self.address,
            login: self.login,
            connections: self.connections as usize,
            rate: self.load.rate,
        })
    }
}

/// The workload: a preset or the defaults, with what the options say.
fn spec(load: &Load) -> Result<Spec, Failure> {
    let prefix = load.prefix.as_str();
    let mut spec = match &load.workload {
        Some(name) => preset::spec(name, KEYS, prefix).map_err(LoadError::from)?,
        None => Spec {
            keys: KEYS,
            key_len: 32,
            prefix: prefix.to_owned(),
            popularity: Popularity::Uniform,
            values: Lengths::Fixed(100),
            mix: OpMix::default(),
            ttl: TtlMix::default(),
        },
    };
    spec.key_len = load.key_len.unwrap_or(spec.key_len);
    spec.values = load.value_len.unwrap_or(spec.values);
    spec.popularity = load.popularity.unwrap_or(spec.popularity);
    spec.mix = load.mix.unwrap_or(spec.mix);
    spec.ttl = load.ttl.clone().unwrap_or(spec.ttl);
    let item_bytes = spec.values.mean() + spec.key_len as f64;
    let fitting = (FOOTPRINT_BYTES / item_bytes).max(1.0) as u64;
    spec.keys = load.keys.unwrap_or(spec.keys.min(fitting));
    Ok(spec)
}

/// What was measured, by option, for the JSON.
fn settings(args: &Args, plan: &Plan) -> BTreeMap<&'static str, String> {
    let tenants: Vec<String> = (plan.tenants.iter())
        .map(|t| {
            let s = &t.spec;
            let rate = t
                .rate
                .map_or("closed loop".to_owned(), |r| format!("{r} ops/s"));
            format!(
                "{}: {} connections to {}, {rate}, {} keys of {} B, values {} B, {}, {}, TTL {} s",
                t.name,
                t.connections,
                t.address,
                s.keys,
                s.key_len,
                s.values,
                s.popularity,
                s.mix,
                s.ttl
            )
        })
        .collect();
    BTreeMap::from([
        ("tenants", tenants.join("; ")),
        ("depth", plan.depth.to_string()),
        ("multiget", plan.multiget.to_string()),
        ("threads", plan.threads.to_string()),
        ("busy_poll", plan.busy_poll.to_string()),
        ("fill_on_miss", plan.fill_on_miss.to_string()),
        ("verify", plan.verify.to_string()),
        (
            "arrivals",
            if plan.poisson { "poisson" } else { "even" }.to_owned(),
        ),
        ("warm_up_s", args.drive.warm_up.as_secs_f64().to_string()),
        ("seed", plan.seed.to_string()),
    ])
}
