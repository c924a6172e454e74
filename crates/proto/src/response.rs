//! Answers as a client reads them: for load generators, replays and tests.
//!
//! A value is never scanned: its line tells how long it is. [`parse`] gives an answer with its data
//! once all of it is there; [`Skim`] gives its kind alone and lets the data pass by unbuffered.
//! What neither does: remember which request an answer belongs to.

use crate::Leased;
use crate::parse::words::{number, number_u32, take_word};

/// One answer, or one of several to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response<'a> {
    /// Which answer.
    pub kind: Kind,
    /// What stands behind the word that names the kind: a key, meta flags, a version, an error's
    /// text.
    pub rest: &'a [u8],
    /// The value, for the kinds that have one.
    pub data: &'a [u8],
}

/// Which answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `VALUE`: a hit; more answers to the request follow.
    Value {
        /// The client's flags.
        flags: u32,
        /// The length of the value in bytes.
        len: usize,
        /// Its cas value, where asked for.
        cas: Option<u64>,
    },
    /// `KEY`: an item of a scan without its value; more answers to the request follow.
    Key {
        /// The client's flags.
        flags: u32,
        /// The length of the value in bytes.
        len: usize,
        /// Its cas value, where asked for.
        cas: Option<u64>,
    },
    /// `MORE`: the end of a scan's answer, of which there may be more behind the key in `rest`.
    More,
    /// `LEASE`: see [`leased`].
    Lease,
    /// `VA`: a hit of `mg`, or the result of `ma`.
    MetaValue {
        /// The length of the value in bytes.
        len: usize,
    },
    /// `HD`: a hit without its value, a store, a deletion.
    MetaDone,
    /// `EN`: a miss of `mg` or `me`.
    MetaMiss,
    /// `NF`.
    MetaNotFound,
    /// `NS`.
    MetaNotStored,
    /// `EX`.
    MetaExists,
    /// `MN`.
    MetaNoop,
    /// `ME`.
    MetaDebug,
    /// `END`.
    End,
    /// `STORED`.
    Stored,
    /// `NOT_STORED`.
    NotStored,
    /// `EXISTS`.
    Exists,
    /// `NOT_FOUND`.
    NotFound,
    /// `DELETED`.
    Deleted,
    /// `TOUCHED`.
    Touched,
    /// `OK`.
    Ok,
    /// `RESET`.
    Reset,
    /// The result of `incr` or `decr`.
    Number(u64),
    /// `VERSION`.
    Version,
    /// `STAT`; more answers to the request follow.
    Stat,
    /// `SERVER_ERROR 307 busy`: refused because the tenant has had its part of the device.
    Busy,
    /// `SERVER_ERROR`.
    ServerError,
    /// `CLIENT_ERROR`.
    ClientError,
    /// `ERROR`.
    Error,
}

impl Kind {
    /// Whether it brings a value.
    #[inline]
    pub fn is_hit(self) -> bool {
        matches!(self, Kind::Value { .. } | Kind::MetaValue { .. })
    }

    /// Whether it ends the answer to its request.
    #[inline]
    pub fn is_last(self) -> bool {
        !matches!(self, Kind::Value { .. } | Kind::Key { .. } | Kind::Stat)
    }

    /// Whether the request was refused.
    #[inline]
    pub fn is_error(self) -> bool {
        use Kind::{Busy, ClientError, Error, ServerError};
        matches!(self, Busy | ServerError | ClientError | Error)
    }

    /// The length of the data behind the line, in bytes; `None` for the kinds without any.
    #[inline]
    fn data_len(self) -> Option<usize> {
        match self {
            Kind::Value { len, .. } | Kind::MetaValue { len } => Some(len),
            _ => None,
        }
    }
}

/// What stands behind the word `LEASE`; none where that is no such answer.
pub fn leased(mut rest: &[u8]) -> Option<Leased> {
    let granted_ps = match take_word(&mut rest)? {
        b"free" => None,
        granted => Some(number(granted)?),
    };
    let mut next = || number(take_word(&mut rest)?);
    Some(Leased {
        granted_ps,
        again_us: next()?,
        read_ps: [next()?, next()?],
        write_ps: [next()?, next()?],
    })
}

/// What the front of an input of answers is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parse<'a> {
    /// An answer.
    Done {
        /// The answer.
        response: Response<'a>,
        /// Its length in bytes; at least 1 and at most the input's.
        used: usize,
    },
    /// Not yet a whole answer.
    Need {
        /// How long the input must be in bytes before it pays to parse again.
        at_least: usize,
    },
    /// No answer: nothing behind it can be understood either.
    Bad,
}

/// The longest line of an answer in bytes, its end included.
const LINE_LEN_MAX: usize = 4096;

/// What stands behind every value.
const DATA_END: &[u8] = b"\r\n";

/// Parses the answer at the front of `input`.
#[inline]
pub fn parse(input: &[u8]) -> Parse<'_> {
    let (kind, rest, line_len) = match line(input) {
        Line::Done { kind, rest, len } => (kind, rest, len),
        Line::Need => {
            return Parse::Need {
                at_least: input.len() + 1,
            };
        }
        Line::Bad => return Parse::Bad,
    };
    let Some(data_len) = kind.data_len() else {
        return Parse::Done {
            response: Response {
                kind,
                rest,
                data: &[],
            },
            used: line_len,
        };
    };
    let used = line_len + data_len + DATA_END.len();
    if input.len() < used {
        return Parse::Need { at_least: used };
    }
    let (data, end) = input[line_len..used].split_at(data_len);
    match end {
        DATA_END => Parse::Done {
            response: Response { kind, rest, data },
            used,
        },
        _ => Parse::Bad,
    }
}

/// Reads the kinds of a stream of answers and lets their data pass by.
#[derive(Clone, Debug, Default)]
pub struct Skim {
    /// The answer whose data is passing by, and how many bytes of it are still to come.
    passing: Option<(Kind, usize)>,
}

/// What [`Skim::next`] found. `used` bytes, at most the input's, are to be dropped in each case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The last byte of an answer has arrived.
    Done {
        /// Which answer.
        kind: Kind,
        /// How many bytes to drop.
        used: usize,
    },
    /// More bytes are needed.
    Need {
        /// How many bytes to drop.
        used: usize,
    },
    /// No answer: nothing behind it can be understood either.
    Bad,
}

impl Skim {
    /// Reads on at the front of `input`, which goes on where the last call's `used` ended.
    #[inline]
    pub fn next(&mut self, input: &[u8]) -> Step {
        let (kind, line_len, to_come) = match self.passing.take() {
            Some((kind, to_come)) => (kind, 0, to_come),
            None => match line(input) {
                Line::Done { kind, len, .. } => (
                    kind,
                    len,
                    kind.data_len()
                        .map_or(0, |data_len| data_len + DATA_END.len()),
                ),
                Line::Need => return Step::Need { used: 0 },
                Line::Bad => return Step::Bad,
            },
        };
        let here = to_come.min(input.len() - line_len);
        let used = line_len + here;
        if here == to_come {
            return Step::Done { kind, used };
        }
        self.passing = Some((kind, to_come - here));
        Step::Need { used }
    }
}

enum Line<'a> {
    Done {
        kind: Kind,
        rest: &'a [u8],
        len: usize,
    },
    Need,
    Bad,
}

/// The answer's line.
#[inline]
fn line(input: &[u8]) -> Line<'_> {
    let Some(end) = memchr::memchr(b'\n', &input[..input.len().min(LINE_LEN_MAX)]) else {
        return if input.len() < LINE_LEN_MAX {
            Line::Need
        } else {
            Line::Bad
        };
    };
    let mut rest = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    let kind = match take_word(&mut rest) {
        Some(b"VALUE") => item(rest).map(|(flags, len, cas)| Kind::Value { flags, len, cas }),
        Some(b"KEY") => item(rest).map(|(flags, len, cas)| Kind::Key { flags, len, cas }),
        Some(b"VA") => meta_value(&mut rest),
        Some(word) => other(word, rest),
        None => None,
    };
    match kind {
        Some(kind) => Line::Done {
            kind,
            rest: rest.strip_prefix(b" ").unwrap_or(rest),
            len: end + 1,
        },
        None => Line::Bad,
    }
}

/// `<key> <flags> <len> [<cas>]`, but for the key.
#[inline]
fn item(mut words: &[u8]) -> Option<(u32, usize, Option<u64>)> {
    take_word(&mut words)?;
    let flags = number_u32(take_word(&mut words)?)?;
    let len = data_len(take_word(&mut words)?)?;
    let cas = match take_word(&mut words) {
        Some(cas) => Some(number(cas)?),
        None => None,
    };
    Some((flags, len, cas))
}

/// `VA <len> <flag>*`.
#[inline]
fn meta_value(words: &mut &[u8]) -> Option<Kind> {
    Some(Kind::MetaValue {
        len: data_len(take_word(words)?)?,
    })
}

/// No server sends more than 4 GiB at once; a number beyond is a sign of another protocol.
#[inline]
fn data_len(word: &[u8]) -> Option<usize> {
    usize::try_from(number_u32(word)?).ok()
}

fn other(word: &[u8], rest: &[u8]) -> Option<Kind> {
    Some(match word {
        b"END" => Kind::End,
        b"MORE" => Kind::More,
        b"LEASE" => Kind::Lease,
        b"STORED" => Kind::Stored,
        b"HD" => Kind::MetaDone,
        b"EN" => Kind::MetaMiss,
        b"NF" => Kind::MetaNotFound,
        b"NS" => Kind::MetaNotStored,
        b"EX" => Kind::MetaExists,
        b"MN" => Kind::MetaNoop,
        b"ME" => Kind::MetaDebug,
        b"NOT_STORED" => Kind::NotStored,
        b"EXISTS" => Kind::Exists,
        b"NOT_FOUND" => Kind::NotFound,
        b"DELETED" => Kind::Deleted,
        b"TOUCHED" => Kind::Touched,
        b"OK" => Kind::Ok,
        b"RESET" => Kind::Reset,
        b"VERSION" => Kind::Version,
        b"STAT" => Kind::Stat,
        b"SERVER_ERROR" if rest.starts_with(b" 307 ") => Kind::Busy,
        b"SERVER_ERROR" => Kind::ServerError,
        b"CLIENT_ERROR" => Kind::ClientError,
        b"ERROR" | b"ERROR:" => Kind::Error,
        digits => Kind::Number(number(digits)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Out, reply};

    fn kinds(mut input: &[u8]) -> Vec<Kind> {
        let mut kinds = Vec::new();
        while let Parse::Done { response, used } = parse(input) {
            kinds.push(response.kind);
            input = &input[used..];
        }
        assert!(input.is_empty(), "left: {}", input.escape_ascii());
        kinds
    }

    #[test]
    fn what_the_server_writes_the_client_reads() {
        let mut out = Out::new();
        reply::value_header(&mut out, b"key", 7, 5, Some(9));
        out.put(b"a\r\nb\n\r\n");
        reply::end(&mut out);
        reply::number(&mut out, 42);
        reply::busy(&mut out);
        reply::server_error(&mut out, "out of memory");
        reply::client_error(&mut out, "no");
        reply::error(&mut out);
        reply::shutdown_disabled(&mut out);
        reply::version(&mut out, "1");
        reply::stat(&mut out, "pid", 1);
        let want = [
            Kind::Value {
                flags: 7,
                len: 5,
                cas: Some(9),
            },
            Kind::End,
            Kind::Number(42),
            Kind::Busy,
            Kind::ServerError,
            Kind::ClientError,
            Kind::Error,
            Kind::Error,
            Kind::Version,
            Kind::Stat,
        ];
        assert_eq!(kinds(out.pending()), want);
    }

    #[test]
    fn leases_are_read_as_they_were_written() {
        let limited = Leased {
            granted_ps: Some(1_000_000),
            again_us: 500,
            read_ps: [1, 2],
            write_ps: [3, u64::MAX],
        };
        let free = Leased {
            granted_ps: None,
            ..limited
        };
        for lease in [limited, free] {
            let mut out = Out::new();
            reply::leased(&mut out, &lease);
            let Parse::Done { response, .. } = parse(out.pending()) else {
                panic!("{}", out.pending().escape_ascii());
            };
            assert_eq!(
                (response.kind, leased(response.rest)),
                (Kind::Lease, Some(lease))
            );
        }
        assert_eq!(leased(b"1 2 3 4 5"), None, "one is missing");
        assert_eq!(leased(b"cheap 2 3 4 5 6"), None);
    }

    #[test]
    fn answers_carry_their_words_and_their_data() {
        let done = |input| match parse(input) {
            Parse::Done { response, used } => (response.rest, response.data, used),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            done(b"VALUE k 0 2\r\nab\r\n"),
            (&b"k 0 2"[..], &b"ab"[..], 17)
        );
        assert_eq!(
            done(b"VA 2 t-1 Oq\r\nab\r\n"),
            (&b"t-1 Oq"[..], &b"ab"[..], 17)
        );
        assert_eq!(done(b"HD c5\r\n"), (&b"c5"[..], &b""[..], 7));
        assert_eq!(done(b"VA 0\r\n\r\n"), (&b""[..], &b""[..], 8));
    }

    #[test]
    fn a_value_says_how_much_is_missing_and_what_is_no_answer_is_bad() {
        assert_eq!(
            parse(b"VALUE k 0 100\r\nab"),
            Parse::Need { at_least: 15 + 102 }
        );
        assert_eq!(parse(b"VALU"), Parse::Need { at_least: 5 });
        for input in [
            &b"VALUE k 0\r\n"[..],
            b"VA x\r\n",
            b"\r\n",
            b"HELLO\r\n",
            b"VA 1\r\nabc",
        ] {
            assert_eq!(parse(input), Parse::Bad, "{}", input.escape_ascii());
        }
        assert_eq!(parse(&[b'x'; LINE_LEN_MAX]), Parse::Bad);
    }

    #[test]
    fn a_value_passes_by_in_pieces() {
        let mut skim = Skim::default();
        let kind = Kind::MetaValue { len: 10 };
        assert_eq!(skim.next(b"VA 1"), Step::Need { used: 0 });
        assert_eq!(skim.next(b"VA 10\r\n012"), Step::Need { used: 10 });
        assert_eq!(skim.next(b"3456789\r"), Step::Need { used: 8 });
        assert_eq!(skim.next(b"\nEN\r\n"), Step::Done { kind, used: 1 });
        assert_eq!(
            skim.next(b"EN\r\n"),
            Step::Done {
                kind: Kind::MetaMiss,
                used: 4
            }
        );
    }
}
