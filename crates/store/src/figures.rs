//! How a store stands, for people and for tests.
//!
//! What it never does: count on the way of a request; what can be added up later is.
//!
//! *Thread safety*: reads counters while workers run, each a little older than the next.

use crate::chunks::CHUNK_BYTES;
use crate::request::{Figures, SegmentCounts};
use crate::segment::SegmentState;
use crate::store::Store;
use nyx_index::Places;

impl Store {
    /// How the store stands. Looks at every segment's entry: for statistics, not for each request.
    pub fn figures(&self) -> Figures {
        // The lock is given back before it is asked for again.
        let used_bytes = self.space.lock().used();
        let deep = self.deep_figures();
        let mut figures = Figures {
            items: self.index.len(),
            used_bytes,
            index_bytes: self.index.bytes(),
            evictions: self.done.evictions.get(),
            expirations: self.done.expirations.get(),
            relocations: self.done.relocations.get(),
            relocated_bytes: self.done.relocated_bytes.get(),
            deep,
            ..Figures::default()
        };
        let segments = &self.items.segments;
        for at in 0..segments.len() {
            let segment = segments.at(at);
            let SegmentCounts {
                free,
                open,
                sealed,
                draining,
                limbo,
            } = &mut figures.segments;
            let state = segment.state();
            *match state {
                SegmentState::Free => free,
                SegmentState::Open => open,
                SegmentState::Sealed => sealed,
                SegmentState::Draining => draining,
                SegmentState::Limbo => limbo,
            } += 1;
            if state != SegmentState::Free {
                if !self.items.is_deep(at) {
                    figures.value_bytes += u64::from(self.config.segment_bytes);
                }
                figures.key_bytes += u64::from(segment.chunks()) * u64::from(CHUNK_BYTES);
                figures.live_bytes += u64::from(segments.live_bytes(at));
                figures.dead_bytes += u64::from(segments.dead_bytes(at));
            }
        }
        figures
    }
}
