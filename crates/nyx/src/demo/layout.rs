//! The frames of the show and its summary, as lines.
//!
//! What it never does: measure, or draw.

use super::cast::{Act, NAMES, NOISY, Part, TENANTS};
use super::scores::{Figures, Scores, latency, percent, rate};
use super::screen::{Line, Piece, Style, piece, text};
use super::words;
use nyx_base::Nanos;

/// The columns that a frame needs.
pub(crate) const COLUMNS: u16 = 80;
/// The rows that it needs, and one for the cursor.
pub(crate) const ROWS: u16 = 19;

/// The width of the first column.
const NAME: usize = 6;
/// Where the bar and the curves begin, and how long they are.
const MARGIN: usize = 10;
const BAR: usize = 50;
const CURVE: usize = 50;
/// Latencies up to so many times what they were before are called good, and fair.
const GOOD: f64 = 2.0;
const FAIR: f64 = 5.0;
/// A machine that takes more of the time than this is worth a word.
const LOST_SHOWN: f64 = 0.02;

/// What is on now.
pub(crate) struct Scene<'s> {
    /// The device model's name.
    pub(crate) model: &'s str,
    /// The tenants.
    pub(crate) parts: &'s [Part; TENANTS],
    /// The share of the device that the noisy tenant may use once it is limited.
    pub(crate) limit: f64,
    /// How long the show goes.
    pub(crate) length: Nanos,
    /// How long it has gone.
    pub(crate) elapsed: Nanos,
    /// What is on.
    pub(crate) act: Act,
    /// What is known.
    pub(crate) scores: &'s Scores,
}

impl Scene<'_> {
    /// All lines of a frame.
    pub(crate) fn frame(&self) -> Vec<Line> {
        let mut lines = vec![self.title(), Line::new()];
        lines.extend(self.headline());
        lines.push(Line::new());
        lines.push(vec![piece(Style::Faint, heads())]);
        lines.extend((0..TENANTS).map(|place| self.tenant(place)));
        lines.push(Line::new());
        lines.push(self.device());
        lines.push(Line::new());
        lines.extend(
            (0..TENANTS)
                .filter(|&p| p != NOISY)
                .map(|place| self.curve(place)),
        );
        lines.push(self.marks());
        lines.push(self.foot());
        lines
    }

    fn title(&self) -> Line {
        let clock = format!(
            "{:.0} of {:.0} s, q quits",
            self.elapsed.as_secs_f64(),
            self.length.as_secs_f64()
        );
        let what = format!("   emulated: {} in real time", self.model);
        let name = "Nyx demo";
        let gap = usize::from(COLUMNS - 1).saturating_sub(name.len() + what.len() + clock.len());
        vec![
            piece(Style::Strong, name),
            piece(Style::Faint, what),
            piece(Style::Faint, " ".repeat(gap) + &clock),
        ]
    }

    fn headline(&self) -> [Line; 2] {
        let [what, effect] = words::headline(self.act, self.scores, self.limit);
        let style = worst((0..TENANTS).map(|place| {
            let figures = self.scores.of(self.act, place);
            figures.map_or(Style::Plain, |figures| self.judge(place, figures))
        }));
        let act = format!("{}/{}  ", self.act as usize + 1, Act::ALL.len());
        let indent = " ".repeat(act.len());
        [
            vec![piece(Style::Faint, act), piece(Style::Strong, what)],
            vec![piece(Style::Plain, indent), piece(style, effect)],
        ]
    }

    fn tenant(&self, place: usize) -> Line {
        let does = self.parts[place].does.as_str();
        let mut line = vec![
            piece(
                Style::Tenant(place),
                format!("{:<w$}", NAMES[place], w = NAME),
            ),
            piece(Style::Plain, format!("  {does:<22}")),
        ];
        let idle = place == NOISY && self.act == Act::Quiet;
        let Some(now) = self.scores.now(place).filter(|_| !idle) else {
            line.push(piece(Style::Faint, if idle { "   idle" } else { "   ..." }));
            return line;
        };
        line.push(piece(
            Style::Plain,
            format!("{:>9}{:>8}", rate(now.ops_per_s), latency(now.p50)),
        ));
        line.push(piece(
            self.judge(place, now),
            format!("{:>8}", latency(now.p99)),
        ));
        line.push(piece(Style::Plain, format!("{:>8}", percent(now.device))));
        line.push(piece(
            Style::Plain,
            format!("{:>7}{:>9}", self.limit_of(place), rate(now.holds_per_s)),
        ));
        line
    }

    fn limit_of(&self, place: usize) -> String {
        match (place, self.act) {
            (NOISY, Act::Limited) => percent(self.limit),
            _ => "none".into(),
        }
    }

    /// How a quiet tenant's tail compares with what it was before.
    fn judge(&self, place: usize, now: Figures) -> Style {
        let before = self.scores.of(Act::Quiet, place);
        match before {
            Some(before) if place != NOISY && self.act != Act::Quiet => grade(now.p99, before.p99),
            _ => Style::Plain,
        }
    }

    /// A bar of the device's time, by tenant.
    fn device(&self) -> Line {
        let shares: Vec<f64> = (0..TENANTS)
            .map(|place| self.scores.now(place).map_or(0.0, |figures| figures.device))
            .collect();
        let mut line = vec![piece(Style::Plain, format!("{:<MARGIN$}", "device"))];
        let (mut drawn, mut sum) = (0, 0.0);
        for (place, share) in shares.iter().enumerate() {
            sum += share;
            let upto = ((sum * BAR as f64).round() as usize).min(BAR);
            line.push(piece(Style::Tenant(place), "\u{2588}".repeat(upto - drawn)));
            drawn = upto;
        }
        line.push(piece(Style::Faint, "\u{2591}".repeat(BAR - drawn)));
        let busy = self.scores.busy();
        line.push(piece(Style::Plain, format!("  {} busy", percent(busy))));
        line
    }

    /// How many looks a column of the curves stands for.
    fn looks_per_column(&self) -> usize {
        let looks = self.length.0.div_ceil(super::scores::LOOK.0) as usize;
        looks.div_ceil(CURVE).max(1)
    }

    /// A tenant's tail over time, on a logarithmic scale.
    fn curve(&self, place: usize) -> Line {
        let p99: Vec<Nanos> = self.scores.history(place).map(|(_, p99)| p99).collect();
        let columns: Vec<Nanos> = p99
            .chunks(self.looks_per_column())
            .map(|looks| looks.iter().copied().max().unwrap_or(Nanos::ZERO))
            .collect();
        let bars = bars(&columns);
        let most = columns.iter().max().copied().unwrap_or(Nanos::ZERO);
        let rest = CURVE.saturating_sub(columns.len());
        vec![
            piece(
                Style::Plain,
                format!("{:<MARGIN$}", format!("{} p99", NAMES[place])),
            ),
            piece(Style::Tenant(place), bars),
            piece(
                Style::Faint,
                " ".repeat(rest) + &format!("  highest {}", latency(most)),
            ),
        ]
    }

    /// Under the curves: where the acts begin.
    fn marks(&self) -> Line {
        let acts: Vec<Act> = self.scores.history(0).map(|(act, _)| act).collect();
        let mut marks = " ".repeat(MARGIN);
        for (act, mark) in [(Act::Free, "^ noise"), (Act::Limited, "^ policy")] {
            if let Some(at) = acts.iter().position(|&other| other == act) {
                let column = MARGIN + at / self.looks_per_column();
                marks = format!("{marks:<column$}{mark}");
            }
        }
        vec![piece(Style::Faint, marks)]
    }

    fn foot(&self) -> Line {
        let foot = match self.scores.lost(self.act) {
            lost if lost < LOST_SHOWN => {
                "Latencies are of the last second, from when a request was due.".into()
            }
            lost => format!(
                "The machine is busy: threads had no CPU for {} of this act.",
                percent(lost)
            ),
        };
        vec![piece(Style::Faint, foot)]
    }

    /// One line for a log, under [`log_heads`]: what everybody did in the last second.
    pub(crate) fn second(&self) -> String {
        let mut line = format!("{:>3.0} s", self.elapsed.as_secs_f64());
        for place in 0..TENANTS {
            line += &match self.scores.now(place) {
                Some(now) if now.ops_per_s > 0.0 => log_cells([
                    &rate(now.ops_per_s),
                    &latency(now.p50),
                    &latency(now.p99),
                    &percent(now.device),
                ]),
                _ => log_cells(["idle", "", "", ""]),
            };
        }
        line.trim_end().to_owned()
    }

    /// What is going on, for a log.
    pub(crate) fn chapter(&self) -> String {
        let lines = self.headline();
        lines.each_ref().map(text).join("\n")
    }

    /// What stays at the end: each tenant, before, beside the noise, with the policy.
    pub(crate) fn summary(&self) -> Vec<Line> {
        let model = self.model;
        let mut lines = vec![
            vec![
                piece(Style::Strong, "Nyx demo"),
                piece(Style::Faint, format!("   emulated: {model} in real time")),
            ],
            Line::new(),
            vec![piece(
                Style::Faint,
                format!(
                    "{:<w$}  {:<22}{:>10}{:>9}{:>9}{:>9}{:>15}",
                    "tenant",
                    "when",
                    "ops/s",
                    "p50",
                    "p99",
                    "device",
                    "p99 vs before",
                    w = NAME
                ),
            )],
        ];
        for place in 0..TENANTS {
            lines.extend(
                Act::ALL
                    .iter()
                    .filter_map(|&act| self.summary_row(place, act)),
            );
        }
        let moral = words::moral(self.scores, self.limit);
        if !moral.is_empty() {
            lines.push(Line::new());
        }
        let plain = |line| vec![piece(Style::Plain, line)];
        lines.extend(moral.into_iter().map(plain));
        lines.push(Line::new());
        lines.extend(self.aside());
        lines
    }

    fn summary_row(&self, place: usize, act: Act) -> Option<Line> {
        let figures = self.scores.of(act, place)?;
        let when = match act {
            Act::Quiet => "1 before the noise".to_owned(),
            Act::Free => "2 noisy, no policy".to_owned(),
            Act::Limited => format!("3 noisy held to {}", percent(self.limit)),
        };
        let name = if act == Act::Quiet { NAMES[place] } else { "" };
        let mut line = vec![
            piece(Style::Tenant(place), format!("{name:<w$}", w = NAME)),
            piece(Style::Plain, format!("  {when:<22}")),
        ];
        if figures.ops_per_s == 0.0 {
            line.push(piece(Style::Faint, format!("{:>10}", "idle")));
            return Some(line);
        }
        line.push(piece(
            Style::Plain,
            format!(
                "{:>10}{:>9}{:>9}{:>9}",
                rate(figures.ops_per_s),
                latency(figures.p50),
                latency(figures.p99),
                percent(figures.device)
            ),
        ));
        line.extend(self.against_before(place, act, figures));
        Some(line)
    }

    fn against_before(&self, place: usize, act: Act, figures: Figures) -> Option<Piece> {
        let before = self.scores.of(Act::Quiet, place)?.p99;
        let ratio = figures.p99.0 as f64 / before.0.max(1) as f64;
        let ratio = if ratio < 10.0 {
            format!("{ratio:.1} x")
        } else {
            format!("{ratio:.0} x")
        };
        let text = format!("{ratio:>15}");
        (act != Act::Quiet && place != NOISY).then(|| piece(grade(figures.p99, before), text))
    }

    /// What the machine did to the measurement.
    fn aside(&self) -> [Line; 2] {
        let lost = Act::ALL
            .map(|act| percent(self.scores.lost(act)))
            .join(", ");
        let aside = percent(self.scores.aside());
        [
            format!("Threads had no CPU for {lost} of the acts, and nothing was asked then."),
            format!(
                "{aside} of the requests were under way at such a moment: not in the latencies."
            ),
        ]
        .map(|text| vec![piece(Style::Faint, text)])
    }
}

/// The grade that most deserves attention.
fn worst(grades: impl Iterator<Item = Style>) -> Style {
    let order = [Style::Plain, Style::Good, Style::Fair, Style::Bad];
    let rank = |style: &Style| order.iter().position(|other| other == style);
    grades.max_by_key(rank).unwrap_or_default()
}

fn grade(now: Nanos, before: Nanos) -> Style {
    match now.0 as f64 / before.0.max(1) as f64 {
        ratio if ratio <= GOOD => Style::Good,
        ratio if ratio <= FAIR => Style::Fair,
        _ => Style::Bad,
    }
}

/// Two lines over the lines of a log.
pub(crate) fn log_heads() -> [String; 2] {
    let names: String = NAMES
        .iter()
        .map(|name| log_cells([name, "", "", ""]))
        .collect();
    let cells = log_cells(["ops/s", "p50", "p99", "device"]).repeat(TENANTS);
    [names, cells].map(|line| format!("{:5}{}", "", line.trim_end()))
}

fn log_cells(cells: [&str; 4]) -> String {
    let [ops, p50, p99, device] = cells;
    format!("{ops:>11}{p50:>8}{p99:>8}{device:>7}")
}

fn heads() -> String {
    format!(
        "{:<w$}  {:<22}{:>9}{:>8}{:>8}{:>8}{:>7}{:>9}",
        "tenant",
        "does",
        "ops/s",
        "p50",
        "p99",
        "device",
        "limit",
        "held/s",
        w = NAME
    )
}

/// Bars of eight heights on a logarithmic scale from a tenth of the least, so that it shows.
fn bars(columns: &[Nanos]) -> String {
    let logs = || {
        columns
            .iter()
            .filter(|p99| p99.0 > 0)
            .map(|p99| (p99.0 as f64).ln())
    };
    let (least, most) = logs().fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(x), b.max(x)));
    // Less than a factor of ten is drawn as less than the whole height.
    let span = (most - least).max(10f64.ln());
    let bar = |p99: &Nanos| {
        if p99.0 == 0 {
            return ' ';
        }
        let height = ((p99.0 as f64).ln() - least) / span * 7.0;
        char::from_u32(0x2581 + height.round() as u32).unwrap_or(' ')
    };
    columns.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_logarithmic_and_small_changes_stay_small() {
        let us =
            |values: &[u64]| bars(&values.iter().map(|&v| Nanos(v * 1000)).collect::<Vec<_>>());
        assert_eq!(us(&[1, 10, 100]), "\u{2581}\u{2585}\u{2588}");
        assert_eq!(us(&[10, 10]), "\u{2581}\u{2581}");
        assert_eq!(us(&[0, 10]), " \u{2581}");
        assert!(us(&[10, 11]).chars().all(|c| c < '\u{2583}'));
    }

    #[test]
    fn grades_compare_with_before() {
        let grade = |now, before| grade(Nanos(now), Nanos(before));
        assert_eq!(grade(15, 10), Style::Good);
        assert_eq!(grade(40, 10), Style::Fair);
        assert_eq!(grade(60, 10), Style::Bad);
        assert_eq!(grade(60, 0), Style::Bad);
        let mixed = [Style::Plain, Style::Fair, Style::Good];
        assert_eq!(worst(mixed.into_iter()), Style::Fair);
    }
}
