//! The same random requests on a simulated device and on one of this process: equal completions.

use crate::fixture::{Fixture, Native, Side, Simulated, connected_with};
use ferroce::verbs::{CompareSwap, Completion, Cq, FetchAdd, Read, Send, Write};
use ferroce::{Buffer, Inline, Remote, rights};
use ferroce_tests::inside::in_namespace;
use ferroce_tests::random::Random;
use std::fmt::Write as _;
use std::time::Duration;

const SIZE: usize = 20_000;

/// What a program sees of a completion.
fn note(log: &mut Vec<String>, mut done: Completion<'_>) {
    let (tag, what, len, imm, value) = (done.tag(), done.what(), done.len(), done.imm(), done.value());
    let status = done.result().map_err(|fault| fault.status());
    let mut line = format!("{tag} {what:?} {len} {imm:?} {value:?} {status:?}");
    for part in done.take() {
        let _ = match part {
            ferroce::Part::Buffer(buffer) if status.is_ok() => {
                write!(line, " {}:{:x}", buffer.len(), sum(&buffer))
            }
            part => write!(line, " {:?}", std::mem::discriminant(&part)),
        };
    }
    log.push(line);
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
}

/// Takes completions until `count` have come.
fn finish(cq: &mut Cq, log: &mut Vec<String>, count: usize) {
    for _ in 0..count {
        let done = cq.next(Some(Duration::from_secs(20))).unwrap().expect("a completion");
        note(log, done);
    }
}

/// Posts random requests, the last of which may fail, and returns the completions of both sides and the memory.
fn run(fixture: &impl Fixture, seed: u64) -> Vec<String> {
    let mut numbers = Random(seed);
    let wait = Duration::from_micros(100);
    let [mut a, mut b] = connected_with(fixture, |builder| {
        builder.send_depth(16).recv_depth(16).receiver_not_ready(wait, Some(2))
    });
    let exposed = b.domain.alloc(SIZE).unwrap().expose(rights::All).unwrap();
    let token = exposed.token();
    let mut log = [Vec::new(), Vec::new()];
    for _ in 0..4 {
        let (mut posted, mut received) = (0, 0);
        for tag in 0..1 + numbers.below(15) {
            received += usize::from(post(&mut numbers, &mut a, &mut b, token, tag));
            posted += 1;
        }
        // The last isn't quiet, so that all are reported.
        a.qp.post(99, Read::new((), token.slice(..0)).fence()).unwrap();
        finish(&mut a.cq, &mut log[0], posted + 1);
        finish(&mut b.cq, &mut log[1], received);
    }
    fail(&mut numbers, &mut a, &mut b, token);
    a.qp.post(101, Send::new(())).unwrap();
    finish(&mut a.cq, &mut log[0], 2);
    let mut log = log.concat();
    log.push(format!("{:x}", sum(&exposed.revoke())));
    log
}

fn filled(numbers: &mut Random, side: &Side, len: usize) -> Buffer {
    let mut buffer = side.domain.alloc(len.max(1)).unwrap();
    buffer.iter_mut().for_each(|byte| *byte = numbers.next() as u8);
    buffer.set_len(len);
    buffer
}

/// One request that succeeds. Whether it takes a receive.
fn post(numbers: &mut Random, a: &mut Side, b: &mut Side, token: Remote<rights::All>, tag: u64) -> bool {
    let at = numbers.below(SIZE as u64 / 8 - 1) as usize * 8;
    let len = numbers.below((SIZE - at) as u64) as usize;
    let (quiet, word) = (numbers.below(3) == 0, token.slice(at..at + 8));
    macro_rules! post {
        ($request:expr) => {{
            // One after the other, so that both devices do the same.
            let request = $request.fence();
            a.qp.post(tag, if quiet { request.quiet() } else { request }).unwrap();
        }};
    }
    match numbers.below(7) {
        0 => post!(Write::new(filled(numbers, a, len), token.slice(at..at + len))),
        1 => post!(Read::new(filled(numbers, a, len), token.slice(at..at + len))),
        2 => post!(FetchAdd::new(word, numbers.next())),
        3 => post!(CompareSwap::new(word, numbers.below(2), numbers.next())),
        4 => post!(Write::new(Inline::from(&numbers.next().to_ne_bytes()), word)),
        5 => {
            b.qp.recv(tag, b.domain.alloc(SIZE).unwrap()).unwrap();
            post!(Send::new(filled(numbers, a, len)).imm(numbers.next() as u32));
            return true;
        }
        _ => {
            b.qp.recv(tag, ()).unwrap();
            post!(Write::new(filled(numbers, a, len), token.slice(at..at + len)).imm(numbers.next() as u32));
            return true;
        }
    }
    false
}

/// One that fails.
fn fail(numbers: &mut Random, a: &mut Side, b: &mut Side, token: Remote<rights::All>) {
    let buffer = filled(numbers, a, 64);
    let mut forged = token.to_bytes();
    match numbers.below(5) {
        // No receive.
        0 => a.qp.post(100, Send::new(buffer)).unwrap(),
        // A receive that is too short.
        1 => {
            b.qp.recv(100, b.domain.alloc(63).unwrap()).unwrap();
            a.qp.post(100, Send::new(buffer)).unwrap();
        }
        // Another key.
        2 => {
            forged[6] ^= 0x55;
            let forged = Remote::<rights::Write>::from_bytes(forged).unwrap();
            a.qp.post(100, Write::new(buffer, forged.slice(..64))).unwrap();
        }
        // Memory beyond the end.
        3 => {
            forged[16..].copy_from_slice(&(SIZE as u64 + 1).to_be_bytes());
            let forged = Remote::<rights::Read>::from_bytes(forged).unwrap();
            a.qp.post(100, Read::new(buffer, forged.slice(SIZE - 63..))).unwrap();
        }
        // Memory of another domain.
        _ => a.qp.post(100, Send::new(filled(numbers, b, 8))).unwrap(),
    }
}

fn compare(native: &Native, seeds: std::ops::Range<u64>) {
    let simulated = Simulated::all().next().expect("one without faults");
    for seed in seeds {
        let (expected, found) = (run(&simulated, seed), run(native, seed));
        let different = expected.iter().zip(&found).position(|(expected, found)| expected != found);
        if let Some(at) = different {
            panic!(
                "seed {seed}, completion {at}: {} in the simulation, {} on the device",
                expected[at], found[at]
            );
        }
        assert_eq!(expected.len(), found.len(), "seed {seed}");
    }
}

#[test]
fn random_requests_end_as_in_the_simulation() {
    in_namespace("differential::random_requests_end_as_in_the_simulation", || {
        compare(&Native::new(), 0..60);
    });
}

#[test]
fn random_requests_over_udp_end_as_in_the_simulation() {
    in_namespace("differential::random_requests_over_udp_end_as_in_the_simulation", || {
        compare(&Native::over_udp(), 100..140);
    });
}
