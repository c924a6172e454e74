//! Debian's own kernel, from its package, with the modules that the guest loads.
//!
//! What it never does: install the package, whose scripts would change how this machine boots, or
//! ask which modules this machine's kernel has built in.

use crate::packages;
use crate::run::output;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Its newest version is what this one depends on.
const PACKAGE: &str = "linux-image-amd64";

/// What the guest needs: an NVDIMM, its block device, both filesystems, and the checksum that these
/// ask for by name; an NVMe disk; compressed memory with the kernel's own choice of how; a loop
/// device.
const MODULES: &[&str] = &[
    "crc32c_generic",
    "nfit",
    "nd_pmem",
    "ext4",
    "xfs",
    "nvme",
    "zram",
    "lzo_rle",
    "loop",
];

/// The file that says for which modules a kernel was kept.
const MADE_FOR: &str = "made-for";

/// A kernel with the modules to load, in their order.
pub(super) struct Kernel {
    pub(super) image: PathBuf,
    pub(super) modules: Vec<PathBuf>,
}

/// Where the package is unpacked, some 500 MB for as long as that takes.
fn unpacked(dir: &Path) -> PathBuf {
    dir.join("unpacked")
}

/// Where what is needed of it stays.
fn kept(dir: &Path) -> PathBuf {
    dir.join("kernel")
}

/// Whether nothing is to be downloaded. What was kept for other modules does not count.
fn is_kept(dir: &Path) -> bool {
    let made_for = fs::read_to_string(kept(dir).join(MADE_FOR));
    made_for.is_ok_and(|modules| modules == MODULES.join(" "))
}

/// Downloads the package, where it is needed; the error is the reason to skip.
pub(super) fn download(dir: &Path) -> Result<(), String> {
    if is_kept(dir) {
        return Ok(());
    }
    let into = unpacked(dir);
    empty(&into)?;
    let apt = |program: &str, args: &[&str]| {
        packages::short(Command::new(program).args(args).current_dir(&into))
    };
    let depends = || apt("apt-cache", &["depends", PACKAGE]).and_then(|text| dependency(&text));
    let download = || depends().and_then(|package| apt("apt-get", &["download", "-q", &package]));
    // A fresh image has no package lists.
    let downloaded = download().or_else(|_| packages::update().and_then(|()| download()));
    downloaded
        .map(|_| ())
        .map_err(|why| format!("apt-get cannot download {PACKAGE}: {why}"))
}

/// The kernel, unpacked where that was not done before.
pub(super) fn find(dir: &Path, busybox: &Path) -> Result<Kernel, String> {
    let (from, into) = (unpacked(dir), kept(dir));
    if !is_kept(dir) {
        empty(&into)?;
        let made = unpack(&from).and_then(|()| keep(&from, &into, busybox));
        let removed = fs::remove_dir_all(&from).map_err(|error| error.to_string());
        made.and(removed)?;
        let written = fs::write(into.join(MADE_FOR), MODULES.join(" "));
        written.map_err(|error| error.to_string())?;
    }
    let mut modules = list(&into.join("modules"))?;
    modules.sort();
    let image = into.join("vmlinuz");
    Ok(Kernel { image, modules })
}

/// Unpacks the package that is in `dir`.
fn unpack(dir: &Path) -> Result<(), String> {
    let is_package = |path: &PathBuf| path.extension() == Some(OsStr::new("deb"));
    let package = list(dir)?.into_iter().find(is_package);
    let package = package.ok_or("apt-get downloaded no package")?;
    output(Command::new("dpkg-deb").arg("-x").arg(package).arg(dir)).map(|_| ())
}

/// What `apt-cache depends` says that the package depends on.
fn dependency(text: &str) -> Result<String, String> {
    let mut names = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "));
    let name = names.find(|name| name.starts_with("linux-image-"));
    let name = name.ok_or_else(|| format!("{PACKAGE} depends on no kernel: {text}"))?;
    Ok(name.to_owned())
}

/// Copies the image, and the modules numbered in the order in which they are to be loaded.
fn keep(unpacked: &Path, kept: &Path, busybox: &Path) -> Result<(), String> {
    let copy = |from: &Path, to: &Path| {
        fs::copy(from, to).map_err(|error| format!("{}: {error}", from.display()))
    };
    let all = unpacked.join("lib/modules");
    let of_version = list(&all)?.pop().ok_or("the package has no modules")?;
    let version = of_version.file_name().unwrap_or_default().to_string_lossy();
    let image = unpacked.join(format!("boot/vmlinuz-{version}"));
    copy(&image, &kept.join("vmlinuz"))?;
    let depmod = ["depmod", "-b", &unpacked.to_string_lossy(), &version];
    output(Command::new(busybox).args(depmod))?;
    let read = |name| fs::read_to_string(of_version.join(name)).map_err(|error| error.to_string());
    let (dependencies, builtin) = (read("modules.dep")?, read("modules.builtin")?);
    let into = kept.join("modules");
    empty(&into)?;
    for (at, path) in load_order(&dependencies, &builtin, MODULES)?
        .iter()
        .enumerate()
    {
        let to = into.join(format!("{at:02}-{}.ko", module_name(path)));
        copy(&of_version.join(path), &to)?;
    }
    Ok(())
}

/// The paths of the modules to load, each behind those that it depends on; those that are built in
/// are left out. `dependencies` is a `modules.dep`, `builtin` a `modules.builtin`.
fn load_order<'t>(
    dependencies: &'t str,
    builtin: &str,
    wanted: &[&str],
) -> Result<Vec<&'t str>, String> {
    let builtin: BTreeSet<String> = builtin.lines().map(module_name).collect();
    let entries = dependencies.lines().filter_map(|line| line.split_once(':'));
    let entries: Vec<(&str, &str)> = entries.collect();
    let mut order = Vec::new();
    let mut met = BTreeSet::new();
    // A module is put into the order when it is met again, behind what it depends on.
    let mut todo: Vec<(String, bool)> = wanted
        .iter()
        .rev()
        .map(|&w| (w.to_owned(), false))
        .collect();
    while let Some((name, is_ready)) = todo.pop() {
        if builtin.contains(&name) {
            continue;
        }
        let entry = entries.iter().find(|(path, _)| module_name(path) == name);
        let (path, needs) = entry.ok_or_else(|| format!("the kernel has no module {name}"))?;
        if is_ready {
            order.push(*path);
        } else if met.insert(name.clone()) {
            todo.push((name, true));
            todo.extend(
                needs
                    .split_whitespace()
                    .map(|path| (module_name(path), false)),
            );
        }
    }
    Ok(order)
}

/// `fs/ext4/ext4.ko` is `ext4`; the kernel takes `-` for `_`.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    let name = file.split(".ko").next().unwrap_or(file);
    name.replace('-', "_")
}

/// Makes `dir` an empty directory.
pub(super) fn empty(dir: &Path) -> Result<(), String> {
    let removed = match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    let made = removed.and_then(|()| fs::create_dir_all(dir));
    made.map_err(|error| format!("{}: {error}", dir.display()))
}

fn list(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(dir).and_then(|entries| {
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        paths.collect()
    });
    entries.map_err(|error| format!("{}: {error}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPENDENCIES: &str = "\
kernel/fs/ext4/ext4.ko: kernel/fs/jbd2/jbd2.ko kernel/fs/mbcache.ko kernel/lib/crc16.ko
kernel/fs/jbd2/jbd2.ko: kernel/lib/crc16.ko
kernel/fs/mbcache.ko:
kernel/lib/crc16.ko:
kernel/drivers/nvdimm/nd_pmem.ko: kernel/drivers/nvdimm/libnvdimm.ko
kernel/drivers/nvdimm/libnvdimm.ko:
kernel/arch/x86/crypto/crc32c-intel.ko:
kernel/a.ko: kernel/b.ko
kernel/b.ko: kernel/a.ko
";

    #[test]
    fn modules_come_behind_what_they_depend_on() {
        let builtin = "kernel/fs/mbcache.ko\n";
        let wanted = ["crc32c_intel", "nd_pmem", "ext4"];
        let order = load_order(DEPENDENCIES, builtin, &wanted).expect("an order");
        let names: Vec<String> = order.iter().map(|path| module_name(path)).collect();
        let expected = [
            "crc32c_intel",
            "libnvdimm",
            "nd_pmem",
            "crc16",
            "jbd2",
            "ext4",
        ];
        assert_eq!(names, expected);
        let missing = load_order(DEPENDENCIES, builtin, &["xfs"]).expect_err("no such module");
        assert!(missing.contains("xfs"), "{missing}");
        assert_eq!(
            load_order(DEPENDENCIES, "", &["a"]).map(|order| order.len()),
            Ok(2)
        );
    }

    #[test]
    fn the_kernel_is_what_the_package_depends_on() {
        let text = "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n";
        assert_eq!(
            dependency(text).as_deref(),
            Ok("linux-image-6.1.0-56-amd64")
        );
        assert!(dependency("linux-image-amd64\n").is_err());
    }
}
