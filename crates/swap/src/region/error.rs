//! What can go wrong with a region.
//!
//! What it never does: name a cause without what is missing or where it happened.

use nyx_media::MediaError;
use nyx_policy::paging::pager::Why;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// Why a region, or a page of it, cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// Sizes that no region can have.
    #[error("a region of {len_bytes} bytes in {limit_bytes} bytes of memory: {reason}")]
    Shape {
        /// Bytes of the region.
        len_bytes: u64,
        /// Bytes of memory.
        limit_bytes: u64,
        /// What is wrong with them.
        reason: &'static str,
    },
    /// This process may not have a userfaultfd, or the kernel has none.
    #[error("no userfaultfd: {missing}")]
    NoUserfaultfd {
        /// What is missing.
        missing: String,
    },
    /// The program does, or may do, what a region cannot be right for.
    #[error("not safe here: {reason}")]
    NotSafe {
        /// What that is.
        reason: String,
    },
    /// A range that leaves the region, or is empty.
    #[error("{len_bytes} bytes at {at_bytes} of a region of {region_bytes} bytes")]
    Range {
        /// The first byte.
        at_bytes: u64,
        /// How many.
        len_bytes: u64,
        /// How many the region has.
        region_bytes: u64,
    },
    /// A page cannot be had. What it holds on the device stays there.
    #[error("the page at byte {at_bytes} cannot be had: {}", reason(*why))]
    Page {
        /// Its first byte in the region.
        at_bytes: u64,
        /// Why.
        why: Why,
    },
    /// Another region has some of the range.
    #[error("{}: another region has some of bytes {range:?}", path.display())]
    InUse {
        /// The device.
        path: PathBuf,
        /// The range that was to be had.
        range: Range<u64>,
    },
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] MediaError),
    /// The system refused something.
    #[error("cannot {what}: {error}")]
    Os {
        /// What was tried, as a verb with its object.
        what: &'static str,
        /// Its answer.
        error: io::Error,
    },
}

/// The same for people.
pub(super) fn reason(why: Why) -> &'static str {
    match why {
        Why::Unreadable => "the device cannot read it",
        Why::DeviceFull => "no memory is free, and the device is full",
        Why::Unwritable => "no memory is free, and the device refuses what is to make room",
        Why::Pinned => "no memory is free, and all of it is fixed or pinned",
        Why::PinnedMost => "it is fixed or pinned as often as a page can be",
    }
}

/// Says what was tried, where it fails.
pub(super) trait Trying<T> {
    fn trying(self, what: &'static str) -> Result<T, RegionError>;
}

impl<T, E: Into<io::Error>> Trying<T> for Result<T, E> {
    fn trying(self, what: &'static str) -> Result<T, RegionError> {
        self.map_err(|error| RegionError::Os {
            what,
            error: error.into(),
        })
    }
}
