//! `nyx check-config`: says what is wrong with a configuration, or what it amounts to.
//!
//! What it never does: touch a device, a port or the data directory.

mod deep;

use crate::Failure;
use crate::config::layers::Origin;
use crate::config::overrides::Overrides;
use crate::config::value::Value;
use crate::config::{
    Action, Config, Device, Durability, Entry, Group, Limit, Loaded, Medium, PolicyKind, Ranges,
    Source, SyncMode, Tenant, Terms,
};
use crate::serving::admission::{self, Priced};
use crate::serving::plans;
use nyx_gate::CostTable;
use nyx_media::profile::Profile;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Check a configuration; print its devices, tenants and guarantees, or all that is wrong with it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  nyx check-config config/nyx.toml             is it right, and what does it promise?
  nyx check-config --print config/nyx.toml     every setting and where it came from
  nyx check-config --tenant-size 2GiB          would `nyx serve --tenant-size 2GiB` start?

Targets are judged by the devices' profiles, where there are any: what cannot be kept is wrong.
Exit codes: 0 sound (perhaps with warnings), 64 wrong, 66 no such file.")]
pub struct Args {
    /// The configuration file (TOML); without one, what `nyx serve` runs without one.
    #[arg(value_name = "FILE", env = "NYX_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
    /// Print every setting with the layer that it came from.
    #[arg(long)]
    print: bool,
    #[command(flatten)]
    overrides: Overrides,
}

/// Checks and prints.
pub fn run(args: Args) -> Result<(), Failure> {
    let mut loaded = Source {
        config: args.config,
        overrides: args.overrides,
    }
    .load()?;
    plans::check_shares(&loaded.config).map_err(|error| Failure::usage(error.to_string()))?;
    let warnings = admitted(&loaded.config)?;
    loaded.warnings.extend(warnings);
    super::print(&match args.print {
        true => settings(&loaded),
        false => summary(&loaded),
    })
}

/// Judges what is promised on the devices that have profiles; what there is to warn of.
fn admitted(config: &Config) -> Result<Vec<String>, Failure> {
    let mut warnings = Vec::new();
    for (at, device) in config.devices.iter().enumerate() {
        // One that exists and is damaged is told of where devices are listed.
        let Ok(profile) = Profile::load(&device.profile) else {
            let tenants = config.tenants.iter().filter(|one| one.device == at);
            let promised = tenants.filter(|one| one.terms.target.is_some());
            let names: Vec<&str> = promised.map(|one| one.name.as_str()).collect();
            if !names.is_empty() {
                let (names, name) = (names.join(", "), &device.name);
                warnings.push(format!(
                    "whether targets can be kept ({names}) is not judged: device {name:?} has no \
                     profile yet"
                ));
            }
            continue;
        };
        let cost = CostTable::of_profile(&profile);
        let plan = plans::plan(config, at, &cost);
        let plan = plan.map_err(|error| Failure::usage(error.to_string()))?;
        let priced = Priced {
            cost: &cost,
            latency: profile.latency(),
        };
        let findings = nyx_policy::admission::judge(&plan, &priced.device(config, at, None));
        let oversubscribe = config.policy.oversubscribe;
        warnings.extend(admission::admit(&findings, &[], oversubscribe)?);
    }
    Ok(warnings)
}

/// Every effective value in the shape of a file, its layer behind it.
fn settings(loaded: &Loaded) -> String {
    let mut text = String::new();
    for table in loaded.settings.tables() {
        let name = table.section.name();
        let header = if table.section.is_list() {
            format!("[[{name}]]")
        } else {
            format!("[{name}]")
        };
        let _ = writeln!(text, "{header}");
        for knob in table.section.knobs() {
            let Some(setting) = table.get(knob.name) else {
                continue;
            };
            let from = match &setting.origin {
                Origin::File { line, .. } => format!("file, line {line}"),
                other => other.to_string(),
            };
            let line = format!(
                "{} = {}",
                knob.name,
                toml_value(&setting.value.texts(), knob)
            );
            let _ = writeln!(text, "{line:<44} # {from}");
        }
        text.push('\n');
    }
    for warning in &loaded.warnings {
        let _ = writeln!(text, "# warning: {warning}");
    }
    text
}

/// A value as a file would have it.
fn toml_value(texts: &[String], knob: &crate::config::knob::Knob) -> String {
    let quoted = |text: &String| format!("\"{}\"", text.escape_default());
    match (knob.kind.is_list(), texts) {
        (true, texts) => format!(
            "[{}]",
            texts.iter().map(quoted).collect::<Vec<_>>().join(", ")
        ),
        (false, [one]) if knob.kind.is_switch() || one.bytes().all(|b| b.is_ascii_digit()) => {
            match one.strip_prefix('0') {
                Some(rest) if !rest.is_empty() => quoted(one),
                _ => one.clone(),
            }
        }
        (false, texts) => texts.iter().map(quoted).collect(),
    }
}

/// Devices, tenants, doors and warnings, as tables for people.
fn summary(loaded: &Loaded) -> String {
    let config = &loaded.config;
    let mut text = String::new();
    let workers = config.server.workers;
    let _ = writeln!(
        text,
        "server: {workers} workers, data in {}",
        config.server.data_dir.display()
    );
    let _ = writeln!(text, "policy: {}", policy(config));
    for (i, device) in config.devices.iter().enumerate() {
        let medium = match &device.medium {
            Medium::Anon => "anonymous memory".to_string(),
            Medium::File(path) => format!("file {}", path.display()),
            Medium::Dax(path) => format!("dax {}", path.display()),
            Medium::Paged { path, memory } => format!(
                "paged, {memory} of it in memory and the rest at {}",
                path.display()
            ),
        };
        let model = device
            .model
            .as_deref()
            .map_or(String::new(), |m| format!(", model {m}"));
        let (name, size) = (&device.name, device.size);
        let _ = writeln!(text, "\ndevice {name}: {medium}, {size}{model}");
        let rate = standard_ops_per_s(&mut text, device);
        groups(&mut text, config, i, None, 0);
        tenants(&mut text, config, i, rate);
    }
    deep::devices(&mut text, config);
    doors(&mut text, config);
    for warning in &loaded.warnings {
        let _ = writeln!(text, "\nwarning: {warning}");
    }
    text
}

/// What the device's profile says of it, told; the device's standard operations per second.
fn standard_ops_per_s(text: &mut String, device: &Device) -> Option<f64> {
    if !device.profile.exists() {
        let _ = writeln!(text, "  no profile yet: the first start makes one");
        return None;
    }
    match Profile::load(&device.profile) {
        Ok(profile) => {
            let standard = CostTable::of_profile(&profile).standard();
            let rate = 1.0 / standard.as_secs_f64();
            let _ = writeln!(
                text,
                "  the whole device is {rate:.0} std-ops/s (1 KiB random reads)"
            );
            Some(rate)
        }
        Err(error) => {
            let _ = writeln!(text, "  warning: {error}");
            None
        }
    }
}

fn policy(config: &Config) -> String {
    let policy = &config.policy;
    match policy.kind {
        PolicyKind::None => "none: everything is metered, nothing is held".to_string(),
        kind => format!("{}, mode {}", kind.name(), policy.mode.name()),
    }
}

/// One line per tenant of a device. `rate` is the device's standard operations per second.
fn tenants(text: &mut String, config: &Config, device: usize, rate: Option<f64>) {
    let here: Vec<_> = config
        .tenants
        .iter()
        .filter(|t| t.device == device)
        .collect();
    if here.is_empty() {
        return;
    }
    let parts: Vec<Part> = here.iter().map(|t| Part::of(t.terms.limit, rate)).collect();
    let _ = writeln!(
        text,
        "  {:<16} {:>10} {:<9} {:<7} {:<26} {:<26} beyond",
        "tenant", "size", "eviction", "layout", "at most", "at least"
    );
    for (i, tenant) in here.iter().enumerate() {
        let _ = writeln!(
            text,
            "  {:<16} {:>10} {:<9} {:<7} {:<26} {:<26} {}",
            tenant.name,
            tenant.size.to_string(),
            tenant.eviction.to_string(),
            tenant.layout.to_string(),
            parts[i].shown(rate),
            Part::floor(&parts, i).shown(rate),
            if tenant.action == Action::Delay {
                "wait"
            } else {
                "reject"
            },
        );
        let mut told = told(&tenant.terms, tenant.group, config);
        told.extend(deep::beside(tenant, config));
        told.extend(holds(tenant));
        if !told.is_empty() {
            let _ = writeln!(text, "    {}", told.join(", "));
        }
    }
    let sum: f64 = parts.iter().filter_map(|p| p.share()).sum();
    if sum > 1.0 {
        let _ = writeln!(
            text,
            "  oversubscribed: the limits add up to {:.0} %",
            sum * 100.0
        );
    }
}

/// The terms of a tenant or a group that are not everybody's, in words.
fn told(terms: &Terms, group: Option<usize>, config: &Config) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    if let Some(group) = group {
        told.push(format!("in group {}", config.groups[group].name));
    }
    if terms.weight != 1.0 {
        told.push(format!("weight {}", terms.weight));
    }
    told.extend(
        terms
            .min
            .map(|min| format!("never limited to less than {min}")),
    );
    told.extend(terms.target.map(|target| format!("promised: {target}")));
    let slowdown = |most| format!("slowed by {most} at most");
    told.extend(terms.slowdown_limit.map(slowdown));
    if terms.burst_ns > 0 {
        let burst = Value::TimeNs(terms.burst_ns);
        told.push(format!("bursts of what it saved up in {burst}"));
    }
    told
}

/// What is said of a tenant's items where anything is: what they survive, how their keys are found.
fn holds(tenant: &Tenant) -> impl Iterator<Item = String> {
    let survives = tenant.durability.map(|durability| match durability {
        Durability::Warm => "survives a stop".to_owned(),
        Durability::Crash => "survives a kill".to_owned(),
    });
    let sync = tenant.sync.map(|sync| match sync {
        SyncMode::Every(period) => {
            let period = Value::TimeNs(period.0);
            format!("changes survive a power failure {period} after they were made")
        }
        SyncMode::Each => "changes survive a power failure before they are answered".to_owned(),
    });
    let ranges = tenant.ranges.map(
        |Ranges {
             tree,
             max_scan_keys,
         }| { format!("ranges by {tree}, {max_scan_keys} keys a scan") },
    );
    survives.into_iter().chain(sync).chain(ranges)
}

/// The groups of a device, each indented below the one that it is in.
fn groups(text: &mut String, config: &Config, device: usize, of: Option<usize>, depth: usize) {
    let inside = |group: &&Group| group.group == of && group.device == device;
    for group in config.groups.iter().filter(inside) {
        let at = config
            .groups
            .iter()
            .position(|other| other.name == group.name);
        let mut words = vec![format!("divided by {}", group.kind.name())];
        words.extend(
            group
                .terms
                .limit
                .map(|limit| format!("at most {limit} together")),
        );
        words.extend(told(&group.terms, None, config));
        let indent = "  ".repeat(depth);
        let _ = writeln!(text, "  {indent}group {}: {}", group.name, words.join(", "));
        groups(text, config, device, at, depth + 1);
    }
}

/// A part of a device, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    /// A share of its time.
    Share(f64),
    /// All of it: no limit.
    Whole,
    /// So many standard operations per second, on a device without a profile.
    Unknown(u64),
}

impl Part {
    fn of(limit: Option<Limit>, rate: Option<f64>) -> Part {
        match (limit, rate) {
            (None, _) => Part::Whole,
            (Some(Limit::Share(share)), _) => Part::Share(share),
            (Some(Limit::StdOpsPerS(n)), Some(rate)) => Part::Share(n as f64 / rate),
            (Some(Limit::StdOpsPerS(n)), None) => Part::Unknown(n),
        }
    }

    fn share(&self) -> Option<f64> {
        match self {
            Part::Share(share) => Some(*share),
            _ => None,
        }
    }

    /// What the tenant has for sure: its limit, or less where the others' limits leave less.
    fn floor(parts: &[Part], tenant: usize) -> Part {
        let mut left = 1.0;
        for (i, part) in parts.iter().enumerate().filter(|(i, _)| *i != tenant) {
            match part {
                Part::Share(share) => left -= share,
                Part::Whole => return Part::Share(0.0),
                Part::Unknown(_) => return parts[i],
            }
        }
        match parts[tenant] {
            Part::Share(share) => Part::Share(share.min(left).max(0.0)),
            Part::Whole => Part::Share(f64::max(left, 0.0)),
            unknown => unknown,
        }
    }

    fn shown(self, rate: Option<f64>) -> String {
        match (self, rate) {
            (Part::Whole, _) => "no limit".to_string(),
            (Part::Unknown(n), _) => format!("{n} std-ops/s"),
            (Part::Share(share), Some(rate)) => {
                format!("{:.1} % ({:.0} std-ops/s)", share * 100.0, share * rate)
            }
            (Part::Share(share), None) => format!("{:.1} %", share * 100.0),
        }
    }
}

/// One line per listener: who is reached, and how.
fn doors(text: &mut String, config: &Config) {
    text.push('\n');
    let name = |tenant: &usize| config.tenants[*tenant].name.as_str();
    for door in &config.doors {
        let mut ways: Vec<String> = Vec::new();
        match &door.entry {
            Entry::Login { tenants } => {
                for tenant in tenants {
                    let users = config.tenants[*tenant].users.len();
                    ways.push(format!("{} by login ({users} users)", name(tenant)));
                }
            }
            Entry::Open { default, prefixes } => {
                for (prefix, tenant) in prefixes {
                    let prefix = String::from_utf8_lossy(prefix);
                    ways.push(format!("{} by keys {prefix}*", name(tenant)));
                }
                ways.extend(default.iter().map(|tenant| name(tenant).to_string()));
            }
        }
        let _ = writeln!(text, "listen {}: {}", door.listen, ways.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::load;

    fn loaded(text: &str) -> Loaded {
        load(text, &Overrides::default()).expect("sound")
    }

    const THREE: &str = "
[[tenant]]
name = \"a\"
limit = \"42%\"
[[tenant]]
name = \"b\"
key_prefix = \"b:\"
limit = \"30%\"
[[tenant]]
name = \"c\"
listen = [4242]
limit = \"50%\"
";

    #[test]
    fn the_summary_tells_what_survives_and_what_has_an_order() {
        let text = "[[device]]\nkind = \"file\"\nsize = \"64MiB\"\n[[tenant]]\nname = \"a\"\n\
                    durability = \"crash\"\nindex = \"hybrid+\"\nmax_scan_keys = 9\n";
        let text = summary(&loaded(text));
        let told = "survives a kill, ranges by fast-fair, 9 keys a scan";
        assert!(text.contains(told), "{text}");
        assert!(!summary(&loaded(THREE)).contains("ranges"));
    }

    #[test]
    fn the_summary_tells_floors_doors_and_oversubscription() {
        let text = summary(&loaded(THREE));
        assert!(
            text.contains("oversubscribed: the limits add up to 122 %"),
            "{text}"
        );
        let line = |name: &str| {
            let line = text
                .lines()
                .find(|line| line.trim_start().starts_with(name))
                .expect(name);
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert!(line("a ").contains("42.0 % 20.0 %"), "{text}");
        assert!(line("c ").contains("50.0 % 28.0 %"), "{text}");
        assert!(
            text.contains("listen 127.0.0.1:11211: b by keys b:*, a"),
            "{text}"
        );
        assert!(text.contains("listen 127.0.0.1:4242: c"), "{text}");
    }

    #[test]
    fn a_floor_needs_everyone_else_limited() {
        let parts = [Part::Share(0.4), Part::Whole, Part::Share(0.1)];
        assert_eq!(Part::floor(&parts, 0), Part::Share(0.0));
        assert_eq!(Part::floor(&parts, 1), Part::Share(0.5));
        let known = Part::of(Some(Limit::StdOpsPerS(250)), Some(1000.0));
        assert_eq!(known, Part::Share(0.25));
        assert_eq!(
            Part::of(Some(Limit::StdOpsPerS(250)), None),
            Part::Unknown(250)
        );
    }

    #[test]
    fn printed_settings_are_a_file_that_means_the_same() {
        let first = loaded(THREE);
        let printed = settings(&first);
        assert!(printed.contains("# file, line 4"), "{printed}");
        assert!(printed.contains("# default"), "{printed}");
        assert_eq!(loaded(&printed).config, first.config);
    }
}
