//! The show as lines of styled text, and how they get onto a terminal.
//!
//! What it never does: know what the numbers mean; it lays out what it is given. A frame is drawn
//! over the one before, in place, so that the terminal's history stays as it was.

use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, poll, read};
use crossterm::style::{Attribute, Color, Print, ResetColor, SetAttribute, SetForegroundColor};
use crossterm::terminal::{BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate};
use crossterm::{cursor, queue, terminal};
use std::io::{self, Stdout, Write};
use std::time::Duration;

/// How a piece of text looks where colours are to be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    /// As the terminal has it.
    #[default]
    Plain,
    /// A heading.
    Strong,
    /// Less important than the rest.
    Faint,
    /// As it should be.
    Good,
    /// Not quite as it should be.
    Fair,
    /// Not as it should be.
    Bad,
    /// The first, the second and the third tenant.
    Tenant(usize),
}

/// A piece of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece(pub(crate) Style, pub(crate) String);

/// A line, without its end.
pub(crate) type Line = Vec<Piece>;

/// A piece of text in a style.
pub(crate) fn piece(style: Style, text: impl Into<String>) -> Piece {
    Piece(style, text.into())
}

/// The text of a line alone.
pub(crate) fn text(line: &Line) -> String {
    let text: String = line.iter().map(|piece| piece.1.as_str()).collect();
    text.trim_end().to_owned()
}

/// The pieces of a line that fit into so many columns.
fn cut(line: &Line, columns: usize) -> Line {
    let mut left = columns;
    let mut cut = Line::new();
    for Piece(style, text) in line {
        let fits: String = text.chars().take(left).collect();
        left -= fits.chars().count();
        cut.push(Piece(*style, fits));
    }
    cut
}

/// A terminal in the hands of the show; given back as it was when dropped.
pub(crate) struct Screen {
    out: Stdout,
    drawn: u16,
}

impl Screen {
    /// Takes the terminal. Errors: as the terminal says.
    pub(crate) fn take() -> io::Result<Screen> {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back(&mut io::stdout());
            hook(panic);
        }));
        terminal::enable_raw_mode()?;
        let mut out = io::stdout();
        queue!(out, cursor::Hide)?;
        Ok(Screen { out, drawn: 0 })
    }

    /// Draws a frame over the last one.
    pub(crate) fn draw(&mut self, frame: &[Line]) -> io::Result<()> {
        let (columns, rows) = terminal::size()?;
        let frame = &frame[..frame.len().min(usize::from(rows.max(2)) - 1)];
        queue!(self.out, BeginSynchronizedUpdate)?;
        self.rewind()?;
        for line in frame {
            write_line(&mut self.out, &cut(line, usize::from(columns)))?;
            queue!(self.out, Clear(ClearType::UntilNewLine), Print("\r\n"))?;
        }
        queue!(self.out, EndSynchronizedUpdate)?;
        self.drawn = frame.len() as u16;
        self.out.flush()
    }

    /// Takes the last frame away, so that something else can stand in its place.
    pub(crate) fn wipe(&mut self) -> io::Result<()> {
        self.rewind()?;
        queue!(self.out, Clear(ClearType::FromCursorDown))?;
        self.drawn = 0;
        self.out.flush()
    }

    fn rewind(&mut self) -> io::Result<()> {
        match self.drawn {
            0 => Ok(()),
            lines => queue!(self.out, cursor::MoveToPreviousLine(lines)),
        }
    }

    /// Waits a little; says whether somebody asked to quit (`q`, Escape, Ctrl-C).
    pub(crate) fn asked_to_quit(&self, wait: Duration) -> io::Result<bool> {
        if !poll(wait)? {
            return Ok(false);
        }
        let Event::Key(key) = read()? else {
            return Ok(false);
        };
        let interrupt = key.modifiers.contains(KeyModifiers::CONTROL);
        Ok(key.kind == KeyEventKind::Press
            && match key.code {
                KeyCode::Char('q') | KeyCode::Esc => true,
                KeyCode::Char('c') => interrupt,
                _ => false,
            })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back(&mut self.out);
    }
}

/// Nothing is left to do where this fails: the terminal is gone.
fn give_back(out: &mut Stdout) {
    let _ = queue!(out, cursor::Show);
    let _ = out.flush();
    let _ = terminal::disable_raw_mode();
}

/// Writes a line with its colours, without its end.
pub(crate) fn write_line(out: &mut impl Write, line: &Line) -> io::Result<()> {
    for Piece(style, text) in line {
        let (attribute, color) = look(*style);
        if let Some(attribute) = attribute {
            queue!(out, SetAttribute(attribute))?;
        }
        if let Some(color) = color {
            queue!(out, SetForegroundColor(color))?;
        }
        queue!(out, Print(text))?;
        if attribute.is_some() {
            queue!(out, SetAttribute(Attribute::Reset))?;
        }
        if color.is_some() {
            queue!(out, ResetColor)?;
        }
    }
    Ok(())
}

fn look(style: Style) -> (Option<Attribute>, Option<Color>) {
    match style {
        Style::Plain => (None, None),
        Style::Strong => (Some(Attribute::Bold), None),
        Style::Faint => (None, Some(Color::DarkGrey)),
        Style::Good => (None, Some(Color::Green)),
        Style::Fair => (None, Some(Color::Yellow)),
        Style::Bad => (Some(Attribute::Bold), Some(Color::Red)),
        Style::Tenant(0) => (None, Some(Color::Cyan)),
        Style::Tenant(1) => (None, Some(Color::Blue)),
        Style::Tenant(_) => (None, Some(Color::Magenta)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_at_the_edge_and_never_wraps() {
        let line = vec![piece(Style::Good, "abc"), piece(Style::Bad, "def")];
        assert_eq!(text(&cut(&line, 4)), "abcd");
        assert_eq!(text(&cut(&line, 0)), "");
        assert_eq!(cut(&line, 80), line);
    }

    #[test]
    fn plain_text_goes_out_as_it_is() {
        let mut out = Vec::new();
        write_line(
            &mut out,
            &vec![piece(Style::Plain, "x"), piece(Style::Plain, "y")],
        )
        .expect("memory");
        assert_eq!(out, b"xy");
    }
}
