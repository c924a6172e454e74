//! Figures of what is deep, for `stats`, `stats tenants`, `stats settings` and `stats devices`.
//!
//! What was refused for want of a stage (`deep_refused_stage`) is the device's back-pressure: who
//! writes faster than it takes has less there, and sees it here. All are totals since the start,
//! but bytes, segments and stages.

use crate::engine::Engine;
use crate::tenant::Tenant;
use nyx_base::DevicePs;
use nyx_gate::{Rate, Usage};
use nyx_proto::{Out, reply};
use nyx_store::DeepFigures;
use nyx_tier::Pair;
use std::fmt::Display;

/// A name and its figure.
type Tell<'a> = &'a mut dyn FnMut(&str, &dyn Display);

/// What several tenants have deep together; none where none has.
pub(crate) struct DeepSum {
    figures: DeepFigures,
    usage: Usage,
}

impl DeepSum {
    /// Adds what a tenant has to a sum.
    pub(crate) fn add(sum: &mut Option<DeepSum>, tenant: &Tenant, one: Option<DeepFigures>) {
        let (Some(usage), Some(one)) = (tenant.deep_usage(), one) else {
            return;
        };
        let sum = sum.get_or_insert(DeepSum {
            figures: DeepFigures::default(),
            usage: Usage::default(),
        });
        sum.usage = sum.usage + usage;
        let figures = &mut sum.figures;
        figures.live_bytes += one.live_bytes;
        figures.twin_bytes += one.twin_bytes;
        figures.dead_bytes += one.dead_bytes;
        figures.key_bytes += one.key_bytes;
        figures.segments.0 += one.segments.0;
        figures.segments.1 += one.segments.1;
        figures.stages.0 += one.stages.0;
        figures.stages.1 += one.stages.1;
        figures.demotions += one.demotions;
        figures.refused_stage += one.refused_stage;
        figures.refused_segment += one.refused_segment;
        figures.refused_allowance += one.refused_allowance;
        figures.returns += one.returns;
        figures.promotions += one.promotions;
        figures.mirrors += one.mirrors;
        figures.arounds += one.arounds;
        figures.lost_twins += one.lost_twins;
        figures.compactions += one.compactions;
        figures.compacted_bytes += one.compacted_bytes;
        figures.evictions += one.evictions;
        figures.lost += one.lost;
    }

    /// Tells the sum.
    pub(crate) fn told(&self, out: &mut Out) {
        let mut tell = |name: &str, value: &dyn Display| {
            reply::stat(out, &format!("nyx_deep_{name}"), value);
        };
        figures_told(&self.figures, &mut tell);
        usage_told(&self.usage, &mut tell);
    }
}

/// What one tenant has, where it has anything.
pub(crate) fn tenant_told(tenant: &Tenant, figures: Option<DeepFigures>, stat: Tell<'_>) {
    let (Some(deep), Some(usage), Some(share), Some(figures)) = (
        &tenant.deep,
        tenant.deep_usage(),
        tenant.config.deep,
        figures,
    ) else {
        return;
    };
    let mut tell = |name: &str, value: &dyn Display| stat(&format!("deep_{name}"), value);
    tell("device", &deep.pair.deep().name);
    tell("evidence", &deep.pair.deep().evidence());
    tell("size_bytes", &share.size.0);
    figures_told(&figures, &mut tell);
    usage_told(&usage, &mut tell);
    let limit = deep.budget.tightest();
    if limit != Rate::UNLIMITED {
        tell("limit_device_share", &format!("{:.4}", limit.share()));
    }
    pair_told(&deep.pair, &mut tell);
}

/// What the tenant's controller decided, and what came of it.
fn pair_told(pair: &Pair, tell: Tell<'_>) {
    let (routing, controller) = pair.routing();
    let seen = pair.seen();
    tell("controller", &controller);
    tell("data_admit", &u8::from(routing.data_admit));
    tell("found_reads", &seen.looks);
    tell("found_reads_fast", &seen.hits);
    tell("mirrored_reads", &seen.mirrored_reads);
    tell("mirrored_reads_deep", &seen.mirrored_deep);
    if let Some(load_admit) = seen.load_admit() {
        tell("load_admit_percent", &format!("{:.2}", 100.0 * load_admit));
    }
}

/// How a tenant's two devices are used, where it has two.
pub(crate) fn settings_told(tenant: &Tenant, stat: Tell<'_>) {
    let (Some(deep), Some(share)) = (&tenant.deep, tenant.config.deep) else {
        return;
    };
    stat("deep_device", &deep.pair.deep().name);
    stat("deep_size", &share.size.0);
    stat("deep_item_len_min", &share.item_len_min);
    if let Some(day) = share.day {
        stat("deep_writes_per_day", &day.0);
    }
    stat("write", &share.write);
    stat("nhc", &share.nhc);
}

fn figures_told(figures: &DeepFigures, tell: Tell<'_>) {
    tell("live_bytes", &figures.live_bytes);
    tell("twin_bytes", &figures.twin_bytes);
    tell("dead_bytes", &figures.dead_bytes);
    tell("key_bytes", &figures.key_bytes);
    tell("segments", &figures.segments.0);
    tell("segments_all", &figures.segments.1);
    tell("stages", &figures.stages.0);
    tell("stages_all", &figures.stages.1);
    tell("demotions", &figures.demotions);
    tell("returns", &figures.returns);
    tell("promotions", &figures.promotions);
    tell("mirrors", &figures.mirrors);
    tell("arounds", &figures.arounds);
    tell("compactions", &figures.compactions);
    tell("compacted_bytes", &figures.compacted_bytes);
    tell("evictions", &figures.evictions);
    tell("refused_stage", &figures.refused_stage);
    tell("refused_segment", &figures.refused_segment);
    tell("refused_allowance", &figures.refused_allowance);
    tell("lost", &figures.lost);
    tell("lost_twins", &figures.lost_twins);
}

/// By the gate's account.
fn usage_told(usage: &Usage, tell: Tell<'_>) {
    tell("holds", &usage.holds);
    tell("reads", &usage.reads);
    tell("writes", &usage.writes);
    tell("read_bytes", &usage.read_bytes);
    tell("written_bytes", &usage.written_bytes);
    tell("device_seconds", &seconds(usage.used()));
}

fn seconds(used: DevicePs) -> String {
    format!("{:.6}", used.as_secs_f64())
}

impl Engine {
    /// The deep devices of tenants within reach, as they say of themselves. What they did is told
    /// where all of their tenants are within reach; what failed concerns each of them.
    pub(crate) fn stats_devices(&self, within: &[&Tenant], out: &mut Out) {
        for (at, deep) in self.deep_devices.iter().enumerate() {
            let is_on = |tenant: &Tenant| tenant.config.deep.is_some_and(|deep| deep.device == at);
            let all = self.tenants.iter().filter(|tenant| is_on(tenant)).count();
            let here = within.iter().filter(|tenant| is_on(tenant)).count();
            if here == 0 {
                continue;
            }
            let mut stat = |key: &str, value: &dyn Display| {
                reply::stat(out, &format!("{}:{key}", deep.name), value);
            };
            let figures = deep.figures();
            stat("evidence", &deep.evidence());
            stat("size_bytes", &deep.file().len_bytes());
            stat("direct_io", &u8::from(deep.file().blocks().is_direct()));
            stat("read_errors", &figures.read_errors);
            stat("write_errors", &figures.write_errors);
            if here == all {
                stat("reads", &figures.reads);
                stat("read_bytes", &figures.read_bytes);
                stat("writes", &figures.writes);
                stat("written_bytes", &figures.written_bytes);
            }
        }
    }
}
