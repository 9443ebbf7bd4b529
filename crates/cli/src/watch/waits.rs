//! What a queue pair waits for, in words: from its own account, and from that of its peer where the peer is of this host.

use super::{ProcessAnswer, WatchedProcess};
use ferroce_explain::{entry, id};
use ferroce_types::slot_of;
use ferroce_watch::{Peer, PostedRequest, Process, QueuePair};
use std::collections::HashMap;

/// All queue pairs of the host by number, each with its process. Those of two users may have the same number.
pub struct Pairs<'a>(HashMap<u32, Vec<(&'a WatchedProcess, &'a QueuePair)>>);

impl<'a> Pairs<'a> {
    /// Those of these processes.
    pub fn of(seen: &'a [WatchedProcess]) -> Self {
        let mut all: HashMap<_, Vec<_>> = HashMap::new();
        for seen in seen {
            for pair in seen.account().into_iter().flat_map(|account| &account.queue_pairs) {
                all.entry(pair.number).or_default().push((seen, pair));
            }
        }
        Self(all)
    }

    /// The other end of a connection, if it is one of these and is connected to this end.
    pub fn peer_of(&self, pair: &QueuePair) -> Option<(&'a WatchedProcess, &'a QueuePair)> {
        let peer = pair.peer.as_ref()?;
        // Another host, or another user, may have a queue pair of the same number.
        let names_back = |other: &QueuePair| {
            let back = other.peer.as_ref().filter(|back| back.number == pair.number);
            back.is_some_and(|back| peer.address == other.address && back.address == pair.address)
        };
        self.0.get(&peer.number)?.iter().find(|(_, other)| names_back(other)).copied()
    }

    /// What a queue pair waits for, or why nothing goes on there.
    pub fn waits_for(&self, pair: &QueuePair, all: &[WatchedProcess]) -> String {
        if pair.busy {
            return "is at work".to_owned();
        }
        match pair.state.as_str() {
            "RESET" | "INIT" => return "isn't connected yet".to_owned(),
            "ERR" | "SQE" => return failed(pair),
            _ => {}
        }
        // Over UDP the process is known by the number of its queue pair, if that is at this host's address.
        let is_of = |seen: &WatchedProcess, peer: &Peer| match peer.process {
            Some(pid) => seen.pid == Some(pid),
            None => peer.address == pair.address && seen.slots.contains(&slot_of(peer.number)),
        };
        let stopped = pair.peer.as_ref().is_some_and(|peer| {
            all.iter().any(|seen| matches!(seen.answer, ProcessAnswer::Stopped) && is_of(seen, peer))
        });
        let peer = self.peer_of(pair).map(|(_, peer)| peer).filter(|peer| !peer.busy);
        match &pair.oldest {
            Some(_) if stopped => "waits for its peer, whose process is stopped".to_owned(),
            Some(oldest) => format!("waits with {}: {}", named(oldest), unanswered(pair, oldest, peer)),
            None => receiving(pair, peer, stopped),
        }
    }

    /// Two connected queue pairs of which each waits for a message of the other: `pair` of the process `own`, and its peer.
    pub fn wait_for_each_other(
        &self,
        own: &WatchedProcess,
        pair: &QueuePair,
    ) -> Option<(&'a WatchedProcess, &'a QueuePair)> {
        let (seen, peer) = self.peer_of(pair)?;
        let waits = |seen: &WatchedProcess, pair: &QueuePair| {
            !pair.busy
                && pair.send.outstanding == 0
                && pair.state.as_str() == "RTS"
                && seen.account().is_some_and(|account| receives(account, pair) && has_polled(account, pair))
        };
        (waits(own, pair) && waits(seen, peer) && !std::ptr::eq(pair, peer)).then_some((seen, peer))
    }
}

/// Whether a receive is posted, to the queue pair or to its shared receive queue.
fn receives(account: &Process, pair: &QueuePair) -> bool {
    let of_shared = |number| {
        let queue = account.shared_receive_queues.iter().find(|queue| queue.number == number);
        queue.map(|queue| queue.receive)
    };
    let receive = pair.receive.or_else(|| pair.shared_receive_queue.and_then(of_shared));
    receive.is_some_and(|receive| receive.outstanding > 0)
}

/// Whether the program has polled all completions: one may be that of the message which it waits for.
fn has_polled(account: &Process, pair: &QueuePair) -> bool {
    let mut queues = account.completion_queues.iter();
    queues.all(|queue| queue.filled == 0 || !pair.completion_queues.contains(&queue.number))
}

fn failed(pair: &QueuePair) -> String {
    match entry(pair.reason) {
        Some(reason) => format!("has failed: {} {} (`ferroce explain {0}`)", id(pair.reason), reason.title),
        None => "was ended by its program, or by a failure without a reason".to_owned(),
    }
}

fn named(request: &PostedRequest) -> String {
    format!("request {} ({}, {} bytes)", request.wr_id, request.operation, request.length)
}

/// Why the oldest request hasn't ended.
fn unanswered(pair: &QueuePair, oldest: &PostedRequest, peer: Option<&QueuePair>) -> String {
    let takes_receive = oldest.operation.as_str().starts_with("SEND")
        || oldest.operation.as_str().ends_with("with immediate");
    if let Some(waited) = oldest.waits_for_receive {
        return format!("its peer has had no receive posted for {} s", waited / 1000);
    }
    match peer {
        Some(peer) if takes_receive && peer.receive.is_some_and(|receive| receive.outstanding == 0) => {
            "its peer has no receive posted".to_owned()
        }
        Some(peer) if matches!(peer.state.as_str(), "RESET" | "INIT" | "ERR") => {
            format!("its peer is in {}", peer.state)
        }
        _ if pair.state.as_str() == "SQD" => "its send queue is being drained (SQD)".to_owned(),
        _ if pair.state.as_str() == "RTR" => "it isn't in RTS".to_owned(),
        _ if !oldest.started => "it hasn't left yet".to_owned(),
        _ => "nothing has acknowledged it yet".to_owned(),
    }
}

fn receiving(pair: &QueuePair, peer: Option<&QueuePair>, stopped: bool) -> String {
    let Some(receive) = pair.receive else {
        return "has nothing to send; its receives are in a shared receive queue".to_owned();
    };
    if receive.outstanding == 0 {
        return "has nothing to do: no request is posted".to_owned();
    }
    match peer {
        _ if stopped => "waits for a message from its peer, whose process is stopped".to_owned(),
        Some(peer) if peer.send.outstanding == 0 => {
            "waits for a message; its peer has none to send".to_owned()
        }
        Some(_) => "waits for a message, which its peer is sending".to_owned(),
        None => "waits for a message".to_owned(),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use ferroce_watch::{CompletionQueue, SharedReceiveQueue, WorkQueue};

    pub fn pair(number: u32, peer: u32, sends: u32, receives: u32) -> QueuePair {
        let oldest = PostedRequest {
            wr_id: 7,
            operation: "SEND".into(),
            length: 64,
            started: true,
            ..PostedRequest::default()
        };
        QueuePair {
            number,
            state: "RTS".into(),
            peer: Some(Peer { number: peer, ..Peer::default() }),
            send: WorkQueue { depth: 8, outstanding: sends },
            oldest: (sends > 0).then_some(oldest),
            receive: Some(WorkQueue { depth: 8, outstanding: receives }),
            ..QueuePair::default()
        }
    }

    pub fn process(pid: u32, pairs: Vec<QueuePair>) -> WatchedProcess {
        let account = Process { queue_pairs: pairs, ..Process::default() };
        WatchedProcess {
            uid: 0,
            pid: Some(pid),
            command: String::new(),
            slots: Vec::new(),
            answer: ProcessAnswer::Account(Box::new(account)),
        }
    }

    /// What the first of two connected queue pairs waits for.
    fn says(a: QueuePair, b: QueuePair) -> (String, bool) {
        let seen = [process(1, vec![a.clone()]), process(2, vec![b])];
        let pairs = Pairs::of(&seen);
        (pairs.waits_for(&a, &seen), pairs.wait_for_each_other(&seen[0], &a).is_some())
    }

    #[test]
    fn what_is_waited_for_is_seen_from_both_ends() {
        let waits = |a, b| says(pair(1, 2, a, 1), pair(2, 1, b, 1));
        assert_eq!(waits(0, 0), ("waits for a message; its peer has none to send".into(), true));
        assert_eq!(waits(0, 1), ("waits for a message, which its peer is sending".into(), false));
        let (text, mutual) = says(pair(1, 2, 3, 1), pair(2, 1, 0, 0));
        assert_eq!(text, "waits with request 7 (SEND, 64 bytes): its peer has no receive posted");
        assert!(!mutual);
        let mut refused = pair(1, 2, 3, 1);
        refused.oldest =
            refused.oldest.map(|oldest| PostedRequest { waits_for_receive: Some(3999), ..oldest });
        let (text, _) = says(refused, pair(2, 1, 0, 0));
        assert_eq!(text, "waits with request 7 (SEND, 64 bytes): its peer has had no receive posted for 3 s");
        let (text, _) = says(pair(1, 2, 0, 0), pair(2, 1, 0, 0));
        assert_eq!(text, "has nothing to do: no request is posted");
    }

    /// A message that has arrived isn't waited for, though its program hasn't taken its completion.
    #[test]
    fn programs_with_completions_to_poll_wait_for_no_message() {
        let with = |number, peer, filled, receives| {
            let pair = QueuePair { completion_queues: [1, 2], ..pair(number, peer, 0, receives) };
            let queue = |number, filled| CompletionQueue { number, filled, ..CompletionQueue::default() };
            let mut process = process(number, vec![pair]);
            let ProcessAnswer::Account(account) = &mut process.answer else { unreachable!() };
            // The third is that of other queue pairs.
            account.completion_queues = vec![queue(1, 0), queue(2, filled), queue(3, 1)];
            process
        };
        let mutual = |a: WatchedProcess, b: WatchedProcess| {
            let seen = [a, b];
            let pairs = Pairs::of(&seen);
            let first = &seen[0].account().unwrap().queue_pairs[0];
            pairs.wait_for_each_other(&seen[0], first).is_some()
        };
        assert!(mutual(with(1, 2, 0, 1), with(2, 1, 0, 1)));
        assert!(!mutual(with(1, 2, 1, 1), with(2, 1, 0, 1)));
        assert!(!mutual(with(1, 2, 0, 1), with(2, 1, 1, 1)));
        // Of a shared receive queue the receives count that are posted there.
        let shared = |outstanding| {
            let mut process = with(1, 2, 0, 0);
            let ProcessAnswer::Account(account) = &mut process.answer else { unreachable!() };
            let receive = WorkQueue { depth: 8, outstanding };
            account.queue_pairs[0].receive = None;
            account.queue_pairs[0].shared_receive_queue = Some(4);
            account.shared_receive_queues =
                vec![SharedReceiveQueue { number: 4, receive, ..SharedReceiveQueue::default() }];
            process
        };
        assert!(mutual(shared(1), with(2, 1, 0, 1)));
        assert!(!mutual(shared(0), with(2, 1, 0, 1)));
    }

    #[test]
    fn who_is_connected_to_another_is_no_peer() {
        assert_eq!(says(pair(1, 2, 0, 1), pair(2, 3, 0, 1)), ("waits for a message".into(), false));
        let elsewhere = QueuePair { address: "10.0.0.9".into(), ..pair(1, 2, 0, 1) };
        assert_eq!(says(elsewhere, pair(2, 1, 0, 1)), ("waits for a message".into(), false));
    }

    #[test]
    fn queue_pairs_of_two_users_may_have_the_same_numbers() {
        let of_user = |address: &str, number, peer| QueuePair {
            address: address.into(),
            peer: Some(Peer { number: peer, address: address.into(), ..Peer::default() }),
            ..pair(number, peer, 0, 1)
        };
        let both = |address| vec![of_user(address, 1, 2), of_user(address, 2, 1)];
        let seen = [process(1, both("10.0.0.1")), process(2, both("10.0.0.2"))];
        let pairs = Pairs::of(&seen);
        for seen in &seen {
            for pair in &seen.account().unwrap().queue_pairs {
                let (other, peer) = pairs.wait_for_each_other(seen, pair).expect("a peer");
                assert!(std::ptr::eq(other, seen) && peer.number != pair.number);
            }
        }
    }

    #[test]
    fn a_failure_names_its_reason_and_a_stopped_process_is_named() {
        let failed = QueuePair { state: "ERR".into(), reason: 34, ..pair(1, 2, 0, 0) };
        assert!(says(failed, pair(2, 1, 0, 0)).0.starts_with("has failed: FC034 "));
        let a = QueuePair {
            peer: Some(Peer { number: 2, process: Some(2), ..Peer::default() }),
            ..pair(1, 2, 0, 1)
        };
        let stopped = WatchedProcess {
            uid: 0,
            pid: Some(2),
            command: String::new(),
            slots: vec![0],
            answer: ProcessAnswer::Stopped,
        };
        let seen = [process(1, vec![a.clone()]), stopped];
        let text = |pair| Pairs::of(&seen).waits_for(&pair, &seen);
        assert_eq!(text(a), "waits for a message from its peer, whose process is stopped");
        let over_udp = |number, address: &str| QueuePair {
            peer: Some(Peer { number, address: address.into(), process: None }),
            address: "10.0.0.1".into(),
            ..pair(1, number, 0, 1)
        };
        assert_eq!(
            text(over_udp(2, "10.0.0.1")),
            "waits for a message from its peer, whose process is stopped"
        );
        assert_eq!(text(over_udp(0x1002, "10.0.0.1")), "waits for a message");
        assert_eq!(text(over_udp(2, "10.0.0.2")), "waits for a message");
    }
}
