//! Keys as text: a prefix and the key's index in decimal, padded with zeros to a fixed length.
//!
//! What it never does: allocate once the destination has room.

use super::WorkloadError;

/// The longest key that memcached's protocol allows, in bytes.
pub const KEY_LEN_MAX: usize = 250;

/// A set of keys `0..n` and how they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySpace {
    /// The prefix and then zeros up to the length of a key.
    template: Vec<u8>,
    prefix_len: usize,
}

impl KeySpace {
    /// Keys `0..n` of `len` bytes each that begin with `prefix`.
    ///
    /// Refuses a length in which the keys would not all be distinct, or that the protocol forbids.
    pub fn new(prefix: &str, n: u64, len: usize) -> Result<KeySpace, WorkloadError> {
        let digits = n.saturating_sub(1).max(1).ilog10() as usize + 1;
        let need = prefix.len() + digits;
        if len < need || len > KEY_LEN_MAX {
            return Err(WorkloadError::KeyLen {
                keys: n,
                prefix: prefix.to_owned(),
                need,
                len,
            });
        }
        let mut template = prefix.as_bytes().to_vec();
        template.resize(len, b'0');
        Ok(KeySpace {
            template,
            prefix_len: prefix.len(),
        })
    }

    /// The length of every key, in bytes.
    #[inline]
    pub fn key_len(&self) -> usize {
        self.template.len()
    }

    /// Appends the text of key `index`.
    #[inline]
    pub fn write(&self, index: u64, out: &mut Vec<u8>) {
        let start = out.len() + self.prefix_len;
        out.extend_from_slice(&self.template);
        put_decimal(index, &mut out[start..]);
    }
}

/// Appends a key of a trace: `prefix` and `id` in decimal, padded with zeros to `len` bytes, and
/// longer than that where the number needs it.
pub fn write_padded(prefix: &[u8], id: u64, len: usize, out: &mut Vec<u8>) {
    let digits = id.max(1).ilog10() as usize + 1;
    let width = digits.max(len.min(KEY_LEN_MAX).saturating_sub(prefix.len()));
    out.extend_from_slice(prefix);
    let start = out.len();
    out.resize(start + width, b'0');
    put_decimal(id, &mut out[start..]);
}

/// Writes the digits of `n` right-aligned over a field of zeros that is wide enough.
#[inline]
fn put_decimal(mut n: u64, field: &mut [u8]) {
    for digit in field.iter_mut().rev() {
        if n == 0 {
            break;
        }
        *digit = b'0' + (n % 10) as u8;
        n /= 10;
    }
    debug_assert_eq!(n, 0, "the field is too narrow for the index");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(space: &KeySpace, index: u64) -> String {
        let mut out = b"get ".to_vec();
        space.write(index, &mut out);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn keys_have_a_fixed_length_and_are_padded() {
        let space = KeySpace::new("a:", 1000, 8).expect("fits");
        assert_eq!(text(&space, 0), "get a:000000");
        assert_eq!(text(&space, 987), "get a:000987");
        assert_eq!(space.key_len(), 8);
    }

    #[test]
    fn a_length_that_cannot_tell_the_keys_apart_is_refused() {
        assert!(KeySpace::new("a:", 1000, 5).is_ok());
        let error = KeySpace::new("a:", 1001, 5)
            .expect_err("too short")
            .to_string();
        assert!(error.contains("6 to 250 B"), "{error}");
        assert!(KeySpace::new("", 10, 251).is_err());
    }

    #[test]
    fn keys_of_traces_grow_where_the_number_needs_it() {
        let mut out = Vec::new();
        write_padded(b"t:", 7, 5, &mut out);
        out.push(b' ');
        write_padded(b"t:", u64::MAX, 5, &mut out);
        assert_eq!(out, b"t:007 t:18446744073709551615");
    }
}
