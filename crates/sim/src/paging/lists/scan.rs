//! A reclaim: rounds over the lists, longer each time, until enough is freed (rules 4 to 8, 10, 11
//! of `lists.rs`).
//!
//! What it never does: wait. *Thread safety*: one owner.

use super::{Lists, Place, Writes};
use nyx_policy::paging::pager::{Act, State};

/// Pages that are looked at together, and that a reclaim wants (`SWAP_CLUSTER_MAX`).
pub(super) const BATCH_PAGES: u32 = 32;
/// The first round scans this part of a list: its length, shifted by so much (`DEF_PRIORITY`).
const PRIORITY: u32 = 12;
/// Reclaims that find nothing before who waits fails (`MEM_CGROUP_RECLAIM_RETRIES`).
const TRIES: u32 = 5;
/// Pages of a GiB, as a shift.
const GIB_PAGES_SHIFT: u32 = 18;

/// How far it has come.
#[derive(Clone, Debug)]
pub(super) struct Scan {
    priority: u32,
    /// What this round still has to look at, of each list.
    pub(super) inactive: u32,
    active: u32,
    pub(super) freed: u32,
    /// A batch of the inactive list was begun, and one of the active list follows it.
    has_batch: bool,
    /// The batch's pages that were neither freed nor activated.
    pub(super) held: Vec<u32>,
}

/// How many active pages there may be for an inactive one (rule 5).
pub(super) fn active_ratio(pages: u32) -> u32 {
    match pages >> GIB_PAGES_SHIFT {
        0 => 1,
        gib => (10 * gib).isqrt(),
    }
}

impl Lists {
    pub(super) fn begin_scan(&self) -> Scan {
        let mut scan = Scan {
            priority: PRIORITY,
            inactive: 0,
            active: 0,
            freed: 0,
            has_batch: false,
            held: Vec::new(),
        };
        self.aim(&mut scan);
        scan
    }

    /// What a round is to scan.
    fn aim(&self, scan: &mut Scan) {
        scan.inactive = self.inactive.len() >> scan.priority;
        scan.active = self.active.len() >> scan.priority;
    }

    /// Goes on until something was done to pages, which takes time, or a write is to be waited for.
    /// False where it came to the end of its last round before that.
    pub(super) fn go_on(&mut self, scan: &mut Scan, acts: &mut Vec<Act>) -> bool {
        loop {
            self.end_batch(scan);
            let is_round_over = scan.inactive == 0 || scan.freed >= BATCH_PAGES;
            if is_round_over && !self.next_round(scan) {
                return false;
            }
            let before = acts.len();
            let waits = self.shrink_inactive(scan, acts);
            if acts.len() > before || waits {
                return true;
            }
        }
    }

    fn next_round(&mut self, scan: &mut Scan) -> bool {
        self.deactivate(BATCH_PAGES);
        if scan.freed >= BATCH_PAGES {
            // It has what it wants, and more is wanted: another one.
            *scan = self.begin_scan();
        } else if scan.priority == 0 {
            return false;
        } else {
            scan.priority -= 1;
            self.aim(scan);
        }
        true
    }

    /// It ends here, since no more is wanted.
    pub(super) fn end_scan(&mut self, scan: &mut Scan) {
        self.end_batch(scan);
        self.deactivate(BATCH_PAGES);
    }

    pub(super) fn end_batch(&mut self, scan: &mut Scan) {
        for page in std::mem::take(&mut scan.held) {
            if self.get(page).place == Place::Held {
                self.put_inactive(page);
            }
        }
        if std::mem::take(&mut scan.has_batch) {
            let active = scan.active.min(BATCH_PAGES);
            scan.active -= active;
            self.deactivate(active);
        }
    }

    /// Whether active pages are to be deactivated (rule 5).
    fn is_inactive_low(&self) -> bool {
        let (inactive, active) = (self.inactive.len(), self.active.len());
        inactive * active_ratio(inactive + active) < active
    }

    /// Moves so many pages to the inactive list, if that is low (rule 4).
    pub(super) fn deactivate(&mut self, pages: u32) {
        if !self.is_inactive_low() {
            return;
        }
        for _ in 0..pages {
            let Some(page) = self.active.tail() else {
                return;
            };
            self.at(page).is_accessed = false;
            self.put_inactive(page);
        }
    }

    /// Looks at a batch (rule 6); whether it came upon a write that it has to wait for.
    pub(super) fn shrink_inactive(&mut self, scan: &mut Scan, acts: &mut Vec<Act>) -> bool {
        scan.has_batch = scan.inactive > 0;
        for _ in 0..scan.inactive.min(BATCH_PAGES) {
            let Some(page) = self.inactive.tail() else {
                scan.inactive = 0;
                return false;
            };
            if self.get(page).is_writing {
                return true;
            }
            scan.inactive -= 1;
            self.look_at(page, scan, acts);
        }
        false
    }

    fn look_at(&mut self, page: u32, scan: &mut Scan, acts: &mut Vec<Act>) {
        let has_slots = !self.free_slots.is_empty();
        let entry = self.at(page);
        let can_leave = !entry.is_dirty || entry.slot.is_some() || has_slots;
        if entry.state == State::Reading {
            return self.hold(page, scan);
        }
        if std::mem::take(&mut entry.is_accessed) || !can_leave {
            return self.put_active(page);
        }
        if entry.state == State::Resident {
            entry.state = State::Unmapped;
            acts.push(Act::Unmap { page });
        }
        if !entry.is_dirty {
            scan.freed += 1;
            return self.leave_memory(page, acts);
        }
        self.write(page, acts);
        self.hold(page, scan);
        scan.freed += u32::from(self.writes == Writes::Synchronous);
    }

    fn hold(&mut self, page: u32, scan: &mut Scan) {
        self.leave(page);
        self.at(page).place = Place::Held;
        scan.held.push(page);
    }

    fn write(&mut self, page: u32, acts: &mut Vec<Act>) {
        let slot = self.get(page).slot.or_else(|| self.free_slots.pop());
        let slot = slot.expect("it was looked whether there is one");
        let entry = self.at(page);
        entry.slot = Some(slot);
        (entry.is_dirty, entry.is_writing) = (false, true);
        self.writing += 1;
        self.counts.writes += 1;
        acts.push(Act::Write { page, slot });
    }

    /// Its memory is given back, and what it holds is on the device, or zeros.
    pub(super) fn leave_memory(&mut self, page: u32, acts: &mut Vec<Act>) {
        self.leave(page);
        let entry = self.at(page);
        entry.state = match entry.slot {
            Some(_) => State::OnDevice,
            None => State::Fresh,
        };
        (entry.is_ahead, entry.is_accessed) = (false, false);
        self.used -= 1;
        self.counts.dropped += 1;
        acts.push(Act::Free { page });
    }

    /// Who waits has come to the tail: its page, now that the write is over (rule 11).
    pub(super) fn free_what_is_waited_for(&mut self, acts: &mut Vec<Act>) {
        let tail = self.inactive.tail();
        if let Some(page) = tail.filter(|&page| self.get(page).can_be_freed()) {
            self.leave_memory(page, acts);
        }
    }

    /// For who waits where nothing is on its way: as far as the first page to which something is
    /// done; false where several reclaims find none (rule 12).
    pub(super) fn try_hard(&mut self, acts: &mut Vec<Act>) -> bool {
        (0..TRIES).any(|_| {
            let mut scan = self.begin_scan();
            let has_found = self.go_on(&mut scan, acts);
            self.end_scan(&mut scan);
            has_found
        })
    }
}
