//! memcached's ASCII authentication (its option `-Y`): until it has logged in, a connection may
//! send nothing but `set <any> <flags> <exptime> <len>\r\n<user> <password>\r\n`.
//!
//! What it never does: know a password. The caller checks and answers `STORED` or
//! `CLIENT_ERROR authentication failure`.

use crate::parse::words::{number_u32, split};
use crate::{ErrorKind, LINE_LEN_MAX, ProtoError};

/// The longest login in bytes, user and password and the blank between them.
const LOGIN_LEN_MAX: usize = 16 << 10;

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

/// Parses the login at the front of `input`.
pub fn parse(input: &[u8]) -> Auth<'_> {
    let bad = |kind: ErrorKind, used| Auth::Bad {
        error: kind.into(),
        used,
    };
    let Some(end) = memchr::memchr(b'\n', &input[..input.len().min(LINE_LEN_MAX)]) else {
        if input.len() < LINE_LEN_MAX {
            return Auth::Need {
                at_least: input.len() + 1,
            };
        }
        return bad(ErrorKind::LineTooLong, LINE_LEN_MAX);
    };
    let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    let words = split(line);
    let len = match words.as_slice() {
        [b"set", _, _, _, len, ..] => number_u32(len).and_then(|len| usize::try_from(len).ok()),
        _ => None,
    };
    let Some(len) = len else {
        return bad(ErrorKind::Unauthenticated, end + 1);
    };
    let used = end + 1 + len + b"\r\n".len();
    if len > LOGIN_LEN_MAX {
        return bad(ErrorKind::AuthTooLong, used);
    }
    if input.len() < used {
        return Auth::Need { at_least: used };
    }
    let Some(login) = input[end + 1..used].strip_suffix(b"\r\n") else {
        return bad(ErrorKind::AuthTermination, used);
    };
    match split(login).as_slice() {
        [user, password, ..] => Auth::Login {
            user,
            password,
            used,
        },
        _ => bad(ErrorKind::AuthFormat, used),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bad(input: &[u8]) -> (ErrorKind, usize) {
        match parse(input) {
            Auth::Bad { error, used } => (error.kind, used),
            other => panic!("{} is {other:?}", input.escape_ascii()),
        }
    }

    #[test]
    fn a_login_is_a_set_of_user_and_password() {
        let input = b"set any 0 0 12\r\nuser pass wd\r\nget k\r\n";
        let used = input.len() - b"get k\r\n".len();
        assert_eq!(
            parse(input),
            Auth::Login {
                user: b"user",
                password: b"pass",
                used
            }
        );
        assert_eq!(
            parse(b"set any 0 0 9\r\nuser pa"),
            Auth::Need { at_least: 26 }
        );
        assert_eq!(parse(b"set any"), Auth::Need { at_least: 8 });
    }

    #[test]
    fn anything_else_is_refused_and_dropped() {
        assert_eq!(bad(b"get k\r\n"), (ErrorKind::Unauthenticated, 7));
        assert_eq!(bad(b"\r\n"), (ErrorKind::Unauthenticated, 2));
        assert_eq!(bad(b"set k 0 0 x\r\n"), (ErrorKind::Unauthenticated, 13));
        assert_eq!(bad(b"set k 0 0 -1\r\n"), (ErrorKind::Unauthenticated, 14));
        assert_eq!(bad(b"set k 0 0 4\r\nuser\r\n"), (ErrorKind::AuthFormat, 19));
        assert_eq!(
            bad(b"set k 0 0 3\r\nu ptx"),
            (ErrorKind::AuthTermination, 18)
        );
        assert_eq!(
            bad(b"set k 0 0 16385\r\n"),
            (ErrorKind::AuthTooLong, 17 + 16_385 + 2)
        );
        assert_eq!(
            bad(&[b'a'; LINE_LEN_MAX]),
            (ErrorKind::LineTooLong, LINE_LEN_MAX)
        );
        assert!(matches!(
            parse(&[b'a'; LINE_LEN_MAX - 1]),
            Auth::Need { .. }
        ));
    }
}
