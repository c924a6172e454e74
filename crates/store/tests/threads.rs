//! Two workers on one store: every value that is read must be one that was written for its key,
//! whole, while segments are evicted, compacted and used again all the time.

mod rig;

use nyx_base::{Instant, UnixSeconds, WorkerId};
use nyx_store::{
    Condition, DeepPart, Eviction, Layout, Put, PutOutcome, Side, StoreConfig, WriteMode,
};
use nyx_tier::Nhc;
use rig::{Rig, TENANT, Worker, deep, small, value_of};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const MIB: u64 = 1 << 20;
const KEYS: u64 = 8_000;

fn shared(eviction: Eviction, layout: Layout) -> Rig {
    Rig::new(StoreConfig {
        eviction,
        layout,
        workers: 2,
        ..small(3 * MIB)
    })
}

/// A value that says which key and version it is and is full of what follows from that.
fn value(key: u64, version: u64) -> Vec<u8> {
    let len = 24 + (key * 31 + version * 7) as usize % 700;
    let mut value = version.to_le_bytes().to_vec();
    value.extend(value_of(&key.to_le_bytes(), version, len));
    value
}

fn check(key: u64, found: &[u8]) {
    let (version, _) = found.split_first_chunk().expect("8 bytes of version");
    let version = u64::from_le_bytes(*version);
    assert!(
        found == value(key, version),
        "key {key} has bytes of another item"
    );
}

fn churn(w: &mut Worker<'_>, seed: u64, rounds: u64, versions: &AtomicU64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    for round in 0..rounds {
        let id = rng.u64(..KEYS);
        let key = id.to_le_bytes();
        match rng.u32(..10) {
            0..4 => {
                let value = value(id, versions.fetch_add(1, Relaxed));
                let expiry = match rng.u32(..4) {
                    0 => UnixSeconds(w.now.0 + rng.u32(1..5)),
                    _ => UnixSeconds::NEVER,
                };
                let put = Put {
                    expiry,
                    ..Put::set(&key, w.hash(&key), &value)
                };
                let outcome = w.put(&put);
                assert!(matches!(outcome, PutOutcome::Stored { .. }), "{outcome:?}");
            }
            4..9 => {
                if let Some(found) = w.get(&key) {
                    check(id, &found);
                }
            }
            _ => {
                let lane = &mut w.tolls.lane(TENANT);
                let (hash, always) = (w.store.hash(&key), Condition::Always);
                w.store
                    .delete(&mut w.writer, lane, &key, hash, always, w.now);
            }
        }
        if round % 16 == 0 {
            w.enter();
            w.now = UnixSeconds(w.now.0 + u32::from(round % 4096 == 0));
            assert!(w.store.figures().used_bytes <= 3 * MIB);
        }
        if round % 64 == 0 && w.store.is_deep() {
            w.land();
            let lane = &mut w.tolls.lane(TENANT);
            w.store.write_back(&mut w.writer, lane, Instant(0));
            w.compact();
        }
        if round % 1024 == 0 {
            let lane = &mut w.tolls.lane(TENANT);
            w.store.expire(&mut w.writer, lane, w.now);
        }
    }
    w.land();
    w.leave();
}

#[test]
fn two_devices_give_no_others_bytes_either() {
    for eviction in Eviction::ALL {
        let rig = Rig::new(StoreConfig {
            eviction,
            workers: 2,
            ..deep(3 * MIB, MIB)
        });
        let versions = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for id in 0..2 {
                let (rig, versions) = (&rig, &versions);
                scope.spawn(move || churn(&mut rig.worker(id), u64::from(id), 60_000, versions));
            }
        });
        let figures = rig.store.figures();
        let told = figures.deep.expect("a deep device");
        assert_eq!(told.lost, 0, "{eviction}: {told:?}");
        let has_moved = told.demotions > 1000 && told.promotions > 100 && told.evictions > 100;
        assert!(has_moved, "{eviction}: {told:?} {figures:?}");
        assert!(told.compactions > 10, "{eviction}: {told:?}");
    }
}

#[test]
fn items_on_both_devices_give_no_others_bytes_either() {
    let (mut mirrored_deep, mut returns) = (0, 0);
    for write in WriteMode::ALL {
        let config = deep(3 * MIB, 4 * MIB);
        let deep = config.deep.map(|part| DeepPart { write, ..part });
        let mut rig = Rig::new(StoreConfig {
            workers: 2,
            deep,
            ..config
        });
        let versions = AtomicU64::new(0);
        // Items come back by the first, and are read from either device by the second.
        for nhc in [Nhc::Classic, Nhc::Split(0.5)] {
            rig = rig.ruled(nhc);
            std::thread::scope(|scope| {
                for id in 0..2 {
                    let (rig, versions) = (&rig, &versions);
                    scope
                        .spawn(move || churn(&mut rig.worker(id), u64::from(id), 60_000, versions));
                }
            });
        }
        let told = rig.store.figures().deep.expect("a deep device");
        assert_eq!((told.lost, told.lost_twins), (0, 0), "{write}: {told:?}");
        mirrored_deep += rig.pair.as_ref().expect("a pair").seen().mirrored_deep;
        returns += told.returns;
    }
    let has_twins = mirrored_deep > 1000 && returns > 1000;
    assert!(has_twins, "{mirrored_deep} from twins, {returns} to them");
}

#[test]
fn readers_never_see_another_items_bytes() {
    for eviction in Eviction::ALL {
        let rig = shared(eviction, Layout::Split);
        let versions = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for id in 0..2 {
                let (rig, versions) = (&rig, &versions);
                scope.spawn(move || churn(&mut rig.worker(id), u64::from(id), 60_000, versions));
            }
        });
        let figures = rig.store.figures();
        assert!(
            figures.evictions > 0 && figures.relocations > 0,
            "{eviction}: {figures:?}"
        );
        let mut w = rig.worker(0);
        w.now = UnixSeconds(w.now.0 + 1000);
        let found = (0..KEYS).filter_map(|id| Some((id, w.get(&id.to_le_bytes())?)));
        for (id, found) in found.collect::<Vec<_>>() {
            check(id, &found);
        }
    }
}

#[test]
fn inline_items_are_whole_as_well() {
    let rig = shared(Eviction::Merge, Layout::Inline);
    let versions = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for id in 0..2 {
            let (rig, versions) = (&rig, &versions);
            scope.spawn(move || churn(&mut rig.worker(id), u64::from(id), 40_000, versions));
        }
    });
}

#[test]
fn what_a_worker_holds_is_not_used_again_within_its_era() {
    let rig = shared(Eviction::Fifo, Layout::Split);
    let mut reader = rig.worker(0);
    let held: Vec<u64> = (0..200).collect();
    for &id in &held {
        reader.store(&id.to_le_bytes(), &value(id, id));
    }
    reader.enter();
    let (store, now) = (reader.store, reader.now);
    let items: Vec<_> = held
        .iter()
        .map(|id| {
            let key = id.to_le_bytes();
            store
                .get(&mut reader.lane(), &key, store.hash(&key), now)
                .expect("stored")
        })
        .collect();
    // Another worker writes more than the whole store; what is freed may not be used again yet, so
    // it must run out of memory rather than touch what the reader holds.
    let ran_out = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut w = rig.worker(1);
            let mut stored = |id: &u64| {
                matches!(
                    w.set(&id.to_le_bytes(), &[9; 600]),
                    PutOutcome::Stored { .. }
                )
            };
            let ran_out = (1_000_000..1_020_000u64).any(|id| !stored(&id));
            w.eras.leave(WorkerId(1));
            ran_out
        });
        writer.join().expect("no panic")
    });
    assert!(ran_out, "memory that a reader could see was used again");
    for (&id, item) in held.iter().zip(&items) {
        let mut found = vec![0; item.value_len()];
        item.read(&mut reader.lane(), &mut found);
        check(id, &found);
    }
    reader.enter();
    reader.store(b"now there is", b"room again");
}

#[test]
fn one_of_two_wins_and_nothing_is_lost() {
    let rig = shared(Eviction::S3Fifo, Layout::Split);
    let (wins, tokens) = (AtomicU64::new(0), AtomicU64::new(0));
    rig.worker(0).store(b"counter", b"0");
    rig.worker(0).store(b"log", b"");
    rig.eras.leave(WorkerId(0));
    const ROUNDS: u64 = 3_000;
    let add = |w: &mut Worker<'_>| {
        let hash = w.store.hash(b"counter");
        for _ in 0..ROUNDS {
            loop {
                w.enter();
                let (store, now) = (w.store, w.now);
                let item = store
                    .get(&mut w.lane(), b"counter", hash, now)
                    .expect("never evicted");
                let cas = item.cas(&mut w.lane());
                let text = String::from_utf8(w.get(b"counter").expect("there")).expect("digits");
                let next = (text.parse::<u64>().expect("a number") + 1).to_string();
                let put = Put {
                    condition: Condition::CasIs(cas),
                    ..Put::set(b"counter", hash, next.as_bytes())
                };
                if matches!(w.put(&put), PutOutcome::Stored { .. }) {
                    wins.fetch_add(1, Relaxed);
                    break;
                }
            }
            let put = Put::set(b"log", w.store.hash(b"log"), b"x");
            let lane = &mut w.tolls.lane(TENANT);
            let done = w
                .store
                .extend(&mut w.writer, lane, &put, Side::Append, w.now);
            assert!(matches!(done, PutOutcome::Stored { .. }), "{done:?}");
        }
        let (store, now) = (w.store, w.now);
        let item = store
            .get(&mut w.lane(), b"counter", hash, now)
            .expect("there");
        tokens.fetch_add(u64::from(item.claim_win(&mut w.lane())), Relaxed);
        w.leave();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| add(&mut rig.worker(0)));
        scope.spawn(|| add(&mut rig.worker(1)));
    });
    let mut w = rig.worker(0);
    assert_eq!(
        w.get(b"counter"),
        Some((2 * ROUNDS).to_string().into_bytes())
    );
    assert_eq!(w.get(b"log").map(|log| log.len() as u64), Some(2 * ROUNDS));
    assert_eq!(wins.load(Relaxed), 2 * ROUNDS);
    assert!(tokens.load(Relaxed) >= 1);
}

#[test]
fn a_flush_between_two_writers_lets_nothing_old_through() {
    let rig = shared(Eviction::S3Fifo, Layout::Split);
    let flushed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut w = rig.worker(0);
            for id in 0..KEYS / 2 {
                w.store(&id.to_le_bytes(), b"old");
            }
            w.store.flush(w.now, w.now);
            flushed.store(true, std::sync::atomic::Ordering::Release);
            w.eras.leave(WorkerId(0));
        });
        scope.spawn(|| {
            let mut w = rig.worker(1);
            while !flushed.load(std::sync::atomic::Ordering::Acquire) {
                w.store(b"noise", b"any");
                w.enter();
            }
            for id in 0..KEYS / 2 {
                assert_eq!(w.get(&id.to_le_bytes()), None);
            }
            w.store(b"new", b"new");
            assert!(w.get(b"new").is_some());
            w.eras.leave(WorkerId(1));
        });
    });
}
