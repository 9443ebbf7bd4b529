//! Debian's perftest: cells of its matrix that together cover all tools, connections and options, over shared memory,
//! over UDP on one host, and between hosts. `cargo xtask perftest` runs the whole matrix.

use ferroce_tests::perftest::{Cell, Place, Verdict};
use ferroce_tests::require;
use std::time::Duration;

/// Of a cell, on a machine that may be busy.
const LIMIT: Duration = Duration::from_secs(120);

fn holds(place: Place, line: &str) {
    let (verdict, said) = require!(Cell::named(line).run(place, LIMIT));
    assert_eq!(verdict, Verdict::Ok, "\n{said}");
}

macro_rules! cells {
    ($($place:ident, $value:expr, { $($name:ident: $line:literal;)* })*) => {
        $(
            mod $place {
                use super::*;
                $(
                    #[test]
                    fn $name() {
                        holds($value, $line);
                    }
                )*
            }
        )*
    };
}

// The tools measure the processor's clock for a third of a second before every size, so an operation runs through all sizes where these
// take another way. `faults` has writes of every size between two hosts.
cells! {
    one_host, Place::OneHost, {
        send_bw_rc: "ib_send_bw -c RC -a";
        send_bw_rc_srq_16_qps_both_ways_with_events: "ib_send_bw -c RC -q 16 -b -e --use-srq";
        send_bw_rc_16_qps_both_ways_with_events: "ib_send_bw -c RC -q 16 -b -e";
        send_bw_rc_few_receives: "ib_send_bw -c RC -r 64";
        send_bw_uc: "ib_send_bw -c UC";
        send_bw_ud: "ib_send_bw -c UD";
        send_bw_ud_both_ways_with_events: "ib_send_bw -c UD -b -e";
        send_lat_rc: "ib_send_lat -c RC";
        send_bw_xrc: "ib_send_bw -c XRC";
        send_bw_xrc_16_qps_both_ways_with_events: "ib_send_bw -c XRC -q 16 -b -e";
        send_lat_xrc: "ib_send_lat -c XRC";
        write_bw_xrc: "ib_write_bw -c XRC";
        write_lat_xrc: "ib_write_lat -c XRC";
        read_bw_xrc_with_events: "ib_read_bw -c XRC -e";
        atomic_lat_xrc: "ib_atomic_lat -c XRC";
        send_lat_uc: "ib_send_lat -c UC";
        send_lat_ud_with_events: "ib_send_lat -c UD -e";
        write_bw_rc: "ib_write_bw -c RC -a";
        write_bw_rc_16_qps_both_ways: "ib_write_bw -c RC -q 16 -b";
        write_bw_uc: "ib_write_bw -c UC";
        write_lat_rc: "ib_write_lat -c RC";
        write_lat_uc: "ib_write_lat -c UC";
        read_bw_rc: "ib_read_bw -c RC";
        read_bw_rc_16_qps_both_ways_with_events: "ib_read_bw -c RC -q 16 -b -e";
        read_lat_rc_with_events: "ib_read_lat -c RC -e";
        atomic_bw_rc_16_qps_both_ways_with_events: "ib_atomic_bw -c RC -q 16 -b -e";
        atomic_lat_rc: "ib_atomic_lat -c RC";
        atomic_lat_rc_cas_with_events: "ib_atomic_lat -c RC -A CMP_AND_SWAP -e";
    }
    one_host_udp, Place::OneHostUdp, {
        send_bw_rc: "ib_send_bw -c RC";
        send_bw_rc_srq_16_qps: "ib_send_bw -c RC -q 16 --use-srq";
        send_bw_uc_with_events: "ib_send_bw -c UC -e";
        send_bw_xrc: "ib_send_bw -c XRC";
        write_lat_xrc: "ib_write_lat -c XRC";
        read_lat_xrc: "ib_read_lat -c XRC";
        atomic_bw_xrc_16_qps: "ib_atomic_bw -c XRC -q 16";
        send_bw_ud: "ib_send_bw -c UD -a";
        send_lat_rc_srq_with_events: "ib_send_lat -c RC -e --use-srq";
        write_bw_rc_every_completion: "ib_write_bw -c RC -Q 1";
        write_bw_uc: "ib_write_bw -c UC";
        write_lat_rc_inline: "ib_write_lat -c RC -I 64 -s 64";
        read_bw_rc_both_ways: "ib_read_bw -c RC -b";
        read_lat_rc: "ib_read_lat -c RC";
        atomic_bw_rc_cas_16_qps_both_ways: "ib_atomic_bw -c RC -A CMP_AND_SWAP -q 16 -b";
        atomic_lat_rc_with_events: "ib_atomic_lat -c RC -e";
    }
    two_hosts_mtu_1500, Place::TwoHosts { mtu: 1500 }, {
        send_bw_rc: "ib_send_bw -c RC";
        send_bw_rc_srq_16_qps_both_ways_with_events: "ib_send_bw -c RC -q 16 -b -e --use-srq";
        send_bw_uc: "ib_send_bw -c UC";
        send_bw_ud_with_events: "ib_send_bw -c UD -e";
        send_lat_xrc: "ib_send_lat -c XRC";
        read_bw_xrc: "ib_read_bw -c XRC";
        send_lat_ud: "ib_send_lat -c UD";
        write_bw_rc_16_qps_both_ways: "ib_write_bw -c RC -q 16 -b";
        write_lat_rc: "ib_write_lat -c RC";
        read_bw_rc: "ib_read_bw -c RC -a";
        read_lat_rc_with_events: "ib_read_lat -c RC -e";
        atomic_bw_rc: "ib_atomic_bw -c RC";
        atomic_lat_rc_cas: "ib_atomic_lat -c RC -A CMP_AND_SWAP";
    }
    two_hosts_mtu_9000, Place::TwoHosts { mtu: 9000 }, {
        send_bw_rc_with_events: "ib_send_bw -c RC -e";
        send_lat_uc: "ib_send_lat -c UC";
        write_bw_rc: "ib_write_bw -c RC";
        write_lat_uc: "ib_write_lat -c UC";
        read_bw_rc_16_qps_with_events: "ib_read_bw -c RC -q 16 -e";
        atomic_bw_rc_both_ways_with_events: "ib_atomic_bw -c RC -b -e";
    }
}
