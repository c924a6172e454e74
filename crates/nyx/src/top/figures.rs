//! What happened between two readings: rates, shares and percentiles of the interval.
//!
//! What it never does: ask, or remember more than two readings. A counter that went back, as after
//! a restart, gives no rate at all: whoever keeps readings begins anew then ([`Sample::follows`]).

use super::sample::{self, Sample, Tenant};
use serde::Serialize;

/// What an operator wants to know of one tenant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Figures {
    /// Its name.
    pub(crate) name: String,
    /// The device that holds its values.
    pub(crate) device: String,
    /// What kind of evidence figures of that device are.
    pub(crate) evidence: String,
    /// Requests answered.
    pub(crate) requests_per_s: f64,
    /// Keys found of those asked for; none where there were none.
    pub(crate) hit_ratio: Option<f64>,
    /// Latencies of the requests, from when the server had read them to when they were answered.
    pub(crate) latency_us_mean: Option<f64>,
    /// The same, of the median request.
    pub(crate) latency_us_p50: Option<f64>,
    /// 99 percent are not longer.
    pub(crate) latency_us_p99: Option<f64>,
    /// 99.9 percent are not longer.
    pub(crate) latency_us_p999: Option<f64>,
    /// Part of the device's time that it used.
    pub(crate) device_share: f64,
    /// Part that it may use now, whatever for.
    pub(crate) limit_device_share: Option<f64>,
    /// Part that it may use at most by its configuration.
    pub(crate) promised_device_share: Option<f64>,
    /// Part that it has in any case.
    pub(crate) entitled_device_share: Option<f64>,
    /// Part that the policy leaves it for the sake of others.
    pub(crate) throttle_device_share: Option<f64>,
    /// It has what the promises to others leave.
    pub(crate) best_effort: bool,
    /// Its target in words.
    pub(crate) target: Option<String>,
    /// What it had of it when it was last judged.
    pub(crate) target_had: Option<String>,
    /// How far that was from its promise, in parts of it; below 0 it was missed.
    pub(crate) slack: Option<f64>,
    /// By which factor it is slower than alone.
    pub(crate) slowdown: Option<f64>,
    /// By which factor it may be at most.
    pub(crate) slowdown_most: Option<f64>,
    /// Who was found to hurt it, most first.
    pub(crate) hurt_by: Vec<Hurt>,
    /// How often it was told to wait.
    pub(crate) holds_per_s: f64,
    /// Connections that wait for its budget now.
    pub(crate) held_connections: u64,
    /// Requests that were answered `busy` instead of waiting.
    pub(crate) rejected_per_s: f64,
    /// Whether the policy has stopped it for a moment.
    pub(crate) paused: bool,
    /// Items that it holds.
    pub(crate) items: u64,
    /// Bytes that it occupies: values, keys and index.
    pub(crate) used_bytes: u64,
    /// Bytes that it may occupy.
    pub(crate) size_bytes: u64,
    /// What it survives.
    pub(crate) durability: Option<String>,
    /// The part of what it went on with that was looked at.
    pub(crate) swept: Option<f64>,
    /// How its changes get onto the disk, where they do.
    pub(crate) journal: Option<Journal>,
    /// The part of its order of keys that is built, where it has one.
    pub(crate) ordered: Option<f64>,
    /// Items that had to leave.
    pub(crate) evictions_per_s: f64,
}

/// A tenant's journal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Journal {
    /// When a change is durable: `100ms` or `each`.
    pub(crate) sync: String,
    /// Bytes of its files.
    pub(crate) size_bytes: u64,
    /// Bytes of changes that are not durable yet.
    pub(crate) unsynced_bytes: u64,
    /// Syncs.
    pub(crate) syncs_per_s: f64,
    /// What is wrong with it.
    pub(crate) trouble: Option<String>,
}

/// One who hurts a tenant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Hurt {
    /// Who.
    pub(crate) tenant: String,
    /// By which part of its mean delay the other fared better while this one was throttled for a
    /// trial; none where it was the only one that could be throttled.
    pub(crate) helped: Option<f64>,
}

/// A decision, as old as it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Told {
    /// How many seconds before the reading.
    pub(crate) ago_s: f64,
    /// To whom.
    pub(crate) tenant: String,
    /// What.
    pub(crate) act: String,
    /// Why, where that may be told.
    pub(crate) why: Option<String>,
}

/// All that is shown of one interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Board {
    /// How long the interval was.
    pub(crate) interval_s: f64,
    /// The policy in charge.
    pub(crate) policy: String,
    /// The server's version.
    pub(crate) version: String,
    /// Seconds since its start.
    pub(crate) uptime_s: u64,
    /// CPUs that its process kept busy.
    pub(crate) cpus: f64,
    /// Its open connections.
    pub(crate) connections: u64,
    /// The tenants within reach, in the server's order.
    pub(crate) tenants: Vec<Figures>,
    /// The policy's last decisions over them, newest first.
    pub(crate) decisions: Vec<Told>,
}

impl Sample {
    /// Whether this was taken of the same process after `earlier`.
    pub(crate) fn follows(&self, earlier: &Sample) -> bool {
        self.pid == earlier.pid && self.now_s > earlier.now_s
    }
}

/// Totals over an interval as rates.
struct Interval<'s> {
    length_s: f64,
    before: &'s Tenant,
    now: &'s Tenant,
}

impl Interval<'_> {
    fn count(&self, key: &str) -> u64 {
        self.now.total(key).saturating_sub(self.before.total(key))
    }

    fn per_s(&self, key: &str) -> f64 {
        self.rate(self.count(key) as f64)
    }

    fn rate(&self, count: f64) -> f64 {
        match self.length_s > 0.0 {
            true => count / self.length_s,
            false => 0.0,
        }
    }

    fn figures(&self) -> Figures {
        let now = self.now;
        let word = |key: &str| now.text(key).map(str::to_owned);
        let device_s = |tenant: &Tenant| tenant.number::<f64>("device_seconds").unwrap_or(0.0);
        let latencies = now.latencies.since(&self.before.latencies);
        let us = |q| latencies.quantile_ns(q).map(|ns| ns / 1e3);
        let (hits, misses) = (self.count("get_hits"), self.count("get_misses"));
        // A server that records no latencies still counts what keys were asked for and stored.
        let requests = match now.latencies.count() {
            0 => hits + misses + self.count("cmd_set"),
            _ => latencies.count(),
        };
        Figures {
            name: now.name.clone(),
            device: word("device").unwrap_or_default(),
            evidence: word("evidence").unwrap_or_default(),
            requests_per_s: self.rate(requests as f64),
            hit_ratio: (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64),
            latency_us_mean: latencies.mean_ns().map(|ns| ns / 1e3),
            latency_us_p50: us(0.5),
            latency_us_p99: us(0.99),
            latency_us_p999: us(0.999),
            device_share: self.rate(device_s(now) - device_s(self.before)).max(0.0),
            limit_device_share: now.number("limit_device_share"),
            promised_device_share: now.number("promised_device_share"),
            entitled_device_share: now.number("entitled_device_share"),
            throttle_device_share: now.number("throttle_device_share"),
            best_effort: now.text("best_effort") == Some("yes"),
            target: word("target"),
            target_had: word("target_had"),
            slack: now.number("slack"),
            slowdown: now.number("slowdown"),
            slowdown_most: now.number("slowdown_most"),
            hurt_by: now.text("hurt_by").map_or(Vec::new(), hurt_by),
            holds_per_s: self.per_s("holds"),
            held_connections: now.total("held_connections"),
            rejected_per_s: self.per_s("rejected"),
            paused: now.text("delay_ns") == Some("paused"),
            items: now.total("items"),
            used_bytes: now.total("used_bytes"),
            size_bytes: now.total("size_bytes"),
            durability: word("durability"),
            journal: word("sync").map(|sync| Journal {
                sync,
                size_bytes: now.total("journal_bytes"),
                unsynced_bytes: now.total("journal_unsynced_bytes"),
                syncs_per_s: self.per_s("journal_syncs"),
                trouble: word("journal_trouble"),
            }),
            ordered: now.number("order_built"),
            swept: now
                .number("swept_chains")
                .zip(now.number("swept_chains_all"))
                .map(|(some, all): (f64, f64)| some / all.max(1.0)),
            evictions_per_s: self.per_s("evictions"),
        }
    }
}

/// `batch=0.380 other=untested`.
fn hurt_by(text: &str) -> Vec<Hurt> {
    let each = text.split(' ').filter_map(|one| one.rsplit_once('='));
    each.map(|(tenant, helped)| Hurt {
        tenant: tenant.to_owned(),
        helped: helped.parse().ok(),
    })
    .collect()
}

impl Board {
    /// What happened since `earlier`; since the server's start where there is none, or where it is
    /// of another process.
    pub(crate) fn between(earlier: Option<&Sample>, now: &Sample) -> Board {
        let earlier = earlier.filter(|earlier| now.follows(earlier));
        let begin_s = earlier.map_or(0.0, |earlier| earlier.now_s);
        let cpu_s = now.cpu_s - earlier.map_or(0.0, |earlier| earlier.cpu_s);
        let length_s = now.now_s - begin_s;
        let nothing = Tenant::default();
        let figures = |tenant: &Tenant| {
            let tenants = earlier.map_or(&[][..], |earlier| &earlier.tenants);
            let before = tenants.iter().find(|before| before.name == tenant.name);
            // Of a tenant that was not told of before nothing is known of the interval.
            let unknown = if earlier.is_some() { tenant } else { &nothing };
            let before = before.unwrap_or(unknown);
            Interval {
                length_s,
                before,
                now: tenant,
            }
            .figures()
        };
        let told = |one: &sample::Decision| Told {
            ago_s: (now.now_s - one.at_s).max(0.0),
            tenant: one.tenant.clone(),
            act: one.act.clone(),
            why: one.why.clone(),
        };
        Board {
            interval_s: length_s,
            policy: now.policy.clone(),
            version: now.version.clone(),
            uptime_s: now.uptime_s,
            cpus: if length_s > 0.0 {
                cpu_s / length_s
            } else {
                0.0
            },
            connections: now.connections,
            tenants: now.tenants.iter().map(figures).collect(),
            decisions: now.decisions.iter().rev().map(told).collect(),
        }
    }

    /// A tenant by its name.
    pub(crate) fn tenant(&self, name: &str) -> Option<&Figures> {
        self.tenants.iter().find(|tenant| tenant.name == name)
    }

    /// The devices of the tenants within reach in their order, and what these use of each.
    pub(crate) fn devices(&self) -> Vec<(&str, f64)> {
        let mut devices: Vec<(&str, f64)> = Vec::new();
        for tenant in &self.tenants {
            match devices.iter_mut().find(|device| device.0 == tenant.device) {
                Some(device) => device.1 += tenant.device_share,
                None => devices.push((&tenant.device, tenant.device_share)),
            }
        }
        devices
    }
}

#[cfg(test)]
mod tests {
    use super::super::script;
    use super::*;

    #[test]
    fn rates_and_percentiles_are_of_the_interval_alone() {
        let (early, late) = (script::sample(1), script::sample(3));
        let board = Board::between(Some(&early), &late);
        assert_eq!(board.interval_s, 2.0);
        let web = board.tenant("web").expect("it is there");
        assert_eq!(web.requests_per_s, 10_000.0);
        assert_eq!(web.hit_ratio, Some(0.9));
        assert!((web.device_share - 0.125).abs() < 1e-9);
        let p50 = web.latency_us_p50.expect("there were some");
        assert!((p50 / 12.0 - 1.0).abs() < 0.05, "{p50}");
        let p99 = web.latency_us_p99.expect("there were some");
        assert!((p99 / 190.0 - 1.0).abs() < 0.1, "{p99}");
        assert_eq!(board.cpus, 1.5);
        assert_eq!(board.decisions[0].ago_s, 0.5);
    }

    #[test]
    fn without_an_earlier_reading_it_is_since_the_start() {
        let board = Board::between(None, &script::sample(2));
        assert_eq!(board.interval_s, 2.0);
        assert_eq!(
            board.tenant("web").map(|web| web.requests_per_s),
            Some(10_000.0)
        );
    }

    #[test]
    fn without_latencies_there_is_a_rate_and_no_percentile() {
        let (mut early, mut late) = (script::sample(1), script::sample(2));
        for sample in [&mut early, &mut late] {
            sample.tenants[0].latencies.clear();
        }
        let board = Board::between(Some(&early), &late);
        let web = board.tenant("web").expect("it is there");
        assert_eq!((web.requests_per_s, web.latency_us_p50), (10_000.0, None));
    }

    #[test]
    fn a_tenant_that_was_not_there_before_has_no_rates_yet() {
        let (mut early, late) = (script::sample(1), script::sample(2));
        early.tenants.remove(0);
        let board = Board::between(Some(&early), &late);
        let web = board.tenant("web").expect("it is there");
        assert_eq!((web.requests_per_s, web.device_share), (0.0, 0.0));
        assert_eq!((web.hit_ratio, web.items), (None, 250_000));
    }

    #[test]
    fn another_process_begins_anew() {
        let (mut early, late) = (script::sample(3), script::sample(2));
        assert!(!late.follows(&early));
        early.now_s = 1.0;
        assert!(late.follows(&early));
        early.pid += 1;
        assert!(!late.follows(&early));
        assert_eq!(Board::between(Some(&early), &late).interval_s, 2.0);
    }

    #[test]
    fn who_hurts_whom_is_read() {
        let hurt = hurt_by("be-2=0.380 be1=untested");
        let names: Vec<&str> = hurt.iter().map(|one| one.tenant.as_str()).collect();
        assert_eq!(names, ["be-2", "be1"]);
        assert_eq!((hurt[0].helped, hurt[1].helped), (Some(0.38), None));
    }

    #[test]
    fn a_device_is_used_by_all_its_tenants() {
        let board = Board::between(Some(&script::sample(1)), &script::sample(2));
        let devices = board.devices();
        assert_eq!(devices.len(), 1);
        assert_eq!(devices[0].0, "main");
        assert!((devices[0].1 - 0.845).abs() < 1e-9, "{devices:?}");
    }
}
