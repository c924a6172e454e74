//! YCSB over a cache whose tenant lies on two modelled devices, under one controller after the
//! other: what each gives, beside what the formulas say that both devices could give.
//!
//! The fast device holds a part of the data, the deep one all of it. For each pair and each length
//! of values it measures first what one worker gets from the fast device alone, of reads and of
//! writes; what the deep one gives is its model's. Then the controllers take turns: a server each,
//! the records loaded at a pace that the deep device keeps up with, and workloads A, B, C, F, D, E.
//!
//! What it never does: judge. Numbers are *emulated*: models laid over memory and files in real
//! time, with one worker on a CPU and the load generator on another.
//!
//! `cargo run --release -p nyx --example ycsb_tiers -- --dir /var/tmp --svg ycsb` (15 minutes)

#[path = "rig/figure.rs"]
mod figure;
#[path = "rig/loaded.rs"]
mod loaded;
mod rig;

use clap::Parser;
use figure::figure;
use loaded::{Loaded, failed, free_port, serves};
use nyx::plot::{Across, Legend, Line, Mark, Panel, Point, Scale, draw, number};
use nyx::{Exit, Failure};
use nyx_base::Bytes;
use nyx_media::model::block::BlockParams;
use nyx_policy::nhc::formula::{Mix, Rates, either_many, shared_many};
use nyx_policy::nhc::{Both, Nhc};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// In the order in which `nyx bench` plays them.
const WORKLOADS: [&str; 6] = ["A", "B", "C", "F", "D", "E"];
/// The records are loaded with this part of the deep device's write rate.
const LOAD_PART: f64 = 0.6;
/// Beside a value: header and key, in bytes.
const BESIDE_VALUE: u64 = 48;
/// What measures the fast device alone fills so much of it.
const ALONE_PART: f64 = 0.5;
/// What is asked of the server, of which differences tell.
const SEEN: [&str; 7] = [
    "found_reads",
    "found_reads_fast",
    "mirrored_reads",
    "mirrored_reads_deep",
    "promotions",
    "demotions",
    "mirrors",
];
const PANEL_HEIGHT: u32 = 330;

/// YCSB over two modelled devices, under each controller.
#[derive(Parser)]
#[command(after_help = "Examples:
  ycsb_tiers                                          two pairs, values of 1 KB and 16 KB
  ycsb_tiers --pairs cxl/32+nvme-flash/10 --value-lens 4KiB --workloads C --seconds 10")]
struct Args {
    /// Where the deep device's file is made and removed: as fast as the model, at least.
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// Pairs of models: a mapped one, as in `model` of a [[device]], and one of blocks.
    #[arg(long, value_delimiter = ',',
        default_values_t = ["optane-2dimm/16+optane-ssd/10".to_string(),
                            "ull-ssd/2+nvme-flash/10".to_string()])]
    pairs: Vec<String>,
    /// Lengths of values.
    #[arg(long, value_delimiter = ',', default_values_t = [Bytes(1 << 10), Bytes(16 << 10)])]
    value_lens: Vec<Bytes>,
    /// All records together.
    #[arg(long, default_value = "192MiB")]
    data: Bytes,
    /// What the fast device has, in percent of the data.
    #[arg(long, default_value_t = 33)]
    percent: u64,
    /// Who decides where reads go.
    #[arg(long, value_delimiter = ',', default_values_t =
        ["classic", "split:0.8", "orthus", "most", "shortest-delay"].map(String::from))]
    controllers: Vec<String>,
    /// Which of YCSB's workloads.
    #[arg(long, value_delimiter = ',', default_values_t = WORKLOADS.map(String::from))]
    workloads: Vec<String>,
    /// Seconds of each, after as many that do not count.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Draws throughput and P99 of each pair to FILE-1.svg, FILE-2.svg, ...
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("ycsb_tiers: {failure}");
            ExitCode::from(failure.code as u8)
        }
    }
}

/// What is measured now.
struct Scene<'a> {
    args: &'a Args,
    nyx: &'a Path,
    dir: &'a Path,
    port: u16,
    fast: &'a str,
    deep: &'a str,
    deep_model: BlockParams,
    value_len: u64,
}

/// What a workload gave under a controller.
struct Played {
    controller: String,
    ops_per_s: f64,
    /// Reads and records of scans, for each operation; and writes.
    reads: f64,
    writes: f64,
    p50_us: f64,
    p99_us: f64,
    cpu_us: f64,
    hits: f64,
    /// Of what was found, on the fast device.
    fast_hits: f64,
    /// Of reads of what both have, from the fast device.
    load_admit: f64,
    /// Values that were promoted, demoted and mirrored, for each read that found one.
    copied: [f64; 3],
    ceiling: f64,
}

impl Scene<'_> {
    fn records(&self) -> u64 {
        self.args.data.0 / self.value_len
    }

    fn fast_bytes(&self) -> u64 {
        self.args.data.0 / 100 * self.args.percent
    }

    /// Starts a server whose tenant has this controller.
    fn start(&self, nhc: &str) -> Result<Loaded, Failure> {
        let (dir, port, fast, deep) = (self.dir.display(), self.port, self.fast, self.deep);
        let data = self.dir.join(format!("of-{}", fast.replace('/', "-")));
        let (data, mib) = (data.display(), |bytes: u64| bytes.div_ceil(1 << 20));
        let (fast_mib, deep_mib) = (mib(self.fast_bytes()), mib(2 * self.args.data.0));
        let text = format!(
            r#"
[server]
listen = ["127.0.0.1:{port}"]
workers = 1
data_dir = "{data}"
[policy]
kind = "none"
[[device]]
name = "fast"
kind = "anon"
model = "{fast}"
size = "{fast_mib}MiB"
[[device]]
name = "deep"
kind = "block"
model = "{deep}"
path = "{dir}/deep"
size = "{deep_mib}MiB"
[[tenant]]
name = "first"
item_len_max = "64KiB"
tiers = ["fast", "deep"]
nhc = "{nhc}"
index = "hybrid+"
"#
        );
        Loaded::start(&serves(self.nyx, self.dir, &text)?, self.port)
    }

    fn bench(&self, server: &Loaded, keys: u64, words: &str) -> Result<Value, Failure> {
        let of = format!("--keys {keys} --value-len {} {words}", self.value_len);
        server.bench(self.nyx, &of)
    }

    /// What one worker gets from the devices alone, in values a second: of the fast one what is
    /// measured, of the deep one what its model says.
    fn rates(&self) -> Result<Rates, Failure> {
        let server = self.start("classic")?;
        let keys = (self.fast_bytes() as f64 * ALONE_PART) as u64 / self.value_len;
        let seconds = self.args.seconds;
        let fast = |mix: &str, fill: &str| -> Result<f64, Failure> {
            let words = format!("--mix {mix} {fill} --duration {seconds}s --popularity zipf:0.99");
            let found = self.bench(&server, keys, &words)?;
            Ok(figure(&found, "total/ops_per_s"))
        };
        let reads = fast("get:1", "")?;
        let writes = fast("set:1", "--no-fill")?;
        server.stop()?;
        let blocks = (self.value_len + BESIDE_VALUE).next_multiple_of(4096);
        let written = self.value_len + BESIDE_VALUE;
        Ok(Rates {
            reads: Both([reads, self.deep_model.per_second(false, blocks)]),
            // In pieces that are longer than a value.
            writes: Both([
                writes,
                self.deep_model.write_bytes_per_s as f64 / written as f64,
            ]),
        })
    }

    /// What the tenant says that happened since its start; what it does not say is no number.
    fn seen(&self) -> [f64; SEEN.len()] {
        let ask = || {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            stream.write_all(b"stats tenants\r\n")?;
            let lines = BufReader::new(stream).lines().map_while(Result::ok);
            std::io::Result::Ok(lines.take_while(|line| line != "END").collect::<Vec<_>>())
        };
        let lines = ask().unwrap_or_default();
        SEEN.map(|name| {
            let begin = format!("STAT first:deep_{name} ");
            let told = lines.iter().find_map(|line| line.strip_prefix(&begin));
            told.and_then(|told| told.parse().ok()).unwrap_or(f64::NAN)
        })
    }

    /// Plays all workloads under a controller.
    fn play(&self, controller: &str) -> Result<Vec<Played>, Failure> {
        let server = self.start(controller)?;
        let pace = self.deep_model.write_bytes_per_s as f64 * LOAD_PART / self.value_len as f64;
        let load = format!("--ycsb C --fill-rate {pace:.0} --warm-up 0s --ops 1 --stall 60s");
        self.bench(&server, self.records(), &load)?;
        let played = self.args.workloads.iter().map(|workload| {
            let seconds = self.args.seconds;
            let words = format!(
                "--ycsb {workload} --no-fill --fill-on-miss --warm-up {seconds}s \
                 --duration {seconds}s --stall 60s"
            );
            let before = self.seen();
            let found = self.bench(&server, self.records(), &words)?;
            let after = self.seen();
            let seen: [f64; SEEN.len()] = std::array::from_fn(|at| after[at] - before[at]);
            let [found_all, found_fast, mirrored, mirrored_deep, copied @ ..] = seen;
            let of = |path: &str| figure(&found, &format!("workloads/0/{path}"));
            let kind = |name: &str| {
                let kinds = found["workloads"][0]["kinds"].as_array();
                let kinds = kinds
                    .into_iter()
                    .flatten()
                    .filter(|kind| kind["kind"] == name);
                kinds.map(|kind| figure(kind, "count")).sum::<f64>()
            };
            let ops = of("ops");
            let read = kind("read") + kind("read-miss") + kind("rmw") + of("scanned");
            Ok(Played {
                controller: controller.to_owned(),
                ops_per_s: of("ops_per_s"),
                reads: read / ops,
                writes: (kind("update") + kind("insert") + kind("rmw")) / ops,
                p50_us: of("all/p50_us"),
                p99_us: of("all/p99_us"),
                cpu_us: of("server/cpu_us_per_op"),
                hits: of("hit_ratio"),
                fast_hits: found_fast / found_all,
                load_admit: 1.0 - mirrored_deep / mirrored,
                copied: copied.map(|count| count / found_all),
                ceiling: f64::NAN,
            })
        });
        played.collect()
    }
}

/// The formula for what a controller does: all that the fast device has is read there, a fixed
/// share of that and of what is new, or the best of both. A hit is what the fast device has, which
/// the first controller's run says.
fn ceiling(rates: &Rates, hits: f64, played: &Played) -> Result<f64, Failure> {
    let mix = Mix {
        hits,
        writes: played.writes / (played.reads + played.writes),
    };
    let nhc: Nhc = (played.controller.parse()).map_err(|error| failed("--controllers", error))?;
    let values = match nhc {
        Nhc::Classic => shared_many(rates, mix, 1.0),
        Nhc::Split(share) => shared_many(rates, mix, share),
        _ => either_many(rates, mix).0,
    };
    Ok(values / (played.reads + played.writes))
}

const HEADS: &str = "| workload | controller | ops/s | ceiling | ratio | to classic | P50 us \
                     | P99 us | CPU us/op | found % | fast % | load_admit \
                     | promoted, demoted, mirrored % |";

/// A number, or what stands for none.
fn cell(value: f64, decimals: usize) -> String {
    match value.is_finite() {
        true => format!("{value:.decimals$}"),
        false => "-".to_owned(),
    }
}

fn table(all: &[Vec<Played>], workloads: &[String]) {
    println!("{HEADS}\n|---|---|{}", "--:|".repeat(11));
    for (at, workload) in workloads.iter().enumerate() {
        for played in all {
            let (one, first) = (&played[at], &all[0][at]);
            let cells = [
                cell(one.ops_per_s, 0),
                cell(one.ceiling, 0),
                cell(one.ops_per_s / one.ceiling, 2),
                cell(one.ops_per_s / first.ops_per_s, 2),
                cell(one.p50_us, 0),
                cell(one.p99_us, 0),
                cell(one.cpu_us, 1),
                cell(100.0 * one.hits, 1),
                cell(100.0 * one.fast_hits, 1),
                cell(one.load_admit, 2),
                one.copied.map(|part| cell(100.0 * part, 1)).join(", "),
            ];
            println!(
                "| {workload} | {} | {} |",
                one.controller,
                cells.join(" | ")
            );
        }
    }
    println!();
}

/// A panel of one figure over the workloads, with a line for each controller; the figure is of what
/// a controller gave and of what the first one gave.
fn panel(
    title: String,
    scale: Scale,
    all: &[Vec<Played>],
    workloads: &[String],
    figure: impl Fn(&Played, &Played) -> f64,
) -> Panel {
    let line = |played: &Vec<Played>| Line {
        name: played
            .first()
            .map_or_else(String::new, |one| one.controller.clone()),
        points: (played.iter().zip(&all[0]).enumerate())
            .map(|(place, (one, first))| Point {
                x: place as f64,
                y: figure(one, first),
                mark: Mark::Dot,
            })
            .collect(),
    };
    Panel {
        title,
        along: "YCSB workload".to_owned(),
        across: Across::Places(workloads.to_vec()),
        scale,
        written: number,
        lines: all.iter().map(line).collect(),
        levels: Vec::new(),
        legend: Legend::Right,
    }
}

/// What people rather look at: how many times what the first controller gives, and the tails.
fn panels(len: Bytes, all: &[Vec<Played>], workloads: &[String]) -> Vec<Panel> {
    let first = &all[0][0].controller;
    let times = format!("{len}: operations a second, in multiples of {first}'s");
    let rate = |one: &Played, first: &Played| one.ops_per_s / first.ops_per_s;
    let tail = |one: &Played, _: &Played| one.p99_us / 1e3;
    vec![
        panel(times, Scale::Linear, all, workloads, rate),
        panel(
            format!("{len}: P99 in ms"),
            Scale::Log,
            all,
            workloads,
            tail,
        ),
    ]
}

/// One length of values on one pair.
fn scene(scene: &Scene<'_>) -> Result<Vec<Panel>, Failure> {
    let rates = scene.rates()?;
    let (len, per_s) = (Bytes(scene.value_len), |rate: f64| rate.round());
    println!(
        "{} before {}, {} values of {len}; emulated, values a second: fast {} reads, {} writes, \
         deep {} reads, {} writes\n",
        scene.fast,
        scene.deep,
        scene.records(),
        per_s(rates.reads.0[0]),
        per_s(rates.writes.0[0]),
        per_s(rates.reads.0[1]),
        per_s(rates.writes.0[1]),
    );
    let mut all: Vec<Vec<Played>> = Vec::new();
    for controller in &scene.args.controllers {
        eprintln!("{} before {}, {len}: {controller}", scene.fast, scene.deep);
        let mut played = scene.play(controller)?;
        for (at, one) in played.iter_mut().enumerate() {
            let hits = all
                .first()
                .map_or(one.fast_hits, |first| first[at].fast_hits);
            // Scans are not counted; where they begin is popular, what they go on with is not.
            let part = scene.args.percent as f64 / 100.0;
            let hits = if hits.is_nan() { part } else { hits };
            one.ceiling = ceiling(&rates, hits, one)?;
        }
        all.push(played);
    }
    let workloads = &scene.args.workloads;
    table(&all, workloads);
    Ok(panels(len, &all, workloads))
}

fn run(args: &Args) -> Result<(), Failure> {
    let nyx = rig::build().map_err(|why| Failure::new(Exit::Os, why))?;
    let directory = tempfile::tempdir_in(&args.dir);
    let directory = directory.map_err(|error| failed("a directory", error))?;
    for (at, pair) in args.pairs.iter().enumerate() {
        let (fast, deep) = pair.split_once('+').ok_or_else(|| {
            Failure::usage(format!(
                "--pairs {pair:?}: a pair is FAST+DEEP, cxl/8+optane-ssd/10"
            ))
        })?;
        let mut panels = Vec::new();
        for value_len in &args.value_lens {
            panels.extend(scene(&Scene {
                args,
                nyx: &nyx,
                dir: directory.path(),
                port: free_port()?,
                fast,
                deep,
                deep_model: BlockParams::preset(deep).map_err(|e| Failure::usage(e.to_string()))?,
                value_len: value_len.0,
            })?);
        }
        if let Some(path) = &args.svg {
            let title = format!("YCSB on {fast} before {deep}, emulated");
            let drawn = draw(&title, &panels, PANEL_HEIGHT).map_err(|e| failed("a picture", e))?;
            let path = path.with_file_name(format!(
                "{}-{}.svg",
                path.file_stem().unwrap_or_default().to_string_lossy(),
                at + 1
            ));
            std::fs::write(&path, drawn).map_err(|e| Failure::uncreatable(&path, &e))?;
        }
    }
    Ok(())
}
