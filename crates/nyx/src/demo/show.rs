//! The show: three acts over one stage, on a terminal or as plain lines.
//!
//! What it never does: decide what is said; that comes from the scores.

use super::cast::{Act, NAMES, Part, TENANTS, cast};
use super::crew::{Board, fill, work};
use super::layout::{COLUMNS, ROWS, Scene, log_heads};
use super::scores::{LOOK, Scores};
use super::screen::{Line, Screen, text, write_line};
use super::stage::{Medium, Stage, modelled};
use crate::cmd::print;
use crate::{Exit, Failure};
use nyx_base::{Instant, Nanos};
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// Two threads, as many as the smallest machine has CPUs; more would show nothing else.
const THREADS_MAX: usize = 2;

/// How long nobody looks at the clock.
const WAIT_MAX: Nanos = Nanos::from_millis(10);

/// What is shown.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device model.
    pub model: String,
    /// The share of the device that the noisy tenant may use once it is limited.
    pub limit: f64,
    /// How long it takes.
    pub length: Nanos,
    /// Lines instead of a picture, even on a terminal.
    pub plain: bool,
}

/// Where the show is seen.
enum View {
    Picture(Screen),
    Lines(Lines),
}

/// A line a second.
struct Lines {
    /// When the next one is due.
    due: Instant,
    /// The act that was told in words last.
    told: Option<Act>,
}

/// An act is told in words once it has gone on for so long.
const TELL: Nanos = Nanos::from_secs(1);

impl Lines {
    fn update(&mut self, scene: &Scene<'_>, now: Instant) -> Result<(), Failure> {
        if self.due == Instant(0) {
            self.due = now;
            print(&format!("{}\n", log_heads().join("\n")))?;
        }
        if now >= self.due {
            self.due += Nanos::from_secs(1);
            print(&format!("{}\n", scene.second()))?;
        }
        if self.told != Some(scene.act) && scene.scores.length(scene.act) >= TELL {
            self.told = Some(scene.act);
            print(&format!("{}\n", scene.chapter()))?;
        }
        Ok(())
    }
}

impl View {
    /// A picture where there is a terminal that can hold it.
    fn open(plain: bool) -> io::Result<View> {
        let fits = || {
            crossterm::terminal::size()
                .is_ok_and(|(columns, rows)| columns >= COLUMNS && rows >= ROWS)
        };
        if plain || !io::stdout().is_terminal() || !io::stdin().is_terminal() || !fits() {
            return Ok(View::Lines(Lines {
                due: Instant(0),
                told: None,
            }));
        }
        Screen::take().map(View::Picture)
    }

    /// Shows how things stand.
    fn update(&mut self, scene: &Scene<'_>, now: Instant) -> Result<(), Failure> {
        match self {
            View::Picture(screen) => screen.draw(&scene.frame()).map_err(|e| broken(&e)),
            View::Lines(lines) => lines.update(scene, now),
        }
    }

    /// Waits a little; says whether to stop.
    fn wait(&self, time: Nanos) -> Result<bool, Failure> {
        let time = Duration::from_nanos(time.0);
        match self {
            View::Picture(screen) => screen.asked_to_quit(time).map_err(|e| broken(&e)),
            View::Lines(_) => {
                std::thread::sleep(time);
                Ok(false)
            }
        }
    }

    /// Leaves the summary behind.
    fn close(self, summary: &[Line]) -> Result<(), Failure> {
        let View::Picture(mut screen) = self else {
            let lines: Vec<String> = summary.iter().map(text).collect();
            return print(&format!("\n{}\n", lines.join("\n")));
        };
        screen.wipe().map_err(|e| broken(&e))?;
        drop(screen);
        let mut out = io::stdout().lock();
        let mut write = |line: &Line| {
            write_line(&mut out, line)?;
            out.write_all(b"\n")
        };
        summary
            .iter()
            .try_for_each(&mut write)
            .map_err(|e| broken(&e))?;
        out.flush().map_err(|e| broken(&e))
    }
}

fn broken(error: &io::Error) -> Failure {
    Failure::new(Exit::Io, format!("cannot write to the terminal: {error}"))
}

/// Plays the show to its end, or until somebody quits, and leaves a summary.
///
/// Errors: exit 64 where there is no such model, 71 where memory or a thread cannot be had, 74
/// where the terminal cannot be written to.
pub fn show(settings: &Settings) -> Result<(), Failure> {
    let device = modelled(&settings.model)?;
    let parts = cast(&device);
    let loads = std::array::from_fn::<_, TENANTS, _>(|i| (NAMES[i], parts[i].load.clone()));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cpus.min(THREADS_MAX) as u16;
    let stage = Stage::new(Medium::Modelled(&device), &loads, threads)?;
    fill(&stage, &parts);
    let show = Show {
        settings,
        parts: &parts,
        stage: &stage,
        board: &Board::new(threads),
    };
    let mut view = View::open(settings.plain).map_err(|error| broken(&error))?;
    let summary = show.play(threads, &mut view)?;
    view.close(&summary)
}

struct Show<'s> {
    settings: &'s Settings,
    parts: &'s [Part; TENANTS],
    stage: &'s Stage,
    board: &'s Board,
}

impl Show<'_> {
    /// Hires the threads, turns the acts and sends the threads home; gives the summary.
    fn play(&self, threads: u16, view: &mut View) -> Result<Vec<Line>, Failure> {
        std::thread::scope(|scope| {
            let hire = |thread| {
                let builder = std::thread::Builder::new().name(format!("worker {thread}"));
                let hired = builder.spawn_scoped(scope, move || {
                    work(self.stage, self.parts, self.board, thread)
                });
                hired.map(drop)
            };
            let played = match (0..threads).try_for_each(hire) {
                Ok(()) => self.turn(view),
                Err(error) => Err(Failure::new(
                    Exit::Os,
                    format!("cannot start a thread: {error}"),
                )),
            };
            self.board.end();
            played
        })
    }

    /// Turns the acts, ticks the controller, keeps the scores.
    fn turn(&self, view: &mut View) -> Result<Vec<Line>, Failure> {
        let (stage, length) = (self.stage, self.settings.length);
        let begin = stage.clock.now();
        let (mut act, mut next_look) = (Act::Quiet, begin + LOOK);
        let mut scores = Scores::new(stage, self.board);
        loop {
            let now = stage.clock.now();
            let elapsed = now.since(begin);
            let next_act = Act::at(elapsed.as_secs_f64() / length.as_secs_f64());
            if now >= next_look || next_act != act || elapsed >= length {
                scores.look(stage, self.board, act);
                next_look = now + LOOK;
                view.update(&self.scene(act, elapsed, &scores), now)?;
            }
            if elapsed >= length {
                return Ok(self.scene(act, elapsed, &scores).summary());
            }
            if next_act != act {
                act = next_act;
                stage.engine.set_policy(act.policy(self.settings.limit));
                self.board.begin(act);
                scores.turn();
            }
            let period = stage.engine.control(now);
            if view.wait(period.min(WAIT_MAX))? {
                return Ok(self.scene(act, elapsed, &scores).summary());
            }
        }
    }

    fn scene<'s>(&'s self, act: Act, elapsed: Nanos, scores: &'s Scores) -> Scene<'s> {
        Scene {
            model: &self.settings.model,
            parts: self.parts,
            limit: self.settings.limit,
            length: self.settings.length,
            elapsed,
            act,
            scores,
        }
    }
}
