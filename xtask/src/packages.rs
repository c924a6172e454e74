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
    let apt = |args: &[&str]| {
        output(
            Command::new("apt-get")
                .args(args)
                .env("DEBIAN_FRONTEND", "noninteractive"),
        )
    };
    let install = ["install", "-y", "-q", "--no-install-recommends", package];
    if apt(&install).is_err() {
        // A fresh image has no package lists.
        let again = apt(&["update", "-q"]).and_then(|_| apt(&install));
        let last = |text: String| text.lines().rev().nth(1).unwrap_or_default().to_string();
        again.map_err(|text| format!("apt-get cannot install {package}: {}", last(text)))?;
    }
    find(name).ok_or_else(|| format!("the package {package} brought no {name}"))
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}
