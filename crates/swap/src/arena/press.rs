//! Memory that a program has outside of its arena and does not use: sent to the kernel's swap where
//! the arena is short.
//!
//! An arena has what the rest of a limit leaves, so the kernel is never short, and would keep
//! what a program used once (its modules, what it read at its start) while the arena reads the
//! same pages again and again. So all private memory outside of the arena is sent away once, a
//! little at a time; what is used comes back by a fault for each page (or eight), and the rest
//! leaves its room to the arena. It is done again where the rest has grown since. There is no
//! cheaper way to know what is used: accessed bits are not to be had without privilege, or at
//! all.
//!
//! What it never does: change what memory holds; send away files, which others may use.
//!
//! *Shapes*: bytes. *Thread safety*: one owner. What it sends away may be unmapped meanwhile, or be
//! something else: to that the same happens, and nothing else.

use std::collections::VecDeque;
use std::fs;
use std::ops::Range;
use std::time::{Duration, Instant};

/// So many addresses are gone through at a look.
const STEP_BYTES: usize = 4 << 20;
/// An arena is short that reads so many pages in a second, at least.
const SHORT_PAGES: u64 = 256;
const SECOND: Duration = Duration::from_secs(1);
/// What is used has come back after this time, and what is there then is not sent away again.
const SETTLED: Duration = Duration::from_secs(2);
/// Until it has grown by this part: one in so many,
const GROWN_ONE_IN: u64 = 4;
/// and by so much, without which nothing is done at all.
const WORTH_BYTES: u64 = 4 << 20;

/// What is sent away, and when.
#[derive(Debug)]
pub(super) struct Press {
    /// What is still to be gone through.
    left: VecDeque<Range<usize>>,
    /// When all was.
    done: Option<Instant>,
    /// What the program had outside when it had settled.
    kept: u64,
    /// When it was last looked whether the arena is short, and how many pages it had read then.
    looked: Option<(Instant, u64)>,
    is_short: bool,
}

impl Press {
    pub(super) fn new() -> Press {
        Press {
            left: VecDeque::new(),
            done: None,
            kept: 0,
            looked: None,
            is_short: false,
        }
    }

    /// What is to be sent away now, where the program has so many bytes outside and the arena has
    /// read so many pages; `all` tells what there is.
    pub(super) fn step(
        &mut self,
        now: Instant,
        (outside, pages_read): (u64, u64),
        all: impl FnOnce() -> VecDeque<Range<usize>>,
    ) -> Option<Range<usize>> {
        self.look(now, pages_read);
        if let Some(done) = self.done
            && now.duration_since(done) >= SETTLED
        {
            (self.kept, self.done) = (outside, None);
        }
        if self.left.is_empty() {
            let enough = (self.kept / GROWN_ONE_IN).max(WORTH_BYTES);
            let is_worth_it = outside.saturating_sub(self.kept) >= enough;
            if !self.is_short || self.done.is_some() || !is_worth_it {
                return None;
            }
            self.left = all();
        }
        let next = self.next();
        if self.left.is_empty() {
            self.done = Some(now);
        }
        next
    }

    fn look(&mut self, now: Instant, pages_read: u64) {
        let (since, before) = *self.looked.get_or_insert((now, pages_read));
        if now.duration_since(since) >= SECOND {
            self.is_short = pages_read - before >= SHORT_PAGES;
            self.looked = Some((now, pages_read));
        }
    }

    fn next(&mut self) -> Option<Range<usize>> {
        let first = self.left.front_mut()?;
        let end = first.end.min(first.start + STEP_BYTES);
        let step = first.start..end;
        first.start = end;
        if first.start == first.end {
            self.left.pop_front();
        }
        Some(step)
    }
}

/// Whether the kernel's swap has room for so many bytes twice: what comes back keeps its place, and
/// who fills swap is killed, or waits.
pub(super) fn has_room(bytes: u64) -> bool {
    let info = rustix::system::sysinfo();
    info.freeswap * u64::from(info.mem_unit) >= bytes.saturating_mul(2)
}

/// The mappings of this process; none where they cannot be read. By this thread: of a process whose
/// first thread has ended there are none. Names of files may be anything.
pub(super) fn maps() -> String {
    let bytes = fs::read("/proc/thread-self/maps").unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Private memory of a process that it may write to, as its `maps` has it (proc_pid_maps(5)).
pub(super) fn private(maps: &str) -> VecDeque<Range<usize>> {
    let parse = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (begin, end) = words.next()?.split_once('-')?;
        let access = words.next()?;
        let inode = words.nth(2)?;
        let name = words.next().unwrap_or("");
        let is_memory = name.is_empty() || name == "[heap]" || name.starts_with("[anon");
        let is_private = access.starts_with("rw") && access.ends_with('p') && inode == "0";
        let address = |text| usize::from_str_radix(text, 16).ok();
        (is_memory && is_private).then_some(address(begin)?..address(end)?)
    };
    maps.lines().filter_map(parse).collect()
}

/// Sends away what of this is in memory. What cannot be stays.
pub(super) fn send_away(bytes: &Range<usize>) {
    // By its number: the function is the preload library's own, which asks the thread that is here.
    // SAFETY: memory keeps what it holds.
    unsafe {
        libc::syscall(
            libc::SYS_madvise,
            bytes.start,
            bytes.len(),
            libc::MADV_PAGEOUT,
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::ptr;

    const MIB: u64 = 1 << 20;
    const LOOK: Duration = Duration::from_millis(20);

    /// A program that has some memory outside, of which it uses a part.
    struct Program {
        press: Press,
        now: Instant,
        outside: u64,
        pages_read: u64,
        /// What was sent away.
        sent: Vec<Range<usize>>,
    }

    impl Program {
        fn new(outside: u64) -> Program {
            Program {
                press: Press::new(),
                now: Instant::now(),
                outside,
                pages_read: 0,
                sent: Vec::new(),
            }
        }

        fn run(&mut self, time: Duration, pages_per_look: u64) {
            let end = self.now + time;
            while self.now < end {
                self.now += LOOK;
                self.pages_read += pages_per_look;
                let all = || VecDeque::from([0..10 << 20, 1 << 30..(1 << 30) + 4096]);
                let figures = (self.outside, self.pages_read);
                self.sent.extend(self.press.step(self.now, figures, all));
            }
        }
    }

    #[test]
    fn an_arena_that_reads_nothing_leaves_the_rest_alone() {
        let mut program = Program::new(100 * MIB);
        program.run(10 * SECOND, 0);
        program.run(10 * SECOND, 5);
        assert!(program.sent.is_empty(), "{:?}", program.sent);
    }

    #[test]
    fn all_is_sent_away_once_a_little_at_a_time() {
        let mut program = Program::new(100 * MIB);
        program.run(3 * SECOND, 10);
        let (step, far) = (STEP_BYTES, 1 << 30);
        let expected = [0..step, step..2 * step, 2 * step..10 << 20, far..far + 4096];
        assert_eq!(program.sent, expected);
        program.outside = 30 * MIB;
        program.run(60 * SECOND, 10);
        assert_eq!(program.sent.len(), 4, "what came back is used");
        program.outside = 37 * MIB;
        program.run(60 * SECOND, 10);
        assert_eq!(program.sent.len(), 4, "a little more");
        program.outside = 38 * MIB;
        program.run(SECOND, 10);
        assert_eq!(program.sent.len(), 8, "a quarter more");
    }

    #[test]
    fn little_is_not_worth_it() {
        let mut program = Program::new(3 * MIB);
        program.run(10 * SECOND, 100);
        assert!(program.sent.is_empty(), "{:?}", program.sent);
    }

    #[test]
    fn private_memory_is_found() {
        let maps = "\
55d0a000-55d0b000 r-xp 00000000 fe:00 1234                       /usr/bin/python
55d0c000-55d0d000 rw-p 00002000 fe:00 1234                       /usr/bin/python
55d0d000-55d4d000 rw-p 00000000 00:00 0                          [heap]
7f000000-7f010000 rw-s 00000000 00:01 77                         /memfd:nyx-region (deleted)
7f010000-7f020000 rw-p 00000000 00:00 0 
7f020000-7f030000 ---p 00000000 00:00 0 
7f030000-7f040000 rw-p 00000000 00:00 0                          [anon:glibc: malloc]
7ffd0000-7ffe0000 rw-p 00000000 00:00 0                          [stack]
";
        let expected = [
            0x55d0_d000..0x55d4_d000,
            0x7f01_0000..0x7f02_0000,
            0x7f03_0000..0x7f04_0000,
        ];
        assert_eq!(private(maps), expected);
    }

    /// Pages of a file leave without swap too: they are on a disk already.
    #[test]
    fn what_is_sent_away_is_in_memory_no_more() {
        const PAGES: usize = 256;
        let own = std::env::current_exe().unwrap();
        let dir = own.parent().unwrap();
        if nyx_media::is_in_memory(dir) {
            return eprintln!("skipped what_is_sent_away: {} is memory", dir.display());
        }
        let file = tempfile::tempfile_in(dir).unwrap();
        file.write_all_at(&vec![7; PAGES * 4096], 0).unwrap();
        file.sync_all().unwrap();
        // SAFETY: a new mapping, of a file that nobody makes shorter.
        let memory = unsafe {
            let at = mmap(
                ptr::null_mut(),
                PAGES * 4096,
                ProtFlags::READ,
                MapFlags::PRIVATE,
                &file,
                0,
            );
            std::slice::from_raw_parts(at.unwrap().cast::<u8>(), PAGES * 4096)
        };
        let begin = memory.as_ptr() as usize;
        let mapped = || {
            let table = File::open("/proc/self/pagemap").unwrap();
            let mut entries = [0; PAGES * 8];
            let at = (begin / 4096 * 8) as u64;
            table.read_exact_at(&mut entries, at).unwrap();
            // The highest bit of an entry, little-endian.
            let tops = entries.chunks_exact(8).map(|entry| entry[7] >> 7);
            tops.map(usize::from).sum::<usize>()
        };
        let touched: usize = memory
            .iter()
            .step_by(4096)
            .map(|&byte| usize::from(byte))
            .sum();
        assert_eq!((touched, mapped()), (7 * PAGES, PAGES));
        send_away(&(begin..begin + memory.len()));
        // Some may be in another processor's hands just now.
        assert!(mapped() < PAGES / 2, "{} of {PAGES} stay", mapped());
        assert!(memory.iter().all(|&byte| byte == 7));
    }

    /// It is really sent away where there is swap, and holds what it held.
    #[test]
    fn what_is_sent_away_holds_what_it_held() {
        let memory = vec![7_u8; 1 << 20];
        let begin = memory.as_ptr() as usize;
        let pages = begin.next_multiple_of(4096)..(begin + memory.len()) / 4096 * 4096;
        send_away(&pages);
        assert!(memory.iter().all(|&byte| byte == 7));
    }
}
