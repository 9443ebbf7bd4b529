//! Mistakes that a licence of an adapter brings to light. Each mistake stays hidden without its licence, and the correct program
//! works with all of them.

use ferroce::sim::{Faults, Host, Licences, Receiver, Sender, World, explore};
use ferroce::verbs::{Device, Endpoint};
use outside::*;
use std::ops::Range;
use std::time::Duration;

/// One end of what two programs exchange beside RDMA.
struct Line(Sender<Vec<u8>>, Receiver<Vec<u8>>);

impl Line {
    fn pair(world: &World) -> (Self, Self) {
        let ((a, at_a), (b, at_b)) = (world.channel(), world.channel());
        (Self(a, at_b), Self(b, at_a))
    }

    fn receive<const N: usize>(&self) -> [u8; N] {
        self.1.recv().expect("the other program").try_into().expect("so many bytes")
    }
}

impl Meet for Line {
    fn endpoints(&self, mine: Endpoint) -> Endpoint {
        self.0.send(mine.to_bytes().to_vec());
        Endpoint::from_bytes(self.receive()).expect("an endpoint")
    }

    fn send_token(&self, token: [u8; 24]) {
        self.0.send(token.to_vec());
    }

    fn token(&self) -> [u8; 24] {
        self.receive()
    }

    fn goodbye(&self) {
        self.0.send(Vec::new());
        let _ = self.1.recv();
    }
}

const fn micros(from: u64, to: u64) -> Range<Duration> {
    Duration::from_micros(from)..Duration::from_micros(to)
}

/// The adapters of the server and of the client.
type Adapters = [Licences; 2];

const SEEDS: Range<u64> = 0..60;

fn hosts(world: &World, adapters: &Adapters) -> (Host, Host) {
    let (server, client) = (world.host("server"), world.host("client"));
    server.licences(adapters[0].clone());
    client.licences(adapters[1].clone());
    (server, client)
}

fn friendly() -> Adapters {
    [Licences::default(), Licences::default()]
}

fn all() -> Adapters {
    [Licences::all(), Licences::all()]
}

fn block(adapters: &Adapters, version: Version) {
    explore(SEEDS, |world| {
        let (server, client) = hosts(&world, adapters);
        let (mine, theirs) = Line::pair(&world);
        let device = Device::simulated(&server);
        let server = server.spawn(move || await_block(&device, &theirs, version).unwrap());
        write_block(&Device::simulated(&client), &mine).unwrap();
        assert!(server.join(), "a part of the block was missing");
        world.check().unwrap();
    });
}

fn numbers(adapters: &Adapters, version: Version) {
    explore(SEEDS, |world| {
        let (server, client) = hosts(&world, adapters);
        let (mine, theirs) = Line::pair(&world);
        let device = Device::simulated(&server);
        let server = server.spawn(move || serve_numbers(&device, &theirs, 4).unwrap());
        let answers = ask_numbers(&Device::simulated(&client), &mine, 4, version).unwrap();
        server.join();
        assert!(answers.iter().all(|(asked, answer)| asked == answer), "wrong answers: {answers:?}");
    });
}

fn pairs(adapters: &Adapters, version: Version) {
    explore(SEEDS, |world| {
        world.patience(Duration::from_millis(5));
        let (server, client) = hosts(&world, adapters);
        let (mine, theirs) = Line::pair(&world);
        let device = Device::simulated(&server);
        let server = server.spawn(move || receive_pairs(&device, &theirs, 20, version).unwrap());
        send_pairs(&Device::simulated(&client), &mine, 20).unwrap();
        server.join();
    });
}

fn two_queue_pairs(adapters: &Adapters, version: Version) {
    explore(SEEDS, |world| {
        let (server, client) = hosts(&world, adapters);
        let (mine, theirs) = Line::pair(&world);
        let device = Device::simulated(&server);
        let server = server.spawn(move || await_notification(&device, &theirs).unwrap());
        write_and_notify(&Device::simulated(&client), &mine, version).unwrap();
        assert!(server.join(), "the notification was there before the block");
    });
}

fn changing(adapters: &Adapters, version: Version) {
    explore(SEEDS, |world| {
        world.faults(Faults { loss: 0.1, ..Faults::default() });
        let (server, client) = hosts(&world, adapters);
        let (mine, theirs) = Line::pair(&world);
        let device = Device::simulated(&server);
        let server = server.spawn(move || publish_block(&device, &theirs, version).unwrap());
        let whole = read_block(&Device::simulated(&client), &mine).unwrap();
        server.join();
        assert!(whole, "a block of two versions");
    });
}

fn at_once(adapters: &Adapters, version: Version) {
    explore(SEEDS, |world| {
        let (server, client) = hosts(&world, adapters);
        let (mine, theirs) = Line::pair(&world);
        let device = Device::simulated(&server);
        let server = server.spawn(move || receive_one(&device, &theirs).unwrap());
        send_at_once(&Device::simulated(&client), &mine, version).unwrap();
        server.join();
    });
}

fn preparing(adapters: &Adapters, version: Version) {
    explore(SEEDS, |world| {
        let (server, _) = hosts(&world, adapters);
        assert!(prepare(&Device::simulated(&server), version).unwrap() <= 8);
        world.check().unwrap();
    });
}

/// Three tests of a program: with a friendly adapter the mistake is hidden, the licence finds it, and the correct program works
/// with all licences.
macro_rules! mistake {
    ($name:ident, $test:path, $adapters:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn is_hidden_by_a_friendly_adapter() {
                $test(&friendly(), Version::Wrong);
            }

            #[test]
            #[ignore = "fails, as it should: the licence finds the mistake"]
            fn is_found() {
                $test(&$adapters, Version::Wrong);
            }

            #[test]
            fn is_absent_from_the_right_program() {
                $test(&$adapters, Version::Right);
                $test(&all(), Version::Right);
            }
        }
    };
}

mistake!(
    polling_the_last_byte,
    block,
    [Licences { scattered_placement: true, ..Licences::default() }, Licences::default()]
);
mistake!(
    memory_used_again_after_a_timeout,
    numbers,
    [Licences { late_completions: micros(0, 100), ..Licences::default() }, Licences::default()]
);
mistake!(
    a_forgotten_receive,
    pairs,
    [Licences { late_completions: micros(0, 100), ..Licences::default() }, Licences::default()]
);
mistake!(
    order_between_queue_pairs,
    two_queue_pairs,
    [Licences::default(), Licences { pauses: micros(0, 5), ..Licences::default() }]
);
mistake!(
    memory_changed_while_it_is_read,
    changing,
    [Licences { reread_on_retry: true, ..Licences::default() }, Licences::default()]
);
mistake!(
    a_read_taken_for_a_snapshot,
    changing,
    [Licences { pauses: micros(0, 5), ..Licences::default() }, Licences::default()]
);
mistake!(
    no_retry_for_a_receiver,
    at_once,
    [Licences { receiver_not_ready: 0.2, ..Licences::default() }, Licences::default()]
);
mistake!(
    memory_without_end,
    preparing,
    [Licences { registration_fails: 0.2, ..Licences::default() }, Licences::default()]
);
mistake!(
    a_completion_queue_of_any_size,
    preparing,
    [Licences { most_cq_entries: Some(64), ..Licences::default() }, Licences::default()]
);
