//! The table against a model, and several threads on it at once. The interleavings of small
//! programs are in `loom`.
#![cfg(not(loom))]

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

const ONE: WorkerId = WorkerId(0);

fn table(items_max: u64, workers: u16) -> Hash {
    let hash = Hash::new(HashShape {
        items_max,
        workers,
        huge: false,
    })
    .expect("memory");
    hash.set_limit(u64::MAX / 2);
    hash
}

/// Spreads small numbers over all bits; a bijection, so that a place can stand for its key.
fn mix(key: u32) -> u64 {
    let x = u64::from(key)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ (x >> 29)
}

fn insert(hash: &Hash, worker: WorkerId, key: u64, place: Place) {
    hash.lock(worker, key).insert(place).expect("no limit");
}

#[derive(Clone, Debug)]
enum Step {
    Set(u16, u32),
    Remove(u16),
    Grow,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0u16..600, any::<u32>()).prop_map(|(key, place)| Step::Set(key, place)),
        3 => (0u16..600).prop_map(Step::Remove),
        1 => Just(Step::Grow),
    ];
    prop::collection::vec(step, 1..3000)
}

/// Few distinct hashes per bucket and many per tag, so that chains and false matches are common.
fn clustered(key: u16) -> u64 {
    mix(u32::from(key)) & 0x0003_0000_0000_007f
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn behaves_as_a_map(steps in steps()) {
        let hash = table(100_000, 1);
        // The place is the key's number in the upper half, so that a callback can tell keys apart.
        let mut model: BTreeMap<u16, u32> = BTreeMap::new();
        let is = |key: u16| move |place: Place| (place.0 >> 16) as u16 == key;
        for step in steps {
            match step {
                Step::Set(key, place) => {
                    let place = u32::from(key) << 16 | place & 0xffff;
                    let mut guard = hash.lock(ONE, clustered(key));
                    match guard.find(is(key)) {
                        Some(slot) => guard.replace(slot, Place(place)),
                        None => guard.insert(Place(place)).expect("no limit"),
                    }
                    model.insert(key, place);
                }
                Step::Remove(key) => {
                    let mut guard = hash.lock(ONE, clustered(key));
                    let slot = guard.find(is(key));
                    prop_assert_eq!(slot.map(|slot| slot.place.0), model.remove(&key));
                    if let Some(slot) = slot {
                        guard.remove(slot);
                    }
                }
                Step::Grow => {
                    let hash_of = |place: Place| clustered((place.0 >> 16) as u16);
                    prop_assert_eq!(hash.grow(|_| (), hash_of), Ok(true));
                }
            }
            prop_assert_eq!(hash.len(), model.len() as u64);
        }
        for key in 0..600 {
            let found = hash.find(clustered(key), is(key));
            prop_assert_eq!(found.map(|place| place.0), model.get(&key).copied());
        }
        let mut places = Vec::new();
        hash.for_each(|place| places.push(place.0));
        places.sort_unstable();
        let mut expected: Vec<u32> = model.values().copied().collect();
        expected.sort_unstable();
        prop_assert_eq!(places, expected);
    }
}

#[test]
fn grows_to_ten_bytes_an_item() {
    let hash = table(200_000, 1);
    for key in 0..200_000 {
        insert(&hash, ONE, mix(key), Place(key));
        while hash.is_crowded() {
            assert_eq!(hash.grow(|_| (), |place| mix(place.0)), Ok(true));
        }
    }
    let bytes_per_item = hash.bytes() as f64 / hash.len() as f64;
    assert!(
        (8.5..11.5).contains(&bytes_per_item),
        "{bytes_per_item:.2} B"
    );
    for key in 0..200_000 {
        assert_eq!(
            hash.find(mix(key), |place| place.0 == key),
            Some(Place(key))
        );
    }
    let candidates = (0..200_000).filter(|&key| hash.candidate(mix(key)) == Some(Place(key)));
    let share = candidates.count() as f64 / 200_000.0;
    assert!(
        share > 0.75,
        "a prefetch of the candidate is right for {share:.2} of all keys"
    );
}

#[test]
fn stays_within_its_limit() {
    let hash = Hash::new(HashShape {
        items_max: 1 << 20,
        workers: 1,
        huge: false,
    })
    .expect("memory");
    let mut limit = hash.bytes();
    for key in 0..20_000 {
        while hash.lock(ONE, mix(key)).insert(Place(key)) == Err(Full::Limit) {
            limit += 256;
            hash.set_limit(limit);
        }
        while hash.is_crowded() && hash.grow(|_| (), |place| mix(place.0)) == Ok(true) {}
        assert!(hash.bytes() <= limit, "{} B of {limit} B", hash.bytes());
    }
    for key in 0..20_000 {
        assert_eq!(
            hash.find(mix(key), |place| place.0 == key),
            Some(Place(key))
        );
    }
}

#[test]
fn readers_always_find_what_stays() {
    // Even keys stay; a writer churns odd ones while the table grows, another replaces even ones by
    // an equal second place. A reader must never miss an even key nor be given another key's place.
    const KEYS: u32 = 20_000;
    const SECOND: u32 = 1 << 30;
    let hash = table(u64::from(KEYS) * 2, 3);
    for key in (0..KEYS).step_by(2) {
        insert(&hash, ONE, mix(key), Place(key));
    }
    let stop = AtomicBool::new(false);
    let key_of = |place: Place| place.0 & !SECOND;
    std::thread::scope(|scope| {
        let churn = scope.spawn(|| {
            for round in 0..6 {
                for key in (1..KEYS).step_by(2) {
                    let mut guard = hash.lock(WorkerId(1), mix(key));
                    match (round % 2, guard.find(|place| key_of(place) == key)) {
                        (1, Some(slot)) => guard.remove(slot),
                        (0, None) => guard.insert(Place(key)).expect("no limit"),
                        other => panic!("key {key}: {other:?}"),
                    }
                    drop(guard);
                    while hash.is_crowded() {
                        let _ = hash.grow(|_| (), |place| mix(key_of(place)));
                    }
                }
            }
        });
        scope.spawn(|| {
            for key in (0..KEYS)
                .step_by(2)
                .cycle()
                .take_while(|_| !stop.load(Relaxed))
            {
                let mut guard = hash.lock(WorkerId(2), mix(key));
                let slot = guard
                    .find(|place| key_of(place) == key)
                    .expect("an even key");
                guard.replace(slot, Place(slot.place.0 ^ SECOND));
            }
        });
        let mut rng = fastrand::Rng::with_seed(1);
        while !churn.is_finished() {
            let key = rng.u32(..KEYS / 2) * 2;
            let found = hash.find(mix(key), |place| key_of(place) == key);
            assert!(found.is_some(), "key {key} was missed");
        }
        stop.store(true, Relaxed);
        churn.join().expect("the churn went well");
    });
    assert_eq!(hash.len(), u64::from(KEYS / 2));
}
