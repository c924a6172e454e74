//! `nyx top --once`: the table of tenants as text and as JSON.
//!
//! What it never does: cut a figure to a terminal's width: scripts read this.

use super::figures::{Board, Figures};
use super::table::{self, Column};
use serde::Serialize;

/// Every column but the bar, each as wide as what stands in it.
pub(crate) fn text(board: &Board, by: Column, reversed: bool) -> String {
    let mut tenants: Vec<&Figures> = board.tenants.iter().collect();
    table::sort(&mut tenants, by, reversed);
    let columns: Vec<Column> = Column::ALL
        .into_iter()
        .filter(|one| *one != Column::Bar)
        .collect();
    let heads = columns.iter().map(|column| column.title().0.to_owned());
    let mut rows: Vec<Vec<String>> = vec![heads.collect()];
    for tenant in tenants {
        rows.push(columns.iter().map(|column| column.text(tenant)).collect());
    }
    laid_out(&rows, 0)
}

/// Rows as lines, each column as wide as what stands in it, with its end in line but for one that
/// has its begin.
pub(crate) fn laid_out<R: AsRef<[String]>>(rows: &[R], left: usize) -> String {
    let rows = || rows.iter().map(AsRef::as_ref);
    let columns = rows().next().map_or(0, <[String]>::len);
    let width = |at: usize| rows().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows() {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(at, (cell, width))| match at == left {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        });
        let line: Vec<String> = cells.collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A board with where it is from.
#[derive(Serialize)]
struct Report<'b> {
    server: &'b str,
    #[serde(flatten)]
    board: &'b Board,
}

/// All figures.
pub(crate) fn json(server: &str, board: &Board) -> String {
    crate::load::report::json(&Report { server, board })
}

#[cfg(test)]
mod tests {
    use super::super::script;
    use super::*;

    #[test]
    fn the_table_is_as_wide_as_its_figures() {
        let board = Board::between(Some(&script::sample(1)), &script::sample(2));
        let want = "\
TENANT   REQ/S  HIT%    P50    P99  P99.9  USED%  LIMIT%  SLACK  \
SLOWED  HELD/S  WAITING   ITEMS  USED/SIZE  EVICT/S
batch   50,000     -  1.5ms  5.9ms  6.0ms   50.0   \u{2193}50.0      -       \
-   1,234       31    1.0M  256M/256M      300
feed        70   100  2.6ms  2.6ms  2.6ms   22.0    22.0      -       \
-      12        2     512   1.0M/64M        0
web     10,000  90.0   12us  193us  197us   12.5       -   -27%       \
-       0        0  250.0k    45M/64M        0
idle         0     -      -      -      -    0.0       -      -       \
-       0        0       0     0B/64M        0
";
        let text = text(&board, Column::Used, false);
        assert_eq!(text, want, "\n{text}");
    }

    #[test]
    fn json_has_names_with_units_and_nothing_for_what_is_not_known() {
        let board = Board::between(Some(&script::sample(1)), &script::sample(2));
        let json: serde_json::Value =
            serde_json::from_str(&json("unix:/x", &board)).expect("it is JSON");
        assert_eq!(json["server"], "unix:/x");
        assert_eq!(json["policy"], "qos");
        let web = &json["tenants"][0];
        assert_eq!(web["requests_per_s"], 10_000.0);
        assert_eq!(web["hurt_by"][0]["tenant"], "batch");
        assert!(web["limit_device_share"].is_null());
        assert_eq!(json["decisions"][0]["ago_s"], 0.5);
    }
}
