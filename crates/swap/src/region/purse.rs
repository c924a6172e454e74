//! What a region may use of a device that it shares: device time, paid before it is used.
//!
//! A [`Purse`] is a page of memory that processes share. Who grants device time has its [`Till`]:
//! he puts time in, and takes the counts of what was used out. Regions spend (`device.rs`): each
//! request takes its price. What nobody waits for is held as soon as the purse is empty: what is
//! read ahead, until somebody wants a page of it, and what is written back, until somebody wants
//! memory. What somebody waits for goes on for a little longer, on credit ([`CREDIT_PS`]). What was
//! read ahead goes as one request then: many pages take little more of a device than one, so that a
//! program which is held reads as cheaply as one which is not.
//!
//! Where the other side is silent for [`PATIENCE`] nothing is held until it speaks again: its
//! tenants are gone, or whoever stood between, and a program is not to hang for that.
//!
//! What it never does: ask for the time on a request that may go; trust what it reads beyond
//! arithmetic: the page is in a file that the program could write to.
//!
//! *Thread safety*: all of it, across processes. Only counters and flags are shared; whoever dies
//! leaves nothing locked. *Source*: NyxCache section 3.3 for what is charged; who is held first is
//! ours.

use super::uffd::PAGE_BYTES;
use rustix::fd::AsFd;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex::{self, Flags, Timespec};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Device time, in picoseconds, that those who wait may use beyond what was granted: a millisecond,
/// a hundredth of 100 ms of the device.
pub const CREDIT_PS: i64 = 1_000_000_000;
/// Who grants is thought gone after this.
const PATIENCE: Duration = Duration::from_secs(1);
/// Who waits looks again after this, whoever is to wake him.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// The page. Zeros are an empty purse.
#[derive(Debug, Default)]
#[repr(C)]
struct Words {
    /// What is left; below zero is what is owed.
    left_ps: AtomicI64,
    /// Below this the till is rung for.
    low_ps: AtomicI64,
    /// Of a page, and of each further one: read, and written.
    read_ps: [AtomicU64; 2],
    write_ps: [AtomicU64; 2],
    /// Whether nothing is limited.
    is_free: AtomicU32,
    /// How often the till has spoken: it is waited on.
    spoken: AtomicU32,
    /// How often it was rung for: it waits on that.
    bell: AtomicU32,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    /// How often something was held.
    holds: AtomicU64,
}

/// A page that is shared, as long as this lives.
#[derive(Debug)]
struct Shared(NonNull<Words>);

// SAFETY: it is plain memory of atomics, which is unmapped by its only owner.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn map(file: &File) -> io::Result<Shared> {
        if file.metadata()?.len() < PAGE_BYTES as u64 {
            return Err(io::Error::other("it is no purse: too short"));
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses where; nothing of ours is there.
        let at = unsafe {
            let nowhere = std::ptr::null_mut();
            mmap(
                nowhere,
                PAGE_BYTES,
                access,
                MapFlags::SHARED,
                file.as_fd(),
                0,
            )?
        };
        Ok(Shared(NonNull::new(at.cast()).expect("not at zero")))
    }

    fn words(&self) -> &Words {
        // SAFETY: the page is mapped as long as this lives, is aligned, and any bits are valid
        // atomics; others reach it by atomics only, or are to blame for what they write.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and nobody has it any more.
        let unmapped = unsafe { munmap(self.0.as_ptr().cast(), PAGE_BYTES) };
        debug_assert!(unmapped.is_ok());
    }
}

/// What requests are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Somebody waits for it.
    Now,
    /// Nobody does.
    Later,
}

/// See the module.
#[derive(Debug)]
pub struct Purse {
    shared: Shared,
    /// What the till had said last, and when that was seen to be new.
    heard: Mutex<(u32, Instant)>,
}

impl Purse {
    /// That of a till that was made at this path.
    ///
    /// # Errors
    ///
    /// What the system says, or that it is no such file.
    pub fn open(path: &Path) -> io::Result<Purse> {
        let file = File::options().read(true).write(true).open(path)?;
        Purse::of(&file)
    }

    fn of(file: &File) -> io::Result<Purse> {
        let shared = Shared::map(file)?;
        let spoken = shared.words().spoken.load(Relaxed);
        Ok(Purse {
            shared,
            heard: Mutex::new((spoken, Instant::now())),
        })
    }

    /// Whether a request may go now.
    pub fn may(&self, need: Need) -> bool {
        let words = self.shared.words();
        let least_ps = match need {
            Need::Now => -CREDIT_PS,
            Need::Later => 0,
        };
        let is_enough = words.left_ps.load(Relaxed) > least_ps;
        is_enough || words.is_free.load(Relaxed) != 0 || self.is_alone()
    }

    /// Something is held: asks for more. What is held for longer is counted once.
    pub fn ask(&self, is_new: bool) {
        let holds = &self.shared.words().holds;
        holds.fetch_add(u64::from(is_new), Relaxed);
        self.ring();
    }

    /// Whether nothing was heard of the till for long.
    fn is_alone(&self) -> bool {
        let spoken = self.shared.words().spoken.load(Relaxed);
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        if heard.0 != spoken {
            *heard = (spoken, Instant::now());
        }
        heard.1.elapsed() > PATIENCE
    }

    /// A request goes: so many pages side by side.
    pub fn spend(&self, is_read: bool, pages: u32) {
        let words = self.shared.words();
        let (prices, count, bytes) = match is_read {
            true => (&words.read_ps, &words.reads, &words.read_bytes),
            false => (&words.write_ps, &words.writes, &words.written_bytes),
        };
        count.fetch_add(1, Relaxed);
        bytes.fetch_add(u64::from(pages) * PAGE_BYTES as u64, Relaxed);
        let [first_ps, further_ps] = prices.each_ref().map(|price| price.load(Relaxed));
        let further_ps = further_ps.saturating_mul(u64::from(pages.saturating_sub(1)));
        let price_ps = i64::try_from(first_ps.saturating_add(further_ps)).unwrap_or(i64::MAX);
        let before_ps = words.left_ps.fetch_sub(price_ps, Relaxed);
        let low_ps = words.low_ps.load(Relaxed);
        let is_low = before_ps >= low_ps && before_ps.wrapping_sub(price_ps) < low_ps;
        if is_low && words.is_free.load(Relaxed) == 0 {
            self.ring();
        }
    }

    fn ring(&self) {
        let bell = &self.shared.words().bell;
        bell.fetch_add(1, Relaxed);
        // Nobody may be there.
        let _ = futex::wake(bell, Flags::empty(), 1);
    }

    /// Asks for more, and waits until the till has spoken, a little while at most; not at all where
    /// a request may go.
    pub fn rest(&self, need: Need) {
        let words = self.shared.words();
        let spoken = words.spoken.load(Relaxed);
        if self.may(need) {
            return;
        }
        self.ask(true);
        let _ = futex::wait(&words.spoken, Flags::empty(), spoken, Some(&LOOK));
    }
}

/// What was used of a purse since it was made. Counts wrap; differences survive that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Spent {
    /// Requests that read.
    pub reads: u64,
    /// What they read.
    pub read_bytes: u64,
    /// Requests that wrote.
    pub writes: u64,
    /// What they wrote.
    pub written_bytes: u64,
    /// How often something was held.
    pub holds: u64,
}

impl Spent {
    /// Without those of which a count was seen before its bytes, or after: they are seen the next
    /// time.
    #[must_use]
    pub fn whole(mut self) -> Spent {
        if (self.reads == 0) != (self.read_bytes == 0) {
            (self.reads, self.read_bytes) = (0, 0);
        }
        if (self.writes == 0) != (self.written_bytes == 0) {
            (self.writes, self.written_bytes) = (0, 0);
        }
        self
    }

    /// Both together.
    #[must_use]
    pub fn and(&self, more: &Spent) -> Spent {
        let and = |one: u64, more: u64| one.wrapping_add(more);
        Spent {
            reads: and(self.reads, more.reads),
            read_bytes: and(self.read_bytes, more.read_bytes),
            writes: and(self.writes, more.writes),
            written_bytes: and(self.written_bytes, more.written_bytes),
            holds: and(self.holds, more.holds),
        }
    }

    /// What was used since.
    #[must_use]
    pub fn since(&self, before: &Spent) -> Spent {
        let since = |now: u64, before: u64| now.wrapping_sub(before);
        Spent {
            reads: since(self.reads, before.reads),
            read_bytes: since(self.read_bytes, before.read_bytes),
            writes: since(self.writes, before.writes),
            written_bytes: since(self.written_bytes, before.written_bytes),
            holds: since(self.holds, before.holds),
        }
    }
}

/// What requests take, in picoseconds of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prices {
    /// Of a read of a page, and of each further page of it.
    pub read_ps: [u64; 2],
    /// The same of a write.
    pub write_ps: [u64; 2],
}

/// The side of a [`Purse`] on which time is granted.
#[derive(Debug)]
pub struct Till {
    shared: Shared,
    /// When it spoke last.
    spoke: Mutex<Instant>,
}

impl Till {
    /// Makes a file, and an empty purse in it.
    ///
    /// # Errors
    ///
    /// What the system says; that there is one already, too.
    pub fn create(path: &Path) -> io::Result<Till> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let mut file = options.open(path)?;
        // Not a hole, for which there may be no room later.
        file.write_all(&[0; PAGE_BYTES])?;
        Ok(Till {
            shared: Shared::map(&file)?,
            spoke: Mutex::new(Instant::now()),
        })
    }

    /// What requests take from now on, and below how much it is rung for.
    pub fn set_prices(&self, prices: &Prices, low_ps: u64) {
        let words = self.shared.words();
        let set = |of: &[AtomicU64; 2], to: [u64; 2]| {
            of.iter().zip(to).for_each(|(of, to)| of.store(to, Relaxed));
        };
        set(&words.read_ps, prices.read_ps);
        set(&words.write_ps, prices.write_ps);
        let low_ps = i64::try_from(low_ps).unwrap_or(i64::MAX);
        words.low_ps.store(low_ps, Relaxed);
    }

    /// Grants so much; none lets everything go, and what was owed is forgotten. After a silence for
    /// which nothing was held what is owed is no more than the credit: or the program would stand
    /// still for as long as that took.
    pub fn grant(&self, granted_ps: Option<u64>) {
        let mut spoke = self.spoke.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now.duration_since(std::mem::replace(&mut *spoke, now)) > PATIENCE {
            let left_ps = &self.shared.words().left_ps;
            left_ps.fetch_max(-CREDIT_PS, Relaxed);
        }
        drop(spoke);
        let words = self.shared.words();
        match granted_ps {
            None => {
                words.is_free.store(1, Relaxed);
                words.left_ps.store(0, Relaxed);
            }
            Some(granted_ps) => {
                let granted_ps = i64::try_from(granted_ps).unwrap_or(i64::MAX);
                if words.is_free.swap(0, Relaxed) != 0 {
                    words.left_ps.store(granted_ps, Relaxed);
                } else {
                    words.left_ps.fetch_add(granted_ps, Relaxed);
                }
            }
        }
        words.spoken.fetch_add(1, Relaxed);
        let _ = futex::wake(&words.spoken, Flags::empty(), i32::MAX as u32);
    }

    /// What is left, in picoseconds; below zero is what is owed.
    pub fn left_ps(&self) -> i64 {
        self.shared.words().left_ps.load(Relaxed)
    }

    /// What was used.
    pub fn spent(&self) -> Spent {
        let words = self.shared.words();
        Spent {
            reads: words.reads.load(Relaxed),
            read_bytes: words.read_bytes.load(Relaxed),
            writes: words.writes.load(Relaxed),
            written_bytes: words.written_bytes.load(Relaxed),
            holds: words.holds.load(Relaxed),
        }
    }

    /// How often it was rung for.
    pub fn rung(&self) -> u32 {
        self.shared.words().bell.load(Relaxed)
    }

    /// Waits until it is rung for once more than `rung` times, or for so long.
    pub fn wait(&self, rung: u32, time: Duration) {
        let time = Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        let _ = futex::wait(&self.shared.words().bell, Flags::empty(), rung, Some(&time));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICES: Prices = Prices {
        read_ps: [1_000, 100],
        write_ps: [3_000, 300],
    };

    fn pair() -> (Till, Purse) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("purse");
        let till = Till::create(&path).unwrap();
        till.set_prices(&PRICES, 5_000);
        assert!(Till::create(&path).is_err(), "it is there");
        (till, Purse::open(&path).unwrap())
    }

    #[test]
    fn what_nobody_waits_for_is_held_before_what_somebody_does() {
        let (till, purse) = pair();
        assert!(!purse.may(Need::Later), "it is empty");
        assert!(purse.may(Need::Now));
        till.grant(Some(1_500));
        assert!(purse.may(Need::Later));
        purse.spend(true, 6);
        assert_eq!(till.left_ps(), 0);
        assert!(!purse.may(Need::Later) && purse.may(Need::Now));
        for _ in 0..CREDIT_PS / 3_300 + 1 {
            assert!(purse.may(Need::Now));
            purse.spend(false, 2);
        }
        assert!(!purse.may(Need::Now), "{}", till.left_ps());
        assert_eq!(till.spent().holds, 0, "nobody has waited");
        till.grant(Some(CREDIT_PS as u64));
        assert!(
            purse.may(Need::Now) && !purse.may(Need::Later),
            "it still owes"
        );
        till.grant(Some(10_000));
        assert!(purse.may(Need::Later));
    }

    #[test]
    fn what_is_spent_is_counted_and_the_bell_rings_once_where_little_is_left() {
        let (till, purse) = pair();
        till.grant(Some(10_000));
        let rung = till.rung();
        purse.spend(true, 1);
        assert_eq!(till.rung(), rung, "9,000 are left");
        purse.spend(true, 32);
        assert_eq!(till.left_ps(), 10_000 - 1_000 - 4_100);
        assert_eq!(till.rung(), rung + 1, "below 5,000");
        purse.spend(true, 1);
        assert_eq!(till.rung(), rung + 1, "once");
        let spent = till.spent();
        assert_eq!((spent.reads, spent.read_bytes), (3, 34 * 4096));
        purse.spend(false, 2);
        let since = till.spent().since(&spent);
        assert_eq!(
            (since.reads, since.writes, since.written_bytes),
            (0, 1, 8192)
        );
    }

    #[test]
    fn where_nothing_is_limited_nothing_is_held_and_nothing_is_owed_later() {
        let (till, purse) = pair();
        till.grant(None);
        for _ in 0..1_000 {
            assert!(purse.may(Need::Later));
            purse.spend(false, 32);
        }
        assert_eq!(till.spent().writes, 1_000);
        till.grant(Some(7));
        assert_eq!(till.left_ps(), 7);
        assert_eq!(till.spent().holds, 0);
    }

    #[test]
    fn who_hears_nothing_for_long_is_not_held() {
        let (till, purse) = pair();
        let heard = |ago| {
            let spoken = till.shared.words().spoken.load(Relaxed);
            *purse.heard.lock().unwrap() = (spoken, Instant::now() - ago);
        };
        assert!(!purse.may(Need::Later));
        heard(PATIENCE * 2);
        assert!(purse.may(Need::Later), "nobody is there");
        till.grant(Some(0));
        assert!(!purse.may(Need::Later), "somebody is");
    }

    #[test]
    fn who_rests_is_woken_by_a_grant() {
        let (till, purse) = pair();
        till.grant(Some(0));
        purse.spend(false, 32);
        while purse.may(Need::Now) {
            purse.spend(false, 32);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !purse.may(Need::Now) {
                    purse.rest(Need::Now);
                }
            });
            // The bell is rung by who is held.
            let rung = till.rung();
            till.wait(rung, Duration::from_secs(60));
            till.grant(Some(2 * CREDIT_PS as u64));
        });
        assert!(till.left_ps() > 0);
    }

    #[test]
    fn after_a_silence_no_more_is_owed_than_the_credit() {
        let (till, purse) = pair();
        till.grant(Some(0));
        (0..10).for_each(|_| purse.spend(false, 1_000_000));
        let owed_ps = till.left_ps();
        assert!(owed_ps < -2 * CREDIT_PS);
        till.grant(Some(1));
        assert_eq!(till.left_ps(), owed_ps + 1, "who was heard owes all");
        *till.spoke.lock().unwrap() = Instant::now() - PATIENCE * 2;
        till.grant(Some(7));
        assert_eq!(till.left_ps(), 7 - CREDIT_PS);
    }

    #[test]
    fn counts_without_their_bytes_are_seen_the_next_time() {
        let torn = Spent {
            reads: 1,
            writes: 2,
            written_bytes: 8192,
            ..Spent::default()
        };
        let whole = torn.whole();
        assert_eq!((whole.reads, whole.writes), (0, 2));
        let later = Spent {
            read_bytes: 4096,
            ..torn
        };
        let rest = later.since(&whole).whole();
        assert_eq!((rest.reads, rest.read_bytes, rest.writes), (1, 4096, 0));
        assert_eq!(whole.and(&rest), later);
    }

    #[test]
    fn what_is_no_purse_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "short").unwrap();
        assert!(Purse::open(&path).is_err());
        assert!(Purse::open(&dir.path().join("none")).is_err());
    }
}
