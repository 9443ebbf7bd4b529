//! The terminal: it is as it was before, however this ends.

use super::super::rates::Meter;
use super::view::View;
use super::{Look, TopOptions, look};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;
use std::{env, io, mem, ptr, thread};

/// How soon a signal or a new look is noticed.
const NOTICE: Duration = Duration::from_millis(50);

/// A signal has come that ends programs.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Shows what is done until a key or a signal ends it.
pub fn show(options: &TopOptions) -> Result<ExitCode, String> {
    let mut meter = Meter::default();
    let first = look(&mut meter)?;
    let explain = |error: io::Error| format!("the terminal: {error}");
    let colours = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut view = View::new(options.sort, options.processes, colours);
    view.show(first);
    end_by_signals().map_err(explain)?;
    // A panic of any thread gives the terminal back, too: this sees to it.
    let mut terminal = ratatui::try_init().map_err(explain)?;
    let looks = looks(meter, options.interval);
    let shown = on_terminal(&mut terminal, &mut view, &looks, options.count);
    drop(terminal);
    let restored = ratatui::try_restore();
    shown.and(restored).map(|()| ExitCode::SUCCESS).map_err(explain)
}

/// Reads the processes in a thread, so that keys work while a process doesn't answer. The thread ends with this process.
fn looks(mut meter: Meter, interval: Duration) -> Receiver<Result<Look, String>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        loop {
            thread::sleep(interval);
            if sender.send(look(&mut meter)).is_err() {
                return;
            }
        }
    });
    receiver
}

fn on_terminal(
    terminal: &mut DefaultTerminal,
    view: &mut View,
    looks: &Receiver<Result<Look, String>>,
    count: u64,
) -> io::Result<()> {
    let mut shown = 1;
    let mut changed = true;
    while !ENDED.load(Ordering::Relaxed) {
        if mem::take(&mut changed) {
            terminal.draw(|frame| view.draw(frame))?;
            if shown == count {
                return Ok(());
            }
        }
        while event::poll(if changed { Duration::ZERO } else { NOTICE })? {
            changed = true;
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
                && view.key(key.code, key.modifiers)
            {
                return Ok(());
            }
        }
        match looks.try_recv() {
            Ok(Ok(look)) => view.show(look),
            Ok(Err(says)) => view.complain(says),
            Err(TryRecvError::Empty) => continue,
            Err(TryRecvError::Disconnected) => {
                return Err(io::Error::other("the thread that reads the processes has ended"));
            }
        }
        shown += 1;
        changed = true;
    }
    Ok(())
}

extern "C" fn note_end(_: libc::c_int) {
    ENDED.store(true, Ordering::Relaxed);
}

/// Signals that end programs are noted, so that the terminal is given back first.
fn end_by_signals() -> io::Result<()> {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: all zeros are a valid `sigaction`: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        action.sa_sigaction = note_end as *const () as usize;
        // SAFETY: the handler only stores to an atomic.
        if unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
