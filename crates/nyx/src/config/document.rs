//! A TOML file as settings: each with the line and column of its key or value.
//!
//! What this module never does: open the file, or accept a key that the knob table does not have.

use super::knob::{Knob, Section};
use super::layers::{Origin, Problem, Settings, Table};
use super::value::nearest;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// Reads a whole document. Everything wrong with it is found at once; the settings that are right
/// are there in any case.
pub fn read(text: &str) -> (Settings, Vec<Problem>) {
    let mut reader = Reader {
        text,
        settings: Settings::new(),
        problems: Vec::new(),
    };
    match DeTable::parse(text) {
        Ok(document) => reader.document(document.get_ref()),
        Err(error) => {
            let origin = reader.origin(error.span().unwrap_or(0..0));
            reader
                .problems
                .push(Problem::of(&origin, "", error.message().trim()));
        }
    }
    (reader.settings, reader.problems)
}

struct Reader<'a> {
    text: &'a str,
    settings: Settings,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn document(&mut self, document: &DeTable<'_>) {
        for (key, value) in document {
            let name = key.get_ref().as_ref();
            let Some(section) = Section::ALL.into_iter().find(|s| s.name() == name) else {
                self.unknown(key.span(), name, name, Section::ALL.map(Section::name));
                continue;
            };
            match (section.is_list(), value.get_ref()) {
                (false, DeValue::Table(table)) => {
                    let read = self.table(section, value.span(), table);
                    match section {
                        Section::Server => self.settings.server = read,
                        _ => self.settings.policy = read,
                    }
                }
                (true, DeValue::Array(tables)) => self.tables(section, tables),
                (list, _) => {
                    let header = if list {
                        format!("[[{name}]]")
                    } else {
                        format!("[{name}]")
                    };
                    self.problem(key.span(), name, format!("is a table: write {header}"));
                }
            }
        }
    }

    fn tables(&mut self, section: Section, tables: &DeArray<'_>) {
        for item in tables.iter() {
            let DeValue::Table(table) = item.get_ref() else {
                let name = section.name();
                self.problem(item.span(), name, format!("is a table: write [[{name}]]"));
                continue;
            };
            let read = self.table(section, item.span(), table);
            match section {
                Section::Device => self.settings.devices.push(read),
                Section::Group => self.settings.groups.push(read),
                _ => self.settings.tenants.push(read),
            }
        }
    }

    fn table(&mut self, section: Section, span: Range<usize>, from: &DeTable<'_>) -> Table {
        let mut table = Table::new(section, self.origin(span));
        for (key, value) in from {
            let name = key.get_ref().as_ref();
            let Some(knob) = section.knobs().find(|knob| knob.name == name) else {
                let path = format!("{}.{name}", section.name());
                self.unknown(
                    key.span(),
                    &path,
                    name,
                    section.knobs().map(|knob| knob.name),
                );
                continue;
            };
            let set = texts_of(knob, value)
                .map_err(|message| Problem::of(&self.origin(value.span()), knob, message))
                .and_then(|texts| table.set(knob, &texts, self.origin(value.span())));
            self.problems.extend(set.err());
        }
        table
    }

    fn unknown<'n>(
        &mut self,
        span: Range<usize>,
        path: &str,
        name: &str,
        known: impl IntoIterator<Item = &'n str>,
    ) {
        let hint = match nearest(name, known.into_iter()) {
            Some(word) => format!("unknown key; did you mean `{word}`?"),
            None => "unknown key".to_string(),
        };
        self.problem(span, path, hint);
    }

    fn problem(&mut self, span: Range<usize>, key: &str, message: String) {
        let origin = self.origin(span);
        self.problems.push(Problem::of(&origin, key, message));
    }

    fn origin(&self, span: Range<usize>) -> Origin {
        let before = &self.text[..span.start.min(self.text.len())];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Origin::File {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

/// The texts of a TOML value; an error where its type is not what the knob takes.
fn texts_of(knob: &Knob, value: &Spanned<DeValue<'_>>) -> Result<Vec<String>, String> {
    match value.get_ref() {
        DeValue::Array(items) if knob.kind.is_list() => {
            items.iter().map(|item| text_of(knob, item)).collect()
        }
        _ => Ok(vec![text_of(knob, value)?]),
    }
}

fn text_of(knob: &Knob, value: &Spanned<DeValue<'_>>) -> Result<String, String> {
    match value.get_ref() {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(n) if knob.kind.takes_integer() && n.radix() == 10 => {
            Ok(n.as_str().replace('_', ""))
        }
        DeValue::Float(number) if knob.kind.takes_fraction() => {
            Ok(number.as_str().replace('_', ""))
        }
        DeValue::Boolean(on) if knob.kind.is_switch() => Ok(on.to_string()),
        other => Err(format!(
            "is {} here; it takes {}",
            other.type_str(),
            knob.kind
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        read(text).1.iter().map(Problem::to_string).collect()
    }

    #[test]
    fn an_unknown_key_is_found_with_line_column_and_the_likely_word() {
        let text = "[server]\nworkers = 2\n\n[[tenant]]\n  evicton = \"lru\"\n";
        let expected = "5:3: tenant.evicton: unknown key; did you mean `eviction`?";
        assert_eq!(problems(text), [expected]);
        assert_eq!(
            problems("[sever]"),
            ["1:2: sever: unknown key; did you mean `server`?"]
        );
        assert_eq!(problems("zzz = 1"), ["1:1: zzz: unknown key"]);
    }

    #[test]
    fn all_problems_are_found_at_once() {
        let text = "[server]\nworkers = 1000\nbacklog = \"x\"\n[policy]\ntick_ms = 0\n";
        let found = problems(text);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(
            found.iter().any(|p| p.starts_with("2:11: server.workers:")),
            "{found:?}"
        );
        assert!(
            found.iter().any(|p| p.contains("1 to 1000 ms")),
            "{found:?}"
        );
    }

    #[test]
    fn wrong_types_say_what_is_taken() {
        let found = problems("[[tenant]]\nlimit = 5\n");
        assert!(
            found[0].contains("is integer here; it takes none, N std-ops/s"),
            "{found:?}"
        );
        assert!(problems("tenant = 5")[0].contains("write [[tenant]]"));
        assert!(problems("[[server]]")[0].contains("write [server]"));
    }

    #[test]
    fn broken_toml_is_a_problem_with_a_place() {
        let found = problems("[server]\nworkers = = 2\n");
        assert!(found[0].starts_with("2:1"), "{found:?}");
    }

    #[test]
    fn integers_may_stand_for_sizes_counts_and_ports() {
        let text = "[server]\nlisten = [11211, \"unix:/a\"]\nworkers = 1_0\n\
                    [[device]]\nsize = 1073741824\n";
        let (settings, problems) = read(text);
        assert_eq!(problems, []);
        let listen = settings
            .server
            .get("listen")
            .expect("set")
            .value
            .to_string();
        assert_eq!(listen, "127.0.0.1:11211,unix:/a");
        assert_eq!(
            settings
                .server
                .get("workers")
                .expect("set")
                .value
                .to_string(),
            "10"
        );
        assert_eq!(
            settings.devices[0]
                .get("size")
                .expect("set")
                .value
                .to_string(),
            "1GiB"
        );
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(
            text in "\\PC{0,40}(\\[{0,2}(server|tenant|device)\\]{0,2}\n\\PC{0,40}){0,3}",
        ) {
            read(&text);
        }
    }
}
