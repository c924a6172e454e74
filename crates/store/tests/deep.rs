//! What a store promises of its deep device, one promise per test.

mod rig;

use nyx_base::{Instant, UnixSeconds};
use nyx_store::{
    Condition, DeepFigures, DeepPart, DeleteOutcome, Eviction, Invalidation, Presence, Put,
    PutOutcome, Side, StoreConfig, StoreError,
};
use nyx_tier::Deep;
use rig::{Rig, START, TENANT, Worker, deep, value_of};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const LEN: usize = 1000;
const EIO: i32 = 5;

fn key(number: u32) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// Stores items of [`LEN`] bytes and writes what is full.
fn fill(w: &mut Worker<'_>, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let key = key(number);
        w.store(&key, &value_of(&key, 0, LEN));
        w.enter();
        w.write_back();
    }
}

/// How many of the items are there; each must be what was stored.
fn found(w: &mut Worker<'_>, numbers: std::ops::Range<u32>) -> usize {
    let mut is_there = |number| {
        let key = key(number);
        let value = w.get(&key);
        w.enter();
        value.is_some_and(|value| {
            assert!(value == value_of(&key, 0, LEN), "{number}");
            true
        })
    };
    numbers.filter(|&number| is_there(number)).count()
}

fn figures(rig: &Rig) -> DeepFigures {
    rig.store.figures().deep.expect("there is a deep device")
}

fn device(rig: &Rig) -> &Arc<Deep> {
    rig.deep.as_ref().expect("there is a deep device")
}

/// The first of some items that lies on the deep device.
fn a_deep_one(w: &mut Worker<'_>) -> Vec<u8> {
    let is_deep = |key: &Vec<u8>| {
        let hash = w.hash(key);
        let (store, now) = (w.store, w.now);
        let found = store.get(&mut w.lane(), key, hash, now);
        found.is_some_and(|item| item.is_deep())
    };
    (0..).map(key).find(is_deep).expect("one is deep")
}

#[test]
fn a_cache_is_as_large_as_both_devices_and_writes_whole_segments() {
    for eviction in Eviction::ALL {
        let rig = Rig::new(StoreConfig {
            eviction,
            ..deep(8 * MIB, 12 * MIB)
        });
        let mut w = rig.worker(0);
        let all = 14_000;
        fill(&mut w, 0..all);
        let told = (rig.store.figures(), figures(&rig));
        assert_eq!(found(&mut w, 0..all), all as usize, "{eviction} {told:?}");
        let (store, figures) = (rig.store.figures(), figures(&rig));
        assert!(store.used_bytes <= 8 * MIB);
        assert_eq!(
            (store.evictions, figures.evictions, figures.lost),
            (0, 0, 0)
        );
        let device = device(&rig).figures();
        // Items that were moved before they left are written once; a block at the end of each
        // segment may be half empty.
        let values = figures.demotions * LEN as u64;
        assert!(
            device.written_bytes * 20 <= values * 21,
            "{device:?} {values}"
        );
        assert!(
            device.written_bytes / device.writes > 60 << 10,
            "{device:?}"
        );
    }
}

#[test]
fn of_a_full_deep_device_the_oldest_goes_and_what_is_used_stays() {
    let rig = Rig::new(deep(4 * MIB, 8 * MIB));
    let mut w = rig.worker(0);
    fill(&mut w, 0..2000);
    for round in 0..20 {
        // What is asked for twice in a while comes back to the fast device.
        for _ in 0..2 {
            assert_eq!(found(&mut w, 0..100), 100, "round {round}");
        }
        fill(&mut w, 2000 + 1000 * round..3000 + 1000 * round);
    }
    let figures = figures(&rig);
    assert!(
        figures.evictions > 5000 && figures.promotions > 0,
        "{figures:?}"
    );
    assert_eq!(found(&mut w, 2000..3000), 0, "those were the oldest");
    assert!(found(&mut w, 16_000..22_000) > 5000);
    assert!(rig.store.figures().used_bytes <= 4 * MIB);
}

#[test]
fn what_is_never_changed_stays_while_what_changes_leaves_garbage() {
    let rig = Rig::new(StoreConfig {
        eviction: Eviction::Fifo,
        ..deep(4 * MIB, 16 * MIB)
    });
    let mut w = rig.worker(0);
    fill(&mut w, 0..3000);
    // Four times what the device holds is written, and no segment of that is garbage alone: one of
    // thirty is not written again.
    for round in 0..20 {
        for part in 0..100 {
            fill(&mut w, 5000 + part * 30..5030 + part * 30);
            let once = 10_000 + round * 100 + part;
            fill(&mut w, once..once + 1);
        }
    }
    for (numbers, all) in [(0..3000, 3000), (5000..8000, 3000), (10_000..12_000, 2000)] {
        assert_eq!(found(&mut w, numbers), all, "{:?}", figures(&rig));
    }
}

#[test]
fn keys_of_deep_items_take_half_of_the_budget_at_most() {
    let rig = Rig::new(deep(4 * MIB, 64 * MIB));
    let mut w = rig.worker(0);
    for number in 0..200_000 {
        let key = key(number);
        w.store(&key, &value_of(&key, 0, 40));
        w.enter();
        w.write_back();
    }
    let (store, figures) = (rig.store.figures(), figures(&rig));
    assert!(figures.key_bytes > MIB && figures.key_bytes <= 2 * MIB + (128 << 10));
    assert!(store.used_bytes <= 4 * MIB);
    assert!(figures.evictions > 0 && figures.segments.0 < figures.segments.1);
}

#[test]
fn what_is_asked_for_twice_comes_back() {
    let rig = Rig::new(deep(4 * MIB, 16 * MIB));
    let mut w = rig.worker(0);
    fill(&mut w, 0..6000);
    let one = a_deep_one(&mut w);
    let reads = || device(&rig).figures().reads;
    for (round, expected) in [1, 2, 2, 2].into_iter().enumerate() {
        assert!(w.get(&one).is_some());
        w.enter();
        // What was fetched is forgotten: others are fetched in its stead.
        for number in 2000..2200 {
            w.get(&key(number));
            w.enter();
        }
        let before = reads();
        assert!(w.get(&one).is_some());
        let again = reads() - before;
        assert_eq!(again, u64::from(expected < 2), "round {round}");
        w.enter();
    }
}

#[test]
fn who_asks_twice_shares_a_fetch_and_an_overwritten_one_is_not_given_out() {
    let rig = Rig::new(deep(4 * MIB, 16 * MIB));
    let mut w = rig.worker(0);
    fill(&mut w, 0..6000);
    let one = a_deep_one(&mut w);
    let (hash, store, now) = (w.hash(&one), w.store, w.now);
    let ask = |w: &mut Worker<'_>| {
        let worker = w.writer.worker();
        let lane = &mut w.tolls.lane(TENANT);
        let mut item = store.get(lane, &one, hash, now).expect("it is there");
        store.fetch(worker, lane, &mut item, Instant(0))
    };
    let away = ask(&mut w);
    assert!(matches!(away, Presence::Away(_)));
    assert_eq!(ask(&mut w), away);
    w.store(&one, b"another");
    w.land();
    assert_eq!(w.get(&one).as_deref(), Some(&b"another"[..]));
    assert_eq!(device(&rig).figures().reads, 1);
}

#[test]
fn a_value_that_cannot_be_read_is_a_miss_once() {
    let rig = Rig::new(deep(4 * MIB, 16 * MIB));
    let mut w = rig.worker(0);
    fill(&mut w, 0..6000);
    let one = a_deep_one(&mut w);
    device(&rig).drill.fail_reads(Some(EIO));
    assert_eq!(w.get(&one), None);
    device(&rig).drill.fail_reads(None);
    assert_eq!(w.get(&one), None, "it is gone");
    assert_eq!(figures(&rig).lost, 1);
    assert_eq!(found(&mut w, 0..6000), 5999);
    let value = value_of(&one, 0, LEN);
    w.store(&one, &value);
    assert_eq!(w.get(&one), Some(value));
}

#[test]
fn bytes_that_are_not_what_was_stored_are_never_given_out() {
    let rig = Rig::new(deep(4 * MIB, 16 * MIB));
    let mut w = rig.worker(0);
    fill(&mut w, 0..6000);
    let deep = device(&rig).clone();
    let path = deep.file().blocks().path();
    let file = std::fs::File::options()
        .write(true)
        .open(path)
        .expect("it is there");
    // A write that was torn: of each 8 KiB the second half is something else.
    for at in (0..16 * MIB).step_by(8 << 10) {
        file.write_all_at(&[7; 4096], deep.file().begin_bytes() + at + 4096)
            .expect("it can be written");
    }
    let there = found(&mut w, 0..6000);
    let lost = figures(&rig).lost;
    assert!(lost > 500, "{lost} lost");
    assert_eq!(there as u64 + lost, 6000);
}

#[test]
fn of_a_device_that_became_shorter_only_what_lay_behind_is_missed() {
    let rig = Rig::new(deep(4 * MIB, 16 * MIB));
    let mut w = rig.worker(0);
    fill(&mut w, 0..6000);
    let deep = device(&rig).clone();
    let file = std::fs::File::options()
        .write(true)
        .open(deep.file().blocks().path())
        .expect("it is there");
    file.set_len(deep.file().begin_bytes() + MIB)
        .expect("a regular file");
    let there = found(&mut w, 0..6000);
    let lost = figures(&rig).lost;
    assert!(lost > 500, "{lost} lost");
    assert_eq!(there as u64 + lost, 6000);
    assert!(device(&rig).figures().read_errors >= lost);
}

#[test]
fn what_cannot_be_written_is_served_all_the_same() {
    let rig = Rig::new(deep(4 * MIB, 16 * MIB));
    let mut w = rig.worker(0);
    fill(&mut w, 0..4000);
    assert_eq!(found(&mut w, 0..4000), 4000);
    device(&rig).drill.fail_writes(Some(EIO));
    let before = (figures(&rig), device(&rig).figures().written_bytes);
    for number in 4000..6000 {
        let key = key(number);
        w.store(&key, &value_of(&key, 0, LEN));
        w.enter();
        let lane = &mut w.tolls.lane(TENANT);
        w.store.write_back(&mut w.writer, lane, Instant(0));
        w.land();
    }
    let after = figures(&rig);
    assert_eq!(after.lost, 0);
    assert_eq!(device(&rig).figures().written_bytes, before.1);
    assert!(after.refused_stage > before.0.refused_stage, "{after:?}");
    found(&mut w, 0..6000);
    let (store, after) = (rig.store.figures(), figures(&rig));
    let gone = store.evictions + after.evictions;
    assert_eq!((store.items + gone, after.lost), (6000, 0), "{after:?}");
    device(&rig).drill.fail_writes(None);
    let lane = &mut w.tolls.lane(TENANT);
    let later = Instant(u64::MAX / 2);
    w.store.write_back(&mut w.writer, lane, later);
    w.land();
    assert!(
        device(&rig).figures().written_bytes > before.1,
        "it works again"
    );
    fill(&mut w, 6000..8000);
    assert_eq!(found(&mut w, 7000..8000), 1000);
}

#[test]
fn no_more_is_written_in_a_day_than_may_be() {
    let day_bytes = 24 * MIB;
    let config = deep(4 * MIB, 64 * MIB);
    let deep = config.deep.map(|part| DeepPart {
        day_bytes: Some(day_bytes),
        ..part
    });
    let rig = Rig::new(StoreConfig { deep, ..config });
    let mut w = rig.worker(0);
    fill(&mut w, 0..20_000);
    let written = |rig: &Rig| device(rig).figures().written_bytes;
    let burst = written(&rig);
    assert!((MIB / 2..=MIB).contains(&burst), "{burst}");
    assert!(figures(&rig).refused_allowance > 0, "{:?}", figures(&rig));
    w.now = UnixSeconds(START.0 + 1800);
    fill(&mut w, 20_000..30_000);
    let more = written(&rig) - burst;
    assert!((MIB / 4..=MIB / 2).contains(&more), "{more}");
}

#[test]
fn what_ends_together_is_freed_without_being_read() {
    let rig = Rig::new(deep(4 * MIB, 16 * MIB));
    let mut w = rig.worker(0);
    for number in 0..8000 {
        let key = key(number);
        let value = value_of(&key, 0, LEN);
        w.put(&Put {
            expiry: UnixSeconds(START.0 + 100),
            ..Put::set(&key, w.hash(&key), &value)
        });
        w.enter();
        w.write_back();
    }
    assert!(figures(&rig).live_bytes > 3 * MIB);
    w.now = UnixSeconds(START.0 + 100);
    for _ in 0..1000 {
        let lane = &mut w.tolls.lane(TENANT);
        w.store.expire(&mut w.writer, lane, w.now);
        w.write_back();
        w.enter();
    }
    assert_eq!(
        (figures(&rig).live_bytes, rig.store.figures().items),
        (0, 0)
    );
    assert_eq!(device(&rig).figures().reads, 0);
}

/// Repeats what is told to come again.
fn again<T>(
    w: &mut Worker<'_>,
    mut ask: impl FnMut(&mut Worker<'_>) -> T,
    away: fn(&T) -> bool,
) -> T {
    let mut fetches = 0;
    loop {
        let told = ask(w);
        if !away(&told) {
            assert_eq!(fetches, 1, "its value was on the deep device");
            return told;
        }
        fetches += 1;
        w.land();
    }
}

#[test]
fn what_is_deep_can_be_extended() {
    let rig = Rig::new(deep(4 * MIB, 16 * MIB));
    let mut w = rig.worker(0);
    fill(&mut w, 0..6000);
    let (store, now) = (w.store, w.now);
    let is_away = |told: &PutOutcome| matches!(told, PutOutcome::Away(_));

    let one = a_deep_one(&mut w);
    let hash = w.hash(&one);
    let cas = store
        .get(&mut w.lane(), &one, hash, now)
        .expect("there")
        .cas(&mut w.lane());
    let more = Put::set(&one, hash, b" and more");
    let extend = |w: &mut Worker<'_>| {
        let lane = &mut w.tolls.lane(TENANT);
        store.extend(&mut w.writer, lane, &more, Side::Append, now)
    };
    assert!(matches!(
        again(&mut w, extend, is_away),
        PutOutcome::Stored { .. }
    ));
    let expected = [&value_of(&one, 0, LEN)[..], b" and more"].concat();
    assert_eq!(w.get(&one), Some(expected));
    let put = Put {
        condition: Condition::CasIs(cas),
        ..Put::set(&one, hash, b"late")
    };
    assert_eq!(w.put(&put), PutOutcome::Exists);
}

#[test]
fn what_is_deep_can_be_touched() {
    let rig = Rig::new(deep(4 * MIB, 16 * MIB));
    let mut w = rig.worker(0);
    fill(&mut w, 0..6000);
    let (store, now) = (w.store, w.now);

    let two = a_deep_one(&mut w);
    let hash = w.hash(&two);
    let cas = store
        .get(&mut w.lane(), &two, hash, now)
        .expect("there")
        .cas(&mut w.lane());
    let touch = |w: &mut Worker<'_>| {
        let lane = &mut w.tolls.lane(TENANT);
        store.touch(
            &mut w.writer,
            lane,
            &two,
            hash,
            UnixSeconds(now.0 + 10),
            now,
        )
    };
    let is_away_too =
        |told: &nyx_store::TouchOutcome| matches!(told, nyx_store::TouchOutcome::Away(_));
    assert!(again(&mut w, touch, is_away_too).is_touched());
    let item = store.get(&mut w.lane(), &two, hash, now).expect("there");
    assert_eq!(
        (item.cas(&mut w.lane()), item.expiry().0),
        (cas, now.0 + 10)
    );
    assert_eq!(w.get(&two), Some(value_of(&two, 0, LEN)));
}

#[test]
fn what_is_deep_can_be_invalidated_and_deleted() {
    let rig = Rig::new(deep(4 * MIB, 16 * MIB));
    let mut w = rig.worker(0);
    fill(&mut w, 0..6000);
    let (store, now) = (w.store, w.now);

    let three = a_deep_one(&mut w);
    let hash = w.hash(&three);
    let asked = Invalidation {
        key: &three,
        hash,
        condition: Condition::Always,
        expiry: None,
        cas: None,
    };
    let invalidate = |w: &mut Worker<'_>| {
        let lane = &mut w.tolls.lane(TENANT);
        store.invalidate(&mut w.writer, lane, &asked, now)
    };
    let told = again(&mut w, invalidate, |told| {
        matches!(told, DeleteOutcome::Away(_))
    });
    assert_eq!(told, DeleteOutcome::Deleted);
    assert!(
        store
            .get(&mut w.lane(), &three, hash, now)
            .expect("there")
            .stale()
    );

    let four = a_deep_one(&mut w);
    let hash = w.hash(&four);
    let lane = &mut w.tolls.lane(TENANT);
    let told = store.delete(&mut w.writer, lane, &four, hash, Condition::Always, now);
    assert_eq!((told, w.get(&four)), (DeleteOutcome::Deleted, None));
}

#[test]
fn a_unique_that_was_handed_out_stays_when_an_item_goes_deep() {
    let rig = Rig::new(deep(4 * MIB, 16 * MIB));
    let mut w = rig.worker(0);
    fill(&mut w, 0..1);
    let (one, store, now) = (key(0), w.store, w.now);
    let hash = w.hash(&one);
    let cas = |w: &mut Worker<'_>| {
        let item = store.get(&mut w.lane(), &one, hash, now).expect("there");
        (item.cas(&mut w.lane()), item.is_deep())
    };
    let before = cas(&mut w);
    fill(&mut w, 1..8000);
    assert_eq!((before.1, cas(&mut w)), (false, (before.0, true)));
}

#[test]
fn short_values_stay_out_where_they_should() {
    let config = deep(4 * MIB, 16 * MIB);
    let deep = config.deep.map(|part| DeepPart {
        item_len_min: LEN as u32 + 1,
        ..part
    });
    let rig = Rig::new(StoreConfig { deep, ..config });
    let mut w = rig.worker(0);
    fill(&mut w, 0..8000);
    assert_eq!(figures(&rig).demotions, 0);
    assert!(rig.store.figures().evictions > 0);
}

#[test]
fn a_part_that_is_too_short_is_refused_with_its_numbers() {
    let eras = Arc::new(nyx_store::Eras::new(1));
    let told = nyx_store::Store::new(deep(4 * MIB, 100_000), eras).expect_err("too short");
    assert!(matches!(told, StoreError::TooShallow { .. }));
    assert_eq!(
        told.to_string(),
        "100000 B of a deep device are too few: segments of 65536 B take 524288 B"
    );
}

#[test]
fn a_segment_is_written_piece_by_piece_unless_the_next_is_full() {
    writes_segments(32 * MIB, 4, true);
}

#[test]
fn a_segment_is_hurried_where_somebody_waits_for_its_stage() {
    // With two stages no other segment gets full while one is written.
    writes_segments(8 * MIB, 2, false);
}

/// Fills a store until a segment is written, and on until it is hurried; `is_calm` where it is not
/// at first.
fn writes_segments(size: u64, stages: u32, is_calm: bool) {
    let rig = Rig::new(StoreConfig {
        segment_bytes: 512 << 10,
        eviction: Eviction::Fifo,
        ..deep(size, 64 * MIB)
    });
    assert_eq!(figures(&rig).stages.1, stages);
    let mut w = rig.worker(0);
    let store_one = |w: &mut Worker<'_>, number| {
        let key = key(number);
        w.store(&key, &value_of(&key, 0, LEN));
        w.enter();
    };
    let write = |w: &mut Worker<'_>| {
        let lane = &mut w.tolls.lane(TENANT);
        w.store.write_back(&mut w.writer, lane, Instant(0))
    };
    let mut number = 0;
    while !w.store.has_to_write(&w.writer) {
        store_one(&mut w, number);
        number += 1;
    }
    // Nothing lands here, so what is on its way stays that.
    let flying = || device(&rig).in_flight().count;
    assert!(write(&mut w) && write(&mut w));
    assert_eq!(flying() == 1, is_calm, "a read would wait for one piece");
    // Nothing is dropped for want of a stage before the one that is written is hurried.
    let mut refused = 0;
    for _ in 0..4000 {
        store_one(&mut w, number);
        number += 1;
        write(&mut w);
        if flying() > 1 {
            break;
        }
        refused = figures(&rig).refused_stage;
    }
    assert!(flying() > 1, "another segment is full");
    let told = figures(&rig).stages;
    assert_eq!(told.0 < told.1, is_calm, "{told:?}");
    assert_eq!(refused, 0);
    assert!(!w.write_back());
    let there = found(&mut w, 0..number);
    assert_eq!((there, flying()), (number as usize, 0));
}
