//! Decides: pure step functions from what is [`Seen`] of the tenants to what is [`Want`]ed of them.
//!
//! What this room never does: read a clock, draw a random number, start a thread, know a device, a
//! medium or a protocol. The server and the simulator run the very same objects; time is handed in.
//! A policy's experiments (from a later issue on) are states inside it.
//!
//! * [`sharing`]: the policies of NyxCache section 3.4.
//! * [`baselines`]: what Nyx is compared with, on the same interface.

use nyx_base::{DevicePs, Instant, Nanos};

pub mod baselines;
pub mod sharing;

/// What a policy sees of one tenant on one device. Counts are totals since the tenant's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Device time charged.
    pub used: DevicePs,
    /// Bytes moved to and from the device.
    pub bytes: u64,
}

/// What a policy wants of one tenant on one device. It stays in force until the next step changes
/// it, so a controller that stops leaves the last safe limits standing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// Device time per second that the tenant may use, enforced by exact leases; `None` is no
    /// limit.
    pub rate: Option<DevicePs>,
    /// What a byte costs of `rate`, where bytes and not device time count (the `bytes` baseline).
    pub byte_price: Option<DevicePs>,
    /// The paper's actuator.
    pub delay: Delay,
}

/// A delay before each access (NyxCache section 3.3, "PM Access Regulation").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delay {
    /// None.
    #[default]
    None,
    /// This many units of 10 ns.
    Units(u32),
    /// Accesses are held until a finite delay is set.
    Infinite,
}

/// A sharing policy. `seen` and `want` have an entry for each tenant, in the same order as the
/// tenants with which the policy was made.
pub trait Policy: Send {
    /// Its name in configuration and figures.
    fn name(&self) -> &'static str;

    /// How often it wants to be stepped.
    fn period(&self) -> Nanos;

    /// One step.
    fn step(&mut self, now: Instant, seen: &[Seen], want: &mut [Want]);
}
