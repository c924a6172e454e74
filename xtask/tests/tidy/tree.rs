//! The files of the repository, and the workspace as cargo sees it.
//!
//! What it never does: look into build output, or at files that the repository ignores.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest
        .parent()
        .expect("xtask lies in the workspace")
        .to_path_buf()
}

/// A file of the repository: its path from the root, with slashes, and its text.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Directories that hold no source, wherever they are, and hidden ones that do.
const SKIPPED: &[&str] = &["corpus", "artifacts", "nyx-data"];
const HIDDEN: &[&str] = &[".ci", ".cargo"];

/// Every text file whose name ends in one of these.
pub(crate) fn files(endings: &[&str]) -> Vec<File> {
    let mut found = Vec::new();
    walk(&root(), &mut found);
    found.sort();
    let wanted = found
        .into_iter()
        .filter(|path| endings.iter().any(|e| path.ends_with(e)));
    let read = wanted.filter_map(|path| {
        let text = std::fs::read_to_string(root().join(&path)).ok()?;
        Some(File { path, text })
    });
    read.collect()
}

fn walk(dir: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir)
        .expect("a directory of the repository")
        .flatten()
    {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            let is_hidden = name.starts_with('.') && !HIDDEN.contains(&name.as_str());
            let is_output = name.starts_with("target") || SKIPPED.contains(&name.as_str());
            if !is_hidden && !is_output {
                walk(&path, found);
            }
        } else if let Ok(path) = path.strip_prefix(root()) {
            found.push(path.to_string_lossy().replace('\\', "/"));
        }
    }
}

/// `cargo metadata`, with or without what the workspace depends on.
pub(crate) fn metadata(with_dependencies: bool) -> serde_json::Value {
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["metadata", "--format-version", "1", "--quiet"])
        .current_dir(root());
    if !with_dependencies {
        command.arg("--no-deps");
    }
    let output = command.output().expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON")
}

/// Fails with every finding, where there are any.
pub(crate) fn assert_none(findings: &[String]) {
    assert!(
        findings.is_empty(),
        "{} findings:\n{}",
        findings.len(),
        findings.join("\n")
    );
}
