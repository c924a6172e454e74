//! Policies over policies: each device has a root, whose members are tenants and groups; a group is
//! divided by a policy of its own among its members, which may be groups again ("group policies",
//! NyxCache section 6).
//!
//! A node sees its members as a policy sees tenants: what a group did is the sum of what its
//! tenants did. What a node wants of a group becomes a limit that its tenants have in common, in
//! force whatever they are allowed one by one; a group that is paused pauses all its tenants.
//! Inside, a group is a device of its own: a policy that divides all that there is divides what the
//! group may use ([`Policy::set_capacity`]), and a tenant's stand-alone run is one without its
//! siblings, not without the rest of the device.
//!
//! Nodes step at their own times, and each counts its own. Experiments of two nodes may overlap and
//! disturb each other; each begins at times of its own and compares before, between and after, so
//! that it is noise to the other and not a bias.
//!
//! What it never does: decide anything itself.
//!
//! *Invariants*: nodes stand after the node that holds their group; a tenant is a member of one
//! node at most.

use crate::plan::{Member, Plan, Who};
use crate::{Decision, Delay, Group, Groups, Policy, Seen, Standing, Want};
use nyx_base::{DevicePs, Instant, Nanos};

/// The shortest time between two steps.
const PERIOD_MIN: Nanos = Nanos::from_micros(10);

/// See the module.
pub struct Tree {
    tenants: usize,
    nodes: Vec<Node>,
    groups: Groups,
    /// Which node a tenant is a member of, and its place there.
    homes: Vec<Option<(usize, usize)>>,
    now: Instant,
    /// What there is to divide, as a share of the device.
    capacity: f64,
}

/// One policy of the tree.
struct Node {
    policy: Box<dyn Policy>,
    members: Vec<Place>,
    bursts: Vec<Nanos>,
    /// The group that this is the inside of, and where the node that holds it has it.
    of: Option<Of>,
    seen: Vec<Seen>,
    want: Vec<Want>,
    /// When it is stepped next; none until the first step.
    due: Option<Instant>,
    /// Whether somebody above has paused it, and what it may use of the device.
    is_paused: bool,
    capacity: f64,
}

#[derive(Clone, Copy)]
struct Of {
    node: usize,
    member: usize,
}

#[derive(Clone, Copy)]
enum Place {
    Tenant(usize),
    /// The group of this number, whose inside is the node of that number.
    Group {
        group: usize,
        node: usize,
    },
}

impl Tree {
    /// Of an engine with so many tenants, whose devices are divided by these plans.
    ///
    /// Panics where a plan names a tenant that is not there, or one twice.
    pub fn new(plans: &[Plan], tenants: usize) -> Tree {
        let mut tree = Tree {
            tenants,
            nodes: Vec::new(),
            groups: Groups {
                of_tenant: vec![None; tenants],
                groups: Vec::new(),
            },
            homes: vec![None; tenants],
            now: Instant(0),
            capacity: 1.0,
        };
        for plan in plans {
            tree.grow(plan, None, None);
        }
        tree
    }

    /// Adds a plan's node and all that is inside of it; gives its number.
    fn grow(&mut self, plan: &Plan, of: Option<Of>, group: Option<usize>) -> usize {
        let at = self.nodes.len();
        let members = plan.members.len();
        self.nodes.push(Node {
            policy: plan.policy(),
            members: Vec::with_capacity(members),
            bursts: plan.members.iter().map(|one| one.terms.burst).collect(),
            of,
            seen: vec![Seen::default(); members],
            want: vec![Want::default(); members],
            due: None,
            is_paused: false,
            capacity: 1.0,
        });
        for (place, member) in plan.members.iter().enumerate() {
            let member = self.settle(
                member,
                Of {
                    node: at,
                    member: place,
                },
                group,
            );
            self.nodes[at].members.push(member);
        }
        at
    }

    fn settle(&mut self, member: &Member, at: Of, group: Option<usize>) -> Place {
        match &member.who {
            &Who::Tenant(tenant) => {
                let before = self.homes[tenant].replace((at.node, at.member));
                assert!(before.is_none(), "tenant {tenant} stands in two places");
                self.groups.of_tenant[tenant] = group;
                Place::Tenant(tenant)
            }
            Who::Group(plan) => {
                let inside = self.groups.groups.len();
                self.groups.groups.push(Group {
                    name: member.name.clone(),
                    parent: group,
                });
                let node = self.grow(plan, Some(at), Some(inside));
                Place::Group {
                    group: inside,
                    node,
                }
            }
        }
    }

    /// What the members of a node did.
    fn look(&mut self, at: usize, seen: &[Seen]) {
        let mut found = std::mem::take(&mut self.nodes[at].seen);
        for (place, found) in found.iter_mut().enumerate() {
            found.clear();
            let node = &self.nodes[at];
            let measured = node.policy.measures(place);
            self.add(node.members[place], measured, seen, found);
        }
        self.nodes[at].seen = found;
    }

    fn add(&self, place: Place, measured: bool, seen: &[Seen], sum: &mut Seen) {
        match place {
            Place::Tenant(tenant) => sum.add(&seen[tenant], measured),
            Place::Group { node, .. } => {
                for &place in &self.nodes[node].members {
                    self.add(place, measured, seen, sum);
                }
            }
        }
    }

    /// What the group inside of which a node stands may use, and whether it is paused.
    fn inherit(&mut self, at: usize) {
        let (is_paused, capacity) = match self.nodes[at].of {
            None => (false, self.capacity),
            Some(of) => {
                let above = &self.nodes[of.node];
                let want = &above.want[of.member];
                let rate = want.rate.map_or(1.0, DevicePs::as_secs_f64);
                (
                    above.is_paused || want.delay == Delay::Infinite,
                    rate.min(above.capacity),
                )
            }
        };
        let node = &mut self.nodes[at];
        (node.is_paused, node.capacity) = (is_paused, capacity);
        node.policy.set_capacity(capacity);
    }

    fn step_node(&mut self, at: usize, now: Instant, seen: &[Seen]) {
        self.look(at, seen);
        let node = &mut self.nodes[at];
        node.policy.step(now, &node.seen, &mut node.want);
        node.due = Some(now + node.policy.period().max(PERIOD_MIN));
    }

    /// Writes what a node wants of its members.
    fn tell(&self, at: usize, want: &mut [Want]) {
        let node = &self.nodes[at];
        for ((&place, &wanted), &burst) in node.members.iter().zip(&node.want).zip(&node.bursts) {
            let delay = match node.is_paused {
                true => Delay::Infinite,
                false => wanted.delay,
            };
            match place {
                Place::Tenant(tenant) => {
                    want[tenant] = Want {
                        burst,
                        delay,
                        ..wanted
                    }
                }
                // Its tenants are paused one by one.
                Place::Group { group, .. } => {
                    want[self.tenants + group] = Want {
                        burst,
                        delay: Delay::None,
                        ..wanted
                    }
                }
            }
        }
    }

    /// A member of a node as the engine counts: tenants first, then groups.
    fn subject(&self, at: usize, member: usize) -> usize {
        match self.nodes[at].members[member] {
            Place::Tenant(tenant) => tenant,
            Place::Group { group, .. } => self.tenants + group,
        }
    }
}

impl Policy for Tree {
    fn name(&self) -> &'static str {
        match self.nodes.first() {
            Some(root) => root.policy.name(),
            None => "none",
        }
    }

    fn period(&self) -> Nanos {
        let due = self.nodes.iter().filter_map(|node| node.due);
        let next = due.map(|due| due.since(self.now)).min();
        next.unwrap_or(Nanos::from_millis(100)).max(PERIOD_MIN)
    }

    fn measures(&self, tenant: usize) -> bool {
        let Some((mut node, mut member)) = self.homes[tenant] else {
            return false;
        };
        loop {
            if self.nodes[node].policy.measures(member) {
                return true;
            }
            match self.nodes[node].of {
                Some(of) => (node, member) = (of.node, of.member),
                None => return false,
            }
        }
    }

    /// As the policy over the tenant itself does.
    fn spans(&self, tenant: usize) -> bool {
        self.homes[tenant].is_some_and(|(node, member)| self.nodes[node].policy.spans(member))
    }

    fn groups(&self) -> Groups {
        self.groups.clone()
    }

    fn set_capacity(&mut self, share: f64) {
        self.capacity = share;
    }

    fn is_probing(&self) -> bool {
        self.nodes.iter().any(|node| node.policy.is_probing())
    }

    /// As the policy over the tenant itself has it.
    fn standing(&self, tenant: usize) -> Standing {
        let Some((node, member)) = self.homes[tenant] else {
            return Standing::default();
        };
        let standing = self.nodes[node].policy.standing(member);
        let hurt_by = standing.hurt_by.iter();
        Standing {
            hurt_by: hurt_by
                .map(|&(by, helped)| (self.subject(node, by), helped))
                .collect(),
            ..standing
        }
    }

    fn step(&mut self, now: Instant, seen: &[Seen], want: &mut [Want]) {
        let went_back = now < self.now;
        self.now = now;
        for at in 0..self.nodes.len() {
            self.inherit(at);
            let due = self.nodes[at].due;
            if went_back || due.is_none_or(|due| now >= due) {
                self.step_node(at, now, seen);
            }
            self.tell(at, want);
        }
    }

    fn take_decisions(&mut self) -> Vec<Decision> {
        let mut all = Vec::new();
        for at in 0..self.nodes.len() {
            for decision in self.nodes[at].policy.take_decisions() {
                let tenant = self.subject(at, decision.tenant);
                all.push(Decision { tenant, ..decision });
            }
        }
        all.sort_by_key(|decision| decision.at);
        all
    }
}

#[cfg(test)]
mod tests;
