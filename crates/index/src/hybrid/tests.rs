//! The pair against what every index must do; the tree, as it follows and as it is built, against
//! readers and writers at once.

use super::{Hybrid, PUT_OFF_MAX};
use crate::contract::{self, Kind, Lists, Step, assert_lists, crash};
use crate::fast_fair::FastFair;
use crate::heap::Heap;
use crate::ordered::{KEY_MAX, PutError, ScanError, Unordered, Unsound};
use crate::pm_hash::PmHash;
use crate::{Eras, Index, Ordered, Persistent};
use nyx_base::{Rng, WorkerId};
use nyx_media::Mapped;
use nyx_media::pmem::crash::Recorder;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

const W: WorkerId = WorkerId(0);

type Pair = Hybrid<PmHash<Mapped>>;

/// A pair on a heap of its own.
struct Pairs;

impl Kind for Pairs {
    type Small<'p> = Hybrid<PmHash<&'p Recorder, 2, 4, 2>>;

    fn make_ready(index: &Self::Small<'_>) {
        // Of a damaged hash there is no tree.
        let _ = index.rebuild(usize::MAX);
    }

    fn scribble(_: &Recorder, _: u64, _: &mut Rng) {}
}

fn agrees(steps: &[Step]) {
    let index = contract::empty::<Pair>(4 << 20, 1);
    let mut model = BTreeMap::new();
    for (at, step) in steps.iter().enumerate() {
        match *step {
            Step::Put(key, value) => {
                assert_eq!(index.put(W, key, value), Ok(model.insert(key, value)));
            }
            Step::Remove(key) => assert_eq!(index.remove(W, key), Ok(model.remove(&key))),
            Step::Get(key) | Step::Scan(key, _) => {
                assert_eq!(index.get(key), Ok(model.get(&key).copied()));
            }
        }
        if at % 11 == 0 {
            index.settle(3).expect("room");
        }
    }
    let expected: Vec<_> = model.into_iter().collect();
    assert_lists(&index, 0, KEY_MAX, &expected);
    assert_eq!(index.put_off(), 0);
    assert_lists(index.tree(), 0, KEY_MAX, &expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn it_agrees_with_an_ordered_map(steps in contract::any_steps()) {
        contract::agrees::<Pair>(&steps);
        agrees(&steps);
    }
}

#[test]
fn in_order_in_reverse_and_shuffled_all_keys_are_found() {
    contract::holds_any_order::<Pair>();
}

#[test]
fn the_greatest_key_is_told_to_whoever_goes_beyond() {
    contract::ends_at_the_greatest_key::<Pair>();
}

#[test]
fn somebody_else_is_asked_before_it_decides() {
    contract::asks_before_it_decides::<Pair>();
}

#[test]
fn a_full_heap_refuses_new_segments_and_nothing_else() {
    contract::refuses_when_full::<Pair>();
}

#[test]
fn readers_miss_nothing_and_never_go_back_while_writers_write() {
    contract::serves_all_at_once::<Pair>();
}

#[test]
fn it_grows_under_writers_and_who_was_told_of_a_key_finds_it() {
    contract::serves_while_it_grows::<Pair>();
}

#[test]
fn it_opens_again_on_a_heap_that_is_swept_meanwhile() {
    contract::opens_again::<Pairs>();
}

#[test]
fn after_any_crash_the_tree_is_built_as_the_hash_is() {
    crash::survives::<Pairs>();
}

#[test]
fn a_damaged_image_is_an_error_or_an_answer() {
    let noticed = contract::bears_damage::<Pairs>();
    assert!(noticed > 300, "{noticed}");
}

#[test]
fn after_a_restart_single_keys_are_there_and_ranges_when_the_tree_is_built() {
    let pm = Recorder::new(256 << 10);
    Heap::format(&pm, 4096, 1, Arc::new(Eras::new(1))).expect("it fits");
    let open = || {
        let heap = Heap::open(&pm, Arc::new(Eras::new(1))).expect("a heap");
        <Pairs as Kind>::Small::open(Arc::new(heap), 0, W).expect("an index")
    };
    let before = open();
    assert!(before.is_built(), "there is nothing to build");
    (0..500).for_each(|key| assert_eq!(before.put(W, key, key), Ok(None)));
    drop(before);
    let index = open();
    assert_eq!(index.get(7), Ok(Some(7)));
    // What changes before it is built is not overwritten by what was found first.
    let mut refused = 0;
    for key in 0..500 {
        match key % 5 {
            0 => assert_eq!(index.put(W, key, 1000), Ok(Some(key))),
            1 => assert_eq!(index.remove(W, key), Ok(Some(key))),
            _ => {}
        }
        refused += u32::from(index.lists(0, KEY_MAX) == Err(ScanError::NotReady));
        match key % 3 {
            0 => drop(index.rebuild(1).expect("room")),
            1 => drop(index.settle(1).expect("room")),
            _ => {}
        }
    }
    assert!((50..500).contains(&refused), "{refused}");
    assert!(index.is_built());
    let expected = (0..500).filter(|key| key % 5 != 1);
    let expected = expected.map(|key| (key, if key % 5 == 0 { 1000 } else { key }));
    assert_lists(&index, 0, KEY_MAX, &expected.collect::<Vec<_>>());
}

#[test]
fn without_room_for_the_tree_ranges_are_refused_and_look_ups_are_not() {
    let hash = contract::empty::<PmHash<Mapped>>(64 << 20, 1);
    let tree = FastFair::in_dram(64, hash.heap().eras()).expect("memory");
    let index = Hybrid::new(hash, tree);
    assert_eq!(index.rebuild(1), Ok(true));
    let full = (0..).find_map(|key| Some((key, index.put(W, key, key).err()?)));
    let (keys, error) = full.expect("it ends");
    assert!(matches!(error, PutError::Full(_)), "{error}");
    assert!(keys > PUT_OFF_MAX as u64, "{keys}");
    (0..keys).for_each(|key| assert_eq!(index.get(key), Ok(Some(key))));
    assert_eq!(index.get(keys), Ok(None), "what was refused is not there");
    assert_eq!(index.lists(0, 1), Err(ScanError::NotReady));
    let put_off = index.put_off();
    assert!(index.settle(1).is_err() && index.lists(0, 1).is_err());
    assert_eq!(index.put_off(), put_off, "nothing is forgotten");
}

/// A hash whose writers are slow to return now and then: what they did is seen before they go on.
struct Slow<H>(H);

impl<H: Index> Index for Slow<H> {
    fn get(&self, key: u64) -> Result<Option<u64>, Unsound> {
        self.0.get(key)
    }

    fn put(&self, worker: WorkerId, key: u64, value: u64) -> Result<Option<u64>, PutError> {
        let put = self.0.put(worker, key, value);
        if (key + value).is_multiple_of(16) {
            std::thread::yield_now();
        }
        put
    }

    fn remove(&self, worker: WorkerId, key: u64) -> Result<Option<u64>, PutError> {
        self.0.remove(worker, key)
    }
}

impl<H: Unordered> Unordered for Slow<H> {
    fn walk(&self, from: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>, Unsound> {
        self.0.walk(from, into)
    }
}

/// Two writers with keys of their own, whose values grow; who reads single keys and who reads
/// ranges; and somebody who builds the tree from what was there before, and settles. Nobody is told
/// of an old value after somebody was told of a new one, before the range began.
#[test]
fn nobody_is_told_of_an_old_value_after_a_new_one() {
    const KEYS: usize = 100;
    const ROUNDS: u64 = 600;
    let hash = contract::empty::<PmHash<Mapped, 2, 4, 2>>(8 << 20, 5);
    (0..KEYS as u64).for_each(|key| assert_eq!(hash.put(W, key, 0), Ok(None)));
    let tree = FastFair::in_dram(10_000, hash.heap().eras()).expect("memory");
    let index = Hybrid::new(Slow(hash), tree);
    let told: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let (is_over, ranges) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (index, told, is_over, ranges) = (&index, &told, &is_over, &ranges);
        let writers = [0, 1].map(|writer| {
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    for key in (0..KEYS).filter(|key| key % 2 == writer) {
                        let worker = WorkerId(writer as u16);
                        index.put(worker, key as u64, round).expect("room");
                        told[key].fetch_max(round, SeqCst);
                    }
                }
            })
        });
        scope.spawn(move || {
            let mut rng = Rng::with_seed(2);
            while !is_over.load(Relaxed) {
                let key = rng.usize(0..KEYS);
                let before = told[key].load(SeqCst);
                let value = index.get(key as u64).expect("sound").expect("there");
                assert!(value >= before, "key {key}: {value} after {before}");
                told[key].fetch_max(value, SeqCst);
            }
        });
        scope.spawn(move || {
            let mut rng = Rng::with_seed(3);
            while !is_over.load(Relaxed) {
                let from = rng.usize(0..KEYS - 9);
                let before: Vec<u64> = told.iter().map(|told| told.load(SeqCst)).collect();
                let mut next = from;
                let scanned = index.scan(from as u64..=from as u64 + 9, |key, value| {
                    assert_eq!(key, next as u64, "nothing is missed");
                    let before = before[next];
                    assert!(value >= before, "key {key}: {value} after {before}");
                    told[next].fetch_max(value, SeqCst);
                    next += 1;
                    ControlFlow::Continue(())
                });
                match scanned {
                    Ok(()) => assert_eq!(next, from + 10),
                    Err(error) => assert_eq!(error, ScanError::NotReady),
                }
                ranges.fetch_add(u64::from(scanned.is_ok()), Relaxed);
            }
        });
        scope.spawn(move || {
            while !is_over.load(Relaxed) {
                index.rebuild(5).expect("room");
                index.settle(10).expect("room");
            }
        });
        let writers = writers.into_iter();
        writers.for_each(|writer| writer.join().expect("no panic"));
        is_over.store(true, Relaxed);
    });
    assert!(ranges.load(Relaxed) > 0, "no range was answered");
    let expected: Vec<_> = (0..KEYS as u64).map(|key| (key, ROUNDS)).collect();
    assert_lists(&index, 0, KEY_MAX, &expected);
}
