//! What the scenarios of the tests have in common.

#![allow(dead_code, reason = "each test file uses a part of it")]

use nyx_base::Nanos;
use nyx_policy::Policy;
use nyx_sim::modelled::Modelled;
use nyx_sim::scenario::{Outcome, Part, Scenario};
use std::sync::OnceLock;

/// An eighth of the paper's device, profiled once for all tests of a file.
pub(crate) fn eighth() -> Modelled {
    static DEVICE: OnceLock<Modelled> = OnceLock::new();
    let named = || Modelled::named("optane-2dimm/8").expect("a preset");
    DEVICE.get_or_init(named).clone()
}

/// A run on [`eighth`].
pub(crate) fn run(
    parts: Vec<Part>,
    policy: Box<dyn Policy>,
    [length, window]: [Nanos; 2],
    seed: u64,
) -> Outcome {
    let scenario = Scenario {
        device: eighth(),
        parts,
        policy,
        length,
        window,
        seed,
    };
    scenario.run().expect("the scenario fits")
}
