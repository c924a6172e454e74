//! A store that survives, and everything that changes what it holds.
//!
//! What it never does: check anything but what a change returns.

#![allow(dead_code, reason = "each test uses its part")]

use crate::rig::{Rig, TENANT, Worker, deep, small, value_of};
use nyx_base::UnixSeconds;
use nyx_media::Media;
use nyx_media::mapped::Mapped;
use nyx_store::{
    Beginning, Condition, DeleteOutcome, Durability, Keep, Purpose, Put, PutOutcome, Side,
    StoreConfig, StoreError,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A medium that stays and a place for an image, and for a deep file where there is one.
pub(crate) struct Ground {
    pub(crate) media: Arc<dyn Media>,
    directory: tempfile::TempDir,
    size: u64,
    deep_len: Option<u64>,
}

impl Ground {
    pub(crate) fn new(size: u64) -> Ground {
        Ground {
            media: Arc::new(Mapped::anonymous(size).expect("memory")),
            directory: tempfile::tempdir().expect("a temporary directory"),
            size,
            deep_len: None,
        }
    }

    /// One with so many bytes of a deep device.
    pub(crate) fn two(size: u64, deep_len: u64) -> Ground {
        Ground {
            deep_len: Some(deep_len),
            ..Ground::new(size)
        }
    }

    pub(crate) fn deep_path(&self) -> PathBuf {
        self.directory.path().join("deep")
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    pub(crate) fn config(&self, durability: Durability) -> StoreConfig {
        StoreConfig {
            keep: Some(Keep {
                path: self.image(),
                name: "test".to_owned(),
                durability,
                data_id: [7; 16],
                purpose: Purpose::Serve,
                journal: None,
            }),
            ..self
                .deep_len
                .map_or_else(|| small(self.size), |len| deep(self.size, len))
        }
    }

    pub(crate) fn open(&self, config: StoreConfig) -> Rig {
        self.try_open(config)
            .expect("a good configuration and image")
    }

    pub(crate) fn try_open(&self, config: StoreConfig) -> Result<Rig, StoreError> {
        Rig::on_both(self.media.clone(), Some(&self.deep_path()), config)
    }

    pub(crate) fn go_on(&self, durability: Durability) -> Rig {
        self.open(self.config(durability))
    }

    pub(crate) fn refusal(&self, config: StoreConfig) -> String {
        let refused = self.try_open(config).err();
        refused.expect("the image does not fit").to_string()
    }
}

pub(crate) fn key(number: u32) -> Vec<u8> {
    format!("key:{number:06}").into_bytes()
}

pub(crate) fn sweep(worker: &mut Worker<'_>) {
    while worker.store.sweep(&mut worker.tolls.lane(TENANT)) {}
    assert!(
        worker
            .store
            .revived()
            .is_none_or(|it| it.chains == it.chains_all)
    );
}

pub(crate) fn begins(rig: &Rig) -> Beginning {
    rig.store.beginning().expect("it survives").clone()
}

/// One of everything that changes an item.
pub(crate) fn change(
    worker: &mut Worker<'_>,
    model: &mut BTreeMap<u32, Vec<u8>>,
    rng: &mut fastrand::Rng,
) {
    let number = rng.u32(..400);
    let key = key(number);
    let hash = worker.hash(&key);
    let value = value_of(&key, rng.u64(..), rng.usize(..300));
    let lane = &mut worker.tolls.lane(TENANT);
    let (store, w, now) = (worker.store, &mut worker.writer, worker.now);
    match rng.u8(..10) {
        0..=4 => {
            let flags = rng.u32(..3);
            let expiry = match rng.bool() {
                true => UnixSeconds::NEVER,
                false => UnixSeconds(now.0 + 1000),
            };
            let put = Put {
                flags,
                expiry,
                ..Put::set(&key, hash, &value)
            };
            let outcome = store.put(w, lane, &put, now);
            assert!(matches!(outcome, PutOutcome::Stored { .. }), "{outcome:?}");
            model.insert(number, value);
        }
        5 => {
            let put = Put {
                condition: Condition::Absent,
                ..Put::set(&key, hash, &value)
            };
            let stored = matches!(store.put(w, lane, &put, now), PutOutcome::Stored { .. });
            assert_eq!(stored, !model.contains_key(&number));
            model.entry(number).or_insert(value);
        }
        6 => {
            let put = Put::set(&key, hash, &value);
            let outcome = store.extend(w, lane, &put, Side::Append, now);
            match model.get_mut(&number) {
                Some(old) => old.extend(&value),
                None => assert_eq!(outcome, PutOutcome::NotStored),
            }
        }
        7 => {
            let touched = store.touch(w, lane, &key, hash, UnixSeconds(now.0 + 2000), now);
            assert_eq!(touched.is_touched(), model.contains_key(&number));
        }
        _ => {
            let outcome = store.delete(w, lane, &key, hash, Condition::Always, now);
            let was_there = model.remove(&number).is_some();
            assert_eq!(outcome == DeleteOutcome::Deleted, was_there);
        }
    }
}

pub(crate) fn compare(worker: &mut Worker<'_>, model: &BTreeMap<u32, Vec<u8>>) {
    for number in 0..400 {
        let found = worker.get(&key(number));
        assert_eq!(found.as_ref(), model.get(&number), "key {number}");
    }
}

/// The lines of an image, from byte `from` on, in which anything is.
pub(crate) fn used_lines(image: &[u8], from: usize) -> Vec<usize> {
    (from / 64..image.len() / 64)
        .filter(|line| image[line * 64..][..64].iter().any(|&byte| byte != 0))
        .collect()
}

/// Changes some of these lines: a bit, all of it, or into what another one is.
pub(crate) fn damage(image: &mut [u8], used: &[usize], rng: &mut fastrand::Rng) {
    for _ in 0..rng.usize(1..30) {
        let line = used[rng.usize(..used.len())] * 64;
        match rng.u8(..3) {
            0 => image[line + rng.usize(..64)] ^= 1 << rng.u8(..8),
            1 => image[line..line + 64].fill(rng.u8(..)),
            _ => {
                let other = used[rng.usize(..used.len())] * 64;
                image.copy_within(other..other + 64, line);
            }
        }
    }
}
