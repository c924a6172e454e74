//! A device of blocks from its configuration: its file opened or made, its profile loaded - or
//! made, at the first start -, the model laid over it.
//!
//! What it never does: write to a file that is somebody else's.

use crate::config::DeepDevice;
use crate::config::tiers::way;
use crate::{Exit, Failure};
use nyx_base::Bytes;
use nyx_media::MediaError;
use nyx_media::model::block::BlockModel;
use nyx_media::queue::{DeepFile, Emulation, Support, Through};
use nyx_tier::{Deep, DeepProfile};
use std::sync::Arc;
use std::time::Duration;

/// Seeds the spread of a model's latencies.
const MODEL_SEED: u64 = 1;

/// Opens a file of blocks. Where a process was killed that had it, the kernel lets go of it when
/// the last of its requests is done: that is waited for.
pub(crate) fn once_free<T>(
    mut open: impl FnMut() -> Result<T, MediaError>,
) -> Result<T, MediaError> {
    const PATIENCE: Duration = Duration::from_secs(3);
    const LOOK: Duration = Duration::from_millis(10);
    let began = std::time::Instant::now();
    loop {
        match open() {
            Err(MediaError::InUse { .. }) if began.elapsed() < PATIENCE => std::thread::sleep(LOOK),
            opened => return opened,
        }
    }
}

/// Opens a device of blocks.
///
/// Errors: exit 73 where what is there is of another format, damaged, too small, or used by another
/// process, and where a file cannot be made; 69 where requests cannot be carried out as they are to
/// be.
pub(super) fn open(config: &DeepDevice) -> Result<Arc<Deep>, Failure> {
    let opened = once_free(|| DeepFile::open(&config.path, Some(config.size.0)));
    let file = opened.map_err(|error| failure(Exit::CantCreate, config, &error))?;
    check_way(config, &file)?;
    if !file.blocks().is_direct() {
        let path = config.path.display();
        tracing::warn!(
            device = config.name,
            "no O_DIRECT on the file system of {path}: what is deep is in the kernel's page cache \
             too, takes memory that nobody accounts for, and is measured as fast as that"
        );
    }
    let profile = profile(config, &file)?;
    let (costs, prices) = (profile.costs(), profile.prices());
    let path = config.path.display();
    tracing::info!(
        device = config.name,
        %path,
        size = %Bytes(file.len_bytes()),
        model = config.model.as_ref().map_or("none", |model| &*model.name),
        reads_per_s = (1e9 / costs.small.each_ns).round(),
        write_bytes_per_s = profile.write_bytes_per_s.round(),
        "device of blocks open"
    );
    let model = config.model.clone();
    let model = model.map(|params| Emulation::new(BlockModel::new(params, MODEL_SEED)));
    let mut deep = Deep::new(config.name.clone(), file, prices, config.through, model);
    deep.costs = costs;
    Ok(Arc::new(deep))
}

/// Workers cannot say it later.
fn check_way(config: &DeepDevice, file: &DeepFile) -> Result<(), Failure> {
    if matches!(
        config.through,
        Through::Auto | Through::Threads | Through::Calls
    ) {
        return Ok(());
    }
    let support = Support::of(file.blocks());
    let support = support.map_err(|error| failure(Exit::Os, config, &error))?;
    let is_there = match config.through {
        Through::UringPolled => support.is_polled(),
        _ => support.uring_ns.is_some(),
    };
    match is_there {
        true => Ok(()),
        false => Err(Failure::new(
            Exit::Unavailable,
            format!(
                "device {:?}: io = {:?} is not to be had here (a 4 KiB read: {support}); \
                 io = \"auto\" takes what there is",
                config.name,
                way(config.through)
            ),
        )),
    }
}

fn profile(config: &DeepDevice, file: &DeepFile) -> Result<DeepProfile, Failure> {
    if let Some(params) = &config.model {
        return Ok(DeepProfile::of_model(params, file));
    }
    let path = config.profile.display();
    match DeepProfile::load(&config.profile) {
        Ok(profile) if profile.is_of(file) => return Ok(profile),
        Ok(_) => tracing::warn!("profile {path} is of another file: the device is profiled anew"),
        Err(_) if !config.profile.exists() => {
            tracing::info!(device = config.name, "no profile yet: profiling quickly");
        }
        Err(error) => tracing::warn!("{error}; the device is profiled anew"),
    }
    let made = DeepProfile::measure(file, config.through);
    let made = made.map_err(|error| failure(Exit::Os, config, &error))?;
    if made.write_is_assumed {
        tracing::info!(
            device = config.name,
            "its file is not new and is not written to: what writes take is assumed"
        );
    }
    let saved = made.save(&config.profile);
    saved.map_err(|error| failure(Exit::CantCreate, config, &error))?;
    Ok(made)
}

fn failure(code: Exit, config: &DeepDevice, error: &MediaError) -> Failure {
    Failure::new(code, format!("device {:?}: {error}", config.name))
}
