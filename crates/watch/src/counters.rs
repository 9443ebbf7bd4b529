//! Counters by the names that Linux gives them.

use serde::{Deserialize, Serialize};

macro_rules! counters {
    ($($(#[$what:meta])* $name:ident,)*) => {
        /// What a queue pair, or the queue pairs of a device, have counted. The names are those that Linux has under
        /// `hw_counters` for soft RoCE, and for adapters where that has none; the last ones are ours.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Counters {
            $($(#[$what])* pub $name: u64,)*
        }

        impl Counters {
            /// The names, in order.
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// Each name with its value.
            #[must_use]
            pub fn each(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }

            /// Adds what another has counted.
            pub fn add(&mut self, other: &Self) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
            }

            /// What has been counted since `before`.
            #[must_use]
            pub fn since(&self, before: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(before.$name)),* }
            }
        }
    };
}

counters! {
    /// Packets sent.
    sent_pkts,
    /// Packets received.
    rcvd_pkts,
    /// Requests received again.
    duplicate_request,
    /// Requests received ahead of the expected one.
    out_of_seq_request,
    /// RNR NAKs received.
    rcvd_rnr_err,
    /// RNR NAKs sent: no receive was posted.
    send_rnr_err,
    /// Sequence NAKs received.
    rcvd_seq_err,
    /// Acknowledgements put off; none is counted.
    ack_deferred,
    /// Requests without an answer after all retries.
    retry_exceeded_err,
    /// Requests for which the peer never had a receive.
    retry_rnr_exceeded_err,
    /// Local ACK timeouts.
    completer_retry_err,
    /// Packets that the kernel didn't take.
    send_err,
    /// Times that the link went down; none is counted.
    link_downed,
    /// Send requests that have ended.
    rdma_sends,
    /// Messages received, of all operations.
    rdma_recvs,
    /// READ responses and results of atomics that jumped over an earlier one.
    implied_nak_seq_err,
    /// Congestion notifications received.
    rp_cnp_handled,
    /// Packets received that make no sense or are for another partition or Q_Key.
    rcvd_err,
    /// Bytes of messages sent, as requests were posted.
    sent_bytes,
    /// Bytes of messages received.
    rcvd_bytes,
}

/// The names under `counters` of a port.
pub const PORT_COUNTERS: [&str; 21] = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
];

/// One of [`PORT_COUNTERS`]. Data are counted in units of four bytes there. What belongs to a physical link is 0.
#[must_use]
pub fn port_counter(name: &str, counted: &Counters) -> u64 {
    match name {
        "port_rcv_data" => counted.rcvd_bytes / 4,
        "port_xmit_data" => counted.sent_bytes / 4,
        "port_rcv_packets" | "unicast_rcv_packets" => counted.rcvd_pkts,
        "port_xmit_packets" | "unicast_xmit_packets" => counted.sent_pkts,
        "port_rcv_errors" => counted.rcvd_err,
        "port_xmit_discards" => counted.send_err,
        _ => 0,
    }
}
