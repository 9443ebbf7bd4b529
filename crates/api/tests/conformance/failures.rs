//! What fails, and how.

use crate::fixture::{Fixture, connected, connected_with};
use ferroce::verbs::{FetchAdd, Operated, Read, Send, Write};
use ferroce::{Kind, Remote, Status, rights};
use std::time::Duration;

pub fn no_receive(fixture: &impl Fixture) {
    let wait = Duration::from_micros(100);
    let [mut a, _b] = connected_with(fixture, |builder| builder.receiver_not_ready(wait, Some(2)));
    let mut buffer = a.domain.alloc(8).unwrap();
    buffer.fill(b"lost");
    a.qp.post(1, Send::new(buffer)).unwrap();
    let mut done = a.cq.next(None).unwrap().unwrap();
    let fault = done.result().unwrap_err();
    assert_eq!(fault.status(), Status::ReceiverNotReady);
    assert!(fixture.is_foreign() || fault.reason().unwrap().starts_with("FC02"), "{fault}");
    assert_eq!((&done.take().buffer().unwrap()[..], a.qp.is_dead()), (&b"lost"[..], true));
}

pub fn too_long(fixture: &impl Fixture) {
    let [mut a, mut b] = connected(fixture);
    b.qp.recv(1, b.domain.alloc(10).unwrap()).unwrap();
    a.qp.post(2, Send::new(a.domain.alloc(11).unwrap())).unwrap();
    let mut received = b.cq.next(None).unwrap().unwrap();
    assert_eq!(received.result().unwrap_err().status(), fixture.local(Status::LocalLength));
    assert_eq!(received.take().buffer().unwrap().capacity(), 10);
    let sent = a.cq.next(None).unwrap().unwrap();
    let fault = sent.result().unwrap_err();
    // `rdma_rxe` refuses it as an error of its own side.
    let expected = if fixture.is_foreign() { Status::RemoteOperation } else { Status::RemoteRequest };
    assert_eq!(fault.status(), expected);
}

pub fn revoked(fixture: &impl Fixture) {
    let [mut a, mut b] = connected(fixture);
    let exposed = b.domain.alloc(8).unwrap().expose(rights::All).unwrap();
    let token = exposed.token();
    let mut memory = exposed.revoke();
    memory.fill(b"restored");
    a.qp.post(1, Write::new(a.domain.alloc(8).unwrap(), token)).unwrap();
    let done = a.cq.next(None).unwrap().unwrap();
    let fault = done.result().unwrap_err();
    assert_eq!(fault.status(), Status::RemoteAccess);
    assert!(fixture.is_foreign() || fault.to_string().contains("FC03"), "{fault}");
    assert_eq!(&memory[..], b"restored");
    if fixture.is_foreign() {
        // `rdma_rxe` doesn't always flush what is posted to a queue pair that has failed.
        return;
    }
    b.qp.recv(2, memory).unwrap();
    let mut flushed = b.cq.next(None).unwrap().unwrap();
    assert_eq!((flushed.tag(), flushed.result().unwrap_err().status()), (2, Status::Flushed));
    assert_eq!(&flushed.take().buffer().unwrap()[..], b"restored");
}

pub fn wrong_domain(fixture: &impl Fixture) {
    let [mut a, b] = connected(fixture);
    let other = b.domain.device().open().unwrap();
    let exposed = other.alloc(8).unwrap().expose(rights::Read).unwrap();
    a.qp.post(1, Read::new(a.domain.alloc(8).unwrap(), exposed.token())).unwrap();
    let done = a.cq.next(None).unwrap().unwrap();
    assert_eq!(done.result().unwrap_err().status(), Status::RemoteAccess);
}

pub fn lengths(fixture: &impl Fixture) {
    let [mut a, b] = connected(fixture);
    let exposed = b.domain.alloc(64).unwrap().expose(rights::All).unwrap();
    let part = exposed.token().slice(..8);
    let failed = a.qp.post(1, Write::new(a.domain.alloc(9).unwrap(), part)).unwrap_err();
    assert_eq!((failed.error.kind(), failed.back.into_payload().len()), (Kind::TooLong, 9));
    let failed = a.qp.post(1, Read::new(a.domain.alloc(7).unwrap(), part)).unwrap_err();
    assert_eq!((failed.error.kind(), failed.back.into_payload().len()), (Kind::TooLong, 7));
    for at in [1..9, 8..15] {
        let failed = a.qp.post(1, FetchAdd::new(exposed.token().slice(at), 1)).unwrap_err();
        assert_eq!(failed.error.kind(), Kind::Invalid);
    }
    assert_eq!(a.qp.room(), 16);
    a.qp.post(1, Write::new(a.domain.alloc(8).unwrap(), part)).unwrap();
    a.cq.next(None).unwrap().unwrap().result().unwrap();
}

pub fn flushed(fixture: &impl Fixture) {
    let [mut a, mut b] = connected(fixture);
    a.qp.recv(9, a.domain.alloc(8).unwrap()).unwrap();
    let exposed = b.domain.alloc(8).unwrap().expose(rights::Read).unwrap();
    let mut bytes = exposed.token().to_bytes();
    bytes[1] = 2;
    let forged = Remote::<rights::Write>::from_bytes(bytes).unwrap();
    a.qp.post(1, Write::new(a.domain.alloc(8).unwrap(), forged)).unwrap();
    for tag in 2..5 {
        a.qp.post(tag, Send::new(())).unwrap();
    }
    let mut ended = Vec::new();
    for _ in 0..5 {
        let done = a.cq.next(None).unwrap().unwrap();
        ended.push((done.tag(), done.what(), done.result().unwrap_err()));
    }
    // The flush of a receive may come before it.
    let at = ended.iter().position(|(tag, ..)| *tag == 1).unwrap();
    let (_, _, first) = ended.remove(at);
    assert_eq!((first.status(), first.first()), (Status::RemoteAccess, None));
    let mut tags = Vec::new();
    for (tag, what, fault) in ended {
        assert_eq!(fault.status(), Status::Flushed);
        assert_eq!(fault.first().and_then(|fault| fault.reason()), first.reason());
        tags.push((tag, what));
    }
    // Sends are flushed in order, and so are receives. Which of both come first is the device's choice.
    let (sent, received): (Vec<_>, Vec<_>) = tags.iter().partition(|(_, what)| *what == Operated::Sent);
    let of = |tags: Vec<(u64, Operated)>| tags.iter().map(|(tag, _)| *tag).collect::<Vec<_>>();
    assert_eq!((of(sent), of(received)), (vec![2, 3, 4], vec![9]));
    if fixture.is_foreign() {
        // As in `revoked`.
        return;
    }
    // What is posted later is flushed too.
    a.qp.post(5, Send::new(())).unwrap();
    assert_eq!(a.cq.next(None).unwrap().unwrap().result().unwrap_err().status(), Status::Flushed);
    // The peer's queue pair has failed with it, and its receives come back.
    b.qp.recv(6, b.domain.alloc(8).unwrap()).unwrap();
    let mut done = b.cq.next(None).unwrap().unwrap();
    assert_eq!((done.tag(), done.take().count()), (6, 1));
}

pub fn built_wrong(fixture: &impl Fixture) {
    let domain = fixture.devices().map(|device| device.open().unwrap())[0].clone();
    let cq = domain.cq(64).unwrap();
    let limits = domain.device().limits();
    let kind = |builder: ferroce::verbs::Builder<'_, _>| builder.build().unwrap_err().kind();
    assert_eq!(kind(domain.rc(&cq).send_depth(limits.send_depth + 1)), Kind::Invalid);
    assert_eq!(kind(domain.rc(&cq).recv_depth(limits.recv_depth + 1)), Kind::Invalid);
    assert_eq!(kind(domain.rc(&cq).mtu(1000)), Kind::Invalid);
    assert_eq!(kind(domain.rc(&cq).parts(limits.parts + 1)), Kind::Invalid);
    assert_eq!(kind(domain.rc(&cq).parts(0)), Kind::Invalid);
    assert_eq!(kind(domain.rc(&cq).inline(limits.inline + 1)), Kind::Invalid);
    assert_eq!(kind(domain.rc(&cq).reads(17, 1)), Kind::Invalid);
    assert_eq!(kind(domain.rc(&cq).timeout(Duration::from_millis(1), 8)), Kind::Invalid);
    assert_eq!(domain.cq(0).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(domain.cq(limits.cq_entries + 1).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(domain.alloc(0).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(domain.pool(usize::MAX, 2).unwrap_err().kind(), Kind::Invalid);
    let failed = domain.register(Vec::new()).unwrap_err();
    assert_eq!((failed.error.kind(), failed.back), (Kind::Invalid, Vec::new()));
    // Nothing of it has stayed reserved.
    domain.rc(&cq).send_depth(32).recv_depth(32).build().unwrap();
}
