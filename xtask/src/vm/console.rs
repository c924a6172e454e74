//! What the guest says on its console, line by line.
//!
//! What it never does: take a line for more than it is; whatever else the kernel and the programs
//! print is none of its business.

/// A line that means something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A check was right.
    Ok(String),
    /// A check was wrong, or the kernel panicked.
    Failed(String),
    /// So many operations of a writer are durable.
    Acknowledged(String, u64),
    /// The checker found so many.
    Holds(String, u64),
}

impl Line {
    /// Where filesystems of the guest are mounted; what follows names the writer.
    const MOUNTS: &str = "/mnt/";

    pub(super) fn parse(text: &str) -> Option<Line> {
        let text = text.trim_end();
        if text.contains("Kernel panic") {
            return Some(Line::Failed(text.to_owned()));
        }
        let (word, rest) = text.split_once(' ')?;
        let counted = || {
            let (count, path) = rest.split_once(" in ")?;
            let writer = path.strip_prefix(Line::MOUNTS)?;
            Some((writer.to_owned(), count.parse().ok()?))
        };
        match word {
            "ok" => Some(Line::Ok(rest.to_owned())),
            "failed" => Some(Line::Failed(rest.to_owned())),
            "acknowledged" => counted().map(|(writer, count)| Line::Acknowledged(writer, count)),
            "holds" => counted().map(|(writer, count)| Line::Holds(writer, count)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Line;

    #[test]
    fn lines_of_the_guest_are_told_from_others() {
        let writer = || "ext4/fp-tree".to_owned();
        let cases = [
            (
                "ok mounts with DAX\r\n",
                Some(Line::Ok("mounts with DAX".to_owned())),
            ),
            ("failed modules\n", Some(Line::Failed("modules".to_owned()))),
            (
                "acknowledged 128 in /mnt/ext4/fp-tree\r\n",
                Some(Line::Acknowledged(writer(), 128)),
            ),
            (
                "holds 131 in /mnt/ext4/fp-tree",
                Some(Line::Holds(writer(), 131)),
            ),
            ("acknowledged 12", None),
            ("acknowledged many in /mnt/ext4/fp-tree", None),
            ("[    4.1] EXT4-fs (pmem0): mounted filesystem", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(Line::parse(text), expected, "{text:?}");
        }
        let panic = "[    4.1] Kernel panic - not syncing: No working init found.";
        assert_eq!(Line::parse(panic), Some(Line::Failed(panic.to_owned())));
    }
}
