//! Speaks: the memcached text protocols, classic and meta, as upstream's `doc/protocol.txt` defines
//! them and as memcached 1.6 answers them.
//!
//! Sans-IO: bytes in, [`Command`]s out; results in, bytes out. What this room never does: own a
//! socket, read a clock, look an item up, allocate while it parses, or use `unsafe`.
//!
//! * [`parse()`]: one request from the front of an input buffer; the [`Command`] borrows from it.
//! * [`auth`]: the only request that a connection may send before it has logged in.
//! * [`reply`]: what the executor answers, appended to an [`Out`].
//! * [`request`], [`response`]: the client's side of the same wire, for load generators and tests.
//! * [`fuzzing`]: the properties of all of these as functions of arbitrary bytes.
//!
//! What differs from memcached, and why, is in `docs/protocol.md`.
#![forbid(unsafe_code)]

mod base64;
mod command;
mod error;
mod exptime;
mod meta;
mod out;
mod parse;

pub mod auth;
pub mod fuzzing;
pub mod reply;
pub mod request;
pub mod response;

pub use command::{ArithOp, Command, Get, Keys, Lease, Leased, Scan, Store, StoreVerb, TooLarge};
pub use error::{ErrorKind, ProtoError};
pub use exptime::{Expiry, Exptime};
pub use meta::{FlagSet, KeyBuf, MetaArith, MetaDebug, MetaDelete, MetaGet, MetaHead, MetaSet};
pub use out::Out;
pub use parse::{LINE_LEN_MAX, Limits, Parse, parse};
