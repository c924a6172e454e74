//! Random commands on a tiny store, where eviction, compaction, growth and expiry happen all the
//! time, against a model: what is found must be right, and what may not be evicted must be found.

mod rig;

use nyx_base::{Instant, UnixSeconds};
use nyx_store::{
    Condition, DeepPart, DeleteOutcome, Durability, Eviction, Layout, Presence, Put, PutOutcome,
    Side, StoreConfig, TouchOutcome, Value, WriteMode,
};
use nyx_tier::Nhc;
use proptest::prelude::*;
use rig::surviving::{Ground, begins, sweep};
use rig::{Rig, START, TENANT, Worker, deep, small, value_of};
use std::collections::BTreeMap;

const SIZE: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Command {
    Set {
        key: u16,
        len: usize,
        ttl: Option<u32>,
        flags: u32,
    },
    Add {
        key: u16,
        len: usize,
    },
    /// Compares with the unique that the model knows; `wrong` with another.
    Cas {
        key: u16,
        len: usize,
        wrong: bool,
    },
    Append {
        key: u16,
        len: usize,
    },
    Prepend {
        key: u16,
        len: usize,
    },
    Get {
        key: u16,
    },
    Touch {
        key: u16,
        ttl: Option<u32>,
    },
    Delete {
        key: u16,
    },
    Wait {
        seconds: u32,
    },
    Flush {
        after: u32,
    },
    Expire,
    /// What is full is set off to the deep device, or what is on its way there arrives.
    WriteBack {
        lands: bool,
    },
}

/// What the model knows of a key.
#[derive(Clone, Debug)]
struct Known {
    value: Vec<u8>,
    flags: u32,
    expiry: UnixSeconds,
    /// The unique that was handed out, if any: it must not change.
    cas: Option<u64>,
    /// The store's evictions when the item was last known to be there.
    evictions: u64,
}

fn commands() -> impl Strategy<Value = Vec<Command>> {
    let key = 0u16..400;
    let len = prop_oneof![8 => 0usize..600, 2 => 600usize..8000, 1 => Just(30_000usize)];
    let ttl = prop::option::of(1u32..200);
    let command = prop_oneof![
        20 => (key.clone(), len.clone(), ttl.clone(), 0u32..3)
            .prop_map(|(key, len, ttl, flags)| Command::Set { key, len, ttl, flags }),
        3 => (key.clone(), len.clone()).prop_map(|(key, len)| Command::Add { key, len }),
        4 => (key.clone(), len, any::<bool>())
            .prop_map(|(key, len, wrong)| Command::Cas { key, len, wrong }),
        3 => (key.clone(), 0usize..300).prop_map(|(key, len)| Command::Append { key, len }),
        2 => (key.clone(), 0usize..300).prop_map(|(key, len)| Command::Prepend { key, len }),
        20 => key.clone().prop_map(|key| Command::Get { key }),
        4 => (key.clone(), ttl).prop_map(|(key, ttl)| Command::Touch { key, ttl }),
        4 => key.prop_map(|key| Command::Delete { key }),
        2 => (1u32..20).prop_map(|seconds| Command::Wait { seconds }),
        1 => Just(Command::Expire),
        6 => any::<bool>().prop_map(|lands| Command::WriteBack { lands }),
    ];
    // Rarely, since nothing survives it.
    let flush = (0u32..30).prop_map(|after| Command::Flush { after });
    let any = prop_oneof![600 => command, 1 => flush];
    prop::collection::vec(any, 1..2500)
}

struct Check<'r, 'w> {
    w: &'w mut Worker<'r>,
    model: BTreeMap<u16, Known>,
    version: u64,
    flush_at: Option<UnixSeconds>,
    /// What was evicted before the store was opened for the last time.
    evicted: u64,
}

fn name(key: u16) -> Vec<u8> {
    // Lengths differ, so that headers do not line up.
    format!("{key}:{}", "x".repeat(usize::from(key % 40))).into_bytes()
}

impl Check<'_, '_> {
    fn end_of(&self, ttl: Option<u32>) -> UnixSeconds {
        ttl.map_or(UnixSeconds::NEVER, |ttl| UnixSeconds(self.w.now.0 + ttl))
    }

    fn fresh(&mut self, key: u16, len: usize) -> Vec<u8> {
        self.version += 1;
        value_of(&name(key), self.version, len)
    }

    /// What the model says is there now.
    fn known(&self, key: u16) -> Option<Known> {
        let now = self.w.now;
        self.model
            .get(&key)
            .filter(|known| known.expiry > now)
            .cloned()
    }

    fn put(&mut self, key: u16, len: usize, put: impl Fn(&mut Put<'_>)) {
        let known = self.known(key);
        let (name, value) = (name(key), self.fresh(key, len));
        let mut wanted = Put::set(&name, self.w.hash(&name), &value);
        put(&mut wanted);
        let outcome = self.w.put(&wanted);
        let matches = |cas| known.as_ref().is_some_and(|known| known.cas == Some(cas));
        match (wanted.condition, outcome) {
            (Condition::Always, PutOutcome::Stored { .. }) => {}
            // Absent may find the item evicted, and a unique may find it so.
            (Condition::Absent, PutOutcome::Stored { .. }) => {}
            (Condition::Absent, PutOutcome::NotStored) => assert!(known.is_some()),
            (Condition::CasIs(cas), PutOutcome::Stored { .. }) => assert!(matches(cas)),
            (Condition::CasIs(cas), PutOutcome::Exists) => {
                assert!(known.is_some() && !matches(cas))
            }
            (Condition::CasIs(_), PutOutcome::NotFound) => {}
            other => panic!("{other:?}"),
        }
        match outcome {
            PutOutcome::Stored { .. } => {
                let (flags, expiry, evictions) = (wanted.flags, wanted.expiry, self.evictions());
                self.model.insert(
                    key,
                    Known {
                        value,
                        flags,
                        expiry,
                        cas: None,
                        evictions,
                    },
                );
            }
            PutOutcome::NotFound => self.missed(key),
            _ => {}
        }
    }

    fn extend(&mut self, key: u16, len: usize, side: Side) {
        let (known, name, more) = (self.known(key), name(key), self.fresh(key, len));
        let (head, tail) = more.split_at(len / 3);
        let put = Put {
            value: Value { head, tail },
            ..Put::set(&name, self.w.hash(&name), b"")
        };
        let lane = &mut self.w.tolls.lane(TENANT);
        let (store, now) = (self.w.store, self.w.now);
        match store.extend(&mut self.w.writer, lane, &put, side, now) {
            PutOutcome::Away(_) => {
                self.w.land();
                self.extend(key, len, side);
            }
            PutOutcome::Stored { .. } => {
                let mut known = known.expect("extended what was there");
                match side {
                    Side::Append => known.value.extend_from_slice(&more),
                    Side::Prepend => known.value.splice(0..0, more).for_each(drop),
                }
                (known.cas, known.evictions) = (None, self.evictions());
                self.model.insert(key, known);
            }
            PutOutcome::NotStored => self.missed(key),
            PutOutcome::TooLarge => {
                assert!(known.expect("there").value.len() + len > 32 << 10);
            }
            other => panic!("{other:?}"),
        }
    }

    fn get(&mut self, key: u16) {
        let (known, name, now) = (self.known(key), name(key), self.w.now);
        let (store, hash) = (self.w.store, self.w.hash(&name));
        let lane = &mut self.w.tolls.lane(TENANT);
        let Some(mut item) = store.get(lane, &name, hash, now) else {
            self.missed(key);
            return;
        };
        match store.fetch(self.w.writer.worker(), lane, &mut item, Instant(0)) {
            Presence::Here => {}
            told @ (Presence::Lost | Presence::Closed(_)) => panic!("key {key} is {told:?}"),
            Presence::Away(_) => {
                self.w.land();
                return self.get(key);
            }
        }
        let mut known = known.expect("found what the model does not have");
        let mut value = vec![0; item.value_len()];
        item.read(lane, &mut value);
        item.mark_access(lane, now);
        assert!(value == known.value, "key {key} has another value");
        assert_eq!((item.flags(), item.expiry()), (known.flags, known.expiry));
        let cas = item.cas(lane);
        assert_eq!(
            known.cas.unwrap_or(cas),
            cas,
            "a unique that was handed out changed"
        );
        // Making room for an item that comes back may have that very item go.
        (known.cas, known.evictions) = (Some(cas), self.evictions());
        let lane = &mut self.w.tolls.lane(TENANT);
        store.promote(&self.w.writer, lane, &item, now);
        self.model.insert(key, known);
    }

    fn evictions(&self) -> u64 {
        let figures = self.w.store.figures();
        self.evicted + figures.evictions + figures.deep.map_or(0, |deep| deep.evictions)
    }

    /// A miss is right where the model has nothing, and allowed where something was evicted since.
    fn missed(&mut self, key: u16) {
        if let Some(known) = self.known(key) {
            assert!(self.evictions() > known.evictions, "key {key} was lost");
        }
        self.model.remove(&key);
    }

    fn step(&mut self, command: Command) {
        if self.flush_at.is_some_and(|at| at <= self.w.now) {
            self.model.clear();
            self.flush_at = None;
        }
        match command {
            Command::Set {
                key,
                len,
                ttl,
                flags,
            } => {
                let expiry = self.end_of(ttl);
                self.put(key, len, |put| (put.flags, put.expiry) = (flags, expiry));
            }
            Command::Add { key, len } => {
                self.put(key, len, |put| put.condition = Condition::Absent);
            }
            Command::Cas { key, len, wrong } => {
                let Some(cas) = self.known(key).and_then(|known| known.cas) else {
                    return;
                };
                let cas = cas + u64::from(wrong);
                self.put(key, len, |put| put.condition = Condition::CasIs(cas));
            }
            Command::Append { key, len } => self.extend(key, len, Side::Append),
            Command::Prepend { key, len } => self.extend(key, len, Side::Prepend),
            Command::Get { key } => self.get(key),
            Command::Touch { key, ttl } => self.touch(key, ttl),
            Command::Delete { key } => self.delete(key),
            Command::Wait { seconds } => self.w.now = UnixSeconds(self.w.now.0 + seconds),
            Command::Flush { after } => {
                let at = UnixSeconds(self.w.now.0 + after);
                self.w.store.flush(at, self.w.now);
                self.flush_at = Some(at);
            }
            Command::Expire => {
                let lane = &mut self.w.tolls.lane(TENANT);
                self.w.store.expire(&mut self.w.writer, lane, self.w.now);
            }
            Command::WriteBack { lands: true } => self.w.land(),
            Command::WriteBack { lands: false } => {
                let lane = &mut self.w.tolls.lane(TENANT);
                let now = Instant(0);
                self.w.store.write_back(&mut self.w.writer, lane, now);
                self.w.compact();
            }
        }
        let figures = self.w.store.figures();
        assert!(
            figures.used_bytes <= SIZE,
            "{} B of {SIZE} B",
            figures.used_bytes
        );
        self.w.enter();
    }

    /// Looks at all keys.
    fn end(&mut self) {
        for key in 0..400 {
            self.step(Command::Get { key });
        }
        let figures = self.w.store.figures();
        assert!(figures.items <= 400, "{} items of 400 keys", figures.items);
    }

    fn touch(&mut self, key: u16, ttl: Option<u32>) {
        let (known, name, expiry) = (self.known(key), name(key), self.end_of(ttl));
        let hash = self.w.hash(&name);
        let lane = &mut self.w.tolls.lane(TENANT);
        let touched = self
            .w
            .store
            .touch(&mut self.w.writer, lane, &name, hash, expiry, self.w.now);
        match (touched, known) {
            (TouchOutcome::Touched, Some(known)) => {
                self.model.insert(key, Known { expiry, ..known });
            }
            (TouchOutcome::Touched, None) => panic!("touched what is not there"),
            (TouchOutcome::NotFound, _) => self.missed(key),
            (TouchOutcome::Away(_), _) => {
                self.w.land();
                self.touch(key, ttl);
            }
        }
    }

    fn delete(&mut self, key: u16) {
        let (known, name) = (self.known(key), name(key));
        let (hash, always) = (self.w.hash(&name), Condition::Always);
        let lane = &mut self.w.tolls.lane(TENANT);
        let now = self.w.now;
        let done = self
            .w
            .store
            .delete(&mut self.w.writer, lane, &name, hash, always, now);
        match done {
            DeleteOutcome::Deleted => assert!(known.is_some(), "deleted what is not there"),
            DeleteOutcome::NotFound => self.missed(key),
            DeleteOutcome::Exists | DeleteOutcome::Away(_) => panic!("{done:?}"),
        }
        self.model.remove(&key);
    }
}

fn run(config: StoreConfig, commands: Vec<Command>) {
    play(&Rig::new(config), commands);
}

fn play(rig: &Rig, commands: Vec<Command>) {
    let mut worker = rig.worker(0);
    worker.now = START;
    let (model, version) = (BTreeMap::new(), 0);
    let mut check = Check {
        w: &mut worker,
        model,
        version,
        flush_at: None,
        evicted: 0,
    };
    for command in commands {
        check.step(command);
    }
    check.end();
}

/// The same with a store that survives: it is left and opened again after each of some runs, closed
/// or not, and looked through or not.
fn run_and_restart(ground: &Ground, eviction: Eviction, runs: Vec<(Vec<Command>, bool, bool)>) {
    let (mut model, mut version, mut flush_at) = (BTreeMap::new(), 0, None);
    let (mut now, mut evicted, last) = (START, 0, runs.len() - 1);
    for (at, (commands, is_closed, is_swept)) in runs.into_iter().enumerate() {
        let rig = ground.open(StoreConfig {
            eviction,
            ..ground.config(Durability::Crash)
        });
        assert_eq!(begins(&rig).is_found(), at > 0);
        let mut worker = rig.worker(0);
        worker.now = now;
        if is_swept {
            sweep(&mut worker);
        }
        let mut check = Check {
            w: &mut worker,
            model,
            version,
            flush_at,
            evicted,
        };
        for command in commands {
            check.step(command);
        }
        if at == last {
            sweep(check.w);
            check.end();
            return;
        }
        evicted = check.evictions();
        (model, version, flush_at, now) = (check.model, check.version, check.flush_at, worker.now);
        if is_closed {
            rig.store.close().expect("a disk");
        }
    }
}

/// Runs of commands, after each of which the store is closed or not, and opened again.
fn runs() -> impl Strategy<Value = Vec<(Vec<Command>, bool, bool)>> {
    prop::collection::vec((commands(), any::<bool>(), any::<bool>()), 2..4)
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn finds_what_is_right(policy in 0usize..5, commands in commands()) {
        run(StoreConfig { eviction: Eviction::ALL[policy], ..small(SIZE) }, commands);
    }

    #[test]
    fn finds_what_is_right_inline(policy in 0usize..5, commands in commands()) {
        let eviction = Eviction::ALL[policy];
        run(StoreConfig { eviction, layout: Layout::Inline, ..small(SIZE) }, commands);
    }

    #[test]
    fn finds_what_is_right_on_two_devices(policy in 0usize..5, commands in commands()) {
        run(StoreConfig { eviction: Eviction::ALL[policy], ..deep(SIZE, 1 << 20) }, commands);
    }

    #[test]
    fn finds_what_is_right_wherever_it_is_written_and_read(
        policy in 0usize..5,
        write in 0usize..3,
        share in 0u32..3,
        commands in commands(),
    ) {
        let config = deep(SIZE, 1 << 20);
        let write = WriteMode::ALL[write];
        let deep = config.deep.map(|part| DeepPart { write, ..part });
        let rig = Rig::new(StoreConfig { eviction: Eviction::ALL[policy], deep, ..config });
        let nhc = match share {
            0 => Nhc::Classic,
            share => Nhc::Split(f64::from(share - 1) / 2.0),
        };
        play(&rig.ruled(nhc), commands);
    }

    #[test]
    fn finds_what_is_right_after_restarts_on_two_devices(policy in 0usize..5, runs in runs()) {
        run_and_restart(&Ground::two(SIZE, 1 << 20), Eviction::ALL[policy], runs);
    }
}
