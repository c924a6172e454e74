//! What becomes of an arena in a fork: the child has a copy of it, in plain private memory.
//!
//! The parent stands still until the child has it: who writes to the arena meanwhile waits, so that
//! the copy is of one moment. All that was given away is read, from memory or from the device. A
//! child that only executes another program pays for that too; `vfork` and `posix_spawn` do not.
//!
//! What it never does: let a child go on that could not have all; it ends.
//!
//! *Thread safety*: the calls are made in the thread that forks, before and after.

use super::service::Pause;
use super::{Arena, Locked, Undisturbed};
use crate::region::{PAGE_BYTES, threads};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};
use rustix::net::{recvmsg, send};
use std::fs::File;
use std::io::{self, ErrorKind, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::Relaxed;

/// A fork that is under way. No signal is handled meanwhile, and the thread is not cancelled: it is
/// in no state to be.
#[derive(Debug)]
pub struct Forking<'a> {
    arena: &'a Arena,
    /// None in a child, which forks as any process does.
    copy: Option<Copying>,
    state: Locked<'a>,
    /// Dropped last.
    _undisturbed: Undisturbed,
    parent: u32,
}

#[derive(Debug)]
struct Copying {
    pause: Pause,
    /// The file of memory and the device; or why a child cannot have them.
    sources: io::Result<[File; 2]>,
    /// The child says that it has what it wants.
    sockets: Option<(UnixStream, UnixStream)>,
}

impl Arena {
    /// Before a fork, with the process's [`Gate`](super::Gate) closed.
    pub fn before_fork(&self) -> Forking<'_> {
        let undisturbed = Undisturbed::new();
        if !self.is_plain() && self.has_stack() {
            // It would wait for itself.
            super::complain("a thread whose stack is in the arena cannot fork: the process ends");
            threads::end();
        }
        let state = self.lock();
        Forking {
            arena: self,
            copy: (!self.is_plain()).then(|| Copying::begin(self)),
            state,
            _undisturbed: undisturbed,
            parent: std::process::id(),
        }
    }
}

impl Copying {
    fn begin(arena: &Arena) -> Copying {
        let sockets = UnixStream::pair();
        let socket = sockets
            .as_ref()
            .map_or(-1, |(_, theirs)| theirs.as_raw_fd());
        let (pause, lent) = arena.service.pause(socket);
        let (sockets, sources) = match (sockets, lent) {
            (Err(error), _) => (None, Err(error)),
            (Ok(sockets), Err(error)) => (Some(sockets), Err(error)),
            (Ok(sockets), Ok(())) => {
                let sources = receive(&sockets.0);
                (Some(sockets), sources)
            }
        };
        Copying {
            pause,
            sources,
            sockets,
        }
    }
}

/// The two descriptors that were sent.
fn receive(socket: &UnixStream) -> io::Result<[File; 2]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut received = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let into = &mut [IoSliceMut::new(&mut byte)];
    recvmsg(socket, into, &mut received, RecvFlags::CMSG_CLOEXEC)?;
    let rights = received.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let files: Vec<OwnedFd> = rights.flatten().collect();
    let files = <[OwnedFd; 2]>::try_from(files);
    let none = |_| io::Error::other("the descriptors of its memory did not come");
    Ok(files.map_err(none)?.map(File::from))
}

impl Forking<'_> {
    /// In the parent, whether there is a child or not.
    pub fn in_parent(self) {
        let Some(mut copy) = self.copy else {
            return;
        };
        // All stands still until the child has answered. One that ends without a word has no use
        // for its copy; nor is there one where the fork failed.
        if let Some((mut ours, theirs)) = copy.sockets.take() {
            drop(theirs);
            while ours
                .read(&mut [0])
                .is_err_and(|error| error.kind() == ErrorKind::Interrupted)
            {}
        }
    }

    /// In the child. Ends it where it cannot have what it is to have.
    pub fn in_child(mut self) {
        let Some(copy) = self.copy.take() else {
            return;
        };
        self.arena.is_plain.store(true, Relaxed);
        let done = match copy.sources {
            Err(error) => Err(error),
            Ok(sources) => self.copy(&copy.pause, &sources),
        };
        if let Err(why) = done {
            super::complain(&format!(
                "a child of process {} cannot have a copy of its memory, and ends: {why}",
                self.parent
            ));
            threads::end();
        }
        self.state.locked.clear();
        if let Some((_, theirs)) = &copy.sockets {
            // The parent waits for it, or is gone; that is no signal.
            let _ = send(theirs, &[1], SendFlags::NOSIGNAL);
        }
        // Who would hear of its end is no thread of this process.
        std::mem::forget(copy.pause);
    }

    fn copy(&mut self, pause: &Pause, sources: &[File; 2]) -> io::Result<()> {
        let arena = self.arena;
        let all = 0..(arena.range.len() / PAGE_BYTES) as u32;
        let lost = self.state.extents.lost_in(all.clone());
        for part in super::without_all(vec![all.clone()], &lost) {
            map_plain(&arena.bytes(&part))?;
        }
        let given = arena.given(&self.state, all);
        // SAFETY: this is the child, alone; what is given was mapped above, and is zeros.
        unsafe { pause.still.copy(sources, &given) }?;
        for (range, protection) in &self.state.protected {
            super::protect(&arena.bytes(range), *protection);
        }
        Ok(())
    }
}

/// Private memory where the parent has the arena, and this process nothing.
fn map_plain(bytes: &Range<usize>) -> io::Result<()> {
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let (start, len) = (bytes.start, bytes.len());
    // SAFETY: a new mapping, where there is none.
    let at = unsafe { libc::syscall(libc::SYS_mmap, start, len, super::READ_WRITE, flags, -1, 0) };
    match at {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
