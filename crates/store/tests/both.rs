//! Stores that survive on two devices: what was in a stage, on the deep device or on the fast one
//! is found again, whenever the store was left; what the deep device has no longer is missed.
//!
//! A store that is dropped without being closed leaves its image as a process leaves it that is
//! killed between two requests; `killed.rs` is about those in between.

mod rig;

use nyx_base::{Instant, UnixSeconds};
use nyx_media::Front;
use nyx_media::queue::DeepFile;
use nyx_media::{Media, Via};
use nyx_store::{
    Beginning, Condition, DeepFigures, DeepPart, DeleteOutcome, Durability, Eviction, Journaling,
    Presence, Purpose, Put, PutOutcome, Side, StoreConfig, SyncMode, TouchOutcome,
};
use rig::surviving::{Ground, begins, damage, key, sweep, used_lines};
use rig::{Rig, TENANT, Worker, value_of};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MIB: u64 = 1 << 20;
const KEYS: u32 = 700;

type Model = BTreeMap<u32, Vec<u8>>;

fn deep_figures(rig: &Rig) -> DeepFigures {
    rig.store.figures().deep.expect("there is a deep device")
}

/// What went, on whichever device.
fn evictions(rig: &Rig) -> u64 {
    rig.store.figures().evictions + deep_figures(rig).evictions
}

/// One of everything that changes an item; values are long, so that most lie deep.
fn change(w: &mut Worker<'_>, model: &mut Model, rng: &mut fastrand::Rng) {
    let (number, what) = (rng.u32(..KEYS), rng.u8(..11));
    let key = key(number);
    let hash = w.hash(&key);
    let value = value_of(&key, rng.u64(..), rng.usize(1..16_000));
    let (store, now) = (w.store, w.now);
    loop {
        let lane = &mut w.tolls.lane(TENANT);
        let is_away = match what {
            0..=2 => {
                let found = w.get(&key);
                assert!(found.is_none() || found.as_ref() == model.get(&number));
                false
            }
            3..=6 => {
                let put = Put::set(&key, hash, &value);
                let outcome = store.put(&mut w.writer, lane, &put, now);
                assert!(matches!(outcome, PutOutcome::Stored { .. }), "{outcome:?}");
                model.insert(number, value.clone());
                false
            }
            7 => {
                let more = &value[..value.len().min(50)];
                let put = Put::set(&key, hash, more);
                let outcome = store.extend(&mut w.writer, lane, &put, Side::Append, now);
                if let (PutOutcome::Stored { .. }, Some(old)) = (outcome, model.get_mut(&number)) {
                    old.extend(more);
                }
                matches!(outcome, PutOutcome::Away(_))
            }
            8 => {
                let end = UnixSeconds(now.0 + rng.u32(1000..2000));
                let outcome = store.touch(&mut w.writer, lane, &key, hash, end, now);
                matches!(outcome, TouchOutcome::Away(_))
            }
            _ => {
                let outcome = store.delete(&mut w.writer, lane, &key, hash, Condition::Always, now);
                let was_there = model.remove(&number).is_some();
                assert!(was_there || outcome != DeleteOutcome::Deleted);
                false
            }
        };
        if !is_away {
            return;
        }
        w.land();
    }
}

/// Makes changes, and writes what is full.
fn changes(w: &mut Worker<'_>, model: &mut Model, rng: &mut fastrand::Rng, count: usize) {
    for _ in 0..count {
        w.enter();
        change(w, model, rng);
        w.write_back();
    }
}

/// The value of a key, which stays where it is.
fn look(w: &mut Worker<'_>, key: &[u8]) -> Option<Vec<u8>> {
    let (store, hash, now) = (w.store, w.hash(key), w.now);
    loop {
        w.enter();
        let lane = &mut w.tolls.lane(TENANT);
        let mut item = store.get(lane, key, hash, now)?;
        match store.fetch(w.writer.worker(), lane, &mut item, Instant(0)) {
            Presence::Here => {
                let mut value = vec![0; item.value_len()];
                item.read(lane, &mut value);
                return Some(value);
            }
            Presence::Away(_) => w.land(),
            Presence::Lost => return None,
            told @ Presence::Closed(_) => panic!("{told:?}"),
        }
    }
}

/// How many are there; each must be what was stored. With `all`, none may be missing.
fn compare(w: &mut Worker<'_>, model: &Model, all: bool) -> usize {
    let mut there = 0;
    for number in 0..KEYS {
        let found = look(w, &key(number));
        match (&found, model.get(&number)) {
            (Some(found), Some(stored)) => assert!(found == stored, "key {number}"),
            (Some(_), None) => panic!("key {number} was deleted"),
            (None, Some(_)) => assert!(!all, "key {number} is lost"),
            (None, None) => {}
        }
        there += usize::from(found.is_some());
    }
    there
}

/// A copy of all that is there at a moment, as after a kill. What is on the deep device of segments
/// that have a stage is no matter: it is garbled, as a write that was under way may leave it.
fn copy_of(ground: &Ground, size: u64, deep_len: u64) -> Ground {
    let copy = Ground::two(size, deep_len);
    std::fs::copy(ground.image(), copy.image()).expect("the image");
    std::fs::copy(ground.deep_path(), copy.deep_path()).expect("the deep file");
    let mut bytes = vec![0; size as usize];
    let front = &mut Front::default();
    ground.media.read(front, 0, &mut bytes);
    copy.media.write(front, 0, &bytes, Via::Cached);
    for (segment, stage) in stages_of(&copy.image(), size, deep_len) {
        if stage != 0 {
            garble(&copy.deep_path(), segment * SEGMENT, SEGMENT);
        }
    }
    copy
}

const SEGMENT: u64 = 64 << 10;
const PAGE: u64 = 4096;

/// Where the table of segments begins in the file of an image (docs/format.md: it and the stages
/// are the last parts).
fn table_at(image: &Path, size: u64, deep_len: u64) -> u64 {
    let stages = (size / 16 / SEGMENT).clamp(2, 8) * SEGMENT;
    let len = std::fs::metadata(image).expect("the image").len();
    let table = 64 * (size + deep_len) / SEGMENT;
    assert!(stages < 2 * MIB, "they would begin at a large page");
    len - stages - table.next_multiple_of(PAGE)
}

/// The stage, plus one, of each deep segment as the image says it.
fn stages_of(image: &Path, size: u64, deep_len: u64) -> Vec<(u64, u32)> {
    let at = table_at(image, size, deep_len) + 64 * size / SEGMENT;
    let file = std::fs::File::open(image).expect("the image");
    let stage = |segment: u64| {
        let mut word = [0; 4];
        file.read_exact_at(&mut word, at + 64 * segment + 36)
            .expect("an entry");
        (segment, u32::from_le_bytes(word))
    };
    (0..deep_len / SEGMENT).map(stage).collect()
}

/// Where ranges of tenants begin in a deep file, and this one's range there.
const RANGE_AT: u64 = 4096 + (64 << 10);

fn garble(deep: &Path, at: u64, len: u64) {
    let bytes = vec![0x5a; len as usize];
    let file = opened(deep);
    file.write_all_at(&bytes, RANGE_AT + at).expect("a disk");
}

/// A file to be read and written by hand.
fn opened(path: &Path) -> std::fs::File {
    let mut options = std::fs::File::options();
    let file = options.read(true).write(true).open(path);
    file.expect("it is there")
}

/// Everything that was acknowledged, whoever opens it and however often.
#[test]
fn what_was_acknowledged_is_there() {
    let (mut promoted, mut demoted, mut staged) = (0, 0, 0);
    for seed in 0..10 {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let ground = Ground::two(4 * MIB, 16 * MIB);
        let (mut model, mut all) = (Model::new(), true);
        for round in 0..6 {
            let rig = ground.go_on(Durability::Crash);
            assert_eq!(begins(&rig).is_found(), round > 0);
            let mut w = rig.worker(0);
            let early = rng.bool();
            if early {
                compare(&mut w, &model, all);
            }
            staged += deep_figures(&rig).stages.0;
            changes(&mut w, &mut model, rng, rng.clone().usize(1..1500));
            all &= evictions(&rig) == 0;
            compare(&mut w, &model, all);
            if rng.bool() {
                sweep(&mut w);
                let there = compare(&mut w, &model, all);
                assert_eq!(rig.store.figures().items as usize, there);
            }
            let figures = deep_figures(&rig);
            promoted += figures.promotions;
            demoted += figures.demotions;
            assert_eq!(figures.lost, 0);
            if rng.u8(..4) == 0 {
                rig.store.close().expect("a disk");
            }
        }
    }
    assert!(promoted > 100 && demoted > 2000, "{promoted} {demoted}");
    assert!(staged > 20, "{staged} stages were in use after a start");
}

/// A copy is taken between any two steps, of which one sets off a write and another takes in that
/// it is done.
#[test]
fn whenever_it_is_left_between_two_steps_all_is_there() {
    let (size, deep_len) = (2 * MIB, 8 * MIB);
    let ground = Ground::two(size, deep_len);
    let rig = ground.go_on(Durability::Crash);
    let mut w = rig.worker(0);
    let rng = &mut fastrand::Rng::with_seed(1);
    let mut model = Model::new();
    changes(&mut w, &mut model, rng, 600);
    let (mut moments, mut writing, mut waiting) = (0, 0, 0);
    for step in 0..60 {
        match step % 3 {
            0 => (0..10).for_each(|_| {
                w.enter();
                change(&mut w, &mut model, rng);
            }),
            1 => {
                let lane = &mut w.tolls.lane(TENANT);
                let begun = w.store.write_back(&mut w.writer, lane, Instant(0));
                writing += u32::from(begun);
            }
            _ => drop(w.write_back()),
        }
        let copy = copy_of(&ground, size, deep_len);
        waiting += deep_figures(&rig).stages.0;
        // What there was then: some may have been evicted.
        let there = |&number: &u32| model.contains_key(&number);
        let numbers = (0..KEYS).filter(there);
        let had = numbers.filter_map(|number| Some((number, look(&mut w, &key(number))?)));
        let had: Model = had.collect();
        for is_written in [false, true] {
            let rig = copy.go_on(Durability::Crash);
            assert_eq!(begins(&rig), Beginning::Killed);
            let mut again = rig.worker(0);
            if is_written {
                again.write_back();
                sweep(&mut again);
                // Stages come free when nobody can be at them any more.
                again.enter();
                let lane = &mut again.tolls.lane(TENANT);
                again.store.expire(&mut again.writer, lane, again.now);
                let stages = deep_figures(&rig).stages.0;
                assert_eq!(stages, 0, "what waited was written");
            }
            compare(&mut again, &had, true);
            assert_eq!(deep_figures(&rig).lost, 0);
            moments += 1;
        }
        // And once more, when all was written from the stages.
        let rig = copy.go_on(Durability::Crash);
        compare(&mut rig.worker(0), &had, true);
    }
    assert!(
        moments > 100 && writing > 5 && waiting > 50,
        "{moments} {writing} {waiting}"
    );
}

/// A store most of whose items are deep and written, and what it holds.
fn left(ground: &Ground) -> Model {
    let rig = ground.go_on(Durability::Crash);
    let mut w = rig.worker(0);
    let mut model = Model::new();
    let rng = &mut fastrand::Rng::with_seed(9);
    changes(&mut w, &mut model, rng, 3000);
    model.retain(|&number, _| look(&mut w, &key(number)).is_some());
    assert!(model.len() > 400 && evictions(&rig) < 20);
    assert!(deep_figures(&rig).live_bytes > MIB / 2);
    model
}

/// How many items are found, in a store that loses those on the deep device, and goes on.
fn without_deep(rig: &Rig, model: &Model, why: &str) -> usize {
    let mut w = rig.worker(0);
    let loss = rig.store.deep_loss().expect("it is told");
    assert!(loss.why.contains(why), "{loss:?}");
    let there = compare(&mut w, model, false);
    let gone = (model.len() - there) as u64;
    assert!(
        loss.segments > 5 && loss.items >= gone && gone > 100,
        "{loss:?}, {gone} are gone"
    );
    assert!(
        there > 100,
        "those on the fast device stay, and {there} are there"
    );
    sweep(&mut w);
    let revived = rig.store.revived().expect("it was found");
    assert_eq!(revived.dropped, gone, "each was counted");
    assert_eq!(rig.store.figures().items as usize, there);
    let mut model: Model = model.clone();
    model.retain(|&number, _| look(&mut w, &key(number)).is_some());
    assert_eq!(compare(&mut w, &model, true), there);
    changes(&mut w, &mut model, &mut fastrand::Rng::with_seed(2), 3000);
    let all = rig.store.figures().evictions == 0;
    compare(&mut w, &model, all);
    there
}

#[test]
fn another_deep_device_has_nothing_of_it() {
    let ground = Ground::two(4 * MIB, 16 * MIB);
    let model = left(&ground);
    // The same bytes, and another id: it is the id that says whose they are.
    std::fs::remove_file(ground.deep_path()).expect("the deep file");
    let rig = ground.go_on(Durability::Crash);
    let staged = deep_figures(&rig);
    assert!(staged.stages.0 > 0 && staged.segments.0 == staged.stages.0);
    without_deep(&rig, &model, "another one");
    drop(rig);
    let rig = ground.go_on(Durability::Crash);
    assert_eq!(rig.store.deep_loss(), None, "it is its own now");
}

fn with_part(ground: &Ground, change: impl Fn(DeepPart) -> DeepPart) -> StoreConfig {
    let config = ground.config(Durability::Crash);
    let deep = config.deep.map(change);
    StoreConfig { deep, ..config }
}

#[test]
fn another_range_has_nothing_of_it() {
    for (base, len) in [(0, 16 * MIB), (64 << 10, 8 * MIB), (64 << 10, 20 * MIB)] {
        let ground = Ground::two(4 * MIB, 16 * MIB);
        let model = left(&ground);
        if len > 16 * MIB {
            // A longer file with the same id.
            let file = opened(&ground.deep_path());
            let mut block = vec![0; 4096];
            file.read_exact_at(&mut block, 0).expect("its begin");
            block[16..24].copy_from_slice(&(32 * MIB).to_le_bytes());
            let check = xxhash_rust::xxh3::xxh3_64(&block[..48]);
            block[48..56].copy_from_slice(&check.to_le_bytes());
            file.set_len(4096 + 32 * MIB).expect("a disk");
            file.write_all_at(&block, 0).expect("a disk");
        }
        let config = with_part(&ground, |part| DeepPart { base, len, ..part });
        let rig = ground.open(config.clone());
        without_deep(&rig, &model, "range");
        let figures = deep_figures(&rig);
        assert_eq!(u64::from(figures.segments.1), len / SEGMENT);
        drop(rig);
        let rig = ground.open(config);
        assert_eq!(rig.store.deep_loss(), None);
    }
}

#[test]
fn without_a_deep_device_and_with_its_first_fast_items_stay() {
    let ground = Ground::two(4 * MIB, 16 * MIB);
    let model = left(&ground);
    let len = || std::fs::metadata(ground.image()).expect("the image").len();
    let before = len();
    let alone = StoreConfig {
        deep: None,
        ..ground.config(Durability::Crash)
    };
    let rig = ground.open(alone.clone());
    let there = without_deep(&rig, &model, "no deep device any more");
    assert!(there > 0 && len() < before);
    drop(rig);
    let rig = ground.open(alone);
    let mut w = rig.worker(0);
    for number in 0..50 {
        w.store(&key(number), &value_of(&key(number), 77, 900));
    }
    drop(w);
    drop(rig);
    // The device that it had, with the bytes that it left there.
    let rig = ground.go_on(Durability::Crash);
    let mut w = rig.worker(0);
    assert_eq!((rig.store.deep_loss(), len()), (None, before));
    for number in 0..50 {
        let value = value_of(&key(number), 77, 900);
        assert_eq!(w.get(&key(number)), Some(value));
    }
    assert_eq!(deep_figures(&rig).live_bytes, 0);
    let mut model = Model::new();
    (0..KEYS).for_each(|number| {
        let hash = w.hash(&key(number));
        let lane = &mut w.tolls.lane(TENANT);
        let now = w.now;
        w.store.delete(
            &mut w.writer,
            lane,
            &key(number),
            hash,
            Condition::Always,
            now,
        );
    });
    changes(&mut w, &mut model, &mut fastrand::Rng::with_seed(3), 3000);
    assert!(deep_figures(&rig).demotions > 300);
    compare(&mut w, &model, true);
}

/// The keys in the last chunk of a deep segment that the image of a store of `size` bytes has, in
/// their order: what the next chunk is that a store takes when it has forgotten them.
fn keys_of_last_chunk(image: &Path, size: u64, deep_len: u64) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(image).expect("the image");
    let word = |at: u64| {
        let bytes = &bytes[at as usize..][..4];
        u32::from_le_bytes(bytes.try_into().expect("4 bytes"))
    };
    let entry = |chunk: u64| 6 * PAGE + 24 * chunk;
    let is_deep = |&chunk: &u64| u64::from(word(entry(chunk) + 8)) >= size / SEGMENT;
    let last = (0..size / CHUNK).rev().find(is_deep).expect("one is deep");
    let mut at = table_at(image, size, deep_len) - PAGE - size + last * CHUNK;
    let mut keys = Vec::new();
    // Keys of one length, without flags, end and CAS unique.
    while word(at + 4) >> 24 == 10 {
        keys.push(bytes[at as usize + 12..][..10].to_vec());
        at += 32;
    }
    keys
}

const CHUNK: u64 = 16 << 10;

/// Entries of the index that lead to what was forgotten are not taken for what lies there since.
#[test]
fn what_is_stored_where_it_lay_before_stays() {
    let (size, deep_len) = (2 * MIB, 8 * MIB);
    let ground = Ground::two(size, deep_len);
    let config = || StoreConfig {
        eviction: Eviction::Fifo,
        ..ground.config(Durability::Crash)
    };
    let rig = ground.open(config());
    let mut w = rig.worker(0);
    for number in 0..8000 {
        w.enter();
        w.store(&key(number), &value_of(&key(number), 1, 300));
        w.write_back();
    }
    drop(w);
    drop(rig);
    let keys = keys_of_last_chunk(&ground.image(), size, deep_len);
    assert!(keys.len() > 50, "{}", keys.len());
    let rig = ground.open(StoreConfig {
        deep: None,
        ..config()
    });
    let mut w = rig.worker(0);
    for key in &keys {
        w.store(key, &value_of(key, 2, 300));
        assert!(look(&mut w, key) == Some(value_of(key, 2, 300)));
    }
    sweep(&mut w);
    for key in &keys {
        assert!(look(&mut w, key) == Some(value_of(key, 2, 300)));
    }
    // Nor when the index is made anew from what is not marked as dead.
    drop(w);
    drop(rig);
    let image = nyx_media::Image::look(&ground.image()).expect("an image");
    let about = nyx_store::About::of_image(&image.expect("it was begun")).expect("a tenant's");
    let rig = ground.open(about.store(&ground.image(), Purpose::Repair));
    let mut w = rig.worker(0);
    for key in &keys {
        assert!(look(&mut w, key) == Some(value_of(key, 2, 300)));
    }
}

/// The entries of deep segments become zero before the image says that it has another device.
#[test]
fn a_kill_while_the_deep_device_changes_leaves_what_is_fast() {
    let (size, deep_len) = (4 * MIB, 16 * MIB);
    let ground = Ground::two(size, deep_len);
    let model = left(&ground);
    let entries = table_at(&ground.image(), size, deep_len) + 64 * size / SEGMENT;
    let image = opened(&ground.image());
    let half = vec![0; (64 * deep_len / SEGMENT / 2) as usize];
    let len = std::fs::metadata(ground.image())
        .expect("it is there")
        .len();
    image.write_all_at(&half, entries).expect("a disk");
    image.set_len(len + 3 * MIB).expect("a disk");
    let rig = ground.go_on(Durability::Crash);
    assert_eq!(rig.store.deep_loss(), None, "it has the device that it had");
    let mut w = rig.worker(0);
    let there = compare(&mut w, &model, false);
    assert!(there > 100 && there < model.len(), "{there}");
    let mut model = model;
    model.retain(|&number, _| look(&mut w, &key(number)).is_some());
    changes(&mut w, &mut model, &mut fastrand::Rng::with_seed(4), 2000);
    let all = evictions(&rig) == 0;
    compare(&mut w, &model, all);
}

#[test]
fn a_journal_is_refused_before_anything_is_touched() {
    let ground = Ground::two(4 * MIB, 16 * MIB);
    let mut config = ground.config(Durability::Crash);
    assert!(config.check().is_ok());
    let keep = config.keep.as_mut().expect("it survives");
    let dir = ground.image().with_file_name("journal");
    keep.journal = Some(Journaling {
        dir: dir.clone(),
        name: keep.name.clone(),
        sync: SyncMode::Each,
        file_bytes: None,
    });
    let told = config
        .check()
        .expect_err("it has a deep device")
        .to_string();
    assert_eq!(
        told,
        "a tenant with a deep device has no journal yet: leave out sync, or the deep device"
    );
    assert_eq!(ground.refusal(config.clone()), told);
    assert!(!ground.image().exists() && !dir.exists());
    config.deep = None;
    assert!(config.check().is_ok());
}

#[test]
fn a_deep_file_that_was_cut_is_refused_with_its_lengths() {
    let ground = Ground::two(4 * MIB, 16 * MIB);
    left(&ground);
    let file = opened(&ground.deep_path());
    file.set_len(MIB).expect("a disk");
    let refused = DeepFile::open(&ground.deep_path(), None).expect_err("it was cut");
    assert!(refused.to_string().contains("truncated"), "{refused}");
}

/// What is on the deep device is compared with its check, however the image was left.
#[test]
fn garbled_bytes_are_missed_and_counted() {
    for is_closed in [false, true] {
        let ground = Ground::two(4 * MIB, 16 * MIB);
        let model = left(&ground);
        if is_closed {
            let rig = ground.go_on(Durability::Crash);
            rig.store.close().expect("a disk");
        }
        // A write that was torn: of each 8 KiB the second half is something else.
        for at in (0..16 * MIB).step_by(8 << 10) {
            garble(&ground.deep_path(), at + 4096, 4096);
        }
        let rig = ground.go_on(Durability::Crash);
        let mut w = rig.worker(0);
        if is_closed {
            sweep(&mut w);
        }
        let there = compare(&mut w, &model, false);
        let lost = deep_figures(&rig).lost;
        assert_eq!(lost as usize, model.len() - there);
        assert!(lost > 50 && there > 150, "{lost} lost, {there} there");
        sweep(&mut w);
        assert_eq!(rig.store.figures().items as usize, there);
    }
}

#[test]
fn live_bytes_of_deep_segments_are_known_when_the_sweep_is_over() {
    let ground = Ground::two(4 * MIB, 16 * MIB);
    let model = left(&ground);
    let rig = ground.go_on(Durability::Crash);
    let mut w = rig.worker(0);
    sweep(&mut w);
    let figures = (rig.store.figures(), deep_figures(&rig));
    let bytes: u64 = model.values().map(|value| value.len() as u64).sum();
    let live = figures.0.live_bytes - figures.1.twin_bytes;
    // Heads, keys and checks of some forty bytes beside.
    assert!(
        (bytes..bytes + 64 * model.len() as u64).contains(&live),
        "{live} of {bytes}"
    );
    assert!(figures.1.live_bytes > MIB / 2 && figures.1.live_bytes < live);
    assert!(figures.1.twin_bytes > 10_000, "{:?}", figures.1);
    assert!(figures.1.key_bytes > 0 && rig.store.figures().used_bytes <= 4 * MIB);
    // All of it goes, and so does the room that it took.
    for number in 0..KEYS {
        let (hash, now) = (w.hash(&key(number)), w.now);
        let lane = &mut w.tolls.lane(TENANT);
        w.store.delete(
            &mut w.writer,
            lane,
            &key(number),
            hash,
            Condition::Always,
            now,
        );
    }
    let after = deep_figures(&rig);
    let left = (
        after.live_bytes,
        after.twin_bytes,
        rig.store.figures().items,
    );
    assert_eq!(left, (0, 0, 0));
}

/// The index made anew finds what is deep, staged and fast.
#[test]
fn an_index_made_anew_has_what_is_deep() {
    let ground = Ground::two(4 * MIB, 16 * MIB);
    let model = left(&ground);
    let image = nyx_media::Image::look(&ground.image()).expect("an image");
    let about = nyx_store::About::of_image(&image.expect("it was begun")).expect("a tenant's");
    let deep = about.deep.expect("it has a deep part");
    assert_eq!((deep.base, deep.len), (64 << 10, 16 * MIB));
    let rig = ground.open(about.store(&ground.image(), Purpose::Repair));
    let Beginning::Remade { from, .. } = begins(&rig) else {
        panic!("{:?}", begins(&rig));
    };
    assert_eq!(from.items as usize, model.len());
    rig.store.close().expect("a disk");
    drop(rig);
    let rig = ground.go_on(Durability::Warm);
    assert_eq!(begins(&rig), Beginning::Stopped);
    compare(&mut rig.worker(0), &model, true);
}

#[test]
fn who_looks_is_told_what_is_deep_and_was_not_looked_at() {
    let ground = Ground::two(4 * MIB, 16 * MIB);
    let model = left(&ground);
    let image = nyx_media::Image::look(&ground.image()).expect("an image");
    let about = nyx_store::About::of_image(&image.expect("it was begun")).expect("a tenant's");
    let before = std::fs::read(ground.image()).expect("the image");
    let rig = ground.open(about.store(&ground.image(), Purpose::Look));
    let mut w = rig.worker(0);
    let lane = &mut w.tolls.lane(TENANT);
    let now = w.now;
    let health = rig.store.examine(Some(lane), now, &mut |_, _| ());
    let health = health.expect("it survives");
    let deep = health.deep.expect("it has a deep part");
    assert_eq!(health.items as usize, model.len());
    assert_eq!((health.damaged, health.unreachable), (0, 0));
    let staged = stages_of(&ground.image(), 4 * MIB, 16 * MIB);
    let staged = staged.iter().filter(|(_, stage)| *stage != 0).count();
    assert_eq!(deep.stages, (staged as u64, 4));
    assert_eq!((deep.segments.1, health.segments.1), (256, 64 + 256));
    assert!(deep.segments.0 > 5 && deep.items > 100 && deep.items < health.items);
    assert!(deep.value_bytes > MIB / 2 && deep.value_bytes < health.value_bytes);
    let device = rig.deep.as_ref().expect("there is one");
    assert_eq!((device.figures().reads, device.figures().writes), (0, 0));
    drop(w);
    drop(rig);
    let after = std::fs::read(ground.image()).expect("the image");
    assert!(before == after, "who looks changes nothing");
}

/// Whatever an image says after it was damaged, stages included: what is found is what was stored.
#[test]
fn a_damaged_image_gives_no_wrong_value() {
    let (size, deep_len) = (2 * MIB, 8 * MIB);
    let ground = Ground::two(size, deep_len);
    let rig = ground.go_on(Durability::Crash);
    let mut w = rig.worker(0);
    let (mut model, rng) = (Model::new(), &mut fastrand::Rng::with_seed(5));
    changes(&mut w, &mut model, rng, 800);
    drop(w);
    drop(rig);
    let golden = std::fs::read(ground.image()).expect("the image");
    let deep = std::fs::read(ground.deep_path()).expect("the deep file");
    let medium = {
        let mut bytes = vec![0; size as usize];
        ground.media.read(&mut Front::default(), 0, &mut bytes);
        bytes
    };
    let used = used_lines(&golden, 0);
    let table = table_at(&ground.image(), size, deep_len) as usize;
    let (mut refused, mut found, mut lost) = (0, 0, 0);
    for round in 0..250 {
        let mut image = golden.clone();
        match round % 2 {
            0 => damage(&mut image, &used, rng),
            // The entries of segments alone: stages that are none, or another's.
            _ => (0..rng.usize(1..20)).for_each(|_| {
                let segment = rng.usize(..((size + deep_len) / SEGMENT) as usize);
                let word = table + 64 * segment + 4 * rng.usize(..11);
                let value = match rng.bool() {
                    true => rng.u32(..6),
                    false => rng.u32(..),
                };
                image[word..word + 4].copy_from_slice(&value.to_le_bytes());
            }),
        }
        std::fs::write(ground.image(), &image).expect("a disk");
        std::fs::write(ground.deep_path(), &deep).expect("a disk");
        ground
            .media
            .write(&mut Front::default(), 0, &medium, Via::Cached);
        let opened = ground.try_open(ground.config(Durability::Crash));
        let Some(rig) = opened.ok().filter(|rig| begins(rig).is_found()) else {
            refused += 1;
            continue;
        };
        let mut w = rig.worker(0);
        w.write_back();
        for is_swept in [false, true] {
            if is_swept {
                sweep(&mut w);
            }
            let there = compare(&mut w, &model, false);
            found += there;
            lost += model.len() - there;
        }
        w.set(b"new", b"value");
        assert_eq!(w.get(b"new").as_deref(), Some(&b"value"[..]));
    }
    assert!(
        refused > 5 && found > 20_000 && lost > 500,
        "{refused} {found} {lost}"
    );
}

/// A store some of whose items were read often and came back, and have twins: their numbers.
fn mirrored(ground: &Ground) -> Vec<u32> {
    let rig = ground.open(fifo(ground));
    let mut w = rig.worker(0);
    for number in 0..9000 {
        w.enter();
        w.store(&key(number), &value_of(&key(number), 0, 1000));
        w.write_back();
    }
    // Whose segments are not full have no twin yet; those are the last that were written.
    for number in (0..1000).chain(0..1000) {
        w.enter();
        assert!(w.get(&key(number)).is_some());
        w.write_back();
    }
    assert_eq!(deep_figures(&rig).promotions, 1000);
    if ground.image().exists() {
        rig.store.close().expect("a disk");
    }
    (0..1000).collect()
}

/// What is older leaves first, used or not.
fn fifo(ground: &Ground) -> StoreConfig {
    StoreConfig {
        eviction: Eviction::Fifo,
        ..ground.config(Durability::Crash)
    }
}

/// Stores something else until all that was on the fast device has left it.
fn fill_fast(w: &mut Worker<'_>) {
    for number in 20_000..25_500 {
        w.enter();
        w.store(&key(number), &value_of(&key(number), 0, 1000));
        w.write_back();
    }
}

#[test]
fn twins_are_found_again_and_make_leaving_free() {
    for sweeps in [false, true] {
        let ground = Ground::two(8 * MIB, 32 * MIB);
        let mirrored = mirrored(&ground);
        let rig = ground.open(fifo(&ground));
        let mut w = rig.worker(0);
        if sweeps {
            sweep(&mut w);
        }
        fill_fast(&mut w);
        sweep(&mut w);
        let figures = deep_figures(&rig);
        // Those that were promoted before their segment was full had none.
        assert!((900..=1000).contains(&figures.returns), "{figures:?}");
        for &number in &mirrored {
            let value = value_of(&key(number), 0, 1000);
            assert!(
                look(&mut w, &key(number)) == Some(value),
                "{number} {figures:?}"
            );
        }
        assert_eq!(
            (figures.lost, figures.lost_twins, evictions(&rig)),
            (0, 0, 0)
        );
    }
}

#[test]
fn twins_that_are_found_again_die_with_their_items() {
    for sweeps in [false, true] {
        let ground = Ground::two(8 * MIB, 32 * MIB);
        let mirrored = mirrored(&ground);
        let rig = ground.open(fifo(&ground));
        let mut w = rig.worker(0);
        if sweeps {
            sweep(&mut w);
        }
        for &number in &mirrored {
            let (key, now) = (key(number), w.now);
            let hash = w.hash(&key);
            if number % 2 == 0 {
                w.store(&key, &value_of(&key, 1, 1000));
                continue;
            }
            let lane = &mut w.tolls.lane(TENANT);
            w.store
                .delete(&mut w.writer, lane, &key, hash, Condition::Always, now);
        }
        sweep(&mut w);
        let live = deep_figures(&rig).live_bytes;
        fill_fast(&mut w);
        let version = |number: u32| {
            number
                .is_multiple_of(2)
                .then(|| value_of(&key(number), 1, 1000))
        };
        for &number in &mirrored {
            assert!(look(&mut w, &key(number)) == version(number), "{number}");
        }
        // What is deep counts no dead twin.
        let figures = deep_figures(&rig);
        assert_eq!((figures.twin_bytes, figures.returns), (0, 0));
        assert!(live < 9000 * 1100 - 3 * MIB, "{live} B");
        drop(w);
        drop(rig);
        // Nor does any come back where the index is made anew.
        let image = nyx_media::Image::look(&ground.image()).expect("an image");
        let about = nyx_store::About::of_image(&image.expect("it was begun")).expect("a tenant's");
        let rig = ground.open(about.store(&ground.image(), Purpose::Repair));
        let mut w = rig.worker(0);
        for &number in &mirrored {
            assert!(look(&mut w, &key(number)) == version(number), "{number}");
        }
    }
}

#[test]
fn an_index_made_anew_keeps_items_and_their_twins() {
    let ground = Ground::two(8 * MIB, 32 * MIB);
    let mirrored = mirrored(&ground);
    let image = nyx_media::Image::look(&ground.image()).expect("an image");
    let about = nyx_store::About::of_image(&image.expect("it was begun")).expect("a tenant's");
    let rig = ground.open(about.store(&ground.image(), Purpose::Repair));
    let Beginning::Remade { from, .. } = begins(&rig) else {
        panic!("{:?}", begins(&rig));
    };
    assert_eq!((from.items, from.older), (9000, 0));
    rig.store.close().expect("a disk");
    drop(rig);
    let rig = ground.open(fifo(&ground));
    let mut w = rig.worker(0);
    fill_fast(&mut w);
    let figures = deep_figures(&rig);
    assert!((900..=1000).contains(&figures.returns), "{figures:?}");
    for &number in &mirrored {
        let value = value_of(&key(number), 0, 1000);
        assert!(look(&mut w, &key(number)) == Some(value), "{number}");
    }
}
