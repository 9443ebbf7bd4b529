//! Debian's programs of librdmacm between Ferroce and the kernel's `rdma_cm`.

use crate::lab::{LIMIT, Lab, Server, Sides};
use ferroce_tests::wait::eventually;
use std::time::Duration;

/// What a side has after the other's end.
const LAST_WORDS: Duration = Duration::from_secs(20);
/// Port spaces.
const TCP: u16 = 0x0106;
const UDP: u16 = 0x0111;

/// Server, client, port space and port. `SERVER` and `SERVER6` stand for the server's addresses. (`rdma_rxe` has no XRC.)
///
/// (A client of rdma-core's rsockets that polls, `rstream -T a`, may take the end of the connection for an error before it has read
/// the last bytes, with any server.)
const PROGRAMS: [(&str, &str, u16, u16); 18] = [
    ("rping -s -a SERVER -C 20 -v -V", "rping -c -a SERVER -C 20 -v -V", TCP, 7174),
    ("rping -s -a SERVER6 -C 20 -v -V", "rping -c -a SERVER6 -C 20 -v -V", TCP, 7174),
    ("rping -s -q -a SERVER -C 20 -v -V", "rping -c -q -a SERVER -C 20 -v -V", TCP, 7174),
    ("ucmatose -b SERVER -c 40", "ucmatose -s SERVER -c 40", TCP, 7471),
    ("ucmatose -b SERVER -t 104 -a 16", "ucmatose -s SERVER -t 104 -a 16", TCP, 7471),
    ("udaddy -b SERVER -c 10", "udaddy -s SERVER -c 10", UDP, 7174),
    ("udaddy -b SERVER6", "udaddy -s SERVER6", UDP, 7174),
    ("rdma_server", "rdma_client -s SERVER", TCP, 7471),
    ("rdma_xserver -c r", "rdma_xclient -s SERVER -c r", TCP, 7471),
    ("rstream -I 20 -C 20 -T v", "rstream -s SERVER -I 20 -C 20 -T v", TCP, 7471),
    ("rstream -I 50 -C 3 -T b -T v", "rstream -s SERVER -I 50 -C 3 -T b -T v", TCP, 7471),
    ("rstream -I 2 -C 3 -S 1000000 -T v", "rstream -s SERVER -I 2 -C 3 -S 1000000 -T v", TCP, 7471),
    ("riostream -I 20 -C 5 -T v", "riostream -s SERVER -I 20 -C 5 -T v", TCP, 7471),
    ("riostream -I 20 -C 5 -T b -T v", "riostream -s SERVER -I 20 -C 5 -T b -T v", TCP, 7471),
    ("ib_send_bw -R -n 100", "ib_send_bw -R -n 100 SERVER", TCP, 18515),
    ("ib_write_lat -R -n 100", "ib_write_lat -R -n 100 SERVER", TCP, 18515),
    ("ib_read_bw -R -n 100", "ib_read_bw -R -n 100 SERVER", TCP, 18515),
    ("ib_atomic_lat -R -n 100", "ib_atomic_lat -R -n 100 SERVER", TCP, 18515),
];

impl Lab<'_> {
    /// Runs a server on one side and its client on the other, both to their ends.
    fn connect(&self, place: Server, (server, client, space, port): (&str, &str, u16, u16)) -> Sides {
        let [ipv4, ipv6] = match place {
            Server::Ferroce => [self.host.ipv4(), self.host.ipv6()],
            Server::Rxe => [self.guest.ipv4().to_owned(), "fd77::2".to_owned()],
        };
        let line = |line: &str| line.replace("SERVER6", &ipv6).replace("SERVER", &ipv4);
        let (server, client) = (line(server), line(client));
        let ours = |line: &str| self.host.start_ferroce(&[], &line.split(' ').collect::<Vec<_>>(), &[]);
        match place {
            Server::Ferroce => {
                let mut ferroce = ours(&server);
                self.host.wait_for_rdma_port(space, port, &mut ferroce, LIMIT);
                let rxe = self.guest.start_script(&client).wait(LIMIT);
                Sides { ferroce: ferroce.wait(LAST_WORDS), rxe }
            }
            Server::Rxe => {
                let mut rxe = self.guest.start_script(&format!(
                    "{server} & until rdma resource show cm_id | grep -q LISTEN; do kill -0 $! || break; sleep 0.05; done; \
                     echo listening; wait $!"
                ));
                rxe.wait_for_output("listening\n", LIMIT);
                let ferroce = ours(&client).wait(LIMIT);
                Sides { ferroce, rxe: rxe.wait(LAST_WORDS) }
            }
        }
    }
}

/// Bytes of the file that is copied.
const COPIED: u32 = 3_000_003;
/// A group, and how the kernel's table of IPv4 groups has it.
const GROUP: (&str, &str) = ("239.77.1.9", "09014DEF");
/// What a script of the guest waits for, when a server has been started.
const UNTIL_LISTENING: &str =
    "until rdma resource show cm_id | grep -q LISTEN; do kill -0 $! || exit 1; sleep 0.05; done";

impl Lab<'_> {
    /// Runs a client with its server on one side, which is ended after it.
    fn connect_to_endless(&self, place: Server, (server, client, port): (&str, &str, u16)) {
        let here = self.host.ipv4();
        match place {
            Server::Ferroce => {
                let line = server.replace("SERVER", &here);
                let words: Vec<&str> = line.split(' ').collect();
                let mut ferroce = self.host.start_ferroce(&[], &words, &[]);
                self.host.wait_for_rdma_port(TCP, port, &mut ferroce, LIMIT);
                self.guest.run(&client.replace("SERVER", &here));
                ferroce.signal(libc::SIGKILL);
            }
            Server::Rxe => {
                let there = self.guest.ipv4();
                let server = server.replace("SERVER", there);
                let pid = self.guest.run(&format!(
                    "{server} < /dev/null > /tmp/server.log 2>&1 & {UNTIL_LISTENING}; echo $!"
                ));
                let line = client.replace("SERVER", there);
                let words: Vec<&str> = line.split(' ').collect();
                self.host.start_ferroce(&[], &words, &[]).wait(LIMIT).expect_success();
                self.guest.run(&format!("kill -9 {pid}"));
            }
        }
    }

    /// Has rcopy copy a file to one side, and compares.
    fn copy_to(&self, place: Server) {
        let [make, sum] = ["head -c COUNT /dev/urandom > /tmp/original", "sha256sum < /tmp/FILE"];
        let make = make.replace("COUNT", &COPIED.to_string());
        let [original, copy] = ["original", "copy"].map(|file| sum.replace("FILE", file));
        let programs = ("rcopy", "rcopy /tmp/original SERVER:/tmp/copy", 7427);
        match place {
            Server::Ferroce => drop(self.guest.run(&make)),
            Server::Rxe => drop(self.host.admin(&make)),
        }
        self.connect_to_endless(place, programs);
        let (original, copy) = match place {
            Server::Ferroce => (self.guest.run(&original), self.host.admin(&copy)),
            Server::Rxe => (self.host.admin(&original), self.guest.run(&copy)),
        };
        assert_eq!(original, copy, "the copy differs");
    }

    /// Has mckey receive on one side what it sends to a group on the other.
    fn send_to_group(&self, receiver: Server) {
        let (group, entry) = GROUP;
        let ours = format!("mckey -b {} -m {group}", self.host.ipv4());
        let theirs = format!("mckey -b {} -m {group}", self.guest.ipv4());
        let start = |line: &str| self.host.start_ferroce(&[], &line.split(' ').collect::<Vec<_>>(), &[]);
        let sides = match receiver {
            Server::Ferroce => {
                let mut ferroce = start(&ours);
                eventually("the receiver is in the group", || {
                    self.host.admin("cat /proc/net/igmp").contains(entry)
                });
                let rxe = self.guest.start_script(&format!("{theirs} -s")).wait(LIMIT);
                Sides { ferroce: ferroce.wait(LAST_WORDS), rxe }
            }
            Server::Rxe => {
                let mut rxe = self.guest.start_script(&format!(
                    "{theirs} & until grep -q {entry} /proc/net/igmp; do kill -0 $! || break; sleep 0.05; done; echo joined; wait $!"
                ));
                rxe.wait_for_output("joined\n", LIMIT);
                let ferroce = start(&format!("{ours} -s")).wait(LIMIT);
                Sides { ferroce, rxe: rxe.wait(LAST_WORDS) }
            }
        };
        sides.expect_success();
        assert!(!sides.ferroce.stderr.contains("ferroce"), "{sides}");
    }
}

/// Programs whose server has no end, and groups: with the server on one side, or with each side as its server.
pub(crate) fn servers_without_end_and_groups(lab: &Lab<'_>, both_ways: bool) {
    let cmtime =
        |place| lab.connect_to_endless(place, ("cmtime -b SERVER -c 50", "cmtime -s SERVER -c 50", 7471));
    for (n, run) in
        [&cmtime as &dyn Fn(Server), &|place| lab.copy_to(place), &|place| lab.send_to_group(place)]
            .into_iter()
            .enumerate()
    {
        let places = [Server::Ferroce, Server::Rxe];
        let chosen = if both_ways { &places[..] } else { &places[n % 2..=n % 2] };
        for &place in chosen {
            eprintln!("{} {place:?}", ["cmtime", "rcopy", "mckey"][n]);
            run(place);
        }
    }
    lab.expect_nothing_said();
}

/// Every program with the server on one side, which the next program has on the other; or with each side as its server.
pub(crate) fn programs_of_librdmacm_connect_with_the_kernel(lab: &Lab<'_>, both_ways: bool) {
    for (n, programs) in PROGRAMS.into_iter().enumerate() {
        let places = [Server::Ferroce, Server::Rxe];
        let chosen = if both_ways { &places[..] } else { &places[n % 2..=n % 2] };
        for &place in chosen {
            eprintln!("{} {place:?}", programs.0);
            let sides = lab.connect(place, programs);
            sides.expect_success();
            assert!(!sides.ferroce.stderr.contains("ferroce"), "{sides}");
        }
    }
    lab.expect_nothing_said();
}
