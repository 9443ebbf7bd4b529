//! Whose memory is touched (rules S8, S2), and random requests against a model.

use crate::fixture::{Fixture, connected, connected_with, large};
use ferroce::verbs::{CompareSwap, FetchAdd, Read, Send, Write};
use ferroce::{Buffer, Remote, Status, rights};
use ferroce_tests::random::Random;
use std::collections::VecDeque;

pub fn guessed_keys(fixture: &impl Fixture) {
    let mut numbers = Random(fixture.seed());
    for _ in 0..large(32) {
        let [mut a, mut b] = connected(fixture);
        let private = b.domain.alloc(4096).unwrap();
        b.qp.recv(1, b.domain.alloc(4096).unwrap()).unwrap();
        let exposed = b.domain.alloc(64).unwrap().expose(rights::All).unwrap();
        let mut token = exposed.token().to_bytes();
        // The key, or the address, is another one near to it.
        let at = if numbers.below(2) == 0 { 4 } else { 8 };
        token[at..at + 4].iter_mut().for_each(|byte| *byte ^= numbers.next() as u8);
        token[at + 2] ^= 0x10;
        let guessed = Remote::<rights::Write>::from_bytes(token).unwrap();
        let mut buffer = a.domain.alloc(64).unwrap();
        buffer.fill(&[0xff; 64]);
        a.qp.post(1, Write::new(buffer, guessed)).unwrap();
        let fault = a.cq.next(None).unwrap().unwrap().result().unwrap_err();
        // The refusal may be lost, and a queue pair that has failed doesn't repeat it.
        let refused = [Status::RemoteAccess, Status::RetriesExceeded];
        assert!(refused.contains(&fault.status()), "{fault}");
        let mut received = b.cq.next(None).unwrap().unwrap();
        let unused = received.take().buffer().unwrap();
        assert!(private.iter().chain(unused.iter()).all(|byte| *byte == 0));
        assert!(exposed.revoke().iter().all(|byte| *byte == 0));
    }
}

pub fn bounds(fixture: &impl Fixture) {
    for end in [128, 129] {
        let [mut a, b] = connected(fixture);
        let mut before = b.domain.alloc(192).unwrap();
        let mut middle = before.split_off(64);
        let after = middle.split_off(64);
        let exposed = middle.expose(rights::Write).unwrap();
        let mut token = exposed.token().to_bytes();
        // A forged token: the memory is shorter.
        token[16..].copy_from_slice(&(end - 64_u64).to_be_bytes());
        let longer = Remote::<rights::Write>::from_bytes(token).unwrap();
        let mut buffer = a.domain.alloc(end as usize - 64).unwrap();
        buffer.iter_mut().for_each(|byte| *byte = 0xff);
        a.qp.post(1, Write::new(buffer, longer)).unwrap();
        let result = a.cq.next(None).unwrap().unwrap().result();
        assert_eq!(result.is_ok(), end == 128);
        assert!(before.iter().chain(after.iter()).all(|byte| *byte == 0));
        let written = exposed.revoke();
        assert!(written.iter().all(|byte| *byte == if end == 128 { 0xff } else { 0 }));
    }
}

/// What a request does when it ends.
enum Expected {
    Nothing,
    Read(Vec<u8>),
    Value(u64),
}

/// Requests of one queue pair take effect in the order in which they were posted, if those after a READ are fenced.
pub fn many(fixture: &impl Fixture) {
    const SIZE: usize = large(6000) & !7;
    let requests = large(320) as u64;
    let mut numbers = Random(fixture.seed() * 77);
    let [mut a, mut b] = connected_with(fixture, |builder| builder.send_depth(12).recv_depth(20));
    let exposed = b.domain.alloc(SIZE).unwrap().expose(rights::All).unwrap();
    let mut model = vec![0; SIZE];
    let mut posted: VecDeque<Expected> = VecDeque::new();
    let mut sent: VecDeque<Vec<u8>> = VecDeque::new();
    let (mut next, mut ended) = (0, 0);
    let filled = |numbers: &mut Random, len: usize| -> Buffer {
        let mut buffer = a.domain.alloc(len.max(1)).unwrap();
        buffer.iter_mut().for_each(|byte| *byte = numbers.next() as u8);
        buffer.set_len(len);
        buffer
    };
    while ended <= requests {
        let room = a.qp.room() > 0 && next < requests;
        if room && numbers.below(3) > 0 {
            let at = numbers.below(SIZE as u64 / 8) as usize * 8;
            let len = numbers.below((SIZE - at) as u64) as usize;
            let remote = exposed.token().slice(at..at + len);
            let quiet = numbers.below(3) == 0;
            match numbers.below(5) {
                0 | 1 => {
                    let buffer = filled(&mut numbers, len);
                    model[at..at + len].copy_from_slice(&buffer);
                    posted.push_back(Expected::Nothing);
                    let write = Write::new(buffer, remote).fence();
                    a.qp.post(next, if quiet { write.quiet() } else { write }).unwrap();
                }
                2 => {
                    posted.push_back(Expected::Read(model[at..at + len].to_vec()));
                    let read = Read::new(filled(&mut numbers, len), remote);
                    a.qp.post(next, if quiet { read.quiet() } else { read }).unwrap();
                }
                3 if b.qp.recv_room() > 0 => {
                    b.qp.recv(0, b.domain.alloc(SIZE).unwrap()).unwrap();
                    let buffer = filled(&mut numbers, len);
                    sent.push_back(buffer.to_vec());
                    posted.push_back(Expected::Nothing);
                    let send = Send::new(buffer);
                    a.qp.post(next, if quiet { send.quiet() } else { send }).unwrap();
                }
                _ => {
                    let word = exposed.token().slice(at..at + 8);
                    let place: &mut [u8] = &mut model[at..at + 8];
                    let before = u64::from_ne_bytes((&*place).try_into().unwrap());
                    posted.push_back(Expected::Value(before));
                    let by = numbers.next();
                    let after = if quiet {
                        a.qp.post(next, CompareSwap::new(word, before, by).fence()).unwrap();
                        by
                    } else {
                        a.qp.post(next, FetchAdd::new(word, by).fence()).unwrap();
                        before.wrapping_add(by)
                    };
                    place.copy_from_slice(&after.to_ne_bytes());
                }
            }
            next += 1;
        } else {
            if next == requests && a.qp.room() > 0 {
                // The last may be quiet: one more that isn't.
                a.qp.post(next, Send::new(())).unwrap_or_else(|failed| panic!("{failed}"));
                b.qp.recv(0, b.domain.alloc(8).unwrap()).unwrap();
                sent.push_back(Vec::new());
                posted.push_back(Expected::Nothing);
                next += 1;
            }
            let mut completions = a.cq.poll().unwrap();
            while let Some(mut done) = completions.next() {
                done.result().unwrap();
                assert_eq!(done.tag(), ended);
                ended += 1;
                match posted.pop_front().unwrap() {
                    Expected::Nothing => {}
                    Expected::Read(bytes) => assert_eq!(&done.take().buffer().unwrap()[..], bytes),
                    Expected::Value(before) => assert_eq!(done.value(), Some(before)),
                }
            }
        }
        let mut completions = b.cq.poll().unwrap();
        while let Some(mut received) = completions.next() {
            assert_eq!(received.buffer().unwrap().unwrap()[..], sent.pop_front().unwrap());
        }
    }
    assert_eq!(exposed.revoke()[..], model);
}
