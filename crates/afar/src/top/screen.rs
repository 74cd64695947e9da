//! The screen of `afar top`: what is drawn, and what keys do.

use super::model::{Model, Sort, Table, View};
use ratatui::Frame;
use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Row, Table as Drawn, TableState};

/// Most lines of servers; the others can be seen by naming fewer.
const MAX_SERVERS: usize = 10;

/// The part of the model that is shown.
#[derive(Debug)]
pub(crate) struct Screen {
    view: View,
    sort: Sort,
    is_paused: bool,
    /// Rows that are above the screen.
    scrolled: usize,
}

impl Default for Screen {
    fn default() -> Self {
        Self { view: View::Volumes, sort: Sort::Calls, is_paused: false, scrolled: 0 }
    }
}

/// The effect of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    GoOn,
    End,
}

impl Screen {
    /// True if what is on the screen stays.
    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Takes a key.
    pub(crate) fn handle(&mut self, event: &Event) -> Next {
        let Event::Key(key) = event else { return Next::GoOn };
        if key.kind == KeyEventKind::Release {
            return Next::GoOn;
        }
        let index = View::ALL.iter().position(|view| *view == self.view).unwrap_or_default();
        let count = View::ALL.len();
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Next::End,
            KeyCode::Char('q') | KeyCode::Esc => return Next::End,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Tab | KeyCode::Right => self.turn_to(View::ALL[(index + 1) % count]),
            KeyCode::BackTab | KeyCode::Left => self.turn_to(View::ALL[(index + count - 1) % count]),
            KeyCode::Down => self.scrolled += 1,
            KeyCode::Up => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::PageDown => self.scrolled += 10,
            KeyCode::PageUp => self.scrolled = self.scrolled.saturating_sub(10),
            KeyCode::Home => self.scrolled = 0,
            KeyCode::Char(c) => {
                if let Some(view) = c.to_digit(10).and_then(|n| View::ALL.get((n as usize).wrapping_sub(1))) {
                    self.turn_to(*view);
                }
                if let Some((_, sort, _)) = Sort::ALL.iter().find(|(key, ..)| *key == c) {
                    (self.sort, self.scrolled) = (*sort, 0);
                }
            }
            _ => {}
        }
        Next::GoOn
    }

    fn turn_to(&mut self, view: View) {
        (self.view, self.scrolled) = (view, 0);
    }

    /// Draws all of it.
    pub(crate) fn draw(&mut self, frame: &mut Frame<'_>, model: &Model) {
        let servers = model.servers();
        let lines = |rows: usize| u16::try_from(rows.min(MAX_SERVERS)).unwrap_or(0);
        let remarks: Vec<&str> = model.remarks().collect();
        let parts = [
            Constraint::Length(1),
            Constraint::Length(1 + lines(servers.rows.len())),
            Constraint::Length(lines(remarks.len())),
            Constraint::Length(2),
            Constraint::Min(1),
            Constraint::Length(1),
        ];
        let [title, above, beside, tabs, below, keys] = Layout::vertical(parts).areas(frame.area());
        let state = if self.is_paused { " (paused)" } else { "" };
        frame.render_widget(Line::from(format!("afar top: cell {}{state}", model.cell())), title);
        table(frame, above, &servers, 2, 0);
        for (remark, at) in remarks.into_iter().zip(beside.rows()) {
            frame.render_widget(Line::from(remark), at);
        }
        let highlighted = Style::new().add_modifier(Modifier::REVERSED);
        let tab = |(number, view): (usize, &View)| {
            let style = if *view == self.view { highlighted } else { Style::new() };
            [Span::styled(format!(" {} {} ", number + 1, view.name()), style), Span::raw(" ")]
        };
        let line = Line::from(View::ALL.iter().enumerate().flat_map(tab).collect::<Vec<_>>());
        frame.render_widget(
            line,
            Rect { y: tabs.bottom().saturating_sub(1), height: tabs.height.min(1), ..tabs },
        );
        let shown = model.table(self.view, self.sort);
        self.scrolled = self.scrolled.min(shown.rows.len().saturating_sub(1));
        let texts = if self.view == View::Waiting { shown.head.len() } else { 1 };
        table(frame, below, &shown, texts, self.scrolled);
        let mut sorts = String::from("q quit  p pause  1-5 view  sort:");
        for (key, sort, name) in Sort::ALL {
            let mark = if sort == self.sort { "*" } else { "" };
            sorts += &format!(" {key} {name}{mark} ");
        }
        frame.render_widget(Line::styled(sorts, highlighted), keys);
    }
}

/// A table whose first columns are texts, to the left, and the others figures.
fn table(frame: &mut Frame<'_>, area: Rect, table: &Table, texts: usize, scrolled: usize) {
    let length = |text: &str| u16::try_from(text.chars().count()).unwrap_or(u16::MAX);
    let width = |column: usize| {
        let cells = table.rows.iter().filter_map(|row| row.get(column)).map(|cell| length(cell));
        let widest = cells.chain([length(table.head[column])]).max().unwrap_or(0);
        if column == 0 && texts == 1 {
            Constraint::Min(widest.min(40))
        } else {
            Constraint::Length(widest.min(60))
        }
    };
    let cell = |(column, text): (usize, &str)| {
        let line = Line::from(text.to_owned());
        Cell::from(if column < texts { line } else { line.right_aligned() })
    };
    let rows = table.rows.iter().skip(scrolled).take(area.height.into());
    let rows = rows.map(|row| Row::new(row.iter().map(String::as_str).enumerate().map(cell)));
    let head = Row::new(table.head.iter().copied().enumerate().map(cell));
    let drawn = Drawn::new(rows, (0..table.head.len()).map(width))
        .header(head.style(Style::new().add_modifier(Modifier::BOLD)))
        .column_spacing(2);
    frame.render_stateful_widget(drawn, area, &mut TableState::default());
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyEvent;
    use std::time::{Duration, Instant};

    /// Two looks at a server whose names are hostile.
    fn model() -> Model {
        let mut model = Model::new(&["afs1".to_owned(), "afs2".to_owned()]);
        let began = Instant::now();
        for (n, calls) in [(0u32, 10), (1, 210)] {
            let text = format!(
                r#"{{"cell":"example.org","host":"one","clients_known":2,"promises":7,"waiting_count":1,
                "total":{{"calls":{calls},"fetched_bytes":{calls}000}},
                "procedures":[{{"interface":"Rxafs","name":"FetchData64","calls":{calls},"seconds":1}}],
                "volumes":[{{"id":5,"name":"home.\u001b[31mx","calls":{calls}}}, {{"id":6,"name":"quiet","calls":1}}],
                "waiting":[{{"for":"callbacks","volume":5,"vnode":3,"user":"alice","client":"10.0.0.7:7001","seconds":1.5,
                "awaited":["10.0.0.9:7001"],"awaited_count":3}}],
                "refused":[{{"why":"file locked","volume":5,"client":"10.0.0.8:7001","count":4,"seconds_ago":3}}]}}"#
            );
            let at = began + Duration::from_secs(2 * u64::from(n));
            model.note(0, at, Ok(sample::read(text.as_bytes()).unwrap()));
        }
        model.note(1, began, Err("afs2: connection refused".to_owned()));
        model
    }

    fn drawn(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let model = model();
        terminal.draw(|frame| screen.draw(frame, &model)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    fn press(screen: &mut Screen, code: KeyCode) -> Next {
        screen.handle(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    #[test]
    fn the_screen_shows_servers_and_the_busiest_volumes() {
        let lines = drawn(&mut Screen::default(), 100, 12);
        assert_eq!(lines[0], "afar top: cell example.org");
        let words: Vec<_> = lines[2].split_whitespace().collect();
        assert_eq!(words, ["afs1", "one", "100", "0", "100.0k", "0", "0.00", "2", "7", "1"]);
        assert!(lines[3].starts_with("afs2    no answer"), "{}", lines[3]);
        assert_eq!(lines[4], "afs2: connection refused");
        assert!(lines[6].starts_with(" 1 volumes   2 users"), "{}", lines[6]);
        let words: Vec<_> = lines[8].split_whitespace().collect();
        assert_eq!(words, ["home.\u{fffd}[31mx", "(5)", "100", "0", "0", "0", "0.00", "1"]);
        assert!(lines[9].starts_with("quiet (6)"), "{}", lines[9]);
        assert!(lines[11].contains("q quit") && lines[11].contains("c calls*"), "{}", lines[11]);
    }

    #[test]
    fn keys_choose_what_is_seen_and_in_which_order() {
        let mut screen = Screen::default();
        assert_eq!(press(&mut screen, KeyCode::Char('5')), Next::GoOn);
        let lines = drawn(&mut screen, 140, 12);
        assert!(lines[8].starts_with("1.5      alice 10.0.0.7:7001"), "{}", lines[8]);
        assert!(
            lines[8].contains("callbacks") && lines[8].contains("10.0.0.9:7001 and 2 more"),
            "{}",
            lines[8]
        );
        assert!(lines[9].contains("file locked: told 4 times to come again"), "{}", lines[9]);
        press(&mut screen, KeyCode::Tab);
        press(&mut screen, KeyCode::Char('n'));
        press(&mut screen, KeyCode::Down);
        let lines = drawn(&mut screen, 100, 12);
        assert!(lines[8].starts_with("quiet (6)"), "one row down, by name: {}", lines[8]);
        press(&mut screen, KeyCode::Char('p'));
        assert!(screen.is_paused() && drawn(&mut screen, 100, 12)[0].ends_with("(paused)"));
        assert_eq!(press(&mut screen, KeyCode::Char('q')), Next::End);
        let interrupt = Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert_eq!(screen.handle(&interrupt), Next::End);
    }

    #[test]
    fn the_smallest_terminals_are_survived() {
        for (width, height) in [(1, 1), (3, 2), (20, 5), (200, 3), (5, 60)] {
            drawn(&mut Screen::default(), width, height);
        }
    }
}
