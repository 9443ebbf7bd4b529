//! Requests on borrowed memory (rule S6), and batches.

use crate::fixture::{Fixture, connected, connected_with, large};
use ferroce::verbs::{FetchAdd, Operated, Send, Write};
use ferroce::{Inline, Kind, Status, rights};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

pub fn borrowed(fixture: &impl Fixture) {
    let [mut a, mut b] = connected(fixture);
    let exposed = b.domain.alloc(large(10_000)).unwrap().expose(rights::ReadWrite).unwrap();
    let there = exposed.token();
    b.qp.recv(1, b.domain.alloc(64).unwrap()).unwrap();
    b.qp.post(2, Send::new(Inline::from(b"to the scope"))).unwrap();
    let written: Vec<u8> = (0..large(10_000)).map(|at| at as u8).collect();
    let mut read = vec![0; large(10_000) + 3];
    let mut message = [0; 20];
    let lens = a.qp.scope(&mut a.cq, |scope| {
        scope.recv(&mut message).unwrap();
        // Constants are memory that can't be written.
        scope.send(b"from the scope").unwrap();
        scope.write(&written, there).unwrap();
        let lens = scope.finish().unwrap();
        scope.read(&mut read, there).unwrap();
        lens
    });
    assert_eq!(lens.unwrap(), [12]);
    assert_eq!(&message[..12], b"to the scope");
    assert_eq!((&read[..large(10_000)], &read[large(10_000)..]), (&written[..], &[0; 3][..]));
    let mut tags = Vec::new();
    for _ in 0..2 {
        let mut done = b.cq.next(None).unwrap().unwrap();
        done.result().unwrap();
        if done.tag() == 1 {
            assert_eq!(&done.take().buffer().unwrap()[..], b"from the scope");
        }
        tags.push(done.tag());
    }
    tags.sort_unstable();
    assert_eq!(tags, [1, 2]);
    assert!(!a.cq.wait(Some(Duration::from_millis(1))).unwrap(), "a scope's requests have no completions");
}

/// More requests than the queue holds, between others of the program, whose completions are kept.
pub fn many(fixture: &impl Fixture) {
    let [mut a, b] = connected_with(fixture, |builder| builder.send_depth(4));
    let exposed = b.domain.alloc(1024).unwrap().expose(rights::All).unwrap();
    let there = exposed.token();
    let pieces: Vec<[u8; 16]> = (0..64).map(|at| [at; 16]).collect();
    let mut buffer = a.domain.alloc(16).unwrap();
    buffer.fill(&[99; 16]);
    a.qp.post(7, Write::new(buffer, there.slice(1008..)).quiet()).unwrap();
    let scoped = a.qp.scope(&mut a.cq, |scope| {
        for (at, piece) in pieces.iter().enumerate().take(63) {
            scope.write(piece, there.slice(at * 16..at * 16 + 16))?;
        }
        Ok::<_, ferroce::Error>(())
    });
    scoped.unwrap().unwrap();
    let mut memory = vec![0; 1024];
    exposed.load(0, &mut memory);
    assert!(memory[..1008].chunks(16).zip(&pieces).all(|(there, piece)| there == piece));
    assert!(memory[1008..].iter().all(|byte| *byte == 99));
    // The queue pair's own request was kept, with its memory.
    assert!(a.cq.wait(Some(Duration::ZERO)).unwrap());
    let mut own = a.cq.next(None).unwrap().unwrap();
    assert_eq!((own.tag(), own.what()), (7, Operated::Written));
    assert_eq!(own.buffer().unwrap().unwrap()[..], [99; 16]);
    drop(own);
    assert_eq!(a.qp.room(), 4);
    a.qp.post(8, FetchAdd::new(there.slice(..8), 1)).unwrap();
    assert_eq!(a.cq.next(None).unwrap().unwrap().tag(), 8);
}

pub fn failed(fixture: &impl Fixture) {
    let [mut a, b] = connected(fixture);
    let exposed = b.domain.alloc(64).unwrap().expose(rights::All).unwrap();
    let token = exposed.token();
    drop(exposed);
    let bytes = [1; 32];
    let mut into = [0; 64];
    let error = a.qp.scope(&mut a.cq, |scope| {
        scope.write(&bytes, token.slice(..32)).unwrap();
        scope.read(&mut into, token).unwrap();
        let short = scope.write(&bytes, token.slice(..31)).unwrap_err();
        assert_eq!(short.kind(), Kind::TooLong);
    });
    let error = error.unwrap_err();
    assert_eq!(error.kind(), Kind::Failed);
    let refused = [Status::RemoteAccess, Status::RetriesExceeded];
    assert!(refused.contains(&error.fault().unwrap().status()), "{error}");
    assert_eq!(into, [0; 64]);
    // Requests of a queue pair that has failed are flushed, so the scope ends.
    assert!(a.qp.scope(&mut a.cq, |scope| scope.send(&bytes)).is_err());
}

/// A panic in the middle of READs: nothing writes the memory any more.
pub fn panicked(fixture: &impl Fixture) {
    let [mut a, b] = connected(fixture);
    let mut memory = b.domain.alloc(large(1 << 16)).unwrap();
    memory.fill(&vec![0xee; large(1 << 16)]);
    let exposed = memory.expose(rights::Read).unwrap();
    let token = exposed.token();
    let pool = a.domain.pool(1, 8).unwrap();
    a.qp.recv(5, pool.try_take().unwrap()).unwrap();
    let mut into = vec![0x11; large(1 << 16)];
    let cq = &mut a.cq;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        a.qp.scope(cq, |scope| {
            scope.read(&mut into, token).unwrap();
            std::panic::resume_unwind(Box::new("given up"));
        })
    }));
    assert_eq!(*panicked.unwrap_err().downcast::<&str>().unwrap(), "given up");
    into.fill(0x22);
    assert!(!a.cq.wait(Some(Duration::from_millis(50))).unwrap());
    assert!(into.iter().all(|byte| *byte == 0x22), "written after the end of the scope");
    // The queue pair is destroyed.
    assert_eq!(pool.free(), 1);
    assert!(a.qp.is_dead());
    let failed = a.qp.post(6, Send::new(())).unwrap_err();
    assert_eq!((failed.error.kind(), failed.error.verb()), (Kind::Dead, "post"));
    assert_eq!(a.qp.recv(6, ()).unwrap_err().error.kind(), Kind::Dead);
    assert!(a.qp.destroy().is_empty());
}

pub fn elsewhere(fixture: &impl Fixture) {
    let [mut a, b] = connected(fixture);
    let mut other = a.domain.cq(8).unwrap();
    assert_eq!(a.qp.scope(&mut other, |_| ()).unwrap_err().kind(), Kind::Invalid);
    drop(b);
}

pub fn batches(fixture: &impl Fixture) {
    let [mut a, mut b] = connected_with(fixture, |builder| builder.send_depth(4).recv_depth(8));
    let exposed = b.domain.alloc(64).unwrap().expose(rights::All).unwrap();
    let there = exposed.token();
    let pool = a.domain.pool(2, 16).unwrap();
    let filled = |bytes: &[u8]| {
        let mut buffer = pool.try_take().unwrap();
        buffer.fill(bytes);
        buffer
    };
    let mut batch = a.qp.batch();
    batch.push(1, Write::new(filled(b"dropped"), there.slice(..7))).unwrap();
    batch.push(2, FetchAdd::new(there.slice(8..16), 5)).unwrap();
    drop(batch);
    assert_eq!((pool.free(), a.qp.room()), (2, 4));
    b.qp.recv(9, b.domain.alloc(8).unwrap()).unwrap();
    let mut batch = a.qp.batch();
    batch.push(1, Write::new(filled(b"batched"), there.slice(..7)).quiet()).unwrap();
    batch.push(2, FetchAdd::new(there.slice(8..16), 5)).unwrap();
    batch.push(3, Send::new(Inline::from(b"sent")).fence()).unwrap();
    let long = batch.push(4, Send::new(Inline::from(&[0; 100]))).unwrap_err();
    assert_eq!(long.error.kind(), Kind::TooLong);
    batch.push(4, FetchAdd::new(there.slice(8..16), 2)).unwrap();
    assert_eq!(batch.push(5, Send::new(())).unwrap_err().error.kind(), Kind::Full);
    batch.post();
    let mut ended = Vec::new();
    for _ in 0..4 {
        let done = a.cq.next(None).unwrap().unwrap();
        done.result().unwrap();
        ended.push((done.tag(), done.value()));
    }
    assert_eq!(ended, [(1, None), (2, Some(0)), (3, None), (4, Some(5))]);
    assert_eq!(pool.free(), 2);
    assert_eq!(&b.cq.next(None).unwrap().unwrap().buffer().unwrap().unwrap()[..], b"sent");
    assert_eq!(&exposed.revoke()[..16], b"batched\0\x07\0\0\0\0\0\0\0");
}
