//! What a queue pair is made with, as each backend takes it.

/// The transport service of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpService {
    /// RC.
    Reliable,
    /// UC.
    Unreliable,
    /// UD.
    Datagram,
}

/// What a queue pair is made with. The codes are those of the specification.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // ibv_create_qp(3), ibv_modify_qp(3)
pub struct QpAttributes {
    pub service: QpService,
    pub send_depth: u32,
    pub recv_depth: u32,
    pub parts: u32,
    pub inline: u32,
    pub mtu: u32,
    pub reads: u8,
    pub peer_reads: u8,
    pub rnr_timer: u8,
    pub timeout: u8,
    pub retries: u8,
    pub rnr_retries: u8,
}

/// The other side of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectedTo {
    /// Its address.
    pub gid: [u8; 16],
    /// Its QPN.
    pub qpn: u32,
    /// The PSN of its first request.
    pub psn: u32,
    /// Bytes of payload that its packets may carry.
    pub mtu: u32,
    /// READs and atomics that it accepts at once.
    pub reads: u8,
}

/// What the communication manager transfers to the peer about a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ManagedQp {
    /// Its QPN.
    pub qpn: u32,
    /// The PSN from which the peer sends.
    pub starting_psn: u32,
    /// Bytes of payload that its packets may carry.
    pub mtu: u32,
    /// READs and atomics that it has outstanding.
    pub reads: u8,
    /// READs and atomics that it accepts at once.
    pub peer_reads: u8,
    /// The code of its local ACK timeout.
    pub timeout: u8,
    /// How often it sends again.
    pub retries: u8,
    /// How often it sends again when the peer has no receive.
    pub rnr_retries: u8,
}

/// What the communication manager has learned of the peer: in its request, or in its reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ManagedPeer {
    /// Its address.
    pub gid: [u8; 16],
    /// Its queue pair.
    pub qp: ManagedQp,
    /// What its program has added, with zeros behind it.
    pub private_data: Vec<u8>,
}

/// What has happened to a connection of the communication manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ManagerNews {
    /// The peer has accepted.
    Accepted(ManagedPeer),
    /// The peer that was accepted is ready.
    Ready,
    /// The peer has rejected it: its program, or its communication manager for this reason.
    Rejected {
        /// The number of the reason, as `enum ib_cm_rej_reason` has it; 28 is the program.
        reason: u16,
        /// What its program has added, with zeros behind it.
        private_data: Vec<u8>,
    },
    /// The peer doesn't answer.
    Unreachable,
    /// The peer has ended it.
    Ended,
}
