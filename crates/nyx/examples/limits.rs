//! Does a limit hold, whatever the limited tenant does, and does its neighbour notice? Two tenants
//! on a modelled device in real time: L with a limit, U without one. L gets only or sets only, 64 B
//! to 4 KiB; once limited in device time, once in bytes (NyxCache section 4.2, figure 6).
//!
//! What it never does: call a limit kept that did not bind. Where L's own thread, or the machine,
//! was too slow to reach the limit, the table says so; such a pattern is measured once more with a
//! second thread of L's, on U's CPU. Numbers are *emulated*.
//!
//! `cargo run --release -p nyx --example limits [-- --seconds 10 --mode paper]`

use clap::{Parser, ValueEnum};
use nyx::Failure;
use nyx::demo::stage::{Medium, Stage, modelled};
use nyx_base::{DevicePs, Instant, Nanos, TenantId};
use nyx_media::Op;
use nyx_policy::Policy;
use nyx_policy::baselines::ByteRate;
use nyx_policy::sharing::limit::{Epoch, Leased, Paper};
use nyx_sim::client::{Client, Load};
use nyx_sim::modelled::Modelled;
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
    /// Only the patterns whose name contains this, such as "get 64 B".
    #[arg(long, default_value = "")]
    only: String,
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

impl Pattern {
    fn name(self) -> String {
        let verb = if self.op == Op::Read { "get" } else { "set" };
        format!("{verb} {} B", self.value_bytes)
    }
}

fn patterns() -> impl Iterator<Item = Pattern> {
    let of = |op| [64, 256, 1024, 4096].map(|value_bytes| Pattern { op, value_bytes });
    [Op::Read, Op::Write].into_iter().flat_map(of)
}

/// A tenant's client on one thread.
struct Seat<'c> {
    place: usize,
    client: &'c mut Client,
    /// When its tenant's gate opens.
    until: Instant,
    ops_before: u64,
}

impl<'c> Seat<'c> {
    fn new(place: usize, client: &'c mut Client) -> Seat<'c> {
        Seat {
            place,
            client,
            until: Instant(0),
            ops_before: 0,
        }
    }
}

/// What a thread did in the measured time.
#[derive(Default)]
struct Ran {
    /// Operations of each tenant.
    ops: [u64; 2],
    /// What L was charged on this thread.
    charged: Charged,
    /// Steps of L that the machine interrupted.
    interrupted: u64,
    gate_closed: Nanos,
    cpu_s: f64,
}

/// Device time charged since the start, at some moments.
#[derive(Default)]
struct Charged(Vec<(Instant, DevicePs)>);

fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Drives some tenants' clients by turns, as one worker does, from `begin` until `end`, and counts
/// between `from` and `end`.
fn drive(stage: &Stage, index: u16, mut seats: Vec<Seat<'_>>, [from, end]: [Instant; 2]) -> Ran {
    let mut worker = stage.worker(index);
    let capacity = (end.since(from).0 / SAMPLE.0) as usize + 2;
    let mut ran = Ran {
        charged: Charged(Vec::with_capacity(capacity)),
        ..Ran::default()
    };
    let mut cpu_before = 0.0;
    loop {
        let now = stage.clock.now();
        if now >= end {
            break;
        }
        if now >= from && cpu_before == 0.0 {
            cpu_before = cpu_s();
            for seat in &mut seats {
                seat.ops_before = seat.client.done().ops;
            }
        }
        for seat in &mut seats {
            let (begin, cpu_at_begin) = (stage.clock.now(), cpu_s());
            if seat.until > begin {
                continue;
            }
            let wait = seat
                .client
                .step(&stage.engine, &mut worker, stage.at(begin));
            let after = stage.clock.now();
            let nap = after + Nanos::from_millis(1);
            seat.until = wait.map_or(Instant(0), |until| until.min(nap));
            let lost = after.since(begin).as_secs_f64() - (cpu_s() - cpu_at_begin) > LOST_MIN_S;
            if seat.place == L {
                // Nobody knows when an interrupted step spent what the gate let pass at its
                // beginning.
                let booked = if lost { begin } else { after };
                let used = stage.used_by(L, index);
                ran.charged.note(booked, used, [from, end]);
                ran.interrupted += u64::from(lost && begin >= from);
            }
        }
        let open = seats.iter().map(|seat| seat.until).min();
        let until = open.unwrap_or(end).min(end);
        let now = stage.clock.now();
        if until > now {
            if now >= from {
                ran.gate_closed = ran.gate_closed + until.since(now);
            }
            stage.clock.spin_until(until);
        }
    }
    ran.cpu_s = cpu_s() - cpu_before;
    for seat in &seats {
        ran.ops[seat.place] += seat.client.done().ops - seat.ops_before;
    }
    ran
}

impl Charged {
    /// Notes what was charged by `at`, unless that was noted a moment ago.
    fn note(&mut self, at: Instant, used: DevicePs, [from, end]: [Instant; 2]) {
        let last = self.0.last().map_or(from, |sample| sample.0);
        let due = self.0.is_empty() || at >= last + SAMPLE;
        if due && at >= from && at <= end {
            self.0.push((at, used));
        }
    }

    /// What two threads charged together.
    fn with(self, other: &Charged) -> Charged {
        let (Some(&(_, mut mine)), Some(&(_, mut theirs))) = (self.0.first(), other.0.first())
        else {
            return self;
        };
        let mut all: Vec<(Instant, DevicePs, bool)> = Vec::new();
        all.extend(self.0.iter().map(|&(at, used)| (at, used, true)));
        all.extend(other.0.iter().map(|&(at, used)| (at, used, false)));
        all.sort_by_key(|&(at, ..)| at);
        let sum = |(at, used, is_mine)| {
            *(if is_mine { &mut mine } else { &mut theirs }) = used;
            (at, mine + theirs)
        };
        Charged(all.into_iter().map(sum).collect())
    }

    /// The share of the device that was charged.
    fn share(&self) -> f64 {
        let (first, last) = (self.0[0], self.0[self.0.len() - 1]);
        (last.1 - first.1).as_secs_f64() / last.0.since(first.0).as_secs_f64()
    }

    /// The largest share in any window. A step's charges are booked at its end, those of an
    /// interrupted one at its beginning.
    fn window_share_max(&self) -> f64 {
        let (mut from, mut most) = (0, DevicePs::ZERO);
        for &(at, used) in &self.0 {
            while self.0[from + 1].0 + WINDOW <= at {
                from += 1;
            }
            most = most.max(used - self.0[from].1);
        }
        most.as_secs_f64() / WINDOW.as_secs_f64()
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
    l_threads: usize,
    l_ops: u64,
    l_charged: Charged,
    interrupted: u64,
    /// The parts of the time in which L's own thread waited for its gate, and had no CPU.
    gate_closed: f64,
    off_cpu: f64,
    elapsed_s: f64,
    u_mb_per_s: f64,
    busy: f64,
}

impl Cell {
    fn bound(&self) -> Bound {
        // Algorithm 1 looks once in a tick, which is a part of the device and not of the limit.
        let tolerance = match self.limit {
            Limit::DeviceTime(Mode::Paper) => TOLERANCE,
            _ => TOLERANCE * self.share,
        };
        let near = (self.l_charged.share() - self.share).abs() <= tolerance;
        match self.limit {
            Limit::DeviceTime(_) if near => Bound::Limit,
            Limit::DeviceTime(_) if self.l_charged.share() > self.share => Bound::Nothing,
            _ if self.gate_closed < 0.01 => Bound::Thread,
            Limit::Bytes => Bound::Limit,
            _ if self.off_cpu > TOLERANCE => Bound::Machine,
            _ => Bound::Short,
        }
    }

    fn row(&self) -> [String; 9] {
        let percent = |part: f64| format!("{:.1}", part * 100.0);
        [
            match self.l_threads {
                1 => self.pattern.name(),
                n => format!("{} x{n}", self.pattern.name()),
            },
            format!("{:.2}", self.l_charged.share() * 100.0),
            format!("{:.2}", self.l_charged.window_share_max() * 100.0),
            percent(self.gate_closed),
            percent(self.off_cpu),
            format!("{:.0}", self.l_ops as f64 / self.elapsed_s / 1e3),
            format!("{:.0}", self.u_mb_per_s),
            percent(self.busy),
            match self.bound() {
                Bound::Limit => "its limit",
                Bound::Thread => "its loads in flight (limit not reached)",
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
        "{limit:<20} {does:<13} {share:>7} {window:>12} {shut:>10} {off:>8} {kops:>8} {u:>7} \
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
        ..Load::uniform(KEYS, value_bytes, gets, args.batch[place])
    };
    let gets = if pattern.op == Op::Read { 1.0 } else { 0.0 };
    [
        ("L", load(L, pattern.value_bytes, gets)),
        ("U", load(U, args.u_bytes, 1.0)),
    ]
}

/// One cell. L has `l_threads` threads, one of them U's where it has two.
fn measure(
    args: &Args,
    device: &Modelled,
    limit: Limit,
    pattern: Pattern,
    l_threads: usize,
) -> Result<Cell, Failure> {
    let (loads, share) = (loads(args, pattern), f64::from(args.limit) / 100.0);
    let stage = Stage::new(Medium::Modelled(device), &loads, 2)?;
    let mut second_l = Client::new(loads[L].1.clone(), 8);
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
    let [first_l, u] = &mut clients;
    let mut seats = [vec![Seat::new(L, first_l)], vec![Seat::new(U, u)]];
    if l_threads == 2 {
        seats[1].push(Seat::new(L, &mut second_l));
    }
    let mut busy = [(Instant(0), DevicePs::ZERO); 2];
    let [l, u] = std::thread::scope(|scope| {
        let stage = &stage;
        let mut worker = 0..;
        let threads = seats.map(|seats| {
            let worker = worker.next().expect("a worker for each");
            scope.spawn(move || drive(stage, worker, seats, [from, end]))
        });
        busy = tick(stage, [from, end]);
        threads.map(|thread| thread.join().expect("no panic"))
    });
    let busy_s = (busy[1].1 - busy[0].1).as_secs_f64();
    let elapsed_s = args.seconds as f64;
    Ok(Cell {
        limit,
        share,
        pattern,
        l_threads,
        l_ops: l.ops[L] + u.ops[L],
        interrupted: l.interrupted + u.interrupted,
        gate_closed: l.gate_closed.as_secs_f64() / elapsed_s,
        off_cpu: (1.0 - l.cpu_s / elapsed_s).max(0.0),
        l_charged: l.charged.with(&u.charged),
        elapsed_s,
        u_mb_per_s: u.ops[U] as f64 * args.u_bytes as f64 / elapsed_s / 1e6,
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

/// Whether L's limit was kept, in the long run and in any window.
fn judge_limit(args: &Args, cells: &[&Cell]) -> bool {
    let count = |bound| cells.iter().filter(|cell| cell.bound() == bound).count();
    let reached = count(Bound::Limit);
    let paper = args.mode == Mode::Paper;
    let kept = say(
        count(Bound::Nothing) + count(Bound::Short) == 0 && reached > 0,
        format!(
            "L within {} % of its limit{} of {} % in {reached} of {} cells; not reached in {} \
             (L's threads) and {} (the machine)",
            TOLERANCE * 100.0,
            if paper { " (of the device)" } else { "" },
            args.limit,
            cells.len(),
            count(Bound::Thread),
            count(Bound::Machine),
        ),
    );
    if paper {
        return kept;
    }
    let excess = |cell: &&Cell| cell.l_charged.window_share_max() - cell.share;
    let worst = cells.iter().map(excess).fold(f64::MIN, f64::max);
    let interrupted: u64 = cells.iter().map(|cell| cell.interrupted).sum();
    let claim = format!(
        "L in any 100 ms: at most {:.2} % of the device ({:+.2}); {interrupted} steps were \
         interrupted by the machine, booked at their beginning",
        worst * 100.0 + f64::from(args.limit),
        worst * 100.0
    );
    say(worst <= WINDOW_EXCESS_MAX, claim) && kept
}

/// Whether U varied less beside a limit on device time than beside one on bytes.
fn judge_neighbour(ours: &[Cell], theirs: &[Cell]) -> bool {
    if ours.len() < 2 {
        return true;
    }
    println!();
    let ratio = compare(ours, theirs);
    let claim = format!("U varies {ratio:.1} times less (sd) than beside a limit on bytes");
    say(ratio > 1.0, claim)
}

fn run(args: &Args) -> Result<bool, Failure> {
    let device = modelled(&args.model)?;
    println!(
        "emulated: {} in real time; L's limit is {} % of the device; U gets {} B, no limit; \
         requests outstanding: L {}, U {}; {} s each",
        args.model, args.limit, args.u_bytes, args.batch[L], args.batch[U], args.seconds
    );
    println!();
    line("limit on", HEADS.map(String::from));
    let cells_of = |limit| -> Result<Vec<Cell>, Failure> {
        patterns()
            .filter(|pattern| pattern.name().contains(&args.only))
            .map(|pattern| measure(args, &device, limit, pattern, 1).inspect(Cell::print))
            .collect()
    };
    let ours = cells_of(Limit::DeviceTime(args.mode))?;
    // A thread has only so many loads outstanding: where that is what bound L, it gets another.
    let again: Result<Vec<Cell>, Failure> = ours
        .iter()
        .filter(|cell| cell.bound() == Bound::Thread)
        .map(|cell| measure(args, &device, cell.limit, cell.pattern, 2).inspect(Cell::print))
        .collect();
    let again = again?;
    let theirs = cells_of(Limit::Bytes)?;
    let limited: Vec<&Cell> = ours
        .iter()
        .filter(|cell| cell.bound() != Bound::Thread)
        .chain(&again)
        .collect();
    println!();
    let kept = judge_limit(args, &limited);
    Ok(judge_neighbour(&ours, &theirs) && kept)
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
