//! What only a device of this process promises: forks, threads, and the events of several programs.

use crate::fixture::{Fixture, Native, Side, connected};
use ferroce::verbs::{Device, FetchAdd, Read, Send, Write};
use ferroce::{Kind, Status, rights};
use ferroce_tests::inside::in_namespace;
use std::time::{Duration, Instant};

/// Runs `child` in a fork of this process. Whether it has ended without a panic.
fn in_child(child: impl FnOnce()) -> bool {
    // SAFETY: one thread of the child goes on, with all that this test and the library need.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        // SAFETY: the child has nothing to do at its exit.
        unsafe { libc::_exit(i32::from(ended.is_err())) };
    }
    assert!(pid > 0);
    let mut status = 0;
    // SAFETY: a child of this process, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status == 0
}

/// Rule S9: what a child drops was the parent's.
#[test]
fn a_forks_child_ends_nothing_of_its_parents() {
    in_namespace("of_this_process::a_forks_child_ends_nothing_of_its_parents", || {
        let native = Native::new();
        let [mut a, mut b] = connected(&native);
        let exposed = b.domain.alloc(64).unwrap().expose(rights::All).unwrap();
        b.qp.recv(1, b.domain.alloc(64).unwrap()).unwrap();
        let (a_fields, b_fields) = (&mut Some(a), &mut Some(b));
        let mut held = Some(exposed);
        assert!(in_child(|| {
            let Side { mut cq, mut qp, domain } = a_fields.take().unwrap();
            // The inherited queue pair belongs to the parent.
            assert!(qp.is_dead());
            qp.post(5, Send::new(domain.alloc(8).unwrap())).unwrap();
            let done = cq.next(Some(Duration::from_secs(5))).unwrap().expect("a completion").result();
            assert_eq!(done.unwrap_err().status(), Status::Flushed);
            drop((cq, qp, domain));
            let exposed = held.take().unwrap();
            exposed.store(0, b"the child's copy");
            drop(exposed.revoke());
            drop(b_fields.take());
            // It has a device of its own.
            let own = Native::new();
            let [mut a, mut b] = connected(&own);
            b.qp.recv(1, b.domain.alloc(8).unwrap()).unwrap();
            a.qp.post(2, Send::new(a.domain.alloc(8).unwrap())).unwrap();
            b.cq.next(Some(Duration::from_secs(5))).unwrap().expect("a message").result().unwrap();
        }));
        (a, b) = (a_fields.take().unwrap(), b_fields.take().unwrap());
        let exposed = held.unwrap();
        a.qp.post(2, FetchAdd::new(exposed.token().slice(..8), 7)).unwrap();
        let mut buffer = a.domain.alloc(64).unwrap();
        buffer.fill(b"after the fork");
        a.qp.post(3, Send::new(buffer)).unwrap();
        for tag in [2, 3] {
            let done = a.cq.next(Some(Duration::from_secs(5))).unwrap().expect("a completion");
            done.result().unwrap();
            assert_eq!(done.tag(), tag);
        }
        let mut received = b.cq.next(Some(Duration::from_secs(5))).unwrap().expect("a message");
        assert_eq!(&received.buffer().unwrap().unwrap()[..], b"after the fork");
        assert_eq!(exposed.word(0).load(), 7);
    });
}

#[test]
fn a_program_that_is_executed_leaves_the_device_alone() {
    in_namespace("of_this_process::a_program_that_is_executed_leaves_the_device_alone", || {
        let native = Native::new();
        let [mut a, b] = connected(&native);
        let exposed = b.domain.alloc(1 << 16).unwrap().expose(rights::ReadWrite).unwrap();
        for round in 0..10_u8 {
            let mut child = std::process::Command::new("true").spawn().unwrap();
            let mut buffer = a.domain.alloc(1 << 16).unwrap();
            buffer.iter_mut().for_each(|byte| *byte = round);
            a.qp.post(1, Write::new(buffer, exposed.token())).unwrap();
            a.cq.next(None).unwrap().unwrap().result().unwrap();
            assert!(child.wait().unwrap().success());
        }
        assert!(exposed.revoke().iter().all(|byte| *byte == 9));
    });
}

/// A thread that sleeps is woken by what another thread posts.
#[test]
fn a_thread_that_waits_is_woken_by_the_others_message() {
    in_namespace("of_this_process::a_thread_that_waits_is_woken_by_the_others_message", || {
        let native = Native::new();
        let [mut a, mut b] = connected(&native);
        for tag in 0..16 {
            b.qp.recv(tag, b.domain.alloc(8).unwrap()).unwrap();
        }
        let waiter = std::thread::spawn(move || {
            let mut woken = Vec::new();
            for tag in 0..16 {
                let received = b.cq.next(Some(Duration::from_secs(10))).unwrap().expect("a message");
                received.result().unwrap();
                assert_eq!(received.tag(), tag);
                woken.push(Instant::now());
            }
            (woken, b.qp)
        });
        let mut posted = Vec::new();
        for _ in 0..16 {
            std::thread::sleep(Duration::from_millis(20));
            posted.push(Instant::now());
            a.qp.post(1, Send::new(())).unwrap();
            a.cq.next(None).unwrap().unwrap().result().unwrap();
        }
        let (woken, _qp) = waiter.join().unwrap();
        let mut late: Vec<_> = woken.iter().zip(&posted).map(|(woken, posted)| *woken - *posted).collect();
        late.sort_unstable();
        // A sleep that no event ends lasts for 10 ms.
        assert!(late[8] < Duration::from_millis(3), "{late:?}");
    });
}

/// A program with an event loop of its own sleeps on the descriptor.
#[test]
fn the_descriptor_announces_completions_of_an_armed_queue() {
    in_namespace("of_this_process::the_descriptor_announces_completions_of_an_armed_queue", || {
        let native = Native::new();
        let [mut a, mut b] = connected(&native);
        let readable = |cq: &ferroce::verbs::Cq, limit: i32| {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&cq.descriptor().unwrap());
            let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry.
            assert!(unsafe { libc::poll(&raw mut one, 1, limit) } >= 0);
            one.revents != 0
        };
        for round in 0..50 {
            b.qp.recv(round, b.domain.alloc(8).unwrap()).unwrap();
            assert!(b.cq.arm().unwrap());
            assert!(!readable(&b.cq, 0), "{round}");
            let poster = std::thread::spawn(move || {
                a.qp.post(1, Send::new(())).unwrap();
                a.cq.next(None).unwrap().unwrap().result().unwrap();
                a
            });
            assert!(readable(&b.cq, 10_000), "no event announces the message of round {round}");
            a = poster.join().unwrap();
            assert!(!b.cq.arm().unwrap(), "there is a completion");
            let mut polled = b.cq.poll().unwrap();
            assert_eq!(polled.next().unwrap().tag(), round);
            assert!(polled.next().is_none());
        }
    });
}

/// Registration, posting and polling by many threads, each with queue pairs of its own.
#[test]
fn threads_use_one_device() {
    in_namespace("of_this_process::threads_use_one_device", || {
        let device = Device::native().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let device = device.clone();
                scope.spawn(move || {
                    struct One(Device);
                    impl Fixture for One {
                        fn devices(&self) -> [&Device; 2] {
                            [&self.0, &self.0]
                        }
                        fn seed(&self) -> u64 {
                            0
                        }
                    }
                    let one = One(device);
                    for round in 0..20 {
                        let [mut a, b] = connected(&one);
                        let mut memory = b.domain.alloc(3000).unwrap();
                        memory.iter_mut().for_each(|byte| *byte = thread ^ round);
                        let exposed = memory.expose(rights::Read).unwrap();
                        a.qp.post(1, Read::new(a.domain.alloc(3000).unwrap(), exposed.token())).unwrap();
                        let mut read = a.cq.next(None).unwrap().unwrap();
                        assert!(read.buffer().unwrap().unwrap().iter().all(|byte| *byte == thread ^ round));
                    }
                });
            }
        });
    });
}

#[test]
fn devices_have_names() {
    in_namespace("of_this_process::devices_have_names", || {
        let native = Device::native().unwrap();
        assert_eq!(Device::named(&native.name()).unwrap().name(), native.name());
        assert_eq!(Device::all().unwrap().len(), 1);
        let error = Device::named("mlx5_0").unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.to_string().contains(&native.name()), "{error}");
        // A device that is opened anew is another context: its objects don't work with the first one's.
        let [first, second] = [&native, &Device::native().unwrap()].map(|device| device.open().unwrap());
        let cq = first.cq(16).unwrap();
        assert_eq!(second.rc(&cq).build().unwrap_err().kind(), Kind::Invalid);
        first.rc(&cq).build().unwrap();
        native.open().unwrap().rc(&cq).build().unwrap();
        let world = ferroce::sim::World::new(0);
        let simulated = Device::simulated(&world.host("a")).open().unwrap();
        assert_eq!(simulated.rc(&cq).build().unwrap_err().kind(), Kind::Invalid);
    });
}
