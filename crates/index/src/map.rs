//! A map in DRAM: the cache's own hash table ([`hash`](crate::hash)) over records of 16 bytes, for
//! whoever has values of 8 bytes and no items.
//!
//! What it never does: shrink.
//!
//! *Thread safety*: all methods take `&self`; a worker is within an era while it calls them.
//! Readers take no lock and wait only while the bucket that they read is being changed.

use crate::hash::{Hash, HashShape};
use crate::heap::{Class, Full, Heap};
use crate::ordered::{END, PutError, Unsound, together};
use crate::{Eras, Index, Place, Places};
use nyx_base::WorkerId;
use nyx_media::pmem::{Dram, Word};
use nyx_media::{MediaError, Pmem};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

const RECORD_BYTES: u64 = 16;
const CLASS: Class = match Class::of(RECORD_BYTES) {
    Some(class) => class,
    None => panic!("there are blocks of 16 bytes"),
};
/// What a [`Place`] counts in.
const PLACE_BYTES: u64 = 8;
/// Records of this many keys end where places do.
const KEYS_MAX: u64 = (1 << 32) * PLACE_BYTES / RECORD_BYTES / 2;

/// The hash of a key: its high bits and its low ones are as good as drawn.
#[inline]
pub(crate) fn hash_of(key: u64) -> u64 {
    let mixed = (key ^ key >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ mixed >> 32
}

/// The map.
#[derive(Debug)]
pub struct DramMap {
    hash: Hash,
    records: Heap<Dram>,
}

impl DramMap {
    /// An empty map for so many keys at most, whose memory is taken as it grows.
    pub fn new(keys_max: u64, eras: Arc<Eras>) -> Result<DramMap, MediaError> {
        let keys_max = keys_max.min(KEYS_MAX);
        let hash = Hash::new(HashShape {
            items_max: keys_max,
            workers: eras.workers(),
            huge: true,
        })?;
        hash.set_limit(u64::MAX);
        let records = Heap::in_dram(keys_max * RECORD_BYTES, eras)?;
        Ok(DramMap { hash, records })
    }

    /// The bytes of memory that it uses.
    pub fn bytes(&self) -> u64 {
        Places::bytes(&self.hash) + self.records.claimed_bytes()
    }

    /// How many keys it holds; exact while nobody changes it.
    pub fn len(&self) -> u64 {
        self.hash.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Asks for the memory that a look-up of `key` reads first to be brought near.
    #[inline]
    pub fn prefetch(&self, key: u64) {
        self.hash.prefetch(hash_of(key));
    }

    /// Gives `key` this value unless it has one. Tells whether it did.
    pub fn put_new(&self, worker: WorkerId, key: u64, value: u64) -> Result<bool, PutError> {
        let mut guard = self.hash.lock(worker, hash_of(key));
        if guard.find(|place| self.key(place) == key).is_some() {
            return Ok(false);
        }
        self.insert(worker, &mut guard, key, value)?;
        drop(guard);
        self.grow();
        Ok(true)
    }

    #[inline]
    fn record(&self, place: Place) -> &[Word] {
        let at = u64::from(place.0) * PLACE_BYTES;
        self.records.pm().words(at, 2)
    }

    #[inline]
    fn key(&self, place: Place) -> u64 {
        self.record(place)[0].load(Acquire)
    }

    fn insert(
        &self,
        worker: WorkerId,
        guard: &mut crate::Guard<'_>,
        key: u64,
        value: u64,
    ) -> Result<(), PutError> {
        let at = self.records.take(worker, CLASS)?;
        let place = Place((at / PLACE_BYTES) as u32);
        let record = self.record(place);
        self.records.pm().store(&record[0], key);
        self.records.pm().store(&record[1], value);
        guard.insert(place).map_err(|_| {
            self.records.give_back(worker, at);
            PutError::Full(Full {
                asked_bytes: RECORD_BYTES,
                heap_bytes: self.bytes(),
            })
        })
    }

    fn grow(&self) {
        while self.hash.is_crowded() {
            // Without room chains get longer; another worker may be at it.
            let hash = |place| hash_of(self.key(place));
            if self.hash.grow(|place| self.fetch(place), hash) != Ok(true) {
                return;
            }
        }
    }

    /// Asks for a record to be brought near.
    #[inline]
    fn fetch(&self, place: Place) {
        let at = u64::from(place.0) * PLACE_BYTES;
        self.records.pm().fetch(at, RECORD_BYTES as usize);
    }
}

impl Index for DramMap {
    #[inline]
    fn get(&self, key: u64) -> Result<Option<u64>, Unsound> {
        let place = self.hash.find(hash_of(key), |place| self.key(place) == key);
        Ok(place.map(|place| self.record(place)[1].load(Acquire)))
    }

    fn get_many(&self, keys: &[u64], values: &mut [Option<u64>]) -> Result<(), Unsound> {
        for (keys, values) in together(keys, values) {
            keys.iter().for_each(|&key| self.prefetch(key));
            for &key in keys {
                self.hash.find(hash_of(key), |place| {
                    self.fetch(place);
                    false
                });
            }
            for (&key, value) in keys.iter().zip(values) {
                *value = self.get(key)?;
            }
        }
        Ok(())
    }

    fn put(&self, worker: WorkerId, key: u64, value: u64) -> Result<Option<u64>, PutError> {
        PutError::check(key)?;
        let mut guard = self.hash.lock(worker, hash_of(key));
        if let Some(slot) = guard.find(|place| self.key(place) == key) {
            return Ok(Some(self.record(slot.place)[1].swap(value, AcqRel)));
        }
        self.insert(worker, &mut guard, key, value)?;
        drop(guard);
        self.grow();
        Ok(None)
    }

    fn remove(&self, worker: WorkerId, key: u64) -> Result<Option<u64>, PutError> {
        if key == END {
            return Ok(None);
        }
        let mut guard = self.hash.lock(worker, hash_of(key));
        let Some(slot) = guard.find(|place| self.key(place) == key) else {
            return Ok(None);
        };
        let value = self.record(slot.place)[1].load(Acquire);
        guard.remove(slot);
        drop(guard);
        self.records
            .retire(worker, u64::from(slot.place.0) * PLACE_BYTES);
        Ok(Some(value))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::DramMap;
    use crate::{Eras, Index};
    use nyx_base::{Rng, WorkerId};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    const W: WorkerId = WorkerId(0);

    fn map(keys_max: u64, workers: u16) -> (DramMap, Arc<Eras>) {
        let eras = Arc::new(Eras::new(workers));
        let map = DramMap::new(keys_max, eras.clone()).expect("memory");
        (map, eras)
    }

    #[test]
    fn it_agrees_with_a_map() {
        let (map, _) = map(3_000, 1);
        let mut model = BTreeMap::new();
        let mut rng = Rng::with_seed(4);
        for round in 0..60_000 {
            let key = rng.u64(0..3_000);
            match rng.u8(0..4) {
                0 => assert_eq!(map.remove(W, key), Ok(model.remove(&key))),
                1 => {
                    let is_new = !model.contains_key(&key);
                    assert_eq!(map.put_new(W, key, round), Ok(is_new));
                    model.entry(key).or_insert(round);
                }
                2 => assert_eq!(map.put(W, key, round), Ok(model.insert(key, round))),
                _ => {
                    let keys: [u64; 10] = std::array::from_fn(|at| key + at as u64);
                    let mut found = [None; 10];
                    assert_eq!(map.get_many(&keys, &mut found), Ok(()));
                    assert_eq!(found, keys.map(|key| model.get(&key).copied()));
                    assert_eq!(map.get(key), Ok(found[0]));
                }
            }
        }
        assert_eq!(map.len(), model.len() as u64);
        assert!(map.put(W, u64::MAX, 1).is_err());
        assert_eq!(map.get(u64::MAX), Ok(None));
    }

    #[test]
    fn a_key_takes_less_than_thirty_bytes() {
        const KEYS: u64 = 1_000_000;
        let (map, _) = map(KEYS, 1);
        (0..KEYS).for_each(|key| assert_eq!(map.put(W, key, key), Ok(None)));
        let bytes = map.bytes() as f64 / KEYS as f64;
        println!("{bytes:.1} bytes per key");
        assert!(bytes < 30.0, "{bytes}");
        (0..KEYS).for_each(|key| assert_eq!(map.get(key), Ok(Some(key))));
    }

    #[test]
    fn readers_miss_nothing_and_never_go_back_while_writers_write() {
        const KEYS: u64 = 2_000;
        const ROUNDS: u64 = 300;
        // Room for what waits until its era is over.
        let (map, eras) = map(500 * KEYS, 3);
        (0..KEYS).for_each(|key| assert_eq!(map.put(W, key, 0), Ok(None)));
        std::thread::scope(|scope| {
            for writer in 0..2u64 {
                let (map, eras) = (&map, &eras);
                scope.spawn(move || {
                    let worker = WorkerId(writer as u16);
                    for round in 1..=ROUNDS {
                        eras.enter(worker);
                        for key in (0..KEYS).filter(|key| key % 2 == writer) {
                            map.put(worker, key, round).expect("room");
                            // Others come and go, and make the table grow.
                            let other = KEYS + (key * 7 + round) % KEYS * 2 + writer;
                            match round % 3 {
                                0 => drop(map.remove(worker, other).expect("sound")),
                                _ => drop(map.put(worker, other, round).expect("room")),
                            }
                        }
                    }
                    eras.leave(worker);
                });
            }
            let mut last = vec![0; KEYS as usize];
            while last[0] < ROUNDS || last[1] < ROUNDS {
                eras.enter(WorkerId(2));
                for (key, last) in last.iter_mut().enumerate() {
                    let value = map.get(key as u64).expect("sound").expect("it is there");
                    assert!(value >= *last, "key {key} went back");
                    *last = value;
                }
                eras.leave(WorkerId(2));
            }
        });
    }
}
