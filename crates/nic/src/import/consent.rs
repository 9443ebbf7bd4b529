//! Leave to copy from and to a process whose objects another one imports, where the Yama module asks for it (scope 1): the process
//! that imports asks for it, and only then the other one gives it.

use crate::{adapter, settings};
use ferroce_host::{RequestHandler, Services, frame};
use ferroce_os::sys::{self, EngineFd};
use std::sync::Arc;
use std::time::Duration;

/// Kind of the requests that ask for leave. Nothing follows.
const KIND: u8 = 11;
/// How long the other process may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

struct ConsentService;

impl RequestHandler for ConsentService {
    fn serve(&self, connection: EngineFd, _: &[u8], _: Vec<EngineFd>) {
        let status = if settings::allows_copies() {
            sys::allow_copies_by_others();
            frame::GRANTED
        } else {
            frame::REFUSED
        };
        // A process that is gone needs no answer.
        let _ = frame::send(connection.raw(), &mut frame::header(status), &[]);
    }
}

/// Answers other processes.
pub(crate) fn register(services: &Services) {
    services.register(KIND, Arc::new(ConsentService));
}

/// Asks a process of this user, and waits for its answer.
pub(super) fn ask(pid: i32) {
    let Some(connection) = adapter::current().and_then(|adapter| adapter.host.dial_process(pid)) else {
        return;
    };
    if frame::send(connection.raw(), &mut frame::header(KIND), &[]).is_ok() {
        // With or without an answer: the next access finds out whether the kernel permits it.
        let _ = sys::wait_for(connection.raw(), libc::POLLIN, PATIENCE);
    }
}
