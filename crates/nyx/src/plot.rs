//! Panels of lines as SVG, one above the other: the one place where pictures are drawn.
//!
//! What this module never does: smooth, leave out a point, or know what a line means.

pub mod bars;

use plotters::coord::Shift;
use plotters::coord::combinators::BindKeyPoints;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::ops::Range;

/// Colours that can be told apart by those who see fewer of them (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
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
const TITLE_HEIGHT: u32 = 40;
/// A logarithmic range that is wider than this has marks at powers of ten only.
const WIDE: f64 = 2e3;

/// How a point is shown besides being a corner of its line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mark {
    /// Not at all.
    None,
    /// A dot.
    Dot,
    /// A dot, and its line is not drawn: points of a line are all of this kind, or none is. They
    /// have the colour of the line before, which they belong to.
    Lone,
    /// An interval of so much to either side of the value.
    Interval(f64),
}

/// A point of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Abscissa.
    pub x: f64,
    /// Ordinate; above zero where the scale is logarithmic.
    pub y: f64,
    /// How it is shown.
    pub mark: Mark,
}

/// A line with its name in the legend.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// From left to right.
    pub points: Vec<Point>,
}

/// The abscissa.
#[derive(Clone, Debug, PartialEq)]
pub enum Across {
    /// Numbers from zero to this one.
    Numbers(f64),
    /// What the places 0, 1, 2... are called.
    Places(Vec<String>),
}

/// The ordinate's scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From zero on.
    Linear,
    /// From about the least value on.
    Log,
}

/// Where the legend stands, in the part of the panel that lines are least likely to need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Legend {
    /// Lines rise.
    Left,
    /// Lines fall, or do neither.
    Right,
}

/// A panel ready to be drawn.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// What the abscissa is.
    pub along: String,
    /// The abscissa.
    pub across: Across,
    /// The ordinate's scale.
    pub scale: Scale,
    /// How a value of the ordinate is written.
    pub written: fn(f64) -> String,
    /// Its lines; several that have no value at all make an empty panel.
    pub lines: Vec<Line>,
    /// Lines across, by what they are.
    pub levels: Vec<(String, f64)>,
    /// Where the legend stands.
    pub legend: Legend,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

type Chart<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, Y>>;

/// The text of the SVG, with panels of so many pixels' height. The error is the library's, in its
/// words.
pub fn draw(title: &str, panels: &[Panel], panel_height: u32) -> Result<String, String> {
    on_a_sheet(title, panels, panel_height, Panel::draw)
}

/// The same of panels of any kind.
fn on_a_sheet<P>(
    title: &str,
    panels: &[P],
    panel_height: u32,
    draw: impl Fn(&P, &Area<'_>) -> Result<(), String>,
) -> Result<String, String> {
    let mut svg = String::new();
    {
        let height = TITLE_HEIGHT + panel_height * panels.len() as u32;
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE).map_err(told)?;
        let area = area.titled(title, ("sans-serif", 17)).map_err(told)?;
        for (panel, area) in panels.iter().zip(area.split_evenly((panels.len(), 1))) {
            draw(panel, &area)?;
        }
        area.present().map_err(told)?;
    }
    Ok(svg)
}

/// A value, short, whatever its size.
pub fn number(y: f64) -> String {
    match y.abs() {
        y if y >= 1e6 => format!("{} M", y / 1e6),
        y if y >= 1e4 => format!("{} k", y / 1e3),
        y => plain(y),
    }
}

/// A value without the digits that are rounding.
fn plain(value: f64) -> String {
    format!("{}", (value * 1e6).round() / 1e6)
}

fn told(error: impl std::fmt::Display) -> String {
    format!("drawing: {error}")
}

impl Panel {
    fn draw(&self, area: &Area<'_>) -> Result<(), String> {
        let ends = match &self.across {
            Across::Places(places) => -0.25..places.len() as f64 - 0.75,
            Across::Numbers(end) => 0.0..*end,
        };
        let mut builder = ChartBuilder::on(area);
        let builder = builder
            .caption(&self.title, ("sans-serif", 14))
            .margin(8)
            .x_label_area_size(34)
            .y_label_area_size(72);
        let values = self.values();
        match self.scale {
            Scale::Linear => {
                let most = values.fold(0.0, f64::max);
                let up = 0.0..(most * self.headroom()).max(1e-9);
                let chart = builder.build_cartesian_2d(ends.clone(), up);
                self.fill(chart.map_err(told)?, &ends)
            }
            Scale::Log => {
                let (least, most) = values
                    .filter(|value| *value > 0.0)
                    .fold((f64::MAX, 0.0), |(a, b), y| (y.min(a), y.max(b)));
                let up = nice(least.min(most), most, self.headroom());
                let ticks = ticks(&up);
                let up = up.log_scale().with_key_points(ticks);
                let chart = builder.build_cartesian_2d(ends.clone(), up);
                self.fill(chart.map_err(told)?, &ends)
            }
        }
    }

    /// All ordinates.
    fn values(&self) -> impl Iterator<Item = f64> {
        let points = self.lines.iter().flat_map(|line| &line.points);
        let values = points.map(|point| match point.mark {
            Mark::Interval(half) => point.y + half,
            Mark::None | Mark::Dot | Mark::Lone => point.y,
        });
        let levels = self.levels.iter().map(|level| level.1);
        values.chain(levels).filter(|value| value.is_finite())
    }

    fn fill<'a, 'b: 'a, Y>(
        &self,
        mut chart: Chart<'a, 'b, Y>,
        ends: &Range<f64>,
    ) -> Result<(), String>
    where
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        self.axes(&mut chart)?;
        let mut colours = COLOURS.into_iter().cycle();
        let mut colour = BLACK;
        for line in &self.lines {
            if !line.is_lone() {
                colour = colours.next().expect("a cycle");
            }
            line.draw(&mut chart, colour)?;
        }
        for (name, at) in &self.levels {
            let across = vec![(ends.start, *at), (ends.end, *at)];
            let style = BLACK.mix(0.5).stroke_width(1);
            draw_line(&mut chart, name, across, style)?;
        }
        chart
            .configure_series_labels()
            .position(match self.legend {
                Legend::Left => SeriesLabelPosition::UpperLeft,
                Legend::Right => SeriesLabelPosition::UpperRight,
            })
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()
            .map_err(told)
    }

    /// Room above the highest point, for the legend: as a factor, of the logarithm where that is
    /// the scale.
    fn headroom(&self) -> f64 {
        1.05 + 0.1 * (self.lines.len() + self.levels.len()) as f64
    }

    fn axes<Y>(&self, chart: &mut Chart<'_, '_, Y>) -> Result<(), String>
    where
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let place = |x: &f64| match &self.across {
            Across::Places(places) if (x - x.round()).abs() < 1e-6 => {
                let name = places.get(x.round() as usize).filter(|_| *x > -0.1);
                name.cloned().unwrap_or_default()
            }
            Across::Places(_) => String::new(),
            Across::Numbers(_) => plain(*x),
        };
        // Marks lie at quarters, so that each place has one.
        let marks = match &self.across {
            Across::Places(places) => 4 * places.len() + 2,
            Across::Numbers(_) => 11,
        };
        chart
            .configure_mesh()
            .x_desc(&self.along)
            .x_labels(marks)
            .x_label_formatter(&place)
            .y_label_formatter(&|y| (self.written)(*y))
            .disable_x_mesh()
            .light_line_style(WHITE)
            .draw()
            .map_err(told)
    }
}

/// A logarithmic range that begins and ends with 1, 2 or 5 times a power of ten, holds both values,
/// and has room above them. One around 1 where there are no values.
fn nice(least: f64, most: f64, headroom: f64) -> Range<f64> {
    if least <= 0.0 {
        return 0.1..10.0;
    }
    let steps = |value: f64| {
        let decade = 10f64.powf(value.log10().floor());
        [0.5, 1.0, 2.0, 5.0, 10.0, 20.0].map(|step| step * decade)
    };
    // A line that is level still has a decade to be seen in.
    let above = most * (most / least).max(10.0).powf(headroom - 1.0);
    let below = |step: &&f64| **step <= least * 1.000_001;
    let low = *steps(least).iter().rfind(below).expect("half a decade");
    let beyond = |step: &&f64| **step >= above * 0.999_999;
    low..*steps(above).iter().find(beyond).expect("two decades")
}

/// The marks of a logarithmic range: powers of ten, and 2 and 5 times them where there are few.
fn ticks(range: &Range<f64>) -> Vec<f64> {
    let steps: &[f64] = match range.end / range.start > WIDE {
        true => &[1.0],
        false => &[1.0, 2.0, 5.0],
    };
    let (first, last) = (range.start.log10().floor(), range.end.log10().ceil());
    let decades = (first as i32..=last as i32).map(|power| 10f64.powi(power));
    let all = decades.flat_map(|decade| steps.iter().map(move |step| step * decade));
    let (from, to) = (range.start * 0.999_999, range.end * 1.000_001);
    all.filter(|tick| (from..=to).contains(tick)).collect()
}

impl Line {
    fn is_lone(&self) -> bool {
        self.points.iter().any(|point| point.mark == Mark::Lone)
    }

    fn draw<Y>(&self, chart: &mut Chart<'_, '_, Y>, colour: RGBColor) -> Result<(), String>
    where
        Y: Ranged<ValueType = f64>,
    {
        if !self.is_lone() {
            let points = self.points.iter().map(|point| (point.x, point.y)).collect();
            draw_line(chart, &self.name, points, colour.stroke_width(2))?;
        }
        let intervals = self.points.iter().filter_map(|point| match point.mark {
            Mark::Interval(half) => Some(ErrorBar::new_vertical(
                point.x,
                point.y - half,
                point.y,
                point.y + half,
                colour.filled(),
                6,
            )),
            Mark::None | Mark::Dot | Mark::Lone => None,
        });
        chart.draw_series(intervals).map_err(told)?;
        let is_dot = |point: &&Point| matches!(point.mark, Mark::Dot | Mark::Lone);
        let dots = self.points.iter().filter(is_dot);
        let dots = chart
            .draw_series(dots.map(|point| Circle::new((point.x, point.y), 3, colour.filled())));
        let dots = dots.map_err(told)?;
        if self.is_lone() {
            let legend = move |(x, y)| Circle::new((x + 8, y), 3, colour.filled());
            dots.label(&self.name).legend(legend);
        }
        Ok(())
    }
}

fn draw_line<Y>(
    chart: &mut Chart<'_, '_, Y>,
    name: &str,
    points: Vec<(f64, f64)>,
    style: ShapeStyle,
) -> Result<(), String>
where
    Y: Ranged<ValueType = f64>,
{
    chart
        .draw_series(LineSeries::new(points, style))
        .map_err(told)?
        .label(name)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logarithmic_range_holds_its_values_and_ends_nicely() {
        assert_eq!(nice(100.0, 1000.0, 1.0), 100.0..1000.0);
        assert_eq!(nice(30.0, 2e6, 1.1), 20.0..1e7);
        assert_eq!(nice(0.4, 0.4, 1.1), 0.2..1.0);
        assert_eq!(nice(0.0, 0.0, 1.1), 0.1..10.0, "no value at all");
        let near = |found: Vec<f64>, expected: &[f64]| {
            assert_eq!(found.len(), expected.len(), "{found:?}");
            let close = |(a, b): (&f64, &f64)| (a / b - 1.0).abs() < 1e-9;
            assert!(found.iter().zip(expected).all(close), "{found:?}");
        };
        near(ticks(&(200.0..1e4)), &[200.0, 500.0, 1e3, 2e3, 5e3, 1e4]);
        near(ticks(&(20.0..1e7)), &[1e2, 1e3, 1e4, 1e5, 1e6, 1e7]);
    }

    #[test]
    fn both_scales_draw_every_dot_and_the_legend() {
        for scale in [Scale::Linear, Scale::Log] {
            let point = |x: f64, y| Point {
                x,
                y,
                mark: Mark::Dot,
            };
            let panel = Panel {
                title: "what it is".into(),
                along: "size".into(),
                across: Across::Places(vec!["8 B".into(), "16 B".into()]),
                scale,
                written: number,
                lines: vec![Line {
                    name: "one thread".into(),
                    points: vec![point(0.0, 5.0), point(1.0, 50_000.0)],
                }],
                levels: vec![("a level".into(), 10.0)],
                legend: Legend::Left,
            };
            let svg = draw("a title", &[panel], 300).expect("drawn");
            let words = [
                "a title",
                "what it is",
                "8 B",
                "16 B",
                "one thread",
                "a level",
            ];
            for word in words {
                assert!(svg.contains(word), "{scale:?}: no {word:?}");
            }
            assert_eq!(svg.matches("<circle").count(), 2, "{scale:?}");
        }
    }

    #[test]
    fn lone_points_have_no_line_and_the_colour_of_the_line_before() {
        let line = |name: &str, mark| Line {
            name: name.into(),
            points: [0.0, 1.0].map(|x| Point { x, y: x, mark }).into(),
        };
        let panel = Panel {
            title: String::new(),
            along: String::new(),
            across: Across::Numbers(1.0),
            scale: Scale::Linear,
            written: number,
            lines: vec![
                line("first", Mark::None),
                line("formula", Mark::None),
                line("measured", Mark::Lone),
                line("last", Mark::None),
            ],
            levels: Vec::new(),
            legend: Legend::Left,
        };
        let svg = draw("both", &[panel], 300).expect("drawn");
        // Two points and one in the legend; of each line itself and its legend.
        assert_eq!(svg.matches("<circle").count(), 3);
        let circles = svg.split("<circle").skip(1);
        let second = "#D55E00";
        assert!(
            circles.into_iter().all(|circle| circle.contains(second)),
            "{svg}"
        );
        let lines = |colour: &str| {
            let polylines = svg.split("<polyline").skip(1);
            let tags = polylines.map(|rest| rest.split("/>").next().unwrap_or_default());
            tags.filter(|tag| tag.contains(colour)).count()
        };
        assert_eq!(
            [lines("#0072B2"), lines(second), lines("#009E73")],
            [2, 2, 2]
        );
        assert!(svg.contains("measured"));
    }

    #[test]
    fn a_panel_without_values_is_empty_and_no_error() {
        for scale in [Scale::Linear, Scale::Log] {
            let panel = Panel {
                title: String::new(),
                along: String::new(),
                across: Across::Numbers(1.0),
                scale,
                written: number,
                lines: Vec::new(),
                levels: Vec::new(),
                legend: Legend::Right,
            };
            assert!(draw("empty", &[panel], 300).is_ok(), "{scale:?}");
        }
    }
}
