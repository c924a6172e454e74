//! How long this machine's DRAM takes, and how much of its caches a thread has: what
//! [`super::Distant`] is set by.

use crate::pmem::{Dram, Pmem};
use crate::prim::LINE_BYTES;
use crate::{MediaError, TscClock};
use nyx_base::Clock;
use std::fs::read_to_string;
use std::sync::atomic::Ordering::Relaxed;

/// Eight times the largest last-level cache that is common, on 2 MiB pages where there are any.
const LINES: u64 = 1 << 22;
const STEPS: u64 = 1 << 20;
const ROUNDS: usize = 5;

/// The latency of a read of one line at random that depends on the one before, in nanoseconds; the
/// median of five rounds, in wall time.
pub fn dram_ns(clock: &TscClock) -> Result<f64, MediaError> {
    let line_bytes = LINE_BYTES as u64;
    let memory = Dram::new(LINES * line_bytes)?;
    let word = |line: u64| &memory.words(line * line_bytes, 1)[0];
    // One cycle through all lines: an odd step, a factor of the form 4k + 1 (Hull and Dobell).
    for line in 0..LINES {
        let next = line.wrapping_mul(0x5851_f42d).wrapping_add(0x14057) % LINES;
        memory.store(word(line), next);
    }
    let mut line = 0;
    let mut rounds = [0.0; ROUNDS];
    for round in &mut rounds {
        let begin = clock.now();
        (0..STEPS).for_each(|_| line = word(line).load(Relaxed));
        *round = clock.now().since(begin).0 as f64 / STEPS as f64;
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[ROUNDS / 2])
}

/// A thread's part of the last-level cache, in bytes, where the kernel tells: the cache by the
/// number of processors that share it.
pub fn cache_share_bytes() -> Option<u64> {
    let of = |file: &str| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index3/{file}");
        read_to_string(path).ok()
    };
    let kib: u64 = of("size")?.trim().strip_suffix('K')?.parse().ok()?;
    let sharers: u32 = (of("shared_cpu_map")?.trim().split(','))
        .map(|word| u32::from_str_radix(word, 16).map(u32::count_ones))
        .sum::<Result<u32, _>>()
        .ok()?;
    (kib * 1024).checked_div(sharers.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chase_passes_every_line_once() {
        let (mut line, mut steps) = (0u64, 0u64);
        loop {
            line = line.wrapping_mul(0x5851_f42d).wrapping_add(0x14057) % LINES;
            steps += 1;
            if line == 0 {
                break;
            }
        }
        assert_eq!(steps, LINES);
    }
}
