//! What `nyx model --measure` found, beside the formulas: tables and drawings.
//!
//! What it never does: measure.

use super::measure::{Along, Options, Section};
use crate::evaluation::grid::{self, Grid, digits, none};
use crate::hfio::Rig;
use crate::hfio::drive::Cell;
use crate::plot::{self, Across, Legend, Line, Mark, Panel, Point, Scale};
use nyx_base::Bytes;
use nyx_media::Evidence;
use nyx_policy::nhc::formula::{
    Mix, Rates, cache_many, cache_one, either_many, installs_many, installs_one, shared_many,
    shared_one,
};
use nyx_policy::nhc::{Both, Cost, Kind, Nhc, Side};
use nyx_sim::pair::{PairWindow, cost_of, saturating_per_s};
use std::fmt::Write;

/// A request that takes so many times what its model says shows the file below, not the model.
const TOO_SLOW: f64 = 1.25;

/// See the module.
pub(super) struct Report<'a> {
    pub(super) options: &'a Options,
    pub(super) len: Bytes,
    pub(super) rig: &'a Rig,
    /// How many requests at once the rates of many are of.
    pub(super) many: u32,
    pub(super) sections: &'a [Section],
    /// Of each section's cells.
    pub(super) measured: &'a [Vec<PairWindow>],
}

/// What the formulas say of a cell, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Said {
    /// With installs that are writes.
    pub(super) bytes_per_s: f64,
    /// As printed in the paper, where it speaks of that.
    pub(super) paper: Option<f64>,
    /// The load_admit that gives it, where that is to be found.
    pub(super) load_admit: Option<f64>,
}

/// The formulas, of devices on which requests of that size take so much.
pub(super) fn said(costs: &Both<[Cost; 2]>, len_bytes: u64, cell: &Cell) -> Said {
    let rates = |ns_of: fn(&Cost) -> f64| {
        let of = |kind: Kind| {
            let rate = |side| len_bytes as f64 * 1e9 / ns_of(&costs[side][kind as usize]);
            Both(Side::ALL.map(rate))
        };
        Rates {
            reads: of(Kind::Read),
            writes: of(Kind::Write),
        }
    };
    let (one, many) = (rates(|cost| cost.alone_ns), rates(|cost| cost.each_ns));
    let (hits, writes) = (cell.hits, cell.writes);
    let mix = Mix { hits, writes };
    let is_one = cell.clients == 1;
    let (bytes_per_s, paper, load_admit) = match (cell.nhc, is_one) {
        (Nhc::Classic, true) => (
            installs_one(&one, mix),
            Some(cache_one(one.reads, hits)),
            None,
        ),
        (Nhc::Classic, false) => {
            let paper = cache_many(many.reads, hits);
            (installs_many(&many, mix), Some(paper), None)
        }
        (Nhc::Split(share), true) => (shared_one(&one, mix, share), None, None),
        (Nhc::Split(share), false) => (shared_many(&many, mix, share), None, None),
        // A lone request finds the fast device idle.
        (_, true) => (shared_one(&one, mix, 1.0), None, Some(1.0)),
        (_, false) => {
            let (most, load_admit) = either_many(&many, mix);
            (most, None, Some(load_admit))
        }
    };
    let offered = cell.load.map(|load| {
        let per_s = saturating_per_s(costs, cell.writes);
        load * per_s * len_bytes as f64
    });
    let most = offered.unwrap_or(f64::INFINITY);
    Said {
        bytes_per_s: bytes_per_s.min(most),
        paper: paper.filter(|_| writes == 0.0).map(|paper| paper.min(most)),
        load_admit: load_admit.filter(|_| hits > 0.0 && bytes_per_s <= most),
    }
}

fn ratio(value: f64) -> String {
    format!("{value:.2}")
}

fn mb_per_s(bytes_per_s: f64) -> String {
    digits(bytes_per_s / 1e6)
}

impl Report<'_> {
    /// Of which kind the figures of both devices together are.
    fn evidence(&self) -> Evidence {
        let is_real = |side| self.rig.targets[side].evidence() == Evidence::Real;
        match Side::ALL.into_iter().all(is_real) {
            true => Evidence::Real,
            false => Evidence::Emulated,
        }
    }

    fn title(&self) -> String {
        let name = |side: Side| self.rig.targets[side].name.as_str();
        format!(
            "{} before {}, blocks of {}, {} % reads: {}",
            name(Side::Fast),
            name(Side::Deep),
            self.len,
            self.options.reads,
            self.evidence(),
        )
    }

    fn said(&self, cell: &Cell) -> Said {
        said(&self.rig.costs, self.len.0, cell)
    }

    /// All tables.
    pub(super) fn text(&self) -> String {
        let Options { cache, data, .. } = self.options;
        let mut out = format!("{}; cache {cache} of {data}\n", self.title());
        for side in Side::ALL {
            let target = &self.rig.targets[side];
            let _ = writeln!(out, "\n{}: what a request takes\n", target.name);
            out.push_str(&self.costs(side).markdown());
        }
        for warning in self.warnings() {
            let _ = writeln!(out, "\n{warning}");
        }
        for (section, found) in self.sections.iter().zip(self.measured) {
            let _ = writeln!(out, "\n{}; MB/s\n", section.title);
            out.push_str(&self.grid(section, found).markdown());
        }
        out
    }

    /// One device's, beside its model's.
    fn costs(&self, side: Side) -> Grid {
        let target = &self.rig.targets[side];
        let (kind, many) = (target.evidence(), self.many);
        let mut head = vec!["request".to_owned()];
        let heads = |of: &str| {
            [
                format!("{of}, alone"),
                format!("of {many}"),
                "alone, MB/s".to_owned(),
                format!("of {many}, MB/s"),
            ]
        };
        head.extend(heads(&kind.to_string()));
        if target.model.is_some() {
            head.extend(heads("the model's"));
        }
        let cells = |cost: Cost| {
            let rate = |ns: f64| mb_per_s(self.len.0 as f64 * 1e9 / ns);
            [
                grid::time(cost.alone_ns),
                grid::time(cost.each_ns),
                rate(cost.alone_ns),
                rate(cost.each_ns),
            ]
        };
        let row = |(kind, op): (Kind, &str)| {
            let mut row = vec![op.to_owned()];
            row.extend(cells(self.rig.costs[side][kind as usize]));
            let model = target.model.as_ref();
            row.extend(
                model
                    .into_iter()
                    .flat_map(|model| cells(cost_of(model, kind, self.len.0))),
            );
            row
        };
        let is_measured = |(kind, _): &(Kind, &str)| *kind == Kind::Read || target.may_write;
        let kinds = [(Kind::Read, "read"), (Kind::Write, "write")];
        Grid {
            head,
            rows: kinds.into_iter().filter(is_measured).map(row).collect(),
        }
    }

    /// What is to be known of the figures.
    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for side in Side::ALL {
            let target = &self.rig.targets[side];
            let Some(model) = &target.model else {
                continue;
            };
            let is_slow = Kind::ALL.into_iter().any(|kind| {
                let (found, model) = (
                    self.rig.costs[side][kind as usize],
                    cost_of(model, kind, self.len.0),
                );
                found.each_ns > TOO_SLOW * model.each_ns
                    || found.alone_ns > TOO_SLOW * model.alone_ns
            });
            if is_slow {
                warnings.push(format!(
                    "{}: what lies below is too slow for this model, or the machine was busy; \
                     divide its rates by more ({}/N)",
                    target.name,
                    model.name.split('/').next().unwrap_or_default()
                ));
            }
        }
        warnings
    }

    fn grid(&self, section: &Section, found: &[PairWindow]) -> Grid {
        let has_paper = section
            .cells
            .iter()
            .any(|cell| self.said(cell).paper.is_some());
        let kind = self.evidence().to_string();
        let first: &[&str] = match section.along {
            Along::Hits => &["H"],
            Along::Splits => &["s"],
            Along::Loads => &["load", "controller"],
        };
        let formula = match section.along {
            Along::Loads => "ceiling",
            _ => "formula",
        };
        let mut head: Vec<&str> = first.to_vec();
        head.extend(has_paper.then_some("the paper's"));
        head.extend([formula, &kind, "ratio", "mean", "P99"]);
        head.extend(["best load_admit", "load_admit", "hits"]);
        let row = |(cell, found): (&Cell, &PairWindow)| {
            let said = self.said(cell);
            let mut row = match (section.along, cell.nhc) {
                (Along::Hits, _) => vec![ratio(cell.hits)],
                (Along::Splits, Nhc::Split(share)) => vec![ratio(share)],
                (_, nhc) => vec![ratio(cell.load.unwrap_or_default()), nhc.to_string()],
            };
            let or_none =
                |value: Option<f64>, write: fn(f64) -> String| value.map_or(none(), write);
            let seen = &found.seen;
            row.extend(has_paper.then(|| or_none(said.paper, mb_per_s)));
            let hits = seen.hits as f64 / seen.looks as f64;
            row.extend([
                mb_per_s(said.bytes_per_s),
                mb_per_s(found.bytes_per_s()),
                ratio(found.bytes_per_s() / said.bytes_per_s),
                or_none(seen.latencies.mean_ns(), grid::time),
                or_none(found.quantile_ns(0.99), grid::time),
                or_none(said.load_admit, ratio),
                or_none(seen.load_admit(), ratio),
                or_none((seen.looks > 0).then_some(hits), |hits| {
                    format!("{hits:.3}")
                }),
            ]);
            row
        };
        Grid {
            head: head.into_iter().map(str::to_owned).collect(),
            rows: section.cells.iter().zip(found).map(row).collect(),
        }
    }

    /// All curves, measured as dots over the formulas' lines, then controllers over loads.
    pub(super) fn drawn(&self) -> Result<String, String> {
        let mut panels = Vec::new();
        for (along, name) in [
            (Along::Hits, "hit ratio"),
            (Along::Splits, "share of the fast device"),
        ] {
            let lines: Vec<Line> = self
                .of(along)
                .flat_map(|(section, found)| self.curve(section, found))
                .collect();
            if !lines.is_empty() {
                panels.push(panel("MB/s", name, Across::Numbers(1.0), lines));
            }
        }
        for (section, found) in self.of(Along::Loads) {
            panels.extend(self.loads(section, found));
        }
        plot::draw(&self.title(), &panels, 380)
    }

    fn of(&self, along: Along) -> impl Iterator<Item = (&Section, &Vec<PairWindow>)> {
        let all = self.sections.iter().zip(self.measured);
        all.filter(move |(section, _)| section.along == along)
    }

    /// A formula's line and what was measured, as dots.
    fn curve(&self, section: &Section, found: &[PairWindow]) -> [Line; 2] {
        let x = |cell: &Cell| match (section.along, cell.nhc) {
            (Along::Splits, Nhc::Split(share)) => share,
            _ => cell.hits,
        };
        let point = |x, bytes_per_s: f64, mark| Point {
            x,
            y: bytes_per_s / 1e6,
            mark,
        };
        let formula = section.cells.iter();
        let formula = formula.map(|cell| point(x(cell), self.said(cell).bytes_per_s, Mark::None));
        let found = section.cells.iter().zip(found);
        let found = found.map(|(cell, found)| point(x(cell), found.bytes_per_s(), Mark::Lone));
        [
            Line {
                name: format!("{}, formula", section.title),
                points: formula.collect(),
            },
            Line {
                name: format!("{}, {}", section.title, self.evidence()),
                points: found.collect(),
            },
        ]
    }

    /// Throughput and P99 of each controller over loads.
    fn loads(&self, section: &Section, found: &[PairWindow]) -> [Panel; 2] {
        let loads = &self.options.loads;
        let lines = |value: &dyn Fn(&Cell, &PairWindow) -> f64, mark| {
            let of = |nhc: &Nhc| Line {
                name: nhc.to_string(),
                points: (section.cells.iter().zip(found))
                    .filter(|(cell, _)| cell.nhc == *nhc)
                    .enumerate()
                    .map(|(at, (cell, found))| Point {
                        x: at as f64,
                        y: value(cell, found),
                        mark,
                    })
                    .collect(),
            };
            self.options
                .controllers
                .iter()
                .map(of)
                .collect::<Vec<Line>>()
        };
        let mut rates = lines(&|_, found| found.bytes_per_s() / 1e6, Mark::Dot);
        let ceilings = lines(&|cell, _| self.said(cell).bytes_per_s / 1e6, Mark::None);
        // The last is everybody's: reads from either device.
        rates.extend(ceilings.into_iter().last().map(|line| Line {
            name: format!("ceiling of {}", line.name),
            ..line
        }));
        let p99 = |_: &Cell, found: &PairWindow| found.quantile_ns(0.99).unwrap_or(0.0) / 1e6;
        let along = "load, in multiples of what saturates the fast device";
        let places = || Across::Places(loads.iter().map(f64::to_string).collect());
        [
            panel("MB/s", along, places(), rates),
            Panel {
                scale: Scale::Log,
                ..panel("P99 in ms", along, places(), lines(&p99, Mark::Dot))
            },
        ]
    }
}

fn panel(title: &str, along: &str, across: Across, lines: Vec<Line>) -> Panel {
    Panel {
        title: title.to_owned(),
        along: along.to_owned(),
        across,
        scale: Scale::Linear,
        written: plot::number,
        lines,
        levels: Vec::new(),
        legend: Legend::Left,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_base::Nanos;
    use nyx_sim::pair::Installs;

    const LEN: u64 = 1_000_000;

    /// In ms: reads of 1 alone and 0.5 of many, and so on, so that rates are whole.
    fn costs() -> Both<[Cost; 2]> {
        let cost = |alone_ms: f64, each_ms: f64| Cost {
            alone_ns: alone_ms * 1e6,
            each_ns: each_ms * 1e6,
        };
        Both([
            [cost(1.0, 0.5), cost(2.0, 1.0)],
            [cost(4.0, 0.5), cost(4.0, 2.0)],
        ])
    }

    fn cell(nhc: Nhc, hits: f64, clients: u32) -> Cell {
        Cell {
            nhc,
            hits,
            writes: 0.0,
            clients,
            load: None,
            installs: Installs::Before,
            warm_up: Nanos(0),
            length: Nanos(1),
            seed: 1,
        }
    }

    fn formula(cell: Cell) -> (f64, Option<f64>, Option<f64>) {
        let said = said(&costs(), LEN, &cell);
        let thousandths = |value: f64| (value * 1e3).round() / 1e3;
        let mb = |bytes_per_s: f64| thousandths(bytes_per_s / 1e6);
        (
            mb(said.bytes_per_s),
            said.paper.map(mb),
            said.load_admit.map(thousandths),
        )
    }

    #[test]
    fn formulas_are_of_the_rates_that_were_measured() {
        let third = |value: f64| (value * 1e3).round() / 1e3;
        // A miss: 4 ms, and a write of 2 ms; in the paper's, a read of 1 ms.
        let one = formula(cell(Nhc::Classic, 0.5, 1));
        assert_eq!(one, (third(1e3 / 3.5), Some(third(1e3 / 3.0)), None));
        // The fast device: half of the time reads of 0.5 ms, half of it writes of 1 ms.
        let many = formula(cell(Nhc::Classic, 0.5, 64));
        assert_eq!(many, (third(1e3 / 0.75), Some(2000.0), None));
        assert_eq!(
            formula(cell(Nhc::Split(0.75), 1.0, 64)).0,
            third(1e3 / 0.375)
        );
        assert_eq!(formula(cell(Nhc::Split(0.5), 1.0, 1)).0, 400.0);
        // Both devices read as fast with many at once.
        for nhc in [Nhc::ShortestDelay, Nhc::Orthus, Nhc::Most] {
            assert_eq!(
                formula(cell(nhc, 1.0, 64)),
                (4000.0, None, Some(0.5)),
                "{nhc}"
            );
            assert_eq!(
                formula(cell(nhc, 0.8, 64)),
                (4000.0, None, Some(0.625)),
                "{nhc}"
            );
        }
        assert_eq!(
            formula(cell(Nhc::ShortestDelay, 0.0, 64)),
            (2000.0, None, None)
        );
    }

    #[test]
    fn no_more_is_expected_than_is_offered() {
        // 2,000 reads a second saturate the fast device.
        let loaded = |nhc, load| {
            let load = Some(load);
            formula(Cell {
                load,
                ..cell(nhc, 1.0, 64)
            })
        };
        assert_eq!(loaded(Nhc::ShortestDelay, 0.5), (1000.0, None, None));
        assert_eq!(loaded(Nhc::ShortestDelay, 4.0), (4000.0, None, Some(0.5)));
        assert_eq!(loaded(Nhc::Classic, 4.0), (2000.0, Some(2000.0), None));
        // Half of the requests write, which takes twice as long: 1,333 a second, and no figure of
        // the paper's.
        let mixed = formula(Cell {
            writes: 0.5,
            load: Some(0.75),
            ..cell(Nhc::Classic, 1.0, 64)
        });
        assert_eq!(mixed, (1000.0, None, None));
    }
}
