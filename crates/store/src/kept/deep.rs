//! What an image has of a deep device: which range of which device the values of its deep segments
//! are in, and what becomes of them where the tenant has another one now.
//!
//! The parts that this is about are the last of an image: the entries of deep segments follow those
//! of fast ones, and the stages follow the entries. So an image takes another range of a deep
//! device, another device, its first or none, and all else stays where it is.
//!
//! What was in the range that it had is forgotten at once: its segments' entries become those of
//! segments that were never used, so that their chunks belong to nobody, and entries of the index
//! that lead there are dropped when their chains are looked at. Segments that are still in their
//! stages stay, where the range is as long as it was: they wait to be written, wherever that is.
//! In this order, of which a kill leaves any prefix:
//!
//! 1. the image is long enough for both, and what will be touched is allocated;
//! 2. it is in use: a power failure from here on makes it worth nothing;
//! 3. the deep entries become zero, those that it had and those that it will have (there may be
//!    stages where those are, of segments that are no longer);
//! 4. it says what it is from now on.
//!
//! What it never does: look at a deep device.
//!
//! *Thread safety*: one thread, before the store is used.

use super::about::{About, DeepRange};
use super::{Ground, Parts};
use crate::config::StoreConfig;
use crate::segment::{Segment, has_items};
use crate::shape::{self, Plan};
use nyx_media::{Array, Image, MediaError};

/// What a store that survives does not go on with of its deep device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeepLoss {
    /// Why.
    pub why: &'static str,
    /// Segments that held items.
    pub segments: u32,
    /// Items in those, at most: some had died.
    pub items: u64,
}

impl Ground {
    /// Makes an image one of a tenant with the deep device of `config`, if it is of another; what
    /// was lost.
    pub(super) fn change_deep(
        image: &mut Image,
        about: &About,
        plan: &Plan,
        config: &StoreConfig,
    ) -> Result<Option<DeepLoss>, MediaError> {
        let deep = config.deep.as_ref().map(DeepRange::of);
        if about.deep == deep {
            return Ok(None);
        }
        let had = about.deep.map_or((0, 0), |deep| {
            shape::depth_counts(about.size, about.segment_bytes, deep.len)
        });
        let depth = plan.space.depth;
        let (old, new) = (
            Parts::of(plan, had),
            Parts::of(plan, (depth.segments, depth.stages)),
        );
        image.lengthen(old.end.max(new.end))?;
        let entries = |parts: &Parts, deep: u32| -> Result<Array<Segment>, MediaError> {
            let count = (plan.segments + deep) as usize;
            let entries = image.array(parts.segments, count, false)?;
            parts.allocated(image, entries.allocate(0, count))?;
            Ok(entries)
        };
        let all = [entries(&old, had.0)?, entries(&new, depth.segments)?];
        image.begin()?;
        let fast = plan.segments as usize;
        let is_as_long = had == (depth.segments, depth.stages);
        let goes = |entry: &&Segment| !is_as_long || !has_items(entry) || entry.stage().is_none();
        let gone = all[0][fast..].iter().filter(goes);
        let gone = gone.filter(|entry| has_items(entry));
        let (segments, items) = gone.fold((0, 0), |(segments, items), entry| {
            (segments + 1, items + u64::from(entry.written_items()))
        });
        let each = all.iter().flat_map(|entries| &entries[fast..]);
        each.filter(goes).for_each(Segment::forget);
        drop(all);
        let now = About {
            deep,
            ..about.clone()
        };
        image.describe(&now.encode(), new.end)?;
        Ok(about.deep.map(|had| DeepLoss {
            why: why(had, deep),
            segments,
            items,
        }))
    }
}

fn why(had: DeepRange, has: Option<DeepRange>) -> &'static str {
    match has {
        None => "it has no deep device any more",
        Some(has) if has.id != had.id => "its deep device is another one",
        Some(_) => "its range of the deep device is another one",
    }
}
