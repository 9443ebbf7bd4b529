//! The log line of a failure.

use crate::statuses::status_name;
use crate::{Reason, entry, id};
use core::fmt::{self, Write as _};
use core::net::IpAddr;
use ferroce_types::WcStatus;

/// Where the peer's queue pair is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerLocation {
    /// In this process.
    This,
    /// In the process of this host with this PID.
    Other(i32),
    /// Unknown.
    Unknown,
}

/// The queue pair at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerName {
    /// Its number.
    pub qpn: u32,
    /// Its address.
    pub address: Option<IpAddr>,
    /// Its process.
    pub process: PeerLocation,
}

/// What becomes of a send request.
#[derive(Clone, Copy, Debug)]
pub enum RequestOutcome {
    /// It ends with this status.
    Ends(WcStatus),
    /// It waits for the peer, without limit.
    Waits,
}

/// What has failed.
#[derive(Clone, Copy, Debug)]
pub enum Subject {
    /// A send request of this side.
    Request {
        /// Its number.
        wr_id: u64,
        /// What it does.
        operation: &'static str,
        /// Bytes.
        len: u64,
        /// Address and key of the peer's memory.
        remote: Option<(u64, u32)>,
        /// What becomes of it.
        outcome: RequestOutcome,
    },
    /// A request of the peer, which this side refuses.
    Refusal {
        /// What it does.
        operation: &'static str,
        /// Bytes.
        len: u64,
        /// Address and key of this side's memory.
        remote: Option<(u64, u32)>,
        /// The receive that it was to use.
        receive: Option<u64>,
    },
    /// Packets that are dropped; the queue pair goes on.
    Dropped,
    /// The queue pair as a whole.
    QueuePair,
}

/// A failure, as it is logged.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// The queue pair of this side.
    pub qpn: u32,
    /// The other end, if it has one.
    pub peer: Option<PeerName>,
    /// What has failed.
    pub subject: Subject,
    /// Why.
    pub reason: Reason,
    /// Send requests that are flushed because of it.
    pub flushed: u32,
}

/// A reason as a sentence with its identifier.
#[must_use]
pub fn sentence(reason: &Reason) -> String {
    let title = title(reason.number());
    let details = reason.to_string();
    if details.is_empty() { title } else { format!("{title} ({details})") }
}

/// The title of a reason with its identifier.
#[must_use]
pub fn title(number: u16) -> String {
    format!("{}: {}", id(number), entry(number).map_or("unknown reason", |entry| entry.title))
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {:#08x}", self.qpn)?;
        if let Some(address) = self.address {
            write!(f, " at {address}")?;
        }
        match self.process {
            PeerLocation::This => f.write_str(", this process"),
            PeerLocation::Other(pid) => write!(f, ", process {pid}"),
            PeerLocation::Unknown => Ok(()),
        }
    }
}

/// Operation, length and memory of a request.
fn request(f: &mut fmt::Formatter<'_>, operation: &str, len: u64, remote: Option<(u64, u32)>) -> fmt::Result {
    write!(f, "{operation} of {len} bytes")?;
    remote.map_or(Ok(()), |(va, rkey)| write!(f, " at {va:#x} with rkey {rkey:#x}"))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.reason.number();
        let Some(entry) = entry(number) else { return Err(fmt::Error) };
        write!(f, "{} QP {:#08x}", id(number), self.qpn)?;
        let peer = |f: &mut fmt::Formatter<'_>, word: &str| {
            self.peer.map_or(Ok(()), |peer| write!(f, " {word} {peer}"))
        };
        match self.subject {
            Subject::Request { wr_id, operation, len, remote, outcome } => {
                write!(f, ": request {wr_id} (")?;
                request(f, operation, len, remote)?;
                peer(f, "to")?;
                let by_peer = matches!(
                    self.reason,
                    Reason::Peer { reported, .. } | Reason::NotReady { reported, .. } if reported == number
                );
                match outcome {
                    RequestOutcome::Waits => f.write_str(") waits")?,
                    RequestOutcome::Ends(status) => write!(f, ") ended with {}", status_name(status))?,
                }
                match outcome {
                    RequestOutcome::Ends(WcStatus::RemOpErr) if by_peer && remote.is_none() => {
                        f.write_str(", reported by the peer for its receive")?;
                    }
                    _ if by_peer => f.write_str(", reported by the peer")?,
                    _ => {}
                }
            }
            Subject::Refusal { operation, len, remote, receive } => {
                f.write_str(" refuses ")?;
                request(f, operation, len, remote)?;
                peer(f, "from")?;
                if let Some(wr_id) = receive {
                    write!(f, ", to receive {wr_id}")?;
                }
            }
            Subject::Dropped => {
                f.write_str(" drops packets")?;
                peer(f, "from")?;
            }
            Subject::QueuePair => {
                f.write_str(" fails")?;
                self.peer.map_or(Ok(()), |peer| write!(f, ", connected to {peer}"))?;
            }
        }
        write!(f, ": {}", entry.title)?;
        let mut known = String::new();
        write!(known, "{}", self.reason)?;
        if !known.is_empty() {
            write!(f, " ({known})")?;
        }
        match (self.flushed, number) {
            (0, _) | (_, 1) => {}
            (1, _) => f.write_str("; 1 more request is flushed because of it")?,
            (n, _) => write!(f, "; {n} more requests are flushed because of it")?,
        }
        // On a terminal the fix has a line of its own.
        match f.alternate() {
            true => write!(f, ".\n  fix: {}", entry.fix),
            false => write!(f, ". {}", entry.fix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyFault;
    use crate::Rights;

    const PEER: PeerName = PeerName { qpn: 0x456, address: None, process: PeerLocation::Other(4711) };

    #[test]
    fn a_line_names_request_peer_reason_and_fix() {
        let report = Report {
            qpn: 0x123,
            peer: Some(PEER),
            subject: Subject::Request {
                wr_id: 42,
                operation: "RDMA WRITE",
                len: 64,
                remote: Some((0x1000, 0x101)),
                outcome: RequestOutcome::Ends(WcStatus::RemAccessErr),
            },
            reason: Reason::Peer { reported: 34, status: WcStatus::RemAccessErr },
            flushed: 17,
        };
        assert_eq!(
            report.to_string(),
            "FC034 QP 0x000123: request 42 (RDMA WRITE of 64 bytes at 0x1000 with rkey 0x101 to QP 0x000456, \
             process 4711) ended with IBV_WC_REM_ACCESS_ERR, reported by the peer: the region or window doesn't permit \
             this access; 17 more requests are flushed because of it. Register the region with the right that is missing."
        );
        let on_terminal = format!("{report:#}");
        assert!(
            on_terminal.ends_with(".\n  fix: Register the region with the right that is missing."),
            "{on_terminal}"
        );
        let has = Rights { local_write: true, ..Rights::default() };
        let fault = KeyFault::Rights { needs: "REMOTE_WRITE", has };
        let subject = Subject::Refusal { operation: "RDMA WRITE", len: 64, remote: None, receive: None };
        let refusal =
            Report { reason: Reason::Key { key: 0x101, fault }, subject, flushed: 0, ..report }.to_string();
        assert!(refusal.starts_with("FC034 QP 0x000123 refuses RDMA WRITE of 64 bytes from QP 0x000456"));
        assert!(refusal.contains("(key 0x101 needs REMOTE_WRITE, it has LOCAL_WRITE)"), "{refusal}");
        let fault = KeyFault::ByteSwapped { meant: 0x101 };
        let subject = Subject::Refusal { operation: "RDMA WRITE", len: 64, remote: None, receive: None };
        let refusal =
            Report { reason: Reason::Key { key: 0x0101_0000, fault }, subject, flushed: 0, ..report };
        assert!(
            refusal.to_string().contains("(key 0x1010000, byte-swapped, is the valid key 0x101)"),
            "{refusal}"
        );
    }

    #[test]
    fn a_request_that_waits_is_reported_too() {
        let subject = Subject::Request {
            wr_id: 42,
            operation: "SEND",
            len: 64,
            remote: None,
            outcome: RequestOutcome::Waits,
        };
        let reason = Reason::StillNotReady { reported: 21, waited: core::time::Duration::from_millis(3010) };
        let report = Report { qpn: 0x123, peer: Some(PEER), subject, reason, flushed: 0 };
        let begin = "FC021 QP 0x000123: request 42 (SEND of 64 bytes to QP 0x000456, process 4711) waits: the \
                     peer's receives are used up (no receive for 3 s; rnr_retry is 7, so it is sent again without limit). ";
        assert!(report.to_string().starts_with(begin), "{report}");
    }

    #[test]
    fn a_number_that_the_catalogue_lacks_counts_as_none() {
        let reason = Reason::Peer { reported: 0xffff, status: WcStatus::RemOpErr };
        assert_eq!(reason.number(), 62);
        assert_eq!(Reason::NotReady { reported: 999, tries: 1, wait: Default::default() }.number(), 22);
        // Nor do numbers of other statuses: a process that reports FC015 hasn't ended.
        let number = |reported, status| Reason::Peer { reported, status }.number();
        assert_eq!((number(15, WcStatus::RemAccessErr), number(30, WcStatus::RemAccessErr)), (61, 30));
        assert_eq!((number(20, WcStatus::RemInvReqErr), number(1, WcStatus::RemOpErr)), (60, 62));
    }

    #[test]
    fn a_line_names_the_receive_and_the_queue_pair_that_failed() {
        let status = WcStatus::RemOpErr;
        let subject = Subject::Request {
            wr_id: 1,
            operation: "SEND",
            len: 8,
            remote: None,
            outcome: RequestOutcome::Ends(status),
        };
        let report = Report {
            qpn: 1,
            peer: Some(PEER),
            subject,
            reason: Reason::Peer { reported: 30, status },
            flushed: 0,
        };
        let line = report.to_string();
        assert!(
            line.contains("IBV_WC_REM_OP_ERR, reported by the peer for its receive: no region"),
            "{line}"
        );
        let overrun = Report { subject: Subject::QueuePair, reason: Reason::Overrun, ..report }.to_string();
        assert!(overrun.contains("fails, connected to QP 0x000456, process 4711: a completion"), "{overrun}");
    }
}
