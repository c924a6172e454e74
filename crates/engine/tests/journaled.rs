//! Requests to a tenant with a journal that takes no changes at the moment.

mod rig;

use nyx_engine::TenantConfig;
use nyx_store::{Durability, Journaling, Keep, Purpose, SyncMode};
use rig::{Rig, roomy};
use std::path::Path;

fn journaled(dir: &Path) -> TenantConfig {
    let name = "one".to_owned();
    TenantConfig {
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
                file_bytes: None,
            }),
        }),
        ..roomy("one")
    }
}

#[test]
fn noreply_hides_that_a_journal_takes_no_changes() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    drop(Rig::new(vec![journaled(dir.path())]));
    std::fs::remove_file(dir.path().join("image")).expect("the image");
    // Until the journal is read.
    let mut rig = Rig::new(vec![journaled(dir.path())]);
    let mut session = rig.to(0);
    let refusal = "SERVER_ERROR the journal is being read\r\n";
    for request in [
        "set k 0 0 1noreply\r\na\r\n",
        "append k 0 0 1noreply\r\na\r\n",
        "delete knoreply\r\n",
        "incr k 1noreply\r\n",
        "touch k 0noreply\r\n",
        "flush_allnoreply\r\n",
    ] {
        let with = |word: &str| request.replace("noreply", word);
        assert_eq!(rig.say(&mut session, &with("")), refusal);
        assert_eq!(rig.say(&mut session, &with(" noreply")), "", "{request}");
    }
    // Quiet is not silent.
    assert_eq!(rig.say(&mut session, "ms k 1 q\r\na\r\n"), refusal);
}
