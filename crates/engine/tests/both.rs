//! Tenants that survive on two devices: what they stored is there after a restart, on ranges that
//! their images name, whatever order they come in.

mod rig;

use nyx_base::Bytes;
use nyx_engine::{DeepShare, Session, TenantConfig};
use nyx_media::{Mapped, Media};
use nyx_policy::baselines::Unlimited;
use nyx_store::{Beginning, Durability, Keep, Purpose};
use rig::{Rig, deep};
use std::path::Path;
use std::sync::Arc;

/// Keys of each tenant, with values of 1,000 bytes that most lie deep.
const KEYS: u32 = 9000;

fn kept(dir: &Path, name: &str, durability: Durability) -> TenantConfig {
    TenantConfig {
        keep: Some(Keep {
            path: dir.join(format!("{name}.image")),
            name: name.to_owned(),
            durability,
            data_id: [7; 16],
            purpose: Purpose::Serve,
            journal: None,
        }),
        ..deep(name)
    }
}

/// Memory and a directory that stay when an engine is gone.
struct Ground {
    media: Arc<dyn Media>,
    dir: tempfile::TempDir,
}

impl Ground {
    fn new() -> Ground {
        Ground {
            media: Arc::new(Mapped::anonymous(40 << 20).expect("anonymous memory")),
            dir: tempfile::tempdir().expect("a directory"),
        }
    }

    fn rig(&self, tenants: Vec<TenantConfig>) -> Rig {
        let ground = (self.media.clone(), self.dir.path());
        Rig::on(ground, tenants, Box::new(Unlimited), 2)
    }
}

fn value(name: &str, number: u32) -> String {
    format!("{name}{number:0>999}")
}

fn fill(rig: &mut Rig, session: &mut Session, name: &str) {
    for number in 0..KEYS {
        let value = value(name, number);
        let request = format!("set {number} 0 0 {} noreply\r\n{value}\r\n", value.len());
        rig.ask(session, request.as_bytes());
        rig.land();
        let now = rig.now();
        rig.engine.maintain(&mut rig.worker, now);
    }
}

/// How many are there; each must be what was stored.
fn found(rig: &mut Rig, session: &mut Session, name: &str) -> u32 {
    let mut is_there = |number: &u32| {
        let value = value(name, *number);
        let answer = rig.say(session, &format!("get {number}\r\n"));
        let hit = format!("VALUE {number} 0 {}\r\n{value}\r\nEND\r\n", value.len());
        assert!(answer == hit || answer == "END\r\n", "{number}: {answer}");
        answer == hit
    };
    (0..KEYS).filter(|number| is_there(number)).count() as u32
}

fn reads(rig: &Rig) -> u64 {
    rig.deep.as_ref().expect("a deep device").figures().reads
}

#[test]
fn what_was_stored_is_there_whoever_comes_first() {
    let ground = Ground::new();
    let dir = ground.dir.path();
    let one = || kept(dir, "a", Durability::Crash);
    let two = || kept(dir, "b", Durability::Warm);
    let mut rig = ground.rig(vec![one(), two()]);
    for (at, name) in ["a", "b"].into_iter().enumerate() {
        let mut session = rig.to(at as u16);
        fill(&mut rig, &mut session, name);
        assert_eq!(found(&mut rig, &mut session, name), KEYS);
    }
    rig.engine.close().expect("a disk");
    drop(rig);
    // Each has the ranges that it had, in another order too.
    let mut rig = ground.rig(vec![two(), one()]);
    for (at, name) in ["b", "a"].into_iter().enumerate() {
        let store = rig.engine.tenants()[at].store();
        assert_eq!(store.beginning(), Some(&Beginning::Stopped));
        assert_eq!(store.deep_loss(), None);
        let (mut session, before) = (rig.to(at as u16), reads(&rig));
        assert_eq!(found(&mut rig, &mut session, name), KEYS);
        assert!(reads(&rig) - before > 500, "from the deep device");
    }
    // Killed: who has "crash" has all of it, who has "warm" begins empty.
    drop(rig);
    let mut rig = ground.rig(vec![two(), one()]);
    let mut session = rig.to(1);
    assert_eq!(found(&mut rig, &mut session, "a"), KEYS);
    let mut session = rig.to(0);
    assert_eq!(found(&mut rig, &mut session, "b"), 0);
    fill(&mut rig, &mut session, "b");
    assert_eq!(found(&mut rig, &mut session, "b"), KEYS);
    let mut session = rig.to(1);
    assert_eq!(
        found(&mut rig, &mut session, "a"),
        KEYS,
        "nobody wrote there"
    );
}

#[test]
fn a_share_of_another_size_begins_with_what_is_fast() {
    let ground = Ground::new();
    let one = kept(ground.dir.path(), "a", Durability::Crash);
    let mut rig = ground.rig(vec![one.clone()]);
    let mut session = rig.to(0);
    fill(&mut rig, &mut session, "a");
    drop(rig);
    let smaller = one.deep.map(|share| DeepShare {
        size: Bytes(32 << 20),
        ..share
    });
    let mut rig = ground.rig(vec![TenantConfig {
        deep: smaller,
        ..one
    }]);
    let loss = rig.engine.tenants()[0].store().deep_loss().cloned();
    assert!(loss.is_some_and(|loss| loss.why.contains("range")));
    let mut session = rig.to(0);
    let there = found(&mut rig, &mut session, "a");
    assert!(there > 3000 && there < KEYS - 500, "{there}");
    fill(&mut rig, &mut session, "a");
    assert_eq!(found(&mut rig, &mut session, "a"), KEYS);
}
