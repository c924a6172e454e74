//! What programs may do with memory (`examples/abuse`), with the library and without.
//!
//! What it never does: compare figures; each case knows itself what is right.

use crate::rig::{self, Ended, MIB, Room, built, can_page};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

/// Less than each of the cases uses.
const SMALL: Room = Room {
    limit: 2 * MIB,
    len: 1 << 30,
};
/// Cases have more than that.
const SHORT: Room = Room {
    limit: 2 * MIB,
    len: 24 * MIB,
};

fn abuse(args: &[&str]) -> Command {
    let mut command = Command::new(&built().abuse);
    command.args(args);
    command
}

fn names() -> Vec<String> {
    let list = rig::run(&mut abuse(&["list"]), None).well("abuse list");
    let list = String::from_utf8(list.stdout).expect("text");
    list.lines().map(str::to_owned).collect()
}

/// Runs cases with names that begin so; says all that fail.
fn cases(prefixes: &[&str], room: Option<Room>) -> Vec<(String, Ended)> {
    let names = names().into_iter();
    let names = names.filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
    let run = |name: String| {
        let ended = rig::run(&mut abuse(&[&name]), room);
        (name, ended)
    };
    let all: Vec<_> = names.map(run).collect();
    assert!(!all.is_empty());
    for (name, ended) in &all {
        let lines = ended.stderr.lines();
        for why in lines.filter_map(|line| line.strip_prefix("skipped: ")) {
            rig::skip(name, why);
        }
    }
    let failed = all.iter().filter(|(_, ended)| !ended.status.success());
    let failed: Vec<String> = failed
        .map(|(name, ended)| format!("{name}: {}: {}", ended.status, ended.stderr))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    all
}

/// With the library and in less memory than they use.
fn paged(test: &str, prefixes: &[&str]) {
    if !can_page(test) {
        return;
    }
    for (name, ended) in cases(prefixes, Some(SMALL)) {
        ended.paged(&name);
    }
}

#[test]
fn all_cases_are_right_by_the_kernel() {
    cases(&[""], None);
}

#[test]
fn maps_are_as_the_manual_has_them() {
    paged(
        "maps_are_as_the_manual_has_them",
        &["map", "unmap", "remap", "fixed", "many", "touch"],
    );
}

#[test]
fn advice_locks_and_protection_are_as_the_manual_has_them() {
    paged(
        "advice_locks_and_protection_are_as_the_manual_has_them",
        &["advice", "locked", "protect"],
    );
}

#[test]
fn the_heap_is_as_the_manual_has_it() {
    paged("the_heap_is_as_the_manual_has_it", &["heap"]);
}

#[test]
fn threads_locks_stacks_and_signals_are_in_paged_memory() {
    paged(
        "threads_locks_stacks_and_signals_are_in_paged_memory",
        &["threads", "signal", "stacks", "futexes"],
    );
}

#[test]
fn system_calls_reach_memory_that_is_not_there() {
    let name = "system_calls_reach_memory_that_is_not_there";
    paged(name, &["calls", "streams"]);
}

#[test]
fn children_have_the_memory_of_one_moment() {
    paged(
        "children_have_the_memory_of_one_moment",
        &["fork", "spawn", "exec"],
    );
}

#[test]
fn with_a_ring_there_is_no_arena_and_it_is_said() {
    if !can_page("with_a_ring_there_is_no_arena_and_it_is_said") {
        return;
    }
    for (name, ended) in cases(&["first-ring"], Some(SMALL)) {
        if ended.stderr.contains("no io_uring here") {
            rig::skip(&name, &ended.stderr);
            continue;
        }
        assert!(ended.stderr.contains("io_uring"), "{}", ended.stderr);
        let figures = ended.figures.expect("written");
        assert!(figures.refused.is_some(), "{figures:?}");
    }
}

#[test]
fn an_arena_that_is_full_leaves_the_rest_to_the_system() {
    if !can_page("an_arena_that_is_full_leaves_the_rest_to_the_system") {
        return;
    }
    for (name, ended) in cases(&["full"], Some(SHORT)) {
        let figures = ended.paged(&name);
        assert!(figures.major_faults > 0, "{figures:?}");
    }
}

/// Random operations; each run has another seed.
fn random(test: &str, seeds: std::ops::Range<u64>) {
    if !can_page(test) {
        return;
    }
    let (mut failed, mut major_faults, mut forks) = (Vec::new(), 0, 0);
    for seed in seeds {
        let ended = rig::run(&mut abuse(&["random", &seed.to_string()]), Some(SMALL));
        if !ended.status.success() {
            failed.push(format!("seed {seed}: {}: {}", ended.status, ended.stderr));
            continue;
        }
        let figures = ended.paged(&format!("seed {seed}"));
        major_faults += figures.major_faults;
        forks += figures.forks;
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(major_faults > 1_000 && forks > 50, "{major_faults} {forks}");
}

#[test]
fn a_hundred_random_runs_are_as_their_models_have_them() {
    random(
        "a_hundred_random_runs_are_as_their_models_have_them",
        0..100,
    );
}

#[test]
fn another_hundred_random_runs_are_as_their_models_have_them() {
    let name = "another_hundred_random_runs_are_as_their_models_have_them";
    random(name, 100..200);
}

#[test]
fn ends_are_what_they_are_while_threads_wait_for_pages() {
    if !can_page("ends_are_what_they_are_while_threads_wait_for_pages") {
        return;
    }
    let ends = [
        ("return", Ok(0)),
        ("exit", Ok(7)),
        ("_exit", Ok(7)),
        ("exec", Ok(7)),
        ("thread", Ok(7)),
        ("daemon", Ok(0)),
        ("abort", Err(libc::SIGABRT)),
        ("kill", Err(libc::SIGKILL)),
        ("terminate", Err(libc::SIGTERM)),
        ("fault", Err(libc::SIGSEGV)),
    ];
    for (how, expected) in ends {
        let ended = rig::run(&mut abuse(&["end", how]), Some(SMALL));
        let status = ended.status;
        let told = status.code().ok_or(status.signal().unwrap_or(0));
        assert_eq!(told, expected, "{how}: {}", ended.stderr);
    }
}

/// The process ends by it, and says why before it does.
#[test]
fn where_nothing_can_be_written_who_needs_memory_is_told() {
    if !can_page("where_nothing_can_be_written_who_needs_memory_is_told") {
        return;
    }
    for _ in 0..5 {
        let ended = rig::run(&mut abuse(&["end", "bus"]), Some(SMALL));
        let (signal, said) = (ended.status.signal(), ended.stderr);
        assert_eq!(signal, Some(libc::SIGBUS), "{said}");
        assert!(said.contains("SIGBUS for who touched it"), "{said}");
    }
}

#[test]
fn kills_at_any_moment_leave_no_file() {
    if !can_page("kills_at_any_moment_leave_no_file") {
        return;
    }
    let mut rng = fastrand::Rng::with_seed(9);
    for _ in 0..10 {
        let mut command = abuse(&["churn"]);
        command.stdin(Stdio::null());
        let (mut said, end) = std::io::pipe().expect("a pipe");
        command.stdout(end);
        let going = rig::begin_with(&mut command, Some(SMALL), rig::dir());
        drop(command);
        // So many rounds, or in the middle of its beginning.
        let mut rounds = vec![0; rng.usize(..12)];
        said.read_exact(&mut rounds).expect("it goes on");
        for _ in 0..rng.usize(..20_000) {
            std::hint::spin_loop();
        }
        going.kill();
        // What its children hold is let go, too.
        let mut rest = Vec::new();
        said.read_to_end(&mut rest).expect("the end");
        let ended = going.end();
        assert_eq!(
            ended.status.signal(),
            Some(libc::SIGKILL),
            "{}",
            ended.stderr
        );
    }
}
