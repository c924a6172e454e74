//! A data file: that of a device, or one with an index in it.
//!
//! What it never does: change the file.

use super::refused;
use super::report::Report;
use crate::Failure;
use nyx_base::{Bytes, WorkerId};
use nyx_index::fast_fair::FastFair;
use nyx_index::fp_tree::FpTree;
use nyx_index::heap::{Heap, HeapError, ROOTS};
use nyx_index::ordered::Census;
use nyx_index::pm_hash::PmHash;
use nyx_index::skip_list::SkipList;
use nyx_index::{Eras, Persistent};
use nyx_media::mapped::uuid;
use nyx_media::{Mapped, Media, Origin};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

const WORKER: WorkerId = WorkerId(0);

/// An index of a heap, with the same root as others have.
type Look = fn(&Arc<Heap<Mapped>>, usize) -> Option<Census>;

/// Every index that may be at a root.
const INDEXES: [(&str, Look); 4] = [
    ("FAST-FAIR tree", look::<FastFair<Mapped>>),
    ("FP-Tree", look::<FpTree<Mapped>>),
    ("skip list", look::<SkipList<Mapped>>),
    ("persistent hash", look::<PmHash<Mapped>>),
];

/// Looks at the file.
pub(super) fn inspect(path: &Path) -> Result<Report, Failure> {
    let medium = Mapped::look(path).map_err(|error| refused(&error))?;
    let mut report = Report::of(path, "data file");
    report.text_fact("format", "1");
    report.text_fact("id", uuid(&medium.id().unwrap_or_default()));
    report.made(medium.created_unix_s().unwrap_or_default());
    report.text_fact(
        "left",
        match medium.origin() {
            Origin::Clean => "closed in order",
            Origin::Fresh | Origin::Dirty => "not closed by its last user, or on purpose",
        },
    );
    let len = medium.len();
    report.fact("medium", Bytes(len).to_string(), json!(len));
    match Heap::open(medium, Arc::new(Eras::new(1))) {
        // Values of tenants, which only their images can tell.
        Err(HeapError::NotAHeap { .. }) => report.text_fact("holds", "values, or nothing"),
        Err(error) => report.damage(error.to_string()),
        Ok(heap) => heap_in(&mut report, Arc::new(heap)),
    }
    Ok(report)
}

fn heap_in(report: &mut Report, heap: Arc<Heap<Mapped>>) {
    report.text_fact("holds", "a heap of format 1");
    report.fact("heap id", heap.id().to_string(), json!(heap.id()));
    // This look has opened it once more.
    let opened = heap.generation() - 1;
    report.fact("opened", format!("{opened} times"), json!(opened));
    let mut indexes: Vec<(usize, &str, Census)> = Vec::new();
    for root in (0..ROOTS).filter(|&root| heap.read_root(root) != 0) {
        let fits = |&(name, look): &(&'static str, Look)| Some((name, look(&heap, root)?));
        let found: Vec<(&str, Census)> = INDEXES.iter().filter_map(fits).collect();
        // Keys of bytes keep a number there, how many layers they took (docs/format.md).
        let is_number = heap.class_of(heap.read_root(root)).is_none()
            && indexes.iter().any(|&(at, ..)| at + 1 == root);
        if found.is_empty() && !is_number {
            report.damage(format!(
                "root {root} leads to nothing that is a sound index of nyx-index"
            ));
        }
        indexes.extend(found.into_iter().map(|(name, census)| (root, name, census)));
    }
    let text = |(root, name, census): &(usize, &str, Census)| {
        let Census {
            entries,
            nodes,
            levels,
            ..
        } = census;
        format!("{name} at root {root}: {entries} entries in {nodes} nodes, {levels} levels")
    };
    let texts: Vec<String> = indexes.iter().map(text).collect();
    let each = indexes.iter().map(|(root, name, census)| {
        json!({ "root": root, "index": name, "entries": census.entries, "nodes": census.nodes })
    });
    let text = match texts.is_empty() {
        true => "none".to_owned(),
        false => texts.join(" | "),
    };
    report.fact("indexes", text, json!(each.collect::<Vec<_>>()));
}

/// What a full check of the index counts, where there is such a one.
fn look<I: Persistent<Mapped>>(heap: &Arc<Heap<Mapped>>, root: usize) -> Option<Census> {
    I::open(heap.clone(), root, WORKER).ok()?.check().ok()
}
