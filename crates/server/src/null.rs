//! The null server: the same event loop, answering every line with a canned reply. It looks nothing
//! up and keeps nothing, so it is the limit of what any server on this loop can reach, and what the
//! speed of a real one is measured against.
//!
//! A `set` is parsed as far as it takes to skip its data, and answered `STORED`, so that a
//! generator can fill it as it fills a real server.

use crate::group::{Conns, Group, Process};
use nyx_base::Now;
use nyx_proto::{Limits, Out, Parse, parse, reply};

pub(crate) struct Canned {
    reply: Vec<u8>,
}

impl Canned {
    pub(crate) fn new(reply: Vec<u8>) -> Canned {
        Canned { reply }
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
                out.put(&self.reply);
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

    fn maintain(&mut self, _now: Now) -> bool {
        false
    }

    fn rest(&mut self) {}
}
