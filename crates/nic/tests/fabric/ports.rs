//! Ports of the communication manager.

use super::namespace::in_namespace;
use ferroce_host::{Host, PortAddress, PortError};
use ferroce_os::sys;
use ferroce_types::HostAddr;
use std::fs::File;
use std::net::Ipv4Addr;

fn at(last: u8) -> PortAddress {
    PortAddress {
        space: 0x0106,
        port: 7000,
        address: HostAddr::new(Ipv4Addr::new(192, 0, 2, last).into(), 0),
        v6_only: false,
    }
}

#[test]
fn a_port_that_could_not_be_watched_is_free() {
    in_namespace("ports::a_port_that_could_not_be_watched_is_free", || {
        let host = Host::join().unwrap();
        // The port's number is watched from here on.
        let _other = host.take_port(at(1), false).unwrap();
        let set = sys::duplicate(host.poll_fd()).unwrap();
        ferroce_tests::take_number(host.poll_fd(), &File::open("/dev/null").unwrap());
        let refused = host.take_port(at(2), false);
        ferroce_tests::take_number(host.poll_fd(), &*set);
        assert!(matches!(refused, Err(PortError::System(_))), "{refused:?}");
        host.take_port(at(2), false).unwrap();
    });
}
