//! Run times as bars, a panel for each program, as Ultraswap's figure 8 has them.
//!
//! What it never does: draw a run that failed.

use crate::Result;
use crate::log::Row;
use crate::plan::{Device, Engine, Kind};
use crate::table::median;
use nyx::plot::bars::{Bars, Stand, draw};
use std::collections::BTreeSet;

const TITLE: &str = "Real: programs in less memory than they use";
const HEIGHT: &str = "run time / without a limit";
const PANEL_HEIGHT: u32 = 230;

/// The text of an SVG; none where no program ran both with and without a limit.
pub(crate) fn svg(rows: &[Row]) -> Result<Option<String>> {
    let kinds: BTreeSet<&Kind> = rows.iter().map(|row| &row.key.kind).collect();
    let panels: Vec<Bars> = kinds.iter().filter_map(|kind| panel(rows, kind)).collect();
    if panels.is_empty() {
        return Ok(None);
    }
    Ok(Some(draw(TITLE, &panels, PANEL_HEIGHT)?))
}

/// The medians of one program's runs on each device, the largest limit first.
fn panel(rows: &[Row], kind: &Kind) -> Option<Bars> {
    let of_kind = || rows.iter().filter(|row| row.key.kind == *kind);
    let run_s = |engine: Engine, at: Option<(Device, u8)>| {
        let is_at = |row: &&Row| at.is_none_or(|at| at == (row.key.device, row.key.ratio_percent));
        let good = of_kind().filter(|row| row.key.engine == engine && row.is_good());
        let reports = good.filter(is_at).filter_map(|row| row.report.as_ref());
        median(reports.map(|report| report.run_s).collect())
    };
    let alone = run_s(Engine::Unlimited, None).filter(|&run_s| run_s > 0.0)?;
    let limited = || of_kind().filter(|row| row.key.engine != Engine::Unlimited);
    let mut places: Vec<(Device, u8)> = limited()
        .map(|row| (row.key.device, row.key.ratio_percent))
        .collect();
    places.sort_unstable_by_key(|&(device, percent)| (device, u8::MAX - percent));
    places.dedup();
    let engines: BTreeSet<Engine> = limited().map(|row| row.key.engine).collect();
    let of_engine = |&engine: &Engine| {
        let times = places
            .iter()
            .map(|&at| run_s(engine, Some(at)).unwrap_or(0.0) / alone);
        (engine.to_string(), times.collect())
    };
    (!places.is_empty()).then(|| Bars {
        title: format!("{kind}, {alone:.1} s without a limit (no bar: killed, or not run)"),
        height: HEIGHT.to_owned(),
        series: engines.iter().map(of_engine).collect(),
        places: places
            .iter()
            .map(|(device, percent)| format!("{device} {percent}"))
            .collect(),
        stand: Stand::Beside,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::tests::row;

    #[test]
    fn a_panel_has_medians_beside_the_run_without_a_limit_and_no_bar_of_what_failed() {
        let mut failed = row(Engine::Uffd, 1, 100.0);
        failed.is_success = false;
        let mut rows = vec![row(Engine::Unlimited, 0, 2.0), failed];
        assert!(svg(&rows[..1]).unwrap().is_none());
        for (round, run_s) in [(1, 3.0), (2, 5.0), (3, 50.0)] {
            rows.push(row(Engine::Linux, round, run_s));
        }
        let mut smaller = row(Engine::Kernel, 1, 4.0);
        smaller.key.ratio_percent = 20;
        rows.push(smaller);
        let panel = panel(&rows, &rows[0].key.kind).unwrap();
        assert_eq!(panel.places, ["zram 60", "zram 20"]);
        let series: Vec<(&str, &[f64])> = panel
            .series
            .iter()
            .map(|(name, of)| (name.as_str(), of.as_slice()))
            .collect();
        assert_eq!(
            series,
            [
                ("linux", [2.5, 0.0].as_slice()),
                ("kernel", &[0.0, 2.0]),
                ("uffd", &[0.0, 0.0])
            ]
        );
        let svg = svg(&rows).unwrap().unwrap();
        assert!(svg.contains("Real") && svg.contains("zram 60"), "{svg}");
    }
}
