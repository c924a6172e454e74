//! Slots: places for pages on the device, one bit each (Ultraswap section 3.1).
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
    /// The search goes on where it ended, so that pages which leave together lie together.
    next_word: usize,
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
            next_word: 0,
        }
    }

    pub(super) fn taken(&self) -> u32 {
        self.taken
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        if self.taken == self.len {
            return None;
        }
        let words = self.words.len();
        let order = (0..words).map(|step| (self.next_word + step) % words);
        let word = order.into_iter().find(|&word| self.words[word] != !0)?;
        let bit = (!self.words[word]).trailing_zeros();
        self.words[word] |= 1 << bit;
        self.next_word = word;
        self.taken += 1;
        Some(word as u32 * u64::BITS + bit)
    }

    pub(super) fn give_back(&mut self, slot: u32) {
        let (word, bit) = ((slot / u64::BITS) as usize, 1 << (slot % u64::BITS));
        assert!(self.words[word] & bit != 0, "slot {slot} is not taken");
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
            let mut all: Vec<u32> = (0..len).map(|_| slots.take().unwrap()).collect();
            assert_eq!(slots.take(), None, "{len} places");
            all.sort_unstable();
            assert!(all.iter().copied().eq(0..len));
            slots.give_back(len / 2);
            assert_eq!(slots.taken(), len - 1);
            assert_eq!(slots.take(), Some(len / 2));
        }
        assert_eq!(Slots::new(0).take(), None);
    }
}
