//! Readers and writers of one small map beside a split, and beside each other, in many orders of
//! their single accesses:
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test --release -p nyx-index interleavings`
//!
//! draws them at random, and finds the bugs that were planted (`docs/open.md`).
#![cfg(shuttle)]

use super::bucket::ENTRIES;
use super::{DramMap, FACTOR, LOAD, SPLIT_BUCKETS};
use crate::Index;
use crate::sync::Ordering::Relaxed;
use nyx_base::WorkerId;
use shuttle::sync::Arc;
use shuttle::thread::{self, JoinHandle};

const A: WorkerId = WorkerId(0);
const B: WorkerId = WorkerId(1);
/// The number of the first bucket that a split adds.
const NEW: u64 = 4;
/// The number of a bucket of another stripe than that of bucket 0.
const OTHER: u64 = 2;

/// The key with this hash, as in `tests`.
fn key_of(hash: u64) -> u64 {
    let unmixed = |mixed: u64| mixed ^ mixed >> 32;
    let mut inverse = FACTOR;
    for _ in 0..6 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(FACTOR.wrapping_mul(inverse)));
    }
    let mixed = unmixed(unmixed(hash).wrapping_mul(inverse));
    mixed.wrapping_mul(inverse).wrapping_sub(1)
}

/// The `at`th key that stays in bucket 0 when that is split.
fn stays(at: u64) -> u64 {
    key_of((at + 1) << 59 | (at + 1) << 8)
}

/// The `at`th key that goes from there to bucket [`NEW`].
fn moves(at: u64) -> u64 {
    key_of((at + 1) << 59 | (at + 1) << 8 | NEW)
}

/// A map of four buckets with these keys, the value of each of which is its place, from 1.
fn map(keys: &[u64]) -> Arc<DramMap> {
    let map = DramMap::new(80, 2).expect("memory");
    for (&key, value) in keys.iter().zip(1..) {
        assert_eq!(map.put(A, key, value), Ok(None));
    }
    Arc::new(map)
}

/// What a worker does who finds that the table has to grow, once.
fn grow(map: &DramMap) {
    map.told.store(map.buckets.count() * LOAD / 10 + 1, Relaxed);
    map.grow();
}

fn beside(map: &Arc<DramMap>, work: impl FnOnce(&DramMap) + Send + 'static) -> JoinHandle<()> {
    let map = map.clone();
    thread::spawn(move || work(&map))
}

/// Threads that take turns at random, and threads that run on but for a few places: a reader that
/// is stopped while a writer does all that it has to is rare among the first.
fn model(program: impl Fn() + Sync + Send + 'static) {
    let program = std::sync::Arc::new(program);
    let same = program.clone();
    shuttle::check_random(move || same(), 10_000);
    shuttle::check_pct(move || program(), 10_000, 3);
}

fn get(map: &DramMap, key: u64) -> Option<u64> {
    map.get(key).expect("sound")
}

/// A chain with two spills: seven entries in place, and four more.
fn long() -> Vec<u64> {
    (0..6)
        .flat_map(|at| [stays(at), moves(at)])
        .skip(1)
        .collect()
}

#[test]
fn a_split_loses_nothing_for_readers() {
    model(|| {
        let map = map(&[stays(0), moves(0)]);
        let splitter = beside(&map, grow);
        assert_eq!(get(&map, moves(0)), Some(2));
        assert_eq!(get(&map, stays(0)), Some(1));
        assert_eq!(get(&map, moves(1)), None);
        splitter.join().expect("no panic");
        assert_eq!(map.buckets.count(), NEW + SPLIT_BUCKETS);
        assert_eq!(get(&map, moves(0)), Some(2));
        assert_eq!(get(&map, stays(0)), Some(1));
    });
}

#[test]
fn a_split_of_a_chain_loses_nothing_for_readers() {
    model(|| {
        let keys = long();
        let map = map(&keys);
        let splitter = beside(&map, grow);
        for (at, &key) in keys.iter().enumerate().skip(7) {
            assert_eq!(get(&map, key), Some(at as u64 + 1));
        }
        splitter.join().expect("no panic");
        for (at, &key) in keys.iter().enumerate() {
            assert_eq!(get(&map, key), Some(at as u64 + 1));
        }
    });
}

#[test]
fn a_writer_beside_a_split_puts_a_key_where_it_belongs() {
    model(|| {
        let map = map(&[stays(0), moves(0)]);
        let splitter = beside(&map, grow);
        assert_eq!(map.put(B, moves(0), 7), Ok(Some(2)));
        assert_eq!(map.put(B, moves(1), 8), Ok(None));
        assert_eq!(map.remove(B, stays(0)), Ok(Some(1)));
        splitter.join().expect("no panic");
        let found = [moves(0), moves(1), stays(0)].map(|key| get(&map, key));
        assert_eq!(found, [Some(7), Some(8), None]);
        assert_eq!(map.len(), 2);
    });
}

#[test]
fn a_reader_beside_a_split_and_a_writer_never_goes_back() {
    model(|| {
        let map = map(&[stays(0), moves(0)]);
        let splitter = beside(&map, grow);
        let writer = beside(&map, |map| {
            assert_eq!(map.put(B, moves(0), 3), Ok(Some(2)));
        });
        let first = get(&map, moves(0)).expect("it is there");
        let second = get(&map, moves(0)).expect("it is there");
        assert!(first <= second, "{first}, then {second}");
        splitter.join().expect("no panic");
        writer.join().expect("no panic");
        assert_eq!(get(&map, moves(0)), Some(3));
    });
}

#[test]
fn two_writers_and_a_split_keep_each_other_out() {
    model(|| {
        let map = map(&[moves(0)]);
        let splitter = beside(&map, grow);
        let writer = beside(&map, |map| {
            assert_eq!(map.put(B, moves(1), 10), Ok(None));
        });
        assert_eq!(map.put(A, stays(1), 11), Ok(None));
        assert_eq!(map.put(A, moves(2), 12), Ok(None));
        splitter.join().expect("no panic");
        writer.join().expect("no panic");
        let found = [moves(0), moves(1), stays(1), moves(2)].map(|key| get(&map, key));
        assert_eq!(found, [Some(1), Some(10), Some(11), Some(12)]);
        assert_eq!(map.len(), 4);
    });
}

#[test]
fn of_two_who_put_a_new_key_one_does() {
    model(|| {
        let map = map(&[stays(0)]);
        let splitter = beside(&map, grow);
        let writer = beside(&map, |map| assert!(map.put(B, moves(0), 5).is_ok()));
        let is_new = map.put_new(A, moves(0), 6).expect("room");
        let found = get(&map, moves(0));
        // Who came first is put over by `put`, and not by `put_new`.
        assert!(found == Some(5) || is_new && found == Some(6), "{found:?}");
        splitter.join().expect("no panic");
        writer.join().expect("no panic");
        assert_eq!((get(&map, moves(0)), map.len()), (Some(5), 2));
    });
}

#[test]
fn a_place_that_is_filled_again_gives_nobody_the_value_of_another_key() {
    model(|| {
        let map = map(&[stays(0)]);
        let writer = beside(&map, |map| {
            assert_eq!(map.remove(B, stays(0)), Ok(Some(1)));
            assert_eq!(map.put(B, stays(1), 7), Ok(None));
        });
        let found = get(&map, stays(0));
        assert!(found.is_none() || found == Some(1), "{found:?}");
        let found = get(&map, stays(1));
        assert!(found.is_none() || found == Some(7), "{found:?}");
        writer.join().expect("no panic");
        assert_eq!((get(&map, stays(0)), get(&map, stays(1))), (None, Some(7)));
    });
}

#[test]
fn an_entry_that_moves_because_another_goes_is_found_all_the_while() {
    model(|| {
        let keys = long();
        let map = map(&keys);
        // Each removal takes the last entry of the first spill to the place that it empties.
        let gone = [keys[0], keys[8]];
        let writer = beside(&map, move |map| {
            gone.iter()
                .for_each(|&key| assert!(map.remove(B, key).is_ok()));
        });
        for at in [10, 9, 7, 1] {
            assert_eq!(get(&map, keys[at]), Some(at as u64 + 1), "{at}");
        }
        writer.join().expect("no panic");
        let is_gone = |key| gone.contains(&key);
        for (at, &key) in keys.iter().enumerate() {
            assert_eq!(get(&map, key), (!is_gone(key)).then_some(at as u64 + 1));
        }
    });
}

#[test]
fn an_entry_that_is_spilled_is_found_by_whoever_was_told() {
    model(|| {
        let keys = long();
        let map = map(&keys[..ENTRIES]);
        let writer = beside(&map, |map| {
            let keys = long();
            assert_eq!(map.put(B, keys[ENTRIES], 9), Ok(None));
            assert_eq!(get(map, keys[ENTRIES]), Some(9));
            assert_eq!(map.remove(B, keys[0]), Ok(Some(1)));
        });
        assert_eq!(get(&map, keys[3]), Some(4));
        assert_eq!(map.put(A, keys[ENTRIES + 1], 10), Ok(None));
        assert_eq!(get(&map, keys[ENTRIES + 1]), Some(10));
        let found = get(&map, keys[ENTRIES]);
        assert!(found.is_none() || found == Some(9), "{found:?}");
        writer.join().expect("no panic");
        let found = [ENTRIES, ENTRIES + 1, 0].map(|at| get(&map, keys[at]));
        assert_eq!(found, [Some(9), Some(10), None]);
    });
}

#[test]
fn an_entry_that_gives_way_to_a_link_is_found_all_the_while() {
    model(|| {
        let keys = long();
        let map = map(&keys[..ENTRIES]);
        let writer = beside(&map, |map| {
            assert_eq!(map.put(B, long()[ENTRIES], 9), Ok(None));
        });
        // Places are filled from the last on here, so that the first key has that of the link.
        for at in [0, 0, 1] {
            assert_eq!(get(&map, keys[at]), Some(at as u64 + 1), "{at}");
        }
        writer.join().expect("no panic");
        assert_eq!(get(&map, keys[0]), Some(1));
    });
}

#[test]
fn a_spill_that_was_given_back_is_not_touched_again() {
    model(|| {
        // The first has one entry left in its spill, which the second takes for two.
        let keys = 0..=ENTRIES as u64;
        let first: Vec<u64> = keys.clone().map(stays).collect();
        let second: Vec<u64> = keys
            .map(|at| key_of((at + 1) << 59 | (at + 1) << 8 | OTHER))
            .collect();
        let map = map(&first);
        assert_eq!(map.remove(A, first[1]), Ok(Some(2)));
        for (&key, value) in second[..ENTRIES].iter().zip(20..) {
            assert_eq!(map.put(A, key, value), Ok(None));
        }
        // That it is the one which is left is how places are filled here.
        let left = first[0];
        let writer = beside(&map, move |map| {
            assert_eq!(map.remove(B, left), Ok(Some(1)));
        });
        assert_eq!(map.put(A, second[ENTRIES], 28), Ok(None));
        writer.join().expect("no panic");
        let found = second.iter().map(|&key| get(&map, key));
        assert!(found.eq((20..=28).map(Some)));
        let is_gone = |key| key == first[0] || key == first[1];
        for (&key, value) in first.iter().zip(1..) {
            assert_eq!(get(&map, key), (!is_gone(key)).then_some(value));
        }
    });
}

#[test]
fn what_was_a_link_and_is_a_value_leads_no_reader_astray() {
    model(|| {
        let keys = long();
        let map = map(&keys[..=ENTRIES]);
        let writer = beside(&map, |map| {
            let keys = long();
            // The last two that are spilled come back, and a new one takes the place of the link.
            (1..3).for_each(|at| assert!(map.remove(B, keys[at]).is_ok()));
            assert_eq!(map.put(B, keys[ENTRIES + 1], u64::MAX), Ok(None));
        });
        for at in [0, ENTRIES, ENTRIES - 1] {
            assert_eq!(get(&map, keys[at]), Some(at as u64 + 1), "{at}");
        }
        let found = get(&map, keys[ENTRIES + 1]);
        assert!(found.is_none() || found == Some(u64::MAX), "{found:?}");
        writer.join().expect("no panic");
        assert_eq!(get(&map, keys[ENTRIES + 1]), Some(u64::MAX));
    });
}

#[test]
fn a_mark_is_there_for_as_long_as_its_entry() {
    model(|| {
        let map = map(&[stays(0), moves(1)]);
        let splitter = beside(&map, grow);
        let writer = beside(&map, |map| {
            assert_eq!(map.remove(B, stays(0)), Ok(Some(1)));
            assert_eq!(map.put(B, stays(2), 3), Ok(None));
            assert_eq!(get(map, stays(2)), Some(3));
            assert_eq!(get(map, stays(0)), None);
        });
        assert_eq!(get(&map, moves(1)), Some(2));
        if get(&map, stays(2)).is_some() {
            assert_eq!(get(&map, stays(2)), Some(3), "who was told finds it");
            assert_eq!(get(&map, stays(0)), None);
        }
        splitter.join().expect("no panic");
        writer.join().expect("no panic");
        let found = [moves(1), stays(2), stays(0)].map(|key| get(&map, key));
        assert_eq!(found, [Some(2), Some(3), None]);
    });
}

#[test]
fn spills_that_go_from_chain_to_chain_lead_no_reader_astray() {
    model(|| {
        // Chains of two buckets that take and give back the same spill.
        let keys = 0..=ENTRIES as u64;
        let first: Vec<u64> = keys.clone().map(stays).collect();
        let second: Vec<u64> = keys.map(|at| key_of((at + 1) << 8 | OTHER)).collect();
        let map = map(&first);
        for (&key, value) in second[..ENTRIES].iter().zip(20..) {
            assert_eq!(map.put(A, key, value), Ok(None));
        }
        let last = second[ENTRIES];
        // The two that are spilled.
        let (spilled, other) = (first[ENTRIES], first[0]);
        let writer = beside(&map, move |map| {
            assert_eq!(map.remove(B, spilled), Ok(Some(9)));
            assert_eq!(map.remove(B, other), Ok(Some(1)));
            assert_eq!(map.put(B, last, 28), Ok(None));
            assert_eq!(map.put(B, spilled, 10), Ok(None));
        });
        let found = get(&map, spilled);
        assert!([None, Some(9), Some(10)].contains(&found), "{found:?}");
        let found = get(&map, last);
        assert!(found.is_none() || found == Some(28), "{found:?}");
        writer.join().expect("no panic");
        assert_eq!((get(&map, spilled), get(&map, last)), (Some(10), Some(28)));
    });
}

#[test]
fn what_is_spilled_of_one_bucket_does_not_say_that_its_neighbour_is() {
    model(|| {
        let keys: Vec<u64> = (0..=ENTRIES as u64).map(stays).collect();
        let next: Vec<u64> = (0..=ENTRIES as u64)
            .map(|at| key_of((at + 1) << 59 | (at + 1) << 8 | 1))
            .collect();
        let map = map(&keys[..ENTRIES]);
        for (&key, value) in next[..ENTRIES].iter().zip(20..) {
            assert_eq!(map.put(A, key, value), Ok(None));
        }
        let (last, all) = (next[ENTRIES], next.clone());
        let writer = beside(&map, move |map| {
            assert_eq!(map.put(B, last, 28), Ok(None));
            assert_eq!(map.remove(B, last), Ok(Some(28)));
            assert_eq!(map.put(B, last, 29), Ok(None));
        });
        assert_eq!(map.put(A, keys[ENTRIES], 9), Ok(None));
        for at in [ENTRIES, 0] {
            assert_eq!(get(&map, keys[at]), Some(at as u64 + 1), "{at}");
        }
        assert_eq!(get(&map, all[0]), Some(20));
        writer.join().expect("no panic");
        let found = all.iter().map(|&key| get(&map, key));
        assert!(found.eq((20..28).chain([29]).map(Some)));
        for (&key, value) in keys.iter().zip(1..) {
            assert_eq!(get(&map, key), Some(value));
        }
    });
}

#[test]
fn who_found_an_entry_finds_it_again_whoever_else_has_its_mark_goes() {
    model(|| {
        let [gone, came] = [1, 2].map(|at| key_of(1 << 59 | at << 8));
        let map = map(&[gone]);
        let writer = beside(&map, move |map| {
            assert_eq!(map.remove(B, gone), Ok(Some(1)));
            assert_eq!(map.put(B, came, 2), Ok(None));
        });
        let was_there = get(&map, came);
        assert!(was_there.is_none() || get(&map, came) == Some(2));
        let was_gone = get(&map, gone).is_none();
        assert!(!was_gone || get(&map, gone).is_none());
        writer.join().expect("no panic");
        assert_eq!((get(&map, gone), get(&map, came)), (None, Some(2)));
    });
}

#[test]
fn a_split_of_two_stripes_beside_a_writer_loses_nothing_of_either() {
    model(|| {
        let in_bucket = |at: u64, bucket: u64| key_of((at + 1) << 59 | (at + 1) << 8 | bucket);
        let there = [
            moves(0),
            in_bucket(0, 1),
            in_bucket(0, OTHER | NEW),
            in_bucket(0, OTHER),
        ];
        let map = map(&there);
        let splitter = beside(&map, grow);
        let came = [1 | NEW, OTHER, OTHER + 1, (OTHER + 1) | NEW].map(|at| in_bucket(1, at));
        let writer = beside(&map, move |map| {
            for (key, value) in came.into_iter().zip(10..) {
                assert_eq!(map.put(B, key, value), Ok(None));
            }
            assert_eq!(map.remove(B, there[1]), Ok(Some(2)));
        });
        for at in [2, 0, 3] {
            assert_eq!(get(&map, there[at]), Some(at as u64 + 1), "{at}");
        }
        splitter.join().expect("no panic");
        writer.join().expect("no panic");
        assert_eq!(
            there.map(|key| get(&map, key)),
            [Some(1), None, Some(3), Some(4)]
        );
        assert_eq!(came.map(|key| get(&map, key)), [10, 11, 12, 13].map(Some));
    });
}
