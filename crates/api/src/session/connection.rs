//! Connections.

use crate::session::Driver;
use crate::session::connecting::Connecting;
use crate::session::line::Ticket;
use crate::session::link::Link;
use crate::session::message::Message;
use crate::session::op::Op;
use crate::session::outcome::{Outcome, ReturnedPayload};
use crate::session::permit::{Batch, Permit, Ready, refused};
use crate::session::shared::{Refusal, Shared};
use crate::verbs::{CompareSwap, FetchAdd, Read, Send, Write};
use ferroce_buffers::rights::{Atomics, Reads, Writes};
use ferroce_buffers::{Error, Failed, Fault, ManagerNews, Payload, PayloadMut, Pool, Remote, Result, Status};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A connection. Clones are handles of the same connection, and may be used by several threads.
///
/// When the last handle is dropped, or with [`Connection::close`], the connection ends: outstanding requests fail as
/// [flushed](Status::Flushed), and return their memory to the [`Op`]s that wait for them.
#[derive(Clone)]
pub struct Connection(Arc<Handle>);

/// What all handles of a connection share, and requests and messages don't.
struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.end(closed());
    }
}

fn closed() -> Fault {
    Fault::new(Status::Flushed, 0, Some("the connection was closed by this side".into()), None)
}

impl Connection {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self(Arc::new(Handle(shared)))
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.0.0
    }

    /// Makes a connection with the program that listens at an address and port, on this crate or by librdmacm. The connection uses the
    /// pool for its receives, which are posted before the request leaves.
    ///
    /// ```no_run
    /// # async fn example(driver: &ferroce::session::Driver) -> ferroce::Result<()> {
    /// use ferroce::session::Connection;
    ///
    /// let pool = driver.domain().pool(64, 4096)?;
    /// let peer = Connection::connect(driver, "10.0.0.2:7471", &pool).send_depth(32).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Waiting for it fails if the peer rejects ([`Kind::Rejected`](crate::Kind::Rejected)) or doesn't answer
    /// ([`Kind::TimedOut`](crate::Kind::TimedOut), after 98 s), if the name has no address ([`Kind::NotFound`](crate::Kind::NotFound)), if
    /// the private data is too long ([`Kind::TooLong`](crate::Kind::TooLong)), or if the device makes no connections by address
    /// ([`Kind::Unsupported`](crate::Kind::Unsupported)). A name is looked up on the thread that polls, which blocks meanwhile; the
    /// first of its addresses is asked.
    pub fn connect(driver: &Driver, address: &str, pool: &Pool) -> Connecting {
        Connecting::new(driver, address, pool)
    }

    /// The peer's address and port, of a connection by address.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.shared().peer.get().map(|(peer, _)| *peer)
    }

    /// What the peer's program has sent with its request or its answer, with zeros behind it. Empty for a connection that wasn't made by
    /// address.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.shared().peer.get().map_or(&[], |(_, data)| data)
    }

    pub(crate) fn with_link<R>(&self, f: impl FnOnce(&Link) -> Result<R>) -> Result<R> {
        self.shared().with_link(f)
    }

    /// This side is ready (RTU).
    pub(crate) fn establish(&self) -> Result<()> {
        self.with_link(Link::establish)?;
        self.watch();
        Ok(())
    }

    /// The connection ends when the peer ends it.
    pub(crate) fn watch(&self) {
        self.shared().watch_link();
    }

    /// The next news of the connection manager.
    pub(crate) async fn news(&self) -> ManagerNews {
        let poll = |context: &mut Context<'_>| {
            self.shared().poll_link(context.waker()).map_or(Poll::Pending, Poll::Ready)
        };
        std::future::poll_fn(poll).await
    }

    /// Its driver.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.shared().driver
    }

    /// The QPN of its queue pair.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.shared().qpn
    }

    /// Posts a request.
    ///
    /// # Errors
    /// The request comes back. [`Kind::Full`](crate::Kind::Full): the send queue has no room, or others wait for it; wait with
    /// [`Connection::ready`]. Otherwise the request is wrong, or the connection has ended.
    pub fn try_post<O: Outcome>(&self, operation: O) -> Result<Op<O>, Failed<O>> {
        match self.shared().post(operation, false) {
            Ok(slot) => Ok(Op::new(self.shared(), slot)),
            Err((refusal, back)) => Err(refused(refusal, back)),
        }
    }

    /// Waits for room for a request. Waits end in the order in which they began.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn ready(&self) -> impl Future<Output = Result<Permit<'_>>> + std::marker::Send {
        Ready::new(self.shared(), 1).permit()
    }

    /// Waits for room for `count` requests together, which are then posted without a wait.
    ///
    /// # Errors
    /// The connection has ended, or its send queue is shorter ([`Kind::Invalid`](crate::Kind::Invalid)).
    pub async fn batch(&self, count: u32) -> Result<Batch<'_>> {
        let depth = self.shared().send_depth;
        if count == 0 || count > depth {
            return Err(Error::invalid("batch", format!("{count} requests; the send queue has {depth}")));
        }
        Ready::new(self.shared(), count).await
    }

    /// Posts a request as soon as there is room: by this call if there is some. Dropped before, it posts nothing.
    ///
    /// # Errors
    /// The request comes back: it is wrong, or the connection has ended.
    pub fn post<O: Outcome>(
        &self,
        operation: O,
    ) -> impl Future<Output = Result<Op<O>, Failed<O>>> + std::marker::Send {
        // The request has its `Op` before the future is polled: a future that is dropped leaves no slot behind.
        let posted = self.shared().post(operation, false).map(|slot| Op::new(self.shared(), slot));
        async move {
            match posted {
                Ok(op) => Ok(op),
                Err((Refusal::Error(error), back)) => Err(Failed { error, back }),
                Err((Refusal::Full, back)) => match self.ready().await {
                    Ok(permit) => permit.post(back),
                    Err(error) => Err(Failed { error, back }),
                },
            }
        }
    }

    /// Posts a request, and waits for its end. It is posted by this call if there is room.
    ///
    /// # Errors
    /// It was refused, or has failed. Its payload comes back.
    pub fn perform<O: Outcome>(
        &self,
        operation: O,
    ) -> impl Future<Output = Result<O::Done, O::Lost>> + std::marker::Send {
        let posted = self.post(operation);
        async move {
            match posted.await {
                Ok(op) => op.await,
                Err(Failed { error, back }) => Err(back.refused(error)),
            }
        }
    }

    /// Sends a message, as [`Connection::perform`]. It returns the payload.
    ///
    /// # Errors
    /// As [`Connection::perform`].
    pub fn send<P: Payload + ReturnedPayload>(
        &self,
        payload: P,
    ) -> impl Future<Output = Result<P::Back, Failed<P::Back>>> + std::marker::Send {
        self.perform(Send::new(payload))
    }

    /// Writes to the peer's memory, as [`Connection::perform`]. It returns the payload.
    ///
    /// # Errors
    /// As [`Connection::perform`].
    pub fn write<P: Payload + ReturnedPayload, A: Writes>(
        &self,
        payload: P,
        to: Remote<A>,
    ) -> impl Future<Output = Result<P::Back, Failed<P::Back>>> + std::marker::Send {
        self.perform(Write::new(payload, to))
    }

    /// Reads the peer's memory, as [`Connection::perform`]. It returns the memory that was read into.
    ///
    /// # Errors
    /// As [`Connection::perform`].
    pub fn read<P: PayloadMut + ReturnedPayload, A: Reads>(
        &self,
        into: P,
        from: Remote<A>,
    ) -> impl Future<Output = Result<P::Back, Failed<P::Back>>> + std::marker::Send {
        self.perform(Read::new(into, from))
    }

    /// Adds to a word of the peer's memory, as [`Connection::perform`]. It returns the word before.
    ///
    /// # Errors
    /// As [`Connection::perform`].
    pub fn fetch_add<A: Atomics>(
        &self,
        at: Remote<A>,
        add: u64,
    ) -> impl Future<Output = Result<u64>> + std::marker::Send {
        self.perform(FetchAdd::new(at, add))
    }

    /// Replaces a word of the peer's memory by `swap` if it is `compare`, as [`Connection::perform`]. It returns the word before.
    ///
    /// # Errors
    /// As [`Connection::perform`].
    pub fn compare_swap<A: Atomics>(
        &self,
        at: Remote<A>,
        compare: u64,
        swap: u64,
    ) -> impl Future<Output = Result<u64>> + std::marker::Send {
        self.perform(CompareSwap::new(at, compare, swap))
    }

    /// Waits for a message. Messages come in the order in which the peer has sent them, and a wait that is dropped takes none.
    ///
    /// # Errors
    /// The connection has ended, and all messages were returned.
    pub fn recv(&self) -> impl Future<Output = Result<Message>> + std::marker::Send {
        let mut wait =
            Wait { shared: self.shared(), ticket: Ticket::default(), leave: Shared::leave_receivers };
        std::future::poll_fn(move |context| match wait.poll(context, Shared::poll_receive) {
            Some(received) => Poll::Ready(received.map(|received| Message::new(wait.shared, received))),
            None => Poll::Pending,
        })
    }

    /// Waits for a message on this thread, which looks for completions meanwhile.
    ///
    /// # Errors
    /// As [`Connection::recv`].
    pub fn recv_blocking(&self) -> Result<Message> {
        let received = self.driver().wait_until(None, || self.shared().try_receive());
        let received = received.unwrap_or_else(|| unreachable!("a wait without a limit"))?;
        Ok(Message::new(self.shared(), received))
    }

    /// A message, if there is one. This doesn't look for completions.
    ///
    /// # Errors
    /// As [`Connection::recv`].
    #[inline]
    pub fn try_recv(&self) -> Result<Option<Message>> {
        match self.shared().try_receive() {
            Some(Ok(received)) => Ok(Some(Message::new(self.shared(), received))),
            None => Ok(None),
            Some(Err(error)) => Err(error),
        }
    }

    /// Fails the connection: all requests end as [flushed](Status::Flushed) and return their memory, which isn't accessed any more.
    pub fn abort(&self) {
        let why = "the connection was aborted";
        self.shared().fail(&Fault::new(Status::Flushed, 0, Some(why.into()), None));
    }

    /// Waits until the connection has ended, and returns the first failure, or which side has ended it.
    pub fn closed(&self) -> impl Future<Output = Fault> + std::marker::Send {
        let mut wait =
            Wait { shared: self.shared(), ticket: Ticket::default(), leave: Shared::leave_watchers };
        std::future::poll_fn(move |context| {
            wait.poll(context, Shared::poll_closed).map_or(Poll::Pending, Poll::Ready)
        })
    }

    /// Ends the connection, also for its other handles.
    pub fn close(self) {
        self.shared().end(closed());
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.number()).finish()
    }
}

/// A place in one of the lines of a connection, which is left with this.
struct Wait<'c> {
    shared: &'c Arc<Shared>,
    ticket: Ticket,
    leave: fn(&Shared, &mut Ticket),
}

impl Wait<'_> {
    fn poll<T>(
        &mut self,
        context: &Context<'_>,
        poll: fn(&Shared, &mut Ticket, &std::task::Waker) -> Option<T>,
    ) -> Option<T> {
        poll(self.shared, &mut self.ticket, context.waker())
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.ticket.is_waiting() {
            (self.leave)(self.shared, &mut self.ticket);
        }
    }
}
