//! Leave to copy from and to a process whose objects another one imports, where the Yama module asks for it (scope 1): the process
//! that imports asks for it, and only then the other one gives it.

use ferroce_host::{Host, RequestHandler, Services, frame};
use ferroce_os::sys::{self, EngineFd};
use std::sync::Arc;
use std::time::Duration;

/// Kind of the requests that ask for leave. Nothing follows.
const KIND: u8 = 11;
/// How long the other process may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

struct ConsentService {
    gives: bool,
}

impl RequestHandler for ConsentService {
    fn serve(&self, connection: EngineFd, _: &[u8], _: Vec<EngineFd>) {
        let status = if self.gives {
            sys::allow_copies_by_others();
            frame::GRANTED
        } else {
            frame::REFUSED
        };
        // A process that is gone needs no answer.
        let _ = frame::send(connection.raw(), &mut frame::header(status), &[]);
    }
}

/// Answers other processes. `gives`: they get leave.
pub fn register(services: &Services, gives: bool) {
    services.register(KIND, Arc::new(ConsentService { gives }));
}

/// Asks a process of this user, and waits for its answer.
pub(super) fn ask(host: &Host, pid: i32) {
    let Some(connection) = host.dial_process(pid) else { return };
    if frame::send(connection.raw(), &mut frame::header(KIND), &[]).is_ok() {
        // With or without an answer: the next access finds out whether the kernel permits it.
        let _ = sys::wait_for(connection.raw(), libc::POLLIN, PATIENCE);
    }
}
