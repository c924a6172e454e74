//! A device from its configuration: the medium opened and touched, the model laid over it, the
//! profile loaded - or made, quickly, on the first start.

use super::{Options, paged};
use crate::config;
use crate::{Exit, Failure};
use nyx_base::Clock;
use nyx_gate::{CostTable, Device};
use nyx_media::model::Params;
use nyx_media::profile::{Effort, Fit, Identity, Latency, Profile, measure, simulate};
use nyx_media::{Emulated, Mapped, Media};
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

/// A device that was opened.
pub struct Opened {
    /// Its medium, where that is to be closed in order.
    pub medium: Option<Arc<Mapped>>,
    /// It.
    pub device: Arc<Device>,
    /// Its latencies, where its profile has them.
    pub latency: Option<Latency>,
}

/// Opens a device.
pub fn open_device(
    config: &config::Device,
    options: Options,
    clock: &Arc<dyn Clock>,
) -> Result<Opened, Failure> {
    if let config::Medium::Paged { path, memory } = &config.medium {
        return paged::open(config, path, *memory, options, &**clock);
    }
    let medium = Arc::new(open_medium(config)?);
    let params = match &config.model {
        Some(spec) => {
            let resolved = Params::resolve(spec);
            Some(resolved.map_err(|error| Failure::usage(in_device(config, &error)))?)
        }
        None => None,
    };
    let (cost, latency) = match options.unpriced {
        true => (CostTable::unpriced(), None),
        false => prices(config, &medium, params.as_ref(), &**clock)?,
    };
    let media: Arc<dyn Media> = match params {
        Some(params) => Arc::new(Emulated::in_real_time(
            medium.clone(),
            params,
            clock.clone(),
        )),
        None => medium.clone(),
    };
    tracing::info!(
        device = config.name,
        medium = medium.describe(),
        model = config.model.as_deref().unwrap_or("none"),
        std_ops_per_s = cost.standard_ops_per_s(),
        "device open"
    );
    Ok(Opened {
        medium: Some(medium),
        device: Arc::new(Device {
            name: config.name.clone(),
            media,
            cost,
        }),
        latency,
    })
}

fn prices(
    config: &config::Device,
    medium: &Mapped,
    params: Option<&Params>,
    clock: &dyn Clock,
) -> Result<(CostTable, Option<Latency>), Failure> {
    let identity = Identity::of(medium, params);
    let make = |identity| Ok(make_profile(medium, identity, params, clock));
    priced(config, identity, make)
}

/// Prices and latencies by the profile, which is made where there is none of this device.
pub(super) fn priced(
    config: &config::Device,
    identity: Identity,
    make: impl FnOnce(Identity) -> Result<Profile, Failure>,
) -> Result<(CostTable, Option<Latency>), Failure> {
    let loaded = match Profile::load(&config.profile) {
        Ok(profile) => accept(profile, &identity, config),
        Err(_) if !config.profile.exists() => None,
        Err(error) => {
            tracing::warn!("{error}; the device is profiled anew");
            None
        }
    };
    let profile = match loaded {
        Some(profile) => profile,
        None => {
            tracing::info!(device = config.name, "no profile yet: profiling quickly");
            let profile = make(identity)?;
            save(&profile, &config.profile)?;
            profile
        }
    };
    if profile.latency().is_none() {
        let path = config.profile.display();
        tracing::info!(
            "profile {path} has no latency prices: all operations count as equally harmful to the \
             latency of others; `nyx profile` on a quiet machine makes one that has them"
        );
    }
    let latency = profile.latency().cloned();
    Ok((CostTable::of_profile(&profile), latency))
}

pub(super) fn in_device(config: &config::Device, error: &dyn Display) -> String {
    format!("device {:?}: {error}", config.name)
}

fn open_medium(config: &config::Device) -> Result<Mapped, Failure> {
    let len = config.size.0;
    let opened = match &config.medium {
        config::Medium::Anon => Mapped::anonymous(len),
        config::Medium::File(path) => Mapped::file(path, len),
        config::Medium::Dax(path) => Mapped::dax(path, len),
        config::Medium::Paged { .. } => unreachable!("it is no mapping"),
    };
    opened.map_err(|error| Failure::new(Exit::CantCreate, in_device(config, &error)))
}

/// A profile that was loaded, if it is this device's.
fn accept(profile: Profile, identity: &Identity, config: &config::Device) -> Option<Profile> {
    let path = config.profile.display();
    match profile.check(identity) {
        Fit::Fresh => Some(profile),
        Fit::Stale { why } => {
            tracing::warn!(
                "profile {path} is stale: {why}; it is used, `nyx profile` makes a new one"
            );
            Some(profile)
        }
        Fit::Foreign { why } => {
            tracing::warn!(
                "profile {path} is of another device: {why}; the device is profiled anew"
            );
            None
        }
    }
}

fn make_profile(
    medium: &Mapped,
    identity: Identity,
    params: Option<&Params>,
    clock: &dyn Clock,
) -> Profile {
    match params {
        Some(params) => {
            let mut profile = simulate(params, Effort::Quick, &mut |_| {});
            profile.device = identity;
            profile
        }
        None => {
            medium.pretouch(1);
            measure(medium, identity, clock, Effort::Quick, &mut |_| {})
        }
    }
}

fn save(profile: &Profile, path: &Path) -> Result<(), Failure> {
    profile
        .save(path)
        .map_err(|error| Failure::new(Exit::CantCreate, error.to_string()))
}
