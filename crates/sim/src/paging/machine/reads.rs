//! How the pages of one fault are read: in which order, through which queue, and who waits where.
//!
//! What it never does: choose pages. *Thread safety*: one owner.

use super::cpu::{Cpu, Effect};
use super::{Machine, Variant};
use crate::paging::costs::{Costs, Part};
use nyx_policy::paging::pager::CLUSTER_PAGES_MAX;

/// Pages that are to be read, in its order: a critical one first, if there is one.
#[derive(Default)]
pub(super) struct Reads {
    all: Vec<(u32, bool)>,
}

impl Reads {
    pub(super) fn push(&mut self, page: u32, is_critical: bool) {
        self.all.push((page, is_critical));
    }
}

impl Machine {
    /// Gives the reads to the processors that wait for them; what nobody waits for goes with the
    /// critical page before it, or to whoever was told.
    pub(super) fn plan(&mut self, cpu: usize, reads: &Reads) {
        let now = self.cpus[cpu].at;
        let starts = (0..reads.all.len()).filter(|&at| at == 0 || reads.all[at].1);
        let starts: Vec<usize> = starts.collect();
        for (number, &start) in starts.iter().enumerate() {
            let end = starts.get(number + 1).copied();
            let group = &reads.all[start..end.unwrap_or(reads.all.len())];
            assert!(group.len() <= CLUSTER_PAGES_MAX as usize);
            let (page, is_critical) = group[0];
            let waiting = self.cpus.iter().position(|one| one.waits_for(page));
            let owner = waiting.filter(|_| is_critical).unwrap_or(cpu);
            let variant = self.setup.variant;
            let one = &mut self.cpus[owner];
            one.at = one.at.max(now);
            read(one, variant, &self.setup.costs, group);
        }
    }
}

fn read(one: &mut Cpu, variant: Variant, costs: &Costs, group: &[(u32, bool)]) {
    match variant {
        Variant::Linux => by_address(one, costs, group),
        Variant::Ideal => copied(one, costs, group),
        _ => critical_first(one, variant, costs, group),
    }
    if group[0].1 && !variant.polls_critical() && variant != Variant::Ideal {
        one.then(Part::Device, 0, Effect::Sleep);
    }
}

/// Figure 6a: all pages in the order of their addresses, and to the device once all are plugged.
fn by_address(one: &mut Cpu, costs: &Costs, group: &[(u32, bool)]) {
    let mut group = group.to_vec();
    group.sort_unstable();
    for index in 0..group.len() {
        one.then(Part::Cache, costs.cache.at(index), Effect::None);
        one.then(Part::Plug, costs.plug.at(index), Effect::None);
    }
    one.then(Part::Submit, costs.submit_ns, Effect::None);
    for &(page, is_critical) in &group {
        one.then(Part::Submit, 0, submit(page, is_critical, false));
    }
    lists(one, costs, group.len());
}

/// Figure 6b: the critical page, then the others while the device reads it.
fn critical_first(one: &mut Cpu, variant: Variant, costs: &Costs, group: &[(u32, bool)]) {
    let polls_critical = variant.polls_critical();
    for (index, &(page, is_critical)) in group.iter().enumerate() {
        one.then(Part::Cache, costs.cache.at(index), Effect::None);
        let is_polled = variant == Variant::PollOnly || is_critical && polls_critical;
        let submit_ns = match is_polled {
            true => costs.poll_submit_ns,
            false => costs.submit_light_ns,
        };
        let effect = submit(page, is_critical, is_polled);
        one.then(Part::Submit, submit_ns, effect);
        if is_polled && !is_critical {
            poll(one, costs, page, false);
        }
    }
    lists(one, costs, group.len());
    let (page, is_critical) = group[0];
    if polls_critical && is_critical {
        poll(one, costs, page, true);
    }
}

fn copied(one: &mut Cpu, costs: &Costs, group: &[(u32, bool)]) {
    for (index, &(page, _)) in group.iter().enumerate() {
        one.then(Part::Cache, costs.cache.at(index), Effect::None);
        one.then(Part::Copy, costs.copy_ns, Effect::ReadDone(page));
    }
    lists(one, costs, group.len());
}

fn submit(page: u32, is_critical: bool, is_polled: bool) -> Effect {
    Effect::Submit {
        page,
        is_write: false,
        is_critical,
        is_polled,
    }
}

/// Spins until it is done.
fn poll(one: &mut Cpu, costs: &Costs, page: u32, is_critical: bool) {
    one.spin_for(page, false, is_critical);
    one.then(
        Part::Complete,
        costs.poll_complete_ns,
        Effect::ReadDone(page),
    );
}

fn lists(one: &mut Cpu, costs: &Costs, pages: usize) {
    let ns = (0..pages).map(|index| costs.lists.at(index)).sum();
    one.then(Part::Lists, ns, Effect::None);
}
