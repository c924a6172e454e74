//! What the software of a fault takes, part by part, in ns.
//!
//! The paper gives shares, not times. They become times by one assumption: a lone read or write of
//! a page takes the device 10 us (section 1.2: "below 10 us"). All else follows.
//!
//! *Table 2* has ranges, over windows of 0 to 8 pages. Its sums say which end belongs to which
//! window: `plug 2.5 + submit 40 + interrupt 12.5 = 55` and `14 + 24 + 26 = 64` are the two sums
//! of the block layer, with the device at 20 % and at 12 %; `1.5 + 8 + 11 + 3.5 = 24` and
//! `0.5 + 1.5 + 17.5 + 5.5 = 25` those of the logic. So one page takes 10 us / 0.20 = 50 us in
//! all, eight take 10 us / 0.12 = 83 us: what differs is the price of seven more pages. Submission
//! comes out at 20 us in both, so it is paid for a fault and not for a page: all go to the device
//! where the plug is pulled, and nothing of the device's time is hidden behind it.
//!
//! *Table 3* is of the same kind, with no word on how many pages leave together. Interrupts take
//! 25.6 us in it; at 6.25 us and 2.2 us for each further one (table 2) that is ten pages.
//!
//! *Figure 7*: a polled read takes 78 % less than Linux' (a scan, so with a window of eight), a
//! polled write 72 % less. What is left above the device's 10 us is the software of the polled
//! path. By interrupt they take 18 % and 13 % less. For reads that is the plug (11.7 of 63.4 us is
//! 18.4 %), so eight submissions without it take the 20 us that they take with it. Nothing is left
//! in that path that is paid once for all of them: each takes an eighth.
//!
//! What it never does: follow from a figure that is to be predicted (figures 8 and 9, tables 6 and
//! 7). *Thread safety*: plain values.

/// Where time goes. Those up to [`Part::Copy`] are of a fault that needs the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Looking into the swap cache.
    Lookup,
    /// Allocating the page and its place in the swap cache.
    Cache,
    /// Adding to the plug list, looking for what to merge with.
    Plug,
    /// From a request to the device's doorbell.
    Submit,
    /// The interrupt, the completion and the wake-up; the completion alone where it was polled.
    Complete,
    /// Putting pages into the lists.
    Lists,
    /// The page's table entry.
    Map,
    /// The device is waited for: asleep.
    Device,
    /// The device is waited for: spinning.
    Spin,
    /// Copying from memory (the ideal).
    Copy,
    /// A touch of a page that was never written.
    Fresh,
    /// A touch of a page that is in the swap cache.
    Hit,
    /// Waking the reclaimer.
    Wake,
    /// Taking a page off the lists.
    Take,
    /// A slot and the swap cache for a page that leaves.
    Slot,
    /// Taking its table entry away.
    Unmap,
    /// Submitting its write.
    WriteSubmit,
    /// Completing its write.
    WriteComplete,
    /// Its write is waited for: spinning.
    WriteSpin,
    /// Giving its memory back.
    Free,
    /// No memory is free, and what is written is waited for: asleep.
    Room,
    /// The program itself.
    Compute,
}

/// Parts there are.
pub const PARTS: usize = Part::Compute as usize + 1;

impl Part {
    /// All, in their order.
    pub const ALL: [Part; PARTS] = [
        Part::Lookup,
        Part::Cache,
        Part::Plug,
        Part::Submit,
        Part::Complete,
        Part::Lists,
        Part::Map,
        Part::Device,
        Part::Spin,
        Part::Copy,
        Part::Fresh,
        Part::Hit,
        Part::Wake,
        Part::Take,
        Part::Slot,
        Part::Unmap,
        Part::WriteSubmit,
        Part::WriteComplete,
        Part::WriteSpin,
        Part::Free,
        Part::Room,
        Part::Compute,
    ];

    /// Whether it belongs to a page's way in from the device.
    pub fn is_swap_in(self) -> bool {
        self <= Part::Copy
    }

    /// Whether it belongs to a page's way out.
    pub fn is_swap_out(self) -> bool {
        (Part::Take..=Part::Free).contains(&self)
    }

    /// Whether a processor does something in it, be it spinning.
    pub fn is_busy(self) -> bool {
        !matches!(self, Part::Device | Part::Room)
    }
}

/// Time by part, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts([u64; PARTS]);

impl Parts {
    /// Of one part.
    pub fn get(&self, part: Part) -> u64 {
        self.0[part as usize]
    }

    /// Adds to one.
    pub fn add(&mut self, part: Part, ns: u64) {
        self.0[part as usize] += ns;
    }

    /// Adds all of another.
    pub fn add_all(&mut self, other: &Parts) {
        for part in Part::ALL {
            self.add(part, other.get(part));
        }
    }

    /// Of those for which it is true.
    pub fn sum(&self, of: impl Fn(Part) -> bool) -> u64 {
        let all = Part::ALL.into_iter().filter(|&part| of(part));
        all.map(|part| self.get(part)).sum()
    }

    /// Time in the kernel: all but the program's own and what it sleeps.
    pub fn kernel_ns(&self) -> u64 {
        self.sum(|part| part.is_busy() && part != Part::Compute)
    }
}

/// What is paid for the first page, and for each further one of the same fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// The first.
    pub first_ns: u64,
    /// Each further one.
    pub more_ns: u64,
}

impl Price {
    const FREE: Price = Price::of(0, 0);

    const fn of(first_ns: u64, more_ns: u64) -> Price {
        Price { first_ns, more_ns }
    }

    /// Of the page at this place.
    pub fn at(self, index: usize) -> u64 {
        match index {
            0 => self.first_ns,
            _ => self.more_ns,
        }
    }
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Table 2: 1.5 % of 50 us and 0.5 % of 83 us; between them.
    pub lookup_ns: u64,
    /// Table 2: 11 % of 50 us, 17.5 % of 83 us.
    pub cache: Price,
    /// Table 2: 2.5 % of 50 us, 14 % of 83 us.
    pub plug: Price,
    /// Table 2: 40 % of 50 us, 24 % of 83 us: for all pages of a fault that were plugged.
    pub submit_ns: u64,
    /// Figure 7, reads by interrupt that are not plugged: each.
    pub submit_light_ns: u64,
    /// Table 2: 12.5 % of 50 us, 26 % of 83 us: this for each page,
    pub interrupt_ns: u64,
    /// and this for whoever is woken.
    pub wake_up_ns: u64,
    /// Table 2: 3.5 % of 50 us, 5.5 % of 83 us.
    pub lists: Price,
    /// Table 2: 8 % of 50 us and 1.5 % of 83 us; between them.
    pub map_ns: u64,
    /// Figure 7, polled reads: the command and the doorbell,
    pub poll_submit_ns: u64,
    /// and the completion. How the two share it is not known; the sum is what counts.
    pub poll_complete_ns: u64,
    /// Figure 7, polled writes: both.
    pub poll_write_ns: u64,
    /// An assumption: 4 KiB at 4 GB/s, not in the processor's caches.
    pub copy_ns: u64,
    /// Measured on a virtual machine: a touch of a page that was never written.
    pub fresh_ns: u64,
    /// An assumption: an interrupt to the other processor.
    pub wake_ns: u64,
    /// Table 3: 0.6 % of 88.5 us, for ten pages.
    pub take_ns: u64,
    /// Table 3: 5.5 %.
    pub slot_ns: u64,
    /// Table 3: 16.3 %.
    pub unmap_ns: u64,
    /// Table 3: 28.0 %.
    pub write_submit_ns: u64,
    /// The same without merging and scheduling: 13 % less of the whole request (figure 7).
    pub write_submit_light_ns: u64,
    /// Table 3: 28.9 %.
    pub write_interrupt_ns: u64,
    /// Table 3: 9.4 %.
    pub free_ns: u64,
}

impl Costs {
    /// The paper's, as the module says.
    pub const PAPER: Costs = Costs {
        lookup_ns: 583,
        cache: Price::of(5_500, 1_298),
        plug: Price::of(1_250, 1_488),
        submit_ns: 20_000,
        submit_light_ns: 2_537,
        interrupt_ns: 2_202,
        wake_up_ns: 4_048,
        lists: Price::of(1_750, 405),
        map_ns: 2_625,
        poll_submit_ns: 2_940,
        poll_complete_ns: 1_000,
        poll_write_ns: 6_900,
        copy_ns: 1_000,
        fresh_ns: 1_850,
        wake_ns: 1_000,
        take_ns: 53,
        slot_ns: 487,
        unmap_ns: 1_442,
        write_submit_ns: 2_478,
        write_submit_light_ns: 1_693,
        write_interrupt_ns: 2_558,
        free_ns: 832,
    };

    /// Software that takes no time: what is left is the device.
    pub const NONE: Costs = Costs {
        lookup_ns: 0,
        cache: Price::FREE,
        plug: Price::FREE,
        submit_ns: 0,
        submit_light_ns: 0,
        interrupt_ns: 0,
        wake_up_ns: 0,
        lists: Price::FREE,
        map_ns: 0,
        poll_submit_ns: 0,
        poll_complete_ns: 0,
        poll_write_ns: 0,
        copy_ns: 0,
        fresh_ns: 0,
        wake_ns: 0,
        take_ns: 0,
        slot_ns: 0,
        unmap_ns: 0,
        write_submit_ns: 0,
        write_submit_light_ns: 0,
        write_interrupt_ns: 0,
        free_ns: 0,
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paging::device::ALONE_NS;

    const C: Costs = Costs::PAPER;

    fn of(price: Price, pages: usize) -> f64 {
        (0..pages).map(|index| price.at(index)).sum::<u64>() as f64
    }

    #[test]
    fn table_2_comes_back_at_windows_of_one_and_eight() {
        for (pages, device, block, logic) in [(1, 20.0, 55.0, 24.0), (8, 12.0, 64.0, 25.0)] {
            let interrupts = C.interrupt_ns * pages as u64 + C.wake_up_ns;
            let block_ns = of(C.plug, pages) + (C.submit_ns + interrupts) as f64;
            let own_ns = (C.lookup_ns + C.map_ns) as f64;
            let logic_ns = own_ns + of(C.cache, pages) + of(C.lists, pages);
            let all_ns = ALONE_NS as f64 + block_ns + logic_ns;
            for (ns, percent) in [
                (ALONE_NS as f64, device),
                (block_ns, block),
                (logic_ns, logic),
            ] {
                let is = ns / all_ns * 100.0;
                // Looking up and mapping lie between their two ends.
                assert!(
                    (is - percent).abs() < 2.5,
                    "{pages} pages: {is} of {percent}"
                );
            }
        }
    }

    #[test]
    fn table_3_comes_back_for_ten_pages() {
        let (take, slot, unmap, free) = (C.take_ns, C.slot_ns, C.unmap_ns, C.free_ns);
        let block = C.write_submit_ns + C.write_interrupt_ns;
        let all = ALONE_NS + 10 * (take + slot + unmap + free + block);
        for (ns, percent) in [
            (take, 0.6),
            (slot, 5.5),
            (unmap, 16.3),
            (free, 9.4),
            (C.write_submit_ns, 28.0),
            (C.write_interrupt_ns, 28.9),
        ] {
            let is = (ns * 10) as f64 / all as f64 * 100.0;
            assert!((is - percent).abs() < 0.1, "{is} of {percent}");
        }
    }

    #[test]
    fn figure_7_comes_back() {
        let interrupts = (C.interrupt_ns * 8 + C.wake_up_ns) as f64;
        let alone = ALONE_NS as f64;
        let read = of(C.plug, 8) + C.submit_ns as f64 + interrupts + alone;
        let polled = alone + (C.poll_submit_ns + C.poll_complete_ns) as f64;
        let light = (8 * C.submit_light_ns) as f64 + interrupts + alone;
        let write_of = |submit: u64| (10 * (submit + C.write_interrupt_ns)) as f64 + alone;
        let write = write_of(C.write_submit_ns);
        let light_write = write_of(C.write_submit_light_ns);
        for (is, all, less) in [
            (polled, read, 0.78),
            (light, read, 0.18),
            (alone + C.poll_write_ns as f64, write, 0.72),
            (light_write, write, 0.13),
        ] {
            assert!((1.0 - is / all - less).abs() < 0.005, "{is} of {all}");
        }
    }
}
