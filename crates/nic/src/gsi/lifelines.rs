//! Who of the host's processes is gone: a process that dies can't tell its peers.
//!
//! A process keeps a connection to each process that it has connections with, and the kernel closes it when either dies. A process that
//! is asked for one says that it has it. Until then the end of the connection may also mean that the process had no time to be asked: it
//! is asked once more.

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
/// How often a process that ends the connection without having said anything is asked. One that goes on so is as good as gone.
const QUESTIONS: u8 = 100;

/// A connection that ends with the process at its other end.
struct Lifeline {
    connection: EngineFd,
    /// Of the process at the other end.
    slot: u16,
    /// How often the process has been asked; 0: it has the connection, so the end of that is its own.
    asked: u8,
}

/// What lifelines that have ended mean for the processes that had these slots.
#[derive(Default)]
pub(super) struct Ended {
    pub(super) gone: Vec<u16>,
    /// They may be there; with how often they have been asked.
    pub(super) unheard: Vec<(u16, u8)>,
}

/// The lifelines of this process.
#[derive(Default)]
pub(crate) struct Lifelines(Mutex<class::Lifelines, Vec<Lifeline>>);

struct Followed;

impl Service for Followed {
    fn serve(&self, connection: EngineFd, message: &[u8], _: Vec<EngineFd>) {
        let slot = message.get(frame::HEADER..).and_then(|body| body.try_into().ok());
        if let (Some(adapter), Some(slot)) = (adapter::current(), slot)
            && frame::send(connection.raw(), &mut frame::header(frame::GRANTED), &[]).is_ok()
        {
            adapter.add_lifeline(Lifeline { connection, slot: u16::from_ne_bytes(slot), asked: 0 });
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
        self.ask_to_follow(slot, 1)
    }

    /// As [`Adapter::follow`], for the time number `asked`.
    pub(super) fn ask_to_follow(&self, slot: u16, asked: u8) -> bool {
        let is_known = |lifeline: &Lifeline| lifeline.slot == slot;
        if self.host.owns(u32::from(slot) << 12) || self.gsi.lifelines.0.lock().iter().any(is_known) {
            return true;
        }
        let Some(connection) = self.host.dial(slot) else { return !self.host.is_free(slot) };
        let own = self.host.slots().first().copied().unwrap_or_default();
        let mut message = [&frame::header(KIND)[..], &own.to_ne_bytes()].concat();
        // Where this fails the connection has ended, which is seen in its turn.
        let _ = frame::send(connection.raw(), &mut message, &[]);
        self.add_lifeline(Lifeline { connection, slot, asked });
        true
    }
}

impl GsiSource {
    /// Takes the lifelines that have ended.
    pub(super) fn ended(&self) -> Ended {
        let mut ended = Ended::default();
        let mut lifelines = self.0.gsi.lifelines.0.lock();
        if lifelines.is_empty() {
            return ended;
        }
        let poll = |lifeline: &Lifeline| libc::pollfd {
            fd: lifeline.connection.raw(),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut fds: Vec<libc::pollfd> = lifelines.iter().map(poll).collect();
        if !matches!(sys::poll(&mut fds, Duration::ZERO), Ok(1..)) {
            return ended;
        }
        let mut states = fds.iter().map(|fd| fd.revents != 0);
        lifelines.retain_mut(|lifeline| {
            if !states.next().unwrap_or(false) {
                return true;
            }
            let mut answer = [0; frame::HEADER];
            // All that is ever said.
            if lifeline.asked > 0
                && matches!(frame::receive(lifeline.connection.raw(), &mut answer), Ok((1.., _)))
            {
                lifeline.asked = 0;
                return true;
            }
            match lifeline.asked {
                0 | QUESTIONS => ended.gone.push(lifeline.slot),
                asked => ended.unheard.push((lifeline.slot, asked)),
            }
            false
        });
        ended
    }
}
