//! What a client of memcached's classic text protocol knows about a reply before it parses it, and
//! what it makes of one afterwards. The parsing itself is `nyx_proto`'s.
//!
//! What it never does: search through a value.

use itoa::Buffer;
use nyx_proto::Exptime;
use nyx_proto::response::{Kind, Response};

/// The longest time to live that the protocol takes for a length of time, in seconds: more is a
/// date.
const TTL_S_MAX: u32 = 30 * 24 * 3600;

/// A time to live in seconds as the protocol takes it; longer ones are cut to 30 days.
#[inline]
pub(crate) fn exptime(ttl_s: u32) -> Exptime {
    Exptime(i64::from(ttl_s.min(TTL_S_MAX)))
}

/// What a line of a reply means to the request that it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The end of a list of values.
    End,
    /// The end of a part of a range: there may be more behind this key.
    More(u64),
    /// Done: stored, deleted, touched, or a new number.
    Done,
    /// There is no such key, or the condition did not hold.
    Not,
    /// An error that leaves the connection in step.
    Refused(Refusal),
}

/// Kinds of errors that a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// `SERVER_ERROR 307 busy`: the tenant has had its part.
    Busy,
    /// No memory for the item.
    OutOfMemory,
    /// Any other `SERVER_ERROR`.
    Server,
    /// `CLIENT_ERROR`, or `ERROR`: the request was not understood.
    Client,
}

/// The names of [`Refusal`]s in tables and JSON, in their order.
pub(crate) const REFUSALS: [&str; 4] = ["busy", "out_of_memory", "server_error", "client_error"];

/// What a reply that is no value means; `None` for one that no request of ours can have.
pub(crate) fn answer(response: &Response<'_>) -> Option<Answer> {
    Some(match response.kind {
        Kind::End => Answer::End,
        Kind::Stored | Kind::Deleted | Kind::Touched | Kind::Ok | Kind::Number(_) => Answer::Done,
        Kind::NotFound | Kind::NotStored | Kind::Exists => Answer::Not,
        Kind::Busy => Answer::Refused(Refusal::Busy),
        Kind::ServerError if response.rest.trim_ascii().starts_with(b"out of memory") => {
            Answer::Refused(Refusal::OutOfMemory)
        }
        Kind::ServerError => Answer::Refused(Refusal::Server),
        Kind::ClientError | Kind::Error => Answer::Refused(Refusal::Client),
        _ => return None,
    })
}

/// Whether `input` begins with the whole reply to a `get` of one key: its one value, with a key of
/// `key_len` and data of `value_len` bytes, and the end. Gives the reply's length in bytes.
#[inline]
pub(crate) fn known_hit(input: &[u8], key_len: usize, value_len: u32) -> Option<usize> {
    let digits_at = b"VALUE ".len() + key_len + b" 0 ".len();
    let mut number = Buffer::new();
    let digits = number.format(value_len).as_bytes();
    let data_at = digits_at + digits.len() + 2;
    let end_at = data_at + value_len as usize;
    let tail = input.get(end_at..end_at + 7)?;
    let fits = input[0] == b'V'
        && tail == b"\r\nEND\r\n"
        && &input[digits_at..data_at - 2] == digits
        && &input[data_at - 2..data_at] == b"\r\n";
    fits.then_some(end_at + 7)
}

/// The number of a key that was written as `prefix_len` bytes and zero-padded decimal digits, and
/// that a blank or the end follows.
pub(crate) fn key_number(text: &[u8], prefix_len: usize) -> Option<u64> {
    let digits = text.get(prefix_len..)?.split(|&b| b == b' ').next()?;
    digits.iter().try_fold(0u64, |n, &digit| {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        n.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_proto::response::{Parse, parse};

    #[test]
    fn errors_are_told_apart() {
        let refusal = |line: &[u8]| match parse(line) {
            Parse::Done { response, .. } => match answer(&response) {
                Some(Answer::Refused(refusal)) => Some(refusal),
                _ => None,
            },
            _ => None,
        };
        assert_eq!(refusal(b"SERVER_ERROR 307 busy\r\n"), Some(Refusal::Busy));
        let oom = b"SERVER_ERROR out of memory storing object\r\n";
        assert_eq!(refusal(oom), Some(Refusal::OutOfMemory));
        assert_eq!(
            refusal(b"SERVER_ERROR object too large\r\n"),
            Some(Refusal::Server)
        );
        assert_eq!(refusal(b"ERROR\r\n"), Some(Refusal::Client));
        assert_eq!(refusal(b"STORED\r\n"), None);
    }

    #[test]
    fn a_hit_of_known_length_is_taken_whole_or_not_at_all() {
        let stream = b"VALUE key 0 5\r\nhello\r\nEND\r\nVALUE key 0 5\r\nhello\r\nEND\r\n";
        assert_eq!(known_hit(stream, 3, 5), Some(27));
        assert_eq!(known_hit(&stream[..26], 3, 5), None);
        // Both replies end where one of 32 B would; its header gives it away.
        assert_eq!(known_hit(stream, 3, 31), None);
        assert_eq!(known_hit(b"END\r\n", 3, 5), None);
    }

    #[test]
    fn keys_give_their_number_back() {
        assert_eq!(key_number(b"t:00042 0 100", 2), Some(42));
        assert_eq!(key_number(b"t:00042", 2), Some(42));
        assert_eq!(key_number(b"t:0x042", 2), None);
        assert_eq!(key_number(b"t", 2), None);
        assert_eq!(key_number(b"99999999999999999999999", 0), None);
    }
}
