//! What a knob's value is: its kind with its range, and reading it from text.
//!
//! Every layer - file, environment, flag - hands in text, so that a value means the same wherever
//! it was written. What this module never does: know where a value came from.

use super::{Limit, Listen, Target};
use nyx_base::Bytes;
use nyx_policy::nhc::{Nhc, UnknownNhc};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// What the values of a knob are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A whole number of `unit`s within `min..=max`.
    Count {
        /// What is counted.
        unit: &'static str,
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A size in bytes within `min..=max`.
    Bytes {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
        /// Whether only powers of two will do.
        power_of_two: bool,
    },
    /// true or false.
    Switch,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// The name of a device or tenant: letters, digits, `_`, `-` and `.`, at most 64 of them.
    Name,
    /// The beginning of keys: 1 to 200 printable ASCII characters without space.
    Prefix,
    /// Any text.
    Text,
    /// A path.
    Path,
    /// Any number of addresses.
    Addresses,
    /// Any number of names, as `Kind::Name` has them.
    Names,
    /// Who decides which of two devices serves a request.
    Nhc,
    /// A limit on device use.
    Limit,
    /// What a latency-critical tenant is promised.
    Target,
    /// A number within `min..=max`.
    Number {
        /// The smallest.
        min: f64,
        /// The largest.
        max: f64,
    },
    /// A time within `min..=max`.
    Time {
        /// The shortest, in nanoseconds.
        min_ns: u64,
        /// The longest, in nanoseconds.
        max_ns: u64,
    },
    /// Permission bits in octal.
    Mode,
}

/// A value that lies in its knob's range.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of `Kind::Count`.
    Count(u64),
    /// Of `Kind::Bytes`.
    Bytes(Bytes),
    /// Of `Kind::Switch`.
    Switch(bool),
    /// Of `Kind::Choice`, `Kind::Name`, `Kind::Nhc`, `Kind::Prefix` and `Kind::Text`.
    Text(String),
    /// Of `Kind::Names`.
    Names(Vec<String>),
    /// Of `Kind::Path`.
    Path(PathBuf),
    /// Of `Kind::Addresses`.
    Addresses(Vec<Listen>),
    /// Of `Kind::Limit`.
    Limit(Option<Limit>),
    /// Of `Kind::Target`.
    Target(Option<Target>),
    /// Of `Kind::Number`.
    Number(f64),
    /// Of `Kind::Time`, in nanoseconds.
    TimeNs(u64),
    /// Of `Kind::Mode`.
    Mode(u32),
}

impl Kind {
    /// Whether a list of texts is meant, not one.
    pub fn is_list(self) -> bool {
        matches!(self, Kind::Addresses | Kind::Names)
    }

    /// Whether a file may write it as a bare integer.
    pub fn takes_integer(self) -> bool {
        matches!(
            self,
            Kind::Count { .. } | Kind::Bytes { .. } | Kind::Number { .. } | Kind::Addresses
        )
    }

    /// Whether a file may write it as a number with a fraction.
    pub fn takes_fraction(self) -> bool {
        matches!(self, Kind::Number { .. })
    }

    /// Whether a file writes it as a boolean.
    pub fn is_switch(self) -> bool {
        self == Kind::Switch
    }

    /// Reads a value; the error names the text, the unit and the range.
    ///
    /// `texts` holds one text, or for a list any number.
    pub fn parse(self, texts: &[String]) -> Result<Value, String> {
        if self == Kind::Addresses {
            let addresses = texts
                .iter()
                .map(|text| text.parse())
                .collect::<Result<_, String>>()?;
            return Ok(Value::Addresses(addresses));
        }
        if self == Kind::Names {
            let names = texts.iter().map(|text| parse_name(text));
            return names.collect::<Result<_, String>>().map(Value::Names);
        }
        let [text] = texts else {
            return Err(format!("takes one value, got {}", texts.len()));
        };
        let text = text.as_str();
        match self {
            Kind::Count { unit, min, max } => parse_count(text, unit, min, max).map(Value::Count),
            Kind::Bytes {
                min,
                max,
                power_of_two,
            } => parse_bytes(text, min, max, power_of_two).map(Value::Bytes),
            Kind::Switch => match text {
                "true" => Ok(Value::Switch(true)),
                "false" => Ok(Value::Switch(false)),
                _ => Err(format!("{text:?} is neither true nor false")),
            },
            Kind::Choice(words) => parse_choice(text, words).map(Value::Text),
            Kind::Name => parse_name(text).map(Value::Text),
            Kind::Nhc => parse_nhc(text).map(Value::Text),
            Kind::Prefix => parse_prefix(text).map(Value::Text),
            Kind::Text | Kind::Path if text.is_empty() => Err("is empty".to_string()),
            Kind::Text => Ok(Value::Text(text.to_string())),
            Kind::Path => Ok(Value::Path(PathBuf::from(text))),
            Kind::Limit => parse_limit(text).map(Value::Limit),
            Kind::Target => parse_target(text).map(Value::Target),
            Kind::Number { min, max } => parse_number(text, min, max).map(Value::Number),
            Kind::Time { min_ns, max_ns } => parse_time(text, min_ns, max_ns).map(Value::TimeNs),
            Kind::Mode => parse_mode(text).map(Value::Mode),
            Kind::Addresses | Kind::Names => unreachable!("handled above"),
        }
    }

    /// The unit of the values, as docs show it.
    pub fn unit(self) -> &'static str {
        match self {
            Kind::Count { unit, .. } => unit,
            Kind::Bytes { .. } => "bytes",
            Kind::Limit => "std-ops/s or %",
            Kind::Target => "ns, us, ms or ops/s",
            Kind::Time { .. } => "ns, us, ms or s",
            Kind::Mode => "octal",
            _ => "",
        }
    }
}

/// Shows the range or the choices, as docs and errors have them.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Count { unit, min, max } => write!(f, "{min} to {max} {unit}"),
            Kind::Bytes {
                min,
                max,
                power_of_two,
            } => {
                write!(f, "{} to {}", Bytes(*min), Bytes(*max))?;
                if *power_of_two {
                    f.write_str(", a power of two")
                } else {
                    Ok(())
                }
            }
            Kind::Switch => f.write_str("true, false"),
            Kind::Choice(words) => f.write_str(&words.join(", ")),
            Kind::Name => f.write_str("1 to 64 letters, digits, _ - ."),
            Kind::Prefix => f.write_str("1 to 200 printable characters, no space"),
            Kind::Text => f.write_str("text"),
            Kind::Path => f.write_str("a path"),
            Kind::Addresses => f.write_str("list of IP:PORT, PORT, unix:PATH"),
            Kind::Names => f.write_str("list of names"),
            Kind::Nhc => f.write_str("shortest-delay, orthus, most, classic, split:0 to split:1"),
            Kind::Limit => f.write_str("none, N std-ops/s, or over 0 % to 100 %"),
            Kind::Target => {
                f.write_str("none, or mean, p90, p95, p99, p999 with ns, us, ms; ops N")
            }
            Kind::Number { min, max } => write!(f, "{min} to {max}"),
            Kind::Time { min_ns, max_ns } => {
                write!(f, "{} to {}", time(*min_ns), time(*max_ns))
            }
            Kind::Mode => f.write_str("0000 to 0777"),
        }
    }
}

impl Value {
    /// The value as text that `Kind::parse` reads back.
    pub fn texts(&self) -> Vec<String> {
        match self {
            Value::Addresses(addresses) => addresses.iter().map(Listen::to_string).collect(),
            Value::Names(names) => names.clone(),
            one => vec![one.to_string()],
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Count(n) => write!(f, "{n}"),
            Value::Bytes(bytes) => f.write_str(&exact_size(*bytes)),
            Value::Switch(on) => write!(f, "{on}"),
            Value::Text(text) => f.write_str(text),
            Value::Path(path) => write!(f, "{}", path.display()),
            Value::Addresses(_) | Value::Names(_) => f.write_str(&self.texts().join(",")),
            Value::Limit(None) => f.write_str("none"),
            Value::Limit(Some(limit)) => write!(f, "{limit}"),
            Value::Target(None) => f.write_str("none"),
            Value::Target(Some(target)) => write!(f, "{target}"),
            Value::Number(number) => write!(f, "{number}"),
            Value::TimeNs(ns) => f.write_str(&time(*ns)),
            Value::Mode(bits) => write!(f, "{bits:04o}"),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::StdOpsPerS(n) => write!(f, "{n} std-ops/s"),
            // Rounded, because 0.07 * 100 is not 7.
            Limit::Share(part) => write!(f, "{}%", (part * 1e8).round() / 1e6),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: u64| ns as f64 / 1e3;
        match *self {
            Target::MeanNs(ns) => write!(f, "mean {}us", us(ns)),
            Target::QuantileNs(q, ns) => {
                let name = QUANTILES.iter().find(|known| known.1 == q);
                write!(f, "{} {}us", name.map_or("p", |known| known.0), us(ns))
            }
            Target::OpsPerS(ops) => write!(f, "ops {ops}"),
        }
    }
}

impl std::str::FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() || path.len() > 107 {
                let len = path.len();
                return Err(format!(
                    "{text:?}: a socket's path has 1 to 107 bytes, not {len}"
                ));
            }
            return Ok(Listen::Unix(PathBuf::from(path)));
        }
        if let Ok(port) = text.parse::<u16>() {
            let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
            return Ok(Listen::Tcp(SocketAddr::new(localhost, port)));
        }
        text.parse().map(Listen::Tcp).map_err(|_| {
            format!("{text:?} is no address: write IP:PORT (127.0.0.1:11211), PORT, or unix:PATH")
        })
    }
}

/// A size in the largest unit that divides it, so that reading it back gives the same bytes.
fn exact_size(bytes: Bytes) -> String {
    let scales = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let fits = |shift: u32| bytes.0 > 0 && bytes.0.trailing_zeros() >= shift;
    match scales.iter().find(|(_, shift)| fits(*shift)) {
        Some((name, shift)) => format!("{}{name}", bytes.0 >> shift),
        None => bytes.0.to_string(),
    }
}

fn parse_count(text: &str, unit: &str, min: u64, max: u64) -> Result<u64, String> {
    let number = text.parse::<u64>().ok().filter(|n| (min..=max).contains(n));
    number.ok_or_else(|| format!("{text:?} is not a number from {min} to {max} {unit}"))
}

fn parse_number(text: &str, min: f64, max: f64) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|n| (min..=max).contains(n));
    number.ok_or_else(|| format!("{text:?} is not a number from {min} to {max}"))
}

fn parse_time(text: &str, min_ns: u64, max_ns: u64) -> Result<u64, String> {
    let ns = match text {
        "0" | "0s" => Some(0),
        text => parse_ns(text),
    };
    let ns = ns.filter(|ns| (min_ns..=max_ns).contains(ns));
    ns.ok_or_else(|| {
        let (min, max) = (time(min_ns), time(max_ns));
        format!("{text:?} is not a time from {min} to {max}: write \"500us\", \"20ms\" or \"1s\"")
    })
}

/// A time in the largest unit that divides it.
fn time(ns: u64) -> String {
    let units = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)];
    let fits = |unit: &&(&str, u64)| ns > 0 && ns.is_multiple_of(unit.1);
    match units.iter().find(fits) {
        Some((unit, in_ns)) => format!("{}{unit}", ns / in_ns),
        None if ns == 0 => "0s".into(),
        None => format!("{ns}ns"),
    }
}

fn parse_bytes(text: &str, min: u64, max: u64, power_of_two: bool) -> Result<Bytes, String> {
    let bytes: Bytes = text.parse()?;
    if !(min..=max).contains(&bytes.0) {
        let (min, max) = (Bytes(min), Bytes(max));
        return Err(format!("{bytes} is out of range: from {min} to {max}"));
    }
    if power_of_two && !bytes.0.is_power_of_two() {
        let (below, above) = (
            Bytes(bytes.0.next_power_of_two() / 2),
            bytes.0.next_power_of_two(),
        );
        let above = Bytes(above);
        return Err(format!(
            "{bytes} is not a power of two; the nearest are {below} and {above}"
        ));
    }
    Ok(bytes)
}

fn parse_choice(text: &str, words: &[&str]) -> Result<String, String> {
    if words.contains(&text) {
        return Ok(text.to_string());
    }
    let hint = match nearest(text, words.iter().copied()) {
        Some(word) => format!("; did you mean `{word}`?"),
        None => String::new(),
    };
    Err(format!("{text:?} is none of {}{hint}", words.join(", ")))
}

fn parse_name(text: &str) -> Result<String, String> {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    if (1..=64).contains(&text.len()) && text.bytes().all(fine) {
        return Ok(text.to_string());
    }
    Err(format!(
        "{text:?} is no name: 1 to 64 letters, digits, `_`, `-` and `.`"
    ))
}

/// The words are those of the room that has the controllers.
fn parse_nhc(text: &str) -> Result<String, String> {
    let nhc: Nhc = text
        .parse()
        .map_err(|error: UnknownNhc| error.to_string())?;
    Ok(nhc.to_string())
}

fn parse_prefix(text: &str) -> Result<String, String> {
    if (1..=200).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic()) {
        return Ok(text.to_string());
    }
    Err(format!(
        "{text:?} is no key prefix: 1 to 200 printable ASCII characters, no space"
    ))
}

fn parse_limit(text: &str) -> Result<Option<Limit>, String> {
    let text = text.trim();
    if text == "none" {
        return Ok(None);
    }
    if let Some(percent) = text.strip_suffix('%') {
        let percent = percent
            .trim()
            .parse::<f64>()
            .ok()
            .filter(|p| *p > 0.0 && *p <= 100.0);
        let percent = percent.ok_or_else(|| format!("{text:?} is not over 0 % and up to 100 %"))?;
        return Ok(Some(Limit::Share(percent / 100.0)));
    }
    let number = text
        .strip_suffix("std-ops/s")
        .map(|n| n.trim().replace('_', ""));
    match number
        .and_then(|n| n.parse::<u64>().ok())
        .filter(|n| *n > 0)
    {
        Some(n) => Ok(Some(Limit::StdOpsPerS(n))),
        None => Err(format!(
            "{text:?} is no limit: write \"250000 std-ops/s\", \"42%\" of the device, or \"none\""
        )),
    }
}

/// The quantiles that a target can name.
const QUANTILES: [(&str, f64); 4] = [("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999)];

fn parse_target(text: &str) -> Result<Option<Target>, String> {
    let wrong = || {
        format!(
            "{text:?} is no target: write \"p99 2ms\", \"mean 500us\", \"ops 20000\" (a second) or \
             \"none\""
        )
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    let target = match words[..] {
        ["none"] => return Ok(None),
        ["ops", number] => number
            .replace('_', "")
            .parse()
            .ok()
            .filter(|ops| *ops > 0)
            .map(Target::OpsPerS),
        ["mean", time] => parse_ns(time).map(Target::MeanNs),
        [name, time] => QUANTILES
            .iter()
            .find(|known| known.0 == name)
            .and_then(|known| Some(Target::QuantileNs(known.1, parse_ns(time)?))),
        _ => None,
    };
    target.map(Some).ok_or_else(wrong)
}

/// A time of at least a nanosecond with its unit.
fn parse_ns(text: &str) -> Option<u64> {
    let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    let (number, unit_ns) = units
        .iter()
        .find_map(|(unit, ns)| Some((text.strip_suffix(unit)?, ns)))?;
    let ns = number.parse::<f64>().ok()? * unit_ns;
    (1.0..=1e12).contains(&ns).then_some(ns.round() as u64)
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let bits = u32::from_str_radix(text, 8)
        .ok()
        .filter(|bits| *bits <= 0o777);
    bits.ok_or_else(|| format!("{text:?} is not octal permission bits from 0000 to 0777"))
}

/// The word that a mistyped one was probably meant to be.
pub fn nearest<'a>(typed: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const ALIKE_MIN: f64 = 0.75;
    words
        .map(|word| (strsim::jaro_winkler(typed, word), word))
        .filter(|(alike, _)| *alike >= ALIKE_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: Kind, text: &str) -> Result<Value, String> {
        kind.parse(&[text.to_string()])
    }

    #[test]
    fn a_number_out_of_range_names_range_and_unit() {
        let kind = Kind::Count {
            unit: "ms",
            min: 1,
            max: 1000,
        };
        assert_eq!(read(kind, "10"), Ok(Value::Count(10)));
        for text in ["0", "1001", "-1", "ten", ""] {
            let error = read(kind, text).expect_err(text);
            assert!(
                error.contains("1 to 1000 ms") && error.contains(text),
                "{error}"
            );
        }
    }

    #[test]
    fn sizes_keep_their_bytes_through_print_and_read() {
        let kind = Kind::Bytes {
            min: 1,
            max: 1 << 50,
            power_of_two: false,
        };
        for bytes in [1, 1023, 1024, 1 << 20, (1 << 20) + 1, 1536 << 20, 3 << 40] {
            let value = Value::Bytes(Bytes(bytes));
            assert_eq!(kind.parse(&value.texts()), Ok(value));
        }
        let kind = Kind::Bytes {
            min: 1 << 16,
            max: 1 << 26,
            power_of_two: true,
        };
        let error = read(kind, "3MiB").expect_err("3MiB");
        assert!(
            error.contains("2 MiB") && error.contains("4 MiB"),
            "{error}"
        );
        assert!(read(kind, "1KiB").expect_err("1KiB").contains("64 KiB"));
    }

    #[test]
    fn limits_read_in_both_units() {
        assert_eq!(
            read(Kind::Limit, "42%"),
            Ok(Value::Limit(Some(Limit::Share(0.42))))
        );
        let std_ops = Ok(Value::Limit(Some(Limit::StdOpsPerS(250_000))));
        assert_eq!(read(Kind::Limit, "250_000 std-ops/s"), std_ops);
        assert_eq!(read(Kind::Limit, "none"), Ok(Value::Limit(None)));
        let target = |target| Ok(Value::Target(Some(target)));
        assert_eq!(
            read(Kind::Target, "p99 1.5ms"),
            target(Target::QuantileNs(0.99, 1_500_000))
        );
        assert_eq!(read(Kind::Target, "mean 2us"), target(Target::MeanNs(2000)));
        assert_eq!(
            read(Kind::Target, "ops 20_000"),
            target(Target::OpsPerS(20_000))
        );
        for text in [
            "p99",
            "p98 2ms",
            "p99 2",
            "p99 0ns",
            "mean -1us",
            "ops 0",
            "2ms",
            "",
        ] {
            read(Kind::Target, text).expect_err(text);
        }
        let printed =
            target(Target::QuantileNs(0.999, 2_500)).map(|value: Value| value.to_string());
        assert_eq!(printed, Ok::<_, String>("p999 2.5us".into()));
        for text in [
            "0%",
            "101%",
            "nan%",
            "5",
            "-5 std-ops/s",
            "0 std-ops/s",
            "5 GB/s",
            "%",
        ] {
            read(Kind::Limit, text).expect_err(text);
        }
    }

    #[test]
    fn addresses_read_in_all_three_forms() {
        for (text, printed) in [
            ("11211", "127.0.0.1:11211"),
            ("0.0.0.0:1", "0.0.0.0:1"),
            ("[::1]:0", "[::1]:0"),
            ("unix:/run/a.sock", "unix:/run/a.sock"),
        ] {
            let value = read(Kind::Addresses, text).expect(text);
            assert_eq!(value.to_string(), printed);
        }
        for text in ["", "localhost:1", "70000", "unix:", "127.0.0.1"] {
            read(Kind::Addresses, text).expect_err(text);
        }
    }

    #[test]
    fn a_mistyped_choice_gets_the_likely_word() {
        let kind = Kind::Choice(&["fifo", "lru", "s3-fifo"]);
        assert!(
            read(kind, "s3fifo")
                .expect_err("s3fifo")
                .contains("did you mean `s3-fifo`")
        );
        assert!(!read(kind, "zzz").expect_err("zzz").contains("did you mean"));
    }

    #[test]
    fn prefixes_names_and_modes_refuse_what_cannot_be_one() {
        read(Kind::Prefix, "a b").expect_err("space");
        read(Kind::Prefix, "").expect_err("empty");
        read(Kind::Name, "../x").expect_err("slash");
        assert_eq!(read(Kind::Mode, "0700"), Ok(Value::Mode(0o700)));
        read(Kind::Mode, "0800").expect_err("not octal");
    }
}
