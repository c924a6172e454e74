//! What a configuration that was loaded again changes in a running server, which has tenants and
//! doors in places of its own; and what of it waits for a restart.
//!
//! Tenants that are new in the file may stand anywhere in it: in the server they come last. What
//! this module never does: judge what is promised, or change anything.

use crate::config::{self, Config, Door, Entry};
use std::collections::HashMap;

/// A configuration that was loaded again, with those tenants and doors that there are in the places
/// that they have; tenants that are new stand behind them.
///
/// Errors: what differs that cannot change under open connections.
pub(super) fn over(old: &Config, new: &Config) -> Result<Config, Vec<String>> {
    let mut new = in_places_of(old, new);
    let mut waits = Vec::new();
    let mut compare = |same: bool, what: &str| {
        if !same {
            waits.push(what.to_owned());
        }
    };
    compare(old.server == new.server, "server");
    let same = old.devices == new.devices && old.deep_devices == new.deep_devices;
    compare(same, "device");
    for (at, tenant) in old.tenants.iter().enumerate() {
        match new.tenants.get(at).filter(|new| new.name == tenant.name) {
            Some(new) => waits.extend(tenant_waits(tenant, new)),
            // Whoever comes behind it is not in its place either.
            None => {
                waits.push(format!("the end of tenant {:?}", tenant.name));
                return Err(waits);
            }
        }
    }
    match doors_like(old, &new) {
        Ok(doors) => new.doors = doors,
        Err(what) => waits.push(what),
    }
    if waits.is_empty() {
        Ok(new)
    } else {
        Err(waits)
    }
}

/// What of a tenant waits for a restart.
fn tenant_waits(old: &config::Tenant, new: &config::Tenant) -> Option<String> {
    // All but what can change.
    let kept = config::Tenant {
        group: old.group,
        terms: old.terms,
        deep_limit: old.deep_limit,
        users: old.users.clone(),
        ..new.clone()
    };
    if *old == kept {
        return None;
    }
    let name = &old.name;
    let deep_size = |tenant: &config::Tenant| tenant.deep.map(|deep| deep.size);
    let resized = config::Tenant {
        size: old.size,
        deep: kept.deep.map(|deep| config::DeepShare {
            size: deep_size(old).unwrap_or(deep.size),
            ..deep
        }),
        ..kept.clone()
    };
    if *old != resized {
        return Some(format!("tenant {name:?}"));
    }
    let (what, is, was) = match old.size == new.size {
        true => ("deep_size", deep_size(new), deep_size(old)),
        false => ("size", Some(new.size), Some(old.size)),
    };
    let (is, was) = (is.unwrap_or_default(), was.unwrap_or_default());
    Some(format!(
        "tenant {name:?}, whose {what} would be {is} instead of {was} (one that is not stated \
         depends on how many there are)"
    ))
}

/// The same with its tenants in the places that they have in `old`, as far as they are there.
fn in_places_of(old: &Config, new: &Config) -> Config {
    let names = old.tenants.iter().map(|one| one.name.as_str());
    let places: HashMap<&str, usize> = names.zip(0..).collect();
    let mut order: Vec<usize> = (0..new.tenants.len()).collect();
    let place = |at: &usize| places.get(new.tenants[*at].name.as_str());
    order.sort_by_key(|at| place(at).copied().unwrap_or(usize::MAX));
    let mut moved = vec![0; order.len()];
    for (to, from) in order.iter().enumerate() {
        moved[*from] = to;
    }
    let mut config = new.clone();
    config.tenants = order.iter().map(|at| new.tenants[*at].clone()).collect();
    for door in &mut config.doors {
        let tenants: Vec<&mut usize> = match &mut door.entry {
            Entry::Open { default, prefixes } => {
                let prefixes = prefixes.iter_mut().map(|(_, tenant)| tenant);
                default.iter_mut().chain(prefixes).collect()
            }
            Entry::Login { tenants } => tenants.iter_mut().collect(),
        };
        tenants
            .into_iter()
            .for_each(|tenant| *tenant = moved[*tenant]);
    }
    config
}

/// The doors in the order in which they are open, or what of them waits for a restart.
fn doors_like(old: &Config, new: &Config) -> Result<Vec<Door>, String> {
    let mut left: Vec<&Door> = new.doors.iter().collect();
    let mut doors = Vec::new();
    for door in &old.doors {
        let same = |new: &&Door| leads_on(door, new, old.tenants.len());
        let Some(at) = left.iter().position(same) else {
            return Err("listen, key_prefix or users".into());
        };
        doors.push(left.remove(at).clone());
    }
    match left.first() {
        None => Ok(doors),
        Some(door) => Err(format!("another listener, {}", door.listen)),
    }
}

/// Whether a door leads where it led, or to newcomers: to tenants behind so many.
fn leads_on(old: &Door, new: &Door, residents: usize) -> bool {
    let came = |tenant: usize| tenant >= residents;
    let same = match (&old.entry, &new.entry) {
        (
            Entry::Open { default, prefixes },
            Entry::Open {
                default: new_default,
                prefixes: new_prefixes,
            },
        ) => {
            let is_new = |default: Option<usize>| default.is_some_and(came);
            let stays = prefixes.iter().all(|one| new_prefixes.contains(one));
            let adds = |one: &(Vec<u8>, usize)| came(one.1) || prefixes.contains(one);
            (default == new_default || default.is_none() && is_new(*new_default))
                && stays
                && new_prefixes.iter().all(adds)
        }
        (Entry::Login { tenants }, Entry::Login { tenants: new }) => {
            let adds = |tenant: &usize| came(*tenant) || tenants.contains(tenant);
            tenants.iter().all(|tenant| new.contains(tenant)) && new.iter().all(adds)
        }
        _ => false,
    };
    same && old.listen == new.listen
}

/// Whether two configurations share their devices in the same way, among the same tenants.
pub(super) fn shares_alike(old: &Config, new: &Config) -> bool {
    let part = |config: &Config| -> Vec<_> {
        let each = config.tenants.iter();
        each.map(|one| (one.group, one.terms)).collect()
    };
    old.policy == new.policy && old.groups == new.groups && part(old) == part(new)
}

/// The same of what tenants may use of deep devices, where all else is alike.
pub(super) fn limits_deep_alike(old: &Config, new: &Config) -> bool {
    let limits = |config: &Config| -> Vec<_> {
        let each = config.tenants.iter();
        each.map(|one| one.deep_limit).collect()
    };
    limits(old) == limits(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::load;
    use crate::config::overrides::Overrides;

    const SERVER: &str = "[server]\nlisten = [\"127.0.0.1:4000\"]\n\
                          [[device]]\nname = \"main\"\nkind = \"anon\"\nsize = \"64MiB\"\n";
    const WEB: &str = "[[tenant]]\nname = \"web\"\nsize = \"8MiB\"\n";
    const BATCH: &str = "[[tenant]]\nname = \"batch\"\nsize = \"8MiB\"\nkey_prefix = \"b:\"\n";
    const NEW: &str = "[[tenant]]\nname = \"new\"\nsize = \"8MiB\"\nkey_prefix = \"n:\"\n";

    fn config(tenants: &[&str]) -> Config {
        let text = format!("{SERVER}{}", tenants.concat());
        load(&text, &Overrides::default()).expect("sound").config
    }

    fn waits(tenants: &[&str]) -> String {
        let old = config(&[WEB, BATCH]);
        over(&old, &config(tenants)).expect_err("waits").join("; ")
    }

    #[test]
    fn a_newcomer_comes_last_wherever_it_stands_in_the_file() {
        let old = config(&[WEB, BATCH]);
        let last = config(&[WEB, BATCH, NEW]);
        assert_eq!(over(&old, &last).expect("taken in"), last);
        for tenants in [[NEW, WEB, BATCH], [BATCH, NEW, WEB], [WEB, NEW, BATCH]] {
            let new = over(&old, &config(&tenants)).expect("taken in");
            assert_eq!(new.tenants, last.tenants);
            let Entry::Open { default, prefixes } = &new.doors[0].entry else {
                panic!("no users");
            };
            assert_eq!((new.doors.len(), *default), (1, Some(0)));
            for one in [(b"b:".to_vec(), 1), (b"n:".to_vec(), 2)] {
                assert!(prefixes.contains(&one), "{prefixes:?}");
            }
        }
        let turned = over(&old, &config(&[BATCH, WEB])).expect("nothing new");
        assert_eq!(turned.tenants, old.tenants);
    }

    #[test]
    fn a_door_may_get_its_first_default_and_no_other_one() {
        let old = config(&[BATCH]);
        let new = over(&old, &config(&[WEB, BATCH])).expect("taken in");
        let default = |config: &Config| match &config.doors[0].entry {
            Entry::Open { default, .. } => *default,
            Entry::Login { .. } => None,
        };
        assert_eq!((default(&old), default(&new)), (None, Some(1)));
        // Keys without a prefix would be another tenant's.
        let kept = "[[tenant]]\nname = \"web\"\nsize = \"8MiB\"\nkey_prefix = \"w:\"\n";
        let takes = "[[tenant]]\nname = \"new\"\nsize = \"8MiB\"\n";
        let said = waits(&[kept, BATCH, takes]);
        assert_eq!(said, "tenant \"web\"; listen, key_prefix or users");
    }

    #[test]
    fn what_waits_for_a_restart_is_named() {
        let elsewhere = NEW.replace("key_prefix = \"n:\"", "listen = [\"127.0.0.1:4001\"]");
        assert_eq!(
            waits(&[WEB, BATCH, &elsewhere]),
            "another listener, 127.0.0.1:4001"
        );
        assert_eq!(waits(&[WEB, NEW]), "the end of tenant \"batch\"");
        let moved = BATCH.replace("b:", "c:");
        assert_eq!(
            waits(&[WEB, &moved]),
            "tenant \"batch\"; listen, key_prefix or users"
        );
        let larger = WEB.replace("8MiB", "9MiB");
        let said = waits(&[&larger, BATCH, NEW]);
        let words = "tenant \"web\", whose size would be 9 MiB instead of 8 MiB";
        assert!(said.starts_with(words), "{said}");
    }
}
