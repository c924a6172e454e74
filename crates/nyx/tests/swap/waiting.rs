//! Who waits for memory instead of being killed (version 1), and who does not: a group begins with
//! what the one above it has, and only those of runs have somebody who wakes.

use super::*;

/// What a group says of it; none where its kind does not wait.
fn control_of(launcher: u32) -> Option<PathBuf> {
    let groups = groups_of(launcher).into_iter();
    let mut controls = groups.map(|dir| dir.join("memory.oom_control"));
    controls.find(|path| path.exists())
}

/// Whether programs of the group wait.
fn waits(control: &Path) -> bool {
    let text = fs::read_to_string(control).unwrap();
    text.contains("oom_kill_disable 1")
}

/// Has `look` see the group of a run while its program goes on, where groups wait at all.
fn beside(test: &str, command: &[&str], look: impl FnOnce(&Rig, u32, &Path)) {
    let Some(rig) = rig(test) else {
        return;
    };
    let mut run = rig.run("64M", &["--no-probe", "--no-report"], command);
    let mut child = run.spawn().unwrap();
    let launcher = child.id();
    rig.until_ready();
    match control_of(launcher) {
        Some(control) => {
            assert!(waits(&control), "the run's own does not wait");
            look(&rig, launcher, &control);
            assert!(waits(&control), "the run's own does not any more");
        }
        None => eprintln!("skipped {test}: groups of version 2 do not wait"),
    }
    fs::write(rig.dir.path().join("end"), "").unwrap();
    assert!(child.wait().unwrap().success());
    is_clean(&rig, launcher);
}

#[test]
fn a_group_that_a_program_makes_does_not_wait() {
    let test = "a_group_that_a_program_makes_does_not_wait";
    beside(test, &["sh", "-c", UNTIL_END], |_, _, control| {
        let below = control.with_file_name("below");
        fs::create_dir(&below).unwrap();
        let below = below.join("memory.oom_control");
        until("look at it", || (!waits(&below)).then_some(()));
    });
}

#[test]
fn a_run_inside_of_one_that_waits_is_killed_where_it_is_to_be() {
    let inner = "swap run --memory 32M --pool off --oom kill --no-probe --no-report -- sh -c";
    let mut command = vec![NYX];
    command.extend(inner.split(' ').chain([UNTIL_END]));
    let test = "a_run_inside_of_one_that_waits";
    beside(test, &command, |rig, outer, control| {
        let records = rig.records().into_iter();
        let mut launchers = records.map(|record| record["launcher"]["pid"].as_u64().unwrap());
        let inner = launchers.find(|&pid| pid != u64::from(outer)).unwrap();
        let inner = control_of(u32::try_from(inner).unwrap()).unwrap();
        let above = inner.ancestors().nth(2);
        assert_eq!(above, control.parent(), "it is not inside of it");
        assert!(!waits(&inner), "it waits, and nobody wakes it");
    });
}
