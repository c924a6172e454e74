//! What a server and a client say to each other before the first request: fixed newstyle.
//!
//! Options that are known: the two ways to begin (`EXPORT_NAME`, `GO`), `INFO`, `LIST`, `ABORT`,
//! `STRUCTURED_REPLY`. All others are refused by name, as clients expect.
//!
//! What it never does: keep an option's bytes, or answer without end.
//!
//! Source: `doc/proto.md` of NetworkBlockDevice/nbd, "Handshake phase" and "Option types".

use super::{REQUEST_BYTES_MAX, WireError};

/// Bytes of an option's data, at most.
pub const OPTION_BYTES_MAX: u32 = 8192;
/// Options that one client sends, at most.
pub const OPTIONS_MAX: u32 = 256;

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const OPTION_HEAD_BYTES: usize = 16;

const REPLY_ACK: u32 = 1;
const REPLY_SERVER: u32 = 2;
const REPLY_INFO: u32 = 3;
const REFUSED_UNSUPPORTED: u32 = (1 << 31) + 1;
const REFUSED_INVALID: u32 = (1 << 31) + 3;
const REFUSED_UNKNOWN: u32 = (1 << 31) + 6;

/// What is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name; the empty name means it too.
    pub name: String,
    /// Its bytes.
    pub len_bytes: u64,
    /// Bytes that requests are best multiples of.
    pub preferred_bytes: u32,
}

/// How a handshake ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Requests follow.
    Requests {
        /// Reads are answered by structured replies.
        is_structured: bool,
    },
    /// The client leaves.
    Left,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Flags,
    Options,
}

/// See the module.
#[derive(Debug)]
pub struct Handshake {
    export: Export,
    state: State,
    no_zeroes: bool,
    is_structured: bool,
    options: u32,
}

impl Handshake {
    /// One that has not begun.
    pub fn new(export: Export) -> Handshake {
        Handshake {
            export,
            state: State::Flags,
            no_zeroes: false,
            is_structured: false,
            options: 0,
        }
    }

    /// What the server says first.
    pub fn begin(&self, out: &mut Vec<u8>) {
        const FIXED_NEWSTYLE_NO_ZEROES: u16 = 0b11;
        out.extend(b"NBDMAGIC");
        out.extend(OPTION_MAGIC.to_be_bytes());
        out.extend(FIXED_NEWSTYLE_NO_ZEROES.to_be_bytes());
    }

    /// Takes what the client says next, as far as it is there: how many bytes of it were used, and
    /// how the handshake ends, where it does.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Option<End>), WireError> {
        if self.state == State::Flags {
            let Some(flags) = bytes.first_chunk::<4>() else {
                return Ok((0, None));
            };
            let flags = u32::from_be_bytes(*flags);
            if flags & !0b11 != 0 || flags & 1 == 0 {
                return Err(WireError::Flags(flags));
            }
            self.no_zeroes = flags & 0b10 != 0;
            self.state = State::Options;
            return Ok((4, None));
        }
        let Some(head) = bytes.first_chunk::<OPTION_HEAD_BYTES>() else {
            return Ok((0, None));
        };
        let magic = u64::from_be_bytes(head[..8].try_into().expect("8 bytes"));
        let option = u32::from_be_bytes(head[8..12].try_into().expect("4 bytes"));
        let len = u32::from_be_bytes(head[12..].try_into().expect("4 bytes"));
        if magic != OPTION_MAGIC {
            return Err(WireError::Option(magic));
        }
        if len > OPTION_BYTES_MAX {
            return Err(WireError::LongOption(len));
        }
        let end = OPTION_HEAD_BYTES + len as usize;
        let Some(data) = bytes.get(OPTION_HEAD_BYTES..end) else {
            return Ok((0, None));
        };
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(WireError::ManyOptions);
        }
        Ok((end, self.option(option, data, out)?))
    }

    fn option(
        &mut self,
        option: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<End>, WireError> {
        let requests = End::Requests {
            is_structured: self.is_structured,
        };
        match option {
            // EXPORT_NAME: its answer is no option's.
            1 => {
                if !self.is_ours(data) {
                    return Err(WireError::NoExport);
                }
                out.extend(self.export.len_bytes.to_be_bytes());
                out.extend(self.flags().to_be_bytes());
                if !self.no_zeroes {
                    out.extend([0; 124]);
                }
                return Ok(Some(requests));
            }
            // ABORT
            2 => {
                reply(out, option, REPLY_ACK, &[]);
                return Ok(Some(End::Left));
            }
            // LIST
            3 if data.is_empty() => {
                let name = self.export.name.as_bytes();
                let len = (name.len() as u32).to_be_bytes();
                reply(out, option, REPLY_SERVER, &[&len, name]);
                reply(out, option, REPLY_ACK, &[]);
            }
            // INFO and GO
            6 | 7 => match self.inform(option, data, out) {
                true if option == 7 => return Ok(Some(requests)),
                _ => {}
            },
            // STRUCTURED_REPLY
            8 if data.is_empty() => {
                self.is_structured = true;
                reply(out, option, REPLY_ACK, &[]);
            }
            3 | 8 => reply(out, option, REFUSED_INVALID, &[b"it has no data"]),
            _ => reply(out, option, REFUSED_UNSUPPORTED, &[]),
        }
        Ok(None)
    }

    /// Tells of the export; whether there is one.
    fn inform(&self, option: u32, data: &[u8], out: &mut Vec<u8>) -> bool {
        const EXPORT: u16 = 0;
        const BLOCK_SIZE: u16 = 3;
        let Some((name, _)) = name_and_wants(data) else {
            reply(out, option, REFUSED_INVALID, &[b"lengths do not fit"]);
            return false;
        };
        if !self.is_ours(name) {
            reply(out, option, REFUSED_UNKNOWN, &[b"there is no such export"]);
            return false;
        }
        let (len, flags) = (self.export.len_bytes, self.flags());
        reply(
            out,
            option,
            REPLY_INFO,
            &[
                &EXPORT.to_be_bytes(),
                &len.to_be_bytes(),
                &flags.to_be_bytes(),
            ],
        );
        // Any range is served; whole blocks take no detour.
        let sizes = [1, self.export.preferred_bytes, REQUEST_BYTES_MAX].map(u32::to_be_bytes);
        reply(
            out,
            option,
            REPLY_INFO,
            &[&BLOCK_SIZE.to_be_bytes(), sizes.as_flattened()],
        );
        reply(out, option, REPLY_ACK, &[]);
        true
    }

    fn is_ours(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.export.name.as_bytes()
    }

    /// Transmission flags: flags, flush, FUA, trim, zeroes, several connections, cache; and not to
    /// fragment, where replies are structured.
    fn flags(&self) -> u16 {
        let known = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 8 | 1 << 10;
        known | u16::from(self.is_structured) << 7
    }
}

/// The name that INFO and GO ask for, and what they want to know; none where lengths do not fit.
fn name_and_wants(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = data.split_first_chunk::<4>()?;
    let (name, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
    let (count, wants) = rest.split_first_chunk::<2>()?;
    (wants.len() == 2 * usize::from(u16::from_be_bytes(*count))).then_some((name, wants))
}

fn reply(out: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    out.extend(REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((len as u32).to_be_bytes());
    parts.iter().for_each(|part| out.extend(*part));
}

#[cfg(test)]
mod tests {
    use super::super::fuzzing;
    use super::*;
    use proptest::prelude::*;

    fn export() -> Export {
        Export {
            name: "disk".to_owned(),
            len_bytes: 1 << 20,
            preferred_bytes: 4096,
        }
    }

    fn option(number: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
        bytes.extend(number.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        bytes
    }

    fn go(name: &str) -> Vec<u8> {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend(name.as_bytes());
        data.extend([0, 0]);
        data
    }

    /// Feeds all of it; how it ended, and what was answered.
    fn talk(said: &[Vec<u8>]) -> (Result<Option<End>, WireError>, Vec<u8>) {
        let (mut handshake, mut out) = (Handshake::new(export()), Vec::new());
        let bytes = said.concat();
        let mut at = 0;
        loop {
            match handshake.feed(&bytes[at..], &mut out) {
                Ok((0, None)) => return (Ok(None), out),
                Ok((used, None)) => at += used,
                Ok((_, end)) => return (Ok(end), out),
                Err(error) => return (Err(error), out),
            }
        }
    }

    #[test]
    fn a_client_goes_and_is_told_what_it_gets() {
        let flags = 3u32.to_be_bytes().to_vec();
        let (end, out) = talk(&[flags.clone(), option(8, &[]), option(7, &go(""))]);
        let is_structured = true;
        assert_eq!(end, Ok(Some(End::Requests { is_structured })));
        let told = [&0u16.to_be_bytes()[..], &(1u64 << 20).to_be_bytes()].concat();
        assert!(out.windows(told.len()).any(|part| part == told));
        let (end, _) = talk(&[flags.clone(), option(7, &go("other"))]);
        assert_eq!(end, Ok(None), "it may ask for another");
        let (end, out) = talk(&[flags.clone(), option(3, &[]), option(2, &[])]);
        assert_eq!(end, Ok(Some(End::Left)));
        assert!(out.windows(4).any(|part| part == b"disk"));
        let (end, out) = talk(&[1u32.to_be_bytes().to_vec(), option(1, b"disk")]);
        let is_structured = false;
        assert_eq!(end, Ok(Some(End::Requests { is_structured })));
        assert_eq!(out.len(), 134, "with the zeroes of old");
    }

    #[test]
    fn who_does_not_keep_to_it_is_left() {
        let flags = 3u32.to_be_bytes().to_vec();
        assert_eq!(talk(&[vec![0xff; 4]]).0, Err(WireError::Flags(u32::MAX)));
        assert_eq!(
            talk(&[flags.clone(), vec![0; 16]]).0,
            Err(WireError::Option(0))
        );
        let mut long = option(7, &[]);
        long[12] = 1;
        assert_eq!(
            talk(&[flags.clone(), long]).0,
            Err(WireError::LongOption(1 << 24))
        );
        let other = talk(&[flags.clone(), option(1, b"other")]).0;
        assert_eq!(other, Err(WireError::NoExport));
        let many = vec![option(99, &[]); OPTIONS_MAX as usize + 1].concat();
        assert_eq!(talk(&[flags, many]).0, Err(WireError::ManyOptions));
    }

    proptest! {
        #[test]
        fn no_bytes_confuse_it(
            flags in 0u32..6,
            options in proptest::collection::vec(
                (0u32..12, proptest::collection::vec(any::<u8>(), 0..20)), 0..6),
            noise in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut bytes = flags.to_be_bytes().to_vec();
            for (number, data) in options {
                bytes.extend(option(number, &data));
            }
            bytes.extend(noise);
            fuzzing::check_handshake(&bytes);
        }
    }
}
