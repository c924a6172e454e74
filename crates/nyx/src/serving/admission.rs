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
/// The largest access that profiles look at.
const PROFILED_BYTES: usize = nyx_media::profile::STEP_BYTES * nyx_media::profile::STEPS;

/// What a device's profile says.
#[derive(Clone, Copy, Debug)]
pub struct Priced<'a> {
    /// Prices.
    pub cost: &'a CostTable,
    /// Latencies, where it has them.
    pub latency: Option<&'a Latency>,
}

impl Priced<'_> {
    /// Everything that promises on the device at a place are judged by; `did` is what the tenants
    /// of a running server did lately, without those that are new.
    pub fn device(&self, config: &Config, at: usize, did: Option<&[Did]>) -> Device {
        let known = |tenant: usize| match did.and_then(|did| did.get(tenant)) {
            Some(did) => self.known(did),
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
        let price = |bytes| self.cost.price(op, bytes).as_secs_f64() * 1e9;
        let access = |latency: &Latency| {
            // Profiles end at 4 KiB; the rest takes its device time at least.
            let rest_ns = price(bytes) - price(bytes.min(PROFILED_BYTES));
            let idle_ns = latency.idle_ns(op, bytes) + rest_ns;
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

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_base::{DevicePs, Latencies, LatencyCounter, Nanos};
    use nyx_policy::admission::{Promise, Verdict};
    use nyx_policy::sharing::qos::Target;

    fn finding(member: &str, most_ns: u64, is_refusal: bool) -> Finding {
        Finding {
            member: member.into(),
            promise: Promise::Target(Target::Mean(Nanos(most_ns))),
            verdict: match is_refusal {
                true => Verdict::TooTight {
                    idle_ns: 1_000.0,
                    cpu_ns: 500.0,
                    asks: "reads of 1024 B".into(),
                },
                false => Verdict::Sound,
            },
        }
    }

    #[test]
    fn a_new_refusal_refuses_and_one_that_stands_warns() {
        let findings = [finding("a", 100, true), finding("b", 200, false)];
        let failure = admit(&findings, &[], false).expect_err("refused");
        assert_eq!(failure.code, crate::Exit::Usage);
        let lines: Vec<&str> = failure.message.lines().collect();
        assert_eq!(lines.len(), 2, "a's and the way out: {lines:?}");
        assert!(lines[0].starts_with("\"a\": target mean 0.10 us is too tight"));
        let warnings = admit(&findings, &[], true).expect("asked for");
        assert_eq!(warnings, lines[..1]);
        let warnings = admit(&findings, &[finding("a", 100, true)], false);
        assert_eq!(warnings.expect("it stands").len(), 1);
        for standing in [finding("a", 100, false), finding("a", 90, true)] {
            let refused = admit(&findings, &[standing], false);
            refused.expect_err("it was sound, or another promise");
        }
    }

    fn did(usage: Usage, took: &[u64], n: u32) -> Did {
        let (counter, mut latencies) = (LatencyCounter::default(), Latencies::default());
        took.iter().for_each(|ns| counter.add(Nanos(*ns), n));
        counter.add_to(&mut latencies);
        Did {
            within_s: 2.0,
            usage,
            latencies,
        }
    }

    fn cost() -> CostTable {
        let rates = |rate: f64| std::array::from_fn(|_| rate);
        CostTable::from_max_iops(&rates(1e6), &rates(1e5))
    }

    /// Within two seconds 30 % of the device by reading and 10 % by writing.
    const BUSY: Usage = Usage {
        read_used: DevicePs(600_000_000_000),
        write_used: DevicePs(200_000_000_000),
        reads: 600_000,
        writes: 20_000,
        read_bytes: 600_000 * 256,
        written_bytes: 20_000 * 4096,
        holds: 0,
    };

    #[test]
    fn what_a_tenant_did_is_what_it_asks_for_and_uses() {
        let cost = cost();
        let priced = Priced {
            cost: &cost,
            latency: None,
        };
        let known = priced.known(&did(BUSY, &[], 0));
        let used = known.used.expect("it runs");
        assert!((used.reads.share - 0.3).abs() < 1e-9, "{used:?}");
        assert!((used.writes.share - 0.1).abs() < 1e-9, "{used:?}");
        let asks: Vec<&str> = known.asks.iter().map(|ask| ask.what.as_str()).collect();
        assert_eq!(asks, ["reads of 256 B", "writes of 4096 B"]);
        assert!((known.asks[0].part - 30.0 / 31.0).abs() < 1e-9);
        assert_eq!(known.asks[1].price, DevicePs(10_000_000));
        let idle = priced.known(&did(Usage::default(), &[], 0));
        assert_eq!(idle.asks[0].what, "reads of 1024 B (assumed)");
    }

    #[test]
    fn the_cpus_part_is_what_the_device_does_not_explain_where_it_is_least() {
        let ask = Ask {
            part: 1.0,
            what: String::new(),
            price: DevicePs(1),
            access: Some(Access::Write { idle_ns: 1_000.0 }),
        };
        let known = Known {
            asks: vec![ask],
            used: Some(Load::default()),
        };
        let device = Device {
            basis: Some(Basis {
                standard_growth_ns: 100.0,
                measured_share: MEASURED_SHARE,
            }),
            cpu_ns: CPU_NS,
            tenants: vec![known; 2],
            typical: Vec::new(),
        };
        let at = |ns| did(BUSY, &[ns], 2_000);
        let told = |did: &[Did]| cpu_ns(&device, &[0, 1], did);
        assert_eq!(told(&[at(4_000), at(3_000)]), Some(2_000.0));
        let held = Usage { holds: 1, ..BUSY };
        let held = did(held, &[2_000], 2_000);
        assert_eq!(
            told(&[at(4_000), held]),
            Some(3_000.0),
            "who was held waited"
        );
        assert_eq!(told(&[at(900), at(4_000)]), Some(0.0));
        assert_eq!(told(&[did(BUSY, &[4_000], 9), did(BUSY, &[], 0)]), None);
    }
}
