//! The queue pair of a local address, and the datagrams that travel by it.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use crate::abi::*;
use crate::handle::AddressHandle;
use crate::options::SocketOptions;
use crate::verbs::{ConnectionId, IdQp, NO_COMPLETION, RegisteredMemory, Sizes, request};
use ferroce_rsocket_calls::address;
use ferroce_rsocket_calls::call::{Outcome, zero};
use ferroce_rsocket_protocol::wire::parse_datagram_header;

/// What the adapter puts before a received datagram.
const GRH: usize = 40;
/// The longest datagram that travels by RDMA, with its header.
pub(super) const SLOT: usize = 2048;

/// Datagrams that wait for the program, before others are dropped.
pub(super) const MOST_WAITING: usize = 4096;

/// A datagram and its sender.
pub(super) type Arrived = (SocketAddr, Vec<u8>);

/// A queue pair at a local address. Its fields go in this order.
#[derive(Debug)]
pub(super) struct UdPort {
    handles: BTreeMap<IpAddr, AddressHandle>,
    pub(super) qp: IdQp,
    received: RegisteredMemory,
    sent: RegisteredMemory,
    pub(super) free: Vec<u32>,
    pub(super) mtu: usize,
    id: ConnectionId,
}

/// The `wr_id` of a send is its slot; of a receive, its slot and this.
const RECEIVE: u64 = 1 << 32;

impl UdPort {
    pub(super) fn new(address: IpAddr, options: &SocketOptions) -> Outcome<Self> {
        let id = ConnectionId::new(RDMA_PS_UDP)?;
        let mut name = address::of_rust(SocketAddr::new(address, 0));
        // SAFETY: a live id, an address.
        zero(unsafe { rdma_bind_addr(id.raw(), (&raw mut name).cast()) }, "rdma_bind_addr")?;
        let choices = &options.choices;
        let sizes =
            Sizes { send: choices.send_queue.into(), receive: choices.receive_queue.into(), inline: 0 };
        let qp = IdQp::new(&id, IBV_QPT_UD, sizes)?;
        let sizes = qp.sizes();
        let slots = |count: u32, length: usize| count as usize * length;
        let received =
            RegisteredMemory::new(id.pd(), slots(sizes.receive, GRH + SLOT), IBV_ACCESS_LOCAL_WRITE)?;
        let sent = RegisteredMemory::new(id.pd(), slots(sizes.send, SLOT), IBV_ACCESS_LOCAL_WRITE)?;
        let mtu = crate::handle::mtu(&id)?;
        let new =
            Self { handles: BTreeMap::new(), qp, received, sent, free: (0..sizes.send).collect(), mtu, id };
        for slot in 0..sizes.receive {
            new.post_receive(slot)?;
        }
        Ok(new)
    }

    fn post_receive(&self, slot: u32) -> Outcome<()> {
        let mut list = [self.received.entry(slot as usize * (GRH + SLOT), GRH + SLOT)];
        self.qp.post_receive(RECEIVE | u64::from(slot), &mut list)
    }

    /// What has arrived goes to `arrived`; whether something has completed.
    pub(super) fn progress(&mut self, arrived: &mut VecDeque<Arrived>) -> bool {
        let mut any = self.qp.take_events();
        let mut room = [NO_COMPLETION; 16];
        loop {
            let Ok(found) = self.qp.poll(&mut room).map(<[ibv_wc]>::len) else { return any };
            for completion in &room[..found] {
                if completion.wr_id & RECEIVE == 0 {
                    self.free.push(completion.wr_id as u32);
                } else if completion.status == IBV_WC_SUCCESS {
                    let slot = completion.wr_id as u32;
                    if let Some(datagram) = self.read(slot, completion.byte_len as usize)
                        && arrived.len() < MOST_WAITING
                    {
                        arrived.push_back(datagram);
                    }
                    // A receive that can't be posted is one less.
                    let _ = self.post_receive(slot);
                }
            }
            any |= found > 0;
            if found < room.len() {
                return any;
            }
        }
    }

    fn read(&self, slot: u32, length: usize) -> Option<Arrived> {
        let length = length.min(GRH + SLOT).checked_sub(GRH)?;
        let mut bytes = vec![0; length];
        // SAFETY: a vector of this length.
        unsafe { self.received.get(slot as usize * (GRH + SLOT) + GRH, bytes.as_mut_ptr(), length) };
        let (source, header) = parse_datagram_header(&bytes)?;
        bytes.drain(..header);
        Some((source, bytes))
    }

    /// Sends a datagram, if there is a free slot; whether there was.
    pub(super) fn send(&mut self, peer: IpAddr, qpn: u32, datagram: &[u8]) -> Outcome<bool> {
        let Some(slot) = self.free.pop() else { return Ok(false) };
        let offset = slot as usize * SLOT;
        let handle = match self.handles.get(&peer) {
            Some(handle) => handle,
            None => {
                let handle = AddressHandle::new(&self.id, peer);
                let handle = handle.inspect_err(|_| self.free.push(slot))?;
                self.handles.entry(peer).or_insert(handle)
            }
        };
        // SAFETY: readable bytes; a slot is as long as the longest datagram that comes here.
        unsafe { self.sent.put(offset, datagram.as_ptr(), datagram.len().min(SLOT)) };
        let mut list = [self.sent.entry(offset, datagram.len())];
        let mut send = request(slot.into(), IBV_WR_SEND);
        (send.sg_list, send.num_sge) = (list.as_mut_ptr(), 1);
        send.wr = ibv_send_wr_wr {
            ud: ibv_send_wr_ud { ah: handle.raw(), remote_qpn: qpn, remote_qkey: RDMA_UDP_QKEY },
        };
        self.qp.post_send(&mut send).inspect_err(|_| self.free.push(slot))?;
        Ok(true)
    }
}
