//! Sockets of either kind behind one face.
//!
//! What it never does: wait.

use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// A connection.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        match self {
            Socket::Tcp(socket) => registry.register(socket, token, both),
            Socket::Unix(socket) => registry.register(socket, token, both),
        }
    }

    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.read(into),
            Socket::Unix(socket) => socket.read(into),
        }
    }

    pub(super) fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.write_vectored(from),
            Socket::Unix(socket) => socket.write_vectored(from),
        }
    }
}

/// Where connections come from. A socket's file goes when it is dropped.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    pub(super) fn tcp(at: SocketAddr) -> io::Result<Listener> {
        TcpListener::bind(at).map(Listener::Tcp)
    }

    /// What is left of somebody who does not answer any more is taken away.
    pub(super) fn unix(path: &Path) -> io::Result<Listener> {
        let is_left = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
        let listener = match UnixListener::bind(path) {
            Err(error) if is_left(&error) => {
                if std::os::unix::net::UnixStream::connect(path).is_ok() {
                    return Err(error);
                }
                std::fs::remove_file(path)?;
                UnixListener::bind(path)
            }
            bound => bound,
        };
        listener.map(|listener| Listener::Unix(listener, path.to_owned()))
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => registry.register(listener, token, Interest::READABLE),
            Listener::Unix(listener, _) => registry.register(listener, token, Interest::READABLE),
        }
    }

    pub(super) fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Tcp(listener) => {
                let (socket, _) = listener.accept()?;
                socket.set_nodelay(true)?;
                Ok(Socket::Tcp(socket))
            }
            Listener::Unix(listener, _) => Ok(Socket::Unix(listener.accept()?.0)),
        }
    }

    /// For people, as an NBD address.
    pub(super) fn describe(&self, export: &str) -> String {
        match self {
            Listener::Tcp(listener) => match listener.local_addr() {
                Ok(address) => format!("nbd://{address}/{export}"),
                Err(error) => error.to_string(),
            },
            Listener::Unix(_, path) => {
                format!("nbd+unix:///{export}?socket={}", path.display())
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}
