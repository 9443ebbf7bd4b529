//! Which memory a packet needs. A caller that others wait for looks whether it is there before it has the transport take the packet: nothing
//! in here changes anything.

use crate::qp::pkey_matches;
use crate::state::{MessageProgress, begins};
use crate::{Buffer, Data, Env, QpProtocol, psn};
use ferroce_types::{Instant, QpState, RemoteAccess, Sge};
use ferroce_wire::{Headers, Operation, Service};

/// Bytes of what a UD receive begins with.
const GRH: usize = 40;

/// Memory that a packet's payload goes to, or that an atomic changes.
#[derive(Clone, Copy, Debug)]
pub enum NeededMemory<'a> {
    /// None, or that isn't known: the packet isn't the next one, or is refused.
    Nothing,
    /// So many bytes of the next receive.
    NextReceive(usize),
    /// Memory of a receive or of a request, from this byte of its elements on.
    Local(Buffer, &'a [Sge], u64),
    /// Memory that the peer reaches, from here to the end of its message.
    Remote {
        /// Key.
        rkey: u32,
        /// Address.
        va: u64,
        /// Bytes.
        len: u64,
        /// What the peer does.
        access: RemoteAccess,
    },
}

impl<A: Clone> QpProtocol<A> {
    /// The memory that a packet with `len` bytes of payload needs.
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
            Service::Ud => NeededMemory::NextReceive(GRH + len),
            _ => NeededMemory::Nothing,
        }
    }

    fn needed_by_request(&self, headers: &Headers, len: usize) -> NeededMemory<'_> {
        let (opcode, resp) = (headers.bth.opcode, &self.resp);
        if opcode.is_send() {
            let done = match resp.message {
                MessageProgress::Send { done } if !begins(opcode) => done,
                _ if begins(opcode) => 0,
                _ => return NeededMemory::Nothing,
            };
            return match &resp.held {
                // The receive depends on what the payload contains.
                _ if self.params.tags => NeededMemory::Nothing,
                Some(held) => NeededMemory::Local(Buffer::Receive, &held.sges, done),
                None if done == 0 => NeededMemory::NextReceive(len),
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
