//! Tables that are found in an image: as they were left, left in the middle of a change, and
//! damaged. (That nothing else can be left behind is what `nyx-store` looks for: its test stops a
//! process after every instruction.)

use super::*;
use nyx_media::Image;
use std::path::{Path, PathBuf};

const ONE: WorkerId = WorkerId(0);
const SHAPE: HashShape = HashShape {
    items_max: 4000,
    workers: 2,
    huge: false,
};

struct Directory(tempfile::TempDir);

impl Directory {
    fn new() -> Directory {
        Directory(tempfile::tempdir().expect("a temporary directory"))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("image")
    }
}

/// The three parts, one behind the other, each from a page on.
fn ground(image: &Image) -> HashGround {
    let buckets = SHAPE.buckets_bytes();
    let at = |parts: u64| parts * buckets.next_multiple_of(4096);
    let region = |at, len: u64| image.region(at, len as usize, false).expect("part");
    HashGround {
        buckets: region(at(0), buckets),
        pool: region(at(1), buckets),
        kept: region(at(2), HashGround::KEPT_BYTES),
    }
}

fn image_bytes() -> u64 {
    2 * SHAPE.buckets_bytes().next_multiple_of(4096) + HashGround::KEPT_BYTES.next_multiple_of(4096)
}

fn fresh(path: &Path) -> Hash {
    let image = Image::create(path, b"", image_bytes()).expect("an image");
    let hash = Hash::create(SHAPE, ground(&image)).expect("room");
    image.begin().expect("a disk");
    hash.set_limit(1 << 30);
    hash
}

/// The table as its last user left it; the first part of the work is done.
fn found(path: &Path) -> Hash {
    let image = Image::open(path).expect("sound").expect("there");
    let hash = Hash::open(SHAPE, ground(&image)).expect("mapped");
    let hash = hash.expect("its counts are counts");
    hash.set_limit(1 << 30);
    hash.put_right(ONE, &mut item);
    hash
}

/// A place stands for its key; those that are odd and large are of no item.
fn item(place: Place) -> Option<u64> {
    (place.0 < 1 << 20).then(|| hash_of(place.0))
}

/// Few tags and few buckets' bits, so that chains are long.
fn hash_of(key: u32) -> u64 {
    let mixed = u64::from(key)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29) & 0x00ff_0000_0000_00ff
}

fn insert(hash: &Hash, key: u32) {
    let mut guard = hash.lock(ONE, hash_of(key));
    guard.insert(Place(key)).expect("no limit");
    drop(guard);
    if hash.is_crowded() {
        hash.grow(|_| {}, |place| hash_of(place.0)).expect("room");
    }
}

fn remove(hash: &Hash, key: u32) {
    let mut guard = hash.lock(ONE, hash_of(key));
    let slot = guard.find(|place| place.0 == key).expect("it is there");
    guard.remove(slot);
}

fn has(hash: &Hash, key: u32) -> bool {
    hash.revive(hash_of(key), &mut item);
    hash.find(hash_of(key), |place| place.0 == key).is_some()
}

fn sweep(hash: &Hash) {
    while hash.sweep(&mut item, &mut |_| true) {}
    assert!(!hash.is_reviving());
}

#[test]
fn a_table_is_found_as_it_was_left() {
    let place = Directory::new();
    let hash = fresh(&place.path());
    (0..2000).for_each(|key| insert(&hash, key));
    (0..2000).step_by(3).for_each(|key| remove(&hash, key));
    let (len, pool_used) = (hash.len(), hash.bytes());
    drop(hash);
    for round in 0..3 {
        let hash = found(&place.path());
        assert!(hash.is_reviving());
        if round == 1 {
            // Some are asked for before the sweep, and changes go on.
            (0..2000)
                .step_by(7)
                .for_each(|key| assert_eq!(has(&hash, key), key % 3 != 0));
            hash.revive(hash_of(5000), &mut item);
            insert(&hash, 5000);
            assert!(has(&hash, 5000));
            remove(&hash, 5000);
        }
        sweep(&hash);
        assert_eq!(hash.len(), len);
        let revived = hash.revived().expect("it was found");
        assert_eq!((revived.chains, revived.dropped), (revived.chains_all, 0));
        (0..2000).for_each(|key| assert_eq!(has(&hash, key), key % 3 != 0, "{key}"));
        assert!(
            hash.bytes() <= pool_used,
            "buckets of the pool are free again"
        );
        // It grows on from where it was.
        (3000..3300).for_each(|key| insert(&hash, key));
        (3000..3300).for_each(|key| remove(&hash, key));
    }
}

#[test]
fn locks_of_the_dead_mean_nothing() {
    let place = Directory::new();
    let hash = fresh(&place.path());
    (0..500).for_each(|key| insert(&hash, key));
    let count = hash.count.load(Relaxed);
    (0..count).for_each(|at| assert!(hash.memory.bucket(at).try_lock().is_some()));
    drop(hash);
    let hash = found(&place.path());
    (0..500).for_each(|key| assert!(has(&hash, key)));
    sweep(&hash);
    remove(&hash, 3);
}

/// Every prefix of what a split stores.
#[test]
fn a_split_that_was_not_finished_is_taken_back() {
    for moves in 0..12 {
        let place = Directory::new();
        let hash = fresh(&place.path());
        (0..700).for_each(|key| insert(&hash, key));
        let count = hash.count.load(Relaxed);
        let from = count - (count + 1).next_power_of_two() / 2;
        let (first, new) = (hash.memory.bucket(from), hash.memory.bucket(count));
        first.try_lock().expect("free");
        let more = hash.buckets(first).count() - 1;
        hash.prepare(count, more).expect("room");
        let mut done = 0;
        hash.each(first, |bucket, slot, place| {
            if done < moves && home(hash_of(place.0), count + 1) == count {
                let (into, vacancy) = hash.vacancy(new).expect("room");
                into.fill(vacancy, bucket.tag(slot), place);
                // The last one is in both.
                if done + 1 < moves {
                    bucket.set_tag(slot, 0);
                }
                done += 1;
            }
        });
        drop(hash);
        let hash = found(&place.path());
        (0..700).for_each(|key| assert!(has(&hash, key), "{key} after {moves} moves"));
        sweep(&hash);
        assert_eq!(hash.len(), 700);
        (700..1500).for_each(|key| insert(&hash, key));
        (0..1500).for_each(|key| assert!(has(&hash, key), "{key} after {moves} moves"));
    }
}

/// A bucket that is to be linked takes over the last slot's item before it is.
#[test]
fn an_item_on_its_way_into_a_new_bucket_is_put_back() {
    for noted in [true, false] {
        let place = Directory::new();
        let hash = fresh(&place.path());
        // Ten of one chain.
        let keys: Vec<u32> = (0..)
            .filter(|&key| home(hash_of(key), 64) == 5)
            .take(10)
            .collect();
        keys.iter().for_each(|&key| insert(&hash, key));
        let first = hash.memory.bucket(5);
        assert!(first.vacancy().is_none());
        let next = hash.take().expect("room");
        let (tag, place9) = (first.tag(9), first.place(9));
        hash.pool.bucket(next).fill(0, tag, place9);
        if noted {
            hash.note_move(ONE, u64::from(next) + 1);
        }
        first.set_tag(9, 0);
        drop(hash);
        let hash = found(&place.path());
        sweep(&hash);
        let there = keys.iter().filter(|&&key| has(&hash, key)).count();
        assert_eq!(
            there,
            if noted { 10 } else { 9 },
            "the note is what saves it"
        );
        assert_eq!(hash.len() as usize, there);
    }
}

#[test]
fn items_that_are_not_whole_are_dropped() {
    let place = Directory::new();
    let hash = fresh(&place.path());
    (0..500).for_each(|key| insert(&hash, key));
    drop(hash);
    let hash = found(&place.path());
    while hash.sweep(&mut item, &mut |place| place.0 % 5 != 0) {}
    (0..500).for_each(|key| assert_eq!(has(&hash, key), key % 5 != 0));
    assert_eq!(hash.len(), 400);
    assert_eq!(hash.revived().map(|revived| revived.dropped), Some(100));
}

/// Whatever the bytes are: no panic, no end-less loop, and nothing that was never stored.
#[test]
fn a_damaged_table_loses_items_and_nothing_else() {
    let rng = &mut fastrand::Rng::with_seed(1);
    let (mut refused, mut lost) = (0, 0);
    for _ in 0..300 {
        let place = Directory::new();
        let hash = fresh(&place.path());
        (0..1000).for_each(|key| insert(&hash, key));
        let used = hash.count.load(Relaxed) * BUCKET_BYTES;
        drop(hash);
        damage(&place.path(), rng, used as usize);
        let image = Image::open(&place.path()).expect("sound").expect("there");
        let Ok(hash) = Hash::open(SHAPE, ground(&image)).expect("mapped") else {
            refused += 1;
            continue;
        };
        hash.set_limit(1 << 30);
        hash.put_right(ONE, &mut item);
        let before = (0..1000).filter(|&key| has(&hash, key)).count();
        sweep(&hash);
        let after = (0..1000).filter(|&key| has(&hash, key)).count();
        assert_eq!(before, after);
        assert!(
            hash.len() >= after as u64,
            "places of other keys may be there too"
        );
        lost += u32::from(after < 1000);
        let all = |hash: &Hash| {
            let mut all = Vec::new();
            hash.for_each(|place| all.push(place));
            all
        };
        assert_eq!(all(&hash).len() as u64, hash.len());
        (2000..3000).for_each(|key| insert(&hash, key));
        assert!((2000..3000).all(|key| has(&hash, key)));
    }
    assert!(
        refused > 5 && lost > 100,
        "{refused} refused, {lost} lost items"
    );
}

/// Flips bits of each part, or fills some bytes.
fn damage(path: &Path, rng: &mut fastrand::Rng, used: usize) {
    let mut bytes = std::fs::read(path).expect("the image");
    let part = SHAPE.buckets_bytes().next_multiple_of(4096) as usize;
    let kept = 4096 + 2 * part;
    for _ in 0..rng.usize(1..20) {
        let at = match rng.u8(..8) {
            0 => kept + rng.usize(..24),
            1..=3 => 4096 + part + rng.usize(..4096),
            _ => 4096 + rng.usize(..used + 64),
        };
        match rng.bool() {
            true => bytes[at] ^= 1 << rng.u8(..8),
            false => bytes[at..at + 16].fill(rng.u8(..)),
        }
    }
    std::fs::write(path, bytes).expect("a disk");
}

/// A table that is made anew is none before it is whole, so that whoever opens the image of a
/// process that was killed meanwhile makes it again.
#[test]
fn a_table_that_was_not_made_anew_to_the_end_is_unfit() {
    let directory = Directory::new();
    let path = &directory.path();
    let hash = fresh(path);
    (0..500).for_each(|key| insert(&hash, key));
    drop(hash);
    let remake = |keys: u32| {
        let image = Image::open(path).expect("sound").expect("there");
        let (hash, unsaid) = Hash::remake(SHAPE, ground(&image)).expect("room");
        hash.set_limit(1 << 30);
        (0..keys).for_each(|key| insert(&hash, key));
        (hash, unsaid)
    };
    drop(remake(300));
    let image = Image::open(path).expect("sound").expect("there");
    let opened = Hash::open(SHAPE, ground(&image)).expect("mapped");
    assert_eq!(opened.expect_err("it is not whole"), Unfit(0));
    drop(image);
    let (hash, unsaid) = remake(500);
    let hash = hash.doubted(unsaid).expect("memory");
    hash.put_right(ONE, &mut item);
    sweep(&hash);
    assert!(hash.len() == 500 && (0..500).all(|key| has(&hash, key)));
    drop(hash);
    let hash = found(path);
    sweep(&hash);
    assert!(hash.len() == 500 && (0..500).all(|key| has(&hash, key)));
}
