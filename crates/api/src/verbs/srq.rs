//! Shared receive queues.

use crate::verbs::backend::RawSrq;
use crate::verbs::core::within;
use crate::verbs::cq::Operated;
use crate::verbs::device::Domain;
use crate::verbs::slots::{Entry, Queue};
use ferroce_buffers::{Error, Failed, Held, Kind, Parts, PayloadMut, Result};
use std::fmt;
use std::sync::Arc;

/// Pieces of memory in a receive.
const PARTS: u32 = 4;

/// Receives that several queue pairs of a domain take from. Clones are handles of the same queue.
///
/// A receive completes in the completion queue of the queue pair that has taken it. Completions of different queue pairs come
/// in any order.
///
/// A queue pair that fails leaves the receives where they are, but for one in which a message has begun. A queue pair that is
/// destroyed takes its completions with it: the memory of those that weren't polled is returned by [`Srq::destroy`]. So a program
/// that goes on [aborts](crate::verbs::Qp::abort) the queue pair first, and polls.
///
/// ```
/// # use ferroce::{sim::World, verbs::{Device, Send}};
/// # fn main() -> ferroce::Result<()> {
/// # let world = World::new(1);
/// # let [a, b] = ["a", "b"].map(|name| Device::simulated(&world.host(name)).open().unwrap());
/// # let mut clients = a.cq(16)?;
/// let mut cq = b.cq(64)?;
/// let srq = b.srq(32)?;
/// for tag in 0..8 {
///     srq.recv(tag, b.alloc(64)?)?;
/// }
/// let mut servers = Vec::new();
/// for number in 0..2 {
///     let setup = b.rc(&cq).srq(&srq).send_depth(4).build()?;
///     # let client = a.rc(&clients).send_depth(4).recv_depth(0).build()?;
///     # let (ours, theirs) = (setup.endpoint(), client.endpoint());
///     # client.connect(&ours)?.post(number, Send::new(())).map_err(|failed| failed.error).ok();
///     # let ours = theirs;
///     servers.push(setup.connect(&ours)?);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Srq {
    inner: Arc<SharedReceives>,
}

struct SharedReceives {
    /// `None` once it is destroyed. It ends before the slots.
    raw: Option<RawSrq>,
    queue: Arc<Queue>,
    depth: u32,
}

impl Srq {
    pub(crate) fn new(domain: &Domain, depth: u32) -> Result<Self> {
        let queue = Queue::shared(depth);
        let raw = Some(domain.inner.srq(depth, PARTS, queue.number())?);
        Ok(Self { inner: Arc::new(SharedReceives { raw, queue, depth }) })
    }

    pub(crate) fn raw(&self) -> &RawSrq {
        self.inner.raw.as_ref().expect("only the last handle destroys it")
    }

    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.inner.queue
    }

    /// Its number in [events](crate::verbs::Event::LowWater).
    #[must_use]
    pub fn number(&self) -> u32 {
        self.inner.queue.number()
    }

    /// Receives that the queue holds.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.inner.depth
    }

    /// Posts memory for a message to any of the queue pairs. Its completion has the same tag.
    ///
    /// # Errors
    /// The memory comes back. [`Kind::Full`]: the queue has no room. [`Kind::Invalid`]: more than 4 parts.
    pub fn recv<P: PayloadMut>(&self, tag: u64, memory: P) -> Result<(), Failed<P>> {
        let segments = memory.room();
        let queue = &self.inner.queue;
        if let Err(error) = within(&segments, PARTS, "recv") {
            return Err(Failed { error, back: memory });
        }
        // Room is taken before the memory is lent, which can't be undone with its type.
        let slot = {
            let mut shelf = queue.shelf().expect("a shared receive queue has a shelf");
            if shelf.room() == 0 {
                let why = format!("{} receives are outstanding or wait to be polled", self.inner.depth);
                return Err(Failed { error: Error::new(Kind::Full, "recv", why), back: memory });
            }
            let mut held = Held::default();
            memory.hold_for_writing(&mut held);
            let pushed = shelf.push(Entry { tag, what: Operated::Received, len: 0, held, kept: None });
            pushed.unwrap_or_else(|_| unreachable!("there is room"))
        };
        // An adapter that refuses keeps the memory in its slot until the queue is destroyed.
        let _ = self.raw().receive(queue.wr_id(slot), &segments);
        Ok(())
    }

    /// Receives that can be posted before completions are polled.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.inner.queue.shelf().map_or(0, |shelf| shelf.room())
    }

    /// Asks for one [event](crate::verbs::Event::LowWater) when fewer than `receives` are left; 0 asks for none.
    ///
    /// # Errors
    /// It is more than the queue holds.
    pub fn low_water(&self, receives: u32) -> Result<()> {
        if receives > self.inner.depth {
            let why = format!("{receives} receives; the queue holds {}", self.inner.depth);
            return Err(Error::invalid("low_water", why));
        }
        self.raw().low_water(receives)
    }

    /// Destroys the queue, and returns the memory of its receives with their tags.
    ///
    /// # Errors
    /// Other handles, or queue pairs that use it, exist: it comes back.
    pub fn destroy(self) -> Result<Vec<(u64, Parts)>, Self> {
        let mut inner = Arc::try_unwrap(self.inner).map_err(|inner| Self { inner })?;
        inner.raw = None;
        Ok(inner.queue.drain())
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        self.raw = None;
        drop(self.queue.drain());
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Srq").field("depth", &self.inner.depth).finish()
    }
}
