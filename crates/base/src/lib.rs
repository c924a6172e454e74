//! Names it: the words that every other room speaks - units, ids, time, randomness.
//!
//! What it never does: read a clock, start a thread, touch a device or a socket, allocate on a hot
//! path. It is capped at 1,500 lines; a helper that only one room needs belongs into that room.
//!
//! * [`units`]: [`DevicePs`] (device time), [`Bytes`] for people, hot-path sizes are plain `usize`.
//! * [`time`]: [`Instant`] (nanoseconds of one driver's clock), [`UnixSeconds`] for times to live.
//! * [`id`]: tenants, workers, devices.
//! * [`latency`]: durations counted by length.
//! * [`cell`]: counters with one writer and many readers, padded to their own cache lines.

pub mod cell;
pub mod id;
pub mod latency;
pub mod time;
pub mod units;

pub use cell::{CachePadded, Counter};
pub use fastrand::Rng;
pub use id::{DeviceId, TenantId, WorkerId};
pub use latency::{Latencies, LatencyCounter};
pub use time::{Clock, Instant, Nanos, Now, UnixSeconds};
pub use units::{Bytes, DevicePs};
