//! A device of blocks in virtual time: so many channels, one bus, a latency and a bandwidth each
//! way.
//!
//! A request takes a free channel, or waits for one; moves its bytes over the bus, where one goes
//! after the other and reads and writes share the time; and is done a latency later. So a device
//! with enough in flight gives its bandwidth, reads and writes slow each other in proportion to the
//! time that they take, and a lone request takes latency and transfer.
//!
//! What it never does: read a clock; know addresses, garbage collection or wear. Stalls and slow
//! hours are put in from outside ([`BlockModel::stall`], [`BlockModel::slow_down`]).
//!
//! *Thread safety*: none; who shares one locks it. *Invariants*: `done` of a request is never
//! before it was submitted; times of submission never go back.
//!
//! Source of the presets' latencies and rates: Orthus, table 1.

use crate::MediaError;
use nyx_base::{Instant, Nanos, Rng};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::path::Path;

/// A device of blocks. In a file of TOML it has these names:
///
/// ```toml
/// name = "mine"
/// channels = 32
/// read_latency_ns = 60_000
/// write_latency_ns = 15_000
/// read_bytes_per_s = 3_200_000_000
/// write_bytes_per_s = 1_100_000_000
/// spread = 0.3
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockParams {
    /// Its name.
    pub name: String,
    /// Requests that it works at together.
    pub channels: u32,
    /// From the end of a read's transfer until it is done, in ns.
    pub read_latency_ns: u64,
    /// The same of a write.
    pub write_latency_ns: u64,
    /// Bytes per second, if nothing else is asked for.
    pub read_bytes_per_s: u64,
    /// The same of writes.
    pub write_bytes_per_s: u64,
    /// Latencies are drawn from 1 - spread to 1 + spread of theirs.
    pub spread: f64,
}

const GB: u64 = 1_000_000_000;

/// Name, channels, latency in ns, read and write rate in MB/s. Latency and rates are the paper's;
/// channels are what the rates need at 4 KiB.
const PRESETS: [(&str, u32, u64, u64, u64); 5] = [
    ("dram", 8, 80, 15_000, 15_000),
    ("nvm", 8, 300, 6_800, 2_300),
    ("optane-ssd", 16, 10_000, 2_500, 2_300),
    ("nvme-flash", 64, 80_000, 3_000, 2_000),
    ("sata-flash", 32, 180_000, 500, 500),
];

/// What a preset may be divided by: the slowest has 500 B/s left.
const DIVISORS: RangeInclusive<u64> = 1..=1_000_000;
/// What parameters may be: beyond these a device of blocks does nothing in anybody's time.
const CHANNELS: RangeInclusive<u32> = 1..=65_536;
const LATENCY_MOST_NS: u64 = 1_000_000_000_000;
const RATES: RangeInclusive<u64> = 500..=1_000_000_000_000_000;

impl BlockParams {
    /// A preset by its name ([`BlockParams::preset`]), or a model of the user's own, where `spec`
    /// ends in `.toml`.
    pub fn resolve(spec: &str) -> Result<BlockParams, MediaError> {
        if !spec.ends_with(".toml") {
            return BlockParams::preset(spec);
        }
        let text = std::fs::read_to_string(spec).map_err(|source| MediaError::File {
            path: Path::new(spec).to_owned(),
            action: "read the device model",
            source,
        })?;
        let bad = |reason| MediaError::BadModel {
            origin: spec.to_owned(),
            reason,
        };
        let params: BlockParams = toml::from_str(&text).map_err(|error| bad(error.to_string()))?;
        match params.fault() {
            Some(fault) => Err(bad(fault)),
            None => Ok(params),
        }
    }

    /// What makes no sense.
    fn fault(&self) -> Option<String> {
        let latencies = [
            ("read_latency_ns", self.read_latency_ns),
            ("write_latency_ns", self.write_latency_ns),
        ];
        let rates = [
            ("read_bytes_per_s", self.read_bytes_per_s),
            ("write_bytes_per_s", self.write_bytes_per_s),
        ];
        let outside = |name: &str, value: &dyn std::fmt::Display, least: u64, most: u64| {
            format!("{name} is {value}, not from {least} to {most}")
        };
        if !CHANNELS.contains(&self.channels) {
            let (least, most) = (*CHANNELS.start(), *CHANNELS.end());
            return Some(outside(
                "channels",
                &self.channels,
                least.into(),
                most.into(),
            ));
        }
        if let Some((name, ns)) = latencies.iter().find(|(_, ns)| *ns > LATENCY_MOST_NS) {
            return Some(outside(name, ns, 0, LATENCY_MOST_NS));
        }
        if let Some((name, rate)) = rates.iter().find(|(_, rate)| !RATES.contains(rate)) {
            return Some(outside(name, rate, *RATES.start(), *RATES.end()));
        }
        (!(0.0..=1.0).contains(&self.spread)).then(|| outside("spread", &self.spread, 0, 1))
    }

    /// Names of the presets: the devices of the paper's table, fastest first.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|preset| preset.0)
    }

    /// A preset by its name; `NAME/N` has its rates divided by N, a million at most, and its
    /// latencies multiplied.
    pub fn preset(name: &str) -> Result<BlockParams, MediaError> {
        let (base, divisor) = match name.split_once('/') {
            Some((base, divisor)) => (base, divisor.parse().ok().filter(|n| DIVISORS.contains(n))),
            None => (name, Some(1)),
        };
        let preset = PRESETS.iter().find(|preset| preset.0 == base);
        let (Some(preset), Some(divisor)) = (preset, divisor) else {
            return Err(MediaError::UnknownModel {
                name: name.to_owned(),
                known: BlockParams::names().collect::<Vec<_>>().join(", "),
            });
        };
        let &(_, channels, latency_ns, read_mb, write_mb) = preset;
        let rate = |mb: u64| mb * (GB / 1000) / divisor;
        Ok(BlockParams {
            name: name.to_owned(),
            channels,
            read_latency_ns: latency_ns * divisor,
            write_latency_ns: latency_ns * divisor,
            read_bytes_per_s: rate(read_mb),
            write_bytes_per_s: rate(write_mb),
            spread: 0.3,
        })
    }

    /// Requests per second of that size that it does, with enough in flight.
    pub fn per_second(&self, is_write: bool, len_bytes: u64) -> f64 {
        let latency_ns = self.latency_ns(is_write) as f64;
        let transfer_ns = self.transfer_ns(is_write, len_bytes);
        let by_channels = f64::from(self.channels) / (latency_ns + transfer_ns);
        1e9 * by_channels.min(1.0 / transfer_ns)
    }

    /// A lone request of that size takes so long, on the mean.
    pub fn alone_ns(&self, is_write: bool, len_bytes: u64) -> f64 {
        self.latency_ns(is_write) as f64 + self.transfer_ns(is_write, len_bytes)
    }

    fn latency_ns(&self, is_write: bool) -> u64 {
        match is_write {
            true => self.write_latency_ns,
            false => self.read_latency_ns,
        }
    }

    fn transfer_ns(&self, is_write: bool, len_bytes: u64) -> f64 {
        let bytes_per_s = match is_write {
            true => self.write_bytes_per_s,
            false => self.read_bytes_per_s,
        };
        len_bytes as f64 * 1e9 / bytes_per_s as f64
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct BlockModel {
    params: BlockParams,
    /// When each channel is free again.
    channels: Vec<Instant>,
    bus: Instant,
    slowness: f64,
    rng: Rng,
}

impl BlockModel {
    /// A device that has nothing to do, with a seed for its spread.
    pub fn new(params: BlockParams, seed: u64) -> BlockModel {
        BlockModel {
            channels: vec![Instant(0); params.channels as usize],
            bus: Instant(0),
            slowness: 1.0,
            rng: Rng::with_seed(seed),
            params,
        }
    }

    /// What it is.
    pub fn params(&self) -> &BlockParams {
        &self.params
    }

    /// A request that comes now; when it is done.
    pub fn submit(&mut self, now: Instant, is_write: bool, len_bytes: u64) -> Instant {
        let free = self.channels.iter_mut().min().expect("there are channels");
        let transfer_ns = self.params.transfer_ns(is_write, len_bytes) * self.slowness;
        let drawn = 1.0 + self.params.spread * (2.0 * self.rng.f64() - 1.0);
        let latency_ns = self.params.latency_ns(is_write) as f64 * drawn * self.slowness;
        let begin = now.max(*free).max(self.bus);
        self.bus = begin + Nanos(transfer_ns.round() as u64);
        *free = self.bus + Nanos(latency_ns.round() as u64);
        *free
    }

    /// Done when everything is that came before, and a write's latency later.
    pub fn flush(&mut self, now: Instant) -> Instant {
        let last = self.channels.iter().max().expect("there are channels");
        let latency_ns = self.params.write_latency_ns as f64 * self.slowness;
        now.max(*last).max(self.bus) + Nanos(latency_ns.round() as u64)
    }

    /// Does nothing for so long from `now` on, or from when it has done what it was asked before:
    /// what is queued keeps its time, what comes from now on waits for both.
    pub fn stall(&mut self, now: Instant, length: Nanos) {
        self.bus = self.bus.max(now) + length;
    }

    /// From now on everything takes so many times as long; 1 is as it was made.
    pub fn slow_down(&mut self, times: f64) {
        self.slowness = times;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests per second with so many clients that do nothing but wait, and their mean wait in
    /// ns.
    fn closed_loop(params: &BlockParams, clients: usize, writes: &[bool]) -> (f64, f64) {
        const END: Instant = Instant(1_000_000_000);
        let mut model = BlockModel::new(params.clone(), 1);
        let mut next = vec![Instant(0); clients];
        let (mut done, mut waited) = (0u64, 0);
        loop {
            let now = next.iter_mut().min().expect("clients");
            if *now >= END {
                return (
                    done as f64 * 1e9 / END.0 as f64,
                    waited as f64 / done as f64,
                );
            }
            let ready = model.submit(*now, writes[done as usize % writes.len()], 32 << 10);
            waited += ready.since(*now).0;
            *now = ready;
            done += 1;
        }
    }

    #[test]
    fn alone_it_has_its_latency_and_with_many_its_rate() {
        for name in BlockParams::names() {
            let params = BlockParams::preset(name).expect("known");
            for is_write in [false, true] {
                let (_, wait_ns) = closed_loop(&params, 1, &[is_write]);
                let expected_ns = params.alone_ns(is_write, 32 << 10);
                assert!(
                    (wait_ns / expected_ns - 1.0).abs() < 0.02,
                    "{name}: {wait_ns}"
                );
                let (rate, _) = closed_loop(&params, 256, &[is_write]);
                let expected = params.per_second(is_write, 32 << 10);
                assert!(
                    (rate / expected - 1.0).abs() < 0.02,
                    "{name}: {rate} of {expected}"
                );
            }
        }
    }

    #[test]
    fn reads_and_writes_share_the_time_of_the_bus() {
        let params = BlockParams::preset("nvm").expect("known");
        let (rate, _) = closed_loop(&params, 64, &[false, true]);
        let each = [false, true].map(|is_write| 1.0 / params.per_second(is_write, 32 << 10));
        let expected = 2.0 / each.iter().sum::<f64>();
        assert!((rate / expected - 1.0).abs() < 0.02, "{rate} of {expected}");
    }

    #[test]
    fn it_stalls_and_slows_down_when_told_to() {
        let mut params = BlockParams::preset("optane-ssd").expect("known");
        params.spread = 0.0;
        let mut model = BlockModel::new(params.clone(), 1);
        let alone_ns = params.alone_ns(false, 4096).round() as u64;
        assert_eq!(
            model
                .submit(Instant(1000), false, 4096)
                .0
                .abs_diff(1000 + alone_ns),
            0
        );
        model.stall(Instant(100_000), Nanos(2_000_000_000));
        let done = model.submit(Instant(200_000), false, 4096);
        assert!(done.0.abs_diff(2_000_100_000 + alone_ns) <= 1, "{done:?}");
        // A device with much to do is as late as one with nothing.
        let mut busy = [
            BlockModel::new(params.clone(), 1),
            BlockModel::new(params.clone(), 1),
        ];
        busy[1].submit(Instant(0), false, 100 << 20);
        busy[0].submit(Instant(0), false, 100 << 20);
        busy[1].stall(Instant(0), Nanos(1_000_000));
        let [usual, late] = busy.map(|mut model| model.submit(Instant(0), false, 4096));
        assert_eq!(late.0 - usual.0, 1_000_000);
        model.slow_down(3.0);
        let done = model.submit(Instant(3_000_000_000), false, 4096);
        assert!(
            done.0.abs_diff(3_000_000_000 + 3 * alone_ns) <= 3,
            "{done:?}"
        );
        assert!(model.flush(Instant(3_000_000_000)) > done);
        let mut idle = BlockModel::new(params.clone(), 1);
        idle.slow_down(2.0);
        idle.stall(Instant(0), Nanos(1000));
        assert_eq!(idle.flush(Instant(0)).0, 1000 + 2 * params.write_latency_ns);
    }

    #[test]
    fn a_name_may_have_a_divisor_and_must_be_known() {
        let eighth = BlockParams::preset("nvme-flash/8").expect("known");
        assert_eq!(eighth.read_bytes_per_s, 375_000_000);
        assert_eq!(eighth.read_latency_ns, 640_000);
        for name in ["tape", "dram/0", "dram/x", "sata-flash/1000001"] {
            let refused = BlockParams::preset(name).expect_err("unknown").to_string();
            assert!(
                refused.contains(name) && refused.contains("sata-flash"),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_file_is_a_device_where_it_makes_sense() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("mine.toml");
        let spec = path.to_str().expect("text");
        assert!(BlockParams::resolve(spec).is_err(), "it is not there");
        let mut mine = BlockParams::preset("nvme-flash").expect("known");
        mine.name = "mine".to_owned();
        let resolved = |params: &BlockParams| {
            let text = toml::to_string(params).expect("TOML");
            std::fs::write(&path, text).expect("room");
            BlockParams::resolve(spec)
        };
        assert_eq!(resolved(&mine).expect("sound"), mine);
        let refused = |name: &str, change: fn(&mut BlockParams)| {
            let mut params = mine.clone();
            change(&mut params);
            let told = resolved(&params).expect_err(name).to_string();
            assert!(told.contains(name) && told.contains("mine.toml"), "{told}");
        };
        refused("channels is 0", |params| params.channels = 0);
        refused("read_latency_ns", |params| {
            params.read_latency_ns = u64::MAX / 2
        });
        refused("write_bytes_per_s is 0", |params| {
            params.write_bytes_per_s = 0
        });
        refused("spread is 1.5", |params| params.spread = 1.5);
        refused("spread is NaN", |params| params.spread = f64::NAN);
        std::fs::write(&path, "name = \"mine\"").expect("room");
        let told = BlockParams::resolve(spec).expect_err("a part").to_string();
        assert!(told.contains("channels"), "{told}");
        assert_eq!(
            BlockParams::resolve("dram/8").expect("known"),
            BlockParams::preset("dram/8").expect("known")
        );
    }
}
