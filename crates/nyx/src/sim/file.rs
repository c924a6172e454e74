//! A scenario file: read, checked, and spread into its cases.
//!
//! What this module never does: run anything.

use super::draw::Draw;
use super::expect::Expect;
use crate::config::load::load;
use crate::config::overrides::Overrides;
use crate::config::value::{Kind, Value};
use crate::config::{Config, Loaded};
use crate::{Exit, Failure};
use nyx_base::{Bytes, Nanos};
use nyx_media::Evidence;
use nyx_media::model::event::Access;
use nyx_sim::client::BATCH_MAX;
use nyx_sim::scenario::Day;
use nyx_store::Layout;
use serde::Deserialize;
use std::path::Path;
use toml::Table;

/// The tables that a scenario has and a configuration has not.
const OURS: [&str; 5] = ["run", "load", "sweep", "expect", "draw"];
/// Reads and writes as the engine does them.
const USUAL: [Access; 2] = [Access::Load, Access::StoreNt];
/// Cases of one file.
const CASES_MAX: usize = 10_000;

/// A scenario file.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Every combination of its sweeps.
    pub cases: Vec<Case>,
    /// What must come out.
    pub expects: Vec<Expect>,
    /// What is drawn.
    pub draws: Vec<Draw>,
}

/// One case: a configuration, its clients, and how it is run.
#[derive(Clone, Debug)]
pub struct Case {
    /// What was set for it by the sweeps, in their order: name and value.
    pub settings: Vec<(String, String)>,
    /// Devices, tenants, policy.
    pub config: Config,
    /// The clients, each of a tenant by index.
    pub loads: Vec<Load>,
    /// How it is run.
    pub run: Run,
}

/// How a scenario is run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// What it shows, in a sentence.
    pub about: String,
    /// Where that was published, if it was.
    pub source: String,
    /// For how long.
    pub length: Nanos,
    /// What is left out at the begin of what is counted.
    pub settle: Nanos,
    /// How long a window of the drawing is.
    pub window: Nanos,
    /// How many runs, with seeds from 1.
    pub seeds: u64,
    /// On which simulator, or in real time.
    pub detail: Detail,
    /// Whether each tenant is also run alone, to know by how much it is slowed.
    pub alone: bool,
}

/// How much of the server takes part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Detail {
    /// The whole engine, with keys and values, on the quick device model: no claim about tails.
    #[default]
    Engine,
    /// Gate and policy alone, on the event model, as the paper's evaluation: tails may be claimed.
    Device,
    /// The whole engine in real time on this machine's threads, the quick device model laid over
    /// memory: what it shows and what not, see [`nyx_sim::emulated`].
    Emulated,
}

impl Detail {
    /// Of which kind the numbers are.
    pub fn evidence(self) -> Evidence {
        match self {
            Detail::Engine | Detail::Device => Evidence::Simulated,
            Detail::Emulated => Evidence::Emulated,
        }
    }
}

/// What a command line says instead of the file.
#[derive(Clone, Debug, Default)]
pub struct Instead {
    /// Cases whose sweeps have these values, by name; all where a sweep is not named.
    pub only: Vec<(String, String)>,
    /// `run.detail`.
    pub detail: Option<String>,
    /// The device's model.
    pub model: Option<String>,
    /// `run.seeds`.
    pub seeds: Option<u64>,
}

impl Instead {
    fn put(&self, whole: &mut Table) -> Result<(), String> {
        if let Some(detail) = &self.detail {
            put(whole, "run.detail", detail.as_str().into())?;
        }
        if let Some(seeds) = self.seeds {
            put(whole, "run.seeds", (seeds as i64).into())?;
        }
        if let Some(model) = &self.model {
            let devices = whole.get_mut("device").and_then(toml::Value::as_array_mut);
            let tables = devices.into_iter().flatten();
            for device in tables.filter_map(toml::Value::as_table_mut) {
                device.insert("model".into(), model.as_str().into());
            }
        }
        Ok(())
    }
}

/// The clients of a tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Its name, for sweeps: the tenant's, unless it says another.
    pub name: String,
    /// Whose clients they are.
    pub tenant: usize,
    /// How many keys there are.
    pub keys: u64,
    /// Gets are spread over this many keys: the hit ratio is `keys / asked`.
    pub asked: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// The part of requests that are gets; the others replace values.
    pub gets: f64,
    /// How many requests are sent together.
    pub batch: usize,
    /// How many clients.
    pub clients: u16,
    /// What a client does between an answer and the next request.
    pub think: Nanos,
    /// Requests a second of all of them at random times; none is a closed loop.
    pub rate: Option<f64>,
    /// When they begin and end.
    pub from: Nanos,
    /// See `from`.
    pub to: Nanos,
    /// In between they ask for so long and then rest for so long, again and again.
    pub on_off: Option<[Nanos; 2]>,
    /// How their intensity goes up and down.
    pub day: Option<Day>,
    /// By which instructions they read and write; anything but the usual ones is for the event
    /// model.
    pub access: [Access; 2],
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    run: RunTable,
    #[serde(default)]
    load: Vec<LoadTable>,
    #[serde(default)]
    sweep: Vec<Sweep>,
    #[serde(default)]
    expect: Vec<Expect>,
    #[serde(default)]
    draw: Vec<Draw>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RunTable {
    about: String,
    source: String,
    length: String,
    settle: String,
    window: String,
    seeds: u64,
    detail: Detail,
    alone: bool,
}

impl Default for RunTable {
    fn default() -> RunTable {
        RunTable {
            about: String::new(),
            source: String::new(),
            length: "1s".into(),
            settle: "0s".into(),
            window: "20ms".into(),
            seeds: 1,
            detail: Detail::Engine,
            alone: false,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadTable {
    tenant: String,
    name: Option<String>,
    #[serde(default = "thousand")]
    keys: u64,
    asked: Option<u64>,
    #[serde(default = "kibibyte")]
    value: String,
    #[serde(default = "one")]
    gets: f64,
    #[serde(default = "single")]
    batch: usize,
    #[serde(default = "client")]
    clients: u16,
    #[serde(default = "breath")]
    think: String,
    rate: Option<f64>,
    #[serde(default = "begin")]
    from: String,
    to: Option<String>,
    on: Option<String>,
    off: Option<String>,
    day: Option<String>,
    #[serde(default = "night")]
    night: f64,
    access: Option<Instruction>,
}

/// How a client reads or writes, as `access` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Instruction {
    Load,
    DependentLoad,
    LoadWithoutPrefetch,
    NtLoad,
    Store,
    StoreClwb,
    NtStore,
}

impl Instruction {
    /// Beside it stands what the other direction is by default.
    fn access(self) -> [Access; 2] {
        let reads = |access| [access, Access::StoreNt];
        let writes = |access| [Access::Load, access];
        match self {
            Instruction::Load => reads(Access::Load),
            Instruction::DependentLoad => reads(Access::LoadDependent),
            Instruction::LoadWithoutPrefetch => reads(Access::LoadNoPrefetch),
            Instruction::NtLoad => reads(Access::LoadNt),
            Instruction::Store => writes(Access::Store),
            Instruction::StoreClwb => writes(Access::StoreClwb),
            Instruction::NtStore => writes(Access::StoreNt),
        }
    }
}

fn thousand() -> u64 {
    1_000
}
fn kibibyte() -> String {
    "1KiB".into()
}
fn one() -> f64 {
    1.0
}
fn single() -> usize {
    1
}
fn client() -> u16 {
    1
}
fn breath() -> String {
    "300ns".into()
}
fn night() -> f64 {
    0.1
}
fn begin() -> String {
    "0s".into()
}

/// Settings that are varied: one key over some values, or named sets of several keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sweep {
    name: Option<String>,
    key: Option<String>,
    #[serde(default)]
    values: Vec<toml::Value>,
    #[serde(default)]
    case: Vec<SweepCase>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SweepCase {
    name: String,
    #[serde(default)]
    set: Table,
}

/// One choice of one sweep: what it is called, what it sets.
type Choice = ((String, String), Vec<(String, toml::Value)>);

impl Sweep {
    fn choices(&self) -> Result<Vec<Choice>, String> {
        let name = self
            .name
            .clone()
            .or_else(|| self.key.clone())
            .unwrap_or_default();
        match (&self.key, self.values.is_empty(), self.case.is_empty()) {
            (Some(key), false, true) => Ok(self
                .values
                .iter()
                .map(|value| {
                    (
                        (name.clone(), shown(value)),
                        vec![(key.clone(), value.clone())],
                    )
                })
                .collect()),
            (None, true, false) => Ok(self
                .case
                .iter()
                .map(|case| {
                    let set = case
                        .set
                        .iter()
                        .map(|(key, value)| (key.clone(), value.clone()));
                    ((name.clone(), case.name.clone()), set.collect())
                })
                .collect()),
            _ => Err(format!(
                "sweep {name:?} has either a key and values, or cases"
            )),
        }
    }
}

/// A value of a sweep, as it is written.
pub fn shown(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Reads a scenario file and spreads it into its cases.
///
/// Errors: exit 66 where the file cannot be read, 64 where anything in it is wrong.
pub fn read(path: &Path, instead: &Instead) -> Result<Scenario, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::unreadable(path, &error))?;
    scenario(&text, instead).map_err(|message| Failure::new(Exit::Usage, prefixed(path, &message)))
}

fn prefixed(path: &Path, message: &str) -> String {
    let lines = message
        .lines()
        .map(|line| format!("{}: {line}", path.display()));
    lines.collect::<Vec<String>>().join("\n")
}

/// A scenario's text; cases are in the order of its sweeps, the last one fastest.
pub fn scenario(text: &str, instead: &Instead) -> Result<Scenario, String> {
    let document: Document = toml::from_str(text).map_err(|error| error.to_string())?;
    let cases = cases(text, &document.sweep, instead)?;
    document
        .expect
        .iter()
        .try_for_each(|one| one.check(&cases))?;
    document.draw.iter().try_for_each(|one| one.check(&cases))?;
    Ok(Scenario {
        cases,
        expects: document.expect,
        draws: document.draw,
    })
}

fn cases(text: &str, sweeps: &[Sweep], instead: &Instead) -> Result<Vec<Case>, String> {
    let only = &instead.only;
    check_only(sweeps, only)?;
    let mut whole: Table = text
        .parse()
        .map_err(|error: toml::de::Error| error.to_string())?;
    instead.put(&mut whole)?;
    let mut all: Vec<(Vec<(String, String)>, Table)> = vec![(Vec::new(), whole)];
    for sweep in sweeps {
        let mut next = Vec::new();
        for (settings, table) in &all {
            for ((name, value), set) in sweep.choices()? {
                if only
                    .iter()
                    .any(|(of, wanted)| *of == name && *wanted != value)
                {
                    continue;
                }
                let (mut settings, mut table) = (settings.clone(), table.clone());
                for (key, value) in set {
                    put(&mut table, &key, value)?;
                }
                settings.push((name, value));
                next.push((settings, table));
            }
        }
        all = next;
        if all.len() > CASES_MAX {
            return Err(format!("more than {CASES_MAX} cases"));
        }
    }
    let cases = all
        .into_iter()
        .map(|(settings, table)| case(settings, table));
    cases.collect()
}

/// Whether each choice names a sweep, and a value of it.
fn check_only(sweeps: &[Sweep], only: &[(String, String)]) -> Result<(), String> {
    let mut known: Vec<(String, Vec<String>)> = Vec::new();
    for sweep in sweeps {
        for ((name, value), _) in sweep.choices()? {
            match known.iter_mut().find(|one| one.0 == name) {
                Some((_, values)) => values.push(value),
                None => known.push((name, vec![value])),
            }
        }
    }
    for (name, wanted) in only {
        let Some((_, values)) = known.iter().find(|one| one.0 == *name) else {
            let names: Vec<&str> = known.iter().map(|one| one.0.as_str()).collect();
            let names = if names.is_empty() {
                "nothing".into()
            } else {
                names.join(", ")
            };
            return Err(format!(
                "no sweep is named {name:?}: cases differ by {names}"
            ));
        };
        if !values.contains(wanted) {
            let values = values.join(", ");
            return Err(format!(
                "no case has {name} = {wanted:?}: it is one of {values}"
            ));
        }
    }
    Ok(())
}

/// Sets `policy.kind`, or `load.NAME.clients`: tables in lists are found by their name, or by their
/// tenant's.
fn put(table: &mut Table, key: &str, value: toml::Value) -> Result<(), String> {
    let wrong = |why: &str| format!("sweep: {key:?} cannot be set: {why}");
    let (path, last) = key
        .rsplit_once('.')
        .ok_or_else(|| wrong("it has no table"))?;
    let (section, name) = match path.split_once('.') {
        Some((section, name)) => (section, Some(name)),
        None => (path, None),
    };
    let of = table
        .entry(section)
        .or_insert_with(|| toml::Value::Table(Table::new()));
    let found = match (of, name) {
        (toml::Value::Table(table), None) => Some(table),
        (toml::Value::Array(tables), Some(name)) => tables
            .iter_mut()
            .filter_map(toml::Value::as_table_mut)
            .find(|table| {
                let is = |key: &str| table.get(key).and_then(toml::Value::as_str) == Some(name);
                is("name") || (!table.contains_key("name") && is("tenant"))
            }),
        _ => None,
    };
    let found = found.ok_or_else(|| wrong("there is no such table"))?;
    found.insert(last.into(), value);
    Ok(())
}

fn case(settings: Vec<(String, String)>, mut whole: Table) -> Result<Case, String> {
    let ours: Table = OURS
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), whole.remove(*name)?)))
        .collect();
    let document: Document = ours
        .try_into()
        .map_err(|error: toml::de::Error| error.to_string())?;
    let config = toml::to_string(&whole).map_err(|error| error.to_string())?;
    let Loaded { config, .. } = load(&config, &Overrides::default()).map_err(|problems| {
        // The line is that of a text that nobody has seen.
        let told = problems
            .iter()
            .map(|one| format!("{}: {}", one.key, one.message));
        told.collect::<Vec<String>>().join("\n")
    })?;
    let [device] = &config.devices[..] else {
        return Err(format!(
            "a scenario has one device, not {}",
            config.devices.len()
        ));
    };
    if let Some(deep) = config.deep_devices.first() {
        let name = &deep.name;
        return Err(format!(
            "device {name:?} is of kind \"block\": a scenario has one mapped device"
        ));
    }
    if device.model.is_none() {
        let name = &device.name;
        return Err(format!(
            "device {name:?} has no model: a simulation needs one, for example \"optane-2dimm\""
        ));
    }
    let loads = document.load.iter().map(|one| load_of(one, &config));
    let loads: Vec<Load> = loads.collect::<Result<_, String>>()?;
    let run = run_of(&document.run)?;
    for load in &loads {
        check_detail(load, config.tenants[load.tenant].layout, run.detail)?;
    }
    for (at, tenant) in config.tenants.iter().enumerate() {
        if !loads.iter().any(|load| load.tenant == at) {
            return Err(format!("tenant {:?} has no [[load]]", tenant.name));
        }
    }
    Ok(Case {
        settings,
        config,
        loads,
        run,
    })
}

fn run_of(table: &RunTable) -> Result<Run, String> {
    let run = Run {
        about: table.about.clone(),
        source: table.source.clone(),
        length: time(&table.length, "run.length")?,
        settle: time(&table.settle, "run.settle")?,
        window: time(&table.window, "run.window")?,
        seeds: table.seeds,
        detail: table.detail,
        alone: table.alone,
    };
    if run.window == Nanos::ZERO || run.settle >= run.length || run.seeds == 0 {
        return Err("run: length is above settle, a window is not empty, and a seed is one".into());
    }
    Ok(run)
}

/// What only the event model can do, and what only a store can.
fn check_detail(load: &Load, layout: Layout, detail: Detail) -> Result<(), String> {
    if layout != Layout::Split && detail == Detail::Device {
        return Err(format!(
            "load {:?}: a layout of {layout} needs a store, which run.detail = \"device\" has not",
            load.name
        ));
    }
    let is_usual = load.access == USUAL && load.batch <= BATCH_MAX;
    match is_usual || detail == Detail::Device {
        true => Ok(()),
        false => Err(format!(
            "load {:?}: access, and a batch of more than {BATCH_MAX}, need run.detail = \"device\"",
            load.name
        )),
    }
}

fn on_off(table: &LoadTable, of: &str) -> Result<Option<[Nanos; 2]>, String> {
    match (&table.on, &table.off) {
        (None, None) => Ok(None),
        (Some(on), Some(off)) => Ok(Some([
            time(on, &format!("{of}: on"))?,
            time(off, &format!("{of}: off"))?,
        ])),
        _ => Err(format!("{of}: on and off come together")),
    }
}

fn load_of(table: &LoadTable, config: &Config) -> Result<Load, String> {
    let of = format!("load of {:?}", table.tenant);
    let tenant = config
        .tenants
        .iter()
        .position(|one| one.name == table.tenant);
    let tenant = tenant.ok_or_else(|| format!("{of}: there is no such tenant"))?;
    let value: Bytes = table
        .value
        .parse()
        .map_err(|error| format!("{of}: value: {error}"))?;
    let load = Load {
        name: table.name.clone().unwrap_or_else(|| table.tenant.clone()),
        tenant,
        keys: table.keys,
        asked: table.asked.unwrap_or(table.keys),
        value_bytes: value.0 as usize,
        gets: table.gets,
        batch: table.batch,
        clients: table.clients,
        think: time(&table.think, &format!("{of}: think"))?,
        rate: table.rate,
        from: time(&table.from, &format!("{of}: from"))?,
        to: match &table.to {
            Some(to) => time(to, &format!("{of}: to"))?,
            None => Nanos(u64::MAX),
        },
        on_off: on_off(table, &of)?,
        day: match &table.day {
            Some(day) => Some(Day {
                length: time(day, &format!("{of}: day"))?,
                night: table.night,
            }),
            None => None,
        },
        access: table.access.map_or(USUAL, Instruction::access),
    };
    let sound = [
        (
            load.keys > 0 && load.asked >= load.keys,
            "keys are at least 1, and asked not fewer",
        ),
        (
            (1..=1 << 20).contains(&load.value_bytes),
            "value is 1 byte to 1 MiB",
        ),
        ((0.0..=1.0).contains(&load.gets), "gets is a part, 0 to 1"),
        (load.batch > 0, "batch is at least 1"),
        ((1..=256).contains(&load.clients), "clients are 1 to 256"),
        (
            load.rate.is_none_or(|rate| rate.is_finite() && rate > 0.0),
            "rate is above 0",
        ),
        (load.from < load.to, "from is before to"),
        (
            load.on_off
                .is_none_or(|[on, _]| on >= Nanos::from_millis(1)),
            "on is at least 1ms",
        ),
        (
            load.day
                .is_none_or(|day| day.length.0 > 0 && day.night > 0.0 && day.night <= 1.0),
            "night is a part of the day's intensity, over 0 to 1",
        ),
    ];
    match sound.iter().find(|one| !one.0) {
        Some((_, what)) => Err(format!("{of}: {what}")),
        None => Ok(load),
    }
}

fn time(text: &str, what: &str) -> Result<Nanos, String> {
    let kind = Kind::Time {
        min_ns: 0,
        max_ns: 86_400_000_000_000,
    };
    match kind.parse(&[text.to_owned()]) {
        Ok(Value::TimeNs(ns)) => Ok(Nanos(ns)),
        Ok(_) => unreachable!("a time is a time"),
        Err(error) => Err(format!("{what}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "
[run]
length = \"100ms\"
[policy]
kind = \"limit\"
[[device]]
model = \"optane-2dimm/8\"
[[tenant]]
name = \"a\"
key_prefix = \"a:\"
[[tenant]]
name = \"b\"
[[load]]
tenant = \"a\"
clients = 2
[[load]]
tenant = \"b\"
name = \"writes\"
gets = 0.0
";

    fn cases_of(text: &str, only: &[(String, String)]) -> Result<Vec<Case>, String> {
        let instead = Instead {
            only: only.to_vec(),
            ..Instead::default()
        };
        Ok(scenario(text, &instead)?.cases)
    }

    fn told(text: &str) -> String {
        scenario(text, &Instead::default()).expect_err("refused")
    }

    #[test]
    fn sweeps_multiply_and_set_what_they_name() {
        let text = format!(
            "{TWO}\n[[sweep]]\nkey = \"load.writes.clients\"\nvalues = [1, 4]\n\
             [[sweep]]\nname = \"who\"\n[[sweep.case]]\nname = \"nobody\"\n\
             set = {{ \"policy.kind\" = \"none\" }}\n[[sweep.case]]\nname = \"nyx\"\n\
             set = {{ \"policy.kind\" = \"share\", \"tenant.a.weight\" = 3.0 }}\n"
        );
        let cases = cases_of(&text, &[]).expect("sound");
        let told: Vec<String> = cases
            .iter()
            .map(|case| {
                let settings = case
                    .settings
                    .iter()
                    .map(|(name, value)| format!("{name}={value}"));
                settings.collect::<Vec<_>>().join(" ")
            })
            .collect();
        assert_eq!(told[0], "load.writes.clients=1 who=nobody");
        assert_eq!(told[3], "load.writes.clients=4 who=nyx");
        assert_eq!((cases.len(), cases[2].loads[1].clients), (4, 4));
        assert_eq!(
            cases[3].config.policy.kind,
            crate::config::PolicyKind::Share
        );
        assert_eq!(cases[3].config.tenants[0].terms.weight, 3.0);
        let only = [("who".to_string(), "nyx".to_string())];
        assert_eq!(cases_of(&text, &only).expect("sound").len(), 2);
        let refused = |name: &str, value: &str| {
            let only = [(name.to_string(), value.to_string())];
            cases_of(&text, &only)
                .map(drop)
                .expect_err("there is no such case")
        };
        let why = refused("who", "me");
        assert!(
            why.contains("who = \"me\": it is one of nobody, nyx"),
            "{why}"
        );
        let why = refused("whom", "nyx");
        assert!(why.contains("\"whom\": cases differ by"), "{why}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (from, to, words) in [
            (
                "tenant = \"a\"",
                "tenant = \"c\"",
                "load of \"c\": there is no such tenant",
            ),
            ("clients = 2", "clents = 2", "clents"),
            ("clients = 2", "gets = 2.0", "gets is a part"),
            ("length = \"100ms\"", "length = \"100\"", "run.length"),
            ("model = \"optane-2dimm/8\"", "", "has no model"),
            (
                "kind = \"limit\"",
                "kind = \"limti\"",
                "did you mean `limit`?",
            ),
        ] {
            let told = told(&TWO.replacen(from, to, 1));
            assert!(told.contains(words), "{to}: {told}");
        }
        let unfed = TWO
            .split("[[load]]\ntenant = \"b\"")
            .next()
            .expect("a part");
        assert!(told(unfed).contains("tenant \"b\" has no [[load]]"));
        let inline = TWO
            .replacen("name = \"a\"", "name = \"a\"\nlayout = \"inline\"", 1)
            .replacen("[run]", "[run]\ndetail = \"device\"", 1);
        assert!(told(&inline).contains("a layout of inline needs a store"));
        let sweep = format!("{TWO}[[sweep]]\nkey = \"load.nobody.clients\"\nvalues = [1]\n");
        assert!(told(&sweep).contains("there is no such table"));
    }
}
