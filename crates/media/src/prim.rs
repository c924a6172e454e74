//! Copies between a medium and ordinary memory, and the instructions that make stores durable.
//!
//! A medium's bytes may be rewritten by one thread while another reads them. A Rust reference or a
//! `ptr::copy` would make that undefined behaviour; these copies are inline assembly (or relaxed
//! atomics where there is none), so a racing reader gets stale or mixed bytes and nothing worse.
//!
//! NyxCache section 3.5: reads by ordinary loads, so that the CPU prefetches; writes by
//! non-temporal stores, which reach up to three times the throughput on Optane. Only whole,
//! aligned cache lines are stored non-temporally: a part of one would be a read-modify-write in
//! the memory controller.
//!
//! What this module never does: check ranges (callers do, once) or allocate.
//!
//! *Thread safety*: [`Prim`] is a choice, made once and copied; it has no state.

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[path = "prim/x86.rs"]
mod arch;
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[path = "prim/other.rs"]
mod arch;
mod portable;

#[cfg(not(loom))]
pub use arch::store_word;
pub use arch::{prefetch, prefetch_once, prefetch_write};

use std::sync::atomic::AtomicU64;

/// The size of a cache line in bytes.
pub const LINE_BYTES: usize = 64;
/// The least that a non-temporal store of a general register writes, in bytes.
const WORD_BYTES: usize = 8;
/// At most this many lines are prefetched at once: cores track 10 to 16 outstanding misses.
pub const PREFETCH_LINES_MAX: usize = 8;

/// A cache line of words.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Line(pub [AtomicU64; LINE_BYTES / WORD_BYTES]);

/// The widest copies that this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CopyLevel {
    /// Relaxed atomics, any processor. Non-temporal copies are ordinary ones.
    Portable,
    /// 16-byte registers, every x86-64.
    Sse2,
    /// 32-byte registers.
    Avx2,
    /// 64-byte registers: a cache line in one store.
    Avx512,
}

/// The instruction that writes a cache line back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlushLevel {
    /// There is none: ordinary fences only.
    None,
    /// `clflush`: evicts, one line after the other.
    Clflush,
    /// `clflushopt`: evicts, several at a time.
    Clflushopt,
    /// `clwb`: writes back, may keep the line.
    Clwb,
}

/// What this processor's copies and flushes are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prim {
    copy: CopyLevel,
    flush: FlushLevel,
}

impl Prim {
    /// The best that this processor has. Asks the processor: call it once at start.
    pub fn detect() -> Prim {
        Prim {
            copy: arch::copy_level(),
            flush: arch::flush_level(),
        }
    }

    /// The same with narrower copies, for comparisons and tests. `None` where the processor does
    /// not have that level.
    pub fn with_copy(self, copy: CopyLevel) -> Option<Prim> {
        (copy <= arch::copy_level()).then_some(Prim { copy, ..self })
    }

    /// Which copies were chosen.
    pub fn copy_level(self) -> CopyLevel {
        self.copy
    }

    /// Which flush was chosen.
    pub fn flush_level(self) -> FlushLevel {
        self.flush
    }

    /// Which of the words of a line is `word`: the first. Each is loaded in one piece, by an
    /// acquire load, though not in the order of the others.
    ///
    /// For whoever looks at many lines that are not near: a core waits for as many at once as it
    /// can begin instructions ahead, so these are few, and none of them is a branch that depends
    /// on which word it is.
    #[inline]
    pub fn find_word(self, line: &Line, word: u64) -> Option<usize> {
        arch::find_word(self.copy, line, word)
    }

    /// Copies `len` bytes by ordinary loads and stores, in either direction.
    ///
    /// # Safety
    ///
    /// `from` is readable and `into` writable for `len` bytes and they do not overlap. The side
    /// that is not a medium is not accessed by any other thread meanwhile; the medium's side may
    /// be, through this module alone.
    #[inline]
    pub unsafe fn copy(self, into: *mut u8, from: *const u8, len: usize) {
        // SAFETY: the caller's promise; the level is one that `detect` found on this processor.
        unsafe { arch::copy(self.copy, into, from, len) }
    }

    /// Copies `len` bytes to a medium: whole aligned lines by non-temporal stores, the rest by
    /// ordinary ones. When it returns, the bytes are ordered before every later store of this
    /// thread, as ordinary stores are.
    ///
    /// # Safety
    ///
    /// As [`Self::copy`].
    #[inline]
    pub unsafe fn copy_nt(self, into: *mut u8, from: *const u8, len: usize) {
        let head = into.align_offset(LINE_BYTES).min(len);
        let whole = (len - head) / LINE_BYTES * LINE_BYTES;
        if whole == 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.copy(into, from, len) };
        }
        let tail = head + whole;
        // SAFETY: the three ranges partition the caller's, and the middle one begins at a line.
        unsafe {
            self.copy(into, from, head);
            arch::copy_lines_nt(
                self.copy,
                into.add(head),
                from.add(head),
                whole / LINE_BYTES,
            );
            self.copy(into.add(tail), from.add(tail), len - tail);
        }
        fence();
    }

    /// Copies `len` bytes to a medium by non-temporal stores wherever there are such: whole lines
    /// where `into` begins one, then words of 8 bytes, and ordinary stores for what is left. Slower
    /// than [`Self::copy_nt`] for parts of a line; published measurements of devices store so.
    /// [`fence`] then orders them.
    ///
    /// # Safety
    ///
    /// As [`Self::copy`].
    pub unsafe fn copy_nt_words(self, into: *mut u8, from: *const u8, len: usize) {
        let lines = match (into as usize).is_multiple_of(LINE_BYTES) {
            true => len / LINE_BYTES,
            false => 0,
        };
        let words_at = lines * LINE_BYTES;
        let words = match self.copy {
            CopyLevel::Portable => 0,
            _ => (len - words_at) / WORD_BYTES,
        };
        let rest = words_at + words * WORD_BYTES;
        // SAFETY: the three ranges partition the caller's, and the first one begins at a line.
        unsafe {
            if lines > 0 {
                arch::copy_lines_nt(self.copy, into, from, lines);
            }
            arch::copy_words_nt(into.add(words_at), from.add(words_at), words);
            self.copy(into.add(rest), from.add(rest), len - rest);
        }
    }

    /// Writes the cache lines of `[at, at + len)` back to the medium; [`fence`] then waits for it.
    ///
    /// # Safety
    ///
    /// The range is mapped.
    pub unsafe fn flush(self, at: *const u8, len: usize) {
        if len == 0 {
            return;
        }
        let skew = at as usize % LINE_BYTES;
        let lines = (skew + len).div_ceil(LINE_BYTES);
        // SAFETY: every line holds at least one byte of the caller's range, so its page is mapped.
        unsafe { arch::flush_lines(self.flush, at.wrapping_sub(skew), lines) }
    }
}

/// Orders all earlier stores and flushes of this thread, non-temporal ones too, before all later
/// stores.
#[inline]
pub fn fence() {
    arch::fence();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_word_is_found_when_both_of_its_halves_are_equal() {
        let words = [0, 1, 1 << 32, 1 << 32 | 1, u64::MAX, u64::MAX << 32];
        let line = Line::default();
        for prim in levels() {
            let pairs = words.map(|held| words.map(|asked| (held, asked)));
            for (at, (held, asked)) in
                (0..8).flat_map(|at| pairs.into_iter().flatten().map(move |pair| (at, pair)))
            {
                line.0.iter().for_each(|word| word.store(7, Relaxed));
                line.0[at].store(held, Relaxed);
                let expected = (held == asked).then_some(at);
                assert_eq!(prim.find_word(&line, asked), expected, "{held:x} {asked:x}");
            }
            line.0.iter().for_each(|word| word.store(7, Relaxed));
            assert_eq!(prim.find_word(&line, 7), Some(0));
        }
    }

    /// Every level of this processor, from the plainest on.
    fn levels() -> Vec<Prim> {
        use CopyLevel::{Avx2, Avx512, Portable, Sse2};
        let best = Prim::detect();
        [Portable, Sse2, Avx2, Avx512]
            .into_iter()
            .filter_map(|l| best.with_copy(l))
            .collect()
    }

    /// Bytes in which every 251 neighbours differ, so that a shifted copy shows.
    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i % 251) as u8 + 1).collect()
    }

    const MARGIN: usize = 128;

    /// The ways to copy.
    #[derive(Clone, Copy, Debug)]
    enum Way {
        Cached,
        NonTemporal,
        NonTemporalWords,
    }

    const WAYS: [Way; 3] = [Way::Cached, Way::NonTemporal, Way::NonTemporalWords];

    /// Copies `len` bytes with these misalignments and checks every byte, the margins too.
    fn check(prim: Prim, way: Way, len: usize, from_skew: usize, into_skew: usize) {
        let source = pattern(from_skew + len);
        let mut target = vec![0u8; MARGIN + into_skew + len + MARGIN];
        let aligned = target.as_ptr().align_offset(LINE_BYTES);
        let at = aligned + into_skew;
        let (from, into) = (&source[from_skew..], &mut target[at..at + len]);
        // SAFETY: both slices have `len` bytes and belong to different vectors of this thread.
        unsafe {
            match way {
                Way::Cached => prim.copy(into.as_mut_ptr(), from.as_ptr(), len),
                Way::NonTemporal => prim.copy_nt(into.as_mut_ptr(), from.as_ptr(), len),
                Way::NonTemporalWords => {
                    prim.copy_nt_words(into.as_mut_ptr(), from.as_ptr(), len);
                    fence();
                }
            }
        }
        let context = format!("{prim:?} {way:?} len={len} {from_skew}->{into_skew}");
        assert_eq!(&target[at..at + len], from, "{context}");
        assert!(
            target[..at].iter().all(|&b| b == 0),
            "wrote before: {context}"
        );
        assert!(
            target[at + len..].iter().all(|&b| b == 0),
            "wrote behind: {context}"
        );
    }

    #[test]
    fn every_size_to_600_and_beyond_copies_exactly_at_every_level() {
        for prim in levels() {
            for way in WAYS {
                for len in (0..=600).chain([1023, 1024, 4095, 4096, 4097, 8192, 70_001]) {
                    for (from_skew, into_skew) in [(0, 0), (1, 0), (0, 1), (7, 57), (33, 63)] {
                        check(prim, way, len, from_skew, into_skew);
                    }
                }
            }
        }
    }

    #[test]
    fn every_alignment_copies_exactly_at_every_level() {
        for prim in levels() {
            for len in [5, 64, 100, 129, 256, 300] {
                for from_skew in 0..LINE_BYTES {
                    for into_skew in 0..LINE_BYTES {
                        check(prim, WAYS[from_skew % 3], len, from_skew, into_skew);
                    }
                }
            }
        }
    }

    #[test]
    fn the_best_level_of_this_processor_is_taken() {
        let prim = Prim::detect();
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let expected = if std::is_x86_feature_detected!("avx512f") {
                CopyLevel::Avx512
            } else if std::is_x86_feature_detected!("avx2") {
                CopyLevel::Avx2
            } else {
                CopyLevel::Sse2
            };
            assert_eq!(prim.copy_level(), expected);
            let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
            let has = |flag| flags.split_whitespace().any(|word| word == flag);
            assert_eq!(prim.flush_level() == FlushLevel::Clwb, has("clwb"));
        }
        assert_eq!(
            prim.with_copy(CopyLevel::Portable).map(Prim::copy_level),
            Some(CopyLevel::Portable)
        );
    }

    #[test]
    fn flushing_changes_no_byte_and_takes_any_range() {
        let bytes = pattern(1000);
        for flush in [
            FlushLevel::None,
            FlushLevel::Clflush,
            Prim::detect().flush_level(),
        ] {
            let prim = Prim {
                copy: CopyLevel::Portable,
                flush,
            };
            for (at, len) in [(0, 0), (0, 1), (63, 2), (1, 999), (999, 1)] {
                // SAFETY: the range lies inside the vector.
                unsafe { prim.flush(bytes.as_ptr().add(at), len) };
            }
            fence();
        }
        assert_eq!(bytes, pattern(1000));
    }

    /// A reader that races with a writer sees whole old or new bytes, never others.
    #[test]
    fn a_racing_read_mixes_old_and_new_bytes_only() {
        let region = crate::Region::reserve(4096, false).expect("a page");
        let writer = |prim: Prim, region: &crate::Region| {
            for round in 0..2_000u32 {
                let value = [1 + (round % 2) as u8 * 6; 1000];
                // SAFETY: 1000 bytes inside the region; the reader uses this module as well.
                unsafe { prim.copy_nt(region.base().as_ptr(), value.as_ptr(), value.len()) };
            }
        };
        for prim in levels() {
            std::thread::scope(|scope| {
                scope.spawn(|| writer(prim, &region));
                for _ in 0..2_000 {
                    let mut seen = [0u8; 1000];
                    // SAFETY: as above.
                    unsafe { prim.copy(seen.as_mut_ptr(), region.base().as_ptr(), seen.len()) };
                    assert!(seen.iter().all(|b| [0, 1, 7].contains(b)));
                }
            });
        }
    }

    #[test]
    fn prefetch_takes_any_address() {
        let bytes = [0u8; 16];
        prefetch(bytes.as_ptr(), 1 << 20);
        prefetch(std::ptr::null(), 64);
        prefetch_write(bytes.as_ptr(), 1 << 20);
        prefetch_write(std::ptr::null(), 64);
    }
}
