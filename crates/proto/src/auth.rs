//! memcached's ASCII authentication (its option `-Y`): until it has logged in, a connection may send
//! nothing but `set <any> <flags> <exptime> <len>\r\n<user> <password>\r\n`.
//!
//! What it never does: know a password. The caller checks and answers `STORED` or
//! `CLIENT_ERROR authentication failure`.

use crate::ProtoError;

/// What the front of an input is that must begin with a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth<'a> {
    /// A login.
    Login {
        /// Who.
        user: &'a [u8],
        /// The password.
        password: &'a [u8],
        /// Its length in bytes; at least 1.
        used: usize,
    },
    /// Not yet a whole login.
    Need {
        /// How long the input must be in bytes before it pays to parse again; more than it is now.
        at_least: usize,
    },
    /// Something else, or a login that is none.
    Bad {
        /// What to answer, and whether to close.
        error: ProtoError,
        /// How many bytes to drop; at least 1. It may exceed the input's length.
        used: usize,
    },
}
