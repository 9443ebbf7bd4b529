//! A process of the host is gone when its lifeline ends, unless it may not have had the time to be asked for one.

use super::member::address;
use super::namespace::in_namespace;
use ferroce_cm::AddressedMad;
use ferroce_host::frame;
use ferroce_network::gsi::{COMM_ID_BITS, CommunicationManager, Gsi};
use ferroce_os::sys::{self, AbstractName, EngineFd};
use ferroce_watch::ConnectionManager;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// A slot that no process has.
const SLOT: u16 = 3000;
const LIMIT: Duration = Duration::from_secs(10);

/// Sends the slots of processes that are gone.
struct Manager(Sender<u16>);

impl CommunicationManager for Manager {
    fn work(&self, mads: &mut dyn Iterator<Item = AddressedMad>) {
        mads.for_each(drop);
    }

    fn try_look(&self) -> Option<ConnectionManager> {
        None
    }

    fn gone(&self, slot: Option<u16>) {
        slot.into_iter().for_each(|slot| self.0.send(slot).unwrap());
    }
}

fn name() -> AbstractName {
    AbstractName::new(&format!("ferroce-2-slot-{SLOT}"))
}

/// The process that has [`SLOT`], as far as others see it.
struct Holder(EngineFd);

impl Holder {
    fn new() -> Self {
        let listener = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET).unwrap();
        sys::bind(listener.raw(), &name()).unwrap();
        sys::listen(listener.raw(), 8).unwrap();
        Self(listener)
    }

    /// A connection, and the request that has come through it.
    fn accept(&self) -> (EngineFd, Vec<u8>) {
        wait_for(&self.0);
        let connection = sys::accept(self.0.raw()).unwrap();
        wait_for(&connection);
        let mut request = [0; 64];
        let (length, _) = frame::receive(connection.raw(), &mut request).unwrap();
        (connection, request[..length].to_vec())
    }

    /// Ends a connection without having read what has come through it, as a process does that a fork or a death interrupts.
    fn drop_unread(&self) {
        wait_for(&self.0);
        drop(sys::accept(self.0.raw()).unwrap());
    }
}

fn wait_for(fd: &EngineFd) {
    let mut fds = [libc::pollfd { fd: fd.raw(), events: libc::POLLIN, revents: 0 }];
    assert_eq!(sys::poll(&mut fds, LIMIT).unwrap(), 1, "nothing has come");
}

/// Has this process follow the holder of [`SLOT`]; what is received are the slots of processes that are gone.
fn follow() -> Receiver<u16> {
    let (tell, told) = channel();
    let gsi = Gsi::start(ferroce_nic::start().unwrap(), |_| Arc::new(Manager(tell))).unwrap();
    assert!(gsi.follow(address("127.0.0.1"), u32::from(SLOT) << COMM_ID_BITS));
    told
}

fn assert_nobody_is_gone(told: &Receiver<u16>) {
    assert_eq!(told.recv_timeout(Duration::from_millis(50)), Err(RecvTimeoutError::Timeout));
}

#[test]
fn a_process_that_ends_a_lifeline_unheard_is_asked_again() {
    in_namespace("lifelines::a_process_that_ends_a_lifeline_unheard_is_asked_again", || {
        let holder = Holder::new();
        let told = follow();
        for _ in 0..3 {
            holder.drop_unread();
        }
        let (connection, request) = holder.accept();
        assert_eq!(frame::kind_of(&request), Some(6));
        frame::send(connection.raw(), &mut frame::header(frame::GRANTED), &[]).unwrap();
        assert_nobody_is_gone(&told);
        // The process has answered that it has the connection. So the end of the connection is its own, though its name is still bound.
        drop(connection);
        assert_eq!(told.recv_timeout(LIMIT), Ok(SLOT));
    });
}

#[test]
fn a_process_whose_name_goes_with_its_lifeline_is_gone() {
    in_namespace("lifelines::a_process_whose_name_goes_with_its_lifeline_is_gone", || {
        let holder = Holder::new();
        let told = follow();
        let (connection, _) = holder.accept();
        assert_nobody_is_gone(&told);
        drop(holder);
        drop(connection);
        assert_eq!(told.recv_timeout(LIMIT), Ok(SLOT));
    });
}

/// As one that is killed as soon as it has read a request.
#[test]
fn a_process_that_dies_before_its_lifeline_is_kept_is_gone() {
    in_namespace("lifelines::a_process_that_dies_before_its_lifeline_is_kept_is_gone", || {
        let (tell, told) = channel();
        let gsi = Gsi::start(ferroce_nic::start().unwrap(), |_| Arc::new(Manager(tell))).unwrap();
        let own = gsi.host().slots()[0];
        let name = AbstractName::new(&format!("ferroce-2-slot-{own}"));
        // Some of them die before the connection is accepted.
        for dead in 2000..2050_u16 {
            let connection = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET).unwrap();
            sys::connect(connection.raw(), &name).unwrap();
            let mut question = [&frame::header(6)[..], &dead.to_ne_bytes()].concat();
            frame::send(connection.raw(), &mut question, &[]).unwrap();
            drop(connection);
            assert_eq!(told.recv_timeout(LIMIT), Ok(dead));
        }
    });
}

#[test]
fn a_process_that_never_hears_is_gone_in_the_end() {
    in_namespace("lifelines::a_process_that_never_hears_is_gone_in_the_end", || {
        let holder = Holder::new();
        let told = follow();
        for _ in 0..100 {
            holder.drop_unread();
        }
        assert_eq!(told.recv_timeout(LIMIT), Ok(SLOT));
    });
}

#[test]
fn a_process_that_has_many_waiting_is_asked_later() {
    in_namespace("lifelines::a_process_that_has_many_waiting_is_asked_later", || {
        let holder = Holder::new();
        // One may wait.
        sys::listen(holder.0.raw(), 0).unwrap();
        let other = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET).unwrap();
        sys::connect(other.raw(), &name()).unwrap();
        let told = follow();
        assert_nobody_is_gone(&told);
        holder.drop_unread();
        let (connection, _) = holder.accept();
        frame::send(connection.raw(), &mut frame::header(frame::GRANTED), &[]).unwrap();
        drop(connection);
        assert_eq!(told.recv_timeout(LIMIT), Ok(SLOT));
    });
}

#[test]
fn a_process_that_keeps_no_lifeline_is_asked_later_and_not_given_up() {
    in_namespace("lifelines::a_process_that_keeps_no_lifeline_is_asked_later_and_not_given_up", || {
        let holder = Holder::new();
        let told = follow();
        for _ in 0..3 {
            let (connection, request) = holder.accept();
            assert_eq!(frame::kind_of(&request), Some(6));
            frame::send(connection.raw(), &mut frame::header(frame::REFUSED), &[]).unwrap();
            drop(connection);
            assert_nobody_is_gone(&told);
        }
        // It has room now.
        let (connection, _) = holder.accept();
        frame::send(connection.raw(), &mut frame::header(frame::GRANTED), &[]).unwrap();
        assert_nobody_is_gone(&told);
        drop(connection);
        assert_eq!(told.recv_timeout(LIMIT), Ok(SLOT));
    });
}

/// Lifelines that a process keeps at most.
const MOST: usize = 8192;

/// Asks this process to keep a connection: the connection, and the answer.
fn ask_this_process(name: &AbstractName) -> (EngineFd, Option<u8>) {
    let connection = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET).unwrap();
    sys::connect(connection.raw(), name).unwrap();
    let mut request = [&frame::header(6)[..], &SLOT.to_ne_bytes()].concat();
    frame::send(connection.raw(), &mut request, &[]).unwrap();
    wait_for(&connection);
    let mut answer = [0; 64];
    let (length, _) = frame::receive(connection.raw(), &mut answer).unwrap();
    (connection, frame::kind_of(&answer[..length]))
}

#[test]
fn a_process_answers_that_it_keeps_a_lifeline_only_if_it_does() {
    in_namespace("lifelines::a_process_answers_that_it_keeps_a_lifeline_only_if_it_does", || {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a structure that the kernel fills, and reads.
        unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
            limit.rlim_cur = limit.rlim_max.min(1 << 16);
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
        // Both ends of all connections are this process's.
        if limit.rlim_cur < 2 * MOST as u64 + 1000 {
            println!("skipped: RLIMIT_NOFILE is {}", limit.rlim_max);
            return;
        }
        let (tell, _told) = channel();
        let gsi = Gsi::start(ferroce_nic::start().unwrap(), |_| Arc::new(Manager(tell))).unwrap();
        let own = AbstractName::new(&format!("ferroce-2-slot-{}", gsi.host().slots()[0]));
        let kept: Vec<_> = (0..MOST).map(|_| ask_this_process(&own)).collect();
        assert!(kept.iter().all(|(_, answer)| *answer == Some(frame::GRANTED)));
        assert_eq!(ask_this_process(&own).1, Some(frame::REFUSED));
    });
}
