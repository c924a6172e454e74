//! Stages: where the values of a deep segment lie while it is filled, and until it has been written
//! to the deep device as a whole (docs/decisions/0011-two-tiers.md).
//!
//! What it never does: decide who gets a stage (`depth`), write to a device.
//!
//! *Thread safety*: bytes of a stage are written by the writer of its segment alone, before the
//! item that they belong to is published (released by the index); after that they are only read. A
//! stage is used anew when no worker can still look at it (eras).

use nyx_media::Region;
use std::ops::Range;

/// The stages of one store, each as long as a segment.
#[derive(Debug)]
pub(crate) struct Stages {
    region: Region,
    count: u32,
    segment_bytes: u32,
}

/// Where in which stage a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Staged {
    pub(crate) stage: u32,
    pub(crate) at: u32,
}

impl Stages {
    /// Bytes that so many stages take.
    pub(crate) fn bytes(count: u32, segment_bytes: u32) -> usize {
        count as usize * segment_bytes as usize
    }

    /// Stages in a region of [`Stages::bytes`].
    pub(crate) fn over(region: Region, count: u32, segment_bytes: u32) -> Stages {
        assert!(region.len() >= Stages::bytes(count, segment_bytes));
        Stages {
            region,
            count,
            segment_bytes,
        }
    }

    /// Where in the region a value lies. Panics where it leaves its stage.
    fn range(&self, Staged { stage, at }: Staged, len: usize) -> Range<usize> {
        let end = at as usize + len;
        assert!(
            stage < self.count && end <= self.segment_bytes as usize,
            "bytes {at}..{end} of stage {stage}, of {} of {} B",
            self.count,
            self.segment_bytes
        );
        let begin = stage as usize * self.segment_bytes as usize;
        begin + at as usize..begin + end
    }

    /// The bytes of a value that was published, or of one's own. The caller is within an era in
    /// which it found the segment in this stage, or owns the segment.
    pub(crate) fn bytes_of(&self, staged: Staged, len: usize) -> &[u8] {
        let range = self.range(staged, len);
        // SAFETY: within the region (checked). Nobody writes to them: they were written before the
        // item was published, and the stage is not used anew before the caller's era is over.
        unsafe {
            let begin = self.region.base().as_ptr().add(range.start);
            std::slice::from_raw_parts(begin, range.len())
        }
    }

    /// Fills bytes of a value that is not yet published. The caller is the segment's writer.
    pub(crate) fn fill(&self, staged: Staged, len: usize, fill: impl FnOnce(&mut [u8])) {
        let range = self.range(staged, len);
        // SAFETY: within the region (checked). No other reference to them exists: only the
        // segment's writer knows of a place behind the last published item, values do not overlap,
        // and whoever read the stage's last use is in a later era.
        fill(unsafe {
            let begin = self.region.base().as_ptr().add(range.start);
            std::slice::from_raw_parts_mut(begin, range.len())
        });
    }
}
