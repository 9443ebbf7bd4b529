//! A process under test: its output is captured, its life is bounded, and nothing of it outlives the test.

use std::fmt;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Pause between two looks at a process that is being waited for.
const TICK: Duration = Duration::from_millis(2);
/// How long a pipe may stay open after its process has ended (a daemon that the process left behind may hold it).
const DRAIN: Duration = Duration::from_secs(2);

/// A running process, in a process group of its own. Dropping it kills the group.
pub struct Process {
    child: Child,
    title: String,
    stdout: Capture,
    stderr: Capture,
    ended: Option<ExitStatus>,
}

struct Capture {
    bytes: Arc<Mutex<Vec<u8>>>,
    open: Arc<AtomicUsize>,
}

impl Capture {
    fn start(mut pipe: impl Read + Send + 'static) -> Self {
        let capture = Self { bytes: Arc::default(), open: Arc::new(AtomicUsize::new(1)) };
        let (bytes, open) = (capture.bytes.clone(), capture.open.clone());
        thread::spawn(move || {
            let mut chunk = [0; 16 << 10];
            while let Ok(count) = pipe.read(&mut chunk) {
                if count == 0 {
                    break;
                }
                bytes.lock().expect("no panic under this lock").extend_from_slice(&chunk[..count]);
            }
            open.store(0, Ordering::Release);
        });
        capture
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().expect("no panic under this lock")).into_owned()
    }
}

impl Process {
    /// Starts `command`, which must put itself into a process group of its own before exec.
    pub fn spawn(mut command: Command) -> std::io::Result<Self> {
        let title = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|word| word.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdout = Capture::start(child.stdout.take().expect("piped"));
        let stderr = Capture::start(child.stderr.take().expect("piped"));
        Ok(Self { child, title, stdout, stderr, ended: None })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What the process has written to its standard output so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// What the process has written to its standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Whether the process has ended.
    pub fn has_ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("a child can be waited for");
        }
        self.ended.is_some()
    }

    /// Sends a signal to this process alone.
    pub fn signal(&self, signal: libc::c_int) {
        if self.ended.is_none() {
            // SAFETY: the child isn't reaped yet, so the id is still its own.
            unsafe { libc::kill(self.id() as i32, signal) };
        }
    }

    /// Waits until standard output contains `text`; panics when the process ends first or `limit` passes.
    pub fn wait_for_output(&mut self, text: &str, limit: Duration) {
        self.wait_for(text, limit, Self::stdout, |outcome| &outcome.stdout);
    }

    /// As [`Process::wait_for_output`], of standard error.
    pub fn wait_for_error(&mut self, text: &str, limit: Duration) {
        self.wait_for(text, limit, Self::stderr, |outcome| &outcome.stderr);
    }

    fn wait_for(
        &mut self,
        text: &str,
        limit: Duration,
        so_far: impl Fn(&Self) -> String,
        all: impl Fn(&Outcome) -> &String,
    ) {
        let start = Instant::now();
        loop {
            let ended = self.has_ended();
            if so_far(self).contains(text) {
                return;
            }
            if ended || start.elapsed() > limit {
                // Its last output may not have been read yet.
                let outcome = self.wait(Duration::ZERO);
                if all(&outcome).contains(text) {
                    return;
                }
                panic!("waited {:?} for \"{text}\" in the output of:\n{outcome}", start.elapsed());
            }
            thread::sleep(TICK);
        }
    }

    /// Waits for the end; after `limit` the process is killed and the outcome shows that, with stacks where gdb is found.
    pub fn wait(&mut self, limit: Duration) -> Outcome {
        let start = Instant::now();
        let mut stacks = None;
        while !self.has_ended() {
            if start.elapsed() >= limit {
                stacks = Some(self.stacks());
                self.kill_group();
                self.ended = Some(self.child.wait().expect("a child can be waited for"));
                break;
            }
            thread::sleep(TICK);
        }
        let drained = Instant::now();
        while drained.elapsed() < DRAIN
            && self.stdout.open.load(Ordering::Acquire) + self.stderr.open.load(Ordering::Acquire) > 0
        {
            thread::sleep(TICK);
        }
        Outcome {
            title: self.title.clone(),
            status: self.ended.expect("waited for"),
            over_limit: stacks.is_some().then_some(limit),
            stdout: self.stdout(),
            stderr: self.stderr(),
            stacks: stacks.unwrap_or_default(),
        }
    }

    fn kill_group(&self) {
        // SAFETY: the group's leader isn't reaped yet, so the group id is still its own.
        unsafe { libc::kill(-(self.id() as i32), libc::SIGKILL) };
    }

    fn stacks(&self) -> String {
        let mut gdb = Command::new("timeout");
        gdb.args(["20", "gdb", "-nx", "-batch", "-ex", "thread apply all bt 24", "-p"])
            .arg(self.id().to_string());
        let Ok(output) = gdb.stdin(Stdio::null()).output() else { return String::new() };
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter(|line| line.starts_with('#') || line.starts_with("Thread "))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.kill_group();
            let _ = self.child.wait();
        }
    }
}

/// How a process ended.
pub struct Outcome {
    title: String,
    /// The exit status as wait(2) gives it.
    pub status: ExitStatus,
    /// The limit that the process exceeded, after which it was killed.
    pub over_limit: Option<Duration>,
    /// Its whole standard output.
    pub stdout: String,
    /// Its whole standard error.
    pub stderr: String,
    stacks: String,
}

impl Outcome {
    /// Whether the process ended by itself with exit code 0.
    pub fn success(&self) -> bool {
        self.over_limit.is_none() && self.status.success()
    }

    /// Panics with the whole output of the process unless it ended by itself with exit code 0.
    #[track_caller]
    pub fn expect_success(&self) -> &Self {
        assert!(self.success(), "{self}");
        self
    }

    /// Panics unless the process ended well and printed `ok`, as a program of cases does, and nothing else.
    #[track_caller]
    pub fn expect_ok(&self) -> &Self {
        self.expect_success();
        assert_eq!(self.stdout, "ok\n", "{self}");
        self
    }

    /// Panics unless the process wrote nothing to its standard error.
    #[track_caller]
    pub fn expect_quiet(&self) -> &Self {
        assert!(self.stderr.is_empty(), "expected nothing on standard error:\n{self}");
        self
    }

    /// Panics if there is anything on standard error but the reasons of requests that have failed.
    #[track_caller]
    pub fn expect_only_reasons(&self) -> &Self {
        let all = self.stderr.lines().all(|line| line.starts_with("ferroce: FC"));
        assert!(all, "expected reasons only on standard error:\n{self}");
        self
    }

    /// Panics if there is anything on standard error but this reason, of any number of requests.
    #[track_caller]
    pub fn expect_only_reason(&self, id: &str) -> &Self {
        let all = self.stderr.lines().all(|line| line.starts_with(&format!("ferroce: {id} ")));
        assert!(all, "expected {id} only on standard error:\n{self}");
        self
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "$ {}", self.title)?;
        match (self.over_limit, self.status.signal()) {
            (Some(limit), _) => writeln!(f, "did not end within {limit:?} and was killed")?,
            (None, Some(signal)) => writeln!(f, "ended by signal {signal}")?,
            (None, None) => writeln!(f, "ended with exit code {}", self.status.code().unwrap_or(-1))?,
        }
        for (name, text) in [("stdout", &self.stdout), ("stderr", &self.stderr), ("stacks", &self.stacks)] {
            if !text.is_empty() {
                writeln!(f, "--- {name}\n{}", tail(text, 6000).trim_end())?;
            }
        }
        Ok(())
    }
}

/// The last `limit` bytes of `text`, from a character boundary on.
fn tail(text: &str, limit: usize) -> &str {
    let mut start = text.len().saturating_sub(limit);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    const SOON: Duration = Duration::from_secs(30);

    fn shell(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]).process_group(0);
        Process::spawn(command).expect("sh starts")
    }

    #[test]
    fn process_over_its_limit_is_killed_and_says_so() {
        let outcome = shell("echo begun; sleep 60 & wait").wait(Duration::from_millis(300));
        assert!(outcome.over_limit.is_some() && !outcome.success());
        assert_eq!(outcome.stdout, "begun\n");
    }

    #[test]
    fn dropped_process_takes_its_group_with_it() {
        let mut process = shell("sleep 60 & echo $!; wait");
        process.wait_for_output("\n", SOON);
        let grandchild: i32 = process.stdout().trim().parse().expect("a pid");
        drop(process);
        let start = Instant::now();
        // SAFETY: signal 0 only asks whether the process exists.
        while unsafe { libc::kill(grandchild, 0) } == 0 && !is_zombie(grandchild) {
            assert!(start.elapsed() < SOON, "the grandchild lives on");
            thread::sleep(TICK);
        }
    }

    fn is_zombie(pid: i32) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
    }

    #[test]
    fn exit_code_and_both_outputs_are_kept() {
        let outcome = shell("echo out; echo err >&2; exit 3").wait(SOON);
        assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("out\n", "err\n"));
        assert_eq!(outcome.status.code(), Some(3));
    }
}
