//! The columns of the table of tenants: what they are called, what stands in them, how tenants are
//! sorted by them, and which of them fit into a terminal.
//!
//! What it never does: draw.

use super::figures::Figures;
use super::words;
use std::cmp::Ordering;

/// A column, in the order from left to right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Column {
    /// Its name.
    Tenant,
    /// Requests a second.
    Requests,
    /// Keys found, in percent.
    Hits,
    /// Latency of the median request.
    P50,
    /// Latency that one of 100 exceeds.
    P99,
    /// Latency that one of 1000 exceeds.
    P999,
    /// Device time as a bar.
    Bar,
    /// Device time in percent.
    Used,
    /// What it may use, in percent.
    Limit,
    /// Distance from its promise.
    Slack,
    /// Slowdown.
    Slowdown,
    /// Accesses that had to wait, a second.
    Holds,
    /// Connections that wait now.
    Waiting,
    /// Items.
    Items,
    /// Bytes of its size.
    Bytes,
    /// Evictions a second.
    Evictions,
}

impl Column {
    /// All of them.
    pub(crate) const ALL: [Column; 16] = [
        Column::Tenant,
        Column::Requests,
        Column::Hits,
        Column::P50,
        Column::P99,
        Column::P999,
        Column::Bar,
        Column::Used,
        Column::Limit,
        Column::Slack,
        Column::Slowdown,
        Column::Holds,
        Column::Waiting,
        Column::Items,
        Column::Bytes,
        Column::Evictions,
    ];

    /// Its heading, and the columns that it needs.
    pub(crate) fn title(self) -> (&'static str, usize) {
        match self {
            Column::Tenant => ("TENANT", 9),
            Column::Requests => ("REQ/S", 6),
            Column::Hits => ("HIT%", 5),
            Column::P50 => ("P50", 5),
            Column::P99 => ("P99", 5),
            Column::P999 => ("P99.9", 5),
            Column::Bar => ("DEVICE", 8),
            Column::Used => ("USED%", 5),
            Column::Limit => ("LIMIT%", 6),
            Column::Slack => ("SLACK", 5),
            Column::Slowdown => ("SLOWED", 6),
            Column::Holds => ("HELD/S", 6),
            Column::Waiting => ("WAITING", 7),
            Column::Items => ("ITEMS", 6),
            Column::Bytes => ("USED/SIZE", 11),
            Column::Evictions => ("EVICT/S", 7),
        }
    }

    /// How soon it is left out where there is no room: the lowest goes last.
    fn rank(self) -> usize {
        const ORDER: [Column; 16] = [
            Column::Tenant,
            Column::Requests,
            Column::P99,
            Column::Used,
            Column::Limit,
            Column::Hits,
            Column::Slack,
            Column::Holds,
            Column::P50,
            Column::P999,
            Column::Bar,
            Column::Slowdown,
            Column::Waiting,
            Column::Bytes,
            Column::Items,
            Column::Evictions,
        ];
        let found = ORDER.iter().position(|one| *one == self);
        found.unwrap_or(ORDER.len())
    }

    /// What stands in it; nothing for the bar, a dash where there is no figure.
    pub(crate) fn text(self, of: &Figures) -> String {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let latency = |us: Option<f64>| or_dash(us.map(words::latency));
        match self {
            Column::Tenant => of.name.clone(),
            Column::Requests => words::count(of.requests_per_s),
            Column::Hits => or_dash(of.hit_ratio.map(words::share)),
            Column::P50 => latency(of.latency_us_p50),
            Column::P99 => latency(of.latency_us_p99),
            Column::P999 => latency(of.latency_us_p999),
            Column::Bar => String::new(),
            Column::Used => words::share(of.device_share),
            Column::Limit => match (of.limit_device_share, of.throttle_device_share) {
                (Some(limit), None) => words::share(limit),
                // An arrow tells a throttle from a limit of its own.
                (Some(limit), Some(_)) => format!("\u{2193}{}", words::share(limit)),
                (None, _) => "-".into(),
            },
            Column::Slack => or_dash(of.slack.map(words::slack)),
            Column::Slowdown => or_dash(of.slowdown.map(|slowdown| format!("{slowdown:.2}x"))),
            Column::Holds => words::count(of.holds_per_s),
            Column::Waiting => words::count(of.held_connections as f64),
            Column::Items => words::count(of.items as f64),
            Column::Bytes => {
                let (used, size) = (words::bytes(of.used_bytes), words::bytes(of.size_bytes));
                format!("{used}/{size}")
            }
            Column::Evictions => words::count(of.evictions_per_s),
        }
    }

    /// By what tenants are sorted; none goes last.
    fn key(self, of: &Figures) -> Option<f64> {
        match self {
            Column::Tenant => None,
            Column::Requests => Some(of.requests_per_s),
            Column::Hits => of.hit_ratio,
            Column::P50 => of.latency_us_p50,
            Column::P99 => of.latency_us_p99,
            Column::P999 => of.latency_us_p999,
            Column::Bar | Column::Used => Some(of.device_share),
            Column::Limit => of.limit_device_share,
            // Who is nearest to its promise, or beyond, comes first.
            Column::Slack => of.slack.map(|slack| -slack),
            Column::Slowdown => of.slowdown,
            Column::Holds => Some(of.holds_per_s),
            Column::Waiting => Some(of.held_connections as f64),
            Column::Items => Some(of.items as f64),
            Column::Bytes => Some(of.used_bytes as f64),
            Column::Evictions => Some(of.evictions_per_s),
        }
    }

    /// The next column by which can be sorted, or the one before.
    pub(crate) fn turned(self, back: bool) -> Column {
        let n = Column::ALL.len();
        let at = Column::ALL.iter().position(|one| *one == self).unwrap_or(0);
        let next = Column::ALL[if back { at + n - 1 } else { at + 1 } % n];
        match next {
            // Sorted by the figure beside it.
            Column::Bar => next.turned(back),
            next => next,
        }
    }
}

/// Sorts tenants by a column, the largest first (names from A on), or the other way round. Equal
/// ones are in the order of their names.
pub(crate) fn sort(tenants: &mut [&Figures], by: Column, reversed: bool) {
    tenants.sort_by(|a, b| {
        let names = a.name.cmp(&b.name);
        let (first, second) = (by.key(a), by.key(b));
        let keys = match (first, second) {
            (Some(first), Some(second)) if reversed => first.total_cmp(&second),
            (Some(first), Some(second)) => second.total_cmp(&first),
            // Whoever has no figure comes last either way.
            _ => second.is_some().cmp(&first.is_some()),
        };
        match (by, reversed, keys) {
            (Column::Tenant, true, _) => names.reverse(),
            (_, _, Ordering::Equal) => names,
            _ => keys,
        }
    });
}

/// The columns that fit into so many, with their widths; a blank stands between two. What is left
/// over goes to the names, up to the longest of them, and to the bar.
pub(crate) fn fit(columns: usize, longest_name: usize) -> Vec<(Column, usize)> {
    const BAR_MOST: usize = 40;
    let mut by_rank = Column::ALL;
    by_rank.sort_by_key(|column| column.rank());
    let (mut shown, mut taken) = (Vec::new(), 0);
    for column in by_rank {
        let width = column.title().1;
        if taken + width <= columns || shown.is_empty() {
            shown.push((column, width));
            taken += width + 1;
        }
    }
    shown.sort_by_key(|one| one.0);
    let mut left = (columns + 1).saturating_sub(taken);
    for (column, width) in &mut shown {
        let most = match column {
            Column::Tenant => longest_name,
            Column::Bar => BAR_MOST,
            _ => continue,
        };
        let more = most.saturating_sub(*width).min(left);
        *width += more;
        left -= more;
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::super::figures::Board;
    use super::super::script;
    use super::*;

    fn width(shown: &[(Column, usize)]) -> usize {
        shown.iter().map(|one| one.1 + 1).sum::<usize>() - 1
    }

    #[test]
    fn what_fits_is_shown_and_nothing_is_wider_than_the_terminal() {
        for columns in 9..300 {
            let shown = fit(columns, 64);
            assert!(width(&shown) <= columns, "{columns}: {shown:?}");
            assert!(shown.windows(2).all(|two| two[0].0 < two[1].0));
        }
        let at_80: Vec<Column> = fit(79, 5).iter().map(|one| one.0).collect();
        for column in [
            Column::P999,
            Column::Bar,
            Column::Limit,
            Column::Slack,
            Column::Holds,
        ] {
            assert!(at_80.contains(&column), "{column:?} at 80 columns");
        }
        assert_eq!(fit(160, 64).len(), Column::ALL.len());
        assert_eq!(fit(3, 64)[0].0, Column::Tenant);
    }

    #[test]
    fn every_cell_fits_its_column() {
        let board = Board::between(Some(&script::sample(1)), &script::sample(2));
        for tenant in &board.tenants {
            for column in Column::ALL {
                let (title, width) = column.title();
                let text = column.text(tenant);
                assert!(text.chars().count() <= width, "{column:?}: {text:?}");
                assert!(title.len() <= width, "{title}");
            }
        }
    }

    #[test]
    fn tenants_are_sorted_and_who_has_no_figure_is_last() {
        let board = Board::between(Some(&script::sample(1)), &script::sample(2));
        let names = |by, reversed| {
            let mut tenants: Vec<&Figures> = board.tenants.iter().collect();
            sort(&mut tenants, by, reversed);
            let names: Vec<&str> = tenants.iter().map(|one| one.name.as_str()).collect();
            names
        };
        assert_eq!(
            names(Column::Requests, false),
            ["batch", "web", "feed", "idle"]
        );
        assert_eq!(
            names(Column::Requests, true),
            ["idle", "feed", "web", "batch"]
        );
        assert_eq!(names(Column::P99, false), ["batch", "feed", "web", "idle"]);
        assert_eq!(names(Column::P99, true), ["web", "feed", "batch", "idle"]);
        assert_eq!(
            names(Column::Slack, false),
            ["web", "batch", "feed", "idle"]
        );
        assert_eq!(
            names(Column::Tenant, false),
            ["batch", "feed", "idle", "web"]
        );
        assert_eq!(
            names(Column::Tenant, true),
            ["web", "idle", "feed", "batch"]
        );
    }

    #[test]
    fn turning_visits_every_column_but_the_bar_and_comes_back() {
        for back in [false, true] {
            let (mut column, mut seen) = (Column::Used, Vec::new());
            loop {
                column = column.turned(back);
                seen.push(column);
                if column == Column::Used {
                    break;
                }
            }
            assert_eq!(seen.len(), Column::ALL.len() - 1);
            assert!(!seen.contains(&Column::Bar));
        }
    }
}
