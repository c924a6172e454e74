//! What is wrong with a request, and the line that tells the client.
//!
//! What it never does: carry a client's bytes back (an error line is always one of ours).

use std::fmt;

/// A request that was refused by the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProtoError {
    /// What is wrong.
    pub kind: ErrorKind,
    /// Whether the client asked for no answer: the error is counted and not sent.
    pub silent: bool,
}

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident => $line:literal),* $(,)?) => {
        /// What is wrong with a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ErrorKind { $($(#[$doc])* $name),* }

        impl ErrorKind {
            /// The line that the client gets, with its line end.
            #[inline]
            pub fn line(self) -> &'static [u8] {
                match self { $(ErrorKind::$name => concat!($line, "\r\n").as_bytes()),* }
            }

            fn text(self) -> &'static str {
                match self { $(ErrorKind::$name => $line),* }
            }
        }
    };
}

errors! {
    /// No such command, or not with so many arguments.
    Unknown => "ERROR",
    /// A key that is too long or holds control characters, a number that is none.
    Format => "CLIENT_ERROR bad command line format",
    /// The data is not followed by a line end.
    DataChunk => "CLIENT_ERROR bad data chunk",
    /// No line end within the limit; the connection closes.
    LineTooLong => "CLIENT_ERROR line too long",
    /// A time to live that is no number.
    Exptime => "CLIENT_ERROR invalid exptime argument",
    /// A delta that is no number.
    Delta => "CLIENT_ERROR invalid numeric delta argument",
    /// `delete` with something other than `0` or `noreply` behind the key.
    DeleteUsage => "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]",
    /// `scan` with something that is no option of it, or without what an option needs.
    ScanUsage => "CLIENT_ERROR bad command line format.  Usage: scan <prefix>|* [from|after <key>] \
                  [to|before <key>] [down] [limit <n>] [keys] [cas] [base64]",
    /// `lease` without all of its numbers, or with more.
    LeaseUsage => "CLIENT_ERROR bad command line format.  Usage: lease <tenant> <want ps> <reads> \
                   <read bytes> <writes> <written bytes>",
    /// `shutdown` with something other than `graceful`.
    ShutdownMode => "CLIENT_ERROR invalid shutdown mode",
    /// `cache_memlimit` below 8 MiB.
    MemlimitTooSmall => "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m",
    /// `cache_memlimit` in bytes instead of MiB.
    MemlimitNotMib => "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes",
    /// `watch`: there is no log stream on this port.
    WatchNotAllowed => "CLIENT_ERROR watch commands not allowed",
    /// `slabs reassign`: there are no slabs.
    SlabReassign => "CLIENT_ERROR slab reassignment disabled",
    /// `lru_crawler` with a job: there is no crawler.
    Crawler => "CLIENT_ERROR lru crawler disabled",
    /// A request of a browser; the connection closes before its body can be taken for requests.
    Http => "ERROR",
    /// A meta flag that does not exist.
    FlagInvalid => "CLIENT_ERROR invalid flag",
    /// A meta flag that stands twice.
    FlagDuplicate => "CLIENT_ERROR duplicate flag",
    /// A meta flag's token that is no number.
    FlagToken => "CLIENT_ERROR bad token in command line format",
    /// An opaque token of more than 31 bytes.
    OpaqueTooLong => "CLIENT_ERROR opaque token too long",
    /// A key that is no base64.
    KeyBase64 => "CLIENT_ERROR error decoding key",
    /// `M` with a mode of more or less than one letter.
    ModeLength => "CLIENT_ERROR incorrect length for M token",
    /// `ms` with a mode that it does not have.
    ModeStore => "CLIENT_ERROR invalid mode for ms M token",
    /// `ma` with a mode that it does not have.
    ModeArith => "CLIENT_ERROR invalid mode for ma M token",
    /// `ma` with an initial value that is no number.
    Initial => "CLIENT_ERROR invalid numeric initial value",
    /// `ma` with a delta that is no number.
    MetaDelta => "CLIENT_ERROR invalid numeric delta value",
    /// Something other than the login before the login.
    Unauthenticated => "CLIENT_ERROR unauthenticated",
    /// A login that is too long to be one.
    AuthTooLong => "CLIENT_ERROR auth token too long",
    /// A login that does not end with its line.
    AuthTermination => "CLIENT_ERROR bad command line termination",
    /// A login without both a user and a password.
    AuthFormat => "CLIENT_ERROR bad authentication token format",
}

impl ProtoError {
    /// The bytes to send: the error's line, or nothing where the client asked for no answer.
    #[inline]
    pub fn reply(self) -> &'static [u8] {
        if self.silent { b"" } else { self.kind.line() }
    }

    /// Whether the connection closes behind the answer, because where the next request starts can
    /// no longer be known.
    #[inline]
    pub fn closes(self) -> bool {
        matches!(self.kind, ErrorKind::LineTooLong | ErrorKind::Http)
    }
}

impl From<ErrorKind> for ProtoError {
    fn from(kind: ErrorKind) -> ProtoError {
        ProtoError {
            kind,
            silent: false,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl fmt::Display for ProtoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl std::error::Error for ProtoError {}
