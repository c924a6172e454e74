//! One bit for each of so many things.

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits(Box<[u64]>);

impl Bits {
    /// `len` of them, none set.
    pub(super) fn none(len: u64) -> Bits {
        Bits(vec![0; len.div_ceil(64) as usize].into())
    }

    pub(super) fn has(&self, at: u64) -> bool {
        self.0[at as usize / 64] & (1 << (at % 64)) != 0
    }

    /// Sets or clears one; tells what it was.
    pub(super) fn set(&mut self, at: u64, on: bool) -> bool {
        let was = self.has(at);
        let mask = 1 << (at % 64);
        let word = &mut self.0[at as usize / 64];
        match on {
            true => *word |= mask,
            false => *word &= !mask,
        }
        was
    }

    /// Clears all.
    pub(super) fn clear(&mut self) {
        self.0.fill(0);
    }

    /// How many are set.
    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}
