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
use super::{Arena, State};
use libc::c_void;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::path::PathBuf;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;

/// A fork that is under way.
#[derive(Debug)]
pub struct Forking<'a> {
    arena: &'a Arena,
    state: MutexGuard<'a, State>,
    pause: Option<Pause>,
    /// The child says that it has what it wants.
    done: Option<(PipeReader, PipeWriter)>,
    parent: u32,
}

impl Arena {
    /// Before a fork.
    pub fn before_fork(&self) -> Forking<'_> {
        let state = self.lock();
        let is_plain = self.is_plain();
        Forking {
            arena: self,
            pause: (!is_plain).then(|| self.service.pause()),
            done: io::pipe().ok().filter(|_| !is_plain),
            state,
            parent: std::process::id(),
        }
    }
}

impl Forking<'_> {
    /// In the parent, whether there is a child or not.
    pub fn in_parent(self) {
        let Some((mut reader, writer)) = self.done else {
            return;
        };
        drop(writer);
        // A child that ends without a word has no use for its copy.
        let _ = reader.read(&mut [0]);
    }

    /// In the child. Ends it where it cannot have what it is to have.
    pub fn in_child(mut self) {
        let Some(pause) = self.pause.take() else {
            return;
        };
        self.arena.is_plain.store(true, Relaxed);
        let Some((reader, mut writer)) = self.done.take() else {
            self.end("there is no pipe to its parent");
        };
        drop(reader);
        if let Err(error) = self.copy(&pause) {
            self.end(&error.to_string());
        }
        self.state.locked.clear();
        // The parent waits for it, or is gone.
        let _ = writer.write_all(&[1]);
        // Its other end is no thread of this process.
        std::mem::forget(pause);
    }

    fn copy(&mut self, pause: &Pause) -> io::Result<()> {
        let arena = self.arena;
        let all = 0..(arena.range.len() / super::PAGE_BYTES) as u32;
        let lost = self.state.extents.lost_in(all.clone());
        let mut ours = vec![all.clone()];
        for lost in lost {
            ours = (ours.iter())
                .flat_map(|part| super::without(part, &lost))
                .collect();
        }
        for part in &ours {
            map_plain(arena.bytes(part))?;
        }
        let thread = format!("/proc/{}/task/{}/fd", self.parent, pause.thread);
        let given = arena.given(&self.state, all);
        // SAFETY: this is the child, alone; what is given was mapped above, and is zeros.
        unsafe { pause.still.copy(&PathBuf::from(thread), &given)? };
        for (range, protection) in &self.state.protected {
            super::protect(&arena.bytes(range), *protection);
        }
        Ok(())
    }

    fn end(&self, why: &str) -> ! {
        super::complain(&format!(
            "a child of process {} cannot have a copy of its memory, and ends: {why}",
            self.parent
        ));
        std::process::abort()
    }
}

/// Private memory where the parent has the arena, and this process nothing.
fn map_plain(bytes: std::ops::Range<usize>) -> io::Result<()> {
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let (start, len) = (bytes.start as *mut c_void, bytes.len());
    // SAFETY: a new mapping, where there is none.
    let at = unsafe { libc::syscall(libc::SYS_mmap, start, len, super::READ_WRITE, flags, -1, 0) };
    match at {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
