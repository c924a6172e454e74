//! Doors: which listeners there are, and which tenants are behind each.
//!
//! A door either asks for a login, or it does not; never both, because on a door with both a
//! client's first `set` could be a login or data. What this module never does: let two tenants be
//! reached by the same key or the same user of one door.

use super::layers::{Problem, Table};
use super::{Door, Entry, Listen, Tenant};

/// The doors, and what is wrong or odd about them.
#[derive(Default)]
pub struct Doors {
    /// In the order in which the file names them.
    pub doors: Vec<Door>,
    /// What is wrong.
    pub problems: Vec<Problem>,
    /// What is odd.
    pub warnings: Vec<String>,
}

/// Who is behind an address, before it is known to be a sound door.
struct Draft {
    listen: Listen,
    tenants: Vec<usize>,
}

/// Works out the doors of tenants (with their tables, which know where things were written).
pub fn open(server: &Table, tables: &[Table], tenants: &[Tenant]) -> Doors {
    let mut doors = Doors::default();
    let shared = server.addresses("listen").unwrap_or_default();
    let drafts = drafts(shared, tables);
    if tables
        .iter()
        .all(|table| table.addresses("listen").is_some())
    {
        let origin = server.origin_of("listen");
        if *origin != super::layers::Origin::Default && *origin != server.origin {
            let warning = "every tenant has listeners of its own: server.listen opens nothing";
            doors.warnings.push(warning.to_string());
        }
    }
    for table in tables {
        if table.addresses("listen").unwrap_or(shared).is_empty() {
            doors.wrong(
                table,
                "listen",
                "is empty: nobody could reach the tenant".to_string(),
            );
        }
    }
    doors.refuse_clashes(&drafts, server, tables);
    for draft in drafts {
        let entry = doors.entry(&draft, tables, tenants);
        doors.doors.push(Door {
            listen: draft.listen,
            entry,
        });
    }
    doors
}

/// One draft per address. Port 0 asks for a fresh port, so tenants never share one of their own.
fn drafts(shared: &[Listen], tables: &[Table]) -> Vec<Draft> {
    let mut drafts: Vec<Draft> = Vec::new();
    for (tenant, table) in tables.iter().enumerate() {
        let own = table.addresses("listen");
        for listen in own.unwrap_or(shared) {
            let is_fresh =
                own.is_some() && matches!(listen, Listen::Tcp(address) if address.port() == 0);
            let known = drafts.iter_mut().find(|d| d.listen == *listen && !is_fresh);
            match known {
                Some(draft) if draft.tenants.contains(&tenant) => {}
                Some(draft) => draft.tenants.push(tenant),
                None => drafts.push(Draft {
                    listen: listen.clone(),
                    tenants: vec![tenant],
                }),
            }
        }
    }
    drafts
}

impl Doors {
    fn wrong(&mut self, table: &Table, key: &str, message: String) {
        let path = format!("{}.{key}", table.section.name());
        self.problems
            .push(Problem::of(table.origin_of(key), path, message));
    }

    /// Two TCP doors on one port clash where one of them listens on every address.
    fn refuse_clashes(&mut self, drafts: &[Draft], server: &Table, tables: &[Table]) {
        for (i, later) in drafts.iter().enumerate() {
            let clash = drafts[..i]
                .iter()
                .find(|earlier| overlap(&earlier.listen, &later.listen));
            if let Some(earlier) = clash {
                let own = tables[later.tenants[0]].addresses("listen").is_some();
                let table = if own {
                    &tables[later.tenants[0]]
                } else {
                    server
                };
                let message = format!(
                    "{} and {} cannot both be bound",
                    earlier.listen, later.listen
                );
                self.wrong(table, "listen", message);
            }
        }
    }

    fn entry(&mut self, draft: &Draft, tables: &[Table], tenants: &[Tenant]) -> Entry {
        let (with_login, open): (Vec<usize>, Vec<usize>) = draft
            .tenants
            .iter()
            .partition(|t| tenants[**t].users_file.is_some());
        if let (Some(login), Some(open)) = (with_login.first(), open.first()) {
            let (login, open) = (&tenants[*login].name, &tables[*open]);
            let message = format!(
                "{} asks for a login, because of tenant {login:?}: give this tenant users too, or \
                 a listener of its own",
                draft.listen
            );
            self.wrong(open, "users", message);
        }
        match with_login.is_empty() {
            true => self.open_entry(draft, &open, tables, tenants),
            false => self.login_entry(draft, with_login, tables, tenants),
        }
    }

    fn login_entry(
        &mut self,
        draft: &Draft,
        members: Vec<usize>,
        tables: &[Table],
        tenants: &[Tenant],
    ) -> Entry {
        for (i, later) in members.iter().enumerate() {
            for earlier in &members[..i] {
                let names = |t: &usize| tenants[*t].users.iter().map(|user| &user.name);
                if let Some(name) = names(later).find(|name| names(earlier).any(|n| n == *name)) {
                    let (name, listen) = (String::from_utf8_lossy(name), &draft.listen);
                    let other = &tenants[*earlier].name;
                    let message = format!("user {name:?} is tenant {other:?}'s too, on {listen}");
                    self.wrong(&tables[*later], "users", message);
                }
            }
        }
        Entry::Login { tenants: members }
    }

    fn open_entry(
        &mut self,
        draft: &Draft,
        members: &[usize],
        tables: &[Table],
        tenants: &[Tenant],
    ) -> Entry {
        let mut default: Option<usize> = None;
        let mut prefixes: Vec<(Vec<u8>, usize)> = Vec::new();
        for tenant in members {
            let table = &tables[*tenant];
            let Some(prefix) = &tenants[*tenant].key_prefix else {
                match default {
                    None => default = Some(*tenant),
                    Some(other) => {
                        let (other, listen) = (&tenants[other].name, &draft.listen);
                        let message = format!(
                            "{listen} already leads to tenant {other:?}: give this tenant a \
                             listener, a key_prefix or users"
                        );
                        self.wrong(table, "listen", message);
                    }
                }
                continue;
            };
            let clash = prefixes
                .iter()
                .find(|(p, _)| p.starts_with(prefix) || prefix.starts_with(p));
            if let Some((_, other)) = clash {
                let (prefix, other) = (String::from_utf8_lossy(prefix), &tenants[*other]);
                let theirs = other.key_prefix.as_deref().unwrap_or_default();
                let (theirs, name) = (String::from_utf8_lossy(theirs), &other.name);
                let message = format!(
                    "{prefix:?} and {theirs:?} of tenant {name:?} would match the same keys"
                );
                self.wrong(table, "key_prefix", message);
            }
            prefixes.push((prefix.clone(), *tenant));
        }
        Entry::Open { default, prefixes }
    }
}

fn overlap(a: &Listen, b: &Listen) -> bool {
    let (Listen::Tcp(a), Listen::Tcp(b)) = (a, b) else {
        return false;
    };
    let same_family = a.is_ipv4() == b.is_ipv4();
    let one_is_any = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() == b.port() && a.port() != 0 && same_family && one_is_any
}
