//! Notices that a process of the host has died, since a process that is killed can't notify its peers.
//!
//! A process keeps a connection to each process that it has connections with, and the kernel closes it when either dies. A process that
//! is asked for one keeps the connection first, and then answers that it has it: from then on the end of the connection is the end of the
//! process. The process that asks may have died before this one reads the question: its connection is kept all the same, and its end is
//! seen in its turn. A process that can't keep the connection answers that it can't, and is asked again later, as is one that has too
//! many waiting to be asked. Until there is an answer the end of the connection may also mean that the process had no time to be asked:
//! it is asked once more. A process of another user keeps no connection: it is tried again and again, until there is none.

use super::GsiSource;
use super::state::Lifeline;
use crate::network::Network;
use ferroce_engine::Handler;
use ferroce_host::{RequestHandler, Services, frame};
use ferroce_os::clock;
use ferroce_os::sys::{self, EngineFd};
use ferroce_types::first_qpn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Kind of the requests that ask for nothing but the connection. The sender's slot follows, two bytes.
const KIND: u8 = 6;
/// Lifelines of a process at most, those that it has asked for and those that others have. It isn't informed when more processes end.
const MOST: usize = 8192;
/// How often a process is asked that ends the connection without an answer. One that goes on so is as good as gone.
const QUESTIONS: u8 = 100;
/// After so long a process is asked again that had too many waiting, or kept no more.
const LATER: Duration = Duration::from_millis(100);

/// What lifelines that have ended mean for the processes that had these slots.
#[derive(Default)]
pub(super) struct EndedLifelines {
    pub(super) gone: Vec<u16>,
    /// They may be there; with how often they have been asked.
    pub(super) unheard: Vec<(u16, u8)>,
}

/// Returns the process's part of the network.
struct Followed<H: Handler>(fn() -> Option<&'static Network<H>>);

impl<H: Handler> RequestHandler for Followed<H> {
    fn serve(&self, connection: EngineFd, message: &[u8], _: Vec<EngineFd>) {
        let slot = message.get(frame::HEADER..).and_then(|body| body.try_into().ok());
        let (Some(network), Some(slot)) = ((self.0)(), slot) else { return };
        let lifeline = Lifeline { connection: Some(connection), slot: u16::from_ne_bytes(slot), asked: 0 };
        if let Err(Lifeline { connection: Some(connection), .. }) =
            network.keep_lifeline(lifeline, &mut frame::header(frame::GRANTED))
        {
            // Where this fails the process that has asked is gone, and isn't missed: there are too many.
            let _ = frame::send(connection.raw(), &mut frame::header(frame::REFUSED), &[]);
        }
    }
}

/// Lets other processes find out when this one dies. `current` returns the process's part of the network.
pub fn register<H: Handler>(services: &Services, current: fn() -> Option<&'static Network<H>>) {
    services.register(KIND, Arc::new(Followed(current)));
}

impl<H: Handler> Network<H> {
    /// Keeps a lifeline and sends `message` over it.
    ///
    /// # Errors
    /// The lifeline, which isn't kept, and nothing has been sent: there are too many, or it can't be watched.
    fn keep_lifeline(&self, lifeline: Lifeline, message: &mut [u8]) -> Result<(), Lifeline> {
        let mut all = self.gsi.lifelines.all.lock();
        if all.len() >= MOST {
            return Err(lifeline);
        }
        if let Some(connection) = &lifeline.connection {
            if self.engine.watch_control(connection.raw()).is_err() {
                return Err(lifeline);
            }
            // Fails where the other process is gone. The end of the connection isn't looked at before it is in the list: that takes the lock.
            let _ = frame::send(connection.raw(), message, &[]);
        }
        all.push(lifeline);
        Ok(())
    }

    /// Has a process asked for a lifeline later that keeps none for now.
    fn ask_later(&self) {
        self.gsi.lifelines.are_missing.store(true, Ordering::Release);
        self.look_later();
    }

    /// Has processes asked later that have no lifeline, if only to see whether they are there.
    fn look_later(&self) {
        let later = clock::now().after(LATER);
        self.gsi.lifelines.later.fetch_min(later.0, Ordering::AcqRel);
        self.engine.wake_for(later);
    }

    /// Asks those for lifelines that took none before. The slots of processes that are gone since.
    pub(super) fn ask_again(&self) -> Vec<u16> {
        let lifelines = &self.gsi.lifelines;
        lifelines.later.store(u64::MAX, Ordering::Release);
        lifelines.are_missing.store(false, Ordering::Release);
        let missing = |lifeline: &mut Lifeline| lifeline.connection.is_none();
        let missing: Vec<Lifeline> = lifelines.all.lock().extract_if(.., missing).collect();
        let is_gone = |lifeline: &Lifeline| !self.ask_to_follow(lifeline.slot, lifeline.asked);
        missing.iter().filter(|lifeline| is_gone(lifeline)).map(|lifeline| lifeline.slot).collect()
    }

    /// Has [`CommunicationManager::gone`](super::CommunicationManager::gone) called when the process dies that has a slot. Whether there
    /// is one.
    pub(super) fn follow(&self, slot: u16) -> bool {
        self.ask_to_follow(slot, 1)
    }

    /// As [`Network::follow`], for the time number `asked`.
    pub(super) fn ask_to_follow(&self, slot: u16, asked: u8) -> bool {
        let is_known = |lifeline: &Lifeline| lifeline.slot == slot;
        if self.host.owns(first_qpn(slot)) || self.gsi.lifelines.all.lock().iter().any(is_known) {
            return true;
        }
        let connection = match self.host.dial(slot) {
            Ok(connection) => connection,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return false,
            Err(error) => {
                if self.keep_lifeline(Lifeline { connection: None, slot, asked }, &mut []).is_ok() {
                    match error.kind() {
                        // Another user's process.
                        io::ErrorKind::PermissionDenied => self.look_later(),
                        _ => self.ask_later(),
                    }
                }
                return true;
            }
        };
        let own = self.host.slots().first().copied().unwrap_or_default();
        let mut message = [&frame::header(KIND)[..], &own.to_ne_bytes()].concat();
        let lifeline = Lifeline { connection: Some(connection), slot, asked };
        if let Err(unkept) = self.keep_lifeline(lifeline, &mut message) {
            // This process can watch no more: the other one is asked later, if there is room for that.
            if self.keep_lifeline(Lifeline { connection: None, ..unkept }, &mut []).is_ok() {
                self.ask_later();
            }
        }
        true
    }
}

impl<H: Handler, E: Fn()> GsiSource<H, E> {
    /// Takes the lifelines that have ended.
    pub(super) fn ended(&self) -> EndedLifelines {
        let mut ended = EndedLifelines::default();
        let mut all = self.network.gsi.lifelines.all.lock();
        if all.is_empty() {
            return ended;
        }
        // A negative descriptor is none.
        let fd = |lifeline: &Lifeline| lifeline.connection.as_ref().map_or(-1, EngineFd::raw);
        let poll = |lifeline: &Lifeline| libc::pollfd { fd: fd(lifeline), events: libc::POLLIN, revents: 0 };
        let mut fds: Vec<libc::pollfd> = all.iter().map(poll).collect();
        if !matches!(sys::poll(&mut fds, Duration::ZERO), Ok(1..)) {
            return ended;
        }
        let mut states = fds.iter().map(|fd| fd.revents != 0);
        let (mut unkept, mut given_up) = (false, Vec::new());
        all.retain_mut(|lifeline| {
            if !states.next().unwrap_or(false) {
                return true;
            }
            let mut answer = [0; frame::HEADER];
            if lifeline.asked > 0
                && let Ok((length @ 1.., _)) = frame::receive(fd(lifeline), &mut answer)
            {
                if frame::kind_of(&answer[..length]) == Some(frame::GRANTED) {
                    lifeline.asked = 0;
                } else {
                    // It lives, and keeps none for now.
                    (lifeline.asked, unkept) = (1, true);
                    given_up.extend(lifeline.connection.take());
                }
                return true;
            }
            match lifeline.asked {
                0 | QUESTIONS => ended.gone.push(lifeline.slot),
                asked => ended.unheard.push((lifeline.slot, asked)),
            }
            false
        });
        drop(all);
        drop(given_up);
        if unkept {
            self.network.ask_later();
        }
        ended
    }
}
