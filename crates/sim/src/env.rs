//! The surroundings of a queue pair, as the transport asks for them.

use crate::adapter::{Key, Side, Tables};
use crate::chances::Chances;
use crate::frame::Frame;
use crate::keys::key_fault;
use crate::licences::Licences;
use crate::reasons;
use ferroce_buffers::{Rights, Tap};
use ferroce_proto::{
    Buffer, Cause, Env, Failure, NoReceive, PayloadSource, PlaceError, QpEvent, SendEnds, SrqPlace, Telling,
    TransmitError,
};
use ferroce_types::{
    Access, AtomicOp, BindMw, Completion, Placement, RecvWqe, RemoteAccess, RemoteError, Sge, WcOpcode,
    WcStatus, vendor_err,
};
use ferroce_wire::Headers;
use std::collections::VecDeque;
use std::net::Ipv4Addr;

/// Bytes that a queue pair may have in flight.
const WINDOW: u32 = 1 << 18;

/// Answers to READs that are kept for repetitions.
const ANSWERS: usize = 512;

pub(crate) struct QpEnv<'a> {
    /// The host's name.
    pub(crate) name: &'a str,
    pub(crate) tables: &'a mut Tables,
    pub(crate) side: &'a mut Side,
    pub(crate) licences: &'a Licences,
    pub(crate) chances: &'a mut Chances,
    /// Packets may be marked by the network.
    pub(crate) ecn: bool,
}

impl QpEnv<'_> {
    pub(crate) fn remote(
        &self,
        rkey: u32,
        va: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<(&Tap, usize), RemoteError> {
        key_fault(&self.tables.keys, (rkey, self.side.user), (va, len), Some(access))
            .map_err(|_| RemoteError::Access)
    }

    /// Where receives come from.
    fn receives(&mut self) -> &mut VecDeque<RecvWqe> {
        let shared = self.side.srq.and_then(|srq| self.tables.srqs.get_mut(&srq));
        shared.map_or(&mut self.side.receives, |srq| &mut srq.receives)
    }

    fn take_receive(&mut self) -> Option<RecvWqe> {
        let taken = self.receives().pop_front();
        if let Some(srq) = self.side.srq {
            self.tables.note_low_water(srq);
        }
        taken
    }

    /// Calls `f` for each piece of a message with its memory and the range of the message's bytes.
    pub(crate) fn pieces(
        &self,
        sges: &[Sge],
        (offset, len): (u64, usize),
        mut f: impl FnMut(&Tap, usize, std::ops::Range<usize>) -> Result<(), ferroce_buffers::NotLent>,
    ) -> Result<(), ()> {
        let (mut skip, mut done) = (offset, 0);
        for sge in sges {
            let length = u64::from(sge.length);
            if skip >= length {
                skip -= length;
                continue;
            }
            let here = (length - skip).min((len - done) as u64);
            let range = (sge.addr + skip, here);
            let (tap, start) =
                key_fault(&self.tables.keys, (sge.lkey, self.side.user), range, None).map_err(drop)?;
            // The key is right, so a slot owns the memory, unless it was retired too early.
            f(tap, start, done..done + here as usize)
                .unwrap_or_else(|error| panic!("a request that has ended is still carried out: {error}"));
            (skip, done) = (0, done + here as usize);
            if done == len {
                break;
            }
        }
        if done == len { Ok(()) } else { Err(()) }
    }

    /// The bytes of a READ's answer. A repeated one is answered as the first time, unless the adapter reads again.
    fn answer(&mut self, psn: u32, (rkey, va): (u32, u64), len: usize) -> Result<Vec<u8>, RemoteError> {
        let (tap, at) = self.remote(rkey, va, len as u64, RemoteAccess::Read)?;
        let mut bytes = vec![0; len];
        tap.read(at, &mut bytes).map_err(|_| RemoteError::Operational)?;
        let asked = (rkey, va, len);
        let before = self.side.answers.get(&psn);
        if let Some((_, _, before)) = before.filter(|(key, at, before)| (*key, *at, before.len()) == asked)
            && *before != bytes
        {
            let (host, qpn) = (self.name, self.side.user.qpn);
            let rereads = self.licences.reread_on_retry
                && self.chances.choose(|| format!("QP {qpn:#x} of {host} reads changed memory again"));
            if !rereads {
                return Ok(before.clone());
            }
        }
        if self.side.answers.len() == ANSWERS {
            self.side.answers.pop_first();
        }
        self.side.answers.insert(psn, (rkey, va, bytes.clone()));
        Ok(bytes)
    }

    /// Whether the adapter answers a message with RNR although a receive is posted.
    fn refuses(&mut self) -> bool {
        let (host, qpn) = (self.name, self.side.user.qpn);
        let may = self.side.is_reliable && !self.side.refused && !self.receives().is_empty();
        self.side.refused = may
            && self.chances.fault(self.licences.receiver_not_ready, || {
                format!("QP {qpn:#x} of {host} isn't ready, though a receive is posted")
            });
        self.side.refused
    }
}

impl SendEnds for QpEnv<'_> {
    type Address = Ipv4Addr;

    fn complete_send(&mut self, completion: Completion) {
        self.side.sends_completed.push(completion);
    }
}

impl Env for QpEnv<'_> {
    type Payload<'p> = &'p [u8];

    fn transmit(
        &mut self,
        headers: &Headers,
        source: PayloadSource<'_>,
        to: Option<&Ipv4Addr>,
    ) -> Result<(), TransmitError> {
        let payload = match source {
            PayloadSource::None => Vec::new(),
            PayloadSource::Bytes(bytes) => bytes.to_vec(),
            PayloadSource::Local { sges, offset, len, .. } => {
                let mut bytes = vec![0; len as usize];
                self.pieces(sges, (offset, len as usize), |tap, at, range| tap.read(at, &mut bytes[range]))
                    .map_err(|()| TransmitError::Local)?;
                bytes
            }
            PayloadSource::Remote { rkey, va, len } => {
                self.answer(headers.bth.psn, (rkey, va), len as usize).map_err(TransmitError::Remote)?
            }
        };
        if let Some(to) = to.copied().or(self.side.peer) {
            self.side.out.push(Frame::new(to, *headers, payload));
        }
        Ok(())
    }

    fn is_ecn_capable(&self) -> bool {
        self.ecn
    }

    fn window(&self) -> u32 {
        WINDOW
    }

    fn payload_of(bytes: &[u8]) -> Self::Payload<'_> {
        bytes
    }

    fn select_srq(&mut self, _srqn: u32) -> SrqPlace {
        SrqPlace::Nowhere
    }

    fn next_recv(&mut self) -> Option<RecvWqe> {
        if self.refuses() { None } else { self.take_receive() }
    }

    fn next_recv_for(&mut self, len: u64) -> Result<RecvWqe, NoReceive> {
        let room = self.receives().front().ok_or(NoReceive::Empty)?.capacity();
        if room < len {
            return Err(NoReceive::TooSmall);
        }
        self.take_receive().ok_or(NoReceive::Empty)
    }

    fn flush_recv_queue(&mut self) {
        let number = self.side.first.as_ref().map_or(0, |(number, _)| *number);
        while let Some(receive) = self.side.receives.pop_front() {
            let flushed = Completion::new(receive.wr_id, WcStatus::WrFlushErr, WcOpcode::Recv);
            self.side.unpublished.push((Completion { vendor_err: vendor_err(number), ..flushed }, 0));
        }
    }

    fn place(
        &mut self,
        _buffer: Buffer,
        sges: &[Sge],
        offset: u64,
        payload: &&[u8],
        skip: usize,
    ) -> Result<(), PlaceError> {
        let bytes = payload.get(skip..).ok_or(PlaceError)?;
        self.place_bytes(sges, offset, bytes).map_err(|()| PlaceError)
    }

    fn place_bytes(&mut self, sges: &[Sge], offset: u64, bytes: &[u8]) -> Result<(), ()> {
        self.receive_local(sges, offset, bytes)
    }

    fn place_grh(&mut self, sges: &[Sge]) -> Result<bool, ()> {
        let grh = self.side.grh;
        self.place_bytes(sges, 0, &grh).map(|()| true)
    }

    fn check_remote(
        &mut self,
        rkey: u32,
        va: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<(), RemoteError> {
        self.remote(rkey, va, len, access).map(drop)
    }

    fn write_remote(&mut self, rkey: u32, va: u64, payload: &&[u8]) -> Result<(), RemoteError> {
        self.receive_remote(rkey, va, payload)
    }

    fn atomic_remote(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, RemoteError> {
        self.place_all();
        let access = match op {
            AtomicOp::Store { .. } => RemoteAccess::Store,
            _ => RemoteAccess::Atomic,
        };
        let (tap, at) = self.remote(rkey, va, 8, access)?;
        let changed = tap.update(at, |before| match op {
            AtomicOp::CompareSwap { compare, swap } if compare == before => swap,
            AtomicOp::CompareSwap { .. } => before,
            AtomicOp::FetchAdd { add } => before.wrapping_add(add),
            AtomicOp::Store { value } => value,
        });
        changed.map_err(|_| RemoteError::Operational)
    }

    fn flush_remote(&mut self, _: u32, _: Option<(u64, u64)>, _: Placement) -> Result<(), RemoteError> {
        Err(RemoteError::Access)
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), RemoteError> {
        self.place_all();
        let own = self.tables.keys.get(&rkey).and_then(|key| key.of_qp) == Some(self.side.user.qpn);
        let window = self.tables.windows.values_mut().find(|window| window.key == Some(rkey));
        let window = window.filter(|_| own).ok_or(RemoteError::Access)?;
        window.key = None;
        self.tables.keys.remove(&rkey);
        Ok(())
    }

    fn bind_window(&mut self, bind: &BindMw) -> Result<(), ()> {
        let user = self.side.user;
        let range = (bind.va, bind.length);
        let (tap, at) = key_fault(&self.tables.keys, (bind.lkey, user), range, None).map_err(drop)?;
        let tap = tap.part(at..at + bind.length as usize);
        let Tables { keys, windows, .. } = &mut *self.tables;
        let window = windows.get_mut(&bind.window).ok_or(())?;
        if window.domain != user.domain || window.key.is_some() || keys.contains_key(&bind.rkey) {
            return Err(());
        }
        let Access { remote_read: read, remote_write: write, remote_atomic: atomic, .. } = bind.access;
        let remote = Some(Rights { read, write, atomic });
        let key = Key { tap, address: bind.va, domain: user.domain, remote, of_qp: Some(user.qpn) };
        keys.insert(bind.rkey, key);
        window.key = Some(bind.rkey);
        Ok(())
    }

    fn complete_recv(&mut self, completion: Completion, number: u64) {
        self.side.unpublished.push((completion, number));
    }

    fn flush_unacknowledged(&mut self, from: u64) {
        for (completion, _) in self.side.unpublished.iter_mut().filter(|(_, number)| *number >= from) {
            completion.status = WcStatus::WrFlushErr;
        }
    }

    fn failed(&mut self, failure: &Failure<'_, Ipv4Addr>) -> u16 {
        // The adapter's own reasons are unknown.
        if self.side.refused && matches!(failure.cause, Cause::NoReceive { .. }) {
            return 0;
        }
        let reason = reasons::reason(&self.tables.keys, self.side.user, failure);
        let number = reason.number();
        // What the peer has to repeat isn't a failure of this queue pair.
        let passes = matches!(
            failure.cause,
            Cause::NoReceive { .. } | Cause::StillNotReady { .. } | Cause::PostedAfter { .. }
        );
        if !passes && self.side.first.is_none() {
            let fault = reasons::fault(
                failure.cause.status(),
                number,
                Some(ferroce_explain::sentence(&reason).into()),
                None,
            );
            self.side.first = Some((number, fault));
        }
        number
    }

    fn telling(&self) -> Telling {
        Telling::WithNak
    }

    fn event(&mut self, _event: QpEvent) {}
}
