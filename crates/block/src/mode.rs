//! What becomes of a write, and of a read that misses: the five modes of Open CAS.
//!
//! What it never does: decide about a dirty line. Whatever the mode, the fast device alone has it,
//! and it stays dirty until it was written back.

use std::fmt;
use std::str::FromStr;

/// A mode. May be changed from one run to the next, with dirty lines in the cache too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Writes go to both devices and are answered when the deep one has them.
    #[default]
    WriteThrough,
    /// Writes go to the fast device and to the deep one later.
    WriteBack,
    /// Writes go to the deep device, and to the fast one where that has the line.
    WriteAround,
    /// Writes go to the deep device; what the fast one has of them is dropped.
    WriteInvalidate,
    /// Everything goes to the deep device, but for what is dirty.
    PassThrough,
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 5] = [
        Mode::WriteThrough,
        Mode::WriteBack,
        Mode::WriteAround,
        Mode::WriteInvalidate,
        Mode::PassThrough,
    ];

    /// Whether what a read missed may be copied to the fast device.
    pub fn admits_reads(self) -> bool {
        self != Mode::PassThrough
    }

    /// Whether a write of what is not cached takes a slot.
    pub fn admits_writes(self) -> bool {
        matches!(self, Mode::WriteThrough | Mode::WriteBack)
    }

    /// Whether a clean line that is written to is dropped instead of written.
    pub fn drops_written(self) -> bool {
        matches!(self, Mode::WriteInvalidate | Mode::PassThrough)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::WriteThrough => "write-through",
            Mode::WriteBack => "write-back",
            Mode::WriteAround => "write-around",
            Mode::WriteInvalidate => "write-invalidate",
            Mode::PassThrough => "pass-through",
        })
    }
}

/// A name that no mode has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is none of write-through (wt), write-back (wb), write-around (wa), write-invalidate \
     (wi) and pass-through (pt)"
)]
pub struct UnknownMode(String);

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<Mode, UnknownMode> {
        match name {
            "write-through" | "wt" => Ok(Mode::WriteThrough),
            "write-back" | "wb" => Ok(Mode::WriteBack),
            "write-around" | "wa" => Ok(Mode::WriteAround),
            "write-invalidate" | "wi" => Ok(Mode::WriteInvalidate),
            "pass-through" | "pt" => Ok(Mode::PassThrough),
            _ => Err(UnknownMode(name.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_as_they_are_told() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert_eq!("wb".parse(), Ok(Mode::WriteBack));
        let error = "writeback".parse::<Mode>().expect_err("no such name");
        assert!(error.to_string().contains("write-back (wb)"), "{error}");
    }
}
