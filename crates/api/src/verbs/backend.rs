//! The objects of a device, on each backend. The rest of the crate doesn't know which one it is.

use crate::verbs::endpoint::Endpoint;
#[cfg(any(feature = "native", feature = "system"))]
use ferroce_buffers::ConnectedTo;
use ferroce_buffers::{AccessBy, Buffer, Failed, Fault, Memory, QpAttributes, Result};
use ferroce_proto::{Completion, SendRequest, SgeList};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Duration;

#[cfg(feature = "native")]
use ferroce_native::{NativeCompletion, NativeCq, NativeDevice, NativeDomain, NativeQp};
#[cfg(feature = "sim")]
use ferroce_sim::{Host, QpPeer, SimCompletion, SimCq, SimDomain, SimQp};

#[cfg(feature = "system")]
use ferroce_system::{SystemCompletion, SystemCq, SystemDevice, SystemDomain, SystemQp};

#[cfg(not(any(feature = "native", feature = "sim", feature = "system")))]
compile_error!("ferroce needs a backend: the feature `native`, `system` or `sim`");

/// Runs the same expression for the object of each backend.
macro_rules! each {
    ($enum:ident: $value:expr, $object:ident => $done:expr) => {
        match $value {
            #[cfg(feature = "native")]
            $enum::Native($object) => $done,
            #[cfg(feature = "sim")]
            $enum::Sim($object) => $done,
            #[cfg(feature = "system")]
            $enum::System($object) => $done,
        }
    };
}

#[derive(Clone, Debug)]
pub(crate) enum RawDevice {
    #[cfg(feature = "native")]
    Native(NativeDevice),
    #[cfg(feature = "sim")]
    Sim(Host),
    #[cfg(feature = "system")]
    System(SystemDevice),
}

impl RawDevice {
    pub(crate) fn name(&self) -> String {
        match self {
            #[cfg(feature = "native")]
            Self::Native(device) => device.name().to_owned(),
            #[cfg(feature = "sim")]
            Self::Sim(host) => format!("sim_{}", host.name()),
            #[cfg(feature = "system")]
            Self::System(device) => device.name().to_owned(),
        }
    }

    pub(crate) fn now(&self) -> Duration {
        match self {
            #[cfg(feature = "sim")]
            Self::Sim(host) => host.world().now(),
            #[cfg(any(feature = "native", feature = "system"))]
            _ => monotonic(),
        }
    }

    pub(crate) fn pause(&self, time: Duration) {
        match self {
            #[cfg(feature = "sim")]
            Self::Sim(host) => host.world().sleep(time),
            #[cfg(any(feature = "native", feature = "system"))]
            _ => std::thread::sleep(time),
        }
    }

    pub(crate) fn open(&self) -> Result<RawDomain> {
        Ok(match self {
            #[cfg(feature = "native")]
            Self::Native(device) => RawDomain::Native(device.open()?),
            #[cfg(feature = "sim")]
            Self::Sim(host) => RawDomain::Sim(host.domain()),
            #[cfg(feature = "system")]
            Self::System(device) => RawDomain::System(device.open()?),
        })
    }
}

/// The time since the first call.
#[cfg(any(feature = "native", feature = "system"))]
fn monotonic() -> Duration {
    static FIRST: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    FIRST.elapsed()
}

#[derive(Clone, Debug)]
pub(crate) enum RawDomain {
    #[cfg(feature = "native")]
    Native(NativeDomain),
    #[cfg(feature = "sim")]
    Sim(SimDomain),
    #[cfg(feature = "system")]
    System(SystemDomain),
}

impl RawDomain {
    pub(crate) fn register<M: Memory>(&self, memory: M) -> Result<Buffer, Failed<M>> {
        match self {
            #[cfg(feature = "native")]
            Self::Native(domain) => {
                ferroce_buffers::register(memory, AccessBy::Address, |tap| domain.register(&tap))
            }
            #[cfg(feature = "sim")]
            Self::Sim(domain) => ferroce_buffers::register(memory, AccessBy::Tap, |tap| domain.register(tap)),
            #[cfg(feature = "system")]
            Self::System(domain) => {
                ferroce_buffers::register(memory, AccessBy::Address, |tap| domain.register(&tap))
            }
        }
    }

    pub(crate) fn alloc(&self, len: usize) -> Result<Buffer> {
        match self {
            #[cfg(feature = "native")]
            Self::Native(domain) => {
                ferroce_buffers::alloc(len, AccessBy::Address, |tap| domain.register(&tap))
            }
            #[cfg(feature = "sim")]
            Self::Sim(domain) => ferroce_buffers::alloc(len, AccessBy::Tap, |tap| domain.register(tap)),
            #[cfg(feature = "system")]
            Self::System(domain) => {
                ferroce_buffers::alloc(len, AccessBy::Address, |tap| domain.register(&tap))
            }
        }
    }

    pub(crate) fn cq(&self, entries: u32) -> Result<RawCq> {
        Ok(match self {
            #[cfg(feature = "native")]
            Self::Native(domain) => RawCq::Native(domain.cq(entries)?),
            #[cfg(feature = "sim")]
            Self::Sim(domain) => RawCq::Sim(domain.cq(entries)),
            #[cfg(feature = "system")]
            Self::System(domain) => RawCq::System(domain.cq(entries)?),
        })
    }

    pub(crate) fn rc(&self, send_cq: &RawCq, recv_cq: &RawCq, attributes: &QpAttributes) -> Result<RawQp> {
        match (self, send_cq, recv_cq) {
            #[cfg(feature = "native")]
            (Self::Native(domain), RawCq::Native(send_cq), RawCq::Native(recv_cq)) => {
                Ok(RawQp::Native(domain.rc(send_cq, recv_cq, *attributes)?))
            }
            #[cfg(feature = "sim")]
            (Self::Sim(domain), RawCq::Sim(send_cq), RawCq::Sim(recv_cq)) => {
                Ok(RawQp::Sim(domain.rc(send_cq, recv_cq, attributes)))
            }
            #[cfg(feature = "system")]
            (Self::System(domain), RawCq::System(send_cq), RawCq::System(recv_cq)) => {
                Ok(RawQp::System(domain.rc(send_cq, recv_cq, *attributes)?))
            }
            #[cfg(any(
                all(feature = "native", feature = "sim"),
                all(feature = "native", feature = "system"),
                all(feature = "sim", feature = "system")
            ))]
            _ => Err(ferroce_buffers::Error::invalid("build", "the completion queue is of another device")),
        }
    }
}

/// A completion.
pub(crate) struct Ended {
    pub(crate) inner: Completion,
    pub(crate) qpn: u32,
    pub(crate) fault: Option<Fault>,
}

#[cfg(feature = "native")]
impl From<NativeCompletion> for Ended {
    fn from(NativeCompletion { inner, qpn, fault }: NativeCompletion) -> Self {
        Self { inner, qpn, fault }
    }
}

#[cfg(feature = "sim")]
impl From<SimCompletion> for Ended {
    fn from(SimCompletion { inner, qpn, fault }: SimCompletion) -> Self {
        Self { inner, qpn, fault }
    }
}

#[cfg(feature = "system")]
impl From<SystemCompletion> for Ended {
    fn from(SystemCompletion { inner, qpn, fault }: SystemCompletion) -> Self {
        Self { inner, qpn, fault }
    }
}

/// Completions that were taken from the adapter.
pub(crate) enum Taken {
    #[cfg(feature = "native")]
    Native(VecDeque<NativeCompletion>),
    #[cfg(feature = "sim")]
    Sim(VecDeque<SimCompletion>),
    #[cfg(feature = "system")]
    System(VecDeque<SystemCompletion>),
}

impl Taken {
    pub(crate) fn is_empty(&self) -> bool {
        each!(Self: self, taken => taken.is_empty())
    }

    pub(crate) fn pop(&mut self) -> Option<Ended> {
        each!(Self: self, taken => taken.pop_front().map(Ended::from))
    }
}

#[derive(Clone, Debug)]
pub(crate) enum RawCq {
    #[cfg(feature = "native")]
    Native(NativeCq),
    #[cfg(feature = "sim")]
    Sim(SimCq),
    #[cfg(feature = "system")]
    System(SystemCq),
}

/// Completions that are taken from the adapter at a time.
const BLOCK: usize = 32;

impl RawCq {
    pub(crate) fn taken(&self) -> Taken {
        match self {
            #[cfg(feature = "native")]
            Self::Native(_) => Taken::Native(VecDeque::new()),
            #[cfg(feature = "sim")]
            Self::Sim(_) => Taken::Sim(VecDeque::new()),
            #[cfg(feature = "system")]
            Self::System(_) => Taken::System(VecDeque::new()),
        }
    }

    /// Takes completions.
    pub(crate) fn poll(&self, into: &mut Taken) -> Result<()> {
        match (self, into) {
            #[cfg(feature = "native")]
            (Self::Native(cq), Taken::Native(taken)) => cq.poll(taken, BLOCK),
            #[cfg(feature = "sim")]
            (Self::Sim(cq), Taken::Sim(taken)) => {
                cq.poll(taken, BLOCK);
                Ok(())
            }
            #[cfg(feature = "system")]
            (Self::System(cq), Taken::System(taken)) => cq.poll(taken, BLOCK),
            #[cfg(any(
                all(feature = "native", feature = "sim"),
                all(feature = "native", feature = "system"),
                all(feature = "sim", feature = "system")
            ))]
            _ => Ok(()),
        }
    }

    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            #[cfg(feature = "native")]
            Self::Native(cq) => Some(cq.descriptor()),
            #[cfg(feature = "sim")]
            Self::Sim(_) => None,
            #[cfg(feature = "system")]
            Self::System(cq) => Some(cq.descriptor()),
        }
    }

    pub(crate) fn arm(&self) -> Result<()> {
        match self {
            #[cfg(feature = "native")]
            Self::Native(cq) => cq.arm(),
            #[cfg(feature = "sim")]
            Self::Sim(_) => Ok(()),
            #[cfg(feature = "system")]
            Self::System(cq) => cq.arm(),
        }
    }

    /// Waits for a completion. It may take completions.
    pub(crate) fn wait(&self, into: &mut Taken, limit: Option<Duration>) -> Result<bool> {
        match (self, into) {
            #[cfg(feature = "native")]
            (Self::Native(cq), Taken::Native(taken)) => cq.wait(taken, BLOCK, limit),
            #[cfg(feature = "sim")]
            (Self::Sim(cq), Taken::Sim(_)) => Ok(cq.wait(limit)),
            #[cfg(feature = "system")]
            (Self::System(cq), Taken::System(taken)) => cq.wait(taken, BLOCK, limit),
            #[cfg(any(
                all(feature = "native", feature = "sim"),
                all(feature = "native", feature = "system"),
                all(feature = "sim", feature = "system")
            ))]
            _ => Ok(false),
        }
    }
}

pub(crate) enum RawQp {
    #[cfg(feature = "native")]
    Native(NativeQp),
    #[cfg(feature = "sim")]
    Sim(SimQp),
    #[cfg(feature = "system")]
    System(SystemQp),
}

impl RawQp {
    pub(crate) fn qpn(&self) -> u32 {
        each!(Self: self, qp => qp.qpn())
    }

    /// The address for the peer. The peer may have `reads` READs and atomics outstanding.
    pub(crate) fn endpoint(&self, &QpAttributes { mtu, peer_reads, .. }: &QpAttributes) -> Endpoint {
        match self {
            #[cfg(feature = "native")]
            Self::Native(qp) => {
                let mtu = mtu.min(qp.mtu());
                Endpoint { gid: qp.gid(), qpn: qp.qpn(), psn: qp.psn(), mtu, reads: peer_reads }
            }
            #[cfg(feature = "sim")]
            Self::Sim(qp) => {
                let gid = qp.ip().to_ipv6_mapped().octets();
                Endpoint { gid, qpn: qp.qpn(), psn: qp.psn(), mtu, reads: peer_reads }
            }
            #[cfg(feature = "system")]
            Self::System(qp) => {
                let mtu = mtu.min(qp.mtu());
                Endpoint { gid: qp.gid(), qpn: qp.qpn(), psn: qp.psn(), mtu, reads: peer_reads }
            }
        }
    }

    /// The first request has the PSN `first`, or that of this side's endpoint.
    pub(crate) fn connect(&self, peer: &Endpoint, first: Option<u32>) -> Result<()> {
        let &Endpoint { gid, qpn, psn, mtu, reads } = peer;
        match self {
            #[cfg(feature = "native")]
            Self::Native(qp) => qp.connect(&ConnectedTo { gid, qpn, psn, mtu, reads }, first),
            #[cfg(feature = "sim")]
            Self::Sim(qp) => {
                use std::net::{IpAddr, Ipv6Addr};
                let IpAddr::V4(ip) = Ipv6Addr::from(gid).to_canonical() else {
                    let why = format!("{} isn't a simulated host", Ipv6Addr::from(gid));
                    return Err(ferroce_buffers::Error::invalid("connect", why));
                };
                qp.connect(&QpPeer { ip, qpn, psn, mtu, reads }, first);
                Ok(())
            }
            #[cfg(feature = "system")]
            Self::System(qp) => qp.connect(&ConnectedTo { gid, qpn, psn, mtu, reads }, first),
        }
    }

    /// Whether [`RawQp::post`] takes a request with so many bytes.
    #[inline]
    pub(crate) fn check(&self, request: &SendRequest<'_, ()>) -> Result<()> {
        match self {
            #[cfg(feature = "native")]
            Self::Native(qp) => qp.check(request.data.len()),
            #[cfg(feature = "sim")]
            Self::Sim(qp) => qp.check(request),
            #[cfg(feature = "system")]
            Self::System(qp) => qp.check(request.data.len()),
        }
    }

    #[inline]
    pub(crate) fn post(&self, request: &SendRequest<'_, ()>) {
        each!(Self: self, qp => qp.post(request));
    }

    #[inline]
    pub(crate) fn receive(&self, wr_id: u64, sges: SgeList) {
        each!(Self: self, qp => qp.receive(wr_id, sges));
    }

    pub(crate) fn abort(&self) {
        each!(Self: self, qp => qp.abort());
    }

    pub(crate) fn is_dead(&self) -> bool {
        each!(Self: self, qp => qp.is_dead())
    }
}
