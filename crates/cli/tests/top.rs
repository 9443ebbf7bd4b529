//! `ferroce top` in a pseudo-terminal of script(1): keys and signals end it, and the terminal is as it was.

mod common;

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use common::{Installation, TIME_LIMIT, run};

/// A shell in a terminal of its own. It ends with the test.
struct Terminal {
    script: Child,
    shown: Vec<u8>,
}

impl Terminal {
    /// Runs `command`, then prints its status and the terminal's settings (`stty -a`).
    fn run(command: &str) -> Self {
        let command = format!("stty rows 10 cols 120; {command}; echo status=$?; stty -a");
        let script = Command::new("timeout")
            .args(["30", "script", "-qec", &command, "/dev/null"])
            .env_remove("NO_COLOR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self { script, shown: Vec::new() }
    }

    fn press(&mut self, keys: &str) {
        self.script.stdin.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Reads until the terminal has shown this.
    fn wait_for(&mut self, text: &str) {
        let begin = Instant::now();
        while !String::from_utf8_lossy(&self.shown).contains(text) {
            let mut bytes = [0; 4096];
            let read = self.script.stdout.as_mut().unwrap().read(&mut bytes).unwrap();
            self.shown.extend(&bytes[..read]);
            let shown = String::from_utf8_lossy(&self.shown);
            assert!(read > 0 && begin.elapsed() < TIME_LIMIT, "no {text:?} in {shown:?}");
        }
    }

    /// The program has ended well, and the terminal is as programs want it: its own screen, letters shown, lines whole.
    fn expect_as_before(mut self) {
        self.wait_for("status=0");
        self.wait_for("echoke");
        let shown = String::from_utf8_lossy(&self.shown).into_owned();
        let (screen, after) = shown.split_once("status=0").unwrap();
        assert!(screen.rfind("\x1b[?1049l") > screen.rfind("\x1b[?1049h"), "{shown:?}");
        assert!(screen.rfind("\x1b[?25h") > screen.rfind("\x1b[?25l"), "{shown:?}");
        let words: Vec<_> = after.split_whitespace().collect();
        assert!(words.contains(&"icanon") && words.contains(&"echo") && words.contains(&"isig"), "{after:?}");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

fn top(ferroce: &Installation, words: &str) -> String {
    format!("{} top -i 0.1 {words}", ferroce.path("bin/ferroce").display())
}

#[test]
fn keys_turn_the_table_and_end_it_and_the_terminal_is_as_it_was() {
    let ferroce = Installation::new();
    for end in ["q", "\x03"] {
        let mut terminal = Terminal::run(&top(&ferroce, ""));
        terminal.wait_for("quit");
        terminal.press("s");
        terminal.wait_for("messages");
        terminal.press(end);
        terminal.expect_as_before();
    }
}

#[test]
fn a_signal_or_the_last_look_ends_it_and_the_terminal_is_as_it_was() {
    let ferroce = Installation::new();
    let mut terminal = Terminal::run(&top(&ferroce, "--count 2"));
    terminal.wait_for("quit");
    terminal.expect_as_before();
    let mut terminal = Terminal::run(&format!("sh -c 'echo pid=$$.; exec {}'", top(&ferroce, "")));
    terminal.wait_for("quit");
    let shown = String::from_utf8_lossy(&terminal.shown).into_owned();
    let (pid, _) = shown.split_once("pid=").unwrap().1.split_once('.').unwrap();
    assert!(Command::new("sh").args(["-c", &format!("kill -TERM {pid}")]).status().unwrap().success());
    terminal.expect_as_before();
}

#[test]
fn without_a_terminal_it_prints_a_table_or_lines() {
    let ferroce = Installation::new();
    let table = run(&mut ferroce.ferroce(&["top", "--once", "-i", "0.01"]));
    assert_eq!((table.status, table.stderr.as_str()), (Some(0), ""));
    assert!(table.stdout.contains("\nPROCESS  QP "), "{}", table.stdout);
    let lines = run(&mut ferroce.ferroce(&["top", "--json", "-i", "0.01", "-n", "2"]));
    assert_eq!(lines.stdout.lines().count(), 2, "{}", lines.stdout);
    assert!(lines.stdout.starts_with("{\"processes\":["), "{}", lines.stdout);
    let neither = run(&mut ferroce.ferroce(&["top"]));
    assert_eq!(neither.status, Some(1));
    assert!(neither.stderr.contains("--once for a table, or --json for programs"), "{}", neither.stderr);
    let nonsense = run(&mut ferroce.ferroce(&["top", "-i", "nan"]));
    assert!(nonsense.stderr.contains("between 0.01 and 86400"), "{}", nonsense.stderr);
}
