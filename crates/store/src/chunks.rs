//! Key memory: chunks of 16 KiB in DRAM, in which headers and keys, with the checks of those that
//! have any, lie one behind the other.
//!
//! What about a chunk is asked on the way of a GET (its segment) is kept in a dense table beside
//! the memory: at the head of each chunk it would be one cache line in 16 KiB, all of them in the
//! same few cache sets.
//!
//! What it never does: decide who gets a chunk (`space`), touch the medium.
//!
//! *Thread safety*: a chunk is written by its segment's writer alone; headers and keys are
//! published by the index (release) and then read by anyone. States and expiries are atomics. A
//! chunk is used anew only when no worker can still look at it (eras).
//!
//! *Invariants*: items begin at multiples of 8 bytes; `place = byte address / 8`.

use crate::header::{Checks, Header, NO_TWIN, STATE_WORD, State, TWIN_WORD, WORDS_MAX};
use crate::segment::NONE;
use nyx_index::Place;
use nyx_media::dram::Words;
use nyx_media::{Array, Region, prim};
use std::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Bytes of a chunk.
pub(crate) const CHUNK_BYTES: u32 = 16 << 10;
/// Items of a chunk are numbered with this many bits.
const PLACE_BITS: u32 = CHUNK_BYTES.ilog2() - 3;
/// The most chunks: places have 32 bits.
pub(crate) const CHUNKS_MAX: u64 = 1 << (32 - PLACE_BITS);
/// Bytes of one entry of the table.
pub(crate) const ENTRY_BYTES: u64 = size_of::<Entry>() as u64;
/// A likely header and key: mostly on one line, sometimes on two.
const LIKELY_BYTES: usize = 44;
/// Room after the last chunk, so that a header and key read at any place stay inside.
const SLACK_BYTES: usize = 4096;

/// What is known of a chunk. All zero where it was never used. The sequence number is stored last:
/// whoever finds the table in an image takes a chunk for a segment's if it is younger than that.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Entry {
    seq: AtomicU64,
    segment: AtomicU32,
    fill: AtomicU32,
    next: AtomicU32,
}

// SAFETY: all fields are atomics, of which any bytes are a valid value.
unsafe impl Words for Entry {}

/// The chunks of a store.
#[derive(Debug)]
pub(crate) struct Chunks {
    region: Region,
    entries: Array<Entry>,
}

/// Blocks of a file are allocated for this many chunks at once: 1 MiB.
const ALLOCATE_CHUNKS: u32 = 64;

/// Bytes that a header, its key and its checks take in a chunk.
#[inline]
pub(crate) fn footprint(header: &Header) -> u32 {
    header.record_len().next_multiple_of(8) as u32
}

impl Chunks {
    /// Chunks in a region of [`Chunks::bytes`], with as many entries.
    pub(crate) fn over(region: Region, entries: Array<Entry>) -> Chunks {
        assert!(region.len() >= Chunks::bytes(entries.len() as u32));
        Chunks { region, entries }
    }

    /// Bytes that so many chunks take.
    pub(crate) fn bytes(count: u32) -> usize {
        count as usize * CHUNK_BYTES as usize + SLACK_BYTES
    }

    /// Makes sure that a chunk can be touched, and with `ahead` those behind it up to a boundary.
    /// False where the disk is full.
    pub(crate) fn allocate(&self, chunk: u32, ahead: bool) -> bool {
        let end = match ahead {
            true if !chunk.is_multiple_of(ALLOCATE_CHUNKS) => return true,
            true => (chunk + ALLOCATE_CHUNKS).min(self.len()),
            false => chunk + 1,
        };
        self.allocate_all(chunk, end).is_ok()
    }

    /// How many chunks are allocated behind the last one that was ever used.
    pub(crate) fn ahead(&self) -> u32 {
        let used = self.used();
        used.next_multiple_of(ALLOCATE_CHUNKS).min(self.len()) - used
    }

    /// Makes sure that the chunks `[from, to)` can be touched.
    pub(crate) fn allocate_all(&self, from: u32, to: u32) -> std::io::Result<()> {
        let at = |chunk: u32| chunk as usize * CHUNK_BYTES as usize;
        // What lies behind the last chunk is read with it.
        let slack = if to == self.len() { SLACK_BYTES } else { 0 };
        self.region.allocate(at(from), at(to) - at(from) + slack)
    }

    pub(crate) fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// How many there are up to the last that was ever used.
    pub(crate) fn used(&self) -> u32 {
        let used = (0..self.len()).rev().find(|&chunk| self.seq(chunk) != 0);
        used.map_or(0, |last| last + 1)
    }

    /// Gives a chunk to a segment; `next` is the rest of the segment's chain.
    pub(crate) fn assign(&self, chunk: u32, seq: u64, segment: u32) {
        let entry = &self.entries[chunk as usize];
        entry.fill.store(0, Release);
        entry.segment.store(segment, Release);
        entry.seq.store(seq, Release);
    }

    /// The sequence number of its last use; zero where there was none.
    pub(crate) fn seq(&self, chunk: u32) -> u64 {
        self.entries[chunk as usize].seq.load(Relaxed)
    }

    /// The segment of its last use.
    pub(crate) fn segment(&self, chunk: u32) -> u32 {
        self.entries[chunk as usize].segment.load(Relaxed)
    }

    /// The chunk of a place and the place in it, in bytes; none where there is no such chunk.
    pub(crate) fn chunk_of(&self, place: Place) -> Option<(u32, u32)> {
        let chunk = place.0 >> PLACE_BITS;
        let offset = (place.0 & ((1 << PLACE_BITS) - 1)) * 8;
        (chunk < self.len()).then_some((chunk, offset))
    }

    /// Links the chunks of a segment of an image, the youngest first; those that nobody closed.
    pub(crate) fn link(&self, chain: &[u32]) -> Vec<u32> {
        let next = chain.iter().skip(1).copied().chain([NONE]);
        for (&chunk, next) in chain.iter().zip(next) {
            self.set_next(chunk, next);
        }
        let is_closed = |chunk| (1..=CHUNK_BYTES).contains(&self.fill(chunk));
        let unclosed = chain.iter().filter(|&&chunk| !is_closed(chunk));
        unclosed.copied().collect()
    }

    pub(crate) fn next(&self, chunk: u32) -> u32 {
        self.entries[chunk as usize].next.load(Relaxed)
    }

    pub(crate) fn set_next(&self, chunk: u32, next: u32) {
        self.entries[chunk as usize].next.store(next, Relaxed);
    }

    pub(crate) fn fill(&self, chunk: u32) -> u32 {
        self.entries[chunk as usize].fill.load(Relaxed)
    }

    pub(crate) fn set_fill(&self, chunk: u32, fill: u32) {
        self.entries[chunk as usize].fill.store(fill, Relaxed);
    }

    /// Gives a chunk's memory back to the system; it reads as zero afterwards.
    pub(crate) fn release(&self, chunk: u32) {
        self.region
            .release(chunk as usize * CHUNK_BYTES as usize, CHUNK_BYTES as usize);
    }

    #[inline]
    pub(crate) fn segment_of(&self, place: Place) -> u32 {
        self.entries[(place.0 >> PLACE_BITS) as usize]
            .segment
            .load(Relaxed)
    }

    /// A number that no other item of the store ever had: the chunk's sequence number and the place
    /// in the chunk.
    #[inline]
    pub(crate) fn unique(&self, place: Place) -> u64 {
        let seq = self.entries[(place.0 >> PLACE_BITS) as usize]
            .seq
            .load(Relaxed);
        seq << PLACE_BITS | u64::from(place.0 & ((1 << PLACE_BITS) - 1))
    }

    #[inline]
    pub(crate) fn place(chunk: u32, offset: u32) -> Place {
        Place((chunk << PLACE_BITS) | (offset / 8))
    }

    #[inline]
    fn byte(&self, place: Place, offset: usize) -> *mut u8 {
        let at = place.0 as usize * 8 + offset;
        assert!(
            at < self.region.len(),
            "byte {at} of {} B of keys",
            self.region.len()
        );
        // SAFETY: `at` is within the region.
        unsafe { self.region.base().as_ptr().add(at) }
    }

    #[inline]
    fn word(&self, place: Place, word: usize) -> &AtomicU32 {
        let address = self.byte(place, 4 * word);
        // SAFETY: within the region (checked), which has slack of a page after the last chunk;
        // aligned to 4 since places are multiples of 8; any bytes are a valid atomic, and what lies
        // in headers is only ever accessed as atomics.
        unsafe { &*address.cast::<AtomicU32>() }
    }

    #[inline]
    pub(crate) fn header(&self, place: Place) -> Header {
        Header::decode(|word| self.word(place, word).load(Relaxed))
    }

    #[inline]
    pub(crate) fn state(&self, place: Place) -> State {
        State(self.word(place, STATE_WORD).load(Acquire))
    }

    /// Changes a state; the one before.
    #[inline]
    pub(crate) fn update_state(&self, place: Place, change: impl Fn(State) -> State) -> State {
        let word = self.word(place, STATE_WORD);
        let mut before = word.load(Acquire);
        loop {
            let after = change(State(before)).0;
            if after == before {
                return State(before);
            }
            match word.compare_exchange_weak(before, after, AcqRel, Acquire) {
                Ok(_) => return State(before),
                Err(now) => before = now,
            }
        }
    }

    /// Marks an item that was taken out of the index, for walks to pass over. A load and a store:
    /// whoever changes the state of a dead item at the same time loses its change, and nobody looks
    /// at that any more; a token to recache that is lost so counts only where the item is still the
    /// current one. Released, and acquired by [`Chunks::state`]: who sees the mark sees that the
    /// item is out of the index, so that its segment is freed only when nobody can find it.
    ///
    /// An item with checks says it twice, so that no flipped bit in an image brings one back.
    #[inline]
    pub(crate) fn mark_dead(&self, place: Place) {
        let state = self.state(place);
        if state.is_dead() {
            return;
        }
        self.word(place, STATE_WORD)
            .store(state.with_dead().0, Release);
        let [first, lengths] = [0, 1].map(|word| self.word(place, word).load(Relaxed));
        if let Some(at) = Header::check_word_of(first, lengths) {
            let check = self.word(place, at);
            check.store(!check.load(Relaxed), Release);
        }
    }

    /// The place of an item's twin on the deep device.
    #[inline]
    pub(crate) fn twin(&self, place: Place, header: &Header) -> Option<Place> {
        if !header.has_twin {
            return None;
        }
        let twin = self.word(place, TWIN_WORD).load(Acquire);
        (twin != NO_TWIN).then_some(Place(twin))
    }

    /// Gives an item whose header has the word for it a twin, or none. Released: who sees the place
    /// sees what was written there.
    pub(crate) fn set_twin(&self, place: Place, header: &Header, twin: Option<Place>) {
        assert!(header.has_twin, "the header has no room for a twin");
        let word = twin.map_or(NO_TWIN, |twin| twin.0);
        self.word(place, TWIN_WORD).store(word, Release);
    }

    pub(crate) fn set_word(&self, place: Place, word: usize, value: u32) {
        self.word(place, word).store(value, Relaxed);
    }

    /// The bytes of a key. The caller is within an era, or owns the chunk.
    #[inline]
    pub(crate) fn key(&self, place: Place, header: &Header) -> &[u8] {
        let from = 4 * header.words_len();
        let address = self.byte(place, from);
        // SAFETY: a place that the index gave out holds a whole item, whose key was written before
        // it was published and is not written again until the era is over. The slack after the last
        // chunk keeps any length inside the region.
        unsafe { std::slice::from_raw_parts(address, usize::from(header.key_len)) }
    }

    /// The checks that follow a key. The caller is within an era, or owns the chunk.
    pub(crate) fn checks(&self, place: Place, header: &Header) -> Option<Checks> {
        let at = header.check_word()?;
        let [head, value] = [at, at + 1].map(|word| self.word(place, word).load(Relaxed));
        Some(Checks { head, value })
    }

    /// Writes header, key and checks at a place of a chunk that the caller fills.
    #[inline]
    pub(crate) fn write(
        &self,
        place: Place,
        header: &Header,
        state: State,
        key: &[u8],
        checks: Option<Checks>,
    ) {
        debug_assert_eq!(key.len(), usize::from(header.key_len));
        debug_assert_eq!(checks.is_some(), header.has_checks);
        let words: [u32; WORDS_MAX] = header.encode(state);
        let len = header.words_len();
        for (at, &word) in words[..len].iter().enumerate() {
            self.word(place, at).store(word, Relaxed);
        }
        let address = self.byte(place, 4 * len);
        // SAFETY: the item lies within the chunk (the writer asked for its footprint), nobody reads
        // it before it is published, and `key` is not in this memory unless in another chunk.
        unsafe { std::ptr::copy_nonoverlapping(key.as_ptr(), address, key.len()) };
        if let (Some(at), Some(checks)) = (header.check_word(), checks) {
            self.word(place, at + 1).store(checks.value, Relaxed);
            // Last: a head that is sound is whole, with what its check does not cover.
            self.word(place, at).store(checks.head, Release);
        }
    }

    /// Asks for a header and the begin of its key.
    #[inline]
    pub(crate) fn prefetch(&self, place: Place) {
        prim::prefetch(self.byte(place, 0), LIKELY_BYTES);
    }

    /// Asks for the place of an item of `len` bytes that is to be written next.
    #[inline]
    pub(crate) fn prefetch_write(&self, place: Place, len: usize) {
        prim::prefetch_write(self.byte(place, 0), len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_base::UnixSeconds;

    /// The layout in an image: whoever changes it gives it another format.
    #[test]
    fn checks_lie_behind_the_key_and_one_of_them_turns_over() {
        let region = Region::reserve(Chunks::bytes(1), false).expect("memory");
        let entries = Array::reserve(1, false).expect("memory");
        let chunks = Chunks::over(region, entries);
        let header = Header {
            value_offset: 8,
            value_len: 9,
            key_len: 5,
            flags: 11,
            expiry: UnixSeconds::NEVER,
            cas: None,
            has_twin: false,
            has_checks: true,
        };
        let checks = Checks {
            head: 0x0102_0304,
            value: 0x0506_0708,
        };
        let place = Chunks::place(0, 48);
        chunks.write(place, &header, State(7), b"abcde", Some(checks));
        let words =
            || -> [u32; 9] { std::array::from_fn(|at| chunks.word(place, at).load(Relaxed)) };
        let (abcd, e) = (u32::from_le_bytes(*b"abcd"), u32::from(b'e'));
        let Checks { head, value } = checks;
        let mut expected = [9 << 28 | 2, 5 << 24 | 9, 7, 11, abcd, e, head, value, 0];
        assert_eq!(words(), expected);
        assert_eq!(footprint(&header), 32);
        assert_eq!(chunks.header(place), header);
        assert_eq!(chunks.key(place, &header), b"abcde");
        assert_eq!(chunks.checks(place, &header), Some(checks));
        for _ in 0..2 {
            chunks.mark_dead(place);
            (expected[2], expected[6]) = (1 << 31 | 7, !head);
            assert_eq!(words(), expected, "once, and nothing else");
        }
    }
}
