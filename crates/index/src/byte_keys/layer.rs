//! Slots and descriptors of layers: how they are written.

use super::block::{self, Text};
use crate::heap::{Class, Heap};
use crate::ordered::{PutError, Unsound};
use nyx_base::WorkerId;
use nyx_media::Pmem;
use std::ops::RangeInclusive;

/// The most bytes of a key that a slot tells.
pub(super) const SLICE_BYTES: usize = 4;
/// There are so many numbers of layers.
pub(super) const LAYERS: u64 = 1 << 29;
const COUNT_BITS: u32 = 3;
const NUMBER_SHIFT: u32 = 8 * SLICE_BYTES as u32 + COUNT_BITS;
/// What a value has that is the address of a descriptor.
const LAYER: u64 = 1 << 63;
const WIDTH_SHIFT: u32 = 32;
const LEN_SHIFT: u32 = 40;

/// A layer, as it is found in its descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layer {
    pub(super) number: u64,
    /// How many bytes its slots tell, 1 to [`SLICE_BYTES`].
    pub(super) width: usize,
}

/// The layer in which every key begins.
pub(super) const FIRST: Layer = Layer {
    number: 0,
    width: SLICE_BYTES,
};

impl Layer {
    /// The slot of a key that goes on with `rest` in this layer.
    pub(super) fn slot(self, rest: &[u8]) -> u64 {
        let count = rest.len().min(self.width);
        let slice = &rest[..count];
        let mut bytes = [0; SLICE_BYTES];
        bytes[..slice.len()].copy_from_slice(slice);
        let slice = u64::from(u32::from_be_bytes(bytes));
        self.number << NUMBER_SHIFT | slice << COUNT_BITS | count as u64
    }

    /// Whether keys of a slot may go on behind it: it tells as many bytes as it can.
    pub(super) fn goes_on(self, slot: u64) -> bool {
        slot & ((1 << COUNT_BITS) - 1) == self.width as u64
    }

    /// The bytes that the slot of a layer below tells.
    pub(super) fn slice(self, slot: u64) -> Text {
        let bytes = ((slot >> COUNT_BITS) as u32).to_be_bytes();
        Text::of(&bytes[..self.width])
    }

    /// All of its slots.
    pub(super) fn slots(self) -> RangeInclusive<u64> {
        let first = self.number << NUMBER_SHIFT;
        first..=first | ((1 << NUMBER_SHIFT) - 1)
    }
}

/// The number of the layer that a slot is of.
pub(super) fn number_of(slot: u64) -> u64 {
    slot >> NUMBER_SHIFT
}

/// Whether a slot's value leads to a layer.
pub(super) fn is_layer(value: u64) -> bool {
    value & LAYER != 0
}

/// See the module above: what is known of a layer where it is linked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor {
    pub(super) layer: Layer,
    /// What all keys of the layer have between the slot that leads there and their slots in it.
    pub(super) shared: Text,
    pub(super) at: u64,
    pub(super) class: Class,
}

impl Descriptor {
    pub(super) fn read<P: Pmem>(heap: &Heap<P>, value: u64) -> Result<Descriptor, Unsound> {
        let at = value & !LAYER;
        let len = |head: &[u64; 1]| Some((head[0] >> LEN_SHIFT) as usize);
        let ([head], shared, class) = block::read(heap, at, len)?;
        let layer = Layer {
            number: head & u64::from(u32::MAX),
            width: (head >> WIDTH_SHIFT & 0xff) as usize,
        };
        let can_be =
            (1..LAYERS).contains(&layer.number) && (1..=SLICE_BYTES).contains(&layer.width);
        match can_be {
            true => Ok(Descriptor {
                layer,
                shared,
                at,
                class,
            }),
            false => Err(Unsound::NoNode { at }),
        }
    }

    /// A durable one that nobody knows of: the value that leads there.
    pub(super) fn write<P: Pmem>(
        heap: &Heap<P>,
        worker: WorkerId,
        layer: Layer,
        shared: &[u8],
    ) -> Result<u64, PutError> {
        let width = (layer.width as u64) << WIDTH_SHIFT;
        let head = layer.number | width | (shared.len() as u64) << LEN_SHIFT;
        Ok(block::write(heap, worker, &[head], shared)? | LAYER)
    }

    /// Gives back one that nobody came to know.
    pub(super) fn forget<P: Pmem>(heap: &Heap<P>, worker: WorkerId, value: u64) {
        heap.give_back(worker, value & !LAYER);
    }
}
