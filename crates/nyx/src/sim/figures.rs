//! The scenario files that redraw the evaluation of NyxCache (FAST '22, section 4), as they lie in
//! `config/scenarios`: each says what the paper says of its figure, and fails where that does not
//! come out.
//!
//! What this module never does: hold a number of a figure. They are in the files.

/// A file: its name without the ending, and its text.
pub struct Figure {
    /// As `nyx sim figures NAME` has it.
    pub name: &'static str,
    /// The scenario.
    pub text: &'static str,
}

macro_rules! figures {
    ($($name:literal),* $(,)?) => {
        [$(Figure {
            name: $name,
            text: include_str!(concat!("../../../../config/scenarios/", $name, ".toml")),
        }),*]
    };
}

/// All of them, in the paper's order.
pub const FIGURES: [Figure; 20] = figures![
    "fig01a-interference",
    "fig01b-store-sizes",
    "table2-operations",
    "fig03-max-iops",
    "fig04a-split",
    "fig04b-nt-stores",
    "fig05b-pauses",
    "fig06ab-limits",
    "fig06c-mixes",
    "fig07-hit-ratio",
    "fig08-qos",
    "fig09a-tuning",
    "fig09b-fair-slowdown",
    "fig10a-weights",
    "fig10b-sizes",
    "fig11-donation",
    "fig12a-write-spikes",
    "fig12b-diurnal",
    "fig13-experiment-step",
    "fig14-donate-step",
];
