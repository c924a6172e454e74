//! Where a server listens, and how a connection to it is made and logged in.
//!
//! What it never does: resolve a name more than once, or leave a connection half set up.

use super::LoadError;
use mio::event::Source;
use mio::{Interest, Registry, Token};
use nyx_proto::request;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// How long a connection, and the answer to a login, may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest answer of one line, in bytes.
const REPLY_BYTES_MAX: usize = 1024;

/// A server's address: `HOST:PORT`, `unix:PATH`, or a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix stream socket.
    Unix(PathBuf),
}

/// A user of memcached's ASCII authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Login {
    /// The user's name.
    pub(crate) user: String,
    /// The password.
    pub(crate) password: String,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Address::Unix(PathBuf::from(path)));
        }
        if text.starts_with('/') || text.starts_with("./") {
            return Ok(Address::Unix(PathBuf::from(text)));
        }
        let resolved = text.to_socket_addrs().map_err(|error| {
            format!("{text:?} is not an address ({error}): write HOST:PORT or unix:PATH")
        })?;
        // A name often has an IPv6 address first while servers listen on IPv4 alone.
        let mut all: Vec<SocketAddr> = resolved.collect();
        all.sort_by_key(SocketAddr::is_ipv6);
        all.first()
            .copied()
            .map(Address::Tcp)
            .ok_or_else(|| format!("{text:?} has no address"))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(at) => at.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Login {
    type Err = String;

    fn from_str(text: &str) -> Result<Login, String> {
        let (user, password) = text
            .split_once(':')
            .ok_or("write a login as USER:PASSWORD")?;
        if text.contains(char::is_whitespace) {
            return Err("a login cannot contain white space".to_owned());
        }
        Ok(Login {
            user: user.to_owned(),
            password: password.to_owned(),
        })
    }
}

/// A connected, non-blocking stream.
#[derive(Debug)]
pub(crate) enum Socket {
    /// TCP, with Nagle's algorithm off.
    Tcp(mio::net::TcpStream),
    /// A Unix stream socket.
    Unix(mio::net::UnixStream),
}

/// A connected stream that still blocks, of either kind.
pub(crate) trait Blocking: Read + Write + Send {
    /// Makes it non-blocking.
    fn into_socket(self: Box<Self>) -> io::Result<Socket>;
}

impl Blocking for TcpStream {
    fn into_socket(self: Box<Self>) -> io::Result<Socket> {
        self.set_nonblocking(true)?;
        Ok(Socket::Tcp(mio::net::TcpStream::from_std(*self)))
    }
}

impl Blocking for UnixStream {
    fn into_socket(self: Box<Self>) -> io::Result<Socket> {
        self.set_nonblocking(true)?;
        Ok(Socket::Unix(mio::net::UnixStream::from_std(*self)))
    }
}

impl Address {
    /// Connects, logs in where a login is given, and makes the stream non-blocking.
    pub(crate) fn connect(&self, login: Option<&Login>) -> Result<Socket, LoadError> {
        self.enter(login)?
            .into_socket()
            .map_err(|source| self.failed(source))
    }

    /// Sends one command on a connection of its own and gives the line that is the answer.
    pub(crate) fn ask(&self, login: Option<&Login>, command: &[u8]) -> Result<String, LoadError> {
        let mut stream = self.enter(login)?;
        ask_line(&mut *stream, command).map_err(|source| self.failed(source))
    }

    /// A connection that blocks, though not for ever, and is logged in where a login is given.
    pub(crate) fn enter(&self, login: Option<&Login>) -> Result<Box<dyn Blocking>, LoadError> {
        let mut stream = self.reach().map_err(|source| self.failed(source))?;
        let Some(login) = login else {
            return Ok(stream);
        };
        let mut command = Vec::new();
        request::login(&mut command, &login.user, &login.password);
        let reply = ask_line(&mut *stream, &command).map_err(|source| self.failed(source))?;
        match reply.as_str() {
            "STORED" => Ok(stream),
            _ => Err(LoadError::Login {
                address: self.clone(),
                user: login.user.clone(),
                reply,
            }),
        }
    }

    fn reach(&self) -> io::Result<Box<dyn Blocking>> {
        match self {
            Address::Tcp(at) => {
                let stream = TcpStream::connect_timeout(at, CONNECT_TIMEOUT)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
                Ok(Box::new(stream))
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
                Ok(Box::new(stream))
            }
        }
    }

    fn failed(&self, source: io::Error) -> LoadError {
        LoadError::Connect {
            address: self.clone(),
            source,
        }
    }
}

/// Sends a command whose answer is one line, and reads that line without its end. Nothing else was
/// asked before.
pub(crate) fn ask_line(stream: &mut dyn Blocking, command: &[u8]) -> io::Result<String> {
    stream.write_all(command)?;
    let (mut reply, mut part) = (Vec::new(), [0; 256]);
    while !reply.ends_with(b"\n") && reply.len() < REPLY_BYTES_MAX {
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => reply.extend_from_slice(&part[..len]),
        }
    }
    Ok(String::from_utf8_lossy(reply.trim_ascii_end()).into_owned())
}

impl Socket {
    /// Has the poller report readiness of both kinds, once per change.
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self {
            Socket::Tcp(s) => s.register(registry, token, interest),
            Socket::Unix(s) => s.register(registry, token, interest),
        }
    }

    /// Reads what there is; 0 is the end of the stream.
    #[inline]
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(s) => s.read(into),
            Socket::Unix(s) => s.read(into),
        }
    }

    /// Writes as much as goes.
    #[inline]
    pub(crate) fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(s) => s.write(from),
            Socket::Unix(s) => s.write(from),
        }
    }
}
