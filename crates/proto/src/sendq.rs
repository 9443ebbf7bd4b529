//! The send queue: work requests between posting and completion.

use crate::{Buffer, Data, Fetch, PlainData, PlainRequest, SendOp, SendWr, SgeList, one_sge};
use std::collections::VecDeque;
use std::fmt::Debug;

/// Places for as many entries as a queue may have, where the owner of a QP wants them ([`crate::Qp::place_send_queue`]).
pub trait Slots<T>: Debug + Send {
    /// Entries.
    fn len(&self) -> usize;
    /// None at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// There is room for one more.
    fn has_room(&self) -> bool;
    /// One more, if there is room.
    fn push_back(&mut self, entry: T);
    /// Takes the oldest out.
    fn pop_front(&mut self) -> Option<T>;
    /// The entry after `index` older ones.
    fn get(&self, index: usize) -> Option<&T>;
    /// Likewise.
    fn get_mut(&mut self, index: usize) -> Option<&mut T>;
}

/// A posted work request.
#[derive(Debug)]
pub struct Wqe<A> {
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
    /// Whose its elements are: a rendezvous fetches the data into the receive that has matched.
    pub(crate) fn buffer(&self) -> Buffer {
        if self.issuer == Issuer::Rendezvous { Buffer::Receive } else { Buffer::Request }
    }

    /// An environment may carry it out without packets.
    pub(crate) const fn may_be_executed(&self) -> bool {
        self.len > 0 && matches!(self.wr.op, SendOp::Write { .. } | SendOp::Read { .. })
    }

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

impl<A> Wqe<A> {
    /// What stands where no request is.
    fn blank() -> Self {
        let data = Data::Sges(SgeList::new());
        let (signaled, solicited, fence) = (false, false, false);
        let wr =
            SendWr { wr_id: 0, op: SendOp::Send, data, signaled, solicited, fence, ud: None, remote_srqn: 0 };
        Self { wr, len: 0, packets: 0, first: 0, issuer: Issuer::Program }
    }

    /// Becomes a SEND of one packet. What it was before doesn't matter.
    #[inline(always)]
    fn set_plain(&mut self, request: &PlainRequest<'_>, first: u64) {
        let PlainRequest { wr_id, data, immediate, signaled, solicited } = *request;
        self.wr.wr_id = wr_id;
        self.wr.op = immediate.map_or(SendOp::Send, |immediate| SendOp::SendWithImmediate { immediate });
        self.wr.data = match data {
            PlainData::Memory(sge) => Data::Sges(one_sge(sge)),
            PlainData::Inline(bytes) => Data::Inline(bytes.into()),
        };
        self.wr.signaled = signaled;
        self.wr.solicited = solicited;
        self.wr.fence = false;
        self.wr.ud = None;
        self.wr.remote_srqn = 0;
        self.len = data.len() as u32;
        self.packets = 1;
        self.first = first;
        self.issuer = Issuer::Program;
    }
}

impl<A> Wqe<A> {
    /// Becomes a READ of one packet or an atomic. What it was before doesn't matter.
    #[inline(always)]
    fn set_fetch(&mut self, fetch: &Fetch, first: u64) {
        let Fetch { wr_id, sge, op, signaled, fence } = *fetch;
        self.wr.wr_id = wr_id;
        self.wr.op = op;
        self.wr.data = Data::Sges(one_sge(sge));
        self.wr.signaled = signaled;
        self.wr.solicited = false;
        self.wr.fence = fence;
        self.wr.ud = None;
        self.wr.remote_srqn = 0;
        self.len = sge.length;
        self.packets = 1;
        self.first = first;
        self.issuer = Issuer::Program;
    }
}

#[derive(Debug)]
enum Queue<A> {
    Own(OwnPlaces<A>),
    Placed(Placed<Wqe<A>>),
}

/// Memory of its own. A request is written and read where it lies: it has two hundred bytes, of which most need few.
#[derive(Debug)]
struct OwnPlaces<A> {
    /// As many as there were at once, rounded up to a power of two; blank but for `len` from `first` on.
    all: Vec<Wqe<A>>,
    first: usize,
    len: usize,
}

impl<A> OwnPlaces<A> {
    const LEAST: usize = 4;

    const fn new() -> Self {
        Self { all: Vec::new(), first: 0, len: 0 }
    }

    #[inline]
    fn at(&self, index: usize) -> usize {
        // The number of places is a power of two.
        (self.first + index) & (self.all.len() - 1)
    }

    /// The place of one more entry.
    #[inline]
    fn add(&mut self) -> &mut Wqe<A> {
        if self.len == self.all.len() {
            self.grow();
        }
        let at = self.at(self.len);
        self.len += 1;
        &mut self.all[at]
    }

    #[cold]
    fn grow(&mut self) {
        self.all.rotate_left(self.first);
        self.first = 0;
        self.all.resize_with((2 * self.len).max(Self::LEAST), Wqe::blank);
    }

    fn pop_front(&mut self) -> Option<Wqe<A>> {
        let wqe = std::mem::replace(self.get_mut(0)?, Wqe::blank());
        self.drop_front();
        Some(wqe)
    }

    /// Drops the oldest, if there is one.
    #[inline]
    fn drop_front(&mut self) -> bool {
        let Some(wqe) = self.get_mut(0) else { return false };
        wqe.wr.data = Data::Sges(SgeList::new());
        wqe.wr.ud = None;
        self.first = self.at(1);
        self.len -= 1;
        true
    }

    #[inline]
    fn get(&self, index: usize) -> Option<&Wqe<A>> {
        (index < self.len).then(|| &self.all[self.at(index)])
    }

    #[inline]
    fn get_mut(&mut self, index: usize) -> Option<&mut Wqe<A>> {
        if index >= self.len {
            return None;
        }
        let at = self.at(index);
        Some(&mut self.all[at])
    }
}

/// What the places don't hold, since requests of the adapter come on top, waits behind.
#[derive(Debug)]
struct Placed<T> {
    slots: Box<dyn Slots<T>>,
    rest: VecDeque<T>,
}

impl<T> Placed<T> {
    fn len(&self) -> usize {
        self.slots.len() + self.rest.len()
    }

    /// One more entry, where it lies.
    fn add(&mut self, entry: T) -> &mut T {
        if !self.rest.is_empty() || !self.slots.has_room() {
            self.rest.push_back(entry);
        } else {
            self.slots.push_back(entry);
        }
        let last = self.len() - 1;
        self.get_mut(last).expect("it was added")
    }

    fn pop_front(&mut self) -> Option<T> {
        let entry = self.slots.pop_front();
        if let Some(next) = self.rest.pop_front() {
            self.slots.push_back(next);
        }
        entry
    }

    fn get(&self, index: usize) -> Option<&T> {
        match index.checked_sub(self.slots.len()) {
            Some(behind) => self.rest.get(behind),
            None => self.slots.get(index),
        }
    }

    fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        match index.checked_sub(self.slots.len()) {
            Some(behind) => self.rest.get_mut(behind),
            None => self.slots.get_mut(index),
        }
    }
}

/// Work requests by a number that never wraps: the first one ever posted is 0.
#[derive(Debug)]
pub(crate) struct SendQueue<A> {
    queue: Queue<A>,
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

impl<A> SendQueue<A> {
    pub(crate) const fn new(max: u32) -> Self {
        Self { queue: Queue::Own(OwnPlaces::new()), head: 0, max, own: 0, bytes: 0, passed: 0, signaled: 0 }
    }

    /// Puts the entries of an empty queue there from here on.
    pub(crate) fn place(&mut self, slots: Box<dyn Slots<Wqe<A>>>) {
        self.queue = Queue::Placed(Placed { slots, rest: VecDeque::new() });
    }

    /// Ends the queue, and gives back the places of its entries, if they were given.
    pub(crate) fn end(&mut self) -> Option<Box<dyn Slots<Wqe<A>>>> {
        self.reset();
        self.max = 0;
        match std::mem::replace(&mut self.queue, Queue::Own(OwnPlaces::new())) {
            Queue::Own(_) => None,
            Queue::Placed(placed) => Some(placed.slots),
        }
    }

    /// The number of the oldest request (of the next one posted if there is none).
    pub(crate) const fn head(&self) -> u64 {
        self.head
    }

    /// The number of the next request posted.
    pub(crate) fn tail(&self) -> u64 {
        self.head + u64::from(self.len())
    }

    pub(crate) fn len(&self) -> u32 {
        match &self.queue {
            Queue::Own(queue) => queue.len as u32,
            Queue::Placed(queue) => queue.len() as u32,
        }
    }

    /// Is there room for one more of the program after `before` others?
    pub(crate) fn has_room(&self, before: u32) -> bool {
        u64::from(self.len() - self.own) + u64::from(before) < u64::from(self.max)
    }

    /// Bytes of the messages of all requests that were ever posted.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A request of so many bytes was carried out without a place in the queue.
    #[inline]
    pub(crate) fn count_passed(&mut self, len: u32) {
        self.bytes += u64::from(len);
        self.passed += 1;
    }

    /// Requests in the queue that ask for a completion.
    pub(crate) const fn signaled(&self) -> u32 {
        self.signaled
    }

    /// Requests that have ended, however they have.
    pub(crate) const fn ended(&self) -> u64 {
        self.head + self.passed
    }

    #[inline]
    pub(crate) fn push(&mut self, wqe: Wqe<A>) {
        self.bytes += u64::from(wqe.len);
        self.own += u32::from(wqe.issuer != Issuer::Program);
        self.signaled += u32::from(wqe.wr.signaled);
        match &mut self.queue {
            Queue::Own(queue) => *queue.add() = wqe,
            Queue::Placed(queue) => _ = queue.add(wqe),
        }
    }

    /// Adds a SEND of one packet, with its first extended PSN.
    #[inline]
    pub(crate) fn push_plain(&mut self, request: &PlainRequest<'_>, first: u64) {
        self.bytes += request.data.len() as u64;
        self.signaled += u32::from(request.signaled);
        self.add().set_plain(request, first);
    }

    /// Adds a READ of one packet or an atomic, with its first extended PSN.
    #[inline]
    pub(crate) fn push_fetch(&mut self, fetch: &Fetch, first: u64) -> &Wqe<A> {
        self.bytes += u64::from(fetch.sge.length);
        self.signaled += u32::from(fetch.signaled);
        let wqe = self.add();
        wqe.set_fetch(fetch, first);
        wqe
    }

    /// The place of one more request.
    #[inline(always)]
    fn add(&mut self) -> &mut Wqe<A> {
        match &mut self.queue {
            Queue::Own(queue) => queue.add(),
            Queue::Placed(queue) => queue.add(Wqe::blank()),
        }
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&Wqe<A>> {
        match &self.queue {
            Queue::Own(queue) => queue.get(0),
            Queue::Placed(queue) => queue.get(0),
        }
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Wqe<A>> {
        let index = usize::try_from(number.checked_sub(self.head)?).ok()?;
        match &self.queue {
            Queue::Own(queue) => queue.get(index),
            Queue::Placed(queue) => queue.get(index),
        }
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut Wqe<A>> {
        let index = usize::try_from(number.checked_sub(self.head)?).ok()?;
        match &mut self.queue {
            Queue::Own(queue) => queue.get_mut(index),
            Queue::Placed(queue) => queue.get_mut(index),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Wqe<A>> {
        let wqe = match &mut self.queue {
            Queue::Own(queue) => queue.pop_front(),
            Queue::Placed(queue) => queue.pop_front(),
        }?;
        self.head += 1;
        self.own -= u32::from(wqe.issuer != Issuer::Program);
        self.signaled -= u32::from(wqe.wr.signaled);
        Some(wqe)
    }

    /// Drops the oldest request.
    #[inline(always)]
    pub(crate) fn drop_front(&mut self) {
        let (own, signaled) =
            self.front().map_or((false, false), |wqe| (wqe.issuer != Issuer::Program, wqe.wr.signaled));
        let dropped = match &mut self.queue {
            Queue::Own(queue) => queue.drop_front(),
            Queue::Placed(queue) => queue.pop_front().is_some(),
        };
        self.head += u64::from(dropped);
        self.own -= u32::from(own);
        self.signaled -= u32::from(signaled);
    }

    /// Drops everything and gives its own memory back.
    pub(crate) fn reset(&mut self) {
        while self.pop().is_some() {}
        if let Queue::Own(queue) = &mut self.queue {
            *queue = OwnPlaces::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sge, UdTarget};

    #[derive(Debug)]
    struct Three(VecDeque<u32>);

    impl Slots<u32> for Three {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn has_room(&self) -> bool {
            self.0.len() < 3
        }

        fn push_back(&mut self, entry: u32) {
            assert!(self.has_room());
            self.0.push_back(entry);
        }

        fn pop_front(&mut self) -> Option<u32> {
            self.0.pop_front()
        }

        fn get(&self, index: usize) -> Option<&u32> {
            self.0.get(index)
        }

        fn get_mut(&mut self, index: usize) -> Option<&mut u32> {
            self.0.get_mut(index)
        }
    }

    fn element(wr_id: u64) -> Sge {
        Sge { addr: 16 * wr_id, length: 8, lkey: 1 }
    }

    fn request(wr_id: u64) -> PlainRequest<'static> {
        let data = if wr_id.is_multiple_of(3) {
            PlainData::Inline(&[7; 40])
        } else {
            PlainData::Memory(element(wr_id))
        };
        PlainRequest { wr_id, data, immediate: None, signaled: true, solicited: false }
    }

    #[test]
    fn requests_are_where_they_were_posted_however_many_there_are() {
        let mut places = OwnPlaces::<()>::new();
        let mut posted = VecDeque::new();
        // Fuller and emptier again, so that the places wrap and grow.
        for n in 0..200u64 {
            for wr_id in [2 * n, 2 * n + 1].into_iter().take(if n % 40 < 20 { 2 } else { 0 }) {
                places.add().set_plain(&request(wr_id), wr_id);
                posted.push_back(wr_id);
            }
            if n % 3 == 0 {
                assert_eq!(places.drop_front(), posted.pop_front().is_some());
            } else {
                assert_eq!(places.pop_front().map(|wqe| wqe.wr.wr_id), posted.pop_front());
            }
            let wr_id = |index| places.get(index).map(|wqe| (wqe.wr.wr_id, wqe.first));
            assert!((0..=posted.len()).all(|i| wr_id(i) == posted.get(i).map(|&id| (id, id))));
        }
        assert!(places.all.len() <= 32);
    }

    #[test]
    fn what_a_request_held_goes_with_it() {
        let mut places = OwnPlaces::new();
        for drop_first in [false, true] {
            let wqe = places.add();
            wqe.wr.ud = Some(UdTarget { address: (), qpn: 1, qkey: 1 });
            wqe.wr.data = Data::Sges(one_sge(element(1)));
            if drop_first {
                places.drop_front();
            } else {
                places.pop_front();
            }
            assert!(places.all.iter().all(|wqe| wqe.wr.ud.is_none() && wqe.wr.data.is_empty()));
        }
    }

    #[test]
    fn what_has_no_place_waits_behind() {
        let mut placed = Placed { slots: Box::new(Three(VecDeque::new())), rest: VecDeque::new() };
        let mut plain = VecDeque::new();
        for n in 0..40 {
            for entry in [2 * n, 2 * n + 1].into_iter().take(if n % 8 < 4 { 2 } else { 0 }) {
                placed.add(entry);
                plain.push_back(entry);
            }
            assert_eq!(placed.pop_front(), plain.pop_front());
            assert!((0..plain.len() + 1).all(|i| placed.get(i) == plain.get(i)));
            assert!((0..plain.len() + 1).all(|i| placed.get_mut(i) == plain.get_mut(i)));
            assert_eq!((placed.len(), placed.slots.len()), (plain.len(), plain.len().min(3)));
        }
    }
}
