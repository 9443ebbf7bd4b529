//! Packets that no correct peer sends: nothing panics, nothing is executed that wasn't allowed, and packets outside of
//! the windows change nothing but counters.

use crate::host::{ALL, BASE, Frame, THERE};
use crate::net::{Pair, Rng, params, wr};
use ferroce_proto::{QpParams, SendOp};
use ferroce_types::{QpState, WcStatus};
use ferroce_wire::{Aeth, AtomicEth, Bth, Deth, Headers, Opcode, Operation, Reth, Service};

/// Any opcode of any service with any header; the numbers are drawn from the interesting ones.
fn random(rng: &mut Rng, service: Option<Service>, psn: u32) -> Frame {
    let opcode = loop {
        let opcode = Opcode::from_u8(rng.next() as u8);
        if let Some(opcode) = opcode
            && service.is_none_or(|s| s == opcode.service)
        {
            break opcode;
        }
    };
    let bits = rng.next();
    let flag = |n: u32| bits >> n & 1 == 1;
    let mut headers = Headers::new(Bth {
        opcode,
        solicited: flag(0),
        migrated: flag(1),
        pad: 0,
        pkey: if rng.below(16) == 0 { rng.next() as u16 } else { 0xffff },
        fecn: flag(2),
        becn: flag(3),
        dest_qp: 0x22,
        ack_request: flag(4),
        psn,
    });
    // Some headers are missing that the opcode promises, and some are there that it doesn't.
    let present = |rng: &mut Rng, promised: bool| if rng.below(32) == 0 { !promised } else { promised };
    let va = match rng.below(6) {
        0 => rng.next(),
        1 => u64::MAX - rng.below(64),
        2 => THERE + rng.below(16),
        _ => THERE,
    };
    let rkey = if rng.below(4) == 0 { rng.next() as u32 } else { ALL };
    if present(rng, opcode.carries_reth()) {
        let dma_len = [0, 1, 64, 256, 300, 1 << 16, 1 << 31, u32::MAX][rng.below(8) as usize];
        headers.reth = Some(Reth { va, rkey, dma_len });
    }
    if present(rng, opcode.is_atomic()) {
        headers.atomic = Some(AtomicEth { va, rkey, swap_or_add: rng.next(), compare: rng.below(2) });
    }
    if present(rng, opcode.carries_aeth()) {
        let syndrome = match rng.below(4) {
            0 => 0x1f,
            1 => 0x60 + rng.below(6) as u8,
            2 => 0x20 + rng.below(32) as u8,
            _ => rng.next() as u8,
        };
        headers.aeth = Some(Aeth { syndrome, msn: rng.next() as u32 & 0xff_ffff });
    }
    if present(rng, opcode.carries_atomic_ack()) {
        headers.atomic_ack = Some(rng.next());
    }
    if present(rng, opcode.carries_immediate()) {
        headers.immediate = Some([0; 4]);
    }
    if present(rng, opcode.carries_invalidate()) {
        headers.invalidate_rkey = Some(rng.next() as u32);
    }
    if present(rng, opcode.carries_deth()) {
        headers.deth = Some(Deth { qkey: rng.below(2) as u32, src_qp: 5 });
    }
    let len = [0, 1, 8, 64, 256, 257, 300][rng.below(7) as usize];
    let mut payload = vec![0xee; len];
    if let Some(first) = payload.first_mut() {
        // For a tag-matching SRQ this byte is the operation of the message.
        *first = rng.below(5) as u8;
    }
    Frame { headers, payload }
}

#[test]
fn packets_outside_of_the_windows_change_nothing_but_counters() {
    let mut p = Pair::new(Service::Rc, 256);
    let mut rng = Rng(42);
    for i in 0..4 {
        p.b.host.post_recv(i, THERE, 1000);
    }
    // Both sides are in the middle of something.
    p.a.post(wr(1, SendOp::Send, BASE, 1000));
    p.a.post(wr(2, SendOp::Read { va: THERE, rkey: ALL }, BASE + 4096, 1000));
    p.a.host.room = Some(2);
    p.step();
    p.a.host.room = Some(0);
    p.b.host.room = Some(0);
    let (acks, requests) = (p.a.qp.sq_psn(), p.b.qp.rq_psn());
    let memory = (p.a.host.memory.clone(), p.b.host.memory.clone());
    for _ in 0..700_000 {
        // Requests ahead of the expected one, and responses that aren't outstanding.
        let ahead = 1 + rng.below((1 << 23) - 1) as u32;
        let f = random(&mut rng, None, (requests + ahead) & 0xff_ffff);
        if f.headers.bth.opcode.is_request() {
            p.inject(true, &f);
        } else {
            let mut f = f;
            f.headers.bth.psn = (acks + rng.below((1 << 24) - 64) as u32) & 0xff_ffff;
            p.inject(false, &f);
        }
    }
    assert_eq!((p.a.qp.state(), p.b.qp.state()), (QpState::Rts, QpState::Rts));
    assert!(p.a.host.sends.is_empty() && p.b.host.unpublished.is_empty());
    assert!(p.a.host.events.is_empty() && p.b.host.events.is_empty());
    assert!(memory.0 == p.a.host.memory && memory.1 == p.b.host.memory);
    assert_eq!((p.a.qp.sq_psn(), p.b.qp.rq_psn()), (acks, requests));
    p.a.host.room = None;
    p.b.host.room = None;
    p.run();
    assert_eq!(p.a.host.send_statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(p.b.host.recvs.len(), 1);
}

#[test]
fn duplicates_with_random_contents_execute_nothing() {
    let mut p = Pair::with(Service::Rc, params(256), params(256), 0x40_0000);
    let mut rng = Rng(43);
    for i in 0..100 {
        p.a.post(wr(i, SendOp::FetchAdd { va: THERE + (1 << 20), rkey: ALL, add: 1 }, BASE, 8));
        p.a.post(wr(i, SendOp::Write { va: THERE, rkey: ALL }, BASE, 600));
    }
    p.run();
    p.b.host.post_recv(1, THERE, 1000);
    let memory = p.b.host.memory.clone();
    for i in 0..300_000u32 {
        let psn = p.b.qp.rq_psn().wrapping_sub(1 + rng.below(400) as u32) & 0xff_ffff;
        let f = random(&mut rng, Some(Service::Rc), psn);
        if f.headers.bth.opcode.is_request() {
            p.inject(true, &f);
        }
        if i % 64 == 0 {
            p.b.qp.transmit(p.now, &mut p.b.host, 1 << 20);
            p.b.host.out.clear();
            p.b.host.log.clear();
        }
    }
    assert!(memory == p.b.host.memory);
    assert_eq!((p.b.host.receives.len(), p.b.qp.state()), (1, QpState::Rts));
}

#[test]
fn no_packet_panics_or_breaks_the_order_of_completions() {
    let mut rng = Rng(44);
    for round in 0..3000 {
        let service = [Service::Rc, Service::Rc, Service::Uc, Service::Ud][round % 4];
        let mtu = [256, 1024, u32::MAX][round % 3];
        let tags = round % 8 == 1;
        let b = QpParams { tags, srq: tags, ..params(mtu) };
        let mut p = Pair::with(service, params(mtu), b, rng.next() as u32 & 0xff_ffff);
        p.keep([0, 5, 5000][round / 16 % 3]);
        let mut posted = 0;
        for i in 0..100 {
            if i % 20 == 0 {
                p.b.host.post_recv(i, THERE, 300);
                p.b.host.tags.extend(p.b.host.receives.back().cloned().map(|receive| (0, 0, receive)));
                let op = match (service, rng.below(4)) {
                    (Service::Rc, 0) => SendOp::Read { va: THERE, rkey: ALL },
                    (Service::Rc, 1) => SendOp::FetchAdd { va: THERE, rkey: ALL, add: 1 },
                    _ => SendOp::Send,
                };
                let request =
                    crate::net::datagram(posted, op, BASE, [0, 8, 200][rng.below(3) as usize], 0x22, 0);
                if p.a.qp.post_send(&request.request()).is_ok() {
                    posted += 1;
                }
                p.transmit();
            }
            // In the window most of the time.
            let b = (p.b.qp.rq_psn() + rng.below(3) as u32) & 0xff_ffff;
            let f = random(&mut rng, None, b);
            p.inject(true, &f);
            let a = p.a.qp.sq_psn().wrapping_sub(rng.below(4) as u32) & 0xff_ffff;
            let f = random(&mut rng, None, a);
            p.inject(false, &f);
            if i % 10 == 0 {
                p.step();
            }
        }
        p.a.qp.set_state(QpState::Err, &mut p.a.host);
        let order: Vec<_> = p.a.host.sends.iter().map(|c| c.wr_id).collect();
        assert_eq!(order, (0..posted).collect::<Vec<_>>(), "each ends once and in order");
    }
}

#[test]
fn queue_of_answers_is_bounded() {
    let mut p = Pair::with(Service::Rc, params(256), params(256), 0);
    p.b.host.room = Some(0);
    p.a.post(wr(1, SendOp::Read { va: THERE, rkey: ALL }, BASE, 16_000));
    p.step();
    p.b.host.room = Some(1000);
    while p.b.qp.transmit(p.now, &mut p.b.host, 1 << 20) {}
    p.b.host.out.clear();
    p.b.host.room = Some(0);
    let mut f = random(&mut Rng(1), Some(Service::Rc), 0);
    f.headers.bth.opcode = Opcode::new(Service::Rc, Operation::ReadRequest).unwrap();
    f.headers.bth.pkey = 0xffff;
    for n in 0..200 {
        f.headers.bth.psn = n % 60;
        f.headers.reth = Some(Reth { va: THERE, rkey: ALL, dma_len: 10 });
        p.inject(true, &f);
    }
    p.b.host.room = None;
    p.b.host.log.clear();
    while p.b.qp.transmit(p.now, &mut p.b.host, 1 << 20) {}
    assert!(p.b.host.log.len() <= 33, "{}", p.b.host.log.len());
}
