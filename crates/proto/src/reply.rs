//! The answers, one function per shape, appended to an [`Out`].
//!
//! What it never does: decide what the answer is. Meta answers repeat the flags in the order in
//! which the request named them, and heed the quiet flag.

use crate::{MetaHead, Out, ProtoError};

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
    let line = format!("STAT {name} {value}\r\n");
    out.put(line.as_bytes());
}

/// `VALUE <key> <flags> <len> [<cas>]`: the line before a value of `len` bytes; behind the value
/// goes [`crlf`], behind the last one [`end`].
#[inline]
pub fn value_header(out: &mut Out, key: &[u8], flags: u32, len: usize, cas: Option<u64>) {
    out.put(b"VALUE ");
    out.put(key);
    out.put_byte(b' ');
    out.put_number(u64::from(flags));
    out.put_byte(b' ');
    out.put_number(len as u64);
    if let Some(cas) = cas {
        out.put_byte(b' ');
        out.put_number(cas);
    }
    crlf(out);
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

/// A hit of `mg` with its value wanted, or of `ma` with `v`: `VA <len> <flags>*`. Behind it go the
/// value of `facts.len` bytes and [`crlf`].
pub fn meta_value(out: &mut Out, head: &MetaHead<'_>, facts: &MetaFacts) {
    let _ = (out, head, facts);
}

/// A hit of `mg` or `ma` without its value: `HD <flags>*`.
pub fn meta_hit(out: &mut Out, head: &MetaHead<'_>, facts: &MetaFacts) {
    let _ = (out, head, facts);
}

/// A miss of `mg`: `EN`; nothing in quiet mode.
pub fn meta_miss(out: &mut Out, head: &MetaHead<'_>) {
    let _ = (out, head);
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

/// A store of `ms` that took place: `HD <flags>*`; nothing in quiet mode.
pub fn meta_stored(out: &mut Out, head: &MetaHead<'_>, cas: u64, len: usize) {
    let _ = (out, head, cas, len);
}

/// A deletion or invalidation of `md` that took place: `HD <flags>*`; nothing in quiet mode.
pub fn meta_deleted(out: &mut Out, head: &MetaHead<'_>) {
    let _ = (out, head);
}

/// An `ma` that took place: `HD <flags>*` or `VA <len> <flags>*` and the new value; nothing in quiet
/// mode.
pub fn meta_arith(out: &mut Out, head: &MetaHead<'_>, value: u64, facts: &MetaFacts) {
    let _ = (out, head, value, facts);
}

/// A meta store, deletion or arithmetic that did not take place: `NS`, `EX` or `NF`.
pub fn meta_status(out: &mut Out, head: &MetaHead<'_>, status: MetaStatus) {
    let _ = (out, head, status);
}

/// What `me` tells of an item: `ME <key> <name>=<value>*`. `exp` is the remaining time to live in
/// seconds, -1 for ever; `class` is whatever the store groups items by.
pub fn meta_debug(out: &mut Out, key: &[u8], facts: &MetaFacts, class: u32, size: usize) {
    let _ = (out, key, facts, class, size);
}
