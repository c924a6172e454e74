//! One request from the front of an input buffer.
//!
//! Parsing is incremental by repetition: where a request is not complete the parser says how many
//! bytes it needs at least, keeps no state, and starts over when they are there. What it never
//! does: look at a byte behind the request's own last one, or copy.

mod classic;
mod lease;
mod meta;
mod scan;
pub(crate) mod words;

use crate::{Command, ErrorKind, Get, ProtoError};
use words::take_word;

/// How long things may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest key in bytes; 250 as in memcached, and never more than 255.
    pub key_len_max: usize,
    /// The longest value in bytes.
    pub item_len_max: usize,
    /// The longest line of a retrieval with many keys, in bytes, its end included; at least
    /// [`LINE_LEN_MAX`], within which all other lines end.
    pub line_len_max: usize,
}

/// The longest line in bytes, its end included, of a request that is no retrieval with many keys;
/// as in memcached.
pub const LINE_LEN_MAX: usize = 2048;

/// The largest length of data that a request may announce, in bytes; as in memcached.
const DATA_LEN_MAX: u64 = i32::MAX as u64 - 2;

/// What follows every block of data.
const DATA_END: &[u8] = b"\r\n";

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
        /// Its length in bytes, data and line ends included; at least 1. It may exceed the input's
        /// for [`Command::TooLarge`] alone: the caller drops what is still to come of it.
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
pub fn parse<'a>(input: &'a [u8], limits: &Limits) -> Parse<'a> {
    match single_get(input, limits) {
        Some(done) => done,
        None => any(input, limits),
    }
}

/// The hottest request, `get <key>\r\n`, in one pass over its bytes; `None` where it is anything
/// else, or not complete.
#[inline]
fn single_get<'a>(input: &'a [u8], limits: &Limits) -> Option<Parse<'a>> {
    let rest = input.strip_prefix(b"get ")?;
    let window = &rest[..rest.len().min(limits.key_len_max + DATA_END.len())];
    let end = memchr::memchr2(b' ', b'\n', window)?;
    if window[end] != b'\n' {
        return None;
    }
    let key = strip_cr(&window[..end]);
    if key.is_empty() || key.len() > limits.key_len_max {
        return None;
    }
    let get = Get {
        first: key,
        rest: &[],
        count: 1,
        with_cas: false,
        touch: None,
    };
    Some(Parse::Done {
        command: Command::Get(get),
        used: b"get ".len() + end + 1,
    })
}

fn any<'a>(input: &'a [u8], limits: &Limits) -> Parse<'a> {
    let end = match find_line_end(input, limits) {
        Ok(end) => end,
        Err(not_yet) => return not_yet,
    };
    let request = Request {
        input,
        line: strip_cr(&input[..end]),
        used: end + 1,
        limits,
    };
    let mut args = request.line;
    match take_word(&mut args) {
        Some([b'm', letter]) => meta::parse(&request, *letter, args),
        Some(verb) => classic::parse(&request, verb, args),
        None => request.bad(ErrorKind::Unknown),
    }
}

/// Where the first line ends. The limits hold for the line itself, however its bytes arrive.
#[inline]
fn find_line_end<'a>(input: &[u8], limits: &Limits) -> Result<usize, Parse<'a>> {
    let line_end = |len_max: usize| memchr::memchr(b'\n', &input[..input.len().min(len_max)]);
    if let Some(end) = line_end(LINE_LEN_MAX) {
        return Ok(end);
    }
    let mut len_max = LINE_LEN_MAX;
    if input.len() >= LINE_LEN_MAX && is_retrieval(input) {
        len_max = limits.line_len_max.max(LINE_LEN_MAX);
        if let Some(end) = line_end(len_max) {
            return Ok(end);
        }
    }
    if input.len() < len_max {
        return Err(Parse::Need {
            at_least: input.len() + 1,
        });
    }
    Err(Parse::Bad {
        error: ErrorKind::LineTooLong.into(),
        used: len_max,
    })
}

/// Whether a long line may go on because it names many keys.
fn is_retrieval(mut line: &[u8]) -> bool {
    // No key can begin where the verb has not ended, so the first LINE_LEN_MAX bytes tell.
    line = &line[..line.len().min(LINE_LEN_MAX)];
    matches!(
        take_word(&mut line),
        Some(b"get" | b"gets" | b"gat" | b"gats")
    )
}

#[inline]
fn strip_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// A request whose line is complete.
struct Request<'a, 'l> {
    input: &'a [u8],
    /// The line without its end.
    line: &'a [u8],
    /// The length of the line with its end.
    used: usize,
    limits: &'l Limits,
}

impl<'a> Request<'a, '_> {
    /// The line was all of the request.
    #[inline]
    fn done(&self, command: Command<'a>) -> Parse<'a> {
        Parse::Done {
            command,
            used: self.used,
        }
    }

    /// The line is to be refused, and nothing follows it.
    #[cold]
    fn bad(&self, error: impl Into<ProtoError>) -> Parse<'a> {
        Parse::Bad {
            error: error.into(),
            used: self.used,
        }
    }

    /// The line is to be refused, and its data of `len` bytes is to be skipped.
    #[cold]
    fn bad_with_data(&self, error: impl Into<ProtoError>, len: usize) -> Parse<'a> {
        Parse::Bad {
            error: error.into(),
            used: self.used_with_data(len),
        }
    }

    /// The length of the line with `len` bytes of data and all ends.
    #[inline]
    fn used_with_data(&self, len: usize) -> usize {
        self.used + len + DATA_END.len()
    }

    /// The data of `len` bytes that follows the line; otherwise what to say instead.
    #[inline]
    fn data(&self, len: usize, silent: bool) -> Result<&'a [u8], Parse<'a>> {
        let used = self.used_with_data(len);
        if self.input.len() < used {
            return Err(Parse::Need { at_least: used });
        }
        let (data, end) = self.input[self.used..used].split_at(len);
        if end != DATA_END {
            let error = ProtoError {
                kind: ErrorKind::DataChunk,
                silent,
            };
            return Err(Parse::Bad { error, used });
        }
        Ok(data)
    }

    #[inline]
    fn is_key(&self, word: &[u8]) -> bool {
        word.len() <= self.limits.key_len_max
    }
}

/// The length of data that `word` announces; `None` where it is none.
#[inline]
fn data_len(word: &[u8]) -> Option<usize> {
    words::number(word)
        .filter(|&len| len <= DATA_LEN_MAX)
        .and_then(|len| usize::try_from(len).ok())
}
