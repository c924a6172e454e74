//! Groups of tenants: who is in which, and terms that mean nothing where they stand.
//!
//! What this module never does: know what a policy does with terms; it only knows which of them a
//! policy looks at.

use super::assemble::{Assembler, terms};
use super::layers::Table;
use super::value::nearest;
use super::{Group, PolicyKind, Tenant, Terms};

/// Groups in groups in groups: nobody means more.
const DEPTH_MAX: usize = 8;

impl Assembler {
    /// The groups in an order in which each stands after the one that it is in; puts the tenants
    /// into theirs.
    pub(super) fn groups(
        &mut self,
        tables: &[Table],
        tenant_tables: &[Table],
        tenants: &mut [Tenant],
    ) -> Vec<Group> {
        let before = self.problem_count();
        self.names(tables, tenants);
        let parents: Vec<Option<usize>> = tables.iter().map(|t| self.group_of(t, tables)).collect();
        let depths: Vec<usize> = (0..tables.len()).map(|at| depth(&parents, at)).collect();
        if let Some(at) = depths.iter().position(|depth| *depth > DEPTH_MAX) {
            let message = format!("groups stand in a circle, or more than {DEPTH_MAX} deep");
            self.wrong(&tables[at], "group", message);
        }
        let homes: Vec<Option<usize>> = tenant_tables
            .iter()
            .map(|t| self.group_of(t, tables))
            .collect();
        if self.problem_count() > before {
            return Vec::new();
        }
        let mut order: Vec<usize> = (0..tables.len()).collect();
        order.sort_by_key(|&at| depths[at]);
        let place = |group: usize| order.iter().position(|&at| at == group);
        for (tenant, home) in tenants.iter_mut().zip(&homes) {
            tenant.group = home.and_then(place);
        }
        let groups = order.iter().map(|&at| Group {
            name: tables[at].text("name").unwrap_or_default().into(),
            device: 0,
            group: parents[at].and_then(place),
            kind: tables[at].parsed("policy"),
            terms: terms(&tables[at]),
        });
        let mut groups: Vec<Group> = groups.collect();
        self.give_devices(&mut groups, tables, &order, tenants);
        groups
    }

    fn names(&mut self, tables: &[Table], tenants: &[Tenant]) {
        self.unique_names(tables);
        for table in tables {
            match table.text("name") {
                None => self.wrong(table, "name", "is missing: a group needs one".into()),
                Some(name) if tenants.iter().any(|tenant| tenant.name == name) => {
                    let message = format!("{name:?} is the name of a tenant too");
                    self.wrong(table, "name", message);
                }
                Some(_) => {}
            }
        }
    }

    /// The group that a table says it is in.
    fn group_of(&mut self, table: &Table, groups: &[Table]) -> Option<usize> {
        let wanted = table.text("group")?;
        let names = || groups.iter().filter_map(|group| group.text("name"));
        let found = names().position(|name| name == wanted);
        if found.is_none() {
            let hint = match nearest(wanted, names()) {
                Some(name) => format!("; did you mean {name:?}?"),
                None => String::new(),
            };
            self.wrong(
                table,
                "group",
                format!("there is no group {wanted:?}{hint}"),
            );
        }
        found
    }

    /// A group is on the device of its tenants.
    fn give_devices(
        &mut self,
        groups: &mut [Group],
        tables: &[Table],
        order: &[usize],
        tenants: &[Tenant],
    ) {
        let mut found: Vec<Option<usize>> = vec![None; groups.len()];
        for tenant in tenants {
            let mut of = tenant.group;
            while let Some(group) = of {
                let device = *found[group].get_or_insert(tenant.device);
                if device != tenant.device {
                    let message = format!(
                        "{:?} has tenants on two devices: a group divides one",
                        groups[group].name
                    );
                    return self.wrong(&tables[order[group]], "name", message);
                }
                of = groups[group].group;
            }
        }
        for (group, found) in groups.iter_mut().zip(found) {
            match found {
                Some(device) => group.device = device,
                None => self.warn(format!("group {:?} has no tenant", group.name)),
            }
        }
    }

    /// Terms that the policy over them does not look at.
    pub(super) fn odd_terms(
        &mut self,
        tenants: &[Tenant],
        groups: &[Group],
        policy: &super::Policy,
    ) {
        let kind_over = |group: Option<usize>| group.map_or(policy.kind, |at| groups[at].kind);
        let of_tenants = tenants
            .iter()
            .map(|t| ("tenant", &t.name, t.group, &t.terms));
        let of_groups = groups.iter().map(|g| ("group", &g.name, g.group, &g.terms));
        let mut warnings = Vec::new();
        for (what, name, group, terms) in of_tenants.chain(of_groups) {
            let kind = kind_over(group);
            for (term, wanted) in idle_terms(terms, kind) {
                let over = kind.name();
                warnings.push(format!(
                    "{what} {name:?} has a {term}, but the policy over it is {over}, not {wanted}"
                ));
            }
        }
        for (kind, within) in divided(tenants, groups, policy) {
            let targets = within.iter().any(|terms| terms.target.is_some());
            if kind == PolicyKind::Qos && !targets {
                warnings.push("a policy is qos, but no tenant under it has a target".into());
            }
        }
        warnings.into_iter().for_each(|warning| self.warn(warning));
    }
}

fn depth(parents: &[Option<usize>], mut at: usize) -> usize {
    for depth in 1..=DEPTH_MAX {
        match parents[at] {
            Some(parent) => at = parent,
            None => return depth,
        }
    }
    DEPTH_MAX + 1
}

/// The terms that are set and not looked at by a policy, and the policies that would.
fn idle_terms(terms: &Terms, kind: PolicyKind) -> Vec<(&'static str, &'static str)> {
    use PolicyKind as Kind;
    let weighs = [Kind::Share, Kind::Partition, Kind::Slowdown, Kind::MemGuard];
    let promises = [Kind::Qos, Kind::Caladan];
    let ignores_limits = [Kind::None, Kind::Partition, Kind::Caladan, Kind::MemGuard];
    let all = [
        (
            terms.weight != 1.0 && !weighs.contains(&kind),
            "weight",
            "share or slowdown",
        ),
        (
            terms.target.is_some() && !promises.contains(&kind),
            "target",
            "qos",
        ),
        (
            terms.slowdown_limit.is_some() && kind != Kind::Slowdown,
            "slowdown_limit",
            "slowdown",
        ),
        (
            terms.limit.is_some() && ignores_limits.contains(&kind),
            "limit",
            "limit",
        ),
        (
            terms.burst_ns > 0 && terms.limit.is_none() && kind == Kind::Limit,
            "burst",
            "one with a limit for it",
        ),
    ];
    let idle = all.into_iter().filter(|one| one.0);
    idle.map(|(_, term, wanted)| (term, wanted)).collect()
}

/// Each policy and the terms of those whom it divides among.
fn divided<'a>(
    tenants: &'a [Tenant],
    groups: &'a [Group],
    policy: &super::Policy,
) -> Vec<(PolicyKind, Vec<&'a Terms>)> {
    let within = |of: Option<usize>| {
        let tenants = tenants
            .iter()
            .filter(move |one| one.group == of)
            .map(|one| &one.terms);
        let groups = groups
            .iter()
            .filter(move |one| one.group == of)
            .map(|one| &one.terms);
        tenants.chain(groups).collect()
    };
    let inside = groups
        .iter()
        .enumerate()
        .map(|(at, group)| (group.kind, within(Some(at))));
    std::iter::once((policy.kind, within(None)))
        .chain(inside)
        .collect()
}
