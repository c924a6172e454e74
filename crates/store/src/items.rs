//! Items by place, whichever the layout: the only code that knows where a header, a key and a value
//! lie.
//!
//! * split (NyxCache section 3.5): header and key in DRAM chunks, value on the medium, written by
//!   non-temporal stores. A place counts 8 B of key memory.
//! * inline: header, key and value one behind the other on the medium, cached stores. A place
//!   counts 8 B of the tenant's range; every look at a header or a key is a metered read.
//! * deep (split only): header and key in DRAM chunks as ever, value on the deep device, or in the
//!   stage that its segment is filled in until it has been written there.
//!
//! What it never does: decide where an item goes, publish it, count it.
//!
//! *Thread safety*: the caller is within an era and has places from the index, or owns the open
//! segment. In the inline layout changes of state are a read and a write through the lane: the
//! callers that must not lose one hold the bucket's lock.

use crate::check;
use crate::chunks::{self, Chunks};
use crate::config::StoreConfig;
use crate::header::{Checks, Header, STATE_WORD, State, WORDS_MAX, WORDS_MIN};
use crate::request::KeyHash;
use crate::segment::Segments;
use crate::stage::{Staged, Stages};
use nyx_base::UnixSeconds;
use nyx_index::Place;
use nyx_tier::{Landing, Lane};
use std::sync::atomic::{AtomicBool, AtomicU32};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of the longest header and key.
const HEAD_BYTES_MAX: usize = 4 * WORDS_MAX + u8::MAX as usize;
/// Values begin at multiples of this many bytes: the smallest non-temporal store.
const VALUE_ALIGN: u32 = 4;

/// Where the items of one store lie.
#[derive(Debug)]
pub(crate) struct Items {
    /// Key memory; absent in the inline layout.
    pub(crate) chunks: Option<Chunks>,
    pub(crate) segments: Segments,
    medium_base: u64,
    segment_shift: u32,
    hash_seed: u64,
    /// Segments from this on are deep.
    first_deep: u32,
    deep: Option<Deep>,
}

/// What of a deep device is theirs.
#[derive(Debug)]
pub(crate) struct Deep {
    /// Where it begins, in bytes.
    pub(crate) base: u64,
    /// Values of less bytes do not go there.
    pub(crate) item_len_min: u32,
    pub(crate) stages: Stages,
    /// Segments that wait to be written: to be asked for without a lock.
    pub(crate) to_write: AtomicU32,
    /// Whether somebody who makes room waits for a stage: a hint, which orders nothing else.
    pub(crate) is_wanted: AtomicBool,
    /// Whether compaction is to be thought of: another, to be asked for without a lock.
    pub(crate) to_compact: AtomicBool,
}

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spot {
    /// On the medium, from there on.
    Fast(u64),
    /// In a stage, until the end of the era.
    Staged(Staged),
    /// On the deep device, from there on.
    Deep(u64),
    /// In what was fetched from there.
    Landed(Landing),
}

/// Where the bytes of a value come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    Bytes(&'a [u8]),
    Medium { at: u64, len: u32 },
    Landed { landing: Landing, len: u32 },
}

impl Source<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Source::Bytes(bytes) => bytes.len(),
            Source::Medium { len, .. } | Source::Landed { len, .. } => *len as usize,
        }
    }

    /// Copies its bytes from byte `from` on.
    pub(crate) fn read(&self, lane: &mut Lane<'_>, from: usize, into: &mut [u8]) {
        let range = from..from + into.len();
        match *self {
            Source::Bytes(bytes) => into.copy_from_slice(&bytes[range]),
            Source::Medium { at, .. } => lane.read(at + from as u64, into),
            Source::Landed { landing, .. } => {
                into.copy_from_slice(&lane.landed(landing)[range]);
            }
        }
    }
}

/// What an item is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draft<'a> {
    /// Its value offset is filled in when it is appended.
    pub(crate) header: Header,
    pub(crate) state: State,
    pub(crate) key: &'a [u8],
    /// The key's.
    pub(crate) hash: KeyHash,
    /// The check of the value, where there are checks; none where it is to be made from what is
    /// written to a stage.
    pub(crate) check: Option<u32>,
    pub(crate) value: [Source<'a>; 3],
}

/// What an item takes: bytes of key memory and bytes of its segment on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footprint {
    pub(crate) dram: u32,
    pub(crate) medium: u32,
}

impl Footprint {
    pub(crate) fn total(self) -> u32 {
        self.dram + self.medium
    }
}

impl Items {
    /// Items in these; with stages the last segments are deep, as many as there are beyond `fast`.
    pub(crate) fn new(
        chunks: Option<Chunks>,
        segments: Segments,
        (fast, stages): (u32, Option<Stages>),
        config: &StoreConfig,
    ) -> Items {
        let deep = config.deep.zip(stages).map(|(part, stages)| Deep {
            base: part.base,
            item_len_min: part.item_len_min.max(1),
            stages,
            to_write: AtomicU32::new(0),
            is_wanted: AtomicBool::new(false),
            to_compact: AtomicBool::new(true),
        });
        Items {
            chunks,
            segments,
            medium_base: config.medium_base,
            segment_shift: config.segment_bytes.ilog2(),
            hash_seed: config.hash_seed,
            first_deep: fast,
            deep,
        }
    }

    /// How many segments are on the medium; those from there on are deep.
    pub(crate) fn first_deep(&self) -> u32 {
        self.first_deep
    }

    /// Whether a segment is one of the deep device.
    #[inline]
    pub(crate) fn is_deep(&self, segment: u32) -> bool {
        segment >= self.first_deep
    }

    /// What of a deep device is theirs, where something is.
    pub(crate) fn deep(&self) -> Option<&Deep> {
        self.deep.as_ref()
    }

    /// The hash of a key.
    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash(xxh3_64_with_seed(key, self.hash_seed))
    }

    pub(crate) fn segment_bytes(&self) -> u32 {
        1 << self.segment_shift
    }

    /// What an item with this header takes.
    #[inline]
    pub(crate) fn footprint(&self, header: &Header) -> Footprint {
        match self.chunks {
            Some(_) => Footprint {
                dram: chunks::footprint(header),
                medium: header.value_len.next_multiple_of(VALUE_ALIGN),
            },
            None => Footprint {
                dram: 0,
                medium: inline_footprint(header.head_len(), header.value_len),
            },
        }
    }

    /// The segment that an item lies in.
    #[inline]
    pub(crate) fn segment_of(&self, place: Place) -> u32 {
        match &self.chunks {
            Some(chunks) => chunks.segment_of(place),
            None => ((u64::from(place.0) * 8) >> self.segment_shift) as u32,
        }
    }

    /// The place of the item that begins at `offset` of a segment's chunk (split) or of the segment
    /// itself (inline).
    #[inline]
    pub(crate) fn place(&self, segment: u32, chunk: u32, offset: u32) -> Place {
        match self.chunks {
            Some(_) => Chunks::place(chunk, offset),
            None => {
                let at = (u64::from(segment) << self.segment_shift) + u64::from(offset);
                Place((at / 8) as u32)
            }
        }
    }

    /// A number that no other item of the store ever had.
    #[inline]
    pub(crate) fn unique(&self, place: Place) -> u64 {
        match &self.chunks {
            Some(chunks) => chunks.unique(place),
            None => {
                let bits = self.segment_shift - 3;
                let seq = self.segments.at(self.segment_of(place)).seq();
                seq << bits | u64::from(place.0 & ((1 << bits) - 1))
            }
        }
    }

    /// Where a value lies.
    #[inline]
    pub(crate) fn spot(&self, place: Place, header: &Header) -> Spot {
        match &self.chunks {
            Some(chunks) => self.spot_in(chunks.segment_of(place), header.value_offset),
            None => Spot::Fast(self.medium_at(place) + header.head_len() as u64),
        }
    }

    /// Where byte `offset` of a segment's values lies (split layout).
    #[inline]
    pub(crate) fn spot_in(&self, segment: u32, offset: u32) -> Spot {
        match self.is_deep(segment) {
            false => Spot::Fast(self.segment_at(segment) + u64::from(offset)),
            true => self.deep_spot(segment, offset),
        }
    }

    fn deep_spot(&self, segment: u32, offset: u32) -> Spot {
        match self.segments.at(segment).stage() {
            Some(stage) => Spot::Staged(Staged { stage, at: offset }),
            None => Spot::Deep(self.deep_at(segment) + u64::from(offset)),
        }
    }

    /// Where a deep segment begins on its device.
    pub(crate) fn deep_at(&self, segment: u32) -> u64 {
        let base = self.deep.as_ref().map_or(0, |deep| deep.base);
        base + (u64::from(segment - self.first_deep) << self.segment_shift)
    }

    /// A value, to be read from where it lies; none where it has to be fetched first. Within an
    /// era.
    #[inline]
    pub(crate) fn source(&self, spot: Spot, len: u32) -> Option<Source<'_>> {
        match spot {
            Spot::Fast(at) => Some(Source::Medium { at, len }),
            Spot::Landed(landing) => Some(Source::Landed { landing, len }),
            Spot::Staged(staged) => {
                let stages = self.deep.as_ref().map(|deep| &deep.stages);
                stages.map(|stages| Source::Bytes(stages.bytes_of(staged, len as usize)))
            }
            Spot::Deep(_) => None,
        }
    }

    /// Where a segment begins on the medium.
    #[inline]
    pub(crate) fn segment_at(&self, segment: u32) -> u64 {
        self.medium_base + (u64::from(segment) << self.segment_shift)
    }

    fn medium_at(&self, place: Place) -> u64 {
        self.medium_base + u64::from(place.0) * 8
    }

    #[inline]
    pub(crate) fn header(&self, lane: &mut Lane<'_>, place: Place) -> Header {
        match &self.chunks {
            Some(chunks) => chunks.header(place),
            None => self.inline_head(lane, place).0,
        }
    }

    /// The header of a place, if its key is `key`.
    #[inline]
    pub(crate) fn header_of(
        &self,
        lane: &mut Lane<'_>,
        place: Place,
        key: &[u8],
    ) -> Option<Header> {
        match &self.chunks {
            Some(chunks) => {
                let header = chunks.header(place);
                (chunks.key(place, &header) == key).then_some(header)
            }
            None => {
                let (header, head) = self.inline_head(lane, place);
                (&head[4 * header.words_len()..header.head_len()] == key).then_some(header)
            }
        }
    }

    /// The checks of an item; none of one that does not survive.
    pub(crate) fn checks(&self, place: Place, header: &Header) -> Option<Checks> {
        self.chunks.as_ref()?.checks(place, header)
    }

    /// The twin of an item on the fast device.
    #[inline]
    pub(crate) fn twin(&self, place: Place, header: &Header) -> Option<Place> {
        self.chunks.as_ref()?.twin(place, header)
    }

    /// Whether an item of the fast device may get a twin: as long a value as may go deep.
    #[inline]
    pub(crate) fn may_be_mirrored(&self, header: &Header) -> bool {
        let deep = self.deep.as_ref();
        header.has_twin && deep.is_some_and(|deep| header.value_len >= deep.item_len_min)
    }

    /// Whether an item has that twin.
    pub(crate) fn is_twin(&self, place: Place, twin: Place) -> bool {
        let chunks = self.chunks.as_ref();
        chunks.is_some_and(|chunks| chunks.twin(place, &chunks.header(place)) == Some(twin))
    }

    /// Gives an item a twin, or takes it away. Under the lock of its bucket, or before it is
    /// published.
    pub(crate) fn set_twin(&self, place: Place, header: &Header, twin: Option<Place>) {
        if let Some(chunks) = &self.chunks {
            chunks.set_twin(place, header, twin);
        }
    }

    /// Calls `with` with the key of an item.
    pub(crate) fn with_key<T>(
        &self,
        lane: &mut Lane<'_>,
        place: Place,
        header: &Header,
        with: impl FnOnce(&[u8]) -> T,
    ) -> T {
        match &self.chunks {
            Some(chunks) => with(chunks.key(place, header)),
            None => {
                let (_, head) = self.inline_head(lane, place);
                with(&head[4 * header.words_len()..header.head_len()])
            }
        }
    }

    /// Reads an inline header and its key. The header's length is known only from its first words.
    fn inline_head(&self, lane: &mut Lane<'_>, place: Place) -> (Header, [u8; HEAD_BYTES_MAX]) {
        let mut head = [0; HEAD_BYTES_MAX];
        let at = self.medium_at(place);
        lane.read(at, &mut head[..4 * WORDS_MIN]);
        let rest = 4 * WORDS_MIN;
        let key_len = word_of(&head, 1) >> 24;
        let end = 4 * Header::words_len_of(word_of(&head, 0)) + key_len as usize;
        lane.read(at + rest as u64, &mut head[rest..end]);
        (Header::decode(|word| word_of(&head, word)), head)
    }

    #[inline]
    pub(crate) fn state(&self, lane: &mut Lane<'_>, place: Place) -> State {
        match &self.chunks {
            Some(chunks) => chunks.state(place),
            None => {
                let mut word = [0; 4];
                lane.read(self.medium_at(place) + 4 * STATE_WORD as u64, &mut word);
                State(u32::from_le_bytes(word))
            }
        }
    }

    /// Changes a state; the one before.
    #[inline]
    pub(crate) fn update_state(
        &self,
        lane: &mut Lane<'_>,
        place: Place,
        change: impl Fn(State) -> State,
    ) -> State {
        match &self.chunks {
            Some(chunks) => chunks.update_state(place, change),
            None => {
                let before = self.state(lane, place);
                let after = change(before);
                if after != before {
                    self.set_word(lane, place, STATE_WORD, after.0);
                }
                before
            }
        }
    }

    /// Gives an item whose header has an expiry another one. Under the bucket's lock.
    pub(crate) fn set_expiry(
        &self,
        lane: &mut Lane<'_>,
        place: Place,
        header: &Header,
        expiry: UnixSeconds,
    ) {
        let word = header.expiry_word().expect("the header has an expiry");
        self.set_word(lane, place, word, expiry.0);
        self.segments
            .at(self.segment_of(place))
            .expire_later(expiry);
    }

    fn set_word(&self, lane: &mut Lane<'_>, place: Place, word: usize, value: u32) {
        match &self.chunks {
            Some(chunks) => chunks.set_word(place, word, value),
            None => {
                let at = self.medium_at(place) + 4 * word as u64;
                lane.write_cached(at, &value.to_le_bytes());
            }
        }
    }

    /// Writes a whole item at `place`, which its writer owns: header, key, then the pieces of the
    /// value.
    #[inline]
    pub(crate) fn write(
        &self,
        lane: &mut Lane<'_>,
        place: Place,
        draft: &Draft<'_>,
        piece: &mut [u8],
    ) {
        let Draft {
            header,
            state,
            key,
            hash,
            value,
            ..
        } = draft;
        match &self.chunks {
            Some(chunks) => {
                let spot = self.spot(place, header);
                self.write_value(lane, spot, value, piece);
                let checks = header.has_checks.then(|| {
                    let check = draft.check;
                    let value = check.unwrap_or_else(|| self.check_staged(spot, header, *hash));
                    let head = check::head(header, *hash, self.unique(place), value);
                    Checks { head, value }
                });
                chunks.write(place, header, *state, key, checks);
            }
            None => {
                let words = header.encode(*state);
                let mut head = [0; HEAD_BYTES_MAX];
                let words_len = header.words_len();
                for (bytes, word) in head.chunks_exact_mut(4).zip(&words[..words_len]) {
                    bytes.copy_from_slice(&word.to_le_bytes());
                }
                let end = header.head_len();
                head[4 * words_len..end].copy_from_slice(key);
                lane.write_cached(self.medium_at(place), &head[..end]);
                self.write_value(lane, self.spot(place, header), value, piece);
            }
        }
    }

    /// The check of a value that was just written to a stage.
    fn check_staged(&self, spot: Spot, header: &Header, hash: KeyHash) -> u32 {
        match self.source(spot, header.value_len) {
            Some(Source::Bytes(bytes)) => check::value(hash, bytes.into()),
            _ => panic!("a value without a check is written to a stage"),
        }
    }

    #[inline]
    fn write_value(&self, lane: &mut Lane<'_>, spot: Spot, value: &[Source<'_>], piece: &mut [u8]) {
        match spot {
            Spot::Fast(mut at) => {
                for source in value {
                    self.write_fast(lane, at, *source, piece);
                    at += source.len() as u64;
                }
            }
            Spot::Staged(staged) => self.write_staged(lane, staged, value),
            Spot::Deep(_) | Spot::Landed(_) => panic!("{spot:?} is no place to write to"),
        }
    }

    fn write_staged(&self, lane: &mut Lane<'_>, mut staged: Staged, value: &[Source<'_>]) {
        let deep = self.deep.as_ref().expect("there is a stage");
        for source in value.iter().filter(|source| source.len() > 0) {
            let fill = |into: &mut [u8]| source.read(lane, 0, into);
            deep.stages.fill(staged, source.len(), fill);
            staged.at += source.len() as u32;
        }
    }

    fn write_fast(&self, lane: &mut Lane<'_>, at: u64, source: Source<'_>, piece: &mut [u8]) {
        match source {
            Source::Bytes([]) => {}
            Source::Bytes(bytes) if self.chunks.is_some() => lane.write(at, bytes),
            Source::Bytes(bytes) => lane.write_cached(at, bytes),
            Source::Medium { .. } | Source::Landed { .. } => {
                let (mut done, len) = (0, source.len());
                while done < len {
                    let now = (len - done).min(piece.len());
                    let piece = &mut piece[..now];
                    source.read(lane, done, piece);
                    let at = at + done as u64;
                    match self.chunks {
                        Some(_) => lane.write(at, piece),
                        None => lane.write_cached(at, piece),
                    }
                    done += now;
                }
            }
        }
    }

    /// Asks for a header and key.
    #[inline]
    pub(crate) fn prefetch(&self, place: Place) {
        if let Some(chunks) = &self.chunks {
            chunks.prefetch(place);
        }
    }

    /// Asks for a value; its header is near.
    #[inline]
    pub(crate) fn prefetch_value(&self, lane: &Lane<'_>, place: Place) {
        match &self.chunks {
            Some(chunks) => {
                let header = chunks.header(place);
                if let Spot::Fast(at) = self.spot(place, &header) {
                    lane.prefetch(at, header.value_len as usize);
                }
            }
            None => lane.prefetch(self.medium_at(place), HEAD_BYTES_MAX),
        }
    }
}

#[inline]
fn inline_footprint(head_len: usize, value_len: u32) -> u32 {
    (head_len as u32 + value_len).next_multiple_of(8)
}

fn word_of(head: &[u8], word: usize) -> u32 {
    let at = 4 * word;
    u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}
