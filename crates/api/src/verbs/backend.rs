//! The objects of a device, on each backend. The rest of the crate doesn't know which one it is.

use crate::verbs::endpoint::Endpoint;
use ferroce_buffers::{
    AccessBy, Borrows, Buffer, ConnectedTo, Error, Event, Failed, Held, Memory, Polled, QpAttributes,
    QpService, Result, Segments, Stamped,
};
use ferroce_proto::{DataRef, SendOp, SendRequest, UdTarget};
use ferroce_types::Sge;
use std::os::fd::BorrowedFd;
use std::time::Duration;

#[cfg(feature = "native")]
use ferroce_native::{
    NativeAddress, NativeCq, NativeDevice, NativeDomain, NativeQp, NativeSrq, NativeWindow,
};
#[cfg(feature = "sim")]
use ferroce_sim::{Host, SimAddress, SimCq, SimDomain, SimQp, SimSrq, SimWindow};

#[cfg(feature = "system")]
use ferroce_system::{
    SystemAddress, SystemCq, SystemDevice, SystemDomain, SystemQp, SystemSrq, SystemWindow,
};

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

    /// The largest completion queue, where the device differs from the others.
    pub(crate) fn most_cq_entries(&self) -> Option<u32> {
        match self {
            #[cfg(feature = "native")]
            Self::Native(_) => None,
            #[cfg(feature = "sim")]
            Self::Sim(host) => host.most_cq_entries(),
            #[cfg(feature = "system")]
            Self::System(_) => None,
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
            Self::Sim(host) => RawDomain::Sim(host.domain()?),
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

    /// Borrows memory that is read.
    pub(crate) fn borrow<'env>(
        &self,
        borrows: &Borrows<'env>,
        bytes: &'env [u8],
    ) -> Result<(Segments, Held)> {
        match self {
            #[cfg(feature = "native")]
            Self::Native(domain) => {
                borrows.for_reading(bytes, AccessBy::Address, |tap| domain.register_for_reading(&tap))
            }
            #[cfg(feature = "sim")]
            Self::Sim(domain) => borrows.for_reading(bytes, AccessBy::Tap, |tap| domain.register(tap)),
            #[cfg(feature = "system")]
            Self::System(domain) => {
                borrows.for_reading(bytes, AccessBy::Address, |tap| domain.register_for_reading(&tap))
            }
        }
    }

    /// Borrows memory that is written.
    pub(crate) fn borrow_mut<'env>(
        &self,
        borrows: &Borrows<'env>,
        bytes: &'env mut [u8],
    ) -> Result<(Segments, Held)> {
        match self {
            #[cfg(feature = "native")]
            Self::Native(domain) => {
                borrows.for_writing(bytes, AccessBy::Address, |tap| domain.register(&tap))
            }
            #[cfg(feature = "sim")]
            Self::Sim(domain) => borrows.for_writing(bytes, AccessBy::Tap, |tap| domain.register(tap)),
            #[cfg(feature = "system")]
            Self::System(domain) => {
                borrows.for_writing(bytes, AccessBy::Address, |tap| domain.register(&tap))
            }
        }
    }

    pub(crate) fn cq(&self, entries: u32, stamped: Stamped) -> Result<RawCq> {
        let _ = stamped;
        Ok(match self {
            #[cfg(feature = "native")]
            Self::Native(domain) => RawCq::Native(domain.cq(entries, stamped)?),
            #[cfg(feature = "sim")]
            // Its completions always have the time.
            Self::Sim(domain) => RawCq::Sim(domain.cq(entries)?),
            #[cfg(feature = "system")]
            Self::System(domain) => RawCq::System(domain.cq(entries, stamped)?),
        })
    }

    pub(crate) fn qp(
        &self,
        [send_cq, recv_cq]: [&RawCq; 2],
        srq: Option<&RawSrq>,
        attributes: &QpAttributes,
    ) -> Result<RawQp> {
        match (self, send_cq, recv_cq) {
            #[cfg(feature = "native")]
            (Self::Native(domain), RawCq::Native(send_cq), RawCq::Native(recv_cq)) => {
                let srq = of_this(srq, RawSrq::native)?;
                Ok(RawQp::Native(domain.qp([send_cq, recv_cq], srq, *attributes)?))
            }
            #[cfg(feature = "sim")]
            (Self::Sim(domain), RawCq::Sim(send_cq), RawCq::Sim(recv_cq)) => {
                let srq = of_this(srq, RawSrq::sim)?;
                Ok(RawQp::Sim(domain.qp([send_cq, recv_cq], srq, attributes)?))
            }
            #[cfg(feature = "system")]
            (Self::System(domain), RawCq::System(send_cq), RawCq::System(recv_cq)) => {
                let srq = of_this(srq, RawSrq::system)?;
                Ok(RawQp::System(domain.qp([send_cq, recv_cq], srq, *attributes)?))
            }
            #[allow(unreachable_patterns)] // with one backend
            _ => Err(Error::invalid("build", "the completion queue is of another device")),
        }
    }

    pub(crate) fn srq(&self, depth: u32, parts: u32, number: u32) -> Result<RawSrq> {
        Ok(match self {
            #[cfg(feature = "native")]
            Self::Native(domain) => RawSrq::Native(domain.srq(depth, parts, number)?),
            #[cfg(feature = "sim")]
            Self::Sim(domain) => RawSrq::Sim(domain.srq(depth, parts, number)),
            #[cfg(feature = "system")]
            Self::System(domain) => RawSrq::System(domain.srq(depth, parts, number)?),
        })
    }

    pub(crate) fn prepare_events(&self) -> Result<()> {
        match self {
            #[cfg(feature = "native")]
            Self::Native(_) => Ok(()),
            #[cfg(feature = "sim")]
            Self::Sim(_) => Ok(()),
            #[cfg(feature = "system")]
            Self::System(domain) => domain.prepare_events(),
        }
    }

    pub(crate) fn next_event(&self, limit: Option<Duration>) -> Result<Option<Event>> {
        match self {
            #[cfg(feature = "native")]
            Self::Native(domain) => domain.next_event(limit),
            #[cfg(feature = "sim")]
            Self::Sim(domain) => Ok(domain.next_event(limit)),
            #[cfg(feature = "system")]
            Self::System(domain) => domain.next_event(limit),
        }
    }

    pub(crate) fn events_descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            #[cfg(feature = "native")]
            Self::Native(domain) => Some(domain.events_descriptor()),
            #[cfg(feature = "sim")]
            Self::Sim(_) => None,
            #[cfg(feature = "system")]
            Self::System(domain) => Some(domain.events_descriptor()),
        }
    }

    pub(crate) fn window(&self) -> Result<RawWindow> {
        Ok(match self {
            #[cfg(feature = "native")]
            Self::Native(domain) => RawWindow::Native(domain.window()?),
            #[cfg(feature = "sim")]
            Self::Sim(domain) => RawWindow::Sim(domain.window()),
            #[cfg(feature = "system")]
            Self::System(domain) => RawWindow::System(domain.window()?),
        })
    }

    /// The way to the host of a queue pair.
    pub(crate) fn address(&self, to: &Endpoint) -> Result<RawAddress> {
        let &Endpoint { gid, qpn, qkey, .. } = to;
        Ok(match self {
            #[cfg(feature = "native")]
            Self::Native(domain) => RawAddress::Native(domain.address(gid, qpn, qkey)?),
            #[cfg(feature = "sim")]
            Self::Sim(_) => RawAddress::Sim(SimAddress::new(gid, qpn, qkey)?),
            #[cfg(feature = "system")]
            Self::System(domain) => RawAddress::System(domain.address(gid, qpn, qkey)?),
        })
    }
}

/// The object of this backend, if there is an object.
fn of_this<'o, R, O>(raw: Option<&'o R>, find: impl Fn(&'o R) -> Option<&'o O>) -> Result<Option<&'o O>> {
    let Some(raw) = raw else { return Ok(None) };
    let other = || Error::invalid("build", "the shared receive queue is of another device");
    find(raw).map(Some).ok_or_else(other)
}

/// Methods that return the object of a backend.
macro_rules! each_of {
    ($enum:ident: $native:ty, $sim:ty, $system:ty) => {
        impl $enum {
            #[cfg(feature = "native")]
            fn native(&self) -> Option<&$native> {
                match self {
                    Self::Native(object) => Some(object),
                    #[allow(unreachable_patterns)] // with one backend
                    _ => None,
                }
            }

            #[cfg(feature = "sim")]
            fn sim(&self) -> Option<&$sim> {
                match self {
                    Self::Sim(object) => Some(object),
                    #[allow(unreachable_patterns)] // with one backend
                    _ => None,
                }
            }

            #[cfg(feature = "system")]
            fn system(&self) -> Option<&$system> {
                match self {
                    Self::System(object) => Some(object),
                    #[allow(unreachable_patterns)] // with one backend
                    _ => None,
                }
            }
        }
    };
}

/// A shared receive queue.
pub(crate) enum RawSrq {
    #[cfg(feature = "native")]
    Native(NativeSrq),
    #[cfg(feature = "sim")]
    Sim(SimSrq),
    #[cfg(feature = "system")]
    System(SystemSrq),
}

each_of!(RawSrq: NativeSrq, SimSrq, SystemSrq);

impl RawSrq {
    pub(crate) fn receive(&self, wr_id: u64, sges: &[Sge]) -> Result<()> {
        each!(Self: self, srq => srq.receive(wr_id, sges))
    }

    /// Asks for an event when fewer receives than this are left.
    pub(crate) fn low_water(&self, limit: u32) -> Result<()> {
        each!(Self: self, srq => srq.low_water(limit))
    }
}

/// A memory window. Nothing is reached through it once it is dropped.
pub(crate) enum RawWindow {
    #[cfg(feature = "native")]
    Native(NativeWindow),
    #[cfg(feature = "sim")]
    Sim(SimWindow),
    #[cfg(feature = "system")]
    System(SystemWindow),
}

impl RawWindow {
    /// A key of which a request that binds the window may change the low 8 bits.
    pub(crate) fn key(&self) -> u32 {
        each!(Self: self, window => window.key())
    }

    /// Its number in requests.
    pub(crate) fn number(&self) -> u64 {
        each!(Self: self, window => window.number())
    }
}

/// The way to a queue pair that receives datagrams.
pub(crate) enum RawAddress {
    #[cfg(feature = "native")]
    Native(NativeAddress),
    #[cfg(feature = "sim")]
    Sim(SimAddress),
    #[cfg(feature = "system")]
    System(SystemAddress),
}

each_of!(RawAddress: NativeAddress, SimAddress, SystemAddress);

#[derive(Clone, Debug)]
pub(crate) enum RawCq {
    #[cfg(feature = "native")]
    Native(NativeCq),
    #[cfg(feature = "sim")]
    Sim(SimCq),
    #[cfg(feature = "system")]
    System(SystemCq),
}

impl RawCq {
    /// Takes completions.
    #[inline]
    pub(crate) fn poll(&self, into: &mut Polled) -> Result<()> {
        match self {
            #[cfg(feature = "native")]
            Self::Native(cq) => cq.poll(into),
            #[cfg(feature = "sim")]
            Self::Sim(cq) => cq.poll(into),
            #[cfg(feature = "system")]
            Self::System(cq) => cq.poll(into),
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
    pub(crate) fn wait(&self, into: &mut Polled, limit: Option<Duration>) -> Result<bool> {
        match self {
            #[cfg(feature = "native")]
            Self::Native(cq) => cq.wait(into, limit),
            #[cfg(feature = "sim")]
            Self::Sim(cq) => cq.wait(into, limit),
            #[cfg(feature = "system")]
            Self::System(cq) => cq.wait(into, limit),
        }
    }
}

/// A request, without the way to the peer.
#[derive(Clone, Copy)]
pub(crate) struct RawRequest<'a> {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) data: DataRef<'a>,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    /// The region that a window is bound to. Its key is enough for adapters in the process.
    pub(crate) region: u64,
}

impl<'a> RawRequest<'a> {
    #[inline(always)]
    fn with<A>(self, ud: Option<&'a UdTarget<A>>) -> SendRequest<'a, A> {
        let Self { wr_id, op, data, signaled, solicited, fence, .. } = self;
        SendRequest { wr_id, op, data, signaled, solicited, fence, ud, remote_srqn: 0 }
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
    pub(crate) fn endpoint(&self, reads: u8, qkey: u32) -> Endpoint {
        each!(Self: self, qp => Endpoint {
            gid: qp.gid(),
            qpn: qp.qpn(),
            psn: qp.psn(),
            mtu: qp.mtu(),
            reads,
            qkey,
        })
    }

    /// The first request has the PSN `first`, or that of this side's endpoint.
    pub(crate) fn connect(&self, peer: &Endpoint, first: Option<u32>) -> Result<()> {
        let &Endpoint { gid, qpn, psn, mtu, reads, .. } = peer;
        let peer = ConnectedTo { gid, qpn, psn, mtu, reads };
        each!(Self: self, qp => qp.connect(&peer, first))
    }

    /// Takes a queue pair for datagrams to RTS.
    pub(crate) fn activate(&self, qkey: u32) -> Result<()> {
        each!(Self: self, qp => qp.activate(qkey))
    }

    /// The most bytes of a message.
    #[inline]
    pub(crate) fn longest(&self, service: QpService) -> u64 {
        match service {
            QpService::Datagram => u64::from(each!(Self: self, qp => qp.mtu())),
            QpService::Reliable | QpService::Unreliable => ferroce_proto::MAX_MESSAGE,
        }
    }

    /// Whether [`RawQp::post`] takes datagrams to this address.
    pub(crate) fn takes(&self, to: &RawAddress) -> bool {
        match self {
            #[cfg(feature = "native")]
            Self::Native(qp) => to.native().is_some_and(|to| qp.takes(to)),
            #[cfg(feature = "sim")]
            Self::Sim(_) => to.sim().is_some(),
            #[cfg(feature = "system")]
            Self::System(qp) => to.system().is_some_and(|to| qp.takes(to)),
        }
    }

    /// Whether [`RawQp::post`] binds windows to this region.
    pub(crate) fn lends(&self, region: u64) -> bool {
        match self {
            #[cfg(feature = "native")]
            Self::Native(_) => true,
            #[cfg(feature = "sim")]
            Self::Sim(_) => true,
            #[cfg(feature = "system")]
            Self::System(qp) => qp.lends(region),
        }
    }

    /// Posts a request, to this address. False: the device has refused it.
    #[inline(always)]
    pub(crate) fn post(&self, request: RawRequest<'_>, to: Option<&RawAddress>) -> bool {
        // Each backend has the request built where it reads it.
        match self {
            #[cfg(feature = "native")]
            Self::Native(qp) => qp.post(|ud| request.with(ud), to.and_then(RawAddress::native)),
            #[cfg(feature = "sim")]
            Self::Sim(qp) => {
                qp.post(&request.with(None), to.and_then(RawAddress::sim));
                true
            }
            #[cfg(feature = "system")]
            Self::System(qp) => qp.post(&request.with(None), to.and_then(RawAddress::system), request.region),
        }
    }

    /// Posts a receive. False: the device has refused it.
    #[inline(always)]
    pub(crate) fn receive(&self, wr_id: u64, segments: Segments) -> bool {
        match self {
            #[cfg(feature = "native")]
            Self::Native(qp) => qp.receive(wr_id, segments),
            #[cfg(feature = "sim")]
            Self::Sim(qp) => {
                qp.receive(wr_id, &segments);
                true
            }
            #[cfg(feature = "system")]
            Self::System(qp) => qp.receive(wr_id, &segments),
        }
    }

    pub(crate) fn abort(&self) {
        each!(Self: self, qp => qp.abort());
    }

    pub(crate) fn is_dead(&self) -> bool {
        each!(Self: self, qp => qp.is_dead())
    }
}
