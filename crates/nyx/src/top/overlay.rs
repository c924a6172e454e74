//! What lies over the view when it is asked for: the help, and why the selected tenant is as it is.
//!
//! What it never does: keep anything.

use super::state::State;
use super::view::{self, FAINT, STRONG};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Clear, Padding, Paragraph};

/// The widest that text is set, in columns.
const COLUMNS_MOST: u16 = 84;

const HELP: &str = "\
Keys
  up down, j k     select a tenant; page up, page down, home, end too
  s S, right left  sort by the next column, by the one before
  r                the other way round
  e, enter         explain the selected tenant
  d                decisions over the selected tenant alone, or all
  space, p         stand still; going on tells of the whole time
  ?, h             this help
  q, escape, ^C    quit

Columns, of the last interval
  REQ/S            requests answered a second
  HIT%             keys found of those asked for
  P50 P99 P99.9    latency that half, 99 and 99.9 of 100 requests did not
                   exceed, from when the server had read them to when they
                   were answered
  DEVICE, USED%    part of the device's time; shaded: what more it may use
  LIMIT%           what it may use now; an arrow: less, for others' sake
  SLACK            distance to what it is promised; below 0 it is missed
  SLOWED           by which factor it is slower than alone
  HELD/S WAITING   how often it had to wait; connections that wait now
  ITEMS USED/SIZE  items, and bytes of what it may occupy
  EVICT/S          items that had to leave

A tenant's colour is the same everywhere. Figures of a device that is
called emulated are those of a model in real time.";

/// The keys and the columns.
pub(crate) fn help(frame: &mut Frame<'_>, area: Rect, scrolled: u16) {
    let lines = HELP.lines().map(|line| match line.starts_with(' ') {
        true => Line::raw(line),
        false => Line::styled(line, STRONG),
    });
    draw(
        frame,
        area,
        vec![Span::styled("Help", STRONG)],
        lines.collect(),
        scrolled,
    );
}

/// Why the selected tenant is as it is.
pub(crate) fn explain(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let (Some(board), Some(tenant)) = (&state.board, state.selected_tenant()) else {
        return;
    };
    let Some(explanation) = super::explain::explain(board, &tenant.name) else {
        return;
    };
    let columns = usize::from(width(area)).saturating_sub(4);
    let lines = explanation
        .lines(columns)
        .into_iter()
        .map(|line| match line.starts_with(' ') {
            true => Line::raw(line),
            false => Line::styled(line, STRONG),
        });
    let title = vec![
        Span::raw("Why "),
        Span::styled(
            tenant.name.clone(),
            view::tenant_style(board, &tenant.name).patch(STRONG),
        ),
        Span::raw(" is as it is"),
    ];
    draw(frame, area, title, lines.collect(), state.scrolled);
}

fn width(area: Rect) -> u16 {
    area.width.saturating_sub(2).min(COLUMNS_MOST)
}

fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    mut title: Vec<Span<'static>>,
    lines: Vec<Line<'static>>,
    scrolled: u16,
) {
    let width = width(area);
    let height = (lines.len() as u16 + 2).min(area.height);
    let over = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    // The last page is the end of scrolling.
    let hidden = (lines.len() as u16 + 2).saturating_sub(height);
    let foot = match hidden {
        0 => " esc closes ",
        _ => " up and down scroll, esc closes ",
    };
    title.insert(0, Span::raw(" "));
    title.push(Span::raw(" "));
    let block = Block::bordered()
        .border_type(BorderType::Rounded)
        .border_style(FAINT)
        .padding(Padding::horizontal(1))
        .title(Line::from(title))
        .title_bottom(Line::styled(foot, FAINT).right_aligned());
    frame.render_widget(Clear, over);
    let text = Paragraph::new(lines)
        .block(block)
        .scroll((scrolled.min(hidden), 0));
    frame.render_widget(text, over);
}
