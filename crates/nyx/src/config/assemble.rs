//! Settings to `Config`: derived defaults, and the checks that cross knobs and sections.
//!
//! What this module never does: open a device or bind a socket. It reads password files, because
//! who may log in is part of the configuration.

use super::doors;
use super::layers::{Problem, Settings, Table};
use super::tiers::{self, Home};
use super::value::Value;
use super::*;
use nyx_media::model::Params;
use std::path::Path;

/// A tenant holds at least this many segments, so that one per worker can be open while others
/// are filled, sealed and freed.
const SEGMENTS_MIN: u64 = 4;
/// Sizes that are derived, not stated, are whole multiples of this.
const DERIVED_STEP: u64 = 1 << 20;

/// What came out: the configuration if nothing is wrong, and what is odd but allowed.
pub struct Assembled {
    /// Meaningful only where there are no problems.
    pub config: Config,
    /// What is wrong.
    pub problems: Vec<Problem>,
    /// What is odd.
    pub warnings: Vec<String>,
}

/// Makes the configuration of complete settings (defaults filled in).
pub fn assemble(settings: &Settings) -> Assembled {
    let mut assembler = Assembler {
        problems: Vec::new(),
        warnings: Vec::new(),
    };
    let server = server(&settings.server);
    let policy = policy(&settings.policy);
    let (devices, deep_devices) = assembler.devices(&settings.devices, &server.data_dir);
    if devices.is_empty() {
        return assembler.without_devices(server, policy);
    }
    let of_devices = (&settings.devices[..], &devices[..], &deep_devices[..]);
    let mut tenants = assembler.tenants(&settings.tenants, of_devices);
    if tenants.len() > server.max_tenants {
        let message = format!(
            "{} is less than the number of tenants, {}",
            server.max_tenants,
            tenants.len()
        );
        assembler.wrong(&settings.server, "max_tenants", message);
    }
    let groups = assembler.groups(&settings.groups, &settings.tenants, &mut tenants);
    assembler.odd_terms(&tenants, &groups, &policy);
    assembler.odd_limits(&tenants, &devices);
    let doors = doors::open(&settings.server, &settings.tenants, &tenants);
    assembler.problems.extend(doors.problems);
    assembler.warnings.extend(doors.warnings);
    let config = Config {
        server,
        devices,
        deep_devices,
        tenants,
        groups,
        policy,
        doors: doors.doors,
    };
    Assembled {
        config,
        problems: assembler.problems,
        warnings: assembler.warnings,
    }
}

pub(super) struct Assembler {
    problems: Vec<Problem>,
    warnings: Vec<String>,
}

fn server(table: &Table) -> Server {
    let workers = match table.count("workers") {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get().min(256)) as u16,
        n => n as u16,
    };
    let data_dir = table.path("data_dir").unwrap_or_default();
    let image_dir = table.path("image_dir").unwrap_or_else(|| data_dir.clone());
    Server {
        journal_dir: table
            .path("journal_dir")
            .unwrap_or_else(|| data_dir.clone()),
        image_dir,
        data_dir,
        workers,
        max_tenants: table.count("max_tenants") as usize,
        max_connections: table.count("max_connections") as u32,
        idle_timeout_s: Some(table.count("idle_timeout_s") as u32).filter(|s| *s > 0),
        backlog: table.count("backlog") as u32,
        unix_mode: table.mode("unix_mode"),
        pin_workers: table.switch("pin_workers"),
        record_latencies: table.switch("record_latencies"),
    }
}

fn policy(table: &Table) -> Policy {
    let percent = |name: &str| table.count(name) as f64 / 100.0;
    Policy {
        kind: table.parsed("kind"),
        mode: match table.text("mode") {
            Some("paper") => Mode::Paper,
            _ => Mode::Nyx,
        },
        tick_ms: table.count("tick_ms") as u32,
        epoch_ticks: table.optional_count("epoch_ticks").map(|n| n as u32),
        window_ms: table.count("window_ms") as u32,
        // Nothing at all would be no experiment.
        experiment_step: table.limit("experiment_step").unwrap_or(Limit::Share(0.04)),
        trials: match table.text("trials") {
            Some("at-once") => Design::LockIn,
            _ => Design::Sequential,
        },
        slack: percent("slack_percent"),
        candidates: table.count("candidates") as usize,
        unfairness: table.number("unfairness").unwrap_or(1.05),
        is_donation_naive: table.text("donation") == Some("naive"),
        donate_step: percent("donate_step_percent"),
        pause_ns: table.time_ns("pause"),
        refresh_ns: table.time_ns("refresh"),
        oversubscribe: table.switch("oversubscribe"),
    }
}

pub(super) fn terms(table: &Table) -> Terms {
    Terms {
        weight: table.number("weight").unwrap_or(1.0),
        min: table.limit("min"),
        limit: table.limit("limit"),
        burst_ns: table.time_ns("burst"),
        slowdown_limit: table.number("slowdown_limit"),
        target: table.target("target"),
        is_open: table.text("clients") != Some("closed"),
    }
}

impl Assembler {
    /// Without a mapped device nothing more can be said; that there is none was told of.
    fn without_devices(self, server: Server, policy: Policy) -> Assembled {
        let config = Config {
            server,
            devices: Vec::new(),
            deep_devices: Vec::new(),
            tenants: Vec::new(),
            groups: Vec::new(),
            policy,
            doors: Vec::new(),
        };
        Assembled {
            config,
            problems: self.problems,
            warnings: self.warnings,
        }
    }

    pub(super) fn problem_count(&self) -> usize {
        self.problems.len()
    }

    pub(super) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    pub(super) fn wrong(&mut self, table: &Table, key: &str, message: String) {
        let path = format!("{}.{key}", table.section.name());
        self.problems
            .push(Problem::of(table.origin_of(key), path, message));
    }

    /// Reports each name that was there before.
    pub(super) fn unique_names(&mut self, tables: &[Table]) {
        for (i, table) in tables.iter().enumerate() {
            let name = table.text("name");
            if tables[..i].iter().any(|before| before.text("name") == name) {
                let name = name.unwrap_or_default();
                self.wrong(table, "name", format!("{name:?} is there twice"));
            }
        }
    }

    /// Mapped devices and those of blocks, each in the order of the file.
    fn devices(&mut self, tables: &[Table], data_dir: &Path) -> (Vec<Device>, Vec<DeepDevice>) {
        self.unique_names(tables);
        let (mut mapped, mut deep) = (Vec::new(), Vec::new());
        let mut paths: Vec<(PathBuf, String)> = Vec::new();
        for table in tables {
            let name = table.text("name").unwrap_or_default().to_string();
            let path = match tiers::is_block(table) {
                true => {
                    deep.push(self.deep_device(table, data_dir));
                    deep.last().map(|device| device.path.clone())
                }
                false => {
                    mapped.push(self.device(table, data_dir));
                    let medium = mapped.last().map(|device: &Device| &device.medium);
                    medium.and_then(|medium| medium.path().map(Path::to_owned))
                }
            };
            let Some(path) = path else { continue };
            if let Some((_, other)) = paths.iter().find(|known| known.0 == path) {
                let path = path.display();
                let message = format!("{path} is the medium of device {other:?} too");
                self.wrong(table, "path", message);
            }
            paths.push((path, name));
        }
        if mapped.is_empty() {
            let message = "a tenant's first device is mapped, and there is only kind \"block\": \
                           add a [[device]] of kind \"anon\", \"file\", \"dax\" or \"paged\"";
            self.wrong(&tables[0], "kind", message.to_string());
        }
        (mapped, deep)
    }

    fn device(&mut self, table: &Table, data_dir: &Path) -> Device {
        let name = table.text("name").unwrap_or_default().to_string();
        let in_data_dir = |ending: &str| data_dir.join(format!("{name}.{ending}"));
        let size = table.bytes("size").unwrap_or(tiers::SIZE_DEFAULT);
        let medium = match (table.text("kind"), table.path("path")) {
            (Some("paged"), path) => Medium::Paged {
                path: path.unwrap_or_else(|| data_dir.to_owned()),
                memory: self.paged_memory(table, size),
            },
            (Some("anon"), None) => Medium::Anon,
            (Some("anon"), Some(path)) => {
                let path = path.display();
                self.wrong(
                    table,
                    "path",
                    format!("{path}: anonymous memory has no path"),
                );
                Medium::Anon
            }
            (Some("dax"), Some(path)) => Medium::Dax(path),
            (Some("dax"), None) => {
                self.wrong(
                    table,
                    "path",
                    "is missing: a dax device needs one".to_string(),
                );
                Medium::Anon
            }
            (_, path) => Medium::File(path.unwrap_or_else(|| in_data_dir("media"))),
        };
        self.check_mapped(table);
        if let Some(Err(error)) = table.text("model").map(Params::resolve) {
            self.wrong(table, "model", error.to_string());
        }
        Device {
            medium,
            size,
            model: table.text("model").map(str::to_string),
            profile: table
                .path("profile")
                .unwrap_or_else(|| in_data_dir("profile.toml")),
            name,
        }
    }

    fn tenants(
        &mut self,
        tables: &[Table],
        (device_tables, devices, deep_devices): (&[Table], &[Device], &[DeepDevice]),
    ) -> Vec<Tenant> {
        self.unique_names(tables);
        let (deep, fast): (Vec<&Table>, Vec<&Table>) = device_tables
            .iter()
            .partition(|table| tiers::is_block(table));
        let homes: Vec<Home> = tables.iter().map(|t| self.home(t, &fast, &deep)).collect();
        let places: Vec<Option<usize>> = homes.iter().map(|home| Some(home.fast)).collect();
        let rooms: Vec<(&str, Bytes)> = devices.iter().map(|d| (&*d.name, d.size)).collect();
        let sizes = self.sizes("size", tables, &places, &rooms, |_| DERIVED_STEP);
        let mut tenants: Vec<Tenant> = (tables.iter().zip(&homes).zip(&sizes))
            .map(|((table, home), size)| self.tenant(table, home.fast, *size))
            .collect();
        for (table, tenant) in tables.iter().zip(&tenants) {
            self.check_durability(table, tenant, devices);
        }
        self.give_deep(tables, &homes, deep_devices, &mut tenants);
        for (i, device) in devices.iter().enumerate() {
            if !places.contains(&Some(i)) {
                self.warnings
                    .push(format!("device {:?} has no tenant", device.name));
            }
        }
        tenants
    }

    /// What survives has its values where they survive, and its keys apart.
    fn check_durability(&mut self, table: &Table, tenant: &Tenant, devices: &[Device]) {
        if tenant.sync.is_some() && tenant.durability != Some(Durability::Crash) {
            let message = "needs durability = \"crash\"".to_string();
            self.wrong(table, "sync", message);
        }
        if tenant.durability.is_none() {
            return;
        }
        let home = devices.get(tenant.device);
        let gone = home.and_then(|device| match device.medium {
            Medium::Anon => Some((&device.name, "anonymous")),
            Medium::Paged { .. } => Some((&device.name, "paged")),
            Medium::File(_) | Medium::Dax(_) => None,
        });
        if let Some((name, what)) = gone {
            let message = format!(
                "device {name:?} is {what} memory, which is gone with the process: give it kind = \
                 \"file\" or \"dax\""
            );
            self.wrong(table, "durability", message);
        }
        if tenant.layout == Layout::Inline {
            let message = "layout \"inline\" does not survive: choose \"split\"".to_string();
            self.wrong(table, "durability", message);
        }
    }

    /// Stated sizes as they are; the others get equal parts of what their room (a device's name and
    /// size) has left, in whole steps of theirs.
    pub(super) fn sizes(
        &mut self,
        key: &str,
        tables: &[Table],
        places: &[Option<usize>],
        rooms: &[(&str, Bytes)],
        step: impl Fn(usize) -> u64,
    ) -> Vec<Bytes> {
        let mut sizes: Vec<Option<Bytes>> = tables.iter().map(|t| t.bytes(key)).collect();
        for (place, (name, whole)) in rooms.iter().enumerate() {
            let is_here = |at: &usize| places[*at] == Some(place);
            let here: Vec<usize> = (0..tables.len()).filter(is_here).collect();
            let mut left = whole.0;
            for i in &here {
                let Some(size) = sizes[*i] else { continue };
                match left.checked_sub(size.0) {
                    Some(rest) => left = rest,
                    None => {
                        let left = Bytes(left);
                        let message = format!(
                            "{size} does not fit: device {name:?} has {left} left of {whole}"
                        );
                        self.wrong(&tables[*i], key, message);
                    }
                }
            }
            let unstated: Vec<usize> = here.into_iter().filter(|i| sizes[*i].is_none()).collect();
            for i in &unstated {
                let part = left / unstated.len() as u64;
                sizes[*i] = Some(Bytes(part - part % step(*i).max(DERIVED_STEP)));
            }
        }
        sizes.into_iter().map(Option::unwrap_or_default).collect()
    }

    fn tenant(&mut self, table: &Table, device: usize, size: Bytes) -> Tenant {
        let segment = table.bytes("segment_bytes").unwrap_or_default();
        let item_len_max = table.bytes("item_len_max").unwrap_or_default();
        if size.0 < SEGMENTS_MIN * segment.0 {
            let message = format!(
                "{size} hold less than {SEGMENTS_MIN} segments of {segment}: make size larger or \
                 segment_bytes smaller"
            );
            self.wrong(table, "size", message);
        }
        if item_len_max > segment {
            let message =
                format!("{item_len_max} does not fit a segment: segment_bytes is {segment}");
            self.wrong(table, "item_len_max", message);
        }
        let users_file = table.path("users");
        let users = users_file
            .as_deref()
            .map_or_else(Vec::new, |path| self.users(table, path));
        if table.text("key_prefix").is_some() && users_file.is_some() {
            let message = "and users exclude each other: the login already names the tenant";
            self.wrong(table, "key_prefix", message.to_string());
        }
        Tenant {
            name: table.text("name").unwrap_or_default().to_string(),
            device,
            size,
            deep: None,
            deep_limit: table.limit("deep_limit"),
            eviction: table.parsed("eviction"),
            layout: table.parsed("layout"),
            durability: match table.text("durability") {
                Some("warm") => Some(Durability::Warm),
                Some("crash") => Some(Durability::Crash),
                _ => None,
            },
            sync: match table.text("sync") {
                Some("each") => Some(SyncMode::Each),
                Some("100ms") => Some(SyncMode::Every(Nanos::from_millis(100))),
                _ => None,
            },
            ranges: tree(table).map(|tree| Ranges {
                tree,
                max_scan_keys: table.count("max_scan_keys") as u32,
            }),
            segment_bytes: segment.0 as u32,
            item_len_max: item_len_max.0 as u32,
            group: None,
            terms: terms(table),
            action: match table.text("action") {
                Some("reject") => Action::Reject,
                _ => Action::Delay,
            },
            key_prefix: table
                .text("key_prefix")
                .map(|prefix| prefix.as_bytes().to_vec()),
            users_file,
            users,
        }
    }

    fn users(&mut self, table: &Table, path: &Path) -> Vec<User> {
        match read_users(path) {
            Ok(users) => users,
            Err(message) => {
                self.wrong(table, "users", message);
                Vec::new()
            }
        }
    }

    /// Limits that promise more than there is are no error: their sum may exceed a device on
    /// purpose, because a limit is a ceiling and not a reservation.
    fn odd_limits(&mut self, tenants: &[Tenant], devices: &[Device]) {
        for (home, device) in devices.iter().enumerate() {
            let shares = tenants
                .iter()
                .filter(|t| t.device == home && t.group.is_none())
                .filter_map(|t| match t.terms.limit {
                    Some(Limit::Share(part)) => Some(part),
                    _ => None,
                });
            let sum: f64 = shares.sum();
            if sum > 1.0 + 1e-9 {
                let (name, percent) = (&device.name, sum * 100.0);
                self.warnings.push(format!(
                    "device {name:?} is oversubscribed: its limits add up to {percent:.0} %"
                ));
            }
        }
    }
}

/// What keeps a tenant's keys in order, if anything.
fn tree(table: &Table) -> Option<Tree> {
    match table.text("index") {
        Some("hybrid+" | "fast-fair") => Some(Tree::FastFair),
        Some("hybrid") => Some(Tree::Hybrid),
        Some("fp-tree") => Some(Tree::FpTree),
        Some("skip-list") => Some(Tree::SkipList),
        _ => None,
    }
}

/// Reads a password file: lines of `user:password`, as memcached's `-Y` has them; empty lines are
/// skipped. The error names the file, the line and what is wrong, never a password.
pub fn read_users(path: &Path) -> Result<Vec<User>, String> {
    let shown = path.display();
    let text = std::fs::read(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
    let mut users: Vec<User> = Vec::new();
    for (i, line) in text.split(|b| *b == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        let colon = line.iter().position(|b| *b == b':').filter(|at| *at > 0);
        let Some(at) = colon else {
            return Err(format!("{shown}, line {}: is not user:password", i + 1));
        };
        let (name, password) = (line[..at].to_vec(), line[at + 1..].to_vec());
        if users.iter().any(|user| user.name == name) {
            let name = String::from_utf8_lossy(&name).into_owned();
            return Err(format!(
                "{shown}, line {}: user {name:?} is there twice",
                i + 1
            ));
        }
        users.push(User { name, password });
    }
    match users.is_empty() {
        true => Err(format!(
            "{shown} has no user:password line, so nobody could log in"
        )),
        false => Ok(users),
    }
}

impl Medium {
    /// The path of a medium that has one for itself.
    pub fn path(&self) -> Option<&Path> {
        match self {
            // In a directory each makes a file of its own.
            Medium::Anon | Medium::Paged { .. } => None,
            Medium::File(path) | Medium::Dax(path) => Some(path),
        }
    }
}

/// Typed looks into a table. A knob without default that nobody set gives `None`; a knob that the
/// table cannot hold is a bug.
impl Table {
    fn value(&self, name: &str) -> Option<&Value> {
        debug_assert!(
            self.section.knobs().any(|k| k.name == name),
            "no knob {name}"
        );
        self.get(name).map(|setting| &setting.value)
    }

    pub(super) fn count(&self, name: &str) -> u64 {
        match self.value(name) {
            Some(Value::Count(n)) => *n,
            other => unreachable!("{name} is a count with a default, not {other:?}"),
        }
    }

    fn mode(&self, name: &str) -> u32 {
        match self.value(name) {
            Some(Value::Mode(bits)) => *bits,
            other => unreachable!("{name} is a mode with a default, not {other:?}"),
        }
    }

    fn optional_count(&self, name: &str) -> Option<u64> {
        match self.value(name) {
            Some(Value::Count(n)) => Some(*n),
            _ => None,
        }
    }

    fn number(&self, name: &str) -> Option<f64> {
        match self.value(name) {
            Some(Value::Number(number)) => Some(*number),
            _ => None,
        }
    }

    fn time_ns(&self, name: &str) -> u64 {
        match self.value(name) {
            Some(Value::TimeNs(ns)) => *ns,
            other => unreachable!("{name} is a time with a default, not {other:?}"),
        }
    }

    fn switch(&self, name: &str) -> bool {
        self.value(name) == Some(&Value::Switch(true))
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match self.value(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// A choice as the type of the room that it is for; a test holds the words against that room.
    pub(super) fn parsed<T: std::str::FromStr + Default>(&self, name: &str) -> T {
        self.text(name)
            .and_then(|word| word.parse().ok())
            .unwrap_or_default()
    }

    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        match self.value(name) {
            Some(Value::Path(path)) => Some(path.clone()),
            _ => None,
        }
    }

    pub(super) fn bytes(&self, name: &str) -> Option<Bytes> {
        match self.value(name) {
            Some(Value::Bytes(bytes)) => Some(*bytes),
            _ => None,
        }
    }

    fn limit(&self, name: &str) -> Option<Limit> {
        match self.value(name) {
            Some(Value::Limit(limit)) => *limit,
            _ => None,
        }
    }

    fn target(&self, name: &str) -> Option<Target> {
        match self.value(name) {
            Some(Value::Target(target)) => *target,
            _ => None,
        }
    }

    pub(super) fn names(&self, name: &str) -> Option<&[String]> {
        match self.value(name) {
            Some(Value::Names(names)) => Some(names),
            _ => None,
        }
    }

    pub(super) fn addresses(&self, name: &str) -> Option<&[Listen]> {
        match self.value(name) {
            Some(Value::Addresses(addresses)) => Some(addresses),
            _ => None,
        }
    }
}
