//! Which files are read past the page cache, so that a device or another process writes into the
//! caller's memory: those that are open for it (`O_DIRECT`), and those of file systems where the
//! other side may say so.
//!
//! What it never does: read; know of what is no file of a file system or a block device.
//!
//! *Thread safety*: all of it.

use std::os::fd::RawFd;

/// File systems whose files may be read past the page cache without `O_DIRECT`, since the other
/// side says so: FUSE, 9p, CIFS and SMB2 (`statfs(2)`).
const PAST_THE_CACHE: [u32; 4] = [0x6573_5546, 0x0102_1997, 0xff53_4d42, 0xfe53_4d42];
/// overlayfs, whose files are read as they are in the file system below.
const OVERLAY: u32 = 0x794c_7630;
/// What a file system tells of a file that is read by way of the cache unless it is open for the
/// other: how reads past it have to lie (ext4, xfs, f2fs, erofs), its subvolume (btrfs, bcachefs).
const BY_THE_CACHE: u32 = libc::STATX_DIOALIGN | libc::STATX_SUBVOL;

/// Whether a file is read past the page cache, as a descriptor has it open. It may set `errno`.
pub fn is_direct(file: RawFd) -> bool {
    // SAFETY: asking changes nothing. Zeros are a `stat` and a `statfs`.
    unsafe {
        let flags = libc::fcntl(file, libc::F_GETFL);
        let mut about = std::mem::zeroed::<libc::stat>();
        if flags == -1 || libc::fstat(file, &raw mut about) != 0 {
            return false;
        }
        let is_asked_for = flags & libc::O_DIRECT != 0;
        match about.st_mode & libc::S_IFMT {
            libc::S_IFBLK => is_asked_for,
            libc::S_IFREG if is_asked_for => true,
            libc::S_IFREG => {
                let mut system = std::mem::zeroed::<libc::statfs>();
                let is_told = libc::fstatfs(file, &raw mut system) == 0;
                is_told && is_past(system.f_type as u32, || told(file))
            }
            // To a pipe the flag means packets.
            _ => false,
        }
    }
}

/// The same of a file that is not open for it, by its file system and by what that tells of it
/// (`statx(2)`).
fn is_past(system: u32, told: impl FnOnce() -> u32) -> bool {
    match system {
        // What is asked of the overlay is told by the file system that has the file. One that has
        // nothing to say may be any: its layers may lie where this process does not see them.
        OVERLAY => told() & BY_THE_CACHE == 0,
        other => PAST_THE_CACHE.contains(&other),
    }
}

fn told(file: RawFd) -> u32 {
    // SAFETY: zeros are a `statx`, into which the call writes.
    unsafe {
        let mut about = std::mem::zeroed::<libc::statx>();
        let path = c"".as_ptr();
        let itself = libc::AT_EMPTY_PATH;
        match libc::statx(file, path, itself, BY_THE_CACHE, &raw mut about) {
            0 => about.stx_mask,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs::{self, File};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::Path;

    const TMPFS: u32 = 0x0102_1994;
    const FUSE: u32 = PAST_THE_CACHE[0];

    #[test]
    fn an_overlay_is_as_what_is_below_it_tells_and_all_else_as_it_is() {
        for (system, told, expected) in [
            (OVERLAY, 0, true),
            (OVERLAY, libc::STATX_BTIME, true),
            (OVERLAY, libc::STATX_DIOALIGN, false),
            (OVERLAY, libc::STATX_SUBVOL, false),
            (FUSE, 0, true),
            (FUSE, libc::STATX_DIOALIGN, true),
            (TMPFS, 0, false),
        ] {
            assert_eq!(is_past(system, || told), expected, "{system:x} {told:x}");
        }
    }

    /// A directory beside this program, on a disk where that is.
    fn beside() -> tempfile::TempDir {
        let own = std::env::current_exe().unwrap();
        tempfile::tempdir_in(own.parent().unwrap()).unwrap()
    }

    #[test]
    fn a_file_is_direct_that_is_open_so() {
        let dir = beside();
        let path = dir.path().join("file");
        fs::write(&path, "text").unwrap();
        let mut options = File::options();
        options.read(true).custom_flags(libc::O_DIRECT);
        match options.open(&path) {
            Ok(file) => assert!(is_direct(file.as_raw_fd())),
            Err(why) => eprintln!("skipped: a_file_is_direct_that_is_open_so: {why}"),
        }
        let (from, _to) = std::io::pipe().unwrap();
        assert!(!is_direct(from.as_raw_fd()) && !is_direct(-1));
    }

    fn mount(kind: &str, at: &Path, flags: libc::c_ulong, options: &str) -> bool {
        let text = |text: &str| CString::new(text).unwrap();
        let (kind, options) = (text(kind), text(options));
        let at = text(at.to_str().unwrap());
        let (from, data) = (kind.as_ptr(), options.as_ptr().cast());
        // SAFETY: the strings end.
        unsafe { libc::mount(from, at.as_ptr(), kind.as_ptr(), flags, data) == 0 }
    }

    /// Whether a file is direct on an overlay over two directories, the first of which has it; none
    /// where nothing can be mounted.
    fn is_direct_over(first: &Path, over: &Path) -> Option<bool> {
        let other = over.with_file_name("other");
        fs::create_dir_all(&other).unwrap();
        fs::write(first.join("file"), "text").unwrap();
        let layers = format!("lowerdir={}:{}", first.display(), other.display());
        if !mount("overlay", over, libc::MS_RDONLY, &layers) {
            return None;
        }
        let file = File::open(over.join("file")).unwrap();
        Some(is_direct(file.as_raw_fd()))
    }

    /// Over ext4 and its like a read is no business of the arena's; over what tells nothing it is.
    #[test]
    fn overlays_over_disks_are_read_by_the_cache() {
        let name = "overlays_over_disks_are_read_by_the_cache";
        let dir = beside();
        let path = |name| {
            let path = dir.path().canonicalize().unwrap().join(name);
            fs::create_dir_all(&path).unwrap();
            path
        };
        let (disk, memory) = (path("disk"), path("memory"));
        let (over_disk, over_memory) = (path("over-disk"), path("over-memory"));
        fs::write(disk.join("file"), "text").unwrap();
        let below = File::open(disk.join("file")).unwrap();
        let is_told = told(below.as_raw_fd()) & BY_THE_CACHE != 0;
        // A thread of its own has a namespace of its own, which goes with it.
        let seen = std::thread::spawn(move || {
            let private = libc::MS_REC | libc::MS_PRIVATE;
            let none = std::ptr::null();
            // SAFETY: this thread alone is in another namespace.
            let is_own = unsafe {
                libc::unshare(libc::CLONE_NEWNS) == 0
                    && libc::mount(none, c"/".as_ptr(), none, private, none.cast()) == 0
            };
            if !is_own || !mount("tmpfs", &memory, 0, "") {
                return None;
            }
            let on_disk = is_direct_over(&disk, &over_disk)?;
            Some((on_disk, is_direct_over(&memory, &over_memory)?))
        });
        match seen.join().unwrap() {
            Some(seen) => assert_eq!(seen, (!is_told, true)),
            None => eprintln!("skipped: {name}: no overlay can be mounted"),
        }
    }
}
