//! Asking the host's other processes for an interface's GID table, of which each keeps the history.

use super::frame;
use super::names::{self, Name};
use super::services::RequestHandler;
use super::user::User;
use ferroce_netdev::{DeviceInfo, GidTable};
use ferroce_os::sys::{self, EngineFd};
use std::io;
use std::time::{Duration, Instant};

/// The kind of a request for a GID table.
pub const KIND_GIDS: u8 = 3;
/// Frame, index of the interface.
const REQUEST: usize = frame::HEADER + 4;
/// No answer is longer.
const LONGEST_TABLE: usize = 2048;
/// What the leader has, that is asked for a GID table, before others are asked; what all of them have; and how many.
const LEADER_PATIENCE: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_millis(50);
const ASKED: usize = 8;

/// Answers requests for the table of an interface: `self.0` returns the one of this process.
pub struct GidTables<F>(pub F);

impl<F: Fn(u32) -> Option<GidTable> + Send + Sync> RequestHandler for GidTables<F> {
    fn serve(&self, connection: EngineFd, message: &[u8], _: Vec<EngineFd>) {
        let interface = message.get(frame::HEADER..).and_then(<[u8]>::first_chunk);
        let (status, table) = match interface.map(|index| (self.0)(u32::from_ne_bytes(*index))) {
            Some(Some(table)) => (frame::GRANTED, table.to_bytes()),
            Some(None) => (frame::UNKNOWN, Vec::new()),
            None => (frame::REFUSED, Vec::new()),
        };
        // Fails when the process that asked has ended.
        let _ = frame::send(connection.raw(), &mut [&frame::header(status)[..], &table].concat(), &[]);
    }
}

/// The GID table of a device as the host's other processes know it; from the interface's addresses alone where none of
/// them has it open. Takes long only when every process that might have it open is stopped.
#[must_use]
pub fn gid_table(device: &DeviceInfo) -> GidTable {
    let interface = device.netdev.ifindex;
    match ask_for_table(interface) {
        Some(mut table) => {
            table.update(&device.netdev);
            table
        }
        None => device.gid_table(),
    }
}

fn ask_for_table(interface: u32) -> Option<GidTable> {
    let user = User::current();
    let mut question = GidQuestion::new(interface, user);
    match question.ask(&Name::leader(user.uid())) {
        // Without a leader there is no other process, or one is about to lead.
        Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => return None,
        Ok(()) | Err(_) => {}
    }
    if let Some(table) = question.answer(LEADER_PATIENCE) {
        return Some(table);
    }
    for slot in names::slots_of(user.uid())?.into_keys() {
        if question.asked.len() >= ASKED {
            break;
        }
        // Fails for a process that has ended meanwhile, or another user's.
        let _ = question.ask(&Name::slot(slot));
    }
    question.answer(PATIENCE)
}

/// Processes that have been asked for the GID table of an interface.
struct GidQuestion {
    interface: u32,
    request: [u8; REQUEST],
    user: User,
    asked: Vec<EngineFd>,
}

impl GidQuestion {
    fn new(interface: u32, user: User) -> Self {
        let mut request = [0; REQUEST];
        request[..frame::HEADER].copy_from_slice(&frame::header(KIND_GIDS));
        request[frame::HEADER..].copy_from_slice(&interface.to_ne_bytes());
        Self { interface, request, user, asked: Vec::new() }
    }

    /// Asks the holder of a name.
    ///
    /// # Errors
    /// It has no holder, or its holder is very busy.
    fn ask(&mut self, name: &Name) -> io::Result<()> {
        let socket = self.user.dial(name)?;
        frame::send(socket.raw(), &mut self.request, &[])?;
        self.asked.push(socket);
        Ok(())
    }

    /// The first table of this process's link layer that comes, if one does before all have answered and within `patience`.
    fn answer(&mut self, patience: Duration) -> Option<GidTable> {
        let deadline = Instant::now() + patience;
        while !self.asked.is_empty() {
            let poll_of =
                |socket: &EngineFd| libc::pollfd { fd: socket.raw(), events: libc::POLLIN, revents: 0 };
            let mut polls: Vec<_> = self.asked.iter().map(poll_of).collect();
            let left = deadline.saturating_duration_since(Instant::now());
            if sys::poll(&mut polls, left).is_err() || left.is_zero() {
                return None;
            }
            for index in (0..polls.len()).rev().filter(|&i| polls[i].revents != 0) {
                let socket = self.asked.swap_remove(index);
                let mut reply = [0; LONGEST_TABLE];
                let Ok((length, _)) = frame::receive(socket.raw(), &mut reply) else { continue };
                let reply = &reply[..length];
                let table =
                    reply.get(frame::HEADER..).filter(|_| frame::kind_of(reply) == Some(frame::GRANTED));
                if let Some(table) = table.and_then(|bytes| GidTable::from_bytes(bytes, self.interface)) {
                    return Some(table);
                }
            }
        }
        None
    }
}
