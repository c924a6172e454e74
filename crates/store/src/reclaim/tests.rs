//! What only another worker's change in between would show: the reclaimer as it stands then.

use super::{Hand, Reclaimer, Resident, has_expired};
use crate::config::{DeepPart, StoreConfig};
use crate::request::Put;
use crate::rig::{Rig, START, Worker, deep, small, value_of};
use crate::segment::Queue;
use crate::space::Taker;
use crate::store::Store;
use crate::writer::Writer;
use nyx_base::{Instant, UnixSeconds};

const MIB: u64 = 1 << 20;
const LEN: usize = 1000;
/// Numbers from here on are stored and soon overwritten.
const PASSING: u32 = 1_000_000;

fn set(w: &mut Worker<'_>, number: u32) {
    let key = number.to_string().into_bytes();
    w.store(&key, &value_of(&key, 0, LEN));
    w.enter();
}

/// An item as it was read before its end was put off, and the hand of one for whom it would have
/// ended by now.
fn put_off(w: &mut Worker<'_>) -> (Resident, UnixSeconds) {
    let (key, hash) = (b"key", w.hash(b"key"));
    let soon = UnixSeconds(START.0 + 10);
    w.put(&Put {
        expiry: soon,
        ..Put::set(key, hash, b"value")
    });
    let (store, now) = (w.store, w.now);
    let item = store
        .get(&mut w.lane(), key, hash, now)
        .expect("it is there");
    let item = Resident {
        place: item.place,
        header: item.header,
        hash: hash.0,
    };
    let lane = &mut w.tolls.lane(crate::rig::TENANT);
    let late = UnixSeconds(START.0 + 1000);
    let told = store.touch(&mut w.writer, lane, key, hash, late, now);
    assert!(told.is_touched());
    (item, UnixSeconds(soon.0 + 1))
}

#[test]
fn what_was_put_off_since_it_was_read_has_not_ended() {
    let rig = Rig::new(small(4 * MIB));
    let mut w = rig.worker(0);
    let (item, now) = put_off(&mut w);
    let mut hand = Hand {
        store: w.store,
        lane: &mut w.tolls.lane(crate::rig::TENANT),
        worker: w.writer.worker(),
        now,
    };
    assert!(!has_expired(&mut hand, &item));
    w.now = now;
    assert_eq!(w.get(b"key").as_deref(), Some(&b"value"[..]));
    let mut hand = Hand {
        store: w.store,
        lane: &mut w.tolls.lane(crate::rig::TENANT),
        worker: w.writer.worker(),
        now: UnixSeconds(START.0 + 1000),
    };
    assert!(has_expired(&mut hand, &item));
    assert_eq!(w.get(b"key"), None);
}

#[test]
fn what_was_put_off_since_it_was_read_moves() {
    let rig = Rig::new(small(4 * MIB));
    let mut w = rig.worker(0);
    let (item, now) = put_off(&mut w);
    let items = &w.store.items;
    let spot = items.spot(item.place, &item.header);
    let value = items.source(spot, item.header.value_len);
    let value = value.expect("it is here");
    let mut hand = Hand {
        store: w.store,
        lane: &mut w.tolls.lane(crate::rig::TENANT),
        worker: w.writer.worker(),
        now,
    };
    let mut reclaimer = w.store.lock_reclaimer();
    assert!(reclaimer.relocate(&mut hand, item, value, Queue::Main, 0));
    drop(reclaimer);
    w.now = UnixSeconds(START.0 + 999);
    assert_eq!(w.get(b"key").as_deref(), Some(&b"value"[..]));
}

/// Stores those that are to stay among others, until a read of compaction is on its way.
fn until_it_is_read(w: &mut Worker<'_>, first: u32) -> u32 {
    for number in first.. {
        set(w, number);
        set(w, PASSING + number % 4000);
        let lane = &mut w.tolls.lane(crate::rig::TENANT);
        w.store.write_back(&mut w.writer, lane, Instant(0));
        w.land();
        w.compact();
        if w.tolls.hands().iter().any(|hand| hand.in_flight() > 0) {
            return number;
        }
        assert!(number < first + 20_000, "nothing is compacted");
    }
    unreachable!("numbers do not end")
}

fn seal_all(store: &Store, reclaimer: &mut Reclaimer) {
    reclaimer
        .writer
        .seal_all(&store.items, &store.space, |_| true);
}

#[test]
fn no_copy_is_written_into_a_segment_from_before_a_flush() {
    let rig = Rig::new(deep(8 * MIB, 16 * MIB));
    let mut w = rig.worker(0);
    until_it_is_read(&mut w, 0);
    w.land();
    let store = w.store;
    let mut reclaimer = store.lock_reclaimer();
    let classes = reclaimer.writer.classes();
    let other = Writer::new(w.writer.worker(), Taker::Relocation, classes);
    let before = std::mem::replace(&mut reclaimer.writer, other);
    drop(reclaimer);
    store.flush(w.now, w.now);
    w.enter();
    while store.expire(&mut w.writer, &mut w.tolls.lane(crate::rig::TENANT), w.now) {
        w.enter();
    }
    w.write_back();
    let last = until_it_is_read(&mut w, 100_000);
    // It has segments from before the flush, and nobody was to step since.
    let mut reclaimer = store.lock_reclaimer();
    seal_all(store, &mut reclaimer);
    reclaimer.writer = before;
    drop(reclaimer);
    let moved = store.done.compacted_bytes.get();
    w.land();
    assert!(
        store.done.compacted_bytes.get() > moved,
        "copies are written"
    );
    let there = (100_000..=last).filter(|number| {
        let value = w.get(number.to_string().as_bytes());
        w.enter();
        value.is_some()
    });
    assert_eq!(there.count() as u32, last - 100_000 + 1);
}

fn may_write_in_a_day(config: StoreConfig, bytes: u64) -> Rig {
    let part = config.deep.map(|part| DeepPart {
        day_bytes: Some(bytes),
        ..part
    });
    Rig::new(StoreConfig {
        deep: part,
        ..config
    })
}

#[test]
fn nobody_waits_for_a_compaction_that_may_not_write() {
    let rig = may_write_in_a_day(deep(8 * MIB, 16 * MIB), 1);
    let mut space = rig.store.space.lock();
    let depth = space.depth().expect("a deep device");
    // Keys take too much, and that is being mended.
    (depth.chunks, depth.is_compacting) = (1 << 10, true);
    assert!(space.is_backlogged(&rig.store.items));
    let depth = space.depth().expect("a deep device");
    while depth.take().is_some() {}
    assert!(depth.free_stages() > 0);
    assert!(!space.is_backlogged(&rig.store.items));
}

#[test]
fn nothing_goes_for_what_may_not_be_written() {
    let config = deep(8 * MIB, 16 * MIB);
    let segment_bytes = u64::from(config.segment_bytes);
    let segments = 16 * MIB / segment_bytes;
    // In an hour all segments but one.
    let rig = may_write_in_a_day(config, 24 * (segments - 1) * segment_bytes);
    let mut space = rig.store.space.lock();
    let depth = space.depth().expect("a deep device");
    let mut taken = 0;
    while let Some((_, stage)) = depth.take() {
        taken += 1;
        depth.leave(0, stage);
        depth.collect(|_| true);
    }
    assert_eq!(taken, segments - 1);
    assert!(!space.is_deep_tight());
    let depth = space.depth().expect("a deep device");
    depth.earn(START);
    assert!(space.is_deep_tight());
}
