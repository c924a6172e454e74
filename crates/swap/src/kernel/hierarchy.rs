//! Where control groups that limit memory are, and where one can be made.
//!
//! Version 2 is taken where it has the memory controller, version 1 otherwise. What a group stalls
//! for memory is told by version 2 alone, which may be mounted beside version 1 without a
//! controller (a hybrid system); a program is put in a group of each then.
//!
//! What it never does: mount anything, or change a group that it did not make, but for handing the
//! memory controller on to groups below one (version 2).

use super::group::Group;
use crate::error::{SwapError, Tried, Trying};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// `memory.limit_in_bytes`.
    V1,
    /// `memory.max`.
    V2,
}

/// The hierarchy of groups that limits memory, as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    version: Version,
    /// Where a group can be made at the highest.
    top: PathBuf,
    /// The group of this process.
    own: PathBuf,
    /// The same in version 2, where that tells only how long a group stalls.
    pressure: Option<PathBuf>,
}

/// A mounted hierarchy.
struct Mount {
    at: PathBuf,
    /// The group that is seen there.
    root: String,
    kind: String,
    options: String,
}

impl Hierarchy {
    /// The one of this process.
    pub fn find() -> Result<Hierarchy, SwapError> {
        let own = Path::new("/proc/self/cgroup");
        Hierarchy::of(&fs::read_to_string(own).trying("read", own)?)
    }

    /// The one of another process.
    pub fn of_process(pid: u32) -> Result<Hierarchy, SwapError> {
        let groups = PathBuf::from(format!("/proc/{pid}/cgroup"));
        Hierarchy::of(&fs::read_to_string(&groups).trying("read", &groups)?)
    }

    fn of(groups: &str) -> Result<Hierarchy, SwapError> {
        let path = Path::new("/proc/self/mountinfo");
        let mounts = fs::read_to_string(path).trying("read", path)?;
        let controls = |at: &Path| {
            let controllers = fs::read_to_string(at.join("cgroup.controllers"));
            controllers.is_ok_and(|all| all.split_whitespace().any(|one| one == "memory"))
        };
        Hierarchy::parse(&mounts, groups, controls, |path| path.is_dir())
    }

    /// From what `/proc` says; `controls` tells whether the version 2 mounted there has the memory
    /// controller.
    fn parse(
        mounts: &str,
        groups: &str,
        controls: impl Fn(&Path) -> bool,
        exists: impl Fn(&Path) -> bool,
    ) -> Result<Hierarchy, SwapError> {
        let mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
        let own = |mount: &Mount| {
            let path = own_group(groups, mount)?;
            let seen = path.strip_prefix(mount.root.trim_end_matches('/'))?;
            let at = mount.at.join(seen.trim_start_matches('/'));
            // In a container the path may be that of the host.
            Some(if exists(&at) { at } else { mount.at.clone() })
        };
        let v2 = mounts.iter().find(|mount| mount.kind == "cgroup2");
        if let Some(mount) = v2.filter(|mount| controls(&mount.at)) {
            return Ok(Hierarchy {
                version: Version::V2,
                top: mount.at.clone(),
                own: own(mount).unwrap_or_else(|| mount.at.clone()),
                pressure: None,
            });
        }
        let v1 = mounts.iter().find(|mount| {
            mount.kind == "cgroup" && mount.options.split(',').any(|one| one == "memory")
        });
        let v1 = v1.ok_or(SwapError::NoController)?;
        Ok(Hierarchy {
            version: Version::V1,
            top: v1.at.clone(),
            own: own(v1).unwrap_or_else(|| v1.at.clone()),
            pressure: v2.and_then(own),
        })
    }

    /// Of control groups.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The group that a process is in, where it may be limited: none where that is the topmost.
    pub fn group(&self) -> Option<Result<Group, SwapError>> {
        let is_top = self.own == self.top;
        let pressure = self.pressure.clone();
        (!is_top).then(|| Group::open(self.version, self.own.clone(), pressure))
    }

    /// The groups that [`Hierarchy::create`] tries to make, best first, each with the one beside it
    /// that tells of stalls.
    pub fn places(&self, name: &str) -> Vec<(PathBuf, Option<PathBuf>)> {
        let pressure = self.pressure.as_ref().map(|dir| dir.join(name));
        let parents = self.own.ancestors();
        let below_top = parents.take_while(|parent| parent.starts_with(&self.top));
        let places = below_top.map(|parent| (parent.join(name), pressure.clone()));
        match self.version {
            // A group limits all below it: the nearest will do.
            Version::V1 => places.take(1).collect(),
            Version::V2 => places.collect(),
        }
    }

    /// Makes a group of that name, as near to this process's as can be: limits of groups above hold
    /// for it too.
    pub fn create(&self, name: &str) -> Result<Group, SwapError> {
        let mut tried = Tried::default();
        for (dir, pressure) in self.places(name) {
            let made = match self.version {
                Version::V1 => fs::create_dir(&dir),
                Version::V2 => create_v2(&dir),
            };
            if let Err(error) = made {
                let parent = dir.parent().unwrap_or(&dir).to_owned();
                tried.0.push((parent, error));
                continue;
            }
            // Without it nothing is told of stalls.
            let pressure = pressure.filter(|dir| fs::create_dir(dir).is_ok());
            return Group::open(self.version, dir, pressure);
        }
        Err(SwapError::NoGroup(tried))
    }
}

/// A group below one that hands the memory controller on.
fn create_v2(dir: &Path) -> io::Result<()> {
    let parent = dir.parent().expect("a place has a parent");
    let handed_on = parent.join("cgroup.subtree_control");
    let has_memory = |text: String| text.split_whitespace().any(|one| one == "memory");
    if !fs::read_to_string(&handed_on).is_ok_and(has_memory) {
        fs::write(&handed_on, "+memory").map_err(|error| {
            let why = match error.kind() {
                io::ErrorKind::ResourceBusy => "it has processes of its own".to_owned(),
                _ => error.to_string(),
            };
            io::Error::new(
                error.kind(),
                format!("it does not hand on the memory controller: {why}"),
            )
        })?;
    }
    fs::create_dir(dir)
}

/// The path of the group that `/proc/PID/cgroup` names for a hierarchy.
fn own_group<'a>(groups: &'a str, mount: &Mount) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_its = match mount.kind.as_str() {
            "cgroup2" => controllers.is_empty(),
            _ => controllers.split(',').any(|one| one == "memory"),
        };
        is_its.then_some(path)
    })
}

impl Mount {
    /// A line of mountinfo, as proc_pid_mountinfo(5) has it; none where it is no hierarchy.
    fn parse(line: &str) -> Option<Mount> {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        let mut fields = after.split(' ');
        let kind = fields.next()?;
        let options = fields.nth(1)?;
        kind.starts_with("cgroup").then(|| Mount {
            at: PathBuf::from(unescaped(at)),
            root: unescaped(root),
            kind: kind.to_owned(),
            options: options.to_owned(),
        })
    }
}

/// Blanks are written as `\040` there.
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
24 1 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
30 24 0:27 / /sys/fs/cgroup/cpu rw,relatime shared:1 - cgroup cgroup rw,cpu
31 24 0:28 / /sys/fs/cgroup/memory rw,relatime shared:2 - cgroup cgroup rw,memory
32 24 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const UNIFIED: &str = "30 24 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
    const CONTAINER: &str =
        "31 24 0:28 /opt/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";

    fn parse(mounts: &str, groups: &str, v2_controls: bool) -> Result<Hierarchy, SwapError> {
        Hierarchy::parse(mounts, groups, |_| v2_controls, |_| true)
    }

    #[test]
    fn version_1_limits_where_version_2_has_no_controller_and_that_tells_of_stalls() {
        let groups = "4:memory:/opt/b\n1:cpu:/\n0::/c\n";
        let hybrid = parse(HYBRID, groups, false).unwrap();
        assert_eq!(hybrid.version, Version::V1);
        assert_eq!(hybrid.own, Path::new("/sys/fs/cgroup/memory/opt/b"));
        let pressure = PathBuf::from("/sys/fs/cgroup/unified/c/x");
        let place = PathBuf::from("/sys/fs/cgroup/memory/opt/b/x");
        assert_eq!(hybrid.places("x"), [(place, Some(pressure))]);
    }

    #[test]
    fn version_2_is_tried_from_the_own_group_up() {
        let unified = parse(UNIFIED, "0::/run/s.scope\n", true).unwrap();
        assert_eq!(unified.version, Version::V2);
        let places: Vec<PathBuf> = unified.places("x").into_iter().map(|(at, _)| at).collect();
        assert_eq!(
            places,
            [
                Path::new("/sys/fs/cgroup/run/s.scope/x"),
                Path::new("/sys/fs/cgroup/run/x"),
                Path::new("/sys/fs/cgroup/x"),
            ]
        );
    }

    #[test]
    fn in_a_container_the_path_is_what_is_left_below_the_mounted_group() {
        let inside = parse(CONTAINER, "4:memory:/opt/ab/c\n", false).unwrap();
        assert_eq!(inside.own, Path::new("/sys/fs/cgroup/memory/c"));
        let hidden = Hierarchy::parse(CONTAINER, "4:memory:/opt/ab/c\n", |_| false, |_| false);
        assert_eq!(hidden.unwrap().own, Path::new("/sys/fs/cgroup/memory"));
    }

    #[test]
    fn a_machine_without_either_is_told_so() {
        let none = parse("24 1 0:22 / /sys rw - sysfs sysfs rw\n", "", true);
        assert!(matches!(none, Err(SwapError::NoController)));
        let without = parse(UNIFIED, "0::/\n", false);
        assert!(matches!(without, Err(SwapError::NoController)));
    }
}
