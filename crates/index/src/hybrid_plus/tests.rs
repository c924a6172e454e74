//! The pair against what every index must do, and each kind of update and the rebuild against
//! readers and writers at once.

use super::{HybridPlus, LOCKS, Update};
use crate::contract::{self, Kind, Step};
use crate::fast_fair::FastFair;
use crate::heap::Heap;
use crate::map::{DramMap, hash_of};
use crate::{Eras, Index, Persistent};
use nyx_base::{Rng, WorkerId};
use nyx_media::Mapped;
use nyx_media::pmem::crash::Recorder;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

const W: WorkerId = WorkerId(0);

type Hybrid = HybridPlus<FastFair<Mapped>>;

/// A pair on a heap of its own.
struct Pairs;

impl Kind for Pairs {
    type Small<'p> = HybridPlus<FastFair<&'p Recorder, 6>>;

    fn scribble(_: &Recorder, _: u64, _: &mut Rng) {}
}

fn agrees(steps: &[Step], update: Update) {
    let index = contract::empty::<Hybrid>(4 << 20, 1).updating(update);
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
            index.settle(W, 3).expect("room");
        }
        for key in [0, 1, 2, 40, 41] {
            assert_eq!(index.get(key), Ok(model.get(&key).copied()));
        }
    }
    index.settle(W, usize::MAX).expect("room");
    assert_eq!(index.map().len(), model.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn it_agrees_with_an_ordered_map(steps in contract::any_steps()) {
        contract::agrees::<Hybrid>(&steps);
        agrees(&steps, Update::Synchronous);
        agrees(&steps, Update::Asynchronous);
    }
}

#[test]
fn the_greatest_key_is_told_to_whoever_goes_beyond() {
    contract::ends_at_the_greatest_key::<Hybrid>();
}

#[test]
fn somebody_else_is_asked_before_it_decides() {
    contract::asks_before_it_decides::<Hybrid>();
}

#[test]
fn readers_miss_nothing_and_never_go_back_while_writers_write() {
    contract::serves_all_at_once::<Hybrid>();
}

#[test]
fn it_grows_under_writers_and_who_was_told_of_a_key_finds_it() {
    contract::serves_while_it_grows::<Hybrid>();
}

#[test]
fn it_opens_again_on_a_heap_that_is_swept_meanwhile() {
    contract::opens_again::<Pairs>();
}

#[test]
fn after_a_restart_the_tree_answers_until_the_map_is_built() {
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
    assert!(!index.is_built());
    assert_eq!((index.get(7), index.map().len()), (Ok(Some(7)), 0));
    // What changes before it is built is not overwritten by what was found first.
    for key in 0..500 {
        match key % 5 {
            0 => assert_eq!(index.put(W, key, 1000), Ok(Some(key))),
            1 => assert_eq!(index.remove(W, key), Ok(Some(key))),
            _ => {}
        }
        index.rebuild(W, 1).expect("room");
    }
    while !index.rebuild(W, 100).expect("room") {}
    for key in 0..500 {
        let expected = [Some(1000), None, Some(key)][(key % 5).min(2) as usize];
        assert_eq!(index.map().get(key), Ok(expected), "key {key}");
        assert_eq!(index.get(key), Ok(expected), "key {key}");
    }
}

#[test]
fn a_map_without_room_refuses_nothing_and_answers_nothing_wrongly() {
    let tree = contract::empty::<FastFair<Mapped>>(4 << 20, 1);
    let map = DramMap::new(64, tree.heap().eras().workers()).expect("memory");
    let index = HybridPlus::new(tree, map);
    assert_eq!(index.rebuild(W, 0), Ok(true));
    (0..9_000).for_each(|key| assert_eq!(index.put(W, key, key), Ok(None)));
    (0..9_000).for_each(|key| assert_eq!(index.get(key), Ok(Some(key))));
    assert!(index.map().len() < 9_000, "{}", index.map().len());
    assert!(index.settle(W, 1).is_err());
    (0..9_000).for_each(|key| assert_eq!(index.remove(W, key), Ok(Some(key))));
    (0..9_000).for_each(|key| assert_eq!(index.get(key), Ok(None)));
}

#[test]
fn it_puts_changes_off_where_there_is_more_writing() {
    let index = contract::empty::<Hybrid>(16 << 20, 1).updating(Update::Adaptive);
    let mut rng = Rng::with_seed(3);
    for (writes, expected) in [(0.9, true), (0.1, false), (0.8, true), (0.5, true)] {
        for round in 0..150_000 {
            let key = rng.u64(0..5_000);
            match rng.f64() < writes {
                true => drop(index.put(W, key, round).expect("room")),
                false => drop(index.get(key).expect("sound")),
            }
            index.settle(W, 1).expect("room");
        }
        assert_eq!(index.is_asynchronous(), expected, "{writes}");
    }
}

/// Two writers with keys of their own, whose values grow; readers; and somebody who switches how
/// changes are made, settles and rebuilds. Nobody is told of an old value after a new one.
#[test]
fn nobody_is_told_of_an_old_value_after_a_new_one() {
    const KEYS: usize = 60;
    const ROUNDS: u64 = 4_000;
    let index = contract::empty::<Hybrid>(4 << 20, 5);
    // Of few locks, so that a key is unsettled for another's sake.
    let is_of_few = |key: &u64| hash_of(*key) % (LOCKS as u64) < 3;
    let keys: Vec<u64> = (0..).filter(is_of_few).take(KEYS).collect();
    keys.iter()
        .for_each(|&key| assert_eq!(index.put(W, key, 0), Ok(None)));
    let told: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (index, told, is_over, keys) = (&index, &told, &is_over, &keys);
        let writers = [0, 1].map(|writer| {
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    for at in (0..KEYS).filter(|at| at % 2 == writer) {
                        let worker = WorkerId(writer as u16);
                        index.put(worker, keys[at], round).expect("room");
                        told[at].fetch_max(round, SeqCst);
                    }
                }
            })
        });
        for reader in 2..4 {
            scope.spawn(move || {
                let mut rng = Rng::with_seed(reader);
                while !is_over.load(Relaxed) {
                    let at = rng.usize(0..KEYS);
                    let (key, before) = (keys[at], told[at].load(SeqCst));
                    let value = index.get(key).expect("sound").expect("it is there");
                    assert!(value >= before, "key {key}: {value} after {before}");
                    told[at].fetch_max(value, SeqCst);
                }
            });
        }
        scope.spawn(move || {
            let mut switches = 0;
            while !is_over.load(Relaxed) {
                index.is_asynchronous.store(switches % 2 == 0, Relaxed);
                switches += 1;
                index.settle(WorkerId(4), 100).expect("room");
            }
            println!("{switches} switches");
        });
        writers
            .into_iter()
            .for_each(|writer| writer.join().expect("no panic"));
        is_over.store(true, Relaxed);
    });
    index.settle(W, usize::MAX).expect("room");
    keys.iter()
        .for_each(|&key| assert_eq!(index.map().get(key), Ok(Some(ROUNDS))));
}
