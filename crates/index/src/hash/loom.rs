//! Every interleaving of a few small programs on one table, as the memory model allows them:
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p nyx-index loom`
#![cfg(loom)]

use super::*;
use ::loom::sync::Arc;
use ::loom::thread;

const A: WorkerId = WorkerId(0);
const B: WorkerId = WorkerId(1);

/// Two hashes that share bucket and tag; in a table of 65 buckets the second lives in the new one.
const STAYS: u64 = 0x0007_0000_0000_0000;
const MOVES: u64 = 0x0007_0000_0000_0040;

fn table() -> Arc<Hash> {
    let hash = Hash::new(HashShape {
        items_max: 520,
        workers: 2,
        huge: false,
    })
    .expect("memory");
    hash.set_limit(1 << 20);
    Arc::new(hash)
}

fn put(hash: &Hash, worker: WorkerId, key: u64, place: u32) {
    let mut guard = hash.lock(worker, key);
    match guard.find(|found| found.0 >> 4 == place >> 4) {
        Some(slot) => guard.replace(slot, Place(place)),
        None => guard.insert(Place(place)).expect("no limit"),
    }
}

/// The item `item` (upper bits of its places), whichever version of it.
fn get(hash: &Hash, key: u64, item: u32) -> Option<u32> {
    hash.find(key, |place| place.0 >> 4 == item)
        .map(|place| place.0 & 0xf)
}

fn model(program: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(5);
    builder.check(program);
}

#[test]
fn loom_reader_and_replace() {
    model(|| {
        let hash = table();
        put(&hash, A, STAYS, 0x10);
        let other = hash.clone();
        let writer = thread::spawn(move || put(&other, B, STAYS, 0x11));
        let first = get(&hash, STAYS, 1).expect("it is there all the time");
        let second = get(&hash, STAYS, 1).expect("it is there all the time");
        assert!(second >= first, "a reader does not go back");
        writer.join().expect("no panic");
        assert_eq!(get(&hash, STAYS, 1), Some(1));
    });
}

#[test]
fn loom_reader_and_slot_reuse() {
    model(|| {
        let hash = table();
        put(&hash, A, STAYS, 0x10);
        let other = hash.clone();
        // The slot of item 1 is emptied and filled with item 2, which has the same tag.
        let writer = thread::spawn(move || {
            let mut guard = other.lock(B, STAYS);
            let slot = guard.find(|place| place.0 == 0x10).expect("was put");
            guard.remove(slot);
            drop(guard);
            put(&other, B, STAYS, 0x20);
        });
        let seen = hash.find(STAYS, |place| {
            assert!(
                place.0 == 0x10 || place.0 == 0x20,
                "{place:?} was never published"
            );
            place.0 == 0x20
        });
        assert!(seen.is_none_or(|place| place.0 == 0x20));
        writer.join().expect("no panic");
        assert_eq!(
            (get(&hash, STAYS, 1), get(&hash, STAYS, 2)),
            (None, Some(0))
        );
    });
}

#[test]
fn loom_reader_and_split() {
    model(|| {
        let hash = table();
        put(&hash, A, STAYS, 0x10);
        put(&hash, A, MOVES, 0x20);
        let other = hash.clone();
        let splitter = thread::spawn(move || {
            let hash_of = |place: Place| if place.0 >> 4 == 1 { STAYS } else { MOVES };
            assert_eq!(other.grow(|_| (), hash_of), Ok(true));
        });
        assert_eq!(get(&hash, MOVES, 2), Some(0), "a split loses nothing");
        assert_eq!(get(&hash, STAYS, 1), Some(0));
        splitter.join().expect("no panic");
        assert_eq!(get(&hash, MOVES, 2), Some(0));
    });
}

#[test]
fn loom_writer_and_split() {
    model(|| {
        let hash = table();
        put(&hash, A, MOVES, 0x20);
        let other = hash.clone();
        let splitter = thread::spawn(move || {
            assert_eq!(other.grow(|_| (), |_| MOVES), Ok(true));
        });
        put(&hash, B, MOVES, 0x21);
        splitter.join().expect("no panic");
        assert_eq!(get(&hash, MOVES, 2), Some(1));
        assert_eq!(hash.len(), 1, "the writer found the item wherever it was");
    });
}

#[test]
fn loom_two_writers() {
    model(|| {
        let hash = table();
        let other = hash.clone();
        let second = thread::spawn(move || put(&other, B, STAYS, 0x20));
        put(&hash, A, STAYS, 0x10);
        second.join().expect("no panic");
        assert_eq!(
            (get(&hash, STAYS, 1), get(&hash, STAYS, 2)),
            (Some(0), Some(0))
        );
        assert_eq!(hash.len(), 2);
    });
}

#[test]
fn loom_reader_and_overflow() {
    model(|| {
        let hash = table();
        for item in 1..=10 {
            put(&hash, A, STAYS, item << 4);
        }
        let other = hash.clone();
        // The eleventh place makes the tenth slot a link.
        let writer = thread::spawn(move || put(&other, B, STAYS, 11 << 4));
        assert_eq!(get(&hash, STAYS, 10), Some(0));
        writer.join().expect("no panic");
        assert_eq!(get(&hash, STAYS, 11), Some(0));
    });
}
