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
