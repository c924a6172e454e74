//! What `nyx check-config` says of devices of blocks, and of tenants that lie on two devices.
//!
//! What it never does: touch a device.

use crate::config::tiers::{KEY_LEN_USUAL, way};
use crate::config::{Config, DeepDevice, DeepShare, Tenant};
use nyx_base::Bytes;
use nyx_policy::nhc::Bounds;
use nyx_store::{deep_fillable_bytes, deep_item_dram_bytes};
use nyx_tier::DeepProfile;
use std::fmt::Write as _;

/// A part of one sixteenth more is the next length of value that is looked at.
const STEP_ONE_IN: u32 = 16;

/// The devices of blocks, with a line per tenant on each.
pub(super) fn devices(text: &mut String, config: &Config) {
    for (at, device) in config.deep_devices.iter().enumerate() {
        let (name, path, size) = (&device.name, device.path.display(), device.size);
        let model = device.model.as_ref();
        let model = model.map_or(String::new(), |model| format!(", model {}", model.name));
        let io = way(device.through);
        let _ = writeln!(
            text,
            "\ndevice {name}: blocks of {path}, {size}, io {io}{model}"
        );
        profile(text, device);
        let shares = config.tenants.iter();
        let shares =
            shares.filter_map(|one| Some((one, one.deep.filter(|deep| deep.device == at)?)));
        for (tenant, share) in shares {
            let first = &config.devices[tenant.device].name;
            let _ = writeln!(
                text,
                "  {:<16} {:>10} {}",
                tenant.name,
                share.size.to_string(),
                how(tenant, share)
            );
            let _ = writeln!(text, "    {}", amounts(tenant, share, first));
        }
    }
}

/// Of a tenant on its first device: what more it has, and where.
pub(super) fn beside(tenant: &Tenant, config: &Config) -> Option<String> {
    let share = tenant.deep?;
    let device = &config.deep_devices[share.device].name;
    Some(format!("{} more on {device}", share.size))
}

fn profile(text: &mut String, device: &DeepDevice) {
    if device.model.is_some() {
        return;
    }
    let told = match (device.profile.exists(), DeepProfile::load(&device.profile)) {
        (false, _) => "no profile yet: the first start makes one".to_string(),
        (_, Err(error)) => format!("warning: {error}"),
        (_, Ok(profile)) => {
            let reads = 1e9 / profile.costs().small.each_ns;
            let writes = Bytes(profile.write_bytes_per_s as u64);
            let assumed = if profile.write_is_assumed {
                " (assumed)"
            } else {
                ""
            };
            format!(
                "the whole device is {reads:.0} reads/s of 4 KiB, or writes {writes}/s{assumed}"
            )
        }
    };
    let _ = writeln!(text, "  {told}");
}

/// Which values go there, and who decides what.
fn how(tenant: &Tenant, share: DeepShare) -> String {
    let mut words = vec![
        format!("values of {} B and more", share.item_len_min),
        format!("write {}", share.write),
        format!("nhc {}", share.nhc),
    ];
    if share.bounds != Bounds::default() {
        words.push(format!("within {}", share.bounds));
    }
    let limit = |limit| format!("at most {limit} of the device");
    words.extend(tenant.deep_limit.map(limit));
    words.extend(share.day.map(|day| format!("at most {day} written a day")));
    words.join(", ")
}

/// How much lies where, and what it takes of memory.
fn amounts(tenant: &Tenant, share: DeepShare, first: &str) -> String {
    let whole = tenant.size.0 + share.size.0;
    let part = tenant.size.0 as f64 / whole as f64 * 100.0;
    let [least, most] = deep_item_dram_bytes(KEY_LEN_USUAL);
    let mut told = format!(
        "{} in all, {part:.0} % of it on {first}; {least} to {most} B of memory for each value \
         here (key of {KEY_LEN_USUAL} B), within its {}",
        Bytes(whole),
        tenant.size
    );
    if let Some(len) = fills_from(tenant, share) {
        let _ = write!(told, "; full with values of {len} B on the mean, or longer");
    }
    told
}

/// The mean length from which on the values of a tenant can fill its part; none where none can.
fn fills_from(tenant: &Tenant, share: DeepShare) -> Option<u32> {
    let segment = u64::from(tenant.segment_bytes);
    let longest = tenant.item_len_max.min(tenant.segment_bytes);
    let fills = |len: &u32| {
        deep_fillable_bytes(tenant.size.0, segment, KEY_LEN_USUAL, *len) >= share.size.0
    };
    let next = |len: &u32| Some(len + (len / STEP_ONE_IN).max(1)).filter(|len| *len <= longest);
    std::iter::successors(Some(share.item_len_min), next).find(fills)
}
