//! Processes that help a test in its namespaces: each runs the test's own program again, and there the same test, which takes a
//! role instead of its body. It gets its commands line by line.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::inside;
use crate::wait::eventually;

/// Names the role of a helper.
const ROLE: &str = "FERROCE_TEST_ROLE";
/// Begins every answer; the test harness prints lines of its own.
const ANSWER: &str = "helper: ";

/// What a helper may be: the name, and what it does until it ends.
pub type Role = (&'static str, fn());

/// In a helper: plays its role of `roles`. Whether this is one.
///
/// # Panics
/// The test program has no such role.
pub fn play(roles: &[Role]) -> bool {
    let Ok(wanted) = std::env::var(ROLE) else { return false };
    let role = roles.iter().find(|(name, _)| *name == wanted);
    role.unwrap_or_else(|| panic!("no role {wanted}")).1();
    true
}

/// In a helper: answers commands until there are no more.
pub fn answer_commands(mut command: impl FnMut(&str) -> String) {
    for line in std::io::stdin().lines().map_while(Result::ok) {
        answer(&command(line.trim_end()));
    }
}

/// In a helper: answers.
pub fn answer(line: &str) {
    println!("{ANSWER}{line}");
}

/// The test's side of a helper. Killed when dropped.
#[derive(Debug)]
pub struct Helper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Helper {
    /// One in `role`.
    pub fn start(role: &str) -> Self {
        Self::start_with(role, &[], 0)
    }

    /// One with these in its environment, in the network namespace of this process, or with CLONE_NEWNET in one of its own.
    ///
    /// # Panics
    /// It can't be started, or the caller isn't within [`inside::in_namespace`].
    pub fn start_with(role: &str, environment: &[(&str, &str)], namespaces: i32) -> Self {
        let test = inside::running().expect("a helper helps a test in its namespace");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", &test, "--include-ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // SAFETY: prctl and unshare are plain system calls.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::unshare(namespaces) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    /// Gives it a command.
    ///
    /// # Panics
    /// It has ended.
    pub fn tell(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }

    /// Its next answer.
    ///
    /// # Panics
    /// It has ended.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the helper has ended");
            // The harness may have begun the line.
            if let Some((_, answer)) = line.split_once(ANSWER) {
                return answer.trim_end().to_owned();
            }
        }
    }

    /// What it answers to a command.
    pub fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// It is gone.
    pub fn signal(&self, signal: i32) {
        // SAFETY: a plain system call, about a child that hasn't been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// SIGSTOP, and waits until all its threads are stopped.
    ///
    /// # Panics
    /// It is gone.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
        };
        eventually("all threads are stopped", || {
            std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap().all(stopped)
        });
    }

    /// SIGCONT.
    ///
    /// # Panics
    /// It is gone.
    pub fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    /// `kill -9`, and waits until it is gone.
    ///
    /// # Panics
    /// It can't be waited for.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Fails when it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
