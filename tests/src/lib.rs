//! End-to-end tests: unmodified verbs programs and our own C programs, as separate processes, in private network
//! namespaces, as an ordinary user.
//!
//! In here: hosts made of namespaces, processes with time limits, the programs to run. Out of here: anything that links
//! the product; what is tested is `target/dist`, as a user gets it.

mod artifacts;
mod browser;
mod clients;
pub mod helper;
mod holders;
pub mod inside;
mod mpi;
mod namespace;
pub mod pages;
pub mod perftest;
mod process;
pub mod random;
mod sides;
pub mod svg;
mod tshark;
mod vm;
pub mod wait;
mod world;

pub use artifacts::{
    Artifacts, Headers, c_source, client_program, compile_ping_pong, new_stage, tool, verbs_headers,
};
pub use browser::Browser;
pub use clients::{Fabric, Pair, PairOutcome};
pub use holders::Holdings;
pub use mpi::{mpi_program, mpi_program_of, mpi_run, mpich_program};
pub use process::{Outcome, Process};
pub use sides::{SERVER, Sides};
pub use tshark::tshark;
pub use vm::{Guest, Traffic};
pub use world::{Host, World, is_listening};

use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};

/// Makes `number`, a descriptor of this process's, one of `file`, as a program does that takes the library's for its own.
///
/// # Panics
/// One of them isn't open.
pub fn take_number(number: RawFd, file: &impl AsRawFd) {
    // SAFETY: takes no pointer; the test checks how the owner of `number` copes with its loss.
    assert!(unsafe { libc::dup2(file.as_raw_fd(), number) } >= 0, "{}", std::io::Error::last_os_error());
}

/// Why a test can't run on this machine; a missing tool or a refused namespace, never a failure of the product.
#[derive(Debug)]
pub struct Skip(pub String);

/// Prints `why` and adds it to the file named by `FERROCE_SKIP_LOG`, which `cargo xtask test` shows at its end.
pub fn record_skip(why: &str) {
    record("FERROCE_SKIP_LOG", &format!("skipped {}: {why}\n", test_name()));
}

/// Reports that a run is repeated, and `why`: prints it and adds it to the file named by `FERROCE_REPETITION_LOG`, which
/// `cargo xtask test` shows at its end. A repetition is for what neither the product nor the test can help.
pub fn record_repetition(why: &str) {
    record("FERROCE_REPETITION_LOG", &format!("repeated in {}: {why}\n", test_name()));
}

fn test_name() -> String {
    std::thread::current().name().unwrap_or("test").to_owned()
}

fn record(log: &str, line: &str) {
    eprint!("{line}");
    if let Some(path) = std::env::var_os(log) {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        if let Ok(mut file) = file {
            let _ = file.write_all(line.as_bytes());
        }
    }
}

/// Evaluates to the value of an `Ok`; for `Err(Skip)` it records the reason and returns from the test.
#[macro_export]
macro_rules! require {
    ($expression:expr) => {
        match $expression {
            Ok(value) => value,
            Err($crate::Skip(why)) => {
                $crate::record_skip(&why);
                return;
            }
        }
    };
}
