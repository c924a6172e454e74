//! What a sweep is told, what a crash left, and a full check.

use super::layer::{Descriptor, FIRST, is_layer, number_of};
use super::{ByteKeys, Items, KEY_BYTES_MAX};
use crate::heap::Sweep;
use crate::ordered::{Census, END, PutError, ScanError, Unsound};
use crate::sync::lock;
use crate::{Ordered, Persistent};
use nyx_base::WorkerId;
use nyx_media::Pmem;
use std::collections::BTreeSet;

/// What there is in layers that are linked.
enum Seen<'s> {
    Item(u64),
    Layer(&'s Descriptor),
    /// A layer without entries, and the bytes that lead there.
    Empty(&'s [u8]),
}

/// Why a sweep could not be told of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MarkError {
    /// The index cannot be read.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// What a crash left cannot be taken away.
    #[error(transparent)]
    Put(#[from] PutError),
}

/// What a full check counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyCensus {
    /// Keys.
    pub keys: u64,
    /// Layers but for the first.
    pub layers: u64,
    /// Layers of them that have no entry.
    pub empty: u64,
    /// Entries of layers that a crash left without a link.
    pub lost: u64,
    /// What there is in the index of slots.
    pub index: Census,
}

impl From<Unsound> for MarkError {
    fn from(error: Unsound) -> MarkError {
        MarkError::Scan(error.into())
    }
}

impl<P: Pmem, I: Persistent<P> + Ordered, T: Items> ByteKeys<P, I, T> {
    /// Takes away what a crash left of layers, then names every block to a sweep, and tells how
    /// many; `mark_item` does the same for an item's blocks. May run while the keys are used.
    pub fn mark(
        &self,
        worker: WorkerId,
        sweep: &mut Sweep<'_, P>,
        mut mark_item: impl FnMut(u64, &mut Sweep<'_, P>) -> Result<u64, Unsound>,
    ) -> Result<u64, MarkError> {
        self.tidy(worker)?;
        let mut blocks = 0;
        self.visit(|seen| {
            match seen {
                Seen::Item(item) => blocks += mark_item(item, sweep)?,
                Seen::Layer(below) => {
                    sweep.mark(below.at, below.class)?;
                    blocks += 1;
                }
                Seen::Empty(_) => {}
            }
            Ok(())
        })?;
        Ok(blocks + self.index.mark(sweep)?)
    }

    /// Looks at everything. Nobody writes meanwhile.
    pub fn check(&self) -> Result<KeyCensus, ScanError> {
        let mut census = KeyCensus {
            index: self.index.check()?,
            ..KeyCensus::default()
        };
        self.visit(|seen| {
            match seen {
                Seen::Item(item) => {
                    let found = self.items.with_key(item, |key| self.get(key))??;
                    if found != Some(item) {
                        return Err(Unsound::Item { item });
                    }
                    census.keys += 1;
                }
                Seen::Layer(_) => census.layers += 1,
                Seen::Empty(_) => census.empty += 1,
            }
            Ok(())
        })?;
        let linked = census.keys + census.layers;
        census.lost = census.index.entries.saturating_sub(linked);
        Ok(census)
    }

    /// Removes layers of processes before this one that are not linked, and empty ones.
    fn tidy(&self, worker: WorkerId) -> Result<(), MarkError> {
        let (mut linked, mut empty) = (BTreeSet::new(), Vec::new());
        self.visit(|seen| {
            match seen {
                Seen::Layer(below) => drop(linked.insert(below.layer.number)),
                Seen::Empty(path) => empty.push(path.to_vec()),
                Seen::Item(_) => {}
            }
            Ok(())
        })?;
        for path in empty {
            self.collapse(worker, &path)?;
        }
        let (mut from, mut entries) = (FIRST.slots().end() + 1, Vec::new());
        loop {
            self.some_up((from, END - 1), &mut entries)?;
            for &(slot, _) in &entries {
                let number = number_of(slot);
                if number < self.began && !linked.contains(&number) {
                    self.index.remove(worker, slot)?;
                }
            }
            match entries.last() {
                Some(&(last, _)) => from = last + 1,
                None => return Ok(()),
            }
        }
    }

    /// Shows all that is linked, layer by layer.
    fn visit(&self, mut see: impl FnMut(Seen<'_>) -> Result<(), Unsound>) -> Result<(), ScanError> {
        let (mut met, mut entries) = (BTreeSet::new(), Vec::new());
        let mut left = vec![(FIRST, Vec::new())];
        while let Some((layer, path)) = left.pop() {
            if !met.insert(layer.number) || path.len() > KEY_BYTES_MAX {
                return Err(Unsound::Endless.into());
            }
            let (mut from, to) = layer.slots().into_inner();
            let mut is_empty = true;
            loop {
                self.some_up((from, to), &mut entries)?;
                let Some(&(last, _)) = entries.last() else {
                    break;
                };
                for &(slot, value) in &entries {
                    if !is_layer(value) {
                        see(Seen::Item(value))?;
                        continue;
                    }
                    let below = self.below(layer, slot, value)?;
                    // A number is taken before it is used.
                    if below.layer.number >= lock(&self.numbers).end {
                        return Err(Unsound::NoNode { at: below.at }.into());
                    }
                    see(Seen::Layer(&below))?;
                    let slice = layer.slice(slot);
                    let path = [&path, slice.bytes(), below.shared.bytes()].concat();
                    left.push((below.layer, path));
                }
                (from, is_empty) = (last + 1, false);
            }
            if is_empty && layer.number != FIRST.number {
                see(Seen::Empty(&path))?;
            }
        }
        Ok(())
    }
}
