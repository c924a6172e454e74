//! Corners of the meta commands that random scripts have tripped over once, each as a short talk.

mod rig;

use rig::{Rig, roomy};

/// Says each line of `talk` and compares the answer; `=>` separates the two, `|` stands for a line
/// end within either.
fn talk(talk: &[&str]) {
    let mut rig = Rig::new(vec![roomy("one")]);
    let mut session = rig.to(0);
    for line in talk {
        let (request, want) = line.split_once(" => ").expect("a request and its answer");
        let whole = |text: &str| text.replace('|', "\r\n") + "\r\n";
        let want = if want == "nothing" {
            String::new()
        } else {
            whole(want)
        };
        assert_eq!(rig.say(&mut session, &whole(request)), want, "{line}");
    }
}

#[test]
fn an_add_with_a_cas_value_is_an_add() {
    talk(&[
        "ms k 1 ME C5|a => HD",
        "ms k 1 E77|b => HD",
        "ms k 1 ME C77|c => NS",
        "mg k v => VA 1|b",
    ]);
}

#[test]
fn a_value_of_the_wrong_age_is_not_appended() {
    talk(&[
        "ms k 1 E77|b => HD",
        "ms k 1 MA I C70|c => EX",
        "ms k 1 MA I C77|c => HD",
        "mg k v => VA 2|bc",
    ]);
}

#[test]
fn a_cas_value_that_the_client_names_is_the_items_after_every_change() {
    talk(&[
        "ms k 1 E7|a => HD",
        "ms k 1 MA E8|b => HD",
        "mg k c => HD c8",
        "ms k 1 MP E9|c => HD",
        "mg k c => HD c9",
        "md k I E10 => HD",
        "mg k c => HD c10 X W",
    ]);
}

#[test]
fn an_append_tells_the_length_of_the_whole_value() {
    talk(&[
        "ms k 3|abc => HD",
        "ms k 2 MA s|de => HD s5",
        "ms k 2 MP s q|de => nothing",
        "mg k s => HD s7",
    ]);
}

#[test]
fn an_append_that_grows_too_large_leaves_the_item() {
    let half = "x".repeat(4000);
    talk(&[
        &format!("ms k 4000|{half} => HD"),
        &format!("ms k 4000 MA|{half} => SERVER_ERROR object too large for cache"),
        "mg k s => HD s4000",
    ]);
}

#[test]
fn nothing_ends_within_no_time() {
    talk(&[
        "ms k 1 T50|a => HD",
        "mg k R0 t => HD t50",
        "mg k R50 t => HD t50",
        "mg k R51 t => HD t50 W",
        "mg k R51 t => HD t50 Z",
    ]);
}

#[test]
fn arithmetic_tells_how_long_the_number_lives() {
    talk(&[
        "ms k 1 T50|1 => HD",
        "ma k t => HD t50",
        "ma k t T9 => HD t9",
        "ma new t N30 v => VA 1 t30|0",
    ]);
}

#[test]
fn a_stale_number_stays_stale_when_it_is_counted_on() {
    talk(&[
        "ms k 1|1 => HD",
        "md k I => HD",
        "ma k v => VA 1|2",
        "mg k v => VA 1 X W|2",
        "incr k 1 => 3",
        "mg k v => VA 1 Z X|3",
    ]);
}

#[test]
fn the_time_of_a_removed_value_changes_only_with_invalidation() {
    talk(&[
        "ms k 1 T50|1 => HD",
        "md k x T9 => HD",
        "mg k t s => HD t50 s0",
        "md k x I T9 => HD",
        "mg k t => HD t9 X W",
    ]);
}

#[test]
fn a_cas_value_that_was_told_outlives_a_touch() {
    for store in ["ms k 1 c|5", "ma k N0 J5 c", "mg k N0 c"] {
        let mut rig = Rig::new(vec![roomy("one")]);
        let mut session = rig.to(0);
        let request = store.replace('|', "\r\n") + "\r\n";
        let answer = rig.say(&mut session, &request);
        let word = answer.split_ascii_whitespace().nth(1).expect("a flag");
        let cas = word.strip_prefix('c').expect("a cas value");
        // From no end to some end: the item moves.
        assert_eq!(rig.say(&mut session, "touch k 100\r\n"), "TOUCHED\r\n");
        let swap = format!("cas k 0 0 1 {cas}\r\n6\r\n");
        assert_eq!(rig.say(&mut session, &swap), "STORED\r\n", "{store}");
    }
}
