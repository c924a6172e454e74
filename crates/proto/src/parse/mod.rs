//! One request from the front of an input buffer.
//!
//! Parsing is incremental by repetition: where a request is not complete the parser says how many
//! bytes it needs at least, keeps no state, and starts over when they are there. What it never does:
//! look at a byte behind the request's own last one, or copy.

use crate::{Command, ErrorKind, ProtoError};

/// How long things may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest key in bytes; 250 as in memcached, and never more than 255.
    pub key_len_max: usize,
    /// The longest value in bytes.
    pub item_len_max: usize,
    /// The longest line of a retrieval with many keys, in bytes, its end included. Other lines end
    /// within [`LINE_LEN_MAX`] bytes.
    pub line_len_max: usize,
}

/// The longest line in bytes of a request that is no retrieval with many keys; as in memcached.
pub const LINE_LEN_MAX: usize = 2048;

impl Default for Limits {
    /// memcached's: keys of 250 B, items of 1 MiB. Its lines of keys are unbounded; ours end at
    /// 64 KiB, some 250 keys of the longest kind.
    fn default() -> Limits {
        Limits {
            key_len_max: 250,
            item_len_max: 1 << 20,
            line_len_max: 64 << 10,
        }
    }
}

/// What the front of the input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parse<'a> {
    /// A whole request.
    Done {
        /// The request.
        command: Command<'a>,
        /// Its length in bytes, data and line ends included; at least 1. It exceeds the input's
        /// only for [`Command::TooLarge`]: the caller drops what is still to come of it.
        used: usize,
    },
    /// Not yet a whole request.
    Need {
        /// How long the input must be in bytes before it pays to parse again; more than it is now.
        at_least: usize,
    },
    /// A request to refuse.
    Bad {
        /// What to answer, and whether to close.
        error: ProtoError,
        /// How many bytes to drop; at least 1. It may exceed the input's length: the caller drops
        /// what is still to come of them.
        used: usize,
    },
}

/// Parses the request at the front of `input`.
#[inline]
pub fn parse<'a>(input: &'a [u8], _limits: &Limits) -> Parse<'a> {
    match memchr::memchr(b'\n', input) {
        None => Parse::Need {
            at_least: input.len() + 1,
        },
        Some(end) => Parse::Bad {
            error: ProtoError::from(ErrorKind::Unknown),
            used: end + 1,
        },
    }
}
