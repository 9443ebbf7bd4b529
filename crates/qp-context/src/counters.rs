//! What happened to a queue pair, in numbers.

/// Counts since the QP was made; a transition to RESET doesn't clear them. The names follow the counters that Linux
/// shows under `hw_counters`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Request packets sent, retransmissions and probes included.
    pub requests_sent: u64,
    /// READ response, atomic response, ACK and NAK packets sent.
    pub responses_sent: u64,
    /// Request packets sent again.
    pub retransmissions: u64,
    /// Local ACK timeouts.
    pub timeouts: u64,
    /// Probes for the loss of a tail.
    pub probes: u64,
    /// RNR NAKs received.
    pub rnr_naks: u64,
    /// RNR NAKs sent.
    pub rnr_naks_sent: u64,
    /// Sequence NAKs received.
    pub seq_naks: u64,
    /// Sequence NAKs sent.
    pub seq_naks_sent: u64,
    /// A response that jumped over an unanswered READ or atomic, and had it sent again.
    pub implied_naks: u64,
    /// Request packets received again.
    pub duplicates: u64,
    /// Of these, packets from before the first PSN: they were never executed, and the two sides' PSNs don't match.
    pub never_executed: u64,
    /// Request packets ahead of the expected PSN.
    pub out_of_order: u64,
    /// Responses for packets that aren't outstanding.
    pub stale_responses: u64,
    /// Packets dropped because they make no sense: wrong service, headers missing, reserved syndrome.
    pub malformed: u64,
    /// Packets dropped because the QP's state takes none.
    pub wrong_state: u64,
    /// Packets dropped because of their P_Key.
    pub pkey_violations: u64,
    /// UD packets dropped because of their Q_Key.
    pub qkey_violations: u64,
    /// UC and UD messages dropped: no receive, wrong length or key, lost packets.
    pub dropped_messages: u64,
    /// Congestion notifications received.
    pub cnps: u64,
    /// Packets received, of whatever kind.
    pub packets_received: u64,
    /// Messages received, of all operations.
    pub messages_received: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// Send requests that have ended, however they have.
    pub requests_ended: u64,
    /// Bytes of the messages of send requests that were posted.
    pub bytes_posted: u64,
    /// Requests that got no answer, however often they were sent.
    pub retries_exceeded: u64,
    /// Requests for which the peer never had a receive.
    pub rnr_retries_exceeded: u64,
}
