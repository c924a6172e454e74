//! Admission of a configuration: what its devices' profiles and the running server know, put into
//! the policy room's terms (NyxCache section 3.4), and what becomes of what that room finds.
//!
//! The CPU's part of a latency is learned where somebody's latencies are recorded: what is left of
//! a mean when the device's part, by the forecast, is taken off. The least over the tenants counts;
//! those that were held are left out, because they waited for their budgets.
//!
//! What it never does: judge a promise; `nyx_policy::admission` does.

use super::recent::Did;
use crate::Failure;
use crate::config::Config;
use nyx_gate::{CostTable, Usage};
use nyx_media::Op;
use nyx_media::profile::{Latency, MEASURED_SHARE, VICTIM_BYTES};
use nyx_policy::admission::{Ask, CPU_NS, Device, Finding, Known, judge};
use nyx_policy::mechanism::forecast::{Access, Basis, Load, Used};
use nyx_policy::plan::Plan;

/// Who did fewer accesses is taken for what everybody is taken for.
const ACCESSES_LEAST: u64 = 100;
/// A mean of fewer latencies says nothing of the CPU.
const LATENCIES_LEAST: u64 = 1_000;
/// What is asked for where nobody knows: reads of so many bytes, standard operations.
const TYPICAL_BYTES: usize = 1024;

/// What a device's profile says.
#[derive(Clone, Copy, Debug)]
pub struct Priced<'a> {
    /// Prices.
    pub cost: &'a CostTable,
    /// Latencies, where it has them.
    pub latency: Option<&'a Latency>,
}

impl Priced<'_> {
    /// Everything about a device by its place that promises are judged by; `did` is what the tenants
    /// of a running server did lately.
    pub fn device(&self, config: &Config, at: usize, did: Option<&[Did]>) -> Device {
        let known = |tenant: usize| match did {
            Some(did) => self.known(&did[tenant]),
            None => Known {
                asks: self.typical(),
                used: None,
            },
        };
        let basis = self.latency.map(|latency| Basis {
            standard_growth_ns: latency.standard_growth_ns(),
            measured_share: MEASURED_SHARE,
        });
        let mut device = Device {
            basis,
            cpu_ns: CPU_NS,
            tenants: (0..config.tenants.len()).map(known).collect(),
            typical: self.typical(),
        };
        let here = |tenant: &usize| config.tenants[*tenant].device == at;
        let cpu_ns = did.and_then(|did| {
            let here: Vec<usize> = (0..did.len()).filter(here).collect();
            cpu_ns(&device, &here, did)
        });
        device.cpu_ns = cpu_ns.unwrap_or(CPU_NS);
        device
    }

    fn known(&self, did: &Did) -> Known {
        let Usage {
            reads,
            read_bytes,
            writes,
            written_bytes,
            read_used,
            write_used,
            ..
        } = did.usage;
        let used = |op, used: nyx_base::DevicePs, accesses: u64, bytes: u64| {
            let share = used.as_secs_f64() / did.within_s;
            let mean = bytes.checked_div(accesses).unwrap_or(0) as usize;
            let harm = share * self.cost.latency_price(op, mean);
            Used { share, harm }
        };
        let all = reads + writes;
        let ask = |op, accesses: u64, bytes: u64| {
            let mean = bytes.checked_div(accesses)? as usize;
            Some(self.ask(op, mean, accesses as f64 / all as f64, ""))
        };
        let asks = [
            ask(Op::Read, reads, read_bytes),
            ask(Op::Write, writes, written_bytes),
        ];
        Known {
            asks: match all >= ACCESSES_LEAST {
                true => asks.into_iter().flatten().collect(),
                false => self.typical(),
            },
            used: Some(Load {
                reads: used(Op::Read, read_used, reads, read_bytes),
                writes: used(Op::Write, write_used, writes, written_bytes),
            }),
        }
    }

    fn typical(&self) -> Vec<Ask> {
        vec![self.ask(Op::Read, TYPICAL_BYTES, 1.0, " (assumed)")]
    }

    fn ask(&self, op: Op, bytes: usize, part: f64, remark: &str) -> Ask {
        let what = match op {
            Op::Read => "reads",
            Op::Write => "writes",
        };
        let access = |latency: &Latency| {
            let idle_ns = latency.idle_ns(op, bytes);
            match op {
                Op::Read => {
                    let line_ns = latency.idle_ns(Op::Read, VICTIM_BYTES);
                    Access::read(bytes.max(1), VICTIM_BYTES, idle_ns, line_ns)
                }
                Op::Write => Access::Write { idle_ns },
            }
        };
        Ask {
            part,
            what: format!("{what} of {bytes} B{remark}"),
            price: self.cost.price(op, bytes),
            access: self.latency.map(access),
        }
    }
}

/// What the CPU takes at least of a request, as far as somebody's latencies tell.
fn cpu_ns(device: &Device, here: &[usize], did: &[Did]) -> Option<f64> {
    let basis = device.basis?;
    let used = here
        .iter()
        .filter_map(|tenant| device.tenants[*tenant].used);
    let load = used.reduce(|sum, one| sum + one)?;
    let left = |tenant: &usize| {
        let Did {
            usage, latencies, ..
        } = &did[*tenant];
        if usage.holds > 0 || latencies.count() < LATENCIES_LEAST {
            return None;
        }
        let mut device_ns = 0.0;
        for ask in &device.tenants[*tenant].asks {
            device_ns += ask.part * basis.forecast(ask.access?, load).ok()?.mean_ns;
        }
        Some((latencies.mean_ns()? - device_ns).max(0.0))
    };
    here.iter().filter_map(left).reduce(f64::min)
}

/// What is found of the promises of all devices.
pub fn findings(
    config: &Config,
    plans: &[Plan],
    priced: &[Priced<'_>],
    did: Option<&[Did]>,
) -> Vec<Finding> {
    let devices = plans.iter().zip(priced).enumerate();
    let each = devices.map(|(at, (plan, priced))| judge(plan, &priced.device(config, at, did)));
    each.flatten().collect()
}

/// What there is to warn of, in sentences.
///
/// Errors: exit 64 with every refusal, except of what is `standing`: promises that are in force
/// already and are refused by today's figures too stop nobody from changing something else. With
/// `oversubscribe` nothing is refused.
pub fn admit(
    findings: &[Finding],
    standing: &[Finding],
    oversubscribe: bool,
) -> Result<Vec<String>, Failure> {
    let stands = |finding: &Finding| {
        let same = |other: &&Finding| {
            other.is_refusal()
                && (&other.member, other.promise) == (&finding.member, finding.promise)
        };
        standing.iter().find(same).is_some()
    };
    let (mut refused, mut warnings) = (Vec::new(), Vec::new());
    for finding in findings {
        match finding.is_refusal() && !oversubscribe && !stands(finding) {
            true => refused.push(finding.to_string()),
            false if finding.is_refusal() || finding.is_doubt() => {
                warnings.push(finding.to_string());
            }
            false => {}
        }
    }
    if refused.is_empty() {
        return Ok(warnings);
    }
    refused.push("policy.oversubscribe = true makes such promises all the same".into());
    Err(Failure::usage(refused.join("\n")))
}
