//! `nyx memcached`: memcached's own command line, so that its packages, charts and scripts start
//! Nyx unchanged. One tenant in anonymous memory, no policy.
//!
//! What it never does: pretend. A flag that has no counterpart here and that someone may rely on is
//! an error; a flag that only tunes what Nyx does not have is a warning.

use crate::config::knob::{Knob, Section};
use crate::config::layers::{Origin, Override};
use crate::config::load::load;
use crate::config::overrides::Overrides;
use crate::serving::Options;
use crate::{Exit, Failure};
use clap::ArgAction;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

/// Serve like memcached, with memcached's flags.
#[derive(clap::Args, Debug, Default)]
#[command(after_help = "Examples:
  nyx memcached -m 64 -p 11211 -t 2            64 MiB on port 11211, two workers
  nyx memcached -l 127.0.0.1 -p 0 -s /run/nyx.sock -a 0770
  nyx memcached -m 1024 -I 4m -c 4096 -Y users.txt

Flags that tune memcached's slabs, LRU and hash table are accepted and told as warnings. For several
tenants, limits and devices, use `nyx serve --config FILE`.")]
pub struct Args {
    /// Memory in MiB.
    #[arg(short = 'm', long, value_name = "MIB", default_value_t = 64)]
    memory_limit: u64,
    /// TCP port; 0 is off.
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = 11211)]
    port: u16,
    /// UDP port: only 0 (off), Nyx has no UDP.
    #[arg(short = 'U', long, value_name = "PORT", default_value_t = 0)]
    udp_port: u16,
    /// Unix socket to listen on; turns TCP off.
    #[arg(short = 's', long, value_name = "PATH")]
    unix_socket: Option<PathBuf>,
    /// Permission bits of the unix socket, octal.
    #[arg(short = 'a', long, value_name = "MODE", default_value = "0700")]
    unix_mask: String,
    /// Addresses to listen on, separated by commas: HOST or HOST:PORT [default: all].
    #[arg(short = 'l', long, value_name = "ADDR", value_delimiter = ',')]
    listen: Vec<String>,
    /// Most connections at a time.
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1024)]
    conn_limit: u64,
    /// Worker threads.
    #[arg(short = 't', long, value_name = "N", default_value_t = 4)]
    threads: u64,
    /// The largest item: bytes, or with k or m.
    #[arg(short = 'I', long, value_name = "SIZE", default_value = "1m")]
    max_item_size: String,
    /// Connections that may wait for accept.
    #[arg(short = 'b', long, value_name = "N", default_value_t = 1024)]
    backlog_limit: u64,
    /// Protocol: auto or ascii.
    #[arg(short = 'B', long, value_name = "NAME", default_value = "auto")]
    protocol: String,
    /// A file of user:password lines; clients then log in first.
    #[arg(short = 'Y', long, value_name = "FILE")]
    auth_file: Option<PathBuf>,
    /// Writes the process id to this file.
    #[arg(short = 'P', long, value_name = "FILE")]
    pidfile: Option<PathBuf>,
    /// Log more; twice for trace.
    #[arg(short = 'v', long, action = ArgAction::Count)]
    verbose: u8,
    /// The user to become; only who runs this command already.
    #[arg(short = 'u', long, value_name = "NAME")]
    user: Option<String>,
    /// Obey the shutdown command.
    #[arg(short = 'A', long)]
    enable_shutdown: bool,
    /// Options as name or name=value, separated by commas.
    #[arg(short = 'o', long, value_name = "OPTIONS", value_delimiter = ',')]
    extended: Vec<String>,
    #[command(flatten)]
    refused: Refused,
    #[command(flatten)]
    ignored: Ignored,
}

/// Flags that someone may rely on and that Nyx cannot honour.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Refused")]
struct Refused {
    /// Run in the background.
    #[arg(short = 'd', long)]
    daemon: bool,
    /// Fail instead of evicting.
    #[arg(short = 'M', long)]
    disable_evictions: bool,
    /// Refuse flush_all.
    #[arg(short = 'F', long)]
    disable_flush_all: bool,
    /// SASL logins.
    #[arg(short = 'S', long)]
    enable_sasl: bool,
    /// TLS.
    #[arg(short = 'Z', long)]
    enable_ssl: bool,
    /// Keep items in this file over a restart.
    #[arg(short = 'e', long, value_name = "FILE")]
    memory_file: Option<PathBuf>,
}

/// Flags whose effect Nyx does not need.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Accepted without effect")]
struct Ignored {
    /// Commands per event.
    #[arg(short = 'R', long, value_name = "N")]
    max_reqs_per_event: Option<u64>,
    /// No CAS numbers: they cost nothing here.
    #[arg(short = 'C', long)]
    disable_cas: bool,
    /// Lock all memory.
    #[arg(short = 'k', long)]
    lock_memory: bool,
    /// Large pages: taken where the system offers them.
    #[arg(short = 'L', long)]
    enable_largepages: bool,
    /// Core dumps.
    #[arg(short = 'r', long)]
    enable_coredumps: bool,
    /// Slab growth factor.
    #[arg(short = 'f', long, value_name = "FACTOR")]
    slab_growth_factor: Option<String>,
    /// Smallest slab.
    #[arg(short = 'n', long, value_name = "BYTES")]
    slab_min_size: Option<u64>,
    /// Delimiter of prefix statistics.
    #[arg(short = 'D', long, value_name = "CHAR")]
    delimiter: Option<String>,
    /// No lru_crawler dumps: there are none.
    #[arg(short = 'X', long)]
    disable_dumping: bool,
    /// No watch command: there is none.
    #[arg(short = 'W', long)]
    disable_watch: bool,
}

/// A knob that a flag sets: its section and name, the texts, and the flag for messages.
type Flag = (Section, &'static str, Vec<String>, &'static str);

/// Serves until a signal ends it.
pub fn run(args: Args) -> Result<(), Failure> {
    args.refuse()?;
    let mut warnings = args.ignored.told();
    let overrides = Overrides(args.overrides(&mut warnings)?);
    let reload = || {
        load("", &overrides).map_err(|problems| {
            let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
            Failure::usage(lines.join("\n"))
        })
    };
    let mut loaded = reload()?;
    loaded.warnings.extend(warnings);
    let _pidfile = args.pidfile.map(PidFile::write).transpose()?;
    // Without a policy nothing needs a price, and memcached starts at once and writes no files.
    let options = Options {
        shutdown_allowed: args.enable_shutdown,
        unpriced: true,
    };
    super::serve::start(loaded, options, &reload)
}

impl Args {
    /// The error of the first flag that cannot be honoured.
    fn refuse(&self) -> Result<(), Failure> {
        let refused = &self.refused;
        let is_other_user = self.user.as_deref().is_some_and(|name| name != "root");
        let asked = [
            (
                refused.daemon,
                "-d: Nyx stays in the foreground; run it under a service manager",
            ),
            (
                refused.disable_evictions,
                "-M: Nyx always evicts when a tenant is full",
            ),
            (refused.disable_flush_all, "-F: Nyx cannot refuse flush_all"),
            (
                refused.enable_sasl,
                "-S: Nyx has no SASL; use -Y FILE for ASCII logins",
            ),
            (
                refused.enable_ssl,
                "-Z: Nyx has no TLS; put a TLS proxy before it",
            ),
            (
                refused.memory_file.is_some(),
                "-e: Nyx cannot keep items over a restart yet",
            ),
            (
                self.udp_port != 0,
                "-U: Nyx has no UDP; only -U 0 is accepted",
            ),
            (
                is_other_user && rustix::process::geteuid().is_root(),
                "-u: Nyx does not change its user; start it as the user that it is to run as",
            ),
            (
                !["auto", "ascii"].contains(&self.protocol.as_str()),
                "-B: Nyx speaks ascii (classic and meta commands) only",
            ),
            (
                self.port == 0 && self.unix_socket.is_none(),
                "-p 0 without -s: no way in is left",
            ),
        ];
        match asked.into_iter().find(|(is_asked, _)| *is_asked) {
            Some((_, why)) => Err(Failure::usage(why)),
            None => Ok(()),
        }
    }

    /// The flags as settings of knobs.
    fn overrides(&self, warnings: &mut Vec<String>) -> Result<Vec<Override>, Failure> {
        let size = vec![format!("{}MiB", self.memory_limit)];
        let item_len_max = item_size(&self.max_item_size)?;
        let segment_bytes = item_len_max.next_power_of_two().max(1 << 20);
        let one = |n: u64| vec![n.to_string()];
        let mut settings: Vec<Flag> = vec![
            (Section::Device, "kind", vec!["anon".to_string()], "-m"),
            (Section::Device, "size", size.clone(), "-m"),
            (Section::Tenant, "size", size, "-m"),
            (Section::Tenant, "item_len_max", one(item_len_max), "-I"),
            (Section::Tenant, "segment_bytes", one(segment_bytes), "-I"),
            (
                Section::Tenant,
                "eviction",
                vec!["lru".to_string()],
                "memcached",
            ),
            (
                Section::Policy,
                "kind",
                vec!["none".to_string()],
                "memcached",
            ),
            (Section::Server, "workers", one(self.threads), "-t"),
            (
                Section::Server,
                "max_connections",
                one(self.conn_limit),
                "-c",
            ),
            (Section::Server, "backlog", one(self.backlog_limit), "-b"),
            (
                Section::Server,
                "unix_mode",
                vec![self.unix_mask.clone()],
                "-a",
            ),
            (Section::Server, "listen", self.addresses()?, "-l"),
        ];
        if let Some(path) = &self.auth_file {
            settings.push((
                Section::Tenant,
                "users",
                vec![path.display().to_string()],
                "-Y",
            ));
        }
        settings.extend(self.extended(warnings)?);
        let overrides = settings
            .into_iter()
            .map(|(section, name, texts, flag)| Override {
                knob: Knob::named(section, name),
                texts,
                origin: Origin::Flag(flag.to_string()),
            });
        Ok(overrides.collect())
    }

    /// The `-o` options: one of them sets a knob, the rest tune what Nyx does not have.
    fn extended(&self, warnings: &mut Vec<String>) -> Result<Vec<Flag>, Failure> {
        let mut settings = Vec::new();
        for option in &self.extended {
            match option.split_once('=').unwrap_or((option, "")) {
                ("idle_timeout", seconds) => {
                    let seconds = vec![seconds.to_string()];
                    settings.push((
                        Section::Server,
                        "idle_timeout_s",
                        seconds,
                        "-o idle_timeout",
                    ));
                }
                (name, _) if TUNING.contains(&name.trim_start_matches("no_")) => {
                    warnings.push(format!("-o {option} has no effect here"));
                }
                (name, _) => return Err(Failure::usage(format!("-o {name}: unknown option"))),
            }
        }
        Ok(settings)
    }

    /// `-s` turns TCP off, as in memcached; otherwise `-l` with `-p`, or all addresses with `-p`.
    fn addresses(&self) -> Result<Vec<String>, Failure> {
        if let Some(path) = &self.unix_socket {
            return Ok(vec![format!("unix:{}", path.display())]);
        }
        if self.listen.is_empty() {
            return Ok(vec![format!("0.0.0.0:{}", self.port)]);
        }
        let mut found = Vec::new();
        for host in &self.listen {
            let addresses = resolve(host, self.port)
                .map_err(|error| Failure::new(Exit::Unavailable, format!("-l {host}: {error}")))?;
            found.extend(addresses.iter().map(ToString::to_string));
        }
        Ok(found)
    }
}

impl Ignored {
    /// A warning per flag that was given.
    fn told(&self) -> Vec<String> {
        let given = [
            (self.max_reqs_per_event.is_some(), "-R"),
            (self.disable_cas, "-C"),
            (self.lock_memory, "-k"),
            (self.enable_largepages, "-L"),
            (self.enable_coredumps, "-r"),
            (self.slab_growth_factor.is_some(), "-f"),
            (self.slab_min_size.is_some(), "-n"),
            (self.delimiter.is_some(), "-D"),
            (self.disable_dumping, "-X"),
            (self.disable_watch, "-W"),
        ];
        let told = given.into_iter().filter(|(is_given, _)| *is_given);
        told.map(|(_, flag)| format!("{flag} has no effect here"))
            .collect()
    }
}

/// memcached's `-o` options that tune what Nyx does not have.
const TUNING: &[&str] = &[
    "modern",
    "hashpower",
    "hash_algorithm",
    "hashexpand",
    "maxconns_fast",
    "slab_reassign",
    "slab_automove",
    "slab_automove_ratio",
    "slab_automove_window",
    "slab_automove_freeratio",
    "slab_chunk_max",
    "slab_sizes",
    "lru_crawler",
    "lru_crawler_sleep",
    "lru_crawler_tocrawl",
    "lru_maintainer",
    "lru_segmented",
    "hot_lru_pct",
    "warm_lru_pct",
    "hot_max_factor",
    "warm_max_factor",
    "temporary_ttl",
    "tail_repair_time",
    "track_sizes",
    "inline_ascii_resp",
    "read_buf_mem_limit",
    "resp_obj_mem_limit",
    "worker_logbuf_size",
    "watcher_logbuf_size",
    "drop_privileges",
];

/// memcached's size: bytes, or a number with k or m.
fn item_size(text: &str) -> Result<u64, Failure> {
    let digits = text.trim_end_matches(['k', 'K', 'm', 'M']);
    let scale = match text.as_bytes().last() {
        Some(b'k' | b'K') => 1 << 10,
        Some(b'm' | b'M') => 1 << 20,
        _ => 1,
    };
    let bytes = digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(scale));
    let is_one_unit = text.len() - digits.len() <= 1;
    bytes
        .filter(|bytes| is_one_unit && *bytes <= 1 << 30)
        .ok_or_else(|| Failure::usage(format!("-I {text}: write bytes, or a number with k or m")))
}

/// HOST or HOST:PORT as addresses, without repeats.
fn resolve(host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let with_port = host.rsplit_once(':').filter(|(name, port)| {
        port.parse::<u16>().is_ok() && (name.ends_with(']') || !name.contains(':'))
    });
    let mut found: Vec<SocketAddr> = match with_port {
        Some(_) => host.to_socket_addrs()?.collect(),
        None => (bare, port).to_socket_addrs()?.collect(),
    };
    found.sort();
    found.dedup();
    Ok(found)
}

/// A file with the process id, there while the server runs.
struct PidFile(PathBuf);

impl PidFile {
    fn write(path: PathBuf) -> Result<PidFile, Failure> {
        std::fs::write(&path, format!("{}\n", std::process::id()))
            .map_err(|error| Failure::uncreatable(&path, &error))?;
        Ok(PidFile(path))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Someone may have removed it; there is nobody left to tell.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Limit, Medium, PolicyKind};
    use clap::Parser;
    use nyx_base::Bytes;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn config(line: &[&str]) -> Result<(Config, Vec<String>), String> {
        let line = ["memcached"].iter().chain(line);
        let args = Line::try_parse_from(line)
            .map_err(|error| error.to_string())?
            .args;
        args.refuse().map_err(|failure| failure.message)?;
        let mut warnings = args.ignored.told();
        let overrides = args
            .overrides(&mut warnings)
            .map_err(|failure| failure.message)?;
        let loaded = load("", &Overrides(overrides)).map_err(|problems| format!("{problems:?}"))?;
        Ok((loaded.config, warnings))
    }

    #[test]
    fn the_usual_flags_become_one_tenant_in_memory() {
        let line = [
            "-m",
            "128",
            "-p",
            "1234",
            "-l",
            "127.0.0.1,::1",
            "-t",
            "2",
            "-c",
            "99",
            "-v",
        ];
        let (config, warnings) = config(&line).expect("sound");
        assert_eq!(warnings, [] as [&str; 0]);
        assert_eq!(config.devices[0].medium, Medium::Anon);
        assert_eq!(config.tenants[0].size, Bytes::mib(128));
        assert_eq!(config.tenants[0].terms.limit, None::<Limit>);
        assert_eq!(
            (config.server.workers, config.server.max_connections),
            (2, 99)
        );
        assert_eq!(config.policy.kind, PolicyKind::None);
        let listen: Vec<String> = config.doors.iter().map(|d| d.listen.to_string()).collect();
        assert_eq!(listen, ["127.0.0.1:1234", "[::1]:1234"]);
    }

    #[test]
    fn a_larger_item_gets_a_larger_segment() {
        let (config, _) = config(&["-I", "3m", "-m", "64"]).expect("sound");
        assert_eq!(config.tenants[0].item_len_max, 3 << 20);
        assert_eq!(config.tenants[0].segment_bytes, 4 << 20);
        assert!(super::item_size("1mm").is_err() && super::item_size("").is_err());
        assert_eq!(super::item_size("512k").expect("size"), 512 << 10);
    }

    #[test]
    fn a_unix_socket_turns_tcp_off() {
        let (config, _) = config(&["-s", "/run/x.sock", "-a", "0770"]).expect("sound");
        assert_eq!(config.doors.len(), 1);
        assert_eq!(config.doors[0].listen.to_string(), "unix:/run/x.sock");
        assert_eq!(config.server.unix_mode, 0o770);
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_and_what_only_tunes_is_told() {
        for line in [
            &["-d"][..],
            &["-M"],
            &["-F"],
            &["-S"],
            &["-Z"],
            &["-U", "1"],
            &["-B", "binary"],
        ] {
            let error = config(line).expect_err(line[0]);
            assert!(error.starts_with(line[0]), "{error}");
        }
        assert!(
            config(&["-o", "ext_path=/x:1g"])
                .expect_err("ext")
                .contains("ext_path")
        );
        let line = [
            "-o",
            "modern,no_lru_crawler,idle_timeout=60",
            "-f",
            "1.25",
            "-R",
            "20",
            "-C",
        ];
        let (config, warnings) = config(&line).expect("tuning only");
        assert_eq!(config.server.idle_timeout_s, Some(60));
        assert_eq!(warnings.len(), 5, "{warnings:?}");
    }
}
