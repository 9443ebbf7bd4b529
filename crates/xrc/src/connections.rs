//! The connections of this process's targets, and of the handles that processes have of one another's.

use crate::guest::{Guest, Jobs, MAX_GUESTS};
use crate::process::SrqProcess;
use crate::remote::Remote;
use ferroce_os::{
    sync::{Mutex, class},
    sys::{self, EngineFd},
};
use ferroce_parts::QpAttr;
use ferroce_types::{Error, Result};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

/// A queue pair of this process that has to do with other processes' targets or SRQs.
pub trait Target: Debug + Send + Sync + 'static {
    /// Its attributes (ibv_query_qp(3)).
    ///
    /// # Errors
    /// As the call.
    fn query(&self) -> Result<QpAttr>;

    /// Changes them (ibv_modify_qp(3)).
    ///
    /// # Errors
    /// As the call.
    fn modify(self: &Arc<Self>, attr: &QpAttr, bits: u32) -> Result<()>;

    /// The process at the other end of a connection has no handle any more. Whether that was the last handle.
    fn remove_guest(&self, connection: &Arc<EngineFd>) -> bool;

    /// Ends it: its last handle has gone.
    fn end(self: &Arc<Self>);
}

/// The connections of a process.
#[derive(Debug)]
pub struct Connections<Q: Target> {
    epoll: EngineFd,
    ends: Mutex<class::Ends, ConnectionEnds<Q>>,
    pub(super) jobs: Mutex<class::Jobs, Jobs<Q>>,
}

#[derive(Debug)]
struct ConnectionEnds<Q: Target> {
    next: u64,
    by_number: BTreeMap<u64, ConnectionEnd<Q>>,
}

/// What a connection is for.
#[derive(Debug)]
pub enum ConnectionEnd<Q: Target> {
    /// A target of this process.
    Asking(Weak<Q>, Arc<EngineFd>),
    /// What executes requests of another process's target.
    Serving(Arc<Q>, Arc<EngineFd>),
    /// Another process's handle of a target of this one.
    Guest(Arc<Guest<Q>>),
    /// A handle of another process's target.
    Remote(Weak<Remote<Q>>, Arc<EngineFd>),
}

impl<Q: Target> Clone for ConnectionEnd<Q> {
    fn clone(&self) -> Self {
        match self {
            Self::Asking(qp, connection) => Self::Asking(qp.clone(), connection.clone()),
            Self::Serving(qp, connection) => Self::Serving(qp.clone(), connection.clone()),
            Self::Guest(guest) => Self::Guest(guest.clone()),
            Self::Remote(remote, connection) => Self::Remote(remote.clone(), connection.clone()),
        }
    }
}

impl<Q: Target> ConnectionEnd<Q> {
    /// The connection itself.
    pub fn connection(&self) -> &Arc<EngineFd> {
        match self {
            Self::Asking(_, connection) | Self::Serving(_, connection) | Self::Remote(_, connection) => {
                connection
            }
            Self::Guest(guest) => &guest.connection,
        }
    }
}

/// Why a process with SRQs isn't asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectError {
    /// There is none.
    NoSrq,
    /// The system refuses it just now.
    Refused,
}

impl<Q: Target> Connections<Q> {
    /// None.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> Result<Self> {
        let epoll = sys::epoll_create().map_err(Error::os("epoll_create1"))?;
        Ok(Self {
            epoll,
            ends: Mutex::new(ConnectionEnds { next: 0, by_number: BTreeMap::new() }),
            jobs: Mutex::default(),
        })
    }

    /// Readable when a message has come, or a connection has ended.
    pub fn poll_fd(&self) -> RawFd {
        self.epoll.raw()
    }

    /// Adds one. Returns its number, which no other connection of this process has.
    pub fn add(&self, end: ConnectionEnd<Q>) -> Option<u64> {
        let mut ends = self.ends.lock();
        ends.next += 1;
        let (epoll, fd) = (self.epoll.raw(), end.connection().raw());
        sys::epoll_control(epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, ends.next).ok()?;
        let number = ends.next;
        ends.by_number.insert(number, end);
        Some(number)
    }

    /// There is room for one more handle of another process.
    pub fn has_room(&self) -> bool {
        self.ends.lock().by_number.values().filter(|end| matches!(end, ConnectionEnd::Guest(_))).count()
            < MAX_GUESTS
    }

    /// Waits for the answer of a process with SRQs, which the background thread reads.
    ///
    /// # Errors
    /// [`ConnectError::Refused`] when the system refuses it.
    pub fn await_answer(
        &self,
        qp: &Arc<Q>,
        slot: u16,
        connection: EngineFd,
    ) -> std::result::Result<SrqProcess, ConnectError> {
        let connection = Arc::new(connection);
        let asking = ConnectionEnd::Asking(Arc::downgrade(qp), connection.clone());
        let number = self.add(asking).ok_or(ConnectError::Refused)?;
        Ok(SrqProcess::asked(slot, number, connection))
    }

    /// Removes one.
    pub fn remove(&self, number: u64) -> Option<ConnectionEnd<Q>> {
        let end = self.ends.lock().by_number.remove(&number);
        if let Some(end) = &end {
            // Closing the descriptor removes it too, but another thread may keep it open for longer.
            let fd = end.connection().raw();
            let _ = sys::epoll_control(self.epoll.raw(), libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
        end
    }

    /// A target lets go of a connection.
    pub fn close(&self, process: &SrqProcess) {
        self.remove(process.number());
    }

    /// The connection with this number.
    pub fn get(&self, number: u64) -> Option<ConnectionEnd<Q>> {
        self.ends.lock().by_number.get(&number).cloned()
    }

    /// The number of the connection for which a queue pair executes another process's requests.
    pub fn served_by(&self, qp: &Arc<Q>) -> Option<u64> {
        let is_it = |end: &ConnectionEnd<Q>| matches!(end, ConnectionEnd::Serving(served, _) if Arc::ptr_eq(served, qp));
        self.ends.lock().by_number.iter().find_map(|(number, end)| is_it(end).then_some(*number))
    }
}
