//! Two devices as one: where a request goes that either of them could serve.
//!
//! The data plane knows where each object is: on the *fast* device, on the *deep* one, or on both
//! (*mirrored*). It asks a [`Routing`] where to read what is mirrored and where to put what is
//! written, and hands in what a request would take on either device ([`Cost`]) and what is in
//! flight there. A [`Controller`] looks at what was done since its last step ([`PairSeen`]) and
//! gives the next [`Routing`], which is plain data: workers copy it and decide without a lock.
//!
//! * [`shortest`]: each request goes where it is expected to be done first; the default.
//! * [`orthus`]: Algorithm 1 of the paper, with statistics of windows.
//! * [`most`]: compares the latencies of the devices; one share for everything.
//! * [`fixed`]: classic caching, and a fixed split.
//! * [`formula`]: what two devices give together, on paper.
//!
//! **The expected delay** of a request on a device is `max(alone, backlog + each)` times how much
//! slower it is than expected. `each` is the time that a request takes of a device that has enough
//! to do, `alone` what a lone one takes, `backlog` the sum of `each` over what is in flight. Where
//! all requests are alike that is (in flight + 1) / parallelism times the service time.
//!
//! **Where they are not alike**, the shortest delay alone wastes what devices do well: of reads and
//! writes before NVM and Optane every read that meets a moment of many writes on the NVM goes to
//! the Optane, which takes 2.7 times as long for it. So a backlog counts less where the request is
//! cheap beside what is in flight there, and more where it is dear ([`Routing::shortest`]); this
//! is routing by weighted workload (Xie, Yekkehkhany and Lu, "Scheduling with multi-level data
//! locality", INFOCOM 2016), which has the most throughput, and the delay where all are alike.
//!
//! *Thread safety*: none needed; controllers are stepped by one thread, routings are copied.
//! Nothing here reads a clock, draws a number or knows a device.
//!
//! Source: Orthus, section 4 and Algorithm 1 (data_admit, load_admit). Reads, writes and new
//! objects have shares of their own since devices differ in what they do well: at equal parts of
//! reads and writes NVM before Optane gives 2.0 times classic caching with, 1.7 times without.

use nyx_base::{Instant, Latencies, Nanos};
use std::fmt;
use std::ops::{Index, IndexMut};
use std::str::FromStr;

pub mod fixed;
pub mod formula;
pub mod most;
pub mod orthus;
pub mod shortest;
#[cfg(test)]
mod tests;

pub use fixed::{Classic, Split};
pub use most::Most;
pub use orthus::{Goal, Orthus, OrthusParams};
pub use shortest::ShortestDelay;

/// One of the two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The performance device: PM, DRAM, a low-latency SSD.
    Fast,
    /// The capacity device.
    Deep,
}

impl Side {
    /// Both.
    pub const ALL: [Side; 2] = [Side::Fast, Side::Deep];
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

impl Kind {
    /// Both.
    pub const ALL: [Kind; 2] = [Kind::Read, Kind::Write];
}

/// Something for either device: `both[Side::Fast]`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Both<T>(pub [T; 2]);

impl<T> Index<Side> for Both<T> {
    type Output = T;

    #[inline]
    fn index(&self, side: Side) -> &T {
        &self.0[side as usize]
    }
}

impl<T> IndexMut<Side> for Both<T> {
    #[inline]
    fn index_mut(&mut self, side: Side) -> &mut T {
        &mut self.0[side as usize]
    }
}

/// Something for reads and writes: `by_kind[Kind::Read]`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ByKind<T>(pub [T; 2]);

impl<T> Index<Kind> for ByKind<T> {
    type Output = T;

    #[inline]
    fn index(&self, kind: Kind) -> &T {
        &self.0[kind as usize]
    }
}

impl<T> IndexMut<Kind> for ByKind<T> {
    #[inline]
    fn index_mut(&mut self, kind: Kind) -> &mut T {
        &mut self.0[kind as usize]
    }
}

/// What one request takes of a device, by the device's profile.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Until it is done, with nothing else in flight, in ns.
    pub alone_ns: f64,
    /// Of the device's time, with enough in flight: one over the requests per second, in ns.
    pub each_ns: f64,
}

impl Cost {
    /// When a request would be done, in ns from now, behind a backlog of so many ns.
    #[inline]
    pub fn expected_ns(&self, backlog_ns: f64) -> f64 {
        self.alone_ns.max(backlog_ns + self.each_ns)
    }
}

/// What requests of one kind did on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Served {
    /// Requests of users that are done.
    pub count: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// The sum of the times that they took, in ns.
    pub took_ns: f64,
    /// The sum of what was expected when they were submitted ([`Cost::expected_ns`]), in ns.
    pub expected_ns: f64,
    /// The sum of what they took of the device ([`Cost::each_ns`]), background requests as well.
    pub each_ns: f64,
}

impl Served {
    /// What was done since `earlier`.
    pub fn since(&self, earlier: &Served) -> Served {
        Served {
            count: self.count - earlier.count,
            bytes: self.bytes - earlier.bytes,
            took_ns: self.took_ns - earlier.took_ns,
            expected_ns: self.expected_ns - earlier.expected_ns,
            each_ns: self.each_ns - earlier.each_ns,
        }
    }

    /// The mean time that a request took, in ns.
    pub fn mean_ns(&self) -> Option<f64> {
        (self.count > 0).then(|| self.took_ns / self.count as f64)
    }
}

/// What was done, by all tenants that share the pair: since its start where it is counted, since
/// the last step where a controller sees it.
#[derive(Clone, Debug, Default)]
pub struct PairSeen {
    /// Reads.
    pub looks: u64,
    /// Those of what the fast device has.
    pub hits: u64,
    /// What was done, by kind and device.
    pub served: ByKind<Both<Served>>,
    /// Reads of what the fast device alone has.
    pub lone_reads: u64,
    /// Those of them that would have been done sooner on the deep one.
    pub sooner_deep: u64,
    /// Reads of what is mirrored.
    pub mirrored_reads: u64,
    /// Those of them that went to the deep device.
    pub mirrored_deep: u64,
    /// How long those who use the fast device were at work, whatever they did, on the mean; none
    /// where nobody says.
    pub worked_ns: u64,
    /// How long requests of users took.
    pub latencies: Latencies,
}

impl PairSeen {
    /// Bytes that users moved.
    pub fn bytes(&self) -> u64 {
        self.all().map(|served| served.bytes).sum()
    }

    /// Requests of users that are done.
    pub fn count(&self) -> u64 {
        self.all().map(|served| served.count).sum()
    }

    /// What was done on a device, whatever it was.
    pub fn on(&self, side: Side) -> Served {
        let of = Kind::ALL.map(|kind| self.served[kind][side]);
        Served {
            count: of[0].count + of[1].count,
            bytes: of[0].bytes + of[1].bytes,
            took_ns: of[0].took_ns + of[1].took_ns,
            expected_ns: of[0].expected_ns + of[1].expected_ns,
            each_ns: of[0].each_ns + of[1].each_ns,
        }
    }

    /// The share of reads of what is mirrored that went to the fast device.
    pub fn load_admit(&self) -> Option<f64> {
        let deep = self.mirrored_deep as f64 / self.mirrored_reads as f64;
        (self.mirrored_reads > 0).then_some(1.0 - deep)
    }

    /// What was done since `earlier`.
    pub fn since(&self, earlier: &PairSeen) -> PairSeen {
        let served = |kind: Kind| {
            let of = |side: Side| self.served[kind][side].since(&earlier.served[kind][side]);
            Both(Side::ALL.map(of))
        };
        PairSeen {
            looks: self.looks - earlier.looks,
            hits: self.hits - earlier.hits,
            served: ByKind(Kind::ALL.map(served)),
            lone_reads: self.lone_reads - earlier.lone_reads,
            sooner_deep: self.sooner_deep - earlier.sooner_deep,
            mirrored_reads: self.mirrored_reads - earlier.mirrored_reads,
            mirrored_deep: self.mirrored_deep - earlier.mirrored_deep,
            worked_ns: self.worked_ns - earlier.worked_ns,
            latencies: self.latencies.since(&earlier.latencies),
        }
    }

    fn all(&self) -> impl Iterator<Item = &Served> {
        self.served.0.iter().flat_map(|both| &both.0)
    }
}

/// How requests choose a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// This share of them goes to the fast device, by a draw.
    Share(f64),
    /// The one that is expected to be done with it first.
    Shortest,
}

/// What is decided about the next requests. See the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// Whether what was read from the deep device is copied to the fast one.
    pub data_admit: bool,
    /// Reads of what is mirrored; a `Share` is the paper's load_admit.
    pub reads: Choice,
    /// Writes of what is there already.
    pub writes: Choice,
    /// Where new objects go.
    pub news: Choice,
    /// How many times longer than expected requests take.
    pub slowness: ByKind<Both<f64>>,
    /// The share of requests that goes to a device only to learn how it fares.
    pub explore: ByKind<Both<f64>>,
    /// More of what only the fast device has should be mirrored, the most read first.
    pub mirror_more: bool,
}

impl Routing {
    /// Classic caching: whatever the fast device has or gets is served there.
    pub const CLASSIC: Routing = Routing {
        data_admit: true,
        reads: Choice::Share(1.0),
        writes: Choice::Share(1.0),
        news: Choice::Share(1.0),
        slowness: ByKind([Both([1.0; 2]); 2]),
        explore: ByKind([Both([0.0; 2]); 2]),
        mirror_more: false,
    };

    /// Where a request goes that either device can serve. `draw` is from 0 (inclusive) to 1.
    #[inline]
    pub fn side(&self, choice: Choice, request: &Request, draw: f64) -> Side {
        let Bounds { least, most } = request.bounds;
        if draw < least {
            return Side::Fast;
        }
        if draw >= most {
            return Side::Deep;
        }
        match choice {
            Choice::Share(share) if draw < share => Side::Fast,
            Choice::Share(_) => Side::Deep,
            Choice::Shortest => {
                let explore = &self.explore[request.kind];
                let explored = if draw < least + explore[Side::Fast] {
                    Some(Side::Fast)
                } else if draw >= most - explore[Side::Deep] {
                    Some(Side::Deep)
                } else {
                    None
                };
                let chosen = self.shortest(request);
                match explored {
                    Some(side) if self.may_be_wrong(request, side) => side,
                    _ => chosen,
                }
            }
        }
    }

    /// Whether a device would be chosen, were it no slower than its profile says: nothing else is
    /// worth knowing of it.
    fn may_be_wrong(&self, request: &Request, side: Side) -> bool {
        let mut recovered = *self;
        let slowness = &mut recovered.slowness[request.kind][side];
        *slowness = slowness.min(1.0);
        recovered.shortest(request) == side
    }

    /// The device that is expected to be done first, the fast one where both are: with backlogs
    /// weighted by what the request takes of each beside what is in flight there, and counting what
    /// it takes from the next one.
    #[inline]
    pub fn shortest(&self, request: &Request) -> Side {
        let dearness = |side| {
            let InFlight { count, each_ns } = request.in_flight[side];
            match count {
                0 => 1.0,
                count => request.costs[side].each_ns * f64::from(count) / each_ns,
            }
        };
        let weight = (dearness(Side::Fast) / dearness(Side::Deep)).sqrt();
        let weights = Both([weight, 1.0 / weight]);
        let delay_ns = |side| {
            let (cost, backlog_ns) = (request.costs[side], request.in_flight[side].each_ns);
            // With what it takes from who comes next: those who have no choice wait behind it.
            let delay_ns = cost.expected_ns(backlog_ns * weights[side]) + cost.each_ns;
            delay_ns * self.slowness[request.kind][side]
        };
        match delay_ns(Side::Deep) < delay_ns(Side::Fast) {
            true => Side::Deep,
            false => Side::Fast,
        }
    }
}

/// Requests that a device has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct InFlight {
    /// How many.
    pub count: u32,
    /// The sum of [`Cost::each_ns`].
    pub each_ns: f64,
}

/// A request that either device could serve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// What it does.
    pub kind: Kind,
    /// What it takes of either device.
    pub costs: Both<Cost>,
    /// What is in flight there.
    pub in_flight: Both<InFlight>,
    /// Its tenant's.
    pub bounds: Bounds,
}

/// A tenant's bounds of load_admit: whatever is decided, this share of its requests at least, and
/// that share at most, go to the fast device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    least: f64,
    most: f64,
}

impl Default for Bounds {
    /// None.
    fn default() -> Bounds {
        Bounds {
            least: 0.0,
            most: 1.0,
        }
    }
}

impl Bounds {
    /// From `least` to `most`, both from 0 to 1; `None` where they are not, or cross.
    pub fn new(least: f64, most: f64) -> Option<Bounds> {
        (0.0 <= least && least <= most && most <= 1.0).then_some(Bounds { least, most })
    }
}

/// `20 to 80 %`, of the fast device.
impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [least, most] = [self.least, self.most].map(|share| (share * 100.0).round());
        write!(f, "{least} to {most} %")
    }
}

/// Decides where requests go, step by step.
pub trait Controller: fmt::Debug + Send {
    /// Its name in configurations and reports.
    fn name(&self) -> &'static str;

    /// The time from one step to the next.
    fn period(&self) -> Nanos;

    /// What was seen since the last step gives what is decided until the next. Before the first
    /// step [`Controller::start`] holds.
    fn step(&mut self, now: Instant, seen: &PairSeen) -> Routing;

    /// What is decided before anything was seen.
    fn start(&self) -> Routing;
}

/// Which controller, as it is written in configurations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Nhc {
    /// [`ShortestDelay`].
    #[default]
    ShortestDelay,
    /// [`Orthus`].
    Orthus,
    /// [`Most`].
    Most,
    /// [`Classic`].
    Classic,
    /// [`Split`], with the share that goes to the fast device.
    Split(f64),
}

impl Nhc {
    /// A controller for devices of which a lone read takes so long, in ns.
    pub fn controller(self, alone_ns: Both<f64>) -> Box<dyn Controller> {
        match self {
            Nhc::ShortestDelay => Box::new(ShortestDelay::new()),
            Nhc::Orthus => Box::new(Orthus::new(OrthusParams::default())),
            Nhc::Most => Box::new(Most::new(alone_ns)),
            Nhc::Classic => Box::new(Classic),
            Nhc::Split(share) => Box::new(Split::new(share)),
        }
    }
}

impl fmt::Display for Nhc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Nhc::ShortestDelay => f.write_str("shortest-delay"),
            Nhc::Orthus => f.write_str("orthus"),
            Nhc::Most => f.write_str("most"),
            Nhc::Classic => f.write_str("classic"),
            Nhc::Split(share) => write!(f, "split:{share}"),
        }
    }
}

/// A name that no controller has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is none of shortest-delay, orthus, most, classic and split:SHARE, with a share of the \
     fast device from 0 to 1, as in split:0.8"
)]
pub struct UnknownNhc(String);

impl FromStr for Nhc {
    type Err = UnknownNhc;

    fn from_str(name: &str) -> Result<Nhc, UnknownNhc> {
        let unknown = || UnknownNhc(name.to_owned());
        if let Some(share) = name.strip_prefix("split:") {
            let share: f64 = share.parse().map_err(|_| unknown())?;
            let is_share = (0.0..=1.0).contains(&share);
            return is_share.then_some(Nhc::Split(share)).ok_or_else(unknown);
        }
        match name {
            "shortest-delay" => Ok(Nhc::ShortestDelay),
            "orthus" => Ok(Nhc::Orthus),
            "most" => Ok(Nhc::Most),
            "classic" => Ok(Nhc::Classic),
            _ => Err(unknown()),
        }
    }
}

/// Whether a hit ratio is stable: it moved by no more than 0.1 % from one window of 100 ms to the
/// next, or by no more than counts as small as these can tell.
#[derive(Clone, Debug, Default)]
struct Stability {
    looks: u64,
    hits: u64,
    began: Option<Instant>,
    last: Option<Ratio>,
}

/// A hit ratio, and of how many looks.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    hits: f64,
    looks: f64,
}

impl Ratio {
    fn value(self) -> f64 {
        self.hits / self.looks
    }

    /// Where two windows that have the same ratio differ by chance: three standard errors.
    fn noise(self, other: Ratio) -> f64 {
        let all = (self.hits + other.hits) / (self.looks + other.looks);
        3.0 * (all * (1.0 - all) * (1.0 / self.looks + 1.0 / other.looks)).sqrt()
    }
}

impl Stability {
    const WINDOW: Nanos = Nanos::from_millis(100);
    const TOLERANCE: f64 = 0.001;

    /// Counts; when a window is over, its ratio and whether that is what it was before.
    fn add(&mut self, now: Instant, seen: &PairSeen) -> Option<(f64, bool)> {
        let began = *self.began.get_or_insert(now);
        self.looks += seen.looks;
        self.hits += seen.hits;
        if now.since(began) < Stability::WINDOW || self.looks == 0 {
            return None;
        }
        let ratio = Ratio {
            hits: self.hits as f64,
            looks: self.looks as f64,
        };
        let is_stable = self.last.is_some_and(|last| {
            let tolerance = Stability::TOLERANCE.max(ratio.noise(last));
            (ratio.value() - last.value()).abs() <= tolerance
        });
        (self.looks, self.hits) = (0, 0);
        (self.began, self.last) = (Some(now), Some(ratio));
        Some((ratio.value(), is_stable))
    }
}
