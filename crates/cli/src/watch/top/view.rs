//! What is on the screen, and what keys do to it.

use super::super::rates::{PerSecond, QpRate, Sort, fill, of_processes, short, sort};
use super::Look;
use crate::table::aligned;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table, TableState};

const COLUMNS: usize = 12;
const HEADS: [&str; COLUMNS] = [
    "PROCESS", "QP", "STATE", "FABRIC", "SENDS/s", "RECVS/s", "OUT B/s", "IN B/s", "RETRY/s", "OPEN", "CQ",
    "WAITS",
];
/// Of all columns but the last, which takes what is left.
const WIDTHS: [u16; COLUMNS - 1] = [7, 8, 7, 6, 7, 7, 7, 7, 7, 5, 11];
/// Columns that a narrow terminal leaves out, the least needed first: FABRIC, OPEN, RECVS/s, IN B/s, CQ, STATE.
const LEFT_OUT_FIRST: [usize; 6] = [3, 9, 5, 7, 10, 2];
/// Columns that WAITS needs to be of use.
const WAITS: u16 = 24;
/// A completion queue that is fuller is in danger of overrunning.
const NEARLY_FULL: f64 = 0.9;

/// A table of queue pairs, or of processes.
pub struct View {
    look: Look,
    /// What is shown of it, in order.
    rows: Vec<QpRate>,
    sort: Sort,
    processes: bool,
    colours: bool,
    table: TableState,
    /// Why nothing newer is shown.
    trouble: Option<String>,
}

impl View {
    /// With nothing in it yet.
    pub fn new(sort: Sort, processes: bool, colours: bool) -> Self {
        let look = Look { seen: Vec::new(), pairs: Vec::new() };
        Self { look, rows: Vec::new(), sort, processes, colours, table: TableState::default(), trouble: None }
    }

    /// Shows this from now on.
    pub fn show(&mut self, look: Look) {
        self.look = look;
        self.trouble = None;
        self.arrange();
    }

    /// Shows that the data isn't current.
    pub fn complain(&mut self, says: String) {
        self.trouble = Some(says);
    }

    fn arrange(&mut self) {
        self.rows = match self.processes {
            true => of_processes(&self.look.seen, &self.look.pairs),
            false => self.look.pairs.clone(),
        };
        sort(&mut self.rows, self.sort);
        // The row that is marked may be gone.
        let last = self.rows.len().checked_sub(1);
        self.table.select(self.table.selected().and_then(|row| Some(row.min(last?))));
    }

    /// What a key does. True: the user has seen enough.
    pub fn key(&mut self, code: KeyCode, modifiers: KeyModifiers) -> bool {
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('b') => self.sort = Sort::Bytes,
            KeyCode::Char('m') => self.sort = Sort::Messages,
            KeyCode::Char('r') => self.sort = Sort::Retries,
            KeyCode::Char('f') => self.sort = Sort::Cq,
            KeyCode::Char('o') => self.sort = Sort::Outstanding,
            KeyCode::Char('p') => self.sort = Sort::Process,
            KeyCode::Char('t') | KeyCode::Tab => self.processes = !self.processes,
            KeyCode::Down => return self.move_by(1),
            KeyCode::Up => return self.move_by(-1),
            KeyCode::PageDown => return self.move_by(10),
            KeyCode::PageUp => return self.move_by(-10),
            _ => return false,
        }
        self.arrange();
        false
    }

    fn move_by(&mut self, rows: isize) -> bool {
        let last = self.rows.len().saturating_sub(1);
        let to = match self.table.selected() {
            Some(row) => row.saturating_add_signed(rows).min(last),
            None => 0,
        };
        self.table.select((!self.rows.is_empty()).then_some(to));
        false
    }

    fn title(&self) -> String {
        let count = self.look.seen.len();
        let quiet = self.look.seen.iter().filter(|seen| seen.account().is_none()).count();
        let quiet = if quiet > 0 { format!(" ({quiet} stopped or silent)") } else { String::new() };
        match &self.trouble {
            Some(says) => says.clone(),
            None if count == 0 => "no process of this user uses Ferroce in this network namespace".to_owned(),
            None => format!("processes: {count}{quiet}, queue pairs: {}", self.look.pairs.len()),
        }
    }

    /// Draws all of it.
    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let parts = [Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)];
        let [head, body, foot] = Layout::vertical(parts).areas(frame.area());
        frame.render_widget(Line::from(self.title()), head);
        let shown = shown(frame.area().width);
        let widths = shown.iter().map(|&column| match WIDTHS.get(column) {
            Some(width) => Constraint::Length(*width),
            None => Constraint::Fill(1),
        });
        let row = |cells: [String; COLUMNS]| {
            Row::new(shown.iter().map(|&column| Cell::from(cells[column].clone())).collect::<Vec<_>>())
        };
        let rows = self.rows.iter().map(|rate| row(cells(rate)).style(self.style(rate)));
        let table = Table::new(rows, widths)
            .header(row(HEADS.map(str::to_owned)).style(Style::new().add_modifier(Modifier::BOLD)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, body, &mut self.table);
        let sort = format!("{:?}", self.sort).to_lowercase();
        let hidden = COLUMNS - shown.len();
        let hint = if hidden > 0 { format!("{hidden} columns hidden: widen  ") } else { String::new() };
        let help =
            format!("{hint}q quit  t processes or queue pairs  s sort (by {sort}; b m r f o p)  arrows move");
        frame.render_widget(Line::from(help), foot);
    }

    fn style(&self, rate: &QpRate) -> Style {
        let troubled = rate.rates.retries > 0.0 || rate.cq.is_some_and(|cq| fill(cq) > NEARLY_FULL);
        match rate.state.as_str() {
            _ if !self.colours => Style::new(),
            "ERR" | "SQE" | "stopped" | "silent" | "crowded" => Style::new().fg(Color::Red),
            _ if troubled => Style::new().fg(Color::Yellow),
            _ => Style::new(),
        }
    }

    /// The whole table as text.
    pub fn to_text(&self) -> String {
        let mut rows = vec![HEADS.map(str::to_owned)];
        rows.extend(self.rows.iter().map(cells));
        format!("{}\n{}", self.title(), aligned(&rows))
    }
}

/// The columns that have room.
fn shown(width: u16) -> Vec<usize> {
    let mut columns: Vec<usize> = (0..COLUMNS).collect();
    let needed = |columns: &[usize]| -> u16 {
        columns.iter().map(|&column| WIDTHS.get(column).copied().unwrap_or(WAITS) + 1).sum()
    };
    for least in LEFT_OUT_FIRST {
        if needed(&columns) <= width {
            break;
        }
        columns.retain(|column| *column != least);
    }
    columns
}

fn cells(rate: &QpRate) -> [String; COLUMNS] {
    let PerSecond { sends, receives, sent, received, retries } = rate.rates;
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    [
        rate.pid.map_or("-".to_owned(), |pid| pid.to_string()),
        rate.number.map_or("all".to_owned(), |number| format!("{number:#08x}")),
        rate.state.clone(),
        or_dash(&rate.fabric),
        short(sends),
        short(receives),
        short(sent),
        short(received),
        short(retries),
        rate.outstanding.to_string(),
        rate.cq.map_or("-".to_owned(), |(filled, depth)| format!("{filled}/{depth}")),
        rate.says.clone(),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::super::{ProcessAnswer, WatchedProcess, rates::Meter};
    use super::*;
    use ferroce_watch::{CompletionQueue, Counters, Process, QueuePair, WorkQueue};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::{Duration, Instant};

    fn pair(number: u32, sends: u64) -> QueuePair {
        QueuePair {
            number,
            state: "RTS".into(),
            fabric: "shm".into(),
            completion_queues: [1, 1],
            receive: Some(WorkQueue { depth: 4, outstanding: 1 }),
            counters: Counters { rdma_sends: sends, sent_bytes: 1000 * sends, ..Counters::default() },
            ..QueuePair::default()
        }
    }

    fn seen(pid: u32, command: &str, queue_pairs: Vec<QueuePair>) -> WatchedProcess {
        let completion_queues =
            vec![CompletionQueue { number: 1, filled: 3, depth: 64, ..Default::default() }];
        let account = Process { queue_pairs, completion_queues, ..Process::default() };
        WatchedProcess {
            uid: 0,
            pid: Some(pid),
            command: command.into(),
            slots: Vec::new(),
            answer: ProcessAnswer::Account(Box::new(account)),
        }
    }

    fn view(counts: [u64; 2]) -> View {
        let (mut meter, at) = (Meter::default(), Instant::now());
        let mut view = View::new(Sort::Bytes, false, false);
        for (second, [a, b]) in [(0, [0; 2]), (2, counts)] {
            let seen = vec![
                seen(77, "a.out", vec![pair(0x12_3456, a)]),
                seen(78, "b.out", vec![pair(0x12_4567, b)]),
            ];
            let pairs = meter.take(&seen, at + Duration::from_secs(second));
            view.show(Look { seen, pairs });
        }
        view
    }

    fn drawn(view: &mut View, width: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, 6)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
        (0..6).map(|y| line(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn the_screen_shows_what_each_queue_pair_does() {
        let mut view = view([2000, 10]);
        let lines = drawn(&mut view, 130);
        assert_eq!(lines[0], "processes: 2, queue pairs: 2");
        assert!(lines[1].starts_with("PROCESS QP       STATE   FABRIC SENDS/s"), "{lines:?}");
        let words: Vec<_> = lines[2].split_whitespace().collect();
        let row = ["77", "0x123456", "RTS", "shm", "1.0k", "0", "1.0M", "0", "0", "0", "3/64"];
        assert_eq!(words[..11], row, "{lines:?}");
        assert!(lines[2].ends_with("waits for a message"), "{lines:?}");
        assert!(lines[3].starts_with("78 "), "{lines:?}");
        assert!(
            view.to_text().starts_with("processes: 2, queue pairs: 2\nPROCESS  QP "),
            "{}",
            view.to_text()
        );
    }

    #[test]
    fn a_narrow_terminal_keeps_what_is_waited_for_and_names_what_it_hides() {
        let lines = drawn(&mut view([2000, 10]), 80);
        assert!(lines[1].contains("PROCESS QP") && lines[1].ends_with("WAITS"), "{lines:?}");
        assert!(lines[2].ends_with("waits for a message"), "{lines:?}");
        assert!(lines[5].starts_with("5 columns hidden: widen  q quit"), "{lines:?}");
        assert_eq!(shown(130).len(), COLUMNS);
    }

    #[test]
    fn keys_sort_turn_move_and_end() {
        let mut view = view([2000, 10]);
        let press = |view: &mut View, code| {
            assert!(!view.key(code, KeyModifiers::NONE));
            drawn(view, 130)
        };
        let lines = press(&mut view, KeyCode::Char('s'));
        assert!(lines[5].contains("sort (by messages;"), "{lines:?}");
        let lines = press(&mut view, KeyCode::Tab);
        assert!(lines[2].starts_with("77      all      running -"), "{lines:?}");
        assert!(lines[2].ends_with("1 queue pairs: a.out"), "{lines:?}");
        assert!(press(&mut view, KeyCode::Char('t'))[2].contains("0x123456"));
        for (code, row) in [(KeyCode::Down, 0), (KeyCode::Down, 1), (KeyCode::Down, 1), (KeyCode::Up, 0)] {
            press(&mut view, code);
            assert_eq!(view.table.selected(), Some(row));
        }
        press(&mut view, KeyCode::Char('c'));
        assert!(view.key(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(
            view.key(KeyCode::Esc, KeyModifiers::NONE) && view.key(KeyCode::Char('q'), KeyModifiers::NONE)
        );
        // All are gone, also the row that is marked.
        view.show(Look { seen: Vec::new(), pairs: Vec::new() });
        assert!(drawn(&mut view, 130)[0].starts_with("no process of this user"));
        view.complain("trouble".into());
        assert_eq!(drawn(&mut view, 7)[0], "trouble");
    }

    #[test]
    fn colours_are_for_who_wants_them() {
        let rate = QpRate { state: "ERR".into(), ..QpRate::default() };
        for colours in [true, false] {
            let style = View::new(Sort::Bytes, false, colours).style(&rate);
            assert_eq!(style.fg.is_some(), colours);
        }
    }
}
