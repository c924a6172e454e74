//! Tenants, their limits and their doors, in the engine's terms.

use super::address;
use crate::config::{self, Config};
use nyx_base::{DevicePs, Nanos, TenantId};
use nyx_engine::{Binding, HoldAction, TenantConfig, User, Users};
use nyx_gate::Device;
use nyx_media::Op;
use nyx_policy::Policy;
use nyx_policy::baselines::{ByteRate, Unlimited};
use nyx_policy::mechanism::throttle::Bounds;
use nyx_policy::sharing::limit::{Epoch, Leased, Paper};
use nyx_policy::sharing::qos::{self, Class, Member, Qos, Target};
use nyx_server::Door;
use nyx_store::{Eviction, Layout};
use std::sync::Arc;

pub(super) fn tenant(config: &config::Tenant) -> TenantConfig {
    TenantConfig {
        name: config.name.clone(),
        device: config.device,
        size: config.size,
        segment_bytes: config.segment_bytes,
        item_len_max: config.item_len_max,
        eviction: match config.eviction {
            config::Eviction::Fifo => Eviction::Fifo,
            config::Eviction::Lru => Eviction::Lru,
            config::Eviction::Lfu => Eviction::Lfu,
            config::Eviction::S3Fifo => Eviction::S3Fifo,
            config::Eviction::Merge => Eviction::Merge,
        },
        layout: match config.layout {
            config::Layout::Split => Layout::Split,
            config::Layout::Inline => Layout::Inline,
        },
        hold: match config.action {
            config::Action::Delay => HoldAction::Delay,
            config::Action::Reject => HoldAction::Reject,
        },
    }
}

/// Device time per second that a limit allows on its device.
fn rate(limit: config::Limit, device: &Device) -> DevicePs {
    match limit {
        config::Limit::StdOpsPerS(ops) => DevicePs(device.cost.standard().0.saturating_mul(ops)),
        config::Limit::Share(share) => DevicePs((share * DevicePs::SECOND.0 as f64) as u64),
    }
}

pub(super) fn policy(config: &Config, devices: &[Arc<Device>]) -> Box<dyn Policy> {
    let limits = || -> Vec<Option<DevicePs>> {
        let limit = |t: &config::Tenant| t.limit.map(|limit| rate(limit, &devices[t.device]));
        config.tenants.iter().map(limit).collect()
    };
    let policy = &config.policy;
    match (policy.kind, policy.mode) {
        (config::PolicyKind::None, _) => Box::new(Unlimited),
        (config::PolicyKind::Limit, config::Mode::Leased) => Box::new(Leased::new(limits())),
        (config::PolicyKind::Limit, config::Mode::Paper) => {
            let tick = Nanos::from_millis(u64::from(policy.tick_ms));
            Box::new(Paper::new(
                limits(),
                Epoch {
                    tick,
                    ticks: policy.epoch_ticks,
                },
            ))
        }
        (config::PolicyKind::Qos, mode) => Box::new(Qos::new(
            config.tenants.iter().zip(limits()).map(member).collect(),
            qos_params(mode, devices),
        )),
        (config::PolicyKind::Bytes, _) => {
            let byte_rate = |(tenant, limit): (&config::Tenant, Option<DevicePs>)| {
                limit.map(|limit| bytes_per_s(limit, &devices[tenant.device]))
            };
            Box::new(ByteRate::new(
                config.tenants.iter().zip(limits()).map(byte_rate).collect(),
            ))
        }
    }
}

fn member((tenant, limit): (&config::Tenant, Option<DevicePs>)) -> Member {
    let target = |target| match target {
        config::Target::MeanNs(ns) => Target::Mean(Nanos(ns)),
        config::Target::QuantileNs(q, ns) => Target::Quantile(q, Nanos(ns)),
        config::Target::OpsPerS(ops) => Target::OpsPerS(ops as f64),
    };
    Member {
        name: tenant.name.clone(),
        class: match tenant.target {
            Some(named) => Class::Critical(target(named)),
            None => Class::BestEffort,
        },
        bounds: Bounds::below(limit.map(DevicePs::as_secs_f64)),
    }
}

/// What an experiment takes from a tenant, as a part of what the smallest device reads: the paper's
/// 500 MB/s of 12 GB/s (section 3.6).
const EXPERIMENT_SHARE: f64 = 0.04;

fn qos_params(mode: config::Mode, devices: &[Arc<Device>]) -> qos::Params {
    let whole = devices
        .iter()
        .map(|device| bytes_per_s(DevicePs::SECOND, device));
    qos::Params {
        step_bytes_per_s: EXPERIMENT_SHARE * whole.fold(f64::MAX, f64::min),
        mode: match mode {
            config::Mode::Leased => qos::Mode::Adaptive,
            config::Mode::Paper => qos::Mode::Paper,
        },
        ..qos::Params::default()
    }
}

/// What a limit would be as a bandwidth: the bytes that 4 KiB reads move in that device time, as
/// the paper defines it (section 4.2: 1.25 M 4-KB loads/s are 5 GB/s).
fn bytes_per_s(limit: DevicePs, device: &Device) -> f64 {
    limit.0 as f64 / device.cost.price(Op::Read, 4096).0 as f64 * 4096.0
}

/// The logins of each login door, in the order of the doors.
pub(super) fn logins(config: &Config) -> Vec<(Vec<usize>, Arc<Users>)> {
    let entries = config.doors.iter().filter_map(|door| match &door.entry {
        config::Entry::Login { tenants } => Some(tenants.clone()),
        config::Entry::Open { .. } => None,
    });
    entries
        .map(|tenants| {
            (
                tenants.clone(),
                Arc::new(Users::new(users_of(config, &tenants))),
            )
        })
        .collect()
}

pub(super) fn users_of(config: &Config, tenants: &[usize]) -> Vec<User> {
    let of_tenant = |&at: &usize| {
        config.tenants[at].users.iter().map(move |user| User {
            name: user.name.clone(),
            password: user.password.clone(),
            tenant: id(at),
        })
    };
    tenants.iter().flat_map(of_tenant).collect()
}

fn id(at: usize) -> TenantId {
    TenantId(at as u16)
}

pub(super) fn doors(config: &Config, logins: &[(Vec<usize>, Arc<Users>)]) -> Vec<Door> {
    let mut logins = logins.iter();
    let mut door = |door: &config::Door| Door {
        address: address(config, &door.listen),
        binding: match &door.entry {
            config::Entry::Open { default, prefixes } => Binding::Open {
                default: default.map(id),
                prefixes: prefixes
                    .iter()
                    .map(|(prefix, tenant)| (prefix.clone().into_boxed_slice(), id(*tenant)))
                    .collect(),
            },
            config::Entry::Login { .. } => {
                let (_, users) = logins.next().expect("each login door has its logins");
                Binding::Login {
                    users: users.clone(),
                }
            }
        },
    };
    config.doors.iter().map(&mut door).collect()
}
