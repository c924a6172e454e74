//! What is run, in which order.
//!
//! What it never does: run it.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Program {
    /// 1 GiB of random integers, sorted.
    Sort,
    /// PageRank of 7.5 million edges.
    Pagerank,
    /// scikit-learn's k-means of 1.5 million points of 24 dimensions.
    Kmeans,
    /// LAPACK's dense LU of 15,000 rows, 1.8 GB.
    Lu,
    /// ONNX Runtime, a network of 377 MB of random weights.
    Inference,
    /// 100 MiB, page by page in random order.
    TouchRandom,
    /// 100 MiB, page by page in order.
    TouchInOrder,
}

/// Who runs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runs {
    /// An example of this crate.
    Example(&'static str),
    /// Python, `programs/numeric.py`.
    Python,
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Device {
    /// Compressed memory.
    Zram,
    /// A file in the target directory.
    Disk,
    /// A loop device on a file in memory.
    Loop,
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Engine {
    /// No limit that is felt; what others are compared with.
    #[value(skip)]
    Unlimited,
    /// The kernel alone.
    Linux,
    /// The kernel alone, with a program that waits instead of being killed.
    LinuxWait,
    /// The kernel's swap with the reclaimer.
    Kernel,
    /// The program itself, through the preload library; what that does not reach by the kernel
    /// alone.
    Uffd,
    /// The same with its pages copied to memory outside of the limit: what any device would be
    /// compared with.
    Ideal,
}

/// What results can be compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Kind {
    pub(crate) program: Program,
    pub(crate) scale: u32,
    /// That the program computes with.
    #[serde(default = "one")]
    pub(crate) threads: u32,
    pub(crate) build: String,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Key {
    #[serde(flatten)]
    pub(crate) kind: Kind,
    pub(crate) device: Device,
    pub(crate) ratio_percent: u8,
    pub(crate) engine: Engine,
    pub(crate) round: u32,
}

impl Program {
    pub(crate) const ALL: [Program; 7] = [
        Program::Sort,
        Program::Pagerank,
        Program::Kmeans,
        Program::Lu,
        Program::Inference,
        Program::TouchRandom,
        Program::TouchInOrder,
    ];

    /// Whether it can compute with more threads than one.
    pub(crate) fn has_threads(self) -> bool {
        !matches!(self, Program::TouchRandom | Program::TouchInOrder)
    }
}

impl Kind {
    /// Who runs it, and what that is told.
    pub(crate) fn command(&self) -> (Runs, Vec<String>) {
        let (scale, threads) = (self.scale.to_string(), self.threads.to_string());
        let (name, mib) = (name(self.program), (100 / self.scale).max(1).to_string());
        let computes = vec!["--scale", &scale, "--threads", &threads, &name];
        let (runs, words) = match self.program {
            Program::Sort | Program::Pagerank => (Runs::Example("programs"), computes),
            Program::Kmeans | Program::Lu | Program::Inference => (Runs::Python, computes),
            Program::TouchRandom => (Runs::Example("touch"), vec![&*mib, "random"]),
            Program::TouchInOrder => (Runs::Example("touch"), vec![&*mib, "sequential"]),
        };
        (runs, words.into_iter().map(str::to_owned).collect())
    }
}

impl Engine {
    pub(crate) const ALL: [Engine; 5] = [
        Engine::Linux,
        Engine::LinuxWait,
        Engine::Kernel,
        Engine::Uffd,
        Engine::Ideal,
    ];

    /// Whether the program pages for itself.
    pub(crate) fn has_arena(self) -> bool {
        matches!(self, Engine::Uffd | Engine::Ideal)
    }

    /// What `nyx swap run` is told: `--engine`, `--pool` and `--oom`.
    pub(crate) fn flags(self) -> [&'static str; 6] {
        let [engine, pool, oom] = match self {
            Engine::Unlimited | Engine::LinuxWait => ["kernel", "off", "wait"],
            Engine::Linux => ["kernel", "off", "kill"],
            Engine::Kernel => ["kernel", "auto", "wait"],
            Engine::Uffd | Engine::Ideal => ["uffd", "off", "wait"],
        };
        ["--engine", engine, "--pool", pool, "--oom", oom]
    }
}

impl Key {
    /// The run without a limit. Its device holds nothing; there has to be one.
    pub(crate) fn unlimited(kind: Kind, devices: &[Device]) -> Key {
        let has_zram = devices.contains(&Device::Zram);
        Key {
            kind,
            device: if has_zram { Device::Zram } else { Device::Disk },
            ratio_percent: 100,
            engine: Engine::Unlimited,
            round: 0,
        }
    }
}

/// Runs of one program on one device: the engines take turns within each ratio, each second time
/// the other way round, so that none is always the one that comes after another.
pub(crate) fn turns(
    kind: &Kind,
    device: Device,
    ratios: &[u8],
    rounds: u32,
    engines: &[Engine],
) -> Vec<Key> {
    let mut keys = Vec::new();
    for &ratio_percent in ratios {
        for round in 1..=rounds {
            let mut engines = engines.to_vec();
            if round % 2 == 0 {
                engines.reverse();
            }
            keys.extend(engines.into_iter().map(|engine| Key {
                kind: kind.clone(),
                device,
                ratio_percent,
                engine,
                round,
            }));
        }
    }
    keys
}

/// Rows of logs from before there were more.
fn one() -> u32 {
    1
}

/// As it is written on the command line and in the log.
fn name(value: impl Serialize) -> String {
    let value = serde_json::to_value(value).expect("a name can be written");
    value.as_str().unwrap_or_default().to_owned()
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&name(self))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&name(self))
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&name(self))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, device, ratio) = (&self.kind, self.device, self.ratio_percent);
        let (engine, round) = (self.engine, self.round);
        write!(f, "{kind}, {device}, {ratio} %, {engine}, round {round}")
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.program)?;
        if self.scale > 1 {
            write!(f, " / {}", self.scale)?;
        }
        if self.threads > 1 {
            write!(f, " by {} threads", self.threads)?;
        }
        match self.build.as_str() {
            "release" => Ok(()),
            build => write!(f, " ({build})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_take_turns_within_a_ratio() {
        let kind = Kind {
            program: Program::Sort,
            scale: 1,
            threads: 1,
            build: "release".to_owned(),
        };
        let engines = [Engine::Linux, Engine::Kernel];
        let keys = turns(&kind, Device::Zram, &[80, 20], 2, &engines);
        let order: Vec<_> = keys
            .iter()
            .map(|key| (key.ratio_percent, key.round, key.engine))
            .collect();
        let (a, b) = (Engine::Linux, Engine::Kernel);
        assert_eq!(order[..4], [(80, 1, a), (80, 1, b), (80, 2, b), (80, 2, a)]);
        assert_eq!(order[4..], [(20, 1, a), (20, 1, b), (20, 2, b), (20, 2, a)]);
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        for program in Program::ALL {
            assert_eq!(Program::from_str(&program.to_string(), false), Ok(program));
        }
        for engine in Engine::ALL {
            assert_eq!(Engine::from_str(&engine.to_string(), false), Ok(engine));
        }
    }

    #[test]
    fn a_kind_is_what_a_program_is_told_and_what_is_written() {
        let old = r#"{"program": "lu", "scale": 4, "build": "release"}"#;
        let kind: Kind = serde_json::from_str(old).unwrap();
        assert_eq!(kind.to_string(), "lu / 4");
        let (runs, words) = kind.command();
        assert_eq!(runs, Runs::Python);
        assert_eq!(words, ["--scale", "4", "--threads", "1", "lu"]);
        let kind = Kind { threads: 2, ..kind };
        assert_eq!(kind.to_string(), "lu / 4 by 2 threads");
        assert_eq!(kind.command().1[2..4], ["--threads", "2"]);
        let touch = Kind {
            program: Program::TouchInOrder,
            ..kind
        };
        assert_eq!(touch.command().1, ["25", "sequential"]);
    }
}
