//! Figures 1 to 14: as panels and as tables, from the same values. The paper's curves are drawn
//! without values, so what it says of each stands beside it in words.
//!
//! A figure has a panel for each sheet that has values for it, so that no two kinds of evidence
//! share one.
//!
//! What it never does: hide that threads outnumber processors: such lines and places are marked.

use super::grid::{Grid, bandwidth, latency, none, size, tick};
use super::{Evaluation, Named};
use crate::plot::{self, Across, Legend, Line, Mark, Panel, Point, Scale};
use nyx_media::Evidence;
use nyx_media::evaluate::{FENCED_BYTES, Flow, Order, Reading, SIZES_BYTES, Sheet, Work};

/// Marks more threads than processors.
pub const CROWDED_MARK: char = '*';

const PANEL_HEIGHT: u32 = 330;
/// The sizes of figure 10.
const SIZES_BY_THREADS: [usize; 6] = [64, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20];
/// Figures 8 and 9 show sizes up to and from here.
const SMALL_BYTES_MOST: usize = 1 << 10;

/// What is drawn of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Latency,
    Bandwidth,
}

/// What the lines and the abscissa of a figure are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// A line for each number of threads, along all sizes.
    Sizes(Work, Order),
    /// Writes without and with fences, for the least, the middle and the largest number of threads.
    Fences,
    /// Random reads and writes of one thread, along the sizes from one to another.
    OneThread(usize, usize),
    /// A line for some sizes of random reads, along the numbers of threads.
    Threads,
    /// Readers, a line for each number of them, along the number of writers.
    Readers(Work),
    /// Writers, a line for each number of them, along the number of readers.
    Writers(Work),
}

/// A figure of the paper.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its number.
    pub number: u32,
    /// What it shows.
    pub title: &'static str,
    /// What the paper says of it.
    pub says: &'static str,
    shown: Shown,
    shape: Shape,
}

const fn figure(
    number: u32,
    title: &'static str,
    shown: Shown,
    shape: Shape,
    says: &'static str,
) -> Figure {
    Figure {
        number,
        title,
        says,
        shown,
        shape,
    }
}

/// All of them.
pub const FIGURES: [Figure; 14] = {
    use Order::{Random, Sequential};
    use Shape::{Fences, OneThread, Readers, Sizes, Threads, Writers};
    use Shown::{Bandwidth, Latency};
    use Work::{Read, ReadChained, Write};
    [
        figure(
            1,
            "latency of random reads by size",
            Latency,
            Sizes(ReadChained, Random),
            "up to 256 B threads hardly matter; above, latency grows with their number",
        ),
        figure(
            2,
            "latency of random writes by size",
            Latency,
            Sizes(Write, Random),
            "more sensitive to threads than reads are; the least is near 256 B",
        ),
        figure(
            3,
            "bandwidth of random reads by size",
            Bandwidth,
            Sizes(Read, Random),
            "256 B are enough for the most, 7 GB/s; large accesses get less",
        ),
        figure(
            4,
            "bandwidth of random writes by size",
            Bandwidth,
            Sizes(Write, Random),
            "256 B are enough for the most, 2 GB/s; large accesses get less",
        ),
        figure(
            5,
            "bandwidth of random writes with a fence behind each 256 B",
            Bandwidth,
            Fences,
            "with fences large writes do not get less",
        ),
        figure(
            6,
            "bandwidth of sequential reads by size",
            Bandwidth,
            Sizes(Read, Sequential),
            "64 B are enough for the most; large accesses get less",
        ),
        figure(
            7,
            "bandwidth of sequential writes by size",
            Bandwidth,
            Sizes(Write, Sequential),
            "64 B are enough for the most; large accesses get less",
        ),
        figure(
            8,
            "latency of small random accesses, one thread",
            Latency,
            OneThread(0, SMALL_BYTES_MOST),
            "below 512 B some hundred nanoseconds",
        ),
        figure(
            9,
            "latency of large random accesses, one thread",
            Latency,
            OneThread(SMALL_BYTES_MOST, usize::MAX),
            "microseconds from KiB on, milliseconds from MiB on: as slow as an SSD",
        ),
        figure(
            10,
            "latency of random reads by threads",
            Latency,
            Threads,
            "below 256 B 16 threads make it twice as long; above it grows with their number",
        ),
        figure(
            11,
            "bandwidth of readers beside writers, 256 B",
            Bandwidth,
            Readers(Read),
            "the first writer takes much, the following ones little: there is a floor",
        ),
        figure(
            12,
            "bandwidth of writers beside readers, 256 B",
            Bandwidth,
            Writers(Read),
            "it falls, and then there is a floor",
        ),
        figure(
            13,
            "latency of readers beside writers, 256 B",
            Latency,
            Readers(ReadChained),
            "it settles around 1 us",
        ),
        figure(
            14,
            "latency of writers beside readers, 256 B",
            Latency,
            Writers(ReadChained),
            "it settles around 1 us",
        ),
    ]
};

/// The values of a figure from one sheet.
#[derive(Clone, Debug)]
struct Values {
    along: &'static str,
    places: Vec<String>,
    lines: Vec<(String, Vec<Option<Reading>>)>,
}

impl Values {
    /// Without lines and places that have no value at all.
    fn compact(mut self) -> Values {
        self.lines.retain(|line| line.1.iter().any(Option::is_some));
        let is_used = |at: usize| self.lines.iter().any(|line| line.1[at].is_some());
        let used: Vec<usize> = (0..self.places.len()).filter(|&at| is_used(at)).collect();
        let readings = |all: Vec<Option<Reading>>| used.iter().map(|&at| all[at]).collect();
        let lines = self.lines.into_iter();
        Values {
            along: self.along,
            places: used.iter().map(|&at| self.places[at].clone()).collect(),
            lines: lines.map(|(name, all)| (name, readings(all))).collect(),
        }
    }
}

/// How many threads, in words.
pub fn threads(count: usize) -> String {
    match count {
        1 => "1 thread".to_owned(),
        _ => format!("{count} threads"),
    }
}

impl Figure {
    /// The name of its file, without the ending.
    pub fn file_name(&self) -> String {
        format!("fig{:02}", self.number)
    }

    /// Its number and title.
    pub fn title(&self) -> String {
        format!("Figure {}: {}", self.number, self.title)
    }

    /// Whether it shows bandwidths, in GB/s; latencies bear their unit.
    pub fn is_bandwidth(&self) -> bool {
        self.shown == Shown::Bandwidth
    }

    /// A table for each sheet that has values for it, with the sheet's name.
    pub fn grids(&self, evaluation: &Evaluation) -> Vec<(String, Grid)> {
        let told = match self.shown {
            Shown::Latency => latency,
            Shown::Bandwidth => bandwidth,
        };
        let grid = |(named, values): (Named<'_>, Values)| {
            let lines = values.lines;
            let head = std::iter::once(values.along.to_owned());
            let row = |(at, place): (usize, String)| {
                let cell = |line: &(String, Vec<Option<Reading>>)| {
                    line.1[at].as_ref().map_or_else(none, told)
                };
                std::iter::once(place)
                    .chain(lines.iter().map(cell))
                    .collect()
            };
            let rows = values.places.into_iter().enumerate().map(row).collect();
            let head = head
                .chain(lines.iter().map(|line| line.0.clone()))
                .collect();
            (named.column(), Grid { head, rows })
        };
        self.all_values(evaluation).into_iter().map(grid).collect()
    }

    /// The drawing; the error is the library's.
    pub fn svg(&self, evaluation: &Evaluation) -> Result<String, String> {
        let panels = self.all_values(evaluation);
        let panels: Vec<Panel> = panels
            .into_iter()
            .map(|(named, values)| self.panel(named, values))
            .collect();
        let title = format!("{}; {}", self.title(), evaluation.name);
        plot::draw(&title, &panels, PANEL_HEIGHT)
    }

    fn panel(&self, named: Named<'_>, values: Values) -> Panel {
        let value = |reading: &Reading| match self.shown {
            Shown::Latency => reading.latency_ns,
            Shown::Bandwidth => reading.bytes_per_s / 1e9,
        };
        let line = |(name, readings): (String, Vec<Option<Reading>>)| {
            let points = readings.iter().enumerate();
            let points = points.filter_map(|(at, reading)| {
                Some(Point {
                    x: at as f64,
                    y: value(reading.as_ref()?),
                    mark: Mark::Dot,
                })
            });
            Line {
                name,
                points: points.collect(),
            }
        };
        let (scale, written): (_, fn(f64) -> String) = match self.shown {
            Shown::Latency => (Scale::Log, tick),
            Shown::Bandwidth => (Scale::Linear, plot::number),
        };
        let unit = match self.shown {
            Shown::Latency => "latency",
            Shown::Bandwidth => "GB/s",
        };
        Panel {
            title: format!("{}: {unit}", named.column()),
            along: values.along.to_owned(),
            across: Across::Places(values.places),
            scale,
            written,
            lines: values.lines.into_iter().map(line).collect(),
            levels: Vec::new(),
            legend: match self.shape {
                // Bandwidth falls the more others there are.
                Shape::Readers(_) | Shape::Writers(_) if self.is_bandwidth() => Legend::Right,
                _ => Legend::Left,
            },
        }
    }

    /// The values of all sheets that have any.
    fn all_values<'a>(&self, evaluation: &'a Evaluation) -> Vec<(Named<'a>, Values)> {
        let all = evaluation.sheets().into_iter();
        let of = all.map(|named| (named, self.values(evaluation, named.sheet).compact()));
        of.filter(|(_, values)| !values.lines.is_empty()).collect()
    }

    fn values(&self, evaluation: &Evaluation, sheet: &Sheet) -> Values {
        let most = match sheet.evidence {
            Evidence::Simulated => usize::MAX,
            Evidence::Real | Evidence::Emulated => evaluation.machine.cpus,
        };
        let values = Source {
            sheet,
            counts: &evaluation.plan.thread_counts,
            cpus: most,
        };
        match self.shape {
            Shape::Sizes(work, order) => values.sizes(work, order),
            Shape::Fences => values.fences(),
            Shape::OneThread(from, to) => values.one_thread(from, to),
            Shape::Threads => values.threads(),
            Shape::Readers(work) => values.mixed(work, Work::Write, ["reader", "writers beside"]),
            Shape::Writers(work) => values.mixed(Work::Write, work, ["writer", "readers beside"]),
        }
    }
}

/// Where values come from: a sheet, the numbers of threads, and how many run at once.
struct Source<'a> {
    sheet: &'a Sheet,
    counts: &'a [usize],
    cpus: usize,
}

impl Source<'_> {
    fn get(&self, work: Work, order: Order, bytes: usize, threads: usize) -> Option<Reading> {
        let flow = Flow {
            work,
            order,
            bytes,
            threads,
        };
        self.sheet.get(flow, None).copied()
    }

    /// A number of something, marked where so many threads are more than there are processors.
    fn marked(&self, text: String, threads: usize) -> String {
        match threads > self.cpus {
            true => format!("{text}{CROWDED_MARK}"),
            false => text,
        }
    }

    /// A line along sizes.
    fn along_sizes(
        &self,
        name: &str,
        sizes: &[usize],
        (work, order): (Work, Order),
        count: usize,
    ) -> (String, Vec<Option<Reading>>) {
        let of = |&bytes: &usize| self.get(work, order, bytes, count);
        let name = self.marked(format!("{}{name}", threads(count)), count);
        (name, sizes.iter().map(of).collect())
    }

    fn sizes(&self, work: Work, order: Order) -> Values {
        let line = |&count: &usize| self.along_sizes("", &SIZES_BYTES, (work, order), count);
        along_sizes(&SIZES_BYTES, self.counts.iter().map(line).collect())
    }

    fn fences(&self) -> Values {
        let mut counts = vec![
            self.counts[0],
            self.counts[self.counts.len() / 2],
            self.counts[self.counts.len() - 1],
        ];
        counts.dedup();
        // Only who has fences can be compared with and without.
        let is_fenced = |one: &Reading| one.flow.work == Work::WriteFenced;
        let sizes: Vec<usize> = match self.sheet.readings.iter().any(is_fenced) {
            true => SIZES_BYTES
                .into_iter()
                .filter(|&bytes| bytes > FENCED_BYTES)
                .collect(),
            false => Vec::new(),
        };
        let works = [(Work::Write, ""), (Work::WriteFenced, ", fenced")];
        let lines = counts.iter().flat_map(|&count| {
            works.map(|(work, name)| self.along_sizes(name, &sizes, (work, Order::Random), count))
        });
        let lines = lines.collect();
        along_sizes(&sizes, lines)
    }

    fn one_thread(&self, from: usize, to: usize) -> Values {
        let sizes: Vec<usize> = SIZES_BYTES
            .into_iter()
            .filter(|bytes| (from..=to).contains(bytes))
            .collect();
        let line = |(name, work): (&str, Work)| {
            let (_, readings) = self.along_sizes("", &sizes, (work, Order::Random), 1);
            (name.to_owned(), readings)
        };
        let works = [("reads", Work::ReadChained), ("writes", Work::Write)];
        let lines = works.map(line).to_vec();
        along_sizes(&sizes, lines)
    }

    fn threads(&self) -> Values {
        let line = |bytes: usize| {
            let of = |&count: &usize| self.get(Work::ReadChained, Order::Random, bytes, count);
            (size(bytes), self.counts.iter().map(of).collect())
        };
        let place = |&count: &usize| self.marked(count.to_string(), count);
        Values {
            along: "threads",
            places: self.counts.iter().map(place).collect(),
            lines: SIZES_BY_THREADS.map(line).to_vec(),
        }
    }

    /// Those who do `work`, beside from none to the most of the others.
    fn mixed(&self, work: Work, others: Work, [who, along]: [&'static str; 2]) -> Values {
        let besides: Vec<usize> = std::iter::once(0)
            .chain(self.counts.iter().copied())
            .collect();
        let line = |&count: &usize| {
            let of = |&beside: &usize| {
                let flow = Flow::mixed(work, count);
                let beside = (beside > 0).then(|| Flow::mixed(others, beside));
                self.sheet.get(flow, beside).copied()
            };
            let name = match count {
                1 => format!("1 {who}"),
                _ => format!("{count} {who}s"),
            };
            (self.marked(name, count), besides.iter().map(of).collect())
        };
        // The others beside at least one of these.
        let place = |&beside: &usize| self.marked(beside.to_string(), beside + 1);
        // Who was never seen beside anybody has no line: that is a sheet without mixtures.
        let is_mixed =
            |line: &(String, Vec<Option<Reading>>)| line.1[1..].iter().any(Option::is_some);
        Values {
            along,
            places: besides.iter().map(place).collect(),
            lines: self.counts.iter().map(line).filter(is_mixed).collect(),
        }
    }
}

fn along_sizes(sizes: &[usize], lines: Vec<(String, Vec<Option<Reading>>)>) -> Values {
    Values {
        along: "size of an access",
        places: sizes.iter().map(|&bytes| size(bytes)).collect(),
        lines,
    }
}
