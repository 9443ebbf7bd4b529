//! What the progress engine drives: all sources of the process, its queue pairs, its completion queues' late events.

use crate::adapter::{Adapter, NetworkSource, contexts, qps_of};
use crate::device::fail_devices;
use crate::fabric::{ForwardSource, GroupSource, LinkSource, SocketSource, TapSource};
use crate::qp::{HELD_UP, Qp};
use crate::tracer::TraceSource;
use crate::xrc::XrcSource;
use ferroce_engine::{Handler, Loop, Source};
use ferroce_network::gsi::GsiSource;
use ferroce_parts::{FrameSource, frame_qps};
use ferroce_queues::Cq;
use ferroce_types::Instant;
use ferroce_wire::cm::GSI_QPN;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time;

impl Handler for Adapter {
    type Job = Qp;
    type Alarm = Cq;

    #[inline]
    fn engine(&self) -> &Loop<Self> {
        &self.engine
    }

    #[inline]
    fn sources(&'static self) -> impl Source {
        let packets = (
            GroupSource(self),
            FrameSource,
            SocketSource(self),
            LinkSource(self),
            ForwardSource(self),
            TapSource(self),
        );
        (packets, XrcSource(self), NetworkSource(self), self.gsi_source(), TraceSource(self))
    }

    fn due(&'static self, number: u32, now: Instant) -> bool {
        let Some(qp) = self.qp(number) else { return frame_qps().is_some_and(|qps| qps.due(number)) };
        qp.deadline.taken();
        self.with_work(|work| {
            qp.work_in_turn(work, now, |proto, env| {
                if proto.next_timeout().is_some_and(|at| at <= now) {
                    proto.handle_timeout(now, env);
                }
            });
        });
        true
    }

    fn ring(&'static self, cq: Arc<Cq>, now: Instant) {
        cq.event_is_due(now);
    }

    fn panicked(&'static self) {
        fail_devices();
    }

    #[cold]
    fn descriptors_lost(&'static self, fd: RawFd) {
        tracing::error!(
            fd,
            "the program has closed file descriptors of the adapter, so its devices have failed: let the program close \
             descriptors (closefrom, close_range, daemon) before it opens a device, or start it with `ferroce run`, \
             which keeps those of the adapter open"
        );
        fail_devices();
        // Of all queue pairs together.
        let end = time::Instant::now() + HELD_UP;
        for qp in contexts().iter().flat_map(|context| qps_of(context)) {
            // Sockets are lost, rings aren't. A QP whose lock isn't free is failed all the same.
            let left = || end.saturating_duration_since(time::Instant::now());
            let _ = self.take_what_has_come(&qp, left());
            qp.fail(left());
        }
        if let Some(qps) = frame_qps() {
            qps.give_up();
        }
    }
}

impl Adapter {
    #[inline]
    fn gsi_source(&'static self) -> impl Source {
        GsiSource::new(self, || self.empty_sockets(GSI_QPN, &mut || false))
    }
}

#[cfg(test)]
mod gsi_tests;
#[cfg(test)]
mod tests {
    use crate::namespace::in_namespace;
    use crate::side::{Side, open};
    use ferroce_engine::{Handler as _, Job as _};
    use ferroce_os::clock;
    use ferroce_tests::wait::eventually;
    use ferroce_types::QpState;
    use ferroce_wire::Service;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    #[test]
    fn a_thread_that_makes_progress_waits_for_no_queue_pair_in_which_a_thread_is_held_up() {
        const NAME: &str =
            "drive::tests::a_thread_that_makes_progress_waits_for_no_queue_pair_in_which_a_thread_is_held_up";
        in_namespace(NAME, || {
            let context = open();
            let side = Side::new(&context, Service::Rc, 64);
            side.connect(side.qp.qpn());
            let adapter = crate::adapter::current().unwrap();
            let (locked, is_locked) = channel();
            let (go_on, goes_on) = channel::<()>();
            std::thread::scope(|scope| {
                let held_up = &side.qp;
                scope.spawn(move || {
                    held_up.while_busy(move || {
                        locked.send(()).unwrap();
                        goes_on.recv().unwrap();
                    });
                });
                is_locked.recv().unwrap();
                // Its timer, and its turn. In a thread of its own: without a limit they would wait for the one above.
                let (returned, returns) = channel();
                let qp = side.qp.clone();
                scope.spawn(move || {
                    for _ in 0..10 {
                        adapter.due(qp.qpn(), clock::now());
                        qp.clone().run(clock::now());
                    }
                    returned.send(()).unwrap();
                });
                let has_returned = returns.recv_timeout(Duration::from_secs(10)).is_ok();
                go_on.send(()).unwrap();
                assert!(has_returned, "it waits for the thread that is held up");
            });
            eventually("the turn that was put off has come", || !side.qp.is_held_up());
        });
    }

    #[test]
    fn queue_pairs_fail_in_a_second_together_though_threads_are_held_up_in_some() {
        const NAME: &str =
            "drive::tests::queue_pairs_fail_in_a_second_together_though_threads_are_held_up_in_some";
        in_namespace(NAME, || {
            let context = open();
            let sides = [(); 21].map(|()| Side::new(&context, Service::Rc, 64));
            sides.iter().for_each(|side| side.connect(side.qp.qpn()));
            let (free, held_up) = sides.split_last().unwrap();
            let (locked, is_locked) = channel();
            let threads: Vec<_> = held_up
                .iter()
                .map(|side| {
                    let (go_on, goes_on) = channel();
                    let (qp, locked) = (side.qp.clone(), locked.clone());
                    let thread = std::thread::spawn(move || {
                        qp.while_busy(move || {
                            locked.send(()).unwrap();
                            goes_on.recv().unwrap();
                        });
                    });
                    is_locked.recv().unwrap();
                    (thread, go_on)
                })
                .collect();
            let begun = Instant::now();
            crate::adapter::current().unwrap().descriptors_lost(-1);
            // A second each would be twenty.
            assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
            assert_eq!(free.qp.query().unwrap().state, QpState::Err);
            for (thread, go_on) in threads {
                go_on.send(()).unwrap();
                thread.join().unwrap();
            }
            for side in held_up {
                eventually("the queue pair has failed", || side.qp.query().unwrap().state == QpState::Err);
            }
        });
    }
}
