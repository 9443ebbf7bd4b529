//! Queue pairs.

use crate::verbs::core::Core;
use crate::verbs::scope::{self, Scope};
use crate::verbs::{
    Batch, Connected, Cq, Datagram, Endpoint, Extra, Operation, Reliable, Transport, Unreliable,
};
use ferroce_buffers::{Error, Failed, Parts, PayloadMut, QpAttributes, Result};
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

    pub(crate) fn completes_in(&self, cq: &Cq) -> bool {
        self.core.completes_in(cq.shared())
    }

    /// All its receives can be posted: none is outstanding, and they aren't shared.
    pub(crate) fn has_all_receives(&self) -> bool {
        self.core.has_all_receives()
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

impl<T: Connected> Setup<T> {
    /// The address of this queue pair, for the peer.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.core.endpoint()
    }

    /// Connects the queue pair with the peer's. The peer does the same with this side's [`endpoint`](Setup::endpoint).
    ///
    /// # Errors
    /// The endpoint is of a host that this device can't reach.
    #[allow(clippy::result_large_err)] // The setup comes back by value, as it came.
    pub fn connect(self, endpoint: &Endpoint) -> Result<Qp<T>, Failed<Self>> {
        self.connect_from(endpoint, None)
    }

    /// As [`Setup::connect`]. The first request has this PSN: with a connection manager the peer chooses it.
    #[allow(clippy::result_large_err)] // As above.
    pub(crate) fn connect_from(self, endpoint: &Endpoint, first: Option<u32>) -> Result<Qp<T>, Failed<Self>> {
        match self.core.connect(endpoint, first) {
            Ok(()) => Ok(Qp { core: self.core, transport: PhantomData }),
            Err(error) => Err(Failed { error, back: self }),
        }
    }
}

impl Setup<Datagram> {
    /// Lets the queue pair send, and receive datagrams with this Q_Key. Senders get it with the [endpoint](Qp::endpoint).
    ///
    /// # Errors
    /// The Q_Key has its highest bit set, which is for privileged programs, or the device refuses: the setup comes back.
    #[allow(clippy::result_large_err)] // As above.
    pub fn activate(self, qkey: u32) -> Result<Qp<Datagram>, Failed<Self>> {
        let activated = if qkey >> 31 == 0 {
            self.core.activate(qkey)
        } else {
            Err(Error::invalid("activate", format!("Q_Key {qkey:#x} is for privileged programs")))
        };
        match activated {
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

/// A queue pair that takes requests.
///
/// Dropping it destroys it: the memory of outstanding requests is released when no access to it is possible any more. A queue
/// pair that is forgotten goes on, and keeps that memory.
pub struct Qp<T> {
    core: Core,
    transport: PhantomData<T>,
}

/// A queue pair of a reliable connection.
pub type RcQp = Qp<Reliable>;

/// A queue pair of an unreliable connection.
pub type UcQp = Qp<Unreliable>;

/// A queue pair for datagrams.
pub type UdQp = Qp<Datagram>;

impl Qp<Reliable> {
    /// Calls `f` with something that posts requests on borrowed memory, which have all ended when this returns. Other completions of
    /// the queue are kept for the program.
    ///
    /// If `f` panics, or the device can't be used any more, the queue pair is destroyed, with the memory of all outstanding requests.
    ///
    /// # Errors
    /// The first failure of a request that [`Scope::finish`] hasn't returned; or requests of this queue pair complete in
    /// another queue.
    ///
    /// # Panics
    /// As [`Scope::finish`].
    ///
    /// ```
    /// # use ferroce::{rights, sim::World, verbs::Device};
    /// # fn main() -> ferroce::Result<()> {
    /// # let world = World::new(1);
    /// # let [a, b] = ["a", "b"].map(|name| Device::simulated(&world.host(name)).open().unwrap());
    /// # let (mut cq, b_cq) = (a.cq(32)?, b.cq(32)?);
    /// # let (a_setup, b_setup) = (a.rc(&cq).build()?, b.rc(&b_cq).build()?);
    /// # let (a_end, b_end) = (a_setup.endpoint(), b_setup.endpoint());
    /// # let (mut qp, _b_qp) = (a_setup.connect(&b_end)?, b_setup.connect(&a_end)?);
    /// # let exposed = b.alloc(64)?.expose(rights::ReadWrite)?;
    /// # let there = exposed.token();
    /// let mut copy = [0; 5];
    /// qp.scope(&mut cq, |scope| {
    ///     scope.write(b"hello", there.slice(..5))?;
    ///     scope.finish()?;
    ///     scope.read(&mut copy, there.slice(..5))
    /// })??;
    /// assert_eq!(&copy, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn scope<'env, R>(
        &mut self,
        cq: &mut Cq<impl Extra>,
        f: impl FnOnce(&Scope<'_, 'env>) -> R,
    ) -> Result<R> {
        scope::scope(&mut self.core, cq.core_mut(), f)
    }
}

impl Qp<Datagram> {
    /// The address of this queue pair, for those that send to it.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.core.endpoint()
    }
}

impl<T: Transport> Qp<T> {
    /// The QPN.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.core.number()
    }

    /// Posts a request. Its memory comes back with its completion, which has the same tag.
    ///
    /// # Errors
    /// The request comes back.
    /// - [`Kind::Full`](crate::Kind::Full): as many requests as the send queue holds are outstanding, or their completions wait to be
    ///   polled.
    /// - [`Kind::TooLong`](crate::Kind::TooLong): more bytes than the peer's memory, a message, or inline data has room for.
    /// - [`Kind::Invalid`](crate::Kind::Invalid): more parts than the queue pair was built for, an atomic that isn't aligned, an
    ///   address of another domain, or 32 bits with a returned loan.
    /// - [`Kind::Unsupported`](crate::Kind::Unsupported): a loan on a device without windows, or a returned loan on a connection
    ///   that isn't reliable.
    /// - [`Kind::Dead`](crate::Kind::Dead): a scope has destroyed the queue pair.
    ///
    /// On a queue pair that has failed, a request is taken and completes as flushed: see [`Qp::is_dead`].
    pub fn post<O: Operation<T>>(&mut self, tag: u64, operation: O) -> Result<(), Failed<O>> {
        self.core.post(tag, operation)
    }

    /// Posts memory for a message. Its completion has the same tag.
    ///
    /// # Errors
    /// The memory comes back. [`Kind::Full`](crate::Kind::Full): the receive queue has no room. [`Kind::Invalid`](crate::Kind::Invalid):
    /// more parts than the queue pair was built for, or it takes its receives from a shared receive queue.
    /// [`Kind::Dead`](crate::Kind::Dead): a scope has destroyed the queue pair.
    pub fn recv<P: PayloadMut>(&mut self, tag: u64, memory: P) -> Result<(), Failed<P>> {
        self.core.recv(tag, memory)
    }

    /// Begins a batch of requests, which are posted together.
    pub fn batch(&mut self) -> Batch<'_, T> {
        Batch::new(&mut self.core)
    }

    /// Requests that can be posted before completions are polled.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.core.room()
    }

    /// Receives that can be posted before completions are polled: to this queue pair, or to the shared receive queue that it uses.
    #[must_use]
    pub fn recv_room(&self) -> u32 {
        self.core.recv_room()
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
    /// receives, in the order in which they were posted. They have no completions. Receives of a shared receive queue stay there.
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
