//! A map from byte strings to 8-byte values: items that lie in the index's heap.
//!
//! An item is an immutable block with its value and its key; a value of zero takes no room. A new
//! value is a new block, so that the one store that links it makes the change.

use super::block;
use super::mark::{KeyCensus, MarkError};
use super::{ByteKeys, Items};
use crate::heap::{Class, Heap, Sweep};
use crate::ordered::{PutError, ScanError, Unsound};
use crate::{Ordered, Persistent};
use nyx_base::WorkerId;
use nyx_media::Pmem;
use nyx_media::pmem::WORD_BYTES;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;

/// Items in a heap: their addresses.
#[derive(Debug)]
pub struct HeapItems<P> {
    heap: Arc<Heap<P>>,
}

/// What the first word of an item has beside the key's length where a value follows it.
const HAS_VALUE: u64 = 1 << 8;

impl<P: Pmem> HeapItems<P> {
    /// The value, the key, and the size of the block.
    fn read(&self, item: u64) -> Result<(u64, block::Text, Class), Unsound> {
        /// None where that is no key's.
        fn len(head: u64) -> Option<usize> {
            usize::try_from(head).ok().filter(|&len| len > 0)
        }
        let first = self.heap.block(item, WORD_BYTES);
        let first = first.ok_or(Unsound::NoNode { at: item })?[0].load(Acquire);
        if first & HAS_VALUE == 0 {
            let read = block::read(&self.heap, item, |&[head]| len(head));
            return read.map(|(_, key, class)| (0, key, class));
        }
        let read = block::read(&self.heap, item, |&[head, _]| len(head & !HAS_VALUE));
        read.map(|([_, value], key, class)| (value, key, class))
    }

    fn value(&self, item: u64) -> Result<u64, Unsound> {
        let (value, _, _) = self.read(item)?;
        Ok(value)
    }

    fn write(&self, worker: WorkerId, key: &[u8], value: u64) -> Result<u64, PutError> {
        let len = key.len() as u64;
        match value {
            0 => block::write(&self.heap, worker, &[len], key),
            _ => block::write(&self.heap, worker, &[len | HAS_VALUE, value], key),
        }
    }
}

impl<P: Pmem> Items for HeapItems<P> {
    fn with_key<T>(&self, item: u64, read: impl FnOnce(&[u8]) -> T) -> Result<T, Unsound> {
        let (_, key, _) = self.read(item)?;
        Ok(read(key.bytes()))
    }
}

/// Values by keys of 1 to [`KEY_BYTES_MAX`](super::KEY_BYTES_MAX) bytes, on persistent memory.
///
/// *Thread safety*: all methods take `&self`; a worker is within an era while it calls them.
///
/// ```
/// use nyx_base::WorkerId;
/// use nyx_index::{ByteMap, Eras, fast_fair::FastFair, heap::Heap};
/// use nyx_media::Mapped;
/// use std::ops::ControlFlow;
/// use std::sync::Arc;
///
/// let (worker, eras) = (WorkerId(0), Arc::new(Eras::new(1)));
/// let heap = Heap::format(Mapped::anonymous(1 << 20)?, 64 << 10, 1, eras.clone())?;
/// // Roots 0 and 1 of the heap are the map's.
/// let map: ByteMap<Mapped, FastFair<Mapped>> = ByteMap::open(Arc::new(heap), 0, worker)?;
/// eras.enter(worker);
/// map.put(worker, b"user:1", 10)?;
/// map.put(worker, b"user:2", 20)?;
/// map.put(worker, b"zebra", 30)?;
/// assert_eq!(map.get(b"user:2")?, Some(20));
/// let mut users = Vec::new();
/// map.scan_prefix(b"user:", |_, value| {
///     users.push(value);
///     ControlFlow::Continue(())
/// })?;
/// assert_eq!(users, [10, 20]);
/// eras.leave(worker);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ByteMap<P, I> {
    keys: ByteKeys<P, I, HeapItems<P>>,
}

impl<P: Pmem, I: Persistent<P> + Ordered> ByteMap<P, I> {
    /// The map at the roots `root` and `root + 1` of a heap, which is made where they are zero.
    pub fn open(heap: Arc<Heap<P>>, root: usize, worker: WorkerId) -> Result<Self, PutError> {
        let items = HeapItems { heap: heap.clone() };
        let keys = ByteKeys::open(heap, root, worker, items)?;
        Ok(ByteMap { keys })
    }

    /// The keys and their items.
    pub fn keys(&self) -> &ByteKeys<P, I, HeapItems<P>> {
        &self.keys
    }

    fn items(&self) -> &HeapItems<P> {
        self.keys.items()
    }

    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<u64>, Unsound> {
        let item = self.keys.get(key)?;
        item.map(|item| self.items().value(item)).transpose()
    }

    /// Makes `value` that of `key`; the one that it had before. Durable on return.
    pub fn put(&self, worker: WorkerId, key: &[u8], value: u64) -> Result<Option<u64>, PutError> {
        super::check(key)?;
        let heap = &self.items().heap;
        let item = self.items().write(worker, key, value)?;
        match self.keys.put(worker, key, item) {
            Ok(old) => self.retire(worker, old),
            // Of a damaged index nobody knows what it leads to.
            Err(error @ PutError::Unsound(_)) => Err(error),
            Err(error) => {
                heap.give_back(worker, item);
                Err(error)
            }
        }
    }

    /// Takes `key` away; the value that it had. Durable on return.
    pub fn remove(&self, worker: WorkerId, key: &[u8]) -> Result<Option<u64>, PutError> {
        let old = self.keys.remove(worker, key)?;
        self.retire(worker, old)
    }

    /// Frees an item that was unlinked; its value.
    fn retire(&self, worker: WorkerId, item: Option<u64>) -> Result<Option<u64>, PutError> {
        let Some(item) = item else {
            return Ok(None);
        };
        let value = self.items().value(item)?;
        self.items().heap.retire(worker, item);
        Ok(Some(value))
    }

    /// Calls `each` with keys and values between two bounds in ascending order until it breaks.
    pub fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        each: impl FnMut(&[u8], u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        self.with_values(each, |each| self.keys.scan(from, to, each))
    }

    /// The same in descending order.
    pub fn scan_back(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        each: impl FnMut(&[u8], u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        self.with_values(each, |each| self.keys.scan_back(from, to, each))
    }

    /// Calls `each` with the keys that begin with `prefix`, and their values, in ascending order
    /// until it breaks.
    pub fn scan_prefix(
        &self,
        prefix: &[u8],
        each: impl FnMut(&[u8], u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        self.with_values(each, |each| self.keys.scan_prefix(prefix, each))
    }

    fn with_values(
        &self,
        mut each: impl FnMut(&[u8], u64) -> ControlFlow<()>,
        scan: impl FnOnce(&mut dyn FnMut(&[u8], u64) -> ControlFlow<()>) -> Result<(), ScanError>,
    ) -> Result<(), ScanError> {
        let mut unsound = Ok(());
        scan(&mut |key, item| match self.items().value(item) {
            Ok(value) => each(key, value),
            Err(error) => {
                unsound = Err(error.into());
                ControlFlow::Break(())
            }
        })?;
        unsound
    }

    /// Takes away what a crash left of layers, then names every block to a sweep, and tells how
    /// many. May run while the map is used.
    pub fn mark(&self, worker: WorkerId, sweep: &mut Sweep<'_, P>) -> Result<u64, MarkError> {
        self.keys.mark(worker, sweep, |item, sweep| {
            let (_, _, class) = self.items().read(item)?;
            sweep.mark(item, class)?;
            Ok(1)
        })
    }

    /// Looks at everything. Nobody writes meanwhile. See [`ByteKeys::check`].
    pub fn check(&self) -> Result<KeyCensus, ScanError> {
        self.keys.check()
    }
}
