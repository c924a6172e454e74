//! The index of an image, made anew from the records: where it cannot be used, and where somebody
//! asks for that.
//!
//! A record is an item whose head is sound, in a chunk of a segment that is in use; one that is
//! marked as dead counts for nothing. Of two records of one key, neither of them the other's twin,
//! the one in the younger chunk stays and the other is marked. Damage leaves two, and a kill
//! between the writing of a copy, or of an item whose condition had yet to be judged, and its
//! publication: then the younger one may be the wrong one (docs/open.md).
//!
//! What it never does: read a value. What it finds is looked at as after any other start.
//!
//! *Thread safety*: one thread, before the store is used.

use super::found::Head;
use crate::chunks::{CHUNK_BYTES, Chunks};
use crate::items::Items;
use crate::segment::has_items;
use nyx_base::WorkerId;
use nyx_index::{Full, Hash, Place};
use nyx_media::MediaError;

/// Its limit grows in steps of this many bytes; what it uses in the end is what counts.
const LIMIT_STEP_BYTES: u64 = 1 << 20;

/// What became of one record.
enum Met {
    New,
    /// There were two of its key.
    Older,
    /// The other one of its key is its twin, or it is that one's.
    Twin,
}

/// What the records gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remade {
    /// Items in the new index.
    pub items: u64,
    /// Items that gave way to a younger one of the same key.
    pub older: u64,
}

impl Items {
    /// Calls `each` for every record of a table that nobody uses, dead ones too.
    pub(super) fn records(&self, mut each: impl FnMut(Place, Head)) {
        let Some(chunks) = &self.chunks else { return };
        for chunk in 0..chunks.used() {
            let owner = self.owner(chunk);
            if owner.is_some_and(|segment| has_items(self.segments.at(segment))) {
                self.records_of(chunks, chunk, &mut each);
            }
        }
    }

    /// The same for one chunk.
    pub(super) fn records_of(
        &self,
        chunks: &Chunks,
        chunk: u32,
        each: &mut impl FnMut(Place, Head),
    ) {
        // One that nobody closed ends where no item follows.
        let closed = Some(chunks.fill(chunk)).filter(|fill| (1..=CHUNK_BYTES).contains(fill));
        let mut at = 0;
        while at < closed.unwrap_or(CHUNK_BYTES) {
            let place = Chunks::place(chunk, at);
            match self.sound_head(place) {
                Some(head) => {
                    each(place, head);
                    at += self.footprint(&head.header).dram;
                }
                // Damage: the next item begins wherever one can be told.
                None if closed.is_some() => at += 8,
                None => return,
            }
        }
    }

    /// Puts all records that live into `index`, which is empty.
    pub(super) fn remake(&self, index: &Hash) -> Result<Remade, MediaError> {
        let Some(chunks) = &self.chunks else {
            return Ok(Remade::default());
        };
        let (mut remade, mut full) = (Remade::default(), false);
        self.records(|place, head| {
            if full || head.is_dead {
                return;
            }
            match self.insert(chunks, index, place, &head) {
                Ok(Met::New) => remade.items += 1,
                Ok(Met::Older) => remade.older += 1,
                Ok(Met::Twin) => {}
                Err(Full::Limit | Full::Memory) => full = true,
            }
            while !full && index.is_crowded() {
                full = self.grow(chunks, index).is_err();
            }
        });
        match full {
            false => Ok(remade),
            true => Err(MediaError::Reserve {
                len_bytes: index.limit(),
                source: std::io::ErrorKind::StorageFull.into(),
            }),
        }
    }

    /// Puts one record into the index.
    fn insert(
        &self,
        chunks: &Chunks,
        index: &Hash,
        place: Place,
        head: &Head,
    ) -> Result<Met, Full> {
        let key = chunks.key(place, &head.header);
        let is_it = |other: Place| {
            let header = chunks.header(other);
            header.key_len == head.header.key_len && chunks.key(other, &header) == key
        };
        loop {
            let mut guard = index.lock(WorkerId(0), head.hash.0);
            match guard.find(is_it) {
                Some(slot) if self.is_twin(slot.place, place) => return Ok(Met::Twin),
                Some(slot) if self.is_twin(place, slot.place) => {
                    guard.replace(slot, place);
                    return Ok(Met::Twin);
                }
                Some(slot) if self.unique(slot.place) < self.unique(place) => {
                    guard.replace(slot, place);
                    chunks.mark_dead(slot.place);
                    return Ok(Met::Older);
                }
                Some(_) => {
                    chunks.mark_dead(place);
                    return Ok(Met::Older);
                }
                None => match guard.insert(place) {
                    Ok(()) => return Ok(Met::New),
                    Err(Full::Limit) => index.set_limit(index.limit() + LIMIT_STEP_BYTES),
                    Err(full) => return Err(full),
                },
            }
        }
    }

    fn grow(&self, chunks: &Chunks, index: &Hash) -> Result<bool, Full> {
        let hash_of = |place| self.hash(chunks.key(place, &chunks.header(place))).0;
        match index.grow(|place| chunks.prefetch(place), hash_of) {
            Err(Full::Limit) => {
                index.set_limit(index.limit() + LIMIT_STEP_BYTES);
                Ok(false)
            }
            other => other,
        }
    }
}
