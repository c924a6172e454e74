//! The tree on a device as a formula: tenants ask for shares, and get them within their own limits
//! and those of their groups.

use super::*;
use crate::mechanism::throttle::Bounds;
use crate::plan::{Kind, Terms};
use crate::sharing::limit::Epoch;
use crate::sharing::share::{self, Donation};

const MS: Nanos = Nanos::from_millis(1);

/// Gives each tenant what it asks for, within its rate; the tenants of a group that ask for more
/// than the group may use get it in proportion.
struct Plant {
    asks: Vec<f64>,
    seen: Vec<Seen>,
    want: Vec<Want>,
    groups: Groups,
    now: Instant,
}

fn share_of(want: &Want) -> f64 {
    match want.delay {
        Delay::Infinite => 0.0,
        _ => want.rate.map_or(1.0, DevicePs::as_secs_f64),
    }
}

impl Plant {
    fn new(asks: &[f64], tree: &Tree) -> Plant {
        let groups = tree.groups();
        Plant {
            asks: asks.to_vec(),
            seen: vec![Seen::default(); asks.len()],
            want: vec![Want::default(); asks.len() + groups.groups.len()],
            groups,
            now: Instant(0),
        }
    }

    fn gets(&self) -> Vec<f64> {
        let tenants = self.asks.len();
        let mut gets: Vec<f64> = (0..tenants)
            .map(|at| self.asks[at].min(share_of(&self.want[at])))
            .collect();
        for group in (0..self.groups.groups.len()).rev() {
            let within = |at: &usize| {
                let mut of = self.groups.of_tenant[*at];
                while let Some(inner) = of.filter(|&of| of != group) {
                    of = self.groups.groups[inner].parent;
                }
                of == Some(group)
            };
            let sum: f64 = (0..tenants).filter(within).map(|at| gets[at]).sum();
            let part = (share_of(&self.want[tenants + group]) / sum).min(1.0);
            (0..tenants).filter(within).for_each(|at| gets[at] *= part);
        }
        gets
    }

    fn run(&mut self, tree: &mut Tree, ms: u64) -> Vec<f64> {
        for _ in 0..ms {
            tree.step(self.now, &self.seen, &mut self.want);
            for (at, gets) in self.gets().into_iter().enumerate() {
                let seen = &mut self.seen[at];
                seen.used = DevicePs(seen.used.0.wrapping_add((gets * 1e9) as u64));
                seen.ops += (gets * 1e3) as u64;
                seen.bytes += (gets * 1e6) as u64;
                seen.holds += u64::from(gets < self.asks[at] * 0.999);
            }
            self.now += MS;
        }
        self.gets()
    }
}

fn tenant(at: usize, terms: Terms) -> Member {
    Member {
        name: format!("t{at}"),
        who: Who::Tenant(at),
        terms,
    }
}

fn group(name: &str, terms: Terms, kind: Kind, members: Vec<Member>) -> Member {
    Member {
        name: name.into(),
        who: Who::Group(Plan { kind, members }),
        terms,
    }
}

fn weighing(weight: f64) -> Terms {
    Terms {
        weight,
        ..Terms::default()
    }
}

fn at_most(max: f64) -> Terms {
    Terms {
        bounds: Bounds::below(Some(max)),
        ..Terms::default()
    }
}

/// Epochs of 10 ms, and what is idle is lent at once: no latencies are needed.
fn shared() -> Kind {
    Kind::Share(share::Settings {
        donation: Donation::Naive,
        epoch: Epoch {
            tick: MS,
            ticks: 10,
        },
        ..share::Settings::default()
    })
}

#[test]
fn a_group_is_limited_as_one_and_its_tenants_one_by_one() {
    let inside = vec![tenant(0, at_most(0.3)), tenant(1, Terms::default())];
    let plan = Plan {
        kind: Kind::Limit,
        members: vec![
            group("g", at_most(0.4), Kind::Limit, inside),
            tenant(2, at_most(0.2)),
        ],
    };
    let mut tree = Tree::new(&[plan], 3);
    let mut plant = Plant::new(&[1.0, 0.05, 1.0], &tree);
    let gets = plant.run(&mut tree, 20);
    let near = |at: usize, share: f64| assert!((gets[at] - share).abs() < 1e-6, "{gets:?}");
    near(0, 0.3);
    near(1, 0.05);
    near(2, 0.2);
    plant.asks[1] = 1.0;
    let gets = plant.run(&mut tree, 20);
    assert!((gets[0] + gets[1] - 0.4).abs() < 1e-6, "{gets:?}");
}

#[test]
fn weights_hold_among_groups_and_inside_of_them() {
    let inside = vec![tenant(0, weighing(3.0)), tenant(1, weighing(1.0))];
    let plan = Plan {
        kind: shared(),
        members: vec![
            group("g", weighing(1.0), shared(), inside),
            tenant(2, weighing(1.0)),
        ],
    };
    let mut tree = Tree::new(&[plan], 3);
    let mut plant = Plant::new(&[1.0; 3], &tree);
    let gets = plant.run(&mut tree, 300);
    for (got, wanted) in gets.iter().zip([0.375, 0.125, 0.5]) {
        assert!((got - wanted).abs() < 0.01, "{gets:?}");
    }
    // What a sibling leaves goes to the sibling, what a group leaves to the others.
    plant.asks[0] = 0.1;
    let gets = plant.run(&mut tree, 300);
    assert!((gets[1] - 0.4).abs() < 0.03, "{gets:?}");
    plant.asks[1] = 0.1;
    let gets = plant.run(&mut tree, 300);
    assert!(gets[2] > 0.75, "{gets:?}");
    assert!(
        (gets[0] - 0.1).abs() < 1e-6 && (gets[1] - 0.1).abs() < 1e-6,
        "{gets:?}"
    );
}

#[test]
fn a_paused_group_pauses_all_that_is_inside() {
    let inside = |first: usize| {
        vec![
            tenant(first, Terms::default()),
            group(
                "inner",
                Terms::default(),
                Kind::None,
                vec![tenant(first + 1, Terms::default())],
            ),
        ]
    };
    let plan = Plan {
        kind: Kind::Slowdown(Default::default()),
        members: vec![
            group("a", Terms::default(), Kind::None, inside(0)),
            group("b", Terms::default(), Kind::None, inside(2)),
        ],
    };
    let mut tree = Tree::new(&[plan], 4);
    let mut plant = Plant::new(&[0.2; 4], &tree);
    let mut paused = [false; 2];
    for _ in 0..20_000 {
        plant.run(&mut tree, 1);
        let held: Vec<bool> = plant.gets().iter().map(|gets| *gets == 0.0).collect();
        assert_eq!(
            (held[0], held[2]),
            (held[1], held[3]),
            "a group stands still as one"
        );
        paused[0] |= held[0];
        paused[1] |= held[2];
    }
    assert_eq!(paused, [true; 2], "each group has run without the other");
}

#[test]
fn devices_are_divided_apart_and_whoever_is_on_none_is_free() {
    let one = |at, max| Plan {
        kind: Kind::Limit,
        members: vec![tenant(at, at_most(max))],
    };
    let mut tree = Tree::new(&[one(0, 0.3), one(2, 0.5)], 3);
    let mut plant = Plant::new(&[1.0; 3], &tree);
    let gets = plant.run(&mut tree, 5);
    assert_eq!(gets, [0.3, 1.0, 0.5]);
    assert!((0..3).all(|tenant| !tree.measures(tenant)));
}

#[test]
fn bursts_are_handed_to_the_gate() {
    let terms = Terms {
        burst: Nanos::from_secs(1),
        ..at_most(0.2)
    };
    let plan = Plan::flat(Kind::Limit, [("a".to_string(), terms)]);
    let mut policy = Plan::build(&[plan], 1);
    let mut want = [Want::default()];
    policy.step(Instant(0), &[Seen::default()], &mut want);
    assert_eq!(want[0].burst, Nanos::from_secs(1));
}

#[test]
fn a_clock_that_went_back_stops_nobody() {
    let plan = Plan {
        kind: shared(),
        members: vec![
            group(
                "g",
                weighing(1.0),
                shared(),
                vec![tenant(0, Terms::default())],
            ),
            tenant(1, weighing(1.0)),
        ],
    };
    let mut tree = Tree::new(&[plan], 2);
    let mut plant = Plant::new(&[1.0; 2], &tree);
    plant.now = Instant(3_600_000_000_000);
    plant.run(&mut tree, 100);
    plant.now = Instant(0);
    let gets = plant.run(&mut tree, 300);
    assert!(
        (gets[0] - 0.5).abs() < 0.02 && (gets[1] - 0.5).abs() < 0.02,
        "{gets:?}"
    );
}
