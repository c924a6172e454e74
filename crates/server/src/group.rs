//! A group: the connections that are read, executed and written together, and the slots in which
//! all connections of a worker live.

use crate::conn::{Conn, Input};
use crate::held::ConnId;
use mio::{Registry, Token};
use nyx_base::{Instant, Nanos, Now, TenantId};
use nyx_engine::Away;
use nyx_engine::Settled;
use nyx_proto::Out;
use std::io;

/// One connection's part in a group.
pub(crate) struct Member {
    pub(crate) slot: usize,
    /// How much of the input is executed. Beyond the input's end where the rest of an oversized
    /// request is to be dropped.
    pub(crate) cursor: usize,
    /// The input holds no further whole request; this many bytes are needed for one.
    pub(crate) need: Option<usize>,
    /// Why no further request may be executed now.
    pub(crate) stop: Option<Stop>,
    /// Whether any request was executed.
    pub(crate) progressed: bool,
}

/// Why a connection's execution stopped before its input ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Its tenant must wait.
    Held { tenant: TenantId, until: Instant },
    /// What it needs is on its way from a deep device.
    Away(Away),
    /// Its output must be read first.
    Full,
    /// It closes.
    Closing,
}

/// Connections that are served together. Inputs are apart from outputs, so that commands can borrow
/// from the ones while the others are written.
#[derive(Default)]
pub(crate) struct Group {
    pub(crate) members: Vec<Member>,
    pub(crate) inputs: Vec<Input>,
    pub(crate) outs: Vec<Out>,
}

impl Group {
    pub(crate) fn push(&mut self, slot: usize, input: Input, out: Out) {
        let member = Member {
            slot,
            cursor: 0,
            need: None,
            stop: None,
            progressed: false,
        };
        self.members.push(member);
        self.inputs.push(input);
        self.outs.push(out);
    }
}

/// What is done with a group between reading and writing.
pub(crate) trait Process: Send {
    /// Executes what the inputs hold.
    fn process(&mut self, group: &mut Group, conns: &mut Conns, now: Now);

    /// Whether what a connection was answered may be sent.
    fn is_settled(&self, conn: &mut Conn) -> Settled;

    /// Bounded housekeeping; true where there is more to do at once.
    fn maintain(&mut self, now: Now) -> bool;

    /// Watches whatever tells that something has come for [`Process::land`], under a token. Asked
    /// for once, by the thread that serves.
    fn watch(&mut self, _registry: &Registry, _token: Token) -> io::Result<()> {
        Ok(())
    }

    /// Takes in what has come, and tells of what a connection may wait for.
    fn land(&mut self, _now: Now, _landed: &mut dyn FnMut(Away)) {}

    /// Whether [`Process::land`] is to be called again without waiting for an event.
    fn is_restless(&self) -> bool {
        false
    }

    /// The worker was at work for so long.
    fn worked(&mut self, _time: Nanos) {}

    /// Nothing found so far is needed any longer: the worker is about to wait.
    fn rest(&mut self);
}

/// All connections of a worker. A slot's generation tells a connection from its predecessors there.
#[derive(Default)]
pub(crate) struct Conns {
    slots: Vec<(u32, Option<Conn>)>,
    free: Vec<usize>,
}

impl Conns {
    pub(crate) fn insert(&mut self, conn: Conn) -> usize {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot].1 = Some(conn);
                slot
            }
            None => {
                self.slots.push((0, Some(conn)));
                self.slots.len() - 1
            }
        }
    }

    pub(crate) fn remove(&mut self, slot: usize) -> Option<Conn> {
        let (generation, conn) = &mut self.slots[slot];
        let conn = conn.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(slot);
        Some(conn)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: usize) -> Option<&mut Conn> {
        self.slots.get_mut(slot)?.1.as_mut()
    }

    /// The connection in a slot that is known to be taken.
    #[inline]
    pub(crate) fn at(&mut self, slot: usize) -> &mut Conn {
        self.slots[slot]
            .1
            .as_mut()
            .expect("a member of a group is connected")
    }

    pub(crate) fn id(&self, slot: usize) -> ConnId {
        (slot, self.slots[slot].0)
    }

    /// The connection with this id, unless it has gone.
    pub(crate) fn by_id(&mut self, (slot, generation): ConnId) -> Option<&mut Conn> {
        match self.slots.get_mut(slot) {
            Some((at, conn)) if *at == generation => conn.as_mut(),
            _ => None,
        }
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.slots.len()
    }
}
