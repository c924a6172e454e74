//! Panels of bars: one on the other, or one beside the other.
//!
//! What this module never does: leave out a bar, or begin one above zero.

use super::{COLOURS, on_a_sheet, told};
use plotters::prelude::*;

/// How the bars of a place stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stand {
    /// One on the other: they are parts.
    Stacked,
    /// One beside the other.
    Beside,
}

/// A panel of bars, ready to be drawn.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Above it.
    pub title: String,
    /// What a bar's height is.
    pub height: String,
    /// What the places are called.
    pub places: Vec<String>,
    /// Names, and a value for each place.
    pub series: Vec<(String, Vec<f64>)>,
    /// How they stand.
    pub stand: Stand,
}

/// Room above the highest bar and to the right of the last one, for the legend.
const HEADROOM: f64 = 1.08;
const LEGEND_PLACES: f64 = 0.28;
/// What of a place is not bars.
const GAP: f64 = 0.15;

/// The text of the SVG, with panels of so many pixels' height.
pub fn draw(title: &str, panels: &[Bars], panel_height: u32) -> Result<String, String> {
    on_a_sheet(title, panels, panel_height, Bars::draw)
}

impl Bars {
    fn draw(&self, area: &super::Area<'_>) -> Result<(), String> {
        let places = self.places.len() as f64;
        let across = -0.5..(places * (1.0 + LEGEND_PLACES)) - 0.5;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 14))
            .margin(8)
            .x_label_area_size(34)
            .y_label_area_size(72)
            .build_cartesian_2d(across, 0.0..self.most() * HEADROOM)
            .map_err(told)?;
        let place = |x: &f64| match (x - x.round()).abs() < 1e-6 && *x > -0.1 {
            true => self.places.get(x.round() as usize).cloned(),
            false => None,
        };
        chart
            .configure_mesh()
            .x_labels(4 * self.places.len() + 2)
            .x_label_formatter(&|x| place(x).unwrap_or_default())
            .y_desc(&self.height)
            .disable_x_mesh()
            .light_line_style(WHITE)
            .draw()
            .map_err(told)?;
        for (number, (name, _)) in self.series.iter().enumerate() {
            let style = style(number);
            let bars = (0..self.places.len()).map(|at| Rectangle::new(self.bar(number, at), style));
            chart
                .draw_series(bars)
                .map_err(told)?
                .label(name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()
            .map_err(told)
    }

    /// Its corners.
    fn bar(&self, number: usize, at: usize) -> [(f64, f64); 2] {
        let value = self.series[number].1[at];
        let (left, width, low) = match self.stand {
            Stand::Stacked => {
                let below = self.series[..number].iter().map(|(_, values)| values[at]);
                (0.0, 1.0, below.sum())
            }
            Stand::Beside => {
                let width = 1.0 / self.series.len() as f64;
                (width * number as f64, width, 0.0)
            }
        };
        let x = |part: f64| at as f64 - 0.5 + GAP + part * (1.0 - 2.0 * GAP);
        [(x(left), low), (x(left + width), low + value)]
    }

    fn most(&self) -> f64 {
        let tops = (0..self.series.len())
            .flat_map(|number| (0..self.places.len()).map(move |at| self.bar(number, at)[1].1));
        tops.fold(1e-9, f64::max)
    }
}

/// Colours come again, lighter, where there are more than there are.
fn style(number: usize) -> ShapeStyle {
    let colour = COLOURS[number % COLOURS.len()];
    match number < COLOURS.len() {
        true => colour.filled(),
        false => colour.mix(0.45).filled(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(stand: Stand) -> Bars {
        Bars {
            title: "what it is".into(),
            height: "us".into(),
            places: vec!["here".into(), "there".into()],
            series: vec![
                ("one".into(), vec![1.0, 2.0]),
                ("two".into(), vec![3.0, 4.0]),
            ],
            stand,
        }
    }

    #[test]
    fn bars_stand_on_each_other_or_beside_each_other() {
        let stacked = bars(Stand::Stacked);
        assert_eq!((stacked.bar(1, 1)[0].1, stacked.bar(1, 1)[1].1), (2.0, 6.0));
        assert_eq!(stacked.most(), 6.0);
        let beside = bars(Stand::Beside);
        assert_eq!((beside.bar(1, 1)[0].1, beside.bar(1, 1)[1].1), (0.0, 4.0));
        assert!((beside.bar(0, 1)[1].0 - beside.bar(1, 1)[0].0).abs() < 1e-9);
    }

    #[test]
    fn every_bar_and_name_is_drawn() {
        for stand in [Stand::Stacked, Stand::Beside] {
            let svg = draw("a title", &[bars(stand)], 300).expect("drawn");
            for word in ["a title", "what it is", "here", "there", "one", "two"] {
                assert!(svg.contains(word), "no {word:?}");
            }
            // Four bars, two in the legend.
            for colour in ["#0072B2", "#D55E00"] {
                let rects = svg.split("<rect").filter(|rest| {
                    rest.split("/>")
                        .next()
                        .is_some_and(|tag| tag.contains(colour))
                });
                assert_eq!(rects.count(), 3, "{stand:?} {colour}");
            }
        }
    }
}
