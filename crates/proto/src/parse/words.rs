//! Words and numbers of a command line.
//!
//! What it never does: treat anything but the blank as a separator. memcached does not either, so
//! that a tab, a carriage return or a zero byte can be part of a key.

use arrayvec::ArrayVec;

/// More words than any command with a fixed number of them has.
const WORDS_MAX: usize = 8;

/// The words of a line; where there are more than [`WORDS_MAX`], the first of them.
pub(crate) type Words<'a> = ArrayVec<&'a [u8], WORDS_MAX>;

/// Takes the next word off the front of `line`; `None` where only blanks are left.
#[inline]
pub(crate) fn take_word<'a>(line: &mut &'a [u8]) -> Option<&'a [u8]> {
    let rest = skip_blanks(line);
    if rest.is_empty() {
        *line = rest;
        return None;
    }
    let len = word_len(rest);
    let (word, rest) = rest.split_at(len);
    *line = rest;
    Some(word)
}

/// The length of the word at the front of `line`. Most words are short: the first eight bytes are
/// looked at as one number, which costs less than to call a search.
#[inline]
fn word_len(line: &[u8]) -> usize {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const BLANKS: u64 = u64::from_le_bytes([b' '; 8]);
    let Some(head) = line.first_chunk::<8>() else {
        return line
            .iter()
            .position(|&byte| byte == b' ')
            .unwrap_or(line.len());
    };
    // A byte that was a blank is zero now; the lowest zero byte has the lowest high bit set.
    let bytes = u64::from_le_bytes(*head) ^ BLANKS;
    let zeros = bytes.wrapping_sub(ONES) & !bytes & (ONES << 7);
    if zeros != 0 {
        return zeros.trailing_zeros() as usize / 8;
    }
    8 + memchr::memchr(b' ', &line[8..]).unwrap_or(line.len() - 8)
}

/// The words of `line`.
#[inline]
pub(crate) fn split(mut line: &[u8]) -> Words<'_> {
    let mut words = Words::new();
    while !words.is_full() {
        match take_word(&mut line) {
            Some(word) => words.push(word),
            None => break,
        }
    }
    words
}

/// `line` from its first byte on that is no blank.
#[inline]
pub(crate) fn skip_blanks(line: &[u8]) -> &[u8] {
    match line {
        // One blank is the rule; more are a courtesy.
        [b' ', rest @ ..] if rest.first() != Some(&b' ') => rest,
        [b' ', ..] => {
            let blanks = line.iter().take_while(|&&byte| byte == b' ').count();
            &line[blanks..]
        }
        _ => line,
    }
}

/// `line` up to its last byte that is no blank.
#[inline]
pub(crate) fn trim_end(line: &[u8]) -> &[u8] {
    let blanks = line.iter().rev().take_while(|&&byte| byte == b' ').count();
    &line[..line.len() - blanks]
}

/// An unsigned decimal number; `None` where `word` is empty, holds anything but digits, or does not
/// fit.
#[inline]
pub(crate) fn number(word: &[u8]) -> Option<u64> {
    // 19 digits always fit, so that the common lengths need no check for overflow.
    if word.is_empty() || word.len() > 20 {
        return None;
    }
    let mut sum = 0u64;
    let (first, last) = word.split_at(word.len().min(19));
    for &byte in first {
        sum = sum * 10 + u64::from(digit(byte)?);
    }
    for &byte in last {
        sum = sum.checked_mul(10)?.checked_add(u64::from(digit(byte)?))?;
    }
    Some(sum)
}

/// An unsigned decimal number of 32 bits.
#[inline]
pub(crate) fn number_u32(word: &[u8]) -> Option<u32> {
    u32::try_from(number(word)?).ok()
}

/// A decimal number with an optional minus sign.
#[inline]
pub(crate) fn signed(word: &[u8]) -> Option<i64> {
    match word {
        [b'-', digits @ ..] => 0i64.checked_sub_unsigned(number(digits)?),
        digits => i64::try_from(number(digits)?).ok(),
    }
}

#[inline]
fn digit(byte: u8) -> Option<u8> {
    let value = byte.wrapping_sub(b'0');
    if value < 10 { Some(value) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_separate_and_nothing_else_does() {
        let words = split(b"  set a\tb\r\x00c   1 ");
        assert_eq!(words.as_slice(), [&b"set"[..], b"a\tb\r\x00c", b"1"]);
        assert!(split(b"   ").is_empty());
        assert_eq!(split(b"1 2 3 4 5 6 7 8 9").len(), WORDS_MAX);
        assert_eq!(trim_end(b"a  "), b"a");
    }

    #[test]
    fn numbers_end_where_their_type_ends() {
        assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(number(b"18446744073709551616"), None);
        assert_eq!(number(b"99999999999999999999"), None);
        assert_eq!(number(b"00000000000000000000"), Some(0));
        assert_eq!(number(b"000000000000000000000"), None);
        assert_eq!(number_u32(b"4294967295"), Some(u32::MAX));
        assert_eq!(number_u32(b"4294967296"), None);
        assert_eq!(signed(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(signed(b"-9223372036854775809"), None);
        assert_eq!(signed(b"9223372036854775808"), None);
        for word in [&b""[..], b"-", b"+1", b"1a", b"a1", b"--1", b"1-", b" 1"] {
            assert_eq!(number(word), None, "{word:?}");
            assert_eq!(signed(word), None, "{word:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_word_ends_at_the_first_blank(line in "[ !a\\x00\\x80-\\xff]{0,40}") {
            let mut rest = line.as_bytes();
            let mut words = Vec::new();
            while let Some(word) = take_word(&mut rest) {
                words.push(word);
            }
            let words_and_gaps = line.as_bytes().split(|&byte| byte == b' ');
            let want: Vec<_> = words_and_gaps.filter(|word| !word.is_empty()).collect();
            assert_eq!(words, want);
        }

        #[test]
        fn every_number_reads_as_it_prints(unsigned: u64, with_sign: i64) {
            assert_eq!(number(unsigned.to_string().as_bytes()), Some(unsigned));
            assert_eq!(signed(with_sign.to_string().as_bytes()), Some(with_sign));
        }
    }
}
