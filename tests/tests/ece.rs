//! Enhanced connection establishment: `tests/c/calls/ece.c` on a path that marks packets which a full network would mark.

use ferroce_tests::{Artifacts, Fabric, Host, Skip, World, require, tool};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(50);

/// Marks what is ECN-capable, and counts it, and congestion notifications (opcode 0x81).
const MARKING: &str = "nft -f - <<END || echo refused
table inet t {
    counter capable { }
    counter notified { }
    chain c {
        type filter hook input priority 0;
        udp dport 4791 ip ecn ect0 counter name capable ip ecn set ce
        udp dport 4791 @th,64,8 0x81 counter name notified
    }
}
END";

#[test]
fn options_are_set_before_the_connection_and_only_known_ones() {
    let program = require!(Artifacts::get().c_program("calls/ece"));
    let world = require!(World::one_host(1500));
    for settings in [Fabric::Any, Fabric::Udp].map(Fabric::settings) {
        let words = [&*program, "agreement"];
        let outcome = world.first().start_ferroce(&[], &words, settings).wait(LIMIT);
        outcome.expect_ok();
    }
}

struct Run {
    /// Packets that were ECN-capable, and notifications.
    packets: [u64; 2],
    /// Milliseconds that a WRITE and a READ of 512 KiB took.
    took: [u64; 2],
}

fn number(text: &str, after: &str) -> u64 {
    let mut words = text.split_whitespace().skip_while(|word| *word != after);
    words.nth(1).and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no {after}: {text}"))
}

/// Each packet takes 1 ms to leave and another to arrive.
fn run(host: &Host, program: &str, case: &str) -> Run {
    let words = [program, case];
    let settings = Fabric::Udp.settings();
    let outcome = host.start_ferroce(&["--fault", "delay=1ms"], &words, settings).wait(LIMIT);
    outcome.expect_success();
    let counted = |name| number(&host.admin(&format!("nft reset counter inet t {name}")), "packets");
    Run {
        packets: ["capable", "notified"].map(counted),
        took: ["write", "read"].map(|what| number(&outcome.stdout, what)),
    }
}

#[test]
fn marks_slow_those_down_who_have_agreed_to_be_marked() {
    require!(tool("nft", "nftables"));
    let program = require!(Artifacts::get().c_program("calls/ece"));
    let world = require!(World::one_host(1500));
    if world.first().admin(MARKING).contains("refused") {
        require!(Err(Skip("nft can't mark packets here".into())));
    }

    let declined = run(world.first(), &program, "declined");
    assert_eq!(declined.packets, [0, 0]);

    let agreed = run(world.first(), &program, "agreed");
    let [capable, notified] = agreed.packets;
    assert!(capable >= 1024, "{capable} of 1024 packets with data were ECN-capable");
    assert!(notified > 0);
    // Four packets in a round trip of 4 ms, once the window has come down to that from 128.
    println!("{:?} ms, without marks {:?}", agreed.took, declined.took);
    assert!(agreed.took.iter().all(|&ms| ms >= 100), "{:?} ms", agreed.took);
}
