//! Ranges: whatever was stored, evicted, expired, flushed, deleted or moved, a range has the keys
//! that a get finds, in their order, each once; beside other workers too, and after a restart.

mod rig;

use nyx_base::UnixSeconds;
use nyx_store::{
    Condition, Durability, Eviction, Put, PutOutcome, Range, RangeError, StoreConfig, Tree,
};
use rig::surviving::{Ground, change, key, sweep};
use rig::{Rig, START, TENANT, Worker, small, value_of};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const MIB: u64 = 1 << 20;
const ALL: Range<'static> = Range {
    prefix: b"",
    from: Bound::Unbounded,
    to: Bound::Unbounded,
    descending: false,
};

fn ordered(tree: Tree, size: u64) -> StoreConfig {
    StoreConfig {
        order: Some(tree),
        ..small(size)
    }
}

/// The keys of a range whose items are there: at most so many keys are met.
fn met(w: &mut Worker<'_>, range: &Range<'_>, most: usize) -> Vec<Vec<u8>> {
    let (mut keys, mut count) = (Vec::new(), 0);
    let (store, now) = (w.store, w.now);
    let scanned = store.scan(
        &mut w.writer,
        &mut w.tolls.lane(TENANT),
        range,
        now,
        |lane, key, item| {
            if let Some(item) = item {
                let mut value = vec![0; item.value_len()];
                item.read(lane, &mut value);
                assert!(value.starts_with(key), "another key's value");
                keys.push(key.to_vec());
            }
            count += 1;
            match count < most {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        },
    );
    scanned.unwrap_or_else(|error| panic!("{error}"));
    keys
}

/// Some key: of few letters, so that prefixes are shared, with bytes that sort unlike letters.
fn some_key(rng: &mut fastrand::Rng) -> Vec<u8> {
    let letters = [0, b'a', b'b', 0xff];
    let len = match rng.u8(..20) {
        0 => rng.usize(200..=250),
        _ => rng.usize(1..9),
    };
    (0..len).map(|_| letters[rng.usize(..4)]).collect()
}

/// A value that begins with its key.
fn value(key: &[u8], rng: &mut fastrand::Rng) -> Vec<u8> {
    [key, &value_of(key, rng.u64(..), rng.usize(..2000))].concat()
}

fn some_change(w: &mut Worker<'_>, keys: &mut BTreeSet<Vec<u8>>, rng: &mut fastrand::Rng) {
    let key = match rng.u8(..3) {
        0 if !keys.is_empty() => keys.iter().nth(rng.usize(..keys.len())).cloned(),
        _ => None,
    };
    let key = key.unwrap_or_else(|| some_key(rng));
    let hash = w.hash(&key);
    match rng.u8(..20) {
        0..12 => {
            let value = value(&key, rng);
            let expiry = match rng.u8(..4) {
                0 => UnixSeconds(w.now.0 + rng.u32(1..20)),
                _ => UnixSeconds::NEVER,
            };
            let condition = match rng.u8(..4) {
                0 => Condition::Absent,
                1 => Condition::Present,
                _ => Condition::Always,
            };
            let put = Put {
                expiry,
                condition,
                ..Put::set(&key, hash, &value)
            };
            let outcome = w.put(&put);
            let is_good = matches!(outcome, PutOutcome::Stored { .. } | PutOutcome::NotStored);
            assert!(is_good, "{outcome:?}");
            keys.insert(key);
        }
        12..19 => {
            let lane = &mut w.tolls.lane(TENANT);
            let always = Condition::Always;
            w.store
                .delete(&mut w.writer, lane, &key, hash, always, w.now);
        }
        _ => w.now = UnixSeconds(w.now.0 + rng.u32(..2)),
    }
}

/// What a range must have: of the keys that ever were, those that a get finds.
fn expected(w: &mut Worker<'_>, keys: &BTreeSet<Vec<u8>>, range: &Range<'_>) -> Vec<Vec<u8>> {
    let is_in = |key: &[u8]| {
        key.starts_with(range.prefix)
            && match range.from {
                Bound::Included(from) => key >= from,
                Bound::Excluded(from) => key > from,
                Bound::Unbounded => true,
            }
            && match range.to {
                Bound::Included(to) => key <= to,
                Bound::Excluded(to) => key < to,
                Bound::Unbounded => true,
            }
    };
    let found = keys.iter().filter(|key| is_in(key));
    let mut found: Vec<_> = found.filter(|key| w.get(key).is_some()).cloned().collect();
    if range.descending {
        found.reverse();
    }
    found
}

fn some_bound<'a>(key: &'a [u8], rng: &mut fastrand::Rng) -> Bound<&'a [u8]> {
    match rng.u8(..3) {
        0 => Bound::Unbounded,
        1 => Bound::Included(key),
        _ => Bound::Excluded(key),
    }
}

fn compare_ranges(w: &mut Worker<'_>, keys: &BTreeSet<Vec<u8>>, rng: &mut fastrand::Rng) {
    for descending in [false, true] {
        let all = Range { descending, ..ALL };
        assert_eq!(met(w, &all, usize::MAX), expected(w, keys, &all));
        let (prefix, from, to) = (some_key(rng), some_key(rng), some_key(rng));
        let range = Range {
            prefix: &prefix[..prefix.len().min(rng.usize(..4))],
            from: some_bound(&from, rng),
            to: some_bound(&to, rng),
            descending,
        };
        let right = expected(w, keys, &range);
        assert_eq!(met(w, &range, usize::MAX), right, "{range:?}");
    }
}

fn run(config: StoreConfig, seed: u64, rounds: usize) {
    let size = config.size;
    let rig = Rig::new(config);
    let mut w = rig.worker(0);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut keys = BTreeSet::new();
    for round in 1..=rounds {
        some_change(&mut w, &mut keys, &mut rng);
        if round % 16 == 0 {
            w.enter();
            assert!(rig.store.figures().used_bytes <= size);
        }
        if round % 4000 == 0 {
            let lane = &mut w.tolls.lane(TENANT);
            rig.store.expire(&mut w.writer, lane, w.now);
            if rng.u8(..4) == 0 {
                rig.store.flush(w.now, w.now);
            }
            w.enter();
            compare_ranges(&mut w, &keys, &mut rng);
        }
    }
}

#[test]
fn ranges_have_what_gets_find_over_every_tree() {
    for (tree, seed) in Tree::ALL.into_iter().zip(1..) {
        run(ordered(tree, 3 * MIB), seed, 40_000);
    }
}

#[test]
fn ranges_have_what_gets_find_under_every_policy() {
    for (eviction, seed) in Eviction::ALL.into_iter().zip(10..) {
        let config = StoreConfig {
            eviction,
            ..ordered(Tree::SkipList, 3 * MIB)
        };
        run(config, seed, 40_000);
    }
}

#[test]
fn a_range_is_read_on_behind_the_last_key() {
    let rig = Rig::new(ordered(Tree::FastFair, 3 * MIB));
    let mut w = rig.worker(0);
    for number in 0..500 {
        w.store(&key(number), &key(number));
    }
    for descending in [false, true] {
        let whole = met(&mut w, &Range { descending, ..ALL }, usize::MAX);
        assert_eq!(in_parts(&mut w, descending, 7), whole);
        assert_eq!(whole.len(), 500);
    }
}

/// All keys, so many at a time, each part in an era of its own.
fn in_parts(w: &mut Worker<'_>, descending: bool, most: usize) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    loop {
        w.enter();
        let last = keys.last().cloned();
        let behind = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let (from, to) = match descending {
            false => (behind, Bound::Unbounded),
            true => (Bound::Unbounded, behind),
        };
        let range = Range {
            from,
            to,
            descending,
            ..ALL
        };
        let part = met(w, &range, most);
        if part.is_empty() {
            return keys;
        }
        keys.extend(part);
    }
}

#[test]
fn a_tenant_without_an_order_says_so() {
    let rig = Rig::new(small(3 * MIB));
    let mut w = rig.worker(0);
    let lane = &mut w.tolls.lane(TENANT);
    let go_on = |_: &mut _, _: &[u8], _| ControlFlow::Continue(());
    let refused = rig.store.scan(&mut w.writer, lane, &ALL, START, go_on);
    assert_eq!(refused, Err(RangeError::NoOrder));
    assert_eq!(rig.store.ordered(), None);
}

/// Keys in ascending order that come and go, as time stamps do: the tree's memory follows what is
/// stored, not what ever was.
#[test]
fn keys_that_come_and_go_leave_no_memory_behind() {
    for tree in Tree::ALL {
        let rig = Rig::new(ordered(tree, 3 * MIB));
        let mut w = rig.worker(0);
        let mut grown = 0;
        for number in 0..60_000u32 {
            let key = format!("{number:010}");
            w.store(key.as_bytes(), key.as_bytes());
            if number % 16 == 0 {
                w.enter();
            }
            if number == 40_000 {
                grown = rig.store.order_bytes();
            }
        }
        assert!(rig.store.figures().evictions > 20_000);
        let (bytes, items) = (rig.store.order_bytes(), rig.store.figures().items);
        assert!(
            bytes <= grown + grown / 4,
            "{tree}: {grown} B, then {bytes} B"
        );
        assert!(items > 5_000, "{tree}: {items} items beside {bytes} B");
    }
}

#[test]
fn who_is_there_all_the_while_is_met_once_beside_other_workers() {
    const STABLE: u32 = 3_000;
    for tree in Tree::ALL {
        let rig = Rig::new(StoreConfig {
            workers: 3,
            ..ordered(tree, 16 * MIB)
        });
        let stable = |number: u32| format!("{:06}", number * 10).into_bytes();
        let mut w = rig.worker(0);
        for number in 0..STABLE {
            w.store(&stable(number), &stable(number));
        }
        let (stop, changes) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for id in 1..3 {
                let (rig, stop, changes) = (&rig, &stop, &changes);
                scope.spawn(move || come_and_go(rig.worker(id), STABLE * 10, stop, changes));
            }
            for round in 0..40 {
                let descending = round % 2 == 1;
                let mut keys = in_parts(&mut w, descending, 500);
                if descending {
                    keys.reverse();
                }
                assert!(keys.is_sorted_by(|one, next| one < next), "each once");
                let are_stable = keys.iter().filter(|key| key.ends_with(b"0"));
                assert_eq!(are_stable.count(), STABLE as usize, "{tree}");
            }
            stop.store(true, Relaxed);
        });
        assert!(changes.load(Relaxed) > 1_000);
        assert_eq!(rig.store.figures().evictions, 0);
    }
}

/// Stores and deletes keys between the stable ones until it is told to stop.
fn come_and_go(mut w: Worker<'_>, end: u32, stop: &AtomicBool, changes: &AtomicU64) {
    let mut rng = fastrand::Rng::with_seed(w.writer.worker().0.into());
    while !stop.load(Relaxed) {
        let number = rng.u32(..end / 10) * 10 + rng.u32(1..10);
        let key = format!("{number:06}").into_bytes();
        w.enter();
        match rng.bool() {
            // On a machine with much else to do a worker may be away within its era for so long
            // that nothing can be freed.
            true => {
                let stored = w.set(&key, &key);
                let awaits = matches!(stored, PutOutcome::Stored { .. } | PutOutcome::OutOfMemory);
                assert!(awaits, "{stored:?}");
            }
            false => {
                let (hash, always) = (w.hash(&key), Condition::Always);
                let lane = &mut w.tolls.lane(TENANT);
                w.store
                    .delete(&mut w.writer, lane, &key, hash, always, w.now);
            }
        }
        changes.fetch_add(1, Relaxed);
    }
    w.leave();
}

#[test]
fn the_order_of_what_was_found_is_built_beside_changes() {
    let ground = Ground::new(3 * MIB);
    let config = StoreConfig {
        order: Some(Tree::FastFair),
        ..ground.config(Durability::Crash)
    };
    let mut rng = fastrand::Rng::with_seed(5);
    let mut model = BTreeMap::new();
    for round in 0..4 {
        let rig = ground.open(config.clone());
        let mut w = rig.worker(0);
        if round > 0 {
            let go_on = |_: &mut _, _: &[u8], _| ControlFlow::Continue(());
            let lane = &mut w.tolls.lane(TENANT);
            let refused = rig.store.scan(&mut w.writer, lane, &ALL, START, go_on);
            assert!(matches!(refused, Err(RangeError::Building { .. })));
        }
        for _ in 0..300 {
            change(&mut w, &mut model, &mut rng);
            let lane = &mut w.tolls.lane(TENANT);
            if !rig.store.sweep(lane) {
                rig.store.reorder(&mut w.writer, lane, w.now);
            }
            w.enter();
        }
        sweep(&mut w);
        while rig
            .store
            .reorder(&mut w.writer, &mut w.tolls.lane(TENANT), w.now)
        {}
        assert_eq!(rig.store.ordered(), Some(1.0));
        w.enter();
        let right: Vec<Vec<u8>> = model.keys().map(|&number| key(number)).collect();
        assert_eq!(keys_met(&mut w), right);
        // It stays whole when the hash grows.
        for number in 0..1_000 {
            w.store(format!("more:{number}").as_bytes(), b"");
        }
        assert_eq!(rig.store.ordered(), Some(1.0));
        assert_eq!(keys_met(&mut w).len(), right.len() + 1_000);
        for number in 0..1_000 {
            let key = format!("more:{number}").into_bytes();
            let (hash, always) = (w.hash(&key), Condition::Always);
            let lane = &mut w.tolls.lane(TENANT);
            w.store
                .delete(&mut w.writer, lane, &key, hash, always, w.now);
        }
        // It is left as a process that is killed leaves it.
    }
}

fn keys_met(w: &mut Worker<'_>) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let lane = &mut w.tolls.lane(TENANT);
    let scanned = w
        .store
        .scan(&mut w.writer, lane, &ALL, w.now, |_, key, item| {
            keys.extend(item.map(|_| key.to_vec()));
            ControlFlow::Continue(())
        });
    scanned.unwrap_or_else(|error| panic!("{error}"));
    keys
}
