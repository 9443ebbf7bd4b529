//! Handles that other processes have of this process's target QPs. A connection is a handle.

use crate::connections::{ConnectionEnd, Connections, Target};
use crate::handle_message::{self, Call};
use crate::process::send;
use ferroce_os::{
    sync::{Mutex, class},
    sys::EngineFd,
};
use ferroce_parts::QpAttr;
use ferroce_types::Error;
use std::collections::VecDeque;
use std::sync::Arc;

/// Handles of all other processes together.
pub(super) const MAX_GUESTS: usize = 4096;
/// Threads that change attributes for others, at most: asking a third process for a path can take a while.
const MAX_WORKERS: usize = 8;

/// A handle that another process has.
#[derive(Debug)]
pub struct Guest<Q: Target> {
    qp: Arc<Q>,
    pub(super) connection: Arc<EngineFd>,
    state: Mutex<class::GuestTarget, GuestState>,
}

#[derive(Debug, Default)]
struct GuestState {
    /// The last change that was asked for, until the other process confirms it ([`Call::CarryOut`]).
    proposed: Option<(u32, QpAttr, u32)>,
    /// A change of attributes is under way.
    modifying: bool,
    /// The other process has ended, or has given the handle up.
    left: bool,
    /// The number of the call that is answered when the handle has been closed.
    farewell: Option<u32>,
}

/// Changes of attributes that wait for a thread: of every guest at most one.
#[derive(Debug)]
pub(super) struct Jobs<Q: Target> {
    waiting: VecDeque<ModifyJob<Q>>,
    workers: usize,
}

#[derive(Debug)]
struct ModifyJob<Q: Target> {
    guest: Arc<Guest<Q>>,
    number: u32,
    attr: QpAttr,
    bits: u32,
}

impl<Q: Target> Default for Jobs<Q> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), workers: 0 }
    }
}

impl<Q: Target> Guest<Q> {
    /// Another process, at the other end of a connection, has been granted a handle of `qp`.
    pub fn admit(connections: &Connections<Q>, qp: Arc<Q>, connection: Arc<EngineFd>) {
        let guest = Arc::new(Self { qp, connection, state: Mutex::default() });
        if connections.add(ConnectionEnd::Guest(guest.clone())).is_none() {
            guest.leave();
        }
    }

    /// Does what the other process asks for. `None` ends the connection.
    pub fn take_message(self: &Arc<Self>, connections: &'static Connections<Q>, bytes: &[u8]) -> Option<()> {
        match handle_message::parse_call(bytes)? {
            (number, Call::Query) => {
                let mut answer = match self.qp.query() {
                    Ok(attr) => handle_message::queried(number, &attr),
                    Err(busy) => handle_message::done(number, &Err(busy)),
                };
                send(&self.connection, &mut answer).then_some(())
            }
            (number, Call::Modify(attr, bits)) => {
                let mut state = self.state.lock();
                if state.modifying {
                    let busy = Err(Error::Busy("its attributes are being changed".into()));
                    return self.answer(number, &busy).then_some(());
                }
                state.proposed = Some((number, attr, bits));
                send(&self.connection, &mut handle_message::ready(number)).then_some(())
            }
            (number, Call::CarryOut) => {
                let mut state = self.state.lock();
                let (_, attr, bits) =
                    state.proposed.take().filter(|of| of.0 == number && !state.modifying)?;
                state.modifying = true;
                drop(state);
                connections.modify(ModifyJob { guest: self.clone(), number, attr, bits });
                Some(())
            }
            (number, Call::Close) => {
                self.state.lock().farewell = Some(number);
                None
            }
        }
    }

    fn answer(&self, number: u32, result: &Result<(), Error>) -> bool {
        send(&self.connection, &mut handle_message::done(number, result))
    }

    /// Gives the handle up, when a change that is in progress has ended; the last handle ends the QP.
    pub fn leave(&self) {
        let farewell = {
            let mut state = self.state.lock();
            state.left = true;
            if state.modifying {
                return;
            }
            state.farewell
        };
        if self.qp.remove_guest(&self.connection) {
            self.qp.end();
        }
        if let Some(number) = farewell {
            self.answer(number, &Ok(()));
        }
    }

    /// A change of attributes has ended. From here on the next one may begin.
    fn modified(&self, number: u32, result: &Result<(), Error>) {
        let left = {
            let mut state = self.state.lock();
            state.modifying = false;
            state.left
        };
        self.answer(number, result);
        if left {
            self.leave();
        }
    }
}

impl<Q: Target> Connections<Q> {
    fn modify(&'static self, job: ModifyJob<Q>) {
        let mut jobs = self.jobs.lock();
        jobs.waiting.push_back(job);
        if jobs.workers == MAX_WORKERS {
            return;
        }
        jobs.workers += 1;
        drop(jobs);
        if ferroce_engine::start_thread("ferroce-xrc", move || self.work_off()).is_err() {
            tracing::warn!("no thread for a change of a target queue pair's attributes");
            let mut jobs = self.jobs.lock();
            jobs.workers -= 1;
            // Threads that work already take the waiting changes; without any, the changes fail.
            let stuck = if jobs.workers == 0 { std::mem::take(&mut jobs.waiting) } else { VecDeque::new() };
            drop(jobs);
            for job in stuck {
                job.guest.modified(job.number, &Err(Error::NoMemory("no thread".into())));
            }
        }
    }

    /// Makes changes until none waits.
    fn work_off(&self) {
        let Ok(_inside) = ferroce_os::fork::enter_library() else { return };
        loop {
            let job = {
                let mut jobs = self.jobs.lock();
                let Some(job) = jobs.waiting.pop_front() else {
                    jobs.workers -= 1;
                    return;
                };
                job
            };
            let result = job.guest.qp.modify(&job.attr, job.bits);
            job.guest.modified(job.number, &result);
        }
    }
}
