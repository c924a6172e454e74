//! userfaultfd(2): who hears of the faults of a range of memory, and answers them.
//!
//! The numbers are ours, since the headers of many systems are older than their kernels; what the
//! kernel has is asked for when a region is made. Linux 6.6 is the first with all of it
//! (`UFFDIO_POISON`).
//!
//! What it never does: touch the memory; ask for fork, remap or remove events.
//!
//! *Thread safety*: every call is a system call that the kernel serialises.

use super::error::{RegionError, Trying};
use rustix::io::Errno;
use std::ffi::{c_int, c_ulong};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

const FEATURE_WP: u64 = 1 << 0;
const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const FEATURE_MINOR_SHMEM: u64 = 1 << 10;
const FEATURE_EXACT_ADDRESS: u64 = 1 << 11;
const FEATURE_WP_SHMEM: u64 = 1 << 12;
const FEATURE_POISON: u64 = 1 << 14;
/// What a region needs, and since when Linux has it.
const FEATURES: [(u64, &str); 6] = [
    (FEATURE_WP, "write protection (Linux 5.7)"),
    (
        FEATURE_MISSING_SHMEM,
        "missing pages of shared memory (Linux 4.11)",
    ),
    (
        FEATURE_MINOR_SHMEM,
        "minor faults of shared memory (Linux 5.14)",
    ),
    (FEATURE_EXACT_ADDRESS, "exact addresses (Linux 5.18)"),
    (
        FEATURE_WP_SHMEM,
        "write protection of shared memory (Linux 5.19)",
    ),
    (FEATURE_POISON, "poisoned pages (Linux 6.6)"),
];

const API: u64 = 0xaa;
const REGISTER_MISSING: u64 = 1;
const REGISTER_WP: u64 = 2;
const REGISTER_MINOR: u64 = 4;
/// Of `UFFDIO_COPY`, `UFFDIO_CONTINUE` and `UFFDIO_POISON`: wakes nobody.
const ASLEEP: u64 = 1;
/// Of the first two: the first write is a fault.
const READ_ONLY: u64 = 2;
/// Of `UFFDIO_WRITEPROTECT`: takes protection away, and wakes nobody.
const PROTECT_ASLEEP: u64 = 2;
/// The same: protects.
const PROTECT: u64 = 1;
const USER_MODE_ONLY: c_int = 1;
const EVENT_PAGEFAULT: u8 = 0x12;
const FAULT_WRITE: u64 = 1;
const FAULT_WP: u64 = 2;

/// The number of a request that takes and gives so many 64-bit words (`_IOWR`).
const fn both_ways(number: c_ulong, words: c_ulong) -> c_ulong {
    (3 << 30) | ((words * 8) << 16) | ((API as c_ulong) << 8) | number
}

const IOCTL_API: c_ulong = both_ways(0x3f, 3);
const IOCTL_REGISTER: c_ulong = both_ways(0x00, 4);
const IOCTL_COPY: c_ulong = both_ways(0x03, 5);
const IOCTL_PROTECT: c_ulong = both_ways(0x06, 3);
const IOCTL_CONTINUE: c_ulong = both_ways(0x07, 4);
const IOCTL_POISON: c_ulong = both_ways(0x08, 4);
/// Takes two words only (`_IOR`, as the kernel has it).
const IOCTL_WAKE: c_ulong = (2 << 30) | (16 << 16) | ((API as c_ulong) << 8) | 0x02;
/// Asks `/dev/userfaultfd` for one (`_IO`).
const IOCTL_NEW: c_ulong = (API as c_ulong) << 8;

/// Somebody touched what is not mapped, or wrote to what may only be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub(super) address: usize,
    pub(super) is_write: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Uffd(OwnedFd);

impl Uffd {
    /// One with all that a region needs. Faults of the kernel (in system calls) are answered too,
    /// unless only those `in_user_mode` are asked for, which takes no privilege.
    pub(super) fn new(in_user_mode: bool) -> Result<Uffd, RegionError> {
        // A descriptor tells its features once: the first is only asked.
        let known = Uffd(open(in_user_mode)?).greet(0)?;
        for (feature, name) in FEATURES {
            if known & feature == 0 {
                return Err(RegionError::NoUserfaultfd {
                    missing: format!("this kernel has no {name}"),
                });
            }
        }
        let uffd = Uffd(open(in_user_mode)?);
        uffd.greet(FEATURES.iter().fold(0, |all, (feature, _)| all | feature))?;
        Ok(uffd)
    }

    fn greet(&self, features: u64) -> Result<u64, RegionError> {
        let mut words = [API, features, 0];
        self.ask(IOCTL_API, &mut words)
            .trying("agree on the features of a userfaultfd")?;
        Ok(words[1])
    }

    /// From now on faults of that range are heard of here.
    pub(super) fn register(&self, address: usize, len: usize) -> Result<(), RegionError> {
        let mode = REGISTER_MISSING | REGISTER_WP | REGISTER_MINOR;
        self.ask(IOCTL_REGISTER, &mut [address as u64, len as u64, mode, 0])
            .trying("register memory with a userfaultfd")
    }

    /// Sleeps until there is a fault; none where something else was heard, which is nothing to us.
    pub(super) fn next(&self) -> io::Result<Option<Fault>> {
        let mut message = [0; 32];
        match rustix::io::read(&self.0, &mut message) {
            Ok(_) => {}
            Err(Errno::INTR | Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let word = |at: usize| {
            let bytes = message[at..at + 8].try_into().expect("eight of them");
            // The kernel writes words of this machine.
            if cfg!(target_endian = "little") {
                u64::from_le_bytes(bytes)
            } else {
                u64::from_be_bytes(bytes)
            }
        };
        Ok((message[0] == EVENT_PAGEFAULT).then(|| Fault {
            address: word(16) as usize,
            is_write: word(8) & (FAULT_WRITE | FAULT_WP) != 0,
        }))
    }

    /// Maps so many bytes of zeros, whole pages; wakes nobody, as those below.
    pub(super) fn zero(&self, to: usize, len: usize, writable: bool) -> io::Result<()> {
        let mode = ASLEEP | if writable { 0 } else { READ_ONLY };
        let from = ZEROS.0.as_ptr() as u64;
        self.along(to, len, |at, len| {
            let len = len.min(ZEROS.0.len()) as u64;
            self.part(IOCTL_COPY, [at as u64, from, len, mode, 0])
        })
    }

    /// Maps pages that are in the file, and has those that are mapped already be writable where
    /// that is asked for.
    pub(super) fn go_on(&self, at: usize, len: usize, writable: bool) -> io::Result<()> {
        let mode = ASLEEP | if writable { 0 } else { READ_ONLY };
        self.along(at, len, |at, len| {
            let words = [at as u64, len as u64, mode, 0];
            match self.part(IOCTL_CONTINUE, words) {
                // The first of them is there.
                Err(Errno::EXIST) => {
                    let allowed = if writable {
                        self.allow_writes(at, PAGE_BYTES)
                    } else {
                        Ok(())
                    };
                    let errno = |error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
                    allowed.map(|()| PAGE_BYTES).map_err(errno)
                }
                other => other,
            }
        })
    }

    /// Goes along a range: each request tells how far it came. Pages of which the kernel knows
    /// nothing are left out: the program has mapped something else there, or nothing, and nobody
    /// can touch them.
    fn along(
        &self,
        first: usize,
        len: usize,
        mut request: impl FnMut(usize, usize) -> Result<usize, Errno>,
    ) -> io::Result<()> {
        let (mut done, mut piece) = (0, len);
        while done < len {
            match request(first + done, piece.min(len - done)) {
                Ok(part) => done += part,
                // The program may have divided the mapping, and the kernel takes one at a time.
                Err(Errno::NOENT) if piece > PAGE_BYTES => piece = PAGE_BYTES,
                Err(Errno::NOENT) => done += PAGE_BYTES,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// How many bytes one request did. The last but two of its words says how many it is to do, and
    /// the last how many it did, none where the kernel was busy with the memory's mappings.
    fn part<const N: usize>(&self, request: c_ulong, mut words: [u64; N]) -> Result<usize, Errno> {
        let asked = words[N - 3] as usize;
        match self.ask(request, &mut words) {
            Ok(()) => Ok(asked),
            // Less than none is an error's number.
            Err(Errno::AGAIN) => Ok(usize::try_from(words[N - 1] as i64).unwrap_or(0)),
            Err(Errno::INTR) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Has writes to mapped pages be no faults any more.
    pub(super) fn allow_writes(&self, at: usize, len: usize) -> io::Result<()> {
        self.insist(IOCTL_PROTECT, [at as u64, len as u64, PROTECT_ASLEEP])
    }

    /// Has writes to mapped pages be faults.
    pub(super) fn protect(&self, at: usize, len: usize) -> io::Result<()> {
        self.insist(IOCTL_PROTECT, [at as u64, len as u64, PROTECT])
    }

    /// Who touches the page gets SIGBUS.
    pub(super) fn poison(&self, at: usize) -> io::Result<()> {
        self.insist(IOCTL_POISON, [at as u64, PAGE_BYTES as u64, ASLEEP, 0])
    }

    /// Lets those who wait for the page try again.
    pub(super) fn wake(&self, at: usize) -> io::Result<()> {
        self.insist(IOCTL_WAKE, [at as u64, PAGE_BYTES as u64])
    }

    /// Asks again where the kernel was busy with the memory's mappings.
    fn insist<const N: usize>(&self, request: c_ulong, words: [u64; N]) -> io::Result<()> {
        loop {
            match self.ask(request, &mut words.clone()) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other.map_err(io::Error::from),
            }
        }
    }

    fn ask<const N: usize>(&self, request: c_ulong, words: &mut [u64; N]) -> Result<(), Errno> {
        // SAFETY: each request is passed as many words as its number says, in which the kernel
        // answers; pages that it changes are those of a range that was registered here. It never
        // changes bytes that are mapped: to who reads or writes them a page comes late, or faults.
        let answer = unsafe { libc::ioctl(self.0.as_raw_fd(), request as _, words.as_mut_ptr()) };
        match answer {
            0.. => Ok(()),
            _ => Err(last_error()),
        }
    }
}

/// Bytes that the kernel takes.
#[repr(align(4096))]
struct Zeros([u8; 32 * PAGE_BYTES]);

static ZEROS: Zeros = Zeros([0; 32 * PAGE_BYTES]);

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// A userfaultfd by the system call, or by its device.
fn open(in_user_mode: bool) -> Result<OwnedFd, RegionError> {
    let flags = libc::O_CLOEXEC | if in_user_mode { USER_MODE_ONLY } else { 0 };
    // SAFETY: the call takes flags only, and gives a descriptor that nobody else has.
    let refused = match unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } {
        // SAFETY: as above.
        descriptor @ 0.. => return Ok(unsafe { OwnedFd::from_raw_fd(descriptor as c_int) }),
        _ => io::Error::last_os_error(),
    };
    let by_device = match File::options()
        .read(true)
        .write(true)
        .open("/dev/userfaultfd")
    {
        // SAFETY: as above.
        Ok(device) => match unsafe { libc::ioctl(device.as_raw_fd(), IOCTL_NEW as _, flags) } {
            // SAFETY: as above.
            descriptor @ 0.. => return Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
            _ => io::Error::last_os_error(),
        },
        Err(error) => error,
    };
    Err(missing(in_user_mode, &refused, &by_device))
}

fn missing(in_user_mode: bool, refused: &io::Error, by_device: &io::Error) -> RegionError {
    let help = match in_user_mode {
        false => {
            "it takes CAP_SYS_PTRACE, vm.unprivileged_userfaultfd=1 or a readable and writable \
             /dev/userfaultfd; faults in user mode alone (in_user_mode) take none of them"
        }
        true => "a seccomp filter, as containers have it, may forbid it",
    };
    RegionError::NoUserfaultfd {
        missing: format!("the call says: {refused}; /dev/userfaultfd: {by_device}; {help}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_kernels_header() {
        assert_eq!(IOCTL_API, 0xc018_aa3f);
        assert_eq!(IOCTL_REGISTER, 0xc020_aa00);
        assert_eq!(IOCTL_COPY, 0xc028_aa03);
        assert_eq!(IOCTL_PROTECT, 0xc018_aa06);
        assert_eq!(IOCTL_CONTINUE, 0xc020_aa07);
        assert_eq!(IOCTL_POISON, 0xc020_aa08);
        assert_eq!((IOCTL_WAKE, IOCTL_NEW), (0x8010_aa02, 0xaa00));
    }

    #[test]
    fn who_may_not_have_one_is_told_what_is_missing() {
        let refused = || io::Error::from_raw_os_error(libc::EPERM);
        let said = missing(false, &refused(), &refused()).to_string();
        for part in [
            "vm.unprivileged_userfaultfd",
            "/dev/userfaultfd",
            "CAP_SYS_PTRACE",
        ] {
            assert!(said.contains(part), "{said}");
        }
    }
}
