//! The packet sockets of raw QPs: one for each interface that has any, drained with the RoCE sockets.

use super::{PacketPort, RawQp};
use crate::adapter::Adapter;
use ferroce_engine::Source;
use ferroce_netdev::Netdev;
use ferroce_os::sync::{Mutex, RwLock, class};
use ferroce_types::{Error, Instant, Result};
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// The process's packet sockets, which live as long as QPs use them.
#[derive(Debug, Default)]
pub(crate) struct RawPorts {
    ports: RwLock<class::RawPorts, Vec<Weak<PacketPort>>>,
    /// There are sockets. Threads that make progress don't lock `ports` while this is false.
    any: AtomicBool,
    /// QPs that may send again when their time has come.
    paced: Mutex<class::RawPaced, BTreeMap<u32, Weak<RawQp>>>,
}

/// The packet sockets as a source.
pub(crate) struct RawSource(pub(crate) &'static Adapter);

impl Source for RawSource {
    #[inline]
    fn poll(&self, _now: Instant) -> bool {
        self.is_beyond_memory() && self.0.read_raw()
    }

    #[inline]
    fn is_beyond_memory(&self) -> bool {
        self.0.raw.any.load(Ordering::Acquire)
    }

    fn poll_all(&self, _now: Instant) {
        self.0.read_raw();
    }
}

impl Adapter {
    /// The packet socket of an interface.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW, also when there is a socket already; other errors of the system.
    pub(crate) fn raw_port(&self, netdev: &Netdev) -> Result<Arc<PacketPort>> {
        let new = PacketPort::open(netdev)?;
        let mut ports = self.raw.ports.write();
        ports.retain(|port| port.strong_count() > 0);
        let known = ports.iter().filter_map(Weak::upgrade).find(|port| port.ifindex() == netdev.ifindex);
        if let Some(port) = known {
            return Ok(port);
        }
        let new = Arc::new(new);
        self.engine.watch(new.fd()).map_err(Error::os("epoll_ctl of a packet socket"))?;
        ports.push(Arc::downgrade(&new));
        self.raw.any.store(true, Ordering::Release);
        Ok(new)
    }

    /// Wakes sleepers when a packet socket has room again, or no longer.
    pub(crate) fn watch_raw(&self, fd: RawFd, room: bool) {
        if let Err(error) = self.engine.watch_writable(fd, room) {
            tracing::debug!(%error, "epoll_ctl of a packet socket");
        }
    }

    /// Lets a QP go on when `at` has come. The caller holds the QP's lock.
    pub(crate) fn schedule_raw(&self, qp: &Arc<RawQp>, at: Instant) {
        self.raw.paced.lock().insert(qp.qpn(), Arc::downgrade(qp));
        self.engine.schedule(&qp.deadline, at, qp.qpn());
    }

    /// The time of the QP with this number has come: lets it go on. Returns whether it had something to send.
    pub(crate) fn resume_raw(&self, qpn: u32) -> bool {
        let qp = self.raw.paced.lock().remove(&qpn);
        qp.and_then(|qp| qp.upgrade()).is_some_and(|qp| {
            qp.deadline.taken();
            qp.resume()
        })
    }

    /// Takes what has arrived at packet sockets.
    fn read_raw(&self) -> bool {
        let mut done = false;
        let mut gone = false;
        for port in self.raw.ports.read().iter() {
            match port.upgrade() {
                Some(port) => done |= port.receive(),
                None => gone = true,
            }
        }
        if gone {
            let mut ports = self.raw.ports.write();
            ports.retain(|port| port.strong_count() > 0);
            self.raw.any.store(!ports.is_empty(), Ordering::Release);
        }
        done
    }
}
