//! One reading of a server: its answers to `stats`, `stats tenants`, `stats latencies` and
//! `stats policy`, taken apart.
//!
//! What it never does: talk to a server, or compute a rate: see [`super::ask`] and
//! [`super::figures`]. A figure that a server does not tell is left out, not guessed.

use nyx_base::Latencies;
use std::collections::BTreeMap;
use std::str::FromStr;

/// The questions, in the order of the answers that [`Sample::read`] takes.
pub(crate) const QUESTIONS: [&str; 4] =
    ["stats", "stats tenants", "stats latencies", "stats policy"];

/// The `STAT` lines of one answer, in order: name and value.
pub(crate) type Answer = Vec<(String, String)>;

/// One reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    /// When it was taken, in seconds of the server's own clock.
    pub(crate) now_s: f64,
    /// The server's process.
    pub(crate) pid: u64,
    /// What it answers to `version`.
    pub(crate) version: String,
    /// Seconds since its start.
    pub(crate) uptime_s: u64,
    /// CPU time of the process so far, in seconds.
    pub(crate) cpu_s: f64,
    /// Open connections.
    pub(crate) connections: u64,
    /// The policy in charge.
    pub(crate) policy: String,
    /// The tenants within reach, in the server's order.
    pub(crate) tenants: Vec<Tenant>,
    /// The policy's last decisions over them, oldest first.
    pub(crate) decisions: Vec<Decision>,
}

/// What a server tells of one tenant. Counts are totals since its start.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tenant {
    /// Its name.
    pub(crate) name: String,
    /// Its figures by name, as text.
    fields: BTreeMap<String, String>,
    /// The latencies of its requests so far.
    pub(crate) latencies: Latencies,
}

/// Something that the policy did.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decision {
    /// When, in seconds of the server's clock.
    pub(crate) at_s: f64,
    /// To whom.
    pub(crate) tenant: String,
    /// What, in words.
    pub(crate) act: String,
    /// Why; nothing where the reason concerns tenants beyond this connection's reach.
    pub(crate) why: Option<String>,
}

impl Tenant {
    /// A tenant without any figures yet.
    pub(crate) fn new(name: &str) -> Tenant {
        Tenant {
            name: name.to_owned(),
            ..Tenant::default()
        }
    }

    /// A figure as the server wrote it.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.fields.get(key).map(String::as_str)
    }

    /// A figure as a number.
    pub(crate) fn number<T: FromStr>(&self, key: &str) -> Option<T> {
        self.text(key)?.parse().ok()
    }

    /// A total since the start; 0 where it is not told.
    pub(crate) fn total(&self, key: &str) -> u64 {
        self.number(key).unwrap_or(0)
    }

    /// Sets a figure.
    pub(crate) fn set(&mut self, key: &str, value: impl ToString) {
        self.fields.insert(key.to_owned(), value.to_string());
    }

    /// Adds one line of `stats latencies`.
    fn latency(&mut self, key: &str, value: &str) -> Result<(), String> {
        let bad = || format!("{key:?} of tenant {:?} with {value:?}", self.name);
        match key.split_once(':') {
            None => self.latencies.add_sum_ns(value.parse().map_err(|_| bad())?),
            Some((_, begin_ns)) => {
                let begin_ns = begin_ns.parse().map_err(|_| bad())?;
                let counts: Result<Vec<u32>, _> = value.split(',').map(str::parse).collect();
                let counts = counts.map_err(|_| bad())?;
                if !self.latencies.add_octave(begin_ns, &counts) {
                    return Err(bad());
                }
            }
        }
        Ok(())
    }
}

impl Sample {
    /// The reading that these answers to [`QUESTIONS`] are.
    ///
    /// Errors: what was not understood, as the object of "it answers".
    pub(crate) fn read(answers: &[Answer; 4]) -> Result<Sample, String> {
        let [general, tenants, latencies, policy] = answers;
        let mut sample = Sample::default();
        sample.general(general)?;
        for (name, value) in tenants {
            let (tenant, key) = split(name)?;
            sample.tenant(tenant).set(key, value);
        }
        for (name, value) in latencies {
            let (tenant, key) = split(name)?;
            sample.tenant(tenant).latency(key, value)?;
        }
        sample.policy(policy)?;
        Ok(sample)
    }

    fn general(&mut self, lines: &Answer) -> Result<(), String> {
        for (name, value) in lines {
            let number = || value.parse().unwrap_or(0.0);
            match name.as_str() {
                "pid" => self.pid = number() as u64,
                "version" => self.version.clone_from(value),
                "uptime" => self.uptime_s = number() as u64,
                "curr_connections" => self.connections = number() as u64,
                "rusage_user" | "rusage_system" => self.cpu_s += number(),
                _ => {}
            }
        }
        match self.version.contains("nyx") {
            true => Ok(()),
            false => Err(format!("as version {:?}, which is not Nyx", self.version)),
        }
    }

    fn policy(&mut self, lines: &Answer) -> Result<(), String> {
        let mut now_s = None;
        for (name, value) in lines {
            match (name.as_str(), name.split_once(':')) {
                ("policy", _) => self.policy.clone_from(value),
                ("now_s", _) => now_s = value.parse().ok(),
                (_, Some((tenant, at))) => {
                    let at_s = at.strip_suffix('s').and_then(|at| at.parse().ok());
                    let (act, why) = match value.split_once(": ") {
                        Some((act, why)) => (act, Some(why.to_owned())),
                        None => (value.as_str(), None),
                    };
                    self.decisions.push(Decision {
                        at_s: at_s.ok_or_else(|| format!("a decision at {at:?}"))?,
                        tenant: tenant.to_owned(),
                        act: act.to_owned(),
                        why,
                    });
                }
                _ => {}
            }
        }
        self.now_s = now_s.ok_or("no now_s: it is an older Nyx than this program")?;
        Ok(())
    }

    /// The tenant of this name; a new one where there is none yet.
    fn tenant(&mut self, name: &str) -> &mut Tenant {
        let found = self.tenants.iter().rposition(|one| one.name == name);
        let at = found.unwrap_or_else(|| {
            self.tenants.push(Tenant::new(name));
            self.tenants.len() - 1
        });
        &mut self.tenants[at]
    }
}

/// `tenant:key`.
fn split(name: &str) -> Result<(&str, &str), String> {
    name.split_once(':')
        .ok_or_else(|| format!("a figure {name:?} of no tenant"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> Answer {
        let lines = text.lines().filter_map(|line| line.trim().split_once(' '));
        lines
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }

    fn answers() -> [Answer; 4] {
        let octave = "web:latency_ns:1024 0,3,0,0,0,0,0,0,0,0,0,0,0,0,0,1";
        [
            answer(
                "pid 7\nversion 1.6.18-nyx-0.1.0\nuptime 61\nrusage_user 1.5\nrusage_system 0.5",
            ),
            answer("web:items 12\nweb:target mean 1.50 us\nbatch:items 3"),
            answer(&format!(
                "web:latency_ns_sum 5000\n{octave}\nbatch:latency_ns_sum 0"
            )),
            answer(
                "policy qos\nnow_s 60.5\nbatch:59.000s throttled from 50.0 to 25.0 %: web has: 1",
            ),
        ]
    }

    #[test]
    fn answers_are_taken_apart() {
        let sample = Sample::read(&answers()).expect("sound answers");
        assert_eq!((sample.pid, sample.uptime_s, sample.cpu_s), (7, 61, 2.0));
        assert_eq!((sample.now_s, sample.policy.as_str()), (60.5, "qos"));
        let [web, batch] = &sample.tenants[..] else {
            panic!("{:?}", sample.tenants);
        };
        assert_eq!(
            (web.total("items"), web.text("target")),
            (12, Some("mean 1.50 us"))
        );
        assert_eq!(
            (web.latencies.count(), web.latencies.mean_ns()),
            (4, Some(1250.0))
        );
        assert_eq!((batch.total("items"), batch.latencies.count()), (3, 0));
        let decision = Decision {
            at_s: 59.0,
            tenant: "batch".into(),
            act: "throttled from 50.0 to 25.0 %".into(),
            why: Some("web has: 1".into()),
        };
        assert_eq!(sample.decisions, [decision]);
    }

    #[test]
    fn a_decision_without_a_reason_has_none() {
        let mut answers = answers();
        answers[3] = answer("policy qos\nnow_s 60.5\nbatch:59.000s not helped");
        let sample = Sample::read(&answers).expect("sound answers");
        assert_eq!(sample.decisions[0].why, None);
        assert_eq!(sample.decisions[0].act, "not helped");
    }

    #[test]
    fn what_is_no_nyx_or_an_older_one_is_told() {
        let mut other = answers();
        other[0] = answer("version 1.6.18");
        assert!(Sample::read(&other).is_err_and(|why| why.contains("not Nyx")));
        let mut older = answers();
        older[3] = answer("policy qos");
        assert!(Sample::read(&older).is_err_and(|why| why.contains("older")));
        let mut broken = answers();
        broken[2] = answer("web:latency_ns:1000 1,2");
        assert!(Sample::read(&broken).is_err_and(|why| why.contains("1000")));
    }
}
