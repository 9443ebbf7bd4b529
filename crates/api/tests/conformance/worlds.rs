//! Hosts that crash, pause and restart, networks that are partitioned, slow or damaged, and what a world reports of them.

use crate::fixture::{Fixture, connected, connected_with};
use crate::simulated::{Hosts, faulty, two_hosts};
use ferroce::sim::{Disturbance, Faults, Host, Licences, Receiver, Sender, Trace, World};
use ferroce::verbs::{Cq, Device, Domain, Endpoint, RcQp, Read, Reliable, Send, Setup, Write};
use ferroce::{Kind, Status, rights};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake};
use std::time::Duration;

const fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn named(world: &World) -> ([Host; 2], Hosts) {
    let hosts = ["client", "server"].map(|name| world.host(name));
    let devices = [0, 1].map(|host| Device::simulated(&hosts[host]));
    (hosts, Hosts(devices))
}

#[test]
fn a_crash_ends_programs_and_objects_and_a_restart_begins_anew() {
    let world = World::new(1);
    let ([client, server], fixture) = named(&world);
    let [mut a, mut b] = connected_with(&fixture, |builder| builder.timeout(micros(10), 3));
    let (sender, receiver) = world.channel::<()>();
    let program = server.spawn(move || receiver.recv());
    let untouched = client.spawn(|| 5);
    let exposed = b.domain.alloc(64).unwrap().expose(rights::Write).unwrap();
    b.qp.recv(1, b.domain.alloc(8).unwrap()).unwrap();
    world.sleep(micros(1));
    server.crash();
    assert_eq!(program.result(), None);
    drop(sender);
    // The peer's requests fail after its retries.
    a.qp.post(1, Write::new(a.domain.alloc(8).unwrap(), exposed.token())).unwrap();
    let fault = a.cq.next(None).unwrap().unwrap().result().unwrap_err();
    assert_eq!(fault.status(), Status::RetriesExceeded);
    // Handles that are left are dead, also after the restart.
    for restarted in [false, true] {
        if restarted {
            server.restart();
        }
        assert_eq!(b.domain.alloc(8).unwrap_err().kind(), Kind::Dead);
        assert_eq!(b.domain.cq(8).unwrap_err().kind(), Kind::Dead);
        assert_eq!(b.cq.poll().err().unwrap().kind(), Kind::Dead);
        assert_eq!(b.cq.wait(None).unwrap_err().kind(), Kind::Dead);
        b.qp.post(1, Send::new(())).unwrap();
        assert!(b.qp.is_dead());
        b.qp.recv(1, a.domain.alloc(8).unwrap()).unwrap();
        assert_eq!(fixture.devices()[1].open().is_ok(), restarted);
    }
    // The memory is the program's.
    assert_eq!(exposed.revoke().len(), 64);
    assert_eq!(b.qp.destroy().len(), 5);
    assert_eq!(untouched.join(), 5);
    let [mut a, mut b] = connected(&fixture);
    b.qp.recv(1, b.domain.alloc(8).unwrap()).unwrap();
    a.qp.post(1, Send::new(())).unwrap();
    a.cq.next(None).unwrap().unwrap().result().unwrap();
    b.cq.next(None).unwrap().unwrap().result().unwrap();
}

#[test]
fn a_program_may_crash_its_own_host() {
    let world = World::new(1);
    let host = world.host("a");
    let own = host.clone();
    let program = host.spawn(move || -> u32 {
        own.crash();
        unreachable!("the program ends in the call")
    });
    assert_eq!(program.result(), None);
    let spawned = catch_unwind(AssertUnwindSafe(|| host.spawn(|| ()).join()));
    assert!(spawned.unwrap_err().downcast_ref::<String>().unwrap().contains("has crashed"));
}

/// A queue pair with receives, before it is connected.
fn ready(device: &Device) -> (Domain, Cq, Setup<Reliable>) {
    let domain = device.open().unwrap();
    let cq = domain.cq(64).unwrap();
    let mut setup = domain.rc(&cq).timeout(micros(10), 5).build().unwrap();
    for tag in 0..4 {
        setup.recv(tag, domain.alloc(1 << 13).unwrap()).unwrap();
    }
    (domain, cq, setup)
}

type Bytes = [u8; 64];

/// Echoes the messages of one connection after another.
fn echo(device: &Device, asked: &Receiver<Bytes>, answers: &Sender<(Bytes, Bytes)>) {
    while let Some(mut theirs) = asked.recv() {
        // The last that asked is the one that waits.
        while let Some(later) = asked.try_recv() {
            theirs = later;
        }
        let (_domain, mut cq, setup) = ready(device);
        answers.send((theirs, setup.endpoint().to_bytes()));
        let mut qp = setup.connect(&Endpoint::from_bytes(theirs).unwrap()).unwrap();
        // Until the client ends the connection, or is silent.
        while let Some(mut done) = cq.next(Some(Duration::from_millis(4))).unwrap() {
            if done.result().is_err() {
                break;
            }
            if done.tag() < 4 {
                let memory = done.take().buffer().unwrap();
                if qp.post(9, Send::new(memory)).is_err() {
                    break;
                }
            }
        }
    }
}

/// Sends message number `next` and awaits its echo. False: the connection has failed.
fn echoed(domain: &Domain, cq: &mut Cq, qp: &mut RcQp, next: usize) -> bool {
    let bytes = vec![next as u8; 700 * next];
    let mut message = domain.alloc(1 << 13).unwrap();
    message.fill(&bytes);
    if qp.post(9, Send::new(message)).is_err() {
        return false;
    }
    while let Some(mut done) = cq.next(Some(Duration::from_millis(3))).unwrap() {
        if done.result().is_err() {
            return false;
        }
        if done.tag() < 4 {
            assert_eq!(done.take().buffer().unwrap()[..], bytes);
            return qp.recv(0, domain.alloc(1 << 13).unwrap()).is_ok();
        }
    }
    false
}

/// A client that connects again as often as its server crashes, until all of its messages were echoed.
fn survive(seed: u64) -> Trace {
    let world = World::new(seed);
    faulty(&world);
    let [client, server] = ["client", "server"].map(|name| world.host(name));
    client.licences(Licences::all());
    server.licences(Licences::all());
    let (asks, asked) = world.channel();
    let (answers, answered) = world.channel();
    let device = Device::simulated(&server);
    server.boot(move || echo(&device, &asked, &answers));
    for _ in 0..2 {
        let at = world.draw(Duration::ZERO..micros(900));
        world.at(at, Disturbance::Crash(&server));
        world.at(at + micros(100), Disturbance::Restart(&server));
    }
    world.at(world.draw(Duration::ZERO..micros(500)), Disturbance::Pause(&server));
    world.at(micros(600), Disturbance::Resume(&server));
    world.at(world.draw(Duration::ZERO..micros(500)), Disturbance::Partition(&[&client], &[&server]));
    world.at(micros(700), Disturbance::Heal);
    let device = Device::simulated(&client);
    let (mut next, mut connections) = (0, 0);
    while next < 8 {
        connections += 1;
        assert!(connections < 100, "{}", world.trace());
        let (domain, mut cq, setup) = ready(&device);
        let mine = setup.endpoint().to_bytes();
        asks.send(mine);
        let mut theirs = None;
        for _ in 0..100 {
            world.sleep(micros(20));
            theirs = answered.try_recv().filter(|(asked, _): &(Bytes, Bytes)| *asked == mine).or(theirs);
        }
        let Some((_, theirs)) = theirs else { continue };
        let mut qp = setup.connect(&Endpoint::from_bytes(theirs).unwrap()).unwrap();
        while next < 8 && echoed(&domain, &mut cq, &mut qp, next) {
            next += 1;
        }
    }
    let trace = world.trace();
    server.crash();
    assert_eq!(world.check(), Ok(()));
    trace
}

#[test]
fn equal_seeds_give_equal_traces_with_crashes_and_licences() {
    let (mut crashes, mut licences) = (0, 0);
    for seed in 0..if cfg!(miri) { 1 } else { 1000 } {
        let trace = survive(seed);
        assert!(trace == survive(seed), "seed {seed}");
        let text = trace.to_string();
        crashes += text.matches("server crashes").count();
        licences += text.matches("in any order").count();
    }
    assert!(cfg!(miri) || (crashes > 500 && licences > 500), "{crashes} crashes, {licences} licences used");
}

#[test]
fn the_adapter_of_a_paused_host_goes_on() {
    let world = World::new(1);
    let ([_, server], fixture) = named(&world);
    let [mut a, b] = connected(&fixture);
    let exposed = b.domain.alloc(8).unwrap().expose(rights::All).unwrap();
    let token = exposed.token();
    let slept = world.clone();
    let program = server.spawn(move || {
        slept.sleep(micros(10));
        let before = exposed.word(0).load();
        slept.sleep(micros(100));
        (before, exposed.word(0).load(), slept.now())
    });
    world.sleep(micros(50));
    server.pause();
    let mut one = a.domain.alloc(8).unwrap();
    one.fill(&1_u64.to_ne_bytes());
    a.qp.post(1, Write::new(one, token)).unwrap();
    a.cq.next(None).unwrap().unwrap().result().unwrap();
    world.sleep(Duration::from_secs(2));
    server.resume();
    let (before, after, ended) = program.join();
    assert_eq!((before, after), (0, 1));
    assert!(ended >= Duration::from_secs(2));
    // A paused host whose program is waited for is a hang, with its reason.
    server.pause();
    let program = server.spawn(|| ());
    let panic = catch_unwind(AssertUnwindSafe(|| program.join())).unwrap_err();
    assert!(panic.downcast_ref::<String>().unwrap().contains("host server (paused)"));
}

fn one_write(fixture: &impl Fixture, limit: Duration) -> Option<bool> {
    let [mut a, b] = connected_with(fixture, |builder| builder.timeout(micros(10), 7));
    let exposed = b.domain.alloc(64).unwrap().expose(rights::Write).unwrap();
    a.qp.post(1, Write::new(a.domain.alloc(64).unwrap(), exposed.token())).unwrap();
    a.cq.next(Some(limit)).unwrap().map(|done| done.result().is_ok())
}

#[test]
fn a_partition_cuts_what_it_names_until_it_is_healed() {
    let world = World::new(1);
    let ([client, server], fixture) = named(&world);
    let third = world.host("third");
    let beside = Hosts([Device::simulated(&client), Device::simulated(&third)]);
    world.partition(&[&client], &[&server]);
    assert_eq!(one_write(&beside, micros(10)), Some(true));
    assert_eq!(one_write(&fixture, Duration::from_secs(9)), Some(false));
    world.at(world.now() + Duration::from_millis(1), Disturbance::Heal);
    assert_eq!(one_write(&fixture, Duration::from_secs(9)), Some(true));
}

#[test]
fn a_link_has_faults_of_its_own() {
    let world = World::new(1);
    let ([client, server], fixture) = named(&world);
    let beside = Hosts([Device::simulated(&client), Device::simulated(&world.host("third"))]);
    let link = world.link(&server, &client);
    link.faults(Faults { loss: 1.0, ..Faults::default() });
    assert_eq!(one_write(&beside, micros(10)), Some(true));
    assert_eq!(one_write(&fixture, Duration::from_secs(9)), Some(false));
    link.faults(None);
    assert_eq!(one_write(&fixture, micros(10)), Some(true));
    link.down();
    assert_eq!(one_write(&fixture, Duration::from_secs(9)), Some(false));
    link.up();
    assert_eq!(one_write(&fixture, micros(10)), Some(true));
}

#[test]
fn a_damaged_packet_is_dropped() {
    let world = World::new(1);
    world.faults(Faults { corrupt: 0.3, ..Faults::default() });
    let fixture = two_hosts(&world);
    for _ in 0..10 {
        assert_eq!(one_write(&fixture, Duration::from_secs(9)), Some(true));
    }
    assert!(world.trace().to_string().contains("which is damaged"));
}

/// Writes a megabyte from two hosts to a third, and returns the time and the trace.
fn incast(faults: Faults) -> (Duration, String) {
    const LEN: usize = 1 << 19;
    let world = World::new(1);
    world.faults(faults);
    let sink = Device::simulated(&world.host("sink"));
    let sources = ["a", "b"].map(|name| Hosts([Device::simulated(&world.host(name)), sink.clone()]));
    let mut sides: Vec<_> = sources.iter().map(connected).collect();
    let mut exposed = Vec::new();
    for [a, b] in &mut sides {
        let memory = b.domain.alloc(LEN).unwrap().expose(rights::Write).unwrap();
        a.qp.post(1, Write::new(a.domain.alloc(LEN).unwrap(), memory.token())).unwrap();
        exposed.push(memory);
    }
    for [a, _] in &mut sides {
        a.cq.next(None).unwrap().unwrap().result().unwrap();
    }
    (world.now(), world.trace().to_string())
}

#[test]
fn a_slow_cable_queues_drops_and_marks() {
    let gigabyte = Faults { bytes_per_second: Some(1_000_000_000), ..Faults::default() };
    let (time, trace) = incast(gigabyte.clone());
    assert!(time >= micros(1048) && time < micros(1300), "{time:?}");
    assert!(!trace.contains("lost") && !trace.contains("CongestionNotification"));
    let (slower, trace) = incast(Faults { queue: Some(100_000), ..gigabyte.clone() });
    assert!(trace.contains("lost"));
    assert!(slower > time, "{slower:?}");
    let lost = trace.matches("lost").count();
    let marking = Faults { queue: Some(100_000), marks_from: Some(20_000), ..gigabyte };
    let (_, trace) = incast(marking);
    assert!(trace.contains("CongestionNotification"));
    assert!(trace.matches("lost").count() < lost, "senders that are notified send more slowly");
}

#[test]
fn check_names_what_was_left() {
    let world = World::new(1);
    let ([_, server], fixture) = named(&world);
    assert_eq!(world.check(), Ok(()));
    let [mut a, mut b] = connected(&fixture);
    let exposed = b.domain.alloc(77).unwrap().expose(rights::Read).unwrap();
    b.qp.recv(1, b.domain.alloc(8).unwrap()).unwrap();
    a.qp.post(1, Send::new(())).unwrap();
    a.qp.post(1, Send::new(())).unwrap();
    world.sleep(micros(100));
    let (sender, receiver) = world.channel::<()>();
    let program = server.spawn(move || receiver.recv());
    let left = world.check().unwrap_err().join("\n");
    for part in [
        "client: QP",
        "1 sends outstanding",
        "waits for a receive of the peer",
        "1 completions that weren't polled",
        "server: memory of 77 bytes is exposed",
        "client: memory of",
        "program server hasn't ended",
    ] {
        assert!(left.contains(part), "{part} in {left}");
    }
    drop((a, b, exposed, sender));
    program.join();
    assert_eq!(world.check(), Ok(()));
    // A queue pair that was forgotten stays, and its memory.
    let [a, _b] = connected(&fixture);
    std::mem::forget(a.qp);
    drop((a.cq, a.domain, _b));
    let left = world.check().unwrap_err();
    assert!(left.iter().any(|left| left.contains("client: QP")) && left.len() == 2, "{left:?}");
}

#[test]
fn a_program_that_polls_memory_sees_it_change() {
    let world = World::new(1);
    let fixture = two_hosts(&world);
    let [mut a, b] = connected(&fixture);
    let exposed = b.domain.alloc(8).unwrap().expose(rights::Write).unwrap();
    let mut one = a.domain.alloc(8).unwrap();
    one.fill(&1_u64.to_ne_bytes());
    a.qp.post(1, Write::new(one, exposed.token())).unwrap();
    let mut looks = 0;
    while exposed.word(0).load() == 0 {
        looks += 1;
    }
    assert!((5..30).contains(&looks), "{looks} looks for 1 µs");
    // For ever it isn't.
    world.patience(Duration::from_millis(5));
    let panic =
        catch_unwind(AssertUnwindSafe(|| while exposed.word(0).compare_swap(5, 6) != 5 {})).unwrap_err();
    assert!(panic.downcast_ref::<String>().unwrap().contains("hangs"));
}

#[test]
fn a_program_that_a_host_starts_fails_the_test() {
    let world = World::new(1);
    let host = world.host("server");
    host.boot(|| panic!("of the server"));
    let panic = catch_unwind(AssertUnwindSafe(|| world.sleep(micros(1)))).unwrap_err();
    assert_eq!(panic.downcast_ref::<String>().unwrap(), "server has failed: of the server");
    assert_eq!(world.check().unwrap_err(), ["server has failed: of the server"]);
}

#[test]
fn a_world_may_have_another_clock() {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    let nanos = Arc::new(AtomicU64::new(0));
    let clock = nanos.clone();
    let world = World::driven(1, move || Duration::from_nanos(clock.load(Relaxed)));
    let fixture = two_hosts(&world);
    let [mut a, b] = connected(&fixture);
    let exposed = b.domain.alloc(64).unwrap().expose(rights::Read).unwrap();
    a.qp.post(1, Read::new(a.domain.alloc(64).unwrap(), exposed.token())).unwrap();
    let mut events = 0;
    while a.cq.poll().unwrap().next().is_none() {
        let next = world.next_event().expect("a packet or a timer");
        nanos.store(next.as_nanos() as u64, Relaxed);
        world.advance(next);
        events += 1;
    }
    assert_eq!((events, world.now()), (2, micros(2)));
    // Waits are the other clock's.
    let panic = catch_unwind(AssertUnwindSafe(|| a.cq.wait(None))).unwrap_err();
    assert!(panic.downcast_ref::<&str>().unwrap().contains("another clock's"));
}

/// The waker of a task that looks at its world as soon as it is woken.
struct Looks(World, AtomicBool);

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        self.1.store(self.0.next_event().is_none_or(|next| next >= self.0.now()), Ordering::Relaxed);
    }
}

#[test]
fn a_task_that_is_woken_may_use_its_world() {
    let world = World::driven(1, || Duration::ZERO);
    let fixture = two_hosts(&world);
    let [mut a, b] = connected(&fixture);
    let exposed = b.domain.alloc(64).unwrap().expose(rights::Read).unwrap();
    let mut changed = pin!(world.changed());
    let waker = Arc::new(Looks(world.clone(), AtomicBool::new(false)));
    assert!(changed.as_mut().poll(&mut Context::from_waker(&waker.clone().into())).is_pending());
    a.qp.post(1, Read::new(a.domain.alloc(64).unwrap(), exposed.token())).unwrap();
    // In a thread of its own: a world that is locked meanwhile would be locked for ever.
    let (advanced, ended) = mpsc::channel();
    std::thread::spawn(move || {
        world.advance(micros(10));
        advanced.send(()).unwrap();
    });
    ended.recv_timeout(Duration::from_secs(60)).expect("the world is locked while a task is woken");
    assert!(waker.1.load(Ordering::Relaxed));
}
