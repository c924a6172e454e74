//! NBD as bytes: requests in, replies out. No sockets here.
//!
//! What it never does: allocate for a request; believe a length.
//!
//! Source: the specification of the protocol, `doc/proto.md` of the project NetworkBlockDevice/nbd
//! (sections "Transmission phase" and "Values"); big-endian throughout.

pub mod handshake;

use crate::cache::Refusal;

/// The longest request, in bytes: what the specification has clients assume of any server.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;
/// Bytes of a request without its payload.
pub const REQUEST_HEAD_BYTES: usize = 28;
/// Bytes of a reply's head, at most: a structured one with an offset, or with an error.
pub const REPLY_HEAD_BYTES: usize = 28;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_MAGIC: u32 = 0x668e_33ef;

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Bytes.
    Read,
    /// Bytes follow.
    Write,
    /// The end, without a reply.
    Disconnect,
    /// Durability of what was answered.
    Flush,
    /// The range is of no use any more.
    Trim,
    /// The range is to be brought near.
    Cache,
    /// The range is to be zero.
    WriteZeroes,
    /// Something else.
    Unknown(u16),
}

/// A request's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What.
    pub verb: Verb,
    /// What its reply is told with.
    pub cookie: u64,
    /// The first byte.
    pub at: u64,
    /// How many.
    pub len_bytes: u32,
    /// It is durable before it is answered.
    pub is_durable: bool,
    /// Zeroes are to keep their room.
    pub no_hole: bool,
    /// Flags that nobody offered.
    pub has_unknown_flags: bool,
}

/// A client that does not keep to the protocol: its connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// No request begins there.
    #[error("no request: it begins with {0:#010x}")]
    Magic(u32),
    /// A payload that nobody would take in to refuse it.
    #[error("a write of {0} bytes: {REQUEST_BYTES_MAX} is the most")]
    Long(u32),
    /// No handshake.
    #[error("no handshake: flags {0:#x}")]
    Flags(u32),
    /// No option begins there.
    #[error("no option: it begins with {0:#018x}")]
    Option(u64),
    /// An option that is too long.
    #[error("an option of {0} bytes: {max} is the most", max = handshake::OPTION_BYTES_MAX)]
    LongOption(u32),
    /// Too many of them.
    #[error("more than {max} options", max = handshake::OPTIONS_MAX)]
    ManyOptions,
    /// The old way to ask for an export knows no refusal.
    #[error("there is no export of that name")]
    NoExport,
}

impl Head {
    /// Reads a request's head.
    pub fn parse(bytes: &[u8; REQUEST_HEAD_BYTES]) -> Result<Head, WireError> {
        const DURABLE: u16 = 1;
        const NO_HOLE: u16 = 1 << 1;
        const DO_NOT_FRAGMENT: u16 = 1 << 2;
        let u16_at = |at: usize| u16::from_be_bytes(bytes[at..at + 2].try_into().expect("2 bytes"));
        let u32_at = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if u32_at(0) != REQUEST_MAGIC {
            return Err(WireError::Magic(u32_at(0)));
        }
        let verb = match u16_at(6) {
            0 => Verb::Read,
            1 => Verb::Write,
            2 => Verb::Disconnect,
            3 => Verb::Flush,
            4 => Verb::Trim,
            5 => Verb::Cache,
            6 => Verb::WriteZeroes,
            other => Verb::Unknown(other),
        };
        let (flags, len_bytes) = (u16_at(4), u32_at(24));
        if verb == Verb::Write && len_bytes > REQUEST_BYTES_MAX {
            return Err(WireError::Long(len_bytes));
        }
        let allowed = DURABLE
            | match verb {
                Verb::Read => DO_NOT_FRAGMENT,
                Verb::WriteZeroes => NO_HOLE,
                _ => 0,
            };
        Ok(Head {
            verb,
            cookie: u64_at(8),
            at: u64_at(16),
            len_bytes,
            is_durable: flags & DURABLE != 0,
            no_hole: flags & NO_HOLE != 0,
            has_unknown_flags: flags & !allowed != 0,
        })
    }

    /// Whether the request can be carried out on an export of that many bytes.
    pub fn check(&self, export_bytes: u64) -> Result<(), Errno> {
        let end = self.at.checked_add(u64::from(self.len_bytes));
        let is_inside = end.is_some_and(|end| end <= export_bytes);
        match self.verb {
            _ if self.has_unknown_flags => Err(Errno::Invalid),
            Verb::Unknown(_) => Err(Errno::Invalid),
            Verb::Flush if self.at != 0 || self.len_bytes != 0 => Err(Errno::Invalid),
            Verb::Flush | Verb::Disconnect => Ok(()),
            Verb::Read if self.len_bytes > REQUEST_BYTES_MAX => Err(Errno::TooLong),
            Verb::Write | Verb::WriteZeroes if !is_inside => Err(Errno::NoSpace),
            _ if !is_inside || self.len_bytes == 0 => Err(Errno::Invalid),
            _ => Ok(()),
        }
    }
}

/// What a refusal is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// A device failed.
    Io = 5,
    /// The request makes no sense here.
    Invalid = 22,
    /// There is no room, or no such place to write.
    NoSpace = 28,
    /// It is too long.
    TooLong = 75,
    /// The server is about to end.
    Shutdown = 108,
}

impl From<Refusal> for Errno {
    fn from(refusal: Refusal) -> Errno {
        match refusal {
            Refusal::Io => Errno::Io,
            Refusal::NoSpace => Errno::NoSpace,
        }
    }
}

/// A reply's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHead {
    bytes: [u8; REPLY_HEAD_BYTES],
    len: u8,
}

impl ReplyHead {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    fn of(parts: &[&[u8]]) -> ReplyHead {
        let mut head = ReplyHead {
            bytes: [0; REPLY_HEAD_BYTES],
            len: 0,
        };
        for part in parts {
            let from = usize::from(head.len);
            head.bytes[from..from + part.len()].copy_from_slice(part);
            head.len += part.len() as u8;
        }
        head
    }

    /// Of a simple reply; bytes follow where it is a read that was done.
    pub fn simple(cookie: u64, result: Result<(), Errno>) -> ReplyHead {
        let error = result.err().map_or(0, |errno| errno as u32);
        ReplyHead::of(&[
            &SIMPLE_MAGIC.to_be_bytes(),
            &error.to_be_bytes(),
            &cookie.to_be_bytes(),
        ])
    }

    /// Of the only chunk of a structured reply to a read: that many bytes from `at` on follow.
    pub fn data(cookie: u64, at: u64, len_bytes: u32) -> ReplyHead {
        const OFFSET_DATA: u16 = 1;
        ReplyHead::of(&[
            &chunk(cookie, OFFSET_DATA, len_bytes + 8),
            &at.to_be_bytes(),
        ])
    }

    /// Of the only chunk of a structured reply to what was refused; nothing follows.
    pub fn refused(cookie: u64, errno: Errno) -> ReplyHead {
        const ERROR: u16 = (1 << 15) + 1;
        ReplyHead::of(&[
            &chunk(cookie, ERROR, 6),
            &(errno as u32).to_be_bytes(),
            &[0; 2],
        ])
    }
}

/// The head of a chunk that is the last of its reply.
fn chunk(cookie: u64, kind: u16, len_bytes: u32) -> [u8; 20] {
    const DONE: u16 = 1;
    let mut bytes = [0; 20];
    bytes[..4].copy_from_slice(&STRUCTURED_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&DONE.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..].copy_from_slice(&len_bytes.to_be_bytes());
    bytes
}

/// Properties of the parsers, for fuzzers.
pub mod fuzzing {
    use super::handshake::{Export, Handshake};
    use super::{Head, REQUEST_HEAD_BYTES, Verb};

    /// Both, of bytes as they are and behind what makes them worth a look.
    pub fn check_nbd(bytes: &[u8]) {
        check_handshake(bytes);
        check_request(bytes);
        check_request(&[&super::REQUEST_MAGIC.to_be_bytes(), bytes].concat());
        // Options of any number and data: two bytes say which and how long.
        let mut said = vec![0, 0, 0, 3];
        let mut rest = bytes;
        while let [number, len, more @ ..] = rest {
            let (data, more) = more.split_at(more.len().min(usize::from(*len)));
            said.extend(b"IHAVEOPT\0\0\0");
            said.push(number % 16);
            said.extend((data.len() as u32).to_be_bytes());
            said.extend(data);
            rest = more;
        }
        check_handshake(&said);
    }

    /// No bytes make a handshake panic or grow without end, and where they are cut does not matter.
    pub fn check_handshake(bytes: &[u8]) {
        let export = Export {
            name: "disk".to_owned(),
            len_bytes: 1 << 30,
            preferred_bytes: 4096,
        };
        let run = |piece: usize| {
            let (mut handshake, mut out) = (Handshake::new(export.clone()), Vec::new());
            handshake.begin(&mut out);
            let (mut given, mut taken) = (0, 0);
            let end = loop {
                match handshake.feed(&bytes[taken..given], &mut out) {
                    Err(error) => break Some(Err(error)),
                    Ok((0, None)) if given == bytes.len() => break None,
                    Ok((0, None)) => given = bytes.len().min(given + piece),
                    Ok((more, end)) => {
                        taken += more;
                        if let Some(end) = end {
                            break Some(Ok(end));
                        }
                    }
                }
            };
            (end, taken, out)
        };
        let whole = run(bytes.len().max(1));
        assert!(
            whole.2.len() <= 4096 + 64 * bytes.len(),
            "it answers too much"
        );
        assert_eq!(whole, run(1));
        assert_eq!(whole, run(7));
    }

    /// A head that is accepted can be carried out; to part, a client need not say where.
    pub fn check_request(bytes: &[u8]) {
        let Some(head) = bytes.first_chunk::<REQUEST_HEAD_BYTES>() else {
            return;
        };
        for export_bytes in [0, 1 << 20, u64::MAX] {
            if let Ok(head) = Head::parse(head)
                && head.check(export_bytes).is_ok()
                && head.verb != Verb::Disconnect
            {
                assert!(head.at + u64::from(head.len_bytes) <= export_bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(kind: u16, flags: u16, at: u64, len_bytes: u32) -> [u8; REQUEST_HEAD_BYTES] {
        let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(77u64.to_be_bytes());
        bytes.extend(at.to_be_bytes());
        bytes.extend(len_bytes.to_be_bytes());
        bytes.try_into().expect("a head")
    }

    #[test]
    fn requests_are_read_and_judged() {
        let head = |kind, flags, at, len| {
            let head = Head::parse(&request(kind, flags, at, len))?;
            Ok::<_, WireError>((head.verb, head.check(1 << 20)))
        };
        assert_eq!(head(0, 0, 4096, 4096), Ok((Verb::Read, Ok(()))));
        assert_eq!(head(1, 1, 0, 1 << 20), Ok((Verb::Write, Ok(()))));
        let beyond = head(1, 0, 1, 1 << 20);
        assert_eq!(beyond, Ok((Verb::Write, Err(Errno::NoSpace))));
        let beyond = head(0, 0, u64::MAX, 2);
        assert_eq!(beyond, Ok((Verb::Read, Err(Errno::Invalid))));
        assert_eq!(head(3, 0, 0, 0), Ok((Verb::Flush, Ok(()))));
        assert_eq!(head(3, 0, 1, 0), Ok((Verb::Flush, Err(Errno::Invalid))));
        let unknown = head(9, 0, 0, 1);
        assert_eq!(unknown, Ok((Verb::Unknown(9), Err(Errno::Invalid))));
        assert_eq!(head(6, 2, 0, 1), Ok((Verb::WriteZeroes, Ok(()))));
        assert_eq!(head(4, 2, 0, 1), Ok((Verb::Trim, Err(Errno::Invalid))));
        assert_eq!(
            head(0, 0, 0, 33 << 20),
            Ok((Verb::Read, Err(Errno::TooLong)))
        );
        assert_eq!(head(1, 0, 0, 33 << 20), Err(WireError::Long(33 << 20)));
        assert_eq!(Head::parse(&[0; 28]), Err(WireError::Magic(0)));
    }

    #[test]
    fn replies_are_the_specified_bytes() {
        let done = ReplyHead::simple(0x0102, Ok(()));
        assert_eq!(
            done.bytes(),
            [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]
        );
        assert_eq!(ReplyHead::simple(1, Err(Errno::Io)).bytes()[7], 5);
        let data = ReplyHead::data(3, 0x1000, 512);
        assert_eq!(data.bytes()[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1]);
        assert_eq!(data.bytes()[16..20], 520u32.to_be_bytes());
        assert_eq!(data.bytes()[20..], 0x1000u64.to_be_bytes());
        let refused = ReplyHead::refused(3, Errno::NoSpace);
        assert_eq!(refused.bytes()[6..8], [0x80, 1]);
        assert_eq!(refused.bytes()[16..], [0, 0, 0, 6, 0, 0, 0, 28, 0, 0]);
    }

    proptest! {
        #[test]
        fn no_request_is_believed(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            fuzzing::check_request(&bytes);
            let mut head = REQUEST_MAGIC.to_be_bytes().to_vec();
            head.extend([0, 0, 0]);
            head.extend(&bytes);
            fuzzing::check_request(&head);
        }

        #[test]
        fn accepted_requests_are_inside(
            kind in 0u16..8, flags in 0u16..4, at in any::<u64>(), len_bytes in any::<u32>()
        ) {
            for at in [at, at % (1 << 21)] {
                for len_bytes in [len_bytes, len_bytes % (1 << 21)] {
                    fuzzing::check_request(&request(kind, flags, at, len_bytes));
                }
            }
        }
    }
}
