//! A tenant's journal: how many changes it has, where it ends, whether all of it is whole.
//!
//! What it never does: change a file.

use super::report::Report;
use crate::{Exit, Failure};
use nyx_base::Bytes;
use nyx_store::{JournalHealth, Replayed};
use serde_json::json;
use std::path::Path;

/// Looks at the journal in a directory.
pub(super) fn inspect(dir: &Path) -> Result<Report, Failure> {
    let health = JournalHealth::of(dir);
    let health = health.map_err(|error| Failure::new(Exit::Damaged, error.to_string()))?;
    let JournalHealth {
        name,
        files,
        read,
        sets,
        deletes,
        end,
    } = health;
    let Replayed {
        changes,
        bytes,
        file_bytes,
        damaged,
        ..
    } = read;
    let Some((first, last)) = files else {
        let message = format!("{} has no file of a journal", dir.display());
        return Err(Failure::new(Exit::NoInput, message));
    };
    let mut report = Report::of(dir, "journal of a tenant");
    report.text_fact("tenant", name.unwrap_or_else(|| "not known".to_owned()));
    let of = Bytes(file_bytes);
    report.fact(
        "files",
        format!("{first} to {last}, {of}"),
        json!([first, last]),
    );
    let others = changes - sets - deletes;
    let text = format!("{changes} ({sets} items, {deletes} deletes, {others} others)");
    report.fact("changes", text, json!(changes));
    report.fact("records", Bytes(bytes).to_string(), json!(bytes));
    match end {
        Some((number, at)) => {
            let text = format!("in file {number}, at byte {at} behind its header");
            report.fact("ends", text, json!([number, at]));
        }
        None => report.text_fact("ends", "with its last file"),
    }
    if damaged > 0 {
        report.damage(format!(
            "{damaged} places at which changes are lost that had been durable"
        ));
    }
    Ok(report)
}
