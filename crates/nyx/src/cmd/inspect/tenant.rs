//! The image of a tenant that survives.
//!
//! What it never does: change the image, unless it is to be repaired; change the data file at all.

use super::report::Report;
use super::{Args, refused};
use crate::{Exit, Failure};
use indicatif::{ProgressBar, ProgressStyle};
use nyx_base::{Bytes, CachePadded, TenantId, UnixSeconds, WorkerId};
use nyx_gate::cost::STEPS;
use nyx_gate::{Account, Budget, CostTable, Device};
use nyx_media::mapped::uuid;
use nyx_media::{Image, Left, Mapped, Media, MediaError, TscClock};
use nyx_store::{About, Beginning, DeepHealth, Eras, Health, Purpose, Store, StoreError};
use nyx_tier::Tolls;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TENANT: TenantId = TenantId(0);
const WORKER: WorkerId = WorkerId(0);

/// Looks at the image, or repairs it.
pub(super) fn inspect(args: &Args) -> Result<Report, Failure> {
    let image = Image::look(&args.file).map_err(|error| refused(&error))?;
    let image = image.ok_or_else(|| damaged(format!("{} is empty", args.file.display())))?;
    let about = About::of_image(&image).map_err(|error| damaged(error.to_string()))?;
    let left = image.left();
    if args.repair && left == Left::Lost && !args.stale {
        return Err(damaged(format!(
            "{}: the machine lost power while it was in use, or it was given up: old values and \
             deleted items may come back; add --stale to repair it all the same",
            args.file.display()
        )));
    }
    let mut report = Report::of(&args.file, "image of a tenant");
    tell_image(&mut report, &image, &about);
    // Whoever repairs it must have it alone.
    drop(image);
    let data = data_file(args, &about)?;
    tell_values(&mut report, &about, data.as_ref());
    let (store, health) = examine(args, &about, data)?;
    tell_health(&mut report, &store, &health, left);
    if args.repair {
        store.close().map_err(|error| failed(&error))?;
        report.repaired();
    }
    Ok(report)
}

fn tell_image(report: &mut Report, image: &Image, about: &About) {
    let (image_format, format) = (Image::VERSION, About::FORMAT);
    report.text_fact("format", format!("image {image_format}, tenant {format}"));
    report.text_fact("id", uuid(&image.id()));
    report.made(image.created_unix_s());
    let left = match image.left() {
        Left::New => "not begun",
        Left::Clean => "closed in order",
        Left::Killed => "in use, and its user is gone: nothing that was stored is lost",
        Left::Lost => "in use when the machine lost power, or given up: of different ages",
    };
    report.text_fact("left", left);
    report.fact("tenant", format!("{:?}", about.name), json!(about.name));
    report.fact("size", Bytes(about.size).to_string(), json!(about.size));
    let segment = about.segment_bytes;
    report.fact("segment", Bytes(segment).to_string(), json!(segment));
}

fn tell_values(report: &mut Report, about: &About, data: Option<&Mapped>) {
    let (from, to) = (about.medium_base, about.medium_base + about.medium_len);
    let id = uuid(&about.data_id);
    let text = match data.and_then(Mapped::path) {
        Some(path) => format!("bytes {from} to {to} of {}, read", path.display()),
        None => format!(
            "bytes {from} to {to} of the data file {id}, which is not here: not read (--data)"
        ),
    };
    let value = json!({ "data_id": id, "from": from, "to": to, "read": data.is_some() });
    report.fact("values", text, value);
    if let Some(deep) = &about.deep {
        let (from, to, id) = (deep.base, deep.end(), uuid(&deep.id));
        let text = format!("bytes {from} to {to} of the deep file {id}: not read");
        let value = json!({ "deep_id": id, "from": from, "to": to, "read": false });
        report.fact("deep values", text, value);
    }
}

fn tell_health(report: &mut Report, store: &Store, health: &Health, left: Left) {
    let Health {
        items,
        ended,
        endless,
        key_bytes,
        value_bytes,
        dropped,
        damaged,
        unreachable,
        segments: (used, all),
        deep,
        image_bytes,
    } = *health;
    let text = format!("{items}, of which {endless} never expire and {ended} have ended");
    let value = json!({ "all": items, "endless": endless, "ended": ended });
    report.fact("items", text, value);
    report.fact("keys", Bytes(key_bytes).to_string(), json!(key_bytes));
    let values = Bytes(value_bytes).to_string();
    report.fact("values in all", values, json!(value_bytes));
    let segments = format!("{used} of {all} hold items");
    report.fact("segments", segments, json!({ "used": used, "all": all }));
    if let Some(deep) = deep {
        tell_deep(report, &deep);
    }
    let on_disk = Bytes(image_bytes).to_string();
    report.fact("on disk", on_disk, json!(image_bytes));
    if let Some(Beginning::Remade { why, from }) = store.beginning() {
        let text = format!("made anew from {} items", from.items);
        report.fact("index", text, json!({ "remade_from": from.items }));
        why.iter().for_each(|why| report.damage(why.clone()));
        if from.older > 0 {
            report.damage(format!("{} items were there twice", from.older));
        }
    }
    if dropped > 0 {
        let what = format!("{dropped} entries of the index led to nothing sound");
        match left {
            // What a killed worker had not finished looks the same.
            Left::Killed => report.fact("dropped", what, json!(dropped)),
            _ => report.damage(what),
        }
    }
    if damaged > 0 {
        report.damage(format!("{damaged} values were not what was stored"));
    }
    if unreachable > 0 {
        report.damage(format!(
            "{unreachable} items that no entry of the index leads to: --repair brings them back"
        ));
    }
}

fn tell_deep(report: &mut Report, deep: &DeepHealth) {
    let DeepHealth {
        segments: (used, all),
        stages: (staged, stages),
        items,
        value_bytes,
    } = *deep;
    let text = format!("{used} of {all} hold items, {staged} of them in one of {stages} stages");
    let value = json!({ "used": used, "all": all, "staged": staged, "stages": stages });
    report.fact("deep segments", text, value);
    let bytes = Bytes(value_bytes);
    let text = format!("{items} of {bytes}, which were not looked at");
    let value = json!({ "all": items, "value_bytes": value_bytes, "looked_at": 0 });
    report.fact("items on the deep device", text, value);
}

/// Opens the store in the image and looks at all of it.
fn examine(args: &Args, about: &About, data: Option<Mapped>) -> Result<(Store, Health), Failure> {
    let purpose = match args.repair {
        true => Purpose::Repair,
        false => Purpose::Look,
    };
    let config = about.store(&args.file, purpose);
    let eras = Arc::new(Eras::new(config.workers));
    let store = Store::new(config, eras.clone()).map_err(|error| failed(&error))?;
    let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    let now = UnixSeconds(now.as_secs() as u32);
    let bar = ProgressBar::no_length().with_style(
        ProgressStyle::with_template("{wide_bar} {percent} % of the index, {eta} left")
            .expect("a constant template"),
    );
    let mut tell = |done: u64, all: u64| {
        bar.set_length(all);
        bar.set_position(done);
    };
    eras.enter(WORKER);
    let health = match data {
        None => store.examine(None, now, &mut tell),
        Some(data) => {
            let mut tolls = tolls(data);
            store.examine(Some(&mut tolls.lane(TENANT)), now, &mut tell)
        }
    };
    eras.leave(WORKER);
    bar.finish_and_clear();
    let health = health.expect("the store is that of an image");
    Ok((store, health))
}

/// What reads the values: nobody else is there, so nothing is paced.
fn tolls(data: Mapped) -> Tolls {
    let rates = [1e9; STEPS];
    let device = Device {
        name: "data".to_owned(),
        media: Arc::new(data),
        cost: CostTable::from_max_iops(&rates, &rates),
    };
    let mut tolls = Tolls::new(WORKER, Arc::new(TscClock::start()));
    let account = Arc::new(CachePadded(Account::default()));
    tolls.open(
        TENANT,
        Arc::new(device),
        account,
        Arc::new(Budget::unlimited()),
    );
    tolls
}

/// The data file of an image's values, if it is there.
fn data_file(args: &Args, about: &About) -> Result<Option<Mapped>, Failure> {
    let end = about.medium_base.saturating_add(about.medium_len);
    if let Some(path) = &args.data {
        let data = Mapped::look(path).map_err(|error| refused(&error))?;
        let (asked, found) = (uuid(&about.data_id), uuid(&data.id().unwrap_or_default()));
        if asked != found || data.len() < end {
            return Err(Failure::usage(format!(
                "{} of {} has id {found}; the values are in bytes up to {end} of the one with id \
                 {asked}",
                path.display(),
                Bytes(data.len()),
            )));
        }
        return Ok(Some(data));
    }
    for path in nearby(&args.file) {
        match Mapped::look(&path) {
            Ok(data) if data.id() == Some(about.data_id) && data.len() >= end => {
                return Ok(Some(data));
            }
            Err(error @ MediaError::InUse { .. }) => {
                tracing::debug!("{error}");
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Files beside an image and in the directory above.
fn nearby(image: &Path) -> Vec<PathBuf> {
    let image = std::fs::canonicalize(image).unwrap_or_else(|_| image.to_owned());
    let directories = image.ancestors().skip(1).take(2);
    let entries = directories.filter_map(|directory| std::fs::read_dir(directory).ok());
    let files = entries
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()));
    files
        .filter(|path| path.is_file() && super::magic(path).is_ok_and(|it| it == *b"NYXDATA\0"))
        .collect()
}

fn damaged(message: String) -> Failure {
    Failure::new(Exit::Damaged, message)
}

fn failed(error: &StoreError) -> Failure {
    match error {
        StoreError::Memory(error) => refused(error),
        other => damaged(other.to_string()),
    }
}
