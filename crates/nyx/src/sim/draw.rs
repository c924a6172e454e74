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
use plotters::prelude::*;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Colours that can be told apart by those who see fewer of them (Okabe and Ito).
pub const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(140, 140, 140),
];
const WIDTH: u32 = 900;
const PANEL_HEIGHT: u32 = 260;
const TITLE_HEIGHT: u32 = 40;

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

/// A line of a panel: its name, its points (abscissa, value, half of the interval).
struct Line {
    name: String,
    points: Vec<(f64, f64, f64)>,
}

/// A panel ready to be drawn.
struct Panel {
    title: String,
    /// What the abscissa is.
    along: String,
    /// What the places 0, 1, 2... of the abscissa are called; none is a number as it is.
    places: Option<Vec<String>>,
    end: f64,
    lines: Vec<Line>,
    levels: Vec<(String, f64)>,
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
        let (along, places, end) = match &self.over {
            None => (
                "time in ms".to_owned(),
                None,
                first.run.length.as_secs_f64() * 1e3,
            ),
            Some(sweep) => {
                let places = self.places(sweep, &chosen);
                let end = places.len() as f64 - 1.0;
                (sweep.clone(), Some(places), end)
            }
        };
        let mut lines: Vec<Line> = Vec::new();
        for &(case, result) in &chosen {
            for (tenant, who) in self.who(metric, case) {
                let points = match (&self.over, &places) {
                    (Some(sweep), Some(places)) => {
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
            places,
            end,
            lines,
            levels: levels.collect(),
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
) -> Option<(f64, f64, f64)> {
    let value = value_of(case, sweep);
    let place = places.iter().position(|place| *place == value)?;
    let runs = result.runs.iter();
    let values: Vec<f64> = runs
        .filter_map(|run| metric.value(case, run, tenant))
        .collect();
    let (mean, half) = over_runs(&values);
    Some((place as f64, mean, half.unwrap_or(0.0)))
}

fn windows(metric: &Metric, case: &Case, run: &Run, tenant: usize) -> Option<Vec<(f64, f64, f64)>> {
    let of = metric.of_window()?;
    let length_s = case.run.window.as_secs_f64();
    let ms = |window: usize| (window as f64 + 0.5) * length_s * 1e3;
    let windows = run.outcome.parts[tenant].windows.iter().enumerate();
    Some(
        windows
            .map(|(at, window)| (ms(at), of(window, length_s), 0.0))
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
    drawn(
        &format!("{title}; {runs}, {}", run.detail.evidence()),
        &panels,
    )
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
    drawn(title.trim(), &panels)
}

fn drawn(title: &str, panels: &[Panel]) -> std::result::Result<String, String> {
    let mut svg = String::new();
    {
        let height = TITLE_HEIGHT + PANEL_HEIGHT * panels.len() as u32;
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE).map_err(told)?;
        let area = area.titled(title, ("sans-serif", 17)).map_err(told)?;
        for (panel, area) in panels.iter().zip(area.split_evenly((panels.len(), 1))) {
            panel.draw(&area)?;
        }
        area.present().map_err(told)?;
    }
    Ok(svg)
}

fn told(error: impl std::fmt::Display) -> String {
    format!("drawing: {error}")
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

type Chart<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

impl Panel {
    fn draw(&self, area: &Area<'_>) -> std::result::Result<(), String> {
        let values = self.lines.iter().flat_map(|line| &line.points);
        let values = values.map(|point| point.1 + point.2);
        let levels = self.levels.iter().map(|level| level.1);
        let finite = values.chain(levels).filter(|value| value.is_finite());
        let most = finite.fold(0.0, f64::max);
        let ends = match &self.places {
            Some(_) => -0.25..self.end + 0.25,
            None => 0.0..self.end,
        };
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 14))
            .margin(8)
            .x_label_area_size(34)
            .y_label_area_size(72)
            .build_cartesian_2d(ends.clone(), 0.0..(most * self.headroom()).max(1e-9))
            .map_err(told)?;
        self.axes(&mut chart)?;
        for (line, colour) in self.lines.iter().zip(COLOURS.into_iter().cycle()) {
            line.draw(&mut chart, colour, self.places.is_some())?;
        }
        for (name, at) in &self.levels {
            let across = vec![(ends.start, *at), (ends.end, *at)];
            let style = BLACK.mix(0.5).stroke_width(1);
            draw_line(&mut chart, name, across, style)?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()
            .map_err(told)
    }

    /// Room above the highest point, for the legend.
    fn headroom(&self) -> f64 {
        1.1 + 0.06 * (self.lines.len() + self.levels.len()) as f64
    }

    fn axes(&self, chart: &mut Chart<'_, '_>) -> std::result::Result<(), String> {
        let place = |x: &f64| match &self.places {
            Some(places) if (x - x.round()).abs() < 1e-6 => {
                let name = places.get(x.round() as usize).filter(|_| *x > -0.1);
                name.cloned().unwrap_or_default()
            }
            Some(_) => String::new(),
            None => format!("{x:.0}"),
        };
        // Marks lie at quarters, so that each place has one.
        let marks = self
            .places
            .as_ref()
            .map_or(11, |places| 4 * places.len() + 2);
        chart
            .configure_mesh()
            .x_desc(&self.along)
            .x_labels(marks)
            .x_label_formatter(&place)
            .y_label_formatter(&|y| number(*y))
            .disable_x_mesh()
            .light_line_style(WHITE)
            .draw()
            .map_err(told)
    }
}

impl Line {
    fn draw(
        &self,
        chart: &mut Chart<'_, '_>,
        colour: RGBColor,
        is_marked: bool,
    ) -> std::result::Result<(), String> {
        let points = self.points.iter().map(|point| (point.0, point.1)).collect();
        draw_line(chart, &self.name, points, colour.stroke_width(2))?;
        let marked = self.points.iter().filter(|_| is_marked);
        let marks = marked.map(|&(x, y, half)| {
            ErrorBar::new_vertical(x, y - half, y, y + half, colour.filled(), 6)
        });
        chart.draw_series(marks).map_err(told)?;
        Ok(())
    }
}

fn draw_line(
    chart: &mut Chart<'_, '_>,
    name: &str,
    points: Vec<(f64, f64)>,
    style: ShapeStyle,
) -> std::result::Result<(), String> {
    chart
        .draw_series(LineSeries::new(points, style))
        .map_err(told)?
        .label(name)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
    Ok(())
}

/// A label of the ordinate: short, whatever its size.
fn number(y: f64) -> String {
    match y.abs() {
        y if y >= 1e6 => format!("{} M", y / 1e6),
        y if y >= 1e4 => format!("{} k", y / 1e3),
        y => format!("{}", (y * 1e6).round() / 1e6),
    }
}
