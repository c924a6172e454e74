//! `nyx top` as it is drawn: a title, what the devices do, the table of tenants, the selected one
//! in detail, the controller's decisions, the keys.
//!
//! What it never does: keep anything: a frame is made from a [`State`] alone, so that a test can
//! look at it.

use super::figures::{Board, Figures, Told};
use super::state::{Overlay, State};
use super::table::{self, Column};
use super::{detail, overlay, words};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, TableState};

/// What matters less than the rest.
pub(crate) const FAINT: Style = Style::new().fg(Color::DarkGray);
/// As it should be.
pub(crate) const GOOD: Style = Style::new().fg(Color::Green);
/// Worth a look.
pub(crate) const FAIR: Style = Style::new().fg(Color::Yellow);
/// Not as it should be.
pub(crate) const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
/// What stands out.
pub(crate) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);

/// The colours of tenants, in the server's order.
const TENANTS: [Color; 6] = [
    Color::Cyan,
    Color::Blue,
    Color::Magenta,
    Color::Green,
    Color::Yellow,
    Color::LightBlue,
];
/// From so many columns on, details and decisions stand side by side.
const WIDE: u16 = 140;
/// Rows of the decisions at least, their heading included.
const DECISIONS_LEAST: u16 = 4;
/// Devices that are shown; more are summed up in the tenants' rows.
const DEVICES_MOST: usize = 3;

/// Draws a frame.
pub(crate) fn draw(frame: &mut Frame<'_>, state: &State) {
    let area = frame.area();
    let Some(board) = &state.board else {
        return nothing_yet(frame, area, state);
    };
    let devices = board.devices().len().clamp(1, DEVICES_MOST) as u16;
    let head = 1 + devices + u16::from(state.trouble.is_some());
    let [head, body, foot] = Layout::vertical([
        Constraint::Length(head),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_head(frame, head, state, board);
    draw_body(frame, body, state, board);
    draw_keys(frame, foot);
    match state.overlay {
        Overlay::None => {}
        Overlay::Help => overlay::help(frame, area, state.scrolled),
        Overlay::Explain => overlay::explain(frame, area, state),
    }
}

/// The colour of a tenant.
pub(crate) fn tenant_style(board: &Board, name: &str) -> Style {
    let at = board.tenants.iter().position(|tenant| tenant.name == name);
    at.map_or(Style::new(), |at| {
        Style::new().fg(TENANTS[at % TENANTS.len()])
    })
}

/// A rule with a heading, above a part of the view.
pub(crate) fn rule(title: Vec<Span<'static>>) -> Block<'static> {
    let mut spans = vec![Span::raw(" ")];
    spans.extend(title);
    spans.push(Span::raw(" "));
    let block = Block::new().borders(Borders::TOP).border_style(FAINT);
    block.title(Line::from(spans))
}

fn nothing_yet(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let width = usize::from(area.width).saturating_sub(4).min(76);
    let (style, text) = match &state.trouble {
        Some(trouble) => (BAD, format!("{trouble}. Trying again ...")),
        None => (FAINT, format!("Asking {} ...", state.address)),
    };
    let mut lines: Vec<Line<'_>> = words::wrap(&text, width)
        .into_iter()
        .map(|line| Line::styled(line, style))
        .collect();
    lines.push(Line::default());
    lines.push(Line::styled("q quits", FAINT));
    let top = (usize::from(area.height).saturating_sub(lines.len()) / 3) as u16;
    let inner = Rect {
        y: area.y + top,
        height: area.height - top,
        ..area
    };
    frame.render_widget(Paragraph::new(lines).alignment(Alignment::Center), inner);
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, state: &State, board: &Board) {
    let mut lines = vec![title(usize::from(area.width), state, board)];
    if let Some(trouble) = &state.trouble {
        lines.push(Line::styled(format!(" {trouble}; trying again"), BAD));
    }
    let devices = board.devices();
    let name = devices
        .iter()
        .map(|device| device.0.len())
        .max()
        .unwrap_or(0);
    for (device, used) in devices.into_iter().take(DEVICES_MOST) {
        lines.push(device_line(
            usize::from(area.width),
            board,
            device,
            name,
            used,
        ));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn title(columns: usize, state: &State, board: &Board) -> Line<'static> {
    let paused = if state.paused { " PAUSED " } else { "" };
    let since = match state.is_first() {
        true => "averages since the start".into(),
        false => format!("last {}", words::time(board.interval_s)),
    };
    let (up, cpus) = (words::time(board.uptime_s as f64), board.cpus);
    let conns = words::whole(board.connections);
    // The first that fits is taken.
    let left = format!(" {}  policy {}  ", state.address, board.policy);
    let rights = [
        format!("up {up}  {conns} connections  {cpus:.2} CPUs busy  {since} "),
        format!("{conns} conns  {cpus:.2} CPUs  {since} "),
        format!("{since} "),
        String::new(),
    ];
    let room = columns.saturating_sub("nyx top".len() + 1 + left.chars().count() + paused.len());
    let fits = |right: &&String| right.chars().count() <= room;
    let right = rights.iter().find(fits).cloned().unwrap_or_default();
    let gap = room - right.chars().count().min(room);
    Line::from(vec![
        Span::styled(" nyx top", STRONG),
        Span::raw(left),
        Span::styled(paused, FAIR.add_modifier(Modifier::REVERSED)),
        Span::styled(" ".repeat(gap) + &right, FAINT),
    ])
}

/// What the tenants use of a device, one behind the other.
fn device_line(
    columns: usize,
    board: &Board,
    device: &str,
    name: usize,
    used: f64,
) -> Line<'static> {
    let own = |tenant: &&Figures| tenant.device == device;
    let evidence = board
        .tenants
        .iter()
        .find(own)
        .map_or("", |one| one.evidence.as_str());
    let kind = match evidence {
        "" | "real" => String::new(),
        kind => format!(" ({kind})"),
    };
    let label = format!(" {device:<name$} ");
    let told = format!(" {:>5} % used{kind} ", words::share(used));
    let width = columns.saturating_sub(label.chars().count() + told.chars().count());
    let mut spans = vec![Span::styled(label, STRONG)];
    let (mut drawn, mut sum) = (0, 0.0);
    for tenant in board.tenants.iter().filter(own) {
        sum += tenant.device_share;
        let upto = ((sum * width as f64).round() as usize).clamp(drawn, width);
        let style = tenant_style(board, &tenant.name);
        spans.push(Span::styled("\u{2588}".repeat(upto - drawn), style));
        drawn = upto;
    }
    spans.push(Span::styled("\u{2591}".repeat(width - drawn), FAINT));
    spans.push(Span::raw(told));
    Line::from(spans)
}

fn draw_body(frame: &mut Frame<'_>, area: Rect, state: &State, board: &Board) {
    let rows = board.tenants.len() as u16 + 1;
    let lower_least = match area.height {
        0..=9 => 0,
        10..=16 => detail::ROWS_LEAST,
        17..=35 => detail::ROWS + DECISIONS_LEAST,
        _ => detail::ROWS_MOST + DECISIONS_LEAST,
    };
    let wide = area.width >= WIDE;
    let table = rows
        .min(area.height - lower_least.min(area.height))
        .max(3)
        .min(area.height);
    let [upper, lower] =
        Layout::vertical([Constraint::Length(table), Constraint::Fill(1)]).areas(area);
    draw_table(frame, upper, state, board);
    let (details, decisions) = match wide {
        true => {
            let halves = [Constraint::Percentage(50), Constraint::Percentage(50)];
            let [left, right] = Layout::horizontal(halves).spacing(1).areas(lower);
            let height = left.height.min(detail::ROWS_WIDE);
            (Rect { height, ..left }, right)
        }
        false => {
            let most = match lower.height {
                0..=10 => lower.height.min(detail::ROWS_LEAST),
                11..=29 => detail::ROWS,
                _ => detail::ROWS_MOST,
            };
            let parts = [Constraint::Length(most), Constraint::Fill(1)];
            let [upper, lower] = Layout::vertical(parts).areas(lower);
            (upper, lower)
        }
    };
    detail::draw(frame, details, state, board);
    draw_decisions(frame, decisions, state, board);
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, state: &State, board: &Board) {
    let longest = board.tenants.iter().map(|tenant| tenant.name.len()).max();
    // A blank stands at either edge.
    let columns = table::fit(
        usize::from(area.width).saturating_sub(2),
        longest.unwrap_or(0),
    );
    let inner = Rect {
        x: area.x + 1,
        width: area.width.saturating_sub(2),
        ..area
    };
    let heads = columns.iter().map(|&(column, width)| {
        let sorted = column == state.sort || (column, state.sort) == (Column::Bar, Column::Used);
        let style = if sorted {
            STRONG.add_modifier(Modifier::UNDERLINED)
        } else {
            FAINT
        };
        let title = Span::styled(column.title().0, style);
        Cell::from(aligned(column, vec![title], width))
    });
    let rows = state.tenants().into_iter().map(|tenant| {
        let cells = columns.iter().map(|&(column, width)| {
            let spans = match column {
                Column::Bar => bar(board, tenant, width),
                _ => vec![Span::styled(
                    column.text(tenant),
                    cell_style(board, tenant, column),
                )],
            };
            Cell::from(aligned(column, spans, width))
        });
        Row::new(cells.collect::<Vec<Cell<'_>>>())
    });
    let widths = columns
        .iter()
        .map(|&(_, width)| Constraint::Length(width as u16));
    let table = Table::new(rows.collect::<Vec<Row<'_>>>(), widths)
        .header(Row::new(heads.collect::<Vec<Cell<'_>>>()))
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut chosen = TableState::default().with_selected(state.selected());
    frame.render_stateful_widget(table, inner, &mut chosen);
}

fn aligned(column: Column, spans: Vec<Span<'static>>, _width: usize) -> Line<'static> {
    let line = Line::from(spans);
    match column {
        Column::Tenant | Column::Bar => line.left_aligned(),
        _ => line.right_aligned(),
    }
}

fn cell_style(board: &Board, tenant: &Figures, column: Column) -> Style {
    let used_up = tenant
        .limit_device_share
        .is_some_and(|most| tenant.device_share >= 0.95 * most);
    match column {
        Column::Tenant => tenant_style(board, &tenant.name),
        Column::Slack => match tenant.slack {
            Some(slack) if slack < 0.0 => BAD,
            Some(_) => GOOD,
            None => FAINT,
        },
        Column::Limit if tenant.throttle_device_share.is_some() => FAIR,
        Column::Used if used_up => FAIR,
        Column::Holds if tenant.holds_per_s > 0.0 => FAIR,
        Column::Waiting if tenant.held_connections > 0 => FAIR,
        _ if column.text(tenant) == "-" => FAINT,
        _ => Style::new(),
    }
}

/// What a tenant uses, and shaded what more it may use: a bar that ends before the cell does shows
/// a limit.
fn bar(board: &Board, tenant: &Figures, width: usize) -> Vec<Span<'static>> {
    let eighths = (tenant.device_share * width as f64 * 8.0).round().max(0.0) as usize;
    let eighths = eighths.min(8 * width);
    let mut filled = "\u{2588}".repeat(eighths / 8);
    // From one eighth, U+258F, to seven, U+2589.
    let part = (eighths % 8) as u32;
    filled.extend(char::from_u32(0x2590 - part).filter(|_| part > 0));
    let limit = tenant.limit_device_share.unwrap_or(1.0).clamp(0.0, 1.0);
    let room = (limit * width as f64).round() as usize;
    let room = room.saturating_sub(filled.chars().count());
    vec![
        Span::styled(filled, tenant_style(board, &tenant.name)),
        Span::styled("\u{2591}".repeat(room), FAINT),
    ]
}

fn draw_decisions(frame: &mut Frame<'_>, area: Rect, state: &State, board: &Board) {
    let only = state.selected_tenant().filter(|_| state.only_selected);
    let mut heading = vec![Span::styled("Decisions", STRONG)];
    if let Some(tenant) = only {
        heading.push(Span::raw(" over "));
        heading.push(Span::styled(
            tenant.name.clone(),
            tenant_style(board, &tenant.name),
        ));
    }
    let block = rule(heading);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let about = |one: &&Told| only.is_none_or(|tenant| one.tenant == tenant.name);
    let columns = usize::from(inner.width);
    let told = board.decisions.iter().filter(about);
    let mut lines: Vec<Line<'_>> = told
        .take(usize::from(inner.height))
        .flat_map(|one| decision(board, one, columns))
        .take(usize::from(inner.height))
        .collect();
    if lines.is_empty() {
        let none = match board.policy.as_str() {
            "none" => " There is no policy to decide anything.",
            _ => " None so far.",
        };
        lines.push(Line::styled(none, FAINT));
    }
    frame.render_widget(Paragraph::new(lines), inner);
}

/// A decision and, below it, its reason.
fn decision(board: &Board, one: &Told, columns: usize) -> Vec<Line<'static>> {
    const INDENT: usize = 13;
    let ago = format!("{:>8} ago ", words::time(one.ago_s));
    let mut lines = vec![Line::from(vec![
        Span::styled(ago, FAINT),
        Span::styled(one.tenant.clone(), tenant_style(board, &one.tenant)),
        Span::raw(format!(" {}", one.act)),
    ])];
    if let Some(why) = &one.why {
        let wrapped = words::wrap(why, columns.saturating_sub(INDENT + 1));
        let indented = |line: String| Line::styled(" ".repeat(INDENT) + &line, FAINT);
        lines.extend(wrapped.into_iter().map(indented));
    }
    lines
}

fn draw_keys(frame: &mut Frame<'_>, area: Rect) {
    const KEYS: [(&str, &str); 8] = [
        ("q", "quit"),
        ("?", "help"),
        ("\u{2191}\u{2193}", "select"),
        ("s", "sort"),
        ("r", "reverse"),
        ("e", "explain"),
        ("d", "decisions"),
        ("p", "pause"),
    ];
    let mut spans = Vec::new();
    let mut left = usize::from(area.width);
    for (key, what) in KEYS {
        let width = key.chars().count() + what.len() + 3;
        if width > left {
            break;
        }
        left -= width;
        spans.push(Span::raw(" "));
        spans.push(Span::styled(key, STRONG.fg(Color::Cyan)));
        spans.push(Span::styled(format!(" {what} "), FAINT));
    }
    frame.render_widget(Paragraph::new(Line::from(spans)), area);
}
