//! Why a tenant is as it is, in whole sentences: its promise, its use, what holds it back and by
//! which decision, who hurts it and by how much, what the controller did last, what can be done.
//!
//! What it never does: say what the server did not tell. Where a policy does not look for who slows
//! whom, that is said, and nothing is guessed.

use super::figures::{Board, Figures, Hurt, Told};
use super::words;
use serde::Serialize;
use std::fmt;

/// Who uses this part of its limit has used it up.
const USED_UP: f64 = 0.95;
/// A device of which this part is used is full.
const FULL: f64 = 0.95;
/// Below this hit ratio more room is worth a word, where items are evicted.
const HITS_FEW: f64 = 0.9;
/// Decisions that are told.
const DECISIONS: usize = 3;

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Explanation {
    /// Whose.
    pub(crate) tenant: String,
    /// The policy in charge.
    pub(crate) policy: String,
    /// What it is promised.
    pub(crate) promise: Vec<String>,
    /// What it did in the interval.
    pub(crate) usage: Vec<String>,
    /// What holds it back.
    pub(crate) held: Vec<String>,
    /// Who hurts it and whom it hurts.
    pub(crate) hurt: Vec<String>,
    /// What the controller did last, and why.
    pub(crate) decisions: Vec<String>,
    /// What the operator could do.
    pub(crate) advice: Vec<String>,
    /// The figures that this was said from.
    pub(crate) figures: Figures,
}

/// A tenant among the others.
struct Case<'b> {
    board: &'b Board,
    of: &'b Figures,
    /// The decisions over it, newest first.
    decisions: Vec<&'b Told>,
}

/// Explains one tenant of a board; none where it is not there.
pub(crate) fn explain(board: &Board, name: &str) -> Option<Explanation> {
    let decisions = board.decisions.iter().filter(|one| one.tenant == name);
    let case = Case {
        board,
        of: board.tenant(name)?,
        decisions: decisions.collect(),
    };
    Some(Explanation {
        tenant: name.to_owned(),
        policy: board.policy.clone(),
        promise: case.promise(),
        usage: case.usage(),
        held: case.held(),
        hurt: case.hurt(),
        decisions: case.told(),
        advice: case.advice(),
        figures: case.of.clone(),
    })
}

fn percent(share: f64) -> String {
    format!("{} %", words::share(share))
}

/// A decision as a sentence.
fn sentence(one: &Told) -> String {
    let ago = words::time(one.ago_s);
    let why = match &one.why {
        Some(why) => format!(": {why}."),
        None => "; the reason concerns tenants that this connection does not reach.".into(),
    };
    format!("{ago} ago {} was {}{why}", one.tenant, one.act)
}

impl Case<'_> {
    fn is_throttled(&self) -> bool {
        self.of.throttle_device_share.is_some()
    }

    fn has_used_up(&self) -> bool {
        let limit = self.of.limit_device_share;
        self.of.holds_per_s > 0.0
            && limit.is_some_and(|most| self.of.device_share >= USED_UP * most)
    }

    fn misses(&self) -> bool {
        self.of.slack.is_some_and(|slack| slack < 0.0)
    }

    fn gave_up(&self) -> bool {
        self.decisions
            .first()
            .is_some_and(|one| one.act.starts_with("not helped"))
    }

    /// What all tenants within reach use of its device.
    fn device_used(&self) -> f64 {
        let devices = self.board.devices();
        let own = devices.iter().find(|device| device.0 == self.of.device);
        own.map_or(0.0, |device| device.1)
    }

    fn promise(&self) -> Vec<String> {
        let (of, device) = (self.of, &self.of.device);
        let mut said = Vec::new();
        if let Some(target) = &of.target {
            said.push(format!("It is latency-critical: its target is {target}."));
        }
        if let Some(share) = of.entitled_device_share {
            let share = percent(share);
            said.push(format!(
                "It has {share} of device {device} whatever the others do."
            ));
        }
        if let Some(most) = of.slowdown_most {
            said.push(format!(
                "It is to be at most {most:.2} times slower than alone."
            ));
        }
        if of.best_effort {
            said.push("It is best effort: it gets what the promises to others leave.".into());
        }
        if let Some(most) = of.promised_device_share {
            let most = percent(most);
            said.push(format!(
                "It may use at most {most} of device {device}: that is its limit."
            ));
        }
        if said.is_empty() {
            let policy = &self.board.policy;
            said.push(match of.limit_device_share {
                Some(most) => format!(
                    "Policy {policy} limits it to {} of the device.",
                    percent(most)
                ),
                None => format!("Policy {policy} promises it nothing and does not limit it."),
            });
        }
        said
    }

    fn usage(&self) -> Vec<String> {
        let of = self.of;
        let mut said = Vec::new();
        let time = words::time(self.board.interval_s);
        let latencies = [of.latency_us_p50, of.latency_us_p99, of.latency_us_p999];
        if let [Some(p50), Some(p99), Some(p999)] = latencies.map(|us| us.map(words::latency_told))
        {
            let rate = words::count(of.requests_per_s);
            said.push(format!(
                "In the last {time} it answered {rate} requests/s: half of them within {p50}, 99 % \
                 within {p99}, 99.9 % within {p999}."
            ));
        } else if of.requests_per_s > 0.0 {
            let rate = words::count(of.requests_per_s);
            said.push(format!(
                "In the last {time} it answered {rate} requests/s; how long they took is not \
                 recorded (server.record_latencies)."
            ));
        } else {
            said.push(format!("In the last {time} it answered no request."));
        }
        if let Some(hits) = of.hit_ratio {
            said.push(format!(
                "{} of the keys asked for were found.",
                percent(hits)
            ));
        }
        let kind = match of.evidence.as_str() {
            "" | "real" => String::new(),
            kind => format!(" ({kind})"),
        };
        said.push(format!(
            "It used {} of the time of device {}{kind}; all tenants within reach used {}.",
            percent(of.device_share),
            of.device,
            percent(self.device_used())
        ));
        let (used, size) = (
            words::bytes_told(of.used_bytes),
            words::bytes_told(of.size_bytes),
        );
        let evicted = match of.evictions_per_s > 0.0 {
            true => format!(
                ", and {} items/s had to leave",
                words::count(of.evictions_per_s)
            ),
            false => String::new(),
        };
        let items = words::whole(of.items);
        said.push(format!(
            "It holds {items} items in {used} of its {size}{evicted}."
        ));
        said
    }

    fn held(&self) -> Vec<String> {
        let of = self.of;
        let mut said = Vec::new();
        if let Some(share) = of.throttle_device_share {
            let share = percent(share);
            said.push(format!(
                "For the sake of others the policy leaves it {share} of the device."
            ));
            let by = self.decisions.first();
            said.extend(by.map(|by| format!("That goes back to this: {}", sentence(by))));
        }
        let holds = words::count(of.holds_per_s);
        let waiting = match of.held_connections {
            0 => String::new(),
            1 => "; one connection waits now".into(),
            n => format!("; {n} connections wait now"),
        };
        if self.has_used_up() {
            let what = if self.is_throttled() {
                "what is left to it"
            } else {
                "its limit"
            };
            said.push(format!(
                "It uses up {what}: it was told to wait {holds} times/s{waiting}."
            ));
        } else if of.holds_per_s > 0.0 {
            said.push(format!(
                "It was told to wait {holds} times/s{waiting}, though it stays below what it may \
                 use: its requests come in bursts."
            ));
        }
        if of.rejected_per_s > 0.0 {
            let rejected = words::count(of.rejected_per_s);
            said.push(format!("{rejected} requests/s were answered `busy`."));
        }
        if of.paused {
            said.push("The policy has stopped it for a moment.".into());
        }
        if said.is_empty() {
            said.push("Nothing holds it back.".into());
        }
        said
    }

    fn hurt(&self) -> Vec<String> {
        let of = self.of;
        let mut said = Vec::new();
        if let (Some(had), Some(slack)) = (&of.target_had, of.slack) {
            let way = if slack < 0.0 { "beyond" } else { "within" };
            let by = (slack.abs() * 100.0).round();
            said.push(format!(
                "When it was last judged it had {had}: {by} % {way} its target."
            ));
        }
        if let Some(slowdown) = of.slowdown {
            said.push(format!("It is {slowdown:.2} times slower than alone."));
        }
        for (at, Hurt { tenant, helped }) in of.hurt_by.iter().enumerate() {
            said.push(match helped {
                None => format!("{tenant} is the only one that can be throttled for it."),
                Some(helped) => {
                    let part = (helped.abs() * 100.0).round();
                    let way = if *helped < 0.0 { "longer" } else { "shorter" };
                    let most = if at == 0 && *helped > 0.0 {
                        " hurts it most:"
                    } else {
                        ":"
                    };
                    format!(
                        "{tenant}{most} while {tenant} was throttled for a trial, its mean delay \
                         was {part} % {way}."
                    )
                }
            });
        }
        for other in &self.board.tenants {
            let hurts = other.hurt_by.first().filter(|by| by.tenant == of.name);
            if let Some(hurt) = hurts {
                let by = hurt
                    .helped
                    .map(|part| format!(", by {:.0} % of its delay", part * 100.0));
                said.push(format!(
                    "It hurts {}{}.",
                    other.name,
                    by.unwrap_or_default()
                ));
            }
        }
        if said.is_empty() {
            said.push(match of.target.is_some() || of.slowdown_most.is_some() {
                true => "Nobody was found to hurt it.".into(),
                false => "It has no target, so nobody was asked whether others slow it.".into(),
            });
        }
        said
    }

    fn told(&self) -> Vec<String> {
        let victims = self.of.hurt_by.iter().map(|hurt| hurt.tenant.as_str());
        let about: Vec<&str> = victims.chain([self.of.name.as_str()]).collect();
        let concerns = |one: &&Told| about.contains(&one.tenant.as_str());
        let last = self.board.decisions.iter().filter(concerns);
        let told: Vec<String> = last.take(DECISIONS).map(sentence).collect();
        match told.is_empty() {
            true => vec!["The controller has decided nothing over it of late.".into()],
            false => told,
        }
    }

    fn advice(&self) -> Vec<String> {
        let of = self.of;
        let mut said = Vec::new();
        if self.misses() {
            said.push(self.advice_to_a_victim());
        }
        if self.is_throttled() {
            said.push(format!(
                "If {} matters as much as those for whom it is throttled, give it a target \
                 (tenant.target); or loosen theirs; or put it on another device (tenant.device).",
                of.name
            ));
        } else if self.has_used_up() {
            said.push(format!(
                "Raise its limit (tenant.limit) if the device has time left, or let its clients \
                 ask for less: {} of the device is used.",
                percent(self.device_used())
            ));
        }
        if of.rejected_per_s > 0.0 {
            said.push("With tenant.action = \"delay\" its requests would wait instead.".into());
        }
        if of.evictions_per_s > 0.0 && of.hit_ratio.is_some_and(|hits| hits < HITS_FEW) {
            said.push("More room (tenant.size) would let it find more of its keys.".into());
        }
        let is_full = self.device_used() >= FULL;
        if is_full && of.target.is_none() && of.limit_device_share.is_none() {
            said.push(format!(
                "Device {} is full: a limit for the largest user, or policy qos with a target for \
                 whom it matters, decides who gets its time.",
                of.device
            ));
        }
        if said.is_empty() {
            said.push("Nothing needs to be done.".into());
        }
        said
    }

    fn advice_to_a_victim(&self) -> String {
        let of = self.of;
        if of.target.is_none() {
            return "Give others less (tenant.limit, tenant.weight), or move it to a device of its \
                    own (tenant.device)."
                .into();
        }
        match of.hurt_by.first() {
            _ if self.gave_up() => {
                "Throttling others does not help: it is slow by itself. Loosen its target \
                 (tenant.target), or move it to a faster device (tenant.device)."
                    .into()
            }
            Some(hurt) => format!(
                "The controller is at it. If the target is missed for long, give {} a limit \
                 (tenant.limit) or another device (tenant.device).",
                hurt.tenant
            ),
            None => "The controller looks for who hurts it; look again in some seconds.".into(),
        }
    }
}

impl Explanation {
    /// The parts, each with its heading and its paragraphs. Decisions stand one below the other,
    /// the newest first.
    fn parts(&self) -> [(&'static str, Vec<String>); 6] {
        let whole = |said: &[String]| vec![said.join(" ")];
        [
            ("Promise", whole(&self.promise)),
            ("Use", whole(&self.usage)),
            ("Held back", whole(&self.held)),
            ("Who hurts whom", whole(&self.hurt)),
            ("What the controller did", self.decisions.clone()),
            ("What you can do", whole(&self.advice)),
        ]
    }

    /// As lines of at most so many columns.
    pub(crate) fn lines(&self, columns: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for (heading, said) in self.parts() {
            lines.push(heading.to_owned());
            for text in said {
                let wrapped = words::wrap(&text, columns.saturating_sub(2));
                lines.extend(wrapped.into_iter().map(|line| format!("  {line}")));
            }
        }
        lines
    }
}

/// Shows it as text of 80 columns.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} under policy {}", self.tenant, self.policy)?;
        for line in self.lines(80) {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::script;
    use super::*;

    fn board() -> Board {
        Board::between(Some(&script::sample(1)), &script::sample(2))
    }

    fn of(board: &Board, name: &str) -> Explanation {
        explain(board, name).expect("it is there")
    }

    fn assert_says(said: &[String], words: &[&str]) {
        let said = said.join(" ");
        for word in words {
            assert!(said.contains(word), "{word:?} is missing in: {said}");
        }
    }

    #[test]
    fn a_victim_is_told_who_hurts_it_and_what_was_done() {
        let web = of(&board(), "web");
        assert_says(&web.promise, &["latency-critical", "mean 15.00 us"]);
        assert_says(
            &web.usage,
            &["10,000 requests/s", "99 % within 193 us", "90.0 %"],
        );
        assert_says(
            &web.usage,
            &["12.5 % of the time of device main (emulated)"],
        );
        assert_eq!(web.held, ["Nothing holds it back."]);
        assert_says(
            &web.hurt,
            &[
                "19.00 us: 27 % beyond",
                "batch hurts it most",
                "38 % shorter",
            ],
        );
        assert_says(&web.hurt, &["feed: while feed was throttled"]);
        assert_says(
            &web.decisions,
            &["0.5 s ago batch was throttled from 78.0 to 50.0 %"],
        );
        assert_says(&web.advice, &["give batch a limit"]);
    }

    #[test]
    fn a_culprit_is_told_for_whom_and_why_it_is_throttled() {
        let batch = of(&board(), "batch");
        assert_says(&batch.promise, &["best effort"]);
        assert_says(
            &batch.held,
            &["leaves it 50.0 %", "0.5 s ago batch was throttled"],
        );
        assert_says(
            &batch.held,
            &["over its target of 15.00 us", "1,234 times/s"],
        );
        assert_says(&batch.held, &["31 connections wait now"]);
        assert_says(&batch.hurt, &["It hurts web, by 38 %"]);
        assert_says(&batch.advice, &["tenant.target"]);
    }

    #[test]
    fn who_has_used_up_its_own_limit_is_told_so() {
        let feed = of(&board(), "feed");
        assert_says(&feed.promise, &["at most 22.0 % of device main"]);
        assert_says(
            &feed.held,
            &["uses up its limit", "12 times/s", "2 connections"],
        );
        assert_says(&feed.advice, &["tenant.limit", "84.5 % of the device"]);
        let mut board = board();
        board.tenants[2].device_share = 0.05;
        assert_says(&of(&board, "feed").held, &["in bursts"]);
    }

    #[test]
    fn latencies_that_are_not_recorded_are_told_with_their_knob() {
        let mut board = board();
        board.tenants[0].latency_us_p99 = None;
        assert_says(
            &of(&board, "web").usage,
            &["10,000 requests/s", "server.record_latencies"],
        );
    }

    #[test]
    fn who_does_nothing_needs_nothing() {
        let idle = of(&board(), "idle");
        assert_says(&idle.usage, &["answered no request"]);
        assert_eq!(idle.held, ["Nothing holds it back."]);
        assert_eq!(idle.advice, ["Nothing needs to be done."]);
    }

    #[test]
    fn a_reason_that_may_not_be_told_is_not_made_up() {
        let mut board = board();
        board.decisions[0].why = None;
        assert_says(&of(&board, "batch").held, &["does not reach"]);
    }

    #[test]
    fn a_target_that_throttling_does_not_help_is_told() {
        let mut board = board();
        board.decisions.insert(
            0,
            Told {
                ago_s: 0.1,
                tenant: "web".into(),
                act: "not helped".into(),
                why: Some("slow".into()),
            },
        );
        assert_says(&of(&board, "web").advice, &["slow by itself"]);
    }

    #[test]
    fn there_is_no_explanation_of_nobody_and_lines_fit() {
        let board = board();
        assert_eq!(explain(&board, "nobody"), None);
        for tenant in &board.tenants {
            let text = of(&board, &tenant.name);
            assert!(
                text.to_string().lines().all(|line| line.len() <= 80),
                "{text}"
            );
            assert!(text.lines(40).iter().all(|line| line.len() <= 40));
        }
    }
}
