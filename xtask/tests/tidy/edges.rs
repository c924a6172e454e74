//! Which room may know which, and whose code the house is built on.
//!
//! What it never does: accept an edge because it is there.

use crate::tree::{assert_none, metadata};
use serde_json::Value;

/// The allowed edges: arrows go down only. `nyx` may use everything and is not listed.
///
/// A room's tests may also use what stands below the rooms that it uses ([`FOR_TESTS`]): a server
/// is tested on an engine, and somebody has to make one.
const ALLOWED: &[(&str, &[&str])] = &[
    ("nyx-base", &[]),
    ("nyx-media", &["nyx-base"]),
    ("nyx-policy", &["nyx-base"]),
    ("nyx-proto", &["nyx-base"]),
    ("nyx-gate", &["nyx-base", "nyx-media"]),
    (
        "nyx-tier",
        &["nyx-base", "nyx-gate", "nyx-media", "nyx-policy"],
    ),
    ("nyx-index", &["nyx-base", "nyx-gate", "nyx-media"]),
    (
        "nyx-store",
        &["nyx-base", "nyx-gate", "nyx-index", "nyx-media", "nyx-tier"],
    ),
    (
        "nyx-engine",
        &[
            "nyx-base",
            "nyx-gate",
            "nyx-media",
            "nyx-policy",
            "nyx-proto",
            "nyx-store",
            "nyx-tier",
        ],
    ),
    (
        "nyx-server",
        &[
            "nyx-base",
            "nyx-engine",
            "nyx-gate",
            "nyx-media",
            "nyx-proto",
            "nyx-tier",
        ],
    ),
    (
        "nyx-sim",
        &[
            "nyx-base",
            "nyx-engine",
            "nyx-gate",
            "nyx-index",
            "nyx-media",
            "nyx-policy",
            "nyx-proto",
            "nyx-store",
            "nyx-tier",
        ],
    ),
    (
        "nyx-block",
        &[
            "nyx-base",
            "nyx-gate",
            "nyx-media",
            "nyx-policy",
            "nyx-tier",
        ],
    ),
    (
        "nyx-swap",
        &["nyx-base", "nyx-gate", "nyx-media", "nyx-policy"],
    ),
    ("nyx-preload", &["nyx-swap"]),
    ("xtask", &["nyx-block", "nyx-proto"]),
];

/// What a room's tests may use beyond that.
const FOR_TESTS: &[(&str, &[&str])] = &[("nyx-server", &["nyx-policy", "nyx-store"])];

/// Licences that we may build on. All let the result be used under Apache-2.0.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

#[test]
fn rooms_know_only_what_lies_below_them() {
    let metadata = metadata(false);
    let mut findings = Vec::new();
    for package in list(&metadata, "packages") {
        let name = text(package, "name");
        if name == "nyx" {
            continue;
        }
        let Some((_, allowed)) = ALLOWED.iter().find(|(room, _)| *room == name) else {
            findings.push(format!("{name} is not in the table of allowed edges"));
            continue;
        };
        let for_tests = FOR_TESTS.iter().find(|(room, _)| *room == name);
        let for_tests = for_tests.map_or(&[][..], |(_, rooms)| *rooms);
        for dependency in list(package, "dependencies") {
            let is_for_tests = text(dependency, "kind") == "dev";
            let other = text(dependency, "name");
            let is_room = other.starts_with("nyx-") || other == "nyx" || other == "xtask";
            let is_allowed =
                allowed.contains(&other) || (is_for_tests && for_tests.contains(&other));
            if is_room && !is_allowed {
                findings.push(format!("{name} -> {other} is not allowed"));
            }
        }
    }
    assert_none(&findings);
}

#[test]
fn every_crate_takes_the_lints_of_the_workspace() {
    let metadata = metadata(false);
    let manifests = list(&metadata, "packages")
        .iter()
        .map(|p| text(p, "manifest_path"));
    let findings: Vec<String> = manifests
        .filter(|path| {
            let manifest = std::fs::read_to_string(path).expect("a manifest");
            !manifest.contains("[lints]\nworkspace = true")
        })
        .map(|path| format!("{path} lacks `[lints] workspace = true`"))
        .collect();
    assert_none(&findings);
}

#[test]
fn every_dependency_has_a_licence_that_we_accept() {
    let metadata = metadata(true);
    let allowed: Vec<spdx::Licensee> = LICENCES
        .iter()
        .map(|licence| spdx::Licensee::parse(licence).expect("an SPDX licence"))
        .collect();
    let packages = list(&metadata, "packages");
    assert!(
        packages.len() > 20,
        "cargo metadata lists {} packages",
        packages.len()
    );
    let mut findings = Vec::new();
    for package in packages {
        let (name, licence) = (text(package, "name"), text(package, "license"));
        let is_fine = spdx::Expression::parse_mode(licence, spdx::ParseMode::LAX)
            .is_ok_and(|e| e.evaluate(|required| allowed.iter().any(|l| l.satisfies(required))));
        if !is_fine {
            findings.push(format!("{name}: licence {licence:?}"));
        }
    }
    assert_none(&findings);
}

#[test]
fn every_dependency_comes_from_the_registry() {
    let metadata = metadata(true);
    let findings: Vec<String> = list(&metadata, "packages")
        .iter()
        .filter(|p| {
            p["source"]
                .as_str()
                .is_some_and(|s| !s.starts_with("registry+"))
        })
        .map(|p| format!("{} comes from {}", text(p, "name"), text(p, "source")))
        .collect();
    assert_none(&findings);
}
