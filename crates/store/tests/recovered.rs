//! What a journal gives back where something went wrong before: a disk without room, damage, a kill
//! while it began anew.
//!
//! `journal.rs` plays power failures at any moment; here each moment is one of those that it does
//! not come to.

mod rig;

use nyx_base::UnixSeconds;
use nyx_media::Media;

use nyx_store::{Replayed, StoreConfig};
use rig::journaled::{config, media, open, replay, rewrite, sweep, sync};
use rig::{Rig, TENANT};
use std::fs;
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

    fn journal(&self) -> PathBuf {
        self.directory.path().join("journal")
    }

    fn open(&self) -> Rig {
        open(&self.media, self.config())
    }

    /// What a power failure leaves is the journal.
    fn lose_image(&self) {
        fs::remove_file(self.directory.path().join("image")).expect("the image");
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
