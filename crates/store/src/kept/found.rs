//! What a store does with what it found in its image: puts right what a killed process had begun,
//! looks at everything once, and until then compares what it gives out with its check.
//!
//! What it never does: believe a place or a head that was not checked.
//!
//! *Thread safety*: as `store`.

use super::{Beginning, DeepLoss, INTENTS, Kept, NOTES};
use crate::check::{self, Pieces};
use crate::chunks::{CHUNK_BYTES, Chunks};
use crate::config::StoreError;
use crate::header::Header;
use crate::items::{Items, Source};
use crate::request::KeyHash;
use crate::store::{Found, Store};
use nyx_base::{Instant, WorkerId};
use nyx_index::{Place, Places, Revived};
use nyx_media::MediaError;
use nyx_tier::Lane;
use std::sync::atomic::{
    Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Chains that one call of [`Store::sweep`] looks at.
const SWEEP_CHAINS: usize = 8;
/// Values are read in pieces of this many bytes.
const PIECE_BYTES: usize = 4096;

/// A head that is sound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) header: Header,
    /// Of its key.
    pub(crate) hash: KeyHash,
    /// It was taken out of the index.
    pub(crate) is_dead: bool,
}

/// What a store does with a table that was found.
impl Store {
    /// How a store that survives began; none where it does not survive.
    pub fn beginning(&self) -> Option<&Beginning> {
        self.kept.as_ref().map(|kept| kept.beginning())
    }

    /// What it does not go on with of its deep device; none where that is nothing.
    pub fn deep_loss(&self) -> Option<&DeepLoss> {
        self.kept.as_ref()?.deep_loss()
    }

    /// How far the sweep of what was found is; none where nothing was found.
    pub fn revived(&self) -> Option<Revived> {
        self.index.revived()
    }

    /// Writes everything to the disk and marks the image as closed in order. No worker writes
    /// afterwards.
    pub fn close(&self) -> Result<(), StoreError> {
        if self.is_to_replay() {
            // What is in the image is not what it should have: it stays lost.
            return Ok(());
        }
        self.sync(Instant(0))?;
        let closed = self.kept.as_ref().map_or(Ok(()), |kept| kept.close());
        Ok(closed?)
    }

    /// Whether there is something that was found and not looked at.
    #[inline]
    pub fn is_sweeping(&self) -> bool {
        self.index.is_reviving()
    }

    /// Looks at some of what was found, so that nothing has to be checked any more when all is;
    /// true where there is more. Bounded work: call it from the tick.
    pub fn sweep(&self, lane: &mut Lane<'_>) -> bool {
        if !self.index.is_reviving() {
            return false;
        }
        let Some(kept) = &self.kept else {
            return false;
        };
        let is_whole = |place: Place| {
            let Some(Head { header, hash, .. }) = self.head_at(place) else {
                return false;
            };
            let whole = self.is_value_whole(lane, place, &header, hash);
            match (whole, &self.items.chunks) {
                (true, _) => self.count_found(kept, place, &header),
                (false, Some(chunks)) => {
                    chunks.mark_dead(place);
                    kept.damaged.fetch_add(1, Relaxed);
                }
                _ => {}
            }
            whole
        };
        let more = self.sweep_chains(is_whole);
        if !self.index.is_reviving() && !kept.recounted.swap(true, AcqRel) {
            self.recount(kept);
        }
        more
    }

    /// Counts an item that the sweep saw in the index, and its twin, each in the segment that was
    /// found with it.
    fn count_found(&self, kept: &Kept, place: Place, header: &Header) {
        let twin = self.items.twin(place, header);
        let chunks = self.items.chunks.iter();
        let twin = chunks.filter_map(|chunks| Some((twin?, chunks.header(twin?))));
        for (place, header) in twin.chain([(place, *header)]) {
            let segment = self.items.segment_of(place);
            if self.items.segments.is_found(segment) {
                kept.count_live(segment, self.items.footprint(&header).total());
            }
        }
    }

    /// Looks at some chains, and drops the items of which `is_whole` says that they are not.
    pub(super) fn sweep_chains(&self, mut is_whole: impl FnMut(Place) -> bool) -> bool {
        let mut item = |place| self.item_at(place);
        (0..SWEEP_CHAINS).all(|_| self.index.sweep(&mut item, &mut is_whole))
    }

    /// Tells what had died in segments that were found.
    fn recount(&self, kept: &Kept) {
        // Under the lock no segment comes to another use.
        let _space = self.space.lock();
        let segments = &self.items.segments;
        for segment in (0..segments.len()).filter(|&segment| segments.is_found(segment)) {
            let live = kept.live[segment as usize].load(Acquire);
            segments.set_dead_before(segment, live, self.config.segment_bytes);
        }
    }

    /// Before a chain is used: whether its items are known to be whole.
    #[inline]
    pub(crate) fn approach(&self, hash: u64) -> bool {
        !self.index.is_reviving() || self.revive(hash)
    }

    #[cold]
    fn revive(&self, hash: u64) -> bool {
        self.index.revive(hash, &mut |place| self.item_at(place))
    }

    /// Whether an item of a chain that may not be whole is what was stored.
    #[cold]
    pub(crate) fn is_whole(&self, lane: &mut Lane<'_>, hash: KeyHash, found: Found) -> bool {
        self.is_value_whole(lane, found.place, &found.header, hash)
    }

    /// The hash of the item at a place, if there is one; of its twin it is seen whether that is one
    /// still.
    fn item_at(&self, place: Place) -> Option<u64> {
        let head = self.found_at(place)?;
        if let (true, Some(chunks)) = (head.header.has_twin, &self.items.chunks) {
            let twin = self.found_twin(chunks, place, &head);
            chunks.set_twin(place, &head.header, twin);
            if let Some(twin) = twin {
                let bytes = self.items.footprint(&chunks.header(twin)).total();
                self.items.segments.add_twin(chunks.segment_of(twin), bytes);
            }
        }
        Some(head.hash.0)
    }

    /// The head of an item that was there when the image was opened.
    fn found_at(&self, place: Place) -> Option<Head> {
        let head = self.head_at(place)?;
        let chunks = self.items.chunks.as_ref()?;
        let (chunk, offset) = chunks.chunk_of(place)?;
        // An entry that nobody looked at leads to nothing younger: chains are looked at before
        // anything is put into them. (It may be left of an item that was forgotten with its
        // segment, whose chunk is in another use by now.)
        let is_found = self.items.segments.is_found(chunks.segment_of(place));
        // What a walk over the segment would not come to is none: it would be left behind when the
        // segment is emptied.
        let is_met = offset < chunks.fill(chunk) && !head.is_dead;
        (is_found && is_met).then_some(head)
    }

    /// The twin that an item was found with: a record of the same value in a deep segment. It is in
    /// the item's chain that its key belongs, and that is looked at before the segment is emptied:
    /// so whoever empties it knows whose twin it is.
    fn found_twin(&self, chunks: &Chunks, place: Place, head: &Head) -> Option<Place> {
        let twin = chunks.twin(place, &head.header)?;
        let record = self.found_at(twin)?;
        let check = |place, head: &Head| self.items.checks(place, &head.header);
        let is_same = record.header.value_len == head.header.value_len
            && record.header.flags == head.header.flags
            && chunks.key(twin, &record.header) == chunks.key(place, &head.header)
            && check(twin, &record)?.value == check(place, head)?.value;
        (is_same && self.items.is_deep(chunks.segment_of(twin))).then_some(twin)
    }

    /// The head at a place, if there is one that is sound, in a chunk that is in use.
    pub(crate) fn head_at(&self, place: Place) -> Option<Head> {
        let (chunk, _) = self.items.chunks.as_ref()?.chunk_of(place)?;
        self.items.owner(chunk)?;
        self.items.sound_head(place)
    }

    /// Compares a value with its check.
    fn is_value_whole(
        &self,
        lane: &mut Lane<'_>,
        place: Place,
        header: &Header,
        hash: KeyHash,
    ) -> bool {
        let Some(checks) = self.items.checks(place, header) else {
            return false;
        };
        let spot = self.items.spot(place, header);
        match self.items.source(spot, header.value_len) {
            Some(source) => checks.value == self.check_of(lane, hash, &[source]),
            // Whoever reads it looks.
            None => true,
        }
    }

    /// The check of a value of several pieces, read from where they are.
    pub(crate) fn check_of(&self, lane: &mut Lane<'_>, hash: KeyHash, value: &[Source<'_>]) -> u32 {
        let mut pieces = Pieces::new(hash);
        let mut piece = [0; PIECE_BYTES];
        for source in value {
            for from in (0..source.len()).step_by(PIECE_BYTES) {
                let piece = &mut piece[..PIECE_BYTES.min(source.len() - from)];
                source.read(lane, from, piece);
                pieces.add(piece);
            }
        }
        pieces.check()
    }

    /// What has to be done before the first request. One thread.
    pub(crate) fn put_right(&self, unclosed: &[u32]) {
        let (Some(kept), Some(chunks)) = (&self.kept, &self.items.chunks) else {
            return;
        };
        let last = unclosed
            .iter()
            .filter_map(|&chunk| self.find_fill(chunks, chunk));
        let mut suspects: Vec<Place> = last.collect();
        self.index
            .put_right(WorkerId(0), &mut |place| self.item_at(place));
        for note in &kept.control[NOTES..INTENTS] {
            let noted = note.load(Relaxed);
            suspects.extend(u32::try_from(noted.wrapping_sub(1)).ok().map(Place));
        }
        for place in suspects {
            // It may be marked, and its twin not.
            let head = self.head_at(place);
            let twin = head.and_then(|head| self.found_twin(chunks, place, &head));
            for place in twin.into_iter().chain([place]) {
                self.suspect(chunks, place);
            }
        }
        for note in &kept.control[NOTES..INTENTS] {
            if note.load(Relaxed) != 0 {
                note.store(0, Release);
            }
        }
    }
}

impl Store {
    /// Marks a record that was left by whoever was killed, unless it is an item or somebody's twin.
    fn suspect(&self, chunks: &Chunks, place: Place) {
        let Some(head) = self.found_at(place) else {
            return;
        };
        let hash = head.hash.0;
        self.revive(hash);
        let is_its = |other| other == place || self.items.is_twin(other, place);
        if self.index.find(hash, is_its).is_none() {
            chunks.mark_dead(place);
        }
    }

    /// Gives an image that is a copy the blocks that it has not and the image had. A copy that
    /// leaves zeros out has none of what was allocated ahead: to find that costs nothing, to look
    /// for every block would.
    pub(crate) fn fill_holes(&self, kept: &Kept) -> Result<(), StoreError> {
        let chunks = self.items.chunks.as_ref();
        let owned = chunks.map_or(0, |chunks| {
            let is_owned = |&chunk: &u32| self.items.owner(chunk).is_some();
            (0..chunks.used()).filter(is_owned).count() as u64 + u64::from(chunks.ahead())
        });
        let keys = owned * u64::from(CHUNK_BYTES);
        let needs = kept.table_bytes + self.index.found_bytes() + keys;
        if kept.image.allocated_bytes()? >= needs {
            return Ok(());
        }
        let filled = self.index.allocate_found().and_then(|()| {
            chunks.map_or(Ok(()), |chunks| {
                chunks.allocate_all(0, chunks.used() + chunks.ahead())
            })
        });
        Ok(filled.map_err(|source| MediaError::Allocate {
            path: kept.image.path().to_owned(),
            len_bytes: needs,
            source,
        })?)
    }

    /// Finds how far a chunk was filled that nobody closed; the last item in it.
    fn find_fill(&self, chunks: &Chunks, chunk: u32) -> Option<Place> {
        let (mut fill, mut last) = (0, None);
        self.items.records_of(chunks, chunk, &mut |place, head| {
            fill += self.items.footprint(&head.header).dram;
            last = Some(place);
        });
        chunks.set_fill(chunk, fill);
        last
    }
}

impl Items {
    /// The segment that a chunk belongs to, in this use of both.
    pub(crate) fn owner(&self, chunk: u32) -> Option<u32> {
        let chunks = self.chunks.as_ref()?;
        let segment = chunks.segment(chunk);
        (segment < self.segments.len() && self.segments.at(segment).is_since(chunks.seq(chunk)))
            .then_some(segment)
    }

    /// The head at a place of a chunk, if it is sound.
    pub(crate) fn sound_head(&self, place: Place) -> Option<Head> {
        let chunks = self.chunks.as_ref()?;
        let (_, offset) = chunks.chunk_of(place)?;
        let header = chunks.header(place);
        let end = offset as usize + header.record_len();
        let value = u64::from(header.value_offset) + u64::from(header.value_len);
        if end > CHUNK_BYTES as usize || value > u64::from(self.segment_bytes()) {
            return None;
        }
        // Nothing that is empty goes deep, and to fetch it would be fatal.
        if header.value_len == 0 && self.is_deep(chunks.segment_of(place)) {
            return None;
        }
        let checks = chunks.checks(place, &header)?;
        let hash = self.hash(chunks.key(place, &header));
        let check = check::head(&header, hash, self.unique(place), checks.value);
        let is_dead = checks.head == !check;
        (is_dead || checks.head == check).then(|| Head {
            header,
            hash,
            is_dead: is_dead || chunks.state(place).is_dead(),
        })
    }
}
