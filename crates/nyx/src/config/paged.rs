//! Paged devices: memory that is larger than its DRAM.
//!
//! What this module never does: look at where pages go; whether they can is found when the device
//! is opened.

use super::assemble::Assembler;
use super::layers::Table;
use nyx_base::Bytes;
use nyx_swap::region::Shape;

impl Assembler {
    /// How much of a paged device may be in memory.
    pub(super) fn paged_memory(&mut self, table: &Table, size: Bytes) -> Bytes {
        if let Some(model) = table.text("model") {
            let message = format!(
                "{model:?}: a model's time is its own, and that of kind \"paged\" its pages': \
                 leave one out"
            );
            self.wrong(table, "model", message);
        }
        let Some(memory) = table.bytes("memory") else {
            let message = "is missing: kind \"paged\" needs it, as in memory = \"256MiB\"";
            self.wrong(table, "memory", message.to_string());
            return size;
        };
        if memory > size {
            let message =
                format!("{memory} are more than size, {size}: kind \"anon\" has all in memory");
            self.wrong(table, "memory", message);
        } else if let Err(error) = Shape::new(size.0, memory.0).check() {
            self.wrong(table, "size", error.to_string());
        }
        memory
    }

    /// The knob of paged devices on one that is none.
    pub(super) fn check_not_paged(&mut self, table: &Table) {
        let is_paged = table.text("kind") == Some("paged");
        if let (false, Some(memory)) = (is_paged, table.bytes("memory")) {
            let message = format!("{memory}: only devices of kind \"paged\" have a part in memory");
            self.wrong(table, "memory", message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::load;
    use crate::config::overrides::Overrides;
    use crate::config::{Config, Medium};

    const FAR: &str = "
[[device]]
name = \"far\"
kind = \"paged\"
size = \"64MiB\"
memory = \"16MiB\"
";

    fn loaded(text: &str) -> Config {
        load(text, &Overrides::default()).expect(text).config
    }

    /// The only problem of [`FAR`] with other words in it.
    fn refused(from: &str, to: &str) -> String {
        let text = FAR.replacen(from, to, 1);
        let problems = load(&text, &Overrides::default()).expect_err(&text);
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems[0].to_string()
    }

    #[test]
    fn a_device_is_larger_than_its_memory() {
        let device = &loaded(FAR).devices[0];
        assert_eq!(device.size, Bytes::mib(64));
        let memory = Bytes::mib(16);
        let path = "nyx-data".into();
        assert_eq!(device.medium, Medium::Paged { path, memory });
        let elsewhere = loaded(&format!("{FAR}path = \"/dev/nvme0n1\"\n"));
        let path = "/dev/nvme0n1".into();
        assert_eq!(elsewhere.devices[0].medium, Medium::Paged { path, memory });
        let all = loaded(&FAR.replacen("16MiB", "64MiB", 1));
        assert!(
            matches!(all.devices[0].medium, Medium::Paged { memory, .. } if memory.0 == 64 << 20)
        );
    }

    #[test]
    fn two_devices_may_have_their_pages_in_one_directory() {
        let text = format!("{FAR}{}", FAR.replacen("far", "further", 1));
        let tenant = |name: &str| {
            format!(
                "[[tenant]]\nname = \"{name}\"\nkey_prefix = \"{name}:\"\ndevice = \"{name}\"\n"
            )
        };
        let config = loaded(&format!("{text}{}{}", tenant("far"), tenant("further")));
        assert_eq!(config.devices[0].medium, config.devices[1].medium);
    }

    #[test]
    fn it_may_be_the_first_of_two_tiers() {
        let text = format!(
            "{FAR}[[device]]\nname = \"ssd\"\nkind = \"block\"\n\
             [[tenant]]\ntiers = [\"far\", \"ssd\"]\n"
        );
        assert!(loaded(&text).tenants[0].deep.is_some());
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_value_and_unit() {
        let memory = |words: &str| refused("memory = \"16MiB\"", words);
        let told = memory("");
        assert!(
            told.contains("device.memory: is missing: kind \"paged\" needs it"),
            "{told}"
        );
        let told = memory("memory = \"65MiB\"");
        assert!(
            told.starts_with("6:10: device.memory: 65 MiB are more than size, 64 MiB"),
            "{told}"
        );
        let told = memory("memory = \"60KiB\"");
        assert!(
            told.starts_with("6:10: device.memory: ") && told.contains("64 KiB"),
            "{told}"
        );
        let told = refused("64MiB", "9TiB");
        assert!(
            told.starts_with("5:8: device.size: a region of 9895604649984 bytes"),
            "{told}"
        );
        for kind in ["anon", "file", "block"] {
            let text = FAR.replacen("paged", kind, 1);
            let problems = load(&text, &Overrides::default()).expect_err(&text);
            let words = "device.memory: 16 MiB: only devices of kind \"paged\"";
            let is_told = |one: &crate::config::layers::Problem| one.to_string().contains(words);
            assert!(problems.iter().any(is_told), "{problems:?}");
        }
        let told = memory("memory = \"16MiB\"\nmodel = \"cxl\"");
        assert!(
            told.contains("device.model: \"cxl\": a model's time is its own"),
            "{told}"
        );
        let told = memory("memory = \"16MiB\"\nio = \"threads\"");
        assert!(
            told.contains("device.io: is for devices of kind \"block\""),
            "{told}"
        );
        let told = memory("memory = \"16MiB\"\n[[tenant]]\ndurability = \"warm\"");
        let words =
            "\"far\" is paged memory, which is gone with the process: give it kind = \"file\"";
        assert!(told.contains(words), "{told}");
    }
}
