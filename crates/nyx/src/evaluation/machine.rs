//! The machine that an evaluation was made on, as far as it explains figures.
//!
//! What it never does: fail. What the system does not tell is left out.

use serde::Serialize;
use std::fs::read_to_string;
use std::path::Path;

/// See the module.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Processors that this process may use.
    pub cpus: usize,
    /// The size of the largest cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_bytes: Option<u64>,
    /// The size of the memory.
    pub memory_bytes: u64,
    /// The kernel and its release.
    pub kernel: String,
    /// Tasks that ran or wanted to before it began, a mean over a minute.
    pub load: f64,
}

/// Binary digits after the point in the kernel's load.
const LOAD_BITS: u32 = 16;

impl Machine {
    /// This one, now.
    pub fn here() -> Machine {
        let (system, kernel) = (rustix::system::sysinfo(), rustix::system::uname());
        let words = [kernel.sysname(), kernel.release()].map(|word| word.to_string_lossy());
        Machine {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cache_bytes: cache_bytes(Path::new("/sys/devices/system/cpu/cpu0/cache")),
            memory_bytes: system.totalram * u64::from(system.mem_unit),
            kernel: words.join(" "),
            load: system.loads[0] as f64 / f64::from(1 << LOAD_BITS),
        }
    }
}

/// The largest of the caches that Linux tells of there.
fn cache_bytes(directory: &Path) -> Option<u64> {
    let entries = std::fs::read_dir(directory).ok()?;
    let size = |entry: std::fs::DirEntry| {
        let text = read_to_string(entry.path().join("size")).ok()?;
        let kib: u64 = text.trim().strip_suffix('K')?.parse().ok()?;
        Some(kib << 10)
    };
    entries.flatten().filter_map(size).max()
}

/// The filesystem that holds a directory, and what it is on: `ext4 on /dev/sda1`.
pub fn filesystem(directory: &Path) -> Option<String> {
    let whole = directory.canonicalize().ok()?;
    mounted(&whole, &read_to_string("/proc/self/mounts").ok()?)
}

fn mounted(path: &Path, mounts: &str) -> Option<String> {
    let holder = |line: &str| {
        let mut words = line.split(' ');
        let (on, at, kind) = (words.next()?, words.next()?, words.next()?);
        let depth = Path::new(at).components().count();
        path.starts_with(at)
            .then(|| (depth, format!("{kind} on {on}")))
    };
    // Of several on one place the last hides the others.
    let holders = mounts.lines().filter_map(holder);
    holders
        .max_by_key(|(depth, _)| *depth)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_holds_a_path() {
        let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/b /tmp/x xfs rw 0 0\n";
        let of = |path: &str| mounted(Path::new(path), mounts);
        assert_eq!(of("/home").as_deref(), Some("ext4 on /dev/a"));
        assert_eq!(of("/tmp/y").as_deref(), Some("tmpfs on tmpfs"));
        assert_eq!(of("/tmp/x/z").as_deref(), Some("xfs on /dev/b"));
        assert_eq!(of("/tmp/xy").as_deref(), Some("tmpfs on tmpfs"));
        assert_eq!(mounted(Path::new("/"), ""), None);
    }

    #[test]
    fn caches_are_read_as_linux_writes_them() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(cache_bytes(directory.path()), None);
        for (name, size) in [("index0", "32K\n"), ("index3", "32768K\n"), ("index9", "?")] {
            let of = directory.path().join(name);
            std::fs::create_dir(&of).expect("a directory");
            std::fs::write(of.join("size"), size).expect("a file");
        }
        assert_eq!(cache_bytes(directory.path()), Some(32 << 20));
    }

    #[test]
    fn this_machine_has_a_processor_memory_and_a_kernel() {
        let here = Machine::here();
        assert!(here.cpus > 0 && here.memory_bytes > 1 << 20 && here.load >= 0.0);
        assert!(here.kernel.contains('.'), "{}", here.kernel);
    }
}
