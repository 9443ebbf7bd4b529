//! What succeeds.

use crate::fixture::{Fixture, connected, connected_with, large};
use ferroce::verbs::{CompareSwap, FetchAdd, Operated, Read, Send, Write};
use ferroce::{Inline, Kind, Part, rights};

pub fn messages(fixture: &impl Fixture) {
    let step = large(600);
    let [mut a, mut b] = connected(fixture);
    for tag in 0..16 {
        b.qp.recv(tag, b.domain.alloc(9000).unwrap()).unwrap();
    }
    for tag in 0..16_u64 {
        let mut buffer = a.domain.alloc(9000).unwrap();
        buffer.fill(&vec![tag as u8; step * tag as usize]);
        let send = Send::new(buffer);
        let send = if tag % 2 == 1 { send.imm(tag as u32 * 0x0101) } else { send };
        a.qp.post(100 + tag, send).unwrap();
    }
    for tag in 0..16 {
        let mut received = b.cq.next(None).unwrap().unwrap();
        received.result().unwrap();
        assert_eq!((received.tag(), received.what()), (tag, Operated::Received));
        assert_eq!(received.imm(), (tag % 2 == 1).then_some(tag as u32 * 0x0101));
        assert_eq!(received.len(), step * tag as usize);
        let buffer = received.take().buffer().unwrap();
        assert_eq!(&buffer[..], vec![tag as u8; step * tag as usize]);
        let mut sent = a.cq.next(None).unwrap().unwrap();
        sent.result().unwrap();
        assert_eq!((sent.tag(), sent.what(), sent.qp()), (100 + tag, Operated::Sent, a.qp.number()));
        assert_eq!(sent.take().buffer().unwrap().len(), step * tag as usize);
    }
}

pub fn one_sided(fixture: &impl Fixture) {
    let [mut a, b] = connected(fixture);
    let mut memory = b.domain.alloc(large(20_000)).unwrap();
    memory.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
    let exposed = memory.expose(rights::ReadWrite).unwrap();
    let token = exposed.token();
    a.qp.post(1, Read::new(a.domain.alloc(large(10_000)).unwrap(), token.slice(3..large(8992) + 3))).unwrap();
    let mut read = a.cq.next(None).unwrap().unwrap();
    read.result().unwrap();
    assert_eq!((read.tag(), read.what(), read.len()), (1, Operated::Read, large(8992)));
    let mut buffer = read.take().buffer().unwrap();
    assert!(buffer.iter().enumerate().all(|(at, byte)| *byte == (at + 3) as u8));
    drop(read);
    assert_eq!((buffer.len(), buffer.capacity()), (large(8992), large(10_000)));
    buffer.iter_mut().for_each(|byte| *byte = 0xee);
    a.qp.post(2, Write::new(buffer, token.slice(large(11_008)..))).unwrap();
    let written = a.cq.next(None).unwrap().unwrap();
    written.result().unwrap();
    assert_eq!((written.tag(), written.what()), (2, Operated::Written));
    let mut bytes = vec![0; large(20_000)];
    exposed.load(0, &mut bytes);
    assert!(bytes[..large(11_008)].iter().enumerate().all(|(at, byte)| *byte == at as u8));
    assert!(bytes[large(11_008)..].iter().all(|byte| *byte == 0xee));
    assert_eq!(exposed.revoke()[..], bytes);
}

pub fn write_with_immediate(fixture: &impl Fixture) {
    let [mut a, mut b] = connected(fixture);
    let exposed = b.domain.alloc(64).unwrap().expose(rights::Write).unwrap();
    b.qp.recv(7, ()).unwrap();
    let mut buffer = a.domain.alloc(4).unwrap();
    buffer.fill(b"done");
    a.qp.post(1, Write::new(buffer, exposed.token()).imm(0x1234_5678)).unwrap();
    let received = b.cq.next(None).unwrap().unwrap();
    received.result().unwrap();
    assert_eq!((received.tag(), received.what(), received.len()), (7, Operated::ReceivedWrite, 4));
    assert_eq!(received.imm(), Some(0x1234_5678));
    let mut bytes = [0; 5];
    exposed.load(0, &mut bytes);
    assert_eq!(&bytes, b"done\0");
}

pub fn atomics(fixture: &impl Fixture) {
    let [mut a, b] = connected(fixture);
    let exposed = b.domain.alloc(64).unwrap().expose(rights::Atomic).unwrap();
    exposed.word(16).store(40);
    let word = exposed.token().slice(16..24);
    a.qp.post(1, FetchAdd::new(word, 2)).unwrap();
    a.qp.post(2, CompareSwap::new(word, 42, 7)).unwrap();
    a.qp.post(3, CompareSwap::new(word, 42, 8)).unwrap();
    a.qp.post(4, FetchAdd::new(word, u64::MAX).fence()).unwrap();
    for (tag, before) in [(1, 40), (2, 42), (3, 7), (4, 7)] {
        let mut done = a.cq.next(None).unwrap().unwrap();
        done.result().unwrap();
        assert_eq!((done.tag(), done.what(), done.value()), (tag, Operated::Atomic, Some(before)));
        assert_eq!(done.take().count(), 0);
    }
    assert_eq!(exposed.word(16).load(), 6);
}

pub fn parts(fixture: &impl Fixture) {
    let [mut a, mut b] = connected(fixture);
    let scattered: Vec<_> = b.domain.alloc(12).unwrap().chunks(5).collect();
    b.qp.recv(1, scattered).unwrap();
    let mut header = a.domain.alloc(4).unwrap();
    header.fill(b"head");
    let mut body = a.domain.alloc(16).unwrap();
    body.fill(b"__body!_");
    let body = body.freeze().slice(2..7);
    a.qp.post(1, Send::new((header, body))).unwrap();
    let mut received = b.cq.next(None).unwrap().unwrap();
    received.result().unwrap();
    assert_eq!(received.len(), 9);
    let parts: Vec<Vec<u8>> = received
        .take()
        .map(|part| match part {
            Part::Buffer(buffer) => buffer.to_vec(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(parts, [&b"headb"[..], b"ody!", b""]);
    let mut sent = a.cq.next(None).unwrap().unwrap();
    let kinds: Vec<bool> = sent.take().map(|part| matches!(part, Part::Frozen(_))).collect();
    assert_eq!(kinds, [false, true]);
    let too_many: Vec<_> = a.domain.alloc(10).unwrap().chunks(1).collect();
    let failed = a.qp.post(2, Send::new(too_many)).unwrap_err();
    assert_eq!((failed.error.kind(), failed.back.into_payload().len()), (Kind::Invalid, 10));
}

pub fn inline(fixture: &impl Fixture) {
    let [mut a, mut b] = connected(fixture);
    b.qp.recv(1, b.domain.alloc(100).unwrap()).unwrap();
    a.qp.post(1, Send::new(Inline::from(b"inline"))).unwrap();
    let failed = a.qp.post(2, Send::new(Inline::from(&[0; 65]))).unwrap_err();
    assert_eq!(failed.error.kind(), Kind::TooLong);
    let mut received = b.cq.next(None).unwrap().unwrap();
    assert_eq!(&received.buffer().unwrap().unwrap()[..], b"inline");
    let exposed = b.domain.alloc(8).unwrap().expose(rights::Write).unwrap();
    a.qp.post(3, Write::new(Inline::from(b"w"), exposed.token())).unwrap();
    for tag in [1, 3] {
        let done = a.cq.next(None).unwrap().unwrap();
        done.result().unwrap();
        assert_eq!(done.tag(), tag);
    }
    let mut bytes = [0; 2];
    exposed.load(0, &mut bytes);
    assert_eq!(&bytes, b"w\0");
}

pub fn frozen(fixture: &impl Fixture) {
    let [a, b] = fixture.devices().map(|device| device.open().unwrap());
    let (mut a_cq, mut b_cq) = (a.cq(64).unwrap(), b.cq(64).unwrap());
    let mut buffer = a.alloc(3000).unwrap();
    buffer.iter_mut().for_each(|byte| *byte = 9);
    let frozen = buffer.freeze();
    let mut qps = Vec::new();
    for peer in 0..4 {
        let a_setup = a.rc(&a_cq).build().unwrap();
        let mut b_setup = b.rc(&b_cq).build().unwrap();
        b_setup.recv(peer, b.alloc(3000).unwrap()).unwrap();
        let ends = (a_setup.endpoint(), b_setup.endpoint());
        let mut a_qp = a_setup.connect(&ends.1).unwrap();
        let b_qp = b_setup.connect(&ends.0).unwrap();
        a_qp.post(peer, Send::new(frozen.clone())).unwrap();
        qps.push((a_qp, b_qp));
    }
    let frozen = frozen.thaw().unwrap_err();
    for _ in 0..4 {
        let mut received = b_cq.next(None).unwrap().unwrap();
        assert!(received.buffer().unwrap().unwrap().iter().all(|byte| *byte == 9));
        a_cq.next(None).unwrap().unwrap().result().unwrap();
    }
    assert_eq!(frozen.thaw().unwrap().len(), 3000);
}

pub fn quiet(fixture: &impl Fixture) {
    let [mut a, b] = connected(fixture);
    let exposed = b.domain.alloc(64).unwrap().expose(rights::All).unwrap();
    let pool = a.domain.pool(8, 16).unwrap();
    for tag in 0..4 {
        let mut buffer = pool.try_take().unwrap();
        buffer.fill(&[tag as u8; 16]);
        a.qp.post(tag, Write::new(buffer, exposed.token()).quiet()).unwrap();
    }
    let into = pool.try_take().unwrap();
    a.qp.post(4, Read::new(into, exposed.token().slice(..16)).quiet()).unwrap();
    a.qp.post(5, FetchAdd::new(exposed.token().slice(16..), 3)).unwrap();
    assert_eq!((pool.free(), a.qp.room()), (3, 10));
    for tag in 0..6 {
        let mut done = a.cq.next(None).unwrap().unwrap();
        done.result().unwrap();
        assert_eq!(done.tag(), tag);
        if tag == 4 {
            assert_eq!((&done.take().buffer().unwrap()[..], done.len()), (&[3; 16][..], 16));
        }
        if tag == 5 {
            assert_eq!(done.value(), Some(0));
        }
    }
    assert_eq!((pool.free(), a.qp.room()), (8, 16));
    // Quiet requests alone don't stop the queue.
    let mut ended = 0;
    for tag in 0..100 {
        while a.qp.room() == 0 {
            let done = a.cq.next(None).unwrap().unwrap();
            assert_eq!(done.tag(), ended);
            ended += 1;
        }
        let buffer = pool.try_take().unwrap_or_else(|| a.domain.alloc(16).unwrap());
        a.qp.post(tag, Write::new(buffer, exposed.token()).quiet()).unwrap();
    }
    assert!(ended > 80);
}

pub fn full(fixture: &impl Fixture) {
    let [mut a, mut b] = connected_with(fixture, |builder| builder.send_depth(2).recv_depth(1));
    b.qp.recv(1, b.domain.alloc(8).unwrap()).unwrap();
    let failed = b.qp.recv(2, b.domain.alloc(9).unwrap()).unwrap_err();
    assert_eq!((failed.error.kind(), failed.back.capacity(), b.qp.recv_room()), (Kind::Full, 9, 0));
    let exposed = b.domain.alloc(8).unwrap().expose(rights::Write).unwrap();
    for tag in 0..2 {
        a.qp.post(tag, Write::new((), exposed.token())).unwrap();
    }
    assert!(a.cq.wait(None).unwrap());
    // Whether or not the adapter has ended them, their completions weren't polled.
    let failed = a.qp.post(2, Send::new(failed.back)).unwrap_err();
    assert_eq!((failed.error.kind(), failed.error.errno(), a.qp.room()), (Kind::Full, 12, 0));
    a.cq.next(None).unwrap().unwrap().result().unwrap();
    assert_eq!(a.qp.room(), 1);
    let mut buffer = failed.back.into_payload();
    buffer.set_len(1);
    // It is memory of the peer's domain.
    a.qp.post(2, Send::new(buffer)).unwrap();
    a.cq.next(None).unwrap().unwrap().result().unwrap();
    let done = a.cq.next(None).unwrap().unwrap();
    assert_eq!(done.result().unwrap_err().status(), fixture.local(ferroce::Status::LocalProtection));
}

pub fn two_queues(fixture: &impl Fixture) {
    let [a, b] = fixture.devices().map(|device| device.open().unwrap());
    let mut a_cq = a.cq(16).unwrap();
    let (mut sends, mut receives) = (b.cq(8).unwrap(), b.cq(8).unwrap());
    let mut a_setup = a.rc(&a_cq).build().unwrap();
    let mut b_setup = b.rc(&sends).recv_cq(&receives).build().unwrap();
    a_setup.recv(1, a.alloc(8).unwrap()).unwrap();
    b_setup.recv(2, b.alloc(8).unwrap()).unwrap();
    let ends = (a_setup.endpoint(), b_setup.endpoint());
    let mut a_qp = a_setup.connect(&ends.1).unwrap();
    let mut b_qp = b_setup.connect(&ends.0).unwrap();
    a_qp.post(3, Send::new(())).unwrap();
    b_qp.post(4, Send::new(()).solicited()).unwrap();
    assert_eq!(receives.next(None).unwrap().unwrap().tag(), 2);
    assert_eq!(sends.next(None).unwrap().unwrap().tag(), 4);
    let mut tags: Vec<_> = (0..2).map(|_| a_cq.next(None).unwrap().unwrap().tag()).collect();
    tags.sort_unstable();
    assert_eq!(tags, [1, 3]);
    assert!(receives.poll().unwrap().next().is_none());
}
