//! `nyx model --measure`: caching, splitting and every controller on two devices, beside what the
//! formulas make of the devices' own rates.
//!
//! What it never does: put figures of two kinds into one column.

use super::PERCENTS;
use super::tables::Report;
use crate::cmd::print;
use crate::hfio::drive::Cell;
use crate::hfio::target::{Said, Target};
use crate::hfio::{Layout, Rig, depth_of};
use crate::{Exit, Failure};
use indicatif::{ProgressBar, ProgressStyle};
use nyx_base::{Bytes, Nanos};
use nyx_policy::nhc::{Both, Nhc, Side};
use nyx_sim::pair::{Installs, PairWindow};
use std::path::Path;
use std::time::{Duration, Instant};

/// What is measured, and how.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "With --measure")]
pub(super) struct Options {
    /// Run caching, splitting and the controllers on the devices, in real time.
    #[arg(long, conflicts_with = "simulate")]
    pub measure: bool,
    /// A model laid over the file that --fast names.
    #[arg(long, value_name = "MODEL", requires = "measure")]
    pub fast_model: Option<String>,
    /// A model laid over the file that --deep names.
    #[arg(long, value_name = "MODEL", requires = "measure")]
    pub deep_model: Option<String>,
    /// What is on these devices may be overwritten: fast, deep.
    #[arg(long, value_name = "WHICH", value_delimiter = ',', requires = "measure",
          value_parser = ["fast", "deep"])]
    pub overwrite: Vec<String>,
    /// The part of the fast device that is the cache.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "64MiB",
        requires = "measure"
    )]
    pub cache: Bytes,
    /// The part of the deep device that is asked for.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "256MiB",
        requires = "measure"
    )]
    pub data: Bytes,
    /// Percent of the requests that read; the others write something new.
    #[arg(long, value_name = "PERCENT", default_value_t = 100, requires = "measure",
          value_parser = clap::value_parser!(u8).range(0..=100))]
    pub reads: u8,
    /// Clients, each with one request at a time.
    #[arg(long, value_name = "N", default_value_t = 64, requires = "measure",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub parallel: u32,
    /// For how long each cell counts.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, requires = "measure",
          value_parser = seconds)]
    pub seconds: f64,
    /// For how long each cell runs before it counts [default: 0.3; 0.5 of shortest-delay, 4 of
    /// orthus, 8 of most, which have to find their ratios].
    #[arg(long, value_name = "SECONDS", requires = "measure", value_parser = seconds)]
    pub warm_up: Option<f64>,
    /// What is measured: over hit ratios, over splits, over loads.
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "measure",
          default_value = "hits,splits,loads", value_parser = ["hits", "splits", "loads"])]
    pub tables: Vec<String>,
    /// Hit ratios, forced by which addresses are asked for; loads have the last of them [default:
    /// those of the tables without --measure].
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "measure",
          value_parser = share)]
    pub hits: Vec<f64>,
    /// Shares of the fast device [default: those of the tables without --measure].
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "measure",
          value_parser = share)]
    pub splits: Vec<f64>,
    /// What clients offer, in multiples of what saturates the fast device.
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "measure",
          default_value = "0.5,1,2,4", value_parser = load)]
    pub loads: Vec<f64>,
    /// Who decides where requests go, over loads.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        requires = "measure",
        default_value = "classic,split:0.8,orthus,most,shortest-delay"
    )]
    pub controllers: Vec<Nhc>,
    /// A miss that is cached is answered when that is done (before), or is written in the
    /// background, 16 at a time (behind) [default: before of classic, which the formulas are of;
    /// behind of the others].
    #[arg(long, value_name = "WHEN", requires = "measure", value_parser = ["before", "behind"])]
    pub installs: Option<String>,
}

fn number(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let value = text.trim().parse().map_err(|_| "no number".to_owned())?;
    match (least..=most).contains(&value) {
        true => Ok(value),
        false => Err(format!("not from {least} to {most}")),
    }
}

fn share(text: &str) -> Result<f64, String> {
    number(text, 0.0, 1.0)
}

fn load(text: &str) -> Result<f64, String> {
    number(text, 0.01, 100.0)
}

fn seconds(text: &str) -> Result<f64, String> {
    number(text, 0.01, 3600.0)
}

fn nanos(seconds: f64) -> Nanos {
    Nanos((seconds * 1e9) as u64)
}

/// A curve, or all controllers over loads: what is run for each row.
#[derive(Clone, Debug)]
pub(super) struct Section {
    /// Above it.
    pub(super) title: String,
    /// What the rows differ in.
    pub(super) along: Along,
    /// What is run.
    pub(super) cells: Vec<Cell>,
}

/// What the rows of a section differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Along {
    /// The hit ratio.
    Hits,
    /// The share of the fast device.
    Splits,
    /// The load, and the controller.
    Loads,
}

/// At this many requests at once, or more, a device is taken to give what it can.
const MANY: u32 = 64;
/// Both devices have so many costs to be measured.
const COSTS: usize = 8;

/// Measures, and prints.
pub(super) fn run(
    options: &Options,
    names: [&str; 2],
    len: Bytes,
    svg: Option<&Path>,
) -> Result<(), Failure> {
    let sections = plan(options);
    let many = options.parallel.max(MANY);
    let depth = depth_of(many);
    let layout = Layout::new(len, options.cache, options.data, depth)?;
    let targets = open(options, names, &layout, &sections)?;
    let length = nanos(options.seconds.min(1.0));
    let cells = sections.iter().flat_map(|section| &section.cells);
    let lasting: u64 = cells.map(|cell| cell.warm_up.0 + cell.length.0).sum();
    let mut progress = Progress::new(lasting + COSTS as u64 * length.0);
    let mut rig = Rig::new(targets, layout, depth, &mut |part| progress.fill(part))?;
    progress.begin();
    for side in Side::ALL {
        let target = &rig.targets[side];
        progress.say(&format!("{}: {}", target.name, rig.describe(side)));
    }
    let begun = progress.done_ns;
    rig.measure_costs(many, length, &mut |costs| {
        progress.reach(begun + costs as u64 * length.0, "what requests take");
    })?;
    let mut measured = Vec::new();
    for section in &sections {
        let mut found: Vec<PairWindow> = Vec::new();
        for &cell in &section.cells {
            let at = progress.done_ns;
            found.push(rig.run(cell)?);
            progress.reach(at + cell.warm_up.0 + cell.length.0, &section.title);
        }
        measured.push(found);
    }
    progress.end();
    let report = Report {
        options,
        len,
        rig: &rig,
        many,
        sections: &sections,
        measured: &measured,
    };
    print(&report.text())?;
    let Some(path) = svg else {
        return Ok(());
    };
    let drawn = report.drawn();
    let drawn = drawn.map_err(|why| Failure::new(Exit::Software, format!("cannot draw: {why}")))?;
    std::fs::write(path, drawn).map_err(|error| Failure::uncreatable(path, &error))
}

/// All that is run.
pub(super) fn plan(options: &Options) -> Vec<Section> {
    let defaults = || PERCENTS.map(|percent| f64::from(percent) / 100.0).to_vec();
    let given = |list: &Vec<f64>| match list.is_empty() {
        true => defaults(),
        false => list.clone(),
    };
    let (hits, splits) = (given(&options.hits), given(&options.splits));
    let wants = |table: &str| options.tables.iter().any(|wanted| wanted == table);
    let many = options.parallel;
    let at_once = |clients| match clients {
        1 => "one at a time".to_owned(),
        many => format!("{many} at a time"),
    };
    let mut numbers = if many == 1 { vec![1] } else { vec![1, many] };
    let mut sections = Vec::new();
    let mut section = |name: &str, clients, along, cells: Vec<Cell>| {
        let title = format!("{name}, {}", at_once(clients));
        sections.push(Section {
            title,
            along,
            cells,
        });
    };
    let cell = |nhc, hits, clients, load| cell(options, nhc, hits, clients, load);
    if wants("hits") {
        let over = |nhc, clients| {
            hits.iter()
                .map(|&hits| cell(nhc, hits, clients, None))
                .collect()
        };
        for &clients in &numbers {
            section("classic", clients, Along::Hits, over(Nhc::Classic, clients));
        }
        let shortest = over(Nhc::ShortestDelay, many);
        section("shortest-delay", many, Along::Hits, shortest);
    }
    if wants("splits") {
        for clients in numbers.drain(..) {
            let over = splits
                .iter()
                .map(|&split| cell(Nhc::Split(split), 1.0, clients, None));
            section("split", clients, Along::Splits, over.collect());
        }
    }
    if wants("loads") {
        let hits = *hits.last().expect("there are defaults");
        let of = |&load: &f64| {
            let with = move |&nhc: &Nhc| cell(nhc, hits, many, Some(load));
            options.controllers.iter().map(with)
        };
        let cells = options.loads.iter().flat_map(of).collect();
        sections.push(Section {
            title: format!("controllers, {many} clients, hit ratio {hits}"),
            along: Along::Loads,
            cells,
        });
    }
    sections
}

fn cell(options: &Options, nhc: Nhc, hits: f64, clients: u32, load: Option<f64>) -> Cell {
    let warm_up = options.warm_up.unwrap_or(match nhc {
        Nhc::Classic | Nhc::Split(_) => 0.3,
        Nhc::ShortestDelay => 0.5,
        Nhc::Orthus => 4.0,
        Nhc::Most => 8.0,
    });
    Cell {
        nhc,
        hits,
        writes: 1.0 - f64::from(options.reads) / 100.0,
        clients,
        load,
        installs: match options.installs.as_deref() {
            Some("before") => Installs::Before,
            Some(_) => Installs::Behind,
            None => installs_of(nhc),
        },
        warm_up: nanos(warm_up),
        length: nanos(options.seconds),
        seed: 1,
    }
}

/// When what was missed is cached: HFIO's cache answers when it is, and the formulas of caching are
/// of that; nobody who serves from either device would let a reader wait for it.
pub(super) fn installs_of(nhc: Nhc) -> Installs {
    match nhc {
        Nhc::Classic => Installs::Before,
        _ => Installs::Behind,
    }
}

/// Why a device is written to by what is run, where it is.
pub(super) fn writes(sections: &[Section], side: Side) -> Option<&'static str> {
    let mut cells = sections.iter().flat_map(|section| &section.cells);
    let admits = |cell: &Cell| match cell.nhc {
        Nhc::Classic | Nhc::Orthus | Nhc::ShortestDelay => cell.hits < 1.0,
        Nhc::Most | Nhc::Split(_) => false,
    };
    if cells.clone().any(|cell| cell.writes > 0.0) {
        Some("--reads is below 100")
    } else if side == Side::Fast && cells.any(admits) {
        Some("what is missed is cached there; with --hits 1 nothing is")
    } else {
        None
    }
}

fn open(
    options: &Options,
    names: [&str; 2],
    layout: &Layout,
    sections: &[Section],
) -> Result<Both<Target>, Failure> {
    let open = |side: Side| {
        let (model, word) = match side {
            Side::Fast => (&options.fast_model, "fast"),
            Side::Deep => (&options.deep_model, "deep"),
        };
        let said = Said {
            what: names[side as usize],
            model: model.as_deref(),
            may_overwrite: options.overwrite.iter().any(|which| which == word),
        };
        let len_bytes = layout.blocks(side) * layout.len_bytes;
        Target::open(said, side, len_bytes, writes(sections, side))
    };
    Ok(Both([open(Side::Fast)?, open(Side::Deep)?]))
}

/// How far it is: a bar on a terminal, else a line now and then.
struct Progress {
    bar: ProgressBar,
    done_ns: u64,
    told: Instant,
}

/// Where there is no bar, a line after so long.
const TOLD_EVERY: Duration = Duration::from_secs(10);

impl Progress {
    fn new(lasting_ns: u64) -> Progress {
        let style = "{wide_bar} {msg}";
        let style = ProgressStyle::with_template(style).expect("a constant template");
        Progress {
            bar: ProgressBar::new(lasting_ns).with_style(style),
            done_ns: 0,
            told: Instant::now(),
        }
    }

    fn say(&self, line: &str) {
        match self.bar.is_hidden() {
            true => eprintln!("nyx model: {line}"),
            false => self.bar.println(line),
        }
    }

    /// Blocks are written before anything lasts as long as is known.
    fn fill(&mut self, part: f64) {
        self.tell(&format!("{:.0} % of the blocks written", part * 100.0));
    }

    fn begin(&mut self) {
        self.reach(0, "what requests take");
    }

    fn reach(&mut self, done_ns: u64, what: &str) {
        self.done_ns = done_ns;
        self.bar.set_position(done_ns);
        let left_ns = self.bar.length().unwrap_or(0).saturating_sub(done_ns);
        self.tell(&format!(
            "{what}; {} s left",
            left_ns.div_ceil(1_000_000_000)
        ));
    }

    fn tell(&mut self, what: &str) {
        if self.bar.is_hidden() && self.told.elapsed() >= TOLD_EVERY {
            self.told = Instant::now();
            self.say(what);
        }
        self.bar.set_message(what.to_owned());
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: crate::cmd::model::Args,
    }

    fn parsed(line: &str) -> Result<Options, String> {
        let words = ["model", "--measure"]
            .into_iter()
            .chain(line.split_whitespace());
        let parsed = Line::try_parse_from(words);
        parsed
            .map(|line| line.args.options)
            .map_err(|error| error.to_string())
    }

    fn options(line: &str) -> Options {
        parsed(line).expect(line)
    }

    #[test]
    fn the_defaults_are_the_tables_of_the_formulas_and_four_loads() {
        let sections = plan(&options(""));
        let rows: Vec<(&str, usize)> = sections
            .iter()
            .map(|section| (section.title.as_str(), section.cells.len()))
            .collect();
        let expected = [
            ("classic, one at a time", 12),
            ("classic, 64 at a time", 12),
            ("shortest-delay, 64 at a time", 12),
            ("split, one at a time", 12),
            ("split, 64 at a time", 12),
            ("controllers, 64 clients, hit ratio 1", 20),
        ];
        assert_eq!(rows, expected);
        let cells = sections.iter().flat_map(|section| &section.cells);
        let lasting_ns: u64 = cells.map(|cell| cell.warm_up.0 + cell.length.0).sum();
        assert!(
            lasting_ns < 240_000_000_000,
            "some minutes: {lasting_ns} ns"
        );
        let one = &sections[0].cells[0];
        assert_eq!(
            (one.clients, one.load, one.hits, one.writes),
            (1, None, 0.0, 0.0)
        );
        assert_eq!(one.installs, Installs::Before);
        let last = sections[5].cells.last().expect("cells");
        assert_eq!((last.nhc, last.load), (Nhc::ShortestDelay, Some(4.0)));
        assert_eq!(last.installs, Installs::Behind);
    }

    #[test]
    fn what_is_asked_for_is_what_is_run() {
        let line = "--tables loads --hits 0.5,0.8 --loads 2 --controllers most,split:0.3 \
                    --reads 70 --parallel 9 --seconds 0.5 --warm-up 0.25 --installs behind";
        let sections = plan(&options(line));
        let [section] = &sections[..] else {
            panic!("{sections:?}");
        };
        let nhcs: Vec<Nhc> = section.cells.iter().map(|cell| cell.nhc).collect();
        assert_eq!(nhcs, [Nhc::Most, Nhc::Split(0.3)]);
        let cell = section.cells[0];
        assert_eq!((cell.hits, cell.load, cell.clients), (0.8, Some(2.0), 9));
        assert!((cell.writes - 0.3).abs() < 1e-9);
        assert_eq!((cell.warm_up, cell.length), (nanos(0.25), nanos(0.5)));
        assert_eq!(cell.installs, Installs::Behind);
        // One at a time is not measured twice.
        assert_eq!(plan(&options("--parallel 1")).len(), 4);
    }

    #[test]
    fn what_is_out_of_range_is_told() {
        for (line, expected) in [
            ("--hits 1.5", "not from 0 to 1"),
            ("--hits 0.5,x", "no number"),
            ("--splits=-1", "not from 0 to 1"),
            ("--loads 0", "not from 0.01 to 100"),
            ("--seconds 0", "not from 0.01 to 3600"),
            ("--seconds NaN", "not from 0.01 to 3600"),
            ("--reads 101", "101 is not in 0..=100"),
            ("--parallel 0", "0 is not in 1..=1024"),
            ("--controllers lru", "split:SHARE"),
            ("--overwrite all", "possible values: fast, deep"),
            ("--installs never", "possible values: before, behind"),
        ] {
            let told = parsed(line).expect_err(line);
            assert!(told.contains(expected), "{line}: {told}");
        }
        assert!(
            Line::try_parse_from(["model", "--hits", "1"]).is_err(),
            "without --measure"
        );
    }

    #[test]
    fn a_device_is_written_to_by_writes_and_by_what_is_cached() {
        let of = |line: &str| {
            let sections = plan(&options(line));
            Side::ALL.map(|side| writes(&sections, side).is_some())
        };
        assert_eq!(of(""), [true, false], "misses are cached");
        assert_eq!(of("--hits 1"), [false, false]);
        assert_eq!(of("--hits 1 --reads 99"), [true, true]);
        assert_eq!(of("--tables splits"), [false, false]);
        assert_eq!(
            of("--tables loads --hits 0.5 --controllers most,split:1"),
            [false; 2]
        );
        assert_eq!(
            of("--tables loads --hits 0.5 --controllers orthus"),
            [true, false]
        );
    }
}
