//! Tenants and their doors, in the engine's terms.

use super::address;
use crate::config::{self, Config};
use nyx_base::TenantId;
use nyx_engine::{Binding, HoldAction, OpenDoor, Prefixes, TenantConfig, User, Users};
use nyx_server::Door;
use nyx_store::{Eviction, Journaling, Keep, Layout, Purpose};
use std::path::PathBuf;
use std::sync::Arc;

/// Where a tenant's image is, if it has one.
pub(super) fn image_of(config: &config::Tenant, server: &config::Server) -> PathBuf {
    server.image_dir.join(format!("{}.image", config.name))
}

/// The directory of a tenant's journal, if it has one.
pub(super) fn journal_of(config: &config::Tenant, server: &config::Server) -> PathBuf {
    server.journal_dir.join(format!("{}.journal", config.name))
}

/// A tenant; `data_id` is of the data file that its values are in, if that is one.
pub(super) fn tenant(
    config: &config::Tenant,
    server: &config::Server,
    data_id: Option<[u8; 16]>,
) -> TenantConfig {
    let journaling = |sync| Journaling {
        dir: journal_of(config, server),
        name: config.name.clone(),
        sync,
        file_bytes: None,
    };
    let keep = |(durability, data_id)| Keep {
        path: image_of(config, server),
        name: config.name.clone(),
        durability,
        data_id,
        purpose: Purpose::Serve,
        journal: config.sync.map(journaling),
    };
    TenantConfig {
        keep: config.durability.zip(data_id).map(keep),
        ranges: config.ranges,
        deep: config.deep,
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

/// What each door lets in, in their order.
pub(super) fn bindings(config: &Config) -> Vec<Binding> {
    let binding = |door: &config::Door| match &door.entry {
        config::Entry::Open { default, prefixes } => {
            let prefixes = prefixes_of(*default, prefixes);
            Binding::Open(Arc::new(OpenDoor::new(prefixes)))
        }
        config::Entry::Login { tenants } => Binding::Login {
            users: Arc::new(Users::new(users_of(config, tenants))),
        },
    };
    config.doors.iter().map(binding).collect()
}

/// Lets in, at doors that are open, who a configuration with the same doors lets in.
pub(super) fn let_in(config: &Config, bindings: &[Binding]) {
    for (door, binding) in config.doors.iter().zip(bindings) {
        match (&door.entry, binding) {
            (config::Entry::Open { default, prefixes }, Binding::Open(door)) => {
                door.replace(prefixes_of(*default, prefixes));
            }
            (config::Entry::Login { tenants }, Binding::Login { users }) => {
                users.replace(users_of(config, tenants));
            }
            _ => unreachable!("a door asks for a login, or it does not, for as long as it is open"),
        }
    }
}

fn prefixes_of(default: Option<usize>, prefixes: &[(Vec<u8>, usize)]) -> Prefixes {
    let prefixes = prefixes.iter();
    let prefixes: Vec<_> = prefixes
        .map(|(prefix, tenant)| (prefix, id(*tenant)))
        .collect();
    Prefixes::new(default.map(id), &prefixes)
}

fn users_of(config: &Config, tenants: &[usize]) -> Vec<User> {
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

pub(super) fn doors(config: &Config, bindings: &[Binding]) -> Vec<Door> {
    let doors = config.doors.iter().zip(bindings);
    let door = |(door, binding): (&config::Door, &Binding)| Door {
        address: address(config, &door.listen),
        binding: binding.clone(),
    };
    doors.map(door).collect()
}
