//! What a journal gives back where something went wrong before: a disk without room, damage, a kill
//! while it began anew.
//!
//! `journal.rs` plays power failures at any moment; here each moment is one of those that it does
//! not come to.

mod rig;

use nyx_base::UnixSeconds;
use nyx_media::Media;
use nyx_media::log::observe_syncs;
use nyx_store::{
    Condition, DeleteOutcome, Invalidation, Put, PutOutcome, Replayed, Side, StoreConfig,
    forget_journal,
};
use rig::journaled::{config, media, open, replay, rewrite, sweep, sync, sync_if_needed};
use rig::{Rig, TENANT, Worker};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use std::sync::Arc;

const SIZE: u64 = 4 << 20;

/// A medium that stays, and a directory for image and journal.
struct Place {
    directory: tempfile::TempDir,
    size: u64,
    media: Arc<dyn Media>,
}

impl Place {
    fn new() -> Place {
        Place {
            directory: tempfile::tempdir().expect("a temporary directory"),
            size: SIZE,
            media: media(SIZE),
        }
    }

    fn config(&self) -> StoreConfig {
        config(self.directory.path(), self.size)
    }

    fn without_journal(&self) -> StoreConfig {
        let mut without = self.config();
        without.keep.as_mut().expect("it survives").journal = None;
        without
    }

    fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    fn journal(&self) -> PathBuf {
        self.directory.path().join("journal")
    }

    fn open(&self) -> Rig {
        open(&self.media, self.config())
    }

    /// What a power failure leaves is the journal.
    fn lose_image(&self) {
        fs::remove_file(self.image()).expect("the image");
    }

    /// The values of some keys when the image was lost, and what was read.
    fn recovered<const N: usize>(&self, keys: [&[u8]; N]) -> ([Option<Vec<u8>>; N], Replayed) {
        self.lose_image();
        let rig = self.open();
        let mut worker = rig.worker(0);
        let replayed = replay(&mut worker);
        (keys.map(|key| worker.get(key)), replayed)
    }
}

fn append(worker: &mut Worker<'_>, key: &[u8], value: &[u8]) -> PutOutcome {
    let put = Put::set(key, worker.hash(key), value);
    let lane = &mut worker.tolls.lane(TENANT);
    let (store, w, now) = (worker.store, &mut worker.writer, worker.now);
    store.extend(w, lane, &put, Side::Append, now)
}

#[test]
fn a_rewriting_that_waits_for_room_leaves_the_journal_as_it_is() {
    let place = Place::new();
    {
        let rig = open(&place.media, place.without_journal());
        let worker = rig.worker(0);
        rig.store.flush(UnixSeconds(worker.now.0 + 50), worker.now);
    }
    let rig = place.open();
    let mut worker = rig.worker(0);
    sweep(&mut worker);
    let journal = rig.store.journal().expect("a journal");
    // Nobody syncs, so that there is no next file.
    for number in 0..14u32 {
        worker.store(&number.to_le_bytes(), &[0; 20_000]);
    }
    let appended = journal.appended();
    for _ in 0..20_000 {
        let lane = &mut worker.tolls.lane(TENANT);
        assert!(rig.store.rewrite(&mut worker.writer, lane, worker.now));
    }
    assert_eq!((journal.appended(), journal.trouble()), (appended, None));
    // With room the flush is told, once, however many steps there are.
    sync(&worker);
    rewrite(&mut worker);
    sync(&worker);
    worker.store(b"after", b"1");
    sync(&worker);
    place.lose_image();
    drop(worker);
    drop(rig);
    let rig = place.open();
    let mut worker = rig.worker(0);
    replay(&mut worker);
    assert_eq!(worker.get(b"after"), Some(b"1".to_vec()));
    worker.now.0 += 50;
    assert_eq!(worker.get(b"after"), None);
}

/// Changes a byte of the value of the only record that has this one.
fn damage(journal: &Path, value: &[u8]) {
    for entry in fs::read_dir(journal).expect("a directory") {
        let path = entry.expect("an entry").path();
        let mut bytes = fs::read(&path).expect("a file");
        let at = bytes.windows(value.len()).position(|some| some == value);
        if let Some(at) = at {
            bytes[at] ^= 1;
            fs::write(&path, bytes).expect("a file");
        }
    }
}

#[test]
fn behind_damage_what_is_set_can_be_appended_to() {
    let place = Place::new();
    {
        let rig = place.open();
        let mut worker = rig.worker(0);
        worker.store(b"before", b"1");
        worker.store(b"lost", b"damaged");
        worker.store(b"behind", b"1");
        append(&mut worker, b"before", b"2");
        append(&mut worker, b"behind", b"2");
        sync(&worker);
    }
    damage(&place.journal(), b"damaged");
    let (found, replayed) = place.recovered([b"before", b"lost", b"behind"]);
    assert_eq!(replayed.damaged, 1);
    // What the first was appended to may have been another one.
    assert_eq!(found, [None, None, Some(b"12".to_vec())]);
}

#[test]
fn a_journal_that_was_damaged_is_written_anew() {
    let place = Place::new();
    {
        let rig = place.open();
        let mut worker = rig.worker(0);
        worker.store(b"key", b"1");
        worker.store(b"lost", b"damaged");
        sync(&worker);
    }
    damage(&place.journal(), b"damaged");
    place.lose_image();
    {
        let rig = place.open();
        let mut worker = rig.worker(0);
        assert_eq!(replay(&mut worker).damaged, 1);
        assert!(rig.store.is_rewriting());
    }
    {
        // Killed before that came to its end.
        let rig = place.open();
        let mut worker = rig.worker(0);
        sweep(&mut worker);
        assert!(rig.store.is_rewriting());
        rewrite(&mut worker);
        sync(&worker);
        append(&mut worker, b"key", b"2");
        sync(&worker);
    }
    let (found, replayed) = place.recovered([b"key"]);
    assert_eq!((found, replayed.damaged), ([Some(b"12".to_vec())], 0));
}

/// Whether there is an item, without a use that would keep it.
fn is_there(worker: &mut Worker<'_>, key: &[u8]) -> bool {
    let hash = worker.hash(key);
    let lane = &mut worker.tolls.lane(TENANT);
    worker.store.get(lane, key, hash, worker.now).is_some()
}

#[test]
fn what_was_evicted_and_then_made_to_end_does_not_come_back() {
    let place = Place::new();
    let keys = [b"invalid".as_slice(), b"touched", b"cleared", b"evicted"];
    {
        let rig = place.open();
        let mut worker = rig.worker(0);
        for key in keys {
            worker.store(key, b"old");
        }
        let mut number = 0u32;
        while keys.iter().any(|key| is_there(&mut worker, key)) {
            sync_if_needed(&worker);
            worker.enter();
            worker.store(&number.to_le_bytes(), &[0; 20_000]);
            number += 1;
        }
        let hashes = keys.map(|key| worker.hash(key));
        let lane = &mut worker.tolls.lane(TENANT);
        let (store, w, now) = (worker.store, &mut worker.writer, worker.now);
        let asked = Invalidation {
            key: keys[0],
            hash: hashes[0],
            condition: Condition::Always,
            expiry: None,
            cas: None,
        };
        let outcome = store.invalidate(w, lane, &asked, now);
        assert_eq!(outcome, DeleteOutcome::NotFound);
        let touched = store.touch(w, lane, keys[1], hashes[1], now, now);
        assert!(!touched.is_touched());
        let outcome = store.delete(w, lane, keys[2], hashes[2], Condition::Absent, now);
        assert_eq!(outcome, DeleteOutcome::NotFound);
        sync(&worker);
    }
    // With more room, so that nothing is evicted again.
    let larger = Place {
        size: 4 * SIZE,
        media: media(4 * SIZE),
        ..place
    };
    let (found, _) = larger.recovered(keys);
    assert_eq!(found, [None, None, None, Some(b"old".to_vec())]);
}

/// What there is in a directory, and in the one in it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        match entry.file_type().expect("a type").is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).expect("a file")),
        }
    }
}

#[test]
fn a_kill_while_a_journal_begins_anew_leaves_it_to_be_written() {
    let place = Place::new();
    let set = |config: StoreConfig, value: &[u8]| {
        let rig = open(&place.media, config);
        let mut worker = rig.worker(0);
        worker.store(b"key", value);
    };
    set(place.config(), b"1");
    set(place.without_journal(), b"2");
    let killed = Place {
        media: place.media.clone(),
        ..Place::new()
    };
    let (from, to) = (
        place.directory.path().to_owned(),
        killed.directory.path().to_owned(),
    );
    observe_syncs(Some(Box::new(move |_| copy(&from, &to))));
    drop(place.open());
    observe_syncs(None);
    {
        let rig = killed.open();
        let mut worker = rig.worker(0);
        assert!(!rig.store.is_to_replay());
        sweep(&mut worker);
        assert!(
            rig.store.is_rewriting(),
            "the journal has none of the image"
        );
        rewrite(&mut worker);
        sync(&worker);
    }
    let (found, _) = killed.recovered([b"key"]);
    assert_eq!(found, [Some(b"2".to_vec())]);
}

#[test]
fn a_touch_for_which_there_is_no_room_removes_its_item() {
    let place = Place::new();
    let rig = place.open();
    let mut worker = rig.worker(0);
    worker.store(b"key", b"1");
    // Nobody syncs, so that there is no next file.
    for _ in 0..20_000 {
        worker.set(b"other", b"");
    }
    let expiry = UnixSeconds(worker.now.0 + 50);
    let hash = worker.hash(b"key");
    let lane = &mut worker.tolls.lane(TENANT);
    let (store, w, now) = (worker.store, &mut worker.writer, worker.now);
    let touched = store.touch(w, lane, b"key", hash, expiry, now);
    assert!(!touched.is_touched());
    assert!(!is_there(&mut worker, b"key"), "with its old end");
    sync(&worker);
    drop(worker);
    drop(rig);
    assert_eq!(place.recovered([b"key"]).0, [None]);
}

#[test]
fn what_many_workers_were_changing_is_told_however_long_it_is() {
    let place = Place::new();
    let keys: Vec<Vec<u8>> = (0..30u8).map(|number| vec![b'k', number]).collect();
    let hashes: Vec<u64>;
    {
        let rig = open(&place.media, place.without_journal());
        let mut worker = rig.worker(0);
        for key in &keys {
            worker.store(key, &[1; 30_000]);
        }
        hashes = keys.iter().map(|key| worker.hash(key).0).collect();
    }
    drop(place.open());
    // `docs/format.md`: the journal has all but what is being changed.
    let image = fs::OpenOptions::new().write(true).open(place.image());
    let image = image.expect("the image");
    let intents = hashes.iter().zip(1032..).map(|(&hash, word)| (word, hash));
    for (word, value) in intents.chain([(3, 1)]) {
        let written = image.write_all_at(&u64::to_le_bytes(value), 4096 + 8 * word);
        written.expect("a word");
    }
    {
        let rig = place.open();
        let mut worker = rig.worker(0);
        assert!(rig.store.is_to_replay());
        replay(&mut worker);
        assert!(!rig.store.is_rewriting());
        sync(&worker);
    }
    place.lose_image();
    let rig = place.open();
    let mut worker = rig.worker(0);
    replay(&mut worker);
    for key in &keys {
        assert!(is_there(&mut worker, key), "{key:?}");
    }
}

#[test]
fn a_journal_is_one_servers() {
    let place = Place::new();
    let rig = place.open();
    let mut other = place.config();
    other.keep.as_mut().expect("it survives").path = place.directory.path().join("other");
    let refused = Rig::on(place.media.clone(), other.clone()).err();
    let refused = refused.expect("it is in use").to_string();
    assert!(refused.contains("journal: in use by another"), "{refused}");
    assert!(forget_journal(&place.journal()).is_err());
    assert!(place.journal().exists());
    drop(rig);
    assert!(Rig::on(place.media.clone(), other).is_ok());
}
