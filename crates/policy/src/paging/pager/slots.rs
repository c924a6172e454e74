//! Slots: places for pages on the device, one bit each (Ultraswap section 3.1).
//!
//! A page has the place of its own number where that is free, as it is wherever there are as many
//! places as pages: pages side by side lie side by side, and are read and written together.
//!
//! What they never do: give a place to two pages; look at a bit twice in one search.
//!
//! *Thread safety*: one owner.

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    /// A bit is set where the place is taken.
    words: Vec<u64>,
    len: u32,
    taken: u32,
}

impl Slots {
    pub(super) fn new(len: u32) -> Slots {
        let mut words = vec![0; len.div_ceil(u64::BITS) as usize];
        if let Some(last) = words.last_mut()
            && !len.is_multiple_of(u64::BITS)
        {
            *last = !0 << (len % u64::BITS);
        }
        Slots {
            words,
            len,
            taken: 0,
        }
    }

    pub(super) fn taken(&self) -> u32 {
        self.taken
    }

    /// A place for this page.
    pub(super) fn take(&mut self, page: u32) -> Option<u32> {
        if self.taken == self.len {
            return None;
        }
        let own = page % self.len;
        let slot = match self.is_taken(own) {
            false => own,
            true => self.first_from(own)?,
        };
        self.words[(slot / u64::BITS) as usize] |= 1 << (slot % u64::BITS);
        self.taken += 1;
        Some(slot)
    }

    fn is_taken(&self, slot: u32) -> bool {
        self.words[(slot / u64::BITS) as usize] & 1 << (slot % u64::BITS) != 0
    }

    /// The first that is free in the words from this one's on, and from the first on then.
    fn first_from(&self, slot: u32) -> Option<u32> {
        let (words, first) = (self.words.len(), (slot / u64::BITS) as usize);
        let mut order = (first..words).chain(0..first);
        let word = order.find(|&word| self.words[word] != !0)?;
        Some(word as u32 * u64::BITS + (!self.words[word]).trailing_zeros())
    }

    pub(super) fn give_back(&mut self, slot: u32) {
        let (word, bit) = ((slot / u64::BITS) as usize, 1 << (slot % u64::BITS));
        assert!(self.is_taken(slot), "slot {slot} is not taken");
        self.words[word] &= !bit;
        self.taken -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_is_given_once_and_again_after_it_came_back() {
        for len in [1, 63, 64, 65, 200] {
            let mut slots = Slots::new(len);
            // Some want a place that another has.
            let pages = (0..len).map(|page| page * 3);
            let mut all: Vec<u32> = pages.map(|page| slots.take(page).unwrap()).collect();
            assert_eq!(slots.take(9), None, "{len} places");
            all.sort_unstable();
            assert!(all.iter().copied().eq(0..len));
            slots.give_back(len / 2);
            assert_eq!(slots.taken(), len - 1);
            assert_eq!(slots.take(7), Some(len / 2));
        }
        assert_eq!(Slots::new(0).take(0), None);
    }

    #[test]
    fn with_as_many_places_as_pages_each_has_its_own_whatever_leaves_first() {
        let mut slots = Slots::new(100);
        let mut pages: Vec<u32> = (0..100).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut pages);
        for page in pages {
            assert_eq!(slots.take(page), Some(page));
        }
    }
}
