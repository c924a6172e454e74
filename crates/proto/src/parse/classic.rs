//! The classic commands.
//!
//! What it never does: guess. A line with the wrong number of words is an `ERROR`, as in memcached,
//! and what follows it is the next request.

use super::words::{number, number_u32, signed, skip_blanks, split, take_word, trim_end};
use super::{Parse, Request, data_len, lease, scan};
use crate::{ArithOp, Command, ErrorKind, Exptime, Get, ProtoError, Store, StoreVerb, TooLarge};

/// `cache_memlimit` takes MiB; what is larger than this was meant as bytes. As in memcached.
const MEMLIMIT_MIB_MAX: u32 = 1_000_000_000;
const MEMLIMIT_MIB_MIN: u32 = 8;

type Outcome<'a> = Result<Command<'a>, ProtoError>;

/// The request whose line begins with the word `verb` and goes on with `args`.
pub(super) fn parse<'a>(request: &Request<'a, '_>, verb: &[u8], args: &'a [u8]) -> Parse<'a> {
    let outcome = match verb {
        b"get" => get(request, args, false, false),
        b"set" => return store(request, StoreVerb::Set, args),
        b"gets" => get(request, args, true, false),
        b"gat" => get(request, args, false, true),
        b"gats" => get(request, args, true, true),
        b"add" => return store(request, StoreVerb::Add, args),
        b"replace" => return store(request, StoreVerb::Replace, args),
        b"append" => return store(request, StoreVerb::Append, args),
        b"prepend" => return store(request, StoreVerb::Prepend, args),
        b"cas" => return store(request, StoreVerb::Cas, args),
        b"delete" => delete(request, args),
        b"incr" => arith(request, ArithOp::Incr, args),
        b"decr" => arith(request, ArithOp::Decr, args),
        b"touch" => touch(request, args),
        _ => rare(request, verb, args),
    };
    match outcome {
        Ok(command) => request.done(command),
        Err(error) => request.bad(error),
    }
}

/// The commands that no program sends often.
#[cold]
fn rare<'a>(request: &Request<'a, '_>, verb: &[u8], args: &'a [u8]) -> Outcome<'a> {
    match verb {
        b"scan" => scan::parse(request, args).map_err(Into::into),
        b"lease" => lease::parse(request, args).map_err(Into::into),
        b"version" => Ok(Command::Version),
        b"quit" => Ok(Command::Quit),
        b"stats" => Ok(Command::Stats {
            arg: trim_end(skip_blanks(args)),
        }),
        b"flush_all" => flush_all(args),
        b"verbosity" => verbosity(args),
        b"cache_memlimit" => cache_memlimit(args),
        b"shutdown" => match split(args).as_slice() {
            [] => Ok(Command::Shutdown { graceful: false }),
            [b"graceful"] => Ok(Command::Shutdown { graceful: true }),
            _ => Err(ErrorKind::ShutdownMode.into()),
        },
        b"watch" => Err(ErrorKind::WatchNotAllowed.into()),
        b"slabs" => match split(args).as_slice() {
            [b"reassign", _, _] => Err(ErrorKind::SlabReassign.into()),
            _ => Err(ErrorKind::Unknown.into()),
        },
        b"lru_crawler" => match split(args).as_slice() {
            [b"crawl" | b"metadump" | b"mgdump", _] => Err(ErrorKind::Crawler.into()),
            _ => Err(ErrorKind::Unknown.into()),
        },
        _ if is_http(args) => Err(ErrorKind::Http.into()),
        _ => Err(ErrorKind::Unknown.into()),
    }
}

/// Whether an unknown command is a browser that was lured here: its next lines must not be tried
/// as requests.
fn is_http(args: &[u8]) -> bool {
    let args = trim_end(args);
    let last = memchr::memrchr(b' ', args).map_or(args, |blank| &args[blank + 1..]);
    last.starts_with(b"HTTP/")
}

/// `get|gets <key>+` and `gat|gats <exptime> <key>+`.
fn get<'a>(request: &Request<'a, '_>, args: &'a [u8], cas: bool, touch: bool) -> Outcome<'a> {
    let mut rest = args;
    let exptime = if touch { take_word(&mut rest) } else { None };
    let Some(first) = take_word(&mut rest) else {
        return Err(ErrorKind::Unknown.into());
    };
    let touch = match exptime.map(signed) {
        None => None,
        Some(Some(exptime)) => Some(Exptime(exptime)),
        Some(None) => return Err(ErrorKind::Exptime.into()),
    };
    if !request.is_key(first) {
        return Err(ErrorKind::Format.into());
    }
    let rest = trim_end(skip_blanks(rest));
    let mut count = 1;
    let mut others = rest;
    while let Some(key) = take_word(&mut others) {
        if !request.is_key(key) {
            return Err(ErrorKind::Format.into());
        }
        count += 1;
    }
    Ok(Command::Get(Get {
        first,
        rest,
        count,
        with_cas: cas,
        touch,
    }))
}

/// `<verb> <key> <flags> <exptime> <len> [noreply]` and `cas` with its value before `noreply`.
fn store<'a>(request: &Request<'a, '_>, verb: StoreVerb, args: &'a [u8]) -> Parse<'a> {
    let words = split(args);
    let count = 4 + usize::from(verb == StoreVerb::Cas);
    if words.len() != count && words.len() != count + 1 {
        return request.bad(ErrorKind::Unknown);
    }
    let noreply = ends_with_noreply(&words);
    let bad_format = ProtoError {
        kind: ErrorKind::Format,
        silent: noreply,
    };
    let Some(data_len) = data_len(words[3]) else {
        return request.bad(bad_format);
    };
    let key = words[0];
    let flags = number_u32(words[1]);
    let exptime = signed(words[2]);
    let cas = if verb == StoreVerb::Cas {
        number(words[4])
    } else {
        Some(0)
    };
    let (true, Some(flags), Some(exptime), Some(cas)) = (request.is_key(key), flags, exptime, cas)
    else {
        return request.bad_with_data(bad_format, data_len);
    };
    if data_len > request.limits.item_len_max {
        let drop_old = verb == StoreVerb::Set;
        let too_large = TooLarge {
            key,
            base64: false,
            drop_old,
            noreply,
            data_len,
        };
        let used = request.used_with_data(data_len);
        return Parse::Done {
            command: Command::TooLarge(too_large),
            used,
        };
    }
    let exptime = Exptime(exptime);
    match request.data(data_len, noreply) {
        Err(instead) => instead,
        Ok(data) => Parse::Done {
            command: Command::Store(Store {
                key,
                data,
                cas,
                exptime,
                flags,
                verb,
                noreply,
            }),
            used: request.used_with_data(data_len),
        },
    }
}

/// `delete <key> [0] [noreply]`; the 0 is what old clients send as a delay.
fn delete<'a>(request: &Request<'a, '_>, args: &'a [u8]) -> Outcome<'a> {
    let words = split(args);
    let (key, options) = match words.as_slice() {
        [key, options @ ..] if options.len() <= 2 => (*key, options),
        _ => return Err(ErrorKind::Unknown.into()),
    };
    let noreply = match options {
        [] | [b"0"] => false,
        [b"noreply"] | [b"0", b"noreply"] => true,
        _ => {
            let silent = ends_with_noreply(options);
            return Err(ProtoError {
                kind: ErrorKind::DeleteUsage,
                silent,
            });
        }
    };
    if !request.is_key(key) {
        return Err(ProtoError {
            kind: ErrorKind::Format,
            silent: noreply,
        });
    }
    Ok(Command::Delete { key, noreply })
}

/// `incr|decr <key> <delta> [noreply]`.
fn arith<'a>(request: &Request<'a, '_>, op: ArithOp, args: &'a [u8]) -> Outcome<'a> {
    let (key, delta, noreply) = key_and_number(request, args)?;
    match number(delta) {
        Some(delta) => Ok(Command::Arith {
            key,
            op,
            delta,
            noreply,
        }),
        None => Err(ProtoError {
            kind: ErrorKind::Delta,
            silent: noreply,
        }),
    }
}

/// `touch <key> <exptime> [noreply]`.
fn touch<'a>(request: &Request<'a, '_>, args: &'a [u8]) -> Outcome<'a> {
    let (key, exptime, noreply) = key_and_number(request, args)?;
    match signed(exptime) {
        Some(exptime) => Ok(Command::Touch {
            key,
            exptime: Exptime(exptime),
            noreply,
        }),
        None => Err(ProtoError {
            kind: ErrorKind::Exptime,
            silent: noreply,
        }),
    }
}

type KeyAndNumber<'a> = (&'a [u8], &'a [u8], bool);

fn key_and_number<'a>(
    request: &Request<'a, '_>,
    args: &'a [u8],
) -> Result<KeyAndNumber<'a>, ProtoError> {
    let words = split(args);
    let (key, number) = match words.as_slice() {
        [key, number] | [key, number, _] => (*key, *number),
        _ => return Err(ErrorKind::Unknown.into()),
    };
    let noreply = ends_with_noreply(&words);
    if !request.is_key(key) {
        return Err(ProtoError {
            kind: ErrorKind::Format,
            silent: noreply,
        });
    }
    Ok((key, number, noreply))
}

/// `flush_all [delay] [noreply]`.
fn flush_all(args: &[u8]) -> Outcome<'_> {
    let words = split(args);
    let noreply = ends_with_noreply(&words);
    let delay = match words.as_slice() {
        [] | [b"noreply"] => Some(0),
        [delay] | [delay, _] => signed(delay),
        _ => return Err(ErrorKind::Unknown.into()),
    };
    match delay {
        Some(delay) => Ok(Command::FlushAll {
            delay: Exptime(delay),
            noreply,
        }),
        None => Err(ProtoError {
            kind: ErrorKind::Exptime,
            silent: noreply,
        }),
    }
}

/// `verbosity <level> [noreply]`.
fn verbosity(args: &[u8]) -> Outcome<'_> {
    let words = split(args);
    let noreply = ends_with_noreply(&words);
    match words.as_slice() {
        [level] | [level, _] => match number_u32(level) {
            Some(level) => Ok(Command::Verbosity { level, noreply }),
            None => Err(ProtoError {
                kind: ErrorKind::Format,
                silent: noreply,
            }),
        },
        _ => Err(ErrorKind::Unknown.into()),
    }
}

/// `cache_memlimit <MiB> [noreply]`.
fn cache_memlimit(args: &[u8]) -> Outcome<'_> {
    let words = split(args);
    let silent = ends_with_noreply(&words);
    let ([mib] | [mib, _]) = words.as_slice() else {
        return Err(ErrorKind::Unknown.into());
    };
    match number_u32(mib) {
        None => Err(ProtoError {
            kind: ErrorKind::Unknown,
            silent,
        }),
        Some(mib) if mib < MEMLIMIT_MIB_MIN => Err(ProtoError {
            kind: ErrorKind::MemlimitTooSmall,
            silent,
        }),
        Some(mib) if mib > MEMLIMIT_MIB_MAX => Err(ProtoError {
            kind: ErrorKind::MemlimitNotMib,
            silent,
        }),
        Some(mib) => Ok(Command::CacheMemlimit {
            mib,
            noreply: silent,
        }),
    }
}

/// memcached looks at the last word alone, wherever it stands; so do we.
#[inline]
fn ends_with_noreply(words: &[&[u8]]) -> bool {
    words.last().is_some_and(|&word| word == b"noreply")
}
