//! A program as a tenant of a server: its device time is asked for where that of others is divided
//! (docs/decisions/0012-programs-as-tenants.md).
//!
//! A thread of the launcher tells the server what the program's arenas have made of the device, and
//! puts what it is granted into their purse. It asks when the purse is half empty, when it was told
//! to come again, and often enough for the server's figures.
//!
//! What it never does: hold anything itself; go on metering by what it was told long ago. Where the
//! server is gone the program goes on, and the report says so.

use crate::load::address::{Address, Blocking, Login, ask_line};
use crate::{Exit, Failure};
use nyx_base::Nanos;
use nyx_proto::{Lease, Leased, request, response};
use nyx_swap::kernel::TenantUse;
use nyx_swap::region::{PAGE_BYTES, Prices, Spent, Till};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A full purse: a millisecond of the device, so that no burst of a program's is longer.
const FULL_PS: i64 = 1_000_000_000;
/// Where nothing is used the server is asked so often, since limits change.
const IDLE: Duration = Duration::from_millis(100);
/// A server that is gone is looked for so often.
const AWAY: Duration = Duration::from_secs(1);

/// Which tenant, and of which server.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct TenantArgs {
    /// Run as this tenant of a Nyx server (with --engine uffd): what the program uses of its device
    /// is charged to the tenant, and its limit, share or target holds for both together. What is
    /// read ahead and written back is held first, pages that the program waits for last. The tenant
    /// is to be on the same device; of one with two devices it is the deep one.
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Where that server listens: HOST:PORT or unix:PATH.
    #[arg(long, value_name = "ADDRESS", default_value = crate::top::ADDRESS, requires = "tenant")]
    server: Address,
    /// A login, where the server asks for one: USER:PASSWORD.
    #[arg(long, value_name = "LOGIN", env = "NYX_LOGIN", hide_env_values = true)]
    login: Option<Login>,
}

impl TenantArgs {
    pub(super) fn is_given(&self) -> bool {
        self.tenant.is_some()
    }

    /// Begins to ask, where a tenant is named.
    ///
    /// Errors: exit 69 where nobody answers, 64 where the server has no such tenant.
    pub(super) fn start(&self) -> Result<Option<Teller>, Failure> {
        let Some(name) = self.tenant.clone() else {
            return Ok(None);
        };
        let mut line = Line {
            name,
            address: self.server.clone(),
            login: self.login.clone(),
            stream: None,
        };
        // What is wrong is said before anything is made.
        line.ask(0, &Spent::default()).map_err(Problem::failure)?;
        let (sender, tills) = sync_channel(1);
        let (name, server) = (line.name.clone(), line.address.to_string());
        let is_over = Arc::new(AtomicBool::new(false));
        let asking = Asking {
            line,
            is_over: Arc::clone(&is_over),
            told: Spent::default(),
            device_ps: 0,
            lost: None,
        };
        let thread = thread::spawn(move || asking.run(&tills));
        Ok(Some(Teller {
            name,
            server,
            sender,
            is_over,
            thread,
        }))
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Teller {
    name: String,
    server: String,
    sender: SyncSender<Till>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<TenantUse>,
}

impl Teller {
    /// Where a session is to put its till.
    pub(super) fn meter(&self) -> SyncSender<Till> {
        self.sender.clone()
    }

    /// Tells the server of the rest; what was used.
    pub(super) fn finish(self) -> TenantUse {
        self.is_over.store(true, Relaxed);
        self.thread.join().unwrap_or_else(|_| TenantUse {
            name: self.name,
            server: self.server,
            spent: Spent::default(),
            device_s: 0.0,
            lost: Some("who asked the server has failed".to_owned()),
        })
    }
}

/// What came of a question.
#[derive(Debug)]
enum Problem {
    /// It could not be asked.
    Lost(String),
    /// It says no.
    Refused(String),
}

impl Problem {
    fn failure(self) -> Failure {
        match self {
            Problem::Lost(message) => Failure::new(Exit::Unavailable, message),
            Problem::Refused(message) => Failure::usage(message),
        }
    }

    fn text(self) -> String {
        match self {
            Problem::Lost(message) | Problem::Refused(message) => message,
        }
    }
}

/// A connection, made when it is needed and made anew after a failure.
struct Line {
    name: String,
    address: Address,
    login: Option<Login>,
    stream: Option<Box<dyn Blocking>>,
}

impl Line {
    /// Tells what was made, and asks for as much device time.
    fn ask(&mut self, want_ps: u64, made: &Spent) -> Result<Leased, Problem> {
        let was_connected = self.stream.is_some();
        let mut asked = self.exchange(want_ps, made);
        if was_connected && matches!(asked, Err(Problem::Lost(_))) {
            // It may have been started anew, and nobody should be held for that.
            self.stream = None;
            asked = self.exchange(want_ps, made);
        }
        if asked.is_err() {
            self.stream = None;
        }
        asked
    }

    fn exchange(&mut self, want_ps: u64, made: &Spent) -> Result<Leased, Problem> {
        let (address, login) = (&self.address, self.login.as_ref());
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => {
                let entered = address.enter(login);
                none.insert(entered.map_err(|error| Problem::Lost(error.to_string()))?)
            }
        };
        let mut asked = Vec::new();
        let lease = Lease {
            tenant: self.name.as_bytes(),
            want_ps,
            reads: made.reads,
            read_bytes: made.read_bytes,
            writes: made.writes,
            written_bytes: made.written_bytes,
        };
        request::lease(&mut asked, &lease);
        let lost =
            |error: io::Error| Problem::Lost(format!("lost the server at {address}: {error}"));
        let said = ask_line(&mut **stream, &asked).map_err(lost)?;
        let leased = said.strip_prefix("LEASE ");
        let leased = leased.and_then(|rest| response::leased(rest.as_bytes()));
        leased.ok_or_else(|| Problem::Refused(format!("the server at {address} says {said}")))
    }
}

/// Who asks.
struct Asking {
    line: Line,
    is_over: Arc<AtomicBool>,
    /// What the server has been told of.
    told: Spent,
    device_ps: u64,
    lost: Option<String>,
}

impl Asking {
    fn run(mut self, tills: &Receiver<Till>) -> TenantUse {
        let till = loop {
            match tills.recv_timeout(IDLE) {
                Ok(till) => break Some(till),
                Err(RecvTimeoutError::Disconnected) => break None,
                Err(RecvTimeoutError::Timeout) if self.is_over.load(Relaxed) => break None,
                Err(RecvTimeoutError::Timeout) => {}
            }
        };
        if let Some(till) = till {
            while !self.turn(&till) {}
        }
        TenantUse {
            name: self.line.name,
            server: self.line.address.to_string(),
            spent: self.told,
            device_s: Nanos(self.device_ps / 1_000).as_secs_f64(),
            lost: self.lost,
        }
    }

    /// Asks once, and waits until it is to ask again; whether it was the last time.
    fn turn(&mut self, till: &Till) -> bool {
        let is_last = self.is_over.load(Relaxed);
        let rung = till.rung();
        let made = till.spent().since(&self.told).whole();
        let want_ps = match is_last {
            true => 0,
            false => FULL_PS.saturating_sub(till.left_ps()).max(0).unsigned_abs(),
        };
        match self.line.ask(want_ps, &made) {
            Ok(leased) => {
                self.told = self.told.and(&made);
                self.device_ps = self.device_ps.saturating_add(price_ps(&leased, &made));
                let (read_ps, write_ps) = (leased.read_ps, leased.write_ps);
                till.set_prices(&Prices { read_ps, write_ps }, FULL_PS.unsigned_abs() / 2);
                till.grant(leased.granted_ps);
                if !is_last {
                    wait(till, rung, &leased, want_ps, made != Spent::default());
                }
            }
            Err(problem) => {
                self.lost = Some(problem.text());
                if !is_last {
                    thread::sleep(AWAY);
                }
            }
        }
        is_last
    }
}

/// Waits until there is something to ask.
fn wait(till: &Till, rung: u32, leased: &Leased, want_ps: u64, is_used: bool) {
    let again = Duration::from_micros(leased.again_us).min(IDLE);
    match leased.granted_ps {
        // It would only be told the same.
        Some(0) if want_ps > 0 => thread::sleep(again),
        // Nobody rings where nothing is limited.
        None => till.wait(rung, again),
        Some(_) if is_used => till.wait(rung, again),
        Some(_) => till.wait(rung, IDLE),
    }
}

/// What requests took by the server's prices.
fn price_ps(leased: &Leased, made: &Spent) -> u64 {
    let of = |[first_ps, further_ps]: [u64; 2], count: u64, bytes: u64| {
        let further = (bytes / PAGE_BYTES as u64).saturating_sub(count);
        let first_ps = first_ps.saturating_mul(count);
        first_ps.saturating_add(further_ps.saturating_mul(further))
    };
    let read_ps = of(leased.read_ps, made.reads, made.read_bytes);
    read_ps.saturating_add(of(leased.write_ps, made.writes, made.written_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_page_of_a_request_and_each_further_one_have_their_prices() {
        let leased = Leased {
            read_ps: [1_000, 10],
            write_ps: [2_000, 20],
            ..Leased::default()
        };
        let made = Spent {
            reads: 2,
            read_bytes: 5 * 4096,
            writes: 1,
            written_bytes: 4096,
            holds: 0,
        };
        assert_eq!(price_ps(&leased, &made), 2_000 + 30 + 2_000);
    }
}
