//! What a store promises, one promise per test.

mod rig;

use nyx_base::UnixSeconds;
use nyx_store::{
    Condition, DeleteOutcome, Eviction, Invalidation, Layout, Put, PutOutcome, Side, StoreConfig,
    StoreError, Value,
};
use rig::{Rig, START, Worker, small, value_of};

const MIB: u64 = 1 << 20;

fn after(seconds: u32) -> UnixSeconds {
    UnixSeconds(START.0 + seconds)
}

/// Both layouts, since they share every promise.
fn both(test: impl Fn(&mut Worker<'_>)) {
    for layout in [Layout::Split, Layout::Inline] {
        let rig = Rig::new(StoreConfig {
            layout,
            ..small(4 * MIB)
        });
        test(&mut rig.worker(0));
    }
}

#[test]
fn what_was_set_is_found() {
    both(|w| {
        for len in [0, 1, 3, 100, 4095, 4096, 4097, 32 << 10] {
            let key = format!("key {len}");
            let value = value_of(key.as_bytes(), 0, len);
            w.store(key.as_bytes(), &value);
            assert_eq!(w.get(key.as_bytes()), Some(value));
        }
        assert_eq!(w.get(b"nobody"), None);
    });
}

#[test]
fn a_value_in_two_pieces_is_one_value() {
    both(|w| {
        let hash = w.hash(b"k");
        let value = Value {
            head: b"hello, ",
            tail: b"world",
        };
        let stored = w.put(&Put {
            value,
            flags: 99,
            ..Put::set(b"k", hash, b"")
        });
        assert!(matches!(stored, PutOutcome::Stored { .. }));
        assert_eq!(w.get(b"k").as_deref(), Some(&b"hello, world"[..]));
        let (store, now) = (w.store, w.now);
        let item = store.get(&mut w.lane(), b"k", hash, now).expect("stored");
        assert_eq!((item.flags(), item.expiry()), (99, UnixSeconds::NEVER));
        let mut part = [0; 5];
        item.read_range(&mut w.lane(), 7, &mut part);
        assert_eq!(&part, b"world");
    });
}

#[test]
fn conditions_are_judged() {
    both(|w| {
        let hash = w.hash(b"k");
        let put = |condition| Put {
            condition,
            ..Put::set(b"k", hash, b"v")
        };
        assert_eq!(w.put(&put(Condition::Present)), PutOutcome::NotStored);
        assert_eq!(w.put(&put(Condition::CasIs(1))), PutOutcome::NotFound);
        let PutOutcome::Stored { cas } = w.put(&put(Condition::Absent)) else {
            panic!("absent")
        };
        assert_eq!(w.put(&put(Condition::Absent)), PutOutcome::NotStored);
        assert_eq!(w.put(&put(Condition::CasIs(cas + 1))), PutOutcome::Exists);
        let PutOutcome::Stored { cas: newer } = w.put(&put(Condition::CasIs(cas))) else {
            panic!("the unique was right")
        };
        assert_ne!(newer, cas);
        assert_eq!(w.put(&put(Condition::CasIs(cas))), PutOutcome::Exists);
        assert_eq!(
            w.put(&put(Condition::CasOrStale(newer + 1))),
            PutOutcome::Exists
        );
        assert!(matches!(
            w.put(&put(Condition::CasOrStale(cas))),
            PutOutcome::Stored { .. }
        ));
        let (store, now) = (w.store, w.now);
        let item = store.get(&mut w.lane(), b"k", hash, now).expect("stored");
        assert!(item.stale());
        assert!(matches!(
            w.put(&put(Condition::Present)),
            PutOutcome::Stored { .. }
        ));
    });
}

#[test]
fn an_explicit_unique_is_kept() {
    both(|w| {
        let hash = w.hash(b"k");
        let put = Put {
            cas: Some(42),
            ..Put::set(b"k", hash, b"v")
        };
        assert_eq!(w.put(&put), PutOutcome::Stored { cas: 42 });
        let (store, now) = (w.store, w.now);
        let item = store.get(&mut w.lane(), b"k", hash, now).expect("stored");
        assert_eq!(item.cas(&mut w.lane()), 42);
    });
}

#[test]
fn items_end_at_their_second() {
    both(|w| {
        let hash = w.hash(b"k");
        w.put(&Put {
            expiry: after(10),
            ..Put::set(b"k", hash, b"v")
        });
        w.now = after(9);
        assert!(w.get(b"k").is_some());
        w.now = after(10);
        assert!(w.get(b"k").is_none());
        let absent = Put {
            condition: Condition::Absent,
            ..Put::set(b"k", hash, b"w")
        };
        assert!(matches!(w.put(&absent), PutOutcome::Stored { .. }));
    });
}

#[test]
fn whole_segments_are_freed_when_they_end() {
    both(|w| {
        for n in 0..5000u32 {
            let key = n.to_le_bytes();
            let hash = w.hash(&key);
            w.put(&Put {
                expiry: after(60),
                ..Put::set(&key, hash, &[1; 100])
            });
        }
        let before = w.store.figures();
        w.now = after(60);
        let lane = &mut w.tolls.lane(rig::TENANT);
        while w.store.expire(&mut w.writer, lane, w.now) {}
        let figures = w.store.figures();
        assert_eq!(figures.items, 0);
        assert_eq!(figures.expirations, before.items);
        assert_eq!(figures.evictions, 0);
        assert_eq!(figures.live_bytes, 0);
        w.enter();
        let lane = &mut w.tolls.lane(rig::TENANT);
        assert!(!w.store.expire(&mut w.writer, lane, w.now));
        let figures = w.store.figures();
        assert!(figures.value_bytes < before.value_bytes);
    });
}

#[test]
fn a_touch_moves_the_end() {
    both(|w| {
        let hash = w.hash(b"k");
        let touch = |w: &mut Worker<'_>, expiry| {
            let lane = &mut w.tolls.lane(rig::TENANT);
            w.store
                .touch(&mut w.writer, lane, b"k", hash, expiry, w.now)
                .is_touched()
        };
        assert!(!touch(w, after(5)));
        let cas = w.store(b"k", b"value");
        assert!(touch(w, after(5)), "gets room for an expiry");
        assert!(touch(w, after(50)), "in place");
        w.now = after(49);
        assert_eq!(w.get(b"k").as_deref(), Some(&b"value"[..]));
        assert!(touch(w, UnixSeconds::NEVER), "loses it again");
        w.now = after(1000);
        assert_eq!(w.get(b"k").as_deref(), Some(&b"value"[..]));
        let put = Put {
            condition: Condition::CasIs(cas),
            ..Put::set(b"k", hash, b"w")
        };
        assert_eq!(
            w.put(&put),
            PutOutcome::Exists,
            "nobody had asked for the old unique"
        );
    });
}

#[test]
fn a_touch_keeps_a_unique_that_was_handed_out() {
    both(|w| {
        let hash = w.hash(b"k");
        w.store(b"k", b"value");
        let (store, now) = (w.store, w.now);
        let item = store.get(&mut w.lane(), b"k", hash, now).expect("stored");
        let cas = item.cas(&mut w.lane());
        let lane = &mut w.tolls.lane(rig::TENANT);
        let touched = store.touch(&mut w.writer, lane, b"k", hash, after(5), now);
        assert!(touched.is_touched());
        let put = Put {
            condition: Condition::CasIs(cas),
            ..Put::set(b"k", hash, b"w")
        };
        assert!(matches!(w.put(&put), PutOutcome::Stored { .. }));
    });
}

#[test]
fn both_ends_can_be_extended() {
    both(|w| {
        let hash = w.hash(b"k");
        let extend = |w: &mut Worker<'_>, bytes: &[u8], side| {
            let lane = &mut w.tolls.lane(rig::TENANT);
            w.store.extend(
                &mut w.writer,
                lane,
                &Put::set(b"k", hash, bytes),
                side,
                w.now,
            )
        };
        assert_eq!(extend(w, b"x", Side::Append), PutOutcome::NotStored);
        w.put(&Put {
            flags: 5,
            expiry: after(9),
            ..Put::set(b"k", hash, &[b'm'; 5000])
        });
        assert!(matches!(
            extend(w, b"end", Side::Append),
            PutOutcome::Stored { .. }
        ));
        assert!(matches!(
            extend(w, b"begin", Side::Prepend),
            PutOutcome::Stored { .. }
        ));
        let value = [&b"begin"[..], &[b'm'; 5000], b"end"].concat();
        assert_eq!(w.get(b"k"), Some(value));
        let (store, now) = (w.store, w.now);
        let item = store.get(&mut w.lane(), b"k", hash, now).expect("stored");
        assert_eq!((item.flags(), item.expiry()), (5, after(9)));
        assert_eq!(
            extend(w, &[0; 32 << 10], Side::Append),
            PutOutcome::TooLarge
        );
    });
}

#[test]
fn deletes_and_invalidations() {
    both(|w| {
        let hash = w.hash(b"k");
        let delete = |w: &mut Worker<'_>, condition| {
            let lane = &mut w.tolls.lane(rig::TENANT);
            w.store
                .delete(&mut w.writer, lane, b"k", hash, condition, w.now)
        };
        assert_eq!(delete(w, Condition::Always), DeleteOutcome::NotFound);
        let cas = w.store(b"k", b"v");
        assert_eq!(delete(w, Condition::CasIs(cas + 1)), DeleteOutcome::Exists);
        let (store, now) = (w.store, w.now);
        let lane = &mut w.tolls.lane(rig::TENANT);
        let asked = Invalidation {
            key: b"k",
            hash,
            condition: Condition::Always,
            expiry: Some(after(30)),
            cas: None,
        };
        let done = store.invalidate(&mut w.writer, lane, &asked, now);
        assert_eq!(done, DeleteOutcome::Deleted);
        let item = store
            .get(&mut w.lane(), b"k", hash, now)
            .expect("stale, not gone");
        assert!(item.stale() && !item.win_sent() && item.expiry() == after(30));
        assert!(item.claim_win(&mut w.lane()));
        assert!(!item.claim_win(&mut w.lane()), "one token per item");
        assert_eq!(
            delete(w, Condition::CasIs(cas)),
            DeleteOutcome::Exists,
            "it was changed"
        );
        assert_eq!(delete(w, Condition::Always), DeleteOutcome::Deleted);
        assert_eq!(w.get(b"k"), None);
        assert_eq!(w.store.figures().live_bytes, 0);
    });
}

#[test]
fn accesses_leave_their_mark() {
    both(|w| {
        let hash = w.hash(b"k");
        w.store(b"k", b"v");
        w.now = after(7);
        let (store, now) = (w.store, w.now);
        let item = store.get(&mut w.lane(), b"k", hash, now).expect("stored");
        assert!(!item.fetched());
        assert_eq!(item.last_access(now), START);
        item.mark_access(&mut w.lane(), now);
        let later = after(9);
        let item = store.get(&mut w.lane(), b"k", hash, later).expect("stored");
        assert!(item.fetched());
        assert_eq!(item.last_access(later), after(7));
    });
}

#[test]
fn a_flush_takes_what_was_before_it_and_no_more() {
    both(|w| {
        for n in 0..2000u32 {
            w.store(&n.to_le_bytes(), &[2; 200]);
        }
        w.store.flush(w.now, w.now);
        assert!((0..2000u32).all(|n| w.get(&n.to_le_bytes()).is_none()));
        w.store(b"new", b"v");
        assert!(w.get(b"new").is_some());
        w.store.flush(after(10), w.now);
        w.now = after(9);
        assert!(w.get(b"new").is_some());
        w.now = after(10);
        assert!(w.get(b"new").is_none());
        w.store(b"newer", b"v");
        let lane = &mut w.tolls.lane(rig::TENANT);
        while w.store.expire(&mut w.writer, lane, w.now) {}
        assert_eq!(w.store.figures().items, 1);
        assert!(w.get(b"newer").is_some());
    });
}

#[test]
fn what_is_too_large_is_refused_and_the_old_item_stays() {
    both(|w| {
        w.store(b"k", b"old");
        assert_eq!(w.set(b"k", &[0; (32 << 10) + 1]), PutOutcome::TooLarge);
        assert_eq!(w.set(&[b'k'; 251], b""), PutOutcome::TooLarge);
        assert_eq!(w.set(b"", b""), PutOutcome::TooLarge);
        assert!(matches!(
            w.set(&[b'k'; 250], b""),
            PutOutcome::Stored { .. }
        ));
        assert_eq!(w.get(b"k").as_deref(), Some(&b"old"[..]));
    });
}

#[test]
fn bad_shapes_are_refused_with_their_numbers() {
    let eras = || std::sync::Arc::new(nyx_store::Eras::new(1));
    let refused = |config| {
        nyx_store::Store::new(config, eras())
            .expect_err("refused")
            .to_string()
    };
    assert!(
        refused(StoreConfig {
            segment_bytes: 100_000,
            ..small(MIB)
        })
        .contains("100000 B")
    );
    assert!(
        refused(StoreConfig {
            item_len_max: 1 << 17,
            ..small(MIB)
        })
        .contains("131072 B")
    );
    let few = refused(small(100_000));
    assert!(few.contains("100000 B") && few.contains("take"), "{few}");
    assert!("s3-fifo".parse::<Eviction>().is_ok());
    assert!(matches!(
        "lru2".parse::<Eviction>(),
        Err(StoreError::UnknownEviction(_))
    ));
    assert!(matches!(
        "flat".parse::<Layout>(),
        Err(StoreError::UnknownLayout(_))
    ));
}

#[test]
fn garbage_never_evicts() {
    for eviction in Eviction::ALL {
        let rig = Rig::new(StoreConfig {
            eviction,
            ..small(4 * MIB)
        });
        let mut w = rig.worker(0);
        let keys = 2 * MIB / 160;
        let mut rng = fastrand::Rng::with_seed(3);
        let mut version = vec![0; keys as usize];
        for round in 0..10 * keys {
            let key = if round < keys { round } else { rng.u64(..keys) };
            version[key as usize] += 1;
            let name = format!("a key of 20 B {key:06}");
            let value = value_of(name.as_bytes(), version[key as usize], 110);
            w.store(name.as_bytes(), &value);
            w.enter();
        }
        assert_eq!(w.store.figures().evictions, 0, "{eviction}");
        for key in 0..keys {
            let name = format!("a key of 20 B {key:06}");
            let value = value_of(name.as_bytes(), version[key as usize], 110);
            assert_eq!(w.get(name.as_bytes()), Some(value));
        }
    }
}

#[test]
fn a_full_tenant_evicts_and_stays_within_its_size() {
    for eviction in Eviction::ALL {
        for layout in [Layout::Split, Layout::Inline] {
            let config = StoreConfig {
                eviction,
                layout,
                ..small(3 * MIB)
            };
            let rig = Rig::new(config);
            let mut w = rig.worker(0);
            for n in 0..40_000u32 {
                w.store(&n.to_le_bytes(), &value_of(&n.to_le_bytes(), 0, 200));
                w.get(&(n / 7 * 7).to_le_bytes());
                w.enter();
                let used = w.store.figures().used_bytes;
                assert!(used <= 3 * MIB, "{used} B of 3 MiB, {eviction}, {layout}");
            }
            let figures = w.store.figures();
            assert!(figures.evictions > 0);
            assert!(
                figures.items * 220 > MIB,
                "{} items left, {eviction}",
                figures.items
            );
            assert_eq!(figures.items + figures.evictions, 40_000);
            assert!(w.get(&39_999u32.to_le_bytes()).is_some());
        }
    }
}
