//! The answers, one function per shape, appended to an [`Out`].
//!
//! What it never does: decide what the answer is. Meta answers repeat the flags in the order in
//! which the request named them, and heed the quiet flag.

use crate::base64;
use crate::parse::words::take_word;
use crate::{FlagSet, Leased, MetaHead, Out, ProtoError};

macro_rules! lines {
    ($($(#[$doc:meta])* $name:ident $line:literal;)*) => {
        $($(#[$doc])*
        #[inline]
        pub fn $name(out: &mut Out) {
            out.put(concat!($line, "\r\n").as_bytes());
        })*
    };
}

lines! {
    /// The end of a retrieval, or of statistics.
    end "END";
    /// A store that took place; a login that succeeded.
    stored "STORED";
    /// A store whose condition did not hold.
    not_stored "NOT_STORED";
    /// A `cas` of an item that has changed.
    exists "EXISTS";
    /// Nothing under this key.
    not_found "NOT_FOUND";
    /// A deletion that took place.
    deleted "DELETED";
    /// A touch that took place.
    touched "TOUCHED";
    /// Done.
    ok "OK";
    /// Statistics that were set back to zero.
    reset "RESET";
    /// A request that means nothing.
    error "ERROR";
    /// The tenant has had its part of the device and holds by refusing. Routers read the code 307
    /// as "busy"; other clients see an ordinary server error.
    busy "SERVER_ERROR 307 busy";
    /// A store that is longer than an item may be.
    too_large "SERVER_ERROR object too large for cache";
    /// A store for which no room could be made.
    out_of_memory "SERVER_ERROR out of memory storing object";
    /// An `incr`, `decr` or `ma` of something that is no number.
    non_numeric "CLIENT_ERROR cannot increment or decrement non-numeric value";
    /// A login that failed.
    auth_failure "CLIENT_ERROR authentication failure";
    /// The answer to `mn`.
    meta_noop "MN";
    /// A `shutdown` that is not allowed.
    shutdown_disabled "ERROR: shutdown not enabled";
    /// A `cache_memlimit` that cannot be met.
    memlimit_failed "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust";
    /// A miss of `me`.
    meta_debug_miss "EN";
}

/// A refused request: its line, or nothing where the client asked for no answer.
#[inline]
pub fn proto_error(out: &mut Out, error: ProtoError) {
    out.put(error.reply());
}

/// `CLIENT_ERROR <message>`.
pub fn client_error(out: &mut Out, message: &str) {
    out.put(b"CLIENT_ERROR ");
    out.put(message.as_bytes());
    crlf(out);
}

/// `SERVER_ERROR <message>`.
pub fn server_error(out: &mut Out, message: &str) {
    out.put(b"SERVER_ERROR ");
    out.put(message.as_bytes());
    crlf(out);
}

/// The line end behind a value.
#[inline]
pub fn crlf(out: &mut Out) {
    out.put(b"\r\n");
}

/// A number: the answer to `incr` and `decr`.
#[inline]
pub fn number(out: &mut Out, number: u64) {
    out.put_number(number);
    crlf(out);
}

/// `VERSION <version>`.
pub fn version(out: &mut Out, version: &str) {
    out.put(b"VERSION ");
    out.put(version.as_bytes());
    crlf(out);
}

/// One figure: `STAT <name> <value>`.
pub fn stat(out: &mut Out, name: &str, value: impl std::fmt::Display) {
    // Not a hot path: the allocation spares every caller a buffer.
    out.put(format!("STAT {name} {value}\r\n").as_bytes());
}

/// `VALUE <key> <flags> <len> [<cas>]`: the line before a value of `len` bytes; behind the value
/// goes [`crlf`], behind the last one [`end`].
#[inline]
pub fn value_header(out: &mut Out, key: &[u8], flags: u32, len: usize, cas: Option<u64>) {
    out.put(b"VALUE ");
    out.put(key);
    out.put_byte(b' ');
    item_figures(out, flags, len, cas);
}

#[inline]
fn item_figures(out: &mut Out, flags: u32, len: usize, cas: Option<u64>) {
    out.put_number(u64::from(flags));
    out.put_byte(b' ');
    out.put_number(len as u64);
    if let Some(cas) = cas {
        out.put_byte(b' ');
        out.put_number(cas);
    }
    crlf(out);
}

/// The answer to a lease: `LEASE <granted>|free <again> <read> <more> <write> <more>`.
pub fn leased(out: &mut Out, leased: &Leased) {
    out.put(b"LEASE ");
    match leased.granted_ps {
        Some(granted_ps) => out.put_number(granted_ps),
        None => out.put(b"free"),
    }
    let [read_ps, further_read_ps] = leased.read_ps;
    let [write_ps, further_write_ps] = leased.write_ps;
    let prices = [read_ps, further_read_ps, write_ps, further_write_ps];
    for number in std::iter::once(leased.again_us).chain(prices) {
        out.put_byte(b' ');
        out.put_number(number);
    }
    crlf(out);
}

/// How the keys of a [`crate::Scan`]'s answer are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanKeys {
    /// As base64.
    pub base64: bool,
}

impl ScanKeys {
    /// Whether this key can be sent: any as base64, else those without control characters and
    /// blanks, which would end it.
    pub fn can_send(self, key: &[u8]) -> bool {
        self.base64 || key.iter().all(|&byte| byte > b' ' && byte != 0x7f)
    }

    fn put(self, out: &mut Out, key: &[u8]) {
        match self.base64 {
            true => base64::encode(key, |digits| out.put(digits)),
            false => out.put(key),
        }
    }

    /// The line before a value, as [`value_header`]; behind the value goes [`crlf`].
    pub fn value(self, out: &mut Out, key: &[u8], flags: u32, len: usize, cas: Option<u64>) {
        self.item(out, b"VALUE ", key, flags, len, cas);
    }

    /// An item without its value: `KEY <key> <flags> <len> [<cas>]`.
    pub fn key(self, out: &mut Out, key: &[u8], flags: u32, len: usize, cas: Option<u64>) {
        self.item(out, b"KEY ", key, flags, len, cas);
    }

    fn item(
        self,
        out: &mut Out,
        word: &[u8],
        key: &[u8],
        flags: u32,
        len: usize,
        cas: Option<u64>,
    ) {
        out.put(word);
        self.put(out, key);
        out.put_byte(b' ');
        item_figures(out, flags, len, cas);
    }

    /// There may be more behind this key: `MORE <key>`.
    pub fn more(self, out: &mut Out, key: &[u8]) {
        out.put(b"MORE ");
        self.put(out, key);
        crlf(out);
    }
}

/// What a meta answer can tell of an item. `hit_before` and `idle_s` are of the time before the
/// request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaFacts {
    /// `c`: its cas value.
    pub cas: u64,
    /// `f`: the client's flags.
    pub client_flags: u32,
    /// `s`: the length of its value in bytes.
    pub len: usize,
    /// `t`: how long it lives on, in seconds; `None` for ever.
    pub ttl_s: Option<u32>,
    /// `l`: how long ago it was last read, in seconds.
    pub idle_s: u32,
    /// `h`: whether it has been read since it was stored.
    pub hit_before: bool,
    /// `W`: this client has won the right to replace it.
    pub won: bool,
    /// `X`: it is stale.
    pub stale: bool,
    /// `Z`: another client has won already.
    pub won_before: bool,
}

/// How a meta request ended that neither hit nor stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MetaStatus {
    /// `NS`: the condition of a store did not hold.
    NotStored,
    /// `EX`: the item's cas value is another one.
    Exists,
    /// `NF`: nothing under this key.
    NotFound,
}

/// The flags that the answers of each command repeat.
const RETURNS_OF_GET: FlagSet = FlagSet::of(b"cfhklOst");
const RETURNS_OF_SET: FlagSet = FlagSet::of(b"ckOs");
const RETURNS_OF_ARITH: FlagSet = FlagSet::of(b"ckOt");
const RETURNS_OF_MISS: FlagSet = FlagSet::of(b"kO");

/// A hit of `mg` with its value: `VA <len> <flag>*`. Behind it go the value of `facts.len` bytes
/// and [`crlf`].
pub fn meta_value(out: &mut Out, head: &MetaHead<'_>, facts: &MetaFacts) {
    out.put(b"VA ");
    out.put_number(facts.len as u64);
    meta_get_returns(out, head, facts);
}

/// A hit of `mg` without its value: `HD <flag>*`.
pub fn meta_hit(out: &mut Out, head: &MetaHead<'_>, facts: &MetaFacts) {
    out.put(b"HD");
    meta_get_returns(out, head, facts);
}

/// A miss of `mg`: `EN <flag>*`; nothing in quiet mode.
pub fn meta_miss(out: &mut Out, head: &MetaHead<'_>) {
    if !head.is_quiet() {
        out.put(b"EN");
        returns(out, head, RETURNS_OF_MISS, &MetaFacts::default());
        crlf(out);
    }
}

/// A store of `ms` that took place: `HD <flag>*`; nothing in quiet mode. `cas` and `len` are the
/// item's new ones.
pub fn meta_stored(out: &mut Out, head: &MetaHead<'_>, cas: u64, len: usize) {
    if !head.is_quiet() {
        out.put(b"HD");
        returns(
            out,
            head,
            RETURNS_OF_SET,
            &MetaFacts {
                cas,
                len,
                ..MetaFacts::default()
            },
        );
        crlf(out);
    }
}

/// A store of `ms`, of `len` bytes, that did not take place: `NS`, `EX` or `NF`, also in quiet
/// mode. The cas value that `c` asks for is 0, as in memcached.
pub fn meta_store_failed(out: &mut Out, head: &MetaHead<'_>, status: MetaStatus, len: usize) {
    put_status(out, status);
    returns(
        out,
        head,
        RETURNS_OF_SET,
        &MetaFacts {
            len,
            ..MetaFacts::default()
        },
    );
    crlf(out);
}

/// A deletion or invalidation of `md` that took place: `HD <flag>*`; nothing in quiet mode.
pub fn meta_deleted(out: &mut Out, head: &MetaHead<'_>) {
    if !head.is_quiet() {
        out.put(b"HD");
        returns(out, head, RETURNS_OF_MISS, &MetaFacts::default());
        crlf(out);
    }
}

/// An `ma` that took place: `HD <flag>*`, or `VA <len> <flag>*` and the new value where the client
/// wants it; nothing in quiet mode.
pub fn meta_arith(out: &mut Out, head: &MetaHead<'_>, value: u64, facts: &MetaFacts) {
    if head.is_quiet() {
        return;
    }
    let wants_value = head.flags().has(b'v');
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(value).as_bytes();
    if wants_value {
        out.put(b"VA ");
        out.put_number(digits.len() as u64);
    } else {
        out.put(b"HD");
    }
    returns(out, head, RETURNS_OF_ARITH, facts);
    crlf(out);
    if wants_value {
        out.put(digits);
        crlf(out);
    }
}

/// An `md` or `ma` that did not take place: `NS`, `EX` or `NF`, also in quiet mode.
pub fn meta_status(out: &mut Out, head: &MetaHead<'_>, status: MetaStatus) {
    put_status(out, status);
    returns(out, head, RETURNS_OF_MISS, &MetaFacts::default());
    crlf(out);
}

/// What `me` tells of an item: `ME <key> <name>=<value>*`. `class` is whatever the store groups
/// items by, `size` all of the item in bytes.
pub fn meta_debug(out: &mut Out, key: &[u8], facts: &MetaFacts, class: u32, size: usize) {
    out.put(b"ME ");
    out.put(key);
    out.put(b" exp=");
    put_ttl(out, facts.ttl_s);
    out.put(b" la=");
    out.put_number(u64::from(facts.idle_s));
    out.put(b" cas=");
    out.put_number(facts.cas);
    out.put(if facts.hit_before {
        b" fetch=yes"
    } else {
        b" fetch=no"
    });
    out.put(b" cls=");
    out.put_number(u64::from(class));
    out.put(b" size=");
    out.put_number(size as u64);
    crlf(out);
}

fn put_status(out: &mut Out, status: MetaStatus) {
    out.put(match status {
        MetaStatus::NotStored => b"NS",
        MetaStatus::Exists => b"EX",
        MetaStatus::NotFound => b"NF",
    });
}

/// The rest of an `mg` hit's line, with the flags that nobody asks for behind the others.
fn meta_get_returns(out: &mut Out, head: &MetaHead<'_>, facts: &MetaFacts) {
    returns(out, head, RETURNS_OF_GET, facts);
    if facts.won_before {
        out.put(b" Z");
    }
    if facts.stale {
        out.put(b" X");
    }
    if facts.won {
        out.put(b" W");
    }
    crlf(out);
}

/// Those of the request's flags that are in `which`, in the request's order, each behind a blank.
fn returns(out: &mut Out, head: &MetaHead<'_>, which: FlagSet, facts: &MetaFacts) {
    if head.flags().is_disjoint(which) {
        return;
    }
    let mut tokens = head.tokens();
    while let Some(token) = take_word(&mut tokens) {
        let letter = token[0];
        if !which.has(letter) {
            continue;
        }
        out.put(&[b' ', letter]);
        match letter {
            b'O' => out.put(&token[1..]),
            b'k' => {
                out.put(head.key());
                if head.is_base64() {
                    out.put(b" b");
                }
            }
            b'c' => out.put_number(facts.cas),
            b'f' => out.put_number(u64::from(facts.client_flags)),
            b's' => out.put_number(facts.len as u64),
            b't' => put_ttl(out, facts.ttl_s),
            b'l' => out.put_number(u64::from(facts.idle_s)),
            b'h' => out.put_byte(b'0' + u8::from(facts.hit_before)),
            _ => unreachable!("flag {} has no answer", letter.escape_ascii()),
        }
    }
}

fn put_ttl(out: &mut Out, ttl_s: Option<u32>) {
    match ttl_s {
        Some(ttl_s) => out.put_number(u64::from(ttl_s)),
        None => out.put(b"-1"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn written(write: impl FnOnce(&mut Out)) -> String {
        let mut out = Out::new();
        write(&mut out);
        out.pending().escape_ascii().to_string()
    }

    #[test]
    fn values_and_figures_look_as_the_protocol_says() {
        let value = |cas| written(|out| value_header(out, b"key", u32::MAX, 1 << 20, cas));
        assert_eq!(value(None), "VALUE key 4294967295 1048576\\r\\n");
        assert_eq!(
            value(Some(u64::MAX)),
            "VALUE key 4294967295 1048576 18446744073709551615\\r\\n"
        );
        let small = written(|out| value_header(out, b"k", 0, 9, Some(10)));
        assert_eq!(small, "VALUE k 0 9 10\\r\\n");
        assert_eq!(written(|out| number(out, 0)), "0\\r\\n");
        assert_eq!(written(|out| stat(out, "pid", 12)), "STAT pid 12\\r\\n");
        assert_eq!(
            written(|out| version(out, "1.6.18")),
            "VERSION 1.6.18\\r\\n"
        );
        assert_eq!(written(busy), "SERVER_ERROR 307 busy\\r\\n");
        assert_eq!(
            written(|out| client_error(out, "no")),
            "CLIENT_ERROR no\\r\\n"
        );
        assert_eq!(
            written(|out| server_error(out, "no")),
            "SERVER_ERROR no\\r\\n"
        );
    }

    #[test]
    fn errors_are_sent_unless_the_client_wants_no_answer() {
        let error = ProtoError::from(ErrorKind::DataChunk);
        let silent = ProtoError {
            silent: true,
            ..error
        };
        assert_eq!(
            written(|out| proto_error(out, error)),
            "CLIENT_ERROR bad data chunk\\r\\n"
        );
        assert_eq!(written(|out| proto_error(out, silent)), "");
        assert_eq!(error.to_string(), "CLIENT_ERROR bad data chunk");
        assert!(!error.closes());
        assert!(ProtoError::from(ErrorKind::LineTooLong).closes());
        assert!(ProtoError::from(ErrorKind::Http).closes());
    }
}
