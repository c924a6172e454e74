//! What is happening, in words. Every number and every direction ("went up", "fell") is computed
//! from the scores.
//!
//! What it never does: say what was not measured, or that something got better where it did not.

use super::cast::{Act, NAMES, NOISY};
use super::scores::{Figures, Scores, latency, percent};
use nyx_base::Nanos;

/// Below this ratio two latencies are called near each other: percentiles of a second scatter.
const NEAR: f64 = 1.25;

/// Where a latency went from where it was: "went up to 140 us".
fn went(from: Nanos, to: Nanos) -> String {
    let ratio = to.0.max(1) as f64 / from.0.max(1) as f64;
    let verb = match ratio {
        ratio if ratio > NEAR => "went up to",
        ratio if ratio < 1.0 / NEAR => "fell to",
        _ => "stayed near",
    };
    format!("{verb} {}", latency(to))
}

/// How a latency changed.
fn change(who: &str, from: Nanos, to: Nanos) -> String {
    format!("{who} p99 of {} {}", latency(from), went(from, to))
}

fn sentence(parts: &[String]) -> String {
    format!("{}.", parts.join(", "))
}

/// The two lines that head the show: what is going on, and what it did to whom.
pub(crate) fn headline(act: Act, scores: &Scores, limit: f64) -> [String; 2] {
    let noisy = scores.of(act, NOISY);
    let quiet = quiet_tenants(scores);
    [what(act, noisy, limit), effect(act, &quiet)]
}

/// The quiet tenants, and their figures in each act.
type Quiet = Vec<(&'static str, [Option<Figures>; Act::ALL.len()])>;

fn quiet_tenants(scores: &Scores) -> Quiet {
    let tenants = NAMES
        .iter()
        .enumerate()
        .filter(|&(place, _)| place != NOISY);
    tenants
        .map(|(place, &name)| (name, Act::ALL.map(|act| scores.of(act, place))))
        .collect()
}

fn what(act: Act, noisy: Option<Figures>, limit: f64) -> String {
    let name = NAMES[NOISY];
    let takes = noisy.map(|figures| percent(figures.device));
    match act {
        Act::Quiet => format!("{} share one device; {name} is idle.", quiet_names()),
        Act::Free => match takes {
            None => format!("{name} has started to write, and nothing limits it."),
            Some(takes) => {
                format!("{name} writes, nothing limits it: it takes {takes} of the device.")
            }
        },
        Act::Limited => {
            let may = format!(
                "The policy is on: {name} may use {} of the device",
                percent(limit)
            );
            takes.map_or(format!("{may}."), |takes| {
                format!("{may}, and uses {takes}.")
            })
        }
    }
}

fn quiet_names() -> String {
    let names = NAMES.iter().enumerate();
    let names: Vec<&str> = names
        .filter(|&(i, _)| i != NOISY)
        .map(|(_, &name)| name)
        .collect();
    names.join(" and ")
}

fn effect(act: Act, quiet: &Quiet) -> String {
    let of = |figures: &[Option<Figures>], act: Act| figures[act as usize].map(|f| f.p99);
    let before = match act {
        Act::Quiet | Act::Free => Act::Quiet,
        Act::Limited => Act::Free,
    };
    let parts: Vec<String> = quiet
        .iter()
        .filter_map(|(name, figures)| {
            let (from, to) = (of(figures, before)?, of(figures, act)?);
            let whose = format!("{name}'s");
            Some(match act {
                Act::Quiet => format!("{whose} p99 is {}", latency(to)),
                _ => change(&whose, from, to),
            })
        })
        .collect();
    if parts.is_empty() {
        return "Measuring ...".into();
    }
    sentence(&parts)
}

/// What the policy did, once all is over; nothing where the show was left before its last act.
pub(crate) fn moral(scores: &Scores, limit: f64) -> Vec<String> {
    let quiet = quiet_tenants(scores);
    let noisy = Act::ALL.map(|act| scores.of(act, NOISY));
    let [_, Some(free), Some(limited)] = noisy else {
        return Vec::new();
    };
    let mut lines = vec![format!(
        "{} took {} of the device until its limit of {} was switched on, then {}.",
        NAMES[NOISY],
        percent(free.device),
        percent(limit),
        percent(limited.device)
    )];
    for (name, figures) in quiet {
        if let [Some(before), Some(beside), Some(after)] = figures.map(|f| f.map(|f| f.p99)) {
            let who = format!("{name}'s");
            let held = went(beside, after);
            lines.push(format!(
                "{}; with the limit it {held}.",
                change(&who, before, beside)
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(p99_us: u64, device: f64) -> Option<Figures> {
        Some(Figures {
            ops_per_s: 1.0,
            p50: Nanos(1),
            p99: Nanos::from_micros(p99_us),
            device,
            holds_per_s: 0.0,
        })
    }

    #[test]
    fn words_follow_the_numbers_in_either_direction() {
        let change = |from, to| change("web's", Nanos::from_micros(from), Nanos::from_micros(to));
        assert_eq!(change(9, 140), "web's p99 of 9.0 us went up to 140 us");
        assert_eq!(change(140, 9), "web's p99 of 140 us fell to 9.0 us");
        assert_eq!(change(100, 110), "web's p99 of 100 us stayed near 110 us");
    }

    #[test]
    fn each_act_is_compared_with_the_one_before() {
        let quiet = vec![(
            "web",
            [figures(9, 0.1), figures(140, 0.1), figures(12, 0.1)],
        )];
        assert_eq!(effect(Act::Quiet, &quiet), "web's p99 is 9.0 us.");
        assert!(effect(Act::Free, &quiet).contains("of 9.0 us went up to 140 us"));
        assert!(effect(Act::Limited, &quiet).contains("of 140 us fell to 12 us"));
    }

    #[test]
    fn nothing_is_said_of_what_was_not_measured() {
        let quiet = vec![("web", [figures(9, 0.1), None, None])];
        assert_eq!(effect(Act::Free, &quiet), "Measuring ...");
        assert!(!what(Act::Free, None, 0.1).contains('%'));
        assert!(
            what(Act::Limited, figures(1, 0.099), 0.1)
                .contains("10 % of the device, and uses 9.9 %.")
        );
    }
}
