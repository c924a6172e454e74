//! Who is on the stage of `nyx demo`, and its three acts.

use nyx_base::{DevicePs, TenantId};
use nyx_media::Op;
use nyx_policy::Policy;
use nyx_policy::baselines::Unlimited;
use nyx_policy::sharing::limit::Leased;
use nyx_sim::client::Load;
use nyx_sim::modelled::Modelled;

/// The place of the noisy neighbour among the tenants.
pub(crate) const NOISY: usize = 2;
/// How many tenants there are.
pub(crate) const TENANTS: usize = 3;
/// Their names.
pub(crate) const NAMES: [&str; TENANTS] = ["web", "feed", "noisy"];

/// No quiet tenant asks for more than this, however fast the device is: two worker threads must
/// keep up with it.
const QUIET_OPS_PER_S_MAX: f64 = 60_000.0;
const QUIET_BATCH: usize = 4;
const NOISY_BATCH: usize = 8;

/// What happens, in this order, each for a third of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Act {
    /// The noisy neighbour is not there yet.
    Quiet,
    /// It writes as fast as it can, and nothing stops it.
    Free,
    /// It goes on, and a policy is in force.
    Limited,
}

impl Act {
    /// All of them, in order.
    pub(crate) const ALL: [Act; 3] = [Act::Quiet, Act::Free, Act::Limited];

    /// Which act is on when this part (0 to 1) of the time has gone by.
    pub(crate) fn at(part: f64) -> Act {
        let index = (part.clamp(0.0, 1.0) * Act::ALL.len() as f64) as usize;
        Act::ALL[index.min(Act::ALL.len() - 1)]
    }

    /// Who decides in it. `limit` is the noisy neighbour's share of the device.
    pub(crate) fn policy(self, limit: f64) -> Box<dyn Policy> {
        if self != Act::Limited {
            return Box::new(Unlimited);
        }
        let mut limits = vec![None; TENANTS];
        limits[NOISY] = Some(DevicePs((limit * 1e12) as u64));
        Box::new(Leased::new(limits))
    }
}

/// How often a tenant's clients ask.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pace {
    /// So many requests a second, at random times, whether they are answered in time or not.
    PerSecond(f64),
    /// The next request as soon as the last is answered.
    Greedy,
}

/// One tenant.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// What it does, for people.
    pub(crate) does: String,
    /// What its clients ask for.
    pub(crate) load: Load,
    /// How often.
    pub(crate) pace: Pace,
}

/// The tenants for a device: two that ask for some percent of it, and one that asks for all.
pub(crate) fn cast(device: &Modelled) -> [Part; TENANTS] {
    [
        quiet(device, 0, 1024, 0.05),
        quiet(device, 1, 4096, 0.08),
        Part {
            does: "sets 4 KiB, all it can".into(),
            load: load(NOISY, 4096, 0.0, NOISY_BATCH),
            pace: Pace::Greedy,
        },
    ]
}

fn quiet(device: &Modelled, place: usize, value_bytes: usize, share: f64) -> Part {
    let price_s = device.cost.price(Op::Read, value_bytes).as_secs_f64();
    let ops_per_s = (share / price_s).min(QUIET_OPS_PER_S_MAX);
    Part {
        does: format!(
            "gets {} KiB, {:.0} k/s",
            value_bytes / 1024,
            ops_per_s / 1e3
        ),
        load: load(place, value_bytes, 1.0, QUIET_BATCH),
        pace: Pace::PerSecond(ops_per_s),
    }
}

fn load(place: usize, value_bytes: usize, gets: f64, batch: usize) -> Load {
    Load {
        tenant: TenantId(place as u16),
        ..Load::uniform(10_000, value_bytes, gets, batch)
    }
}

#[cfg(test)]
mod tests {
    use super::super::stage::modelled;
    use super::*;
    use nyx_base::Instant;
    use nyx_policy::{Seen, Want};

    #[test]
    fn acts_follow_each_other_through_the_whole_time() {
        let at = |percent: u32| Act::at(f64::from(percent) / 100.0);
        assert_eq!([at(0), at(32), at(34)], [Act::Quiet, Act::Quiet, Act::Free]);
        assert_eq!(
            [at(66), at(67), at(100)],
            [Act::Free, Act::Limited, Act::Limited]
        );
        assert_eq!(Act::at(7.0), Act::Limited);
    }

    #[test]
    fn only_the_last_act_limits_and_only_the_noisy_tenant() {
        for act in Act::ALL {
            let mut want = [Want::default(); TENANTS];
            let seen = std::array::from_fn::<_, TENANTS, _>(|_| Seen::default());
            act.policy(0.1).step(Instant(0), &seen, &mut want);
            let rates = want.map(|want| want.rate.map(|rate| rate.0));
            let noisy = (act == Act::Limited).then_some(100_000_000_000);
            assert_eq!(rates, [None, None, noisy], "{act:?}");
        }
    }

    #[test]
    fn quiet_tenants_ask_for_their_share_of_the_device() {
        let device = modelled("optane-2dimm/8").expect("a preset");
        let [web, feed, noisy] = cast(&device);
        for (part, share) in [(web, 0.05), (feed, 0.08)] {
            let Pace::PerSecond(ops) = part.pace else {
                panic!("{part:?} is quiet")
            };
            let price = device.cost.price(Op::Read, part.load.value_bytes);
            assert!((ops * price.as_secs_f64() - share).abs() < 1e-9, "{part:?}");
        }
        assert_eq!(noisy.pace, Pace::Greedy);
    }
}
