//! Ultraswap's evaluation in virtual time: what came out beside what the paper says, as tables and
//! as pictures.
//!
//! What this module never does: judge; put a figure of the paper and one that was fitted to it side
//! by side without saying so. Everything in it is *simulated*, but for the columns of the paper.

mod fault;

use crate::evaluation::grid::Grid;
use crate::plot::bars::{Bars, Stand};
use nyx_base::Rng;
use nyx_policy::paging::pager::Counts;
use nyx_policy::paging::pool::Rule;
use nyx_sim::paging::costs::Part;
use nyx_sim::paging::{Ageing, Kind, Outcome, Program, Setup, Touch, Variant, run};

/// Percent of a program's pages that may be in memory.
const RATIOS: [u32; 4] = [80, 60, 40, 20];
/// Table 7's.
const HALF: u32 = 50;
const SEED: u64 = 1;

/// What the paper says of a program: percent, but for table 7 (seconds).
struct Said {
    gain: f64,
    gain_at_20: f64,
    gap: f64,
    interrupt_only: f64,
    poll_only: f64,
    kernel: [f64; 2],
}

/// Section 4.3 (figure 8), section 4.4.1 (figure 9), table 7.
fn said(kind: Kind) -> Said {
    let (gain, gain_at_20, gap, interrupt_only, poll_only, kernel) = match kind {
        Kind::Quicksort => (9.0, 15.0, 5.0, 2.0, 6.0, [52.3, 37.0]),
        Kind::Kmeans => (19.0, 33.0, 25.0, 2.0, 35.0, [413.0, 267.0]),
        Kind::Inference => (10.0, 22.0, 18.0, 2.0, 7.0, [33.2, 28.5]),
        Kind::Pagerank => (13.0, 18.0, 22.0, 7.0, 20.0, [103.0, 82.3]),
        Kind::Linpack => (15.0, 19.0, 40.0, 4.0, 33.0, [95.0, 87.5]),
    };
    Said {
        gain,
        gain_at_20,
        gap,
        interrupt_only,
        poll_only,
        kernel,
    }
}

/// Table 6: Ultraswap and polling alone, in ten thousands.
const TABLE_6: [(f64, f64); 4] = [(11.9, 12.5), (24.1, 27.1), (32.4, 37.0), (40.0, 46.3)];

/// All runs of one program.
struct Runs {
    kind: Kind,
    /// With all of its memory.
    alone_ns: f64,
    /// By ratio, and then as [`Variant::ALL`] has them.
    at: Vec<Vec<Outcome>>,
    /// At half: without a reclaimer, and with.
    half: [Outcome; 2],
}

impl Runs {
    fn of(kind: Kind, pages: u32, rule: Rule, ageing: Ageing) -> Runs {
        let program = Program::new(kind, pages, SEED);
        let touches = &program.by_processor();
        let outcome = |variant, percent| {
            let setup = Setup {
                rule,
                ageing,
                ..Setup::new(variant, program.limit_pages(percent))
            };
            run(&setup, program.pages, touches)
        };
        // Twice of what it has: no limit that it ever comes near.
        let alone = Setup::new(Variant::Linux, program.pages * 2);
        Runs {
            kind,
            alone_ns: run(&alone, program.pages, touches).run_ns as f64,
            at: RATIOS
                .iter()
                .map(|&percent| Variant::ALL.map(|variant| outcome(variant, percent)).into())
                .collect(),
            half: [Variant::NoOffload, Variant::Ultraswap].map(|variant| outcome(variant, HALF)),
        }
    }

    fn get(&self, ratio: usize, variant: Variant) -> &Outcome {
        &self.at[ratio][variant as usize]
    }

    /// Run time, as a part of that with all memory.
    fn time(&self, ratio: usize, variant: Variant) -> f64 {
        self.get(ratio, variant).run_ns as f64 / self.alone_ns
    }

    fn gain(&self, ratio: usize) -> f64 {
        1.0 - self.time(ratio, Variant::Ultraswap) / self.time(ratio, Variant::Linux)
    }

    /// What is left of Linux' distance to the ideal.
    fn gap(&self, ratio: usize) -> f64 {
        let [linux, ours, ideal] = [Variant::Linux, Variant::Ultraswap, Variant::Ideal]
            .map(|variant| self.time(ratio, variant));
        (ours - ideal) / (linux - ideal)
    }

    /// How much longer it takes than all of Ultraswap, in the mean over ratios.
    fn longer(&self, variant: Variant) -> f64 {
        mean(|ratio| self.time(ratio, variant) / self.time(ratio, Variant::Ultraswap)) - 1.0
    }
}

/// Touches of pages anywhere, a fifth of which may be in memory, by variant.
fn in_no_order(pages: u32, rule: Rule, ageing: Ageing) -> Vec<Outcome> {
    let rng = &mut Rng::with_seed(SEED);
    let touch = |page, is_write| Touch {
        page,
        is_write,
        compute_ns: 10_000,
    };
    let mut touches: Vec<Touch> = (0..pages).map(|page| touch(page, true)).collect();
    let anywhere = (0..pages).map(|_| touch((rng.f64() * f64::from(pages)) as u32, false));
    touches.extend(anywhere);
    let outcome = |variant| {
        let setup = Setup {
            rule,
            ageing,
            ..Setup::new(variant, (pages / 5).max(1))
        };
        run(&setup, pages, &[&touches])
    };
    Variant::ALL.map(outcome).into()
}

/// All that was run.
pub struct Evaluation {
    runs: Vec<Runs>,
    /// As [`Variant::ALL`] has them.
    in_no_order: Vec<Outcome>,
    pages: u32,
    rule: Rule,
    ageing: Ageing,
}

impl Evaluation {
    /// Runs it, with programs of about so many pages.
    pub fn run(pages: u32, rule: Rule, ageing: Ageing) -> Evaluation {
        Evaluation {
            runs: Kind::ALL
                .map(|kind| Runs::of(kind, pages, rule, ageing))
                .into(),
            in_no_order: in_no_order(pages, rule, ageing),
            pages,
            rule,
            ageing,
        }
    }

    fn aged(&self) -> &'static str {
        match self.ageing {
            Ageing::Linux => "by Linux' lists",
            Ageing::Nyx => "by Nyx's pager",
        }
    }

    /// All tables, in Markdown.
    pub fn tables(&self) -> String {
        let watermark = match self.rule {
            Rule::Paper => "the paper's 70 % of the limit",
            _ => "as much as is taken until more is freed",
        };
        let head = format!(
            "Simulated: P4800X, programs of {} pages on as many processors as the paper gave them, \
             one that reclaims; pages aged {}; kept free: {watermark}.\n",
            self.pages,
            self.aged()
        );
        let sections = [
            (
                "Figure 8: run time, as a part of that with all memory",
                self.figure_8(),
            ),
            (
                "Figure 8: what Ultraswap gains, and what is left to the ideal",
                self.gains(),
            ),
            (
                "Figure 9: longer than all of it, mean of four ratios",
                self.figure_9(),
            ),
            (
                "Table 6: faults of linpack that need the device",
                self.table_6(),
            ),
            (
                "Table 7: kernel time of the program at 50 %",
                self.table_7(),
            ),
            (
                "Time of all processors, Ultraswap to Linux",
                self.all_processors(),
            ),
            (
                "Table 2: parts of a fault (fitted at one and eight pages)",
                self.table_2(),
            ),
            (
                "Table 3: parts of a page's way out (fitted)",
                self.table_3(),
            ),
            (
                "Figure 6: a critical page's latency, by its place",
                fault::by_place(),
            ),
        ];
        let text = sections.map(|(title, grid)| format!("\n{title}\n\n{}", grid.markdown()));
        head + &text.concat()
    }

    fn figure_8(&self) -> Grid {
        let mut grid = grid(&["program", "memory", "linux", "ultraswap", "ideal", "gain"]);
        grid.head.extend([
            "faults".to_owned(),
            "P99 linux".into(),
            "P99 ultraswap".into(),
        ]);
        for runs in &self.runs {
            for (ratio, percent) in RATIOS.iter().enumerate() {
                let time = |variant| format!("{:.2}", runs.time(ratio, variant));
                let p99 = |variant| {
                    let sorted = &runs.get(ratio, variant).fault_ns;
                    format!("{:.1} us", Outcome::quantile(sorted, 0.99) as f64 / 1e3)
                };
                let faults = runs.get(ratio, Variant::Ultraswap).counts.major_faults;
                grid.rows.push(vec![
                    runs.kind.name().to_owned(),
                    format!("{percent} %"),
                    time(Variant::Linux),
                    time(Variant::Ultraswap),
                    time(Variant::Ideal),
                    percents(runs.gain(ratio)),
                    faults.to_string(),
                    p99(Variant::Linux),
                    p99(Variant::Ultraswap),
                ]);
            }
        }
        grid
    }

    fn gains(&self) -> Grid {
        let mut grid = grid(&[
            "program", "mean", "paper", "at 20 %", "paper", "left", "paper",
        ]);
        for runs in &self.runs {
            let said = said(runs.kind);
            grid.rows.push(vec![
                runs.kind.name().to_owned(),
                percents(mean(|ratio| runs.gain(ratio))),
                whole(said.gain),
                percents(runs.gain(RATIOS.len() - 1)),
                whole(said.gain_at_20),
                percents(mean(|ratio| runs.gap(ratio))),
                whole(said.gap),
            ]);
        }
        grid
    }

    fn figure_9(&self) -> Grid {
        let mut grid = grid(&["program", "interrupt-only", "paper", "poll-only", "paper"]);
        for runs in &self.runs {
            let said = said(runs.kind);
            grid.rows.push(vec![
                runs.kind.name().to_owned(),
                percents(runs.longer(Variant::InterruptOnly)),
                whole(said.interrupt_only),
                percents(runs.longer(Variant::PollOnly)),
                whole(said.poll_only),
            ]);
        }
        grid
    }

    fn table_6(&self) -> Grid {
        let mut grid = grid(&[
            "memory",
            "ultraswap",
            "poll-only",
            "ratio",
            "paper's ratio",
            "pages read, ultraswap",
            "poll-only",
            "ratio",
        ]);
        let linpack = self.runs.iter().find(|runs| runs.kind == Kind::Linpack);
        let linpack = linpack.expect("all programs are run");
        for (ratio, percent) in RATIOS.iter().enumerate() {
            let [all, polled] = [Variant::Ultraswap, Variant::PollOnly]
                .map(|variant| linpack.get(ratio, variant).counts);
            let (said, said_polled) = TABLE_6[ratio];
            let pair = |all: u64, polled: u64| {
                let part = format!("{:.3}", polled as f64 / all as f64);
                [all.to_string(), polled.to_string(), part]
            };
            let read = |counts: Counts| counts.major_faults + counts.ahead;
            let mut row = vec![format!("{percent} %")];
            row.extend(pair(all.major_faults, polled.major_faults));
            row.push(format!("{:.3}", said_polled / said));
            row.extend(pair(read(all), read(polled)));
            grid.rows.push(row);
        }
        grid
    }

    fn table_7(&self) -> Grid {
        let mut grid = grid(&["program", "before", "after", "change", "paper"]);
        for runs in &self.runs {
            let [before, after] = [0, 1].map(|at| runs.half[at].programs.kernel_ns() as f64);
            let [said_before, said_after] = said(runs.kind).kernel;
            grid.rows.push(vec![
                runs.kind.name().to_owned(),
                format!("{:.1} ms", before / 1e6),
                format!("{:.1} ms", after / 1e6),
                percents(after / before - 1.0),
                percents(said_after / said_before - 1.0),
            ]);
        }
        grid
    }

    fn all_processors(&self) -> Grid {
        let mut grid = grid(&[
            "program",
            "80 %",
            "60 %",
            "40 %",
            "20 %",
            "reclaimer's share",
        ]);
        for runs in &self.runs {
            let cpu = |ratio, variant| runs.get(ratio, variant).cpu_ns() as f64;
            let cells = (0..RATIOS.len()).map(|ratio| {
                let change = cpu(ratio, Variant::Ultraswap) / cpu(ratio, Variant::Linux) - 1.0;
                percents(change)
            });
            let share = mean(|ratio| {
                let ours = runs.get(ratio, Variant::Ultraswap);
                ours.reclaimer.sum(Part::is_busy) as f64 / ours.cpu_ns() as f64
            });
            let mut row = vec![runs.kind.name().to_owned()];
            row.extend(cells);
            row.push(percents(share));
            grid.rows.push(row);
        }
        grid
    }

    /// What table 2 and the picture show, as [`Variant::ALL`] has them: whole clusters, and lone
    /// pages.
    fn shown(&self) -> [(&[Outcome], &'static str); 2] {
        let kmeans = self.runs.iter().find(|runs| runs.kind == Kind::Kmeans);
        let clusters = kmeans.and_then(|runs| runs.at.last());
        [
            (clusters.expect("all are run"), "kmeans, clusters"),
            (&self.in_no_order, "touches in no order"),
        ]
    }

    fn table_2(&self) -> Grid {
        let both = [Variant::Linux, Variant::Ultraswap];
        fault::table_2(
            self.shown()
                .map(|(all, _)| both.map(|variant| &all[variant as usize])),
        )
    }

    fn table_3(&self) -> Grid {
        let (runs, ratio) = (&self.runs[0], RATIOS.len() - 1);
        fault::table_3([Variant::Linux, Variant::Ultraswap].map(|one| runs.get(ratio, one)))
    }

    /// Bars of figure 8, a panel for each program.
    pub fn draw_figure_8(&self) -> Result<String, String> {
        let panel = |runs: &Runs| Bars {
            title: runs.kind.name().to_owned(),
            height: "run time to all memory's".to_owned(),
            places: RATIOS.map(|percent| format!("{percent} %")).into(),
            series: Variant::ALL
                .map(|variant| {
                    let all = (0..RATIOS.len()).map(|ratio| runs.time(ratio, variant));
                    (variant.name().to_owned(), all.collect())
                })
                .into(),
            stand: Stand::Beside,
        };
        let panels: Vec<Bars> = self.runs.iter().map(panel).collect();
        let title = format!(
            "Ultraswap figures 8 and 9: run time by memory, aged {}, simulated",
            self.aged()
        );
        crate::plot::bars::draw(&title, &panels, 230)
    }

    /// Stacked bars of a fault and of a page's way out, by part.
    pub fn draw_parts(&self) -> Result<String, String> {
        let mut panels = Vec::new();
        for (all, name) in self.shown() {
            let all = Variant::ALL.map(|variant| (variant.name(), &all[variant as usize]));
            panels.push(fault::parts_in(
                &format!("a fault that needs the device: {name}"),
                &all,
            ));
        }
        let (runs, ratio) = (&self.runs[0], RATIOS.len() - 1);
        let all = Variant::ALL.map(|variant| (variant.name(), runs.get(ratio, variant)));
        panels.push(fault::parts_out("a page's way out: quicksort", &all));
        let title = format!(
            "Ultraswap tables 2 and 3: where the time goes, aged {}, simulated",
            self.aged()
        );
        crate::plot::bars::draw(&title, &panels, 330)
    }
}

fn grid(head: &[&str]) -> Grid {
    Grid {
        head: head.iter().map(|&one| one.to_owned()).collect(),
        rows: Vec::new(),
    }
}

fn mean(of: impl Fn(usize) -> f64) -> f64 {
    (0..RATIOS.len()).map(of).sum::<f64>() / RATIOS.len() as f64
}

fn percents(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn whole(percent: f64) -> String {
    format!("{percent} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_programs_and_variants_are_in_tables_and_pictures() {
        let evaluation = Evaluation::run(1_024, Rule::Demand, Ageing::Linux);
        let tables = evaluation.tables();
        let bars = evaluation.draw_figure_8().expect("drawn");
        for kind in Kind::ALL {
            let name = kind.name();
            assert!(tables.contains(name) && bars.contains(name), "{name}");
        }
        let parts = evaluation.draw_parts().expect("drawn");
        for variant in Variant::ALL {
            let name = variant.name();
            assert!(bars.contains(name) && parts.contains(name), "{name}");
        }
        for title in [
            "Simulated",
            "Figure 6",
            "Figure 8",
            "Figure 9",
            "Table 2",
            "Table 7",
        ] {
            assert!(tables.contains(title), "{title}");
        }
    }
}
