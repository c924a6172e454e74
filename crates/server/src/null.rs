//! The null server: the same event loop, answering every line with a canned reply. It parses
//! nothing and keeps nothing, so it is the limit of what any server on this loop can reach, and
//! what the speed of a real one is measured against.

use crate::group::{Conns, Group, Process};
use nyx_base::Now;

pub(crate) struct Canned {
    reply: Vec<u8>,
}

impl Canned {
    pub(crate) fn new(reply: Vec<u8>) -> Canned {
        Canned { reply }
    }
}

impl Process for Canned {
    fn process(&mut self, group: &mut Group, _conns: &mut Conns, _now: Now) {
        for ((member, input), out) in group
            .members
            .iter_mut()
            .zip(&group.inputs)
            .zip(&mut group.outs)
        {
            for end in memchr::memchr_iter(b'\n', input.bytes()) {
                out.put(&self.reply);
                member.cursor = end + 1;
                member.progressed = true;
            }
            member.need = Some(0);
        }
    }

    fn maintain(&mut self, _now: Now) -> bool {
        false
    }

    fn rest(&mut self) {}
}
