//! Pictures as SVG: one run over time, or what a file's `[[draw]]` say, a panel each.
//!
//! A panel has either time as its abscissa, and then shows the windows of the first run of each
//! case; or a sweep, and then shows means over the runs with intervals of 95 %.
//!
//! What this module never does: smooth, or leave out a window.

use super::expect::{Where, check_names, is_among, tenants_of};
use super::file::Case;
use super::metric::Metric;
use super::run::{Result, Run, over_runs};
use crate::plot::{self, Across, Legend, Line, Mark, Panel, Point, Scale, number};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The height of a panel in pixels.
const PANEL_HEIGHT: u32 = 260;

/// `[[draw]]`: a panel.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Draw {
    /// Above the panel.
    title: String,
    /// What is drawn.
    metric: String,
    /// Of which tenants; of all where none is named.
    #[serde(default)]
    of: Vec<String>,
    /// The sweep along the abscissa; time where there is none.
    over: Option<String>,
    /// In which cases.
    #[serde(default, rename = "where")]
    among: Where,
    /// Lines across, by what they are.
    #[serde(default)]
    levels: BTreeMap<String, f64>,
}

impl Draw {
    /// Checks what does not need a run.
    pub fn check(&self, cases: &[Case]) -> std::result::Result<(), String> {
        let wrong = |what: String| Err(format!("draw {:?}: {what}", self.title));
        let metric = match Metric::named(&self.metric) {
            Ok(metric) => metric,
            Err(message) => return wrong(message),
        };
        if self.over.is_none() && metric.of_window().is_none() {
            return wrong(format!("{:?} has no value for each window", self.metric));
        }
        let sweeps = self.among.keys().chain(&self.over);
        check_names(&self.of, sweeps, cases).or_else(wrong)
    }

    fn panel(&self, cases: &[Case], results: &[Result]) -> Option<Panel> {
        let metric = Metric::named(&self.metric).ok()?;
        let chosen: Vec<(&Case, &Result)> = cases
            .iter()
            .zip(results)
            .filter(|(case, _)| is_among(case, &self.among))
            .collect();
        let (first, _) = chosen.first()?;
        let (along, across) = match &self.over {
            None => (
                "time in ms".to_owned(),
                Across::Numbers(first.run.length.as_secs_f64() * 1e3),
            ),
            Some(sweep) => (sweep.clone(), Across::Places(self.places(sweep, &chosen))),
        };
        let mut lines: Vec<Line> = Vec::new();
        for &(case, result) in &chosen {
            for (tenant, who) in self.who(metric, case) {
                let points = match (&self.over, &across) {
                    (Some(sweep), Across::Places(places)) => {
                        vec![point(metric, case, result, tenant, sweep, places)?]
                    }
                    _ => windows(metric, case, &result.runs[0], tenant)?,
                };
                let name = self.line_name(&chosen, case, who);
                match lines.iter_mut().find(|line| line.name == name) {
                    Some(line) => line.points.extend(points),
                    None => lines.push(Line { name, points }),
                }
            }
        }
        let levels = self.levels.iter().map(|(name, at)| (name.clone(), *at));
        Some(Panel {
            title: format!("{}: {}", self.title, self.metric),
            along,
            across,
            scale: Scale::Linear,
            written: number,
            lines,
            levels: levels.collect(),
            legend: Legend::Right,
        })
    }

    /// The values of a sweep, as the cases have them.
    fn places(&self, sweep: &str, chosen: &[(&Case, &Result)]) -> Vec<String> {
        let mut places: Vec<String> = Vec::new();
        for (case, _) in chosen {
            let value = value_of(case, sweep);
            if !places.contains(&value) {
                places.push(value);
            }
        }
        places
    }

    /// Whose lines there are: places and names, or one for all.
    fn who<'a>(&self, metric: &Metric, case: &'a Case) -> Vec<(usize, Option<&'a str>)> {
        if !metric.is_of_tenants() {
            return vec![(0, None)];
        }
        let name = |at: usize| Some(case.config.tenants[at].name.as_str());
        tenants_of(&self.of, case)
            .map(|at| (at, name(at)))
            .collect()
    }

    /// The tenant, and what sets this case apart from the others of the panel.
    fn line_name(&self, chosen: &[(&Case, &Result)], case: &Case, who: Option<&str>) -> String {
        let differs = |name: &str| {
            let mut others = chosen.iter();
            others.any(|(other, _)| value_of(other, name) != value_of(case, name))
        };
        let settings = case.settings.iter();
        let settings = settings
            .filter(|(name, _)| self.over.as_ref() != Some(name) && differs(name))
            .map(|(_, value)| value.as_str());
        let words: Vec<&str> = who.into_iter().chain(settings).collect();
        words.join(", ")
    }
}

fn value_of(case: &Case, sweep: &str) -> String {
    let of = case.settings.iter().find(|(name, _)| name == sweep);
    of.map_or(String::new(), |one| one.1.clone())
}

/// A mean over the runs at the place of this case.
fn point(
    metric: &Metric,
    case: &Case,
    result: &Result,
    tenant: usize,
    sweep: &str,
    places: &[String],
) -> Option<Point> {
    let value = value_of(case, sweep);
    let place = places.iter().position(|place| *place == value)?;
    let runs = result.runs.iter();
    let values: Vec<f64> = runs
        .filter_map(|run| metric.value(case, run, tenant))
        .collect();
    let (mean, half) = over_runs(&values);
    Some(Point {
        x: place as f64,
        y: mean,
        mark: Mark::Interval(half.unwrap_or(0.0)),
    })
}

fn windows(metric: &Metric, case: &Case, run: &Run, tenant: usize) -> Option<Vec<Point>> {
    let of = metric.of_window()?;
    let length_s = case.run.window.as_secs_f64();
    let ms = |window: usize| (window as f64 + 0.5) * length_s * 1e3;
    let windows = run.outcome.parts[tenant].windows.iter().enumerate();
    Some(
        windows
            .map(|(at, window)| Point {
                x: ms(at),
                y: of(window, length_s),
                mark: Mark::None,
            })
            .collect(),
    )
}

/// What a file says is to be drawn. The text is SVG; the error is the library's, in its words.
pub fn figure(
    draws: &[Draw],
    cases: &[Case],
    results: &[Result],
) -> std::result::Result<String, String> {
    let panels: Vec<Panel> = draws
        .iter()
        .filter_map(|draw| draw.panel(cases, results))
        .collect();
    let (run, seeds) = (&cases[0].run, results[0].runs.len());
    let title = match run.source.is_empty() {
        true => run.about.clone(),
        false => format!("{} ({})", run.about, run.source),
    };
    let runs = match seeds {
        1 => "1 run".to_owned(),
        _ => format!("{seeds} runs"),
    };
    let title = format!("{title}; {runs}, {}", run.detail.evidence());
    plot::draw(&title, &panels, PANEL_HEIGHT)
}

/// One run of one case over time: what everybody had.
pub fn run(case: &Case, result: &Result, run: &Run) -> std::result::Result<String, String> {
    let one = Result {
        names: result.names.clone(),
        runs: vec![run.clone()],
    };
    let panels = ["ops/s", "device %", "P99 us"].map(|metric| Draw {
        title: "each tenant".into(),
        metric: metric.into(),
        of: Vec::new(),
        over: None,
        among: Where::new(),
        levels: BTreeMap::new(),
    });
    let (cases, results) = (std::slice::from_ref(case), std::slice::from_ref(&one));
    let panels: Vec<Panel> = panels
        .iter()
        .filter_map(|draw| draw.panel(cases, results))
        .collect();
    let kind = case.run.detail.evidence();
    let title = format!("{} seed {}, {kind}", case.run.about, run.seed);
    plot::draw(title.trim(), &panels, PANEL_HEIGHT)
}
