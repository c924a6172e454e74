//! What a connection may reach: nobody reaches a tenant that they did not connect or log in to.
//!
//! *Thread safety*: a [`Session`] belongs to one connection; [`Users`] and where an [`OpenDoor`]
//! leads may be replaced while connections are open. Their locks are taken at a login, and by a
//! session once for each time that its door leads elsewhere.

use crate::durable::Owed;
use nyx_base::TenantId;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex, PoisonError};

/// What a door lets in.
#[derive(Clone, Debug)]
pub enum Binding {
    /// No login: a key says whose it is.
    Open(Arc<OpenDoor>),
    /// Each connection logs in first; the user names the tenant.
    Login {
        /// Who may.
        users: Arc<Users>,
    },
}

impl Binding {
    /// A door to one tenant.
    pub fn to(tenant: TenantId) -> Binding {
        Binding::open(Some(tenant), &[])
    }

    /// A door without a login, which leads where [`Prefixes::new`] says.
    pub fn open(default: Option<TenantId>, prefixes: &[(&str, TenantId)]) -> Binding {
        let prefixes = Prefixes::new(default, prefixes);
        Binding::Open(Arc::new(OpenDoor::new(prefixes)))
    }
}

/// How keys find their tenant at a door without a login: a key belongs to the tenant whose prefix
/// it starts with, else to the default.
#[derive(Clone, Debug)]
pub struct Prefixes {
    /// The tenant of keys that start with no tenant's prefix.
    pub default: Option<TenantId>,
    /// Tenants by key prefix; no prefix starts with another one.
    pub prefixes: Arc<[(Box<[u8]>, TenantId)]>,
}

impl Prefixes {
    /// To these tenants; keys without one of the prefixes are the default's.
    pub fn new<P: AsRef<[u8]>>(default: Option<TenantId>, prefixes: &[(P, TenantId)]) -> Prefixes {
        let each = prefixes.iter();
        let each = each.map(|(prefix, tenant)| (prefix.as_ref().into(), *tenant));
        Prefixes {
            default,
            prefixes: each.collect(),
        }
    }
}

/// A door without a login. Its connections follow it where it leads ([`Session::follow`]), so that
/// a key does not belong to one tenant on old connections and to another on new ones.
#[derive(Debug)]
pub struct OpenDoor {
    /// How often it was led elsewhere.
    version: AtomicU64,
    prefixes: Mutex<Prefixes>,
}

impl OpenDoor {
    /// One that leads there.
    pub fn new(prefixes: Prefixes) -> OpenDoor {
        OpenDoor {
            version: AtomicU64::new(0),
            prefixes: Mutex::new(prefixes),
        }
    }

    /// Leads elsewhere from now on. All tenants that it leads to are there already.
    pub fn replace(&self, prefixes: Prefixes) {
        let place = self.prefixes.lock();
        *place.unwrap_or_else(PoisonError::into_inner) = prefixes;
        // Who sees the new version waits for nothing and finds what it is of, or later.
        self.version.fetch_add(1, Release);
    }

    /// Where it leads, and of which version that is at least.
    fn look(&self) -> (u64, Reach) {
        let version = self.version.load(Acquire);
        let prefixes = self.prefixes.lock();
        let prefixes = prefixes.unwrap_or_else(PoisonError::into_inner);
        let reach = match prefixes.default {
            Some(one) if prefixes.prefixes.is_empty() => Reach::One(one),
            default => Reach::Prefixes(default, prefixes.prefixes.clone()),
        };
        (version, reach)
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
    /// The door that it came through, where it follows one, and which version of it is known.
    door: Option<Arc<OpenDoor>>,
    version: u64,
    /// How many keys of the current request are answered already: a multiget that was held in the
    /// middle goes on there.
    pub(crate) keys_done: u32,
    /// What is to be durable before it is answered.
    pub(crate) owes: Vec<Owed>,
}

impl Session {
    /// A new connection through a door.
    pub fn new(binding: &Binding) -> Session {
        let (door, (version, reach)) = match binding {
            Binding::Open(door) => (Some(door.clone()), door.look()),
            Binding::Login { users } => (None, (0, Reach::Nothing(users.clone()))),
        };
        Session {
            reach,
            door,
            version,
            keys_done: 0,
            owes: Vec::new(),
        }
    }

    /// Follows its door where that leads elsewhere since it was looked at last; whether it does. To
    /// be asked before commands are bound; then [`crate::Engine::limits`] is to be asked again.
    #[inline]
    pub fn follow(&mut self) -> bool {
        match &self.door {
            Some(door) if door.version.load(Acquire) != self.version => self.catch_up(),
            _ => false,
        }
    }

    #[cold]
    fn catch_up(&mut self) -> bool {
        if let Some(door) = &self.door {
            (self.version, self.reach) = door.look();
        }
        true
    }

    /// Whether something that it changed may not be durable as it was promised: see
    /// [`crate::Engine::is_settled`].
    #[inline]
    pub fn owes_anything(&self) -> bool {
        !self.owes.is_empty()
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
        let open = |default| {
            let prefixes = [("a:", TenantId(1)), ("b:", TenantId(2))];
            Session::new(&Binding::open(default, &prefixes))
        };
        let strict = open(None);
        assert_eq!(strict.tenant_of(b"a:x"), Some(TenantId(1)));
        assert_eq!(strict.tenant_of(b"b:"), Some(TenantId(2)));
        assert_eq!(strict.tenant_of(b"c:x"), None);
        assert_eq!(strict.sole_tenant(), None);
        assert_eq!(open(Some(TenantId(0))).tenant_of(b"c:x"), Some(TenantId(0)));
    }

    #[test]
    fn a_connection_follows_its_door_and_keeps_its_place_in_a_request() {
        let binding = Binding::to(TenantId(0));
        let Binding::Open(door) = &binding else {
            panic!("it is open");
        };
        let mut session = Session::new(&binding);
        session.keys_done = 7;
        assert!(!session.follow(), "it leads where it led");
        assert_eq!(session.sole_tenant(), Some(TenantId(0)));
        door.replace(Prefixes::new(Some(TenantId(0)), &[("n:", TenantId(1))]));
        assert_eq!(
            session.tenant_of(b"n:x"),
            Some(TenantId(0)),
            "not by itself"
        );
        assert!(session.follow() && !session.follow(), "once");
        assert_eq!(session.tenant_of(b"n:x"), Some(TenantId(1)));
        assert_eq!(session.tenant_of(b"x"), Some(TenantId(0)));
        assert_eq!((session.sole_tenant(), session.keys_done), (None, 7));
        let mut later = Session::new(&binding);
        assert_eq!(later.tenant_of(b"n:x"), Some(TenantId(1)));
        assert!(!later.follow());
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
