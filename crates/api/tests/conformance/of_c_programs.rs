//! Peers in C, on Ferroce's library.

use crate::fixture::Side;
use crate::line::Line;
use ferroce::verbs::{Device, Endpoint, Lend, Send};
use ferroce::{Inline, rights};
use ferroce_tests::inside::in_namespace;
use ferroce_tests::{Artifacts, require};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A program in C, which writes and reads lines of hexadecimal digits.
struct Peer {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peer {
    fn start(program: &str, argument: &str) -> Self {
        let mut child = Command::new(program)
            .arg(argument)
            .env("LD_LIBRARY_PATH", Artifacts::get().library_dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, to, from }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Line for Peer {
    fn tell(&mut self, message: &[u8]) {
        writeln!(self.to, "{}", crate::line::to_hex(message)).unwrap();
    }

    fn hear(&mut self) -> Option<Vec<u8>> {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        (!line.is_empty()).then(|| crate::line::from_hex(line.trim_end()))
    }
}

/// A program in C writes to loans, and returns them by SEND with invalidate. The last one is recalled, and not written again.
#[test]
fn a_c_program_returns_loans() {
    const ROUNDS: u8 = 40;
    let program = require!(Artifacts::get().c_program("memory/loan_peer"));
    // The test's own process in the namespace finds it by the stage.
    drop(program);
    in_namespace("of_c_programs::a_c_program_returns_loans", || {
        let program = Artifacts::get().c_program("memory/loan_peer").unwrap_or_else(|_| unreachable!());
        let mut peer = Peer::start(&program, &ROUNDS.to_string());
        let domain = Device::native().unwrap().open().unwrap();
        let cq = domain.cq(64).unwrap();
        let setup = domain.rc(&cq).build().unwrap();
        peer.tell(&setup.endpoint().to_bytes());
        let theirs = Endpoint::from_bytes(peer.expect()).unwrap();
        let qp = setup.connect(&theirs).unwrap();
        let mut side = Side { domain, cq, qp };
        let mut buffer = side.domain.alloc(50_000).unwrap();
        for round in 1..=ROUNDS {
            assert_eq!(peer.expect(), [0], "it has posted a receive");
            side.qp.recv(1, ()).unwrap();
            side.qp.post(2, Lend::new(buffer, rights::Write)).unwrap();
            let loan = side.cq.next(None).unwrap().unwrap().loan::<rights::Write>().unwrap();
            side.qp.post(3, Send::new(Inline::from(&loan.token().to_bytes()))).unwrap();
            assert_eq!(side.cq.next(None).unwrap().unwrap().tag(), 3);
            if round == ROUNDS {
                assert_eq!(peer.expect(), [0], "it has written");
                let mut memory = loan.recall();
                assert!(memory.iter().all(|byte| *byte == round));
                memory.fill(&[0xee; 50_000]);
                peer.tell(&[0]);
                assert_eq!(peer.expect(), [0], "its second WRITE was refused");
                assert!(memory.iter().all(|byte| *byte == 0xee), "written after the recall");
                peer.tell(&[0]);
                break;
            }
            let returned = side.cq.next(None).unwrap().unwrap();
            returned.result().unwrap();
            assert_eq!((returned.tag(), returned.returned()), (1, Some(loan.token().key())));
            drop(returned);
            buffer = loan.returned().unwrap();
            assert!(buffer.iter().all(|byte| *byte == round));
            assert_eq!(peer.expect(), [0], "its requests have ended");
        }
        assert!(peer.child.wait().unwrap().success());
    });
}
