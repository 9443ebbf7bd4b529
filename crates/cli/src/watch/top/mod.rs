//! `ferroce top`: what queue pairs and processes do in a second, refreshed in the terminal.

mod screen;
mod view;

use super::rates::{Meter, QpRate, Sort, of_processes};
use super::{WatchedProcess, processes};
use crate::output;
use ferroce_watch::Wish;
use serde_json::{Value, json};
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use view::View;

/// What is shown.
pub struct TopOptions {
    /// One line of JSON each time.
    pub json: bool,
    /// One table as text.
    pub once: bool,
    /// Time between looks.
    pub interval: Duration,
    /// How often; 0: until it is ended.
    pub count: u64,
    /// The order at first.
    pub sort: Sort,
    /// A row for each process at first.
    pub processes: bool,
}

/// Shows what is done until the user has seen enough.
pub fn top(options: &TopOptions) -> ExitCode {
    let shown = match (options.json, options.once, io::stdout().is_terminal()) {
        (true, ..) => lines(options),
        (_, true, _) => table(options),
        (.., true) => screen::show(options),
        _ => {
            Err("standard output isn't a terminal: use --once for a table, or --json for programs".to_owned())
        }
    };
    shown.unwrap_or_else(|says| {
        eprintln!("ferroce top: {says}");
        ExitCode::FAILURE
    })
}

/// The processes' answers, and the rates of queue pairs.
struct Look {
    seen: Vec<WatchedProcess>,
    pairs: Vec<QpRate>,
}

/// Asks the processes.
fn look(meter: &mut Meter) -> Result<Look, String> {
    let at = Instant::now();
    let seen = processes(Wish::Everything)?;
    let pairs = meter.take(&seen, at);
    Ok(Look { seen, pairs })
}

/// Looks for programs: a line each.
fn lines(options: &TopOptions) -> Result<ExitCode, String> {
    let mut meter = Meter::default();
    look(&mut meter)?;
    let mut looks = 0;
    loop {
        std::thread::sleep(options.interval);
        let look = look(&mut meter)?;
        let list = |rates: &[QpRate]| rates.iter().map(QpRate::to_json).collect::<Vec<Value>>();
        let processes = of_processes(&look.seen, &look.pairs);
        let line = json!({ "processes": list(&processes), "queue_pairs": list(&look.pairs) }).to_string();
        let more = output::line(&line).map_err(|error| format!("standard output: {error}"))?;
        looks += 1;
        if !more || options.once || looks == options.count {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// What the screen would show, once.
fn table(options: &TopOptions) -> Result<ExitCode, String> {
    let mut meter = Meter::default();
    look(&mut meter)?;
    std::thread::sleep(options.interval);
    let mut view = View::new(options.sort, options.processes, false);
    view.show(look(&mut meter)?);
    Ok(output::print(&view.to_text()))
}
