//! Doors: where connections come in.
//!
//! What it never does: accept. A unix socket's path is taken over only where nobody answers on it.

use crate::running::ServerError;
use mio::event::Source;
use mio::{Interest, Registry, Token};
use nyx_engine::Binding;
use socket2::{Domain, SockAddr, Socket, Type};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// TCP; port 0 lets the system choose.
    Tcp(SocketAddr),
    /// A unix stream socket.
    Unix {
        /// Where it lies in the file system.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "{address}"),
            Address::Unix { path, .. } => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A listener, and what the engine lets its connections reach.
#[derive(Clone, Debug)]
pub struct Door {
    /// Where.
    pub address: Address,
    /// What a new connection is bound to.
    pub binding: Binding,
}

/// A bound listener.
pub(crate) enum Listener {
    Tcp(mio::net::TcpListener),
    Unix {
        listener: mio::net::UnixListener,
        path: PathBuf,
    },
}

/// A connected socket.
pub(crate) enum Stream {
    Tcp(mio::net::TcpStream),
    Unix(mio::net::UnixStream),
}

impl Listener {
    pub(crate) fn bind(address: &Address, backlog: u32) -> Result<Listener, ServerError> {
        let bound = match address {
            Address::Tcp(at) => bind_tcp(at, backlog),
            Address::Unix { path, mode } => bind_unix(path, *mode, backlog),
        };
        bound.map_err(|source| ServerError::Bind {
            address: address.to_string(),
            source,
        })
    }

    pub(crate) fn address(&self) -> String {
        match self {
            Listener::Tcp(listener) => match listener.local_addr() {
                Ok(address) => address.to_string(),
                Err(error) => format!("unknown address ({error})"),
            },
            Listener::Unix { path, .. } => format!("unix:{}", path.display()),
        }
    }

    pub(crate) fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
            Listener::Unix { listener, .. } => Ok(Stream::Unix(listener.accept()?.0)),
        }
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => registry.register(listener, token, Interest::READABLE),
            Listener::Unix { listener, .. } => {
                registry.register(listener, token, Interest::READABLE)
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix { path, .. } = self {
            // Nothing can be done about a path that is gone already.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn bind_tcp(address: &SocketAddr, backlog: u32) -> io::Result<Listener> {
    let socket = Socket::new(Domain::for_address(*address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::from(*address))?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(Listener::Tcp(mio::net::TcpListener::from_std(
        socket.into(),
    )))
}

fn bind_unix(path: &Path, mode: u32, backlog: u32) -> io::Result<Listener> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    if std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
        match std::os::unix::net::UnixStream::connect(path) {
            // Bound by somebody who is gone: the only one that is nobody's.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path)?;
            }
            Err(error) => return Err(error),
            Ok(_) => return Err(io::Error::from(io::ErrorKind::AddrInUse)),
        }
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    let listener = mio::net::UnixListener::from_std(socket.into());
    Ok(Listener::Unix {
        listener,
        path: path.to_owned(),
    })
}

impl Stream {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            Stream::Tcp(stream) => stream,
            Stream::Unix(stream) => stream,
        }
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.source().register(registry, token, Interest::READABLE)
    }

    /// Asks for writability too, or no longer. Only ever on demand: a unix socket wakes its loop
    /// each time the peer has read something, if it is asked for.
    pub(crate) fn want_write(
        &mut self,
        registry: &Registry,
        token: Token,
        want: bool,
    ) -> io::Result<()> {
        let interest = if want {
            Interest::READABLE | Interest::WRITABLE
        } else {
            Interest::READABLE
        };
        self.source().reregister(registry, token, interest)
    }

    pub(crate) fn recv(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            Stream::Unix(stream) => stream.read(into),
        }
    }

    pub(crate) fn send(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(from),
            Stream::Unix(stream) => stream.write(from),
        }
    }
}
