//! What a queue pair shows to those who watch the process.

use super::{LockedQp, Path, Qp, operation_of_request, state_of};
use ferroce_os::clock;
use ferroce_parts::counted::named;
use ferroce_queues::Cq;
use ferroce_types::QpState;
use ferroce_watch::{Peer, PostedRequest, QueuePair, Text, WorkQueue};
use ferroce_wire::Service;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Qp {
    /// The completion queue of its send requests.
    pub(crate) fn send_cq(&self) -> &Arc<Cq> {
        &self.send_cq
    }

    /// The completion queue of its receive requests.
    pub(crate) fn recv_cq(&self) -> &Arc<Cq> {
        &self.recv_cq
    }

    /// Unlike that of any other queue pair of the process's life.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// Runs `f` in another thread while this one holds the QP's lock; returns its result.
    #[cfg(test)]
    pub(crate) fn while_busy<R>(&self, f: impl FnOnce() -> R + Send) -> R
    where
        R: Send,
    {
        let _at_work = self.inner.lock();
        // `f` may take locks whose order doesn't allow it while the QP is locked, so it runs in another thread.
        std::thread::scope(|scope| scope.spawn(f).join().unwrap())
    }

    /// A turn of the QP was put off, and hasn't come yet.
    #[cfg(test)]
    pub(crate) fn is_held_up(&self) -> bool {
        self.is_held_up.load(Ordering::Relaxed)
    }

    /// The fields that are read without the QP's lock, for when another thread holds it.
    pub(crate) fn glance(&self) -> QueuePair {
        QueuePair {
            number: self.qpn,
            service: service_name(self.service).into(),
            state: state_of(self.state.load(Ordering::Acquire)).map_or("?", QpState::name).into(),
            busy: true,
            send: WorkQueue { depth: self.cap.max_send_wr, outstanding: 0 },
            shared_receive_queue: self.srq.as_ref().map(|srq| srq.serial()),
            completion_queues: [self.send_cq.serial(), self.recv_cq.serial()],
            reason: self.reason.load(Ordering::Relaxed),
            ..QueuePair::default()
        }
    }

    /// All fields; `None` if another thread holds the lock of the QP or of its receive queue.
    pub(crate) fn try_look(&self) -> Option<QueuePair> {
        let inner = self.inner.try_lock()?;
        let receive = match self.srq {
            Some(_) => None,
            None => Some(self.rq.try_lock()?.fill()),
        };
        let proto = &inner.proto;
        let oldest = proto.oldest().map(|oldest| PostedRequest {
            wr_id: oldest.wr.wr_id,
            operation: operation_of_request(&oldest.wr.op).0.into(),
            length: u64::from(oldest.len),
            started: oldest.started,
            waits_for_receive: oldest
                .not_ready_since
                .map(|since| u64::try_from(clock::now().since(since).as_millis()).unwrap_or(u64::MAX)),
        });
        Some(QueuePair {
            state: proto.state().name().into(),
            busy: false,
            fabric: inner.path.as_ref().map_or("", fabric_name).into(),
            address: inner.path.as_ref().map(|path| text(own_address(path))).unwrap_or_default(),
            peer: self.peer(&inner),
            send: WorkQueue { depth: self.cap.max_send_wr, outstanding: proto.sq_len() },
            oldest,
            receive: receive.map(|(depth, outstanding)| WorkQueue { depth, outstanding }),
            path_mtu: proto.params().path_mtu,
            send_psn: proto.sq_psn(),
            expected_psn: proto.rq_psn(),
            counters: named(&proto.counters()),
            ..self.glance()
        })
    }

    /// The other end of its connection, while it has one.
    fn peer(&self, inner: &LockedQp) -> Option<Peer> {
        let connected = !matches!(inner.proto.state(), QpState::Reset | QpState::Init);
        if !connected || self.service == Service::Ud {
            return None;
        }
        let number = inner.proto.params().dest_qpn;
        let (address, process) = match &inner.path {
            // The QP failed before it had a peer.
            None if number == 0 => return None,
            None => (Text::default(), None),
            Some(Path::Shm { meta, link }) => {
                (text(meta.dst), link.peer_pid().and_then(|pid| u32::try_from(pid).ok()))
            }
            Some(Path::Udp { dest, .. }) => (text(dest.peer().ip()), None),
        };
        Some(Peer { number, address, process })
    }
}

fn text(address: IpAddr) -> Text {
    address.to_string().as_str().into()
}

fn own_address(path: &Path) -> IpAddr {
    match path {
        Path::Shm { meta, .. } => meta.src,
        Path::Udp { dest, .. } => dest.endpoint().address().ip(),
    }
}

fn fabric_name(path: &Path) -> &'static str {
    match path {
        Path::Shm { link, .. } if link.is_to_itself() => "local",
        Path::Shm { .. } => "shm",
        Path::Udp { .. } => "udp",
    }
}

pub(super) const fn service_name(service: Service) -> &'static str {
    match service {
        Service::Rc => "RC",
        Service::Uc => "UC",
        Service::Ud => "UD",
        Service::Xrc => "XRC",
        _ => "?",
    }
}
