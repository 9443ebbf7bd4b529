//! Who of the host's processes is gone: a process that dies can't tell its peers.
//!
//! A process keeps a connection to each process that it has connections with, and the kernel closes it when either dies.

use super::GsiSource;
use crate::adapter::{self, Adapter};
use ferroce_host::{Service, Services, frame};
use ferroce_os::sync::{Mutex, class};
use ferroce_os::sys::{self, EngineFd};
use std::sync::Arc;
use std::time::Duration;

/// Kind of the requests that ask for nothing but the connection. The sender's slot follows, two bytes.
const KIND: u8 = 6;
/// Processes of the host that this one has lifelines with, or that have some with it.
const MOST: usize = 8192;

/// A connection that ends with the process at its other end.
struct Lifeline {
    connection: EngineFd,
    /// Of the process at the other end.
    slot: u16,
}

/// The lifelines of this process.
#[derive(Default)]
pub(crate) struct Lifelines(Mutex<class::Lifelines, Vec<Lifeline>>);

struct Followed;

impl Service for Followed {
    fn serve(&self, connection: EngineFd, message: &[u8], _: Vec<EngineFd>) {
        let slot = message.get(frame::HEADER..).and_then(|body| body.try_into().ok());
        if let (Some(adapter), Some(slot)) = (adapter::current(), slot) {
            adapter.add_lifeline(Lifeline { connection, slot: u16::from_ne_bytes(slot) });
        }
    }
}

/// Lets other processes find out when this one dies.
pub(crate) fn register(services: &Services) {
    services.register(KIND, Arc::new(Followed));
}

impl Adapter {
    fn add_lifeline(&self, lifeline: Lifeline) {
        let mut lifelines = self.gsi.lifelines.0.lock();
        if lifelines.len() < MOST && self.engine.watch_control(lifeline.connection.raw()).is_ok() {
            lifelines.push(lifeline);
        }
    }

    /// Has [`CommunicationManager::gone`](super::CommunicationManager::gone) called when the process dies that has a slot. Whether there
    /// is one.
    pub(super) fn follow(&self, slot: u16) -> bool {
        let is_known = |lifeline: &Lifeline| lifeline.slot == slot;
        if self.host.owns(u32::from(slot) << 12) || self.gsi.lifelines.0.lock().iter().any(is_known) {
            return true;
        }
        let Some(connection) = self.host.dial(slot) else { return !self.host.is_free(slot) };
        let own = self.host.slots().first().copied().unwrap_or_default();
        let mut message = [&frame::header(KIND)[..], &own.to_ne_bytes()].concat();
        if frame::send(connection.raw(), &mut message, &[]).is_ok() {
            self.add_lifeline(Lifeline { connection, slot });
        }
        true
    }
}

impl GsiSource {
    /// Takes the lifelines that have ended, and the slots of those who are gone.
    pub(super) fn ended(&self) -> Vec<u16> {
        let mut lifelines = self.0.gsi.lifelines.0.lock();
        if lifelines.is_empty() {
            return Vec::new();
        }
        let poll = |lifeline: &Lifeline| libc::pollfd {
            fd: lifeline.connection.raw(),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut fds: Vec<libc::pollfd> = lifelines.iter().map(poll).collect();
        if !matches!(sys::poll(&mut fds, Duration::ZERO), Ok(1..)) {
            return Vec::new();
        }
        let mut gone = Vec::new();
        let mut states = fds.iter().map(|fd| fd.revents != 0);
        // Nobody says anything: what can be read is the end.
        lifelines.retain(|lifeline| {
            let has_ended = states.next().unwrap_or(false);
            gone.extend(has_ended.then_some(lifeline.slot));
            !has_ended
        });
        gone
    }
}
