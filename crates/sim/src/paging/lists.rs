//! A model of how Linux 5.4 ages the anonymous pages of one memory control group: what the paper's
//! systems ran on, which is 5.4.161 (section 4.1, table 4), and by what section 4.4.1 explains
//! table 6.
//!
//! Rules, with where Linux has them. They and their numbers were written down before any outcome
//! was seen; none is fitted to the paper.
//!
//! 1. *Two lists*, active and inactive, each from head (new) to tail (old). A page in memory is on
//!    one of them, or held by a reclaim that looks at it (`mm/vmscan.c`).
//! 2. *Where pages begin.* Fresh ones, and those that were read for who waits, on the active list;
//!    so they did until 5.9, which has them begin on the inactive one and detects refaults (commit
//!    b518154e59aa; `do_anonymous_page` and `do_swap_page` in `mm/memory.c`). What is read ahead
//!    begins on the inactive list, not mapped (`mm/swap_state.c`).
//! 3. *Accessed bits.* Each touch of a mapped page sets its bit. Bits are looked at, and cleared,
//!    by scans only.
//! 4. *Deactivation* (`shrink_active_list`): from the active list's tail to the inactive list's
//!    head, whatever the bit says: it keeps executable pages of files only. The bit is cleared.
//! 5. *When* (`inactive_list_is_low`): while the inactive list, times a ratio, is shorter than the
//!    active one. The ratio is sqrt(10 * GiB) of both, and 1 below a GiB (commit 556adecba110).
//! 6. *A scan of the inactive list* (`shrink_inactive_list`, `shrink_page_list`) takes up to 32
//!    pages from the tail (`SWAP_CLUSTER_MAX`) and holds them until it has gone through all. A page
//!    that was accessed goes to the active list's head. One that is being read is put back at the
//!    inactive list's head. Others are unmapped; what is the same on the device is freed, and what
//!    is not is written.
//! 7. *Written asynchronously*, a page goes back to the inactive list's head. Its completion brings
//!    it to the tail (`rotate_reclaimable_page`), where the next scan frees it; but not where the
//!    scan still holds it, which then puts it at the head, to be freed once it has come down the
//!    list. With fast devices that is so with most (commit 359a5e1416ca has 60 % on an Optane; it
//!    mends that for another ageing, in 6.2).
//! 8. *Written synchronously*, it is freed by the scan that wrote it. Polled writes are (section
//!    4.4.1), and copies to memory (frontswap ends the write before it returns).
//! 9. *Swap cache.* A touch of a page that is in memory and not mapped needs no device. The page
//!    becomes active, unless a scan holds it.
//! 10. *Rounds* (`shrink_node_memcg`, `get_scan_count`, `do_try_to_free_pages`): a reclaim wants 32
//!     pages. In its first round it scans each list's length >> 12, in batches of 32 of both in
//!     turns (4 after 6); then 32 more are deactivated if rule 5 says so; if it has freed less than
//!     it wants it goes on with a length >> 11, and so on down to >> 0.
//! 11. *A page under writeback at the tail* is waited for, and then freed (`shrink_page_list`, in
//!     groups of version 1, which CentOS 7 has). Here: the scan ends, who has no memory sleeps, and
//!     he or the reclaimer goes on when a write is over.
//! 12. *Slots.* A page that was only read keeps its slot, one that is written to gives it back
//!     unless it is being written (`reuse_swap_page`). Without a slot a page becomes active. Where
//!     five reclaims find nothing and nothing is on its way, who waits fails (`try_charge`).
//!
//! What takes time takes it between two calls of `reclaim`: each ends with a batch to which
//! something was done, and the next, or `reclaimed`, puts back what it held.
//!
//! Left out: pages of files and the balance between them and these; THP, `mlock`, several nodes;
//! lists per CPU in front of the two (pages go to their list at once); refused writes; the price of
//! looking at pages that stay, and of flushing TLBs for their bits; plugging of writes; freeing of
//! slots where more than half of them are taken. Otherwise than in 5.4 pages that are read ahead
//! are charged to the group at once (5.8 does that), only as far as memory is free; which are read
//! ahead is found as with Nyx's pager, by aligned clusters (section 2.3).
//!
//! What it never does: have more pages in memory than the limit (U12); read a clock.
//! *Shapes*: pages are numbers from 0. *Thread safety*: one owner. *Invariants*: rule 1; a slot
//! belongs to one page; a page that is being written keeps its memory.

mod order;
mod scan;
#[cfg(test)]
mod tests;

use super::ageing::Ages;
use nyx_policy::paging::pager::{Act, Ahead, Counts, Shape, State, Why};
use order::Order;
use scan::Scan;
use std::collections::{BTreeMap, VecDeque};

/// When a page that is written may be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writes {
    /// By a later scan.
    Asynchronous,
    /// By the one that wrote it.
    Synchronous,
}

/// Where a page stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// It is not in memory.
    #[default]
    Nowhere,
    Active(i64),
    Inactive(i64),
    /// A scan looks at it.
    Held,
}

/// What is known of a page.
#[derive(Clone, Copy, Debug)]
struct Entry {
    state: State,
    place: Place,
    slot: Option<u32>,
    /// The accessed bit.
    is_accessed: bool,
    /// It differs from what is on the device.
    is_dirty: bool,
    is_writing: bool,
    /// It was read before anybody wanted it, and nobody has touched it yet.
    is_ahead: bool,
    /// Somebody waits for it,
    is_waited: bool,
    /// to write to it.
    is_to_write: bool,
}

impl Entry {
    const FRESH: Entry = Entry {
        state: State::Fresh,
        place: Place::Nowhere,
        slot: None,
        is_accessed: false,
        is_dirty: false,
        is_writing: false,
        is_ahead: false,
        is_waited: false,
        is_to_write: false,
    };

    /// Whether nobody has it mapped, and the device has what it holds.
    fn can_be_freed(&self) -> bool {
        self.state == State::Unmapped && !self.is_dirty && !self.is_writing
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Lists {
    entries: Vec<Entry>,
    active: Order,
    inactive: Order,
    writes: Writes,
    /// The last that was given back is taken first.
    free_slots: Vec<u32>,
    ahead: Ahead,
    limit: u32,
    used: u32,
    /// Pages that are waited for and have no memory yet, in the order of their faults.
    line: VecDeque<u32>,
    writing: u32,
    reading: u32,
    /// Reclaims under way, by processor.
    scans: BTreeMap<usize, Scan>,
    counts: Counts,
}

impl Lists {
    /// All pages are fresh.
    pub(super) fn new(shape: Shape, writes: Writes) -> Lists {
        Lists {
            entries: vec![Entry::FRESH; shape.pages as usize],
            active: Order::default(),
            inactive: Order::default(),
            writes,
            free_slots: (0..shape.slots).rev().collect(),
            ahead: Ahead::new(shape.prefetch),
            limit: shape.limit_pages,
            used: 0,
            line: VecDeque::new(),
            writing: 0,
            reading: 0,
            scans: BTreeMap::new(),
            counts: Counts::default(),
        }
    }

    fn get(&self, page: u32) -> &Entry {
        &self.entries[page as usize]
    }

    fn at(&mut self, page: u32) -> &mut Entry {
        &mut self.entries[page as usize]
    }

    /// Takes a page from wherever it stands.
    fn leave(&mut self, page: u32) {
        match std::mem::take(&mut self.at(page).place) {
            Place::Active(place) => self.active.remove(place),
            Place::Inactive(place) => self.inactive.remove(place),
            Place::Nowhere | Place::Held => {}
        }
    }

    fn put_active(&mut self, page: u32) {
        self.leave(page);
        self.at(page).place = Place::Active(self.active.push_head(page));
    }

    fn put_inactive(&mut self, page: u32) {
        self.leave(page);
        self.at(page).place = Place::Inactive(self.inactive.push_head(page));
    }

    /// A page is found that is not mapped, by who touches it (rule 9).
    fn activate(&mut self, page: u32) {
        if let Place::Inactive(_) = self.get(page).place {
            self.put_active(page);
        }
    }

    /// Maps a page that is in memory, for all that wait for it.
    fn map(&mut self, page: u32, acts: &mut Vec<Act>) {
        if std::mem::take(&mut self.at(page).is_ahead) {
            self.counts.ahead_hits += 1;
            self.ahead.hit(page);
        }
        if std::mem::take(&mut self.at(page).is_to_write) {
            self.dirty(page);
        }
        let entry = self.at(page);
        entry.is_waited = false;
        entry.is_accessed = true;
        entry.state = State::Resident;
        let writable = entry.is_dirty;
        acts.push(Act::Map { page, writable });
    }

    /// A page is written to (rule 12).
    fn dirty(&mut self, page: u32) {
        let entry = self.at(page);
        entry.is_dirty = true;
        if !entry.is_writing
            && let Some(slot) = entry.slot.take()
        {
            self.free_slots.push(slot);
        }
    }

    /// Gets memory for a page that is waited for, where there is some.
    fn enter(&mut self, page: u32, acts: &mut Vec<Act>) {
        if self.used < self.limit && self.line.is_empty() {
            return self.fill(page, acts);
        }
        self.counts.inline_reclaims += 1;
        self.line.push_back(page);
    }

    /// Fills a page that is waited for; there is memory.
    fn fill(&mut self, page: u32, acts: &mut Vec<Act>) {
        if self.get(page).state == State::Fresh {
            return self.zero(page, acts);
        }
        self.counts.major_faults += 1;
        self.read(page, true, acts);
        let others = self.ahead.fault(page, self.entries.len() as u32);
        for &other in others.as_slice() {
            let entry = self.get(other);
            let is_wanted = entry.state == State::OnDevice && !entry.is_waited;
            if is_wanted && self.used < self.limit && self.line.is_empty() {
                self.counts.ahead += 1;
                self.at(other).is_ahead = true;
                self.read(other, false, acts);
            }
        }
    }

    fn zero(&mut self, page: u32, acts: &mut Vec<Act>) {
        self.used += 1;
        self.counts.minor_faults += 1;
        let entry = self.at(page);
        entry.is_waited = false;
        entry.is_accessed = true;
        entry.is_dirty = std::mem::take(&mut entry.is_to_write);
        entry.state = State::Resident;
        let writable = entry.is_dirty;
        self.put_active(page);
        acts.push(Act::Zero { page, writable });
    }

    /// Begins to read a page into memory that it gets.
    fn read(&mut self, page: u32, is_critical: bool, acts: &mut Vec<Act>) {
        self.used += 1;
        self.reading += 1;
        let entry = self.at(page);
        entry.state = State::Reading;
        let slot = entry.slot.expect("what is on the device has a slot");
        self.put_inactive(page);
        acts.push(Act::Read {
            page,
            slot,
            is_critical,
        });
    }

    fn is_under_way(&self) -> bool {
        let is_held = self.scans.values().any(|scan| !scan.held.is_empty());
        is_held || self.writing + self.reading > 0
    }

    /// Memory may have come free, or somebody found none: for those that wait, in their order.
    fn serve(&mut self, acts: &mut Vec<Act>) {
        while let Some(&page) = self.line.front() {
            if self.used >= self.limit {
                self.free_what_is_waited_for(acts);
            }
            if self.used < self.limit {
                self.line.pop_front();
                self.fill(page, acts);
            } else if self.is_under_way() {
                // Who is told of it, or puts back what he holds, goes on.
                return;
            } else if !self.try_hard(acts) {
                self.line.pop_front();
                let entry = self.at(page);
                (entry.is_waited, entry.is_to_write) = (false, false);
                self.counts.failed += 1;
                let why = Why::DeviceFull;
                acts.push(Act::Fail { page, why });
            }
        }
    }
}

impl Ages for Lists {
    fn fault(&mut self, page: u32, is_write: bool, acts: &mut Vec<Act>) {
        let entry = self.at(page);
        entry.is_to_write |= is_write;
        let Entry {
            state, is_waited, ..
        } = *entry;
        match state {
            State::Resident => {
                self.counts.write_faults += u64::from(is_write);
                self.map(page, acts);
            }
            State::Unmapped => {
                self.counts.minor_faults += 1;
                self.counts.kept += u64::from(!self.get(page).is_ahead);
                self.map(page, acts);
                self.activate(page);
            }
            // What is under way answers all that wait.
            _ if is_waited => {}
            State::Reading => self.at(page).is_waited = true,
            State::Fresh | State::OnDevice => {
                self.at(page).is_waited = true;
                self.enter(page, acts);
            }
        }
    }

    fn touched(&mut self, page: u32) {
        self.at(page).is_accessed = true;
    }

    fn wants_room(&self, page: u32) -> bool {
        let entry = self.get(page);
        entry.is_waited && entry.state != State::Reading
    }

    fn read_done(&mut self, page: u32, acts: &mut Vec<Act>) {
        self.reading -= 1;
        let entry = self.at(page);
        entry.state = State::Unmapped;
        if entry.is_waited {
            self.map(page, acts);
            self.activate(page);
        }
        self.serve(acts);
    }

    fn write_done(&mut self, page: u32, acts: &mut Vec<Act>) {
        self.writing -= 1;
        let entry = self.at(page);
        entry.is_writing = false;
        let (is_done, place) = (entry.can_be_freed(), entry.place);
        match place {
            _ if is_done && self.writes == Writes::Synchronous => self.leave_memory(page, acts),
            Place::Inactive(_) => {
                self.leave(page);
                self.at(page).place = Place::Inactive(self.inactive.push_tail(page));
            }
            _ => {}
        }
        self.serve(acts);
    }

    /// Wants 32 pages, however many are asked for (rule 10).
    fn reclaim(&mut self, cpu: usize, _pages: u32, acts: &mut Vec<Act>) -> u32 {
        let freed_before = self.counts.dropped;
        let mut scan = match self.scans.remove(&cpu) {
            Some(scan) => scan,
            None => self.begin_scan(),
        };
        if self.go_on(&mut scan, acts) {
            self.scans.insert(cpu, scan);
        }
        self.serve(acts);
        (self.counts.dropped - freed_before) as u32
    }

    fn reclaimed(&mut self, cpu: usize) {
        if let Some(mut scan) = self.scans.remove(&cpu) {
            self.end_scan(&mut scan);
        }
    }

    fn used_pages(&self) -> u32 {
        self.used
    }

    fn state(&self, page: u32) -> State {
        self.get(page).state
    }

    fn counts(&self) -> Counts {
        self.counts
    }
}
