//! Ranges, both ways: layers are read in the order of their slots, some entries at a time.

use super::layer::{Descriptor, FIRST, Layer, is_layer};
use super::{ByteKeys, Items, KEY_BYTES_MAX};
use crate::ordered::{ScanError, Steps, Unsound};
use crate::{Ordered, Persistent};
use nyx_media::Pmem;
use std::cmp::Ordering;
use std::ops::{Bound, ControlFlow};

/// Entries of a layer that are read at a time.
const BATCH: usize = 32;
/// The smallest block that a descriptor can be.
const DESCRIPTOR_BYTES: u64 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

type Each<'e> = &'e mut dyn FnMut(&[u8], u64) -> ControlFlow<()>;

impl<P: Pmem, I: Persistent<P> + Ordered, T: Items> ByteKeys<P, I, T> {
    /// Calls `each` with keys and items between two bounds in ascending order until it breaks. To
    /// go on later, begin behind the last key met.
    pub fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        each: impl FnMut(&[u8], u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        self.range(Way::Up, from, to, each)
    }

    /// The same in descending order.
    pub fn scan_back(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        each: impl FnMut(&[u8], u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        self.range(Way::Down, to, from, each)
    }

    /// Calls `each` with the keys that begin with `prefix`, and their items, in ascending order
    /// until it breaks.
    pub fn scan_prefix(
        &self,
        prefix: &[u8],
        mut each: impl FnMut(&[u8], u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        self.scan(
            Bound::Included(prefix),
            Bound::Unbounded,
            |key, item| match key.starts_with(prefix) {
                true => each(key, item),
                false => ControlFlow::Break(()),
            },
        )
    }

    fn range(
        &self,
        way: Way,
        near: Bound<&[u8]>,
        far: Bound<&[u8]>,
        mut each: impl FnMut(&[u8], u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        let begin = match near {
            Bound::Included(key) | Bound::Excluded(key) => Some(key),
            Bound::Unbounded => None,
        };
        let mut steps = Steps::among(self.heap(), DESCRIPTOR_BYTES);
        let mut within = |key: &[u8], item: u64| {
            if is_before(way, key, near) {
                ControlFlow::Continue(())
            } else if is_behind(way, key, far) {
                ControlFlow::Break(())
            } else {
                each(key, item)
            }
        };
        self.walk(way, (FIRST, 0), begin, &mut steps, &mut within)
            .map(drop)
    }

    /// Meets all keys of a layer, from that which goes on with `near` on.
    fn walk(
        &self,
        way: Way,
        (layer, offset): (Layer, usize),
        near: Option<&[u8]>,
        steps: &mut Steps,
        each: Each<'_>,
    ) -> Result<ControlFlow<()>, ScanError> {
        if offset > KEY_BYTES_MAX {
            return Err(Unsound::Endless.into());
        }
        steps.to(())?;
        let near_slot = near.map(|near| layer.slot(near));
        let (mut from, mut to) = layer.slots().into_inner();
        match (way, near_slot) {
            (Way::Up, Some(slot)) => from = slot,
            (Way::Down, Some(slot)) => to = slot,
            (_, None) => {}
        }
        let mut entries = Vec::with_capacity(BATCH);
        loop {
            self.some(way, (from, to), &mut entries)?;
            for &(slot, value) in &entries {
                let done = if is_layer(value) {
                    let near = near.filter(|_| near_slot == Some(slot));
                    let near = near.map(|near| near.get(layer.width..).unwrap_or_default());
                    let below = self.below(layer, slot, value)?;
                    let behind = offset + layer.width;
                    self.enter(way, (&below, behind), near, steps, &mut *each)?
                } else {
                    self.items.with_key(value, |key| each(key, value))?
                };
                if done.is_break() {
                    return Ok(done);
                }
            }
            let Some(&(last, _)) = entries.last().filter(|_| entries.len() == BATCH) else {
                return Ok(ControlFlow::Continue(()));
            };
            match way {
                Way::Up => from = last + 1,
                Way::Down => match last.checked_sub(1) {
                    Some(next) => to = next,
                    None => return Ok(ControlFlow::Continue(())),
                },
            }
        }
    }

    /// Meets the keys of the layer that a slot leads to, if they are not all before `near`.
    fn enter(
        &self,
        way: Way,
        (below, offset): (&Descriptor, usize),
        near: Option<&[u8]>,
        steps: &mut Steps,
        each: Each<'_>,
    ) -> Result<ControlFlow<()>, ScanError> {
        let shared = below.shared.bytes();
        let near = match near.map(|near| (near.strip_prefix(shared), near.cmp(shared))) {
            None => None,
            Some((Some(rest), _)) => Some(rest),
            Some((None, Ordering::Less)) if way == Way::Up => None,
            Some((None, Ordering::Greater)) if way == Way::Down => None,
            Some(_) => return Ok(ControlFlow::Continue(())),
        };
        self.walk(way, (below.layer, offset + shared.len()), near, steps, each)
    }

    /// The next entries of the index, at most [`BATCH`].
    pub(super) fn some_up(
        &self,
        range: (u64, u64),
        into: &mut Vec<(u64, u64)>,
    ) -> Result<(), ScanError> {
        self.some(Way::Up, range, into)
    }

    fn some(
        &self,
        way: Way,
        (from, to): (u64, u64),
        into: &mut Vec<(u64, u64)>,
    ) -> Result<(), ScanError> {
        into.clear();
        if from > to {
            return Ok(());
        }
        let take = |slot, value| {
            into.push((slot, value));
            match into.len() < BATCH {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        match way {
            Way::Up => self.index.scan(from..=to, take),
            Way::Down => self.index.scan_back(from..=to, take),
        }
    }
}

/// Whether a walk has yet to come to the bound where it begins.
fn is_before(way: Way, key: &[u8], near: Bound<&[u8]>) -> bool {
    match (near, way) {
        (Bound::Unbounded, _) => false,
        (Bound::Included(near), Way::Up) => key < near,
        (Bound::Included(near), Way::Down) => key > near,
        (Bound::Excluded(near), Way::Up) => key <= near,
        (Bound::Excluded(near), Way::Down) => key >= near,
    }
}

/// Whether a walk is behind the bound where it ends.
fn is_behind(way: Way, key: &[u8], far: Bound<&[u8]>) -> bool {
    match (far, way) {
        (Bound::Unbounded, _) => false,
        (Bound::Included(far), Way::Up) => key > far,
        (Bound::Included(far), Way::Down) => key < far,
        (Bound::Excluded(far), Way::Up) => key >= far,
        (Bound::Excluded(far), Way::Down) => key <= far,
    }
}
