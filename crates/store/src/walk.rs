//! A walk over the items of a sealed or draining segment, but for those that are marked as dead.
//!
//! What it never does: look an item up, change one.
//!
//! *Thread safety*: the caller holds the reclaimer's lock, so that the segment is not used anew.

use crate::chunks::Chunks;
use crate::header::Header;
use crate::items::Items;
use crate::segment::NONE;
use nyx_index::Place;
use nyx_tier::Lane;

/// Where a walk stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    segment: u32,
    chunk: u32,
    offset: u32,
    /// The segment was found in an image.
    is_found: bool,
}

impl Walk {
    /// A walk over all of `segment`: its youngest chunk first, each chunk in the order of writing.
    pub(crate) fn new(items: &Items, segment: u32) -> Walk {
        Walk {
            segment,
            chunk: items.segments.at(segment).first_chunk(),
            offset: 0,
            is_found: items.segments.is_found(segment),
        }
    }

    /// The next item that is not known to be dead.
    pub(crate) fn next(&mut self, items: &Items, lane: &mut Lane<'_>) -> Option<(Place, Header)> {
        match &items.chunks {
            Some(chunks) => self.next_in_chunks(items, chunks),
            None => self.next_inline(items, lane),
        }
    }

    fn next_in_chunks(&mut self, items: &Items, chunks: &Chunks) -> Option<(Place, Header)> {
        loop {
            while self.chunk != NONE && self.offset >= chunks.fill(self.chunk) {
                (self.chunk, self.offset) = (chunks.next(self.chunk), 0);
            }
            if self.chunk == NONE {
                return None;
            }
            let place = Chunks::place(self.chunk, self.offset);
            if self.is_found && items.sound_head(place).is_none() {
                // Damage: the next item begins wherever one can be told.
                self.offset += 8;
                continue;
            }
            let header = chunks.header(place);
            self.offset += items.footprint(&header).dram;
            // The mark spares a look at the index: most of what garbage collection meets is dead.
            if !chunks.state(place).is_dead() {
                return Some((place, header));
            }
        }
    }

    fn next_inline(&mut self, items: &Items, lane: &mut Lane<'_>) -> Option<(Place, Header)> {
        if self.offset >= items.segments.at(self.segment).value_fill() {
            return None;
        }
        let place = items.place(self.segment, self.chunk, self.offset);
        let header = items.header(lane, place);
        self.offset += items.footprint(&header).medium;
        Some((place, header))
    }
}
