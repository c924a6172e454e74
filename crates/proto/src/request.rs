//! Requests as a client writes them, appended to a buffer: for load generators, replays and tests.
//!
//! What it never does: check. Keys and tokens go out as they are given, so that a test can send
//! what no client should.

use crate::{ArithOp, Command, Exptime, Get, Lease, MetaHead, MetaSet, Scan, Store, StoreVerb};

/// `get <key>`.
#[inline]
pub fn get(out: &mut Vec<u8>, key: &[u8]) {
    line(out, &[b"get", key]);
}

/// `gets <key>`.
#[inline]
pub fn gets(out: &mut Vec<u8>, key: &[u8]) {
    line(out, &[b"gets", key]);
}

/// `get <key>*`.
pub fn multiget<'k>(out: &mut Vec<u8>, keys: impl IntoIterator<Item = &'k [u8]>) {
    out.extend_from_slice(b"get");
    for key in keys {
        word(out, key);
    }
    crlf(out);
}

/// The line of a `set` whose `len` bytes of data and [`crlf`] the caller appends.
#[inline]
pub fn set_line(out: &mut Vec<u8>, key: &[u8], flags: u32, exptime: Exptime, len: usize) {
    out.extend_from_slice(b"set");
    word(out, key);
    number(out, flags);
    number(out, exptime.0);
    number(out, len);
    crlf(out);
}

/// `set` with its data.
#[inline]
pub fn set(out: &mut Vec<u8>, key: &[u8], flags: u32, exptime: Exptime, data: &[u8]) {
    set_line(out, key, flags, exptime, data.len());
    out.extend_from_slice(data);
    crlf(out);
}

/// `delete <key>`.
#[inline]
pub fn delete(out: &mut Vec<u8>, key: &[u8]) {
    line(out, &[b"delete", key]);
}

/// `lease <tenant> <want> <reads> <read bytes> <writes> <written bytes>`.
pub fn lease(out: &mut Vec<u8>, lease: &Lease<'_>) {
    out.extend_from_slice(b"lease");
    word(out, lease.tenant);
    number(out, lease.want_ps);
    number(out, lease.reads);
    number(out, lease.read_bytes);
    number(out, lease.writes);
    number(out, lease.written_bytes);
    crlf(out);
}

/// `scan <prefix> from <key> limit <n>`.
pub fn scan(out: &mut Vec<u8>, prefix: &[u8], from: &[u8], limit: u32) {
    let scan = Scan {
        prefix,
        begin: Some(from),
        end: None,
        limit,
        options: 0,
    };
    encode_scan(out, &scan);
}

/// `mg <key> <flag>*`, the flags given as one string without a blank in front: `v t Oabc`.
#[inline]
pub fn meta_get(out: &mut Vec<u8>, key: &[u8], flags: &[u8]) {
    meta_line(out, b"mg", key, None, flags);
}

/// `ms <key> <len> <flag>*` with its data.
#[inline]
pub fn meta_set(out: &mut Vec<u8>, key: &[u8], flags: &[u8], data: &[u8]) {
    meta_line(out, b"ms", key, Some(data.len()), flags);
    out.extend_from_slice(data);
    crlf(out);
}

/// `md <key> <flag>*`.
pub fn meta_delete(out: &mut Vec<u8>, key: &[u8], flags: &[u8]) {
    meta_line(out, b"md", key, None, flags);
}

/// `ma <key> <flag>*`.
pub fn meta_arith(out: &mut Vec<u8>, key: &[u8], flags: &[u8]) {
    meta_line(out, b"ma", key, None, flags);
}

/// `mn`.
pub fn meta_noop(out: &mut Vec<u8>) {
    line(out, &[b"mn"]);
}

/// The login of memcached's ASCII authentication.
pub fn login(out: &mut Vec<u8>, user: &str, password: &str) {
    set_line(
        out,
        b"auth",
        0,
        Exptime::NEVER,
        user.len() + 1 + password.len(),
    );
    out.extend_from_slice(user.as_bytes());
    word(out, password.as_bytes());
    crlf(out);
}

/// The line end.
#[inline]
pub fn crlf(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

/// Any request. [`crate::parse()`] reads it back, [`Command::TooLarge`] (only its line is written)
/// with limits under which it is too large.
pub fn encode(out: &mut Vec<u8>, command: &Command<'_>) {
    match *command {
        Command::Get(ref get) => encode_get(out, get),
        Command::Store(ref store) => encode_store(out, store),
        Command::Delete { key, noreply } => options(out, &[b"delete", key], None, noreply),
        Command::Arith {
            key,
            op,
            delta,
            noreply,
        } => {
            let verb: &[u8] = if op == ArithOp::Incr {
                b"incr"
            } else {
                b"decr"
            };
            options(out, &[verb, key], Some(i128::from(delta)), noreply);
        }
        Command::Touch {
            key,
            exptime,
            noreply,
        } => {
            options(out, &[b"touch", key], Some(i128::from(exptime.0)), noreply);
        }
        Command::Scan(ref scan) => encode_scan(out, scan),
        Command::Lease(ref asked) => lease(out, asked),
        Command::MetaGet(ref meta) => encode_meta(out, b"mg", &meta.head),
        Command::MetaDelete(ref meta) => encode_meta(out, b"md", &meta.head),
        Command::MetaArith(ref meta) => encode_meta(out, b"ma", &meta.head),
        Command::MetaSet(MetaSet { head, data, .. }) => {
            meta_set(out, head.key(), head.tokens(), data);
        }
        Command::MetaDebug(ref meta) if meta.base64 => line(out, &[b"me", meta.key, b"b"]),
        Command::MetaDebug(ref meta) => line(out, &[b"me", meta.key]),
        Command::MetaNoop => meta_noop(out),
        Command::TooLarge(too_large) if too_large.drop_old && !too_large.noreply => {
            let flags: &[u8] = if too_large.base64 { b"b" } else { b"" };
            meta_line(out, b"ms", too_large.key, Some(too_large.data_len), flags);
        }
        Command::TooLarge(too_large) => {
            let verb: &[u8] = if too_large.drop_old { b"set" } else { b"add" };
            let words = [verb, too_large.key, b"0", b"0"];
            options(
                out,
                &words,
                Some(too_large.data_len as i128),
                too_large.noreply,
            );
        }
        Command::FlushAll { delay, noreply } => {
            options(out, &[b"flush_all"], Some(i128::from(delay.0)), noreply);
        }
        Command::Version => line(out, &[b"version"]),
        Command::Verbosity { level, noreply } => {
            options(out, &[b"verbosity"], Some(i128::from(level)), noreply);
        }
        Command::Stats { arg: b"" } => line(out, &[b"stats"]),
        Command::Stats { arg } => line(out, &[b"stats", arg]),
        Command::Quit => line(out, &[b"quit"]),
        Command::Shutdown { graceful: true } => line(out, &[b"shutdown", b"graceful"]),
        Command::Shutdown { graceful: false } => line(out, &[b"shutdown"]),
        Command::CacheMemlimit { mib, noreply } => {
            options(out, &[b"cache_memlimit"], Some(i128::from(mib)), noreply);
        }
    }
}

fn encode_get(out: &mut Vec<u8>, get: &Get<'_>) {
    out.extend_from_slice(match (get.with_cas, get.touch) {
        (false, None) => b"get",
        (true, None) => b"gets",
        (false, Some(_)) => b"gat",
        (true, Some(_)) => b"gats",
    });
    if let Some(exptime) = get.touch {
        number(out, exptime.0);
    }
    for key in get.keys() {
        word(out, key);
    }
    crlf(out);
}

fn encode_scan(out: &mut Vec<u8>, scan: &Scan<'_>) {
    out.extend_from_slice(b"scan");
    word(
        out,
        if scan.prefix.is_empty() {
            b"*"
        } else {
            scan.prefix
        },
    );
    let bounds: [(_, _, &[u8], &[u8]); 2] = [
        (scan.begin, Scan::AFTER, b"from", b"after"),
        (scan.end, Scan::BEFORE, b"to", b"before"),
    ];
    for (key, outside, with, without) in bounds {
        if let Some(key) = key {
            word(out, if scan.has(outside) { without } else { with });
            word(out, key);
        }
    }
    if scan.limit != u32::MAX {
        word(out, b"limit");
        number(out, scan.limit);
    }
    let options: [(_, &[u8]); 4] = [
        (Scan::DOWN, b"down"),
        (Scan::KEYS, b"keys"),
        (Scan::CAS, b"cas"),
        (Scan::BASE64, b"base64"),
    ];
    for (option, name) in options {
        if scan.has(option) {
            word(out, name);
        }
    }
    crlf(out);
}

fn encode_store(out: &mut Vec<u8>, store: &Store<'_>) {
    out.extend_from_slice(match store.verb {
        StoreVerb::Set => b"set",
        StoreVerb::Add => b"add",
        StoreVerb::Replace => b"replace",
        StoreVerb::Append => b"append",
        StoreVerb::Prepend => b"prepend",
        StoreVerb::Cas => b"cas",
    });
    word(out, store.key);
    number(out, store.flags);
    number(out, store.exptime.0);
    number(out, store.data.len());
    if store.verb == StoreVerb::Cas {
        number(out, store.cas);
    }
    if store.noreply {
        word(out, b"noreply");
    }
    crlf(out);
    out.extend_from_slice(store.data);
    crlf(out);
}

fn encode_meta(out: &mut Vec<u8>, verb: &[u8], head: &MetaHead<'_>) {
    meta_line(out, verb, head.key(), None, head.tokens());
}

#[inline]
fn meta_line(out: &mut Vec<u8>, verb: &[u8], key: &[u8], len: Option<usize>, flags: &[u8]) {
    out.extend_from_slice(verb);
    word(out, key);
    if let Some(len) = len {
        number(out, len);
    }
    if !flags.is_empty() {
        word(out, flags);
    }
    crlf(out);
}

/// A line of `words`, a last number, and `noreply`.
fn options(out: &mut Vec<u8>, words: &[&[u8]], last: Option<i128>, noreply: bool) {
    out.extend_from_slice(words[0]);
    words[1..].iter().for_each(|next| word(out, next));
    if let Some(last) = last {
        number(out, last);
    }
    if noreply {
        word(out, b"noreply");
    }
    crlf(out);
}

#[inline]
fn line(out: &mut Vec<u8>, words: &[&[u8]]) {
    options(out, words, None, false);
}

#[inline]
fn word(out: &mut Vec<u8>, word: &[u8]) {
    out.push(b' ');
    out.extend_from_slice(word);
}

#[inline]
fn number(out: &mut Vec<u8>, number: impl itoa::Integer) {
    word(out, itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_look_as_the_protocol_says() {
        let mut out = Vec::new();
        get(&mut out, b"a");
        gets(&mut out, b"a");
        multiget(&mut out, [&b"a"[..], b"b"]);
        set(&mut out, b"a", 7, Exptime(-1), b"xyz");
        delete(&mut out, b"a");
        meta_get(&mut out, b"a", b"v t");
        meta_set(&mut out, b"a", b"", b"xy");
        meta_delete(&mut out, b"a", b"q");
        meta_arith(&mut out, b"a", b"D2");
        meta_noop(&mut out);
        login(&mut out, "me", "secret");
        let want = "get a\r\ngets a\r\nget a b\r\nset a 7 -1 3\r\nxyz\r\ndelete a\r\nmg a v t\r\n\
                    ms a 2\r\nxy\r\nmd a q\r\nma a D2\r\nmn\r\nset auth 0 0 9\r\nme secret\r\n";
        assert_eq!(
            out.escape_ascii().to_string(),
            want.as_bytes().escape_ascii().to_string()
        );
    }
}
