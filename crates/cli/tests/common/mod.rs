//! An installation of Ferroce in a temporary directory, and commands with a time limit.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub const TIME_LIMIT: Duration = Duration::from_secs(30);

/// `bin/ferroce` beside libraries to preload that every program has anyway, removed in the end.
pub struct Installation {
    root: PathBuf,
}

impl Installation {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("ferroce-cli-{}-{number}", std::process::id()));
        std::fs::create_dir_all(root.join("bin")).unwrap();
        std::fs::create_dir_all(root.join("lib/ferroce")).unwrap();
        for library in ["libibverbs.so.1", "librdmacm.so.1", "libferroce_preload.so"] {
            std::os::unix::fs::symlink(c_library(), root.join("lib/ferroce").join(library)).unwrap();
        }
        std::fs::create_dir(root.join("lib/ferroce/bin")).unwrap();
        std::os::unix::fs::symlink("../../../bin/ferroce", root.join("lib/ferroce/bin/rdma")).unwrap();
        // By another process: a file that a test of this one starts while a second forks must not be open for writing.
        let copied =
            Command::new("cp").arg(env!("CARGO_BIN_EXE_ferroce")).arg(root.join("bin/ferroce")).status();
        assert!(copied.unwrap().success());
        Self { root: root.canonicalize().unwrap() }
    }

    pub fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// `ferroce` with these arguments and a clean environment.
    pub fn ferroce(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.path("bin/ferroce"));
        command.args(arguments);
        for variable in [
            "FERROCE_DEVICES",
            "FERROCE_CAPTURE",
            "FERROCE_FAULT",
            "FERROCE_RUN",
            "LD_LIBRARY_PATH",
            "LD_PRELOAD",
            "ASAN_OPTIONS",
        ] {
            command.env_remove(variable);
        }
        command
    }
}

/// The file of the C library that this process has loaded.
fn c_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut files = maps.lines().filter_map(|line| line.split_once('/')).map(|(_, path)| format!("/{path}"));
    files.find(|path| path.contains("/libc.so") || path.contains("/libc-")).expect("a C library").into()
}

impl Drop for Installation {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// What a command left.
#[derive(Debug)]
pub struct Outcome {
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command to its end, which must come within the time limit. Its output must fit into a pipe.
pub fn run(command: &mut Command) -> Outcome {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + TIME_LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{command:?} took more than {TIME_LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let (mut stdout, mut stderr) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    Outcome { status: status.code(), stdout, stderr }
}
