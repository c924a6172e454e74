//! `nyx knobs`: prints the knob table, for people or as `docs/knobs.md`.
//!
//! What it never does: know a knob. It prints what the table has.

use crate::Failure;
use crate::config::knob::{Fallback, Knob, Section};
use std::fmt::Write as _;

/// Print every knob: unit, range, default, flag, variable, paper section.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  nyx knobs                              the whole table
  nyx knobs tenant                       the keys of [[tenant]]
  nyx knobs --markdown > docs/knobs.md   what the documentation holds")]
pub struct Args {
    /// Only knobs whose name contains this.
    #[arg(value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
    /// As Markdown.
    #[arg(long)]
    markdown: bool,
}

/// Prints the table.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.markdown {
        true => super::print(&markdown()),
        false => super::print(&plain(&args.filter)),
    }
}

/// `docs/knobs.md`.
pub fn markdown() -> String {
    let mut text = String::from(HEAD);
    for section in Section::ALL {
        let header = header(section);
        let _ = write!(text, "\n## `{header}`\n\n{COLUMNS}");
        for knob in section.knobs() {
            let paper = if knob.paper.is_empty() {
                "-"
            } else {
                knob.paper
            };
            let _ = writeln!(
                text,
                "| `{}` | {} | {} | {} | {paper} | {} | {} |",
                knob.name,
                or_dash(knob.kind.unit()),
                knob.kind,
                fallback(knob, "`"),
                set_by(knob, "`"),
                knob.doc
            );
        }
    }
    text
}

const HEAD: &str = "# Knobs

This page is generated from the knob table by `cargo xtask docs`; a test fails when it is stale.

A value is taken from the flag, else from the environment variable, else from the file, else the
default holds; `nyx check-config --print FILE` shows which it was. Flags and variables of devices
and tenants mean the only one of them: where a file has several, set the key in its table. Sizes
are bytes or carry a binary unit (`512KiB`, `64MiB`, `2GiB`). The paper is NyxCache (FAST'22).
";

const COLUMNS: &str = "| key | unit | range | default | paper | flag, variable | what it does |
|---|---|---|---|---|---|---|
";

fn plain(filter: &str) -> String {
    let mut text = String::new();
    for section in Section::ALL {
        let knobs: Vec<&Knob> = section
            .knobs()
            .filter(|knob| knob.to_string().contains(filter))
            .collect();
        if knobs.is_empty() {
            continue;
        }
        let _ = writeln!(text, "{}\n", header(section));
        for knob in knobs {
            let _ = writeln!(text, "  {}", knob.name);
            let _ = writeln!(text, "      {}", knob.doc);
            let _ = writeln!(text, "      range    {}", knob.kind);
            let _ = writeln!(text, "      default  {}", fallback(knob, ""));
            let _ = writeln!(text, "      set by   {}", set_by(knob, ""));
            if !knob.paper.is_empty() {
                let _ = writeln!(text, "      paper    section {}", knob.paper);
            }
            text.push('\n');
        }
    }
    text
}

fn header(section: Section) -> String {
    match section.is_list() {
        true => format!("[[{}]]", section.name()),
        false => format!("[{}]", section.name()),
    }
}

/// The default: a value in `quote`s, or the words that stand for one.
fn fallback(knob: &Knob, quote: &str) -> String {
    match knob.fallback {
        Fallback::Is(text) => format!("{quote}{text}{quote}"),
        Fallback::Unset(words) => words.to_string(),
    }
}

/// The flag and the variable in `quote`s, where the knob has them.
fn set_by(knob: &Knob, quote: &str) -> String {
    match knob.section.has_flags() {
        true => format!(
            "{quote}--{}{quote}, {quote}{}{quote}",
            knob.flag(),
            knob.env()
        ),
        false => "the file only".into(),
    }
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::knob::KNOBS;

    #[test]
    fn the_documentation_holds_what_the_table_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/knobs.md");
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            written == markdown(),
            "docs/knobs.md is stale: run `cargo xtask docs`"
        );
    }

    #[test]
    fn every_knob_is_in_both_forms_once() {
        let (markdown, plain) = (markdown(), plain(""));
        for knob in KNOBS.iter().filter(|knob| knob.section.has_flags()) {
            assert_eq!(
                markdown.matches(&format!("`{}`", knob.env())).count(),
                1,
                "{knob}"
            );
            assert_eq!(
                plain.matches(&format!(", {}\n", knob.env())).count(),
                1,
                "{knob}"
            );
        }
    }
}
