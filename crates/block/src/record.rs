//! What the fast device says of a slot: one word, which is stored whole or not at all.
//!
//! ```text
//! bits 0..32   line of the image
//! bits 32..48  which of its blocks are dirty; none where the whole line is clean
//! bits 48..63  check
//! bit  63      1; a slot that holds nothing has the word 0
//! ```
//!
//! Of a dirty line only the dirty blocks count after a restart: all others are as the deep device
//! has them. A clean line is whole.
//!
//! A slot has two such words. Its *record* is true after a power failure. Its *claim* is true as
//! long as the machine runs: it tells of dirty blocks as soon as they were written, before anybody
//! has flushed them, so that a process that is killed loses nothing that it answered.
//!
//! What it never does: say something that is not so. The cache stores a word after what it says
//! is durable.

use crate::geometry::Mask;
use xxhash_rust::xxh3::xxh3_64;

const PRESENT: u64 = 1 << 63;
const CHECK_BITS: u64 = (1 << 15) - 1;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Nothing.
    Free,
    /// A line, whole and as the deep device has it.
    Clean {
        /// Which line of the image.
        line: u32,
    },
    /// Blocks of a line that the deep device does not have yet.
    Dirty {
        /// Which line of the image.
        line: u32,
        /// Which blocks, at least one.
        blocks: Mask,
    },
}

impl Record {
    /// The word of a slot.
    pub fn encode(self, slot: u32) -> u64 {
        let (line, blocks) = match self {
            Record::Free => return 0,
            Record::Clean { line } => (line, 0),
            Record::Dirty { line, blocks } => (line, blocks),
        };
        let body = u64::from(line) | u64::from(blocks) << 32;
        PRESENT | check(slot, body) << 48 | body
    }

    /// What a slot's word says; none where it is damaged.
    pub fn decode(slot: u32, word: u64) -> Option<Record> {
        if word == 0 {
            return Some(Record::Free);
        }
        let body = word & ((1 << 48) - 1);
        if word & PRESENT == 0 || (word >> 48) & CHECK_BITS != check(slot, body) {
            return None;
        }
        let line = body as u32;
        Some(match (body >> 32) as Mask {
            0 => Record::Clean { line },
            blocks => Record::Dirty { line, blocks },
        })
    }
}

/// With the slot's number: a record elsewhere is none.
fn check(slot: u32, body: u64) -> u64 {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&body.to_le_bytes());
    bytes[8..].copy_from_slice(&slot.to_le_bytes());
    xxh3_64(&bytes) & CHECK_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_what_was_meant() {
        let line = 0xdead_beef;
        for record in [
            Record::Free,
            Record::Clean { line },
            Record::Clean { line: 0 },
            Record::Dirty { line, blocks: 9 },
        ] {
            assert_eq!(Record::decode(7, record.encode(7)), Some(record));
        }
    }

    #[test]
    fn a_flipped_bit_or_another_slot_is_noticed() {
        let word = Record::Dirty {
            line: 77,
            blocks: 3,
        }
        .encode(5);
        let found = (0..64).filter(|bit| Record::decode(5, word ^ 1 << bit).is_some());
        assert_eq!(found.count(), 0);
        assert_eq!(Record::decode(6, word), None);
    }

    /// Bit for bit, so that no edit changes the format unnoticed.
    #[test]
    fn the_words_are_the_documented_ones() {
        let dirty = Record::Dirty {
            line: 0x0102_0304,
            blocks: 0x8001,
        };
        let word = dirty.encode(2);
        assert_eq!(word & 0xffff_ffff_ffff, 0x8001_0102_0304);
        let mut checked = 0x8001_0102_0304u64.to_le_bytes().to_vec();
        checked.extend(2u32.to_le_bytes());
        assert_eq!(word >> 48, 0x8000 | xxh3_64(&checked) & 0x7fff);
        assert_eq!(Record::Free.encode(2), 0);
    }
}
