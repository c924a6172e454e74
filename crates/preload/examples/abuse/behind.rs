//! Files that a server behind the kernel reads past the page cache without being asked to: those of
//! FUSE, also below overlayfs. The server is a thread of this program.
//!
//! What it never does: be seen by another process: it mounts in a namespace of its own, which takes
//! privilege.

use crate::Case;
use crate::memory::{Block, KIB, press, stamp};
use crate::sys;
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr;

pub(crate) const CASES: &[Case] = &[
    ("calls-behind-fuse", by_fuse),
    ("calls-behind-overlay", by_overlay),
];

/// Its only file has so much.
const LEN: usize = 256 * KIB;
const NAME: &[u8] = b"file\0";
const SEED: u64 = 41;

/// Numbers of FUSE's protocol (`linux/fuse.h`): its version, what is asked, how a file is open.
const VERSION: [u32; 2] = [7, 31];
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
const PAST_THE_CACHE: u32 = 1;
/// The only directory and the only file.
const ROOT: u64 = 1;
const FILE: u64 = 2;
/// An hour.
const VALID_S: u64 = 3_600;
/// More than a request has: the server takes no writes.
const REQUEST_BYTES: usize = 16 << 10;

/// An answer as the protocol has it.
#[derive(Default)]
struct Answer(Vec<u8>);

impl Answer {
    fn words<const N: usize>(mut self, words: [u64; N]) -> Answer {
        words
            .iter()
            .for_each(|word| self.0.extend(word.to_le_bytes()));
        self
    }

    fn halves<const N: usize>(mut self, halves: [u32; N]) -> Answer {
        halves
            .iter()
            .for_each(|half| self.0.extend(half.to_le_bytes()));
        self
    }

    /// What is told of a node: number, length, blocks, times; then kind, links, owner, block.
    fn node(self, node: u64) -> Answer {
        let (len, mode) = match node {
            ROOT => (0, libc::S_IFDIR | 0o555),
            _ => (LEN as u64, libc::S_IFREG | 0o444),
        };
        let of_words = self.words([node, len, len / 512, 0, 0, 0]);
        of_words.halves([0, 0, 0, mode, 1, 0, 0, 0, 4096, 0])
    }
}

/// What is answered; none where nothing is to be.
fn answer(asked: u32, node: u64, body: &[u8]) -> Option<Result<Answer, i32>> {
    let word = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("a word"));
    let none = Answer::default();
    Some(match asked {
        FORGET | BATCH_FORGET | INTERRUPT => return None,
        // Nothing that may be left out, and writes of a page.
        INIT => Ok(none
            .halves(VERSION)
            .halves([0, 0, 0, 4096, 1, 0])
            .words([0; 4])),
        LOOKUP if body != NAME => Err(libc::ENOENT),
        LOOKUP => Ok(none.words([FILE, 0, VALID_S, VALID_S, 0]).node(FILE)),
        GETATTR => Ok(none.words([VALID_S, 0]).node(node)),
        OPEN => Ok(none.words([0]).halves([PAST_THE_CACHE, 0])),
        OPENDIR => Ok(none.words([0]).halves([0, 0])),
        READ => {
            // The kernel waits for it with pages of the reader's: they would leave now.
            press();
            let (from, len) = (word(8) as usize, word(16) as u32 as usize);
            let places = (from..LEN.min(from + len)).step_by(8);
            let words = places.map(|place| stamp(SEED, place).to_le_bytes());
            Ok(Answer(words.flatten().collect()))
        }
        STATFS => Ok(none
            .words([1, 0, 0, 1, 0])
            .halves([4096, 255, 4096])
            .halves([0; 7])),
        READDIR | RELEASE | RELEASEDIR | FLUSH => Ok(none),
        _ => Err(libc::ENOSYS),
    })
}

/// Answers until nobody asks any more.
fn serve(mut kernel: File) {
    let mut request = vec![0; REQUEST_BYTES];
    loop {
        let len = match kernel.read(&mut request) {
            Ok(len) => len,
            Err(why) if why.raw_os_error() == Some(libc::EINTR) => continue,
            Err(_) => return,
        };
        let (head, body) = request[..len].split_at(40);
        let asked = u32::from_le_bytes(head[4..8].try_into().expect("a number"));
        let node = u64::from_le_bytes(head[16..24].try_into().expect("a number"));
        let Some(answer) = answer(asked, node, body) else {
            continue;
        };
        let (error, body) = match answer {
            Ok(Answer(body)) => (0, body),
            Err(why) => (why, Vec::new()),
        };
        let mut told = Vec::with_capacity(16 + body.len());
        told.extend((16 + body.len() as u32).to_le_bytes());
        told.extend((-error).to_le_bytes());
        told.extend(&head[8..16]);
        told.extend(body);
        // Who was asked for may be gone.
        let _ = kernel.write(&told);
    }
}

fn mount(what: &str, at: &Path, options: &str) -> sys::Said<()> {
    let text = |text: &str| CString::new(text).expect("no zeros");
    let (kind, options) = (text(what), text(options));
    let at = text(at.to_str().expect("text"));
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_RDONLY;
    // SAFETY: the strings end.
    let said = unsafe {
        libc::mount(
            kind.as_ptr(),
            at.as_ptr(),
            kind.as_ptr(),
            flags,
            options.as_ptr().cast(),
        )
    };
    if said == 0 { Ok(()) } else { Err(sys::errno()) }
}

/// What is mounted below a directory; it goes with this.
struct Mounted(tempfile::TempDir);

impl Mounted {
    /// A file system of FUSE, at `fuse`; none where that takes privilege or is not there.
    fn new() -> Option<Mounted> {
        let own = || {
            // SAFETY: this thread alone has another namespace, whose mounts nobody else sees.
            unsafe {
                let none = ptr::null();
                let flags = libc::MS_REC | libc::MS_PRIVATE;
                libc::unshare(libc::CLONE_NEWNS) == 0
                    && libc::mount(none, c"/".as_ptr(), none, flags, none.cast()) == 0
            }
        };
        let kernel = File::options().read(true).write(true).open("/dev/fuse");
        let Some(kernel) = kernel.ok().filter(|_| own()) else {
            eprintln!("skipped: no FUSE here, or no privilege to mount it");
            return None;
        };
        let mounted = Mounted(tempfile::tempdir_in(".").expect("a directory"));
        let at = mounted.dir("fuse");
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            kernel.as_raw_fd()
        );
        if let Err(why) = mount("fuse", &at, &options) {
            eprintln!("skipped: FUSE cannot be mounted: errno {why}");
            return None;
        }
        std::thread::spawn(|| serve(kernel));
        Some(mounted)
    }

    fn dir(&self, name: &str) -> PathBuf {
        let path = self.0.path().canonicalize().expect("there").join(name);
        std::fs::create_dir_all(&path).expect("a directory");
        path
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for name in ["over", "fuse"] {
            let path = CString::new(self.0.path().join(name).to_str().expect("text"));
            // SAFETY: the string ends. What is not mounted is an error.
            unsafe { libc::umount2(path.expect("no zeros").as_ptr(), libc::MNT_DETACH) };
        }
    }
}

/// Reads the file into a block that would leave memory meanwhile.
fn read(dir: &Path) {
    let file = File::open(dir.join("file")).expect("there");
    let block = Block::filled(LEN, 42);
    for _ in 0..3 {
        press();
        assert_eq!(sys::pread(file.as_raw_fd(), block.at, LEN, 0), Ok(LEN));
        block.check(0..LEN, SEED);
        block.fill(0..LEN, 42);
    }
}

fn by_fuse() {
    if let Some(mounted) = Mounted::new() {
        read(&mounted.0.path().join("fuse"));
    }
}

fn by_overlay() {
    let Some(mounted) = Mounted::new() else {
        return;
    };
    let [below, empty, over] = ["fuse", "empty", "over"].map(|name| mounted.dir(name));
    let options = format!("lowerdir={}:{}", below.display(), empty.display());
    if let Err(why) = mount("overlay", &over, &options) {
        return eprintln!("skipped: no overlayfs here: errno {why}");
    }
    read(&over);
}
