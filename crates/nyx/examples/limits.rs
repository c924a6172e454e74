//! Does a limit hold, whatever the limited tenant does, and does its neighbour notice? Two tenants
//! on a modelled device in real time: L with a limit, U without one. L gets only or sets only, 64 B
//! to 4 KiB; once limited in device time, once in bytes (NyxCache section 4.2, figure 6).
//!
//! What it never does: call a limit kept that did not bind. Where L's own thread, or the machine,
//! was too slow to reach the limit, the table says so. Numbers are *emulated*.
//!
//! `cargo run --release -p nyx --example limits [-- --seconds 10 --mode paper]`

use clap::{Parser, ValueEnum};
use nyx::Failure;
use nyx::demo::stage::{Medium, Modelled, Stage};
use nyx_base::{DevicePs, Instant, Nanos, TenantId};
use nyx_media::Op;
use nyx_policy::Policy;
use nyx_policy::baselines::ByteRate;
use nyx_policy::sharing::limit::{Epoch, Leased, Paper};
use nyx_sim::client::{Client, Load};
use rustix::time::{ClockId, clock_gettime};
use std::process::ExitCode;
use std::time::Duration;

/// L may be this part of its limit away from it, over the whole run.
const TOLERANCE: f64 = 0.01;
/// The most that L may use of the device in any window, beyond its limit.
const WINDOW_EXCESS_MAX: f64 = 0.01;
const WINDOW: Nanos = Nanos::from_millis(100);
/// Before anything is counted: an epoch of the paper's mode.
const WARM_UP: Nanos = Nanos::from_secs(1);
/// A step whose thread had no CPU for this long was interrupted.
const LOST_MIN_S: f64 = 50e-6;
/// Steps closer together than this are booked as one.
const SAMPLE: Nanos = Nanos::from_micros(20);
const KEYS: u64 = 10_000;
/// The places of the tenants.
const L: usize = 0;
const U: usize = 1;

/// Tenant L has a limit on a modelled device, tenant U has none. Exit code 1 where L exceeded its
/// limit, or fell short of it without a reason, or where U did no better than beside a limit in
/// bytes.
#[derive(Parser)]
struct Args {
    /// Measured time of each of the 16 cells.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// The device model.
    #[arg(long, default_value = "optane-2dimm/8")]
    model: String,
    /// How the limit on device time is kept.
    #[arg(long, value_enum, default_value_t = Mode::Leased)]
    mode: Mode,
    /// What U gets, in bytes.
    #[arg(long, default_value_t = 4096)]
    u_bytes: usize,
    /// L's limit, in percent of the device.
    #[arg(long, default_value_t = 42, value_parser = clap::value_parser!(u8).range(1..=99))]
    limit: u8,
    /// How many requests L and U have outstanding.
    #[arg(long, num_args = 2, default_values_t = [32, 1], value_names = ["L", "U"])]
    batch: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Mode {
    /// Exact leased budgets.
    Leased,
    /// Algorithm 1 as printed: L is stopped for the rest of an epoch of 1 s, and no window is
    /// promised.
    Paper,
}

#[derive(Clone, Copy, PartialEq)]
enum Limit {
    DeviceTime(Mode),
    Bytes,
}

impl Limit {
    fn name(self) -> &'static str {
        match self {
            Limit::DeviceTime(Mode::Leased) => "device time",
            Limit::DeviceTime(Mode::Paper) => "device time (paper)",
            Limit::Bytes => "bytes",
        }
    }

    fn policy(self, share: f64, device: &Modelled) -> Box<dyn Policy> {
        let rate = DevicePs((share * 1e12) as u64);
        match self {
            Limit::DeviceTime(Mode::Leased) => Box::new(Leased::new(vec![Some(rate), None])),
            Limit::DeviceTime(Mode::Paper) => {
                Box::new(Paper::new(vec![Some(rate), None], Epoch::default()))
            }
            Limit::Bytes => {
                let page_s = device.cost.price(Op::Read, 4096).as_secs_f64();
                Box::new(ByteRate::new(vec![Some(share / page_s * 4096.0), None]))
            }
        }
    }
}

/// What L does.
#[derive(Clone, Copy)]
struct Pattern {
    op: Op,
    value_bytes: usize,
}

fn patterns() -> impl Iterator<Item = Pattern> {
    let of = |op| [64, 256, 1024, 4096].map(|value_bytes| Pattern { op, value_bytes });
    [Op::Read, Op::Write].into_iter().flat_map(of)
}

/// What a tenant's thread did in the measured time.
#[derive(Default)]
struct Ran {
    ops: u64,
    /// Time and device time charged since the tenant's start, after each step.
    samples: Vec<(Instant, DevicePs)>,
    /// Steps that the machine interrupted.
    interrupted: u64,
    gate_closed: Nanos,
    cpu_s: f64,
}

fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Drives the tenant at `place` from `begin` until `end`, and counts between `from` and `end`.
fn drive(stage: &Stage, place: usize, client: &mut Client, [from, end]: [Instant; 2]) -> Ran {
    let mut worker = stage.worker(place as u16);
    let capacity = (end.since(from).0 / SAMPLE.0) as usize + 2;
    let mut ran = Ran {
        samples: Vec::with_capacity(capacity),
        ..Ran::default()
    };
    let (mut ops_before, mut cpu_before) = (0, 0.0);
    loop {
        let now = stage.clock.now();
        if now >= end {
            break;
        }
        let cpu_at_begin = cpu_s();
        let wait = client.step(&stage.engine, &mut worker, stage.at(now));
        let after = stage.clock.now();
        let lost = after.since(now).as_secs_f64() - (cpu_s() - cpu_at_begin) > LOST_MIN_S;
        let counting = !ran.samples.is_empty();
        if after >= from && !counting {
            (ops_before, cpu_before) = (client.done().ops, cpu_s());
        }
        let last = ran.samples.last().map_or(from, |sample| sample.0 + SAMPLE);
        if after >= last && after <= end {
            // Nobody knows when an interrupted step spent what the gate let pass at its beginning.
            ran.samples
                .push((if lost { now.max(last) } else { after }, stage.used(place)));
            ran.interrupted += u64::from(lost);
        }
        if let Some(until) = wait {
            let until = until.min(after + Nanos::from_millis(1)).min(end);
            if counting {
                ran.gate_closed = ran.gate_closed + until.since(after);
            }
            stage.clock.spin_until(until);
        }
    }
    ran.ops = client.done().ops - ops_before;
    ran.cpu_s = cpu_s() - cpu_before;
    ran
}

impl Ran {
    fn ends(&self) -> [(Instant, DevicePs); 2] {
        let first = *self.samples.first().expect("the thread ran");
        [first, *self.samples.last().expect("the thread ran")]
    }

    fn elapsed_s(&self) -> f64 {
        let [first, last] = self.ends();
        last.0.since(first.0).as_secs_f64()
    }

    /// The share of the device that was charged.
    fn share(&self) -> f64 {
        let [first, last] = self.ends();
        (last.1 - first.1).as_secs_f64() / self.elapsed_s()
    }

    /// The largest share in any window. A step's charges are booked at its end, those of an
    /// interrupted one at its beginning.
    fn window_share_max(&self) -> f64 {
        let (mut from, mut most) = (0, DevicePs::ZERO);
        for &(at, used) in &self.samples {
            while self.samples[from + 1].0 + WINDOW <= at {
                from += 1;
            }
            most = most.max(used - self.samples[from].1);
        }
        most.as_secs_f64() / WINDOW.as_secs_f64()
    }

    /// The part of the time for which the thread had no CPU.
    fn off_cpu(&self) -> f64 {
        (1.0 - self.cpu_s / self.elapsed_s()).max(0.0)
    }
}

/// What bound L.
#[derive(Clone, Copy, PartialEq)]
enum Bound {
    /// Its limit: it used that and no more.
    Limit,
    /// Its own thread, which was never held.
    Thread,
    /// Its thread had too little of a CPU.
    Machine,
    /// It was held, and used less than it might.
    Short,
    /// Nothing: it used more than its limit.
    Nothing,
}

/// One line of the table.
struct Cell {
    limit: Limit,
    /// L's limit, as a share of the device.
    share: f64,
    pattern: Pattern,
    l: Ran,
    u_mb_per_s: f64,
    busy: f64,
}

impl Cell {
    fn bound(&self) -> Bound {
        let closed = self.l.gate_closed.as_secs_f64() / self.l.elapsed_s();
        // Algorithm 1 looks once in a tick, which is a part of the device and not of the limit.
        let tolerance = match self.limit {
            Limit::DeviceTime(Mode::Paper) => TOLERANCE,
            _ => TOLERANCE * self.share,
        };
        let near = (self.l.share() - self.share).abs() <= tolerance;
        match self.limit {
            Limit::DeviceTime(_) if near => Bound::Limit,
            Limit::DeviceTime(_) if self.l.share() > self.share => Bound::Nothing,
            _ if closed < 0.01 => Bound::Thread,
            Limit::Bytes => Bound::Limit,
            _ if self.l.off_cpu() > TOLERANCE => Bound::Machine,
            _ => Bound::Short,
        }
    }

    fn row(&self) -> [String; 9] {
        let Pattern { op, value_bytes } = self.pattern;
        let verb = if op == Op::Read { "get" } else { "set" };
        let percent = |part: f64| format!("{:.1}", part * 100.0);
        let elapsed_s = self.l.elapsed_s();
        [
            format!("{verb} {value_bytes} B"),
            format!("{:.2}", self.l.share() * 100.0),
            format!("{:.2}", self.l.window_share_max() * 100.0),
            percent(self.l.gate_closed.as_secs_f64() / elapsed_s),
            percent(self.l.off_cpu()),
            format!("{:.0}", self.l.ops as f64 / elapsed_s / 1e3),
            format!("{:.0}", self.u_mb_per_s),
            percent(self.busy),
            match self.bound() {
                Bound::Limit => "its limit",
                Bound::Thread => "its thread (limit not reached)",
                Bound::Machine => "the machine (limit not reached)",
                Bound::Short => "its limit (FELL SHORT)",
                Bound::Nothing => "NOTHING (LIMIT EXCEEDED)",
            }
            .into(),
        ]
    }

    fn print(&self) {
        line(self.limit.name(), self.row());
    }
}

fn line(limit: &str, [does, share, window, shut, off, kops, u, busy, bound]: [String; 9]) {
    println!(
        "{limit:<20} {does:<10} {share:>7} {window:>12} {shut:>10} {off:>8} {kops:>8} {u:>7} \
         {busy:>7}  {bound}"
    );
}

/// The heads of [`Cell::row`]: L's share of the device in the whole and in the worst 100 ms, the
/// time in which its gate was closed and in which its thread had no CPU, then what was done.
const HEADS: [&str; 9] = [
    "L does",
    "L dev %",
    "worst 100ms",
    "gate shut%",
    "no CPU %",
    "L Kop/s",
    "U MB/s",
    "busy %",
    "what bound L",
];

fn loads(args: &Args, pattern: Pattern) -> [(&'static str, Load); 2] {
    let load = |place: usize, value_bytes, gets| Load {
        tenant: TenantId(place as u16),
        keys: KEYS,
        asked: KEYS,
        value_bytes,
        gets,
        batch: args.batch[place],
    };
    let gets = if pattern.op == Op::Read { 1.0 } else { 0.0 };
    [
        ("L", load(L, pattern.value_bytes, gets)),
        ("U", load(U, args.u_bytes, 1.0)),
    ]
}

fn measure(
    args: &Args,
    device: &Modelled,
    limit: Limit,
    pattern: Pattern,
) -> Result<Cell, Failure> {
    let (loads, share) = (loads(args, pattern), f64::from(args.limit) / 100.0);
    let stage = Stage::new(Medium::Modelled(device), &loads, 2)?;
    let mut clients = loads.map(|(_, load)| Client::new(load, 7));
    for (client, worker) in clients.iter_mut().zip(0..) {
        let now = stage.at(stage.clock.now());
        client.fill(&stage.engine, &mut stage.worker(worker), now);
    }
    stage.engine.set_policy(limit.policy(share, device));
    let begin = stage.clock.now();
    stage.engine.control(begin);
    let from = begin + WARM_UP;
    let end = from + Nanos::from_secs(args.seconds);
    let mut busy = [(Instant(0), DevicePs::ZERO); 2];
    let [l, u] = std::thread::scope(|scope| {
        let stage = &stage;
        let mut place = 0..;
        let threads = clients.each_mut().map(|client| {
            let place = place.next().expect("a place for each");
            scope.spawn(move || drive(stage, place, client, [from, end]))
        });
        busy = tick(stage, [from, end]);
        threads.map(|thread| thread.join().expect("no panic"))
    });
    let busy_s = (busy[1].1 - busy[0].1).as_secs_f64();
    Ok(Cell {
        limit,
        share,
        pattern,
        u_mb_per_s: u.ops as f64 * args.u_bytes as f64 / u.elapsed_s() / 1e6,
        l,
        busy: busy_s / busy[1].0.since(busy[0].0).as_secs_f64(),
    })
}

/// Ticks the controller until the end; gives the device's own count of its busy time.
fn tick(stage: &Stage, [from, end]: [Instant; 2]) -> [(Instant, DevicePs); 2] {
    let mut first = None;
    loop {
        let now = stage.clock.now();
        let busy = (now, stage.busy());
        if now >= end {
            return [first.unwrap_or(busy), busy];
        }
        if now >= from && first.is_none() {
            first = Some(busy);
        }
        let period = stage.engine.control(now);
        std::thread::sleep(Duration::from_nanos(period.0));
    }
}

/// How U fared beside some patterns of L.
struct Spread {
    mean: f64,
    sd: f64,
    range: f64,
}

impl Spread {
    fn of<'c>(cells: impl Iterator<Item = &'c Cell>) -> Spread {
        let u: Vec<f64> = cells.map(|cell| cell.u_mb_per_s).collect();
        let mean = u.iter().sum::<f64>() / u.len() as f64;
        let variance = u.iter().map(|u| (u - mean).powi(2)).sum::<f64>() / u.len() as f64;
        let least = u.iter().copied().fold(f64::MAX, f64::min);
        let most = u.iter().copied().fold(0.0, f64::max);
        Spread {
            mean,
            sd: variance.sqrt(),
            range: most - least,
        }
    }

    fn print(&self, beside: &str) {
        println!(
            "{beside:<48} mean {:4.0}  sd {:4.0}  range {:4.0} MB/s, {:.0} % of the mean",
            self.mean,
            self.sd,
            self.range,
            self.range / self.mean * 100.0
        );
    }
}

fn say(holds: bool, claim: String) -> bool {
    println!("{}  {claim}", if holds { "holds" } else { "FAILS" });
    holds
}

/// U beside each limit: beside all patterns, and beside those in which the limit on device time
/// was what bound L. Gives how many times less U varied, beside all.
fn compare(ours: &[Cell], theirs: &[Cell]) -> f64 {
    let mut ratio = 0.0;
    for (which, all) in [("L's limited patterns", false), ("all patterns of L", true)] {
        let pairs = || {
            let both = ours.iter().zip(theirs);
            both.filter(move |(own, _)| all || own.bound() == Bound::Limit)
        };
        if pairs().count() == 0 {
            continue;
        }
        let own = Spread::of(pairs().map(|pair| pair.0));
        let their = Spread::of(pairs().map(|pair| pair.1));
        own.print(&format!("U beside {which}, {}", ours[0].limit.name()));
        their.print(&format!("U beside {which}, bytes"));
        ratio = their.sd / own.sd;
    }
    ratio
}

/// Prints what was claimed and whether it held.
fn judge(args: &Args, ours: &[Cell], theirs: &[Cell]) -> bool {
    println!();
    let ratio = compare(ours, theirs);
    let count = |bound| ours.iter().filter(|cell| cell.bound() == bound).count();
    let reached = count(Bound::Limit);
    println!();
    let mut all = say(
        count(Bound::Nothing) + count(Bound::Short) == 0 && reached > 0,
        format!(
            "L within {} % of its limit{} of {} % in {reached} of {} cells; not reached in {} \
             (L's thread) and {} (the machine)",
            TOLERANCE * 100.0,
            if args.mode == Mode::Paper {
                " (of the device)"
            } else {
                ""
            },
            args.limit,
            ours.len(),
            count(Bound::Thread),
            count(Bound::Machine),
        ),
    );
    if args.mode == Mode::Leased {
        let excess = |cell: &Cell| cell.l.window_share_max() - cell.share;
        let worst = ours.iter().map(excess).fold(f64::MIN, f64::max);
        let interrupted: u64 = ours.iter().map(|cell| cell.l.interrupted).sum();
        let claim = format!(
            "L in any 100 ms: at most {:.2} % of the device ({:+.2}); {interrupted} steps were \
             interrupted by the machine, booked at their beginning",
            worst * 100.0 + f64::from(args.limit),
            worst * 100.0
        );
        all &= say(worst <= WINDOW_EXCESS_MAX, claim);
    }
    let claim = format!("U varies {ratio:.1} times less (sd) than beside a limit on bytes");
    all & say(ratio > 1.0, claim)
}

fn run(args: &Args) -> Result<bool, Failure> {
    let device = Modelled::named(&args.model)?;
    println!(
        "emulated: {} in real time; L's limit is {} % of the device; U gets {} B, no limit; \
         requests outstanding: L {}, U {}; {} s each",
        args.model, args.limit, args.u_bytes, args.batch[L], args.batch[U], args.seconds
    );
    println!();
    line("limit on", HEADS.map(String::from));
    let mut cells = Vec::new();
    for limit in [Limit::DeviceTime(args.mode), Limit::Bytes] {
        let of_limit: Result<Vec<Cell>, Failure> = patterns()
            .map(|pattern| measure(args, &device, limit, pattern).inspect(Cell::print))
            .collect();
        cells.push(of_limit?);
    }
    Ok(judge(args, &cells[0], &cells[1]))
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(failure) => {
            eprintln!("limits: {failure}");
            ExitCode::from(failure.code as u8)
        }
    }
}
