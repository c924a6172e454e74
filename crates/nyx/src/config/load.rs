//! From a command line's file, flags and environment to a checked `Config`.
//!
//! What this module never does: give a configuration that anything is wrong with.

use super::layers::{Origin, Problem, Settings};
use super::overrides::{Overrides, unknown_variables};
use super::{Config, assemble, document};
use crate::{Exit, Failure};
use std::path::{Path, PathBuf};

/// The part of a command line that says how the server is configured.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Source {
    /// The configuration file (TOML); without one, one tenant on one file-backed device.
    #[arg(
        long,
        short,
        value_name = "FILE",
        env = "NYX_CONFIG",
        hide_env_values = true
    )]
    pub config: Option<PathBuf>,
    /// Single knobs, which override the file.
    #[command(flatten)]
    pub overrides: Overrides,
}

/// A configuration and what there is to tell about it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What to run.
    pub config: Config,
    /// Each setting with the layer that it came from.
    pub settings: Settings,
    /// What is odd but allowed, for people.
    pub warnings: Vec<String>,
}

impl Source {
    /// Loads the configuration.
    ///
    /// Errors: exit 66 or 77 where the file cannot be read, 64 where anything in it, in a flag or
    /// in a variable is wrong; then the message has a line per problem.
    pub fn load(&self) -> Result<Loaded, Failure> {
        let text = match &self.config {
            Some(path) => read(path)?,
            None => String::new(),
        };
        let file = self.config.as_deref();
        let mut loaded =
            load(&text, &self.overrides).map_err(|problems| report(file, &problems))?;
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        loaded.warnings.extend(unknown_variables(names));
        Ok(loaded)
    }
}

/// Loads a configuration from the text of a file (empty: no file) and what overrides it.
pub fn load(text: &str, overrides: &Overrides) -> Result<Loaded, Vec<Problem>> {
    let (mut settings, mut problems) = document::read(text);
    problems.extend(settings.overlay(&overrides.0));
    // Crossing checks see only settings that could be read, so they say nothing wrong of the rest;
    // but a key that is misspelt would make them complain of its absence.
    if problems.is_empty() {
        let assembled = assemble::assemble(&settings);
        problems = assembled.problems;
        if problems.is_empty() {
            let (config, warnings) = (assembled.config, assembled.warnings);
            return Ok(Loaded {
                config,
                settings,
                warnings,
            });
        }
    }
    problems.sort_by(|a, b| a.origin.cmp(&b.origin));
    Err(problems)
}

fn read(path: &Path) -> Result<String, Failure> {
    let bytes = std::fs::read(path).map_err(|error| Failure::unreadable(path, &error))?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let shown = path.display();
        Failure::new(
            Exit::Usage,
            format!("{shown}: byte {at} is not UTF-8; is this a TOML file?"),
        )
    })
}

/// One line per problem; those of the file begin with its name, as compilers write it.
fn report(file: Option<&Path>, problems: &[Problem]) -> Failure {
    let lines: Vec<String> = problems
        .iter()
        .map(|problem| match (&problem.origin, file) {
            (Origin::File { .. }, Some(path)) => format!("{}:{problem}", path.display()),
            _ => problem.to_string(),
        })
        .collect();
    Failure::usage(lines.join("\n"))
}
