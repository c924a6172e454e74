//! What deep items take of memory, for those who plan a tenant before there is one.
//!
//! What it never does: look at a store.

use crate::chunks::CHUNK_BYTES;
use crate::header::{Checks, WORDS_MIN};
use crate::space::DEEP_KEYS_ONE_IN;

/// Bytes of index that an item takes, at least and at most (docs/decisions/0011-two-tiers.md).
const INDEX_BYTES: [u64; 2] = [8, 16];

/// Bytes of DRAM that an item on the deep device takes, at least and at most: header, key of that
/// length, checks and index. Flags, an expiry and an explicit CAS unique take 4, 4 and 8 more.
pub fn deep_item_dram_bytes(key_len: u8) -> [u64; 2] {
    INDEX_BYTES.map(|index| index + record_bytes(key_len))
}

/// How many bytes of values a tenant can have deep, as far as keys of that length leave room in its
/// `size` for values of that length; both devices are what they are.
///
/// Panics where a value is longer than a segment, or has no bytes.
pub fn deep_fillable_bytes(size: u64, segment_bytes: u64, key_len: u8, value_len: u32) -> u64 {
    let items = segment_bytes / u64::from(value_len);
    assert!(
        items > 0,
        "a value of {value_len} B in a segment of {segment_bytes} B"
    );
    let chunk = u64::from(CHUNK_BYTES);
    // A chunk belongs to one segment, and has whole records.
    let per_chunk = chunk / record_bytes(key_len);
    let chunks = items.div_ceil(per_chunk);
    size / DEEP_KEYS_ONE_IN / (chunks * chunk) * segment_bytes
}

/// Header, key and checks in their chunk.
fn record_bytes(key_len: u8) -> u64 {
    let head = 4 * WORDS_MIN + usize::from(key_len);
    (head.next_multiple_of(4) + size_of::<Checks>()).next_multiple_of(8) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunks::footprint;
    use crate::header::Header;
    use nyx_base::UnixSeconds;

    #[test]
    fn an_item_takes_what_its_record_takes_and_its_index() {
        for key_len in [1, 20, 30, 250] {
            let header = Header {
                value_offset: 0,
                value_len: 1000,
                key_len,
                flags: 0,
                expiry: UnixSeconds::NEVER,
                cas: None,
                has_twin: false,
                has_checks: true,
            };
            assert_eq!(record_bytes(key_len), u64::from(footprint(&header)));
        }
        assert_eq!(deep_item_dram_bytes(30), [64, 72]);
    }

    #[test]
    fn a_segment_takes_a_chunk_at_least() {
        let (gib, mib) = (1 << 30, 1 << 20);
        // 32 times its size with segments of 1 MiB, as long as their keys are in one chunk.
        assert_eq!(deep_fillable_bytes(gib, mib, 30, 1 << 20), 32 * gib);
        assert_eq!(deep_fillable_bytes(gib, mib, 30, 16 << 10), 32 * gib);
        // 292 records of 56 B are in a chunk; 1 MiB is 1024 values of 1 KiB, in four chunks.
        assert_eq!(deep_fillable_bytes(gib, mib, 30, 1 << 10), 8 * gib);
        assert_eq!(deep_fillable_bytes(gib, 64 << 10, 30, 1 << 14), 2 * gib);
    }
}
