//! How much of a group's limit an arena may have: what the rest of the program leaves.
//!
//! What it never does: read a file.

/// The arena has at least this part of the limit; the kernel then swaps what is outside of it.
const LEAST_ONE_IN: u64 = 8;
/// This part is left for the kernel's own; not for page cache, which the kernel drops first.
/// What is left here is missing in a loop that would fit: with a sixteenth k-means at 80 % read
/// six times as many pages.
const SPARE_ONE_IN: u64 = 64;
/// And no less than this: with 1 MiB of 50 the kernel took pages of the arena.
const SPARE_BYTES_MIN: u64 = 3 << 20;

/// Bytes that a program has in memory outside of its arena, as `memory.stat` has it; none where it
/// does not say. An arena's own memory is shared memory, and not among them.
pub(super) fn outside(stat: &str) -> Option<u64> {
    let value = |name: &str| {
        let words = |line: &str| {
            let (is, value) = line.split_once(' ')?;
            (is == name).then(|| value.trim().parse::<u64>().ok())?
        };
        stat.lines().find_map(words)
    };
    // Version 2, or version 1.
    match value("anon") {
        Some(anon) => Some(anon + value("kernel").unwrap_or(0)),
        None => value("total_rss").or(value("rss")),
    }
}

/// Bytes for an arena in a group of so many bytes, whose program has so many [`outside`].
pub(super) fn of_arena(limit_bytes: u64, outside_bytes: u64) -> u64 {
    let spare = (limit_bytes / SPARE_ONE_IN).max(SPARE_BYTES_MIN);
    let least = limit_bytes / LEAST_ONE_IN;
    limit_bytes.saturating_sub(outside_bytes + spare).max(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn of_arena(limit_bytes: u64, stat: &str) -> Option<u64> {
        outside(stat).map(|outside| super::of_arena(limit_bytes, outside))
    }

    #[test]
    fn an_arena_has_what_the_rest_leaves() {
        let stat = format!("anon {}\nfile 5\nkernel {}\nshmem 9", 30 * MIB, 10 * MIB);
        assert_eq!(of_arena(160 * MIB, &stat), Some(117 * MIB));
        let stat = format!("cache 7\nrss 1\ntotal_cache 7\ntotal_rss {}", 40 * MIB);
        assert_eq!(of_arena(160 * MIB, &stat), Some(117 * MIB));
        assert_eq!(of_arena(160 * MIB, "cache 7"), None);
    }

    #[test]
    fn it_keeps_a_part_whatever_the_rest_takes() {
        let stat = format!("anon {}", 200 * MIB);
        assert_eq!(of_arena(160 * MIB, &stat), Some(20 * MIB));
    }
}
