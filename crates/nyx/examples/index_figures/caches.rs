//! ACS with a tenth of the keys before FAST-FAIR, FP-Tree and skip list (HybridIndex+ section 3.2,
//! figures 19 and 20): look-ups and updates, by Zipf's law and uniform; serial, in parallel, and as
//! hits say.
//!
//! What it never does: count what warms a cache up.

use crate::report::{Report, Row};
use crate::rig::{Law, Memory, Pace, Subject, Work, load};
use crate::{Bench, made};
use clap::ValueEnum;
use nyx_base::WorkerId;
use nyx_index::acs::{Acs, AcsShape, Keep, Lookup};
use nyx_index::fast_fair::FastFair;
use nyx_index::fp_tree::FpTree;
use nyx_index::ordered::{PutError, ScanError, Unsound};
use nyx_index::skip_list::SkipList;
use nyx_index::{Eras, Index, Ordered, Persistent};
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;

const LOOKUPS: [(&str, Lookup); 3] = [
    ("serial", Lookup::Serial),
    ("parallel", Lookup::Parallel),
    ("adaptive", Lookup::Adaptive),
];
const WORKS: [Work; 2] = [
    Work::Points { writes_pct: 0 },
    Work::Points { writes_pct: 100 },
];
/// The cache has so many times fewer entries than there are keys (the paper's tenth).
const CACHED_PART: u64 = 10;
/// Entries that are filled in at a time.
const FILLS: usize = 64;

/// An index that several caches stand before, one after the other.
struct Behind<'a, I>(&'a I);

impl<I: Index> Index for Behind<'_, I> {
    fn get(&self, key: u64) -> Result<Option<u64>, Unsound> {
        self.0.get(key)
    }

    fn beside_pays_from(&self) -> f64 {
        self.0.beside_pays_from()
    }

    fn get_beside(
        &self,
        key: u64,
        fetch: impl FnOnce(),
        known: impl FnOnce() -> Option<u64>,
    ) -> Result<Option<u64>, Unsound> {
        self.0.get_beside(key, fetch, known)
    }

    fn put(&self, worker: WorkerId, key: u64, value: u64) -> Result<Option<u64>, PutError> {
        self.0.put(worker, key, value)
    }

    fn remove(&self, worker: WorkerId, key: u64) -> Result<Option<u64>, PutError> {
        self.0.remove(worker, key)
    }
}

impl<I: Ordered> Ordered for Behind<'_, I> {
    fn scan(
        &self,
        range: RangeInclusive<u64>,
        each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        self.0.scan(range, each)
    }

    fn scan_back(
        &self,
        range: RangeInclusive<u64>,
        each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        self.0.scan_back(range, each)
    }
}

/// Indexes that ACS stands before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Which {
    FastFair,
    FpTree,
    SkipList,
}

/// Of all indexes, or of one.
pub(crate) fn run<C: Pace>(bench: &Bench<C>, report: &mut Report, only: Option<Which>) {
    let is_asked = |which| only.is_none_or(|only| only == which);
    let memory = || bench.memory();
    if is_asked(Which::FastFair) {
        before::<C, FastFair<_>>(bench, report, "fast-fair", &memory());
    }
    if is_asked(Which::FpTree) {
        before::<C, FpTree<_>>(bench, report, "fp-tree", &memory());
    }
    if is_asked(Which::SkipList) {
        before::<C, SkipList<_>>(bench, report, "skip-list", &memory());
    }
}

fn before<'a, C: Pace, I: Persistent<&'a Memory<C>> + Ordered>(
    bench: &Bench<C>,
    report: &mut Report,
    name: &str,
    memory: &'a Memory<C>,
) {
    eprintln!("caches: loading {} keys into {name}", bench.keys);
    let eras = Arc::new(Eras::new(1));
    let index: I = made(memory, &eras);
    let insert = load(&index, (bench.keys, &bench.clock), &eras, |_| ());
    report.tell(format!("{name}: {insert:.0} ns of CPU per insert"));
    for law in [Law::Zipf(bench.theta), Law::Uniform] {
        turns(bench, report, name, &index, law);
    }
}

/// The order of a round. In four rounds everybody has each place once, forwards and backwards: who
/// comes first, or after whom, is told as up to 2 % faster or slower.
fn places(round: usize) -> impl Iterator<Item = usize> {
    const ALL: usize = LOOKUPS.len() + 1;
    (0..ALL).map(move |turn| match round % 2 {
        0 => (round + turn) % ALL,
        _ => (round + ALL - turn) % ALL,
    })
}

/// The index alone and behind each kind of cache, by turns.
fn turns<I: Ordered>(
    bench: &Bench<impl Pace>,
    report: &mut Report,
    name: &str,
    index: &I,
    law: Law,
) {
    // Nothing is freed here: eras of their own do no harm.
    let eras = Eras::new(1);
    let caches = LOOKUPS.map(|(_, lookup)| {
        let shape = AcsShape {
            entries: bench.keys / CACHED_PART,
            keep: Keep::Lru,
            lookup,
        };
        Acs::new(Behind(index), shape).expect("memory")
    });
    let of = (bench.keys, law);
    for ((how, _), acs) in LOOKUPS.iter().zip(&caches) {
        eprintln!("caches: {name}, {}: warming up, {how}", law.name());
        let warm_up = usize::try_from(bench.keys / 2).unwrap_or(bench.ops);
        let how = ((warm_up, 1), (u64::from(u32::MAX), &bench.clock));
        with_fills(acs, &eras, |subject| {
            subject.run(of, WORKS[0], how.0, how.1)
        });
    }
    for round in 0..bench.rounds {
        eprintln!("caches: {name}, {}: round {}", law.name(), round + 1);
        for work in WORKS {
            let (how, seed) = ((bench.ops, 1), (round, &bench.clock));
            let row = |how: &str| Row::new("caches", &format!("{name}, {how}"), law, work, 1);
            let (eras, behind) = (&eras, &|_| ());
            for place in places(round as usize) {
                let Some(((lookup, _), acs)) = LOOKUPS.get(place).zip(caches.get(place)) else {
                    let alone = Subject {
                        index,
                        eras,
                        behind,
                    };
                    report.note(row("alone"), alone.run(of, work, how, seed));
                    continue;
                };
                let before = acs.figures();
                let mut found = with_fills(acs, eras, |subject| subject.run(of, work, how, seed));
                let after = acs.figures();
                let looks = after.looks - before.looks;
                found.hits = (looks > 0).then(|| (after.hits - before.hits) as f64 / looks as f64);
                report.note(row(lookup), found);
            }
        }
    }
}

/// Drives a cache that is filled in behind requests.
fn with_fills<I: Ordered, R>(
    acs: &Acs<I>,
    eras: &Eras,
    drive: impl FnOnce(Subject<'_, Acs<I>>) -> R,
) -> R {
    let behind = &|_| {
        acs.fill(FILLS).expect("sound");
    };
    let index = acs;
    drive(Subject {
        index,
        eras,
        behind,
    })
}
