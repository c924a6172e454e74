//! The meta commands `mg ms md ma me` and their flags.
//!
//! What it never does: keep a flag that the parser has not checked.

use std::fmt;

use crate::base64;
use crate::{ArithOp, Exptime, StoreVerb};

/// A set of meta flags, by their letters.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct FlagSet(u32);

impl FlagSet {
    /// The empty set.
    pub const NONE: FlagSet = FlagSet(0);

    /// The set of the flags with these letters. Letters that are no flags are left out.
    pub const fn of(letters: &[u8]) -> FlagSet {
        let mut bits = 0;
        let mut i = 0;
        while i < letters.len() {
            bits |= FlagSet::bit(letters[i]);
            i += 1;
        }
        FlagSet(bits)
    }

    /// Whether the flag with this letter is in the set.
    #[inline]
    pub const fn has(self, letter: u8) -> bool {
        self.0 & FlagSet::bit(letter) != 0
    }

    /// Whether there is a flag with this letter.
    #[inline]
    pub const fn is_flag(letter: u8) -> bool {
        BIT_OF_LETTER[letter as usize] != u8::MAX
    }

    /// Puts the flag with this letter into the set; says whether it is new there.
    #[inline]
    pub(crate) fn insert(&mut self, letter: u8) -> bool {
        let bit = FlagSet::bit(letter);
        let new = self.0 & bit == 0;
        self.0 |= bit;
        new
    }

    /// Whether no flag of `other` is in the set.
    #[inline]
    pub const fn is_disjoint(self, other: FlagSet) -> bool {
        self.0 & other.0 == 0
    }

    /// The bit of a flag: its rank in [`FLAGS`]; 0 for a letter that is none.
    #[inline]
    const fn bit(letter: u8) -> u32 {
        match BIT_OF_LETTER[letter as usize] {
            u8::MAX => 0,
            bit => 1 << bit,
        }
    }
}

impl fmt::Debug for FlagSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = FLAGS.iter().filter(|&&letter| self.has(letter));
        f.write_str(
            &letters
                .map(|&letter| char::from(letter))
                .collect::<String>(),
        )
    }
}

/// Every letter that is a flag of some meta command.
const FLAGS: &[u8] = b"bcfhklqstuvxCDEFIJLMNOPRT";

const BIT_OF_LETTER: [u8; 256] = {
    let mut table = [u8::MAX; 256];
    let mut bit = 0;
    while bit < FLAGS.len() {
        table[FLAGS[bit] as usize] = bit as u8;
        bit += 1;
    }
    table
};

/// What all meta commands on a key have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MetaHead<'a> {
    /// The request's line from its key on, without the line end. One slice and two offsets instead
    /// of two slices: it keeps [`crate::Command`] small.
    pub(crate) line: &'a [u8],
    pub(crate) key_len: u16,
    pub(crate) tokens_at: u16,
    pub(crate) flags: FlagSet,
}

impl<'a> MetaHead<'a> {
    /// The key as it stands in the request; see [`MetaHead::decode_key`].
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        &self.line[..usize::from(self.key_len)]
    }

    /// The flags as they stand in the request, with their tokens, blanks between them: the answer
    /// repeats them in this order.
    #[inline]
    pub fn tokens(&self) -> &'a [u8] {
        &self.line[usize::from(self.tokens_at)..]
    }

    /// The flags as a set.
    #[inline]
    pub fn flags(&self) -> FlagSet {
        self.flags
    }

    /// Whether the key is base64 of the real one (flag `b`).
    #[inline]
    pub fn is_base64(&self) -> bool {
        self.flags.has(b'b')
    }

    /// Whether the usual answer of this command is not sent (flag `q`): `EN` of `mg`, `HD` of `ms`
    /// and `md`, `HD` and `VA` of `ma`. The functions of [`crate::reply`] heed it.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.flags.has(b'q')
    }

    /// The key to look up: the request's own, or what its base64 stands for, in `scratch`.
    #[inline]
    pub fn decode_key<'s>(&self, scratch: &'s mut KeyBuf) -> &'s [u8]
    where
        'a: 's,
    {
        if self.is_base64() {
            scratch.decode(self.key())
        } else {
            self.key()
        }
    }

    #[inline]
    fn token<T>(&self, letter: u8, value: T) -> Option<T> {
        if self.flags.has(letter) {
            Some(value)
        } else {
            None
        }
    }
}

impl fmt::Debug for MetaHead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, tokens) = (self.key().escape_ascii(), self.tokens().escape_ascii());
        write!(f, "{key} [{tokens}]")
    }
}

/// Where a base64 key is decoded to.
#[derive(Clone, Debug)]
pub struct KeyBuf([u8; KEY_DECODED_LEN_MAX]);

/// The longest binary key in bytes: what 256 bytes of base64 hold.
const KEY_DECODED_LEN_MAX: usize = 192;

impl Default for KeyBuf {
    fn default() -> KeyBuf {
        KeyBuf([0; KEY_DECODED_LEN_MAX])
    }
}

impl KeyBuf {
    /// The binary key behind `base64`, which the parser has checked; empty where it is none.
    #[inline]
    pub fn decode(&mut self, base64: &[u8]) -> &[u8] {
        let len = base64::decode(base64, &mut self.0).unwrap_or(0);
        &self.0[..len]
    }
}

/// `mg`: get, touch, and the protections against a stampede.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaGet<'a> {
    /// Key and flags.
    pub head: MetaHead<'a>,
    pub(crate) values: Values,
    pub(crate) recache: Exptime,
}

/// `ms`: every kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaSet<'a> {
    /// Key and flags.
    pub head: MetaHead<'a>,
    /// The item's value, without the line end behind it.
    pub data: &'a [u8],
    pub(crate) values: Values,
    /// `F`: the client's flags, 0 where it names none.
    pub client_flags: u32,
    /// `M`: on what condition. `Cas` is never named: see [`MetaSet::cas`].
    pub verb: StoreVerb,
}

/// `md`: delete, or mark as stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaDelete<'a> {
    /// Key and flags.
    pub head: MetaHead<'a>,
    pub(crate) values: Values,
}

/// `ma`: increment or decrement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaArith<'a> {
    /// Key and flags.
    pub head: MetaHead<'a>,
    pub(crate) values: Values,
    /// `D`: by how much; 1 where the client names none.
    pub delta: u64,
    /// `J`: the value of an item that `N` creates; 0 where the client names none.
    pub initial: u64,
    /// `M`: up or down.
    pub op: ArithOp,
}

/// `me`: what is known of an item, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaDebug<'a> {
    /// The key as it stands in the request.
    pub key: &'a [u8],
    /// Whether it is base64 of the real one.
    pub base64: bool,
}

/// The numbers that several commands take as tokens. A number means something only where the set of
/// flags has its letter; the accessors look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Values {
    pub(crate) cas: u64,
    pub(crate) cas_new: u64,
    pub(crate) ttl: Exptime,
    pub(crate) vivify: Exptime,
}

macro_rules! accessors {
    ($command:ident: $($(#[$doc:meta])* $name:ident $letter:literal -> $type:ty),* $(,)?) => {
        impl $command<'_> {
            $($(#[$doc])*
            #[inline]
            pub fn $name(&self) -> Option<$type> {
                self.head.token($letter, self.values.$name)
            })*
        }
    };
}

accessors! { MetaGet:
    /// `C`: do not send the value where the item has this cas value.
    cas b'C' -> u64,
    /// `E`: the cas value of an item that this request creates.
    cas_new b'E' -> u64,
    /// `T`: the item's new time to live.
    ttl b'T' -> Exptime,
    /// `N`: on a miss create an empty item with this time to live, and win.
    vivify b'N' -> Exptime,
}

accessors! { MetaSet:
    /// `C`: store only where the item has this cas value: `S` and `R` become `cas`, `A` and `P`
    /// check it too, `E` (add) needs no check.
    cas b'C' -> u64,
    /// `E`: the item's new cas value.
    cas_new b'E' -> u64,
    /// `T`: the item's time to live; never ends where the client names none.
    ttl b'T' -> Exptime,
    /// `N`: on a miss of an append or prepend create the item with this time to live.
    vivify b'N' -> Exptime,
}

accessors! { MetaDelete:
    /// `C`: delete only where the item has this cas value.
    cas b'C' -> u64,
    /// `E`: the cas value of the item that stays behind (with `I` or `x`).
    cas_new b'E' -> u64,
    /// `T`: with `I`, the time to live of the stale item.
    ttl b'T' -> Exptime,
}

accessors! { MetaArith:
    /// `C`: only where the item has this cas value.
    cas b'C' -> u64,
    /// `E`: the item's new cas value.
    cas_new b'E' -> u64,
    /// `T`: the item's new time to live.
    ttl b'T' -> Exptime,
    /// `N`: on a miss create the item with this time to live and the initial value.
    vivify b'N' -> Exptime,
}

impl MetaGet<'_> {
    /// `R`: win where less than this is left to live.
    #[inline]
    pub fn recache(&self) -> Option<Exptime> {
        self.head.token(b'R', self.recache)
    }

    /// `v`: send the value.
    #[inline]
    pub fn wants_value(&self) -> bool {
        self.head.flags.has(b'v')
    }

    /// `u`: leave the item's place in the eviction order, its access time and its hit mark alone.
    #[inline]
    pub fn no_bump(&self) -> bool {
        self.head.flags.has(b'u')
    }
}

impl MetaSet<'_> {
    /// `I`: where the cas value of the request is older than the item's, store and mark as stale.
    #[inline]
    pub fn invalidates(&self) -> bool {
        self.head.flags.has(b'I')
    }
}

impl MetaDelete<'_> {
    /// `I`: do not delete: mark as stale and give it a new cas value.
    #[inline]
    pub fn invalidates(&self) -> bool {
        self.head.flags.has(b'I')
    }

    /// `x`: remove the value and the client's flags, keep the item.
    #[inline]
    pub fn clears_value(&self) -> bool {
        self.head.flags.has(b'x')
    }
}

impl MetaArith<'_> {
    /// `v`: send the new value.
    #[inline]
    pub fn wants_value(&self) -> bool {
        self.head.flags.has(b'v')
    }
}
