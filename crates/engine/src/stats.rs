//! Figures as clients ask for them: `stats`, `stats settings`, `stats items`, `stats slabs`,
//! `stats tenants`, `stats nyx`, `stats latencies`, `stats policy`, `stats devices`.
//!
//! Names are memcached's wherever it has one, so that exporters, `memcached-tool` and dashboards
//! work; Nyx's own start with `nyx_` or are `<tenant>:<name>`. A connection sees the tenants within
//! its reach, summed; what is not within reach is not told.
//!
//! Everything is a total since the start: whoever wants rates or the percentiles of an interval
//! takes the difference of two readings. So nothing is kept for a client, several may look at
//! intervals of their own, and nobody resets another's figures. Latencies are sent as the counts of
//! their buckets, a line for each octave: lines stay short, because some clients cut long ones.

use crate::counters::Counts;
use crate::deep_stats::{self, DeepSum};
use crate::engine::{Engine, VERSION};
use crate::session::Session;
use crate::tenant::Tenant;
use nyx_base::{DevicePs, Instant, Latencies};
use nyx_gate::{DELAY_UNIT, Usage};
use nyx_policy::{Delay, Want};
use nyx_proto::{Out, reply};
use nyx_store::{Figures, Journal};
use std::fmt::Display;

/// What only the process knows. The simulator and tests leave it at its default.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The driver's clock.
    pub now: Instant,
    /// The process id.
    pub pid: u32,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Wall-clock seconds.
    pub time_s: u64,
    /// CPU time spent in user code, in microseconds.
    pub user_us: u64,
    /// CPU time spent in the kernel, in microseconds.
    pub system_us: u64,
    /// Open connections.
    pub curr_connections: u64,
    /// Connections since the start.
    pub total_connections: u64,
    /// Connections refused because there were too many.
    pub rejected_connections: u64,
    /// The most connections allowed.
    pub max_connections: u64,
    /// Bytes received.
    pub bytes_read: u64,
    /// Bytes sent.
    pub bytes_written: u64,
    /// Connections that wait for their tenant's budget, by tenant; those missing are none.
    pub held_connections: Vec<u64>,
    /// Addresses listened on.
    pub listening: Vec<String>,
}

/// Figures of several tenants together.
#[derive(Default)]
struct Sum {
    counts: Counts,
    usage: Usage,
    figures: Figures,
    limit_bytes: u64,
    deep: Option<DeepSum>,
}

impl Sum {
    fn of<'t>(tenants: impl Iterator<Item = &'t Tenant>) -> Sum {
        tenants.fold(Sum::default(), |mut sum, tenant| {
            let figures = tenant.store.figures();
            sum.counts.merge(&tenant.counts());
            sum.usage = sum.usage + tenant.usage();
            sum.limit_bytes += tenant.config.size.0;
            sum.figures.items += figures.items;
            sum.figures.live_bytes += figures.live_bytes;
            sum.figures.dead_bytes += figures.dead_bytes;
            sum.figures.used_bytes += figures.used_bytes;
            sum.figures.evictions += figures.evictions;
            sum.figures.expirations += figures.expirations;
            sum.figures.relocations += figures.relocations;
            DeepSum::add(&mut sum.deep, tenant, figures.deep);
            sum
        })
    }
}

impl Engine {
    /// Answers `stats` with its arguments.
    pub fn stats(&self, session: &Session, arg: &[u8], around: &Surroundings, out: &mut Out) {
        let within: Vec<&Tenant> = session
            .tenants()
            .iter()
            .map(|id| &self.tenants[id.index()])
            .collect();
        match arg {
            b"" => self.stats_general(&within, around, out),
            b"settings" => self.stats_settings(&within, around, out),
            b"items" => stats_items(&within, out),
            b"slabs" => stats_slabs(&within, out),
            b"sizes" => reply::stat(out, "sizes_status", "disabled"),
            b"tenants" | b"nyx" => {
                let wants = self.wants();
                for tenant in &within {
                    self.stats_tenant(tenant, out);
                    let want = &wants[tenant.id.index()];
                    self.stats_standing(tenant, want, &within, around, out);
                }
            }
            b"latencies" => within
                .iter()
                .for_each(|tenant| stats_latencies(tenant, out)),
            b"policy" => self.stats_policy(&within, around, out),
            b"devices" => {
                self.stats_mapped(&within, out);
                self.stats_devices(&within, out);
            }
            b"reset" => {
                // Counters of devices and budgets only ever grow: a reset would make limits forget.
                reply::client_error(out, "stats reset is not supported: figures only grow");
                return;
            }
            _ => {
                reply::error(out);
                return;
            }
        }
        reply::end(out);
    }

    fn stats_general(&self, within: &[&Tenant], around: &Surroundings, out: &mut Out) {
        let sum = Sum::of(within.iter().copied());
        let stat = |out: &mut Out, name: &str, value: u64| reply::stat(out, name, value);
        let seconds = |us: u64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
        stat(out, "pid", u64::from(around.pid));
        stat(out, "uptime", around.uptime_s);
        stat(out, "time", around.time_s);
        reply::stat(out, "version", VERSION);
        stat(out, "pointer_size", u64::from(usize::BITS));
        reply::stat(out, "rusage_user", seconds(around.user_us));
        reply::stat(out, "rusage_system", seconds(around.system_us));
        stat(out, "max_connections", around.max_connections);
        stat(out, "curr_connections", around.curr_connections);
        stat(out, "total_connections", around.total_connections);
        stat(out, "rejected_connections", around.rejected_connections);
        counts(&sum.counts, out);
        stat(out, "bytes_read", around.bytes_read);
        stat(out, "bytes_written", around.bytes_written);
        stat(out, "limit_maxbytes", sum.limit_bytes);
        stat(out, "threads", u64::from(self.workers()));
        stat(out, "bytes", sum.figures.live_bytes);
        stat(out, "curr_items", sum.figures.items);
        stat(out, "total_items", sum.counts.cmd_set);
        stat(out, "evictions", sum.figures.evictions);
        stat(out, "reclaimed", sum.figures.expirations);
        stat(out, "nyx_used_bytes", sum.figures.used_bytes);
        stat(out, "nyx_dead_bytes", sum.figures.dead_bytes);
        stat(out, "nyx_relocations", sum.figures.relocations);
        let held: u64 = around.held_connections.iter().sum();
        stat(out, "nyx_held_connections", held);
        stat(out, "nyx_holds", sum.usage.holds);
        stat(out, "nyx_device_reads", sum.usage.reads);
        stat(out, "nyx_device_writes", sum.usage.writes);
        reply::stat(out, "nyx_device_seconds", device_seconds(sum.usage.used()));
        if let Some(deep) = &sum.deep {
            deep.told(out);
        }
    }

    fn stats_settings(&self, within: &[&Tenant], around: &Surroundings, out: &mut Out) {
        let sum = Sum::of(within.iter().copied());
        let longest = within
            .iter()
            .map(|t| t.config.item_len_max)
            .max()
            .unwrap_or(0);
        reply::stat(out, "maxbytes", sum.limit_bytes);
        reply::stat(out, "maxconns", around.max_connections);
        reply::stat(out, "inter", around.listening.join(","));
        reply::stat(out, "evictions", "on");
        reply::stat(out, "num_threads", self.workers());
        reply::stat(out, "item_size_max", longest);
        reply::stat(out, "cas_enabled", "yes");
        reply::stat(out, "binding_protocol", "ascii");
        reply::stat(out, "auth_enabled_sasl", "no");
        reply::stat(out, "flush_enabled", "yes");
        reply::stat(out, "nyx_policy", self.policy_name());
        for tenant in within {
            let name = |key: &str| format!("{}:{key}", tenant.name());
            reply::stat(out, &name("size"), tenant.config.size.0);
            reply::stat(out, &name("eviction"), tenant.config.eviction);
            reply::stat(out, &name("layout"), tenant.config.layout);
            reply::stat(out, &name("segment_bytes"), tenant.config.segment_bytes);
            reply::stat(out, &name("item_len_max"), tenant.config.item_len_max);
            reply::stat(
                out,
                &name("device"),
                &self.devices[tenant.config.device].name,
            );
            deep_stats::settings_told(tenant, &mut |key, value| {
                reply::stat(out, &name(key), value)
            });
        }
    }

    fn stats_tenant(&self, tenant: &Tenant, out: &mut Out) {
        let figures = tenant.store.figures();
        let usage = tenant.usage();
        let counts = tenant.counts();
        let device = &self.devices[tenant.config.device];
        let standard = device.cost.standard();
        let mut stat = |key: &str, value: &dyn std::fmt::Display| {
            reply::stat(out, &format!("{}:{key}", tenant.name()), value);
        };
        stat("device", &device.name);
        stat("evidence", &device.media.evidence());
        stat("size_bytes", &tenant.config.size.0);
        stat("used_bytes", &figures.used_bytes);
        stat("live_bytes", &figures.live_bytes);
        stat("dead_bytes", &figures.dead_bytes);
        stat("key_bytes", &figures.key_bytes);
        stat("value_bytes", &figures.value_bytes);
        stat("index_bytes", &figures.index_bytes);
        stat("items", &figures.items);
        stat("evictions", &figures.evictions);
        stat("expirations", &figures.expirations);
        stat("relocations", &figures.relocations);
        if let Some(keep) = &tenant.config.keep {
            stat("durability", &keep.durability);
        }
        if let Some(journal) = tenant.store.journal() {
            journal_told(journal, &mut stat);
        }
        if let Some(ordered) = tenant.store.ordered() {
            stat("order_bytes", &tenant.store.order_bytes());
            stat("order_built", &format!("{ordered:.4}"));
            stat("cmd_scan", &counts.cmd_scan);
            stat("scan_items", &counts.scan_items);
        }
        if let Some(revived) = tenant.store.revived() {
            stat("swept_chains", &revived.chains);
            stat("swept_chains_all", &revived.chains_all);
            stat("swept_dropped", &revived.dropped);
        }
        stat("get_hits", &counts.get_hits);
        stat("get_misses", &counts.get_misses);
        stat("cmd_set", &counts.cmd_set);
        stat("cmd_lease", &counts.cmd_lease);
        stat("rejected", &counts.rejected);
        stat("holds", &usage.holds);
        stat("device_reads", &usage.reads);
        stat("device_writes", &usage.writes);
        stat("device_read_bytes", &usage.read_bytes);
        stat("device_written_bytes", &usage.written_bytes);
        stat("device_seconds", &device_seconds(usage.used()));
        stat("standard_ops", &(usage.used().0 / standard.0.max(1)));
        deep_stats::tenant_told(tenant, figures.deep, &mut stat);
        if tenant.budget.is_limited() {
            let share = tenant.budget.sustained().share();
            stat("limit_device_share", &format!("{share:.4}"));
            stat(
                "limit_std_ops_per_s",
                &((share * 1e12) as u64 / standard.0.max(1)),
            );
        }
        let mut latencies = Latencies::default();
        tenant.add_latencies(&mut latencies);
        stat("measured_requests", &latencies.count());
        let us = |ns: Option<f64>| format!("{:.1}", ns.unwrap_or(0.0) / 1e3);
        stat("latency_us_mean", &us(latencies.mean_ns()));
        stat("latency_us_p50", &us(latencies.quantile_ns(0.5)));
        stat("latency_us_p99", &us(latencies.quantile_ns(0.99)));
        stat("latency_us_p999", &us(latencies.quantile_ns(0.999)));
    }

    /// Of devices that are mapped, those that have something to tell: they tell of all of their
    /// tenants, so only where all are within reach.
    fn stats_mapped(&self, within: &[&Tenant], out: &mut Out) {
        for (at, device) in self.devices.iter().enumerate() {
            let is_on = |tenant: &Tenant| tenant.config.device == at;
            let all = self.tenants.iter().filter(|tenant| is_on(tenant)).count();
            let here = within.iter().filter(|tenant| is_on(tenant)).count();
            if here > 0 && here == all {
                device.media.tell(&mut |key, value| {
                    reply::stat(out, &format!("{}:{key}", device.name), value);
                });
            }
        }
    }

    /// How a tenant stands with the policy, as far as that is known. Of who hurts it those are told
    /// who are within reach.
    fn stats_standing(
        &self,
        tenant: &Tenant,
        want: &Want,
        within: &[&Tenant],
        around: &Surroundings,
        out: &mut Out,
    ) {
        let standing = self.standing(tenant.id);
        let mut stat = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                reply::stat(out, &format!("{}:{key}", tenant.name()), value);
            }
        };
        let part = |value: Option<f64>| value.map(|value| format!("{value:.4}"));
        let held = around.held_connections.get(tenant.id.index());
        stat("held_connections", Some(held.unwrap_or(&0).to_string()));
        stat("promised_device_share", part(standing.limit));
        stat("entitled_device_share", part(standing.entitled));
        stat("throttle_device_share", part(standing.throttle));
        stat("best_effort", standing.best_effort.then(|| "yes".into()));
        stat("target", standing.target.map(|target| target.to_string()));
        let had = standing.target.zip(standing.had_ns);
        stat("target_had", had.map(|(target, ns)| target.show(ns)));
        stat("slack", part(standing.slack));
        stat("slowdown", part(standing.slowdown));
        stat("slowdown_most", part(standing.slowdown_most));
        let delay = match want.delay {
            Delay::None => None,
            Delay::Units(units) => Some((u64::from(units) * DELAY_UNIT.0).to_string()),
            Delay::Infinite => Some("paused".into()),
        };
        stat("delay_ns", delay);
        let hurt_by = standing.hurt_by.iter().filter_map(|(other, helped)| {
            let other = within.iter().find(|one| one.id.index() == *other)?;
            let helped = helped.map_or("untested".into(), |helped| format!("{helped:.3}"));
            Some(format!("{}={helped}", other.name()))
        });
        let hurt_by: Vec<String> = hurt_by.collect();
        stat(
            "hurt_by",
            Some(hurt_by.join(" ")).filter(|by| !by.is_empty()),
        );
    }

    /// The last decisions over the tenants within reach, oldest first. Reasons name other tenants:
    /// they are told only where all are within reach, as are decisions over groups.
    fn stats_policy(&self, within: &[&Tenant], around: &Surroundings, out: &mut Out) {
        reply::stat(out, "policy", self.policy_name());
        reply::stat(out, "now_s", format!("{:.6}", around.now.0 as f64 / 1e9));
        let all = within.len() == self.tenants.len();
        for decision in self.decisions_since(0).1 {
            let is_within = |one: &&Tenant| one.id.index() == decision.tenant;
            let Some(name) = self.name_of(decision.tenant) else {
                continue;
            };
            if all || within.iter().any(is_within) {
                let name = format!("{name}:{:.3}s", decision.at.0 as f64 / 1e9);
                match all {
                    true => reply::stat(out, &name, format!("{}: {}", decision.act, decision.why)),
                    false => reply::stat(out, &name, decision.act),
                }
            }
        }
    }
}

fn journal_told(journal: &Journal, stat: &mut dyn FnMut(&str, &dyn Display)) {
    let figures = journal.figures();
    stat("sync", &journal.sync_mode());
    stat("journal_bytes", &figures.file_bytes);
    stat("journal_appended_bytes", &figures.appended_bytes);
    stat("journal_unsynced_bytes", &figures.unsynced_bytes);
    stat("journal_syncs", &figures.syncs);
    stat("journal_rewrites", &figures.rewrites);
    if let Some(trouble) = journal.trouble() {
        stat("journal_trouble", &trouble);
    }
}

/// The latencies of a tenant's requests: for each octave in which there are any, named by where it
/// begins in nanoseconds, the counts of its sixteen buckets; and the sum of all. Counts are of 32
/// bits, the sum is of 64; both wrap.
fn stats_latencies(tenant: &Tenant, out: &mut Out) {
    let mut latencies = Latencies::default();
    tenant.add_latencies(&mut latencies);
    let name = tenant.name();
    reply::stat(out, &format!("{name}:latency_ns_sum"), latencies.sum_ns());
    for (begin_ns, counts) in latencies.octaves() {
        let counts: Vec<String> = counts.iter().map(u32::to_string).collect();
        reply::stat(
            out,
            &format!("{name}:latency_ns:{begin_ns}"),
            counts.join(","),
        );
    }
}

fn device_seconds(used: DevicePs) -> String {
    format!("{:.6}", used.as_secs_f64())
}

fn counts(counts: &Counts, out: &mut Out) {
    let lines = [
        ("cmd_get", counts.cmd_get),
        ("cmd_set", counts.cmd_set),
        ("cmd_flush", counts.cmd_flush),
        ("cmd_touch", counts.cmd_touch),
        ("cmd_meta", counts.cmd_meta),
        ("get_hits", counts.get_hits),
        ("get_misses", counts.get_misses),
        ("delete_misses", counts.delete_misses),
        ("delete_hits", counts.delete_hits),
        ("incr_misses", counts.incr_misses),
        ("incr_hits", counts.incr_hits),
        ("decr_misses", counts.decr_misses),
        ("decr_hits", counts.decr_hits),
        ("cas_misses", counts.cas_misses),
        ("cas_hits", counts.cas_hits),
        ("cas_badval", counts.cas_badval),
        ("touch_hits", counts.touch_hits),
        ("touch_misses", counts.touch_misses),
        ("store_too_large", counts.store_too_large),
        ("store_no_memory", counts.store_no_memory),
        ("auth_cmds", counts.auth_cmds),
        ("auth_errors", counts.auth_errors),
        ("nyx_rejected", counts.rejected),
    ];
    for (name, value) in lines {
        reply::stat(out, name, value);
    }
}

/// Nyx has no slab classes: each tenant within reach is shown as one, numbered from 1.
fn stats_items(within: &[&Tenant], out: &mut Out) {
    for (tenant, class) in within.iter().zip(1..) {
        let figures = tenant.store.figures();
        let mut stat =
            |key: &str, value: u64| reply::stat(out, &format!("items:{class}:{key}"), value);
        stat("number", figures.items);
        stat("mem_requested", figures.live_bytes);
        stat("evicted", figures.evictions);
        stat("outofmemory", tenant.counts().store_no_memory);
        stat("reclaimed", figures.expirations);
    }
}

fn stats_slabs(within: &[&Tenant], out: &mut Out) {
    let mut total = 0;
    for (tenant, class) in within.iter().zip(1..) {
        let figures = tenant.store.figures();
        let counts = tenant.counts();
        let mut stat = |key: &str, value: u64| reply::stat(out, &format!("{class}:{key}"), value);
        stat("chunk_size", u64::from(tenant.config.segment_bytes));
        stat(
            "total_pages",
            u64::from(figures.segments.open + figures.segments.sealed),
        );
        stat("used_chunks", figures.items);
        stat("get_hits", counts.get_hits);
        stat("cmd_set", counts.cmd_set);
        stat("delete_hits", counts.delete_hits);
        stat("incr_hits", counts.incr_hits);
        stat("decr_hits", counts.decr_hits);
        stat("cas_hits", counts.cas_hits);
        stat("cas_badval", counts.cas_badval);
        stat("touch_hits", counts.touch_hits);
        total += figures.used_bytes;
    }
    reply::stat(out, "active_slabs", within.len());
    reply::stat(out, "total_malloced", total);
}
