//! Which packages have tests in their documentation.
//!
//! rustdoc reads a package whole before it knows that there are none, which takes seconds for each.
//!
//! What it never does: decide what a test is by anything but how its block begins.

use crate::run::metadata;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// What blocks of code begin with that rustdoc does not compile.
const NOT_RUST: [&str; 5] = ["text", "toml", "json", "sh", "ignore"];

/// Names of all packages of the workspace with a block of code that rustdoc compiles.
pub(crate) fn packages() -> Result<Vec<String>, String> {
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().ok_or("no packages")?;
    let named = packages.iter().filter_map(|package| {
        let manifest = Path::new(package["manifest_path"].as_str()?);
        let mut sources = Vec::new();
        walk(&manifest.with_file_name("src"), &mut sources);
        let reads = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|text| has_test(&text));
        let name = package["name"].as_str()?;
        sources.iter().any(reads).then(|| name.to_owned())
    });
    Ok(named.collect())
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => walk(&path, found),
            false if path.extension() == Some(OsStr::new("rs")) => found.push(path),
            false => {}
        }
    }
}

/// Whether documentation in a source has a block of code that is compiled, or is a page of `docs`
/// that is there to be compiled.
fn has_test(source: &str) -> bool {
    let mut is_inside = false;
    source.lines().any(|line| {
        let line = line.trim_start();
        if line.starts_with("#[cfg(doctest)]") {
            return true;
        }
        let documentation = line.strip_prefix("//!").or(line.strip_prefix("///"));
        let Some(language) = documentation.and_then(|line| line.trim().strip_prefix("```")) else {
            return false;
        };
        is_inside = !is_inside;
        let first = language.split([',', ' ']).next().unwrap_or_default();
        is_inside && !NOT_RUST.contains(&first)
    })
}

#[test]
fn only_what_rustdoc_compiles_is_a_test() {
    let drawn = "//! ```text\n//! a --> b\n//! ```\n";
    let compiled = "    /// ```no_run\n    /// run();\n    /// ```\n";
    assert!(!has_test(drawn));
    assert!(!has_test("let x = \"```\";\n// ```\n"));
    assert!(has_test("/// ```\n/// run();\n/// ```\n"));
    assert!(has_test(&format!("{drawn}{compiled}")));
    assert!(has_test(
        "#[cfg(doctest)]\n#[doc = include_str!(\"page.md\")]\n"
    ));
}

#[test]
fn packages_are_named() {
    let packages = packages().expect("cargo tells");
    assert!(packages.contains(&"nyx-index".to_owned()), "{packages:?}");
    // Its page in `docs` is compiled.
    assert!(packages.contains(&"nyx-swap".to_owned()), "{packages:?}");
    assert!(!packages.contains(&"nyx-gate".to_owned()), "{packages:?}");
}
