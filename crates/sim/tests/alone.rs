//! What stand-alone runs cost (NyxCache section 4.1, Fig. 5b) in virtual time: up to 12 tenants,
//! the paper's mode each 0.5 and 10 s, and the default. The paper stays below 2.5 %.
//!
//! Nobody is throttled: what is lost is what a tenant that runs alone leaves of the device. All
//! numbers are simulated.

mod rig;

use nyx_base::{Instant, Nanos};
use nyx_policy::baselines::Unlimited;
use nyx_policy::mechanism::alone::{Alone, Clients, Params, Refresh};
use nyx_policy::{Policy, Seen, Want};
use nyx_sim::client::Load;
use nyx_sim::scenario::{Outcome, Part};

const WINDOW: Nanos = Nanos::from_millis(100);
const LENGTH: Nanos = Nanos::from_millis(1_000);

/// Runs everybody alone, and does nothing with what it learns.
struct Measure(Alone);

impl Measure {
    fn boxed(params: Params, tenants: usize) -> Box<dyn Policy> {
        Box::new(Measure(Alone::new(params, &vec![Clients::Closed; tenants])))
    }
}

impl Policy for Measure {
    fn name(&self) -> &'static str {
        "measure"
    }

    fn period(&self) -> Nanos {
        self.0.period()
    }

    fn step(&mut self, now: Instant, seen: &[Seen], want: &mut [Want]) {
        self.0.step(now, seen);
        self.0.start(|_| true);
        self.0.take();
        want.fill(Want::default());
        self.0.apply(want);
    }
}

fn run(tenants: usize, policy: Box<dyn Policy>) -> Outcome {
    let part = |at: usize| {
        let load = Load::uniform(500, 4096, 1.0, 4);
        Part::closed(&format!("t{at}"), load, 1, Nanos(300))
    };
    let parts = (0..tenants).map(part).collect();
    rig::run(parts, policy, [LENGTH, WINDOW], 1)
}

/// Requests answered by all.
fn ops(outcome: &Outcome) -> f64 {
    outcome.parts.iter().map(|part| part.done.ops as f64).sum()
}

#[test]
fn runs_cost_what_the_paper_says_and_by_default_a_fifth_of_it() {
    for tenants in [2, 12] {
        let free = ops(&run(tenants, Box::new(Unlimited)));
        let cost = |params| 1.0 - ops(&run(tenants, Measure::boxed(params, tenants))) / free;
        for refresh_ms in [500, 10_000] {
            let paper = cost(Params {
                mode: Refresh::Paper,
                refresh: Nanos::from_millis(refresh_ms),
                ..Params::default()
            });
            println!(
                "{tenants} tenants, each {refresh_ms} ms: {:.2} %",
                paper * 100.0
            );
            assert!(
                paper < 0.025,
                "{tenants} tenants, each {refresh_ms} ms: {paper}"
            );
        }
        let default = cost(Params::default());
        println!("{tenants} tenants, by default: {:.2} %", default * 100.0);
        assert!(default < 0.005, "{tenants} tenants: {default}");
    }
}
