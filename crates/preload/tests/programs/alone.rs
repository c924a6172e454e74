//! What is missing: privilege, a loader.
//!
//! What it never does: change anything of the machine.

use crate::rig::{self, MIB, Room, built, can_page, program, run};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

const ROOM: Option<Room> = Some(Room {
    limit: 2 * MIB,
    len: 1 << 30,
});

/// Whom nothing belongs to.
const NOBODY: u32 = 65_534;

/// A process without privilege where userfaultfd takes some: it goes on without an arena, and says
/// in a line what it lacks.
#[test]
fn without_privilege_a_program_goes_on_without_an_arena() {
    let name = "without_privilege_a_program_goes_on_without_an_arena";
    // SAFETY: the call takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        rig::skip(name, "only root can become somebody else");
        return;
    }
    let free = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    let device = fs::metadata("/dev/userfaultfd").map(|device| device.permissions().mode());
    if free.is_ok_and(|free| free.trim() == "1") || device.is_ok_and(|mode| mode & 0o006 == 0o006) {
        rig::skip(name, "userfaultfd takes no privilege here");
        return;
    }
    // Where somebody else may read and write.
    let dir = tempfile::tempdir().expect("a directory");
    let (library, abuse) = (dir.path().join("library.so"), dir.path().join("abuse"));
    fs::copy(&built().library, &library).expect("copied");
    fs::copy(&built().abuse, &abuse).expect("copied");
    let work = dir.path().join("work");
    fs::create_dir(&work).expect("made");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("set");
    fs::set_permissions(&work, fs::Permissions::from_mode(0o777)).expect("set");
    let own = tempfile::tempdir().expect("a directory");
    fs::set_permissions(own.path(), fs::Permissions::from_mode(0o755)).expect("set");
    for sub in ["pages", "figures"] {
        let path = own.path().join(sub);
        fs::create_dir(&path).expect("made");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("set");
    }
    let mut command = Command::new(&abuse);
    command.arg("heap-sizes").current_dir(&work);
    command.uid(NOBODY).gid(NOBODY);
    command.stdout(fs::File::create(own.path().join("stdout")).expect("a file"));
    let ended = rig::begin_as(&mut command, ROOM, own, &library)
        .end()
        .well(name);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    for word in ["without an arena", "CAP_SYS_PTRACE"] {
        assert!(ended.stderr.contains(word), "{word}: {}", ended.stderr);
    }
    let figures = ended.figures.expect("why it has none");
    assert!(figures.refused.is_some(), "{figures:?}");
    assert_eq!(figures.processes, 0);
}

/// A static program has no loader that would load a library.
#[test]
fn static_programs_run_as_ever() {
    let name = "static_programs_run_as_ever";
    let Some(ldconfig) = program(name, "ldconfig").filter(|_| can_page(name)) else {
        return;
    };
    // The path of a loader stands near the beginning of what has one.
    let bytes = fs::read(&ldconfig).expect("read");
    let begin = &bytes[..bytes.len().min(1 << 12)];
    let is_static = !begin.windows(7).any(|word| word == b"/ld-lin");
    if !is_static || !bytes.starts_with(b"\x7fELF") {
        rig::skip(name, "ldconfig is no static program here");
        return;
    }
    let say = |room| {
        let mut command = Command::new(&ldconfig);
        run(command.arg("-p"), room).well(name)
    };
    let (plain, with) = (say(None), say(ROOM));
    assert!(plain.stdout == with.stdout);
    assert_eq!((with.stderr, with.figures), (plain.stderr, None));
}

/// Terms that nobody can read are said, once, and that is all.
#[test]
fn terms_that_cannot_be_read_are_said() {
    let mut command = Command::new(&built().abuse);
    command.arg("heap-usable").env("NYX_SWAP_ARENA", "{");
    command.env("LD_PRELOAD", &built().library);
    let ended = run(&mut command, None).well("heap-usable");
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("NYX_SWAP_ARENA cannot be read"),
        "{}",
        ended.stderr
    );
}

/// No terms, no word.
#[test]
fn without_terms_nothing_happens() {
    let mut command = Command::new(&built().abuse);
    command.arg("map").env("LD_PRELOAD", &built().library);
    let ended = run(&mut command, None).well("map");
    assert_eq!((ended.stderr.as_str(), ended.figures), ("", None));
}

#[test]
fn a_program_whose_files_may_not_be_so_long_goes_on_without_an_arena() {
    let name = "a_program_whose_files_may_not_be_so_long";
    if !can_page(name) {
        return;
    }
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 2000; exec \"$0\" heap-sizes"]);
    let ended = run(command.arg(&built().abuse), ROOM).well(name);
    assert!(ended.stderr.contains("(ulimit -f)"), "{}", ended.stderr);
    let figures = ended.figures.expect("it says why");
    assert_eq!((figures.processes, figures.major_faults), (0, 0));
    assert!(figures.refused.is_some());
}
