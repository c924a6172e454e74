//! What was found in a file, for people and for programs.
//!
//! What it never does: look at a file.

use crate::{Exit, Failure};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// See the module.
#[derive(Debug)]
pub(super) struct Report {
    file: PathBuf,
    kind: &'static str,
    facts: Vec<Fact>,
    damage: Vec<String>,
    repaired: bool,
}

#[derive(Debug)]
struct Fact {
    name: &'static str,
    text: String,
    value: Value,
}

impl Report {
    pub(super) fn of(file: &Path, kind: &'static str) -> Report {
        Report {
            file: file.to_owned(),
            kind,
            facts: Vec::new(),
            damage: Vec::new(),
            repaired: false,
        }
    }

    /// One line for people, with what programs get of it.
    pub(super) fn fact(&mut self, name: &'static str, text: impl Into<String>, value: Value) {
        let text = text.into();
        self.facts.push(Fact { name, text, value });
    }

    /// The same for a text.
    pub(super) fn text_fact(&mut self, name: &'static str, text: impl Into<String>) {
        let text = text.into();
        let value = Value::from(text.clone());
        self.fact(name, text, value);
    }

    /// When the file was made.
    pub(super) fn made(&mut self, unix_s: u64) {
        self.text_fact("made", moment(unix_s));
    }

    pub(super) fn damage(&mut self, what: String) {
        self.damage.push(what);
    }

    /// What was damaged is so no more.
    pub(super) fn repaired(&mut self) {
        self.repaired = true;
    }

    pub(super) fn text(&self) -> String {
        let mut out = format!("{}: {}\n", self.file.display(), self.kind);
        let width = self.facts.iter().map(|fact| fact.name.len()).max();
        for Fact { name, text, .. } in &self.facts {
            let _ = writeln!(out, "  {name:width$}  {text}", width = width.unwrap_or(0));
        }
        for damage in &self.damage {
            let _ = writeln!(out, "  damage: {damage}");
        }
        let verdict = match (self.repaired, self.damage.is_empty()) {
            (true, _) => "repaired",
            (false, true) => "sound",
            (false, false) => "damaged",
        };
        let _ = writeln!(out, "{verdict}");
        out
    }

    pub(super) fn json(&self) -> String {
        let mut facts = Map::new();
        for fact in &self.facts {
            facts.insert(fact.name.replace(' ', "_"), fact.value.clone());
        }
        let report = json!({
            "file": self.file,
            "kind": self.kind,
            "facts": facts,
            "damage": self.damage,
            "repaired": self.repaired,
        });
        format!("{report:#}\n")
    }

    /// Whether the file is sound now.
    pub(super) fn verdict(&self) -> Result<(), Failure> {
        match self.repaired || self.damage.is_empty() {
            true => Ok(()),
            false => Err(Failure::new(
                Exit::Damaged,
                format!("{} is damaged", self.file.display()),
            )),
        }
    }
}

/// A Unix time, in UTC.
fn moment(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).map(OffsetDateTime::from_unix_timestamp);
    match time {
        Ok(Ok(time)) => time.format(&Rfc3339).expect("years of four digits"),
        _ => format!("{unix_s} s after 1970"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_and_programs_are_told_the_same() {
        let mut report = Report::of(Path::new("a.image"), "image of a tenant");
        report.made(1_800_000_000);
        report.fact("items", "3 (1 has ended)", json!(3));
        assert!(report.verdict().is_ok() && report.text().ends_with("sound\n"));
        report.damage("2 values".to_owned());
        let text = report.text();
        assert!(text.contains("  made   2027-01-15T08:00:00Z\n"), "{text}");
        assert!(text.contains("  items  3 (1 has ended)\n  damage: 2 values\ndamaged\n"));
        let parsed: Value = serde_json::from_str(&report.json()).expect("JSON");
        assert_eq!(parsed["facts"]["items"], 3);
        assert_eq!(parsed["damage"][0], "2 values");
        assert_eq!(report.verdict().expect_err("damage").code, Exit::Damaged);
        report.repaired();
        assert!(report.verdict().is_ok() && report.text().ends_with("repaired\n"));
    }
}
