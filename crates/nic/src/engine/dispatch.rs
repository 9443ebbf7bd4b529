//! Incoming packets: from sockets to QPs.

use super::{Engine, Work};
use crate::clock;
use crate::qp::Origin;
use crate::udp::{Datagram, HostAddr, Received};
use ferroce_proto::Instant;
use ferroce_wire::icrc::Flow;
use ferroce_wire::{Opcode, Packet, ROCE_V2_PORT};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

impl Engine {
    /// One round of everything: sockets, forwarded packets, timers, QPs with more to do. Returns whether anything was
    /// done.
    pub(super) fn progress(&'static self, now: Instant) -> bool {
        self.look_at_a_descriptor(now);
        let mut done = self.read_sockets(false, now);
        done |= self.read_rings();
        if self.lease.forwards_lately(now) {
            done |= self.read_forwarded();
        }
        done |= self.run_timers(now) > 0;
        self.run_events(now);
        done |= self.run_taps();
        done |= self.run_queued();
        done
    }

    /// Gives each QP in the run queue a turn.
    pub(super) fn run_queued(&'static self) -> bool {
        let mut done = false;
        for _ in 0..self.run_queue.len() {
            let Some(qp) = self.run_queue.pop() else { break };
            done = true;
            self.with_work(|work| qp.work(work, clock::now(), |_, _| ()));
        }
        done
    }

    /// Reads the sockets of this process's slots; those of addresses that no QP uses only with `all`.
    pub(super) fn read_sockets(&'static self, all: bool, now: Instant) -> bool {
        let mut done = self.read_groups(now) | self.read_raw();
        for address in self.addresses.snapshot().iter() {
            if !all && address.users.load(Ordering::Relaxed) == 0 {
                continue;
            }
            for &steering in &address.steerings {
                let received = address.endpoint.recv(steering, &mut |datagrams| self.arrived(datagrams, now));
                match received {
                    Ok(Received::Busy) => {}
                    Ok(received) => done |= received.count() > 0,
                    Err(error) => tracing::debug!(%error, "reading a RoCE socket"),
                }
            }
        }
        done
    }

    /// Takes the packets that other processes have passed on.
    pub(super) fn read_forwarded(&'static self) -> bool {
        let mut done = false;
        self.rendezvous.recv_forwarded(&mut |datagrams| {
            done = true;
            self.lease.forwarded(clock::now());
            self.arrived(datagrams, clock::now());
        });
        done
    }

    /// The IPv4 identification that a packet's ICRC was made for; `None` when the ICRC is wrong.
    pub(super) fn identification(datagram: &Datagram<'_>) -> Option<u16> {
        verify(&mut None, datagram)
    }

    /// Hands a batch to its QPs: packets in a row for one QP are worked on under one lock, with one ACK.
    pub(super) fn dispatch(&'static self, mut datagrams: &[Datagram<'_>], work: &mut Work, now: Instant) {
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
                if !self.rendezvous.owns(qpn) {
                    self.rendezvous.forward(these);
                }
                continue;
            };
            let mut flow = None;
            let mut elsewhere = false;
            qp.work(work, now, |proto, env| {
                for datagram in these {
                    let meta = datagram.meta();
                    let accepted = env.accepts(&meta, Origin::Network);
                    let expected = accepted || env.is_peer_elsewhere(&meta);
                    let intact = expected && verify(&mut flow, datagram).is_some();
                    elsewhere |= intact && !accepted;
                    if !intact || !accepted {
                        tracing::trace!(qpn, ?meta, "packet refused");
                        continue;
                    }
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
                            env.handle(proto, now, &packet.headers, packet.payload.into(), &meta);
                        }
                        Err(error) => tracing::trace!(qpn, %error, "packet refused"),
                    }
                }
            });
            if elsewhere {
                qp.fall_back(work, now);
            }
        }
    }
}

/// Checks a packet's ICRC, and finds the IPv4 identification it was made for; `flow` saves the work that packets of
/// one source have in common.
pub(super) fn verify(flow: &mut Option<(SocketAddr, Flow)>, datagram: &Datagram<'_>) -> Option<u16> {
    let flow = match flow {
        Some((source, flow)) if *source == datagram.source => flow,
        _ => {
            let port = datagram.source.port();
            let new = match (datagram.source.ip().to_canonical(), datagram.destination.ip()) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => Flow::v4(src, dst, port, ROCE_V2_PORT),
                (IpAddr::V6(src), IpAddr::V6(dst)) => Flow::v6(src, dst, port, ROCE_V2_PORT),
                _ => return None,
            };
            &flow.insert((datagram.source, new)).1
        }
    };
    flow.verify(datagram.bytes, datagram.segment)
}
