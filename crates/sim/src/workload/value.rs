//! Values whose bytes follow from their key and a version, so that a client that reads one can tell
//! whether it is whole, and the right one, without remembering what it wrote.
//!
//! A value of at least 16 bytes begins with its version in hexadecimal; the rest (or the whole of a
//! shorter one, whose version is then lost) is a stretch of fixed printable noise that starts at a
//! place drawn from key and version.
//!
//! What it never does: produce a line end, so that a reply that is cut in the wrong place is
//! noticed by its framing.

use super::spread;
use nyx_base::Rng;

const NOISE_BYTES: usize = 1 << 16;
const VERSION_BYTES: usize = 16;
const HEX: &[u8; 16] = b"0123456789abcdef";

/// Writes and checks values. About 128 KiB; one per thread, or shared: it is never changed.
#[derive(Clone, Debug)]
pub struct Values {
    /// The noise twice over, so that a stretch of up to `NOISE_BYTES` is contiguous from any start.
    noise: Vec<u8>,
}

impl Default for Values {
    fn default() -> Values {
        Values::new()
    }
}

impl Values {
    /// The one set of values that there is: writers and readers need not agree on anything.
    pub fn new() -> Values {
        const LETTERS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut rng = Rng::with_seed(0x6e79_7876_616c_7565);
        let mut noise: Vec<u8> = (0..NOISE_BYTES)
            .map(|_| LETTERS[rng.usize(0..64)])
            .collect();
        noise.extend_from_within(..);
        Values { noise }
    }

    /// Appends the value of `len` bytes of `key` in `version`.
    pub fn write(&self, key: u64, version: u64, len: usize, out: &mut Vec<u8>) {
        let mut left = len;
        let mut start = start_of(key, 0);
        if len >= VERSION_BYTES {
            out.extend(
                (0..VERSION_BYTES)
                    .rev()
                    .map(|i| HEX[(version >> (4 * i)) as usize & 15]),
            );
            left -= VERSION_BYTES;
            start = start_of(key, version);
        }
        while left > 0 {
            let n = left.min(NOISE_BYTES);
            out.extend_from_slice(&self.noise[start..start + n]);
            left -= n;
        }
    }

    /// Whether `bytes` is a whole value of `key`, of any version.
    pub fn verify(&self, key: u64, bytes: &[u8]) -> bool {
        let (start, rest) = match bytes.split_at_checked(VERSION_BYTES) {
            None => (start_of(key, 0), bytes),
            Some((head, rest)) => match read_hex(head) {
                None => return false,
                Some(version) => (start_of(key, version), rest),
            },
        };
        rest.chunks(NOISE_BYTES)
            .all(|chunk| *chunk == self.noise[start..start + chunk.len()])
    }
}

fn start_of(key: u64, version: u64) -> usize {
    spread(spread(key) ^ version) as usize % NOISE_BYTES
}

fn read_hex(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |version, digit| {
        let nibble = (*digit as char).to_digit(16)?;
        Some(version << 4 | u64::from(nibble))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(key: u64, version: u64, len: usize) -> Vec<u8> {
        let mut out = Vec::new();
        Values::new().write(key, version, len, &mut out);
        out
    }

    #[test]
    fn lengths_are_exact_and_there_is_no_line_end() {
        for len in [0, 1, 15, 16, 17, 100, NOISE_BYTES + 15, 3 * NOISE_BYTES] {
            let v = value(9, 4, len);
            assert_eq!(v.len(), len);
            assert!(Values::new().verify(9, &v), "{len} B");
            assert!(v.iter().all(|b| b.is_ascii_graphic()), "{len} B");
        }
    }

    #[test]
    fn anothers_value_a_torn_one_and_a_cut_one_are_noticed() {
        let values = Values::new();
        assert!(!values.verify(8, &value(9, 4, 100)));
        let mut torn = value(9, 4, 100);
        torn[60..].copy_from_slice(&value(9, 5, 100)[60..]);
        assert!(!values.verify(9, &torn));
        assert!(!values.verify(9, &value(9, 4, 100)[1..]));
    }

    proptest! {
        #[test]
        fn any_flipped_byte_is_noticed(key: u64, version: u64, len in 17usize..500, at: usize) {
            let mut v = value(key, version, len);
            let at = 16 + at % (len - 16);
            v[at] ^= 1;
            prop_assert!(!Values::new().verify(key, &v));
        }
    }
}
