//! Keys of 1 to 250 bytes, any bytes, over an ordered index of 8-byte keys; in the order of memcmp,
//! a prefix before what it is a prefix of.
//!
//! One index has all layers of a trie. Its keys are *slots*: the layer's number (29 bits), up to
//! four bytes of the key (zero padded), and how many they are (3 bits). A slot with as many bytes
//! as its layer tells is that of all keys that begin so, whether they go on or end there.
//! So the order of numbers is that of the byte strings within a layer. A slot's value is an *item*
//! (a number below 2^62, whose key its keeper knows) or leads to a *descriptor*: an immutable block
//! with a layer's number, how many bytes the layer's slots tell, and what all its keys share before
//! these (path compression: long common prefixes cost one step).
//!
//! A second key in a slot that goes on makes a layer for both, which one store of the slot's value
//! publishes. A key that differs within what a layer shares puts a layer between. The bytes that
//! this one leaves over may be fewer than four; that is why each layer has a width of its own, and
//! so the layer below keeps its number and its entries, and only gets a descriptor that shares
//! less. A layer's number is durably taken before it is used, and used again only when nobody can
//! be on the way to the layer any more (eras): a reader that comes late finds an empty layer, never
//! another one's keys.
//!
//! **Writers** change a slot under a lock that slots share, and hold their layer shared. Whoever
//! takes an empty layer away holds it alone, and the layer above shared, in the order of locks.
//! With the locks held the slot that led here and the slot itself are read again; if either
//! changed, the writer begins anew. A layer that is linked stays the right one for its keys when
//! another is put above it. Readers take no lock where the index takes none.
//!
//! **After a crash** each change is there or not by the one store that publishes it. A layer that
//! was made and not linked, and one that was emptied and not taken away, are found and removed when
//! a sweep marks ([`ByteKeys::mark`]), from numbers that a process before this one took.
//!
//! What it never does: shrink a layer of one key to an item, use a number again that a process
//! before this one took (there are 2^29 in the life of a heap; then [`PutError::Layers`]).
//!
//! *Thread safety*: all methods take `&self`; a worker is within an era while it calls them.
//!
//! *Invariants*: an entry of a linked layer is an item whose key leads there, or a descriptor in a
//! slot that goes on. Each layer is linked once at most.
//!
//! Sources: Mao et al., "Cache Craftiness for Fast Multicore Key-Value Storage" (EuroSys'12) for
//! layers of slices; Leis et al., "The Adaptive Radix Tree" (ICDE'13) for path compression.

mod block;
mod layer;
mod map;
mod mark;
mod scan;

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::heap::Heap;
use crate::map::hash_of;
use crate::ordered::{PutError, ScanError, Unsound};
use crate::sync::{Locked, Locks, Mutex, lock};
use crate::{Ordered, Persistent};
use block::Text;
use layer::{Descriptor, FIRST, LAYERS, Layer, SLICE_BYTES, is_layer};
pub use map::{ByteMap, HeapItems};
pub use mark::{KeyCensus, MarkError};
use nyx_base::{CachePadded, WorkerId};
use nyx_media::Pmem;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::atomic::{Ordering::SeqCst, fence};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 250;
/// Items are below.
pub const ITEM_END: u64 = 1 << 62;
/// Locks that slots share, and that layers share.
const LOCKS: usize = 256;
/// So many numbers of layers are taken at a time.
const NUMBERS: u64 = 16;

/// Who knows the keys of items.
pub trait Items: Send + Sync {
    /// Lets `read` see the key of `item`, which is or was put; the caller is within an era.
    fn with_key<T>(&self, item: u64, read: impl FnOnce(&[u8]) -> T) -> Result<T, Unsound>;
}

/// See the module.
#[derive(Debug)]
pub struct ByteKeys<P, I, T> {
    index: I,
    items: T,
    /// The root that says from which number on none was taken.
    root: usize,
    /// The first number that this process may have taken.
    began: u64,
    numbers: Mutex<Numbers>,
    slots: Locks,
    layers: Box<[CachePadded<RwLock<()>>]>,
    medium: PhantomData<fn() -> P>,
}

/// Numbers for layers.
#[derive(Debug)]
struct Numbers {
    /// The next, and the first that is not durably taken.
    next: u64,
    end: u64,
    /// Those of layers that were taken away, with their eras, oldest first.
    free: VecDeque<(u64, u64)>,
}

/// Where a key belongs.
#[derive(Debug)]
struct Place {
    layer: Layer,
    slot: u64,
    /// Bytes of the key before those that the slot tells.
    offset: usize,
    found: Option<u64>,
    /// The slot that leads to the layer, its layer, and its value.
    above: Option<Above>,
}

#[derive(Clone, Copy, Debug)]
struct Above {
    layer: Layer,
    slot: u64,
    value: u64,
}

/// A slot that no other writer changes, in a layer that nobody takes away.
struct Held<'t> {
    _layer: RwLockReadGuard<'t, ()>,
    _slot: Locked<'t>,
}

impl<P: Pmem, I: Persistent<P> + Ordered, T: Items> ByteKeys<P, I, T> {
    /// The keys whose index is at the root `root` of a heap and whose count of layers is at the
    /// next, which are made where the roots are zero.
    pub fn open(
        heap: Arc<Heap<P>>,
        root: usize,
        worker: WorkerId,
        items: T,
    ) -> Result<Self, PutError> {
        // The first layer has number 0.
        let began = heap.read_root(root + 1).max(1);
        Ok(ByteKeys {
            index: I::open(heap, root, worker)?,
            items,
            root: root + 1,
            began,
            numbers: Mutex::new(Numbers {
                next: began,
                end: began,
                free: VecDeque::new(),
            }),
            slots: Locks::new(LOCKS),
            layers: (0..LOCKS).map(|_| CachePadded::default()).collect(),
            medium: PhantomData,
        })
    }

    /// The index of slots.
    pub fn index(&self) -> &I {
        &self.index
    }

    /// Who knows the keys.
    pub fn items(&self) -> &T {
        &self.items
    }

    fn heap(&self) -> &Heap<P> {
        self.index.heap()
    }

    /// The item of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<u64>, Unsound> {
        match self.descend(key)?.found {
            Some(item) if !is_layer(item) => self.is_of(item, key),
            _ => Ok(None),
        }
    }

    /// The same item if it has this key.
    fn is_of(&self, item: u64, key: &[u8]) -> Result<Option<u64>, Unsound> {
        let is_it = self.items.with_key(item, |of| of == key)?;
        Ok(is_it.then_some(item))
    }

    /// Makes `item`, below [`ITEM_END`], that of `key`; the one that it had before. Durable on
    /// return; nothing has changed on an error but one of damage.
    pub fn put(&self, worker: WorkerId, key: &[u8], item: u64) -> Result<Option<u64>, PutError> {
        check(key)?;
        debug_assert!(item < ITEM_END, "an item is below 2^62");
        loop {
            let place = self.descend(key)?;
            let Some(_held) = self.hold(&place)? else {
                continue;
            };
            let Some(value) = place.found else {
                self.index.put(worker, place.slot, item)?;
                return Ok(None);
            };
            if is_layer(value) {
                self.part(worker, &place, key, item)?;
                return Ok(None);
            }
            let other = self.items.with_key(value, Text::of)?;
            if other.bytes() == key {
                return self.index.put(worker, place.slot, item);
            }
            self.deepen(worker, &place, (other.bytes(), value), (key, item))?;
            return Ok(None);
        }
    }

    /// Makes `new` the item of `key` if `old` is. Tells whether it was. The keeper still knows the
    /// key of `old`.
    pub fn replace(
        &self,
        worker: WorkerId,
        key: &[u8],
        old: u64,
        new: u64,
    ) -> Result<bool, PutError> {
        debug_assert!(new < ITEM_END, "an item is below 2^62");
        loop {
            let place = self.descend(key)?;
            if place.found != Some(old) {
                return Ok(false);
            }
            if let Some(_held) = self.hold(&place)? {
                let is_it = self.is_of(old, key)?.is_some();
                if is_it {
                    self.index.put(worker, place.slot, new)?;
                }
                return Ok(is_it);
            }
        }
    }

    /// Takes `key` away; the item that it had. Durable on return.
    pub fn remove(&self, worker: WorkerId, key: &[u8]) -> Result<Option<u64>, PutError> {
        loop {
            let place = self.descend(key)?;
            let Some(item) = place.found.filter(|&value| !is_layer(value)) else {
                return Ok(None);
            };
            let Some(held) = self.hold(&place)? else {
                continue;
            };
            if self.is_of(item, key)?.is_none() {
                return Ok(None);
            }
            self.index.remove(worker, place.slot)?;
            drop(held);
            // Whoever takes the last entry away finds the layer empty.
            if place.above.is_some() && self.is_empty(place.layer)? {
                self.collapse(worker, key)?;
            }
            return Ok(Some(item));
        }
    }

    /// The slot of `key` and what is in it: nothing, an item, or a layer that shares other bytes.
    fn descend(&self, key: &[u8]) -> Result<Place, Unsound> {
        let (mut layer, mut offset, mut above) = (FIRST, 0, None);
        loop {
            let slot = layer.slot(&key[offset..]);
            let found = self.index.get(slot)?;
            let place = Place {
                layer,
                slot,
                offset,
                found,
                above,
            };
            let Some(value) = found.filter(|&value| is_layer(value)) else {
                return Ok(place);
            };
            let below = self.below(layer, slot, value)?;
            let shared = below.shared.bytes();
            let behind = offset + layer.width;
            if !key[behind..].starts_with(shared) {
                return Ok(place);
            }
            above = Some(Above { layer, slot, value });
            offset = behind + shared.len();
            layer = below.layer;
        }
    }

    /// What the value of a slot leads to. Each step goes on in the key, so none is endless.
    fn below(&self, layer: Layer, slot: u64, value: u64) -> Result<Descriptor, Unsound> {
        match layer.goes_on(slot) {
            true => Descriptor::read(self.heap(), value),
            false => Err(Unsound::Slot { slot }),
        }
    }

    fn layer_lock(&self, layer: Layer) -> usize {
        (hash_of(layer.number) % self.layers.len() as u64) as usize
    }

    fn share(&self, lock: usize) -> RwLockReadGuard<'_, ()> {
        self.layers[lock].read().expect("no holder panics")
    }

    fn own(&self, lock: usize) -> RwLockWriteGuard<'_, ()> {
        self.layers[lock].write().expect("no holder panics")
    }

    /// Keeps others from the place, if it still is as it was found.
    fn hold(&self, place: &Place) -> Result<Option<Held<'_>>, Unsound> {
        let held = Held {
            _layer: self.share(self.layer_lock(place.layer)),
            _slot: self.slots.lock(hash_of(place.slot)),
        };
        if let Some(above) = place.above
            && !self.leads_to(above, place.layer)?
        {
            return Ok(None);
        }
        let is_same = self.index.get(place.slot)? == place.found;
        Ok(is_same.then_some(held))
    }

    /// Whether the slot above has the value that led to this layer.
    fn leads_to(&self, above: Above, layer: Layer) -> Result<bool, Unsound> {
        if self.index.get(above.slot)? != Some(above.value) {
            return Ok(false);
        }
        // A block that was used again is of another layer.
        let below = self.below(above.layer, above.slot, above.value)?;
        Ok(below.layer.number == layer.number)
    }

    /// A layer that nobody knows of.
    fn new_layer(&self, width: usize) -> Result<Layer, PutError> {
        let mut numbers = lock(&self.numbers);
        if let Some(&(era, number)) = numbers.free.front()
            && self.heap().eras().is_over(era)
        {
            numbers.free.pop_front();
            let used = numbers.free.len();
            if used < numbers.free.capacity() / 4 {
                numbers.free.shrink_to(2 * used);
            }
            return Ok(Layer { number, width });
        }
        if numbers.next == numbers.end {
            if numbers.end >= LAYERS {
                return Err(PutError::Layers);
            }
            numbers.end = (numbers.end + NUMBERS).min(LAYERS);
            self.heap().set_root(self.root, numbers.end);
        }
        numbers.next += 1;
        Ok(Layer {
            number: numbers.next - 1,
            width,
        })
    }

    /// A layer was taken away, durably. A number that a process before this one took tells
    /// leftovers of a crash, and is not used again.
    fn retire_number(&self, layer: Layer) {
        if layer.number >= self.began {
            let era = self.heap().eras().retire();
            lock(&self.numbers).free.push_back((era, layer.number));
        }
    }

    /// Nobody came to know of a new layer, and nothing is in it.
    fn forget_number(&self, layer: Layer) {
        // Era 0 is always over.
        lock(&self.numbers).free.push_front((0, layer.number));
    }

    /// A durable descriptor of a new layer.
    fn describe(&self, worker: WorkerId, layer: Layer, shared: &[u8]) -> Result<u64, PutError> {
        Descriptor::write(self.heap(), worker, layer, shared)
            .inspect_err(|_| self.forget_number(layer))
    }

    /// Bytes of DRAM that it uses beside the heap.
    pub fn dram_bytes(&self) -> u64 {
        let free = lock(&self.numbers).free.capacity() * size_of::<(u64, u64)>();
        self.index.dram_bytes() + free as u64
    }

    /// Makes a layer for two keys of one slot, whose bytes behind it differ.
    fn deepen(
        &self,
        worker: WorkerId,
        place: &Place,
        (old_key, old): (&[u8], u64),
        (key, item): (&[u8], u64),
    ) -> Result<(), PutError> {
        let behind = place.offset + place.layer.width;
        let is_of_slot = place.layer.goes_on(place.slot)
            && old_key.len() >= behind
            && old_key[..behind] == key[..behind];
        if !is_of_slot {
            return Err(Unsound::Slot { slot: place.slot }.into());
        }
        let (one, other) = (&old_key[behind..], &key[behind..]);
        let shared = common(one, other);
        let layer = self.new_layer(SLICE_BYTES)?;
        let entries = [
            (layer.slot(&one[shared..]), old),
            (layer.slot(&other[shared..]), item),
        ];
        let value = self.describe(worker, layer, &one[..shared])?;
        self.publish(worker, place.slot, (layer, value), entries)
            .inspect_err(|_| Descriptor::forget(self.heap(), worker, value))
    }

    /// Puts a layer above one that shares bytes that `key` does not have.
    fn part(&self, worker: WorkerId, place: &Place, key: &[u8], item: u64) -> Result<(), PutError> {
        let value = place.found.expect("a layer is there");
        let below = self.below(place.layer, place.slot, value)?;
        let shared = below.shared.bytes();
        let rest = &key[place.offset + place.layer.width..];
        // The slots of the layer between tell where they differ, and as many bytes as can be.
        let last = shared.len().saturating_sub(SLICE_BYTES);
        let begin = common(rest, shared).min(last);
        let layer = self.new_layer(SLICE_BYTES.min(shared.len() - begin))?;
        let end = begin + layer.width;
        let lower = Descriptor::write(self.heap(), worker, below.layer, &shared[end..])
            .inspect_err(|_| self.forget_number(layer))?;
        let entries = [
            (layer.slot(&shared[begin..]), lower),
            (layer.slot(&rest[begin..]), item),
        ];
        let forget = |value| Descriptor::forget(self.heap(), worker, value);
        let upper = self
            .describe(worker, layer, &shared[..begin])
            .inspect_err(|_| forget(lower))?;
        self.publish(worker, place.slot, (layer, upper), entries)
            .inspect_err(|_| [upper, lower].into_iter().for_each(forget))?;
        self.heap().retire(worker, below.at);
        Ok(())
    }

    /// Fills a layer with its first entries and links it, or leaves nothing.
    fn publish(
        &self,
        worker: WorkerId,
        slot: u64,
        (layer, value): (Layer, u64),
        entries: [(u64, u64); 2],
    ) -> Result<(), PutError> {
        let fill = || {
            for (slot, value) in entries {
                self.index.put(worker, slot, value)?;
            }
            self.index.put(worker, slot, value)
        };
        fill().map(drop).inspect_err(|_| {
            let removed = entries.map(|(slot, _)| self.index.remove(worker, slot));
            // What stays where this fails too is of a layer that nothing ever leads to.
            if removed.iter().all(Result::is_ok) {
                self.forget_number(layer);
            }
        })
    }

    /// Takes the layer of `key` away if it is empty, and those above that get empty by that.
    fn collapse(&self, worker: WorkerId, key: &[u8]) -> Result<(), PutError> {
        loop {
            let Place { layer, above, .. } = self.descend(key)?;
            let Some(above) = above else {
                return Ok(());
            };
            if !self.is_empty(layer)? {
                return Ok(());
            }
            let (own, shared) = (self.layer_lock(layer), self.layer_lock(above.layer));
            let early = (shared < own).then(|| self.share(shared));
            let _own = self.own(own);
            let _shared = early.or_else(|| (own < shared).then(|| self.share(shared)));
            let _slot = self.slots.lock(hash_of(above.slot));
            if !self.leads_to(above, layer)? {
                continue;
            }
            if !self.is_empty(layer)? {
                return Ok(());
            }
            let below = self.below(above.layer, above.slot, above.value)?;
            self.index.remove(worker, above.slot)?;
            self.heap().retire(worker, below.at);
            self.retire_number(layer);
        }
    }

    /// Whether a layer has no entry. One of which that cannot be told yet stays.
    fn is_empty(&self, layer: Layer) -> Result<bool, Unsound> {
        // Of two who each took an entry away and then look, one sees what the other did.
        fence(SeqCst);
        let mut is_empty = true;
        let scanned = self.index.scan(layer.slots(), |_, _| {
            is_empty = false;
            ControlFlow::Break(())
        });
        match scanned {
            Ok(()) => Ok(is_empty),
            Err(ScanError::NotReady) => Ok(false),
            Err(ScanError::Unsound(error)) => Err(error),
        }
    }
}

/// Refuses a key that is too long or has no bytes.
fn check(key: &[u8]) -> Result<(), PutError> {
    match (1..=KEY_BYTES_MAX).contains(&key.len()) {
        true => Ok(()),
        false => Err(PutError::Length { bytes: key.len() }),
    }
}

/// How many bytes two strings begin with in common.
fn common(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}
