//! Packets from the network, to the QPs that they are for.

use crate::adapter::{Adapter, ThreadBuffers};
use crate::qp::{PacketOrigin, Qp, QpEnv, RxPayload, is_middle};
use ferroce_network::{flow_of, verify};
use ferroce_os::{Patience, clock, fork, sys};
use ferroce_types::{Datagram, HostAddr, Instant};
use ferroce_wire::cm::GSI_QPN;
use ferroce_wire::icrc::Flow;
use ferroce_wire::{Opcode, Packet, ShortPacket};
use std::sync::Arc;
use std::time::Duration;

/// The flow of a packet from the middle of a message; `None`: it is another packet.
fn flow_of_middle(env: &mut QpEnv<'_>, datagram: &Datagram<'_>) -> Option<Flow> {
    if is_middle(datagram) { flow_of(&mut env.work.last_flow, datagram) } else { None }
}

impl Adapter {
    /// Sends what a QP's requests wait to send together, and takes what has come for the QP. An adapter has done so when a packet arrives:
    /// what the peer has acknowledged ends with success, what it has sent is received, and a later connection finds no packet of this one.
    /// Another thread that has some of it in its hands is waited for, as long as `within` at most. No lock is held.
    ///
    /// # Errors
    /// [`ferroce_types::Error::Busy`] when a thread is held up in its work for the queue pair.
    pub(crate) fn take_what_has_come(
        &'static self,
        qp: &Arc<Qp>,
        within: Duration,
    ) -> ferroce_types::Result<()> {
        const ROUND: Duration = Duration::from_micros(50);
        let mut patience = Patience::new(within, ROUND);
        let mut waits = || {
            fork::outside_library(|| sys::pause(ROUND));
            !patience.has_ended()
        };
        // A thread that has it locked sends it.
        self.with_work(|work| qp.try_work(work, clock::now(), |_, _| ()));
        self.answer_introductions(qp.qpn(), &mut waits);
        self.empty_rings(&qp.links_to_peer(within)?, &mut waits);
        self.empty_sockets(qp.qpn(), &mut waits);
        Ok(())
    }

    /// Takes a packet that has come alone, if that is possible the short way. False: [`Self::dispatch`] has to.
    #[inline]
    pub(super) fn take_alone(&self, datagram: &Datagram<'_>, now: Instant) -> bool {
        ShortPacket::parse(datagram.bytes).is_some_and(|packet| {
            let qp = self.qp(datagram.dest_qpn());
            qp.is_some_and(|qp| qp.take_alone(datagram, &packet, now))
        })
    }

    /// Hands a batch to its QPs: packets in a row for one QP are worked on under one lock, with one ACK.
    pub(super) fn dispatch(
        &'static self,
        mut datagrams: &[Datagram<'_>],
        work: &mut ThreadBuffers,
        now: Instant,
    ) {
        if let Some(address) = datagrams.first().map(|d| d.destination).filter(HostAddr::is_group) {
            // All of a batch have come to one socket.
            return self.dispatch_to_group(datagrams, address, work, now);
        }
        while let Some(first) = datagrams.first() {
            let qpn = first.dest_qpn();
            let run = datagrams.iter().take_while(|d| d.dest_qpn() == qpn).count();
            let (these, rest) = datagrams.split_at(run);
            datagrams = rest;
            let Some(qp) = self.qp(qpn) else {
                if qpn == GSI_QPN {
                    these.iter().for_each(|datagram| self.mad_arrived(datagram));
                } else if !self.host.owns(qpn) {
                    self.host.forward(these);
                }
                continue;
            };
            let mut peer_is_on_udp = false;
            qp.work(work, now, |proto, env| {
                let mut rest = these;
                while let Some((datagram, others)) = rest.split_first() {
                    let taken = match flow_of_middle(env, datagram) {
                        Some(flow) => env.take_middles(proto, now, rest, &flow),
                        None => 0,
                    };
                    if taken > 0 {
                        rest = &rest[taken..];
                        continue;
                    }
                    rest = others;
                    let ends = datagram.ends();
                    let accepted = env.accepts(ends, PacketOrigin::Network);
                    let expected = accepted || env.is_peer_on_udp(ends, proto.params().dest_qpn);
                    let intact = expected && verify(&mut env.work.last_flow, datagram).is_some();
                    peer_is_on_udp |= intact && !accepted;
                    if !intact || !accepted {
                        tracing::trace!(qpn, meta = ?datagram.meta(), "packet refused");
                        continue;
                    }
                    if env.take_short(proto, datagram) {
                        continue;
                    }
                    let meta = datagram.meta();
                    match Packet::parse(datagram.bytes) {
                        Ok(packet) => {
                            let opcode = packet.headers.bth.opcode;
                            if datagram.congestion_experienced() && opcode != Opcode::CNP {
                                env.notify_congestion(proto.params().dest_qpn, now);
                                if opcode.is_read_response() {
                                    // How much of it is under way was this side's choice.
                                    proto.note_congestion(now);
                                }
                            }
                            env.handle(
                                proto,
                                now,
                                &packet.headers,
                                RxPayload::of_packet(packet.payload),
                                &meta,
                            );
                        }
                        Err(error) => tracing::trace!(qpn, %error, "packet refused"),
                    }
                }
            });
            if peer_is_on_udp {
                qp.fall_back(work, now);
            }
        }
    }
}
