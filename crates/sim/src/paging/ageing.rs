//! Who decides which pages are in memory: the machine is the same for both.
//!
//! * [`Ageing::Nyx`]: the pager of `nyx_policy` as it is, which learns of uses by unmapping.
//! * [`Ageing::Linux`]: a model of what the paper's systems ran on (`lists.rs` has its rules).
//!
//! What it never does: decide by itself. *Thread safety*: one owner.

use super::lists::{Lists, Writes};
use nyx_policy::paging::pager::{Act, Counts, Pager, Shape, State, Written};

/// How pages are aged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ageing {
    /// Segmented first in, first out, by unmapping early.
    Nyx,
    /// An active and an inactive list, with accessed bits, as Linux 5.4 has them.
    Linux,
}

impl Ageing {
    /// Both.
    pub const ALL: [Ageing; 2] = [Ageing::Nyx, Ageing::Linux];

    /// An ager whose pages are all fresh.
    pub(super) fn start(self, shape: Shape, writes: Writes) -> Box<dyn Ages> {
        match self {
            Ageing::Nyx => Box::new(Pager::new(shape)),
            Ageing::Linux => Box::new(Lists::new(shape, writes)),
        }
    }
}

/// What a machine asks of whoever ages its pages. What is answered is carried out at once, in its
/// order.
pub(super) trait Ages {
    /// A page was touched that is not mapped, or written to where it may only be read.
    fn fault(&mut self, page: u32, is_write: bool, acts: &mut Vec<Act>);

    /// A mapped page was touched: the processor sets its accessed bit.
    fn touched(&mut self, _page: u32) {}

    /// Whether who has faulted on this page is to reclaim for himself.
    fn wants_room(&self, _page: u32) -> bool {
        false
    }

    /// A read is over.
    fn read_done(&mut self, page: u32, acts: &mut Vec<Act>);

    /// A write is over.
    fn write_done(&mut self, page: u32, acts: &mut Vec<Act>);

    /// A processor frees so many pages, or begins what will free them; how many were freed. What
    /// it was answered the last time it has done by now.
    fn reclaim(&mut self, cpu: usize, pages: u32, acts: &mut Vec<Act>) -> u32;

    /// The processor reclaims no more for now.
    fn reclaimed(&mut self, _cpu: usize) {}

    /// Pages in memory.
    fn used_pages(&self) -> u32;

    /// Where a page is.
    fn state(&self, page: u32) -> State;

    /// What happened.
    fn counts(&self) -> Counts;
}

impl Ages for Pager {
    fn fault(&mut self, page: u32, is_write: bool, acts: &mut Vec<Act>) {
        Pager::fault(self, page, is_write, acts);
    }

    fn read_done(&mut self, page: u32, acts: &mut Vec<Act>) {
        Pager::read_done(self, page, true, acts);
    }

    fn write_done(&mut self, page: u32, acts: &mut Vec<Act>) {
        Pager::write_done(self, page, Written::Kept, acts);
    }

    fn reclaim(&mut self, _cpu: usize, pages: u32, acts: &mut Vec<Act>) -> u32 {
        Pager::reclaim(self, pages, acts)
    }

    fn used_pages(&self) -> u32 {
        Pager::used_pages(self)
    }

    fn state(&self, page: u32) -> State {
        Pager::state(self, page)
    }

    fn counts(&self) -> Counts {
        Pager::counts(self)
    }
}
