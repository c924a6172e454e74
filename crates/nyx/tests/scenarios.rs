//! The scenario files that come with Nyx: each is sound, and what a short one shows is so.

use nyx::sim::file::{self, Case};
use nyx::sim::run::{self, Devices};
use std::path::{Path, PathBuf};

fn files() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/scenarios");
    let entries = std::fs::read_dir(dir).expect("scenarios");
    entries.map(|entry| entry.expect("a file").path()).collect()
}

fn cases(name: &str, only: &[(&str, &str)]) -> Vec<Case> {
    let all = files();
    let path = all
        .iter()
        .find(|path| path.ends_with(name))
        .expect("the scenario");
    let only: Vec<(String, String)> = only
        .iter()
        .map(|(of, is)| ((*of).into(), (*is).into()))
        .collect();
    let mut cases = file::read(path, &only).expect("sound");
    cases.iter_mut().for_each(|case| case.run.seeds = 1);
    cases
}

#[test]
fn every_scenario_is_sound_and_says_what_it_is_about() {
    assert!(files().len() >= 3);
    for path in files() {
        let cases = file::read(&path, &[]).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(
            cases.iter().all(|case| !case.run.about.is_empty()),
            "{}",
            path.display()
        );
    }
}

/// Figure 10a of NyxCache, at one of its weights: with device time each has its part of what it
/// does alone; with bytes the writer has more than its part of the device.
#[test]
fn weights_are_kept_in_device_time_and_not_in_bytes() {
    let mut devices = Devices::default();
    for case in cases("fig10a-weights.toml", &[("weights", "1:1")]) {
        let device = devices.of(&case).expect("a preset");
        let result = run::run(&case, &device).expect("it runs");
        let [gets, writes] = &result.runs[0].tenants[..] else {
            panic!("two tenants")
        };
        let slowdowns = [gets, writes].map(|had| had.slowdown.expect("alone"));
        match case.settings[1].1.as_str() {
            "share" => assert!(slowdowns.iter().all(|s| *s < 2.08), "{slowdowns:?}"),
            _ => assert!(slowdowns[0] > 2.2 && writes.share > 0.55, "{slowdowns:?}"),
        }
    }
}
