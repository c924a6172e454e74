//! A device model and its prices, for whoever puts a modelled device under an engine: scenarios in
//! virtual time, the demo and the examples in real time.
//!
//! What it never does: measure anything real; prices come from a profile in virtual time.

use nyx_gate::CostTable;
use nyx_media::MediaError;
use nyx_media::model::Params;
use nyx_media::profile::{Effort, simulate};

/// A device model and its prices.
#[derive(Clone, Debug)]
pub struct Modelled {
    /// The model.
    pub params: Params,
    /// What its operations cost, from a profile of the model in virtual time.
    pub cost: CostTable,
}

impl Modelled {
    /// Of a preset (`optane-2dimm/8`) or a file, profiled in about a second.
    pub fn named(spec: &str) -> Result<Modelled, MediaError> {
        let params = Params::resolve(spec)?;
        let profile = simulate(&params, Effort::Quick, &mut |_| {});
        let cost = CostTable::of_profile(&profile);
        Ok(Modelled { params, cost })
    }
}
