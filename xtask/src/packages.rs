//! Debian packages that a step needs: installed when this runs as root, otherwise named.
//!
//! What it never does: install anything that is there already.

use crate::run::output;
use std::path::PathBuf;
use std::process::Command;

/// Where a program is, installing its package if need be; the error is the reason to skip.
pub(crate) fn program(name: &str, package: &str) -> Result<PathBuf, String> {
    if let Some(found) = find(name) {
        return Ok(found);
    }
    if !rustix::process::geteuid().is_root() {
        return Err(format!(
            "{name} is missing: install the Debian package {package}"
        ));
    }
    let install = ["install", "-y", "-q", "--no-install-recommends", package];
    if apt(&install).is_err() {
        // A fresh image has no package lists.
        let again = update().and_then(|()| apt(&install));
        again.map_err(|why| format!("apt-get cannot install {package}: {why}"))?;
    }
    find(name).ok_or_else(|| format!("the package {package} brought no {name}"))
}

/// Brings the lists of packages up to date.
pub(crate) fn update() -> Result<(), String> {
    apt(&["update", "-q"]).map(|_| ())
}

fn apt(args: &[&str]) -> Result<String, String> {
    let mut command = Command::new("apt-get");
    short(command.args(args).env("DEBIAN_FRONTEND", "noninteractive"))
}

/// What a command prints; where it fails, its last words only.
pub(crate) fn short(command: &mut Command) -> Result<String, String> {
    output(command).map_err(|text| {
        // The last line is the command with its exit status.
        let words = text
            .lines()
            .rev()
            .skip(1)
            .find(|line| !line.trim().is_empty());
        words.unwrap_or(&text).to_owned()
    })
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // Where programs for root are, which others may run too.
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into()])
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}
