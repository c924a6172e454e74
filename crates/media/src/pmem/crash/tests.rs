//! Which states are shown, and that planted bugs show.

use super::*;
use std::collections::BTreeSet;

/// Words 0 to 7 are one line, 8 to 15 the next.
const BYTES: u64 = 1024;

fn word(recorder: &Recorder, index: u64) -> &Word {
    &recorder.words(index * WORD_BYTES, 1)[0]
}

fn line(recorder: &Recorder, index: u64) -> &[Word] {
    recorder.words(index * 64, LINE_WORDS)
}

/// The values of `words` in each state, with what was acknowledged; a state may come twice.
fn states(recorder: &Recorder, words: &[usize]) -> Vec<(Vec<u64>, u64)> {
    let mut seen = Vec::new();
    let count = recorder.crashes(Depth::default(), |crash| {
        let values = words.iter().map(|&at| crash.image[at]).collect();
        seen.push((values, crash.acknowledged));
    });
    assert_eq!(count, seen.len() as u64);
    seen
}

fn set(states: &[(Vec<u64>, u64)]) -> BTreeSet<(Vec<u64>, u64)> {
    let set: BTreeSet<_> = states.iter().cloned().collect();
    assert_eq!(set.len(), states.len(), "a state was shown twice");
    set
}

#[test]
fn lines_that_were_not_flushed_survive_in_any_combination() {
    let recorder = Recorder::new(BYTES);
    recorder.store(word(&recorder, 0), 1);
    recorder.store(word(&recorder, 8), 2);
    let expected = [[0, 0], [1, 0], [0, 2], [1, 2]].map(|values| (values.to_vec(), 0));
    assert_eq!(set(&states(&recorder, &[0, 8])), BTreeSet::from(expected));
}

#[test]
fn stores_to_one_line_survive_in_their_order() {
    let recorder = Recorder::new(BYTES);
    recorder.store(word(&recorder, 1), 1);
    recorder.store(word(&recorder, 0), 2);
    recorder.store(word(&recorder, 1), 3);
    let expected = [[0, 0], [0, 1], [2, 1], [2, 3]].map(|values| (values.to_vec(), 0));
    assert_eq!(set(&states(&recorder, &[0, 1])), BTreeSet::from(expected));
}

#[test]
fn what_was_flushed_and_fenced_is_there_and_what_was_acknowledged_is_told_at_its_last_moment() {
    let recorder = Recorder::new(BYTES);
    recorder.store(word(&recorder, 0), 1);
    recorder.persist(line(&recorder, 0));
    recorder.acknowledge(1);
    recorder.store(word(&recorder, 8), 2);
    recorder.persist(line(&recorder, 1));
    recorder.acknowledge(2);
    let expected = [
        (vec![0, 0], 0),
        // Legal until the second fence, so the first operation had been acknowledged.
        (vec![1, 0], 1),
        (vec![1, 2], 2),
    ];
    assert_eq!(set(&states(&recorder, &[0, 8])), BTreeSet::from(expected));
}

#[test]
fn a_flush_covers_what_was_stored_before_it_and_nothing_without_its_fence() {
    let recorder = Recorder::new(BYTES);
    recorder.store(word(&recorder, 0), 1);
    recorder.flush(line(&recorder, 0));
    recorder.store(word(&recorder, 1), 2);
    let before: Vec<_> = states(&recorder, &[0, 1]);
    assert!(before.contains(&(vec![0, 0], 0)), "{before:?}");
    recorder.fence();
    recorder.acknowledge(9);
    let after: Vec<_> = states(&recorder, &[0, 1]);
    let late: Vec<_> = after.iter().filter(|(_, count)| *count == 9).collect();
    assert_eq!(late, [&(vec![1, 0], 9), &(vec![1, 2], 9)]);
}

#[test]
fn the_fence_of_another_thread_waits_for_nothing_of_this_one() {
    let recorder = Recorder::new(BYTES);
    recorder.store(word(&recorder, 0), 1);
    recorder.flush(line(&recorder, 0));
    std::thread::scope(|scope| {
        scope.spawn(|| recorder.fence());
    });
    recorder.acknowledge(1);
    let expected = [(vec![0], 1), (vec![1], 1)];
    assert_eq!(set(&states(&recorder, &[0])), BTreeSet::from(expected));
}

#[test]
fn a_restart_takes_what_is_there_for_durable() {
    let mut recorder = Recorder::new(BYTES);
    recorder.store(word(&recorder, 0), 1);
    recorder.restart();
    recorder.store(word(&recorder, 0), 2);
    let expected = [(vec![1], 0), (vec![2], 0)];
    assert_eq!(set(&states(&recorder, &[0])), BTreeSet::from(expected));
    assert_eq!(recorder.image()[0], 2);
}

/// Two stores to one line, persisted, then a third to another line.
fn two_and_one(recorder: &Recorder) {
    recorder.store(word(recorder, 0), 1);
    recorder.store(word(recorder, 1), 2);
    recorder.flush(line(recorder, 0));
    recorder.fence();
    recorder.acknowledge(1);
    recorder.store(word(recorder, 8), 3);
}

/// The only site that did `act` with the `nth` least line.
fn site(act: Act, nth: usize) -> Site {
    let recorder = Recorder::new(BYTES);
    two_and_one(&recorder);
    let sites = recorder.sites();
    let found = sites.keys().filter(|(a, _)| *a == act).nth(nth);
    found.expect("there are so many").1
}

#[test]
fn a_forgotten_flush_or_fence_loses_what_was_acknowledged() {
    for mutation in [
        Mutation::NoFlush(site(Act::Flush, 0)),
        Mutation::NoFence(site(Act::Fence, 0)),
    ] {
        let recorder = Recorder::new(BYTES).with_mutation(mutation);
        two_and_one(&recorder);
        let seen = states(&recorder, &[0, 1, 8]);
        assert!(seen.contains(&(vec![0, 0, 3], 1)), "{mutation:?}: {seen:?}");
    }
    let recorder = Recorder::new(BYTES);
    two_and_one(&recorder);
    let seen = states(&recorder, &[0, 1, 8]);
    assert!(
        seen.iter()
            .all(|(values, count)| *count == 0 || values[..2] == [1, 2])
    );
}

#[test]
fn a_late_store_is_durable_after_the_next_one_and_at_the_flush_at_the_latest() {
    let recorder = Recorder::new(BYTES).with_mutation(Mutation::Late(site(Act::Store, 0)));
    two_and_one(&recorder);
    let seen = states(&recorder, &[0, 1, 8]);
    assert!(seen.contains(&(vec![0, 2, 0], 0)), "{seen:?}");
    assert!(
        !seen.iter().any(|(values, _)| values[..2] == [1, 0]),
        "{seen:?}"
    );
    assert!(
        seen.iter()
            .all(|(values, count)| *count == 0 || values[..2] == [1, 2])
    );
}

#[test]
fn of_too_many_states_the_extremes_are_always_shown() {
    let recorder = Recorder::new(BYTES);
    for at in 0..10 {
        recorder.store(word(&recorder, at * 8), 1);
        recorder.store(word(&recorder, at * 8), 2);
    }
    let words: Vec<usize> = (0..10).map(|at| at * 8).collect();
    let seen = set(&states(&recorder, &words));
    let all = |value| vec![value; 10];
    assert!(seen.contains(&(all(0), 0)) && seen.contains(&(all(2), 0)));
    for at in 0..10 {
        let alone = |rest, value| {
            let mut values = all(rest);
            values[at] = value;
            (values, 0)
        };
        let chosen = [alone(0, 2), alone(2, 0), alone(2, 1)];
        assert!(chosen.iter().all(|state| seen.contains(state)), "line {at}");
    }
    assert!(seen.len() < 100, "{} states", seen.len());
}

#[test]
fn the_sites_are_those_of_the_callers() {
    let recorder = Recorder::new(BYTES);
    recorder.persist(line(&recorder, 0));
    let sites = recorder.sites();
    assert_eq!(sites.len(), 2);
    for ((_, site), count) in sites {
        assert!(site.file.ends_with("tests.rs"), "{site:?}");
        assert_eq!(count, 1);
    }
}
