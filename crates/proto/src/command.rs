//! A request as the executor sees it: a small `Copy` value that borrows its keys and its data from
//! the connection's input buffer.
//!
//! What it never does: own bytes, or carry a request that the parser has not checked in full.

use crate::Exptime;
use crate::meta::{MetaArith, MetaDebug, MetaDelete, MetaGet, MetaSet};
use crate::parse::words::take_word;

/// One complete request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// `get`, `gets`, `gat`, `gats`.
    Get(Get<'a>),
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`.
    Store(Store<'a>),
    /// `delete`.
    Delete {
        /// The item to remove.
        key: &'a [u8],
        /// Whether the client wants no answer.
        noreply: bool,
    },
    /// `incr`, `decr`.
    Arith {
        /// The item to change.
        key: &'a [u8],
        /// Up or down.
        op: ArithOp,
        /// By how much.
        delta: u64,
        /// Whether the client wants no answer.
        noreply: bool,
    },
    /// `touch`.
    Touch {
        /// The item whose time to live is replaced.
        key: &'a [u8],
        /// Its new time to live.
        exptime: Exptime,
        /// Whether the client wants no answer.
        noreply: bool,
    },
    /// `scan`.
    Scan(Scan<'a>),
    /// `lease`.
    Lease(Lease<'a>),
    /// `mg`.
    MetaGet(MetaGet<'a>),
    /// `ms`.
    MetaSet(MetaSet<'a>),
    /// `md`.
    MetaDelete(MetaDelete<'a>),
    /// `ma`.
    MetaArith(MetaArith<'a>),
    /// `me`.
    MetaDebug(MetaDebug<'a>),
    /// `mn`: answer `MN` at once.
    MetaNoop,
    /// A store whose data is longer than [`crate::Limits::item_len_max`]: its data is skipped and
    /// never buffered.
    TooLarge(TooLarge<'a>),
    /// `flush_all`: what is older than `delay` from now (at once where it is not positive) is gone.
    FlushAll {
        /// When, as the client wrote it; 0 where it wrote nothing.
        delay: Exptime,
        /// Whether the client wants no answer.
        noreply: bool,
    },
    /// `version`.
    Version,
    /// `verbosity`: answer `OK`.
    Verbosity {
        /// The log level that the client asks for.
        level: u32,
        /// Whether the client wants no answer.
        noreply: bool,
    },
    /// `stats`, with all of its arguments as one slice without surrounding blanks; empty for none.
    Stats {
        /// For instance `settings` or `detail on`.
        arg: &'a [u8],
    },
    /// `quit`: close without an answer.
    Quit,
    /// `shutdown`: memcached obeys only where `-A` was given.
    Shutdown {
        /// `shutdown graceful`: keep the cache for the next start.
        graceful: bool,
    },
    /// `cache_memlimit`.
    CacheMemlimit {
        /// The new size of the cache in MiB, 8 at least.
        mib: u32,
        /// Whether the client wants no answer.
        noreply: bool,
    },
}

const _: () = assert!(
    size_of::<Command<'_>>() <= 96,
    "a batch of commands must stay small"
);

impl<'a> Command<'a> {
    /// The first key as it stands in the request; base64 where [`Command::is_base64`] says so.
    #[inline]
    pub fn first_key(&self) -> Option<&'a [u8]> {
        match *self {
            Command::Get(ref get) => Some(get.first),
            Command::Store(ref store) => Some(store.key),
            Command::Delete { key, .. }
            | Command::Arith { key, .. }
            | Command::Touch { key, .. } => Some(key),
            Command::Scan(ref scan) => scan.first_key(),
            Command::MetaGet(ref meta) => Some(meta.head.key()),
            Command::MetaSet(ref meta) => Some(meta.head.key()),
            Command::MetaDelete(ref meta) => Some(meta.head.key()),
            Command::MetaArith(ref meta) => Some(meta.head.key()),
            Command::MetaDebug(ref meta) => Some(meta.key),
            Command::TooLarge(ref too_large) => Some(too_large.key),
            _ => None,
        }
    }

    /// Whether it may change an item.
    #[inline]
    pub fn changes(&self) -> bool {
        match self {
            Command::Get(get) => get.touch.is_some(),
            Command::MetaGet(meta) => meta.ttl().is_some() || meta.vivify().is_some(),
            Command::Store(_)
            | Command::Delete { .. }
            | Command::Arith { .. }
            | Command::Touch { .. }
            | Command::MetaSet(_)
            | Command::MetaDelete(_)
            | Command::MetaArith(_)
            | Command::TooLarge(_)
            | Command::FlushAll { .. } => true,
            _ => false,
        }
    }

    /// Whether the client wants no answer, and so no error either (`noreply`).
    pub fn noreply(&self) -> bool {
        match *self {
            Command::Store(Store { noreply, .. })
            | Command::TooLarge(TooLarge { noreply, .. })
            | Command::Delete { noreply, .. }
            | Command::Arith { noreply, .. }
            | Command::Touch { noreply, .. }
            | Command::FlushAll { noreply, .. }
            | Command::Verbosity { noreply, .. }
            | Command::CacheMemlimit { noreply, .. } => noreply,
            _ => false,
        }
    }

    /// Whether the key is base64 of the real one (meta flag `b`).
    #[inline]
    pub fn is_base64(&self) -> bool {
        match self {
            Command::Scan(scan) => scan.has(Scan::BASE64),
            Command::MetaGet(meta) => meta.head.is_base64(),
            Command::MetaSet(meta) => meta.head.is_base64(),
            Command::MetaDelete(meta) => meta.head.is_base64(),
            Command::MetaArith(meta) => meta.head.is_base64(),
            Command::MetaDebug(meta) => meta.base64,
            Command::TooLarge(too_large) => too_large.base64,
            _ => false,
        }
    }
}

/// `get`, `gets`, `gat`, `gats`: one key or many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get<'a> {
    /// The first key. There always is one.
    pub first: &'a [u8],
    /// What follows the first key on the line: the other keys, blanks between them; empty for one.
    pub rest: &'a [u8],
    /// How many keys there are.
    pub count: u32,
    /// `gets`, `gats`: the answer carries cas values.
    pub with_cas: bool,
    /// `gat`, `gats`: the new time to live of every item that is found.
    pub touch: Option<Exptime>,
}

impl<'a> Get<'a> {
    /// All keys in the order of the request.
    #[inline]
    pub fn keys(&self) -> Keys<'a> {
        Keys {
            first: Some(self.first),
            rest: self.rest,
        }
    }
}

/// The keys of a [`Get`].
#[derive(Clone, Debug)]
pub struct Keys<'a> {
    first: Option<&'a [u8]>,
    rest: &'a [u8],
}

impl<'a> Iterator for Keys<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        self.first.take().or_else(|| take_word(&mut self.rest))
    }
}

/// `scan`: keys in their order, an extension of Nyx (`docs/protocol.md`, "Ranges"). Keys are as
/// they stand in the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan<'a> {
    /// What all keys begin with; empty for `*`, all keys.
    pub prefix: &'a [u8],
    /// `from`, or `after`: where to begin.
    pub begin: Option<&'a [u8]>,
    /// `to`, or `before`: where to end.
    pub end: Option<&'a [u8]>,
    /// How many items at most; [`u32::MAX`] where the client does not say.
    pub limit: u32,
    pub(crate) options: u8,
}

impl<'a> Scan<'a> {
    /// `after`: begins behind `begin`.
    pub const AFTER: u8 = 1;
    /// `before`: ends before `end`.
    pub const BEFORE: u8 = 2;
    /// `down`: the greatest key first.
    pub const DOWN: u8 = 4;
    /// `keys`: without values.
    pub const KEYS: u8 = 8;
    /// `cas`: with cas values.
    pub const CAS: u8 = 16;
    /// `base64`: all keys, of the request and of the answer, are base64 of the real ones.
    pub const BASE64: u8 = 32;

    /// Whether it has one of the options above.
    #[inline]
    pub fn has(&self, option: u8) -> bool {
        self.options & option != 0
    }

    /// The key that says whose keys are meant.
    pub fn first_key(&self) -> Option<&'a [u8]> {
        let prefix = Some(self.prefix).filter(|prefix| !prefix.is_empty());
        prefix.or(self.begin).or(self.end)
    }
}

/// `lease`: device time for accesses that somebody else makes as a tenant, an extension of Nyx
/// (`docs/protocol.md`, "Leases").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease<'a> {
    /// The tenant's name.
    pub tenant: &'a [u8],
    /// Device time that is asked for, in picoseconds.
    pub want_ps: u64,
    /// Reads that were made since the last request.
    pub reads: u64,
    /// What they read, together.
    pub read_bytes: u64,
    /// Writes that were made since the last request.
    pub writes: u64,
    /// What they wrote, together.
    pub written_bytes: u64,
}

/// The answer to a [`Lease`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leased {
    /// Device time that may be used from now on, in picoseconds; none where nothing is limited.
    pub granted_ps: Option<u64>,
    /// When to ask again at the latest, or for the first time where nothing was granted; in
    /// microseconds.
    pub again_us: u64,
    /// What a read of 4 KiB takes of that, and each further 4 KiB of the same read.
    pub read_ps: [u64; 2],
    /// The same of a write.
    pub write_ps: [u64; 2],
}

/// Which store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreVerb {
    /// Whatever is there.
    Set,
    /// Only where nothing is there.
    Add,
    /// Only where something is there.
    Replace,
    /// Behind what is there; flags and time to live stay.
    Append,
    /// Before what is there; flags and time to live stay.
    Prepend,
    /// Only where what is there has this cas value.
    Cas,
}

/// `set`, `add`, `replace`, `append`, `prepend`, `cas`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store<'a> {
    /// The item.
    pub key: &'a [u8],
    /// Its value, without the line end behind it.
    pub data: &'a [u8],
    /// The cas value that the item must have; 0 where `verb` is not `Cas`.
    pub cas: u64,
    /// The item's time to live.
    pub exptime: Exptime,
    /// The client's flags.
    pub flags: u32,
    /// On what condition.
    pub verb: StoreVerb,
    /// Whether the client wants no answer.
    pub noreply: bool,
}

/// Up or down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArithOp {
    /// Adds; wraps at 2^64.
    Incr,
    /// Subtracts; stops at 0.
    Decr,
}

/// A store that was refused by its length. The executor answers
/// `SERVER_ERROR object too large for cache` (unless `noreply`) and, where `drop_old` is set,
/// removes the old item: a cache must not go on serving a value that the client meant to replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge<'a> {
    /// The item that would have been stored.
    pub key: &'a [u8],
    /// Whether `key` is base64 of the real one.
    pub base64: bool,
    /// Whether the old item must go: `set` and every `ms`, as in memcached.
    pub drop_old: bool,
    /// Whether the client wants no answer. Never set for `ms`, whose errors are always sent.
    pub noreply: bool,
    /// How many bytes of data the client announced.
    pub data_len: usize,
}
