//! Items by place, whichever the layout: the only code that knows where a header, a key and a value
//! lie.
//!
//! * split (NyxCache section 3.5): header and key in DRAM chunks, value on the medium, written by
//!   non-temporal stores. A place counts 8 B of key memory.
//! * inline: header, key and value one behind the other on the medium, cached stores. A place
//!   counts 8 B of the tenant's range; every look at a header or a key is a metered read.
//!
//! What it never does: decide where an item goes, publish it, count it.
//!
//! *Thread safety*: the caller is within an era and has places from the index, or owns the open
//! segment. In the inline layout changes of state are a read and a write through the lane: the
//! callers that must not lose one hold the bucket's lock.

use crate::chunks::{self, Chunks};
use crate::config::StoreConfig;
use crate::header::{Checks, Header, STATE_WORD, State, WORDS_MAX, WORDS_MIN};
use crate::request::KeyHash;
use crate::segment::Segments;
use nyx_base::UnixSeconds;
use nyx_gate::Lane;
use nyx_index::Place;
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
}

/// Where the bytes of a value come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    Bytes(&'a [u8]),
    Medium { at: u64, len: u32 },
}

impl Source<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Source::Bytes(bytes) => bytes.len(),
            Source::Medium { len, .. } => *len as usize,
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
    /// Of an item that is to survive; that of the head is filled in when it is appended.
    pub(crate) checks: Option<Checks>,
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
    pub(crate) fn new(chunks: Option<Chunks>, segments: Segments, config: &StoreConfig) -> Items {
        Items {
            chunks,
            segments,
            medium_base: config.medium_base,
            segment_shift: config.segment_bytes.ilog2(),
            hash_seed: config.hash_seed,
        }
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

    /// Where a value lies on the medium.
    #[inline]
    pub(crate) fn value_at(&self, place: Place, header: &Header) -> u64 {
        match &self.chunks {
            Some(chunks) => {
                self.segment_at(chunks.segment_of(place)) + u64::from(header.value_offset)
            }
            None => self.medium_at(place) + header.head_len() as u64,
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
            checks,
            value,
            ..
        } = draft;
        match &self.chunks {
            Some(chunks) => chunks.write(place, header, *state, key, *checks),
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
            }
        }
        let mut at = self.value_at(place, header);
        for source in value {
            self.write_value(lane, at, *source, piece);
            at += source.len() as u64;
        }
    }

    fn write_value(&self, lane: &mut Lane<'_>, at: u64, source: Source<'_>, piece: &mut [u8]) {
        match source {
            Source::Bytes([]) => {}
            Source::Bytes(bytes) if self.chunks.is_some() => lane.write(at, bytes),
            Source::Bytes(bytes) => lane.write_cached(at, bytes),
            Source::Medium { at: from, len } => {
                let mut done = 0;
                while done < u64::from(len) {
                    let now = (u64::from(len) - done).min(piece.len() as u64);
                    let piece = &mut piece[..now as usize];
                    lane.read(from + done, piece);
                    match self.chunks {
                        Some(_) => lane.write(at + done, piece),
                        None => lane.write_cached(at + done, piece),
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
                lane.prefetch(self.value_at(place, &header), header.value_len as usize);
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
