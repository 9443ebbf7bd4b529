//! Execution of SEND and RDMA WRITE packets, which RC and UC share; they differ in what a refusal means.

use crate::state::{MessageProgress, NakReason, begins, ends};
use crate::{Buffer, Env, MAX_MESSAGE, Payload, QpProtocol};
use ferroce_types::{RemoteAccess, WcOpcode, WcStatus};
use ferroce_wire::{Headers, Opcode};

impl<A: Clone> QpProtocol<A> {
    /// Places a packet of a SEND.
    pub(crate) fn execute_send<E: Env<Address = A>>(
        &mut self,
        headers: &Headers,
        payload: &E::Payload<'_>,
        env: &mut E,
    ) -> Result<(), NakReason> {
        let opcode = headers.bth.opcode;
        let done = match (self.resp.message, begins(opcode)) {
            (MessageProgress::None, true) => 0,
            (MessageProgress::Send { done }, false) => done,
            _ => return Err(NakReason::Invalid),
        };
        let len = self.packet_len(opcode, payload.len() as u64)?;
        if self.resp.held.is_none() {
            self.resp.held = if self.params.tags {
                Some(self.take_tagged(opcode, payload, env)?)
            } else {
                env.next_recv()
            };
        }
        let held = self.resp.held.as_ref().ok_or(NakReason::NotReady)?;
        let total = done + len;
        let tagged = self.resp.tagged;
        let (header, data) =
            tagged.map_or((0, total), |tagged| (tagged.header_len(), tagged.data_len(total)));
        if data > held.capacity() || total > MAX_MESSAGE {
            return Err(NakReason::TooLong);
        }
        let rendezvous = tagged.and_then(|tagged| tagged.rendezvous);
        let skip = if done == 0 { header } else { 0 };
        if len > skip && rendezvous.is_none() {
            env.place(Buffer::Receive, &held.sges, done + skip - header, payload, skip as usize)?;
        }
        if !ends(opcode) {
            self.resp.message = MessageProgress::Send { done: total };
            return Ok(());
        }
        if let Some(rkey) = headers.invalidate_rkey {
            env.invalidate(rkey).map_err(|_| NakReason::Invalidation)?;
        }
        if let Some(rvh) = rendezvous {
            self.start_rendezvous(rvh, headers, env);
        } else {
            self.finish_receive(headers, WcOpcode::Recv, data as u32, env);
        }
        Ok(())
    }

    /// Writes a packet of an RDMA WRITE.
    pub(crate) fn execute_write<E: Env<Address = A>>(
        &mut self,
        headers: &Headers,
        payload: &E::Payload<'_>,
        env: &mut E,
    ) -> Result<(), NakReason> {
        let opcode = headers.bth.opcode;
        if !self.params.access.remote_write {
            return Err(NakReason::QpRights);
        }
        let len = self.packet_len(opcode, payload.len() as u64)? as u32;
        let (va, rkey, whole, done) = match (self.resp.message, begins(opcode), headers.reth) {
            (MessageProgress::None, true, Some(reth)) => (reth.va, reth.rkey, reth.dma_len, 0),
            (MessageProgress::Write { va, rkey, len, done }, false, _) => (va, rkey, len, done),
            _ => return Err(NakReason::Invalid),
        };
        let rest = u64::from(whole - done);
        let fits = if ends(opcode) { u64::from(len) == rest } else { u64::from(len) < rest };
        if !fits || u64::from(whole) > MAX_MESSAGE {
            return Err(NakReason::Invalid);
        }
        let immediate = headers.immediate.is_some();
        let check = |env: &mut E| env.check_remote(rkey, va, u64::from(whole), RemoteAccess::Write);
        // On a wire that is a message of several packets, and only the last one brings the immediate.
        let several = begins(opcode) && whole > self.params.wire_mtu;
        if several {
            check(env)?;
        }
        if immediate && self.resp.held.is_none() {
            // Before anything is written, so that the whole packet can come again.
            self.resp.held = Some(env.next_recv().ok_or(NakReason::NotReady)?);
        }
        if begins(opcode) && whole > 0 && !several {
            check(env)?;
        }
        if len > 0 {
            env.write_remote(rkey, va.wrapping_add(u64::from(done)), payload)?;
        }
        if ends(opcode) {
            env.written(whole);
        }
        if !ends(opcode) {
            self.resp.message = MessageProgress::Write { va, rkey, len: whole, done: done + len };
        } else if immediate {
            self.finish_receive(headers, WcOpcode::RecvRdmaWithImm, whole, env);
        } else {
            self.resp.message = MessageProgress::None;
            self.resp.count_message(u64::from(whole));
        }
        Ok(())
    }

    /// The length of a packet, if it is one that its place in the message allows (IBTA 9.7.4.1).
    pub(crate) fn packet_len(&self, opcode: Opcode, len: u64) -> Result<u64, NakReason> {
        let mtu = u64::from(self.mtu());
        let right = match (begins(opcode), ends(opcode)) {
            (_, false) => len == mtu,
            (true, true) => len <= mtu && len <= MAX_MESSAGE,
            (false, true) => (1..=mtu).contains(&len),
        };
        if right { Ok(len) } else { Err(NakReason::PacketLength) }
    }

    /// The message is complete and used the held receive.
    fn finish_receive<E: Env<Address = A>>(
        &mut self,
        headers: &Headers,
        opcode: WcOpcode,
        byte_len: u32,
        env: &mut E,
    ) {
        self.resp.count_message(u64::from(byte_len));
        if let Some(held) = self.resp.take_held() {
            let mut completion = self
                .recv_completion(held.wr_id, WcStatus::Success)
                .with_value(headers.immediate, headers.invalidate_rkey);
            completion.opcode = opcode;
            completion.byte_len = byte_len;
            completion.solicited = headers.bth.solicited;
            self.complete_held(completion, env);
        }
    }
}
