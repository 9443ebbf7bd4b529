//! What a QP has that is an XRC target: openers instead of an owner, and an SRQ per message.

use super::{Qp, QpInit};
use crate::Context;
use crate::xrc::Opener;
use ferroce_mem::Pd;
use ferroce_os::sys::EngineFd;
use ferroce_parts::AttrRules;
use ferroce_queues::Srq;
use ferroce_types::{AsyncEvent, PacketMeta, RemoteError, invalid};
use ferroce_wire::{Headers, Service};
use ferroce_xrc::message::ReadRange;
use ferroce_xrc::{Domain, DomainFile, SrqProcess, grant_handle, send_event};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The part that is behind the QP's lock. All other QPs have none: reading finds it empty.
#[derive(Default)]
pub(super) struct XrcTargetSlot(Option<Box<XrcTargetPart>>);

impl Deref for XrcTargetSlot {
    type Target = XrcTargetPart;

    #[inline]
    fn deref(&self) -> &XrcTargetPart {
        const NONE: &XrcTargetPart = &XrcTargetPart::EMPTY;
        self.0.as_deref().unwrap_or(NONE)
    }
}

impl DerefMut for XrcTargetSlot {
    fn deref_mut(&mut self) -> &mut XrcTargetPart {
        self.0.get_or_insert_with(|| Box::new(XrcTargetPart::EMPTY))
    }
}

/// See [`XrcTargetSlot`].
pub(super) struct XrcTargetPart {
    openers: Vec<Arc<Opener>>,
    /// Connections to other processes that have a handle.
    guests: Vec<Arc<EngineFd>>,
    /// The last opener has gone.
    closed: bool,
    /// What the packet at hand names.
    pub(super) srq: Option<Arc<Srq>>,
    /// What the receive of the message in progress was taken from.
    pub(super) receiving_srq: Option<Arc<Srq>>,
    /// What the packet at hand names, of another process.
    pub(super) remote_srqn: Option<u32>,
    /// Connections to processes with SRQs of the domain.
    pub(super) srq_processes: Vec<SrqProcess>,
    /// Requests that another process has been given and hasn't answered.
    pub(super) delegated: PendingDelegations,
    /// A slot whose process couldn't be reached just now.
    pub(super) unreachable: Option<u16>,
    /// Requests that wait for those that are being executed elsewhere.
    pub(super) backlog: VecDeque<DeferredPacket>,
    pub(super) backlog_bytes: usize,
    /// What was asked of another process's memory, by which connection, and what has come.
    pub(super) fetching: Option<(u64, ReadRange)>,
    pub(super) fetched: Option<(ReadRange, Result<Vec<u8>, RemoteError>)>,
    /// Of what executes requests of another process's target: receives from this number on complete when the target has acknowledged their
    /// messages.
    pub(super) acknowledged: u64,
}

/// Requests that are on their way to another process and back.
pub(super) struct PendingDelegations {
    /// The connection that they were given to.
    pub(super) connection: u64,
    /// Oldest first.
    pub(super) packets: VecDeque<DelegatedPacket>,
    pub(super) bytes: usize,
}

/// A request that another process has.
pub(super) struct DelegatedPacket {
    pub(super) bytes: usize,
    /// A message that uses a receive ends with it.
    pub(super) receives: bool,
}

/// A packet that waits.
pub(super) struct DeferredPacket {
    pub(super) headers: Headers,
    pub(super) payload: Vec<u8>,
    pub(super) meta: PacketMeta,
}

impl PendingDelegations {
    pub(super) const NONE: Self = Self { connection: 0, packets: VecDeque::new(), bytes: 0 };
}

impl XrcTargetPart {
    const EMPTY: Self = Self {
        openers: Vec::new(),
        guests: Vec::new(),
        closed: false,
        srq: None,
        receiving_srq: None,
        remote_srqn: None,
        srq_processes: Vec::new(),
        delegated: PendingDelegations::NONE,
        unreachable: None,
        backlog: VecDeque::new(),
        backlog_bytes: 0,
        fetching: None,
        fetched: None,
        acknowledged: u64::MAX,
    };

    /// Raises the event for all openers of this process, and sends it to the other processes that have a handle.
    pub(super) fn raise(&self, event: impl Fn(usize) -> AsyncEvent) {
        for opener in &self.openers {
            opener.context.raise(event(opener.user_handle));
        }
        for guest in &self.guests {
            send_event(guest, event(0));
        }
    }

    /// Requests wait: the peer will be answered.
    #[inline]
    pub(super) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    pub(super) fn drop_backlog(&mut self) {
        self.backlog.clear();
        self.backlog_bytes = 0;
    }

    fn close_if_left(&mut self) -> bool {
        self.closed = self.openers.is_empty() && self.guests.is_empty();
        self.closed
    }
}

impl Qp {
    /// A new target QP of an XRC domain, without openers.
    pub(crate) fn create_target(
        pd: &Arc<Pd>,
        init: QpInit,
        domain: Arc<Domain>,
    ) -> ferroce_types::Result<Arc<Self>> {
        Self::create_as(pd, init, Some((domain, None)))
    }

    /// What executes the requests of another process's target with this number.
    pub(crate) fn create_proxy(
        pd: &Arc<Pd>,
        init: QpInit,
        domain: Arc<Domain>,
        qpn: u32,
    ) -> ferroce_types::Result<Arc<Self>> {
        Self::create_as(pd, init, Some((domain, Some(qpn))))
    }

    /// Which attributes it has.
    pub(super) fn rules(&self) -> AttrRules {
        match self.service {
            Service::Xrc if self.is_target() => AttrRules::TARGET,
            Service::Xrc => AttrRules::INITIATOR,
            service => service.into(),
        }
    }

    /// Is a target, and not an initiator.
    pub(crate) fn is_target(&self) -> bool {
        self.domain.is_some()
    }

    pub(crate) fn is_target_of(&self, domain: &Arc<Domain>) -> bool {
        self.domain.as_ref().is_some_and(|own| Arc::ptr_eq(own, domain))
    }

    /// Is a target of the domain that processes have by this file.
    pub(crate) fn is_target_of_file(&self, file: &DomainFile) -> bool {
        self.domain.as_ref().is_some_and(|own| own.file.as_ref() == Some(file))
    }

    /// Adds an opener, which gets the QP's events.
    ///
    /// # Errors
    /// [`ferroce_types::Error::Invalid`] when the QP is on its way out.
    pub(crate) fn add_opener(&self, opener: &Arc<Opener>) -> ferroce_types::Result<()> {
        let mut inner = self.inner.lock();
        if inner.xrc_target.closed {
            return invalid!("the queue pair is being destroyed");
        }
        inner.xrc_target.openers.push(opener.clone());
        Ok(())
    }

    /// Undoes [`Qp::add_opener`]. Returns whether it was the last handle; then the QP accepts no further one.
    pub(crate) fn remove_opener(&self, opener: &Arc<Opener>) -> bool {
        let mut inner = self.inner.lock();
        inner.xrc_target.openers.retain(|other| !Arc::ptr_eq(other, opener));
        inner.xrc_target.close_if_left()
    }

    /// Gives up the handles that a context has; `is_own`: the context created the QP. Returns whether the context had the last handle;
    /// then the QP accepts no further one.
    pub(super) fn give_up_handles_of(&self, context: &Context, is_own: bool) -> bool {
        let mut inner = self.inner.lock();
        let before = inner.xrc_target.openers.len();
        inner.xrc_target.openers.retain(|opener| !std::ptr::eq(&raw const *opener.context, context));
        let had = inner.xrc_target.openers.len() < before;
        (had || is_own) && inner.xrc_target.close_if_left()
    }

    /// Grants another process a handle: adds its connection and sends it the grant. False: the QP has been closed, or the grant can't be
    /// sent.
    pub(crate) fn add_guest(&self, connection: &Arc<EngineFd>) -> bool {
        let mut inner = self.inner.lock();
        let granted = !inner.xrc_target.closed && grant_handle(connection);
        if granted {
            inner.xrc_target.guests.push(connection.clone());
        }
        granted
    }

    /// Undoes [`Qp::add_guest`], as [`Qp::remove_opener`].
    pub(crate) fn remove_guest(&self, connection: &Arc<EngineFd>) -> bool {
        let mut inner = self.inner.lock();
        inner.xrc_target.guests.retain(|other| !Arc::ptr_eq(other, connection));
        inner.xrc_target.close_if_left()
    }

    /// Ends a QP whose last opener has gone, with the private objects that stand in for its queues.
    ///
    /// # Errors
    /// As [`Qp::destroy`].
    pub(crate) fn destroy_target(self: &Arc<Self>) -> ferroce_types::Result<()> {
        self.destroy()?;
        self.send_cq.destroy()
    }
}
