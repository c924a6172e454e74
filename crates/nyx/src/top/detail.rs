//! The selected tenant: what it is promised and has, in words, and its past as curves.
//!
//! What it never does: keep anything, or scale two curves by one measure: each curve reaches its
//! own highest point, which is written beside it.

use super::figures::{Board, Figures, Journal};
use super::state::{History, Point, State};
use super::view::{self, BAD, FAINT, STRONG};
use super::words;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, RenderDirection, Sparkline};

/// Rows of this part, its heading included: where there is little room, usually, at most, and at
/// most beside the decisions.
pub(crate) const ROWS_LEAST: u16 = 5;
pub(crate) const ROWS: u16 = 7;
pub(crate) const ROWS_MOST: u16 = 17;
pub(crate) const ROWS_WIDE: u16 = 25;

/// Columns of the words before a curve.
const LABEL: u16 = 15;

/// Draws the selected tenant.
pub(crate) fn draw(frame: &mut Frame<'_>, area: Rect, state: &State, board: &Board) {
    let Some(tenant) = state.selected_tenant() else {
        let block = view::rule(vec![Span::styled("No tenant is within reach", FAINT)]);
        frame.render_widget(block, area);
        return;
    };
    let style = view::tenant_style(board, &tenant.name).patch(STRONG);
    let class = match (&tenant.target, tenant.best_effort) {
        (Some(_), _) => "  latency-critical",
        (None, true) => "  best effort",
        (None, false) => "",
    };
    let device = format!("  on {}", tenant.device);
    let block = view::rule(vec![
        Span::styled(tenant.name.clone(), style),
        Span::styled(class, FAINT),
        Span::styled(device, FAINT),
    ]);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let parts = [
        Constraint::Fill(1),
        Constraint::Length(inner.width * 46 / 100),
    ];
    let [left, right] = Layout::horizontal(parts).spacing(1).areas(inner);
    frame.render_widget(Paragraph::new(facts(tenant)), left);
    curves(frame, right, tenant, state.history(&tenant.name), style);
}

/// A fact: its name and what is to be said of it.
fn fact(name: &str, said: Vec<Span<'static>>) -> Line<'static> {
    let mut spans = vec![Span::styled(format!(" {name:<10}"), FAINT)];
    spans.extend(said);
    Line::from(spans)
}

fn facts(of: &Figures) -> Vec<Line<'static>> {
    let percent = |share: f64| format!("{} %", words::share(share));
    let mut lines = Vec::new();
    let mut promise = Vec::new();
    promise.extend(of.target.clone());
    promise.extend(
        of.entitled_device_share
            .map(|share| format!("its {}", percent(share))),
    );
    promise.extend(
        of.slowdown_most
            .map(|most| format!("slowed {most:.2}x at most")),
    );
    promise.extend(
        of.promised_device_share
            .map(|most| format!("at most {}", percent(most))),
    );
    if promise.is_empty() {
        promise.push(
            if of.best_effort {
                "what is left"
            } else {
                "nothing"
            }
            .into(),
        );
    }
    lines.push(fact("promise", vec![Span::raw(promise.join(", "))]));
    if let Some(share) = of.throttle_device_share {
        let text = format!("to {} for others", percent(share));
        lines.push(fact("throttled", vec![Span::styled(text, view::FAIR)]));
    }
    let mut has = Vec::new();
    has.extend(of.target_had.clone());
    has.extend(of.slowdown.map(|slowdown| format!("slowed {slowdown:.2}x")));
    if !has.is_empty() {
        let style = of
            .slack
            .map_or(Style::new(), |s| if s < 0.0 { BAD } else { view::GOOD });
        has.extend(
            of.slack
                .map(|slack| format!("{} slack", words::slack(slack))),
        );
        lines.push(fact("has", vec![Span::styled(has.join(", "), style)]));
    }
    if !of.hurt_by.is_empty() {
        let each = of.hurt_by.iter().map(|hurt| match hurt.helped {
            Some(by) => format!("{} {:.0} %", hurt.tenant, by * 100.0),
            None => hurt.tenant.clone(),
        });
        let text = each.collect::<Vec<String>>().join(", ");
        lines.push(fact("hurt by", vec![Span::raw(text)]));
    }
    lines.extend(holds(of));
    lines.push(fact("waits", vec![Span::raw(waits(of))]));
    if let Some(mean) = of.latency_us_mean {
        let mean = format!("{} on average", words::latency_told(mean));
        lines.push(fact("answers", vec![Span::raw(mean)]));
    }
    if of.evictions_per_s > 0.0 {
        let text = format!("{} items/s", words::count(of.evictions_per_s));
        lines.push(fact("evicts", vec![Span::raw(text)]));
    }
    lines
}

/// What a tenant holds, and what that survives.
fn holds(of: &Figures) -> impl Iterator<Item = Line<'static>> {
    let (used, size) = (
        words::bytes_told(of.used_bytes),
        words::bytes_told(of.size_bytes),
    );
    let items = format!("{} items, {used} of {size}", words::count(of.items as f64));
    let survives = of.durability.as_ref();
    let survives = survives.map(|durability| match &of.journal {
        Some(_) => survives_told("a power failure", of.swept),
        None if durability == "warm" => survives_told("a stop", of.swept),
        None => survives_told("a kill", of.swept),
    });
    let holds = fact("holds", vec![Span::raw(items)]);
    let survives = survives.map(|told| fact("survives", vec![Span::raw(told)]));
    let ordered = of
        .ordered
        .map(|part| fact("ranges", vec![Span::raw(ordered_told(part))]));
    let journal = of.journal.as_ref().map(journal_told);
    std::iter::once(holds)
        .chain(survives)
        .chain(journal)
        .chain(ordered)
}

/// How a tenant's changes get onto the disk.
fn journal_told(journal: &Journal) -> Line<'static> {
    if let Some(trouble) = &journal.trouble {
        return fact("journal", vec![Span::styled(trouble.clone(), BAD)]);
    }
    let when = match journal.sync.as_str() {
        "each" => "each change",
        _ => "each 100 ms",
    };
    // What is wanted least last: a narrow screen has no room for it.
    let told = format!(
        "{when}, {} to come, {} syncs/s, {} in all",
        words::bytes_told(journal.unsynced_bytes),
        words::count(journal.syncs_per_s),
        words::bytes_told(journal.size_bytes)
    );
    fact("journal", vec![Span::raw(told)])
}

/// How far the order of a tenant's keys is built.
fn ordered_told(part: f64) -> String {
    match part < 1.0 {
        true => format!("refused; {} % of the order is built", words::share(part)),
        false => "answered".into(),
    }
}

/// What a tenant survives, and how far it has looked through what it went on with.
fn survives_told(what: &str, swept: Option<f64>) -> String {
    match swept {
        Some(part) if part < 1.0 => format!("{what}; {} % of it rebuilt", words::share(part)),
        _ => what.into(),
    }
}

fn waits(of: &Figures) -> String {
    let mut said = Vec::new();
    if of.paused {
        said.push("stopped for now".into());
    }
    if of.holds_per_s > 0.0 {
        said.push(format!("{} holds/s", words::count(of.holds_per_s)));
    }
    if of.held_connections > 0 {
        said.push(format!("{} connections", words::whole(of.held_connections)));
    }
    if of.rejected_per_s > 0.0 {
        said.push(format!("{} busy/s", words::count(of.rejected_per_s)));
    }
    match said.is_empty() {
        true => "never".into(),
        false => said.join(", "),
    }
}

type Curve = (&'static str, fn(&Point) -> Option<f64>, fn(f64) -> String);

/// What is drawn over time, and how its highest point is written.
const CURVES: [Curve; 4] = [
    ("req/s", |point| Some(point.requests_per_s), words::count),
    ("p99", |point| point.latency_us_p99, words::latency),
    (
        "device",
        |point| Some(point.device_share),
        |share| format!("{} %", words::share(share)),
    ),
    ("held/s", |point| Some(point.holds_per_s), words::count),
];

fn curves(
    frame: &mut Frame<'_>,
    area: Rect,
    of: &Figures,
    history: Option<&History>,
    style: Style,
) {
    let rows = (area.height / CURVES.len() as u16).max(1);
    let now = Point {
        requests_per_s: of.requests_per_s,
        latency_us_p99: of.latency_us_p99,
        device_share: of.device_share,
        holds_per_s: of.holds_per_s,
    };
    for (at, (name, value, show)) in CURVES.iter().enumerate() {
        let y = area.y + at as u16 * rows;
        if y + rows > area.bottom() || area.width <= LABEL {
            return;
        }
        let row = Rect {
            y,
            height: rows,
            ..area
        };
        let parts = [Constraint::Length(LABEL), Constraint::Fill(1)];
        let [label, curve] = Layout::horizontal(parts).areas(row);
        let shown = value(&now).map_or_else(|| "-".into(), show);
        let points = history.into_iter().flat_map(History::back);
        let points: Vec<Option<f64>> = points.take(usize::from(curve.width)).map(value).collect();
        let most = points.iter().flatten().copied().fold(0.0, f64::max);
        let mut lines = vec![Line::from(vec![
            Span::styled(format!("{name:<7}"), FAINT),
            Span::raw(format!("{shown:>7}")),
        ])];
        // What the curve reaches stands at its foot, where there is a second line.
        let highest = format!("{:>14}", format!("max {}", show(most)));
        lines.push(Line::styled(highest, FAINT));
        frame.render_widget(Paragraph::new(lines), label);
        // Parts of a thousandth of the highest are seen by nobody.
        let scaled = |value: &Option<f64>| (value.unwrap_or(0.0) / most.max(1e-12) * 1e3) as u64;
        let data: Vec<u64> = points.iter().map(scaled).collect();
        let curve_of = Sparkline::default()
            .data(data)
            .max(1000)
            .direction(RenderDirection::RightToLeft)
            .style(style);
        frame.render_widget(curve_of, curve);
    }
}
