//! A server with a tenant that survives, on a directory, and somebody who talks to it.

#![allow(dead_code, reason = "each test uses its part")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A server on a directory.
pub(crate) struct Server {
    pub(crate) child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn directory(durability: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let text = format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\nworkers = 2\ndata_dir = {:?}\n\
         [policy]\nkind = \"none\"\n\
         [[device]]\nkind = \"file\"\nsize = \"48MiB\"\n\
         [[tenant]]\nname = \"first\"\nsize = \"32MiB\"\ndurability = \"{durability}\"\n",
        dir.path()
    );
    fs::write(dir.path().join("nyx.toml"), text).expect("a configuration");
    dir
}

impl Server {
    pub(crate) fn start(dir: &Path) -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_nyx"))
            .env_clear()
            .args(["serve", "--config"])
            .arg(dir.join("nyx.toml"))
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary");
        let mut log = BufReader::new(child.stderr.take().expect("piped"));
        let port = number_behind("127.0.0.1:", &mut log);
        let port = u16::try_from(port).expect("a port");
        // It writes no more than the pipe holds.
        std::mem::forget(log);
        Server { child, port }
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection::to(self.port)
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Stops it in order, by a signal.
    pub(crate) fn stop(&mut self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.expect("kill").success());
        let status = self.child.wait().expect("a child of ours");
        assert!(status.success(), "{status} after {signal}");
    }

    pub(crate) fn kill(&mut self) {
        // SIGKILL.
        self.child.kill().expect("a child of ours");
        self.child.wait().expect("a child of ours");
    }
}

pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) answers: BufReader<TcpStream>,
}

/// The number behind the first `words` that a log says from now on.
pub(crate) fn number_behind(words: &str, log: &mut impl BufRead) -> u32 {
    let mut told = String::new();
    loop {
        let from = told.len();
        let read = log.read_line(&mut told).expect("its log");
        assert!(read > 0, "the server has ended: {told}");
        if let Some((_, number)) = told[from..].split_once(words) {
            let number: String = number.chars().take_while(char::is_ascii_digit).collect();
            return number.parse().expect("a number");
        }
    }
}

impl Connection {
    pub(crate) fn to(port: u16) -> Connection {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        stream.set_nodelay(true).expect("a socket");
        Connection {
            answers: BufReader::new(stream.try_clone().expect("a socket")),
            stream,
        }
    }

    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(_) if line.ends_with("\r\n") => Some(line),
            _ => None,
        }
    }

    pub(crate) fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        write!(self.stream, "get {key}\r\n").expect("a server");
        self.value()
    }

    /// The values of all of them, asked for at once; no more than fit into a socket's buffers.
    pub(crate) fn get_all(&mut self, keys: &[String]) -> Vec<Option<Vec<u8>>> {
        let asked: String = keys.iter().map(|key| format!("get {key}\r\n")).collect();
        self.stream.write_all(asked.as_bytes()).expect("a server");
        keys.iter().map(|_| self.value()).collect()
    }

    /// The answer to the first get that was not answered yet.
    fn value(&mut self) -> Option<Vec<u8>> {
        let head = self.line().expect("an answer");
        if head == "END\r\n" {
            return None;
        }
        let len = head.split_whitespace().nth(3).expect("a length");
        let mut value = vec![0; len.parse::<usize>().expect("a length") + 2];
        self.answers.read_exact(&mut value).expect("a value");
        assert_eq!(self.line().as_deref(), Some("END\r\n"));
        value.truncate(value.len() - 2);
        Some(value)
    }

    pub(crate) fn stat(&mut self, name: &str) -> u64 {
        write!(self.stream, "stats tenants\r\n").expect("a server");
        let mut found = 0;
        loop {
            let line = self.line().expect("an answer");
            if line == "END\r\n" {
                return found;
            }
            if let Some(value) = line.strip_prefix(&format!("STAT first:{name} ")) {
                found = value.trim().parse().expect("a number");
            }
        }
    }
}
