//! What a connection may reach: nobody reaches a tenant that they did not connect or log in to.
//!
//! *Thread safety*: a [`Session`] belongs to one connection; [`Users`] may be replaced while
//! connections log in.

use nyx_base::TenantId;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// What a door lets in.
#[derive(Clone, Debug)]
pub enum Binding {
    /// No login: a key belongs to the tenant whose prefix it starts with, else to the default.
    Open {
        /// The tenant of keys that start with no tenant's prefix.
        default: Option<TenantId>,
        /// Tenants by key prefix; no prefix starts with another one.
        prefixes: Arc<[(Box<[u8]>, TenantId)]>,
    },
    /// Each connection logs in first; the user names the tenant.
    Login {
        /// Who may.
        users: Arc<Users>,
    },
}

impl Binding {
    /// A door to one tenant.
    pub fn to(tenant: TenantId) -> Binding {
        Binding::Open {
            default: Some(tenant),
            prefixes: Arc::new([]),
        }
    }
}

/// One login.
#[derive(Clone)]
pub struct User {
    /// Its name.
    pub name: Vec<u8>,
    /// Its password.
    pub password: Vec<u8>,
    /// Whose it is.
    pub tenant: TenantId,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "User({} of {})", self.name.escape_ascii(), self.tenant)
    }
}

/// The logins of a door.
#[derive(Debug, Default)]
pub struct Users(Mutex<Vec<User>>);

impl Users {
    /// These logins.
    pub fn new(users: Vec<User>) -> Users {
        Users(Mutex::new(users))
    }

    /// Other logins from now on. Who is logged in stays so.
    pub fn replace(&self, users: Vec<User>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = users;
    }

    /// Whose login this is. Looks at every user, each in constant time, so that the time taken
    /// tells nothing about how much of a password was right.
    fn check(&self, name: &[u8], password: &[u8]) -> Option<TenantId> {
        let users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        users.iter().fold(None, |found, user| {
            let name_is = constant_time_eq::constant_time_eq(&user.name, name);
            let password_is = constant_time_eq::constant_time_eq(&user.password, password);
            if name_is & password_is {
                Some(user.tenant)
            } else {
                found
            }
        })
    }
}

#[derive(Clone, Debug)]
enum Reach {
    One(TenantId),
    Prefixes(Option<TenantId>, Arc<[(Box<[u8]>, TenantId)]>),
    Nothing(Arc<Users>),
}

/// One connection, as the engine knows it.
#[derive(Clone, Debug)]
pub struct Session {
    reach: Reach,
    /// How many keys of the current request are answered already: a multiget that was held in the
    /// middle goes on there.
    pub(crate) keys_done: u32,
}

impl Session {
    /// A new connection through a door.
    pub fn new(binding: &Binding) -> Session {
        let reach = match binding {
            Binding::Open {
                default: Some(one),
                prefixes,
            } if prefixes.is_empty() => Reach::One(*one),
            Binding::Open { default, prefixes } => Reach::Prefixes(*default, prefixes.clone()),
            Binding::Login { users } => Reach::Nothing(users.clone()),
        };
        Session {
            reach,
            keys_done: 0,
        }
    }

    /// Whether nothing but a login is understood.
    #[inline]
    pub fn needs_login(&self) -> bool {
        matches!(self.reach, Reach::Nothing(_))
    }

    /// Logs in. False, and nothing changes, where the login is wrong.
    pub fn login(&mut self, user: &[u8], password: &[u8]) -> bool {
        let Reach::Nothing(users) = &self.reach else {
            return false;
        };
        match users.check(user, password) {
            Some(tenant) => {
                self.reach = Reach::One(tenant);
                true
            }
            None => false,
        }
    }

    /// Whose key this is; `None` where no tenant within reach has it.
    #[inline]
    pub fn tenant_of(&self, key: &[u8]) -> Option<TenantId> {
        match &self.reach {
            Reach::One(tenant) => Some(*tenant),
            Reach::Prefixes(default, prefixes) => prefixes
                .iter()
                .find(|(prefix, _)| key.starts_with(prefix))
                .map_or(*default, |(_, tenant)| Some(*tenant)),
            Reach::Nothing(_) => None,
        }
    }

    /// The tenant that commands without a key speak of: the only one within reach.
    pub fn sole_tenant(&self) -> Option<TenantId> {
        match &self.reach {
            Reach::One(tenant) => Some(*tenant),
            Reach::Prefixes(..) | Reach::Nothing(_) => None,
        }
    }

    /// The tenants within reach.
    pub fn tenants(&self) -> Vec<TenantId> {
        match &self.reach {
            Reach::One(tenant) => vec![*tenant],
            Reach::Prefixes(default, prefixes) => default
                .iter()
                .copied()
                .chain(prefixes.iter().map(|&(_, tenant)| tenant))
                .collect(),
            Reach::Nothing(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, password: &str, tenant: u16) -> User {
        User {
            name: name.into(),
            password: password.into(),
            tenant: TenantId(tenant),
        }
    }

    #[test]
    fn a_key_goes_to_the_tenant_of_its_prefix_else_to_the_default_else_nowhere() {
        let prefixes: Arc<[(Box<[u8]>, TenantId)]> = Arc::new([
            (Box::from(*b"a:"), TenantId(1)),
            (Box::from(*b"b:"), TenantId(2)),
        ]);
        let open = |default| {
            Session::new(&Binding::Open {
                default,
                prefixes: prefixes.clone(),
            })
        };
        let strict = open(None);
        assert_eq!(strict.tenant_of(b"a:x"), Some(TenantId(1)));
        assert_eq!(strict.tenant_of(b"b:"), Some(TenantId(2)));
        assert_eq!(strict.tenant_of(b"c:x"), None);
        assert_eq!(strict.sole_tenant(), None);
        assert_eq!(open(Some(TenantId(0))).tenant_of(b"c:x"), Some(TenantId(0)));
    }

    #[test]
    fn a_login_binds_to_its_tenant_and_a_wrong_one_to_none() {
        let users = Arc::new(Users::new(vec![
            user("ann", "secret", 4),
            user("bob", "hush", 5),
        ]));
        let mut session = Session::new(&Binding::Login {
            users: users.clone(),
        });
        for (name, password) in [("ann", "hush"), ("ann", ""), ("", ""), ("eve", "secret")] {
            assert!(
                !session.login(name.as_bytes(), password.as_bytes()),
                "{name} {password}"
            );
            assert_eq!(session.tenant_of(b"k"), None);
        }
        assert!(session.login(b"bob", b"hush"));
        assert_eq!(session.tenant_of(b"k"), Some(TenantId(5)));
        assert!(!session.needs_login());
        users.replace(vec![user("ann", "new", 4)]);
        let mut later = Session::new(&Binding::Login { users });
        assert!(!later.login(b"ann", b"secret") && later.login(b"ann", b"new"));
        assert_eq!(
            session.tenant_of(b"k"),
            Some(TenantId(5)),
            "who is in stays in"
        );
    }
}
