//! The send queue: work requests between posting and completion.

use crate::{Buffer, Data, SendOp, SendRequest, SendWr};
use ferroce_ring::EntryRing;
use ferroce_types::SgeList;

/// A posted work request.
#[derive(Debug)]
pub struct Wqe<A> {
    /// The request.
    pub wr: SendWr<A>,
    /// Bytes of the message.
    pub len: u32,
    /// PSNs it takes: request packets, or response packets of a READ.
    pub packets: u32,
    /// Its first extended PSN; meaningful once it is started.
    pub first: u64,
    /// Its origin.
    pub issuer: Issuer,
}

/// The origin of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Issuer {
    /// The program.
    Program,
    /// The adapter: the READ of a rendezvous.
    Rendezvous,
    /// The adapter: the SEND that ends the peer's rendezvous.
    Fin,
}

impl<A> Wqe<A> {
    /// Whose its elements are: a rendezvous fetches the data into the receive that has matched.
    pub fn buffer(&self) -> Buffer {
        if self.issuer == Issuer::Rendezvous { Buffer::Receive } else { Buffer::Request }
    }

    /// An environment may carry it out without packets.
    pub const fn may_be_executed(&self) -> bool {
        self.len > 0 && matches!(self.wr.op, SendOp::Write { .. } | SendOp::Read { .. })
    }

    /// The responder answers it with data, if only with none.
    pub const fn wants_data(&self) -> bool {
        matches!(self.wr.op, SendOp::Read { .. } | SendOp::AtomicWrite { .. } | SendOp::Flush { .. })
            || self.is_atomic()
    }

    /// It is an atomic.
    pub const fn is_atomic(&self) -> bool {
        matches!(self.wr.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }

    /// The extended PSN after its last.
    pub const fn end(&self) -> u64 {
        self.first + self.packets as u64
    }

    /// Where packet `packet` begins in the message, and its bytes.
    pub fn slice(&self, packet: u32, mtu: u32) -> (u64, u32) {
        let offset = u64::from(packet) * u64::from(mtu);
        let left = u64::from(self.len).saturating_sub(offset);
        (offset, left.min(u64::from(mtu)) as u32)
    }
}

impl<A> Default for Wqe<A> {
    /// What a place of the ring holds before its first request.
    fn default() -> Self {
        let data = Data::Sges(SgeList::new());
        let (signaled, solicited, fence) = (false, false, false);
        let wr =
            SendWr { wr_id: 0, op: SendOp::Send, data, signaled, solicited, fence, ud: None, remote_srqn: 0 };
        Self { wr, len: 0, packets: 0, first: 0, issuer: Issuer::Program }
    }
}

impl<A: Clone> Wqe<A> {
    /// Becomes this request. What it was before doesn't matter.
    #[inline(always)]
    fn set(&mut self, request: &SendRequest<'_, A>, (packets, first): (u32, u64), issuer: Issuer) {
        let SendRequest { wr_id, op, data, signaled, solicited, fence, ud, remote_srqn } = *request;
        self.wr.wr_id = wr_id;
        self.wr.op = op;
        self.wr.data.set(data);
        self.wr.signaled = signaled;
        self.wr.solicited = solicited;
        self.wr.fence = fence;
        self.wr.ud = ud.cloned();
        self.wr.remote_srqn = remote_srqn;
        self.len = data.len() as u32;
        self.packets = packets;
        self.first = first;
        self.issuer = issuer;
    }
}

/// Work requests by a number that never wraps: the first one ever posted is 0. A request is written and read where it lies: it has two
/// hundred bytes, of which most need few.
#[derive(Debug)]
pub struct SendQueue<A> {
    /// Requests of the adapter come on top of the program's `max`.
    ring: EntryRing<Wqe<A>>,
    head: u64,
    max: u32,
    /// Those of the adapter, which take no room from the program.
    own: u32,
    /// Bytes of all that were ever posted.
    bytes: u64,
    /// Requests that have ended without a place in the queue.
    passed: u64,
    /// Those in the queue that ask for a completion.
    signaled: u32,
}

impl<A: Clone> SendQueue<A> {
    /// Adds a request that takes so many PSNs, from this extended one on.
    #[inline(always)]
    pub fn push(&mut self, request: &SendRequest<'_, A>, psns: (u32, u64), issuer: Issuer) -> &Wqe<A> {
        self.own += u32::from(issuer != Issuer::Program);
        self.signaled += u32::from(request.signaled);
        let wqe = self.ring.add();
        wqe.set(request, psns, issuer);
        self.bytes += u64::from(wqe.len);
        wqe
    }
}

impl<A> SendQueue<A> {
    /// An empty one for so many requests.
    pub const fn new(max: u32) -> Self {
        Self { ring: EntryRing::new(), head: 0, max, own: 0, bytes: 0, passed: 0, signaled: 0 }
    }

    /// Uses this ring, which is empty as the queue is.
    pub fn place(&mut self, ring: EntryRing<Wqe<A>>) {
        self.ring = ring;
    }

    /// Ends the queue, and returns its ring.
    pub fn end(&mut self) -> EntryRing<Wqe<A>> {
        self.reset();
        self.max = 0;
        std::mem::take(&mut self.ring)
    }

    /// The number of the oldest request (of the next one posted if there is none).
    pub const fn head(&self) -> u64 {
        self.head
    }

    /// The number of the next request posted.
    pub fn tail(&self) -> u64 {
        self.head + u64::from(self.len())
    }

    /// There is no request.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many requests there are.
    pub fn len(&self) -> u32 {
        self.ring.len() as u32
    }

    /// Is there room for one more of the program after `before` others?
    pub fn has_room(&self, before: u32) -> bool {
        u64::from(self.len() - self.own) + u64::from(before) < u64::from(self.max)
    }

    /// Bytes of the messages of all requests that were ever posted.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A request of so many bytes was carried out without a place in the queue.
    #[inline]
    pub fn count_passed(&mut self, len: u32) {
        self.bytes += u64::from(len);
        self.passed += 1;
    }

    /// Requests in the queue that ask for a completion.
    pub const fn signaled(&self) -> u32 {
        self.signaled
    }

    /// Requests that have ended, however they have.
    pub const fn ended(&self) -> u64 {
        self.head + self.passed
    }

    /// The oldest request.
    #[inline]
    pub fn front(&self) -> Option<&Wqe<A>> {
        self.ring.front()
    }

    /// The request with this number.
    pub fn get(&self, number: u64) -> Option<&Wqe<A>> {
        self.ring.get(usize::try_from(number.checked_sub(self.head)?).ok()?)
    }

    /// The request with this number.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut Wqe<A>> {
        self.ring.get_mut(usize::try_from(number.checked_sub(self.head)?).ok()?)
    }

    /// Removes the oldest request where it lies: a move costs more.
    #[inline(always)]
    pub fn drop_front(&mut self) {
        let Some(wqe) = self.ring.get_mut(0) else { return };
        wqe.wr.data = Data::Sges(SgeList::new());
        wqe.wr.ud = None;
        let (issuer, signaled) = (wqe.issuer, wqe.wr.signaled);
        self.ring.skip_front();
        self.head += 1;
        self.own -= u32::from(issuer != Issuer::Program);
        self.signaled -= u32::from(signaled);
    }

    /// Removes all requests and frees the memory of its own.
    pub fn reset(&mut self) {
        while self.front().is_some() {
            self.drop_front();
        }
        self.ring.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataRef, UdTarget};
    use core::cell::Cell;
    use ferroce_types::Sge;

    const ELEMENT: Sge = Sge { addr: 16, length: 8, lkey: 1 };

    fn request<A>(wr_id: u64) -> SendRequest<'static, A> {
        let data =
            if wr_id.is_multiple_of(3) { DataRef::Inline(&[7; 40]) } else { DataRef::Sges(&[ELEMENT]) };
        let (op, signaled, solicited, fence) = (SendOp::Send, true, false, false);
        SendRequest { wr_id, op, data, signaled, solicited, fence, ud: None, remote_srqn: 0 }
    }

    #[test]
    fn requests_have_numbers_that_stay_and_are_counted_until_they_are_removed() {
        let mut queue = SendQueue::<()>::new(16);
        for n in 0..200u64 {
            queue.push(&request(n), (1, n), Issuer::Program);
            let first = n.saturating_sub(10);
            if n >= 10 {
                assert_eq!(queue.front().map(|wqe| wqe.wr.wr_id), Some(n - 10));
                queue.drop_front();
            }
            let head = if n >= 10 { first + 1 } else { 0 };
            assert_eq!((queue.head(), queue.tail(), queue.ended()), (head, n + 1, head));
            assert_eq!((queue.len(), u64::from(queue.signaled())), (queue.signaled(), n + 1 - head));
            let is_there =
                |number| queue.get(number).is_some_and(|wqe| (wqe.wr.wr_id, wqe.first) == (number, number));
            assert!((0..n + 3).all(|number| is_there(number) == (head..=n).contains(&number)));
        }
        queue.reset();
        assert_eq!((queue.len(), queue.signaled(), queue.head()), (0, 0, 200));
    }

    /// An address, which counts itself.
    struct Counted<'a>(&'a Cell<u32>);

    impl<'a> Counted<'a> {
        fn new(held: &'a Cell<u32>) -> Self {
            held.set(held.get() + 1);
            Self(held)
        }
    }

    impl Clone for Counted<'_> {
        fn clone(&self) -> Self {
            Self::new(self.0)
        }
    }

    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() - 1);
        }
    }

    #[test]
    fn a_request_frees_what_it_holds_when_it_is_removed() {
        let held = Cell::new(0);
        let mut queue = SendQueue::new(4);
        for removes in [SendQueue::drop_front, SendQueue::reset] {
            let target = UdTarget { address: Counted::new(&held), qpn: 1, qkey: 1 };
            queue.push(&SendRequest { ud: Some(&target), ..request(1) }, (1, 0), Issuer::Program);
            drop(target);
            assert_eq!(held.get(), 1);
            removes(&mut queue);
            assert_eq!(held.get(), 0);
        }
    }
}
