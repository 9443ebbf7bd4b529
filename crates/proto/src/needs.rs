//! Which memory a packet needs. A caller that others wait for looks whether it is there before it has the transport take the packet.

use crate::qp::pkey_matches;
use crate::state::{MessageProgress, begins};
use crate::{Buffer, Data, Env, LookedAt, NeededMemory, QpProtocol, psn};
use ferroce_types::{Instant, QpState, RecvWqe, RemoteAccess};
use ferroce_wire::{Headers, Operation, Service};

/// Bytes of what a UD receive begins with.
const GRH: usize = 40;

fn of_receive(receive: &RecvWqe) -> NeededMemory<'_> {
    NeededMemory::Local(Buffer::Receive, &receive.sges, 0)
}

impl<A: Clone> QpProtocol<A> {
    /// Whether the memory is there that a request with `len` bytes of payload needs. A receive of a shared receive queue that it needs is the
    /// message's from here on, so no other QP takes the receive while its memory comes.
    pub fn has_memory_for<E: Env<Address = A>>(
        &mut self,
        headers: &Headers,
        len: usize,
        env: &mut E,
    ) -> bool {
        let len = if self.service == Service::Ud { GRH + len } else { len };
        let LookedAt { is_there, receive } = env.look(&self.needed_memory(headers, len), len);
        if let Some(receive) = receive {
            self.hold_receive(receive);
        }
        is_there
    }

    /// Takes the receive of a message that hasn't ended, unless tag matching has chosen it: the QP is about to be reset, and a shared receive
    /// queue gets the receive back.
    pub fn take_unfinished_receive(&mut self) -> Option<RecvWqe> {
        self.resp.held.take_if(|_| self.resp.tagged.is_none())
    }

    /// The memory that a packet needs, with `len` bytes of payload, and of GRH if it is a datagram.
    #[must_use]
    pub fn needed_memory(&self, headers: &Headers, len: usize) -> NeededMemory<'_> {
        let opcode = headers.bth.opcode;
        if opcode.service != self.service
            || matches!(self.state, QpState::Reset | QpState::Init | QpState::Err)
            || !pkey_matches(headers.bth.pkey, self.params.pkey)
        {
            return NeededMemory::Nothing;
        }
        match self.service {
            Service::Rc | Service::Xrc if opcode.is_response() => match opcode.operation {
                Operation::Acknowledge => NeededMemory::Nothing,
                _ => self.needed_by_answer(headers.bth.psn),
            },
            Service::Rc if headers.bth.psn != psn::wire(self.resp.expected) => NeededMemory::Nothing,
            Service::Rc | Service::Uc => self.needed_by_request(headers, len),
            // Others are dropped.
            Service::Ud if headers.deth.is_some_and(|deth| deth.qkey == self.params.qkey) => {
                self.resp.held.as_ref().map_or(NeededMemory::NextReceive, of_receive)
            }
            _ => NeededMemory::Nothing,
        }
    }

    fn needed_by_request(&self, headers: &Headers, len: usize) -> NeededMemory<'_> {
        let (opcode, resp) = (headers.bth.opcode, &self.resp);
        if opcode.is_send() {
            let done = match resp.message {
                MessageProgress::Send { done } if !begins(opcode) => done,
                MessageProgress::None if begins(opcode) => 0,
                // The message in progress has lost its end.
                _ if begins(opcode) && !self.is_reliable() => 0,
                _ => return NeededMemory::Nothing,
            };
            return match &resp.held {
                // The receive depends on what the payload contains.
                _ if self.params.tags => NeededMemory::Nothing,
                Some(held) => NeededMemory::Local(Buffer::Receive, &held.sges, done),
                None if done == 0 && self.packet_len(opcode, len as u64).is_ok() => NeededMemory::NextReceive,
                None => NeededMemory::Nothing,
            };
        }
        let write = RemoteAccess::Write;
        match (opcode.operation, headers.reth, headers.atomic, resp.message) {
            (Operation::CompareSwap | Operation::FetchAdd, _, Some(atomic), _) => {
                let (rkey, va, access) = (atomic.rkey, atomic.va, RemoteAccess::Atomic);
                NeededMemory::Remote { rkey, va, len: 8, access }
            }
            (Operation::AtomicWrite, Some(reth), ..) => {
                NeededMemory::Remote { rkey: reth.rkey, va: reth.va, len: 8, access: RemoteAccess::Store }
            }
            (_, Some(reth), ..) if opcode.is_write() => {
                let (rkey, va, len) = (reth.rkey, reth.va, u64::from(reth.dma_len));
                NeededMemory::Remote { rkey, va, len, access: write }
            }
            (_, None, _, MessageProgress::Write { va, rkey, len, done }) if opcode.is_write() => {
                let (va, len) = (va.wrapping_add(u64::from(done)), u64::from(len - done));
                NeededMemory::Remote { rkey, va, len, access: write }
            }
            _ => NeededMemory::Nothing,
        }
    }

    /// The caller has dropped requests that had come, behind the one that was taken last: the peer sends them again.
    pub fn request_again(&mut self) {
        let may = self.is_reliable() && !matches!(self.state, QpState::Reset | QpState::Init | QpState::Err);
        if may && self.resp.gap.is_none() {
            self.resp.gap = Some(self.resp.expected);
            self.resp.waits_for_receive = false;
            self.owe_sequence_nak();
        }
    }

    /// The caller has dropped answers that had come, behind the one that was taken last: this side asks again.
    pub fn ask_again(&mut self, now: Instant) {
        let may = self.is_reliable() && matches!(self.state, QpState::Rts | QpState::Sqd);
        if may && self.req.una < self.req.max {
            self.go_back(now);
        }
    }

    /// The answer with this PSN has come, and waits for its memory. It acknowledges the requests before it (IBTA 9.7.5.1.2), which end: they
    /// succeed also if the QP fails before the answer is taken.
    pub fn answer_waits<E: Env<Address = A>>(&mut self, now: Instant, psn: u32, env: &mut E) {
        self.plain_executed(now, psn.wrapping_sub(1), env);
    }

    /// The memory that an answer with this PSN needs, to a READ or an atomic.
    #[must_use]
    pub fn needed_by_answer(&self, psn: u32) -> NeededMemory<'_> {
        let number = psn::extend(self.req.una, psn);
        if !(self.req.una..self.req.max).contains(&number) {
            return NeededMemory::Nothing;
        }
        let wqe = self.sq.get(self.request_of(number, self.sq.head()));
        let Some(wqe) = wqe.filter(|wqe| wqe.wants_data() && (wqe.first..wqe.end()).contains(&number)) else {
            return NeededMemory::Nothing;
        };
        match &wqe.wr.data {
            Data::Sges(sges) => {
                let (offset, _) = wqe.slice((number - wqe.first) as u32, self.mtu());
                NeededMemory::Local(wqe.buffer(), sges, offset)
            }
            Data::Inline(_) => NeededMemory::Nothing,
        }
    }
}
