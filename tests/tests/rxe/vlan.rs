//! VLANs, which the guest's kernel has: a link between two hosts within the guest, with VLAN 100 on it.

use crate::lab::{IPV4, IPV6, LIMIT, Lab};
use ferroce_tests::Artifacts;
use std::time::Duration;

/// The near end is in the guest's first network namespace, the far one in another.
const MAKE: &str = "
modprobe -a veth 8021q
end() {
    ip link set $1 up && ip link add link $1 name $1.100 type vlan id 100 && ip link set $1.100 up &&
    ip addr add 10.100.0.$2/24 dev $1.100 && ip addr add fd64::$2/64 dev $1.100 nodad
}
ip netns add far && ip link add near type veth peer name far netns far && end near 1 &&
ip netns exec far sh -c \"$(declare -f end)\"'; ip link set lo up && end far 2'";
const NEAR: &str = "10.100.0.1";
const FAR: &str = "10.100.0.2";

/// The link.
pub(crate) struct Link<'a> {
    lab: &'a Lab<'a>,
    ferroce: String,
}

impl<'a> Link<'a> {
    pub(crate) fn make(lab: &'a Lab<'a>) -> Self {
        lab.guest.run(MAKE);
        Self { lab, ferroce: Artifacts::get().ferroce().display().to_string() }
    }

    /// A line for a shell at one end, whose devices are those named.
    fn with_ferroce(&self, far: bool, devices: &str, words: &str) -> String {
        let place = if far { "ip netns exec far " } else { "" };
        format!("{place}env FERROCE_DEVICES={devices} {} run -- {words}", self.ferroce)
    }

    /// `rdma_rxe` shows the addresses of its interface's VLANs in its own GID table; Ferroce has a device for each VLAN.
    pub(crate) fn rxe_understands_ferroce_in_a_vlan(&self) {
        self.lab.guest.run("rdma link add vlan type rxe netdev near");
        let index = self.lab.guest.run(
            "cd /sys/class/infiniband/vlan/ports/1 && for file in $(grep -l ':0a64:0001$' gids/*); do \
             grep -q v2 gid_attrs/types/${file#*/} && echo ${file#*/}; done",
        );
        let server = format!("ibv_rc_pingpong -c -d vlan -n 100 -s 20000 -g {}", index.trim());
        let client = format!("ibv_rc_pingpong -c -n 100 -s 20000 -g {IPV4} {NEAR}");
        self.lab.run_both(&server, &self.with_ferroce(true, "ferroce0=far.100", &client));
        self.lab.guest.run("rdma link delete vlan");
    }

    /// Raw packet queue pairs on the interfaces and on the VLANs: tags are matched, taken out and put back.
    pub(crate) fn frames_of_vlans_are_right(&self, program: &str) {
        let devices = |end| format!("ferroce0={end},ferroce1={end}.100");
        let receives = self.with_ferroce(true, &devices("far"), &format!("{program} receives"));
        let mut receiver = self.lab.guest.start_script(&receives);
        receiver.wait_for_output("ready", LIMIT);
        let sends = self.with_ferroce(false, &devices("near"), &format!("{program} sends"));
        self.lab.guest.start_script(&sends).wait(LIMIT).expect_success();
        receiver.wait_for_output("frames are right", LIMIT);
        self.lab.guest.run(&format!("echo 'from the kernel' >/dev/udp/{FAR}/7777"));
        let outcome = receiver.wait(Duration::from_secs(20));
        assert!(outcome.expect_success().stdout.ends_with("ok\n"), "{outcome}");
    }

    /// The VLAN's addresses are its device's GIDs, and every kind of QP reaches the other end by them.
    pub(crate) fn traffic_in_a_vlan_is_right(&self) {
        let gids = self.with_ferroce(true, "ferroce0=far.100", "ibv_devinfo -v");
        let gids = self.lab.guest.run(&gids);
        for gid in ["GID[  1]:\t\t::ffff:10.100.0.2, RoCE v2", "GID[  2]:\t\tfd64::2, RoCE v2"] {
            assert!(gids.contains(gid), "{gids}");
        }
        for (program, gid) in [
            ("ibv_rc_pingpong -c -n 100 -s 20000", IPV4),
            ("ibv_uc_pingpong -c -n 100", IPV6),
            ("ibv_ud_pingpong -c -n 100", IPV4),
        ] {
            let server = self.with_ferroce(false, "ferroce0=near.100", &format!("{program} -g {gid}"));
            let client = self.with_ferroce(true, "ferroce0=far.100", &format!("{program} -g {gid} {NEAR}"));
            self.lab.run_both(&server, &client);
        }
    }
}
