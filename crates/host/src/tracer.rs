//! Asking one process again and again which messages have ended, over one connection: as long as that is there, the process
//! notes messages.

use super::frame;
use super::watch::{QueriedProcess, QueryResult, is_stopped, reach, receive};
use ferroce_os::sys::{self, EngineFd};
use std::io;
use std::time::Duration;

/// The kind of a request for the messages that have ended.
pub const KIND_TRACE: u8 = 9;

/// A connection to a process that is being traced.
#[derive(Debug)]
pub struct TracerConnection {
    connection: EngineFd,
    pid: i32,
    longest: usize,
}

impl TracerConnection {
    /// Asks for the first time, and takes the answer. `wish` goes with each question; no answer is longer than `longest`.
    ///
    /// # Errors
    /// What has come of asking instead of an answer.
    pub fn attach<T>(
        watched: &QueriedProcess<T>,
        wish: &[u8],
        longest: usize,
        patience: Duration,
    ) -> Result<Self, QueryResult> {
        let pid = watched.pid.and_then(|pid| i32::try_from(pid).ok()).ok_or(QueryResult::Gone)?;
        let slot = *watched.slots.first().ok_or(QueryResult::Gone)?;
        let (connection, its) = reach(slot, patience).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => QueryResult::Crowded,
            _ => QueryResult::Gone,
        })?;
        if (its.uid, its.pid) != (watched.uid, pid) {
            return Err(QueryResult::Gone);
        }
        let tracer = Self { connection, pid, longest };
        match tracer.ask(wish, patience) {
            QueryResult::Account(_) => Ok(tracer),
            told => Err(told),
        }
    }

    /// Asks, and waits for the answer at most for `patience`.
    #[must_use]
    pub fn ask(&self, wish: &[u8], patience: Duration) -> QueryResult {
        let mut request = [&frame::header(KIND_TRACE)[..], wish].concat();
        match frame::send(self.connection.raw(), &mut request, &[]) {
            Ok(()) => self.answer(patience),
            // It hasn't read the questions before.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.silence(),
            Err(_) => QueryResult::Gone,
        }
    }

    /// Waits for an answer that hasn't come in time.
    #[must_use]
    pub fn answer(&self, patience: Duration) -> QueryResult {
        let fd = self.connection.raw();
        if sys::wait_for(fd, libc::POLLIN, patience) {
            receive(fd, self.longest, Some)
        } else {
            self.silence()
        }
    }

    fn silence(&self) -> QueryResult {
        if is_stopped(self.pid) { QueryResult::Stopped } else { QueryResult::Silence }
    }
}
