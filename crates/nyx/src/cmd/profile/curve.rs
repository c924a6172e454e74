//! The MaxIOPS curves of a profile as an SVG, as the paper draws them in figure 3.
//!
//! What it never does: leave out what kind of evidence it shows.

use super::name;
use crate::plot::{self, Across, Legend, Line, Mark, Panel, Point, Scale, number};
use nyx_media::Op;
use nyx_media::profile::{Profile, STEP_BYTES, STEPS};

const PANEL_HEIGHT: u32 = 520;
/// The end of the abscissa, behind the largest size.
const END_KIB: f64 = 4.125;

/// The text of the SVG.
pub(super) fn draw(profile: &Profile) -> Result<String, String> {
    let line = |(op, name): (Op, &str)| Line {
        name: name.to_owned(),
        points: (0..STEPS).map(|step| point(profile, op, step)).collect(),
    };
    let panel = Panel {
        title: "operations per second, at most".into(),
        along: "size of the operation, KiB".into(),
        across: Across::Numbers(END_KIB),
        scale: Scale::Log,
        written: number,
        lines: [(Op::Read, "random reads"), (Op::Write, "random writes")]
            .map(line)
            .to_vec(),
        levels: Vec::new(),
        legend: Legend::Right,
    };
    let title = format!(
        "MaxIOPS by size: {} ({})",
        name(&profile.device),
        profile.evidence
    );
    plot::draw(&title, &[panel], PANEL_HEIGHT)
}

/// The rate of a step; what was measured and not interpolated is marked.
fn point(profile: &Profile, op: Op, step: usize) -> Point {
    let bytes = (step + 1) * STEP_BYTES;
    Point {
        x: bytes as f64 / 1024.0,
        y: profile.max_ops_per_s(op)[step],
        mark: match profile.measured_bytes.contains(&bytes) {
            true => Mark::Dot,
            false => Mark::None,
        },
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
