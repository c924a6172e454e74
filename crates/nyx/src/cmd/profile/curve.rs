//! The MaxIOPS curves of a profile as an SVG, as the paper draws them in figure 3.
//!
//! What it never does: leave out what kind of evidence it shows.

use super::name;
use nyx_media::Op;
use nyx_media::profile::{Profile, STEP_BYTES, STEPS};
use plotters::prelude::*;

/// Width and height in pixels.
const SIZE: (u32, u32) = (960, 560);
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);
const READS: RGBColor = RGBColor(0, 90, 160);
const WRITES: RGBColor = RGBColor(200, 80, 0);

/// The text of the SVG.
pub(super) fn draw(profile: &Profile) -> Result<String, String> {
    let mut svg = String::new();
    plot(profile, &mut svg).map_err(|error| error.to_string())?;
    Ok(svg)
}

fn plot(profile: &Profile, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let title = format!("MaxIOPS by size: {} ({})", name(profile), profile.evidence);
    let (low, high) = decades(profile);
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20).into_font().color(&INK))
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..4.125f64, (low..high).log_scale())?;
    chart
        .configure_mesh()
        .axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .x_labels(9)
        .x_label_formatter(&|kib| format!("{kib:.1}"))
        .y_label_formatter(&|rate| label(*rate))
        .x_desc("size of the operation, KiB")
        .y_desc("operations per second, at most")
        .label_style(("sans-serif", 14).into_font().color(&INK))
        .axis_desc_style(("sans-serif", 15).into_font().color(&INK))
        .draw()?;
    for (op, label, color) in [
        (Op::Read, "random reads", READS),
        (Op::Write, "random writes", WRITES),
    ] {
        let points: Vec<(f64, f64)> = (0..STEPS)
            .map(|i| (kib(i), profile.max_ops_per_s(op)[i]))
            .collect();
        chart
            .draw_series(LineSeries::new(points.clone(), color.stroke_width(2)))?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], color.stroke_width(2)));
        let measured = points
            .into_iter()
            .enumerate()
            .filter(|(i, _)| profile.measured_bytes.contains(&((i + 1) * STEP_BYTES)));
        chart.draw_series(measured.map(|(_, point)| Circle::new(point, 2, color.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .legend_area_size(36)
        .margin(12)
        .background_style(WHITE)
        .border_style(GRID)
        .label_font(("sans-serif", 15).into_font().color(&INK))
        .draw()?;
    root.present()?;
    Ok(())
}

/// The size of step `i` in KiB.
fn kib(i: usize) -> f64 {
    ((i + 1) * STEP_BYTES) as f64 / 1024.0
}

/// A range of 1, 2 or 5 times a power of ten that holds every rate.
fn decades(profile: &Profile) -> (f64, f64) {
    let rates = || {
        [Op::Read, Op::Write]
            .into_iter()
            .flat_map(|op| profile.max_ops_per_s(op))
    };
    let (least, most) = rates().fold((f64::MAX, 0.0f64), |(a, b), &r| (a.min(r), b.max(r)));
    let steps = || (0..60).map(|i| [1.0, 2.0, 5.0][i % 3] * 10f64.powi((i / 3) as i32));
    let low = steps()
        .take_while(|&step| step <= least)
        .last()
        .unwrap_or(1.0);
    (low, steps().find(|&step| step >= most).unwrap_or(most))
}

/// A rate on the axis.
fn label(rate: f64) -> String {
    match rate {
        rate if rate >= 1e6 => format!("{} M", rate / 1e6),
        rate if rate >= 1e3 => format!("{} k", rate / 1e3),
        rate => format!("{rate}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_media::model::Params;
    use nyx_media::profile::{Effort, simulate};

    #[test]
    fn the_picture_names_its_device_evidence_axes_and_curves() {
        let params = Params::resolve("optane-2dimm").expect("a preset");
        let svg = draw(&simulate(&params, Effort::Quick, &mut |_| {})).expect("a picture");
        for part in [
            "optane-2dimm",
            "(simulated)",
            "KiB",
            "per second",
            "reads",
            "writes",
        ] {
            assert!(svg.contains(part), "no {part:?} in the picture");
        }
        assert!(svg.trim_end().ends_with("</svg>"));
        assert!(
            svg.matches("<circle").count() >= 128,
            "every measured point is marked"
        );
    }
}
