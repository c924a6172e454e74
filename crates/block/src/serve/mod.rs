//! The loop: sockets, the deep device's queues, and the cache between them, on one thread.
//!
//! In a turn the deep device's completions are taken in, requests are read, the cache makes what
//! it says durable ([`Cache::barrier`]), the deep device is asked, and replies are sent. Who waits
//! for a client's request has a queue of its own; dirty lines are written back on another.
//!
//! A fast device whose barriers wait for a disk holds the loop meanwhile: that is what a file in
//! the page cache costs, and persistent memory does not.
//!
//! What it never does: answer before the barrier; let one connection's input end another.
//!
//! *Thread safety*: all of it is one thread's.

mod connection;
mod measure;
mod socket;

pub use measure::measure;

use crate::cache::{Cache, Command, Figures};
use crate::fast::Fast;
use crate::geometry::STRIPE_BYTES;
use crate::mode::Mode;
use crate::wire::handshake::Export;
use connection::{Connection, Gone};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use nyx_media::MediaError;
use nyx_media::queue::{BlockFile, Pool, Queue, QueueShape, Through};
use socket::Listener;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests that the deep device has at once, of clients.
const CRITICAL_DEPTH: u32 = 128;
/// The loop looks at the time that often, at least.
const TICK: Duration = Duration::from_millis(50);
/// Lines are told of, and write-backs that failed are tried again, that often.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Steps of one turn, so that sockets are looked at.
const STEPS: usize = 64;

/// What is served, and where.
#[derive(Clone, Debug)]
pub struct Config {
    /// A socket's path.
    pub socket: Option<PathBuf>,
    /// An address.
    pub listen: Option<SocketAddr>,
    /// The export's name; the empty name means it too.
    pub name: String,
    /// Connections at once; those beyond are closed at once.
    pub connections_max: u16,
    /// Dirty lines that are left alone while there are requests; mode write-back only.
    pub dirty_lines_most: u32,
    /// Without a request for that long all dirty lines are written back.
    pub idle: Duration,
}

/// Why an export cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// No socket.
    #[error("cannot listen on {at}: {source}")]
    Listen {
        /// Where.
        at: String,
        /// The system's reason.
        source: io::Error,
    },
    /// No queue, or no memory for buffers.
    #[error("{0}")]
    Media(#[from] MediaError),
    /// The loop cannot wait.
    #[error("cannot wait for sockets: {0}")]
    Poll(#[from] io::Error),
}

/// See the module.
pub struct Server<F> {
    cache: Cache<F>,
    config: Config,
    mode: Mode,
    poll: Poll,
    listeners: Vec<Listener>,
    connections: Vec<Option<Connection>>,
    export: Export,
    generation: u16,
    critical: Queue,
    background: Queue,
    critical_waits: VecDeque<Command>,
    background_waits: VecDeque<Command>,
    used: Instant,
    kept: Instant,
    refused: u64,
    /// The last turn ended before everything was done.
    has_more: bool,
}

const CRITICAL: Token = Token(usize::MAX - 1);
const BACKGROUND: Token = Token(usize::MAX - 2);

impl<F: Fast> Server<F> {
    /// Listens. `mode` is the cache's.
    pub fn bind(
        mut cache: Cache<F>,
        mode: Mode,
        deep: &Arc<BlockFile>,
        through: Through,
        config: Config,
    ) -> Result<Server<F>, ServeError> {
        let poll = Poll::new()?;
        let mut listeners = Vec::new();
        let failed = |at: String| move |source| ServeError::Listen { at, source };
        if let Some(path) = &config.socket {
            let at = path.display().to_string();
            listeners.push(Listener::unix(path).map_err(failed(at))?);
        }
        if let Some(address) = config.listen {
            let listener = Listener::tcp(address);
            listeners.push(listener.map_err(failed(address.to_string()))?);
        }
        for (number, listener) in listeners.iter_mut().enumerate() {
            let token = Token(usize::from(config.connections_max) + number);
            listener.register(poll.registry(), token)?;
        }
        let pool = Pool::new(Cache::<F>::CLEANING_BUFFERS, STRIPE_BYTES as usize)?;
        let queue = |pools: &[Pool], depth| Queue::new(deep, pools, QueueShape { depth, through });
        let mut critical = queue(&[], CRITICAL_DEPTH)?;
        let mut background = queue(std::slice::from_ref(&pool), Cache::<F>::CLEANING_BUFFERS)?;
        cache.clean_from(pool);
        for (queue, token) in [(&mut critical, CRITICAL), (&mut background, BACKGROUND)] {
            if let Some(event) = queue.event() {
                let fd = event.as_raw_fd();
                let mut source = SourceFd(&fd);
                poll.registry()
                    .register(&mut source, token, Interest::READABLE)?;
            }
        }
        let export = Export {
            name: config.name.clone(),
            len_bytes: cache.geometry().image_bytes(),
            preferred_bytes: cache.geometry().line_bytes() as u32,
        };
        let connections = (0..config.connections_max).map(|_| None).collect();
        Ok(Server {
            cache,
            config,
            mode,
            poll,
            listeners,
            connections,
            export,
            generation: 0,
            critical,
            background,
            critical_waits: VecDeque::new(),
            background_waits: VecDeque::new(),
            used: Instant::now(),
            kept: Instant::now(),
            refused: 0,
            has_more: false,
        })
    }

    /// Where, as NBD addresses.
    pub fn listening(&self) -> Vec<String> {
        let listeners = self.listeners.iter();
        listeners
            .map(|listener| listener.describe(&self.export.name))
            .collect()
    }

    /// The cache.
    pub fn cache(&self) -> &Cache<F> {
        &self.cache
    }

    /// Connections that are open, and those that were turned away or did not keep to the protocol.
    pub fn connected(&self) -> (usize, u64) {
        (self.connections.iter().flatten().count(), self.refused)
    }

    /// Who carries out requests to the deep device.
    pub fn describe(&self) -> String {
        self.critical.describe()
    }

    /// Serves for a moment: until something happened, or about 50 ms.
    pub fn turn(&mut self) -> io::Result<()> {
        let dirty_most = match self.mode {
            Mode::WriteBack if self.used.elapsed() < self.config.idle => {
                self.config.dirty_lines_most
            }
            _ => 0,
        };
        let is_late = std::mem::take(&mut self.has_more);
        self.wait(if is_late { Duration::ZERO } else { TICK })?;
        self.has_more = (0..STEPS).all(|_| self.step(dirty_most));
        if self.kept.elapsed() >= HOUSEKEEPING {
            self.kept = Instant::now();
            self.cache.resume_cleaning();
            self.cache.publish();
            self.step(dirty_most);
            for connection in &mut self.connections {
                if connection.as_ref().is_some_and(Connection::is_late) {
                    *connection = None;
                    self.refused += 1;
                }
            }
        }
        Ok(())
    }

    /// Takes no connections and no requests any more, and answers those that are there.
    pub fn hang_up(&mut self) {
        self.listeners.clear();
        let connections = self.connections.iter_mut();
        connections.flatten().for_each(Connection::hang_up);
    }

    /// Whether somebody waits for an answer.
    pub fn is_busy(&self) -> bool {
        self.cache.is_busy() || self.critical.in_flight() + self.background.in_flight() > 0
    }

    /// Writes dirty lines back, for a moment; how many are left.
    pub fn drain(&mut self) -> io::Result<u32> {
        self.wait(TICK)?;
        while self.step(0) {}
        Ok(self.cache.filled().1)
    }

    /// Tries again what could not be written back.
    pub fn resume_cleaning(&mut self) {
        self.cache.resume_cleaning();
    }

    /// Makes everything durable that there is to be; whether that was possible. Nobody is served
    /// meanwhile.
    pub fn settle(&mut self) -> io::Result<bool> {
        self.cache.publish();
        self.cache.flush(LAST);
        loop {
            self.cache.barrier();
            self.submit();
            while let Some(outcome) = self.cache.outcome() {
                if outcome.token == LAST {
                    return Ok(outcome.result.is_ok());
                }
            }
            if !self.reap() {
                self.critical.rest();
                self.background.rest();
            }
        }
    }

    /// Gives the cache back.
    pub fn into_cache(self) -> Cache<F> {
        self.cache
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        match self.poll.poll(&mut events, Some(timeout)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            polled => polled?,
        }
        for event in &events {
            let Token(number) = event.token();
            if let Some(connection) = self.connections.get_mut(number) {
                if let Some(connection) = connection {
                    connection.is_readable |= event.is_readable() || event.is_read_closed();
                    connection.is_writable |= event.is_writable() || event.is_write_closed();
                }
            } else if let Some(nth) = number.checked_sub(self.connections.len())
                && nth < self.listeners.len()
            {
                self.accept(nth);
            }
        }
        Ok(())
    }

    fn accept(&mut self, listener: usize) {
        while let Ok(socket) = self.listeners[listener].accept() {
            let free = self.connections.iter().position(Option::is_none);
            let Some(number) = free else {
                self.refused += 1;
                continue;
            };
            self.generation = self.generation.wrapping_add(1);
            let made = Connection::new(socket, number as u16, self.generation, &self.export);
            let Ok(mut connection) = made else {
                self.refused += 1;
                continue;
            };
            let registered = connection
                .socket()
                .register(self.poll.registry(), Token(number));
            if registered.is_ok() {
                self.connections[number] = Some(connection);
            }
        }
    }

    /// One step of a turn; whether anything was done.
    fn step(&mut self, dirty_most: u32) -> bool {
        let mut any = self.reap();
        for number in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[number] else {
                continue;
            };
            match connection.advance(&mut self.cache) {
                Ok(false) => {}
                Ok(true) => {
                    any = true;
                    self.used = Instant::now();
                }
                Err(gone) => self.close(number, &gone),
            }
        }
        self.cache.clean(dirty_most);
        self.cache.barrier();
        self.cache.router().step();
        any |= self.submit();
        while let Some(outcome) = self.cache.outcome() {
            any = true;
            let token = connection::Token::unpack(outcome.token);
            let connection = self.connections.get_mut(usize::from(token.connection));
            if let Some(Some(connection)) = connection
                && connection.generation == token.generation
            {
                connection.settle(&mut self.cache, outcome);
            }
        }
        for number in 0..self.connections.len() {
            if let Some(connection) = &mut self.connections[number] {
                match connection.send() {
                    Ok(sent) => any |= sent,
                    Err(gone) => self.close(number, &gone),
                }
            }
        }
        any
    }

    fn close(&mut self, number: usize, gone: &Gone) {
        self.refused += u64::from(matches!(gone, Gone::Wire(_)));
        self.connections[number] = None;
    }

    fn reap(&mut self) -> bool {
        let mut any = false;
        for queue in [&mut self.critical, &mut self.background] {
            while let Some(done) = queue.reap() {
                self.cache.complete(done.tag, done.buffer, done.result);
                any = true;
            }
        }
        any
    }

    /// Asks the deep device; whether anything.
    fn submit(&mut self) -> bool {
        while let Some(command) = self.cache.command() {
            match command.is_critical {
                true => self.critical_waits.push_back(command),
                false => self.background_waits.push_back(command),
            }
        }
        let critical = push(&mut self.critical, &mut self.critical_waits);
        push(&mut self.background, &mut self.background_waits) || critical
    }

    /// What was done.
    pub fn figures(&self) -> Figures {
        self.cache.figures()
    }
}

/// The token of the last flush, which no connection has: there are fewer of them.
const LAST: u64 = u64::MAX;

fn push(queue: &mut Queue, waits: &mut VecDeque<Command>) -> bool {
    let mut any = false;
    while let Some(Command {
        request,
        tag,
        is_critical,
    }) = waits.pop_front()
    {
        if let Err(request) = queue.submit(request, tag) {
            waits.push_front(Command {
                request,
                tag,
                is_critical,
            });
            break;
        }
        any = true;
    }
    if any {
        queue.kick();
    }
    any
}
