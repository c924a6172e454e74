//! Figures as people read them: short enough for a column, or with their unit for a sentence.
//!
//! What it never does: show more digits than were measured.

/// A count or a rate in at most six columns: `9,999`, `123.4k`, `12.3M`.
pub(crate) fn count(n: f64) -> String {
    match n {
        n if n < 0.05 => "0".into(),
        n if n < 9.95 && n.fract() != 0.0 => format!("{n:.1}"),
        n if n < 99_999.5 => crate::demo::rate(n),
        n if n < 999_950.0 => format!("{:.1}k", n / 1e3),
        n if n < 999_950_000.0 => format!("{:.1}M", n / 1e6),
        n => format!("{:.1}G", n / 1e9),
    }
}

/// A whole count with its thousands apart.
pub(crate) fn whole(n: u64) -> String {
    crate::demo::rate(n as f64)
}

/// A latency in at most six columns: `1.2us`, `140us`, `3.4ms`.
pub(crate) fn latency(us: f64) -> String {
    let (value, unit) = match us {
        us if us < 999.5 => (us, "us"),
        us if us < 999_500.0 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    match value {
        value if value < 9.95 => format!("{value:.1}{unit}"),
        value => format!("{value:.0}{unit}"),
    }
}

/// A latency in a sentence.
pub(crate) fn latency_told(us: f64) -> String {
    let text = latency(us);
    let digits = text.trim_end_matches(char::is_alphabetic).len();
    format!("{} {}", &text[..digits], &text[digits..])
}

/// A share in percent, without its sign, in at most five columns: `9.9`, `42.0`, `100`.
pub(crate) fn share(share: f64) -> String {
    let percent = share * 100.0;
    match percent.abs() < 99.95 {
        true => format!("{percent:.1}"),
        false => format!("{percent:.0}"),
    }
}

/// A slack in percent, with a sign, in at most five columns.
pub(crate) fn slack(slack: f64) -> String {
    format!("{:+.0}%", (slack * 100.0).clamp(-999.0, 999.0))
}

/// Bytes in at most five columns: `512B`, `4.5M`, `64M`.
pub(crate) fn bytes(n: u64) -> String {
    let (value, unit) = scaled(n);
    match value {
        value if unit != 'B' && value < 9.95 => format!("{value:.1}{unit}"),
        value => format!("{value:.0}{unit}"),
    }
}

/// Bytes in a sentence: `4.5 MiB`.
pub(crate) fn bytes_told(n: u64) -> String {
    match scaled(n) {
        (value, 'B') => format!("{value:.0} B"),
        (value, unit) if value < 9.95 => format!("{value:.1} {unit}iB"),
        (value, unit) => format!("{value:.0} {unit}iB"),
    }
}

fn scaled(n: u64) -> (f64, char) {
    let mut value = n as f64;
    for unit in ['B', 'K', 'M', 'G'] {
        if value < 999.5 {
            return (value, unit);
        }
        value /= 1024.0;
    }
    (value, 'T')
}

/// How long something took or is ago: `3.2 s`, `12 min`, `5 h`.
pub(crate) fn time(s: f64) -> String {
    match s {
        s if s < 9.95 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} days", s / 86_400.0),
    }
}

/// Lines of at most so many columns, broken between words; a word that is longer is cut.
pub(crate) fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let word: String = word.chars().take(columns).collect();
        let line = lines.last_mut().expect("there is always a line");
        let gap = usize::from(!line.is_empty());
        if line.chars().count() + gap + word.chars().count() > columns {
            lines.push(word);
        } else {
            if gap == 1 {
                line.push(' ');
            }
            line.push_str(&word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_fit_their_columns_and_read_well() {
        let counts = [
            0.0,
            7.25,
            9_999.0,
            99_999.0,
            123_400.0,
            999_949.0,
            12_300_000.0,
        ]
        .map(count);
        let want = ["0", "7.2", "9,999", "99,999", "123.4k", "999.9k", "12.3M"];
        assert_eq!(counts, want);
        let latencies = [0.94, 9.96, 139.6, 999.6, 33_000.0, 2.5e6].map(latency);
        assert_eq!(
            latencies,
            ["0.9us", "10us", "140us", "1.0ms", "33ms", "2.5s"]
        );
        assert_eq!(
            [0.0, 0.0994, 0.42, 0.9996, 1.07].map(share),
            ["0.0", "9.9", "42.0", "100", "107"]
        );
        assert_eq!([0.2, -0.267, -99.0].map(slack), ["+20%", "-27%", "-999%"]);
        assert_eq!(
            [0, 999, 4_718_592, 64 << 20, 3 << 40].map(bytes),
            ["0B", "999B", "4.5M", "64M", "3.0T"]
        );
        assert_eq!([4_718_592, 12].map(bytes_told), ["4.5 MiB", "12 B"]);
        assert_eq!(
            [3.21, 61.0, 600.0, 10_000.0].map(time),
            ["3.2 s", "61 s", "10 min", "3 h"]
        );
        assert_eq!([1.25, 33_000.0].map(latency_told), ["1.2 us", "33 ms"]);
    }

    #[test]
    fn text_is_broken_between_words() {
        assert_eq!(wrap("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrap("one two", 3), ["one", "two"]);
        assert_eq!(wrap("longer", 3), ["lon"]);
        assert_eq!(wrap("", 3), [""]);
    }
}
