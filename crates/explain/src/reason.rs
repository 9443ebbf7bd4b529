//! A reason with its details, and their text.

use core::fmt;
use core::time::Duration;
use ferroce_types::{QpState, Unreachable, WcStatus};

/// Why a key doesn't let a request touch memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyFault {
    /// It was never given out.
    Unknown,
    /// It was never given out, and is the key of a region in the other byte order.
    ByteSwapped {
        /// The key of the region.
        meant: u32,
    },
    /// An lkey stands where an rkey belongs, or the other way round.
    OtherKind,
    /// Its region or window was deregistered.
    Deregistered {
        /// The time since then.
        ago: Duration,
    },
    /// It is of another protection domain.
    OtherDomain,
    /// It belongs to a window that isn't bound for this access.
    Unbound,
    /// The right is missing.
    Rights {
        /// The right that is needed.
        needs: &'static str,
        /// The rights of the region.
        has: Rights,
    },
    /// The range is outside the region.
    Outside {
        /// First address of the region, and its bytes.
        region: (u64, u64),
    },
    /// The address was byte-swapped or truncated.
    OddAddress {
        /// The correct address.
        meant: u64,
    },
    /// The memory is gone.
    Gone,
}

/// Rights of a region (IBV_ACCESS_*).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // ibv_reg_mr(3)
pub struct Rights {
    pub local_write: bool,
    pub remote_read: bool,
    pub remote_write: bool,
    pub remote_atomic: bool,
}

/// The name of a network interface, as far as the kernel's 15 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InterfaceName([u8; 15]);

impl InterfaceName {
    /// The name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; 15];
        bytes.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        Self(bytes)
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        f.write_str(core::str::from_utf8(self.0.get(..end).unwrap_or_default()).unwrap_or("?"))
    }
}

/// A reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // The catalogue describes each.
pub enum Reason {
    PostedAfter {
        first: u16,
    },
    /// `tries` local ACK timeouts of length `each`.
    NoAnswer {
        tries: u8,
        each: Duration,
        answered: bool,
    },
    NoQp,
    NotReceiving {
        state: Option<QpState>,
    },
    /// The PSN that was sent, and the one expected, as far as known.
    Psn {
        sent: Option<u32>,
        expected: Option<u32>,
    },
    /// There is no route to the peer's address, as the kernel or an ICMP message reports.
    NoRoute {
        icmp: Option<Unreachable>,
    },
    /// As [`Reason::NoRoute`], because the queue pair's own interface is down.
    InterfaceDown {
        name: InterfaceName,
    },
    PortClosed,
    ProcessGone,
    ProcessStopped {
        pid: i32,
    },
    Ignored {
        tries: u8,
        each: Duration,
    },
    SequenceErrors,
    /// No receive, `tries` times, with waits of `wait` between.
    NotReady {
        reported: u16,
        tries: u8,
        wait: Duration,
    },
    /// No receive for `waited`, and rnr_retry 7.
    StillNotReady {
        reported: u16,
        waited: Duration,
    },
    NeverPosted,
    NoneLeft,
    Key {
        key: u32,
        fault: KeyFault,
    },
    QpRights,
    NotInvalidated {
        key: u32,
    },
    TooLong {
        len: u64,
        room: u64,
    },
    PacketLength {
        len: u64,
        mtu: u32,
    },
    Malformed,
    GrhRoom {
        needs: u64,
    },
    QKey {
        theirs: u32,
        ours: u32,
    },
    NoReadDepth,
    Depth {
        limit: u8,
    },
    Misaligned {
        va: u64,
    },
    ShortResult,
    BadResponse,
    NotBound,
    /// The peer has refused, and sent the number of its reason, or 0.
    Peer {
        reported: u16,
        status: WcStatus,
    },
    Overrun,
    NoSrq,
    Elsewhere,
}

impl KeyFault {
    const fn number(&self) -> u16 {
        match self {
            Self::Unknown | Self::ByteSwapped { .. } | Self::OtherKind => 30,
            Self::Deregistered { .. } => 31,
            Self::OtherDomain => 32,
            Self::Unbound => 33,
            Self::Rights { .. } => 34,
            Self::Outside { .. } => 35,
            Self::OddAddress { .. } => 36,
            Self::Gone => 38,
        }
    }
}

impl Reason {
    /// Its number in the catalogue.
    #[must_use]
    pub fn number(&self) -> u16 {
        match self {
            Self::PostedAfter { .. } => 1,
            Self::NoAnswer { .. } => 10,
            Self::NoQp => 11,
            Self::NotReceiving { .. } => 12,
            Self::Psn { .. } => 13,
            Self::NoRoute { .. } | Self::InterfaceDown { .. } => 14,
            Self::ProcessGone => 15,
            Self::PortClosed => 18,
            Self::ProcessStopped { .. } => 19,
            Self::SequenceErrors => 16,
            Self::Ignored { .. } => 17,
            Self::NeverPosted => 20,
            Self::NoneLeft => 21,
            Self::NotReady { reported, .. } | Self::StillNotReady { reported, .. } => {
                known(*reported, WcStatus::RnrRetryExcErr).unwrap_or(22)
            }
            Self::Key { fault, .. } => fault.number(),
            Self::QpRights => 37,
            Self::NotInvalidated { .. } => 39,
            Self::TooLong { .. } => 40,
            Self::PacketLength { .. } => 41,
            Self::Malformed => 42,
            Self::GrhRoom { .. } => 43,
            Self::QKey { .. } => 44,
            Self::NoReadDepth => 50,
            Self::Depth { .. } => 51,
            Self::Misaligned { .. } => 52,
            Self::ShortResult => 53,
            Self::BadResponse => 54,
            Self::NotBound => 55,
            Self::Peer { reported, status } => known(*reported, *status).unwrap_or(match status {
                WcStatus::RemAccessErr => 61,
                WcStatus::RemOpErr => 62,
                _ => 60,
            }),
            Self::Overrun => 70,
            Self::NoSrq => 71,
            Self::Elsewhere => 72,
        }
    }
}

/// A number that a peer has sent, if the catalogue lists it for the status: peers aren't trusted.
fn known(reported: u16, status: WcStatus) -> Option<u16> {
    let fits = |entry: &&crate::Explanation| {
        !entry.is_finding() && entry.statuses.contains(&crate::statuses::status_name(status))
    };
    crate::entry(reported).filter(fits).map(|entry| entry.number)
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (self.local_write, "LOCAL_WRITE"),
            (self.remote_read, "REMOTE_READ"),
            (self.remote_write, "REMOTE_WRITE"),
            (self.remote_atomic, "REMOTE_ATOMIC"),
        ];
        let names: Vec<_> = all.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join("|"))
    }
}

/// Details that follow the title in parentheses, or nothing.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PostedAfter { first } => write!(f, "first failure: {}", crate::id(*first)),
            Self::NoAnswer { tries, each, answered } => {
                write!(f, "{tries} times {each:.1?}")?;
                f.write_str(if *answered { ", although it has answered before" } else { "" })
            }
            Self::Ignored { tries, each } => write!(f, "{tries} times {each:.1?}"),
            Self::NoRoute { icmp: Some(Unreachable::Network) } => f.write_str("ICMP: network unreachable"),
            Self::NoRoute { icmp: Some(Unreachable::Host) } => f.write_str("ICMP: host unreachable"),
            Self::NoRoute { icmp: Some(_) } => f.write_str("ICMP: prohibited"),
            Self::InterfaceDown { name } => write!(f, "the interface {name} is down"),
            Self::PortClosed => f.write_str("ICMP: port unreachable"),
            Self::ProcessStopped { pid } => write!(f, "process {pid}"),
            Self::NotReceiving { state: Some(state) } => write!(f, "its state is {state}"),
            Self::Psn { sent, expected } => {
                let number = |psn: &Option<u32>| psn.map_or("unknown".into(), |psn| format!("{psn:#08x}"));
                write!(f, "PSN sent: {}, expected: {}", number(sent), number(expected))
            }
            Self::NotReady { tries, wait, .. } => write!(f, "{tries} times, after waits of {wait:?}"),
            Self::StillNotReady { waited, .. } => {
                write!(
                    f,
                    "no receive for {} s; rnr_retry is 7, so it is sent again without limit",
                    waited.as_secs()
                )
            }
            Self::Key { key, fault } => write!(f, "key {key:#x}{fault}"),
            Self::NotInvalidated { key } => write!(f, "key {key:#x}"),
            Self::TooLong { len, room } => write!(f, "{len} bytes into {room}"),
            Self::PacketLength { len, mtu } => write!(f, "{len} bytes, path MTU {mtu}"),
            Self::GrhRoom { needs } => write!(f, "{needs} bytes are needed"),
            Self::QKey { theirs, ours } => write!(f, "{theirs:#x}, the queue pair has {ours:#x}"),
            Self::Depth { limit } => write!(f, "which is {limit}"),
            Self::Misaligned { va } => write!(f, "{va:#x}"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for KeyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByteSwapped { meant } => write!(f, ", byte-swapped, is the valid key {meant:#x}"),
            Self::OtherKind => f.write_str(": lkey and rkey are mixed up"),
            Self::Deregistered { ago } => write!(f, ", {ago:.1?} ago"),
            Self::Rights { needs, has } => write!(f, " needs {needs}, it has {has}"),
            Self::Outside { region: (start, len) } => write!(f, " is {len} bytes at {start:#x}"),
            Self::OddAddress { meant } => write!(f, ", probably {meant:#x}"),
            Self::Unknown | Self::OtherDomain | Self::Unbound | Self::Gone => Ok(()),
        }
    }
}
