//! How a budget is divided: tables, reserves, classes of expiry. Arithmetic only.
//!
//! What it never does: allocate.

use crate::chunks::{self, CHUNK_BYTES, CHUNKS_MAX};
use crate::config::{Eviction, Keep, Layout, Purpose, StoreConfig, StoreError};
use crate::depth::DepthShape;
use crate::ghost::Ghost;
use crate::header::VALUE_LEN_LIMIT;
use crate::order;
use crate::segment::DEAD_ENTRY_BYTES;
use crate::space::{SEGMENT_TABLE_BYTES, Shape};
use crate::writer::Classes;
use nyx_index::HashShape;

/// The index gets its memory in steps of this many bytes.
pub(crate) const INDEX_STEP_BYTES: u64 = 16 << 10;
/// Fewer segments than this make eviction coarse.
const SEGMENTS_WANTED: u64 = 64;
const SEGMENT_BYTES_USUAL: u32 = 1 << 20;
const SEGMENT_BYTES_MIN: u32 = 64 << 10;
const SEGMENT_BYTES_MAX: u32 = 1 << 29;
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
const HUGE_FROM_BYTES: u64 = 128 << 20;
/// Stages take one part in this many of the budget, but there are as many as are needed.
const STAGES_ONE_IN: u64 = 16;
/// Classes of expiry that are told apart on the deep device, at most.
const DEEP_CLASSES_MAX: u32 = 4;
/// Segments of a tenant's part of a deep device, at least.
pub const DEEP_SEGMENTS_MIN: u64 = 8;
/// The smallest item: header, key of one byte, padded.
const ITEM_BYTES_MIN: u64 = 16;
/// Places of the inline layout count 8 B in 32 bits.
const INLINE_BYTES_MAX: u64 = 32 << 30;

/// A budget divided.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) segments: u32,
    pub(crate) segment_bytes: u32,
    pub(crate) space: Shape,
    pub(crate) index: HashShape,
    pub(crate) classes: Classes,
    pub(crate) ghost_keys: Option<u64>,
    /// Bytes of tables that are there from the start, the index's excluded.
    pub(crate) fixed_bytes: u64,
    /// Chunks of key memory; none in the inline layout.
    pub(crate) chunk_count: Option<u32>,
    pub(crate) huge: bool,
}

impl StoreConfig {
    /// Whether a store can be made of this, as far as that can be told without a look at any file.
    pub fn check(&self) -> Result<(), StoreError> {
        plan(self).map(drop)
    }

    /// The segment size for a budget of `size` bytes and values of up to `item_len_max` bytes: 1
    /// MiB where that makes 64 segments or more, else less, but never less than the
    /// longest value.
    pub fn segment_bytes_for(size: u64, item_len_max: u32) -> u32 {
        let share = (size / SEGMENTS_WANTED).clamp(1, u64::from(SEGMENT_BYTES_USUAL));
        let power = 1 << share.ilog2();
        item_len_max
            .next_power_of_two()
            .max(power)
            .max(SEGMENT_BYTES_MIN)
    }
}

/// What cannot be right whatever the budget is.
fn check(config: &StoreConfig) -> Result<(), StoreError> {
    let (segment, item) = (config.segment_bytes, config.item_len_max);
    let within = (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment);
    if !segment.is_power_of_two() || !within {
        return Err(StoreError::SegmentBytes(segment));
    }
    if item > segment || item > VALUE_LEN_LIMIT {
        return Err(StoreError::ItemLenMax { item, segment });
    }
    if config.layout == Layout::Inline && config.medium_len > INLINE_BYTES_MAX {
        let (size, most) = (config.medium_len, INLINE_BYTES_MAX);
        return Err(StoreError::TooLarge { size, most });
    }
    Ok(())
}

/// What a store gets of its part of a deep device.
fn depth(config: &StoreConfig) -> Result<DepthShape, StoreError> {
    let Some(part) = config.deep else {
        return Ok(DepthShape::default());
    };
    let segment = u64::from(config.segment_bytes);
    if config.layout != Layout::Split {
        let why = "has its keys apart from its values (layout \"split\")";
        return Err(StoreError::CannotBeDeep(why));
    }
    let keep = config.keep.as_ref();
    if keep.is_some_and(|keep| keep.journal.is_some()) {
        let why = "has no journal yet: leave out sync, or the deep device";
        return Err(StoreError::CannotBeDeep(why));
    }
    let (len, needed) = (part.len, DEEP_SEGMENTS_MIN * segment);
    if len < needed {
        let segment = config.segment_bytes;
        return Err(StoreError::TooShallow {
            len,
            segment,
            needed,
        });
    }
    let (segments, stages) = depth_counts(config.size, segment, len);
    Ok(DepthShape {
        segments,
        stages,
        classes: stages / 2,
        day_bytes: part.day_bytes,
    })
}

/// Segments of so many bytes and stages that a store of `size` bytes has for `len` bytes of a deep
/// device. An image is divided by this.
pub(crate) fn depth_counts(size: u64, segment_bytes: u64, len: u64) -> (u32, u32) {
    // One is filled for each class, and as many are written meanwhile.
    let most = 2 * DEEP_CLASSES_MAX;
    let stages = (size / STAGES_ONE_IN / segment_bytes).clamp(2, u64::from(most)) as u32;
    let segments = u32::try_from(len / segment_bytes).unwrap_or(u32::MAX / 2);
    (segments, stages)
}

/// Divides a budget, or says what is wrong with it.
pub(crate) fn plan(config: &StoreConfig) -> Result<Plan, StoreError> {
    check(config)?;
    let (size, segment) = (config.size, u64::from(config.segment_bytes));
    let segments = size.min(config.medium_len) / segment;
    let queues = 1 + u64::from(config.eviction == Eviction::S3Fifo);
    // The reclaimer has open segments of its own.
    let writers = u64::from(config.workers) + 1;
    let chunk_count = match config.layout {
        Layout::Split => Some((size / u64::from(CHUNK_BYTES)).min(CHUNKS_MAX) as u32),
        Layout::Inline => None,
    };
    let ghost_keys = (config.eviction == Eviction::S3Fifo).then_some(size / GHOST_ONE_IN_BYTES);
    let depth = depth(config)?;
    let per_segment = SEGMENT_TABLE_BYTES + u64::from(config.workers) * DEAD_ENTRY_BYTES;
    let fixed_bytes = (segments + u64::from(depth.segments)) * per_segment
        + u64::from(depth.stages) * segment
        + chunk_count.map_or(0, |count| u64::from(count) * chunks::ENTRY_BYTES)
        + ghost_keys.map_or(0, Ghost::bytes);
    let reserve = RESERVE_SEGMENTS * segment;
    let ahead = segment * (segments / AHEAD_ONE_IN).clamp(1, writers);
    // What is open, and two more that can be sealed.
    let in_use = queues * writers + 2;
    let bytes_in_use = in_use * (segment + u64::from(CHUNK_BYTES)) + 2 * INDEX_STEP_BYTES;
    let order_bytes = config.order.map_or(0, |tree| order::bytes_min(tree, size));
    let needed = (fixed_bytes + order_bytes + reserve + ahead + bytes_in_use)
        .max((RESERVE_SEGMENTS + in_use + 1) * segment);
    // Who looks or repairs has one worker and does not know the policy; nothing is stored.
    let serves = |keep: &Keep| keep.purpose == Purpose::Serve;
    if config.keep.as_ref().is_none_or(serves) && size.min(config.medium_len) < needed {
        return Err(StoreError::TooSmall {
            size: size.min(config.medium_len),
            segment: config.segment_bytes,
            workers: config.workers,
            needed,
        });
    }
    let huge = size >= HUGE_FROM_BYTES;
    let (items_max, workers) = (size / ITEM_BYTES_MIN, config.workers);
    let classes = segments / OPEN_ONE_IN / (queues * writers);
    Ok(Plan {
        segments: u32::try_from(segments).map_err(|_| StoreError::TooLarge {
            size,
            most: segment << 32,
        })?,
        segment_bytes: config.segment_bytes,
        space: Shape {
            size,
            reserve,
            ahead,
            keep_warm: segment,
            depth,
        },
        index: HashShape {
            items_max,
            workers,
            huge,
        },
        classes: Classes {
            fast: classes.clamp(1, CLASSES_MAX) as u32,
            deep: depth.classes,
        },
        ghost_keys,
        fixed_bytes,
        chunk_count,
        huge,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(size: u64, segment_bytes: u32) -> StoreConfig {
        StoreConfig {
            size,
            medium_base: 0,
            medium_len: size,
            segment_bytes,
            item_len_max: 1 << 16,
            eviction: Eviction::S3Fifo,
            layout: Layout::Split,
            workers: 2,
            hash_seed: 0,
            keep: None,
            order: None,
            deep: None,
        }
    }

    #[test]
    fn usual_budgets_have_a_usual_shape() {
        for mib in [4, 8, 64, 1 << 10, 1 << 20] {
            let size = mib << 20;
            let segment = StoreConfig::segment_bytes_for(size, 1 << 16);
            let plan = plan(&config(size, segment)).expect("enough");
            let share = plan.fixed_bytes as f64 / size as f64;
            assert!(share < 0.02, "tables take {share:.3} of {mib} MiB");
            let idle = plan.space.reserve + plan.space.ahead;
            assert!(idle * 5 <= size, "{idle} B idle of {size} B");
        }
        assert_eq!(StoreConfig::segment_bytes_for(64 << 20, 1 << 20), 1 << 20);
        assert_eq!(StoreConfig::segment_bytes_for(64 << 30, 1 << 16), 1 << 20);
        assert_eq!(StoreConfig::segment_bytes_for(64 << 20, 5 << 20), 8 << 20);
    }

    #[test]
    fn the_least_size_named_in_the_error_is_enough() {
        let Err(StoreError::TooSmall { needed, .. }) = plan(&config(1 << 20, 1 << 20)) else {
            panic!("one segment is too few")
        };
        // Tables grow a little with the size.
        assert!(plan(&config(needed + needed / 64, 1 << 20)).is_ok());
        assert!(plan(&config(needed - 1, 1 << 20)).is_err());
    }
}
