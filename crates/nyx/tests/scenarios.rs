//! The scenario files that come with Nyx: each is sound, and what a short one shows is so.

use nyx::sim::draw;
use nyx::sim::expect::Verdict;
use nyx::sim::figures::FIGURES;
use nyx::sim::file::{self, Case, Instead};
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
    let only = only.iter().map(|(of, is)| ((*of).into(), (*is).into()));
    let instead = Instead {
        only: only.collect(),
        seeds: Some(1),
        ..Instead::default()
    };
    file::read(path, &instead).expect("sound").cases
}

#[test]
fn every_scenario_is_sound_and_says_what_it_is_about() {
    assert!(files().len() >= 3);
    for path in files() {
        let read = file::read(&path, &Instead::default());
        let scenario = read.unwrap_or_else(|failure| panic!("{failure}"));
        assert!(
            scenario.cases.iter().all(|case| !case.run.about.is_empty()),
            "{}",
            path.display()
        );
    }
}

/// The figures that the binary has are the files that are there, and each judges something and
/// draws something.
#[test]
fn every_figure_is_in_the_binary_with_expectations_and_a_drawing() {
    let mut there: Vec<String> = files()
        .iter()
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .filter(|name| name.starts_with("fig") || name.starts_with("table"))
        .collect();
    let mut known: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
    there.sort();
    known.sort();
    assert_eq!(there, known);
    for figure in &FIGURES {
        let scenario = file::scenario(figure.text, &Instead::default()).expect("sound");
        let name = figure.name;
        assert!(!scenario.expects.is_empty(), "{name} expects nothing");
        assert!(!scenario.draws.is_empty(), "{name} draws nothing");
        let is_sourced = |case: &Case| case.run.source.starts_with("NyxCache ");
        assert!(
            scenario.cases.iter().all(is_sourced),
            "{name} has no source"
        );
        assert!(scenario.cases[0].run.seeds >= 10, "{name} has few runs");
    }
}

/// Figure 1a of NyxCache: its expectations hold, and one that is the contrary does not; both are
/// drawn.
#[test]
fn expectations_hold_or_fail_by_what_came_out() {
    let figure = FIGURES.iter().find(|one| one.name == "fig01a-interference");
    let text = figure.expect("it is there").text;
    let contrary = "[[expect]]\nsays = \"writing is harmless\"\nmetric = \"P99 us\"\n\
                    of = [\"victim\"]\nwhere = { beside = \"1 GB/s written\" }\n\
                    per = { beside = \"nobody\" }\nat_most = 1.1\n";
    let instead = Instead {
        seeds: Some(2),
        ..Instead::default()
    };
    let scenario = file::scenario(&format!("{text}\n{contrary}"), &instead).expect("sound");
    let (cases, mut devices) = (&scenario.cases, Devices::default());
    let results = run::run_all(cases, &mut devices, &|_, _| ()).expect("it runs");
    let verdicts: Vec<Verdict> = scenario
        .expects
        .iter()
        .map(|expect| expect.judge(cases, &results).expect("all cases were run"))
        .collect();
    let (last, others) = verdicts.split_last().expect("four");
    assert!(
        others.iter().all(|one| one.is_kept && one.held == 2),
        "{verdicts:?}"
    );
    assert!(!last.is_kept && last.held == 0, "{last:?}");
    assert!(
        last.found
            .iter()
            .all(|[low, high]| low == high && *low > 1.5),
        "{last:?}"
    );
    let svg = draw::figure(&scenario.draws, cases, &results).expect("drawn");
    for word in ["<svg", "1 GB/s written", "2 runs, simulated", "victim"] {
        assert!(svg.contains(word), "{word} is not in the drawing");
    }
}

/// What was not run is not judged, and what was not measured is not kept.
#[test]
fn nothing_is_kept_that_was_not_measured() {
    let figure = FIGURES.iter().find(|one| one.name == "fig01b-store-sizes");
    let text = figure.expect("it is there").text;
    let unmeasured = "[[expect]]\nsays = \"unknown\"\nmetric = \"slowdown\"\nat_most = 1e9\n";
    let instead = Instead {
        only: vec![("stores of".into(), "64 B".into())],
        seeds: Some(1),
        ..Instead::default()
    };
    let scenario = file::scenario(&format!("{text}\n{unmeasured}"), &instead).expect("sound");
    let (cases, mut devices) = (&scenario.cases, Devices::default());
    let results = run::run_all(cases, &mut devices, &|_, _| ()).expect("it runs");
    let judged: Vec<Option<Verdict>> = scenario
        .expects
        .iter()
        .map(|expect| expect.judge(cases, &results))
        .collect();
    // What is to be divided by was left out.
    assert!(judged[0].is_none() && judged[1].is_none(), "{judged:?}");
    assert!(!judged[2].as_ref().expect("it was run").is_kept);
}

/// Figure 10a of NyxCache, at one of its weights: with device time each has its part of what it
/// does alone; with bytes the writer has more than its part of the device.
#[test]
fn weights_are_kept_in_device_time_and_not_in_bytes() {
    let mut devices = Devices::default();
    let cases = cases("fig10a-weights.toml", &[("weights", "1:1")]);
    let results = run::run_all(&cases, &mut devices, &|_, _| ()).expect("it runs");
    for (case, result) in cases.iter().zip(&results) {
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
