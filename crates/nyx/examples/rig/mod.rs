//! What several examples need: the optimised binary, and servers that end with a value.
//!
//! What it never does: configure a server, or wait for one.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// Builds the optimised binary where it is not, and says where it is. The error is in words.
pub(crate) fn build() -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--release", "-p", "nyx", "--bin", "nyx"])
        .status()
        .map_err(|error| format!("cargo: {error}"))?;
    if !status.success() {
        return Err(format!("building nyx: {status}"));
    }
    let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let release = own.parent().and_then(Path::parent);
    Ok(release.unwrap_or(Path::new(".")).join("nyx"))
}

/// A running process; it is killed with the value.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It is gone already where this fails.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
