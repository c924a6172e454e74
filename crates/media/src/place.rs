//! Where files lie.

use rustix::fs::statfs;
use std::path::Path;

/// What statfs(2) calls tmpfs and ramfs.
const MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Whether a file or directory lies in memory (tmpfs, ramfs), so that what is written there takes
/// some and is gone with the machine. False of what is not there.
pub fn is_in_memory(path: &Path) -> bool {
    #[allow(clippy::unnecessary_cast, reason = "it has other types elsewhere")]
    statfs(path).is_ok_and(|system| MEMORY.contains(&(system.f_type as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_memory_and_what_the_kernel_tells_is_not() {
        assert!(!is_in_memory(Path::new("/proc")));
        assert!(!is_in_memory(Path::new("/proc/none")));
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        match mounts.lines().any(|line| line.contains(" /dev/shm tmpfs ")) {
            true => assert!(is_in_memory(Path::new("/dev/shm"))),
            false => eprintln!("skipped tmpfs: /dev/shm is none here"),
        }
    }
}
