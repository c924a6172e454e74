//! Children of all kinds, and ends of all kinds while other threads wait for pages.
//!
//! What it never does: leave a child behind.

use crate::Case;
use crate::memory::{Block, KIB, MIB, PAGE, press, stamp, word};
use crate::sys::{self, End, Fork};
use std::ffi::CString;
use std::io::{Read, Write};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

pub(crate) const CASES: &[Case] = &[
    ("fork", fork),
    ("fork-bare", fork_bare),
    ("fork-raw", fork_raw),
    ("fork-orphan", fork_orphan),
    ("fork-handlers", fork_handlers),
    ("fork-daemon", fork_daemon),
    ("fork-terminal", fork_terminal),
    ("spawn", spawn),
    ("spawn-system", spawn_system),
    ("exec", exec),
    ("exec-file", exec_file),
];

fn fork() {
    let block = Block::filled(4 * MIB, 1);
    let heap = crate::heap::malloc(2 * MIB);
    heap.fill(0..heap.len, 2);
    let children: Vec<_> = (0..6)
        .map(|number| {
            sys::fork(move || {
                block.check(0..block.len, 1);
                heap.check(0..heap.len, 2);
                block.fill(0..block.len, 10 + number);
                heap.fill(0..heap.len, 20 + number);
                block.check(0..block.len, 10 + number);
                heap.check(0..heap.len, 20 + number);
                let at = sys::mremap(block.at, block.len, 8 * MIB, libc::MREMAP_MAYMOVE, 0);
                let moved = Block {
                    at: at.expect("moved"),
                    len: 8 * MIB,
                };
                moved.check(0..block.len, 10 + number);
                moved.zero(block.len..moved.len);
                sys::munmap(moved.at + MIB, MIB).expect("a hole");
                assert!(sys::is_gone(moved.at + MIB));
                sys::madvise(moved.at, MIB, libc::MADV_DONTNEED).expect("dropped");
                moved.zero(0..MIB);
                let heap = crate::heap::resized(heap, 3 * MIB);
                heap.check(0..2 * MIB, 20 + number);
                crate::heap::free(heap);
                0
            })
        })
        .collect();
    // The parent goes on meanwhile.
    block.fill(0..block.len, 3);
    press();
    block.check(0..block.len, 3);
    heap.check(0..heap.len, 2);
    children.into_iter().for_each(sys::passed);
    block.check(0..block.len, 3);
    heap.check(0..heap.len, 2);
    crate::heap::free(heap);
}

/// What a fork that no library hears of gives: the memory as it was, or a fault. Never other words.
fn never_wrong(how: Fork) {
    let block = Block::filled(4 * MIB, 31);
    let child = sys::fork_by(how, || {
        // A panic would allocate and print; the status says enough.
        i32::from(block.wrong(0..block.len, 31).is_some()) * 3
    });
    match sys::wait(child) {
        End::Status(0) | End::Signal(libc::SIGSEGV | libc::SIGBUS) => {}
        end => panic!("{how:?}: the child ended with {end:?}; 3 is other words"),
    }
    block.check(0..block.len, 31);
    block.fill(0..block.len, 32);
    press();
    block.check(0..block.len, 32);
}

fn fork_bare() {
    never_wrong(Fork::Bare);
}

fn fork_raw() {
    never_wrong(Fork::Raw);
}

/// Waits for a byte that says that all is well.
fn told_well(fd: i32) {
    let mut byte = 0u8;
    let at = (&raw mut byte).expose_provenance();
    assert_eq!(sys::read(fd, at, 1), Ok(1), "nobody said that all is well");
    assert_eq!(byte, b'y');
}

fn tell(fd: i32, is_well: bool) {
    let byte = if is_well { b'y' } else { b'n' };
    let at = (&raw const byte).expose_provenance();
    assert_eq!(sys::write(fd, at, 1), Ok(1));
}

/// The copy is the child's own: it outlives the parent.
fn fork_orphan() {
    let (from, to) = sys::pipe();
    let (gone, parent_lives) = sys::pipe();
    let middle = sys::fork(|| {
        let block = Block::filled(4 * MIB, 41);
        press();
        let _ = sys::fork(|| {
            sys::close(parent_lives);
            // The end of the parent closes its end of this.
            let mut byte = 0u8;
            let at = (&raw mut byte).expose_provenance();
            assert_eq!(sys::read(gone, at, 1), Ok(0));
            tell(to, block.wrong(0..block.len, 41).is_none());
            0
        });
        0
    });
    sys::close(parent_lives);
    sys::close(to);
    sys::passed(middle);
    told_well(from);
}

static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn before_or_after() {
    let at = HANDLED.load(SeqCst) as usize;
    for page in 0..256 {
        word(at + page * PAGE + 8).fetch_add(1, SeqCst);
    }
}

/// Handlers of forks touch memory that is not there.
fn fork_handlers() {
    let block = Block::map(MIB);
    HANDLED.store(block.at as u64, SeqCst);
    // SAFETY: handlers that need no lock; any function may be called as one that is not safe.
    let handler = before_or_after as unsafe extern "C" fn();
    // SAFETY: as above.
    let said = unsafe { libc::pthread_atfork(Some(handler), Some(handler), Some(handler)) };
    assert_eq!(said, 0);
    let count = || word(block.at + 255 * PAGE + 8).load(SeqCst);
    for round in 0..3 {
        press();
        sys::passed(sys::fork(|| i32::from(count() != 2 * round + 2)));
        assert_eq!(count(), 2 * round + 2);
    }
}

/// The library's own forks, which programs do not see.
fn fork_daemon() {
    let (from, to) = sys::pipe();
    let block = Block::filled(4 * MIB, 51);
    press();
    let child = sys::fork(|| {
        // SAFETY: nobody else runs in this child.
        let said = unsafe { libc::daemon(1, 1) };
        assert_eq!(said, 0);
        block.fill(0..PAGE, 51);
        let is_well = block.wrong(0..block.len, 51).is_none();
        let new = Block::filled(MIB, 52);
        tell(to, is_well && new.wrong(0..MIB, 52).is_none());
        0
    });
    sys::close(to);
    sys::passed(child);
    told_well(from);
    // And from the process that is paged itself.
    let (from, to) = sys::pipe();
    let middle = std::process::Command::new(std::env::current_exe().expect("itself"))
        .args(["end", "daemon"])
        .stdout(to_stdio(to))
        .status();
    assert!(middle.expect("run").success());
    told_well(from);
}

/// Hands a descriptor on.
fn to_stdio(fd: i32) -> std::process::Stdio {
    use std::os::fd::FromRawFd;
    // SAFETY: an open one, which is handed on.
    let owned = unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) };
    owned.into()
}

fn fork_terminal() {
    let block = Block::filled(4 * MIB, 61);
    press();
    let mut terminal = 0;
    let null = ptr::null_mut();
    // SAFETY: no name, settings or size is asked for; the child calls what follows alone.
    let pid = unsafe { libc::forkpty(&raw mut terminal, null, null.cast(), null.cast()) };
    if pid == 0 {
        let is_wrong = block.wrong(0..block.len, 61).is_some();
        sys::quit(i32::from(is_wrong) * 3);
    }
    if pid == -1 {
        return eprintln!("no terminal here: errno {}", sys::errno());
    }
    sys::passed(pid);
    block.check(0..block.len, 61);
}

/// Programs whose words lie in memory that is not there, started in the ways of the library.
fn spawn() {
    let block = Block::filled(MIB, 71);
    let text = |place: usize, text: &std::ffi::CStr| {
        let at = ptr::with_exposed_provenance_mut::<u8>(block.at + place);
        let bytes = text.to_bytes_with_nul();
        // SAFETY: there is room, and nobody else uses it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
        at.cast::<libc::c_char>()
    };
    let program = text(8 * KIB, c"/usr/bin/env");
    let words = [
        text(64 * KIB, c"env"),
        text(96 * KIB, c"sh"),
        text(128 * KIB, c"-c"),
        text(256 * KIB, c"test \"$ONE\" = far; exit $(($? + 5))"),
        ptr::null_mut(),
    ];
    let variables = [text(512 * KIB, c"ONE=far"), ptr::null_mut()];
    for is_vfork in [true, false] {
        press();
        let pid = match is_vfork {
            // SAFETY: the words live until the child has become another program, and the child of
            // vfork only does that.
            true => unsafe {
                #[expect(deprecated, reason = "programs do call it")]
                let pid = libc::vfork();
                if pid == 0 {
                    libc::execve(program, words.as_ptr().cast(), variables.as_ptr().cast());
                    libc::_exit(9);
                }
                pid
            },
            false => {
                let mut pid = 0;
                let (words, variables) = (words.as_ptr().cast(), variables.as_ptr().cast());
                let null = ptr::null();
                // SAFETY: the words live.
                let said = unsafe {
                    libc::posix_spawn(&raw mut pid, program, null, null.cast(), words, variables)
                };
                assert_eq!(said, 0);
                pid
            }
        };
        assert_eq!(sys::wait(pid), End::Status(5));
    }
    block.check(0..8 * KIB, 71);
}

/// system, popen and Rust's own commands, while threads wait for pages.
fn spawn_system() {
    let block = Block::filled(4 * MIB, 81);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..3 {
                    press();
                    // SAFETY: a command that reads nothing.
                    let said = unsafe { libc::system(c"exit 3".as_ptr()) };
                    assert_eq!(libc::WEXITSTATUS(said), 3);
                    let mut command = std::process::Command::new("sh");
                    let output = command.args(["-c", "echo $((6 * 7))"]).output();
                    assert_eq!(output.expect("run").stdout, b"42\n");
                }
            });
        }
        for round in 0..4 {
            block.check(0..block.len, 81 + round);
            block.fill(0..block.len, 82 + round);
        }
    });
}

/// A program becomes itself again, and its children have what it has.
fn exec() {
    let block = Block::filled(2 * MIB, 91);
    press();
    let me = std::env::current_exe().expect("itself");
    let name = CString::new(me.into_os_string().into_encoded_bytes()).expect("no zero");
    let child = sys::fork(|| {
        block.check(0..block.len, 91);
        let words = [name.as_ptr(), c"heap-zeroed".as_ptr(), ptr::null()];
        // SAFETY: the words live.
        unsafe { libc::execv(name.as_ptr(), words.as_ptr()) };
        9
    });
    sys::passed(child);
    block.check(0..block.len, 91);
}

/// What a program wrote from paged memory its child reads from a file.
fn exec_file() {
    let mut file = tempfile::NamedTempFile::new_in(".").expect("a file");
    let held: Vec<u8> = (0..MIB).map(|place| stamp(1, place) as u8).collect();
    press();
    file.write_all(&held).expect("written");
    let me = std::env::current_exe().expect("itself");
    let mut command = std::process::Command::new(me);
    let said = command.arg("check").arg(file.path()).status();
    assert!(said.expect("run").success());
}

pub(crate) fn check_file(path: &str) {
    let mut held = Vec::new();
    let mut file = std::fs::File::open(path).expect("there");
    file.read_to_end(&mut held).expect("read");
    assert_eq!(held.len(), MIB);
    let is_right = |(place, &byte): (usize, &u8)| byte == stamp(1, place) as u8;
    assert!(held.iter().enumerate().all(is_right));
}

/// Ends in some way while eight threads wait for pages.
pub(crate) fn end(how: &str) {
    let block = Block::map(8 * MIB);
    let rounds: &[AtomicU64; 8] = Box::leak(Box::default());
    for (number, rounds) in rounds.iter().enumerate() {
        std::thread::spawn(move || {
            let mut rng = fastrand::Rng::with_seed(number as u64);
            loop {
                let at = block.at + rng.usize(..2048) * PAGE + number * 8;
                word(at).store(rng.u64(..), Relaxed);
                rounds.fetch_add(1, SeqCst);
            }
        });
    }
    while rounds.iter().any(|rounds| rounds.load(SeqCst) < 300) {
        std::thread::yield_now();
    }
    match how {
        "return" => {}
        "exit" => std::process::exit(7),
        "_exit" => sys::quit(7),
        "abort" => std::process::abort(),
        // SAFETY: the signal ends this process.
        "kill" => assert_eq!(unsafe { libc::kill(libc::getpid(), libc::SIGKILL) }, 0),
        // SAFETY: the signal ends this process.
        "terminate" => assert_eq!(unsafe { libc::raise(libc::SIGTERM) }, 0),
        "fault" => {
            sys::mprotect(block.at, block.len, libc::PROT_NONE).expect("protected");
            word(block.at).store(1, Relaxed);
        }
        "exec" => {
            use std::os::unix::process::CommandExt;
            let why = std::process::Command::new("sh")
                .args(["-c", "exit 7"])
                .exec();
            panic!("{why}");
        }
        "thread" => {
            std::thread::spawn(|| std::process::exit(7));
            std::thread::park();
        }
        "daemon" => daemon(),
        "bus" => {
            let little = libc::rlimit {
                rlim_cur: MIB as u64,
                rlim_max: MIB as u64,
            };
            // SAFETY: the call takes nothing.
            let own = unsafe { libc::getpid() };
            // To itself it is refused. Behind so much of a file writes are from then on.
            sys::passed(sys::fork(|| {
                let (what, none) = (libc::RLIMIT_FSIZE, std::ptr::null_mut());
                // SAFETY: the limit is read.
                unsafe { libc::prlimit(own, what, &raw const little, none) }
            }));
            Block::filled(16 * MIB, 3);
        }
        how => panic!("no end {how}"),
    }
}

/// This process goes on without its parent, its memory as it was.
fn daemon() {
    let block = Block::filled(4 * MIB, 53);
    // SAFETY: the other threads end with the parent.
    assert_eq!(unsafe { libc::daemon(1, 1) }, 0);
    tell(1, block.wrong(0..block.len, 53).is_none());
    sys::quit(0);
}

/// Goes on until it is killed, with a byte for each round.
pub(crate) fn churn() {
    let mut round = 0;
    let kept = Block::filled(4 * MIB, 1);
    loop {
        round += 1;
        let block = Block::filled(MIB, round);
        if round % 8 == 3 {
            sys::passed(sys::fork(|| {
                kept.check(0..kept.len, 1);
                0
            }));
        }
        block.check(0..block.len, round);
        kept.check(0..kept.len, 1);
        block.unmap();
        tell(1, true);
    }
}
