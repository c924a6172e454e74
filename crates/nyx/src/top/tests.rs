//! Frames of a scripted server, as a terminal would show them.
//!
//! What they never do: look at colours where the text says the same.

use super::script;
use super::state::State;
use super::view;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::{Color, Modifier};

fn state(readings: u64) -> State {
    let mut state = State::new("127.0.0.1:11211".into());
    (1..=readings).for_each(|s| state.take(Ok(script::sample(s))));
    state
}

fn press(state: &mut State, code: KeyCode) {
    assert!(!state.key(KeyEvent::new(code, KeyModifiers::NONE)));
}

fn terminal(state: &State, columns: u16, rows: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("memory");
    terminal
        .draw(|frame| view::draw(frame, state))
        .expect("memory");
    terminal
}

/// The rows of a frame, without what is blank at their ends.
fn rows(state: &State, columns: u16, rows: u16) -> Vec<String> {
    let terminal = terminal(state, columns, rows);
    let buffer = terminal.backend().buffer();
    let row = |y: u16| {
        let cells = (0..columns).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_owned()
    };
    (0..rows).map(row).collect()
}

fn assert_shows(frame: &[String], words: &[&str]) {
    for word in words {
        let found = frame.iter().any(|row| row.contains(word));
        assert!(found, "{word:?} is missing in\n{}", frame.join("\n"));
    }
}

#[test]
fn a_frame_of_80_columns_and_24_rows() {
    let frame = rows(&state(4), 80, 24);
    println!("{}", frame.join("\n"));
    assert_shows(
        &frame[..1],
        &["nyx top 127.0.0.1:11211  policy qos", "last 1.0 s"],
    );
    assert_shows(&frame[1..2], &["main", "84.5 % used (emulated)"]);
    let heads = [
        "TENANT", "REQ/S", "P99.9", "DEVICE", "USED%", "LIMIT%", "SLACK", "HELD/S",
    ];
    assert_shows(&frame[2..3], &heads);
    assert!(
        frame[3].trim().starts_with("batch  "),
        "the largest user: {}",
        frame[3]
    );
    assert!(
        frame[5].contains("web") && frame[5].contains("-27%"),
        "{}",
        frame[5]
    );
    assert_shows(&frame, &["best effort", "throttled to 50.0 % for others"]);
    assert_shows(&frame, &["0.5 s ago batch throttled from 78.0 to 50.0 %"]);
    assert_shows(&frame, &["throttling batch helped by 38 %"]);
    assert_shows(&frame[23..], &["q quit", "? help", "p pause"]);
}

#[test]
fn a_frame_of_200_columns_and_50_rows() {
    let frame = rows(&state(40), 200, 50);
    println!("{}", frame.join("\n"));
    assert_shows(
        &frame[..1],
        &["up 61 min", "66 connections", "1.50 CPUs busy"],
    );
    assert_shows(
        &frame[2..3],
        &["SLOWED", "WAITING", "ITEMS", "USED/SIZE", "EVICT/S"],
    );
    // Details and decisions stand side by side.
    let both = frame.iter().find(|row| row.contains("on main"));
    assert!(
        both.is_some_and(|row| row.contains("Decisions")),
        "{both:?}"
    );
    assert_shows(&frame, &["max 50,000", "45 % slack"]);
}

#[test]
fn every_size_is_drawn_and_the_smallest_too() {
    let states = [State::new("nowhere".into()), state(1), state(5)];
    for mut state in states {
        for code in [KeyCode::Esc, KeyCode::Char('?'), KeyCode::Enter] {
            state.key(KeyEvent::new(code, KeyModifiers::NONE));
            for columns in (1..230).step_by(11) {
                for height in (1..70).step_by(5) {
                    rows(&state, columns, height);
                }
            }
        }
    }
}

#[test]
fn before_the_first_reading_it_says_what_it_waits_for() {
    let mut state = State::new("unix:/run/nyx.sock".into());
    assert_shows(
        &rows(&state, 80, 24),
        &["Asking unix:/run/nyx.sock ...", "q quits"],
    );
    state.take(Err(
        "cannot reach a server at unix:/run/nyx.sock: refused".into()
    ));
    assert_shows(
        &rows(&state, 80, 24),
        &["cannot reach a server", "Trying again"],
    );
}

#[test]
fn trouble_is_told_above_the_last_figures() {
    let mut state = state(3);
    state.take(Err("lost the server at 127.0.0.1:11211: broken pipe".into()));
    let frame = rows(&state, 80, 24);
    assert_shows(&frame[1..2], &["lost the server", "trying again"]);
    assert_shows(&frame, &["batch", "web", "feed"]);
}

#[test]
fn what_a_tenant_survives_is_told_and_what_is_wrong_with_its_journal() {
    let mut state = state(3);
    press(&mut state, KeyCode::Down);
    assert_shows(&rows(&state, 80, 24), &["each 100 ms, 5.0 KiB to come"]);
    let frame = rows(&state, 200, 50);
    assert_shows(&frame, &["survives  a power failure", "10 syncs/s"]);
    let mut failed = script::sample(4);
    let feed = failed.tenants.iter_mut().find(|one| one.name == "feed");
    let feed = feed.expect("it is scripted");
    feed.set("journal_trouble", "the disk has no room");
    state.take(Ok(failed));
    let frame = rows(&state, 80, 24);
    assert_shows(&frame, &["journal   the disk has no room"]);
}

#[test]
fn decisions_can_be_those_of_one_tenant() {
    let mut state = state(3);
    assert_shows(&rows(&state, 80, 24), &["feed relaxed without a limit"]);
    press(&mut state, KeyCode::Char('d'));
    let frame = rows(&state, 80, 24);
    assert_shows(&frame, &["Decisions over batch", "batch throttled"]);
    assert!(!frame.iter().any(|row| row.contains("feed relaxed")));
}

#[test]
fn the_help_and_an_explanation_lie_over_the_view_and_scroll() {
    let mut state = state(3);
    press(&mut state, KeyCode::Char('?'));
    let frame = rows(&state, 80, 24);
    assert_shows(&frame, &["Help", "select a tenant", "up and down scroll"]);
    assert_shows(&frame, &["had to wait; connections that wait now  "]);
    assert!(!frame.iter().any(|row| row.contains("model in real time")));
    press(&mut state, KeyCode::End);
    assert_shows(&rows(&state, 80, 24), &["model in real time"]);
    press(&mut state, KeyCode::Enter);
    let frame = rows(&state, 80, 50);
    assert_shows(
        &frame,
        &[
            "Why batch is as it is",
            "It hurts web, by 38 %",
            "esc closes",
        ],
    );
    assert_shows(&frame, &["Promise", "Held back", "What you can do"]);
}

#[test]
fn the_selected_row_stands_out_and_a_missed_target_is_red() {
    let mut state = state(3);
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Down);
    let terminal = terminal(&state, 80, 24);
    let buffer = terminal.backend().buffer();
    let reversed = |y: u16| buffer[(1, y)].modifier.contains(Modifier::REVERSED);
    assert_eq!([3, 4, 5, 6].map(reversed), [false, false, true, false]);
    let minus = (0..80).find(|&x| buffer[(x, 5)].symbol() == "-");
    let minus = minus.expect("web has a slack below 0");
    // The row of web has a dash for its missing limit before the slack.
    let red = (minus..80)
        .filter(|&x| buffer[(x, 5)].fg == Color::Red)
        .count();
    assert_eq!(red, "-27%".len());
}

#[test]
fn a_bar_ends_where_the_limit_is() {
    let frame = rows(&state(3), 200, 50);
    let blocks = |row: &str, block: char| row.chars().filter(|&c| c == block).count();
    let (batch, feed, web) = (&frame[3], &frame[4], &frame[5]);
    let full = blocks(web, '\u{2588}') + blocks(web, '\u{2591}') + 1;
    assert_eq!(
        blocks(batch, '\u{2591}'),
        0,
        "it uses all that it may: {batch}"
    );
    assert!(blocks(batch, '\u{2588}').abs_diff(full / 2) <= 1, "{batch}");
    let shown = blocks(feed, '\u{2588}') as f64 / full as f64;
    assert!((shown - 0.22).abs() < 0.05, "{feed}");
}
