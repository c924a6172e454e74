//! Copies from and to memory that several threads may read and write at once: 64-bit words, each
//! as a whole, so that no byte is torn and nothing is undefined.
//!
//! What it never does: order the words of a copy; a reader may see the old and the new beside each
//! other.
//!
//! *Thread safety*: any number of copies at once.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const WORD: usize = 8;

/// Words of memory that is shared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a>(&'a [AtomicU64]);

impl Words<'_> {
    /// # Safety
    ///
    /// So many bytes, a multiple of 8, may be read and written at `base`, a multiple of 8 too, and
    /// meanwhile nobody reaches them other than by atomic words or from outside of this program.
    pub(super) unsafe fn at<'a>(base: NonNull<u8>, len: usize) -> Words<'a> {
        debug_assert!(len.is_multiple_of(WORD) && (base.as_ptr() as usize).is_multiple_of(WORD));
        // SAFETY: as the caller promises.
        Words(unsafe { std::slice::from_raw_parts(base.cast().as_ptr(), len / WORD) })
    }

    /// Fills `into` with what is there from byte `at` on.
    pub(super) fn read(self, at: usize, into: &mut [u8]) {
        each_word(at, into.len(), |word, within, of| {
            let bytes = self.0[word].load(Relaxed).to_le_bytes();
            into[of].copy_from_slice(&bytes[within]);
        });
    }

    /// Writes `from` there; the bytes beside it stay as others write them.
    pub(super) fn write(self, at: usize, from: &[u8]) {
        each_word(at, from.len(), |word, within, of| {
            let whole = |old: u64| {
                let mut bytes = old.to_le_bytes();
                bytes[within.clone()].copy_from_slice(&from[of.clone()]);
                u64::from_le_bytes(bytes)
            };
            if within.len() == WORD {
                return self.0[word].store(whole(0), Relaxed);
            }
            let changed = self.0[word].fetch_update(Relaxed, Relaxed, |old| Some(whole(old)));
            changed.expect("it is always changed");
        });
    }
}

/// Splits a range of bytes by words: which word, which of its bytes, which of the range's.
fn each_word(at: usize, len: usize, mut piece: impl FnMut(usize, Range<usize>, Range<usize>)) {
    let mut done = 0;
    while done < len {
        let begin = (at + done) % WORD;
        let bytes = (WORD - begin).min(len - done);
        piece((at + done) / WORD, begin..begin + bytes, done..done + bytes);
        done += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_range_is_read_as_it_was_written_and_nothing_beside_it_changes() {
        let mut memory = [0u64; 8];
        let base = NonNull::from(&mut memory).cast();
        // SAFETY: the array is reached through this only, while it is.
        let words = unsafe { Words::at(base, 64) };
        for begin in 0..64 {
            for end in begin..=64 {
                words.write(0, &[0xee; 64]);
                let from: Vec<u8> = (begin..end).map(|byte| byte as u8).collect();
                words.write(begin, &from);
                let mut whole = [0; 64];
                words.read(0, &mut whole);
                for (at, &byte) in whole.iter().enumerate() {
                    let expected = if (begin..end).contains(&at) {
                        at as u8
                    } else {
                        0xee
                    };
                    assert_eq!(byte, expected, "{begin}..{end} at {at}");
                }
                let mut part = vec![0; end - begin];
                words.read(begin, &mut part);
                assert_eq!(part, from);
            }
        }
    }
}
