//! One change of a tenant as the journal has it, byte for byte (`docs/format.md`, "Journal of a
//! tenant").
//!
//! A record is checked as a whole, with its file and its place in the check: what was left there by
//! somebody else, or written in part, is none.
//!
//! What it never does: read or write a file.

use crate::request::{KEY_LEN_MAX, Value};
use nyx_base::UnixSeconds;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes before the key.
const HEAD_BYTES: usize = 40;
/// Records begin at multiples of this many bytes.
pub(super) const ALIGN: usize = 8;
/// The longest value in bytes that a record can state.
const VALUE_LEN_LIMIT: usize = 1 << 24;

const STALE: u8 = 1;
const WIN_SENT: u8 = 2;
const HAS_CAS: u8 = 4;
const HAS_EXPIRY: u8 = 8;

/// What was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The item is this one.
    Set = 1,
    /// There is no such item.
    Delete = 2,
    /// The item ends then.
    Touch = 3,
    /// The value has this behind it.
    Append = 4,
    /// The value has this before it.
    Prepend = 5,
    /// The item is stale, and nobody has the token to recache it.
    Invalidate = 6,
    /// All that there was is flushed.
    Flush = 7,
    /// All that there will be at that second is to be flushed then.
    FlushLater = 8,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Set,
        Kind::Delete,
        Kind::Touch,
        Kind::Append,
        Kind::Prepend,
        Kind::Invalidate,
        Kind::Flush,
        Kind::FlushLater,
    ];
}

/// A change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    pub(crate) kind: Kind,
    pub(crate) key: &'a [u8],
    pub(crate) value: Value<'a>,
    pub(crate) flags: u32,
    /// The item's end, where the change gives it one.
    pub(crate) expiry: Option<UnixSeconds>,
    /// The item's CAS unique, where the client named it.
    pub(crate) cas: Option<u64>,
    pub(crate) stale: bool,
    pub(crate) win_sent: bool,
    /// When it was made: what ended by then, and what did not, is so again.
    pub(crate) at: UnixSeconds,
}

impl<'a> Change<'a> {
    /// A change of `key` that is nothing but its kind, made at a second.
    pub(crate) fn new(kind: Kind, key: &'a [u8], at: UnixSeconds) -> Change<'a> {
        Change {
            kind,
            key,
            at,
            value: Value::default(),
            flags: 0,
            expiry: None,
            cas: None,
            stale: false,
            win_sent: false,
        }
    }

    /// Bytes of its record, with a value of `value_len` bytes.
    #[inline]
    pub(super) fn len_with(&self, value_len: usize) -> usize {
        (HEAD_BYTES + self.key.len() + value_len).next_multiple_of(ALIGN)
    }

    /// Bytes of its record.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len_with(self.value.len())
    }

    /// Writes its record into `room`, which is as long as that; `fill` writes the value, of
    /// `value_len` bytes.
    #[inline]
    pub(super) fn encode_with(
        &self,
        room: &mut [u8],
        seed: u64,
        value_len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let mark = |is: bool, mark: u8| if is { mark } else { 0 };
        let marks = mark(self.stale, STALE)
            | mark(self.win_sent, WIN_SENT)
            | mark(self.cas.is_some(), HAS_CAS)
            | mark(self.expiry.is_some(), HAS_EXPIRY);
        let lens = [room.len() as u32, value_len as u32];
        let expiry = self.expiry.unwrap_or(UnixSeconds::NEVER);
        room[8..12].copy_from_slice(&lens[0].to_le_bytes());
        room[12..16].copy_from_slice(&[self.kind as u8, self.key.len() as u8, marks, 0]);
        room[16..20].copy_from_slice(&self.flags.to_le_bytes());
        room[20..24].copy_from_slice(&expiry.0.to_le_bytes());
        room[24..28].copy_from_slice(&lens[1].to_le_bytes());
        room[28..32].copy_from_slice(&self.at.0.to_le_bytes());
        room[32..40].copy_from_slice(&self.cas.unwrap_or_default().to_le_bytes());
        let value_at = HEAD_BYTES + self.key.len();
        room[HEAD_BYTES..value_at].copy_from_slice(self.key);
        fill(&mut room[value_at..value_at + value_len]);
        room[value_at + value_len..].fill(0);
        let check = xxh3_64_with_seed(&room[8..], seed);
        room[..8].copy_from_slice(&check.to_le_bytes());
    }

    /// Writes its record into `room`, which is as long as that.
    #[inline]
    pub(super) fn encode(&self, room: &mut [u8], seed: u64) {
        let Value { head, tail } = self.value;
        self.encode_with(room, seed, self.value.len(), |value| {
            value[..head.len()].copy_from_slice(head);
            value[head.len()..].copy_from_slice(tail);
        });
    }

    /// The change at the begin of `bytes`, and the length of its record; none where there is none.
    pub(super) fn decode(bytes: &'a [u8], seed: u64) -> Option<(Change<'a>, usize)> {
        let head = bytes.get(..HEAD_BYTES)?;
        let u32_at = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let (len, value_len) = (u32_at(8) as usize, u32_at(24) as usize);
        let (key_len, marks) = (usize::from(head[13]), head[14]);
        let kind = Kind::ALL.into_iter().find(|&kind| kind as u8 == head[12])?;
        let needs = (HEAD_BYTES + key_len + value_len.min(VALUE_LEN_LIMIT)).next_multiple_of(ALIGN);
        if len != needs || key_len > KEY_LEN_MAX || len > bytes.len() {
            return None;
        }
        if xxh3_64_with_seed(&bytes[8..len], seed) != u64_at(0) {
            return None;
        }
        let (key, value) = bytes[HEAD_BYTES..HEAD_BYTES + key_len + value_len].split_at(key_len);
        let change = Change {
            kind,
            key,
            value: value.into(),
            flags: u32_at(16),
            expiry: (marks & HAS_EXPIRY != 0).then_some(UnixSeconds(u32_at(20))),
            cas: (marks & HAS_CAS != 0).then_some(u64_at(32)),
            stale: marks & STALE != 0,
            win_sent: marks & WIN_SENT != 0,
            at: UnixSeconds(u32_at(28)),
        };
        Some((change, len))
    }
}

/// The seed of the checks of records at `at` in the file of that number.
pub(super) fn seed(number: u64, at: usize) -> u64 {
    number << 32 ^ at as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Byte for byte, so that no edit changes the format unnoticed.
    #[test]
    fn a_record_is_the_documented_bytes() {
        let change = Change {
            value: b"value".as_slice().into(),
            flags: 0x0403_0201,
            expiry: Some(UnixSeconds(0x1413_1211)),
            cas: Some(0x2726_2524_2322_2120),
            stale: true,
            ..Change::new(Kind::Set, b"key", UnixSeconds(0x1b1a_1918))
        };
        let mut room = vec![0xff; change.len()];
        change.encode(&mut room, seed(1, 64));
        let mut expected = Vec::from([48, 0, 0, 0, 1, 3, STALE | HAS_CAS | HAS_EXPIRY, 0]);
        expected.extend([1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 5, 0, 0, 0]);
        expected.extend([0x18, 0x19, 0x1a, 0x1b]);
        expected.extend([0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27]);
        expected.extend(b"keyvalue");
        assert_eq!(room[8..], expected);
        let check = xxh3_64_with_seed(&expected, 1 << 32 ^ 64);
        assert_eq!(room[..8], check.to_le_bytes());
    }

    proptest! {
        #[test]
        fn changes_come_back_as_they_were(
            kind in 0..Kind::ALL.len(),
            key in prop::collection::vec(any::<u8>(), 0..=KEY_LEN_MAX),
            value in prop::collection::vec(any::<u8>(), 0..300),
            split in 0.0..1.0,
            numbers: (u32, Option<u32>, Option<u64>),
            marks: (bool, bool),
            at: u32,
            flip: prop::sample::Index,
        ) {
            let (head, tail) = value.split_at((split * value.len() as f64) as usize);
            let change = Change {
                value: Value { head, tail },
                flags: numbers.0,
                expiry: numbers.1.map(UnixSeconds),
                cas: numbers.2,
                stale: marks.0,
                win_sent: marks.1,
                ..Change::new(Kind::ALL[kind], &key, UnixSeconds(at))
            };
            let mut room = vec![0xff; change.len()];
            change.encode(&mut room, 7);
            let (found, len) = Change::decode(&room, 7).expect("it is whole");
            prop_assert_eq!((found.kind, found.key), (change.kind, &key[..]));
            prop_assert_eq!(found.value.head, &value[..]);
            prop_assert_eq!(found.at, change.at);
            let named = (found.flags, found.expiry, found.cas);
            prop_assert_eq!(named, (numbers.0, change.expiry, numbers.2));
            prop_assert_eq!((found.stale, found.win_sent, len), (marks.0, marks.1, room.len()));
            prop_assert!(Change::decode(&room, 8).is_none(), "in another place");
            let (short, _) = room.split_at(len - 1);
            prop_assert!(Change::decode(short, 7).is_none(), "cut");
            let byte = flip.index(len);
            room[byte] ^= 0x10;
            prop_assert!(Change::decode(&room, 7).is_none(), "byte {} changed", byte);
        }
    }
}
