//! How a budget is divided: tables, reserves, classes of expiry. Arithmetic only.
//!
//! What it never does: allocate, except when asked for the chunks.

use crate::chunks::{self, CHUNK_BYTES, CHUNKS_MAX, Chunks};
use crate::config::{Eviction, Layout, StoreConfig, StoreError};
use crate::ghost::Ghost;
use crate::header::VALUE_LEN_LIMIT;
use crate::space::{SEGMENT_TABLE_BYTES, Shape};
use nyx_index::HashShape;
use nyx_media::MediaError;

/// The index gets its memory in steps of this many bytes.
pub(crate) const INDEX_STEP_BYTES: u64 = 16 << 10;
const SEGMENT_BYTES_MIN: u32 = 64 << 10;
const SEGMENT_BYTES_MAX: u32 = 1 << 30;
/// Segments that only relocation may take: one to write values to, one for its keys, one more for
/// another queue or class.
const RESERVE_SEGMENTS: u64 = 3;
/// One segment in this many is made free ahead of need, up to one per worker and one more.
const AHEAD_ONE_IN: u64 = 32;
/// Open segments take at most one in this many.
const OPEN_ONE_IN: u64 = 8;
const CLASSES_MAX: u64 = 32;
/// One key is remembered in the ghost queue for this many bytes of budget.
const GHOST_ONE_IN_BYTES: u64 = 256;
/// From this size on, memory is asked for in 2 MiB pages.
const HUGE_FROM_BYTES: u64 = 256 << 20;
/// The smallest item: header, key of one byte, padded.
const ITEM_BYTES_MIN: u64 = 16;
/// Places of the inline layout count 8 B in 32 bits.
const INLINE_BYTES_MAX: u64 = 32 << 30;

/// A budget divided.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) segments: u32,
    pub(crate) space: Shape,
    pub(crate) index: HashShape,
    pub(crate) classes: u32,
    pub(crate) ghost_keys: Option<u64>,
    /// Bytes of tables that are there from the start, the index's excluded.
    pub(crate) fixed_bytes: u64,
    chunk_count: Option<u32>,
    huge: bool,
}

impl Plan {
    /// The key memory; none in the inline layout.
    pub(crate) fn chunks(&self) -> Result<Option<Chunks>, MediaError> {
        self.chunk_count
            .map(|count| Chunks::reserve(count, self.huge))
            .transpose()
    }
}

/// Divides a budget, or says what is wrong with it.
pub(crate) fn plan(config: &StoreConfig) -> Result<Plan, StoreError> {
    let StoreConfig {
        size,
        segment_bytes,
        item_len_max,
        workers,
        ..
    } = *config;
    let within = (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes);
    if !segment_bytes.is_power_of_two() || !within {
        return Err(StoreError::SegmentBytes(segment_bytes));
    }
    if item_len_max > segment_bytes || item_len_max > VALUE_LEN_LIMIT {
        return Err(StoreError::ItemLenMax {
            item: item_len_max,
            segment: segment_bytes,
        });
    }
    let (segment, workers_wide) = (u64::from(segment_bytes), u64::from(workers));
    if config.layout == Layout::Inline && config.medium_len > INLINE_BYTES_MAX {
        return Err(StoreError::TooLarge {
            size: config.medium_len,
            most: INLINE_BYTES_MAX,
        });
    }
    let segments = size.min(config.medium_len) / segment;
    let queues = if config.eviction == Eviction::S3Fifo {
        2
    } else {
        1
    };
    let classes = segments / OPEN_ONE_IN / (queues * (workers_wide + 1));
    let huge = size >= HUGE_FROM_BYTES;
    let chunk_count = match config.layout {
        Layout::Split => Some((size / u64::from(CHUNK_BYTES)).min(CHUNKS_MAX) as u32),
        Layout::Inline => None,
    };
    let ghost_keys = (config.eviction == Eviction::S3Fifo).then_some(size / GHOST_ONE_IN_BYTES);
    let fixed_bytes = segments * SEGMENT_TABLE_BYTES
        + chunk_count.map_or(0, |count| u64::from(count) * chunks::ENTRY_BYTES)
        + ghost_keys.map_or(0, Ghost::bytes);
    let reserve = RESERVE_SEGMENTS * segment;
    let ahead = segment * (segments / AHEAD_ONE_IN).clamp(1, workers_wide + 1);
    // Every worker and the reclaimer have a segment open per queue; two more can be sealed.
    let open = queues * (workers_wide + 1) + 2;
    let needed = fixed_bytes
        + reserve
        + ahead
        + open * (segment + u64::from(CHUNK_BYTES))
        + 2 * INDEX_STEP_BYTES;
    let segments_needed = RESERVE_SEGMENTS + open + 1;
    if size < needed || segments < segments_needed {
        let needed = needed.max(segments_needed * segment);
        return Err(StoreError::TooSmall {
            size,
            segment: segment_bytes,
            workers,
            needed,
        });
    }
    Ok(Plan {
        segments: u32::try_from(segments).map_err(|_| StoreError::TooLarge {
            size,
            most: segment << 32,
        })?,
        space: Shape {
            size,
            reserve,
            ahead,
            keep_warm: segment,
        },
        index: HashShape {
            items_max: size / ITEM_BYTES_MIN,
            workers,
            huge,
        },
        classes: classes.clamp(1, CLASSES_MAX) as u32,
        ghost_keys,
        fixed_bytes,
        chunk_count,
        huge,
    })
}
