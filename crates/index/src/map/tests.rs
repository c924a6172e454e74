//! The map against a `BTreeMap`, with hashes of all kinds; its memory; readers beside writers.

use super::{DramMap, hash_of};
use crate::ordered::PutError;
use crate::{Index, ordered::KEY_MAX};
use nyx_base::{Rng, WorkerId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const W: WorkerId = WorkerId(0);

fn map(keys_max: u64, workers: u16) -> DramMap {
    DramMap::new(keys_max, workers).expect("memory")
}

/// The key that has this hash.
pub(super) fn key_of(hash: u64) -> u64 {
    let unmixed = |mixed: u64| mixed ^ mixed >> 32;
    // Each step doubles the bits that are right.
    let mut inverse = super::FACTOR;
    for _ in 0..6 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(super::FACTOR.wrapping_mul(inverse)));
    }
    let mixed = unmixed(unmixed(hash).wrapping_mul(inverse));
    mixed.wrapping_mul(inverse).wrapping_sub(1)
}

/// A key whose hash differs from those of others in its upper bits only: all are in one chain.
fn alike(at: u64) -> u64 {
    key_of((at + 1) << 44 | 5)
}

#[test]
fn no_two_keys_have_the_same_hash_and_none_has_that_of_an_empty_entry() {
    let mut rng = Rng::with_seed(1);
    for round in 0..10_000 {
        let key = if round < 100 { round } else { rng.u64(..) };
        assert_eq!(key_of(hash_of(key)), key);
    }
    assert_eq!((hash_of(u64::MAX), key_of(0)), (0, u64::MAX));
    assert!(hash_of(0) != 0 && hash_of(KEY_MAX) != 0);
}

#[test]
fn keys_of_all_kinds_are_spread() {
    const KEYS: u64 = 40_000;
    let kinds: [fn(u64) -> u64; 8] = [
        |at| at,
        |at| at << 12,
        |at| at << 32,
        |at| at << 45,
        |at| at * 1_000,
        |at| !at - 1,
        |at| (at & 255) << 48 | at >> 8,
        u64::swap_bytes,
    ];
    for (kind, key) in kinds.into_iter().enumerate() {
        let map = map(KEYS, 1);
        (0..KEYS).for_each(|at| assert_eq!(map.put(W, key(at), at), Ok(None)));
        (0..KEYS).for_each(|at| assert_eq!(map.get(key(at)), Ok(Some(at))));
        let spilled = map.spills.bytes() as f64 / KEYS as f64;
        assert!(spilled < 5.0, "kind {kind}: {spilled} bytes per key");
    }
}

#[test]
fn it_agrees_with_a_map() {
    let kinds: [fn(u64) -> u64; 3] = [
        |at| at,
        alike,
        |at| if at % 3 == 0 { alike(at) } else { at },
    ];
    for (kind, key_at) in kinds.into_iter().enumerate() {
        let keys = if kind == 0 { 3_000 } else { 100 };
        let map = map(keys, 1);
        let mut model = BTreeMap::new();
        let mut rng = Rng::with_seed(4);
        for round in 0..60_000 {
            let at = rng.u64(0..keys);
            let key = key_at(at);
            match rng.u8(0..4) {
                0 => assert_eq!(map.remove(W, key), Ok(model.remove(&key))),
                1 => {
                    let is_new = !model.contains_key(&key);
                    assert_eq!(map.put_new(W, key, round), Ok(is_new));
                    model.entry(key).or_insert(round);
                }
                2 => assert_eq!(map.put(W, key, round), Ok(model.insert(key, round))),
                _ => {
                    let keys: [u64; 10] = std::array::from_fn(|near| key_at(at + near as u64));
                    let mut found = [None; 10];
                    assert_eq!(map.get_many(&keys, &mut found), Ok(()));
                    assert_eq!(found, keys.map(|key| model.get(&key).copied()));
                    assert_eq!(map.get(key), Ok(found[0]));
                }
            }
        }
        assert_eq!(map.len(), model.len() as u64);
        assert_eq!(
            map.put(W, u64::MAX, 1),
            Err(PutError::Key { key: u64::MAX })
        );
        assert!(map.put_new(W, u64::MAX, 1).is_err());
        assert_eq!(map.remove(W, u64::MAX), Ok(None));
        assert_eq!(map.get(u64::MAX), Ok(None));
    }
}

#[test]
fn a_key_takes_less_than_thirty_bytes() {
    const KEYS: u64 = 1_000_000;
    let map = map(KEYS, 1);
    (0..KEYS).for_each(|key| assert_eq!(map.put(W, key, key), Ok(None)));
    let bytes = map.bytes() as f64 / KEYS as f64;
    println!("{bytes:.1} bytes per key");
    assert!(bytes < 30.0, "{bytes}");
    (0..KEYS).for_each(|key| assert_eq!(map.get(key), Ok(Some(key))));
}

#[test]
fn all_keys_are_found_at_every_size() {
    const KEYS: u64 = 1 << 17;
    let map = map(KEYS, 1);
    let mut rng = Rng::with_seed(8);
    let keys: Vec<u64> = (0..KEYS).map(|_| rng.u64(..KEY_MAX)).collect();
    for (at, &key) in keys.iter().enumerate() {
        assert_eq!(map.put(W, key, at as u64), Ok(None));
        if (at + 1).is_power_of_two() || at % 30_011 == 0 {
            let mut all = keys[..=at].iter().enumerate();
            assert!(
                all.all(|(at, &key)| map.get(key) == Ok(Some(at as u64))),
                "{at}"
            );
            assert!(
                keys[at + 1..]
                    .iter()
                    .take(1_000)
                    .all(|&key| map.get(key) == Ok(None))
            );
        }
    }
    let buckets = map.buckets.count();
    assert!(buckets >= KEYS / 6, "{buckets} buckets after ten doublings");
}

#[test]
fn as_many_keys_as_it_was_made_for_fit_however_uneven_their_hashes_are() {
    for keys in [0, 1, 100, 3_000] {
        let map = map(keys, 1);
        (0..keys).for_each(|at| assert_eq!(map.put(W, alike(at), at), Ok(None)));
        (0..keys).for_each(|at| assert_eq!(map.get(alike(at)), Ok(Some(at))));
        (0..keys).for_each(|at| assert_eq!(map.get(alike(at + keys)), Ok(None)));
        let bytes = map.bytes();
        // From either end, so that what is taken out is in all places.
        for at in (0..keys).map(|at| if at % 2 == 0 { at } else { keys / 2 * 2 - at }) {
            assert_eq!(map.remove(W, alike(at)), Ok(Some(at)), "{at}");
            assert_eq!(map.get(alike(at)), Ok(None));
        }
        assert_eq!(map.len(), 0);
        (0..keys).for_each(|at| assert_eq!(map.put_new(W, alike(at), at), Ok(true)));
        assert_eq!(map.bytes(), bytes, "what was removed is used again");
    }
}

#[test]
fn a_full_map_refuses_and_stays_right() {
    let map = map(1_000, 1);
    let mut refused = Vec::new();
    for key in 0..3_000 {
        match map.put(W, key, key) {
            Ok(before) => assert_eq!(before, None),
            Err(PutError::Full(full)) => {
                assert_eq!(full.heap_bytes, map.bytes());
                refused.push(key);
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(
        refused.first().is_some_and(|&first| first >= 1_000),
        "{refused:?}"
    );
    assert_eq!(map.len(), 3_000 - refused.len() as u64);
    let is_there = |key: u64| refused.binary_search(&key).is_err();
    for key in 0..3_000 {
        assert_eq!(map.get(key), Ok(is_there(key).then_some(key)));
        let put = map.put(W, key, key + 1);
        assert_eq!(
            put.ok(),
            is_there(key).then_some(Some(key)),
            "replaced, or refused again"
        );
    }
    for key in 0..3_000 {
        assert_eq!(map.remove(W, key), Ok(is_there(key).then_some(key + 1)));
    }
    assert!(map.is_empty());
    (0..1_000).for_each(|key| assert_eq!(map.put(W, key, key), Ok(None)));
    (0..1_000).for_each(|key| assert_eq!(map.get(key), Ok(Some(key))));
}

#[test]
fn keys_that_come_and_go_take_no_more_memory() {
    const KEYS: u64 = 20_000;
    let map = map(KEYS, 2);
    let put = |at: u64| map.put(WorkerId((at % 2) as u16), at << 20, at);
    (0..KEYS).for_each(|at| assert_eq!(put(at), Ok(None)));
    let mut after_a_while = 0;
    for at in KEYS..40 * KEYS {
        // Who removes is not who added.
        let gone = at - KEYS;
        let worker = WorkerId(((gone + 1) % 2) as u16);
        assert_eq!(map.remove(worker, gone << 20), Ok(Some(gone)));
        assert_eq!(put(at), Ok(None));
        if at == 4 * KEYS {
            after_a_while = map.bytes();
        }
    }
    let bytes = map.bytes();
    assert!(
        bytes < after_a_while * 21 / 20,
        "{after_a_while}, then {bytes} bytes"
    );
    assert!(bytes < 32 * KEYS, "{bytes} bytes");
    assert_eq!(map.len(), KEYS);
}

#[test]
fn readers_miss_nothing_and_never_go_back_while_writers_write() {
    const KEYS: u64 = 2_000;
    const ROUNDS: u64 = 300;
    let map = map(3 * KEYS, 3);
    // Every tenth is in one long chain.
    let key = |at: u64| if at.is_multiple_of(10) { alike(at) } else { at };
    (0..KEYS).for_each(|at| assert_eq!(map.put(W, key(at), 0), Ok(None)));
    std::thread::scope(|scope| {
        for writer in 0..2u64 {
            let map = &map;
            scope.spawn(move || {
                let worker = WorkerId(writer as u16);
                for round in 1..=ROUNDS {
                    for at in (0..KEYS).filter(|at| at % 2 == writer) {
                        map.put(worker, key(at), round).expect("room");
                        // Others come and go, and make the table grow.
                        let other = key(KEYS + (at * 7 + round) % KEYS * 2 + writer);
                        match round % 3 {
                            0 => drop(map.remove(worker, other).expect("sound")),
                            _ => drop(map.put(worker, other, round).expect("room")),
                        }
                    }
                }
            });
        }
        let mut last = vec![0; KEYS as usize];
        while last[0] < ROUNDS || last[1] < ROUNDS {
            for (at, last) in last.iter_mut().enumerate() {
                let value = map.get(key(at as u64)).expect("sound");
                let value = value.expect("it is there");
                assert!(value >= *last, "key {at} went back");
                *last = value;
            }
        }
    });
}

#[test]
fn of_two_who_put_the_same_new_key_one_does_while_the_table_grows() {
    const KEYS: u64 = 60_000;
    let map = map(KEYS, 3);
    let (won, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writers = [0u16, 1].map(|writer| {
            let (map, won) = (&map, &won);
            scope.spawn(move || {
                for key in 0..KEYS {
                    let is_new = map.put_new(WorkerId(writer), key, key).expect("room");
                    won.fetch_add(u64::from(is_new), Relaxed);
                    assert_eq!(map.get(key), Ok(Some(key)), "who was told finds it");
                    assert_eq!(map.get(key / 2), Ok(Some(key / 2)));
                }
            })
        });
        let (map, is_over) = (&map, &is_over);
        scope.spawn(move || {
            // The two never have the same value.
            let (one, other) = (key_of(7 << 50 | 3), key_of(9 << 50 | 3));
            for round in 0.. {
                let (key, value) = if round % 2 == 0 { (one, 1) } else { (other, 2) };
                assert_eq!(map.put(WorkerId(2), key, value), Ok(None));
                assert_eq!(map.remove(WorkerId(2), key), Ok(Some(value)));
                if is_over.load(Relaxed) {
                    return;
                }
            }
        });
        scope.spawn(move || {
            let (one, other) = (key_of(7 << 50 | 3), key_of(9 << 50 | 3));
            while !is_over.load(Relaxed) {
                assert!(map.get(one).expect("sound").is_none_or(|value| value == 1));
                assert!(
                    map.get(other)
                        .expect("sound")
                        .is_none_or(|value| value == 2)
                );
            }
        });
        writers
            .into_iter()
            .for_each(|writer| writer.join().expect("no panic"));
        is_over.store(true, Relaxed);
    });
    assert_eq!(won.load(Relaxed), KEYS);
    assert_eq!(map.len(), KEYS);
}
