//! A store that has a journal, and what is done with it.
//!
//! What it never does: check anything but what the journal says of itself.

#![allow(dead_code, reason = "each test uses its part")]

use crate::rig::{Rig, TENANT, Worker, small};
use nyx_base::Instant;
use nyx_media::Media;
use nyx_media::mapped::Mapped;
use nyx_store::{Durability, Journaling, Keep, Purpose, Ready, Replayed, StoreConfig, SyncMode};
use std::path::Path;
use std::sync::Arc;

const FILE_BYTES: u64 = 300 << 10;

pub(crate) fn config(dir: &Path, size: u64) -> StoreConfig {
    let name = "test".to_owned();
    StoreConfig {
        keep: Some(Keep {
            path: dir.join("image"),
            name: name.clone(),
            durability: Durability::Crash,
            data_id: [7; 16],
            purpose: Purpose::Serve,
            journal: Some(Journaling {
                dir: dir.join("journal"),
                name,
                sync: SyncMode::Each,
                file_bytes: Some(FILE_BYTES),
            }),
        }),
        ..small(size)
    }
}

pub(crate) fn media(size: u64) -> Arc<dyn Media> {
    Arc::new(Mapped::anonymous(size).expect("memory"))
}

pub(crate) fn open(media: &Arc<dyn Media>, config: StoreConfig) -> Rig {
    Rig::on(media.clone(), config).expect("a good configuration, image and journal")
}

pub(crate) fn replay(worker: &mut Worker<'_>) -> Replayed {
    let lane = &mut worker.tolls.lane(TENANT);
    let (store, now) = (worker.store, worker.now);
    let replayed = store.replay(&mut worker.writer, lane, now, &mut |_| {});
    replayed.expect("a journal that can be read")
}

pub(crate) fn sync(worker: &Worker<'_>) {
    let durable = worker.store.sync(Instant(0)).expect("a disk");
    let journal = worker.store.journal().expect("a journal");
    assert_eq!((durable, journal.durable()), (journal.appended(), durable));
}

pub(crate) fn sync_if_needed(worker: &Worker<'_>) {
    let journal = worker.store.journal().expect("a journal");
    while journal.ready(Instant(0)) != Ready::Yes {
        sync(worker);
    }
}

/// Looks through all that was found in the image.
pub(crate) fn sweep(worker: &mut Worker<'_>) {
    while worker.store.sweep(&mut worker.tolls.lane(TENANT)) {}
}

/// Writes all of the store to its journal again, however many files that takes.
pub(crate) fn rewrite(worker: &mut Worker<'_>) {
    while worker.store.is_rewriting() {
        let lane = &mut worker.tolls.lane(TENANT);
        worker.store.rewrite(&mut worker.writer, lane, worker.now);
        sync(worker);
    }
}
