//! Packets that leave, by each fabric, and what the initiator carries out without one.

use super::QpEnv;
use crate::adapter::ThreadBuffers;
use crate::qp::Path;
use crate::qp::one_sided::Reach;
use crate::qp::payload::{each_piece, fill_ring, fill_summed, source_len};
use crate::qp::waiting::{AbsentMemory, NeedOf, absent_of};
use ferroce_access::copy;
use ferroce_hostlink::{Link, SendOutcome};
use ferroce_parts::{Ah, PathLookup};
use ferroce_proto::{Data, PayloadSource, SendOp, SendWr, TransmitError};
use ferroce_types::PacketMeta;
use ferroce_udp::{PushError, tap::Direction};
use ferroce_wire::{Headers, Operation, Service};
use ferroce_xrc::message::ReadRange;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl QpEnv<'_> {
    /// As [`ferroce_proto::Env::transmit`].
    pub(super) fn send(
        &mut self,
        headers: &Headers,
        source: PayloadSource<'_>,
        to: Option<&Arc<Ah>>,
    ) -> Result<(), TransmitError> {
        if let (PayloadSource::Remote { rkey, va, len }, Some(srqn)) = (source, self.xrc_target.remote_srqn) {
            let range = ReadRange { srqn, rkey, va, len };
            let bytes = self.remote_bytes(range)?;
            let sent = self.send(headers, PayloadSource::Bytes(&bytes), to);
            if sent == Err(TransmitError::Blocked) {
                self.xrc_target.fetched = Some((range, Ok(bytes)));
            }
            return sent;
        }
        let by = self.key_user();
        let len = source_len(&source);
        let found;
        let path = match to {
            None => self.path,
            Some(ah) => match ah.path_to(self.qp.adapter.generation(), headers.bth.dest_qp) {
                PathLookup::Known(path) => {
                    found = path;
                    Some(&found)
                }
                PathLookup::Unknown => {
                    // The QP goes on when it has been found.
                    self.work.unresolved.push((self.qp.clone(), ah.clone(), headers.bth.dest_qp));
                    return Err(TransmitError::Blocked);
                }
                PathLookup::None => None,
            },
        };
        let Some(path) = path else {
            // No way there: the packet is lost, as on a wire.
            return Ok(());
        };
        let ThreadBuffers { batch, .. } = &mut *self.work;
        match path {
            Path::Shm { .. } if self.falls_back => Err(TransmitError::Blocked),
            Path::Shm { meta, link } => {
                if self.qp.service == Service::Ud {
                    self.unacked_pace.ask_own(self.now, len)?;
                }
                self.transmit_record(link, headers, meta, len, source)
            }
            Path::Udp { dest, socket, .. } => {
                if matches!(self.qp.service, Service::Uc | Service::Ud) {
                    if !socket.has_room(len as u32) {
                        self.work.blocked = true;
                        return Err(TransmitError::Blocked);
                    }
                    // UC needs no pace where it can see how full the peer's socket is.
                    if self.qp.service == Service::Ud || !socket.is_on_this_host() {
                        self.unacked_pace.ask(socket, self.now, len)?;
                    }
                }
                let marked;
                let dest = if self.ecn && headers.bth.opcode.has_payload() {
                    marked = dest.ecn_capable();
                    &marked
                } else {
                    dest
                };
                let mut absent = None;
                let fill = |buf: &mut [u8], crc| fill_summed(by, source, buf, crc, &mut absent);
                match batch.packet(dest, headers, len, fill) {
                    Err(PushError::Fill(error)) => {
                        self.await_source(headers, absent);
                        Err(error)
                    }
                    Err(error) => {
                        tracing::warn!(qpn = self.qp.qpn, %error, "a packet can't be built");
                        Ok(())
                    }
                    Ok(()) => Ok(()),
                }
            }
        }
    }

    /// What a packet sends isn't there, if anything is `absent`.
    fn await_source(&mut self, headers: &Headers, absent: Option<AbsentMemory>) {
        if let Some(absent) = absent {
            let is_response = headers.bth.opcode.is_response();
            self.await_memory(if is_response { NeedOf::Responses } else { NeedOf::Sends }, absent);
        }
    }

    /// Sends a packet to a process of this host.
    fn transmit_record(
        &mut self,
        link: &Arc<Link>,
        headers: &Headers,
        meta: &PacketMeta,
        len: usize,
        source: PayloadSource<'_>,
    ) -> Result<(), TransmitError> {
        let (by, adapter) = (self.key_user(), self.qp.adapter);
        // The peer knows the connection once it has answered.
        let is_known = self.qp.service != Service::Ud && self.qp.peer_uses_shm();
        let is_compact = is_known && link.peer_takes_compact() && !adapter.has_capture();
        let mut absent = None;
        let is_large = self.qp.is_large_send(headers, len);
        let name = (self.connection, headers.bth.psn);
        let offer =
            (is_large && is_compact && self.listed).then(|| self.qp.offer(link, name, source)).flatten();
        let compact = is_compact.then(|| match &offer {
            Some(offer) => link.send_offer(headers, len, offer),
            None => link.send_compact(headers, len, |ring| fill_ring(by, source, ring, &mut absent)),
        });
        let sent = match compact.flatten() {
            Some(sent) => sent,
            None => {
                let meta = &meta.with_len(headers.packet_len(len));
                link.send(headers, meta, len, |ring| {
                    fill_ring(by, source, ring, &mut absent)?;
                    if adapter.has_capture() {
                        adapter.show_message(Direction::Out, headers, &ring.to_vec(), meta);
                    }
                    Ok(())
                })
            }
        };
        match sent {
            SendOutcome::Published(end) => {
                let opcode = headers.bth.opcode;
                if is_large {
                    self.qp.offering.note_sent(name);
                }
                if opcode.is_request() {
                    self.qp.last_request.store(end, Ordering::Relaxed);
                } else if opcode.is_read_response() || opcode.operation == Operation::AtomicAcknowledge {
                    self.qp.last_answer.store(end, Ordering::Relaxed);
                }
                self.work.rings(link);
                Ok(())
            }
            SendOutcome::Full if !self.qp.is_reliable() && link.is_stuck(ferroce_os::clock::now()) => Ok(()),
            SendOutcome::Full => {
                self.work.blocked = true;
                self.work.blocked_on = Some(link.clone());
                Err(TransmitError::Blocked)
            }
            SendOutcome::Lost => Ok(()),
            SendOutcome::Failed(error) => {
                self.await_source(headers, absent);
                Err(error)
            }
        }
    }

    /// As [`ferroce_proto::Env::execute_directly`].
    pub(super) fn reach_peer(
        &mut self,
        peer: u32,
        wr: &SendWr<Arc<Ah>>,
        pd: u32,
        (offset, max): (u64, u32),
    ) -> Result<Option<u32>, TransmitError> {
        let Some(Path::Shm { link, .. }) = self.path else { return Ok(None) };
        let qp = self.qp;
        if !qp.may_reach(link) {
            return Ok(None);
        }
        let (&SendOp::Write { rkey, .. } | &SendOp::Read { rkey, .. }) = &wr.op else { return Ok(None) };
        let reads = matches!(wr.op, SendOp::Read { .. });
        if offset == 0 {
            let by_peer = !copy::by_kernel()
                && !qp.is_mappable(link, rkey)
                && link.is_better_left_to_peer(wr.data.len(), elements(&wr.data));
            qp.left_to_peer.store(by_peer, Ordering::Relaxed);
            if by_peer {
                return Ok(None);
            }
        }
        if let Data::Sges(sges) = &wr.data {
            let len = wr.data.len().saturating_sub(offset).min(u64::from(max)) as usize;
            if let Some(absent) = absent_of(pd, sges, offset, len, reads) {
                self.await_memory(NeedOf::Sends, absent);
                return Err(TransmitError::AwaitsMemory);
            }
        }
        let done = copy_through(&Reach { qp, link, peer, reads }, wr, pd, (offset, max));
        qp.note_copy(done.is_some());
        if done.is_some() {
            self.mark_peer_uses_shm(peer);
        }
        Ok(done)
    }
}

/// The elements of a request: each is copied by itself.
pub(super) fn elements(data: &Data) -> usize {
    match data {
        Data::Inline(_) => 1,
        Data::Sges(sges) => sges.len().max(1),
    }
}

/// Copies at most `max` bytes from `offset` of a request on, whose elements are of the protection domain `pd`, and returns how many.
fn copy_through(reach: &Reach<'_>, wr: &SendWr<Arc<Ah>>, pd: u32, (offset, max): (u64, u32)) -> Option<u32> {
    let (&SendOp::Write { va, rkey } | &SendOp::Read { va, rkey }) = &wr.op else { return None };
    let len = wr.data.len().checked_sub(offset)?.min(u64::from(max)) as usize;
    // Nothing of a request is copied that asks for more than there is.
    let range = (rkey, va, wr.data.len());
    match &wr.data {
        Data::Inline(bytes) => {
            let part = bytes.get(offset as usize..)?.get(..len)?;
            reach.copy(range, offset, part.as_ptr() as u64, len)?;
            Some(len as u32)
        }
        Data::Sges(sges) => {
            // A piece of a null region takes nothing from the peer, whose rights are looked at all the same: by a packet.
            let mut reached = false;
            let copied = each_piece(pd, sges, offset, len, reach.reads, |at, addr, len| {
                reached = true;
                reach.copy(range, offset + at, addr, len)
            });
            copied.filter(|_| reached)
        }
    }
}
