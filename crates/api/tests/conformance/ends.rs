//! How requests end that aren't waited for (rules S1, S6, S10).

use crate::fixture::{Fixture, connected, connected_with, large};
use ferroce::verbs::{Device, Read, Send, Write};
use ferroce::{Kind, Status, rights};
use std::time::Duration;

pub fn abort(fixture: &impl Fixture) {
    let [mut a, b] = connected(fixture);
    let exposed = b.domain.alloc(large(1 << 20)).unwrap().expose(rights::Read).unwrap();
    let pool = a.domain.pool(1, large(1 << 20)).unwrap();
    a.qp.post(1, Read::new(pool.try_take().unwrap(), exposed.token())).unwrap();
    // The response is on its way when the program gives up, or has come already.
    let has_come = a.cq.wait(Some(Duration::from_micros(2))).unwrap();
    assert!(!has_come || fixture.is_quick());
    assert_eq!(pool.free(), 0);
    a.qp.abort();
    let mut done = a.cq.next(None).unwrap().unwrap();
    // It may also come between the two calls.
    assert!(done.result().is_ok() || !has_come);
    let mut buffer = done.take().buffer().unwrap();
    drop(done);
    buffer.iter_mut().for_each(|byte| *byte = 5);
    assert!(!a.cq.wait(Some(Duration::from_millis(100))).unwrap());
    assert!(buffer.iter().all(|byte| *byte == 5), "a late response has written");
    drop(buffer);
    assert_eq!(pool.free(), 1);
}

pub fn destroy(fixture: &impl Fixture) {
    // `rdma_rxe` repeats for ever where 7 repetitions are asked for.
    let [mut a, mut b] = connected_with(fixture, |builder| {
        builder.send_depth(16).recv_depth(16).timeout(Duration::from_millis(20), 3)
    });
    let exposed = b.domain.alloc(large(1 << 16)).unwrap().expose(rights::All).unwrap();
    a.qp.recv(1, a.domain.alloc(8).unwrap()).unwrap();
    a.qp.recv(2, (a.domain.alloc(8).unwrap(), a.domain.alloc(8).unwrap()).0).unwrap();
    a.qp.post(3, Read::new(a.domain.alloc(large(1 << 16)).unwrap(), exposed.token())).unwrap();
    a.qp.post(4, Write::new(a.domain.alloc(9).unwrap(), exposed.token())).unwrap();
    let outstanding = a.qp.destroy();
    let tags: Vec<_> = outstanding.iter().map(|(tag, _)| *tag).collect();
    assert_eq!(tags, [3, 4, 1, 2]);
    let mut memory: Vec<_> = outstanding.into_iter().filter_map(|(_, parts)| parts.buffer()).collect();
    for buffer in &mut memory {
        let len = buffer.capacity();
        buffer.fill(&vec![1; len]);
    }
    assert!(!a.cq.wait(Some(Duration::from_millis(100))).unwrap());
    assert!(memory.iter().flat_map(|buffer| buffer.iter()).all(|byte| *byte == 1));
    // The peer is on its own.
    b.qp.post(1, Send::new(())).unwrap();
    let fault = b.cq.next(None).unwrap().unwrap().result().unwrap_err();
    assert_eq!(fault.status(), Status::RetriesExceeded);
    // Nothing has answered, or the device knows why.
    assert!(fixture.is_foreign() || fault.to_string().starts_with("FC01"), "{fault}");
}

pub fn dropped(fixture: &impl Fixture) {
    let [mut a, b] = connected(fixture);
    let exposed = b.domain.alloc(large(1 << 16)).unwrap().expose(rights::Read).unwrap();
    let pool = a.domain.pool(2, large(1 << 16)).unwrap();
    a.qp.post(1, Read::new(pool.try_take().unwrap(), exposed.token())).unwrap();
    a.qp.recv(2, pool.try_take().unwrap()).unwrap();
    assert!(!a.cq.wait(Some(Duration::from_micros(1))).unwrap() || fixture.is_quick());
    assert_eq!(pool.free(), 0);
    drop(a.qp);
    assert_eq!(pool.free(), 2);
    assert!(!a.cq.wait(Some(Duration::from_millis(1))).unwrap());
    assert!(a.cq.poll().unwrap().next().is_none());
}

pub fn forgotten(fixture: &impl Fixture) {
    let [mut a, mut b] = connected(fixture);
    let pool = b.domain.pool(2, 64).unwrap();
    b.qp.recv(1, pool.try_take().unwrap()).unwrap();
    std::mem::forget(b.qp);
    assert_eq!(pool.free(), 1);
    let mut buffer = a.domain.alloc(64).unwrap();
    buffer.fill(b"received all the same");
    a.qp.post(1, Send::new(buffer)).unwrap();
    a.cq.next(None).unwrap().unwrap().result().unwrap();
    assert_eq!(pool.free(), 1);
    let mut received = b.cq.next(None).unwrap().unwrap();
    assert_eq!(&received.buffer().unwrap().unwrap()[..], b"received all the same");
    assert_eq!(pool.free(), 2);
}

pub fn forgotten_completion(fixture: &impl Fixture) {
    let [mut a, b] = connected(fixture);
    let exposed = b.domain.alloc(large(64)).unwrap().expose(rights::Write).unwrap();
    let pool = a.domain.pool(2, large(64)).unwrap();
    for tag in 1..=2 {
        let mut buffer = pool.try_take().unwrap();
        buffer.fill(&[tag as u8; 8]);
        a.qp.post(tag, Write::new(buffer, exposed.token().slice(..8))).unwrap();
    }
    std::mem::forget(a.cq.next(None).unwrap().unwrap());
    assert_eq!(pool.free(), 0);
    let second = a.cq.next(None).unwrap().unwrap();
    assert_eq!((second.tag(), pool.free()), (2, 1));
    drop(second);
    assert_eq!(pool.free(), 2);
}

pub fn dropped_cq(fixture: &impl Fixture) {
    let [mut a, mut b] = connected(fixture);
    let pool = b.domain.pool(1, 64).unwrap();
    b.qp.recv(1, pool.try_take().unwrap()).unwrap();
    drop(b.cq);
    a.qp.post(1, Send::new(())).unwrap();
    a.cq.next(None).unwrap().unwrap().result().unwrap();
    assert_eq!((pool.free(), b.qp.recv_room()), (0, 15));
    assert_eq!(b.qp.destroy().len(), 1);
    assert_eq!(pool.free(), 1);
}

pub fn reserved(fixture: &impl Fixture) {
    let domain = fixture.devices()[0].open().unwrap();
    let cq = domain.cq(20).unwrap();
    let first = domain.rc(&cq).send_depth(4).recv_depth(6).build().unwrap();
    let error = domain.rc(&cq).send_depth(4).recv_depth(7).build().unwrap_err();
    assert_eq!((error.kind(), error.verb()), (Kind::Full, "build"));
    let second = domain.rc(&cq).send_depth(4).recv_depth(6).build().unwrap();
    assert_eq!(domain.rc(&cq).send_depth(1).recv_depth(0).build().unwrap_err().kind(), Kind::Full);
    drop(first);
    let third = domain.rc(&cq).send_depth(9).recv_depth(1).build().unwrap();
    assert_ne!(second.number(), third.number());
    let _ = Device::limits(domain.device());
}
