//! Room in the send queue that is reserved.

use crate::session::line::Ticket;
use crate::session::op::Op;
use crate::session::outcome::Outcome;
use crate::session::shared::{Refusal, Shared};
use ferroce_buffers::{Error, Failed, Kind, Result};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Room for one request. Dropping it lets another request have the room.
#[must_use = "it reserves room for a request"]
#[derive(Debug)]
pub struct Permit<'c>(Batch<'c>);

impl Permit<'_> {
    /// Posts a request. The send queue can't be full.
    ///
    /// # Errors
    /// The request comes back: it is wrong, or the connection has ended.
    pub fn post<O: Outcome>(mut self, operation: O) -> Result<Op<O>, Failed<O>> {
        self.0.post(operation)
    }
}

/// Room for several requests, which no other request can take.
#[must_use = "it reserves room for requests"]
pub struct Batch<'c> {
    shared: &'c Arc<Shared>,
    left: u32,
}

impl Batch<'_> {
    /// Requests that can be posted with it.
    #[must_use]
    pub const fn left(&self) -> u32 {
        self.left
    }

    /// Posts a request.
    ///
    /// # Errors
    /// The request comes back: the batch is used up ([`Kind::Full`]), the request is wrong, or the connection has ended. A request that
    /// was refused takes no room.
    pub fn post<O: Outcome>(&mut self, operation: O) -> Result<Op<O>, Failed<O>> {
        if self.left == 0 {
            let error = Error::new(Kind::Full, "post", "the batch is used up");
            return Err(Failed { error, back: operation });
        }
        match self.shared.post(operation, true) {
            Ok(slot) => {
                self.left -= 1;
                Ok(Op::new(self.shared, slot))
            }
            Err((refusal, back)) => Err(refused(refusal, back)),
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.shared.give_back(self.left);
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("left", &self.left).finish()
    }
}

pub(crate) fn refused<O>(refusal: Refusal, back: O) -> Failed<O> {
    let error = match refusal {
        Refusal::Error(error) => error,
        Refusal::Full => Error::new(
            Kind::Full,
            "try_post",
            "the send queue is full, or others wait: `ready` waits for room",
        ),
    };
    Failed { error, back }
}

/// A wait for room. Dropped before its end, it reserves nothing.
pub(crate) struct Ready<'c> {
    shared: &'c Arc<Shared>,
    ticket: Ticket,
    count: u32,
}

impl<'c> Ready<'c> {
    pub(crate) fn new(shared: &'c Arc<Shared>, count: u32) -> Self {
        Self { shared, ticket: Ticket::default(), count }
    }

    /// For one request.
    pub(crate) async fn permit(self) -> Result<Permit<'c>> {
        self.await.map(Permit)
    }
}

impl<'c> Future for Ready<'c> {
    type Output = Result<Batch<'c>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { shared, ticket, count } = self.get_mut();
        match shared.poll_ready(ticket, *count, context.waker()) {
            None => Poll::Pending,
            Some(Ok(())) => Poll::Ready(Ok(Batch { shared, left: *count })),
            Some(Err(error)) => Poll::Ready(Err(error)),
        }
    }
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        if self.ticket.is_waiting() {
            self.shared.leave_ready(&mut self.ticket);
        }
    }
}
