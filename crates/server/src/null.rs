//! The null server: the same event loop, answering every key of a line with a canned hit. It looks
//! nothing up and keeps nothing, so it is the limit of what any server on this loop can reach, and
//! what the speed of a real one is measured against.
//!
//! A `set` is parsed as far as it takes to skip its data, and answered `STORED`, so that a
//! generator can fill it as it fills a real server.

use crate::conn::Conn;
use crate::group::{Conns, Group, Process};
use nyx_base::Now;
use nyx_engine::Settled;
use nyx_proto::{Limits, Out, Parse, parse, reply};

pub(crate) struct Canned {
    /// What follows the key in a hit: flags, length and value.
    after_key: Vec<u8>,
}

impl Canned {
    pub(crate) fn new(value_len: usize) -> Canned {
        let value = "v".repeat(value_len);
        Canned {
            after_key: format!(" 0 {value_len}\r\n{value}\r\n").into_bytes(),
        }
    }

    /// Answers one request at the front of `input`; gives its length, or how much is needed.
    fn answer(&self, input: &[u8], out: &mut Out) -> Result<usize, usize> {
        if input.starts_with(b"set ") {
            return match parse(input, &Limits::default()) {
                Parse::Done { used, .. } | Parse::Bad { used, .. } => {
                    reply::stored(out);
                    Ok(used)
                }
                Parse::Need { at_least } => Err(at_least),
            };
        }
        match memchr::memchr(b'\n', input) {
            Some(end) => {
                for key in input[..end]
                    .trim_ascii_end()
                    .split(|&byte| byte == b' ')
                    .skip(1)
                {
                    out.put(b"VALUE ");
                    out.put(key);
                    out.put(&self.after_key);
                }
                reply::end(out);
                Ok(end + 1)
            }
            None => Err(input.len() + 1),
        }
    }
}

impl Process for Canned {
    fn process(&mut self, group: &mut Group, _conns: &mut Conns, _now: Now) {
        let parts = group
            .members
            .iter_mut()
            .zip(&group.inputs)
            .zip(&mut group.outs);
        for ((member, input), out) in parts {
            while member.cursor < input.bytes().len() {
                match self.answer(&input.bytes()[member.cursor..], out) {
                    Ok(used) => member.cursor += used,
                    Err(need) => {
                        member.need = Some(need);
                        break;
                    }
                }
            }
        }
    }

    fn is_settled(&self, _conn: &mut Conn) -> Settled {
        Settled::Yes
    }

    fn maintain(&mut self, _now: Now) -> bool {
        false
    }

    fn rest(&mut self) {}
}
