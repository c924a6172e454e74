//! Images that are looked at, and images whose index is made anew: all that is sound is kept, and
//! nothing that was not stored, or was taken away, comes back.

mod rig;

use nyx_store::{About, Beginning, Durability, Eviction, Health, Purpose, Remade, StoreConfig};
use rig::surviving::{Ground, begins, change, compare, damage, key, sweep, used_lines};
use rig::{Rig, START};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;

const SIZE: u64 = 6 << 20;
const PAGE: u64 = 4096;

/// Where the parts of an image of [`SIZE`] with segments of 64 KiB begin (docs/format.md).
const CHUNKS_AT: u64 = PAGE + 5 * PAGE;
const COUNTS_AT: u64 = CHUNKS_AT + (SIZE / (16 << 10) * 24).next_multiple_of(PAGE);
/// The buckets are large, and begin at a large page of the parts.
const BUCKETS_AT: u64 = PAGE + (2 << 20);

/// A store with things in it, which is gone, and what it held.
fn left(ground: &Ground, changes: usize, seed: u64) -> BTreeMap<u32, Vec<u8>> {
    let rig = ground.go_on(Durability::Crash);
    let mut worker = rig.worker(0);
    let mut model = BTreeMap::new();
    let rng = &mut fastrand::Rng::with_seed(seed);
    for _ in 0..changes {
        worker.enter();
        change(&mut worker, &mut model, rng);
    }
    model
}

fn patch(path: &Path, at: u64, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(path);
    file.expect("the image")
        .write_all_at(bytes, at)
        .expect("a disk");
}

fn about(ground: &Ground) -> About {
    let image = nyx_media::Image::look(&ground.image()).expect("an image");
    About::of_image(&image.expect("it was begun")).expect("a tenant's")
}

/// The image as somebody opens it who knows nothing but the file.
fn opened_for(ground: &Ground, purpose: Purpose) -> Rig {
    let about = about(ground);
    assert_eq!((about.name.as_str(), about.size), ("test", SIZE));
    ground.open(about.store(&ground.image(), purpose))
}

fn examined(rig: &Rig) -> Health {
    let mut worker = rig.worker(0);
    let lane = &mut worker.lane();
    rig.store
        .examine(Some(lane), START, &mut |_, _| ())
        .expect("it survives")
}

fn looked_at(ground: &Ground) -> Health {
    let before = std::fs::read(ground.image()).expect("the image");
    let health = examined(&opened_for(ground, Purpose::Look));
    let after = std::fs::read(ground.image()).expect("the image");
    assert!(before == after, "who looks changes nothing");
    health
}

fn repair(ground: &Ground) -> (Remade, Health) {
    let rig = opened_for(ground, Purpose::Repair);
    let Beginning::Remade { why: None, from } = begins(&rig) else {
        panic!("{:?}", begins(&rig));
    };
    let health = examined(&rig);
    rig.store.close().expect("a disk");
    (from, health)
}

fn expected(model: &BTreeMap<u32, Vec<u8>>) -> Health {
    Health {
        items: model.len() as u64,
        key_bytes: model.keys().map(|&number| key(number).len() as u64).sum(),
        value_bytes: model.values().map(|value| value.len() as u64).sum(),
        ..Health::default()
    }
}

fn assert_holds(health: &Health, model: &BTreeMap<u32, Vec<u8>>) {
    let expected = expected(model);
    assert_eq!(health.items, expected.items);
    assert_eq!(health.key_bytes, expected.key_bytes);
    assert_eq!(health.value_bytes, expected.value_bytes);
}

fn worker_sees(ground: &Ground, model: &BTreeMap<u32, Vec<u8>>) {
    let rig = ground.go_on(Durability::Crash);
    compare(&mut rig.worker(0), model);
}

#[test]
fn what_an_image_holds_is_counted_and_the_file_stays_as_it_is() {
    let ground = Ground::new(SIZE);
    let model = left(&ground, 5000, 1);
    let health = looked_at(&ground);
    assert_holds(&health, &model);
    assert_eq!((health.dropped, health.unreachable), (0, 0));
    assert!(health.ended == 0 && health.endless > 0 && health.endless < health.items);
    assert_eq!(health.segments.1, SIZE / (64 << 10));
    let far = rig::START.0 + 1_000_000;
    let rig = opened_for(&ground, Purpose::Look);
    let later = rig
        .store
        .examine(None, nyx_base::UnixSeconds(far), &mut |_, _| ());
    let later = later.expect("it survives");
    assert_eq!(later.ended, later.items - later.endless);
    drop(rig);
    worker_sees(&ground, &model);
}

#[test]
fn an_image_in_use_is_not_looked_at_and_one_that_is_looked_at_not_used() {
    let ground = Ground::new(SIZE);
    let rig = ground.go_on(Durability::Crash);
    let refused = |error: Option<nyx_media::MediaError>| {
        let said = error.expect("it is taken").to_string();
        assert!(said.contains("in use"), "{said}");
    };
    refused(nyx_media::Image::look(&ground.image()).err());
    drop(rig);
    let looked = nyx_media::Image::look(&ground.image()).expect("free");
    nyx_media::Image::look(&ground.image()).expect("two may look");
    refused(nyx_media::Image::open(&ground.image()).err());
    drop(looked);
}

/// Values that changed are found by whoever reads them, and by nobody else.
#[test]
fn damaged_values_are_counted_and_dropped() {
    let ground = Ground::new(SIZE);
    let model = left(&ground, 3000, 2);
    let mut front = nyx_media::Front::default();
    let mut bytes = [0; 64];
    // What lies first in the first segment may be dead; one line of it is not all.
    for at in (0..SIZE).step_by(4096) {
        ground.media.read(&mut front, at, &mut bytes);
        bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
        ground
            .media
            .write(&mut front, at, &bytes, nyx_media::Via::Cached);
    }
    let health = looked_at(&ground);
    assert!(health.damaged > 0, "{health:?}");
    assert_eq!(health.items + health.damaged, model.len() as u64);
    assert_eq!((health.dropped, health.unreachable), (0, 0));
    let believed = opened_for(&ground, Purpose::Look)
        .store
        .examine(None, START, &mut |_, _| ())
        .expect("it survives");
    assert_eq!((believed.items, believed.dropped), (model.len() as u64, 0));
    let (from, repaired) = repair(&ground);
    assert_eq!(from.items, model.len() as u64);
    assert_eq!(repaired.items, health.items);
    let rig = ground.go_on(Durability::Crash);
    assert_eq!(begins(&rig), Beginning::Stopped);
    let mut worker = rig.worker(0);
    let found = |(number, value): (&u32, &Vec<u8>)| match worker.get(&key(*number)) {
        Some(found) => {
            assert!(found == *value, "another value for key {number}");
            1
        }
        None => 0,
    };
    assert_eq!(model.iter().map(found).sum::<u64>(), health.items);
}

#[test]
fn an_index_that_cannot_be_used_is_made_anew_by_who_needs_it() {
    let ground = Ground::new(SIZE);
    let mut model = left(&ground, 8000, 3);
    patch(&ground.image(), COUNTS_AT, &[0xff; 16]);
    let rng = &mut fastrand::Rng::with_seed(4);
    let rubbish: Vec<u8> = (0..1 << 16).map(|_| rng.u8(..)).collect();
    patch(&ground.image(), BUCKETS_AT, &rubbish);
    assert_holds(&looked_at(&ground), &model);
    for round in 0..3 {
        let rig = ground.go_on(Durability::Crash);
        let remade = matches!(begins(&rig), Beginning::Remade { why: Some(why), from }
            if why.contains("buckets") && from.items == model.len() as u64 && from.older == 0);
        assert_eq!(remade, round == 0, "{:?}", begins(&rig));
        let mut worker = rig.worker(0);
        compare(&mut worker, &model);
        for _ in 0..500 {
            worker.enter();
            change(&mut worker, &mut model, rng);
        }
        if round == 1 {
            sweep(&mut worker);
        }
        compare(&mut worker, &model);
    }
}

/// Items that the index has lost are told of, and come back.
#[test]
fn repair_finds_what_the_index_has_lost() {
    let ground = Ground::new(SIZE);
    let model = left(&ground, 8000, 5);
    patch(&ground.image(), BUCKETS_AT, &[0; 32 * 64]);
    let health = looked_at(&ground);
    assert!(health.unreachable > 10, "{health:?}");
    // Of each chunk that nobody closed the last item may never have been published; one per queue.
    let counted = health.items + health.unreachable;
    assert!((counted..=counted + 2).contains(&(model.len() as u64)));
    let (from, repaired) = repair(&ground);
    assert_eq!((from.items, from.older), (model.len() as u64, 0));
    assert_holds(&repaired, &model);
    assert_eq!((repaired.dropped, repaired.unreachable), (0, 0));
    worker_sees(&ground, &model);
    assert_eq!(looked_at(&ground).unreachable, 0);
}

/// The index of a large store grows while it is made anew.
/// Who looks does not know the policy: a tenant that is too small for another one is no wonder.
#[test]
fn the_smallest_tenant_of_each_policy_is_looked_at() {
    for eviction in Eviction::ALL {
        let made = |size: u64| {
            let ground = Ground::new(size);
            let config = StoreConfig {
                eviction,
                ..ground.config(Durability::Crash)
            };
            let rig = Rig::on(ground.media.clone(), config).ok()?;
            rig.worker(0).store(b"key", b"value");
            Some(ground)
        };
        let ground = (1..100).find_map(|segments| made(segments * (64 << 10)));
        let ground = ground.expect("some size is enough");
        for purpose in [Purpose::Look, Purpose::Repair] {
            let rig = ground.open(about(&ground).store(&ground.image(), purpose));
            assert_eq!(examined(&rig).items, 1, "{eviction}");
            rig.store.close().expect("a disk");
        }
    }
}

#[test]
fn many_items_are_found_again() {
    let ground = Ground::new(SIZE);
    let rig = ground.go_on(Durability::Crash);
    let mut worker = rig.worker(0);
    let count = 40_000;
    (0..count).for_each(|number| assert!(worker.store(&key(number), b"v") > 0));
    drop(rig);
    let (from, health) = repair(&ground);
    assert_eq!(
        (from.items, health.items),
        (u64::from(count), u64::from(count))
    );
    let rig = ground.go_on(Durability::Crash);
    let mut worker = rig.worker(0);
    assert!((0..count).all(|number| worker.get(&key(number)).is_some()));
    sweep(&mut worker);
    assert_eq!(rig.store.figures().items, u64::from(count));
}

/// Whatever is damaged, who looks changes nothing, and what a repair keeps is what was stored.
#[test]
fn no_repair_of_a_damaged_image_gives_a_wrong_value() {
    let ground = Ground::new(SIZE);
    let model = left(&ground, 2500, 6);
    let golden = std::fs::read(ground.image()).expect("the image");
    let used = used_lines(&golden, PAGE as usize);
    let rng = &mut fastrand::Rng::with_seed(7);
    let (mut found, mut lost) = (0, 0);
    for _ in 0..200 {
        let mut image = golden.clone();
        damage(&mut image, &used, rng);
        std::fs::write(ground.image(), &image).expect("a disk");
        let health = looked_at(&ground);
        let (_, repaired) = repair(&ground);
        assert!(
            repaired.items + 1 >= health.items,
            "{health:?} {repaired:?}"
        );
        let rig = ground.go_on(Durability::Crash);
        let mut worker = rig.worker(0);
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
    }
    assert!(found > 20_000 && lost > 20, "{found} {lost}");
}
