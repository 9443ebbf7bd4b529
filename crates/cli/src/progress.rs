//! How far long work has come, on a terminal.

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// Work that takes less is silent.
const SILENCE: Duration = Duration::from_secs(1);

/// The reading of a file, which is shown on standard error if that is a terminal and nothing has been printed for a second.
pub struct ProgressLine {
    total: u64,
    read: u64,
    target: fn() -> ProgressDrawTarget,
    /// Lines go to a terminal too, and mustn't be mixed up with the bar.
    prints_beside: bool,
    /// Since when nothing has been printed there.
    silent_since: Instant,
    bar: Option<ProgressBar>,
}

impl ProgressLine {
    /// Nothing of `total` bytes has been read. With 0 nothing is shown: it isn't known when the work is done.
    pub fn of(total: u64) -> Self {
        Self {
            total,
            read: 0,
            target: ProgressDrawTarget::stderr,
            prints_beside: io::stdout().is_terminal(),
            silent_since: Instant::now(),
            bar: None,
        }
    }

    /// So many bytes more have been read.
    pub fn advance(&mut self, bytes: u64) {
        self.read += bytes;
        if self.total > 0 && self.bar.is_none() && self.silent_since.elapsed() >= SILENCE {
            let bar = ProgressBar::with_draw_target(Some(self.total), (self.target)());
            let style = ProgressStyle::with_template("{wide_bar} {percent} % of {msg}, {eta} left");
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            self.bar = Some(bar.with_style(style).with_message(HumanBytes(self.total).to_string()));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(self.read);
        }
    }

    /// A line is about to be printed.
    pub fn make_way(&mut self) {
        if self.prints_beside {
            self.silent_since = Instant::now();
            self.erase();
        }
    }

    fn erase(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.erase();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::InMemoryTerm;
    use std::sync::LazyLock;

    static TERMINAL: LazyLock<InMemoryTerm> = LazyLock::new(|| InMemoryTerm::new(10, 80));

    #[test]
    fn work_is_shown_after_a_second_of_silence_and_makes_way_for_lines() {
        let mut reading = ProgressLine::of(4 << 20);
        reading.target = || ProgressDrawTarget::term_like(Box::new(TERMINAL.clone()));
        reading.prints_beside = true;
        reading.advance(1 << 20);
        assert_eq!(TERMINAL.contents(), "");

        let in_silence = |reading: &mut ProgressLine| reading.silent_since -= SILENCE;
        in_silence(&mut reading);
        reading.advance(1 << 20);
        assert!(TERMINAL.contents().contains("50 % of 4.00 MiB"), "{}", TERMINAL.contents());
        reading.make_way();
        assert_eq!(TERMINAL.contents(), "");
        reading.advance(1 << 20);
        assert_eq!(TERMINAL.contents(), "");

        in_silence(&mut reading);
        reading.advance(0);
        assert!(TERMINAL.contents().contains("75 % of 4.00 MiB"), "{}", TERMINAL.contents());
        drop(reading);
        assert_eq!(TERMINAL.contents(), "");
    }

    #[test]
    fn work_without_an_end_is_silent() {
        let mut reading = ProgressLine::of(0);
        reading.silent_since -= SILENCE;
        reading.advance(1);
        assert!(reading.bar.is_none());
    }
}
