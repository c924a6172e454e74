//! Tenants and their doors, in the engine's terms.

use super::address;
use crate::config::{self, Config};
use nyx_base::TenantId;
use nyx_engine::{Binding, HoldAction, TenantConfig, User, Users};
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

/// What of two configurations differs and cannot change under open connections.
pub(super) fn restart_needed(old: &Config, new: &Config) -> Vec<String> {
    let mut differs = Vec::new();
    let mut compare = |same: bool, what: String| {
        if !same {
            differs.push(what);
        }
    };
    compare(old.server == new.server, "server".into());
    compare(old.devices == new.devices, "device".into());
    compare(old.doors == new.doors, "listen, key_prefix or users".into());
    let names = |config: &Config| -> Vec<String> {
        config.tenants.iter().map(|one| one.name.clone()).collect()
    };
    if names(old) != names(new) {
        compare(false, "the tenants' names or their order".into());
        return differs;
    }
    for (old, new) in old.tenants.iter().zip(&new.tenants) {
        // All but what can.
        let kept = config::Tenant {
            group: old.group,
            terms: old.terms,
            users: old.users.clone(),
            ..new.clone()
        };
        compare(*old == kept, format!("tenant {:?}", old.name));
    }
    differs
}

/// Whether two configurations of the same tenants share their devices in the same way.
pub(super) fn shares_alike(old: &Config, new: &Config) -> bool {
    let part = |config: &Config| -> Vec<_> {
        config
            .tenants
            .iter()
            .map(|one| (one.group, one.terms))
            .collect()
    };
    old.policy == new.policy && old.groups == new.groups && part(old) == part(new)
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
