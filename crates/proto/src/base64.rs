//! Base64 as meta keys use it: the standard alphabet with padding.
//!
//! What it never does: allocate, or accept bytes outside the alphabet.

/// Decodes `text` into the front of `into`; the length of the result. `None` where `text` is empty,
/// no base64, or longer than `into` can hold.
pub(crate) fn decode(text: &[u8], into: &mut [u8]) -> Option<usize> {
    if text.is_empty() || !text.len().is_multiple_of(4) || text.len() / 4 * 3 > into.len() {
        return None;
    }
    let padding = text
        .iter()
        .rev()
        .take(2)
        .take_while(|&&byte| byte == b'=')
        .count();
    let (digits, _) = text.split_at(text.len() - padding);
    let mut len = 0;
    for group in digits.chunks(4) {
        let mut bits = 0u32;
        for &digit in group {
            let value = VALUE_OF_DIGIT[usize::from(digit)];
            if value == u8::MAX {
                return None;
            }
            bits = bits << 6 | u32::from(value);
        }
        bits <<= 6 * (4 - group.len());
        let bytes = group.len() * 3 / 4;
        into[len..len + bytes].copy_from_slice(&bits.to_be_bytes()[1..1 + bytes]);
        len += bytes;
    }
    Some(len)
}

/// Hands what `bytes` are as text to `put`, four digits at a time.
pub(crate) fn encode(bytes: &[u8], mut put: impl FnMut(&[u8; 4])) {
    for group in bytes.chunks(3) {
        let mut bits = [0; 4];
        bits[1..=group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes(bits);
        let mut text = [18, 12, 6, 0].map(|shift| DIGITS[(bits >> shift & 63) as usize]);
        text[group.len() + 1..].fill(b'=');
        put(&text);
    }
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

const VALUE_OF_DIGIT: [u8; 256] = {
    let mut table = [u8::MAX; 256];
    let mut value = 0;
    while value < DIGITS.len() {
        table[DIGITS[value] as usize] = value as u8;
        value += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_rfc_4648() {
        let mut into = [0; 8];
        for (text, want) in [
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYmFy", "foobar"),
        ] {
            let len = decode(text.as_bytes(), &mut into).expect(text);
            assert_eq!(&into[..len], want.as_bytes(), "{text}");
            let mut back: Vec<u8> = Vec::new();
            encode(want.as_bytes(), |digits| back.extend(digits));
            assert_eq!(back, text.as_bytes(), "{want}");
        }
    }

    #[test]
    fn what_is_no_base64_is_refused() {
        let mut into = [0; 8];
        for text in [
            "",
            "Zg",
            "Zg=",
            "Z===",
            "====",
            "Zm9v!m9v",
            "Zg==Zg==",
            "Zm9vYmFyZm9v",
        ] {
            assert_eq!(decode(text.as_bytes(), &mut into), None, "{text}");
        }
    }
}
