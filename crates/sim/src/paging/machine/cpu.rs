//! A processor: what it has to do, one part after the other, and what it waits for.
//!
//! What it never does: know what an effect means. *Thread safety*: one owner.

use crate::paging::costs::{Part, Parts};
use crate::paging::device::Request;
use crate::paging::program::Touch;
use nyx_base::{Instant, Nanos};
use std::collections::VecDeque;

/// What happens where a part of the work is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Fault,
    Submit {
        page: u32,
        is_write: bool,
        is_critical: bool,
        is_polled: bool,
    },
    Sleep,
    Spin {
        page: u32,
        is_write: bool,
        is_critical: bool,
    },
    ReadDone(u32),
    WriteDone(u32),
    Resume,
    Reclaim {
        down_to: u32,
    },
}

/// A part of the work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub(super) part: Part,
    pub(super) ns: u64,
    pub(super) effect: Effect,
}

/// What is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Block {
    /// An interrupt, or somebody else.
    Sleep { part: Part },
    /// A request that it polls for; so long by now.
    Spin {
        page: u32,
        is_write: bool,
        is_critical: bool,
        ns: u64,
    },
}

/// See the module.
pub(super) struct Cpu {
    pub(super) at: Instant,
    pub(super) parts: Parts,
    pub(super) tasks: VecDeque<Task>,
    pub(super) pending: Option<Effect>,
    pub(super) block: Option<Block>,
    since: Instant,
    pub(super) interrupts: VecDeque<Request>,
    /// Polled requests that are done, and not looked at yet.
    pub(super) polled: Vec<(u32, bool)>,
    touches: std::vec::IntoIter<Touch>,
    /// The touch that is to succeed.
    pub(super) want: Option<Touch>,
    pub(super) fault_began: Option<Instant>,
    pub(super) is_major: bool,
    /// The fault stands for a bit that the processor sets by itself.
    pub(super) is_by_bits: bool,
    /// The page is in the swap cache.
    pub(super) is_hit: bool,
    /// The ager was told of its fault, and has not mapped the page yet.
    pub(super) is_waiting: bool,
}

impl Cpu {
    pub(super) fn new(touches: Vec<Touch>) -> Cpu {
        Cpu {
            at: Instant(0),
            parts: Parts::default(),
            tasks: VecDeque::new(),
            pending: None,
            block: None,
            since: Instant(0),
            interrupts: VecDeque::new(),
            polled: Vec::new(),
            touches: touches.into_iter(),
            want: None,
            fault_began: None,
            is_major: false,
            is_by_bits: false,
            is_hit: false,
            is_waiting: false,
        }
    }

    pub(super) fn has_touches(&self) -> bool {
        self.want.is_some() || self.touches.len() > 0
    }

    /// The touch that is next.
    pub(super) fn wants(&mut self) -> Option<Touch> {
        if self.want.is_none() {
            self.want = self.touches.next();
        }
        self.want
    }

    pub(super) fn waits_for(&self, page: u32) -> bool {
        self.is_waiting && self.want.is_some_and(|touch| touch.page == page)
    }

    pub(super) fn is_asleep(&self) -> bool {
        matches!(self.block, Some(Block::Sleep { .. }))
    }

    pub(super) fn went_on(&mut self) {
        self.want = None;
    }

    /// Puts something behind all that it has to do.
    pub(super) fn then(&mut self, part: Part, ns: u64, effect: Effect) {
        self.tasks.push_back(Task { part, ns, effect });
    }

    pub(super) fn spin_for(&mut self, page: u32, is_write: bool, is_critical: bool) {
        let effect = Effect::Spin {
            page,
            is_write,
            is_critical,
        };
        let part = if is_write {
            Part::WriteSpin
        } else {
            Part::Spin
        };
        self.then(part, 0, effect);
    }

    /// Works at something from now on.
    pub(super) fn begin(&mut self, task: Task) {
        self.at += Nanos(task.ns);
        self.parts.add(task.part, task.ns);
        self.pending = Some(task.effect);
    }

    pub(super) fn block(&mut self, block: Block) {
        self.block = Some(block);
        self.since = self.at;
    }

    /// Whether what it spins for is done, or who sleeps was given something to do.
    pub(super) fn is_over(&self, block: Block) -> bool {
        match block {
            Block::Sleep { .. } => !self.tasks.is_empty(),
            Block::Spin { page, is_write, .. } => self.polled.contains(&(page, is_write)),
        }
    }

    /// Pays for what was waited so far.
    pub(super) fn account_block(&mut self) {
        let waited_ns = self.at.since(self.since).0;
        match &mut self.block {
            None => {}
            Some(Block::Sleep { part }) => self.parts.add(*part, waited_ns),
            Some(Block::Spin { is_write, ns, .. }) => {
                *ns += waited_ns;
                let part = match is_write {
                    true => Part::WriteSpin,
                    false => Part::Spin,
                };
                self.parts.add(part, waited_ns);
            }
        }
    }

    /// Waits on, after an interrupt.
    pub(super) fn block_again(&mut self) {
        self.since = self.at;
    }

    /// Waits no longer; how long it has spun for a critical page, if it has for one.
    pub(super) fn unblock(&mut self) -> Option<u64> {
        self.account_block();
        match self.block.take()? {
            Block::Sleep { .. } => {
                self.then(Part::Device, 0, Effect::Sleep);
                None
            }
            Block::Spin {
                page,
                is_write,
                is_critical,
                ns,
            } => {
                self.polled.retain(|&done| done != (page, is_write));
                is_critical.then_some(ns)
            }
        }
    }
}
