//! Datagrams, and unreliable connections.

use crate::fixture::{Fixture, large};
use ferroce::verbs::{Cq, Domain, Operated, Send, SendTo, UdQp, Write};
use ferroce::{Inline, Kind, Part, rights};
use std::time::Duration;

const QKEY: u32 = 0x1122_3344;

/// How long a datagram may take.
const LONG: Duration = Duration::from_secs(1);

struct Station {
    domain: Domain,
    cq: Cq,
    qp: UdQp,
}

fn stations(fixture: &impl Fixture) -> [Station; 2] {
    fixture.devices().map(|device| {
        let domain = device.open().unwrap();
        let cq = domain.cq(64).unwrap();
        let qp = domain.ud(&cq).build().unwrap().activate(QKEY).unwrap();
        Station { domain, cq, qp }
    })
}

/// Waits for a message. The network may have lost it: then it is sent again.
fn arrives(fixture: &impl Fixture, cq: &mut Cq, mut send: impl FnMut()) {
    send();
    while !cq.wait(Some(if fixture.loses() { Duration::from_millis(1) } else { LONG })).unwrap() {
        assert!(fixture.loses(), "a datagram was lost");
        send();
    }
}

pub fn answered(fixture: &impl Fixture) {
    let [mut a, mut b] = stations(fixture);
    let to_b = a.domain.address(&b.qp.endpoint()).unwrap();
    assert_eq!(to_b.endpoint().number(), b.qp.number());
    b.qp.recv(1, b.domain.alloc(100).unwrap()).unwrap();
    a.qp.recv(2, a.domain.alloc(100).unwrap()).unwrap();
    arrives(fixture, &mut b.cq, || {
        let mut buffer = a.domain.alloc(50).unwrap();
        buffer.fill(&[7; 50]);
        a.qp.post(3, SendTo::new(buffer, &to_b).imm(0x0102_0304)).unwrap();
        let mut sent = a.cq.next(None).unwrap().unwrap();
        sent.result().unwrap();
        assert_eq!((sent.tag(), sent.what(), sent.take().buffer().unwrap().len()), (3, Operated::Sent, 50));
    });
    let mut received = b.cq.next(None).unwrap().unwrap();
    received.result().unwrap();
    assert_eq!((received.tag(), received.what(), received.len()), (1, Operated::Received, 50));
    assert_eq!(received.imm(), Some(0x0102_0304));
    let source = *received.source().expect("datagrams have a source");
    let buffer = received.take().buffer().unwrap();
    drop(received);
    assert_eq!((&buffer[..], buffer.capacity()), (&[7; 50][..], 100));
    assert_eq!(source.number(), a.qp.number());
    let to_a = b.domain.address(&source).unwrap();
    arrives(fixture, &mut a.cq, || {
        b.qp.post(4, SendTo::new(Inline::from(b"answer"), &to_a)).unwrap();
        b.cq.next(None).unwrap().unwrap().result().unwrap();
    });
    let mut answer = a.cq.next(None).unwrap().unwrap();
    assert_eq!((answer.source().unwrap().number(), answer.tag()), (b.qp.number(), 2));
    assert_eq!(&answer.buffer().unwrap().unwrap()[..], b"answer");
}

pub fn parts(fixture: &impl Fixture) {
    let [mut a, mut b] = stations(fixture);
    let to_b = a.domain.address(&b.qp.endpoint()).unwrap();
    let pieces = [10, 20, 30, 40].map(|len| b.domain.alloc(len).unwrap());
    b.qp.recv(1, pieces).unwrap();
    arrives(fixture, &mut b.cq, || {
        let mut head = a.domain.alloc(5).unwrap();
        head.fill(b"head ");
        let mut body = a.domain.alloc(40).unwrap();
        body.fill(&[b'b'; 40]);
        a.qp.post(2, SendTo::new((head, body.freeze()), &to_b)).unwrap();
        a.cq.next(None).unwrap().unwrap().result().unwrap();
    });
    let mut received = b.cq.next(None).unwrap().unwrap();
    received.result().unwrap();
    assert_eq!(received.len(), 45);
    let parts: Vec<_> = received.take().collect();
    drop(received);
    let lens: Vec<_> =
        parts.iter().map(|part| if let Part::Buffer(it) = part { it.len() } else { 99 }).collect();
    assert_eq!(lens, [10, 20, 15, 0]);
    let Some(Part::Buffer(first)) = parts.into_iter().next() else { panic!("a buffer") };
    assert_eq!(&first[..], b"head bbbbb");
    // An empty message has a source, too.
    b.qp.recv(3, ()).unwrap();
    arrives(fixture, &mut b.cq, || {
        a.qp.post(4, SendTo::new((), &to_b)).unwrap();
        a.cq.next(None).unwrap().unwrap().result().unwrap();
    });
    let received = b.cq.next(None).unwrap().unwrap();
    assert!(received.result().is_ok() && received.is_empty() && received.source().is_some());
}

pub fn wrong_qkey(fixture: &impl Fixture) {
    let [mut a, mut b] = stations(fixture);
    let mut forged = b.qp.endpoint().to_bytes();
    forged[35] ^= 1;
    let forged = a.domain.address(&ferroce::verbs::Endpoint::from_bytes(forged).unwrap()).unwrap();
    b.qp.recv(1, b.domain.alloc(64).unwrap()).unwrap();
    for _ in 0..3 {
        a.qp.post(2, SendTo::new(Inline::from(b"forged"), &forged)).unwrap();
        a.cq.next(None).unwrap().unwrap().result().unwrap();
    }
    assert!(!b.cq.wait(Some(Duration::from_millis(20))).unwrap());
    let error = a.domain.ud(&a.cq).build().unwrap().activate(1 << 31).unwrap_err().error;
    assert_eq!((error.kind(), error.verb()), (Kind::Invalid, "activate"));
}

pub fn too_long(fixture: &impl Fixture) {
    let [mut a, b] = stations(fixture);
    let to_b = a.domain.address(&b.qp.endpoint()).unwrap();
    let failed = a.qp.post(1, SendTo::new(a.domain.alloc(5000).unwrap(), &to_b)).unwrap_err();
    assert_eq!((failed.error.kind(), failed.error.verb()), (Kind::TooLong, "post"));
    assert_eq!(failed.back.into_payload().len(), 5000);
    assert!(!a.qp.is_dead());
}

pub fn foreign(fixture: &impl Fixture) {
    let [mut a, b] = stations(fixture);
    let other = a.domain.device().open().unwrap();
    let to_b = other.address(&b.qp.endpoint()).unwrap();
    let posted = a.qp.post(1, SendTo::new((), &to_b));
    // The simulation has no address handles.
    assert!(posted.is_ok() == fixture.devices()[0].name().starts_with("sim_"));
}

pub fn outstanding(fixture: &impl Fixture) {
    let [a, b] = stations(fixture);
    let Station { domain, cq, qp } = b;
    let pool = domain.pool(3, 32).unwrap();
    let mut qp = qp;
    for tag in 0..3 {
        qp.recv(tag, pool.try_take().unwrap()).unwrap();
    }
    assert_eq!((pool.free(), qp.recv_room()), (0, 5));
    let outstanding = qp.destroy();
    let lens: Vec<_> = outstanding.into_iter().map(|(tag, parts)| (tag, parts.count())).collect();
    assert_eq!((lens, pool.free()), (vec![(0, 1), (1, 1), (2, 1)], 3));
    drop((a, cq));
}

pub fn unreliable(fixture: &impl Fixture) {
    const COUNT: u64 = 8;
    let [a, b] = fixture.devices().map(|device| device.open().unwrap());
    let (mut a_cq, mut b_cq) = (a.cq(64).unwrap(), b.cq(64).unwrap());
    let a_setup = a.uc(&a_cq).send_depth(16).build().unwrap();
    let mut b_setup = b.uc(&b_cq).recv_depth(16).build().unwrap();
    for tag in 0..COUNT {
        b_setup.recv(tag, b.alloc(large(5000)).unwrap()).unwrap();
    }
    let (a_end, b_end) = (a_setup.endpoint(), b_setup.endpoint());
    let (mut a_qp, _b_qp) = (a_setup.connect(&b_end).unwrap(), b_setup.connect(&a_end).unwrap());
    let exposed = b.alloc(64).unwrap().expose(rights::Write).unwrap();
    for number in 0..COUNT {
        let mut buffer = a.alloc(large(5000)).unwrap();
        buffer.iter_mut().for_each(|byte| *byte = number as u8);
        a_qp.post(number, Send::new(buffer).imm(number as u32)).unwrap();
        // A request ends when it has left.
        a_cq.next(None).unwrap().unwrap().result().unwrap();
    }
    a_qp.post(9, Write::new(Inline::from(b"written"), exposed.token().slice(..7))).unwrap();
    a_cq.next(None).unwrap().unwrap().result().unwrap();
    let mut last = None;
    let mut received = 0;
    while received < COUNT && b_cq.wait(Some(Duration::from_millis(50))).unwrap() {
        let mut done = b_cq.next(None).unwrap().unwrap();
        let number = done.imm().unwrap();
        assert!(last < Some(number), "{number} after {last:?}");
        last = Some(number);
        let buffer = done.buffer().unwrap().unwrap();
        assert!(buffer.len() == large(5000) && buffer.iter().all(|byte| *byte == number as u8));
        received += 1;
    }
    assert!(received == COUNT || fixture.loses(), "{received} of {COUNT}");
    let mut written = [0; 7];
    for _ in 0..200 {
        exposed.load(0, &mut written);
        if &written == b"written" {
            return;
        }
        assert!(!b_cq.wait(Some(Duration::from_millis(5))).unwrap());
    }
    assert!(fixture.loses());
}
