//! Logs: lines of logfmt (or JSON) on standard error, with UTC times as RFC 3339 has them.
//!
//! What it never does: write to standard output, which belongs to the command's result.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The part of every command line that says what is logged and how.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct Options {
    /// Log more: debug, twice for trace.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Logs")]
    pub verbose: u8,
    /// Log less: warnings, twice for errors only.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Logs")]
    pub quiet: u8,
    /// How a line is written.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        help_heading = "Logs"
    )]
    pub log_format: Format,
}

/// How a log line is written.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `ts=... level=info msg="..." key=value`
    #[default]
    Logfmt,
    /// One JSON object per line.
    Json,
}

impl Options {
    /// The level from which on lines are written.
    pub fn level(self) -> LevelFilter {
        match i16::from(self.verbose) - i16::from(self.quiet) {
            ..=-2 => LevelFilter::ERROR,
            -1 => LevelFilter::WARN,
            0 => LevelFilter::INFO,
            1 => LevelFilter::DEBUG,
            2.. => LevelFilter::TRACE,
        }
    }

    /// Starts logging for the whole process. A second call changes nothing.
    pub fn start(self) {
        let registry = tracing_subscriber::registry().with(self.level());
        let started = match self.log_format {
            Format::Logfmt => {
                let lines = tracing_logfmt::builder().with_target(false).layer();
                registry.with(lines.with_writer(std::io::stderr)).try_init()
            }
            Format::Json => {
                let lines = tracing_subscriber::fmt::layer().json().flatten_event(true);
                registry.with(lines.with_writer(std::io::stderr)).try_init()
            }
        };
        // Tests run several commands in one process; the first one's format stands.
        let _ = started;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbose_and_quiet_move_the_level_both_ways() {
        let level = |verbose, quiet| {
            Options {
                verbose,
                quiet,
                ..Options::default()
            }
            .level()
        };
        assert_eq!(level(0, 0), LevelFilter::INFO);
        assert_eq!(level(1, 0), LevelFilter::DEBUG);
        assert_eq!(level(9, 0), LevelFilter::TRACE);
        assert_eq!(level(0, 1), LevelFilter::WARN);
        assert_eq!(level(0, 3), LevelFilter::ERROR);
        assert_eq!(level(2, 2), LevelFilter::INFO);
    }
}
