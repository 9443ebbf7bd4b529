//! Shared receive queues, and room in completion queues (rule S10).

use crate::fixture::{Fixture, large};
use ferroce::verbs::{Cq, Domain, Event, Operated, RcQp, Send, Srq};
use ferroce::{Kind, Status};
use ferroce_tests::random::Random;
use std::time::Duration;

/// A server with a shared receive queue, and clients that are connected to it.
struct Served {
    server: Domain,
    cq: Cq,
    srq: Srq,
    client: Domain,
    client_cq: Cq,
    /// Of the server and of the client.
    pairs: Vec<[RcQp; 2]>,
}

fn served(fixture: &impl Fixture, clients: usize, depth: u32) -> Served {
    let [client, server] = fixture.devices().map(|device| device.open().unwrap());
    let (cq, client_cq) = (server.cq(256).unwrap(), client.cq(256).unwrap());
    let srq = server.srq(depth).unwrap();
    let pairs = (0..clients).map(|_| {
        let server = server.rc(&cq).srq(&srq).send_depth(8).build().unwrap();
        // A client sends again for as long as the server's thread has no time to post receives.
        let client = client.rc(&client_cq).send_depth(16).recv_depth(4);
        let client = client.receiver_not_ready(Duration::from_micros(640), None).build().unwrap();
        let (server_end, client_end) = (server.endpoint(), client.endpoint());
        [server.connect(&client_end).unwrap(), client.connect(&server_end).unwrap()]
    });
    let pairs = pairs.collect();
    Served { server, cq, srq, client, client_cq, pairs }
}

fn message(domain: &Domain, bytes: &[u8]) -> ferroce::Buffer {
    let mut buffer = domain.alloc(bytes.len().max(1)).unwrap();
    buffer.fill(bytes);
    buffer
}

pub fn two_clients(fixture: &impl Fixture) {
    let mut it = served(fixture, 2, 8);
    for tag in 0..8 {
        it.srq.recv(tag, it.server.alloc(64).unwrap()).unwrap();
    }
    assert_eq!((it.srq.room(), it.pairs[0][0].recv_room()), (0, 0));
    for round in 0..4_u8 {
        for (number, [_, client]) in it.pairs.iter_mut().enumerate() {
            client.post(1, Send::new(message(&it.client, &[number as u8, round])).imm(7)).unwrap();
        }
    }
    let mut tags = Vec::new();
    let mut rounds = [0; 2];
    for _ in 0..8 {
        let mut received = it.cq.next(None).unwrap().unwrap();
        received.result().unwrap();
        assert_eq!((received.what(), received.imm(), received.len()), (Operated::Received, Some(7), 2));
        tags.push(received.tag());
        let qp = received.qp();
        let bytes = received.take().buffer().unwrap();
        // The messages of each client come in order.
        let number = usize::from(bytes[0]);
        assert_eq!((qp, bytes[1]), (it.pairs[number][0].number(), rounds[number]));
        rounds[number] += 1;
    }
    tags.sort_unstable();
    assert_eq!((tags, it.srq.room()), ((0..8).collect(), 8));
}

pub fn refills(fixture: &impl Fixture) {
    let messages = large(200) as u64;
    let mut it = served(fixture, 3, 6);
    let pool = it.server.pool(6, 32).unwrap();
    for tag in 0..6 {
        it.srq.recv(tag, pool.try_take().unwrap()).unwrap();
    }
    let (mut sent, mut received, mut sum) = (0, 0, 0);
    let mut ended = 0;
    while received < messages || ended < messages {
        for [_, client] in &mut it.pairs {
            if client.room() > 0 && sent < messages {
                client.post(sent, Send::new(message(&it.client, &sent.to_ne_bytes()))).unwrap();
                sent += 1;
            }
        }
        for (cq, is_server) in [(&mut it.cq, true), (&mut it.client_cq, false)] {
            let mut polled = cq.poll().unwrap();
            while let Some(mut done) = polled.next() {
                done.result().unwrap();
                if is_server {
                    let buffer = done.take().buffer().unwrap();
                    sum += u64::from_ne_bytes(buffer[..].try_into().unwrap());
                    received += 1;
                    it.srq.recv(0, buffer).unwrap();
                } else {
                    ended += 1;
                }
            }
        }
    }
    assert_eq!((received, sum), (messages, messages * (messages - 1) / 2));
    assert_eq!(pool.free(), 0);
    drop(it);
    assert_eq!(pool.free(), 6);
}

pub fn full(fixture: &impl Fixture) {
    let it = served(fixture, 1, 2);
    it.srq.recv(1, it.server.alloc(8).unwrap()).unwrap();
    it.srq.recv(2, it.server.alloc(8).unwrap()).unwrap();
    let failed = it.srq.recv(3, it.server.alloc(9).unwrap()).unwrap_err();
    assert_eq!((failed.error.kind(), failed.error.verb(), failed.back.len()), (Kind::Full, "recv", 9));
    let pieces: Vec<_> = (0..5).map(|_| it.server.alloc(1).unwrap()).collect();
    assert_eq!(it.srq.recv(4, pieces).unwrap_err().error.kind(), Kind::Invalid);
    // A queue pair has no queue of its own.
    let [mut own, _] = it.pairs.into_iter().next().unwrap();
    let failed = own.recv(5, it.server.alloc(7).unwrap()).unwrap_err();
    assert_eq!((failed.error.kind(), failed.back.len()), (Kind::Invalid, 7));
    for depth in [0, 1 << 20] {
        assert_eq!(it.server.srq(depth).unwrap_err().kind(), Kind::Invalid);
    }
    assert_eq!(it.srq.low_water(3).unwrap_err().kind(), Kind::Invalid);
}

pub fn failed(fixture: &impl Fixture) {
    let mut it = served(fixture, 2, 4);
    for tag in 0..2 {
        it.srq.recv(tag, it.server.alloc(4).unwrap()).unwrap();
    }
    // The first message is too long for its receive, and fails its queue pair.
    it.pairs[0][1].post(1, Send::new(message(&it.client, b"longer"))).unwrap();
    let failed = it.cq.next(None).unwrap().unwrap();
    assert_eq!(failed.result().unwrap_err().status(), fixture.local(Status::LocalLength));
    let first = failed.tag();
    drop(failed);
    assert!(it.client_cq.next(None).unwrap().unwrap().result().is_err());
    assert!(!it.cq.wait(Some(Duration::from_millis(20))).unwrap(), "no other receive was flushed");
    assert_eq!(it.srq.room(), 3);
    it.pairs[1][1].post(2, Send::new(message(&it.client, b"fits"))).unwrap();
    let mut received = it.cq.next(None).unwrap().unwrap();
    assert_eq!(&received.buffer().unwrap().unwrap()[..], b"fits");
    assert_eq!((first, received.tag()), (0, 1));
    assert_eq!(it.srq.room(), 4);
}

pub fn ended(fixture: &impl Fixture) {
    let it = served(fixture, 1, 4);
    let pool = it.server.pool(3, 16).unwrap();
    for tag in 5..8 {
        it.srq.recv(tag, pool.try_take().unwrap()).unwrap();
    }
    let again = it.srq.clone();
    let srq = it.srq.destroy().unwrap_err();
    drop(again);
    // The queue pair uses it.
    let srq = srq.destroy().unwrap_err();
    drop(it.pairs);
    assert_eq!(pool.free(), 0);
    let mut tags: Vec<_> = srq.destroy().unwrap().into_iter().map(|(tag, _)| tag).collect();
    tags.sort_unstable();
    assert_eq!((tags, pool.free()), (vec![5, 6, 7], 3));
}

pub fn reserved(fixture: &impl Fixture) {
    let domain = fixture.devices()[0].open().unwrap();
    let cq = domain.cq(20).unwrap();
    let srq = domain.srq(10).unwrap();
    let first = domain.rc(&cq).srq(&srq).send_depth(4).build().unwrap();
    let second = domain.rc(&cq).srq(&srq).send_depth(4).build().unwrap();
    let error = domain.rc(&cq).srq(&srq).send_depth(4).build().unwrap_err();
    assert_eq!((error.kind(), error.verb()), (Kind::Full, "build"));
    assert_eq!(domain.rc(&cq).send_depth(0).recv_depth(3).build().unwrap_err().kind(), Kind::Full);
    drop(first);
    let third = domain.rc(&cq).srq(&srq).send_depth(6).build().unwrap();
    drop((second, third));
    // Nothing is reserved for the shared queue any more.
    domain.rc(&cq).send_depth(10).recv_depth(10).build().unwrap();
}

/// Queue pairs and shared queues are built and dropped at random: what fits is a model's, and no completion is lost.
pub fn never_full(fixture: &impl Fixture) {
    const ENTRIES: u32 = 24;
    let mut numbers = Random(fixture.seed() + 40);
    let domain = fixture.devices()[0].open().unwrap();
    let cq = domain.cq(ENTRIES).unwrap();
    let srqs = [domain.srq(5).unwrap(), domain.srq(9).unwrap()];
    // Each with its depths, and the shared queue that it uses.
    let mut built: Vec<(_, u32, Option<usize>)> = Vec::new();
    for _ in 0..large(160) {
        let shared = |built: &[(_, u32, Option<usize>)], srq| built.iter().any(|(.., of)| *of == Some(srq));
        let used: u32 = built.iter().map(|(_, own, _)| own).sum();
        let of_srqs = (0..2).filter(|srq| shared(&built, *srq)).map(|srq| srqs[srq].depth()).sum::<u32>();
        assert!(used + of_srqs <= ENTRIES);
        if numbers.below(3) == 0 && !built.is_empty() {
            let at = numbers.below(built.len() as u64) as usize;
            built.swap_remove(at);
            continue;
        }
        let srq = (numbers.below(2) == 0).then(|| numbers.below(2) as usize);
        let (sends, receives) = (numbers.below(8) as u32, numbers.below(8) as u32);
        let builder = domain.rc(&cq).send_depth(sends).recv_depth(receives);
        let (builder, own, more) = match srq {
            Some(srq) if shared(&built, srq) => (builder.srq(&srqs[srq]), sends, 0),
            Some(srq) => (builder.srq(&srqs[srq]), sends, srqs[srq].depth()),
            None => (builder, sends + receives, 0),
        };
        match builder.build() {
            Ok(setup) => {
                assert!(used + of_srqs + own + more <= ENTRIES);
                built.push((setup, own, srq));
            }
            Err(error) => {
                assert_eq!(error.kind(), Kind::Full);
                assert!(used + of_srqs + own + more > ENTRIES);
            }
        }
    }
}

pub fn low_water(fixture: &impl Fixture) {
    let mut it = served(fixture, 1, 8);
    let mut events = it.server.events().unwrap();
    for tag in 0..4 {
        it.srq.recv(tag, it.server.alloc(8).unwrap()).unwrap();
    }
    it.srq.low_water(3).unwrap();
    let quiet = Some(Duration::from_millis(20));
    assert!(events.next(quiet).unwrap() != Some(Event::LowWater(it.srq.number())));
    for number in 0..3 {
        it.pairs[0][1].post(number, Send::new(())).unwrap();
        it.cq.next(None).unwrap().unwrap().result().unwrap();
    }
    // The device may have reported others.
    while events.next(Some(Duration::from_secs(10))).unwrap().expect("an event")
        != Event::LowWater(it.srq.number())
    {}
    // There is one, until the next call.
    it.pairs[0][1].post(3, Send::new(())).unwrap();
    it.cq.next(None).unwrap().unwrap().result().unwrap();
    while let Some(event) = events.next(quiet).unwrap() {
        assert_ne!(event, Event::LowWater(it.srq.number()));
    }
    let is_simulated = fixture.devices()[0].name().starts_with("sim_");
    assert_eq!(events.descriptor().is_none(), is_simulated);
}

pub fn foreign(fixture: &impl Fixture) {
    let device = fixture.devices()[0];
    let (domain, other) = (device.open().unwrap(), device.open().unwrap());
    let (cq, srq) = (domain.cq(64).unwrap(), other.srq(4).unwrap());
    assert_eq!(domain.rc(&cq).srq(&srq).build().unwrap_err().kind(), Kind::Invalid);
    // Nothing was reserved.
    domain.rc(&cq).send_depth(32).recv_depth(32).build().unwrap();
}
