//! The real binary measuring two devices, as small and as short as it can be: what it prints and
//! draws, and what it refuses. How fast they were is nobody's business here.

use std::path::Path;
use std::process::{Command, Output};

const USAGE: i32 = 64;

/// As little as there can be, in a directory of its own.
fn measure(directory: &Path, more: &str) -> Output {
    let least = "model --measure --data 2MiB --seconds 0.02 --warm-up 0.01";
    let sizes = match more.contains("--len") || more.contains("--cache") {
        true => "",
        false => "--len 4KiB --cache 1MiB",
    };
    Command::new(env!("CARGO_BIN_EXE_nyx"))
        // No knob from outside may reach it.
        .env_clear()
        .current_dir(directory)
        .args(least.split(' '))
        .args(sizes.split_whitespace())
        .args(more.split_whitespace())
        .output()
        .expect("the binary")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The cells of all rows of the table that follows a line.
fn rows(out: &str, title: &str) -> Vec<Vec<String>> {
    let mut lines = out.lines().skip_while(|line| !line.starts_with(title));
    assert!(lines.next().is_some(), "no {title:?} in {out}");
    let table = lines.skip(1).take_while(|line| line.starts_with('|'));
    let cells = |line: &str| -> Vec<String> {
        let cells = line.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    table.map(cells).collect()
}

fn column(rows: &[Vec<String>], name: &str) -> Vec<f64> {
    let at = rows[0].iter().position(|head| head == name);
    let at = at.unwrap_or_else(|| panic!("no {name:?} in {:?}", rows[0]));
    let value = |row: &Vec<String>| row[at].parse().unwrap_or(f64::NAN);
    rows[2..].iter().map(value).collect()
}

#[test]
fn two_models_are_emulated_and_beside_their_formulas() {
    let directory = tempfile::tempdir().expect("a directory");
    let line = "--fast dram/100 --deep nvm/100 --parallel 4 --hits 0,1 --splits 0,1 --loads 0.5,4 \
                --svg out.svg";
    let output = measure(directory.path(), line);
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{errors}");
    assert!(out.starts_with("dram/100 before nvm/100, blocks of 4 KiB, 100 % reads: emulated"));
    assert!(!out.contains("real") && !out.contains("simulated"), "{out}");
    for device in ["dram/100", "nvm/100"] {
        let costs = rows(&out, &format!("{device}: what a request takes"));
        assert_eq!(costs.len(), 4, "{costs:?}");
        assert_eq!(costs[0][1], "emulated, alone");
        assert_eq!(costs[0][5], "the model's, alone");
    }
    for title in [
        "classic, one at a time",
        "classic, 4 at a time",
        "shortest-delay, 4 at a time",
    ] {
        let table = rows(&out, title);
        assert_eq!(column(&table, "H"), [0.0, 1.0], "{title}");
        assert_eq!(
            column(&table, "hits"),
            [0.0, 1.0],
            "{title}: they are forced"
        );
        for name in ["formula", "emulated", "ratio"] {
            assert!(
                column(&table, name).iter().all(|&value| value > 0.0),
                "{table:?}"
            );
        }
        let has_paper = table[0].contains(&"the paper's".to_owned());
        assert_eq!(has_paper, title.starts_with("classic"));
    }
    for title in ["split, one at a time", "split, 4 at a time"] {
        let table = rows(&out, title);
        assert_eq!(column(&table, "s"), [0.0, 1.0]);
        assert_eq!(column(&table, "load_admit"), [0.0, 1.0], "a split is kept");
    }
    let loads = rows(&out, "controllers, 4 clients, hit ratio 1");
    assert_eq!(loads.len(), 2 + 2 * 5);
    let controllers: Vec<&str> = loads[2..7].iter().map(|row| row[1].as_str()).collect();
    let expected = ["classic", "split:0.8", "orthus", "most", "shortest-delay"];
    assert_eq!(controllers, expected);
    assert!(
        column(&loads, "emulated").iter().all(|&rate| rate > 0.0),
        "{loads:?}"
    );
    let svg = std::fs::read_to_string(directory.path().join("out.svg")).expect("drawn");
    assert!(svg.trim_end().ends_with("</svg>"));
    for word in [
        "classic, one at a time, formula",
        "split, 4 at a time, emulated",
        "P99 in ms",
    ] {
        assert!(svg.contains(word), "no {word:?}");
    }
    // Two points of each of the five curves, and five lines of two in two panels, and legends.
    assert!(svg.matches("<circle").count() >= 5 * 2 + 2 * 5 * 2);
    let left = std::fs::read_dir(directory.path())
        .expect("a directory")
        .count();
    assert_eq!(left, 1, "the drawing alone");
}

#[test]
fn files_are_real_and_written_only_where_that_was_said() {
    let directory = tempfile::tempdir().expect("a directory");
    let (there, bytes) = (directory.path().join("there"), vec![42; 2 << 20]);
    std::fs::write(&there, &bytes).expect("room");
    let refused = measure(
        directory.path(),
        "--fast there --deep nvm --hits 0.5 --parallel 2",
    );
    assert_eq!(refused.status.code(), Some(USAGE));
    assert!(
        text(&refused.stderr).contains("--overwrite fast"),
        "{}",
        text(&refused.stderr)
    );
    // Nothing is missed, so nothing is written.
    let line = "--fast there --deep ./new --hits 1 --tables hits,splits --splits 0.5 --parallel 2";
    let read = measure(directory.path(), line);
    let out = text(&read.stdout);
    assert!(read.status.success(), "{}", text(&read.stderr));
    assert!(
        out.starts_with("there before ./new, blocks of 4 KiB, 100 % reads: real"),
        "{out}"
    );
    assert_eq!(
        rows(&out, "there: what a request takes").len(),
        3,
        "reads only"
    );
    assert_eq!(
        rows(&out, "./new: what a request takes").len(),
        4,
        "it is ours"
    );
    assert!(
        std::fs::read(&there).expect("it stays") == bytes,
        "it was written"
    );
    let line = "--fast there --deep ./new --overwrite fast --hits 0.5 --tables hits --parallel 2";
    let written = measure(directory.path(), line);
    assert!(written.status.success(), "{}", text(&written.stderr));
    assert!(
        std::fs::read(&there).expect("it stays") != bytes,
        "it was not"
    );
    assert!(!directory.path().join("new").exists());
}

#[test]
fn what_cannot_be_measured_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    for (line, expected) in [
        ("--fast optan-ssd/10", "known are dram, nvm, optane-ssd"),
        ("--fast missing.toml", "missing.toml"),
        ("--cache 1MiB --len 1000B", "--len 1000 B"),
        ("--len 4KiB --cache 64KiB", "--cache 64 KiB: 16 blocks"),
        ("--fast dram --fast-model nvm", "lays another over it"),
    ] {
        let output = measure(directory.path(), line);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(USAGE), "{line}: {errors}");
        assert!(errors.contains(expected), "{line}: {errors}");
    }
}
