//! Items that lie on both devices: what the deep record of an item of the fast device is good for,
//! and that nobody is ever told what it held before.

mod rig;

use nyx_store::{
    Condition, DeepFigures, DeepPart, DeleteOutcome, Eviction, PutOutcome, StoreConfig, WriteMode,
};
use nyx_tier::Nhc;
use rig::{Rig, TENANT, Worker, deep, value_of};
use std::os::unix::fs::FileExt;

const MIB: u64 = 1 << 20;
const LEN: usize = 1000;

/// What is older leaves first, used or not.
fn pair() -> StoreConfig {
    StoreConfig {
        eviction: Eviction::Fifo,
        ..deep(4 * MIB, 64 * MIB)
    }
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

fn fill(w: &mut Worker<'_>, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let key = key(number);
        w.store(&key, &value_of(&key, 0, LEN));
        w.enter();
        w.write_back();
    }
}

fn get(w: &mut Worker<'_>, key: &[u8], version: u64) -> bool {
    let value = w.get(key);
    w.enter();
    if let Some(value) = &value {
        assert!(
            *value == value_of(key, version, LEN),
            "{}",
            key.escape_ascii()
        );
    }
    value.is_some()
}

fn delete(w: &mut Worker<'_>, key: &[u8]) -> bool {
    let (store, now, hash) = (w.store, w.now, w.hash(key));
    let lane = &mut w.tolls.lane(TENANT);
    let told = store.delete(&mut w.writer, lane, key, hash, Condition::Always, now);
    told == DeleteOutcome::Deleted
}

fn figures(rig: &Rig) -> DeepFigures {
    rig.store.figures().deep.expect("there is a deep device")
}

fn reads(rig: &Rig) -> u64 {
    rig.deep.as_ref().expect("a deep device").figures().reads
}

fn is_deep(w: &mut Worker<'_>, key: &[u8]) -> bool {
    let (store, now, hash) = (w.store, w.now, w.hash(key));
    let found = store.get(&mut w.lane(), key, hash, now);
    found.expect("it is there").is_deep()
}

/// Fetches something else until what landed before is forgotten.
fn forget(w: &mut Worker<'_>) {
    for number in 3000..3200 {
        get(w, &key(number), 0);
    }
}

/// A store whose first items went deep and some of which came back: their keys.
fn mirrored(rig: &Rig) -> (Worker<'_>, Vec<Vec<u8>>) {
    let mut w = rig.worker(0);
    fill(&mut w, 0..6000);
    let mut keys = Vec::new();
    // Those that come after the first forty fill the segment, which is not left while it is open.
    for key in (0..120).map(key) {
        assert!(is_deep(&mut w, &key));
        for _ in 0..2 {
            assert!(get(&mut w, &key, 0));
        }
        assert!(!is_deep(&mut w, &key), "it came back");
        keys.push(key);
    }
    keys.truncate(40);
    forget(&mut w);
    (w, keys)
}

#[test]
fn what_came_back_leaves_again_without_being_written() {
    let rig = Rig::new(pair());
    let (mut w, keys) = mirrored(&rig);
    let before = figures(&rig);
    assert_eq!((before.promotions, before.returns), (120, 0));
    fill(&mut w, 6000..7800);
    let after = figures(&rig);
    assert!((40..=120).contains(&after.returns), "{after:?}");
    for key in &keys {
        assert!(is_deep(&mut w, key));
        assert!(get(&mut w, key, 0));
    }
    assert_eq!((after.lost, after.lost_twins, after.evictions), (0, 0, 0));
}

/// The same under a controller that has every mirrored item read from the deep device.
fn read_deep() -> (Rig, Vec<Vec<u8>>) {
    let rig = Rig::new(pair());
    let keys = mirrored(&rig).1;
    (rig.ruled(Nhc::Split(0.0)), keys)
}

#[test]
fn what_is_mirrored_is_read_where_the_controller_says() {
    let (rig, keys) = read_deep();
    let mut w = rig.worker(0);
    let before = reads(&rig);
    for key in &keys {
        assert!(!is_deep(&mut w, key) && get(&mut w, key, 0));
    }
    assert_eq!(reads(&rig) - before, 40);
    let seen = rig.pair.as_ref().expect("a pair").seen();
    assert_eq!((seen.mirrored_reads, seen.mirrored_deep), (40, 40));
    assert_eq!((seen.looks, seen.hits), (40, 40));
    drop(w);
    let rig = rig.ruled(Nhc::Split(1.0));
    let mut w = rig.worker(0);
    let before = reads(&rig);
    for key in &keys {
        assert!(get(&mut w, key, 0));
    }
    assert_eq!(reads(&rig), before);
}

#[test]
fn a_twin_that_cannot_be_read_costs_nobody_anything() {
    let (rig, keys) = read_deep();
    let mut w = rig.worker(0);
    let device = rig.deep.as_ref().expect("a deep device");
    device.drill.fail_reads(Some(5));
    for key in &keys[..20] {
        assert!(get(&mut w, key, 0));
    }
    device.drill.fail_reads(None);
    assert_eq!((figures(&rig).lost_twins, figures(&rig).lost), (20, 0));
    // Bytes of something else are as bad as none.
    let file = device.file();
    let zeroes = vec![0; file.len_bytes() as usize];
    let blocks = std::fs::OpenOptions::new()
        .write(true)
        .open(file.blocks().path());
    let blocks = blocks.expect("a file");
    blocks
        .write_all_at(&zeroes, file.begin_bytes())
        .expect("a file");
    for key in &keys {
        assert!(get(&mut w, key, 0));
    }
    assert_eq!((figures(&rig).lost_twins, figures(&rig).lost), (40, 0));
    let before = reads(&rig);
    for key in &keys {
        assert!(get(&mut w, key, 0), "they have none any more");
    }
    assert_eq!(reads(&rig), before);
}

#[test]
fn a_twin_dies_with_its_item_and_is_never_told_after_that() {
    let (rig, keys) = read_deep();
    let mut w = rig.worker(0);
    let before = figures(&rig).dead_bytes;
    for (at, key) in keys.iter().enumerate() {
        match at % 2 {
            0 => drop(w.store(key, &value_of(key, 1, LEN))),
            _ => assert!(delete(&mut w, key)),
        }
        w.enter();
    }
    let dead = figures(&rig).dead_bytes - before;
    assert!(
        (40 * 1000..40 * 1100).contains(&dead),
        "{dead} B of 40 items"
    );
    for (at, key) in keys.iter().enumerate() {
        assert_eq!(get(&mut w, key, 1), at % 2 == 0);
    }
    // Where they leave the fast device nothing old comes back.
    fill(&mut w, 6000..7800);
    for (at, key) in keys.iter().enumerate() {
        assert_eq!(get(&mut w, key, 1), at % 2 == 0);
    }
}

#[test]
fn an_item_outlives_the_segment_of_its_twin() {
    let (rig, keys) = read_deep();
    let mut w = rig.worker(0);
    // Asked for all the time they stay on the fast device, while all of the deep one is used anew.
    for round in 0..70 {
        fill(&mut w, 10_000 + 1000 * round..11_000 + 1000 * round);
        for key in &keys {
            assert!(get(&mut w, key, 0), "round {round}");
            assert!(get(&mut w, key, 0));
        }
    }
    assert!(figures(&rig).evictions > 5_000, "{:?}", figures(&rig));
    assert_eq!((figures(&rig).lost, figures(&rig).lost_twins), (0, 0));
}

#[test]
fn twins_of_what_stays_on_the_fast_device_go_before_what_is_nowhere_else() {
    let rig = Rig::new(StoreConfig {
        eviction: Eviction::Lru,
        ..deep(8 * MIB, 8 * MIB)
    });
    let mut w = rig.worker(0);
    fill(&mut w, 0..10_000);
    // A third of the deep device has twins of what is asked for all the time.
    let hot = 0..2500;
    let mut turns = hot.clone().cycle();
    for number in hot.clone().chain(hot) {
        get(&mut w, &key(number), 0);
        w.write_back();
    }
    assert!(figures(&rig).promotions > 2000, "{:?}", figures(&rig));
    for number in 10_000..12_500 {
        fill(&mut w, number..number + 1);
        for number in turns.by_ref().take(3) {
            get(&mut w, &key(number), 0);
            w.write_back();
        }
    }
    let there = (0..12_500).filter(|&number| get(&mut w, &key(number), 0));
    let there = there.count();
    assert!(there > 12_000, "{there} {:?}", figures(&rig));
}

#[test]
fn what_has_left_for_its_twin_is_nowhere_else_again() {
    let rig = Rig::new(StoreConfig {
        eviction: Eviction::Fifo,
        ..deep(4 * MIB, 16 * MIB)
    });
    let mut w = rig.worker(0);
    fill(&mut w, 0..4000);
    for number in (0..2000).chain(0..2000) {
        get(&mut w, &key(number), 0);
        w.write_back();
    }
    // Garbage, and in between what is written once.
    for round in 0..20 {
        for part in 0..100 {
            fill(&mut w, 3000 + part * 30..3030 + part * 30);
            let once = 10_000 + round * 100 + part;
            fill(&mut w, once..once + 1);
        }
    }
    assert!(figures(&rig).returns > 1000, "{:?}", figures(&rig));
    let all = (0..6000).chain(10_000..12_000);
    let there = all.filter(|&number| get(&mut w, &key(number), 0));
    assert_eq!(there.count(), 8000, "{:?}", figures(&rig));
}

#[test]
fn a_unique_that_was_handed_out_stays_where_an_item_comes_back_and_leaves() {
    let rig = Rig::new(pair());
    let (mut w, keys) = mirrored(&rig);
    let mut uniques = Vec::new();
    for key in &keys {
        let (store, now, hash) = (w.store, w.now, w.hash(key));
        let lane = &mut w.tolls.lane(TENANT);
        uniques.push(store.get(lane, key, hash, now).expect("there").cas(lane));
    }
    fill(&mut w, 6000..7800);
    for (key, unique) in keys.iter().zip(uniques) {
        assert!(is_deep(&mut w, key));
        let (store, now, hash) = (w.store, w.now, w.hash(key));
        let lane = &mut w.tolls.lane(TENANT);
        assert_eq!(
            store.get(lane, key, hash, now).expect("there").cas(lane),
            unique
        );
        assert!(get(&mut w, key, 0));
    }
}

/// A store whose new items are written in a mode.
fn writing(write: WriteMode) -> Rig {
    let config = pair();
    let deep = config.deep.map(|part| DeepPart { write, ..part });
    Rig::new(StoreConfig { deep, ..config })
}

#[test]
fn what_is_written_around_the_fast_device_is_not_written_there() {
    let rig = writing(WriteMode::Around);
    let mut w = rig.worker(0);
    fill(&mut w, 0..3000);
    let figures = figures(&rig);
    // The first finds no room in the index, which the long way makes.
    let told = (figures.arounds >= 2990, figures.demotions);
    assert_eq!(told, (true, 0), "{figures:?}");
    for number in 0..3000 {
        assert!(get(&mut w, &key(number), 0));
    }
    // Overwritten and deleted as anywhere else.
    for number in 0..100 {
        let key = key(number);
        w.store(&key, &value_of(&key, 1, LEN));
        assert!(get(&mut w, &key, 1));
        assert!(delete(&mut w, &key) && !get(&mut w, &key, 1));
    }
}

#[test]
fn what_is_written_through_leaves_without_being_written_again() {
    let rig = writing(WriteMode::Through);
    let mut w = rig.worker(0);
    fill(&mut w, 0..6000);
    let told = figures(&rig);
    assert_eq!((told.mirrors, told.demotions), (6000, 0), "{told:?}");
    assert!(told.returns > 2000, "{told:?}");
    for number in 0..6000 {
        assert!(get(&mut w, &key(number), 0), "{number}");
    }
}

#[test]
fn without_a_stage_it_is_written_to_the_fast_device() {
    for write in [WriteMode::Around, WriteMode::Through] {
        let rig = writing(write);
        let mut w = rig.worker(0);
        // Nothing is written back: stages are used up soon.
        for number in 0..2000 {
            let key = key(number);
            let outcome = w.set(&key, &value_of(&key, 0, LEN));
            assert!(matches!(outcome, PutOutcome::Stored { .. }), "{outcome:?}");
            w.enter();
        }
        let told = figures(&rig);
        assert!(told.arounds < 1000 && told.mirrors < 1000, "{told:?}");
        for number in 0..2000 {
            assert!(get(&mut w, &key(number), 0), "{write} {number}");
        }
    }
}

#[test]
fn of_what_keys_leave_no_room_for_a_segment_goes_at_a_time() {
    for write in WriteMode::ALL {
        let rig = writing(write);
        let mut w = rig.worker(0);
        let segments = |rig: &Rig| figures(rig).segments.0;
        let mut before = 0;
        for number in 0..60_000 {
            let key = key(number);
            w.store(&key, &value_of(&key, 0, 60));
            w.enter();
            w.write_back();
            if number % 64 == 0 {
                let now = segments(&rig);
                assert!(now + 2 >= before, "{write} {number}: {before}, then {now}");
                before = now;
            }
        }
        assert!(
            figures(&rig).evictions > 5_000,
            "{write}: {:?}",
            figures(&rig)
        );
    }
}
