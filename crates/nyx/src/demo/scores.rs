//! What the show knows: figures of the last second, and of each act as a whole.
//!
//! What it never does: mix acts. What is collected belongs to the act that was on, and the figures
//! of the last second start anew with each.

use super::cast::{Act, TENANTS};
use super::crew::{Board, Tally};
use super::stage::Stage;
use nyx_base::{DevicePs, Instant, Nanos};
use std::collections::VecDeque;

/// How often the board is looked at.
pub(crate) const LOOK: Nanos = Nanos::from_millis(250);
/// How many looks the figures "now" are of.
const RECENT: usize = 4;

/// What a tenant did in some time.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    tally: Tally,
    used: DevicePs,
    holds: u64,
    time: Nanos,
}

/// A span's figures, for people.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figures {
    /// Requests answered a second.
    pub(crate) ops_per_s: f64,
    /// Half of them were not answered later than this.
    pub(crate) p50: Nanos,
    /// 99 percent of them were not answered later than this.
    pub(crate) p99: Nanos,
    /// Device time charged, as a share of the device.
    pub(crate) device: f64,
    /// How often a second the gate was closed.
    pub(crate) holds_per_s: f64,
}

impl Span {
    fn new() -> Span {
        Span {
            tally: Tally::new(),
            used: DevicePs::ZERO,
            holds: 0,
            time: Nanos::ZERO,
        }
    }

    fn add(&mut self, other: &Span) {
        self.tally.add(&other.tally);
        self.used += other.used;
        self.holds += other.holds;
        self.time = self.time + other.time;
    }

    /// Nothing where no time went by. Latencies are zero where nothing was answered.
    pub(crate) fn figures(&self) -> Option<Figures> {
        let time_s = self.time.as_secs_f64();
        let latency = |quantile| Nanos(self.tally.latency_ns.value_at_quantile(quantile));
        (time_s > 0.0).then(|| Figures {
            ops_per_s: self.tally.ops as f64 / time_s,
            p50: latency(0.5),
            p99: latency(0.99),
            device: self.used.as_secs_f64() / time_s,
            holds_per_s: self.holds as f64 / time_s,
        })
    }
}

/// Counters as they stood at the last look.
#[derive(Clone, Copy, Default)]
struct Before {
    used: [DevicePs; TENANTS],
    holds: [u64; TENANTS],
    busy: DevicePs,
    lost: Nanos,
    at: Instant,
}

/// One look: every tenant's span since the look before, and the device's.
#[derive(Clone, Debug)]
struct Look {
    spans: [Span; TENANTS],
    busy: DevicePs,
    lost: Nanos,
}

/// See the module.
pub(crate) struct Scores {
    before: Before,
    recent: VecDeque<Look>,
    acts: [[Span; TENANTS]; Act::ALL.len()],
    /// By act: for how long a thread had no CPU.
    lost: [Nanos; Act::ALL.len()],
    /// The 99th percentile of each quiet tenant in each look, and its act.
    history: Vec<(Act, [Nanos; TENANTS])>,
}

impl Scores {
    /// Nothing yet; what was counted so far is not of the show.
    pub(crate) fn new(stage: &Stage, board: &Board) -> Scores {
        let mut scores = Scores {
            before: Before::default(),
            recent: VecDeque::new(),
            acts: std::array::from_fn(|_| std::array::from_fn(|_| Span::new())),
            lost: [Nanos::ZERO; Act::ALL.len()],
            history: Vec::new(),
        };
        scores.difference(stage, board);
        scores
    }

    /// Collects what happened since the last look, for the act that was on.
    pub(crate) fn look(&mut self, stage: &Stage, board: &Board, act: Act) {
        let look = self.difference(stage, board);
        for (sum, span) in self.acts[act as usize].iter_mut().zip(&look.spans) {
            sum.add(span);
        }
        let lost = &mut self.lost[act as usize];
        *lost = *lost + look.lost;
        let p99 = look.spans.each_ref().map(|span| {
            let figures = span.figures();
            figures.map_or(Nanos::ZERO, |figures| figures.p99)
        });
        self.history.push((act, p99));
        self.recent.push_back(look);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }

    /// Another act begins: what is recent is not of it.
    pub(crate) fn turn(&mut self) {
        self.recent.clear();
    }

    fn difference(&mut self, stage: &Stage, board: &Board) -> Look {
        let usage = |place: usize| stage.engine.tenants()[place].usage();
        let usages: [_; TENANTS] = std::array::from_fn(usage);
        let now = Before {
            used: usages.map(|usage| usage.used()),
            holds: usages.map(|usage| usage.holds),
            busy: stage.busy(),
            lost: board.lost(),
            at: stage.clock.now(),
        };
        let was = std::mem::replace(&mut self.before, now);
        let spans = std::array::from_fn(|place| Span {
            tally: board.drain(place),
            used: now.used[place] - was.used[place],
            holds: now.holds[place] - was.holds[place],
            time: now.at.since(was.at),
        });
        Look {
            spans,
            busy: now.busy - was.busy,
            lost: Nanos(now.lost.0 - was.lost.0),
        }
    }

    /// Figures of a tenant in the last second, or since the act began if that is less.
    pub(crate) fn now(&self, tenant: usize) -> Option<Figures> {
        let mut sum = Span::new();
        self.recent
            .iter()
            .for_each(|look| sum.add(&look.spans[tenant]));
        sum.figures()
    }

    /// Figures of a tenant in all of an act so far.
    pub(crate) fn of(&self, act: Act, tenant: usize) -> Option<Figures> {
        self.acts[act as usize][tenant].figures()
    }

    /// How long an act has gone on.
    pub(crate) fn length(&self, act: Act) -> Nanos {
        self.acts[act as usize][0].time
    }

    /// The share of the last second for which the device was busy, by its own count.
    pub(crate) fn busy(&self) -> f64 {
        let busy: DevicePs = self.recent.iter().map(|look| look.busy).sum();
        let time: f64 = self
            .recent
            .iter()
            .map(|l| l.spans[0].time.as_secs_f64())
            .sum();
        if time > 0.0 {
            busy.as_secs_f64() / time
        } else {
            0.0
        }
    }

    /// The part of all requests whose latency was set aside.
    pub(crate) fn aside(&self) -> f64 {
        let all = || self.acts.iter().flatten();
        let ops: u64 = all().map(|span| span.tally.ops).sum();
        let aside: u64 = all().map(|span| span.tally.aside).sum();
        if ops > 0 {
            aside as f64 / ops as f64
        } else {
            0.0
        }
    }

    /// The part of an act for which a thread had no CPU, on average. Nothing was asked then.
    pub(crate) fn lost(&self, act: Act) -> f64 {
        let time_s = self.length(act).as_secs_f64();
        let lost_s = self.lost[act as usize].as_secs_f64();
        if time_s > 0.0 { lost_s / time_s } else { 0.0 }
    }

    /// The act and a tenant's 99th percentile of each look so far.
    pub(crate) fn history(&self, tenant: usize) -> impl Iterator<Item = (Act, Nanos)> {
        self.history
            .iter()
            .map(move |&(act, p99)| (act, p99[tenant]))
    }
}

/// A share in percent.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent < 9.95 && percent > 0.0 {
        format!("{percent:.1} %")
    } else {
        format!("{percent:.0} %")
    }
}

/// A latency with as many digits as were measured.
pub(crate) fn latency(time: Nanos) -> String {
    let us = time.0 as f64 / 1e3;
    match us {
        us if us < 10.0 => format!("{us:.1} us"),
        us if us < 1_000.0 => format!("{us:.0} us"),
        us if us < 10_000.0 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.0} ms", us / 1e3),
    }
}

/// A rate, with its thousands apart.
pub(crate) fn rate(per_s: f64) -> String {
    let digits = format!("{per_s:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well() {
        let latencies = [950, 9_240, 139_600, 1_240_000, 33_000_000].map(|ns| latency(Nanos(ns)));
        assert_eq!(latencies, ["0.9 us", "9.2 us", "140 us", "1.2 ms", "33 ms"]);
        assert_eq!(
            [0.0, 7.0, 999.6, 1_234_567.0].map(rate),
            ["0", "7", "1,000", "1,234,567"]
        );
        assert_eq!([0.0, 0.0412, 0.713].map(percent), ["0 %", "4.1 %", "71 %"]);
    }

    #[test]
    fn a_span_without_time_has_no_figures_and_two_make_one() {
        let mut span = Span::new();
        assert_eq!(span.figures(), None);
        let mut second = Span {
            used: DevicePs(DevicePs::SECOND.0 / 10),
            holds: 3,
            time: Nanos::from_secs(1),
            ..Span::new()
        };
        second.tally.ops = 1000;
        second
            .tally
            .latency_ns
            .record_n(5_000, 1000)
            .expect("in bounds");
        span.add(&second);
        second.tally.latency_ns.clear();
        second
            .tally
            .latency_ns
            .record_n(100_000, 100)
            .expect("in bounds");
        span.add(&second);
        let figures = span.figures().expect("two seconds");
        assert_eq!((figures.ops_per_s, figures.holds_per_s), (1000.0, 3.0));
        assert!((figures.device - 0.1).abs() < 1e-9);
        let near = |time: Nanos, ns: f64| (time.0 as f64 / ns - 1.0).abs() < 0.02;
        assert!(
            near(figures.p50, 5e3) && near(figures.p99, 1e5),
            "{figures:?}"
        );
    }
}
