//! The send queue: work requests between posting and completion.

use crate::{SendOp, SendWr};
use std::collections::VecDeque;

/// A posted work request.
#[derive(Debug)]
pub(crate) struct Wqe<A> {
    pub(crate) wr: SendWr<A>,
    /// Bytes of the message.
    pub(crate) len: u32,
    /// PSNs it takes: request packets, or response packets of a READ.
    pub(crate) packets: u32,
    /// Its first extended PSN; meaningful once it is started.
    pub(crate) first: u64,
    pub(crate) issuer: Issuer,
}

/// Who wants a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Issuer {
    Program,
    /// The adapter: the READ of a rendezvous.
    Rendezvous,
    /// The adapter: what tells the peer that its rendezvous is over.
    Fin,
}

impl<A> Wqe<A> {
    /// The responder answers it with data, if only with none.
    pub(crate) const fn wants_data(&self) -> bool {
        matches!(self.wr.op, SendOp::Read { .. } | SendOp::AtomicWrite { .. } | SendOp::Flush { .. })
            || self.is_atomic()
    }

    pub(crate) const fn is_atomic(&self) -> bool {
        matches!(self.wr.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }

    /// The extended PSN after its last.
    pub(crate) const fn end(&self) -> u64 {
        self.first + self.packets as u64
    }

    /// Where packet `packet` begins in the message, and its bytes.
    pub(crate) fn slice(&self, packet: u32, mtu: u32) -> (u64, u32) {
        let offset = u64::from(packet) * u64::from(mtu);
        let left = u64::from(self.len).saturating_sub(offset);
        (offset, left.min(u64::from(mtu)) as u32)
    }
}

/// Work requests by a number that never wraps: the first one ever posted is 0.
#[derive(Debug)]
pub(crate) struct SendQueue<A> {
    queue: VecDeque<Wqe<A>>,
    head: u64,
    max: u32,
    /// Those of the adapter, which take no room from the program.
    own: u32,
}

impl<A> SendQueue<A> {
    pub(crate) const fn new(max: u32) -> Self {
        Self { queue: VecDeque::new(), head: 0, max, own: 0 }
    }

    /// The number of the oldest request (of the next one posted if there is none).
    pub(crate) const fn head(&self) -> u64 {
        self.head
    }

    /// The number of the next request posted.
    pub(crate) fn tail(&self) -> u64 {
        self.head + self.queue.len() as u64
    }

    pub(crate) fn len(&self) -> u32 {
        self.queue.len() as u32
    }

    /// Is there room for one more of the program after `before` others?
    pub(crate) fn has_room(&self, before: u32) -> bool {
        self.queue.len() - (self.own as usize) + (before as usize) < self.max as usize
    }

    pub(crate) fn push(&mut self, wqe: Wqe<A>) {
        self.own += u32::from(wqe.issuer != Issuer::Program);
        self.queue.push_back(wqe);
    }

    pub(crate) fn front(&self) -> Option<&Wqe<A>> {
        self.queue.front()
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Wqe<A>> {
        self.queue.get(usize::try_from(number.checked_sub(self.head)?).ok()?)
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut Wqe<A>> {
        self.queue.get_mut(usize::try_from(number.checked_sub(self.head)?).ok()?)
    }

    pub(crate) fn pop(&mut self) -> Option<Wqe<A>> {
        let wqe = self.queue.pop_front()?;
        self.head += 1;
        self.own -= u32::from(wqe.issuer != Issuer::Program);
        Some(wqe)
    }

    /// Drops everything and gives the memory back.
    pub(crate) fn reset(&mut self) {
        self.head = self.tail();
        self.queue = VecDeque::new();
        self.own = 0;
    }
}
