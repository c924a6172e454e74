//! One run as a picture: what each tenant had in each window, as SVG.
//!
//! What this module never does: smooth, or leave out a window.

use super::file::Case;
use super::run::{Result, Run};
use nyx_sim::scenario::WindowOutcome;
use plotters::prelude::*;

/// One panel below the other.
struct Panel {
    title: &'static str,
    of: fn(&WindowOutcome, f64) -> f64,
}

const PANELS: [Panel; 3] = [
    Panel {
        title: "requests per second, in thousands",
        of: |window, length_s| window.ops as f64 / length_s / 1e3,
    },
    Panel {
        title: "share of the device's time, in percent",
        of: |window, length_s| window.used.as_secs_f64() / length_s * 100.0,
    },
    Panel {
        title: "P99 latency in us",
        of: |window, _| window.p99_ns / 1e3,
    },
];

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

/// Draws one run. The text is SVG; the error is the library's, in its words.
pub fn run(case: &Case, result: &Result, run: &Run) -> std::result::Result<String, String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (900, 760)).into_drawing_area();
        area.fill(&WHITE).map_err(told)?;
        let title = match case.run.about.is_empty() {
            true => format!("seed {}, simulated", run.seed),
            false => format!("{} (seed {}, simulated)", case.run.about, run.seed),
        };
        let area = area.titled(&title, ("sans-serif", 18)).map_err(told)?;
        for (panel, area) in PANELS.iter().zip(area.split_evenly((PANELS.len(), 1))) {
            draw_panel(panel, &area, case, result, run)?;
        }
        area.present().map_err(told)?;
    }
    Ok(svg)
}

fn told(error: impl std::fmt::Display) -> String {
    format!("drawing: {error}")
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw_panel(
    panel: &Panel,
    area: &Area<'_>,
    case: &Case,
    result: &Result,
    run: &Run,
) -> std::result::Result<(), String> {
    let length_s = case.run.window.as_secs_f64();
    let ms = |window: usize| (window as f64 + 0.5) * length_s * 1e3;
    let lines: Vec<Vec<(f64, f64)>> = run
        .outcome
        .parts
        .iter()
        .map(|part| {
            let windows = part.windows.iter().enumerate();
            windows
                .map(|(at, window)| (ms(at), (panel.of)(window, length_s)))
                .collect()
        })
        .collect();
    let most = lines
        .iter()
        .flatten()
        .map(|point| point.1)
        .fold(0.0, f64::max);
    let end_ms = case.run.length.as_secs_f64() * 1e3;
    let mut chart = ChartBuilder::on(area)
        .caption(panel.title, ("sans-serif", 14))
        .margin(8)
        .x_label_area_size(28)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..end_ms, 0.0..(most * 1.1).max(1e-9))
        .map_err(told)?;
    chart
        .configure_mesh()
        .x_desc("time in ms")
        .light_line_style(WHITE)
        .draw()
        .map_err(told)?;
    for (at, line) in lines.into_iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)))
            .map_err(told)?
            .label(result.names[at].clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(told)?;
    Ok(())
}
