//! The knob table as flags and environment variables.
//!
//! What this module never does: read a value. It hands the texts to `layers`.

use super::knob::{Fallback, KNOBS, Knob};
use super::layers::{Origin, Override};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, Error};

/// What flags and environment variables set.
#[derive(Clone, Debug, Default)]
pub struct Overrides(pub Vec<Override>);

impl clap::Args for Overrides {
    fn augment_args(command: Command) -> Command {
        command.args(overridable().map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Overrides::augment_args(command)
    }
}

impl clap::FromArgMatches for Overrides {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Overrides, Error> {
        Ok(Overrides(
            overridable()
                .filter_map(|knob| given(knob, matches))
                .collect(),
        ))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = clap::FromArgMatches::from_arg_matches(matches)?;
        Ok(())
    }
}

fn overridable() -> impl Iterator<Item = &'static Knob> {
    KNOBS.iter().filter(|knob| knob.section.has_flags())
}

fn arg(knob: &'static Knob) -> Arg {
    let fallback = match knob.fallback {
        Fallback::Is(text) => text,
        Fallback::Unset(words) => words,
    };
    let arg = Arg::new(knob.flag())
        .long(knob.flag())
        .env(knob.env())
        .hide_env_values(true)
        .help_heading(format!("[{}]", knob.section.name()))
        .value_name(value_name(knob))
        .allow_hyphen_values(true)
        .help(format!("{} [default: {fallback}]", knob.doc));
    match knob.kind.is_list() {
        true => arg.action(ArgAction::Append).value_delimiter(','),
        false => arg.action(ArgAction::Set),
    }
}

fn value_name(knob: &Knob) -> String {
    let last = knob.name.rsplit('_').next().unwrap_or(knob.name);
    last.to_ascii_uppercase()
}

fn given(knob: &'static Knob, matches: &ArgMatches) -> Option<Override> {
    let flag = knob.flag();
    let origin = match matches.value_source(&flag)? {
        ValueSource::EnvVariable => Origin::Env(knob.env()),
        _ => Origin::Flag(format!("--{flag}")),
    };
    let texts = matches.get_many::<String>(&flag)?.cloned().collect();
    Some(Override {
        knob,
        texts,
        origin,
    })
}

/// Variables that look like ours and are not in the table: a mistyped name would otherwise be
/// ignored in silence. Each comes with the likely name, if there is one.
pub fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    let known: Vec<String> = overridable()
        .map(Knob::env)
        .chain(["NYX_CONFIG".to_string()])
        .collect();
    names
        .filter(|name| name.starts_with("NYX_") && !known.contains(name))
        .map(
            |name| match super::value::nearest(&name, known.iter().map(String::as_str)) {
                Some(word) => format!("{name} is no variable of ours; did you mean {word}?"),
                None => format!("{name} is no variable of ours"),
            },
        )
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, FromArgMatches as _};

    fn parse(args: &[&str]) -> Vec<(String, Vec<String>)> {
        let command = Overrides::augment_args(Command::new("t").no_binary_name(true));
        let matches = command.try_get_matches_from(args).expect("known flags");
        let overrides = Overrides::from_arg_matches(&matches).expect("infallible").0;
        overrides
            .into_iter()
            .map(|o| (o.origin.to_string(), o.texts))
            .collect()
    }

    #[test]
    fn flags_carry_their_name_and_lists_their_parts() {
        let found = parse(&["--tenant-size", "64MiB", "--listen", "1,2", "--listen=3"]);
        assert!(
            found.contains(&("--tenant-size".into(), vec!["64MiB".into()])),
            "{found:?}"
        );
        let listen = vec!["1".into(), "2".into(), "3".into()];
        assert!(found.contains(&("--listen".into(), listen)), "{found:?}");
    }

    #[test]
    fn a_mistyped_variable_is_noticed() {
        let names = ["NYX_WORKRES", "HOME", "NYX_WORKERS"].map(String::from);
        let found = unknown_variables(names.into_iter());
        assert_eq!(
            found,
            ["NYX_WORKRES is no variable of ours; did you mean NYX_WORKERS?"]
        );
    }
}
