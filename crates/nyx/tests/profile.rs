//! The real binary evaluating a device in full, as small and as short as it can be: what it writes,
//! and what it refuses.

use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

const USAGE: i32 = 64;
const CANT_CREATE: i32 = 73;

/// `nyx profile --full` in a directory of its own, with as little as there can be.
fn evaluate(directory: &Path, more: &[&str]) -> Output {
    let least = ["profile", "--full", "--seconds", "1", "--threads", "1"];
    Command::new(env!("CARGO_BIN_EXE_nyx"))
        // No knob from outside may reach it.
        .env_clear()
        .current_dir(directory)
        .args(least)
        .args(more)
        .output()
        .expect("the binary")
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What it wrote there: the report, the readings, 14 drawings, and nothing else.
fn assert_written(out: &Path) -> serde_json::Value {
    let entries = std::fs::read_dir(out).expect("a directory");
    let mut names: Vec<String> = entries
        .map(|entry| text(entry.expect("a file").file_name().as_encoded_bytes()))
        .collect();
    names.sort();
    let mut expected = vec!["evaluation.json".to_owned()];
    expected.extend((1..=14).map(|number| format!("fig{number:02}.svg")));
    expected.push("report.md".into());
    assert_eq!(names, expected);
    let report = std::fs::read_to_string(out.join("report.md")).expect("a report");
    for number in 3..=8 {
        assert!(
            report.contains(&format!("### Table {number}: ")),
            "{report}"
        );
    }
    for number in 1..=14 {
        assert!(
            report.contains(&format!("(fig{number:02}.svg)")),
            "{report}"
        );
        let drawing = out.join(format!("fig{number:02}.svg"));
        let drawing = std::fs::read_to_string(drawing).expect("a drawing");
        assert!(drawing.trim_end().ends_with("</svg>"), "figure {number}");
    }
    let json = std::fs::read_to_string(out.join("evaluation.json")).expect("readings");
    serde_json::from_str(&json).expect("JSON")
}

fn kinds(value: &serde_json::Value) -> [&serde_json::Value; 3] {
    ["own", "model", "dram"].map(|sheet| &value[sheet]["evidence"])
}

#[test]
fn memory_is_evaluated_with_a_disk_beside_it() {
    let directory = directory();
    let ran = evaluate(directory.path(), &["--size", "32MiB", "--out", "report"]);
    let (said, told) = (text(&ran.stdout), text(&ran.stderr));
    assert!(ran.status.success(), "{told}");
    for word in [
        "# Device evaluation: anon memory",
        "Table 8",
        "Figure 14",
        "(paper)",
    ] {
        assert!(said.contains(word), "no {word:?} in {said}");
    }
    let value = assert_written(&directory.path().join("report"));
    assert_eq!(kinds(&value)[0], "real");
    assert!(value["model"].is_null());
    let disk = &value["disk"];
    assert!(
        disk["sheet"]["evidence"] == "real" || disk["skipped"].is_string(),
        "measured, or why it was not: {disk}"
    );
    // Neither the medium's nor the disk's file is left.
    let left = std::fs::read_dir(directory.path()).expect("a directory");
    assert_eq!(left.count(), 1);
}

#[test]
fn a_modelled_device_is_emulated_and_simulated_beside_it() {
    let directory = directory();
    let medium = directory.path().join("medium");
    let medium = medium.to_str().expect("UTF-8");
    let words = [
        "--model",
        "optane-2dimm",
        "--path",
        medium,
        "--size",
        "32MiB",
        "--disk",
        "none",
        "--out",
        "report",
    ];
    let ran = evaluate(directory.path(), &words);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let said = text(&ran.stdout);
    for word in [
        "device, emulated",
        "model, simulated",
        "No disk beside it: --disk none",
    ] {
        assert!(said.contains(word), "no {word:?} in {said}");
    }
    let value = assert_written(&directory.path().join("report"));
    assert_eq!(kinds(&value), ["emulated", "simulated", "real"]);
    assert!(!Path::new(medium).exists());
}

#[test]
fn a_model_alone_is_simulated_and_json_goes_to_the_terminal() {
    let directory = directory();
    let words = [
        "--model", "cxl", "--size", "32MiB", "--disk", "none", "--json",
    ];
    let ran = evaluate(directory.path(), &words);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let value: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!(kinds(&value)[0], "simulated");
    assert_eq!(value["name"], "cxl");
    let readings = value["own"]["readings"].as_array().expect("a list");
    let all = readings.iter().map(|one| one["latency_ns"].as_f64());
    assert!(all.into_iter().all(|ns| ns.is_some_and(|ns| ns > 0.0)));
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_is() {
    let directory = directory();
    let file = directory.path().join("file");
    std::fs::write(&file, b"precious").expect("a file");
    let cases: [(&[&str], i32, &[&str]); 8] = [
        (&["--size", "31MiB"], USAGE, &["31 MiB", "16 MiB", "32 MiB"]),
        (
            &["--size", "64TiB"],
            USAGE,
            &["64 TiB", "more than the machine's memory"],
        ),
        (&["--out", "file"], CANT_CREATE, &["cannot write file"]),
        (
            &["--out", "file/below"],
            CANT_CREATE,
            &["cannot write file/below"],
        ),
        (
            &["--model", "nonesuch"],
            USAGE,
            &["nonesuch", "optane-2dimm"],
        ),
        (&["--device", "file"], USAGE, &["--path"]),
        (&["--path", "file"], USAGE, &["file exists"]),
        (
            &["--disk", "nowhere"],
            USAGE,
            &["--disk nowhere", "not a directory"],
        ),
    ];
    for (more, code, words) in cases {
        let ran = evaluate(directory.path(), more);
        let told = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(code), "{more:?}: {told}");
        for word in words {
            assert!(told.contains(word), "{more:?}: no {word:?} in {told}");
        }
    }
    assert_eq!(std::fs::read(&file).expect("still there"), b"precious");
    // Limits of the command line itself, told with what a value may be.
    for (more, word) in [("--seconds=0", "1..=86400"), ("--threads=65", "1..=64")] {
        let ran = Command::new(env!("CARGO_BIN_EXE_nyx"))
            .args(["profile", "--full", more])
            .output()
            .expect("the binary");
        let told = text(&ran.stderr);
        assert!(!ran.status.success() && told.contains(word), "{told}");
    }
}
