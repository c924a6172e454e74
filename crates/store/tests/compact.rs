//! Compaction of the deep device: what lives among what is dead stays, and room is made all the
//! same.

mod rig;

use nyx_base::{Instant, UnixSeconds};
use nyx_store::{
    Condition, DeepFigures, DeepPart, DeleteOutcome, Durability, Eviction, Put, PutOutcome,
    StoreConfig,
};
use nyx_tier::Deep;
use rig::surviving::{Ground, sweep};
use rig::{Rig, START, TENANT, Worker, deep, value_of};

const MIB: u64 = 1 << 20;
const LEN: usize = 1000;
/// Numbers from here on are stored and soon overwritten.
const PASSING: u32 = 1_000_000;

/// What is older leaves first, used or not.
fn pair() -> StoreConfig {
    StoreConfig {
        eviction: Eviction::Fifo,
        ..deep(8 * MIB, 16 * MIB)
    }
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number:07}").into_bytes()
}

fn figures(rig: &Rig) -> DeepFigures {
    rig.store.figures().deep.expect("there is a deep device")
}

fn set(w: &mut Worker<'_>, number: u32) {
    let key = key(number);
    w.store(&key, &value_of(&key, 0, LEN));
    w.enter();
}

fn get(w: &mut Worker<'_>, number: u32) -> bool {
    let key = key(number);
    let value = w.get(&key);
    w.enter();
    if let Some(value) = &value {
        assert!(*value == value_of(&key, 0, LEN), "{number}");
    }
    value.is_some()
}

fn delete(w: &mut Worker<'_>, number: u32) {
    let key = key(number);
    let (store, now, hash) = (w.store, w.now, w.hash(&key));
    let lane = &mut w.tolls.lane(TENANT);
    let told = store.delete(&mut w.writer, lane, &key, hash, Condition::Always, now);
    assert_eq!(told, DeleteOutcome::Deleted);
}

/// Stores those that are to stay among others, which are soon overwritten or deleted.
fn mingled(w: &mut Worker<'_>, numbers: std::ops::Range<u32>) {
    for number in numbers {
        set(w, number);
        set(w, PASSING + number % 4000);
        w.write_back();
    }
}

/// How many of these are there.
fn there(w: &mut Worker<'_>, numbers: std::ops::Range<u32>) -> usize {
    numbers.filter(|&number| get(w, number)).count()
}

#[test]
fn what_lives_among_what_is_overwritten_stays() {
    let rig = Rig::new(pair());
    let mut w = rig.worker(0);
    // In each deep segment half is dead; 13 MB live on 24 MiB.
    mingled(&mut w, 0..9000);
    for round in 0..20 {
        for number in 0..4000 {
            set(&mut w, PASSING + number);
            w.write_back();
        }
        // What is lost once stays so.
        if round % 5 == 4 {
            let there = there(&mut w, 0..9000);
            assert_eq!(there, 9000, "round {round}: {:?}", figures(&rig));
        }
    }
    let told = figures(&rig);
    assert!(told.compactions > 100, "{told:?}");
    assert_eq!((told.evictions, told.lost, told.lost_twins), (0, 0, 0));
    assert_eq!(rig.store.figures().evictions, 0);
    // More is written by a bounded factor.
    let freed = told.compactions * (64 << 10);
    assert!(told.compacted_bytes < freed, "{told:?}");
}

#[test]
fn reads_of_all_lose_nothing_where_there_is_room() {
    let rig = Rig::new(StoreConfig {
        eviction: Eviction::S3Fifo,
        // So that keys do not need the more memory.
        segment_bytes: 128 << 10,
        ..deep(16 * MIB, 32 * MIB)
    });
    let mut w = rig.worker(0);
    let all = 35_000;
    for number in 0..all {
        set(&mut w, number);
        w.write_back();
    }
    let stored = there(&mut w, 0..all);
    assert_eq!(stored, all as usize, "{:?}", figures(&rig));
    let mut rng = nyx_base::Rng::with_seed(1);
    for _ in 0..3 * all {
        get(&mut w, rng.u32(..all));
        w.write_back();
    }
    let told = figures(&rig);
    assert!(
        told.promotions > 20_000 && told.compactions > 10,
        "{told:?}"
    );
    assert_eq!(there(&mut w, 0..all), all as usize, "{told:?}");
}

#[test]
fn where_nearly_all_lives_the_oldest_go_and_nothing_is_written_twice() {
    let rig = Rig::new(pair());
    let mut w = rig.worker(0);
    for number in 0..60_000 {
        set(&mut w, number);
        w.write_back();
    }
    let told = figures(&rig);
    assert!(told.evictions > 20_000, "{told:?}");
    assert!(told.compacted_bytes < MIB, "{told:?}");
    assert!(there(&mut w, 40_000..60_000) > 15_000, "the youngest stay");
}

#[test]
fn an_item_moves_with_all_that_belongs_to_it() {
    let rig = Rig::new(pair());
    let mut w = rig.worker(0);
    let end = |number: u32| match number % 3 {
        0 => UnixSeconds::NEVER,
        _ => UnixSeconds(START.0 + 10_000 + number),
    };
    let mut uniques = Vec::new();
    for number in 0..1000 {
        let (key, value) = (key(number), value_of(&key(number), 0, LEN));
        let put = Put {
            flags: number,
            expiry: end(number),
            ..Put::set(&key, w.hash(&key), &value)
        };
        let PutOutcome::Stored { cas } = w.put(&put) else {
            panic!("there is room");
        };
        // Half of them are told.
        let (store, hash, now) = (w.store, w.hash(&key), w.now);
        if number % 2 == 0 {
            let lane = &mut w.tolls.lane(TENANT);
            let item = store.get(lane, &key, hash, now).expect("it is there");
            assert_eq!(item.cas(lane), cas);
        }
        uniques.push(cas);
        set(&mut w, PASSING + number % 100);
        w.write_back();
    }
    mingled(&mut w, 1000..9000);
    for number in 0..100_000 {
        set(&mut w, PASSING + number % 4000);
        w.write_back();
    }
    let told = figures(&rig);
    assert!(told.compacted_bytes > 1000 * LEN as u64, "{told:?}");
    for number in 0..1000 {
        let key = key(number);
        let (store, hash, now) = (w.store, w.hash(&key), w.now);
        let lane = &mut w.tolls.lane(TENANT);
        let item = store.get(lane, &key, hash, now).expect("it is there");
        assert_eq!((item.flags(), item.expiry()), (number, end(number)));
        if number % 2 == 0 {
            assert_eq!(item.cas(lane), uniques[number as usize]);
        }
        assert!(get(&mut w, number));
    }
    // They end when they were to.
    w.now = UnixSeconds(START.0 + 20_000);
    assert_eq!(there(&mut w, 0..1000), 334);
}

#[test]
fn an_item_that_was_asked_for_is_still_so_when_it_was_moved() {
    let rig = Rig::new(pair());
    let mut w = rig.worker(0);
    mingled(&mut w, 0..9000);
    // Once: they do not yet come back to the fast device.
    assert_eq!(there(&mut w, 0..500), 500);
    assert_eq!(figures(&rig).promotions, 0);
    for number in 0..100_000 {
        set(&mut w, PASSING + number % 4000);
        w.write_back();
    }
    let told = figures(&rig);
    assert!(told.compacted_bytes > 4 * MIB, "{told:?}");
    // Now they do, where there is room.
    assert_eq!(there(&mut w, 0..500), 500);
    assert!(figures(&rig).promotions > 250, "{:?}", figures(&rig));
}

#[test]
fn each_of_two_workers_goes_on_with_what_it_began() {
    let rig = Rig::new(StoreConfig {
        workers: 2,
        // More than is read at once.
        segment_bytes: 128 << 10,
        ..pair()
    });
    let mut one = rig.worker(0);
    mingled(&mut one, 0..9000);
    let mut workers = [one, rig.worker(1)];
    let rng = &mut nyx_base::Rng::with_seed(4);
    for number in 0..100_000 {
        let [one, other] = &mut workers;
        other.leave();
        set(one, PASSING + number % 4000);
        // The other is at it while what one of them asked for is on its way, and when it is there.
        let lane = &mut one.tolls.lane(TENANT);
        one.store.write_back(&mut one.writer, lane, Instant(0));
        one.compact();
        other.compact();
        one.land();
        other.compact();
        let both = [one, other];
        both[usize::from(rng.bool())].write_back();
    }
    let told = figures(&rig);
    assert!(told.compactions > 10, "{told:?}");
    assert_eq!((told.evictions, told.lost), (0, 0), "{told:?}");
    for w in &mut workers {
        w.write_back();
        w.leave();
    }
    assert_eq!(there(&mut workers[1], 0..9000), 9000, "{told:?}");
}

/// Goes on until a read of compaction is on its way, and does not take it in.
fn read_is_on_its_way(w: &mut Worker<'_>, rng: &mut nyx_base::Rng) {
    for number in 0.. {
        set(w, PASSING + rng.u32(..5000));
        let lane = &mut w.tolls.lane(TENANT);
        w.store.write_back(&mut w.writer, lane, Instant(0));
        w.land();
        w.compact();
        if w.tolls.hands().iter().any(|hand| hand.in_flight() > 0) {
            return;
        }
        assert!(number < 100_000, "nothing is compacted");
    }
}

/// Of what is stored among others some is being read; the device that does it.
fn being_read(rig: &Rig) -> (Worker<'_>, &Deep) {
    let mut w = rig.worker(0);
    mingled(&mut w, 0..9000);
    read_is_on_its_way(&mut w, &mut nyx_base::Rng::with_seed(2));
    let device = rig.deep.as_deref().expect("a deep device");
    (w, device)
}

#[test]
fn what_changes_while_it_is_read_is_not_undone() {
    let rig = Rig::new(pair());
    let mut w = rig.worker(0);
    mingled(&mut w, 0..9000);
    let mut version = vec![Some(0); 9000];
    let rng = &mut nyx_base::Rng::with_seed(1);
    for round in 1..40u64 {
        read_is_on_its_way(&mut w, rng);
        // Any of them may be in what is read.
        for _ in 0..300 {
            let number = rng.u32(..9000);
            let key = key(number);
            let at = &mut version[number as usize];
            if at.is_none() || rng.bool() {
                *at = Some(round);
                w.store(&key, &value_of(&key, round, LEN));
            } else {
                *at = None;
                delete(&mut w, number);
            }
            w.enter();
        }
        w.write_back();
        for number in 0..9000 {
            let key = key(number);
            let expected = version[number as usize].map(|at| value_of(&key, at, LEN));
            assert!(w.get(&key) == expected, "round {round}: {number}");
            w.enter();
        }
    }
    assert!(figures(&rig).compactions > 25, "{:?}", figures(&rig));
    assert_eq!(figures(&rig).evictions, 0);
}

#[test]
fn what_cannot_be_read_is_lost_and_counted_and_all_else_stays() {
    let rig = Rig::new(pair());
    let (mut w, device) = being_read(&rig);
    w.write_back();
    device.drill.fail_reads(Some(5));
    let mut passing = (0..100_000).map(|number| PASSING + number % 4000);
    while figures(&rig).lost == 0 {
        set(&mut w, passing.next().expect("something is read"));
        w.write_back();
    }
    device.drill.fail_reads(None);
    let told = figures(&rig);
    assert_eq!(
        there(&mut w, 0..9000),
        9000 - told.lost as usize,
        "{told:?}"
    );
    assert!(told.lost < 9000, "{told:?}");
    assert_eq!(told.evictions, 0);
}

#[test]
fn a_device_that_stalls_holds_up_nobody_who_stores() {
    let rig = Rig::new(pair());
    let (mut w, device) = being_read(&rig);
    device.drill.stall(true);
    for number in 0..20_000 {
        set(&mut w, PASSING + number);
        let lane = &mut w.tolls.lane(TENANT);
        w.store.write_back(&mut w.writer, lane, Instant(0));
        w.tolls.land(Instant(0), |_| {});
        w.compact();
    }
    device.drill.stall(false);
    w.write_back();
    // What is there is right, and compaction goes on.
    there(&mut w, 0..9000);
    let before = figures(&rig).compactions;
    for number in 0..20_000 {
        set(&mut w, PASSING + number % 4000);
        w.write_back();
    }
    assert!(figures(&rig).compactions > before, "{:?}", figures(&rig));
}

#[test]
fn what_may_be_written_in_a_day_is_not_spent_on_it() {
    let config = pair();
    let part = config.deep.map(|part| DeepPart {
        // An hour's worth is what the device holds.
        day_bytes: Some(24 * 16 * MIB),
        ..part
    });
    let rig = Rig::new(StoreConfig {
        deep: part,
        ..config
    });
    let mut w = rig.worker(0);
    mingled(&mut w, 0..60_000);
    let told = figures(&rig);
    assert!(told.refused_allowance > 0, "{told:?}");
    assert_eq!(told.compactions, 0, "{told:?}");
}

/// A store in which what may be written in a day is used up, while compaction goes on and the
/// device is full.
fn with_nothing_to_spend() -> Rig {
    let config = pair();
    let part = config.deep.map(|part| DeepPart {
        // Two segments at once.
        day_bytes: Some(3 * MIB),
        ..part
    });
    Rig::new(StoreConfig {
        workers: 2,
        deep: part,
        ..config
    })
}

/// Comes to that; the worker that compacts.
fn spend(rig: &Rig) -> Worker<'_> {
    let (mut one, mut other) = (rig.worker(0), rig.worker(1));
    other.leave();
    let mut number = 0;
    let mut more = |seconds: u32| {
        one.now.0 += seconds;
        set(&mut one, number);
        set(&mut one, PASSING + number % 4000);
        let lane = &mut one.tolls.lane(TENANT);
        one.store.write_back(&mut one.writer, lane, Instant(0));
        one.land();
        number += 1;
        assert!(number < 30_000, "{:?}", figures(rig));
        one.now
    };
    while !other.tolls.hands().iter().any(|hand| hand.in_flight() > 0) {
        other.now = more(3600);
        other.compact();
    }
    // What was read is not taken in before the device is full.
    while figures(rig).segments.0 + 2 <= figures(rig).segments.1 {
        more(3600);
    }
    let refused = figures(rig).refused_allowance;
    while figures(rig).refused_allowance < refused + 100 {
        other.now = more(0);
    }
    one.leave();
    // What is open is filled.
    for _ in 0..10 {
        other.now.0 += 1;
        other.write_back();
    }
    other
}

fn read_bytes(rig: &Rig) -> u64 {
    let device = rig.deep.as_deref().expect("a deep device");
    device.figures().read_bytes
}

#[test]
fn what_cannot_be_written_is_not_read() {
    let rig = with_nothing_to_spend();
    let mut w = spend(&rig);
    let before = read_bytes(&rig);
    for _ in 0..100 {
        w.now.0 += 1;
        w.write_back();
    }
    assert_eq!(read_bytes(&rig), before, "{:?}", figures(&rig));
}

#[test]
fn it_goes_on_when_more_may_be_written_though_nobody_makes_room() {
    let rig = with_nothing_to_spend();
    let mut w = spend(&rig);
    let before = figures(&rig).compactions;
    for _ in 0..100 {
        w.now.0 += 3600;
        w.write_back();
    }
    assert!(figures(&rig).compactions > before, "{:?}", figures(&rig));
    // Nothing is left behind where room ran out.
    assert_eq!(there(&mut w, 0..8000), 8000, "{:?}", figures(&rig));
}

#[test]
fn nothing_waits_or_goes_for_what_may_not_be_written() {
    let rig = with_nothing_to_spend();
    let mut w = spend(&rig);
    let before = figures(&rig);
    for _ in 0..2 {
        there(&mut w, 0..1000);
    }
    for number in 0..1000 {
        set(&mut w, 2 * PASSING + number);
        w.write_back();
    }
    let told = figures(&rig);
    assert!(told.promotions > before.promotions + 100, "{told:?}");
    assert_eq!(told.evictions, 0, "{told:?}");
}

#[test]
fn whenever_it_is_left_all_is_there() {
    let ground = Ground::two(8 * MIB, 16 * MIB);
    let config = || StoreConfig {
        eviction: Eviction::Fifo,
        ..ground.config(Durability::Crash)
    };
    let rig = ground.open(config());
    let mut w = rig.worker(0);
    mingled(&mut w, 0..9000);
    assert_eq!(there(&mut w, 0..9000), 9000, "{:?}", figures(&rig));
    drop(w);
    drop(rig);
    let (mut compactions, rng) = (0, &mut nyx_base::Rng::with_seed(3));
    for round in 0..30 {
        let rig = ground.open(config());
        let mut w = rig.worker(0);
        // What is lost once stays so: in turn some of them, and all in the end.
        let mut gone: Vec<u32> = (0..9000).collect();
        gone.retain(|number| number % 5 == round % 5 || round == 29);
        gone.retain(|&number| !get(&mut w, number));
        let told = figures(&rig);
        assert!(gone.is_empty(), "round {round}: {gone:?} {told:?}");
        // What is dead is known when all was looked at, and makes room before more comes.
        sweep(&mut w);
        w.write_back();
        read_is_on_its_way(&mut w, rng);
        if round % 3 == 0 {
            // Some of what was read is written again, and not yet on the device.
            w.land();
            w.compact();
        }
        compactions += figures(&rig).compactions;
        assert_eq!(figures(&rig).evictions, 0);
    }
    assert!(compactions > 10, "{compactions}");
}
