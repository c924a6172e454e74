//! What can go wrong with memory for programs.
//!
//! What it never does: name a cause without the file or the value that it is about.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a program cannot have memory as it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum SwapError {
    /// No hierarchy of control groups limits memory here.
    #[error(
        "no control group limits memory here: neither cgroup v2 with the memory controller nor \
         cgroup v1's is mounted (see /proc/self/mountinfo)"
    )]
    NoController,
    /// A control group with a limit cannot be made anywhere.
    #[error("no control group can be made with a limit of memory:{0}")]
    NoGroup(Tried),
    /// The machine has no swap, and no device was named.
    #[error("no swap is on: name a device (--device FILE, --device zram), or see swapon(8)")]
    NoSwap,
    /// A file or device cannot be used as swap.
    #[error("{path} cannot be swap: {reason}")]
    Unusable {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// What an amount of memory is found by is not told here.
    #[error("{memory} cannot be found here: {missing}")]
    Untold {
        /// Which amount.
        memory: &'static str,
        /// What is missing.
        missing: &'static str,
    },
    /// A process cannot be attached to.
    #[error("process {pid} cannot be attached to: {reason}")]
    NotAttachable {
        /// Which.
        pid: u32,
        /// Why.
        reason: String,
    },
    /// A program cannot have an arena here, or its arena would not be right.
    #[error("the program cannot page for itself (engine uffd): {reason}")]
    NoArena {
        /// Why.
        reason: String,
    },
    /// It was to end before the program had begun.
    #[error("ended while it was set up: all that was made is taken down")]
    Interrupted,
    /// The system refused something.
    #[error("cannot {what} {path}: {error}")]
    Os {
        /// What was tried, as a verb.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Its answer.
        error: io::Error,
    },
}

/// Places that were tried, and what came of it.
#[derive(Debug, Default)]
pub struct Tried(pub Vec<(PathBuf, io::Error)>);

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, why) in &self.0 {
            write!(f, "\n  in {}: {why}", place.display())?;
        }
        Ok(())
    }
}

impl SwapError {
    /// Whether more privilege would help.
    pub fn is_permission(&self) -> bool {
        match self {
            SwapError::Os { error, .. } => is_denied(error),
            SwapError::NoGroup(tried) => tried.0.iter().any(|(_, error)| is_denied(error)),
            _ => false,
        }
    }

    /// Whether somebody else uses what was to be had.
    pub(crate) fn is_busy(&self) -> bool {
        let is_busy = |error: &io::Error| error.kind() == io::ErrorKind::ResourceBusy;
        matches!(self, SwapError::Os { error, .. } if is_busy(error))
    }
}

fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Says what was tried on which file, where it fails.
pub(crate) trait Trying<T> {
    fn trying(self, what: &'static str, path: &Path) -> Result<T, SwapError>;
}

impl<T, E: Into<io::Error>> Trying<T> for Result<T, E> {
    fn trying(self, what: &'static str, path: &Path) -> Result<T, SwapError> {
        self.map_err(|error| SwapError::Os {
            what,
            path: path.to_owned(),
            error: error.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_privilege_helps_only_where_it_was_missing() {
        let no_group = |kind: io::ErrorKind| {
            let tried = ("/sys/fs/cgroup".into(), io::Error::from(kind));
            SwapError::NoGroup(Tried(vec![tried]))
        };
        assert!(no_group(io::ErrorKind::PermissionDenied).is_permission());
        assert!(!no_group(io::ErrorKind::ReadOnlyFilesystem).is_permission());
        assert!(!no_group(io::ErrorKind::ResourceBusy).is_permission());
    }
}
