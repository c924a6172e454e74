//! What the documentation says of the tree is so.
//!
//! What it never does: judge prose.

use crate::tree::{assert_none, files, metadata, root};

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Rooms in which time, threads and chance are handed in.
const PURE_ROOMS: &[&str] = &["base", "policy", "proto", "index", "store", "engine"];

#[test]
fn the_map_is_short_and_names_every_crate() {
    let map = read("ARCHITECTURE.md");
    let mut findings = Vec::new();
    if map.lines().count() > 400 {
        findings.push(format!(
            "ARCHITECTURE.md has {} lines, more than 400",
            map.lines().count()
        ));
    }
    let metadata = metadata(false);
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        let folder = name.strip_prefix("nyx-").unwrap_or(name);
        if !map.contains(&format!("`{folder}`")) {
            findings.push(format!("ARCHITECTURE.md does not name `{folder}`"));
        }
    }
    assert_none(&findings);
}

/// Words in backticks that are paths of this repository.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    const TOP: &[&str] = &["crates/", "docs/", "xtask/", "config/", "fuzz/"];
    line.split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| TOP.iter().any(|top| word.starts_with(top)))
}

#[test]
fn every_path_in_the_documentation_exists() {
    let mut findings = Vec::new();
    let mut seen = 0;
    for file in files(&[".md"]) {
        for (i, line) in file.text.lines().enumerate() {
            for path in paths(line).filter(|path| !path.contains(['*', '<', ' ', '{'])) {
                seen += 1;
                if !root().join(path).exists() {
                    findings.push(format!("{}:{}: there is no {path}", file.path, i + 1));
                }
            }
        }
    }
    assert!(seen > 10, "the check found {seen} paths only");
    assert_none(&findings);
}

#[test]
fn every_row_of_papers_names_a_file() {
    let page = read("docs/papers.md");
    let rows: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| section"))
        .collect();
    assert!(rows.len() >= 5, "docs/papers.md has {} rows", rows.len());
    let bare = rows.iter().filter(|row| paths(row).next().is_none());
    assert_none(
        &bare
            .map(|row| format!("no file in: {row}"))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn decisions_are_numbered_without_gaps() {
    let mut names: Vec<String> = std::fs::read_dir(root().join("docs/decisions"))
        .expect("docs/decisions")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(|c: char| c.is_ascii_digit()))
        .collect();
    names.sort();
    let expected = |i: usize| format!("{:04}-", i + 1);
    let wrong = names
        .iter()
        .enumerate()
        .filter(|(i, name)| !name.starts_with(&expected(*i)));
    assert_none(
        &wrong
            .map(|(i, name)| format!("{name} is number {}", i + 1))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn pure_rooms_share_one_list_of_bans() {
    let first = read("crates/base/clippy.toml");
    assert!(
        first.contains("std::time::Instant::now"),
        "the bans have gone"
    );
    for room in PURE_ROOMS {
        assert!(
            first == read(&format!("crates/{room}/clippy.toml")),
            "{room} has other bans"
        );
    }
}
