//! Ids as the library knows them: the step that each has reached, the queue of its events, and events that are deferred.
//!
//! The data of each subject is below (`place`, `agreed`, `early`, `group`, `addrinfo`), the program's structure above (`block`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

use ferroce_connect::{BoundPort, Connection, Ece, PortSpace};
use ferroce_entry::call::Outcome;
use ferroce_nic::DeviceNews;
use ferroce_os::sync::{Mutex, class};
use ferroce_queues::EventQueue;
use ferroce_types::HostAddr;

use crate::abi::rdma_cm_id;
use crate::addrinfo::AddrInfoLookup;
use crate::agreed::Agreed;
use crate::devices::DeviceUser;
use crate::early::Early;
use crate::group::CmGroup;
use crate::news::IdNews;
use crate::place::IdPlace;
use crate::unacked::UnackedEvents;

/// An event that the program hasn't fetched.
#[derive(Clone)]
pub(crate) struct QueuedEvent {
    /// The id that it counts against: the id's destruction waits until the event is acknowledged.
    pub(crate) id: Arc<CmId>,
    pub(crate) news: Arc<IdNews>,
}

/// What a channel keeps.
pub(crate) type Queue = EventQueue<QueuedEvent>;

/// What a program has asked for.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct IdOptions {
    /// Type of service.
    pub(crate) tos: u8,
    /// Others may have the port as well.
    pub(crate) reuse: bool,
    /// IPv6 only.
    pub(crate) v6_only: bool,
    /// Local ACK timeout of queue pairs, instead of one by the path.
    pub(crate) ack_timeout: Option<u8>,
}

/// How far an id is on its way. The names are those of the states of the kernel's communication manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IdStep {
    /// Nothing is known of it.
    Idle,
    /// It has an address.
    Bound,
    /// It waits for requests.
    Listening,
    /// The way to the destination is looked for.
    Resolving,
    /// An interface leads there.
    AddrResolved,
    /// All is known that a connection needs.
    RouteResolved,
    /// A connection is wanted, or there is one, or there was.
    Connecting,
    /// The device has gone.
    Removed,
    /// The program gives it up.
    Ending,
}

/// What is known of an id, whichever thread asks.
pub(crate) struct IdState {
    pub(crate) step: IdStep,
    /// Where its events go.
    pub(crate) queue: Arc<Queue>,
    pub(crate) options: IdOptions,
    pub(crate) port: Option<Arc<BoundPort>>,
    /// Addresses and the way between them, as far as they are known.
    pub(crate) place: IdPlace,
    pub(crate) connection: Option<Arc<Connection>>,
    /// IdNews that came while the connection was being made: the program gets it when there is one.
    kept_back: Option<Vec<QueuedEvent>>,
    /// A request that is repeated while no process has the port.
    pub(crate) early: Option<Early>,
    /// What both sides have announced about their queue pairs.
    pub(crate) agreed: Agreed,
    /// The queue pair couldn't be made ready: later events of the connection are dropped.
    pub(crate) connect_failed: bool,
    /// Extended options of a queue pair of the program's own.
    pub(crate) own_ece: Ece,
    pub(crate) groups: Vec<CmGroup>,
    pub(crate) answers: AddrInfoLookup,
}

/// An id as the library knows it.
pub(crate) struct CmId {
    /// The program's structure; NULL when it is being destroyed.
    program: AtomicPtr<rdma_cm_id>,
    /// `None`: `RDMA_PS_IPOIB`, of which Ethernet has nothing.
    pub(crate) space: Option<PortSpace>,
    /// Calls wait for their events.
    is_sync: AtomicBool,
    /// Events that the program has got and not acknowledged.
    pub(crate) unacked: UnackedEvents,
    /// Events in its channel that the program hasn't got.
    pub(crate) unread: AtomicUsize,
    pub(crate) state: Mutex<class::CmId, IdState>,
}

impl CmId {
    pub(crate) fn new(space: Option<PortSpace>, is_sync: bool, queue: Arc<Queue>) -> Self {
        Self {
            program: AtomicPtr::default(),
            space,
            is_sync: AtomicBool::new(is_sync),
            unacked: UnackedEvents::default(),
            unread: AtomicUsize::new(0),
            state: Mutex::new(IdState {
                step: IdStep::Idle,
                queue,
                options: IdOptions::default(),
                port: None,
                place: IdPlace::default(),
                connection: None,
                kept_back: None,
                early: None,
                agreed: Agreed::Nothing,
                connect_failed: false,
                own_ece: Ece::default(),
                groups: Vec::new(),
                answers: AddrInfoLookup::default(),
            }),
        }
    }

    pub(crate) fn program(&self) -> *mut rdma_cm_id {
        self.program.load(Ordering::Acquire)
    }

    pub(crate) fn set_program(&self, program: *mut rdma_cm_id) {
        self.program.store(program, Ordering::Release);
    }

    pub(crate) fn is_sync(&self) -> bool {
        self.is_sync.load(Ordering::Relaxed)
    }

    pub(crate) fn set_sync(&self, is_sync: bool) {
        self.is_sync.store(is_sync, Ordering::Relaxed);
    }

    /// Puts news into the channel.
    pub(crate) fn push(self: &Arc<Self>, news: IdNews) {
        let queued = QueuedEvent { id: self.clone(), news: Arc::new(news) };
        let mut state = self.state.lock();
        let mut unwanted = None;
        if state.step == IdStep::Ending {
            unwanted = Some(queued);
        } else if let Some(kept_back) = &mut state.kept_back {
            kept_back.push(queued);
        } else {
            put(&state.queue, queued);
        }
        // An unwanted request is rejected as it is dropped, without a lock.
        drop(state);
        drop(unwanted);
    }

    /// Makes the connection. Its news reach the channel once `IdState::connection` is set. If the id is being destroyed, both are dropped.
    pub(crate) fn make_connection(&self, make: impl FnOnce() -> Outcome<Connection>) -> Outcome<()> {
        self.state.lock().kept_back = Some(Vec::new());
        let made = make();
        let mut state = self.state.lock();
        let kept_back = state.kept_back.take().unwrap_or_default();
        if state.step == IdStep::Ending {
            // The drop sends a message to the peer, so it holds no lock.
            drop(state);
            drop((kept_back, made));
            return Ok(());
        }
        let connection = made?;
        state.connection = Some(Arc::new(connection));
        kept_back.into_iter().for_each(|queued| put(&state.queue, queued));
        Ok(())
    }

    /// A thread is in [`CmId::make_connection`].
    pub(crate) fn is_making_connection(&self) -> bool {
        self.state.lock().kept_back.is_some()
    }

    pub(crate) fn step(&self) -> IdStep {
        self.state.lock().step
    }

    /// A call, and for which id of the program it was made.
    pub(crate) fn named(&self, call: &str, id: *mut rdma_cm_id) -> String {
        let place = self.state.lock().place;
        let at = |word: &str, address: Option<SocketAddr>| {
            address.map_or(String::new(), |address| format!(" {word} {address}"))
        };
        format!("{call} of id {id:p}{}{}", at("at", place.source), at("to", place.destination))
    }

    /// The connection, if there is one.
    pub(crate) fn connection(&self) -> Option<Arc<Connection>> {
        self.state.lock().connection.clone()
    }
}

impl DeviceUser for CmId {
    fn device_changed(self: Arc<Self>, news: &DeviceNews) {
        if matches!(news, DeviceNews::Failed) {
            let mut state = self.state.lock();
            if state.step == IdStep::Ending {
                return;
            }
            state.step = IdStep::Removed;
            state.agreed = Agreed::Over;
            drop(state);
            return self.push(IdNews::DeviceRemoval);
        }
        let (place, step) = {
            let state = self.state.lock();
            (state.place, state.step)
        };
        let own = place.way.map(|way| way.route.from).or(place.source.map(HostAddr::from));
        let is_lost = |lost: &Vec<HostAddr>| own.is_some_and(|own| lost.contains(&own));
        let is_changed = !matches!(news, DeviceNews::AddressesLost(lost) if !is_lost(lost));
        // A thread in a call of a synchronous id waits for another event, and would take this one for it.
        if is_changed && !self.is_sync() && step != IdStep::Removed {
            self.push(IdNews::AddrChange);
        }
    }
}

/// Adds an event.
pub(crate) fn put(queue: &Queue, queued: QueuedEvent) {
    queued.id.unread.fetch_add(1, Ordering::AcqRel);
    queue.push(queued);
}

/// The oldest event of `queue`, counted against its id.
pub(crate) fn take(queue: &Queue) -> Option<QueuedEvent> {
    queue.take_with(Duration::ZERO, |queued| {
        queued.id.unacked.got();
        queued.id.unread.fetch_sub(1, Ordering::AcqRel);
        queued.clone()
    })
}

/// Takes the unread events of `id` out of `queue`. Without any, it doesn't look through those of others.
pub(crate) fn withdraw(queue: &Queue, id: &Arc<CmId>) -> Vec<QueuedEvent> {
    let mut found = Vec::new();
    if id.unread.load(Ordering::Acquire) == 0 {
        return found;
    }
    queue.withdraw(|queued| {
        let is_its = Arc::ptr_eq(&queued.id, id);
        if is_its {
            found.push(queued.clone());
        }
        is_its
    });
    id.unread.fetch_sub(found.len(), Ordering::AcqRel);
    found
}
