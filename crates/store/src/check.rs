//! What tells an item that is to survive from rubbish: a check of its head, by which whoever finds
//! a place knows that an item begins there, and one of its value.
//!
//! The check of a head covers key and lengths, the check of the value, and *which* use of which
//! chunk it lies in (the item's unique number), so that what an earlier use left behind is none.
//! Not covered are state and expiry, which change in place. The check of a value is that of its
//! bytes and of the key; it does not change when the item moves.
//!
//! What it never does: touch memory.

use crate::header::Header;
use crate::request::{KeyHash, Value};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// The check of a head; `unique` is the number of its place, `value` the check of its value.
#[inline]
pub(crate) fn head(header: &Header, hash: KeyHash, unique: u64, value: u32) -> u32 {
    let lengths = u64::from(header.value_len) | u64::from(header.value_offset) << 32;
    let rest = u64::from(header.key_len) | u64::from(header.flags) << 32;
    let cas = header.cas.map_or(0, |cas| !cas);
    let mut sum = hash.0;
    for part in [unique, lengths, rest, cas, u64::from(value)] {
        sum = (sum ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        sum ^= sum >> 32;
    }
    sum as u32
}

/// The check of a value.
#[inline]
pub(crate) fn value(hash: KeyHash, value: Value<'_>) -> u32 {
    if value.tail.is_empty() {
        return xxh3_64_with_seed(value.head, hash.0) as u32;
    }
    let mut pieces = Pieces::new(hash);
    pieces.add(value.head);
    pieces.add(value.tail);
    pieces.check()
}

/// The check of a value that comes in pieces.
pub(crate) struct Pieces(Xxh3);

impl Pieces {
    pub(crate) fn new(hash: KeyHash) -> Pieces {
        Pieces(Xxh3::with_seed(hash.0))
    }

    pub(crate) fn add(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    pub(crate) fn check(&self) -> u32 {
        self.0.digest() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_base::UnixSeconds;

    #[test]
    fn pieces_and_wholes_agree() {
        let bytes: Vec<u8> = (0..1000u32).map(|byte| byte as u8).collect();
        let whole = value(KeyHash(7), Value::from(&bytes[..]));
        for cut in [1, 240, 512, 999] {
            let (head, tail) = bytes.split_at(cut);
            assert_eq!(value(KeyHash(7), Value { head, tail }), whole);
        }
        assert_ne!(value(KeyHash(8), Value::from(&bytes[..])), whole);
    }

    #[test]
    fn every_field_of_a_head_counts() {
        let header = Header {
            value_offset: 8,
            value_len: 9,
            key_len: 10,
            flags: 11,
            expiry: UnixSeconds(12),
            cas: Some(13),
            has_twin: false,
            has_checks: true,
        };
        let sum = head(&header, KeyHash(1), 2, 14);
        assert_ne!(head(&header, KeyHash(2), 2, 14), sum);
        assert_ne!(head(&header, KeyHash(1), 3, 14), sum);
        assert_ne!(head(&header, KeyHash(1), 2, 15), sum);
        let others = [
            Header {
                value_offset: 12,
                ..header
            },
            Header {
                value_len: 8,
                ..header
            },
            Header {
                key_len: 11,
                ..header
            },
            Header { flags: 0, ..header },
            Header {
                cas: None,
                ..header
            },
            Header {
                cas: Some(14),
                ..header
            },
        ];
        for other in others {
            assert_ne!(head(&other, KeyHash(1), 2, 14), sum, "{other:?}");
        }
        let touched = Header {
            expiry: UnixSeconds(99),
            ..header
        };
        assert_eq!(
            head(&touched, KeyHash(1), 2, 14),
            sum,
            "it changes in place"
        );
    }
}
