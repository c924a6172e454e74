//! `nyx top --programs`: the programs that run in less memory than they use (`nyx swap`), as they
//! fare now.
//!
//! They are known by what their launchers wrote down on this machine; no server is asked. Totals
//! are read, and what happens in an interval is their difference.
//!
//! A program that pages for itself (engine P) has an arena, whose faults, reclaims and CPU time are
//! added to what the kernel and the reclaimer do for it.
//!
//! What it never does: change anything; guess what nobody tells.

use super::view::{BAD, FAINT, FAIR, STRONG};
use super::{plain, screen, words};
use crate::cmd::swap::{Program, programs};
use crate::load::report;
use crate::{Failure, cmd};
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use nyx_swap::arena::ArenaFigures;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use serde::Serialize;
use std::time::{Duration, Instant};

/// One reading.
#[derive(Debug)]
pub(crate) struct Sample {
    at: Instant,
    programs: Vec<Program>,
}

impl Sample {
    pub(crate) fn now() -> Sample {
        Sample {
            at: Instant::now(),
            programs: programs(),
        }
    }
}

/// How a program fared between two readings; none where nobody tells, or it was not there before.
#[derive(Debug, PartialEq, Serialize)]
struct Fared {
    #[serde(flatten)]
    is: Program,
    faults_per_s: Option<f64>,
    major_faults_per_s: Option<f64>,
    inline_reclaims_per_s: Option<f64>,
    /// Part of the time in which at least one of its threads stalled for memory.
    stalled_share: Option<f64>,
    /// Processors that the reclaimer and who reads ahead took, and the program's own pagers.
    reclaimer_cpus: Option<f64>,
}

/// What the kernel counts of a program, and its arenas.
fn with_arenas(is: &Program, kernel: u64, arena: fn(&ArenaFigures) -> u64) -> f64 {
    (kernel + is.arena.as_ref().map_or(0, arena)) as f64
}

/// CPU time of the reclaimer, of who reads ahead and of the arenas; none where nobody tells.
fn pager_cpu_ns(is: &Program) -> Option<f64> {
    let reclaimer = is.figures.map(|figures| {
        let reader = figures.read_ahead.map_or(0, |done| done.cpu_ns);
        figures.reclaimer_cpu_ns + reader
    });
    let arenas = is.arena.as_ref().map(|arena| arena.cpu_ns);
    let told = [reclaimer, arenas].into_iter().flatten();
    told.reduce(|a, b| a + b).map(|ns| ns as f64)
}

/// All of them, those that wait for their device most first.
#[derive(Debug, PartialEq, Serialize)]
struct Board {
    interval_s: f64,
    programs: Vec<Fared>,
}

impl Board {
    fn between(before: &Sample, now: &Sample) -> Board {
        let interval_s = now.at.duration_since(before.at).as_secs_f64();
        let rate = |before: f64, now: f64| (now >= before).then(|| (now - before) / interval_s);
        let fared = |is: &Program| {
            let was = before.programs.iter().find(|was| was.is_same(is));
            let of = |value: fn(&Program) -> Option<f64>| rate(value(was?)?, value(is)?);
            Fared {
                faults_per_s: of(|one| Some(one.faults as f64)),
                major_faults_per_s: of(|one| {
                    Some(with_arenas(one, one.major_faults, |all| all.major_faults))
                }),
                inline_reclaims_per_s: of(|one| {
                    let arenas = |all: &ArenaFigures| all.inline_reclaims;
                    Some(with_arenas(one, one.inline_reclaims, arenas))
                }),
                stalled_share: of(|one| one.stalled_s),
                reclaimer_cpus: of(|one| Some(pager_cpu_ns(one)? / 1e9)),
                is: is.clone(),
            }
        };
        let mut programs: Vec<Fared> = now.programs.iter().map(fared).collect();
        let major = |one: &Fared| one.major_faults_per_s.unwrap_or(0.0);
        programs.sort_by(|a, b| major(b).total_cmp(&major(a)));
        Board {
            interval_s,
            programs,
        }
    }
}

const COLUMNS: [&str; 13] = [
    "PID", "LIMIT", "MEMORY", "SWAPPED", "FAULTS/S", "MAJOR/S", "INLINE/S", "P50", "P99", "STALL%",
    "RECL%", "ARENAS", "COMMAND",
];

impl Fared {
    fn cells(&self) -> [String; COLUMNS.len()] {
        let told = |value: Option<String>| value.unwrap_or("-".to_owned());
        let is = &self.is;
        let latency = |ns: u64| (ns > 0).then(|| words::latency(ns as f64 / 1e3));
        let probe = is.figures.and_then(|figures| figures.touches);
        let probe = probe.map(|touches| [touches.p50_ns, touches.p99_ns]);
        let arena = is.arena.as_ref().filter(|arena| arena.processes > 0);
        let [p50_ns, p99_ns] = (arena.map(|arena| [arena.p50_ns, arena.p99_ns]))
            .or(probe)
            .unwrap_or_default();
        let gone = match is.launcher_runs {
            true => "",
            false => " (its launcher is gone)",
        };
        [
            told(is.program.map(|pid| pid.to_string())),
            told(is.limit_bytes.map(words::bytes)),
            words::bytes(is.used_bytes),
            words::bytes(is.swapped_bytes),
            told(self.faults_per_s.map(words::count)),
            told(self.major_faults_per_s.map(words::count)),
            told(self.inline_reclaims_per_s.map(words::count)),
            told(latency(p50_ns)),
            told(latency(p99_ns)),
            told(self.stalled_share.map(words::share)),
            told(self.reclaimer_cpus.map(words::share)),
            told(arena.map(|arena| arena.processes.to_string())),
            format!("{}{gone}", is.command.join(" ")),
        ]
    }

    /// A program that reclaims for itself or stalls is worth a look.
    fn style(&self) -> Style {
        let is_over = |value: Option<f64>, most| value.is_some_and(|value| value > most);
        match () {
            () if is_over(self.stalled_share, 0.2) => BAD,
            () if is_over(self.inline_reclaims_per_s, 100.0) => FAIR,
            () => Style::new(),
        }
    }
}

/// As text.
fn text(board: &Board) -> String {
    if board.programs.is_empty() {
        return "no program runs under nyx swap\n".to_owned();
    }
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    rows.extend(board.programs.iter().map(Fared::cells));
    plain::laid_out(&rows, COLUMNS.len() - 1)
}

/// What is known, and drawn.
struct Shown {
    last: Option<Sample>,
    board: Option<Board>,
    is_paused: bool,
}

impl screen::Screen for Shown {
    type Reading = Sample;

    fn take(&mut self, reading: Result<Sample, String>) {
        let Ok(sample) = reading else { return };
        if self.is_paused {
            return;
        }
        let before = self.last.as_ref();
        self.board = before.map(|before| Board::between(before, &sample));
        self.last = Some(sample);
    }

    fn key(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return false;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => true,
            KeyCode::Char('q') | KeyCode::Esc => true,
            KeyCode::Char('p' | ' ') => {
                self.is_paused = !self.is_paused;
                false
            }
            _ => false,
        }
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let [head, body, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let keys = " q quits  p pauses   RECL%: of a processor, by the reclaimer and arenas   \
                    P50, P99: of a page that comes back";
        frame.render_widget(Line::styled(keys, FAINT), foot);
        let programs = self.board.as_ref().map_or(&[][..], |board| &board.programs);
        let paused = if self.is_paused { ", paused" } else { "" };
        let title = match &self.board {
            None => " Reading ...".to_owned(),
            Some(board) => format!(
                " nyx top: {} programs under nyx swap, of {:.1} s{paused}",
                programs.len(),
                board.interval_s
            ),
        };
        frame.render_widget(Line::styled(title, STRONG), head);
        if self.board.is_some() && programs.is_empty() {
            let none = "No program runs under nyx swap. Start one: nyx swap run --help";
            let none = Paragraph::new(none).alignment(Alignment::Center);
            return frame.render_widget(none, body);
        }
        frame.render_widget(table(programs), body);
    }
}

fn table(programs: &[Fared]) -> Table<'static> {
    let right = |cell: String| Cell::from(Line::from(cell).alignment(Alignment::Right));
    let row = |cells: [String; COLUMNS.len()]| {
        let last = COLUMNS.len() - 1;
        let cells = cells.into_iter().enumerate();
        Row::new(cells.map(|(at, cell)| match at == last {
            true => Cell::from(cell),
            false => right(cell),
        }))
    };
    let rows = programs
        .iter()
        .map(|one| row(one.cells()).style(one.style()));
    let mut widths = [Constraint::Length(8); COLUMNS.len()];
    widths[COLUMNS.len() - 1] = Constraint::Fill(1);
    Table::new(rows, widths).header(row(COLUMNS.map(str::to_owned)).style(FAINT))
}

/// On a terminal.
pub(crate) fn live(interval: Duration) -> Result<(), Failure> {
    let mut shown = Shown {
        last: None,
        board: None,
        is_paused: false,
    };
    screen::run(|| Ok(Sample::now()), &mut shown, interval)
}

/// What happens in one interval from now, and no more.
pub(crate) fn once(interval: Duration, json: bool) -> Result<(), Failure> {
    let before = Sample::now();
    std::thread::sleep(interval);
    let board = Board::between(&before, &Sample::now());
    match json {
        true => cmd::print(&report::json(&board)),
        false => cmd::print(&text(&board)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_swap::kernel::{Figures, ProbeReport};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn program(launcher: u32, faults: u64, figures: Option<Figures>) -> Program {
        Program {
            program: Some(launcher + 1),
            launcher,
            launcher_runs: figures.is_some(),
            limit_bytes: Some(64 << 20),
            used_bytes: 60 << 20,
            swapped_bytes: 4_718_592,
            faults: faults * 2,
            major_faults: faults,
            inline_reclaims: faults / 2,
            stalled_s: None,
            swap: None,
            figures,
            command: vec!["sort".to_owned(), "-n".to_owned()],
            ..Program::default()
        }
    }

    fn samples() -> (Sample, Sample) {
        let figures = |cpu_ms: u64| Figures {
            reclaimer_cpu_ns: cpu_ms * 1_000_000,
            touches: Some(ProbeReport {
                samples: 200,
                p50_ns: 4_000,
                p99_ns: 33_000,
            }),
            ..Figures::default()
        };
        let at = Instant::now();
        let before = Sample {
            at,
            programs: vec![program(10, 100, None), program(20, 100, Some(figures(100)))],
        };
        let now = Sample {
            at: at + Duration::from_secs(2),
            programs: vec![
                program(10, 100, None),
                program(20, 900, Some(figures(600))),
                program(30, 7, None),
            ],
        };
        (before, now)
    }

    #[test]
    fn rates_are_differences_and_who_is_new_has_none() {
        let (before, now) = samples();
        let board = Board::between(&before, &now);
        let order: Vec<u32> = board.programs.iter().map(|one| one.is.launcher).collect();
        assert_eq!(order, [20, 10, 30]);
        let first = &board.programs[0];
        assert_eq!(first.faults_per_s, Some(800.0));
        assert_eq!(first.major_faults_per_s, Some(400.0));
        assert_eq!(first.inline_reclaims_per_s, Some(200.0));
        assert_eq!(
            (first.stalled_share, first.reclaimer_cpus),
            (None, Some(0.25))
        );
        assert_eq!(board.programs[1].faults_per_s, Some(0.0));
        assert_eq!(board.programs[2].faults_per_s, None);
    }

    #[test]
    fn the_table_says_what_is_known() {
        let (before, now) = samples();
        let text = text(&Board::between(&before, &now));
        let want = "\
PID  LIMIT  MEMORY  SWAPPED  FAULTS/S  MAJOR/S  INLINE/S    P50   P99  STALL%  RECL%  ARENAS  \
COMMAND
 21    64M     60M     4.5M       800      400       200  4.0us  33us       -   25.0       -  \
sort -n
 11    64M     60M     4.5M         0        0         0      -     -       -      -       -  \
sort -n (its launcher is gone)
 31    64M     60M     4.5M         -        -         -      -     -       -      -       -  \
sort -n (its launcher is gone)
";
        assert_eq!(text, want, "\n{text}");
    }

    #[test]
    fn what_arenas_do_is_added_to_what_the_kernel_does() {
        let (mut before, mut now) = samples();
        let arena = |times: u64| ArenaFigures {
            processes: 3,
            major_faults: 1_000 * times,
            inline_reclaims: 10 * times,
            cpu_ns: 600_000_000 * times,
            p50_ns: 2_000,
            p99_ns: 150_000,
            ..ArenaFigures::default()
        };
        before.programs[1].arena = Some(arena(1));
        now.programs[1].arena = Some(arena(2));
        // One of which no launcher tells any more.
        before.programs[0].arena = Some(arena(0));
        now.programs[0].arena = Some(arena(1));
        let board = Board::between(&before, &now);
        let [first, second] = [0, 1].map(|at| &board.programs[at]);
        assert_eq!((first.is.launcher, second.is.launcher), (20, 10));
        assert_eq!(first.major_faults_per_s, Some(900.0));
        assert_eq!(first.inline_reclaims_per_s, Some(205.0));
        assert_eq!(first.reclaimer_cpus, Some(0.55));
        assert_eq!(second.reclaimer_cpus, Some(0.3));
        let cells = first.cells();
        assert_eq!([&cells[7], &cells[8], &cells[11]], ["2.0us", "150us", "3"]);
    }

    #[test]
    fn a_frame_has_the_rows_and_keys_do_what_they_say() {
        use screen::Screen;
        let (before, now) = samples();
        let mut shown = Shown {
            last: None,
            board: None,
            is_paused: false,
        };
        shown.take(Ok(before));
        shown.take(Ok(now));
        let mut terminal = Terminal::new(TestBackend::new(110, 8)).expect("a backend");
        let drawn = terminal.draw(|frame| shown.draw(frame)).expect("a frame");
        let lines: Vec<String> = (drawn.buffer.content().chunks(110))
            .map(|row| row.iter().map(|cell| cell.symbol()).collect())
            .collect();
        assert!(
            lines[0].contains("3 programs under nyx swap, of 2.0 s"),
            "{lines:?}"
        );
        assert!(
            lines[1].contains("MAJOR/S") && lines[2].contains("33us"),
            "{lines:?}"
        );
        assert!(!shown.key(KeyCode::Char('p').into()) && shown.is_paused);
        assert!(shown.key(KeyCode::Char('q').into()));
    }
}
