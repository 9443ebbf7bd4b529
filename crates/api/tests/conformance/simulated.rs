//! What only a simulation promises: equal runs for equal seeds, virtual time, and a report instead of a hang.

use crate::fixture::connected_with;
use crate::fixture::{Fixture, connected};
use ferroce::sim::{Faults, Licences, Trace, World, explore};
use ferroce::verbs::{Device, Domain, Read, Send, Write};
use ferroce::{Kind, Status, rights};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

pub struct Hosts(pub [Device; 2]);

impl Fixture for Hosts {
    fn devices(&self) -> [&Device; 2] {
        [&self.0[0], &self.0[1]]
    }

    fn seed(&self) -> u64 {
        0
    }
}

pub fn two_hosts(world: &World) -> Hosts {
    two_adapters(world, &Licences::default())
}

fn two_adapters(world: &World, licences: &Licences) -> Hosts {
    Hosts(["client", "server"].map(|name| {
        let host = world.host(name);
        host.licences(licences.clone());
        Device::simulated(&host)
    }))
}

pub fn faulty(world: &World) {
    let delay = Duration::from_micros(1)..Duration::from_micros(40);
    world.faults(Faults { loss: 0.05, duplicate: 0.05, reorder: 0.1, delay, ..Faults::default() });
}

/// Two programs that exchange messages, and what has happened.
fn exchange(seed: u64) -> Trace {
    let world = World::new(seed);
    faulty(&world);
    let (client, server) = (world.host("client"), world.host("server"));
    client.licences(Licences::all());
    server.licences(Licences::all());
    let (to_server, at_server) = world.channel();
    let (to_client, at_client) = world.channel();
    let device = Device::simulated(&server);
    let served = server.spawn(move || {
        let domain = device.open().unwrap();
        let pool = domain.pool(8, 4096).unwrap();
        let mut cq = domain.cq(16).unwrap();
        let mut setup = domain.rc(&cq).build().unwrap();
        for tag in 0..4 {
            setup.recv(tag, pool.try_take().unwrap()).unwrap();
        }
        to_client.send(setup.endpoint());
        let mut qp = setup.connect(&at_server.recv().unwrap()).unwrap();
        let (mut received, mut sent) = (0, 0);
        while sent < 6 {
            let mut done = cq.next(None).unwrap().unwrap();
            done.result().unwrap();
            if done.tag() < 10 {
                let buffer = done.take().buffer().unwrap();
                qp.post(10, Send::new(buffer)).unwrap();
                received += 1;
                if received <= 2 {
                    qp.recv(5, pool.try_take().unwrap()).unwrap();
                }
            } else {
                sent += 1;
            }
        }
        // The client may not know yet that its last message has arrived: an acknowledgement may be lost.
        assert_eq!(at_server.recv(), None);
        pool.free()
    });
    let domain = Device::simulated(&client).open().unwrap();
    let mut cq = domain.cq(16).unwrap();
    let mut setup = domain.rc(&cq).build().unwrap();
    for tag in 0..6 {
        setup.recv(tag, domain.alloc(4096).unwrap()).unwrap();
    }
    to_server.send(setup.endpoint());
    let mut qp = setup.connect(&at_client.recv().unwrap()).unwrap();
    for tag in 0..6 {
        let mut buffer = domain.alloc(4096).unwrap();
        buffer.fill(&vec![tag as u8; 500 * tag as usize]);
        qp.post(10 + tag, Send::new(buffer)).unwrap();
    }
    let (mut sent, mut echoed) = (0, 0);
    while sent + echoed < 12 {
        let mut done = cq.next(None).unwrap().unwrap();
        done.result().unwrap();
        if done.tag() < 10 {
            assert_eq!(&done.take().buffer().unwrap()[..], vec![echoed as u8; 500 * echoed]);
            echoed += 1;
        } else {
            sent += 1;
        }
    }
    drop(to_server);
    assert_eq!(served.join(), 8);
    world.trace()
}

#[test]
fn equal_seeds_give_equal_traces() {
    let mut different = 0;
    let mut before = Trace::default();
    for seed in 0..if cfg!(miri) { 2 } else { 1000 } {
        let trace = exchange(seed);
        assert!(!trace.0.is_empty());
        assert_eq!(trace, exchange(seed), "seed {seed}");
        different += u32::from(trace != before);
        before = trace;
    }
    assert!(different > 900 || cfg!(miri), "seeds make a difference");
}

/// Outstanding requests of all kinds, ended at a moment.
fn end_at(moment: Duration, seed: u64, end: impl FnOnce(ferroce::verbs::RcQp)) {
    let world = World::new(seed);
    faulty(&world);
    let licences = if seed.is_multiple_of(2) { Licences::default() } else { Licences::all() };
    let fixture = two_adapters(&world, &licences);
    let [mut a, mut b] = connected(&fixture);
    let exposed = b.domain.alloc(1 << 14).unwrap().expose(rights::All).unwrap();
    let pool = a.domain.pool(8, 1 << 14).unwrap();
    let full = || {
        let mut buffer = pool.try_take().unwrap();
        buffer.set_len(1 << 14);
        buffer
    };
    for tag in 0..2 {
        a.qp.recv(tag, full()).unwrap();
        b.qp.recv(tag, b.domain.alloc(1 << 14).unwrap()).unwrap();
        b.qp.post(tag, Send::new(b.domain.alloc(1 << 14).unwrap())).unwrap();
        a.qp.post(tag, Read::new(full(), exposed.token())).unwrap();
        a.qp.post(tag, Write::new(full(), exposed.token()).quiet()).unwrap();
        a.qp.post(tag, Send::new(full())).unwrap();
    }
    world.sleep(moment);
    end(a.qp);
    drop(a.cq);
    let mut buffers: Vec<_> = std::iter::from_fn(|| pool.try_take()).collect();
    for buffer in &mut buffers {
        buffer.fill(&[0x5a; 1 << 14]);
    }
    // Late packets find nothing.
    world.sleep(Duration::from_secs(5));
    assert!(buffers.iter().flat_map(|buffer| buffer.iter()).all(|byte| *byte == 0x5a));
}

#[test]
fn queue_pairs_may_end_at_any_moment() {
    for step in 0..if cfg!(miri) { 2 } else { 200 } {
        let moment = Duration::from_nanos(1500) * step;
        end_at(moment, u64::from(step), drop);
        end_at(moment, u64::from(step), |qp| drop(qp.destroy()));
        end_at(moment, u64::from(step), std::mem::forget);
        end_at(moment, u64::from(step), |mut qp| {
            qp.abort();
            std::mem::forget(qp);
        });
    }
}

#[test]
fn time_is_virtual() {
    let world = World::new(1);
    let fixture = two_hosts(&world);
    let timeout = Duration::from_secs(4);
    let [mut a, _b] = connected_with(&fixture, |builder| builder.timeout(timeout, 3));
    world.faults(Faults { loss: 1.0, ..Faults::default() });
    a.qp.post(1, Send::new(())).unwrap();
    let started = std::time::Instant::now();
    let fault = a.cq.next(Some(Duration::from_secs(600))).unwrap().unwrap().result().unwrap_err();
    assert_eq!(fault.status(), Status::RetriesExceeded);
    assert!(world.now() > 4 * timeout, "{:?}", world.now());
    assert!(started.elapsed() < Duration::from_secs(16));
    let before = world.now();
    world.sleep(Duration::from_secs(3600));
    assert_eq!(world.now() - before, Duration::from_secs(3600));
}

#[test]
fn an_unplugged_host_is_reached_again() {
    let world = World::new(5);
    let (client, server) = (world.host("client"), world.host("server"));
    let fixture = Hosts([Device::simulated(&client), Device::simulated(&server)]);
    let [mut a, mut b] = connected(&fixture);
    b.qp.recv(1, b.domain.alloc(8).unwrap()).unwrap();
    server.unplug();
    a.qp.post(1, Send::new(())).unwrap();
    assert!(!a.cq.wait(Some(Duration::from_millis(50))).unwrap());
    server.plug();
    a.cq.next(None).unwrap().unwrap().result().unwrap();
    assert_eq!(b.cq.next(None).unwrap().unwrap().tag(), 1);
}

fn message(panic: Box<dyn std::any::Any + std::marker::Send>) -> String {
    *panic.downcast::<String>().expect("a message")
}

/// Hosts count their objects alike, so completions would be those of another queue.
#[test]
fn a_completion_queue_of_another_host_is_refused() {
    let world = World::new(1);
    let [a, b] = ["a", "b"].map(|name| Device::simulated(&world.host(name)).open().unwrap());
    let (a_cq, b_cq) = (a.cq(64).unwrap(), b.cq(64).unwrap());
    assert_eq!(a.rc(&b_cq).build().unwrap_err().kind(), Kind::Invalid);
    assert_eq!(a.rc(&a_cq).recv_cq(&b_cq).build().unwrap_err().kind(), Kind::Invalid);
    a.rc(&a_cq).build().unwrap();
}

#[test]
fn a_hang_is_reported_with_what_is_waited_for() {
    let world = World::new(1);
    let fixture = two_hosts(&world);
    let [mut a, mut b] = connected(&fixture);
    let panic = catch_unwind(AssertUnwindSafe(|| b.cq.wait(None))).unwrap_err();
    let text = message(panic);
    for part in ["hangs at", "program test: waits for a completion", "host client", "no send outstanding"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    // The world has ended, so further waits fail too.
    catch_unwind(AssertUnwindSafe(|| a.cq.wait(None))).unwrap_err();
}

#[test]
fn a_message_that_waits_for_a_receive_without_end_is_a_hang() {
    let world = World::new(1);
    let fixture = two_hosts(&world);
    let wait = Duration::from_millis(100);
    let [mut a, _b] = connected_with(&fixture, |builder| builder.receiver_not_ready(wait, None));
    a.qp.post(1, Send::new(())).unwrap();
    let text = message(catch_unwind(AssertUnwindSafe(|| a.cq.wait(None))).unwrap_err());
    for part in ["no request has completed for", "which waits for a receive of the peer", "0 receives posted"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(text.contains("Acknowledge"), "the last packets are in {text}");
}

#[test]
fn a_program_that_polls_sees_time_pass() {
    let world = World::new(1);
    let fixture = two_hosts(&world);
    let [mut a, b] = connected(&fixture);
    let exposed = b.domain.alloc(64).unwrap().expose(rights::Write).unwrap();
    a.qp.post(1, Write::new(a.domain.alloc(64).unwrap(), exposed.token())).unwrap();
    let mut polls = 0;
    while a.cq.poll().unwrap().next().is_none() {
        polls += 1;
    }
    assert!((2..50).contains(&polls), "{polls} polls for 2 µs");
    // For ever it isn't.
    world.patience(Duration::from_millis(50));
    catch_unwind(AssertUnwindSafe(|| while a.cq.poll().unwrap().next().is_none() {})).unwrap_err();
}

#[test]
fn a_panic_of_a_program_reaches_the_test() {
    let world = World::new(1);
    let program = world.host("a").spawn(|| panic!("of the program"));
    let panic = catch_unwind(AssertUnwindSafe(|| program.join())).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"of the program"));
}

#[test]
fn programs_that_wait_for_each_other_are_reported() {
    let world = World::new(1);
    let (sender, receiver) = world.channel::<()>();
    let program = world.host("a").spawn(move || receiver.recv());
    let text = message(catch_unwind(AssertUnwindSafe(|| program.join())).unwrap_err());
    assert!(text.contains("program a: waits for a message of another program"), "{text}");
    assert!(text.contains("program test: waits for the end of a"), "{text}");
    drop(sender);
}

#[test]
fn explore_names_the_first_seed_that_fails() {
    let tried = std::sync::Mutex::new(Vec::new());
    let panic = catch_unwind(AssertUnwindSafe(|| {
        explore(10..20, |world| {
            world.faults(Faults { loss: 0.5, ..Faults::default() });
            let fixture = two_hosts(&world);
            let [mut a, b] = connected(&fixture);
            let exposed = b.domain.alloc(64).unwrap().expose(rights::Read).unwrap();
            a.qp.post(1, Read::new(a.domain.alloc(64).unwrap(), exposed.token())).unwrap();
            a.cq.next(None).unwrap().unwrap().result().unwrap();
            let lost = world.trace().to_string().contains("lost");
            tried.lock().unwrap().push(lost);
            assert!(!lost, "a packet was lost");
        });
    }))
    .unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"a packet was lost"));
    // The seed that fails is repeated: with the loss, and with less than that.
    let tried = tried.into_inner().unwrap();
    let first = tried.iter().position(|lost| *lost).unwrap();
    assert!(tried.len() > first + 1 && tried.last() == Some(&true), "{tried:?}");
}

#[test]
fn a_capture_has_each_packet_that_was_sent() {
    let path = std::env::temp_dir().join(format!("ferroce-sim-{}.pcapng", std::process::id()));
    let world = World::new(3);
    world.capture(&path).unwrap();
    faulty(&world);
    {
        let fixture = two_hosts(&world);
        let [mut a, b] = connected(&fixture);
        let exposed = b.domain.alloc(9000).unwrap().expose(rights::Write).unwrap();
        let mut buffer = a.domain.alloc(9000).unwrap();
        buffer.iter_mut().for_each(|byte| *byte = 0xab);
        a.qp.post(1, Write::new(buffer, exposed.token())).unwrap();
        a.cq.next(None).unwrap().unwrap().result().unwrap();
    }
    let sent = world.trace().0.iter().filter(|event| event.to_string().contains(" -> ")).count();
    drop(world);
    let file = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    // Section header, then blocks with their length at both ends.
    assert_eq!(file[..4], 0x0a0d_0d0a_u32.to_le_bytes());
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let (mut at, mut packets) = (0, Vec::new());
    while at < file.len() {
        let (kind, len) = (word(at), word(at + 4) as usize);
        assert_eq!(word(at + len - 4) as usize, len);
        if kind == 6 {
            packets.push(&file[at + 28..at + 28 + word(at + 20) as usize]);
        }
        at += len;
    }
    assert_eq!(packets.len(), sent);
    assert!(sent >= 10, "{sent} packets of 9,000 bytes at an MTU of 1,024");
    // IPv4 to UDP port 4791, and a full packet of a WRITE: IP, UDP, BTH, RETH, payload, ICRC.
    assert!(packets.iter().all(|packet| packet[0] == 0x45 && packet[22..24] == 4791_u16.to_be_bytes()));
    assert_eq!(packets[0].len(), 20 + 8 + 12 + 16 + 1024 + 4);
    assert!(packets[0][56..56 + 1024].iter().all(|byte| *byte == 0xab));
}

#[test]
fn a_token_of_another_host_leads_nowhere() {
    let world = World::new(1);
    let fixture = two_hosts(&world);
    let other = Device::simulated(&world.host("other")).open().unwrap();
    let [mut a, b] = connected(&fixture);
    let expose = |domain: &Domain| domain.alloc(64).unwrap().expose(rights::Write).unwrap();
    let (here, there): (Vec<_>, Vec<_>) = (0..8).map(|_| (expose(&b.domain), expose(&other))).unzip();
    for token in there.iter().map(|exposed| exposed.token()) {
        assert!(here.iter().all(|exposed| exposed.token().key() != token.key()));
    }
    a.qp.post(1, Write::new(a.domain.alloc(8).unwrap(), there[0].token())).unwrap();
    let ended = a.cq.next(None).unwrap().unwrap();
    assert_eq!(ended.result().unwrap_err().status(), Status::RemoteAccess);
}
