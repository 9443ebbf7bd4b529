//! All raw QPs of the process and their packet sockets: one for each interface that has any, drained with the RoCE sockets.

use super::{PacketPort, RawQp};
use ferroce_engine::Handler as _;
use ferroce_mem::{Owner, is_same};
use ferroce_netdev::Netdev;
use ferroce_nic::Adapter;
use ferroce_os::fork::InChild;
use ferroce_os::sync::{RwLock, class};
use ferroce_parts::{FrameQps, drive_frames};
use ferroce_types::{Error, Instant, Result};
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// The raw QPs of the process.
pub(super) struct RawQps {
    known: RwLock<class::RawPorts, KnownRaws>,
    /// There are sockets. Threads that make progress don't lock `known` while this is false.
    any: AtomicBool,
}

struct KnownRaws {
    /// The packet sockets, which live as long as QPs use them.
    ports: Vec<Weak<PacketPort>>,
    /// By number. A QP of the parent of a fork makes way for one of the child's.
    qps: BTreeMap<u32, Weak<RawQp>>,
}

pub(super) static RAW_QPS: RawQps = RawQps {
    known: RwLock::new(KnownRaws { ports: Vec::new(), qps: BTreeMap::new() }),
    any: AtomicBool::new(false),
};

impl RawQps {
    /// The packet socket of an interface.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW, also when there is a socket already; other errors of the system.
    pub(super) fn port(&'static self, adapter: &Adapter, netdev: &Netdev) -> Result<Arc<PacketPort>> {
        let new = PacketPort::open(netdev)?;
        let mut known = self.known.write();
        known.ports.retain(is_in_use);
        let port = known.ports.iter().filter_map(Weak::upgrade).find(|port| port.ifindex() == netdev.ifindex);
        if let Some(port) = port {
            return Ok(port);
        }
        let new = Arc::new(new);
        adapter.engine().watch(new.fd()).map_err(Error::os("epoll_ctl of a packet socket"))?;
        known.ports.push(Arc::downgrade(&new));
        self.any.store(true, Ordering::Release);
        drive_frames(self);
        Ok(new)
    }

    pub(super) fn add(&self, qp: &Arc<RawQp>) {
        self.known.write().qps.insert(qp.qpn(), Arc::downgrade(qp));
    }

    pub(super) fn remove(&self, qp: &Arc<RawQp>) {
        let qps = &mut self.known.write().qps;
        if qps.get(&qp.qpn()).is_some_and(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(qp))) {
            qps.remove(&qp.qpn());
        }
    }

    /// The QPs that exist. The last reference to one isn't dropped while they are locked.
    fn all(&self) -> Vec<Arc<RawQp>> {
        self.known.read().qps.values().filter_map(Weak::upgrade).collect()
    }
}

/// QPs of this process use the socket; it isn't that of the process before a fork.
fn is_in_use(port: &Weak<PacketPort>) -> bool {
    port.upgrade().is_some_and(|port| !port.is_inherited())
}

/// Wakes sleepers when a packet socket has room again, or no longer.
pub(super) fn watch_room(adapter: &Adapter, fd: RawFd, room: bool) {
    if let Err(error) = adapter.engine().watch_writable(fd, room) {
        tracing::debug!(%error, "epoll_ctl of a packet socket");
    }
}

impl RawQp {
    /// Goes on when `at` has come. The caller holds the QP's lock.
    pub(super) fn go_on_at(&self, at: Instant) {
        self.adapter.engine().schedule(&self.deadline, at, self.qpn());
    }
}

impl FrameQps for RawQps {
    fn has_sockets(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    fn receive(&self) -> bool {
        let mut done = false;
        let mut gone = false;
        for port in &self.known.read().ports {
            match port.upgrade() {
                Some(port) if !port.is_inherited() => done |= port.receive(),
                _ => gone = true,
            }
        }
        if gone {
            let mut known = self.known.write();
            known.ports.retain(is_in_use);
            self.any.store(!known.ports.is_empty(), Ordering::Release);
        }
        done
    }

    fn due(&self, number: u32) -> bool {
        let qp = self.known.read().qps.get(&number).and_then(Weak::upgrade);
        qp.is_some_and(|qp| {
            qp.deadline.taken();
            qp.resume()
        })
    }

    fn end_with(&self, owner: &dyn Owner) -> usize {
        let mut qps = self.all();
        qps.retain(|qp| is_same(&**qp.pd.owner(), owner));
        qps.iter().for_each(RawQp::end_with_context);
        qps.len()
    }

    fn give_up(&self) {
        self.all().iter().for_each(|qp| qp.give_up());
    }

    fn after_fork(&self, child: &InChild) {
        // Locked, they are by a call that the fork has interrupted: then verbs can't be used any more.
        let Some(known) = self.known.try_read() else { return };
        known.qps.values().filter_map(Weak::upgrade).for_each(|qp| qp.wr_session().after_fork(child));
    }
}
