//! The table of pages: what is known of each, and the queues that they stand in. 16 bytes a page,
//! which take memory where the page, or one near it, was ever used: a fresh page is all zero bits.
//!
//! What it never does: decide; allocate after it was made.
//!
//! *Thread safety*: one owner.

use bytemuck::Zeroable;
use bytemuck::allocation::zeroed_vec;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nowhere: it was never written, and reads as zeros.
    Fresh,
    /// In memory, and mapped.
    Resident,
    /// In memory, and not mapped: who touches it needs no device.
    Unmapped,
    /// On its way from the device.
    Reading,
    /// On the device only.
    OnDevice,
}

/// A queue of pages; a page stands in one at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// Mapped, and used more than once.
    Active,
    /// Mapped, and next to be unmapped; pages read ahead that are not mapped stand between them.
    Inactive,
    /// Mapped along an access in order, by which it was left behind, or soon will be.
    Scanned,
    /// Not mapped, and not looked at yet.
    Unmapped,
    /// Not mapped, and the same on the device: may be freed at once.
    Clean,
}

const QUEUES: usize = 5;
/// The page differs from what is on the device.
pub(super) const DIRTY: u8 = 1;
/// A write of it is on its way; neither memory nor slot may be given away.
pub(super) const WRITING: u8 = 1 << 1;
/// It was read before anybody wanted it, and nobody was seen to use it yet.
pub(super) const AHEAD: u8 = 1 << 2;
/// Somebody waits for it.
pub(super) const WAITED: u8 = 1 << 3;
/// To write to it.
pub(super) const TO_WRITE: u8 = 1 << 4;
/// What is in it is not wanted any more, but a read or a write of it is on its way.
pub(super) const FORGOTTEN: u8 = 1 << 5;
/// It stands in line for memory.
pub(super) const IN_LINE: u8 = 1 << 6;
/// It is to be mapped when it has been read, though nobody waits for it.
pub(super) const TO_MAP: u8 = 1 << 7;

/// Bits beside state and queue.
const REWRITTEN: u8 = 1 << 3;
const TRIED: u8 = 1 << 7;

/// What is known of one page.
#[derive(Clone, Copy, Debug, Zeroable)]
pub(super) struct Entry {
    slot: Number,
    before: Number,
    after: Number,
    pub(super) pins: u16,
    flags: u8,
    state_and_queue: u8,
}

/// A number or none, which is all zero bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Zeroable)]
struct Number(u32);

impl Number {
    fn of(number: Option<u32>) -> Number {
        Number(number.map_or(0, |number| number + 1))
    }

    fn get(self) -> Option<u32> {
        self.0.checked_sub(1)
    }
}

const STATES: [State; 5] = [
    State::Fresh,
    State::Resident,
    State::Unmapped,
    State::Reading,
    State::OnDevice,
];
const QUEUE_KINDS: [Queue; QUEUES] = [
    Queue::Active,
    Queue::Inactive,
    Queue::Scanned,
    Queue::Unmapped,
    Queue::Clean,
];

impl Entry {
    pub(super) fn slot(&self) -> Option<u32> {
        self.slot.get()
    }

    pub(super) fn set_slot(&mut self, slot: Option<u32>) {
        self.slot = Number::of(slot);
    }

    pub(super) fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn set(&mut self, flag: u8) {
        self.flags |= flag;
    }

    pub(super) fn clear(&mut self, flag: u8) {
        self.flags &= !flag;
    }

    pub(super) fn state(&self) -> State {
        STATES[usize::from(self.state_and_queue & 0x7)]
    }

    pub(super) fn set_state(&mut self, state: State) {
        self.state_and_queue = self.state_and_queue & !0x7 | state as u8;
    }

    /// Whether it takes memory.
    pub(super) fn has_frame(&self) -> bool {
        matches!(
            self.state(),
            State::Resident | State::Unmapped | State::Reading
        )
    }

    fn queue(&self) -> Option<Queue> {
        let number = self.state_and_queue >> 4 & 0x7;
        (number > 0).then(|| QUEUE_KINDS[usize::from(number) - 1])
    }

    fn set_queue(&mut self, queue: Option<Queue>) {
        let number = queue.map_or(0, |queue| queue as u8 + 1);
        self.state_and_queue = self.state_and_queue & !0x70 | number << 4;
    }

    /// Whether it was read, and written to then, the last time that it was in memory.
    pub(super) fn is_rewritten(&self) -> bool {
        self.state_and_queue & REWRITTEN != 0
    }

    /// Whether it is mapped to be read only to see whether it is.
    pub(super) fn is_tried(&self) -> bool {
        self.state_and_queue & TRIED != 0
    }

    pub(super) fn set_rewritten(&mut self, is_rewritten: bool, is_tried: bool) {
        let bits = if is_rewritten { REWRITTEN } else { 0 } | if is_tried { TRIED } else { 0 };
        self.state_and_queue = self.state_and_queue & !(REWRITTEN | TRIED) | bits;
    }
}

/// First in, first out, with places that can be left from anywhere.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    first: Number,
    last: Number,
    len: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Table {
    entries: Vec<Entry>,
    queues: [Ends; QUEUES],
}

impl Table {
    pub(super) fn new(pages: u32) -> Table {
        Table {
            entries: zeroed_vec(pages as usize),
            queues: [Ends::default(); QUEUES],
        }
    }

    pub(super) fn pages(&self) -> u32 {
        self.entries.len() as u32
    }

    pub(super) fn get(&self, page: u32) -> &Entry {
        &self.entries[page as usize]
    }

    pub(super) fn at(&mut self, page: u32) -> &mut Entry {
        &mut self.entries[page as usize]
    }

    pub(super) fn len(&self, queue: Queue) -> u32 {
        self.queues[queue as usize].len
    }

    pub(super) fn first(&self, queue: Queue) -> Option<u32> {
        self.queues[queue as usize].first.get()
    }

    /// Puts a page at the end of a queue; it leaves the one that it stands in.
    pub(super) fn push(&mut self, queue: Queue, page: u32) {
        self.leave(page);
        let last = self.queues[queue as usize].last;
        let number = Number::of(Some(page));
        match last.get() {
            None => self.queues[queue as usize].first = number,
            Some(last) => self.at(last).after = number,
        }
        let entry = self.at(page);
        (entry.before, entry.after) = (last, Number::default());
        entry.set_queue(Some(queue));
        let ends = &mut self.queues[queue as usize];
        ends.last = number;
        ends.len += 1;
    }

    /// Takes a page out of whatever queue it stands in.
    pub(super) fn leave(&mut self, page: u32) {
        let entry = *self.get(page);
        let Some(queue) = entry.queue() else {
            return;
        };
        match entry.before.get() {
            None => self.queues[queue as usize].first = entry.after,
            Some(before) => self.at(before).after = entry.after,
        }
        match entry.after.get() {
            None => self.queues[queue as usize].last = entry.before,
            Some(after) => self.at(after).before = entry.before,
        }
        self.queues[queue as usize].len -= 1;
        self.at(page).set_queue(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn a_page_takes_16_bytes() {
        assert_eq!(size_of::<Entry>(), 16);
    }

    #[test]
    fn pages_that_were_never_used_take_no_memory() {
        let resident_pages = || {
            let told = std::fs::read_to_string("/proc/self/statm").ok()?;
            told.split(' ').nth(1)?.parse::<i64>().ok()
        };
        let Some(before) = resident_pages() else {
            return eprintln!("skipped pages_that_were_never_used: no statm in proc");
        };
        // 23 GiB of pages, whose entries are 96 MB.
        let mut table = Table::new(6_000_000);
        table.push(Queue::Active, 3_000_000);
        let resident = resident_pages().expect("as before") - before;
        assert_eq!(table.get(5_999_999).state(), State::Fresh);
        assert_eq!(table.get(5_999_999).slot(), None);
        // Other tests have some meanwhile.
        assert!(resident < 10_000, "{resident} pages");
    }

    #[test]
    fn queues_are_as_a_model_has_them() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut table = Table::new(20);
        let mut model: [VecDeque<u32>; QUEUES] = Default::default();
        for _ in 0..10_000 {
            let page = rng.u32(0..20);
            model
                .iter_mut()
                .for_each(|queue| queue.retain(|&other| other != page));
            match rng.usize(0..=QUEUES) {
                QUEUES => table.leave(page),
                number => {
                    table.push(QUEUE_KINDS[number], page);
                    model[number].push_back(page);
                }
            }
            for (queue, model) in QUEUE_KINDS.into_iter().zip(&model) {
                assert_eq!(table.len(queue) as usize, model.len());
                assert_eq!(table.first(queue), model.front().copied());
            }
        }
    }

    #[test]
    fn states_and_flags_do_not_disturb_each_other() {
        let mut table = Table::new(3);
        for state in STATES {
            for queue in QUEUE_KINDS {
                table.push(queue, 1);
                table.at(1).set(DIRTY | IN_LINE);
                table.at(1).set_state(state);
                table.at(1).clear(DIRTY);
                let entry = table.get(1);
                assert_eq!((entry.state(), entry.queue()), (state, Some(queue)));
                assert!(entry.is(IN_LINE) && !entry.is(DIRTY));
            }
        }
    }
}
