//! The journal: after a power failure a tenant is what it was at some moment since it was synced
//! last, whatever of the rest has reached the disk; the image is not there at all.
//!
//! What a power failure leaves is made of the files as they were when they were synced and as they
//! are now, sector by sector (512 bytes).

mod rig;

use nyx_base::{Instant, UnixSeconds};
use nyx_media::Media;
use nyx_media::log::observe_syncs;
use nyx_store::{
    Beginning, Condition, DeleteOutcome, Invalidation, Put, PutOutcome, Ready, Side, StoreConfig,
};
use rig::journaled::{config, media, open, replay, rewrite, sweep, sync, sync_if_needed};
use rig::{Rig, TENANT, Worker, value_of};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

const SECTOR_BYTES: usize = 512;
const KEYS: u32 = 60;
const SIZE: u64 = 4 << 20;

/// An item as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    value: Vec<u8>,
    flags: u32,
    expiry: UnixSeconds,
    stale: bool,
}

type State = BTreeMap<u32, Seen>;
type Files = BTreeMap<PathBuf, Vec<u8>>;

fn read_all(dir: &Path) -> Files {
    let read = fs::read_dir(dir).expect("a directory");
    let paths = read.map(|entry| entry.expect("an entry").path());
    let read = |path: PathBuf| {
        let bytes = fs::read(&path).expect("a file");
        (path.file_name().expect("a name").into(), bytes)
    };
    paths.map(read).collect()
}

fn key(number: u32) -> Vec<u8> {
    format!("key:{number:04}").into_bytes()
}

/// What a client sees of all keys.
fn seen(worker: &mut Worker<'_>) -> State {
    let see = |number: u32| {
        let (key, now, store) = (key(number), worker.now, worker.store);
        let hash = worker.hash(&key);
        let lane = &mut worker.tolls.lane(TENANT);
        let item = store.get(lane, &key, hash, now)?;
        let mut value = vec![0; item.value_len()];
        item.read(lane, &mut value);
        Some((
            number,
            Seen {
                value,
                flags: item.flags(),
                expiry: item.expiry(),
                stale: item.stale(),
            },
        ))
    };
    (0..KEYS).filter_map(see).collect()
}

/// One change of any kind, in the store and in the model.
fn change(worker: &mut Worker<'_>, model: &mut State, rng: &mut fastrand::Rng) {
    let number = rng.u32(..KEYS);
    let key = key(number);
    let hash = worker.hash(&key);
    let most = if rng.u8(..4) == 0 { 20_000 } else { 1_000 };
    let value = value_of(&key, rng.u64(..), rng.usize(..most));
    let lane = &mut worker.tolls.lane(TENANT);
    let (store, w, now) = (worker.store, &mut worker.writer, worker.now);
    let later = UnixSeconds(now.0 + rng.u32(1000..2000));
    let expiry = if rng.bool() {
        UnixSeconds::NEVER
    } else {
        later
    };
    match rng.u8(..40) {
        0..=19 => {
            let put = some_put(Put::set(&key, hash, &value), expiry, rng);
            if matches!(store.put(w, lane, &put, now), PutOutcome::Stored { .. }) {
                let (flags, stale) = (put.flags, put.stale);
                let seen = Seen {
                    value,
                    flags,
                    expiry,
                    stale,
                };
                model.insert(number, seen);
            }
        }
        side @ 20..=25 => {
            let put = Put::set(&key, hash, &value[..value.len().min(100)]);
            let side = [Side::Append, Side::Prepend][usize::from(side < 23)];
            let outcome = store.extend(w, lane, &put, side, now);
            if let (PutOutcome::Stored { .. }, Some(seen)) = (outcome, model.get_mut(&number)) {
                let at = if side == Side::Append {
                    seen.value.len()
                } else {
                    0
                };
                seen.value.splice(at..at, put.value.head.iter().copied());
            }
        }
        26..=29 => {
            if store.touch(w, lane, &key, hash, expiry, now).is_touched() {
                model.get_mut(&number).expect("it was touched").expiry = expiry;
            }
        }
        30..=32 => {
            let asked = Invalidation {
                key: &key,
                hash,
                condition: Condition::Always,
                expiry: rng.bool().then_some(later),
                cas: None,
            };
            if store.invalidate(w, lane, &asked, now) == DeleteOutcome::Deleted {
                let seen = model.get_mut(&number).expect("it was there");
                (seen.stale, seen.expiry) = (true, asked.expiry.unwrap_or(seen.expiry));
            }
        }
        33 if rng.u8(..10) == 0 => {
            store.flush(now, now);
            model.clear();
        }
        _ => {
            store.delete(w, lane, &key, hash, Condition::Always, now);
            model.remove(&number);
        }
    }
}

/// A put with something of everything that one may have.
fn some_put<'p>(put: Put<'p>, expiry: UnixSeconds, rng: &mut fastrand::Rng) -> Put<'p> {
    let conditions = [Condition::Always, Condition::Absent, Condition::Present];
    Put {
        flags: rng.u32(..3),
        expiry,
        condition: conditions[rng.usize(..3)],
        cas: rng.bool().then(|| rng.u64(1 << 40..1 << 41)),
        stale: rng.u8(..8) == 0,
        ..put
    }
}

/// What a power failure may leave of files that were `durable` and have become `now`.
fn torn(durable: &Files, now: &Files, rng: &mut fastrand::Rng) -> Files {
    let mut left = now.clone();
    for (path, bytes) in &mut left {
        let old = &durable[path];
        let mode = rng.u8(..5);
        let upto = rng.usize(..=bytes.len());
        for (at, sector) in bytes.chunks_mut(SECTOR_BYTES).enumerate() {
            let at = at * SECTOR_BYTES;
            let is_old = match mode {
                0 => true,
                1 => false,
                2 => at >= upto,
                3 => rng.bool(),
                _ => rng.u8(..8) == 0,
            };
            if is_old {
                sector.copy_from_slice(&old[at..at + sector.len()]);
            }
        }
    }
    left
}

/// A tenant that lives through power failures.
struct Life {
    directory: tempfile::TempDir,
    media: Arc<dyn Media>,
    rng: fastrand::Rng,
    /// The states since the last sync, that one first.
    since: Vec<State>,
    durable: Rc<RefCell<Durable>>,
    states: u64,
}

/// What is durable of a journal's files.
#[derive(Default)]
struct Durable {
    files: Files,
    /// At each moment at which a file had just been synced: what was durable, and what there was.
    moments: Vec<(Files, Files)>,
}

impl Durable {
    fn synced(&mut self, path: &Path) {
        let now = read_all(path.parent().expect("a directory"));
        let name: PathBuf = path.file_name().expect("a name").into();
        self.files.retain(|path, _| now.contains_key(path));
        // Just before it was done, and just after.
        let known = |(path, _): &(&PathBuf, &Vec<u8>)| self.files.contains_key(*path);
        let old = now.iter().filter(known);
        let old = old.map(|(path, bytes)| (path.clone(), bytes.clone()));
        self.moments.push((self.files.clone(), old.collect()));
        self.files.insert(name.clone(), now[&name].clone());
        self.moments.push((self.files.clone(), now));
    }
}

impl Life {
    fn new(seed: u64) -> Life {
        Life {
            directory: tempfile::tempdir().expect("a temporary directory"),
            media: media(SIZE),
            rng: fastrand::Rng::with_seed(seed),
            since: vec![State::new()],
            durable: Rc::default(),
            states: 0,
        }
    }

    /// Observes what is synced from now on.
    fn observe(&self) {
        let durable = self.durable.clone();
        observe_syncs(Some(Box::new(move |path| {
            durable.borrow_mut().synced(path)
        })));
    }

    fn journal(&self) -> PathBuf {
        self.directory.path().join("journal")
    }

    /// Makes changes, syncs now and then, and looks at what a power failure would leave.
    fn live(&mut self, worker: &mut Worker<'_>, changes: u32) {
        let mut model = self.since.pop().expect("there is one");
        self.since.push(model.clone());
        self.sync(worker, &model);
        for at in 0..changes {
            while worker.store.journal().expect("a journal").ready(Instant(0)) != Ready::Yes {
                self.sync(worker, &model);
            }
            change(worker, &mut model, &mut self.rng);
            self.since.push(model.clone());
            if self.rng.u8(..12) == 0 {
                let lane = &mut worker.tolls.lane(TENANT);
                worker.store.rewrite(&mut worker.writer, lane, worker.now);
            }
            if self.rng.u8(..40) == 0 {
                self.sync(worker, &model);
            }
            if at % 40 == 39 {
                self.look();
            }
        }
    }

    /// Syncs, and looks at what a power failure would leave at some moment within.
    fn sync(&mut self, worker: &Worker<'_>, model: &State) {
        self.durable.borrow_mut().moments.clear();
        sync(worker);
        let moments = std::mem::take(&mut self.durable.borrow_mut().moments);
        // One file only has little to get wrong.
        let looks = if moments.len() > 2 { moments.len() } else { 0 };
        for (durable, now) in moments.iter().cycle().take(2 * looks) {
            self.look_at(durable, now);
        }
        self.since = vec![model.clone()];
    }

    /// Looks at some states that a power failure might leave now.
    fn look(&mut self) {
        let (durable, now) = (
            self.durable.borrow().files.clone(),
            read_all(&self.journal()),
        );
        for _ in 0..4 {
            self.look_at(&durable, &now);
        }
    }

    fn look_at(&mut self, durable: &Files, now: &Files) {
        self.states += 1;
        let left = torn(durable, now, &mut self.rng);
        let directory = tempfile::tempdir().expect("a temporary directory");
        let journal = directory.path().join("journal");
        fs::create_dir(&journal).expect("a directory");
        for (path, bytes) in &left {
            fs::write(journal.join(path), bytes).expect("a file");
        }
        observe_syncs(None);
        let rig = open(&media(SIZE), config(directory.path(), SIZE));
        assert!(rig.store.is_to_replay());
        let mut worker = rig.worker(0);
        let replayed = replay(&mut worker);
        assert_eq!((replayed.damaged, replayed.dropped), (0, 0), "{replayed:?}");
        let found = seen(&mut worker);
        assert!(
            self.since.contains(&found),
            "state {}: none of the {} moments since the last sync",
            self.states,
            self.since.len()
        );
        self.go_on(&mut worker, found);
        self.observe();
    }

    /// What was recovered goes on and is recovered again.
    fn go_on(&mut self, worker: &mut Worker<'_>, mut model: State) {
        if self.rng.u8(..8) != 0 {
            return;
        }
        for _ in 0..20 {
            change(worker, &mut model, &mut self.rng);
        }
        sync(worker);
        let path = &worker
            .store
            .config()
            .keep
            .as_ref()
            .expect("it survives")
            .path;
        let first = path.parent().expect("a directory").join("journal");
        let directory = tempfile::tempdir().expect("a temporary directory");
        let second = directory.path().join("journal");
        fs::create_dir(&second).expect("a directory");
        for (path, bytes) in read_all(&first) {
            fs::write(second.join(path), bytes).expect("a file");
        }
        let rig = open(&media(SIZE), config(directory.path(), SIZE));
        let mut worker = rig.worker(0);
        assert_eq!(replay(&mut worker).damaged, 0);
        assert!(seen(&mut worker) == model, "after a second failure");
    }
}

#[test]
fn after_a_power_failure_a_tenant_is_what_it_was_at_a_moment_since_its_last_sync() {
    let lives = if std::env::var_os("NYX_LONG").is_some() {
        80
    } else {
        8
    };
    let mut states = 0;
    for seed in 0..lives {
        let mut life = Life::new(seed);
        let media = life.media.clone();
        for _ in 0..3 {
            // Killed each time but the first, and found: the machine has run on.
            life.observe();
            let rig = open(&media, config(life.directory.path(), SIZE));
            assert!(!rig.store.is_to_replay());
            let mut worker = rig.worker(0);
            sweep(&mut worker);
            life.live(&mut worker, 400);
        }
        observe_syncs(None);
        states += life.states;
    }
    println!("{states} states");
    assert!(states >= 100 * lives, "{states}");
}

#[test]
fn what_was_evicted_does_not_come_back_older_than_it_was() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let media = media(2 << 20);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut versions: BTreeMap<u32, u64> = BTreeMap::new();
    let mut last_cas = 0;
    {
        let rig = open(&media, config(directory.path(), 2 << 20));
        let mut worker = rig.worker(0);
        for version in 0..20_000u64 {
            let number = rng.u32(..2_000);
            let key = key(number);
            let hash = worker.hash(&key);
            sync_if_needed(&worker);
            match rng.u8(..4) {
                0 => {
                    let lane = &mut worker.tolls.lane(TENANT);
                    let always = Condition::Always;
                    let (store, now) = (worker.store, worker.now);
                    store.delete(&mut worker.writer, lane, &key, hash, always, now);
                    versions.remove(&number);
                }
                _ => {
                    let mut value = version.to_le_bytes().to_vec();
                    value.resize(rng.usize(8..2_000), 0);
                    last_cas = worker.store(&key, &value);
                    versions.insert(number, version);
                }
            }
            let lane = &mut worker.tolls.lane(TENANT);
            worker.store.rewrite(&mut worker.writer, lane, worker.now);
        }
        assert!(rig.store.figures().evictions > 1_000, "it was full");
        sync(&worker);
        assert!(rig.store.journal().expect("a journal").figures().rewrites > 0);
        let length = rig.store.journal().expect("a journal").figures().file_bytes;
        assert!(length < 12 << 20, "{length} bytes of journal for 2 MiB");
    }
    fs::remove_file(directory.path().join("image")).expect("the image");
    let rig = open(&media, config(directory.path(), 2 << 20));
    let mut worker = rig.worker(0);
    let replayed = replay(&mut worker);
    assert_eq!(replayed.damaged, 0);
    let mut found = 0;
    for number in 0..2_000 {
        if let Some(value) = worker.get(&key(number)) {
            let version = u64::from_le_bytes(value[..8].try_into().expect("8 bytes"));
            assert_eq!(Some(&version), versions.get(&number), "key {number}");
            found += 1;
        }
    }
    assert!(found > 300, "{found} found");
    // A client that holds an older unique must not be told that nothing has changed.
    let cas = worker.store(b"new", b"1");
    assert!(cas > last_cas, "{cas} is not above {last_cas}");
}

/// Changes some bytes, or cuts the end off.
fn damage(bytes: &mut Vec<u8>, rng: &mut fastrand::Rng) {
    for _ in 0..rng.usize(1..20) {
        let at = rng.usize(..bytes.len());
        let end = bytes.len().min(at + 600);
        match rng.u8(..60) {
            0..20 => bytes[at] ^= 1 << rng.u8(..8),
            20..40 => bytes[at..end].fill(rng.u8(..)),
            40 => return bytes.truncate(at),
            _ => bytes[at] = rng.u8(..),
        }
    }
}

#[test]
fn damage_is_told_and_gives_no_wrong_value() {
    let rounds = if std::env::var_os("NYX_LONG").is_some() {
        3_000
    } else {
        300
    };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut rng = fastrand::Rng::with_seed(11);
    let mut ever: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
    {
        let rig = open(&media(SIZE), config(directory.path(), SIZE));
        let mut worker = rig.worker(0);
        let mut model = State::new();
        for _ in 0..900 {
            sync_if_needed(&worker);
            change(&mut worker, &mut model, &mut rng);
            for (number, seen) in &model {
                let ever = ever.entry(*number).or_default();
                if ever.last() != Some(&seen.value) {
                    ever.push(seen.value.clone());
                }
            }
        }
        sync(&worker);
    }
    let good = read_all(&directory.path().join("journal"));
    let mut told = 0;
    for round in 0..rounds {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let journal = directory.path().join("journal");
        fs::create_dir(&journal).expect("a directory");
        let damaged = rng.usize(..good.len());
        for (at, (path, bytes)) in good.iter().enumerate() {
            let mut bytes = bytes.clone();
            if at == damaged {
                damage(&mut bytes, &mut rng);
            }
            fs::write(journal.join(path), bytes).expect("a file");
        }
        let Ok(rig) = Rig::on(media(SIZE), config(directory.path(), SIZE)) else {
            // Another format, or another tenant: said so.
            told += 1;
            continue;
        };
        let mut worker = rig.worker(0);
        let lane = &mut worker.tolls.lane(TENANT);
        let replayed = rig
            .store
            .replay(&mut worker.writer, lane, worker.now, &mut |_| {});
        told += u32::from(replayed.is_err() || replayed.is_ok_and(|it| it.damaged > 0));
        for (number, seen) in seen(&mut worker) {
            let was = ever[&number].contains(&seen.value);
            assert!(
                was,
                "round {round}: key {number} has a value that it never had"
            );
        }
    }
    println!("{told} of {rounds} were told of");
    assert!(told > rounds / 2, "{told} of {rounds}");
}

#[test]
fn flushes_that_were_to_come_are_kept() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let lost = || fs::remove_file(directory.path().join("image")).expect("the image");
    let media = media(SIZE);
    {
        let rig = open(&media, config(directory.path(), SIZE));
        let mut worker = rig.worker(0);
        worker.store(b"before", b"1");
        rig.store.flush(UnixSeconds(worker.now.0 + 10), worker.now);
        worker.store(b"after", b"2");
        sync(&worker);
    }
    lost();
    {
        let rig = open(&media, config(directory.path(), SIZE));
        let mut worker = rig.worker(0);
        replay(&mut worker);
        assert_eq!(worker.get(b"after"), Some(b"2".to_vec()));
        worker.store(b"again", b"3");
        worker.now.0 += 10;
        assert_eq!(worker.get(b"before"), None);
        worker.store(b"new", b"4");
        assert_eq!(worker.get(b"after"), None);
        sync(&worker);
    }
    lost();
    let rig = open(&media, config(directory.path(), SIZE));
    let mut worker = rig.worker(0);
    replay(&mut worker);
    let found = [b"before".as_slice(), b"after", b"again", b"new"].map(|key| worker.get(key));
    assert_eq!(found, [None, None, None, Some(b"4".to_vec())]);
}

#[test]
fn a_journal_that_an_image_has_outgrown_is_not_used() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let media = media(SIZE);
    let with = config(directory.path(), SIZE);
    let mut without = with.clone();
    without.keep.as_mut().expect("it survives").journal = None;
    let run = |config: &StoreConfig, value: &[u8]| {
        let rig = open(&media, config.clone());
        let mut worker = rig.worker(0);
        assert!(!rig.store.is_to_replay());
        worker.store(b"key", value);
        sweep(&mut worker);
        rewrite(&mut worker);
        sync_if_any(&worker);
    };
    run(&with, b"1");
    run(&without, b"2");
    // Its own journal does not know of 2: all that the image has is written to a new one.
    {
        let rig = open(&media, with.clone());
        assert_eq!(rig.store.beginning(), Some(&Beginning::Killed));
        assert!(rig.store.journal().is_some());
        let mut worker = rig.worker(0);
        sweep(&mut worker);
        assert!(rig.store.is_rewriting());
        rewrite(&mut worker);
        sync(&worker);
    }
    fs::remove_file(directory.path().join("image")).expect("the image");
    let rig = open(&media, with);
    let mut worker = rig.worker(0);
    replay(&mut worker);
    assert_eq!(worker.get(b"key"), Some(b"2".to_vec()));
}

fn sync_if_any(worker: &Worker<'_>) {
    if worker.store.journal().is_some() {
        sync(worker);
    }
}

#[test]
fn another_tenants_journal_is_refused_and_a_forgotten_one_is_gone() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let media = media(SIZE);
    drop(open(&media, config(directory.path(), SIZE)));
    let mut other = config(directory.path(), SIZE);
    let keep = other.keep.as_mut().expect("it survives");
    keep.path = directory.path().join("other");
    "other".clone_into(&mut keep.name);
    "other".clone_into(&mut keep.journal.as_mut().expect("a journal").name);
    let refused = Rig::on(media, other)
        .err()
        .expect("it is not its journal")
        .to_string();
    assert!(refused.contains("\"test\", not of \"other\""), "{refused}");
    let journal = directory.path().join("journal");
    assert_eq!(nyx_store::forget_journal(&journal).ok(), Some(true));
    assert_eq!(nyx_store::forget_journal(&journal).ok(), Some(false));
    assert!(!journal.exists());
    // One that a kill left in the middle of that.
    let gone = directory.path().join("journal.gone");
    fs::create_dir(&gone).expect("a directory");
    fs::write(gone.join("0000000001.log"), "of a journal").expect("a file");
    assert_eq!(nyx_store::forget_journal(&journal).ok(), Some(false));
    assert!(!gone.exists());
    // What is not a journal's.
    fs::create_dir(&journal).expect("a directory");
    fs::write(journal.join("notes"), "mine").expect("a file");
    assert_eq!(nyx_store::forget_journal(&journal).ok(), Some(false));
    fs::write(journal.join("0000000001.log"), "of a journal").expect("a file");
    assert_eq!(nyx_store::forget_journal(&journal).ok(), Some(true));
    assert_eq!(fs::read_dir(&gone).expect("it stays").count(), 1);
}

/// A store whose process was killed, at a moment at which a change was in the image and not in the
/// journal: the words of the image that say so, and the journal as it was before.
fn kill_between(dir: &Path, words: &[(usize, u64)], journal: &Files) {
    let image = fs::OpenOptions::new().write(true).open(dir.join("image"));
    let image = image.expect("the image");
    for &(word, value) in words {
        let at = (4096 + 8 * word) as u64;
        image
            .write_all_at(&value.to_le_bytes(), at)
            .expect("a word");
    }
    for (path, bytes) in journal {
        fs::write(dir.join("journal").join(path), bytes).expect("a file");
    }
}

/// `docs/format.md`: the first worker's intent, and the mark of the last flush that was told.
const INTENT: usize = 1032;
const FLUSH_TOLD: usize = 4;

#[test]
fn a_change_in_the_image_alone_is_told_to_the_journal_after_a_kill() {
    for flushes in [false, true] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let media = media(SIZE);
        let config = || config(directory.path(), SIZE);
        let (before, words);
        {
            let rig = open(&media, config());
            let mut worker = rig.worker(0);
            worker.store(b"key", b"1");
            worker.store(b"other", b"1");
            before = read_all(&directory.path().join("journal"));
            words = match flushes {
                true => {
                    rig.store.flush(worker.now, worker.now);
                    vec![(FLUSH_TOLD, 0)]
                }
                false => {
                    worker.store(b"key", b"2");
                    vec![(INTENT, worker.hash(b"key").0)]
                }
            };
        }
        kill_between(directory.path(), &words, &before);
        {
            let rig = open(&media, config());
            assert!(rig.store.is_to_replay());
            let mut worker = rig.worker(0);
            let ready = rig.store.journal().expect("a journal").ready(Instant(0));
            assert!(matches!(ready, Ready::No(_)), "not before");
            replay(&mut worker);
            let put = Put::set(b"key", worker.hash(b"key"), b"x");
            let lane = &mut worker.tolls.lane(TENANT);
            let (store, now) = (worker.store, worker.now);
            store.extend(&mut worker.writer, lane, &put, Side::Append, now);
            sync(&worker);
        }
        fs::remove_file(directory.path().join("image")).expect("the image");
        let rig = open(&media, config());
        let mut worker = rig.worker(0);
        replay(&mut worker);
        let found = [b"key".as_slice(), b"other"].map(|key| worker.get(key));
        let expected = match flushes {
            true => [None, None],
            false => [Some(b"2x".to_vec()), Some(b"1".to_vec())],
        };
        assert_eq!(found, expected);
    }
}

#[test]
fn a_life_that_was_prolonged_is_as_long_after_a_power_failure() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let media = media(SIZE);
    {
        let rig = open(&media, config(directory.path(), SIZE));
        let mut worker = rig.worker(0);
        for (key, later) in [(b"long".as_slice(), 3600), (b"short", 61)] {
            let expiry = UnixSeconds(worker.now.0 + 60);
            let hash = worker.hash(key);
            let put = Put {
                expiry,
                ..Put::set(key, hash, b"1")
            };
            worker.put(&put);
            let now = UnixSeconds(worker.now.0 + 30);
            let (store, expiry) = (worker.store, UnixSeconds(worker.now.0 + later));
            let lane = &mut worker.tolls.lane(TENANT);
            let touched = store.touch(&mut worker.writer, lane, key, hash, expiry, now);
            assert!(touched.is_touched());
        }
        sync(&worker);
    }
    fs::remove_file(directory.path().join("image")).expect("the image");
    let rig = open(&media, config(directory.path(), SIZE));
    let mut worker = rig.worker(0);
    worker.now.0 += 100;
    replay(&mut worker);
    assert_eq!(
        [b"long".as_slice(), b"short"].map(|key| worker.get(key)),
        [Some(b"1".to_vec()), None]
    );
}

#[test]
fn a_start_that_fails_or_is_killed_leaves_the_journal_as_it_was() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let media = media(SIZE);
    {
        let rig = open(&media, config(directory.path(), SIZE));
        let mut worker = rig.worker(0);
        worker.store(b"key", b"1");
        sync(&worker);
    }
    fs::remove_file(directory.path().join("image")).expect("the image");
    // A file that cannot be read as one; then a process that is killed before it has replayed.
    let journal = directory.path().join("journal");
    let first = fs::read_dir(&journal).expect("a directory").next();
    let first = first.expect("a file").expect("an entry").path();
    let good = fs::read(&first).expect("a file");
    let mut newer = good.clone();
    newer[8] = 9;
    fs::write(&first, newer).expect("a file");
    let refused = Rig::on(media.clone(), config(directory.path(), SIZE)).err();
    let refused = refused.expect("of another format").to_string();
    assert!(refused.contains("format 9"), "{refused}");
    fs::write(&first, good).expect("a file");
    drop(open(&media, config(directory.path(), SIZE)));
    // One that was cut off while it made a file.
    fs::write(journal.join("0000000009.log"), [0; 100]).expect("a file");
    for _ in 0..2 {
        let rig = open(&media, config(directory.path(), SIZE));
        let mut worker = rig.worker(0);
        if rig.store.is_to_replay() {
            replay(&mut worker);
        }
        assert_eq!(worker.get(b"key"), Some(b"1".to_vec()));
        fs::write(journal.join("0000000019.log"), []).expect("a file");
    }
}

#[test]
fn what_a_new_journal_has_not_yet_is_not_forgotten_at_the_next_start() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let media = media(SIZE);
    let with = config(directory.path(), SIZE);
    let mut without = with.clone();
    without.keep.as_mut().expect("it survives").journal = None;
    {
        let rig = open(&media, without);
        let mut worker = rig.worker(0);
        worker.store(b"key", b"1");
        rig.store.flush(UnixSeconds(worker.now.0 + 50), worker.now);
    }
    for round in 0..3 {
        let rig = open(&media, with.clone());
        let mut worker = rig.worker(0);
        sweep(&mut worker);
        assert!(rig.store.is_rewriting(), "round {round}");
        sync(&worker);
    }
    {
        let rig = open(&media, with.clone());
        let mut worker = rig.worker(0);
        sweep(&mut worker);
        rewrite(&mut worker);
        sync(&worker);
    }
    {
        let rig = open(&media, with.clone());
        let mut worker = rig.worker(0);
        sweep(&mut worker);
        assert!(!rig.store.is_rewriting());
    }
    fs::remove_file(directory.path().join("image")).expect("the image");
    let rig = open(&media, with);
    let mut worker = rig.worker(0);
    replay(&mut worker);
    assert_eq!(worker.get(b"key"), Some(b"1".to_vec()));
    // The flush was asked for before there was a journal.
    worker.now.0 += 50;
    assert_eq!(worker.get(b"key"), None);
}
