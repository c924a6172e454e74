//! `nyx block` as a child process, and a client of NBD that keeps to the specification and to
//! nothing of ours.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// An export that is being served.
pub(crate) struct Export {
    child: Child,
    pub(crate) socket: PathBuf,
    log: Option<std::thread::JoinHandle<String>>,
}

impl Drop for Export {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn nyx(dir: &Path, fast: &str, deep: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nyx"));
    command
        .env_clear()
        .arg("block")
        .arg("--fast")
        .arg(dir.join(fast))
        .arg("--deep")
        .arg(dir.join(deep));
    command
}

/// Runs `nyx block` to its end.
pub(crate) fn run(dir: &Path, fast: &str, deep: &str, more: &[&str]) -> Output {
    nyx(dir, fast, deep)
        .args(more)
        .output()
        .expect("the binary")
}

impl Export {
    /// Serves `deep` behind `fast`, files of a directory.
    pub(crate) fn start(dir: &Path, fast: &str, deep: &str, more: &[&str]) -> Export {
        Export::by(nyx(dir, fast, deep), dir, more)
    }

    /// The same with `deep` in a directory of its own, on a disk of so many MiB that is gone with
    /// the process; the image is longer than that.
    pub(crate) fn on_small_disk(
        dir: &Path,
        disk_mib: u32,
        image_mib: u32,
        more: &[&str],
    ) -> Export {
        const SCRIPT: &str = r#"
mount -t tmpfs -o size="$1"m none "$2" && truncate -s "$3"M "$2/deep" || exit 3
disk="$2" fast="$4"
shift 4
exec "$0" block --fast "$fast" --deep "$disk/deep" "$@"
"#;
        let mut command = Command::new("unshare");
        command
            .args(["-Urm", "sh", "-c", SCRIPT, env!("CARGO_BIN_EXE_nyx")])
            .arg(disk_mib.to_string())
            .arg(dir.join("disk"))
            .arg(image_mib.to_string())
            .arg(dir.join("fast"));
        Export::by(command, dir, more)
    }

    fn by(mut command: Command, dir: &Path, more: &[&str]) -> Export {
        let socket = dir.join("nbd.sock");
        let _ = fs::remove_file(&socket);
        let mut child = command
            .arg("--socket")
            .arg(&socket)
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary");
        let mut log = BufReader::new(child.stderr.take().expect("piped"));
        let mut told = String::new();
        while !told.contains("serving ") {
            let read = log.read_line(&mut told).expect("its log");
            assert!(read > 0, "it has ended: {told}");
        }
        let log = std::thread::spawn(move || {
            let _ = log.read_to_string(&mut told);
            told
        });
        Export {
            child,
            socket,
            log: Some(log),
        }
    }

    /// Its address for other clients.
    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("a child of ours");
        self.child.wait().expect("a child of ours");
    }

    /// SIGTERM, as a user stops it; what it said.
    pub(crate) fn stop(self) -> String {
        let (code, log) = self.end();
        assert_eq!(code, Some(0), "{log}");
        log
    }

    /// The same, however it ends.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let id = self.child.id() as i32;
        let id = rustix::process::Pid::from_raw(id).expect("a child");
        rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("a child of ours");
        let status = self.child.wait().expect("a child of ours");
        let log = self.log.take().expect("once").join().expect("a log");
        (status.code(), log)
    }

    pub(crate) fn connect(&self) -> Client {
        Client::new(&self.socket)
    }
}

/// A client with one connection.
pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    next: u64,
    pub(crate) len_bytes: u64,
}

/// The end of the connection.
pub(crate) type Ended = std::io::Error;

impl Client {
    fn new(socket: &Path) -> Client {
        let mut stream = UnixStream::connect(socket).expect("it serves");
        let patience = Some(std::time::Duration::from_secs(60));
        stream.set_read_timeout(patience).expect("a timeout");
        let mut hello = [0; 18];
        stream.read_exact(&mut hello).expect("a greeting");
        assert_eq!(&hello[..8], b"NBDMAGIC");
        let mut said = 3u32.to_be_bytes().to_vec();
        // EXPORT_NAME of the default export.
        said.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\0");
        stream.write_all(&said).expect("it listens");
        let mut told = [0; 10];
        stream.read_exact(&mut told).expect("an export");
        Client {
            stream,
            next: 1,
            len_bytes: u64::from_be_bytes(told[..8].try_into().expect("8 bytes")),
        }
    }

    /// Sends a request; its cookie.
    pub(crate) fn send(
        &mut self,
        (kind, flags): (u16, u16),
        at: u64,
        len_bytes: u32,
        payload: &[u8],
    ) -> Result<u64, Ended> {
        let cookie = self.next;
        self.next += 1;
        let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(at.to_be_bytes());
        bytes.extend(len_bytes.to_be_bytes());
        bytes.extend(payload);
        self.stream.write_all(&bytes)?;
        Ok(cookie)
    }

    /// The next reply: whose, and its error or 0.
    pub(crate) fn reply(&mut self) -> Result<(u64, u32), Ended> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        assert_eq!(head[..4], 0x6744_6698u32.to_be_bytes());
        let error = u32::from_be_bytes(head[4..8].try_into().expect("4 bytes"));
        Ok((
            u64::from_be_bytes(head[8..].try_into().expect("8 bytes")),
            error,
        ))
    }

    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<u32, Ended> {
        self.send((1, 0), at, bytes.len() as u32, bytes)?;
        Ok(self.reply()?.1)
    }

    pub(crate) fn flush(&mut self) -> Result<u32, Ended> {
        self.send((3, 0), 0, 0, &[])?;
        Ok(self.reply()?.1)
    }

    pub(crate) fn read(&mut self, at: u64, len_bytes: usize) -> Vec<u8> {
        self.send((0, 0), at, len_bytes as u32, &[])
            .expect("it serves");
        assert_eq!(self.reply().expect("a reply").1, 0);
        let mut bytes = vec![0; len_bytes];
        self.stream.read_exact(&mut bytes).expect("bytes");
        bytes
    }

    pub(crate) fn read_all(&mut self) -> Vec<u8> {
        let step = 1 << 20;
        let starts = (0..self.len_bytes).step_by(step);
        let len = self.len_bytes as usize;
        let all = starts.map(|at| self.read(at, step.min(len - at as usize)));
        all.collect::<Vec<_>>().concat()
    }
}
