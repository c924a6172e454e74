//! The one table of knobs. The TOML file, the flags, the environment, `nyx knobs` and
//! `docs/knobs.md` are all made from [`KNOBS`]; nothing else knows a knob's name or range.
//!
//! What it never does: hold a value. Values live in layers and end up in the `Config`.

use super::value::{Kind, Value};
use std::fmt;

/// One thing that a user can set.
#[derive(Debug)]
pub struct Knob {
    /// Its table in the file.
    pub section: Section,
    /// Its key in the file. Where the value is a bare number, the unit stands last.
    pub name: &'static str,
    /// What its values are, with their range.
    pub kind: Kind,
    /// What holds where nobody sets it.
    pub fallback: Fallback,
    /// The section of the NyxCache paper that it comes from; empty where it is ours.
    pub paper: &'static str,
    /// What it does, one or two sentences.
    pub doc: &'static str,
}

/// The tables of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// `[server]`
    Server,
    /// `[policy]`
    Policy,
    /// `[[device]]`, any number of them
    Device,
    /// `[[group]]`, any number of them
    Group,
    /// `[[tenant]]`, any number of them
    Tenant,
}

/// What holds where nobody sets a knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// This text, read like any other value.
    Is(&'static str),
    /// Nothing; the words say what that means.
    Unset(&'static str),
}

impl Section {
    /// All sections in the order in which people read about them.
    pub const ALL: [Section; 5] = [
        Section::Server,
        Section::Policy,
        Section::Device,
        Section::Group,
        Section::Tenant,
    ];

    /// The section's key in the file.
    pub fn name(self) -> &'static str {
        match self {
            Section::Server => "server",
            Section::Policy => "policy",
            Section::Device => "device",
            Section::Group => "group",
            Section::Tenant => "tenant",
        }
    }

    /// Whether a file may have several of it.
    pub fn is_list(self) -> bool {
        matches!(self, Section::Device | Section::Group | Section::Tenant)
    }

    /// Whether its knobs have flags and variables too: which of several groups is meant only a file
    /// can say.
    pub fn has_flags(self) -> bool {
        self != Section::Group
    }

    /// Its knobs in table order.
    pub fn knobs(self) -> impl Iterator<Item = &'static Knob> {
        KNOBS.iter().filter(move |knob| knob.section == self)
    }
}

impl Knob {
    /// The knob of this name in a section. Panics where there is none: names are written in code.
    pub fn named(section: Section, name: &str) -> &'static Knob {
        let found = section.knobs().find(|knob| knob.name == name);
        found.unwrap_or_else(|| panic!("the table has no knob {}.{name}", section.name()))
    }

    /// The long flag without its dashes: `workers`, `tenant-size`.
    pub fn flag(&self) -> String {
        let name = self.name.replace('_', "-");
        match self.section {
            Section::Server => name,
            section => format!("{}-{name}", section.name()),
        }
    }

    /// The environment variable: `NYX_WORKERS`, `NYX_TENANT_SIZE`.
    pub fn env(&self) -> String {
        format!("NYX_{}", self.flag().replace('-', "_").to_ascii_uppercase())
    }

    /// The default as a value.
    pub fn fallback_value(&self) -> Option<Value> {
        match self.fallback {
            Fallback::Unset(_) => None,
            Fallback::Is(text) => Some(
                self.kind
                    .parse(&[text.to_string()])
                    .expect("a test parses every default of the table"),
            ),
        }
    }
}

/// Shows the knob as the file nests it, `tenant.size`.
impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.section.name(), self.name)
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

/// The policies there are.
const KINDS: &[&str] = &[
    "none",
    "limit",
    "qos",
    "slowdown",
    "share",
    "partition",
    "bytes",
    "ops",
    "caladan",
    "memguard",
];

/// Who carries out requests to a device of blocks.
const IO: &[&str] = &[
    "auto",
    "io_uring",
    "polled",
    "kernel-thread",
    "threads",
    "calls",
];
/// Where new values go of two devices.
const WRITE: &[&str] = &["back", "through", "around"];

// On which terms a tenant or a group takes part: the same knobs for both.

const fn weight(section: Section) -> Knob {
    Knob {
        section,
        name: "weight",
        kind: Kind::Number {
            min: 0.001,
            max: 1000.0,
        },
        fallback: Fallback::Is("1"),
        paper: "3.4",
        doc: "Its weight against its siblings': of the device's time under share and \
              partition, and of its second tier's; of slowdown under slowdown, where 2 may be \
              slowed twice as much as 1.",
    }
}

const fn min(section: Section) -> Knob {
    Knob {
        section,
        name: "min",
        kind: Kind::Limit,
        fallback: Fallback::Is("none"),
        paper: "3.4",
        doc: "What no policy takes from it, as limit; refused where the sum on a device or in \
              a group is more than there is.",
    }
}

const fn limit(section: Section) -> Knob {
    Knob {
        section,
        name: "limit",
        kind: Kind::Limit,
        fallback: Fallback::Is("none"),
        paper: "3.4",
        doc: "What it may use of its device: \"250000 std-ops/s\" (1 KiB random reads of this \
              device), \"42%\" of the device's time, or none. Under limit, qos, slowdown and \
              share; qos and slowdown keep it on the second of its tiers too. bytes and ops take \
              it as a rate of theirs.",
    }
}

const fn burst(section: Section) -> Knob {
    Knob {
        section,
        name: "burst",
        kind: Kind::Time {
            min_ns: 0,
            max_ns: 60_000_000_000,
        },
        fallback: Fallback::Is("0s"),
        paper: "",
        doc: "For how long it may save up what it did not use of its limit, to use it at once; \
              with 0s it never exceeds the limit by more than 1 % of the device in 100 ms.",
    }
}

const fn slowdown_limit(section: Section) -> Knob {
    Knob {
        section,
        name: "slowdown_limit",
        kind: Kind::Number {
            min: 1.0,
            max: 1000.0,
        },
        fallback: Fallback::Unset("none"),
        paper: "3.4",
        doc: "Under the policy slowdown: how many times slower than alone it may get at most; \
              it is then left out of the equalisation and the others are throttled for it.",
    }
}

const fn target(section: Section) -> Knob {
    Knob {
        section,
        name: "target",
        kind: Kind::Target,
        fallback: Fallback::Is("none"),
        paper: "3.4",
        doc: "Under the policy qos, what its requests are promised, from when the server has \
              read them to when they are answered: \"p99 2ms\", \"mean 500us\", \"ops 20000\" \
              (device accesses a second), or none for best effort.",
    }
}

const fn clients(section: Section) -> Knob {
    Knob {
        section,
        name: "clients",
        kind: Kind::Choice(&["open", "closed"]),
        fallback: Fallback::Is("open"),
        paper: "3.3",
        doc: "How a slowdown is told under slowdown and share: open compares latencies, closed the \
              accesses a second of clients that wait for each answer.",
    }
}

/// Every knob there is.
pub static KNOBS: &[Knob] = &[
    Knob {
        section: Section::Server,
        name: "listen",
        kind: Kind::Addresses,
        fallback: Fallback::Is("127.0.0.1:11211"),
        paper: "",
        doc: "Addresses of the doors shared by all tenants that have no listener of their own: \
              IP:PORT, a bare port of 127.0.0.1, or unix:PATH.",
    },
    Knob {
        section: Section::Server,
        name: "data_dir",
        kind: Kind::Path,
        fallback: Fallback::Is("nyx-data"),
        paper: "",
        doc: "Directory of media files and profiles that do not say where they are; made when \
              missing.",
    },
    Knob {
        section: Section::Server,
        name: "image_dir",
        kind: Kind::Path,
        fallback: Fallback::Unset("data_dir"),
        paper: "",
        doc: "Directory of the images of tenants with a durability; made when missing. An image \
              grows with its tenant, up to twice its size. On tmpfs (/dev/shm) it costs no writes \
              to a disk and survives the process, but not the machine.",
    },
    Knob {
        section: Section::Server,
        name: "journal_dir",
        kind: Kind::Path,
        fallback: Fallback::Unset("data_dir"),
        paper: "",
        doc: "Directory of the journals of tenants with a sync, one directory each; made when \
              missing. It has to be on a disk, unlike images and data files. A journal grows to \
              two to three times what its tenant holds, and four files of 4 to 64 MiB. A tenant \
              without a sync has its journal removed.",
    },
    Knob {
        section: Section::Server,
        name: "workers",
        kind: Kind::Count {
            unit: "threads",
            min: 0,
            max: 256,
        },
        fallback: Fallback::Is("0"),
        paper: "",
        doc: "Data-path threads; 0 takes one per CPU.",
    },
    Knob {
        section: Section::Server,
        name: "pin_workers",
        kind: Kind::Switch,
        fallback: Fallback::Is("false"),
        paper: "",
        doc: "Pins each worker to a CPU of its own.",
    },
    Knob {
        section: Section::Server,
        name: "record_latencies",
        kind: Kind::Switch,
        fallback: Fallback::Is("true"),
        paper: "",
        doc: "Records how long every request takes, for `nyx top` and `stats latencies`; false \
              leaves that to tenants whose policy looks at their latencies.",
    },
    Knob {
        section: Section::Server,
        name: "max_connections",
        kind: Kind::Count {
            unit: "connections",
            min: 1,
            max: 1_000_000,
        },
        fallback: Fallback::Is("16384"),
        paper: "",
        doc: "Connections beyond this many are answered with an error and closed.",
    },
    Knob {
        section: Section::Server,
        name: "max_tenants",
        kind: Kind::Count {
            unit: "tenants",
            min: 1,
            max: 65_535,
        },
        fallback: Fallback::Is("1024"),
        paper: "",
        doc: "How many tenants there may be, those included that are added to the file and taken \
              in by SIGHUP; each costs a few bytes for every worker before it is there.",
    },
    Knob {
        section: Section::Server,
        name: "idle_timeout_s",
        kind: Kind::Count {
            unit: "s",
            min: 0,
            max: 31_536_000,
        },
        fallback: Fallback::Is("0"),
        paper: "",
        doc: "A connection that was silent for so long is closed; 0 never closes one.",
    },
    Knob {
        section: Section::Server,
        name: "backlog",
        kind: Kind::Count {
            unit: "connections",
            min: 1,
            max: 65_535,
        },
        fallback: Fallback::Is("1024"),
        paper: "",
        doc: "Connections that may wait for accept on each listener.",
    },
    Knob {
        section: Section::Server,
        name: "unix_mode",
        kind: Kind::Mode,
        fallback: Fallback::Is("0700"),
        paper: "",
        doc: "Permission bits of unix sockets, octal.",
    },
    Knob {
        section: Section::Policy,
        name: "kind",
        kind: Kind::Choice(KINDS),
        fallback: Fallback::Is("limit"),
        paper: "3.4, 4",
        doc: "Who may use how much of a device. none meters and never holds; limit keeps \
              tenants below their limits; qos does so too and throttles whoever makes a tenant \
              with a target miss it; slowdown makes all equally slower than alone, or in the \
              proportion of their weights; share gives each its weight of the device's time \
              and lends what is idle. For comparison: partition lends nothing, bytes and ops \
              take limits as byte and operation rates, caladan and memguard throttle by \
              bandwidth.",
    },
    Knob {
        section: Section::Policy,
        name: "mode",
        kind: Kind::Choice(&["nyx", "paper"]),
        fallback: Fallback::Is("nyx"),
        paper: "3.4",
        doc: "nyx takes limits from exact leases, and steps as large as they must be; paper \
              follows the algorithms as printed, with their ticks, epochs and fixed steps.",
    },
    Knob {
        section: Section::Policy,
        name: "tick_ms",
        kind: Kind::Count {
            unit: "ms",
            min: 1,
            max: 1_000,
        },
        fallback: Fallback::Is("10"),
        paper: "3.6",
        doc: "Time between two looks of limit in mode paper, and of share (TickLen).",
    },
    Knob {
        section: Section::Policy,
        name: "epoch_ticks",
        kind: Kind::Count {
            unit: "ticks",
            min: 1,
            max: 10_000,
        },
        fallback: Fallback::Unset("100; 10 for share"),
        paper: "3.6",
        doc: "Ticks per epoch of limit in mode paper, and of share (EpochLen).",
    },
    Knob {
        section: Section::Policy,
        name: "window_ms",
        kind: Kind::Count {
            unit: "ms",
            min: 10,
            max: 60_000,
        },
        fallback: Fallback::Is("500"),
        paper: "3.6",
        doc: "The longest that qos looks before it judges; in mode nyx it judges as soon as it \
              has seen enough requests.",
    },
    Knob {
        section: Section::Policy,
        name: "experiment_step",
        kind: Kind::Limit,
        fallback: Fallback::Is("4%"),
        paper: "3.6",
        doc: "How much a candidate pays in an experiment of qos, as a part of what the device \
              reads (ExperimentStep; 500 MB/s in the paper).",
    },
    Knob {
        section: Section::Policy,
        name: "trials",
        kind: Kind::Choice(&["in-turn", "at-once"]),
        fallback: Fallback::Is("in-turn"),
        paper: "3.3",
        doc: "How an experiment of qos tries its candidates: in-turn throttles one after another; \
              at-once throttles each by a pattern of its own (lock-in), which tells small harm \
              from noise better, withholds more, and takes longer where candidates catch up.",
    },
    Knob {
        section: Section::Policy,
        name: "slack_percent",
        kind: Kind::Count {
            unit: "percent",
            min: 1,
            max: 90,
        },
        fallback: Fallback::Is("20"),
        paper: "3.4",
        doc: "With so much slack to every target qos takes throttles back, and may throttle a \
              tenant that has a target of its own.",
    },
    Knob {
        section: Section::Policy,
        name: "candidates",
        kind: Kind::Count {
            unit: "tenants",
            min: 1,
            max: 16,
        },
        fallback: Fallback::Is("3"),
        paper: "3.3",
        doc: "How many of those that press the device most an experiment of qos tries.",
    },
    Knob {
        section: Section::Policy,
        name: "unfairness",
        kind: Kind::Number {
            min: 1.005,
            max: 10.0,
        },
        fallback: Fallback::Is("1.05"),
        paper: "3.4",
        doc: "The largest slowdown over the smallest that slowdown tolerates \
              (UnfairnessThreshold).",
    },
    Knob {
        section: Section::Policy,
        name: "donation",
        kind: Kind::Choice(&["aware", "naive"]),
        fallback: Fallback::Is("aware"),
        paper: "3.4",
        doc: "What share does with what a tenant leaves idle: aware lends it as long as the lender \
              stays within its time-sharing bound (Option 2); naive lends all of it (Option 1), \
              which a borrower that writes abuses.",
    },
    Knob {
        section: Section::Policy,
        name: "donate_step_percent",
        kind: Kind::Count {
            unit: "percent",
            min: 1,
            max: 100,
        },
        fallback: Fallback::Is("10"),
        paper: "3.4",
        doc: "How much of what it has an idle tenant lends at a time under share in mode paper \
              (DonateStep); in mode nyx steps follow from the distance.",
    },
    Knob {
        section: Section::Policy,
        name: "pause",
        kind: Kind::Time {
            min_ns: 100_000,
            max_ns: 100_000_000,
        },
        fallback: Fallback::Is("1ms"),
        paper: "4.1",
        doc: "How long all others pause so that a tenant can be seen alone, under slowdown and \
              share.",
    },
    Knob {
        section: Section::Policy,
        name: "refresh",
        kind: Kind::Time {
            min_ns: 10_000_000,
            max_ns: 3_600_000_000_000,
        },
        fallback: Fallback::Is("1s"),
        paper: "3.3, 4.1",
        doc: "How old that may be in mode paper; in mode nyx it is measured when the workload \
              changes.",
    },
    Knob {
        section: Section::Policy,
        name: "oversubscribe",
        kind: Kind::Switch,
        fallback: Fallback::Is("false"),
        paper: "3.4",
        doc: "Starts even where tenants are guaranteed more than there is, or promised what the \
              profile says cannot be kept; guarantees then hold as long as not everybody asks \
              for theirs, and such promises are warned of.",
    },
    Knob {
        section: Section::Device,
        name: "name",
        kind: Kind::Name,
        fallback: Fallback::Is("main"),
        paper: "",
        doc: "Names the device; unique.",
    },
    Knob {
        section: Section::Device,
        name: "kind",
        kind: Kind::Choice(&["anon", "file", "dax", "paged", "block"]),
        fallback: Fallback::Is("file"),
        paper: "",
        doc: "anon is memory that is gone with the process, file a mapped file, dax persistent or \
              CXL memory through a DAX file or device, paged memory of which only a part is in \
              DRAM (docs/swap.md, \"Paged devices\"); these are mapped, and hold a tenant alone. \
              block is a file or a raw block device, read and written past the page cache: the \
              second of a tenant's tiers.",
    },
    Knob {
        section: Section::Device,
        name: "path",
        kind: Kind::Path,
        fallback: Fallback::Unset(
            "for a file: DATA_DIR/NAME.media; for block: DATA_DIR/NAME.deep; for paged: DATA_DIR",
        ),
        paper: "",
        doc: "The file or device node. A raw block device is taken over when its first 4 KiB are \
              zero or Nyx's own; whatever else is there is refused and stays. Of kind paged it is \
              where pages go: a directory, for a file without a name that is as large as the \
              device and goes with the process; or a file or raw block device whose first 128 KiB \
              are zero, which is overwritten behind them.",
    },
    Knob {
        section: Section::Device,
        name: "size",
        kind: Kind::Bytes {
            min: 4 * MIB,
            max: 64 * TIB,
            power_of_two: false,
        },
        fallback: Fallback::Unset("1GiB; of a raw block device all"),
        paper: "",
        doc: "How much of the medium Nyx uses; a file is made this large at once.",
    },
    Knob {
        section: Section::Device,
        name: "memory",
        kind: Kind::Bytes {
            min: 64 * KIB,
            max: 64 * TIB,
            power_of_two: false,
        },
        fallback: Fallback::Unset("kind paged must have it; no other has it"),
        paper: "",
        doc: "How much of a device of kind paged may be in DRAM; what was used longest ago is at \
              path. Some 4 MiB of buffers, and some 20 bytes for each 4 KiB of size, come on top.",
    },
    Knob {
        section: Section::Device,
        name: "io",
        kind: Kind::Choice(IO),
        fallback: Fallback::Is("auto"),
        paper: "",
        doc: "Who carries out requests to a device of kind block. auto: io_uring where it is \
              allowed, threads elsewhere; polled spins for completions where the device has poll \
              queues; kernel-thread has a thread of the kernel take requests, for machines with \
              processors to spare; calls has the worker itself carry them out, for devices \
              that are done within a call, as zram.",
    },
    Knob {
        section: Section::Device,
        name: "model",
        kind: Kind::Text,
        fallback: Fallback::Unset("the bare medium"),
        paper: "2.2.1",
        doc: "A device model laid over the medium in real time: optane-2dimm, optane-2dimm/8, cxl, \
              ull-ssd, flash, or a parameter file; over a device of kind block dram, nvm, \
              optane-ssd, nvme-flash, sata-flash, or one of them with its rates divided \
              (nvme-flash/8). Its figures count as emulated.",
    },
    Knob {
        section: Section::Device,
        name: "profile",
        kind: Kind::Path,
        fallback: Fallback::Unset("DATA_DIR/NAME.profile.toml"),
        paper: "3.3",
        doc: "The MaxIOPS profile; made on first start, and by nyx profile. That of a device of \
              kind block is made at the first start with its file, in about a second; under a \
              model there is none.",
    },
    Knob {
        section: Section::Group,
        name: "name",
        kind: Kind::Name,
        fallback: Fallback::Unset("it must have one"),
        paper: "6",
        doc: "Names the group; unique among groups and tenants.",
    },
    Knob {
        section: Section::Group,
        name: "group",
        kind: Kind::Name,
        fallback: Fallback::Unset("none: on its device"),
        paper: "6",
        doc: "The group that it is in.",
    },
    Knob {
        section: Section::Group,
        name: "policy",
        kind: Kind::Choice(KINDS),
        fallback: Fallback::Is("limit"),
        paper: "6",
        doc: "How what the group may use is divided among its tenants and groups, as \
              policy.kind divides the device among those in no group.",
    },
    weight(Section::Group),
    min(Section::Group),
    limit(Section::Group),
    burst(Section::Group),
    slowdown_limit(Section::Group),
    target(Section::Group),
    clients(Section::Group),
    Knob {
        section: Section::Tenant,
        name: "name",
        kind: Kind::Name,
        fallback: Fallback::Is("default"),
        paper: "",
        doc: "Names the tenant; unique.",
    },
    Knob {
        section: Section::Tenant,
        name: "device",
        kind: Kind::Name,
        fallback: Fallback::Unset("the only mapped device"),
        paper: "",
        doc: "The name of the device that holds its values.",
    },
    Knob {
        section: Section::Tenant,
        name: "tiers",
        kind: Kind::Names,
        fallback: Fallback::Unset("one device"),
        paper: "",
        doc: "The names of two devices instead of device: a mapped one, then one of kind block for \
              values that leave the first. The cache is as large as both.",
    },
    Knob {
        section: Section::Tenant,
        name: "size",
        kind: Kind::Bytes {
            min: 4 * MIB,
            max: 64 * TIB,
            power_of_two: false,
        },
        fallback: Fallback::Unset("an equal part of what the device has left"),
        paper: "3.4",
        doc: "All that it may occupy of memory and its (first) device: values, keys and index. \
              Keys of what lies on the second of its tiers are in here, and take half of it at \
              most.",
    },
    Knob {
        section: Section::Tenant,
        name: "deep_size",
        kind: Kind::Bytes {
            min: 4 * MIB,
            max: 64 * TIB,
            power_of_two: false,
        },
        fallback: Fallback::Unset("an equal part of what the second of tiers has left"),
        paper: "",
        doc: "What it has of the second of its tiers, for values.",
    },
    Knob {
        section: Section::Tenant,
        name: "deep_item_len_min",
        kind: Kind::Bytes {
            min: 1,
            max: 16 * MIB - 1,
            power_of_two: false,
        },
        fallback: Fallback::Is("512"),
        paper: "",
        doc: "Values of less bytes do not go to the second of its tiers: header, key and index \
              stay in memory, some 70 bytes, so that a short value saves little of it, and each \
              read fetches 4 KiB. The default is memcached's ext_item_size.",
    },
    Knob {
        section: Section::Tenant,
        name: "deep_writes_per_day",
        kind: Kind::Bytes {
            min: 64 * MIB,
            max: 1024 * TIB,
            power_of_two: false,
        },
        fallback: Fallback::Unset("no bound"),
        paper: "",
        doc: "Bytes that may be written to the second of its tiers in a day, to spare flash; an \
              hour's worth may come at once. Where half of that is used up, what nobody has asked \
              for stays out.",
    },
    Knob {
        section: Section::Tenant,
        name: "deep_limit",
        kind: Kind::Limit,
        fallback: Fallback::Is("none"),
        paper: "3.4",
        doc: "What it may use of the second of its tiers, as limit of the first, whatever the \
              policy (share and partition divide the device by weight); a std-op is a 4 KiB \
              read there. Its writes count too: where they wait, less goes there. SIGHUP changes \
              it at once.",
    },
    Knob {
        section: Section::Tenant,
        name: "write",
        kind: Kind::Choice(WRITE),
        fallback: Fallback::Is("back"),
        paper: "",
        doc: "Where new values of a tenant with tiers go: back writes to the first, and to the \
              second what leaves it; through to both; around to the second, and to the first what \
              is asked for often. Nothing waits for the second: who writes faster than it takes \
              has less there.",
    },
    Knob {
        section: Section::Tenant,
        name: "nhc",
        kind: Kind::Nhc,
        fallback: Fallback::Is("shortest-delay"),
        paper: "",
        doc: "Which of its tiers reads what both have: the one that is expected to be done first \
              (shortest-delay), what Orthus' or MOST's controller says, the first always \
              (classic), or a share of reads (split:0.8 has 80 % on the first).",
    },
    Knob {
        section: Section::Tenant,
        name: "nhc_least_percent",
        kind: Kind::Count {
            unit: "percent",
            min: 0,
            max: 100,
        },
        fallback: Fallback::Is("0"),
        paper: "",
        doc: "The share of such reads that goes to the first of its tiers at least, whatever nhc \
              decides.",
    },
    Knob {
        section: Section::Tenant,
        name: "nhc_most_percent",
        kind: Kind::Count {
            unit: "percent",
            min: 0,
            max: 100,
        },
        fallback: Fallback::Is("100"),
        paper: "",
        doc: "The share of such reads that goes to the first of its tiers at most, whatever nhc \
              decides.",
    },
    Knob {
        section: Section::Tenant,
        name: "eviction",
        kind: Kind::Choice(&["fifo", "lru", "lfu", "s3-fifo", "merge"]),
        fallback: Fallback::Is("s3-fifo"),
        paper: "3.1",
        doc: "Which of its own items leave when it is full.",
    },
    Knob {
        section: Section::Tenant,
        name: "layout",
        kind: Kind::Choice(&["split", "inline"]),
        fallback: Fallback::Is("split"),
        paper: "3.5",
        doc: "split keeps keys in DRAM and values on the medium; inline puts both on the medium \
              by cached stores, to measure what the split gains.",
    },
    Knob {
        section: Section::Tenant,
        name: "durability",
        kind: Kind::Choice(&["none", "warm", "crash"]),
        fallback: Fallback::Is("none"),
        paper: "",
        doc: "What its items survive: none; a stop in order (SIGTERM, SIGINT, SIGUSR1) with warm; \
              kill -9 too with crash. It serves at once after a start, whatever it holds. Needs a \
              device of kind file or dax. A power failure empties it, unless sync says otherwise.",
    },
    Knob {
        section: Section::Tenant,
        name: "sync",
        kind: Kind::Choice(&["none", "100ms", "each"]),
        fallback: Fallback::Is("none"),
        paper: "",
        doc: "When a change survives a power failure: never; 100 ms after it was made, and as much \
              as the disk takes; before it is answered with each (changes that come together are \
              synced together). Changes go to a journal (server.journal_dir), which is read when \
              the image cannot be used. Needs durability = \"crash\".",
    },
    Knob {
        section: Section::Tenant,
        name: "index",
        kind: Kind::Choice(&[
            "hash",
            "hybrid",
            "hybrid+",
            "fast-fair",
            "fp-tree",
            "skip-list",
        ]),
        fallback: Fallback::Is("hash"),
        paper: "",
        doc: "What finds its keys. hash: a key at a time. The others have a tree of keys beside \
              the hash, for ranges and prefixes (scan, docs/protocol.md), which costs memory and \
              the time of a change of the tree for each key that comes or goes: hybrid+ is \
              HybridIndex+, whose tree is fast-fair; with hybrid the tree follows later, and a \
              range waits for it.",
    },
    Knob {
        section: Section::Tenant,
        name: "max_scan_keys",
        kind: Kind::Count {
            unit: "keys",
            min: 1,
            max: 100_000,
        },
        fallback: Fallback::Is("256"),
        paper: "",
        doc: "Keys that one scan looks at, at most: other requests of the worker wait as long as \
              that takes. The client goes on with another scan.",
    },
    Knob {
        section: Section::Tenant,
        name: "segment_bytes",
        kind: Kind::Bytes {
            min: 64 * KIB,
            max: 64 * MIB,
            power_of_two: true,
        },
        fallback: Fallback::Is("1MiB"),
        paper: "3.5",
        doc: "Size of a segment, a power of two; no value can be longer.",
    },
    Knob {
        section: Section::Tenant,
        name: "item_len_max",
        kind: Kind::Bytes {
            min: KIB,
            max: 16 * MIB - 1,
            power_of_two: false,
        },
        fallback: Fallback::Is("1MiB"),
        paper: "",
        doc: "The longest value in bytes that it stores.",
    },
    Knob {
        section: Section::Tenant,
        name: "listen",
        kind: Kind::Addresses,
        fallback: Fallback::Unset("server.listen"),
        paper: "",
        doc: "Addresses of its own; tenants may share one if each has users or a key prefix.",
    },
    Knob {
        section: Section::Tenant,
        name: "key_prefix",
        kind: Kind::Prefix,
        fallback: Fallback::Unset("none"),
        paper: "",
        doc: "Keys that start with it are this tenant's, on a door without login.",
    },
    Knob {
        section: Section::Tenant,
        name: "users",
        kind: Kind::Path,
        fallback: Fallback::Unset("no login"),
        paper: "",
        doc: "A file of user:password lines; its doors then ask for a memcached ASCII login.",
    },
    Knob {
        section: Section::Tenant,
        name: "group",
        kind: Kind::Name,
        fallback: Fallback::Unset("none: on its device"),
        paper: "6",
        doc: "The group that it is in.",
    },
    weight(Section::Tenant),
    min(Section::Tenant),
    limit(Section::Tenant),
    burst(Section::Tenant),
    slowdown_limit(Section::Tenant),
    target(Section::Tenant),
    clients(Section::Tenant),
    Knob {
        section: Section::Tenant,
        name: "action",
        kind: Kind::Choice(&["delay", "reject"]),
        fallback: Fallback::Is("delay"),
        paper: "3.3",
        doc: "A request beyond the limit waits (delay) or is answered SERVER_ERROR 307 busy \
              (reject).",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_default_reads_and_prints_back() {
        for knob in KNOBS {
            if let Fallback::Is(text) = knob.fallback {
                let value = knob.kind.parse(&[text.to_string()]).expect(knob.name);
                let again = knob.kind.parse(&value.texts()).expect(knob.name);
                assert_eq!(value, again, "{knob}");
            }
        }
    }

    #[test]
    fn names_flags_and_variables_are_unique() {
        let mut seen = BTreeSet::new();
        for knob in KNOBS {
            assert!(seen.insert(knob.to_string()), "{knob} twice");
            assert!(seen.insert(knob.flag()), "--{} twice", knob.flag());
            assert!(seen.insert(knob.env()), "{} twice", knob.env());
        }
    }

    #[test]
    fn bare_numbers_carry_their_unit_last() {
        for knob in KNOBS {
            if let Kind::Count { unit, .. } = knob.kind {
                let last = knob.name.rsplit('_').next().unwrap_or_default();
                let says_unit =
                    last == unit || ["workers", "backlog", "candidates"].contains(&last);
                assert!(says_unit, "{knob} is in {unit}");
            }
        }
    }

    #[test]
    fn every_policy_has_its_word() {
        let named = crate::config::PolicyKind::NAMED.map(|named| named.0);
        assert_eq!(named, KINDS);
    }

    #[test]
    fn words_of_two_devices_are_those_of_their_rooms() {
        let modes = nyx_engine::WriteMode::ALL.map(|mode| mode.to_string());
        assert_eq!(modes.each_ref().map(String::as_str), WRITE);
        let ways = crate::config::tiers::WAYS.map(|way| way.0);
        assert_eq!(ways, IO);
    }

    #[test]
    fn every_knob_is_documented_in_a_sentence() {
        for knob in KNOBS {
            assert!(knob.doc.ends_with('.') && knob.doc.len() > 20, "{knob}");
        }
    }
}
