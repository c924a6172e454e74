//! What a running server does to its tenants, for operators: `nyx top` and `nyx explain`.
//!
//! Everything comes over the memcached protocol from `stats`, `stats tenants`, `stats latencies`
//! and `stats policy`; a connection sees the tenants within its reach and no others. The server
//! keeps totals only. Rates and percentiles of an interval are differences of two readings, made
//! here, so that several operators can look at once, each at intervals of its own.
//!
//! What it never does: change anything on the server.
//!
//! [`mod@programs`] is another view, of programs under `nyx swap`, which no server knows of.
//!
//! * [`ask`]: the thin end: a connection, four questions, four answers. [`sample`]: one reading.
//! * [`figures`]: what happened between two readings. [`words`]: figures for people.
//! * [`table`]: columns and order. [`plain`]: the table as text and JSON.
//! * [`mod@explain`]: why a tenant is as it is, in sentences.
//! * [`state`]: what is known and chosen; [`view`], [`detail`], [`overlay`]: a frame of it;
//!   [`screen`]: the terminal.

mod ask;
mod detail;
mod explain;
mod figures;
mod overlay;
mod plain;
mod programs;
mod sample;
mod screen;
#[cfg(test)]
mod script;
mod state;
mod table;
#[cfg(test)]
mod tests;
mod view;
mod words;

use crate::cmd::print;
use crate::load::address::{Address, Login};
use crate::load::duration;
use crate::load::report;
use crate::{Exit, Failure};
use ask::Asker;
use crossterm::event::KeyEvent;
use figures::Board;
use ratatui::Frame;
use sample::Sample;
use serde::Serialize;
use state::State;
use std::io::IsTerminal;
use std::time::Duration;

/// The shortest and the longest interval.
const INTERVALS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(3600)];

/// Which server is looked at, and how often.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Server {
    /// User and password, where the server asks for a login.
    #[arg(
        long,
        value_name = "USER:PASSWORD",
        env = "NYX_LOGIN",
        hide_env_values = true
    )]
    login: Option<Login>,
    /// How long an interval is.
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
}

/// Where the server listens where nobody says so.
pub(crate) const ADDRESS: &str = "127.0.0.1:11211";

fn interval(text: &str) -> Result<Duration, String> {
    let [least, most] = INTERVALS;
    match duration(text)? {
        interval if (least..=most).contains(&interval) => Ok(interval),
        _ => Err("an interval is 50ms to 1h long".to_owned()),
    }
}

impl Server {
    fn asker(&self, address: &Address) -> Asker {
        Asker::new(address.clone(), self.login.clone())
    }

    /// What happens in one interval from now.
    fn board(&self, address: &Address) -> Result<Board, Failure> {
        let mut asker = self.asker(address);
        let before = asker.sample()?;
        std::thread::sleep(self.interval);
        let now = asker.sample()?;
        Ok(Board::between(Some(&before), &now))
    }
}

fn on_terminal() -> Result<(), Failure> {
    if std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        return Ok(());
    }
    let message = "there is no terminal to draw on: --once prints one table, --json all figures";
    Err(Failure::new(Exit::Usage, message))
}

/// `nyx top` on a terminal.
pub(crate) fn live(server: &Server, address: &Address) -> Result<(), Failure> {
    on_terminal()?;
    let mut state = State::new(address.to_string());
    let mut asker = server.asker(address);
    let read = move || asker.sample().map_err(|failure| failure.message);
    screen::run(read, &mut state, server.interval)
}

impl screen::Screen for State {
    type Reading = Sample;

    fn take(&mut self, reading: Result<Sample, String>) {
        State::take(self, reading);
    }

    fn key(&mut self, key: KeyEvent) -> bool {
        State::key(self, key)
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        view::draw(frame, self);
    }
}

/// `nyx top --programs`, on a terminal or once.
pub(crate) fn programs(server: &Server, is_once: bool, json: bool) -> Result<(), Failure> {
    if is_once || json {
        return programs::once(server.interval, json);
    }
    on_terminal()?;
    programs::live(server.interval)
}

/// `nyx top --once` and `--json`.
pub(crate) fn once(server: &Server, address: &Address, json: bool) -> Result<(), Failure> {
    let board = server.board(address)?;
    match json {
        true => print(&plain::json(&address.to_string(), &board)),
        false => print(&plain::text(&board, table::Column::Used, false)),
    }
}

/// An explanation with where it is from.
#[derive(Serialize)]
struct Report<'e> {
    server: String,
    #[serde(flatten)]
    explanation: &'e explain::Explanation,
}

/// `nyx explain`.
pub(crate) fn explain(
    server: &Server,
    address: &Address,
    tenant: &str,
    json: bool,
) -> Result<(), Failure> {
    let board = server.board(address)?;
    let Some(explanation) = explain::explain(&board, tenant) else {
        let names: Vec<&str> = board.tenants.iter().map(|one| one.name.as_str()).collect();
        let names = match names.is_empty() {
            true => "none".to_owned(),
            false => names.join(", "),
        };
        return Err(Failure::usage(format!(
            "{address} has no tenant {tenant:?} within reach; there are: {names}"
        )));
    };
    match json {
        true => print(&report::json(&Report {
            server: address.to_string(),
            explanation: &explanation,
        })),
        false => print(&explanation.to_string()),
    }
}
