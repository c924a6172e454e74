//! The terminal while `nyx top` runs: readings come from a thread of their own, keys from the
//! terminal, and a frame is drawn when either changed something.
//!
//! What it never does: leave the terminal in another state than it found it: after a key, a signal
//! or a panic it is given back.
//!
//! *Thread safety*: the asking thread shares nothing with the drawing one but a channel.

use crate::{Exit, Failure};
use crossterm::event::{self, Event, KeyEvent};
use ratatui::Frame;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long a key may wait for a look at the other sources.
const LOOK: Duration = Duration::from_millis(40);

/// What is shown of readings.
pub(crate) trait Screen {
    /// What one reading is.
    type Reading: Send + 'static;

    /// One has come, or why it has not.
    fn take(&mut self, reading: Result<Self::Reading, String>);

    /// A key; true where it is to quit.
    fn key(&mut self, key: KeyEvent) -> bool;

    /// Draws a frame of what is known.
    fn draw(&self, frame: &mut Frame<'_>);
}

/// Runs until somebody quits.
///
/// Errors: exit 71 where the terminal or a thread is not to be had, 74 where it is lost.
pub(crate) fn run<S: Screen>(
    read: impl FnMut() -> Result<S::Reading, String> + Send + 'static,
    screen: &mut S,
    interval: Duration,
) -> Result<(), Failure> {
    let os = |what: &'static str| {
        move |error: io::Error| Failure::new(Exit::Os, format!("cannot {what}: {error}"))
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, stop.clone()).map_err(os("watch for signals"))?;
    }
    let (readings, arrived) = channel();
    // Held by the drawing side: when it ends, the asking side is told at once.
    let (running, quit) = channel::<()>();
    let asking = std::thread::Builder::new()
        .name("nyx-top-ask".into())
        .spawn(move || ask(read, interval, &readings, &quit))
        .map_err(os("start a thread"))?;
    // It takes the terminal, and sees to it that a panic gives it back.
    let mut terminal = ratatui::try_init().map_err(os("use the terminal"))?;
    let shown = show(&mut terminal, screen, &arrived, &stop);
    ratatui::restore();
    drop(running);
    // A server that does not answer may hold it for some seconds; nobody needs its answer.
    if asking.is_finished() && asking.join().is_err() {
        return Err(Failure::new(Exit::Software, "the asking thread panicked"));
    }
    shown.map_err(|error| Failure::new(Exit::Io, format!("the terminal is lost: {error}")))
}

/// Asks once in each interval until the other side is gone.
fn ask<R>(
    mut read: impl FnMut() -> Result<R, String>,
    interval: Duration,
    to: &Sender<Result<R, String>>,
    quit: &Receiver<()>,
) {
    let mut next = Instant::now();
    loop {
        if to.send(read()).is_err() {
            return;
        }
        next = (next + interval).max(Instant::now());
        let wait = next.saturating_duration_since(Instant::now());
        if quit.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

fn show<S: Screen>(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut S,
    arrived: &Receiver<Result<S::Reading, String>>,
    stop: &AtomicBool,
) -> io::Result<()> {
    let mut changed = true;
    while !stop.load(Relaxed) {
        if changed {
            terminal.draw(|frame| screen.draw(frame))?;
        }
        changed = false;
        if event::poll(LOOK)? {
            match event::read()? {
                Event::Key(key) if screen.key(key) => return Ok(()),
                _ => changed = true,
            }
        }
        for reading in arrived.try_iter() {
            screen.take(reading);
            changed = true;
        }
    }
    Ok(())
}
