//! What `nyx top` knows and what is chosen: readings come in, keys change the view.
//!
//! What it never does: draw, ask a server, or look at a clock.

use super::figures::{Board, Figures};
use super::sample::Sample;
use super::table::{self, Column};
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::collections::{BTreeMap, VecDeque};

/// Points of a history that are kept: more than any terminal has columns.
const HISTORY_MOST: usize = 300;

/// What lies over the view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Overlay {
    /// Nothing.
    #[default]
    None,
    /// The keys and columns.
    Help,
    /// Why the selected tenant is as it is.
    Explain,
}

/// One tenant's past, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    points: VecDeque<Point>,
}

/// One interval of a tenant's past.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    /// Requests a second.
    pub(crate) requests_per_s: f64,
    /// Latency that one of 100 exceeds; none where nothing was asked.
    pub(crate) latency_us_p99: Option<f64>,
    /// Part of the device's time.
    pub(crate) device_share: f64,
    /// Accesses that had to wait.
    pub(crate) holds_per_s: f64,
}

impl History {
    fn push(&mut self, of: &Figures) {
        if self.points.len() == HISTORY_MOST {
            self.points.pop_front();
        }
        self.points.push_back(Point {
            requests_per_s: of.requests_per_s,
            latency_us_p99: of.latency_us_p99,
            device_share: of.device_share,
            holds_per_s: of.holds_per_s,
        });
    }

    /// The points, newest first.
    pub(crate) fn back(&self) -> impl Iterator<Item = &Point> {
        self.points.iter().rev()
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// Where the server is, for the title.
    pub(crate) address: String,
    /// What is shown; none before the first reading.
    pub(crate) board: Option<Board>,
    /// Why there was no reading last time.
    pub(crate) trouble: Option<String>,
    /// By which column tenants are sorted.
    pub(crate) sort: Column,
    /// Whether they are sorted the other way round.
    pub(crate) reversed: bool,
    /// Whether decisions over the selected tenant only are shown.
    pub(crate) only_selected: bool,
    /// Whether readings are let pass by.
    pub(crate) paused: bool,
    /// What lies over the view.
    pub(crate) overlay: Overlay,
    /// How many lines of the overlay were scrolled away.
    pub(crate) scrolled: u16,
    selected: Option<String>,
    last: Option<Sample>,
    histories: BTreeMap<String, History>,
}

impl State {
    /// Before the first reading.
    pub(crate) fn new(address: String) -> State {
        State {
            address,
            board: None,
            trouble: None,
            sort: Column::Used,
            reversed: false,
            only_selected: false,
            paused: false,
            overlay: Overlay::None,
            scrolled: 0,
            selected: None,
            last: None,
            histories: BTreeMap::new(),
        }
    }

    /// Takes a reading, or why there is none.
    pub(crate) fn take(&mut self, reading: Result<Sample, String>) {
        let sample = match reading {
            Ok(sample) => sample,
            Err(trouble) => {
                self.trouble = Some(trouble);
                return;
            }
        };
        self.trouble = None;
        if self.paused {
            return;
        }
        let goes_on = self.last.as_ref().is_some_and(|last| sample.follows(last));
        let board = Board::between(self.last.as_ref(), &sample);
        if !goes_on {
            self.histories.clear();
        }
        // An average since the start is no point of a history.
        for tenant in board.tenants.iter().filter(|_| goes_on) {
            let history = self.histories.entry(tenant.name.clone()).or_default();
            history.push(tenant);
        }
        self.last = Some(sample);
        self.board = Some(board);
    }

    /// The tenants in the order in which they are shown.
    pub(crate) fn tenants(&self) -> Vec<&Figures> {
        let tenants = self.board.as_ref().map(|board| &board.tenants);
        let mut tenants: Vec<&Figures> = tenants.into_iter().flatten().collect();
        table::sort(&mut tenants, self.sort, self.reversed);
        tenants
    }

    /// The selected tenant's place among [`State::tenants`]; the first where none was chosen.
    pub(crate) fn selected(&self) -> Option<usize> {
        let tenants = self.tenants();
        let chosen = self.selected.as_ref();
        let at = chosen.and_then(|name| tenants.iter().position(|one| one.name == *name));
        at.or((!tenants.is_empty()).then_some(0))
    }

    /// The selected tenant.
    pub(crate) fn selected_tenant(&self) -> Option<&Figures> {
        self.selected().map(|at| self.tenants()[at])
    }

    /// A tenant's past.
    pub(crate) fn history(&self, name: &str) -> Option<&History> {
        self.histories.get(name)
    }

    /// Whether the figures are averages since the server's start.
    pub(crate) fn is_first(&self) -> bool {
        self.histories.is_empty()
    }

    fn select(&mut self, at: usize) {
        let tenants = self.tenants();
        let name = tenants.get(at.min(tenants.len().saturating_sub(1)));
        self.selected = name.map(|tenant| tenant.name.clone());
        self.scrolled = 0;
    }

    /// A key; true where it is to quit.
    pub(crate) fn key(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return false;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return true,
            KeyCode::Char('q') => return true,
            KeyCode::Esc if self.overlay == Overlay::None => return true,
            KeyCode::Esc => self.show(Overlay::None),
            KeyCode::Char('?' | 'h') => self.toggle(Overlay::Help),
            KeyCode::Enter | KeyCode::Char('e') => self.toggle(Overlay::Explain),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::PageUp => self.go(-10),
            KeyCode::PageDown => self.go(10),
            KeyCode::Home | KeyCode::Char('g') => self.go(i64::MIN),
            KeyCode::End | KeyCode::Char('G') => self.go(i64::MAX),
            KeyCode::Char('s') | KeyCode::Right => self.sort = self.sort.turned(false),
            KeyCode::Char('S') | KeyCode::Left => self.sort = self.sort.turned(true),
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('d') => self.only_selected = !self.only_selected,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            _ => {}
        }
        false
    }

    /// Moves the selection, or the text that lies over it.
    fn go(&mut self, by: i64) {
        let moved = |from: usize| {
            let from = i64::try_from(from).unwrap_or(i64::MAX);
            usize::try_from(from.saturating_add(by)).unwrap_or(0)
        };
        match self.overlay {
            Overlay::None => self.select(moved(self.selected().unwrap_or(0))),
            _ => {
                let lines = moved(usize::from(self.scrolled)).min(usize::from(u16::MAX / 2));
                self.scrolled = lines as u16;
            }
        }
    }

    fn toggle(&mut self, overlay: Overlay) {
        self.show(if self.overlay == overlay {
            Overlay::None
        } else {
            overlay
        });
    }

    fn show(&mut self, overlay: Overlay) {
        self.overlay = overlay;
        self.scrolled = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::script;
    use super::*;

    fn press(state: &mut State, keys: &[KeyCode]) -> bool {
        let mut quit = false;
        for &code in keys {
            quit |= state.key(KeyEvent::new(code, KeyModifiers::NONE));
        }
        quit
    }

    fn state(readings: u64) -> State {
        let mut state = State::new("127.0.0.1:11211".into());
        (1..=readings).for_each(|s| state.take(Ok(script::sample(s))));
        state
    }

    fn selected(state: &State) -> &str {
        &state.selected_tenant().expect("there are tenants").name
    }

    #[test]
    fn a_selection_stays_with_its_tenant_when_the_order_changes() {
        let mut state = state(2);
        assert_eq!(selected(&state), "batch", "the largest user comes first");
        press(&mut state, &[KeyCode::Down]);
        assert_eq!(selected(&state), "feed");
        press(&mut state, &[KeyCode::Char('r')]);
        assert_eq!((selected(&state), state.selected()), ("feed", Some(2)));
        press(&mut state, &[KeyCode::End]);
        assert_eq!(selected(&state), "batch");
        press(&mut state, &[KeyCode::Down, KeyCode::PageDown]);
        assert_eq!(selected(&state), "batch", "there is nothing below");
        press(&mut state, &[KeyCode::Home, KeyCode::Up]);
        assert_eq!(state.selected(), Some(0));
    }

    #[test]
    fn keys_quit_and_escape_leaves_an_overlay_first() {
        let mut state = state(2);
        assert!(press(&mut state, &[KeyCode::Char('q')]));
        assert!(state.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(!press(
            &mut state,
            &[KeyCode::Char('c'), KeyCode::Char('?')]
        ));
        assert_eq!(state.overlay, Overlay::Help);
        assert!(!press(&mut state, &[KeyCode::Down, KeyCode::Down]));
        assert_eq!((state.scrolled, selected(&state)), (2, "batch"));
        assert!(!press(&mut state, &[KeyCode::Esc]));
        assert_eq!((state.overlay, state.scrolled), (Overlay::None, 0));
        assert!(!press(&mut state, &[KeyCode::Enter]));
        assert_eq!(state.overlay, Overlay::Explain);
        assert!(!press(&mut state, &[KeyCode::Enter]));
        assert!(press(&mut state, &[KeyCode::Esc]));
    }

    #[test]
    fn the_key_by_which_is_sorted_changes() {
        let mut state = state(2);
        press(&mut state, &[KeyCode::Char('s')]);
        assert_eq!(state.sort, Column::Limit);
        press(&mut state, &[KeyCode::Char('S'), KeyCode::Left]);
        assert_eq!(state.sort, Column::P999);
    }

    #[test]
    fn histories_grow_by_intervals_and_end_with_the_process() {
        let mut state = state(1);
        assert!(state.is_first() && state.history("web").is_none());
        state.take(Ok(script::sample(2)));
        state.take(Ok(script::sample(3)));
        let history = state.history("web").expect("two intervals");
        assert_eq!(history.back().count(), 2);
        assert!(!state.is_first());
        let mut restarted = script::sample(1);
        restarted.pid += 1;
        state.take(Ok(restarted));
        assert!(state.is_first());
        for s in 0..2 * HISTORY_MOST as u64 {
            state.take(Ok(script::sample(10 + s)));
        }
        let kept = state.history("web").map(|history| history.back().count());
        assert_eq!(kept, Some(HISTORY_MOST));
    }

    #[test]
    fn trouble_keeps_the_last_figures_and_passes() {
        let mut state = state(2);
        state.take(Err("lost the server".into()));
        assert_eq!(state.trouble.as_deref(), Some("lost the server"));
        assert!(state.board.is_some());
        state.take(Ok(script::sample(3)));
        assert_eq!(state.trouble, None);
    }

    #[test]
    fn a_paused_view_stands_still_and_then_tells_of_the_whole_time() {
        let mut state = state(2);
        press(&mut state, &[KeyCode::Char(' ')]);
        let board = state.board.clone();
        state.take(Ok(script::sample(3)));
        assert_eq!(state.board, board);
        press(&mut state, &[KeyCode::Char('p')]);
        state.take(Ok(script::sample(5)));
        assert_eq!(state.board.map(|board| board.interval_s), Some(3.0));
    }

    #[test]
    fn nothing_is_selected_where_nothing_is_shown() {
        let mut state = State::new("nowhere".into());
        press(&mut state, &[KeyCode::Down, KeyCode::End, KeyCode::Enter]);
        assert_eq!(state.selected(), None);
    }
}
