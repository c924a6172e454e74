//! Expectations: what a scenario file says must come out, and whether it did.
//!
//! An expectation takes a metric of some tenants in some cases, divides it by what it is in another
//! case where one is named (`per`), takes one number of all these, and holds it against bounds, for
//! every run, that is for every seed by itself. So a figure of a paper is a file that fails when it
//! no longer shows what it is there to show, and a plan for a server can be tested like a program.
//!
//! What this module never does: leave out a run, or take nothing measured for something kept.

use super::file::Case;
use super::metric::Metric;
use super::run::{Result as Outcome, Run, over_runs};
use serde::Deserialize;
use std::collections::BTreeMap;

/// One value or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum OneOrMore {
    /// Any of these.
    More(Vec<toml::Value>),
    /// One.
    One(toml::Value),
}

impl OneOrMore {
    fn has(&self, value: &str) -> bool {
        let is = |one: &toml::Value| super::file::shown(one) == value;
        match self {
            OneOrMore::One(one) => is(one),
            OneOrMore::More(all) => all.iter().any(is),
        }
    }
}

/// Which cases: a value, or several, for some of the sweeps.
pub type Where = BTreeMap<String, OneOrMore>;

/// Whether a case is among them. Values are compared as they are written.
pub fn is_among(case: &Case, among: &Where) -> bool {
    among.iter().all(|(sweep, wanted)| {
        let of = case.settings.iter().find(|(name, _)| name == sweep);
        of.is_some_and(|(_, value)| wanted.has(value))
    })
}

/// Which one number is taken of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Take {
    /// None: each must keep the bounds.
    #[default]
    Each,
    /// The largest.
    Max,
    /// The smallest.
    Min,
    /// The mean.
    Mean,
    /// The standard deviation. With `per` it is that of one divided by that of the other.
    Sd,
}

/// Checks that there are tenants and sweeps of these names; the error names who is not there.
pub fn check_names<'a>(
    of: &[String],
    mut sweeps: impl Iterator<Item = &'a String>,
    cases: &[Case],
) -> Result<(), String> {
    let tenants = &cases[0].config.tenants;
    let is_known = |name: &&String| tenants.iter().any(|tenant| tenant.name == **name);
    if let Some(name) = of.iter().find(|name| !is_known(name)) {
        return Err(format!("there is no tenant {name:?}"));
    }
    let has = |name: &&String| cases[0].settings.iter().any(|one| one.0 == **name);
    match sweeps.find(|name| !has(name)) {
        Some(name) => Err(format!("there is no sweep {name:?}")),
        None => Ok(()),
    }
}

/// The places of the tenants of these names; of all where none is named.
pub fn tenants_of<'a>(of: &'a [String], case: &'a Case) -> impl Iterator<Item = usize> + 'a {
    let tenants = case.config.tenants.iter().enumerate();
    tenants
        .filter(|(_, one)| of.is_empty() || of.contains(&one.name))
        .map(|(at, _)| at)
}

/// `[[expect]]`, as a file has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// What is claimed, in the words of who claims it.
    pub says: String,
    /// Of what.
    metric: String,
    /// Of which tenants; of all where none is named.
    #[serde(default)]
    of: Vec<String>,
    /// In which cases.
    #[serde(default, rename = "where")]
    among: Where,
    /// As a part of what it is in the case that has this instead.
    #[serde(default)]
    per: BTreeMap<String, toml::Value>,
    /// Relative errors against these, by the values of all sweeps, as "256B, NT store".
    #[serde(default)]
    published: BTreeMap<String, f64>,
    #[serde(default)]
    take: Take,
    at_least: Option<f64>,
    at_most: Option<f64>,
    /// What would be better still.
    pub goal: Option<f64>,
    /// In which part of the runs it must hold.
    #[serde(default = "all_runs")]
    runs: f64,
}

fn all_runs() -> f64 {
    1.0
}

/// What came of an expectation.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// What was claimed.
    pub says: String,
    /// What must be, in words.
    pub must: String,
    /// What would be better still, in words.
    pub goal: Option<String>,
    /// The least and the most of each run; not a number where nothing was measured.
    pub found: Vec<[f64; 2]>,
    /// In how many runs the bounds held.
    pub held: usize,
    /// In how many runs the goal was reached.
    pub reached: usize,
    /// Whether that is enough.
    pub is_kept: bool,
    /// Digits after the point.
    digits: usize,
    bounds: [Option<f64>; 2],
}

impl Expect {
    /// Checks what does not need a run.
    pub fn check(&self, cases: &[Case]) -> Result<(), String> {
        let wrong = |what: String| Err(format!("expect {:?}: {what}", self.says));
        if let Err(message) = Metric::named(&self.metric) {
            return wrong(message);
        }
        if self.at_least.is_none() && self.at_most.is_none() {
            return wrong("it has neither at_least nor at_most".into());
        }
        if !(self.runs > 0.0 && self.runs <= 1.0) {
            return wrong(format!(
                "runs = {}: a part of the runs, over 0 to 1",
                self.runs
            ));
        }
        let sweeps = self.among.keys().chain(self.per.keys());
        check_names(&self.of, sweeps, cases).or_else(wrong)
    }

    /// Holds it against all runs of all cases; none where the cases that it is about were not run.
    pub fn judge(&self, cases: &[Case], outcomes: &[Outcome]) -> Option<Verdict> {
        let metric = Metric::named(&self.metric).ok()?;
        let chosen: Vec<usize> = (0..cases.len())
            .filter(|&at| self.is_chosen(&cases[at]))
            .collect();
        let others: Option<Vec<usize>> = chosen.iter().map(|&at| self.other(cases, at)).collect();
        let others = others?;
        let runs = chosen.iter().map(|&at| outcomes[at].runs.len()).min()?;
        let values = |at: &[usize], run: usize| -> Vec<f64> {
            let of = at.iter().map(|&at| (&cases[at], &outcomes[at].runs[run]));
            of.flat_map(|(case, run)| self.values(metric, case, run))
                .collect()
        };
        let found: Vec<[f64; 2]> = (0..runs)
            .map(|run| {
                let (mut these, those) = (values(&chosen, run), values(&others, run));
                self.against_published(cases, &chosen, &mut these);
                self.taken(these, (!self.per.is_empty()).then_some(those))
            })
            .collect();
        let is_within = |[low, high]: &[f64; 2], least: Option<f64>, most: Option<f64>| {
            !low.is_nan()
                && !high.is_nan()
                && least.is_none_or(|least| *low >= least)
                && most.is_none_or(|most| *high <= most)
        };
        let held = found
            .iter()
            .filter(|one| is_within(one, self.at_least, self.at_most))
            .count();
        let [least, most] = self.goals();
        let reached = found
            .iter()
            .filter(|one| is_within(one, least, most))
            .count();
        let digits = match self.per.is_empty() && self.published.is_empty() {
            true => metric.digits,
            false => 3,
        };
        Some(Verdict {
            says: self.says.clone(),
            must: bounds_in_words(self.at_least, self.at_most),
            goal: self.goal.map(|_| bounds_in_words(least, most)),
            held,
            reached,
            is_kept: held as f64 >= self.runs * found.len() as f64 - 1e-9,
            found,
            digits,
            bounds: [self.at_least, self.at_most],
        })
    }

    fn goals(&self) -> [Option<f64>; 2] {
        match self.at_most {
            Some(_) => [None, self.goal],
            None => [self.goal, None],
        }
    }

    fn is_chosen(&self, case: &Case) -> bool {
        let is_published = self.published.is_empty() || self.published.contains_key(&label(case));
        is_among(case, &self.among) && is_published
    }

    /// The case that differs from this one in what `per` names.
    fn other(&self, cases: &[Case], at: usize) -> Option<usize> {
        if self.per.is_empty() {
            return Some(at);
        }
        let wanted = cases[at].settings.iter().map(|(name, value)| {
            let instead = self.per.get(name).map(super::file::shown);
            (name.clone(), instead.unwrap_or_else(|| value.clone()))
        });
        let wanted: Vec<(String, String)> = wanted.collect();
        cases.iter().position(|case| case.settings == wanted)
    }

    fn values(&self, metric: &Metric, case: &Case, run: &Run) -> Vec<f64> {
        if !metric.is_of_tenants() {
            return vec![metric.value(case, run, 0).unwrap_or(f64::NAN)];
        }
        let value = |at| metric.value(case, run, at).unwrap_or(f64::NAN);
        tenants_of(&self.of, case).map(value).collect()
    }

    fn against_published(&self, cases: &[Case], chosen: &[usize], values: &mut [f64]) {
        if self.published.is_empty() {
            return;
        }
        let each = values.len() / chosen.len();
        for (value, &at) in values.chunks_mut(each).zip(chosen) {
            let published = self.published.get(&label(&cases[at]));
            let published = published.copied().unwrap_or(f64::NAN);
            value
                .iter_mut()
                .for_each(|value| *value = (*value / published - 1.0).abs());
        }
    }

    fn taken(&self, these: Vec<f64>, those: Option<Vec<f64>>) -> [f64; 2] {
        if these.is_empty() || these.iter().any(|value| value.is_nan()) {
            return [f64::NAN; 2];
        }
        if self.take == Take::Sd {
            let of = those.map_or(1.0, |those| sd(&those));
            return [sd(&these) / of; 2];
        }
        let values: Vec<f64> = match those {
            Some(those) => these.iter().zip(those).map(|(a, b)| a / b).collect(),
            None => these,
        };
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match self.take {
            Take::Each => [least, most],
            Take::Max => [most; 2],
            Take::Min => [least; 2],
            Take::Mean | Take::Sd => [mean(&values); 2],
        }
    }
}

/// The values of all sweeps.
fn label(case: &Case) -> String {
    let values: Vec<&str> = case.settings.iter().map(|one| one.1.as_str()).collect();
    values.join(", ")
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn sd(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares = values.iter().map(|value| (value - mean).powi(2));
    (squares.sum::<f64>() / values.len() as f64).sqrt()
}

fn bounds_in_words(least: Option<f64>, most: Option<f64>) -> String {
    match (least, most) {
        (Some(least), Some(most)) => format!("{least} to {most}"),
        (Some(least), None) => format!("at least {least}"),
        (None, Some(most)) => format!("at most {most}"),
        (None, None) => String::new(),
    }
}

impl Verdict {
    /// What was found, over the runs: the mean of what each run has nearest to a bound, its
    /// interval of 95 %, and the worst run.
    pub fn ours(&self) -> String {
        let digits = self.digits;
        let side = |at: usize, worse: fn(f64, f64) -> f64| {
            let each: Vec<f64> = self.found.iter().map(|one| one[at]).collect();
            let (mean, half) = over_runs(&each);
            let worst = each.iter().copied().fold(each[0], worse);
            match (each.iter().any(|one| one.is_nan()), half) {
                (true, _) => "not measured in every run".to_owned(),
                (false, None) => format!("{mean:.digits$}"),
                (false, Some(half)) => {
                    format!("{mean:.digits$} +-{half:.digits$}, worst {worst:.digits$}")
                }
            }
        };
        match self.bounds {
            [Some(_), None] => side(0, f64::min),
            [None, _] => side(1, f64::max),
            [Some(_), Some(_)] if self.found.iter().all(|one| one[0] == one[1]) => {
                side(1, f64::max)
            }
            _ => format!("{} to {}", side(0, f64::min), side(1, f64::max)),
        }
    }
}
