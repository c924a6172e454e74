//! Layers of settings: default < file < environment < flag. A later layer hides an earlier one, and
//! each setting remembers which layer it came from.
//!
//! What this module never does: check one setting against another (that is `assemble`'s part).

use super::knob::{Fallback, Knob, Section};
use super::value::Value;
use std::collections::BTreeMap;
use std::fmt;

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Nowhere: the knob's default.
    Default,
    /// The configuration file, at a line and column counted from 1.
    File {
        /// Line.
        line: usize,
        /// Column in characters.
        column: usize,
    },
    /// An environment variable.
    Env(String),
    /// A flag of the command line.
    Flag(String),
}

/// Something wrong with the configuration, said so that a person finds the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where the wrong value was written.
    pub origin: Origin,
    /// The key that is wrong, `tenant.size`; empty where it is the document as a whole.
    pub key: String,
    /// What is wrong with it.
    pub message: String,
}

/// A value and where it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// In its knob's range.
    pub value: Value,
    /// The layer that won.
    pub origin: Origin,
}

/// What a layer above the file sets: texts that are not read yet.
#[derive(Clone, Debug)]
pub struct Override {
    /// The knob that it sets.
    pub knob: &'static Knob,
    /// One text, or for a list any number.
    pub texts: Vec<String>,
    /// An environment variable or a flag.
    pub origin: Origin,
}

/// The settings of one table: `[server]`, or one of several `[[tenant]]`.
#[derive(Clone, Debug)]
pub struct Table {
    /// Which knobs may stand in it.
    pub section: Section,
    /// Where its header stands; `Default` where no file has it.
    pub origin: Origin,
    settings: BTreeMap<&'static str, Setting>,
}

/// Every table of a configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `[server]`
    pub server: Table,
    /// `[policy]`
    pub policy: Table,
    /// `[[device]]`, one unnamed table where the file has none.
    pub devices: Vec<Table>,
    /// `[[group]]`
    pub groups: Vec<Table>,
    /// `[[tenant]]`, one unnamed table where the file has none.
    pub tenants: Vec<Table>,
}

impl Problem {
    /// A problem with one value of a table.
    pub fn of(origin: &Origin, key: impl ToString, message: impl Into<String>) -> Problem {
        Problem {
            origin: origin.clone(),
            key: key.to_string(),
            message: message.into(),
        }
    }
}

/// `12:5: tenant.size: ...`, `--tenant-size: ...` or `NYX_TENANT_SIZE: ...`.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Default => {}
            origin => write!(f, "{origin}: ")?,
        }
        match self.key.as_str() {
            "" => f.write_str(&self.message),
            key => write!(f, "{key}: {}", self.message),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { line, column } => write!(f, "{line}:{column}"),
            Origin::Env(name) | Origin::Flag(name) => f.write_str(name),
        }
    }
}

impl Table {
    /// A table without settings.
    pub fn new(section: Section, origin: Origin) -> Table {
        Table {
            section,
            origin,
            settings: BTreeMap::new(),
        }
    }

    /// Reads a value and sets it, hiding what was there.
    pub fn set(
        &mut self,
        knob: &'static Knob,
        texts: &[String],
        origin: Origin,
    ) -> Result<(), Problem> {
        match knob.kind.parse(texts) {
            Ok(value) => {
                self.settings.insert(knob.name, Setting { value, origin });
                Ok(())
            }
            Err(message) => Err(Problem::of(&origin, knob, message)),
        }
    }

    /// What is set for the knob of this name, if anything.
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.settings.get(name)
    }

    /// Where the knob of this name was set; the table's own place where it was not.
    pub fn origin_of(&self, name: &str) -> &Origin {
        match self.get(name) {
            Some(Setting {
                origin: Origin::Default,
                ..
            })
            | None => &self.origin,
            Some(setting) => &setting.origin,
        }
    }

    /// Sets every knob that is not set and has a default.
    fn fill_defaults(&mut self) {
        for knob in self.section.knobs() {
            if let (Fallback::Is(_), None) = (knob.fallback, self.get(knob.name)) {
                let value = knob.fallback_value().expect("it is not unset");
                self.settings.insert(
                    knob.name,
                    Setting {
                        value,
                        origin: Origin::Default,
                    },
                );
            }
        }
    }
}

impl Settings {
    /// No tables but the two that every configuration has.
    pub fn new() -> Settings {
        Settings {
            server: Table::new(Section::Server, Origin::Default),
            policy: Table::new(Section::Policy, Origin::Default),
            devices: Vec::new(),
            groups: Vec::new(),
            tenants: Vec::new(),
        }
    }

    /// Lays environment and flags over the file, and the defaults under it.
    ///
    /// A flag for a device or a tenant needs exactly one of them, because it cannot say which it
    /// means; so does a variable. Returns what could not be applied.
    pub fn overlay(&mut self, overrides: &[Override]) -> Vec<Problem> {
        for (section, tables) in [
            (Section::Device, &mut self.devices),
            (Section::Tenant, &mut self.tenants),
        ] {
            if tables.is_empty() {
                tables.push(Table::new(section, Origin::Default));
            }
        }
        let mut problems = Vec::new();
        // Variables first, so that a flag wins whatever the order in which they were found.
        let is_env = |o: &&Override| matches!(o.origin, Origin::Env(_));
        let in_order = overrides
            .iter()
            .filter(is_env)
            .chain(overrides.iter().filter(|o| !is_env(o)));
        for Override {
            knob,
            texts,
            origin,
        } in in_order
        {
            let applied = match self.only_table(knob.section) {
                Ok(table) => table.set(knob, texts, origin.clone()),
                Err(count) => {
                    let section = knob.section.name();
                    Err(Problem::of(
                        origin,
                        "",
                        format!(
                            "sets the only {section}, but the file has {count}: \
                             set {} in its [[{section}]] table",
                            knob.name
                        ),
                    ))
                }
            };
            problems.extend(applied.err());
        }
        for table in self.tables_mut() {
            table.fill_defaults();
        }
        problems
    }

    /// Every table, in the order in which people read them.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        [&self.server, &self.policy]
            .into_iter()
            .chain(&self.devices)
            .chain(&self.groups)
            .chain(&self.tenants)
    }

    fn tables_mut(&mut self) -> impl Iterator<Item = &mut Table> {
        let single = [&mut self.server, &mut self.policy];
        single
            .into_iter()
            .chain(&mut self.devices)
            .chain(&mut self.groups)
            .chain(&mut self.tenants)
    }

    fn only_table(&mut self, section: Section) -> Result<&mut Table, usize> {
        let tables = match section {
            Section::Server => return Ok(&mut self.server),
            Section::Policy => return Ok(&mut self.policy),
            Section::Device => &mut self.devices,
            Section::Group => &mut self.groups,
            Section::Tenant => &mut self.tenants,
        };
        match tables.as_mut_slice() {
            [only] => Ok(only),
            several => Err(several.len()),
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::new()
    }
}
