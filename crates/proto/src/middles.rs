//! The short way of the packets between the first and the last one of a long message: all have the same length, and none names a place.
//!
//! Where their payloads go follows from the message in progress alone, so the caller may place a packet before it knows that the packet is
//! intact: [`QpProtocol::middles`] returns where and changes nothing. [`QpProtocol::middles_taken`] does what the general way would do.

use crate::state::{MessageProgress, charge};
use crate::{Buffer, Data, MAX_MESSAGE, QpProtocol, SendOp, psn};
use ferroce_types::{Instant, QpState, Sge};
use ferroce_wire::{Bth, Operation, Service};

/// Where the payloads of the next packets go.
#[derive(Clone, Copy, Debug)]
pub struct Middles<'a> {
    /// Bytes of each.
    pub packet: usize,
    /// How many there may be: the message's last packet isn't one of them.
    pub most: usize,
    /// Where the first one goes, and behind it the others.
    pub place: MiddlePlace<'a>,
}

/// Where a payload goes.
#[derive(Clone, Copy, Debug)]
pub enum MiddlePlace<'a> {
    /// Memory that the peer writes.
    Remote {
        /// Address.
        va: u64,
        /// Key.
        rkey: u32,
    },
    /// Memory of a receive or of a request, from this byte of its elements on.
    Local(Buffer, &'a [Sge], u64),
}

impl<A: Clone> QpProtocol<A> {
    /// Where this packet's payload goes, if it is the next one of a message in progress, and neither the first nor the last one.
    #[must_use]
    pub fn middles(&self, bth: &Bth) -> Option<Middles<'_>> {
        let (opcode, packet) = (bth.opcode, self.mtu());
        let is_usual = matches!(self.service, Service::Rc | Service::Uc)
            && opcode.service == self.service
            && bth.pkey == self.params.pkey
            && bth.pad == 0;
        if !is_usual {
            return None;
        }
        let (place, room) = match opcode.operation {
            Operation::ReadResponseMiddle => self.middles_of_read(bth.psn)?,
            Operation::SendMiddle | Operation::WriteMiddle => self.middles_of_request(bth)?,
            _ => return None,
        };
        Some(Middles { packet: packet as usize, most: (room / u64::from(packet)) as usize, place })
    }

    /// Where it goes, and how many bytes of middle packets have room there.
    fn middles_of_request(&self, bth: &Bth) -> Option<(MiddlePlace<'_>, u64)> {
        let receives = match self.state {
            QpState::Rts | QpState::Sqd => true,
            QpState::Rtr => self.resp.established,
            _ => false,
        };
        if !receives
            || bth.psn != self.resp.expected_psn()
            || self.is_delegating()
            || !self.resp.kept.numbers.is_empty()
        {
            return None;
        }
        match (bth.opcode.operation, self.resp.message) {
            (Operation::SendMiddle, MessageProgress::Send { done }) if !self.params.tags => {
                let held = self.resp.held.as_ref()?;
                let room = held.capacity().min(MAX_MESSAGE).saturating_sub(done);
                Some((MiddlePlace::Local(Buffer::Receive, &held.sges, done), room))
            }
            (Operation::WriteMiddle, MessageProgress::Write { va, rkey, len, done })
                if self.params.access.remote_write =>
            {
                // At least a byte comes later.
                let room = u64::from(len - done).saturating_sub(1);
                Some((MiddlePlace::Remote { va: va.wrapping_add(u64::from(done)), rkey }, room))
            }
            _ => None,
        }
    }

    /// The same of the answer to a READ.
    fn middles_of_read(&self, psn: u32) -> Option<(MiddlePlace<'_>, u64)> {
        let (req, wqe) = (&self.req, self.sq.front()?);
        let is_awaited = matches!(self.state, QpState::Rts | QpState::Sqd)
            && self.service == Service::Rc
            && req.error.is_none()
            && psn == psn::wire(req.una)
            && req.una < req.max
            && self.sq.head() < req.started
            && wqe.first < req.una
            && matches!(wqe.wr.op, SendOp::Read { .. });
        let Data::Sges(sges) = &wqe.wr.data else { return None };
        if !is_awaited {
            return None;
        }
        let (offset, bytes) = wqe.slice((req.una - wqe.first) as u32, self.mtu());
        let rest = u64::from(wqe.len).saturating_sub(offset);
        // What was asked for again may not have been sent yet.
        let asked = (req.max - req.una) * u64::from(self.mtu());
        (bytes == self.mtu())
            .then(|| (MiddlePlace::Local(wqe.buffer(), sges, offset), rest.saturating_sub(1).min(asked)))
    }

    /// The next `count` packets, for which [`QpProtocol::middles`] gave the place, were intact and lie there. `ack_request`: one of them asked for an
    /// acknowledgement.
    pub fn middles_taken(&mut self, now: Instant, operation: Operation, count: u32, ack_request: bool) {
        let mtu = self.mtu();
        let bytes = count * mtu;
        self.counters.packets_received += u64::from(count);
        if operation == Operation::ReadResponseMiddle {
            let Some(wqe) = self.sq.front() else { return };
            let first = (self.req.una - wqe.first) as u32;
            let cost = charge(wqe, first, first + count, mtu);
            self.req.una += u64::from(count);
            self.moved(now, cost);
            return;
        }
        match &mut self.resp.message {
            MessageProgress::Send { done } => *done += u64::from(bytes),
            MessageProgress::Write { done, .. } => *done += bytes,
            MessageProgress::None | MessageProgress::Delegated => return,
        }
        if self.is_reliable() {
            self.accept(count, ack_request);
        } else {
            self.resp.expected += u64::from(count);
        }
    }
}
