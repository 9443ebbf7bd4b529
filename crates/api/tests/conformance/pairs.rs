//! Pairs of programs, which exchange endpoints and tokens by a line: in a simulation, in two threads, in two processes and on two
//! hosts.

use crate::fixture::Side;
use crate::line::Line;
use ferroce::verbs::{Cq, Device, Endpoint, FetchAdd, Lend, Operated, Read, Send, SendTo, Write};
use ferroce::{Inline, Remote, Status, rights};
use ferroce_tests::random::Random;
use std::time::Duration;

/// Two programs. The first one is the client.
pub struct Pair<L: ?Sized> {
    pub client: fn(&Device, &mut L),
    pub server: fn(&Device, &mut L),
}

/// A connection with the program at the other end of the line, which has posted receives before.
fn connect(device: &Device, line: &mut (impl Line + ?Sized), receives: u64, size: usize) -> Side {
    let domain = device.open().unwrap();
    let cq = domain.cq(128).unwrap();
    let mut setup = domain.rc(&cq).send_depth(32).recv_depth(32).build().unwrap();
    for tag in 0..receives {
        setup.recv(tag, domain.alloc(size).unwrap()).unwrap();
    }
    line.tell(&setup.endpoint().to_bytes());
    let peer = Endpoint::from_bytes(line.expect()).unwrap();
    let qp = setup.connect(&peer).unwrap();
    // Neither sends before the other is connected.
    line.meet();
    Side { domain, cq, qp }
}

const SENT: u64 = 1000;
const LARGEST: usize = 20_000;
const ECHOES: usize = 60;

fn messages() -> impl Iterator<Item = Vec<u8>> {
    let mut numbers = Random(11);
    (0..ECHOES).map(move |_| {
        let len = numbers.below(LARGEST as u64) as usize;
        (0..len).map(|_| numbers.next() as u8).collect()
    })
}

/// Messages of all lengths come back as they were.
pub fn echo<L: Line + ?Sized>() -> Pair<L> {
    Pair {
        client: |device, line| {
            let Side { domain, mut cq, mut qp } = connect(device, line, 1, LARGEST);
            let buffer = domain.alloc(LARGEST).unwrap();
            let mut buffers = vec![buffer];
            for message in messages() {
                let mut buffer = buffers.pop().unwrap();
                buffer.fill(&message);
                qp.post(SENT, Send::new(buffer)).unwrap();
                let (mut sent, mut answered) = (false, false);
                while !(sent && answered) {
                    let mut done = cq.next(None).unwrap().unwrap();
                    done.result().unwrap();
                    let buffer = done.take().buffer().unwrap();
                    if done.tag() == SENT {
                        sent = true;
                        buffers.push(buffer);
                    } else {
                        answered = true;
                        assert_eq!(buffer[..], message);
                        qp.recv(0, buffer).unwrap();
                    }
                }
            }
            line.meet();
        },
        server: |device, line| {
            let Side { domain: _domain, mut cq, mut qp } = connect(device, line, 4, LARGEST);
            let (mut answered, mut sent) = (0, 0);
            while sent < ECHOES {
                let mut done = cq.next(None).unwrap().unwrap();
                done.result().unwrap();
                let buffer = done.take().buffer().unwrap();
                if done.tag() == SENT {
                    sent += 1;
                    qp.recv(0, buffer).unwrap();
                } else {
                    answered += 1;
                    qp.post(SENT, Send::new(buffer)).unwrap();
                }
            }
            assert_eq!(answered, ECHOES);
            line.meet();
        },
    }
}

const SHARED: usize = 1 << 16;

/// The client writes, reads and counts in the server's memory, which the server looks at while they run.
pub fn one_sided<L: Line + ?Sized>() -> Pair<L> {
    Pair {
        client: |device, line| {
            let Side { domain, mut cq, mut qp } = connect(device, line, 0, 0);
            let token = Remote::<rights::All>::from_bytes(line.expect()).unwrap();
            let finish = |cq: &mut Cq, count: usize| {
                (0..count).for_each(|_| cq.next(None).unwrap().unwrap().result().unwrap());
            };
            for round in 1..=20_u8 {
                let mut buffer = domain.alloc(SHARED - 64).unwrap();
                buffer.iter_mut().for_each(|byte| *byte = round);
                qp.post(1, Write::new(buffer, token.slice(64..))).unwrap();
                qp.post(2, FetchAdd::new(token.slice(..8), 1).fence()).unwrap();
                finish(&mut cq, 2);
            }
            qp.post(3, Write::new(Inline::from(b"inline"), token.slice(8..16))).unwrap();
            qp.post(4, Read::new(domain.alloc(SHARED).unwrap(), token).fence()).unwrap();
            finish(&mut cq, 1);
            let mut read = cq.next(None).unwrap().unwrap();
            read.result().unwrap();
            assert_eq!((read.what(), read.len()), (Operated::Read, SHARED));
            let bytes = read.take().buffer().unwrap();
            assert_eq!(bytes[..8], 20_u64.to_ne_bytes());
            assert_eq!(&bytes[8..16], b"inline\0\0");
            assert!(bytes[64..].iter().all(|byte| *byte == 20));
            line.meet();
        },
        server: |device, line| {
            let Side { domain, mut cq, qp: _qp } = connect(device, line, 0, 0);
            let exposed = domain.alloc(SHARED).unwrap().expose(rights::All).unwrap();
            line.tell(&exposed.token().to_bytes());
            let mut before = 0;
            while before < 20 {
                let counted = exposed.word(0).load();
                assert!((before..=20).contains(&counted), "{before} and then {counted}");
                before = counted;
                // The adapter of a program that never calls works by itself, and a simulation moves on while a program waits.
                assert!(!cq.wait(Some(Duration::from_micros(100))).unwrap());
            }
            line.meet();
            let memory = exposed.revoke();
            assert!(memory[64..].iter().all(|byte| *byte == 20));
        },
    }
}

/// The server takes its memory back in the middle of WRITEs (rule S6).
pub fn revoked<L: Line + ?Sized>() -> Pair<L> {
    Pair {
        client: |device, line| {
            let Side { domain, mut cq, mut qp } = connect(device, line, 0, 0);
            let token = Remote::<rights::Write>::from_bytes(line.expect()).unwrap();
            let mut buffers: Vec<_> = (0..8).map(|_| domain.alloc(SHARED).unwrap()).collect();
            for buffer in &mut buffers {
                buffer.iter_mut().for_each(|byte| *byte = 0xee);
            }
            let (mut written, mut told) = (0, false);
            let fault = loop {
                while let Some(buffer) = buffers.pop() {
                    qp.post(1, Write::new(buffer, token)).unwrap();
                }
                let mut done = cq.next(None).unwrap().unwrap();
                if let Err(fault) = done.result() {
                    break fault;
                }
                buffers.extend(done.take().buffer());
                written += 1;
                if written == 20 && !told {
                    line.tell(b"writing");
                    told = true;
                }
            };
            assert!(written >= 20);
            // A refusal may be lost on the way.
            let refused = [Status::RemoteAccess, Status::RetriesExceeded, Status::Flushed];
            assert!(refused.contains(&fault.status()), "{fault}");
            line.meet();
        },
        server: |device, line| {
            let Side { domain, mut cq, qp: _qp } = connect(device, line, 0, 0);
            let exposed = domain.alloc(SHARED).unwrap().expose(rights::Write).unwrap();
            line.tell(&exposed.token().to_bytes());
            assert_eq!(&line.expect(), b"writing");
            let mut memory = exposed.revoke();
            memory.fill(&[0x11; SHARED]);
            let _ = cq.wait(Some(Duration::from_millis(50))).unwrap();
            assert!(memory.iter().all(|byte| *byte == 0x11), "written after the revocation");
            line.meet();
            assert!(memory.iter().all(|byte| *byte == 0x11), "written after the revocation");
        },
    }
}

/// The server ends without a word while the client's message waits for a receive: the client gets its memory back.
pub fn gone<L: Line + ?Sized>() -> Pair<L> {
    Pair {
        client: |device, line| {
            let Side { domain, mut cq, mut qp } = connect(device, line, 1, 64);
            let mut buffer = domain.alloc(64).unwrap();
            buffer.fill(b"not received");
            qp.post(SENT, Send::new(buffer)).unwrap();
            line.tell(b"posted");
            let mut done = cq.next(Some(Duration::from_secs(20))).unwrap().expect("a completion");
            assert_eq!(done.tag(), SENT);
            let fault = done.result().unwrap_err();
            let expected = [Status::RetriesExceeded, Status::ReceiverNotReady];
            assert!(expected.contains(&fault.status()), "{fault}");
            assert_eq!(&done.take().buffer().unwrap()[..], b"not received");
            drop(done);
            let mut flushed = cq.next(Some(Duration::from_secs(20))).unwrap().expect("a completion");
            assert_eq!((flushed.tag(), flushed.result().unwrap_err().status()), (0, Status::Flushed));
            assert_eq!(flushed.take().buffer().unwrap().capacity(), 64);
        },
        server: |device, line| {
            let _side = connect(device, line, 0, 0);
            assert_eq!(&line.expect(), b"posted");
        },
    }
}

const LENT: usize = 30_000;

/// The server lends a block in each round, which the client fills and returns.
pub fn lent<L: Line + ?Sized>() -> Pair<L> {
    Pair {
        client: |device, line| {
            let Side { domain, mut cq, mut qp } = connect(device, line, 1, 24);
            // The next token may come before the acknowledgement of what returns the last loan.
            let (mut message, mut ended) = (None, 0);
            for round in 1..=20_u8 {
                while message.is_none() || ended < 2 * u32::from(round - 1) {
                    let mut done = cq.next(None).unwrap().unwrap();
                    done.result().unwrap();
                    match done.tag() {
                        0 => message = done.take().buffer(),
                        _ => ended += 1,
                    }
                }
                let token = message.take().expect("a message");
                let there = Remote::<rights::Write>::from_bytes(token[..].try_into().unwrap()).unwrap();
                qp.recv(0, token).unwrap();
                let mut buffer = domain.alloc(LENT).unwrap();
                buffer.iter_mut().for_each(|byte| *byte = round);
                let mut batch = qp.batch();
                batch.push(1, Write::new(buffer, there)).unwrap();
                batch.push(2, Send::new(()).returning(there)).unwrap();
                batch.post();
            }
            while ended < 40 {
                cq.next(None).unwrap().unwrap().result().unwrap();
                ended += 1;
            }
            line.meet();
        },
        server: |device, line| {
            let Side { domain, mut cq, mut qp } = connect(device, line, 0, 0);
            let mut block = domain.alloc(LENT).unwrap();
            for round in 1..=20_u8 {
                qp.recv(1, ()).unwrap();
                qp.post(2, Lend::new(block, rights::Write)).unwrap();
                let loan = cq.next(None).unwrap().unwrap().loan::<rights::Write>().unwrap();
                qp.post(3, Send::new(Inline::from(&loan.token().to_bytes()))).unwrap();
                let mut tags = [0; 2];
                for tag in &mut tags {
                    let done = cq.next(None).unwrap().unwrap();
                    done.result().unwrap();
                    *tag = done.tag();
                }
                tags.sort_unstable();
                assert_eq!(tags, [1, 3]);
                block = loan.returned().unwrap();
                assert!(block.iter().all(|byte| *byte == round));
            }
            line.meet();
        },
    }
}

/// The client sends datagrams until each is answered. The server knows it by them alone.
pub fn datagrams<L: Line + ?Sized>() -> Pair<L> {
    const QKEY: u32 = 0x77;
    const COUNT: u8 = 20;
    Pair {
        client: |device, line| {
            let domain = device.open().unwrap();
            let mut cq = domain.cq(64).unwrap();
            let mut qp = domain.ud(&cq).build().unwrap().activate(QKEY).unwrap();
            let server = Endpoint::from_bytes(line.expect()).unwrap();
            let to = domain.address(&server).unwrap();
            for number in 0..COUNT {
                qp.recv(2, domain.alloc(64).unwrap()).unwrap();
                let mut answered = false;
                while !answered {
                    if qp.room() > 0 {
                        qp.post(1, SendTo::new(Inline::from(&[number; 40]), &to)).unwrap();
                    }
                    while let Some(mut done) = cq.next(Some(Duration::from_millis(20))).unwrap() {
                        done.result().unwrap();
                        if done.tag() == 1 {
                            continue;
                        }
                        assert_eq!(done.source().unwrap().number(), server.number());
                        let answer = done.buffer().unwrap().unwrap();
                        answered = answer[..] == [number; 40];
                        if answered {
                            break;
                        }
                        // An answer to an earlier one, which was sent twice.
                        drop(done);
                        qp.recv(2, answer).unwrap();
                    }
                }
            }
            line.meet();
        },
        server: |device, line| {
            let domain = device.open().unwrap();
            let mut cq = domain.cq(64).unwrap();
            let mut setup = domain.ud(&cq).build().unwrap();
            for tag in 0..8 {
                setup.recv(tag, domain.alloc(64).unwrap()).unwrap();
            }
            let mut qp = setup.activate(QKEY).unwrap();
            line.tell(&qp.endpoint().to_bytes());
            let mut last = None;
            // The last answer may be lost: it is asked for again within this time.
            while let Some(mut done) =
                cq.next((last == Some(COUNT - 1)).then_some(Duration::from_secs(1))).unwrap()
            {
                let Some(source) = done.source().copied() else {
                    done.result().unwrap();
                    continue;
                };
                let message = done.buffer().unwrap().unwrap();
                drop(done);
                last = Some(message[0]);
                if qp.room() > 0 {
                    let to = domain.address(&source).unwrap();
                    qp.post(9, SendTo::new(Inline::from(&message[..]), &to)).unwrap();
                }
                qp.recv(0, message).unwrap();
            }
            line.meet();
        },
    }
}

/// A wait sleeps until a completion comes, or until its limit.
pub fn waits<L: Line + ?Sized>() -> Pair<L> {
    Pair {
        client: |device, line| {
            let Side { domain, mut cq, mut qp } = connect(device, line, 0, 0);
            for _ in 0..5 {
                assert!(!cq.wait(Some(Duration::from_millis(30))).unwrap());
                line.meet();
                qp.post(SENT, Send::new(domain.alloc(8).unwrap())).unwrap();
                cq.next(None).unwrap().unwrap().result().unwrap();
            }
            line.meet();
        },
        server: |device, line| {
            let Side { mut cq, qp: _qp, .. } = connect(device, line, 5, 8);
            for _ in 0..5 {
                assert!(!cq.wait(Some(Duration::from_millis(10))).unwrap());
                line.meet();
                cq.next(None).unwrap().unwrap().result().unwrap();
            }
            line.meet();
        },
    }
}
