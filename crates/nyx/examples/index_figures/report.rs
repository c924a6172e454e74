//! What was found, as tables, JSON and drawings.
//!
//! What it never does: compute with anything but what was noted.

use crate::rig::{Found, Law, Work, medians};
use nyx::plot::{self, Across, Legend, Line, Mark, Panel, Point, Scale};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

const PANEL_HEIGHT: u32 = 330;
/// What the paper says of each part.
const PAPER: [(&str, &str); 3] = [
    (
        "cost",
        "What the emulation itself takes per operation, in both columns of a pair.",
    ),
    (
        "hybrids",
        "The paper (3.1, figure 17): HybridIndex+ reads up to 1.8 times as fast, writes 30 % \
         slower; it answers ranges at once after a crash.",
    ),
    (
        "caches",
        "The paper (3.2, figures 19 and 20): under Zipf's law 20 to 50 % less read latency, most \
         for the slowest; updates 20 to 30 % slower; uniform: serial loses, parallel does not.",
    ),
];

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    part: &'static str,
    candidate: String,
    law: Law,
    work: Work,
    threads: u16,
}

impl Row {
    pub(crate) fn new(
        part: &'static str,
        candidate: &str,
        law: Law,
        work: Work,
        threads: u16,
    ) -> Row {
        Row {
            part,
            candidate: candidate.to_owned(),
            law,
            work,
            threads,
        }
    }
}

/// A row with its rounds.
#[derive(Debug, Serialize)]
struct Entry {
    #[serde(flatten)]
    row: Row,
    rounds: Vec<Found>,
}

/// All that was found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    evidence: &'static str,
    entries: Vec<Entry>,
    told: Vec<String>,
    /// So many of that have been printed.
    #[serde(skip)]
    printed: usize,
}

impl Report {
    /// Of numbers that are real, emulated or simulated.
    pub(crate) fn of(evidence: &'static str) -> Report {
        Report {
            evidence,
            entries: Vec::new(),
            told: Vec::new(),
            printed: 0,
        }
    }

    /// Notes one round of `row`.
    pub(crate) fn note(&mut self, row: Row, found: Found) {
        match self.entries.iter_mut().find(|entry| entry.row == row) {
            Some(entry) => entry.rounds.push(found),
            None => self.entries.push(Entry {
                row,
                rounds: vec![found],
            }),
        }
    }

    /// Notes what fits no table.
    pub(crate) fn tell(&mut self, told: String) {
        self.told.push(told);
    }

    /// The table of a part, and what was told since the last one, in Markdown.
    pub(crate) fn text(&mut self, part: &str) -> String {
        let says = PAPER.iter().find(|(name, _)| *name == part);
        let mut text = format!("## {part}\n\n{}\n\n", says.map_or("", |(_, says)| says));
        text.push_str("| work | keys | threads | candidate | mean ns | P50 | P99 | CPU ns | ");
        text.push_str("wall ns | hits |\n|---|---|---:|---|---:|---:|---:|---:|---:|---:|\n");
        for entry in self.entries.iter().filter(|entry| entry.row.part == part) {
            text.push_str(&entry.line());
        }
        text.push('\n');
        for told in &self.told[self.printed..] {
            let _ = writeln!(text, "* {told}");
        }
        self.printed = self.told.len();
        text
    }

    /// Puts figures.json and the drawings into `dir`.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), String> {
        std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let put = |name: &str, text: String| {
            let path = dir.join(name);
            std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
        };
        let json = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        put("figures.json", json + "\n")?;
        let figures = [
            ("figure-17.svg", "Look-ups", self.figure_17()),
            ("figure-19.svg", "ACS", self.figure_19()),
        ];
        for (name, title, panels) in figures {
            if panels.iter().any(|panel| !panel.lines.is_empty()) {
                let title = format!("{title} ({})", self.evidence);
                put(name, plot::draw(&title, &panels, PANEL_HEIGHT)?)?;
            }
        }
        Ok(())
    }

    /// Entries of look-ups only.
    fn reads(&self, part: &str, law: &str) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| {
            let row = &entry.row;
            let is_read = row.work == Work::Points { writes_pct: 0 };
            row.part == part && row.law.name() == law && is_read
        })
    }

    fn figure_17(&self) -> Vec<Panel> {
        let mut threads: Vec<u16> = Vec::new();
        let points: Vec<_> = (self.reads("hybrids", "uniform"))
            .map(|entry| {
                let place = threads.iter().position(|&known| known == entry.row.threads);
                let place = place.unwrap_or(threads.len());
                if place == threads.len() {
                    threads.push(entry.row.threads);
                }
                let per_second = 1e3 / medians(&entry.rounds).wall_ns;
                (entry.row.candidate.clone(), place as f64, per_second)
            })
            .collect();
        let named = |threads: &u16| match threads {
            1 => "1 thread".to_owned(),
            _ => format!("{threads} threads"),
        };
        let places = threads.iter().map(named).collect();
        let title = "figure 17: million look-ups a second, uniform";
        vec![panel(title, places, lines(points))]
    }

    fn figure_19(&self) -> Vec<Panel> {
        let of_law = |law| {
            let mut places: Vec<String> = Vec::new();
            let mut points = Vec::new();
            for entry in self.reads("caches", law) {
                let (index, how) = (entry.row.candidate.split_once(", ")).unwrap_or_default();
                if places.iter().all(|place| place != index) {
                    places.push(index.to_owned());
                }
                let place = (places.len() - 1) as f64;
                points.push((how.to_owned(), place, medians(&entry.rounds).mean_ns));
            }
            let title = format!("figure 19: mean latency of a look-up in ns, {law}");
            panel(&title, places, lines(points))
        };
        vec![of_law("zipf"), of_law("uniform")]
    }
}

impl Entry {
    fn line(&self) -> String {
        let (row, found) = (&self.row, medians(&self.rounds));
        let hits = found
            .hits
            .map_or("-".to_owned(), |hits| format!("{hits:.3}"));
        format!(
            "| {} | {} | {} | {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {hits} |\n",
            row.work.name(),
            row.law.name(),
            row.threads,
            row.candidate,
            found.mean_ns,
            found.p50_ns,
            found.p99_ns,
            found.cpu_ns,
            found.wall_ns,
        )
    }
}

/// A line for each name, of its points.
fn lines(points: impl IntoIterator<Item = (String, f64, f64)>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for (name, x, y) in points {
        let mark = Mark::Dot;
        let point = Point { x, y, mark };
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                name,
                points: vec![point],
            }),
        }
    }
    lines
}

fn panel(title: &str, places: Vec<String>, lines: Vec<Line>) -> Panel {
    Panel {
        title: title.to_owned(),
        along: String::new(),
        across: Across::Places(places),
        scale: Scale::Linear,
        written: plot::number,
        lines,
        levels: Vec::new(),
        legend: Legend::Left,
    }
}
