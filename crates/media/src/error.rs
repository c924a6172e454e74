//! The errors of this room: what cannot be reserved, mapped, read as a profile or understood as a
//! device model. Each message carries the path and the values with their units. None of them
//! arises on the path of a request: accesses to a medium do not fail.

use std::io;

/// Why a medium, a reserved region, a model or a profile could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MediaError {
    /// The kernel refused address space.
    #[error("cannot reserve {len_bytes} bytes of memory: {source}")]
    Reserve {
        /// Bytes asked for.
        len_bytes: u64,
        /// The kernel's reason.
        source: io::Error,
    },
}
