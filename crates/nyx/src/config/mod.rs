//! The configuration of a server: what `nyx serve` runs, as plain data.
//!
//! A [`Config`] is complete and checked: every value is in its range, names and addresses are
//! unique, every tenant's device exists and holds it. Whoever assembles a server needs no further
//! check and no default. What this module never does: open a device, bind a socket, start a thread.
//!
//! * [`knob`]: the one table of knobs that feeds the file, the flags, the environment, the docs.
//! * [`value`]: what a knob's value is, and reading it from text.
//! * [`document`]: a TOML file as settings, with the line and column of each.
//! * [`overrides`]: the knob table as flags and environment variables.
//! * [`layers`]: default < file < environment < flag.
//! * [`assemble`], [`doors`], [`tiers`], `groups`: settings to [`Config`], with the checks that
//!   cross sections.
//! * [`load`]: all of that in order.

pub mod assemble;
pub mod document;
pub mod doors;
mod groups;
pub mod knob;
pub mod layers;
pub mod load;
pub mod overrides;
mod paged;
#[cfg(test)]
mod tests;
pub mod tiers;
pub mod value;

pub use load::{Loaded, Source};
pub use nyx_engine::{DeepShare, Ranges};
pub use nyx_media::queue::Through;
pub use nyx_store::{Durability, Eviction, Layout, SyncMode, Tree};

use nyx_base::{Bytes, Nanos};
use nyx_media::model::block::BlockParams;
use nyx_policy::mechanism::interference::Design;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Everything that a server is started with.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What concerns the process as a whole.
    pub server: Server,
    /// The mapped devices, at least one; a tenant names its device by index into this.
    pub devices: Vec<Device>,
    /// The devices of blocks; a tenant with tiers names its second by index into this.
    pub deep_devices: Vec<DeepDevice>,
    /// The tenants, at least one.
    pub tenants: Vec<Tenant>,
    /// The groups of tenants; each stands after the group that it is in.
    pub groups: Vec<Group>,
    /// The sharing policy.
    pub policy: Policy,
    /// Where connections come in and how each finds its tenant, in the order of the file.
    pub doors: Vec<Door>,
}

/// What concerns the process as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Holds media files and profiles that do not say where they are. Made when missing.
    pub data_dir: PathBuf,
    /// Holds the images of tenants that survive.
    pub image_dir: PathBuf,
    /// Holds the journals of tenants whose changes survive a power failure.
    pub journal_dir: PathBuf,
    /// Data-path threads, at least one.
    pub workers: u16,
    /// How many tenants there may ever be, those included that come while the server runs.
    pub max_tenants: usize,
    /// Connections beyond this many are answered with an error and closed.
    pub max_connections: u32,
    /// Seconds after which a silent connection is closed; `None`: never.
    pub idle_timeout_s: Option<u32>,
    /// Connections that may wait for `accept` on each listener.
    pub backlog: u32,
    /// Permission bits of unix sockets.
    pub unix_mode: u32,
    /// Whether each worker is pinned to a CPU of its own.
    pub pin_workers: bool,
    /// Whether the latency of every request is recorded, or only of tenants whose policy looks.
    pub record_latencies: bool,
}

/// A device of blocks, for values that leave a mapped one.
#[derive(Clone, Debug, PartialEq)]
pub struct DeepDevice {
    /// Unique among all devices.
    pub name: String,
    /// A file, made when missing, or a raw block device.
    pub path: PathBuf,
    /// What of it is used, in bytes.
    pub size: Bytes,
    /// Who carries requests out.
    pub through: Through,
    /// A model laid over it.
    pub model: Option<BlockParams>,
    /// Where its profile is, or is to be written at the first start.
    pub profile: PathBuf,
}

/// One medium with its own profile and its own tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Unique.
    pub name: String,
    /// What the medium is.
    pub medium: Medium,
    /// Its size in bytes.
    pub size: Bytes,
    /// A device model laid over the medium: a preset (`optane-2dimm/8`) or a parameter file.
    pub model: Option<String>,
    /// Where the profile (MaxIOPS by operation and size) is, or is to be written on first start.
    pub profile: PathBuf,
}

/// What a device's bytes are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Anonymous memory: gone with the process.
    Anon,
    /// A mapped file, made when missing.
    File(PathBuf),
    /// A file on a DAX file system, or a device-DAX node.
    Dax(PathBuf),
    /// Memory that is larger than its DRAM; gone with the process.
    Paged {
        /// Where pages go: a directory, a file or a block device.
        path: PathBuf,
        /// How much of it may be in DRAM.
        memory: Bytes,
    },
}

/// One cache instance with its own keys, space and limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    /// Unique.
    pub name: String,
    /// Index into [`Config::devices`].
    pub device: usize,
    /// All that the tenant may occupy: values, keys, index. The tenants of one device never sum up
    /// to more than the device's size.
    pub size: Bytes,
    /// What it has of a device of blocks, if anything. The shares of one device never sum up to
    /// more than its size.
    pub deep: Option<DeepShare>,
    /// What it may use of that device; `None`: no limit.
    pub deep_limit: Option<Limit>,
    /// Which items leave when the tenant is full.
    pub eviction: Eviction,
    /// Where keys lie.
    pub layout: Layout,
    /// What it survives, if anything.
    pub durability: Option<Durability>,
    /// When its changes survive a power failure, if ever.
    pub sync: Option<SyncMode>,
    /// How ranges of its keys are asked for, if they can be.
    pub ranges: Option<Ranges>,
    /// Size of a segment in bytes, a power of two.
    pub segment_bytes: u32,
    /// The longest value in bytes that is accepted; at most `segment_bytes`.
    pub item_len_max: u32,
    /// The group that it is in, by index into [`Config::groups`].
    pub group: Option<usize>,
    /// On which terms it shares its device.
    pub terms: Terms,
    /// What happens to a request beyond the limit.
    pub action: Action,
    /// Keys on an open door that start with these bytes are this tenant's.
    pub key_prefix: Option<Vec<u8>>,
    /// The password file that `users` was read from, to read it again on SIGHUP.
    pub users_file: Option<PathBuf>,
    /// Who may log in as this tenant; empty: nobody has to.
    pub users: Vec<User>,
}

/// Tenants that a policy treats as one, and another inside divides.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Unique among groups and tenants.
    pub name: String,
    /// The device of all its tenants.
    pub device: usize,
    /// The group that it is in, which stands before it.
    pub group: Option<usize>,
    /// How it is divided inside.
    pub kind: PolicyKind,
    /// On which terms it shares.
    pub terms: Terms,
}

/// On which terms a tenant or a group shares with its siblings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Its weight.
    pub weight: f64,
    /// What no policy takes from it.
    pub min: Option<Limit>,
    /// What it may use of its device; `None`: no limit.
    pub limit: Option<Limit>,
    /// For how long it may save up what it did not use.
    pub burst_ns: u64,
    /// How many times slower than alone it may get.
    pub slowdown_limit: Option<f64>,
    /// What it is promised under the policy `qos`; `None`: best effort.
    pub target: Option<Target>,
    /// Whether its clients ask at their own times, and not after each answer.
    pub is_open: bool,
}

/// A login of a tenant (memcached ASCII authentication).
#[derive(Clone, PartialEq, Eq)]
pub struct User {
    /// Unique on each door.
    pub name: Vec<u8>,
    /// Compared in constant time by whoever checks it.
    pub password: Vec<u8>,
}

/// A limit on device use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// Standard operations (1 KiB random reads of this device) per second.
    StdOpsPerS(u64),
    /// Part of the device's time, over 0 and up to 1.
    Share(f64),
}

/// What a latency-critical tenant is promised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// A mean latency of at most so many nanoseconds.
    MeanNs(u64),
    /// A part of all requests, each within so many nanoseconds.
    QuantileNs(f64, u64),
    /// At least so many accesses to the device per second.
    OpsPerS(u64),
}

/// What happens to a request whose tenant has used up its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It waits.
    Delay,
    /// It is answered `SERVER_ERROR 307 busy`.
    Reject,
}

/// Who may use how much of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Which policy.
    pub kind: PolicyKind,
    /// Ours or the paper's.
    pub mode: Mode,
    /// Length of a controller tick in milliseconds.
    pub tick_ms: u32,
    /// Ticks per epoch; `None`: what suits the policy.
    pub epoch_ticks: Option<u32>,
    /// The longest window of `qos` in milliseconds.
    pub window_ms: u32,
    /// What an experiment takes from a candidate.
    pub experiment_step: Limit,
    /// How an experiment tries its candidates.
    pub trials: Design,
    /// The slack that is ample, in parts of a target.
    pub slack: f64,
    /// Candidates of an experiment.
    pub candidates: usize,
    /// The largest slowdown over the smallest.
    pub unfairness: f64,
    /// Whether share lends what is idle without regard to the lender.
    pub is_donation_naive: bool,
    /// What an idle tenant lends at a time in the paper's mode, as a part of what it has.
    pub donate_step: f64,
    /// How long all others pause, in nanoseconds.
    pub pause_ns: u64,
    /// How old a stand-alone measurement may be in the paper's mode, in nanoseconds.
    pub refresh_ns: u64,
    /// Whether guarantees may sum to more than there is.
    pub oversubscribe: bool,
}

/// Which sharing policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// Everything is metered and nothing is held.
    None,
    /// Tenants with a limit stay below it, in device time (Algorithm 1).
    #[default]
    Limit,
    /// Tenants with a target keep it, the others get the rest (Algorithm 2).
    Qos,
    /// All are slowed alike (Algorithm 3).
    Slowdown,
    /// Each has its weight, and what is idle is lent (Algorithm 4).
    Share,
    /// Each has its weight; a baseline.
    Partition,
    /// Limits taken as byte rates, blind to what the bytes cost; a baseline.
    Bytes,
    /// Limits taken as operation rates; a baseline.
    Ops,
    /// Targets are kept at the expense of who moves the most bytes; a baseline.
    Caladan,
    /// Weights of bytes, lent period by period; a baseline.
    MemGuard,
}

impl PolicyKind {
    /// Every kind by its name.
    pub const NAMED: [(&'static str, PolicyKind); 10] = [
        ("none", PolicyKind::None),
        ("limit", PolicyKind::Limit),
        ("qos", PolicyKind::Qos),
        ("slowdown", PolicyKind::Slowdown),
        ("share", PolicyKind::Share),
        ("partition", PolicyKind::Partition),
        ("bytes", PolicyKind::Bytes),
        ("ops", PolicyKind::Ops),
        ("caladan", PolicyKind::Caladan),
        ("memguard", PolicyKind::MemGuard),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        let named = PolicyKind::NAMED.iter().find(|named| named.1 == self);
        named.expect("every kind has a name").0
    }
}

impl std::str::FromStr for PolicyKind {
    type Err = ();

    fn from_str(name: &str) -> Result<PolicyKind, ()> {
        let named = PolicyKind::NAMED.iter().find(|named| named.0 == name);
        named.map(|named| named.1).ok_or(())
    }
}

/// Whose way of doing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Ours: exact leases, steps as large as they must be.
    Nyx,
    /// As printed in the paper: ticks, epochs, fixed steps.
    Paper,
}

impl Mode {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Nyx => "nyx",
            Mode::Paper => "paper",
        }
    }
}

/// A listener and how its connections find their tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Door {
    /// The address to bind.
    pub listen: Listen,
    /// Which tenants are behind it.
    pub entry: Entry,
}

/// How a connection finds its tenant. Tenants are indexes into [`Config::tenants`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// No login. A key belongs to the tenant whose prefix it starts with (at most one can match),
    /// else to `default`; where there is no default such keys are refused.
    Open {
        /// The tenant of keys without a tenant's prefix.
        default: Option<usize>,
        /// Tenants by key prefix.
        prefixes: Vec<(Vec<u8>, usize)>,
    },
    /// Each connection logs in first; the user names the tenant.
    Login {
        /// The tenants whose users are let in; their user names are disjoint.
        tenants: Vec<usize>,
    },
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Listen {
    /// TCP, `127.0.0.1:11211`; port 0 lets the system choose.
    Tcp(SocketAddr),
    /// A unix stream socket, `unix:/run/nyx.sock`.
    Unix(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => write!(f, "{address}"),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Shows the name only: passwords never reach a log.
impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "User({})", String::from_utf8_lossy(&self.name))
    }
}
