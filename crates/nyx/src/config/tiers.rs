//! Tenants on two devices: devices of blocks, which tenant lies on which, and what it has there.
//!
//! What this module never does: open a device. Of a raw block device whose size nobody states it
//! asks the system how large it is.

use super::assemble::Assembler;
use super::layers::{Origin, Table};
use super::value::nearest;
use super::{DeepDevice, DeepShare, Layout, Tenant, Through};
use nyx_base::Bytes;
use nyx_media::model::block::BlockParams;
use nyx_media::queue::BLOCK_BYTES;
use nyx_policy::nhc::Bounds;
use nyx_store::{DEEP_SEGMENTS_MIN, deep_fillable_bytes};
use std::fs::{metadata, read_to_string};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The words for who carries requests out.
pub(super) const WAYS: [(&str, Through); 6] = [
    ("auto", Through::Auto),
    ("io_uring", Through::Uring),
    ("polled", Through::UringPolled),
    ("kernel-thread", Through::UringThread),
    ("threads", Through::Threads),
    ("calls", Through::Calls),
];
/// The word of the table for a device of blocks.
const BLOCK: &str = "block";
/// Of a file that nobody states the size of.
pub(super) const SIZE_DEFAULT: Bytes = Bytes::gib(1);
/// Sysfs counts in these.
const SECTOR_BYTES: u64 = 512;
/// A key of which check-config and warnings speak.
pub const KEY_LEN_USUAL: u8 = 30;
/// Knobs of a tenant that mean nothing on one device.
const OF_TIERS: [&str; 8] = [
    "deep_size",
    "deep_item_len_min",
    "deep_writes_per_day",
    "deep_limit",
    "write",
    "nhc",
    "nhc_least_percent",
    "nhc_most_percent",
];

/// Where a tenant lies: on a mapped device, by place, and on a device of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Home {
    pub(super) fast: usize,
    pub(super) deep: Option<usize>,
}

/// Whether a `[[device]]` is one of blocks.
pub(super) fn is_block(table: &Table) -> bool {
    table.text("kind") == Some(BLOCK)
}

/// The word for who carries requests out.
pub fn way(through: Through) -> &'static str {
    let found = WAYS.iter().find(|way| way.1 == through);
    found.map_or("auto", |way| way.0)
}

impl Assembler {
    pub(super) fn deep_device(&mut self, table: &Table, data_dir: &Path) -> DeepDevice {
        let name = table.text("name").unwrap_or_default().to_string();
        let in_data_dir = |ending: &str| data_dir.join(format!("{name}.{ending}"));
        let path = table.path("path").unwrap_or_else(|| in_data_dir("deep"));
        self.check_not_paged(table);
        let model = table.text("model").map(BlockParams::preset).transpose();
        let model = model.unwrap_or_else(|error| {
            self.wrong(table, "model", error.to_string());
            None
        });
        let through = table.text("io").unwrap_or_default();
        let through = WAYS.iter().find(|way| way.0 == through);
        DeepDevice {
            size: self.deep_device_size(table, &path),
            through: through.map_or(Through::Auto, |way| way.1),
            model,
            profile: table
                .path("profile")
                .unwrap_or_else(|| in_data_dir("profile.toml")),
            path,
            name,
        }
    }

    /// The size that is stated; else of a raw device what it has, and of a file the default.
    fn deep_device_size(&mut self, table: &Table, path: &Path) -> Bytes {
        if let Some(size) = table.bytes("size") {
            return size;
        }
        match metadata(path) {
            Ok(found) if found.file_type().is_block_device() => raw_size(found.rdev())
                .unwrap_or_else(|| {
                    let path = path.display();
                    let message =
                        format!("is missing: the system does not say how large {path} is");
                    self.wrong(table, "size", message);
                    Bytes::default()
                }),
            _ => SIZE_DEFAULT,
        }
    }

    /// Knobs of other devices on one that is mapped.
    pub(super) fn check_mapped(&mut self, table: &Table) {
        self.check_not_paged(table);
        if table.text("io").is_some_and(|io| io != "auto") {
            let message = "is for devices of kind \"block\": a mapped one has no requests";
            self.wrong(table, "io", message.to_string());
        }
    }

    /// Where a tenant lies, of mapped devices and of those of blocks.
    pub(super) fn home(&mut self, table: &Table, fast: &[&Table], deep: &[&Table]) -> Home {
        match table.names("tiers") {
            Some(tiers) => self.tiers(table, tiers, fast, deep),
            None => Home {
                fast: self.only_home(table, fast, deep),
                deep: None,
            },
        }
    }

    fn tiers(&mut self, table: &Table, tiers: &[String], fast: &[&Table], deep: &[&Table]) -> Home {
        let mut wrong = |key: &str, message: String| {
            self.wrong(table, key, message);
            Home::default()
        };
        let [first, second] = tiers else {
            let message = format!(
                "names {} devices: it takes two, a mapped one and one of kind \"block\", as in \
                 tiers = [\"pm\", \"ssd\"]",
                tiers.len()
            );
            return wrong("tiers", message);
        };
        for name in tiers {
            if place(name, fast).or(place(name, deep)).is_none() {
                return wrong("tiers", unknown(name, &[fast, deep].concat()));
            }
        }
        if let Some(device) = table.text("device").filter(|device| device != first) {
            let message = format!(
                "{device:?} is not the first of tiers, {first:?}: leave device out beside tiers"
            );
            return wrong("device", message);
        }
        let Some(at) = place(first, fast) else {
            let message = format!(
                "{first:?} is of kind \"block\": the first of tiers is mapped (kind \"anon\", \
                 \"file\", \"dax\" or \"paged\")"
            );
            return wrong("tiers", message);
        };
        if place(second, deep).is_none() {
            let message = format!(
                "{second:?} is mapped: the second of tiers is of kind \"block\" today, a file or \
                 a raw device that is read by requests"
            );
            return wrong("tiers", message);
        }
        Home {
            fast: at,
            deep: place(second, deep),
        }
    }

    /// The place of a tenant's only device.
    fn only_home(&mut self, table: &Table, fast: &[&Table], deep: &[&Table]) -> usize {
        let Some(wanted) = table.text("device") else {
            if fast.len() > 1 {
                let names: Vec<&str> = fast.iter().filter_map(|one| one.text("name")).collect();
                let message = format!("is missing: choose one of {}", names.join(", "));
                self.wrong(table, "device", message);
            }
            return 0;
        };
        if let Some(at) = place(wanted, fast) {
            return at;
        }
        let message = match place(wanted, deep) {
            Some(_) => {
                let first = fast.first().and_then(|one| one.text("name"));
                let first = first.unwrap_or("a mapped one");
                format!(
                    "{wanted:?} is of kind \"block\" and cannot be a tenant's only device: write \
                     tiers = [{first:?}, {wanted:?}]"
                )
            }
            None => unknown(wanted, &[fast, deep].concat()),
        };
        self.wrong(table, "device", message);
        0
    }

    /// Gives tenants their parts of the devices of blocks.
    pub(super) fn give_deep(
        &mut self,
        tables: &[Table],
        homes: &[Home],
        devices: &[DeepDevice],
        tenants: &mut [Tenant],
    ) {
        let places: Vec<Option<usize>> = homes.iter().map(|home| home.deep).collect();
        let rooms: Vec<(&str, Bytes)> = devices.iter().map(|d| (&*d.name, d.size)).collect();
        // In whole segments, or the last one would not fit.
        let segment = |at: usize| u64::from(tenants[at].segment_bytes);
        let sizes = self.sizes("deep_size", tables, &places, &rooms, segment);
        for (at, table) in tables.iter().enumerate() {
            match places[at] {
                None => self.check_without_tiers(table),
                Some(device) => {
                    tenants[at].deep = Some(self.deep_share(table, device, sizes[at]));
                    self.check_tiers(table, &tenants[at], sizes[at]);
                }
            }
        }
        for (at, device) in devices.iter().enumerate() {
            if !places.contains(&Some(at)) {
                self.warn(format!("device {:?} has no tenant", device.name));
            }
        }
    }

    fn deep_share(&mut self, table: &Table, device: usize, size: Bytes) -> DeepShare {
        let percent = |name: &str| table.count(name) as f64 / 100.0;
        let (least, most) = (percent("nhc_least_percent"), percent("nhc_most_percent"));
        let bounds = Bounds::new(least, most).unwrap_or_else(|| {
            let (least, most) = (least * 100.0, most * 100.0);
            let message = format!("{least} percent are more than nhc_most_percent, {most}");
            self.wrong(table, "nhc_least_percent", message);
            Bounds::default()
        });
        DeepShare {
            device,
            size,
            item_len_min: table.bytes("deep_item_len_min").unwrap_or_default().0 as u32,
            day: table.bytes("deep_writes_per_day"),
            write: match table.text("write") {
                Some("through") => nyx_engine::WriteMode::Through,
                Some("around") => nyx_engine::WriteMode::Around,
                _ => nyx_engine::WriteMode::Back,
            },
            nhc: table.parsed("nhc"),
            bounds,
        }
    }

    fn check_without_tiers(&mut self, table: &Table) {
        for name in OF_TIERS {
            let Some(setting) = table.get(name) else {
                continue;
            };
            let is_stated = setting.origin != Origin::Default;
            let fallback = super::knob::Knob::named(table.section, name).fallback_value();
            if is_stated && Some(&setting.value) != fallback.as_ref() {
                let message = "means nothing on one device: name two with tiers".to_string();
                self.wrong(table, name, message);
            }
        }
    }

    fn check_tiers(&mut self, table: &Table, tenant: &Tenant, size: Bytes) {
        self.refuse_sync(table, tenant);
        if tenant.layout == Layout::Inline {
            let message = "\"inline\" has keys beside values, and those of tiers lie in memory: \
                           choose \"split\"";
            self.wrong(table, "layout", message.to_string());
        }
        let segment = Bytes(u64::from(tenant.segment_bytes));
        if size.0 < DEEP_SEGMENTS_MIN * segment.0 {
            let message = format!(
                "{size} hold less than {DEEP_SEGMENTS_MIN} segments of {segment}: make deep_size \
                 larger or segment_bytes smaller"
            );
            self.wrong(table, "deep_size", message);
        }
        let share = tenant.deep.expect("it was just given");
        if share.item_len_min > tenant.item_len_max {
            let (least, most) = (share.item_len_min, tenant.item_len_max);
            let message =
                format!("{least} B is more than item_len_max, {most} B: nothing goes deep");
            self.wrong(table, "deep_item_len_min", message);
        }
        let (name, longest) = (&tenant.name, tenant.item_len_max.min(tenant.segment_bytes));
        let most = deep_fillable_bytes(tenant.size.0, segment.0, KEY_LEN_USUAL, longest);
        if most < size.0 {
            let most = Bytes(most);
            self.warn(format!(
                "tenant {name:?} can fill {most} of its deep_size of {size} at most, however long \
                 its values are: keys of what is deep take half of size ({}) at most, 16 KiB and \
                 more for each segment of {segment}; make size or segment_bytes larger",
                tenant.size
            ));
        }
    }

    /// The one place that refuses a journal of a tenant on two devices: it would have to fetch what
    /// it writes anew. Lifted when it does, with its test.
    fn refuse_sync(&mut self, table: &Table, tenant: &Tenant) {
        if tenant.sync.is_some() {
            let message = "does not go together with tiers yet: a journal cannot read what lies \
                           on the second device. Without it, durability = \"crash\" survives \
                           kill -9";
            self.wrong(table, "sync", message.to_string());
        }
    }
}

/// The place of a name among devices.
fn place(name: &str, devices: &[&Table]) -> Option<usize> {
    devices
        .iter()
        .position(|one| one.text("name") == Some(name))
}

fn unknown(name: &str, devices: &[&Table]) -> String {
    let names = devices.iter().filter_map(|one| one.text("name"));
    let hint = match nearest(name, names) {
        Some(name) => format!("; did you mean {name:?}?"),
        None => String::new(),
    };
    format!("there is no device {name:?}{hint}")
}

/// What a raw block device has behind the block that says whose it is, in whole blocks.
fn raw_size(rdev: u64) -> Option<Bytes> {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let sectors = read_to_string(format!("/sys/dev/block/{major}:{minor}/size")).ok()?;
    let len = sectors.trim().parse::<u64>().ok()? * SECTOR_BYTES;
    let blocks = (len / BLOCK_BYTES)
        .checked_sub(1)
        .filter(|blocks| *blocks > 0)?;
    Some(Bytes(blocks * BLOCK_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::load;
    use crate::config::overrides::Overrides;
    use crate::config::{Limit, Loaded, Medium};
    use nyx_engine::WriteMode;
    use nyx_policy::nhc::Nhc;

    const TWO: &str = "
[[device]]
name = \"pm\"
kind = \"anon\"
size = \"256MiB\"
[[device]]
name = \"ssd\"
kind = \"block\"
size = \"2GiB\"
[[tenant]]
name = \"a\"
tiers = [\"pm\", \"ssd\"]
";

    fn loaded(text: &str) -> Loaded {
        load(text, &Overrides::default()).expect(text)
    }

    /// The only problem of [`TWO`] with more knobs behind its tenant, or other words in it.
    fn refused(from: &str, to: &str) -> String {
        let text = match from {
            "" => format!("{}{to}\n", TWO.replacen("anon", "file", 1)),
            from => TWO.replacen(from, to, 1),
        };
        let problems = load(&text, &Overrides::default()).expect_err(&text);
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems[0].to_string()
    }

    #[test]
    fn a_tenant_lies_on_two_devices() {
        let config = loaded(TWO).config;
        let [ssd] = &config.deep_devices[..] else {
            panic!("one: {config:?}")
        };
        assert_eq!(ssd.path, Path::new("nyx-data/ssd.deep"));
        assert_eq!(ssd.profile, Path::new("nyx-data/ssd.profile.toml"));
        assert_eq!((ssd.size, ssd.through), (Bytes::gib(2), Through::Auto));
        assert_eq!(config.devices.len(), 1);
        assert_eq!(config.devices[0].medium, Medium::Anon);
        let expected = DeepShare {
            device: 0,
            size: Bytes::gib(2),
            item_len_min: 512,
            day: None,
            write: WriteMode::Back,
            nhc: Nhc::ShortestDelay,
            bounds: Bounds::default(),
        };
        assert_eq!(config.tenants[0].deep, Some(expected));
        assert_eq!(config.tenants[0].device, 0);
    }

    #[test]
    fn every_knob_of_tiers_arrives() {
        let text = format!(
            "{TWO}deep_size = \"1GiB\"\ndeep_item_len_min = 1024\ndeep_writes_per_day = \"10GiB\"\n\
             write = \"around\"\nnhc = \"split:0.8\"\nnhc_least_percent = 20\n\
             nhc_most_percent = 90\ndevice = \"pm\"\ndeep_limit = \"40%\"\n"
        );
        let config = loaded(&text).config;
        assert_eq!(config.tenants[0].deep_limit, Some(Limit::Share(0.4)));
        let expected = DeepShare {
            device: 0,
            size: Bytes::gib(1),
            item_len_min: 1024,
            day: Some(Bytes::gib(10)),
            write: WriteMode::Around,
            nhc: Nhc::Split(0.8),
            bounds: Bounds::new(0.2, 0.9).expect("bounds"),
        };
        assert_eq!(config.tenants[0].deep, Some(expected));
        let io = TWO.replace(
            "size = \"2GiB\"",
            "io = \"threads\"\nmodel = \"nvme-flash/8\"",
        );
        let ssd = &loaded(&io).config.deep_devices[0];
        assert_eq!((ssd.size, ssd.through), (Bytes::gib(1), Through::Threads));
        let model = ssd.model.as_ref().expect("a model");
        assert_eq!(model.read_latency_ns, 640_000);
    }

    #[test]
    fn what_is_left_of_a_deep_device_is_divided() {
        let text = format!(
            "{TWO}size = \"64MiB\"\n[[tenant]]\nname = \"b\"\nkey_prefix = \"b:\"\n\
             tiers = [\"pm\", \"ssd\"]\ndeep_size = \"500MiB\"\n\
             [[tenant]]\nname = \"c\"\nkey_prefix = \"c:\"\ntiers = [\"pm\", \"ssd\"]\n\
             [[tenant]]\nname = \"d\"\nkey_prefix = \"d:\"\ndevice = \"pm\"\n"
        );
        let tenants = loaded(&text).config.tenants;
        let sizes = |one: &Tenant| (one.size.0 >> 20, one.deep.map(|deep| deep.size.0 >> 20));
        let sizes: Vec<_> = tenants.iter().map(sizes).collect();
        let expected = [
            (64, Some(774)),
            (64, Some(500)),
            (64, Some(774)),
            (64, None),
        ];
        assert_eq!(sizes, expected);
        let whole = loaded(
            &TWO.replacen("tiers", "segment_bytes = \"64MiB\"\ntiers", 1)
                .replace("size = \"2GiB\"", "size = \"1000MiB\""),
        );
        let size = whole.config.tenants[0].deep.expect("deep").size;
        assert_eq!(size, Bytes::mib(960), "whole segments");
    }

    #[test]
    fn tiers_name_a_mapped_device_and_one_of_blocks() {
        let tiers = |names: &str| refused("[\"pm\", \"ssd\"]", names);
        assert!(tiers("[\"pm\"]").contains("names 1 devices: it takes two"));
        assert!(tiers("[\"pm\", \"sdd\"]").contains("no device \"sdd\"; did you mean \"ssd\"?"));
        assert!(tiers("[\"ssd\", \"pm\"]").contains("\"ssd\" is of kind \"block\": the first"));
        assert!(tiers("[\"pm\", \"pm\"]").contains("\"pm\" is mapped: the second of tiers is"));
        assert!(tiers("5").contains("it takes list of names"));
        let alone = refused("tiers = [\"pm\", \"ssd\"]", "device = \"ssd\"");
        let words = "cannot be a tenant's only device: write tiers = [\"pm\", \"ssd\"]";
        assert!(alone.contains(words), "{alone}");
        let other = "device = \"ssd\"";
        assert!(refused("", other).contains("not the first of tiers, \"pm\": leave device out"));
        let none = refused("kind = \"anon\"", "kind = \"block\"");
        assert!(none.contains("a tenant's first device is mapped"), "{none}");
    }

    #[test]
    fn what_lies_on_both_devices_may_survive() {
        let text = TWO.replacen("anon", "file", 1);
        for durability in ["warm", "crash"] {
            let config = loaded(&format!("{text}durability = \"{durability}\"\n")).config;
            let tenant = &config.tenants[0];
            assert!(tenant.durability.is_some() && tenant.deep.is_some());
        }
    }

    #[test]
    fn what_cannot_be_deep_is_refused_where_it_is_written() {
        for (more, at, words) in [
            (
                "layout = \"inline\"",
                "13:10: tenant.layout",
                "choose \"split\"",
            ),
            (
                "deep_size = \"3GiB\"",
                "13:13: tenant.deep_size",
                "\"ssd\" has 2 GiB left of 2 GiB",
            ),
            (
                "deep_size = \"7MiB\"",
                "13:13: tenant.deep_size",
                "less than 8 segments of 1 MiB",
            ),
            (
                "deep_item_len_min = \"2MiB\"",
                "13:21: ",
                "more than item_len_max",
            ),
            (
                "nhc = \"orthos\"",
                "13:7: tenant.nhc",
                "none of shortest-delay, orthus, most",
            ),
            (
                "nhc = \"split:2\"",
                "13:7: tenant.nhc",
                "from 0 to 1, as in split:0.8",
            ),
            (
                "write = \"behind\"",
                "13:9: tenant.write",
                "none of back, through, around",
            ),
            (
                "nhc_most_percent = 101",
                "13:20: ",
                "not a number from 0 to 100 percent",
            ),
        ] {
            let told = refused("", more);
            assert!(told.starts_with(at) && told.contains(words), "{told}");
        }
        let crossed = "nhc_least_percent = 60\nnhc_most_percent = 50";
        let told = refused("", crossed);
        assert!(
            told.contains("60 percent are more than nhc_most_percent, 50"),
            "{told}"
        );
        let synced = load(
            &format!("{TWO}durability = \"crash\"\nsync = \"each\"\n").replacen("anon", "file", 1),
            &Overrides::default(),
        );
        let synced = synced.expect_err("refused");
        let yet = |one: &&super::super::layers::Problem| one.message.contains("with tiers yet");
        assert_eq!(synced.iter().filter(yet).count(), 1, "{synced:?}");
    }

    #[test]
    fn knobs_that_mean_nothing_where_they_stand_are_refused() {
        let alone = |more: &str| refused("tiers = [\"pm\", \"ssd\"]", more);
        for more in [
            "write = \"around\"",
            "deep_size = \"64MiB\"",
            "nhc_least_percent = 1",
        ] {
            let told = alone(&format!("device = \"pm\"\n{more}"));
            assert!(told.contains("means nothing on one device"), "{told}");
        }
        let io = refused("size = \"256MiB\"", "size = \"256MiB\"\nio = \"threads\"");
        assert!(io.contains("is for devices of kind \"block\""), "{io}");
        let model = refused("size = \"2GiB\"", "model = \"cxl\"");
        assert!(
            model.contains("no device model \"cxl\": known are dram, nvm"),
            "{model}"
        );
        let same = refused(
            "kind = \"anon\"",
            "kind = \"file\"\npath = \"nyx-data/ssd.deep\"",
        );
        assert!(
            same.contains("is the medium of device \"pm\" too"),
            "{same}"
        );
    }

    #[test]
    fn a_part_that_keys_cannot_fill_is_warned_of() {
        let with = |more: &str| loaded(&format!("{TWO}{more}\n")).warnings;
        assert_eq!(with("size = \"64MiB\""), [] as [&str; 0]);
        let warnings =
            with("size = \"16MiB\"\nsegment_bytes = \"64KiB\"\nitem_len_max = \"64KiB\"");
        let words = "can fill 32 MiB of its deep_size of 2 GiB at most, however long";
        assert!(warnings[0].contains(words), "{warnings:?}");
    }
}
