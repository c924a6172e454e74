//! Stores that survive: what they held is found again, in whatever order they are closed, killed,
//! swept and used; what is damaged is missed, never mistaken.
//!
//! A store that is dropped without being closed leaves its image as a process leaves it that is
//! killed between two requests; `killed.rs` is about those in between.

mod rig;

use nyx_base::UnixSeconds;
use nyx_store::{Beginning, Durability, Eviction, Keep, Put, PutOutcome, StoreConfig};
use rig::surviving::{Ground, begins, change, compare, damage, key, sweep, used_lines};
use rig::{Rig, START, Worker, value_of};
use std::collections::BTreeMap;

/// Everything that was acknowledged, whoever opens it and however often.
#[test]
fn what_was_acknowledged_is_there() {
    for seed in 0..30 {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let ground = Ground::new(6 << 20);
        let mut model = BTreeMap::new();
        for round in 0..6 {
            let workers = rng.u16(1..4);
            let rig = ground.open(StoreConfig {
                workers,
                ..ground.config(Durability::Crash)
            });
            assert_eq!(begins(&rig).is_found(), round > 0);
            let mut worker = rig.worker(rng.u16(..workers));
            let early = rng.bool();
            for step in 0..rng.usize(1..1500) {
                worker.enter();
                change(&mut worker, &mut model, rng);
                if early && step % 10 == 0 {
                    worker.store.sweep(&mut worker.tolls.lane(rig::TENANT));
                }
            }
            compare(&mut worker, &model);
            if rng.bool() {
                sweep(&mut worker);
                assert_eq!(rig.store.figures().items as usize, model.len());
                compare(&mut worker, &model);
            }
            if rng.u8(..4) == 0 {
                rig.store.close().expect("a disk");
            }
        }
    }
}

/// In a tenant that is full items go, and the garbage of before is known again.
#[test]
fn a_full_tenant_goes_on_evicting() {
    let ground = Ground::new(3 << 20);
    let mut versions = BTreeMap::new();
    let rng = &mut fastrand::Rng::with_seed(3);
    for round in 0..5 {
        let rig = ground.go_on(Durability::Crash);
        let mut worker = rig.worker(0);
        for step in 0..6000u64 {
            worker.enter();
            let number = rng.u32(..4000);
            let version = round * 10_000 + step;
            worker.store(&key(number), &value_of(&key(number), version, 600));
            versions.insert(number, version);
            if step == 3000 {
                sweep(&mut worker);
            }
            let number = rng.u32(..4000);
            if let Some(value) = worker.get(&key(number)) {
                let version = versions[&number];
                assert_eq!(value, value_of(&key(number), version, 600), "an old value");
            }
        }
        let figures = rig.store.figures();
        assert!(figures.evictions > 100 || round == 0, "{figures:?}");
        assert!(figures.used_bytes <= 3 << 20);
        // What is known of the dead agrees with what is there.
        let lives = (0..4000).filter(|&n| worker.get(&key(n)).is_some()).count();
        assert_eq!(figures.items as usize, lives);
        let item_bytes = figures.live_bytes as usize / lives;
        assert!((600..750).contains(&item_bytes), "{item_bytes} B an item");
    }
}

#[test]
fn ends_and_flushes_and_uniques_are_kept() {
    let ground = Ground::new(6 << 20);
    let rig = ground.go_on(Durability::Crash);
    let mut worker = rig.worker(0);
    let cas = worker.store(b"stays", b"1");
    let hash = worker.hash(b"ends");
    let ends = Put {
        expiry: UnixSeconds(START.0 + 10),
        flags: 5,
        ..Put::set(b"ends", hash, b"2")
    };
    assert!(matches!(worker.put(&ends), PutOutcome::Stored { .. }));
    worker.store(b"flushed", b"3");
    rig.store.flush(UnixSeconds(START.0 + 100), START);
    drop(rig);

    let rig = ground.go_on(Durability::Crash);
    let mut worker = rig.worker(0);
    worker.now = UnixSeconds(START.0 + 9);
    let lane = &mut worker.tolls.lane(rig::TENANT);
    let item = rig
        .store
        .get(lane, b"ends", hash, worker.now)
        .expect("not yet");
    assert_eq!(
        (item.flags(), item.expiry()),
        (5, UnixSeconds(START.0 + 10))
    );
    let stays = rig
        .store
        .get(lane, b"stays", rig.store.hash(b"stays"), worker.now);
    assert_eq!(stays.expect("it stays").cas(lane), cas);
    worker.now = UnixSeconds(START.0 + 10);
    assert_eq!(worker.get(b"ends"), None);
    drop(rig);

    let rig = ground.go_on(Durability::Crash);
    let mut worker = rig.worker(0);
    worker.now = UnixSeconds(START.0 + 100);
    assert_eq!(worker.get(b"flushed"), None, "the flush has come");
    let other = worker.store(b"stays", b"4");
    assert!(other != cas && worker.get(b"stays").is_some());
    drop(rig);
    let rig = ground.go_on(Durability::Crash);
    let mut worker = rig.worker(0);
    worker.now = UnixSeconds(START.0 + 100);
    assert_eq!(worker.get(b"stays").as_deref(), Some(&b"4"[..]));
    assert_eq!(worker.get(b"flushed"), None, "it does not come back");
}

#[test]
fn one_that_holds_nothing_goes_on_with_nothing() {
    let ground = Ground::new(6 << 20);
    drop(ground.go_on(Durability::Crash));
    let rig = ground.go_on(Durability::Crash);
    let mut worker = rig.worker(0);
    assert_eq!(begins(&rig), Beginning::Killed);
    assert_eq!(worker.get(b"a"), None);
    sweep(&mut worker);
    worker.store(b"a", b"1");
    assert_eq!(rig.store.figures().items, 1);
}

/// Marks take sequence numbers that nothing else has.
#[test]
fn flushes_in_a_row_take_nothing_that_comes_after() {
    let ground = Ground::new(6 << 20);
    let rig = ground.go_on(Durability::Crash);
    rig.worker(0).store(b"before", b"1");
    (0..5).for_each(|_| rig.store.flush(START, START));
    drop(rig);
    let rig = ground.go_on(Durability::Crash);
    rig.worker(0).store(b"after", b"2");
    drop(rig);
    for _ in 0..3 {
        let rig = ground.go_on(Durability::Crash);
        let mut worker = rig.worker(0);
        assert_eq!(worker.get(b"after").as_deref(), Some(&b"2"[..]));
        assert_eq!(worker.get(b"before"), None);
    }
}

/// Segments of a queue that the policy does not have are not left behind.
#[test]
fn another_eviction_policy_goes_on_with_all_segments() {
    let ground = Ground::new(3 << 20);
    for eviction in [
        Eviction::S3Fifo,
        Eviction::Lru,
        Eviction::S3Fifo,
        Eviction::Merge,
    ] {
        let rig = ground.open(StoreConfig {
            eviction,
            ..ground.config(Durability::Crash)
        });
        let mut worker = rig.worker(0);
        for number in 0..6000 {
            worker.enter();
            worker.store(&key(number), &[7; 600]);
        }
    }
}

/// Restarts leave segments half empty, whose rest is room again.
#[test]
fn restarts_take_no_room_for_good() {
    let ground = Ground::new(3 << 20);
    for round in 0..60 {
        let rig = ground.open(StoreConfig {
            workers: 3,
            ..ground.config(Durability::Crash)
        });
        let mut worker = rig.worker(round % 3);
        sweep(&mut worker);
        for number in 0..10 {
            worker.enter();
            worker.store(&key(u32::from(round) * 10 + number), &[7; 600]);
        }
        assert_eq!(rig.store.figures().evictions, 0, "in round {round}");
    }
    let rig = ground.go_on(Durability::Crash);
    let mut worker = rig.worker(0);
    assert!((0..600).all(|number| worker.get(&key(number)).is_some()));
}

/// Neither by a disk that is full nor by a kill is an image left that nobody can open.
#[test]
fn an_image_that_was_never_begun_is_none() {
    let ground = Ground::new(6 << 20);
    std::fs::write(ground.image(), vec![0; 1 << 20]).expect("a disk");
    assert_eq!(begins(&ground.go_on(Durability::Crash)), Beginning::New);
}

/// A copy without holes where the image had blocks of zeros, and without those blocks.
#[test]
fn a_copy_with_holes_gets_its_blocks() {
    use std::os::unix::fs::MetadataExt;
    let ground = Ground::new(6 << 20);
    let rig = ground.go_on(Durability::Crash);
    let mut worker = rig.worker(0);
    (0..3000).for_each(|number| assert!(worker.store(&key(number), b"value") > 0));
    drop(rig);
    let blocks = || {
        std::fs::metadata(ground.image())
            .expect("it is there")
            .blocks()
    };
    let before = blocks();
    let bytes = std::fs::read(ground.image()).expect("the image");
    let copy = std::fs::File::create(ground.image()).expect("a file");
    copy.set_len(bytes.len() as u64).expect("its length");
    for (page, bytes) in bytes.chunks(4096).enumerate() {
        if bytes.iter().any(|&byte| byte != 0) {
            use std::os::unix::fs::FileExt;
            copy.write_all_at(bytes, page as u64 * 4096)
                .expect("a disk");
        }
    }
    assert!(blocks() < before / 2, "there are holes");
    let rig = ground.go_on(Durability::Crash);
    assert!(
        blocks() * 10 >= before * 9,
        "{} blocks of {before}",
        blocks()
    );
    let mut worker = rig.worker(0);
    assert!((0..3000).all(|number| worker.get(&key(number)).is_some()));
}

#[test]
fn a_warm_tenant_is_there_only_if_it_was_closed() {
    let ground = Ground::new(6 << 20);
    let rig = ground.go_on(Durability::Warm);
    assert_eq!(begins(&rig), Beginning::New);
    rig.worker(0).store(b"a", b"1");
    rig.store.close().expect("a disk");
    drop(rig);
    let rig = ground.go_on(Durability::Warm);
    assert_eq!(begins(&rig), Beginning::Stopped);
    assert!(rig.worker(0).get(b"a").is_some());
    drop(rig);
    let rig = ground.go_on(Durability::Warm);
    assert!(matches!(begins(&rig), Beginning::Empty(why) if why.contains("warm")));
    assert_eq!(rig.worker(0).get(b"a"), None);
}

#[test]
fn an_image_of_something_else_is_not_used() {
    let ground = Ground::new(6 << 20);
    drop(ground.go_on(Durability::Crash));
    let config = || ground.config(Durability::Crash);
    let keep = || config().keep.expect("it survives");
    let other_name = Keep {
        name: "other".to_owned(),
        ..keep()
    };
    let refusal = ground.refusal(StoreConfig {
        keep: Some(other_name),
        ..config()
    });
    assert!(
        refusal.contains("\"test\"") && refusal.contains("\"other\""),
        "{refusal}"
    );
    let refusal = ground.refusal(StoreConfig {
        size: 5 << 20,
        ..config()
    });
    assert!(
        refusal.contains("6291456 B") && refusal.contains("5242880 B"),
        "{refusal}"
    );
    let data_id = [8; 16];
    let other_data = Keep { data_id, ..keep() };
    let rig = ground.open(StoreConfig {
        keep: Some(other_data),
        ..config()
    });
    assert!(matches!(begins(&rig), Beginning::Empty(why) if why.contains("data file")));
}

/// At least a thousand images, each damaged in another way: whatever is found is what was stored.
#[test]
fn a_damaged_image_gives_no_wrong_value() {
    let ground = Ground::new(2 << 20);
    let rig = ground.go_on(Durability::Crash);
    let mut worker = rig.worker(0);
    let mut model = BTreeMap::new();
    let rng = &mut fastrand::Rng::with_seed(5);
    (0..2500).for_each(|_| {
        worker.enter();
        change(&mut worker, &mut model, rng);
    });
    drop(rig);
    let golden = std::fs::read(ground.image()).expect("the image");
    let used = used_lines(&golden, 0);
    let (mut refused, mut found, mut lost) = (0, 0, 0);
    for _ in 0..1200 {
        let mut image = golden.clone();
        damage(&mut image, &used, rng);
        if rng.u8(..20) == 0 {
            image.truncate(rng.usize(..image.len()));
        }
        std::fs::write(ground.image(), &image).expect("a disk");
        let config = ground.config(Durability::Crash);
        let Ok(rig) = Rig::on(ground.media.clone(), config) else {
            refused += 1;
            continue;
        };
        if !begins(&rig).is_found() {
            refused += 1;
            continue;
        }
        let mut worker = rig.worker(0);
        let mut look = |worker: &mut Worker<'_>| {
            for number in 0..400 {
                match (worker.get(&key(number)), model.get(&number)) {
                    (Some(value), Some(old)) => {
                        assert!(value == *old, "another value for key {number}");
                        found += 1;
                    }
                    (Some(_), None) => panic!("key {number} was deleted"),
                    (None, Some(_)) => lost += 1,
                    (None, None) => {}
                }
            }
        };
        look(&mut worker);
        sweep(&mut worker);
        look(&mut worker);
        // It goes on as a store. (On the values' medium nothing that the others need changes: the
        // first segments are theirs.)
        worker.set(b"new", b"value");
        assert_eq!(worker.get(b"new").as_deref(), Some(&b"value"[..]));
    }
    assert!(
        refused > 50 && found > 50_000 && lost > 1000,
        "{refused} {found} {lost}"
    );
}
