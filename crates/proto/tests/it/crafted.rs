//! Packets made by hand, and the peer's answers to them.

use crate::host::{ALL, Frame};
use crate::net::Pair;
use ferroce_wire::{Bth, Headers, Opcode, Operation, Reth, Service};

/// A packet of RC to `b` (or, injected there, to `a`) that asks for an answer.
pub fn frame(operation: Operation, psn: u32, payload: &[u8]) -> Frame {
    let opcode = Opcode::new(Service::Rc, operation).unwrap();
    let bth = Bth { ack_request: true, ..Bth::new(opcode, 0x22, psn) };
    Frame { headers: Headers::new(bth), payload: payload.to_vec() }
}

/// A READ request of a piece of the peer's memory.
pub fn read_request(psn: u32, va: u64, dma_len: u32) -> Frame {
    let mut f = frame(Operation::ReadRequest, psn, &[]);
    f.headers.reth = Some(Reth { va, rkey: ALL, dma_len });
    f
}

/// The packets that `b` sends now.
pub fn answers(p: &mut Pair) -> Vec<(Operation, u32)> {
    p.b.host.log.clear();
    p.b.qp.flush_acks(&mut p.b.host);
    while p.b.qp.transmit(p.now, &mut p.b.host, 1 << 16) {}
    p.b.host.out.clear();
    core::mem::take(&mut p.b.host.log)
}
