//! How a command ends badly: a message for people and an exit code for scripts (sysexits(3)).
//!
//! What it never does: carry a cause that the message does not name.

use std::fmt;

/// Why a command gave up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub code: Exit,
    /// What went wrong, with the values and their units.
    pub message: String,
}

/// Exit codes, as sysexits(3) numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// What was to be shown did not come out.
    Unmet = 1,
    /// The command line or the configuration is wrong.
    Usage = 64,
    /// A file of ours is damaged, or is none of ours.
    Damaged = 65,
    /// An input file does not exist or cannot be read.
    NoInput = 66,
    /// Something that the command needs cannot be had: a server, a port, a feature.
    Unavailable = 69,
    /// A bug of ours.
    Software = 70,
    /// The operating system refused a thread, a mapping, a socket.
    Os = 71,
    /// An output file cannot be created.
    CantCreate = 73,
    /// Reading or writing failed half way.
    Io = 74,
    /// Not allowed.
    NoPerm = 77,
}

impl Failure {
    /// A failure with its exit code.
    pub fn new(code: Exit, message: impl Into<String>) -> Failure {
        Failure {
            code,
            message: message.into(),
        }
    }

    /// Wrong usage or configuration (exit 64).
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, message)
    }

    /// A file that cannot be read: exit 77 where permission is missing, else 66.
    pub fn unreadable(path: &std::path::Path, error: &std::io::Error) -> Failure {
        let code = match error.kind() {
            std::io::ErrorKind::PermissionDenied => Exit::NoPerm,
            _ => Exit::NoInput,
        };
        Failure::new(code, format!("cannot read {}: {error}", path.display()))
    }

    /// A file that cannot be written: exit 77 where permission is missing, else 73.
    pub fn uncreatable(path: &std::path::Path, error: &std::io::Error) -> Failure {
        let code = match error.kind() {
            std::io::ErrorKind::PermissionDenied => Exit::NoPerm,
            _ => Exit::CantCreate,
        };
        Failure::new(code, format!("cannot write {}: {error}", path.display()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
