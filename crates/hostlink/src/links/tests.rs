//! How links are made, found and ended.

use super::*;
use ferroce_host::frame;
use std::sync::Barrier;
use std::thread;

/// One of two processes.
struct Side {
    links: Arc<Links>,
    slot: u16,
    /// Over which it introduces itself.
    connection: EngineFd,
    /// Over which its peer does.
    listens: EngineFd,
}

/// The introduction that comes after the question for leave.
fn hear(connection: EngineFd) -> (EngineFd, Vec<u8>, Vec<EngineFd>) {
    let (question, fds) = hello::receive(connection.raw()).unwrap();
    assert_eq!((question, fds.len()), (frame::header(frame::KIND_MEMORY).to_vec(), 0));
    let (message, fds) = hello::receive(connection.raw()).unwrap();
    (connection, message, fds)
}

fn connection() -> [EngineFd; 2] {
    sys::socket_pair(libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK).unwrap()
}

impl Side {
    /// Its peer has leave to introduce itself.
    fn new(slot: u16, is_listed: bool, connection: EngineFd, listens: EngineFd) -> Self {
        frame::send(listens.raw(), &mut frame::header(frame::GRANTED), &[]).unwrap();
        let own: &'static Directory = Box::leak(Box::new(Directory::new().unwrap()));
        if is_listed {
            own.add_slot(slot);
        }
        Self { links: Links::of(Some(own), false, true).unwrap(), slot, connection, listens }
    }

    /// Two that are connected to each other, the one with the lower number first.
    fn pair(are_listed: bool) -> [Self; 2] {
        let ([to_second, at_second], [to_first, at_first]) = (connection(), connection());
        let mut sides =
            [Self::new(11, are_listed, to_second, at_first), Self::new(12, are_listed, to_first, at_second)];
        sides.sort_by_key(Self::process);
        sides
    }

    fn process(&self) -> u64 {
        self.links.own.unwrap().process
    }

    /// Makes a link to `peer`. Both sides have introduced themselves before either answers, and this side answers in round `answers`,
    /// or, when it has a link before, afterwards. Returns its links, and the one that it uses.
    fn opens(self, peer: u16, introduced: &Barrier, answers: u32) -> (Arc<Links>, Arc<Link>) {
        let Self { links, connection, listens, .. } = self;
        let mut listens = Some(listens);
        let mut answer = || {
            let Some(connection) = listens.take() else { return };
            let (connection, message, fds) = hear(connection);
            links.serve(connection, &message, fds);
        };
        let mut round = 0;
        let link = links.open(connection, peer, &mut || {
            // Before the first round it has asked for leave, and after it, it has introduced itself.
            if round == 1 {
                introduced.wait();
            }
            if round == 1 + answers {
                answer();
            }
            round += 1;
        });
        answer();
        (links.clone(), link.expect("a link"))
    }
}

impl Side {
    /// Makes a link and introduces itself, and doesn't wait for the answer.
    fn introduces_itself(&mut self, peer: u16, connection: EngineFd) -> Arc<Link> {
        let memory = Arc::new(SharedMemory::create(link::LEN, false).unwrap());
        let link = self.links.add(peer, connection, memory, LinkEnd::Maker).unwrap();
        hello::ask(link.connection.raw()).unwrap();
        self.links.finish(&link);
        link
    }
}

/// A peer makes a link before it gives this process leave to introduce itself.
#[test]
fn link_of_the_peers_is_used_if_it_comes_before_leave_for_ones_own() {
    for is_used in [true, false] {
        let [first, mut second] = Side::pair(true);
        let memory = Arc::new(SharedMemory::create(link::LEN, false).unwrap());
        let own = first.links.add(second.slot, first.connection, memory, LinkEnd::Maker).unwrap();
        hello::ask(own.connection.raw()).unwrap();
        assert!(!is_used || own.use_unanswered());

        let connection = std::mem::replace(&mut second.connection, sys::epoll_create().unwrap());
        second.introduces_itself(first.slot, connection);
        let (connection, message, fds) = hear(first.listens);
        first.links.serve(connection, &message, fds);
        first.links.finish(&own);
        assert_eq!(own.is_dead(), !is_used);
        assert_eq!(first.links.snapshot().len(), if is_used { 2 } else { 1 });
    }
}

#[test]
fn leave_that_is_given_again_ends_the_link() {
    let ([to_peer, at_peer], [_unused, listens]) = (connection(), connection());
    let mut side = Side::new(11, true, sys::epoll_create().unwrap(), listens);
    let give_leave = || frame::send(at_peer.raw(), &mut frame::header(frame::GRANTED), &[]).unwrap();
    give_leave();
    let link = side.introduces_itself(12, to_peer);
    assert!(!link.is_dead());
    give_leave();
    side.links.finish(&link);
    assert!(link.is_dead());
    assert!(side.links.snapshot().is_empty());
}

/// Simultaneous open: with and without a timeout of the process with the lower number.
#[test]
fn link_that_is_used_without_an_answer_does_not_yield() {
    for is_used in [true, false] {
        let [mut lower, mut higher] = Side::pair(true);
        let (of_lower, of_higher) = (lower.slot, higher.slot);
        let nobody = || sys::epoll_create().unwrap();
        let connection = std::mem::replace(&mut lower.connection, nobody());
        let used = lower.introduces_itself(of_higher, connection);
        let connection = std::mem::replace(&mut higher.connection, nobody());
        let offered = higher.introduces_itself(of_lower, connection);
        assert!(!is_used || used.use_unanswered());

        let hears = |side: Side| {
            let (connection, message, fds) = hear(side.listens);
            side.links.serve(connection, &message, fds);
            side.links
        };
        let (of_higher, of_lower) = (hears(higher), hears(lower));
        of_lower.finish(&used);
        of_higher.finish(&offered);
        assert_eq!(used.remote.get().is_some(), is_used);
        assert_eq!(used.is_dead(), !is_used);
        assert!(is_used || !used.use_unanswered(), "it has yielded");
        assert_eq!(
            (of_lower.snapshot().len(), of_higher.snapshot().len()),
            if is_used { (2, 2) } else { (1, 1) }
        );
        assert!(offered.remote.get().is_some());
    }
}

#[test]
fn link_of_the_lower_number_is_used_where_the_other_process_has_none_or_was_hung_up_on() {
    for was_hung_up_on in [false, true] {
        let [mut lower, mut higher] = Side::pair(true);
        let none = || sys::epoll_create().unwrap();
        if was_hung_up_on {
            let connection = std::mem::replace(&mut higher.connection, none());
            higher.introduces_itself(lower.slot, connection);
            drop(std::mem::replace(&mut lower.listens, none()));
        }
        let connection = std::mem::replace(&mut lower.connection, none());
        let link = lower.introduces_itself(higher.slot, connection);
        let (connection, message, fds) = hear(higher.listens);
        higher.links.serve(connection, &message, fds);
        lower.links.finish(&link);
        assert!(link.remote.get().is_some() && !link.is_dead());
        assert_eq!(higher.links.snapshot().len(), 1 + usize::from(was_hung_up_on));
    }
}

#[test]
fn processes_of_another_layout_make_no_link() {
    // Of the hello, and of the answer to one that was accepted.
    for changes_hello in [true, false] {
        let [first, second] = Side::pair(true);
        let mut listens = Some(second.listens);
        let mut round = 0;
        let opened = first.links.open(first.connection, second.slot, &mut || {
            round += 1;
            let Some(connection) = listens.take_if(|_| round == 2) else { return };
            let (connection, mut message, fds) = hear(connection);
            if changes_hello {
                message[8] ^= 1;
                second.links.serve(connection, &message, fds);
            } else {
                let own = second.links.own.unwrap();
                let mut answer = hello::answer(own);
                answer[8] ^= 1;
                hello::send(connection.raw(), &answer, &[own.fd()]).unwrap();
            }
        });
        assert!(opened.is_none());
        assert!(first.links.is_empty() && second.links.is_empty());
    }
}

#[test]
fn two_processes_that_make_a_link_at_the_same_time_use_the_same() {
    // A directory has no room for all slots of a process that has many.
    for (is_listed, lower_answers, higher_answers) in
        [(true, 0, 0), (true, 0, 5), (true, 5, 0), (true, 5, 5), (false, 0, 0), (false, 5, 5)]
    {
        let [lower, higher] = Side::pair(is_listed);
        let (of_lower, of_higher) = (lower.slot, higher.slot);
        let introduced = Barrier::new(2);
        let [(lower, used), (higher, other)] = thread::scope(|scope| {
            let lower = scope.spawn(|| lower.opens(of_higher, &introduced, lower_answers));
            let higher = scope.spawn(|| higher.opens(of_lower, &introduced, higher_answers));
            [lower, higher].map(|side| side.join().unwrap())
        });
        let numbers = |links: &Arc<Links>| links.snapshot().iter().map(|link| link.id).collect::<Vec<_>>();
        assert_eq!(numbers(&lower), [used.id], "answered in rounds {lower_answers} and {higher_answers}");
        assert_eq!(numbers(&higher), [other.id]);
        // Neither asks who has the other's slot again.
        let to_slot = |links: &Arc<Links>, slot| {
            links.to_slot(slot, || unreachable!("the kernel has named the holder")).map(|link| link.id)
        };
        assert_eq!(to_slot(&lower, of_higher), Some(used.id));
        // A bell is noticed once.
        lower.own.unwrap().bell().background_sleeps();
        higher.snapshot()[0].ring_bell();
        assert!(!lower.was_rung() && lower.attend(&mut |_| unreachable!("the peer is there")).is_empty());
        assert!(lower.was_rung() && !lower.was_rung());
        // The kernel's connection is the one that the process with the higher number has made.
        assert!(higher.snapshot()[0].was_offered_to(used.pid, lower.own.unwrap().process));
    }
}
