//! Ferroce on a host, a guest beside it, and what runs on both.

use ferroce_tests::{Artifacts, Guest, Host, Outcome, Skip, Traffic, World, record_repetition, tool, tshark};
use std::cell;
use std::fmt;
use std::path::Path;
use std::time::Duration;

pub(crate) const LIMIT: Duration = Duration::from_secs(100);
pub(crate) const PORT: u16 = 18515;
pub(crate) const PING_PONGS: [&[&str]; 4] = [
    &["ibv_rc_pingpong", "-c", "-s", "20000", "-n", "200"],
    &["ibv_uc_pingpong", "-c", "-s", "20000", "-n", "200"],
    &["ibv_ud_pingpong", "-c", "-s", "1000", "-n", "300"],
    &["ibv_srq_pingpong", "-c", "-n", "40"],
];
/// Messages of a perftest tool: an emulated machine moves tens of megabytes a second.
const ROUNDS: &str = "100";
pub(crate) const PERFTEST: [&str; 4] = ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_atomic_bw"];

/// What a side has after the other's end.
const LAST_WORDS: Duration = Duration::from_secs(20);
/// How often a ping-pong is tried.
const ATTEMPTS: usize = 3;

/// Which side listens; the other connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Ferroce,
    Rxe,
}

/// What a run of a program is made of, besides the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) server: Server,
    /// Its index, the same on both sides.
    pub(crate) gid: &'static str,
    pub(crate) path_mtu: &'static str,
}

/// A ping-pong's side ends at its last completion: what is sent again to it after that, one packet in so many, is for a QP that is gone.
const LATE: u64 = 500;
/// Queue pairs of `ibv_srq_pingpong`, which counts the messages of all of them together: when a side has counted enough and ends, each
/// may have a message under way to it.
const SRQ_QPS: u64 = 16;

/// `rdma_rxe` has UDP port 4791 of the guest until it is gone.
pub(crate) const GIVE_UP_PORT: &str = "rdma link delete rxe0 && rmmod rdma_rxe";

/// Exponent of the ACK timeout for programs that a busy machine emulates: seconds until they give up.
pub(crate) const PATIENT: &str = "17";

pub(crate) const LINK_LOCAL: &str = "0";
pub(crate) const IPV4: &str = "1";
pub(crate) const IPV6: &str = "2";

/// Every combination with a path MTU.
pub(crate) fn all_cells(path_mtu: &'static str) -> impl Iterator<Item = Cell> {
    [LINK_LOCAL, IPV4, IPV6].into_iter().flat_map(move |gid| {
        [Server::Ferroce, Server::Rxe].into_iter().map(move |server| Cell { server, gid, path_mtu })
    })
}

/// For program number `n`: programs differ in what they combine, and `opposite` cells in everything.
pub(crate) fn cell_of(n: usize, opposite: bool) -> Cell {
    let is = |yes: bool| yes != opposite;
    Cell {
        server: if is(true) { Server::Ferroce } else { Server::Rxe },
        gid: if is(n & 1 == 1) { IPV6 } else { IPV4 },
        path_mtu: if is(n & 2 == 2) { "4096" } else { "1024" },
    }
}

/// How a run ended on both sides.
pub(crate) struct Sides {
    pub(crate) ferroce: Outcome,
    pub(crate) rxe: Outcome,
}

impl Sides {
    #[track_caller]
    pub(crate) fn expect_success(&self) -> &Self {
        assert!(self.ferroce.success() && self.rxe.success(), "{self}");
        self
    }
}

impl fmt::Display for Sides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ferroce: {}rxe: {}", self.ferroce, self.rxe)
    }
}

/// A host with a guest beside it.
pub(crate) struct Lab<'w> {
    pub(crate) host: &'w Host,
    pub(crate) guest: Guest<'w>,
    /// Packets that may have come too late for a ping-pong, since the last check; `None`: there was no ping-pong.
    late: cell::Cell<Option<u64>>,
}

impl<'w> Lab<'w> {
    pub(crate) fn new(world: &'w World) -> Result<Self, Skip> {
        Ok(Self::with(world, Guest::start(world, 1500)?))
    }

    /// With the kernel of this Debian package.
    pub(crate) fn with_kernel(world: &'w World, package: &str) -> Result<Self, Skip> {
        Ok(Self::with(world, Guest::start_kernel(world, 1500, package)?))
    }

    fn with(world: &'w World, guest: Guest<'w>) -> Self {
        Self { host: world.first(), guest, late: cell::Cell::new(None) }
    }

    pub(crate) fn set_path_mtu(&self, path_mtu: &str) {
        self.guest.set_mtu(if path_mtu == "1024" { 1500 } else { 9000 });
    }

    /// Runs a program on both sides to its end, ours with `options` of `ferroce run`.
    pub(crate) fn run(&self, server: Server, options: &[&str], words: &[&str]) -> Sides {
        match server {
            Server::Ferroce => {
                let mut ferroce = self.host.start_ferroce(options, words, &[]);
                self.host.wait_for_listener(PORT, &mut ferroce, LIMIT);
                let client = format!("{} {}", words.join(" "), self.host.ipv4());
                let rxe = self.guest.start_script(&client).wait(LIMIT);
                Sides { ferroce: ferroce.wait(LAST_WORDS), rxe }
            }
            Server::Rxe => {
                let mut rxe = self.guest.start_server(words, PORT);
                let client = [words, &[self.guest.ipv4()]].concat();
                let ferroce = self.host.start_ferroce(options, &client, &[]).wait(LIMIT);
                Sides { ferroce, rxe: rxe.wait(LAST_WORDS) }
            }
        }
    }

    /// Runs a program in the guest against itself, on both sides with Ferroce over `udp`.
    pub(crate) fn run_inside(&self, options: &str, words: &[&str]) {
        let ferroce = Artifacts::get().ferroce();
        let line = format!("FERROCE_FABRIC=udp {} run{options} -- {}", ferroce.display(), words.join(" "));
        self.run_both(&line, &format!("{line} {}", self.guest.ipv4()));
    }

    /// Runs a server and a client in the guest, both to their ends.
    pub(crate) fn run_both(&self, server: &str, client: &str) {
        let [server, client] = patiently(|| {
            let mut server = self.guest.start_server(&[server], PORT);
            let client = self.guest.start_script(client).wait(LIMIT);
            [server.wait(LAST_WORDS), client]
        });
        for side in [&client, &server] {
            assert!(
                side.success() && !side.stdout.contains("invalid data"),
                "server: {server}client: {client}"
            );
        }
    }

    /// Runs `stream` under loss on both sides: 1 % of what the guest sends, of what we send and of what comes to us.
    pub(crate) fn stream_under_loss(&self, stream: &str, server: Server, more: &[&str]) {
        let options = ["--fault", "drop=1%,seed=7", "--capture", "/tmp/capture.pcapng"];
        let mut words = vec![stream, "-s", "20000", "-t", "16"];
        words.extend(more);
        let sides = self.run(server, &options, &words);
        sides.expect_success();
        for side in [&sides.ferroce, &sides.rxe] {
            assert!(side.stdout.contains("were right"), "{sides}");
        }
        expect_no_nak_but_for_loss(&self.host.path("/tmp/capture.pcapng"));
    }

    pub(crate) fn ping_pong(&self, program: &[&str], cell: Cell) {
        eprintln!("{} {cell:?}", program[0]);
        let mut words = program.to_vec();
        words.extend(["-g", cell.gid]);
        // UD has the MTU of the port.
        if program[0] != "ibv_ud_pingpong" {
            words.extend(["-m", cell.path_mtu]);
        }
        let may_be_late = |packets| self.late.set(Some(self.late.get().unwrap_or(0) + packets));
        may_be_late(if program[0] == "ibv_srq_pingpong" { SRQ_QPS } else { 0 });
        let began = cell::Cell::new(None);
        let [ferroce, rxe] = patiently(|| {
            let now = self.guest.traffic();
            // In a run that is repeated a side has gone while the other went on sending.
            if let Some(before) = began.replace(Some(now)) {
                may_be_late(now.refused_since(&before));
            }
            let Sides { ferroce, rxe } = self.run(cell.server, &[], &words);
            [ferroce, rxe]
        });
        let sides = Sides { ferroce, rxe };
        sides.expect_success();
        for side in [&sides.ferroce, &sides.rxe] {
            assert!(side.stdout.contains(" usec/iter"), "no closing line:\n{sides}");
            assert!(!side.stdout.contains("invalid data"), "{sides}");
        }
        sides.ferroce.expect_quiet();
    }

    pub(crate) fn perftest(&self, program: &str, cell: Cell) {
        eprintln!("{program} {cell:?}");
        let words = [program, "-F", "-n", ROUNDS, "-u", PATIENT, "-x", cell.gid, "-m", cell.path_mtu];
        let sides = self.run(cell.server, &[], &words);
        sides.expect_success();
        let size = if program == "ib_atomic_bw" { " 8 " } else { " 65536 " };
        let rounds = format!(" {ROUNDS} ");
        let row = |line: &str| line.starts_with(size) && line.contains(&rounds);
        assert!(sides.ferroce.stdout.lines().any(row), "no row:\n{sides}");
    }

    /// Since `before` the kernel has taken every packet that came, but for those that were too late for a ping-pong, and has nothing to
    /// complain about. Returns what has come now.
    pub(crate) fn expect_nothing_refused(&self, before: Traffic) -> Traffic {
        let now = self.guest.traffic();
        let arrived = now.arrived - before.arrived;
        assert!(arrived > 0, "{now:?} after {before:?}");
        let late = self.late.take().map_or(0, |late| late + arrived / LATE);
        let refused = now.refused_since(&before);
        assert!(
            refused <= late,
            "rdma_rxe refused {refused} packets of ours, {late} may be late: {now:?} after {before:?}"
        );
        self.expect_nothing_said();
        now
    }

    pub(crate) fn expect_nothing_said(&self) {
        let kernel = self.guest.run("dmesg --level=emerg,alert,crit,err,warn");
        let wrong = |line: &&str| ["rxe", "WARNING", "BUG"].iter().any(|word| line.contains(word));
        assert_eq!(kernel.lines().find(wrong), None);
    }
}

/// Runs a program of two sides again when one has run out of retries: the ACK timeouts of the ping-pongs are a second and a
/// half together, and a busy machine may keep an emulated program waiting for longer.
fn patiently(run: impl Fn() -> [Outcome; 2]) -> [Outcome; 2] {
    let impatient = |side: &Outcome| {
        let says = |text: &str| text.contains("transport retry counter exceeded");
        !side.success() && (says(&side.stdout) || says(&side.stderr))
    };
    for _ in 1..ATTEMPTS {
        let sides = run();
        if !sides.iter().any(impatient) {
            return sides;
        }
        record_repetition("a side of the guest has run out of retries");
        eprintln!("{}{}", sides[0], sides[1]);
    }
    run()
}

pub(crate) fn ping_pong_tools() -> Result<(), Skip> {
    PING_PONGS.iter().try_for_each(|program| tool(program[0], "ibverbs-utils").map(drop))
}

pub(crate) fn perftest_tools() -> Result<(), Skip> {
    PERFTEST.iter().try_for_each(|program| tool(program, "perftest").map(drop))
}

/// Neither side has answered a request with a NAK other than one for a PSN sequence error.
pub(crate) fn expect_no_nak_but_for_loss(capture: &Path) {
    let sequence_errors = tshark(capture, &["-Y", "infiniband.aeth.syndrome == 0x60"]).lines().count();
    let others = tshark(capture, &["-Y", "infiniband.aeth.syndrome > 0x60"]);
    assert!(sequence_errors > 0, "nothing was lost");
    assert!(others.is_empty(), "{others}");
}
