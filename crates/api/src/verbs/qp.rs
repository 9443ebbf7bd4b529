//! Queue pairs.

use crate::verbs::core::Core;
use crate::verbs::{Cq, Endpoint, Operation, Reliable, Transport};
use ferroce_buffers::{Failed, Parts, PayloadMut, QpAttributes, Result};
use std::fmt;
use std::marker::PhantomData;

/// A queue pair that isn't connected: it takes receives.
pub struct Setup<T> {
    core: Core,
    transport: PhantomData<T>,
}

impl<T: Transport> Setup<T> {
    pub(crate) const fn new(core: Core) -> Self {
        Self { core, transport: PhantomData }
    }

    /// The QPN.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.core.number()
    }

    /// The address of this queue pair, for the peer.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.core.endpoint()
    }

    pub(crate) fn completes_in(&self, cq: &Cq) -> bool {
        self.core.completes_in(cq)
    }

    pub(crate) const fn attributes(&self) -> &QpAttributes {
        self.core.attributes()
    }

    /// Posts memory for a message. A receive that is posted before the endpoint is sent is there for the first message.
    ///
    /// # Errors
    /// As [`Qp::recv`].
    pub fn recv<P: PayloadMut>(&mut self, tag: u64, memory: P) -> Result<(), Failed<P>> {
        self.core.recv(tag, memory)
    }
}

impl Setup<Reliable> {
    /// Connects the queue pair with the peer's. The peer does the same with this side's [`endpoint`](Setup::endpoint).
    ///
    /// # Errors
    /// The endpoint is of a host that this device can't reach.
    #[allow(clippy::result_large_err)] // The setup comes back by value, as it came.
    pub fn connect(self, endpoint: &Endpoint) -> Result<Qp<Reliable>, Failed<Self>> {
        self.connect_from(endpoint, None)
    }

    /// As [`Setup::connect`]. The first request has this PSN: with a connection manager the peer chooses it.
    #[allow(clippy::result_large_err)] // As above.
    pub(crate) fn connect_from(
        self,
        endpoint: &Endpoint,
        first: Option<u32>,
    ) -> Result<Qp<Reliable>, Failed<Self>> {
        match self.core.connect(endpoint, first) {
            Ok(()) => Ok(Qp { core: self.core, transport: PhantomData }),
            Err(error) => Err(Failed { error, back: self }),
        }
    }
}

impl<T> fmt::Debug for Setup<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Setup").field(&self.core).finish()
    }
}

/// A connected queue pair.
///
/// Dropping it destroys it: the memory of outstanding requests is released when no access to it is possible any more. A queue
/// pair that is forgotten goes on, and keeps that memory.
pub struct Qp<T> {
    core: Core,
    transport: PhantomData<T>,
}

/// A queue pair of a reliable connection.
pub type RcQp = Qp<Reliable>;

impl<T: Transport> Qp<T> {
    /// The QPN.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.core.number()
    }

    /// Posts a request. Its memory comes back with its completion, which has the same tag.
    ///
    /// # Errors
    /// The request comes back. [`Kind::Full`](crate::Kind::Full): as many requests as the send queue holds are outstanding, or
    /// their completions wait to be polled.
    pub fn post<O: Operation<T>>(&mut self, tag: u64, operation: O) -> Result<(), Failed<O>> {
        self.core.post(tag, operation)
    }

    /// Posts memory for a message. Its completion has the same tag.
    ///
    /// # Errors
    /// The memory comes back. [`Kind::Full`](crate::Kind::Full): the receive queue has no room.
    pub fn recv<P: PayloadMut>(&mut self, tag: u64, memory: P) -> Result<(), Failed<P>> {
        self.core.recv(tag, memory)
    }

    /// Requests that can be posted before completions are polled.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.core.room().0
    }

    /// Receives that can be posted before completions are polled.
    #[must_use]
    pub fn recv_room(&self) -> u32 {
        self.core.room().1
    }

    /// Fails the queue pair: all outstanding requests and receives complete as [flushed](crate::Status::Flushed), and their
    /// memory isn't accessed any more.
    pub fn abort(&mut self) {
        self.core.abort();
    }

    /// Whether it has failed, or was aborted.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.core.is_dead()
    }

    /// Destroys the queue pair, and returns the memory of outstanding requests with their tags: first of sends, then of
    /// receives, in the order in which they were posted. They have no completions.
    #[must_use]
    pub fn destroy(mut self) -> Vec<(u64, Parts)> {
        self.core.destroy()
    }
}

impl<T> fmt::Debug for Qp<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}
