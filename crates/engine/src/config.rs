//! What an engine is made from, and why it may refuse.

use crate::control::Policies;
use nyx_base::Bytes;
use nyx_gate::Device;
use nyx_policy::nhc::{Bounds, Nhc};
use nyx_store::{Eviction, Keep, Layout, StoreError, Tree, WriteMode};
use nyx_tier::Deep;
use std::sync::Arc;

/// Everything that an engine runs on. Devices and prices are made by the driver.
pub struct EngineConfig {
    /// The devices.
    pub devices: Vec<Arc<Device>>,
    /// Devices of blocks, for values that leave the others.
    pub deep_devices: Vec<Arc<Deep>>,
    /// The tenants; a tenant's id is its place here.
    pub tenants: Vec<TenantConfig>,
    /// How many tenants there may ever be; where there are more from the start, as many as those.
    pub tenants_max: usize,
    /// Who decides. Their tenants are in the same order.
    pub policy: Policies,
    /// How many workers there will be.
    pub workers: u16,
    /// Seeds the hashes of keys; random in the server, fixed in the simulator.
    pub hash_seed: u64,
}

/// One tenant.
#[derive(Clone, Debug)]
pub struct TenantConfig {
    /// Its name in configuration and figures.
    pub name: String,
    /// Which device, by place.
    pub device: usize,
    /// All that it may occupy.
    pub size: Bytes,
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// The longest value in bytes.
    pub item_len_max: u32,
    /// Who leaves when it is full.
    pub eviction: Eviction,
    /// Where keys lie.
    pub layout: Layout,
    /// What happens when its budget is used up.
    pub hold: HoldAction,
    /// Where it survives, if it does.
    pub keep: Option<Keep>,
    /// How ranges of its keys are asked for; none where they cannot be.
    pub ranges: Option<Ranges>,
    /// Its share of a deep device; none where it has none.
    pub deep: Option<DeepShare>,
}

/// A tenant's share of a deep device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeepShare {
    /// Which deep device, by place.
    pub device: usize,
    /// What of it is the tenant's.
    pub size: Bytes,
    /// Values of less bytes do not go there.
    pub item_len_min: u32,
    /// What may be written to it in a day; none where there is no bound.
    pub day: Option<Bytes>,
    /// Where new items are written.
    pub write: WriteMode,
    /// Who decides where a request goes that either device could serve.
    pub nhc: Nhc,
    /// The share of such requests that goes to the fast device, whatever is decided.
    pub bounds: Bounds,
}

/// How a tenant's keys are asked for in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// What keeps the order.
    pub tree: Tree,
    /// Keys that one request looks at, at most: others wait as long as that takes.
    pub max_scan_keys: u32,
}

/// What happens to a request whose tenant has had its part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HoldAction {
    /// It waits.
    #[default]
    Delay,
    /// It is answered `SERVER_ERROR 307 busy`.
    Reject,
}

/// Why an engine cannot be made, or cannot take in a tenant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A tenant names a device that is not there.
    #[error("tenant {tenant:?} names device {device}, but there are {devices}")]
    NoSuchDevice {
        /// The tenant's name.
        tenant: String,
        /// The place it names.
        device: usize,
        /// How many there are.
        devices: usize,
    },
    /// The table of tenants is full.
    #[error("there is room for {most} tenants, and {wanted} are wanted")]
    TooMany {
        /// How many there would be.
        wanted: usize,
        /// How many there may be.
        most: usize,
    },
    /// The tenants of a device do not fit on it.
    #[error("device {device:?} has {len}; tenant {tenant:?} needs {size} and only {left} are left")]
    DeviceFull {
        /// The device's name.
        device: String,
        /// Its size.
        len: Bytes,
        /// The first tenant that does not fit.
        tenant: String,
        /// What it asked for.
        size: Bytes,
        /// What was left for it.
        left: Bytes,
    },
    /// A newcomer whose journal has to be read first.
    #[error("tenant {tenant:?} has a journal to be read, which is done at a start only: restart")]
    ToReplay {
        /// The tenant's name.
        tenant: String,
    },
    /// A tenant's store refused its configuration.
    #[error("tenant {tenant:?}: {source}")]
    Store {
        /// The tenant's name.
        tenant: String,
        /// Why.
        source: StoreError,
    },
}
