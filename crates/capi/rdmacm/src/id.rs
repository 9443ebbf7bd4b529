//! Ids: rdma_create_id(3), rdma_destroy_id(3), and what the library knows of each behind the program's structure.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::net::SocketAddr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use ferroce_connect::{Connection, Ece, Port, PortSpace, Sink};
use ferroce_ibverbs::abi::{IBV_QPT_RC, IBV_QPT_UD};
use ferroce_ibverbs::call::{Outcome, Refusal, put};
use ferroce_ibverbs::entry;
use ferroce_os::sync::{Mutex, class};
use ferroce_types::HostAddr;

use crate::abi::*;
use crate::addrinfo::Answers;
use crate::agreed::Agreed;
use crate::bind::Place;
use crate::channel::{self, Queue, Queued};
use crate::connect::Early;
use crate::devices::{self, Device};
use crate::ep::EpAttr;
use crate::event::{self, News};
use crate::multicast::Group;
use crate::option::Options;
use crate::unacked::Unacked;

/// How far an id is on its way. The names are those of the states of the kernel's communication manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
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
pub(crate) struct State {
    pub(crate) step: Step,
    /// Where its events go.
    pub(crate) queue: Arc<Queue>,
    pub(crate) options: Options,
    pub(crate) port: Option<Arc<Port>>,
    /// Addresses and the way between them, as far as they are known.
    pub(crate) place: Place,
    pub(crate) connection: Option<Arc<Connection>>,
    /// News that came while the connection was being made: the program gets it when there is one.
    kept_back: Option<Vec<Queued>>,
    /// A request that is made again when nobody has the port.
    pub(crate) early: Option<Early>,
    /// What both sides have said of their queue pairs.
    pub(crate) agreed: Agreed,
    /// The queue pair couldn't be made ready: what happens to the connection from now on is no news.
    pub(crate) connect_failed: bool,
    /// Extended options of a queue pair of the program's own.
    pub(crate) own_ece: Ece,
    pub(crate) groups: Vec<Group>,
    pub(crate) answers: Answers,
}

/// An id as the library knows it.
pub(crate) struct Id {
    /// The program's structure; NULL when it is being destroyed.
    program: AtomicPtr<rdma_cm_id>,
    /// `None`: `RDMA_PS_IPOIB`, of which Ethernet has nothing.
    pub(crate) space: Option<PortSpace>,
    /// Calls wait for their events.
    is_sync: AtomicBool,
    /// Events that the program has got and not acknowledged.
    pub(crate) unacked: Unacked,
    /// Events in its channel that the program hasn't got.
    pub(crate) unread: AtomicUsize,
    pub(crate) state: Mutex<class::CmId, State>,
}

impl Id {
    pub(crate) fn program(&self) -> *mut rdma_cm_id {
        self.program.load(Ordering::Acquire)
    }

    pub(crate) fn is_sync(&self) -> bool {
        self.is_sync.load(Ordering::Relaxed)
    }

    pub(crate) fn set_sync(&self, is_sync: bool) {
        self.is_sync.store(is_sync, Ordering::Relaxed);
    }

    /// Puts news into the channel.
    pub(crate) fn push(self: &Arc<Self>, news: News) {
        let queued = Queued { id: self.clone(), news: Arc::new(news) };
        let mut state = self.state.lock();
        let mut unwanted = None;
        if state.step == Step::Ending {
            unwanted = Some(queued);
        } else if let Some(kept_back) = &mut state.kept_back {
            kept_back.push(queued);
        } else {
            channel::put(&state.queue, queued);
        }
        // A request that nobody gets is rejected as it is dropped, without a lock.
        drop(state);
        drop(unwanted);
    }

    /// Makes the connection. News of it reaches the channel when it is known here. Of an id that is being destroyed nothing is left of either.
    pub(crate) fn make_connection(&self, make: impl FnOnce() -> Outcome<Connection>) -> Outcome<()> {
        self.state.lock().kept_back = Some(Vec::new());
        let made = make();
        let mut state = self.state.lock();
        let kept_back = state.kept_back.take().unwrap_or_default();
        if state.step == Step::Ending {
            // The peer is told of the end without a lock.
            drop(state);
            drop((kept_back, made));
            return Ok(());
        }
        let connection = made?;
        state.connection = Some(Arc::new(connection));
        kept_back.into_iter().for_each(|queued| channel::put(&state.queue, queued));
        Ok(())
    }

    /// A thread is in [`Id::make_connection`].
    pub(crate) fn is_making_connection(&self) -> bool {
        self.state.lock().kept_back.is_some()
    }

    pub(crate) fn step(&self) -> Step {
        self.state.lock().step
    }

    /// The device that it is bound to is of no more use.
    pub(crate) fn removed(self: &Arc<Self>) {
        {
            let mut state = self.state.lock();
            if state.step == Step::Ending {
                return;
            }
            state.step = Step::Removed;
            state.agreed = Agreed::Over;
        }
        self.push(News::DeviceRemoval);
    }

    /// The interface of the device that it is bound to has another hardware address, or has lost the id's address. Who waits in a call
    /// of a synchronous id waits for something else.
    pub(crate) fn address_changed(self: &Arc<Self>) {
        if !self.is_sync() && self.step() != Step::Removed {
            self.push(News::AddrChange);
        }
    }

    /// Its address on the network.
    pub(crate) fn address(&self) -> Option<HostAddr> {
        let place = self.state.lock().place;
        place.way.map(|way| way.route.from).or(place.source.map(HostAddr::from))
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

    /// Whom events of its port and of its connection are told.
    pub(crate) fn sink(self: &Arc<Self>) -> Arc<dyn Sink> {
        Arc::new(Told(Arc::downgrade(self)))
    }
}

/// Tells an id, if it exists still.
struct Told(Weak<Id>);

impl Sink for Told {
    fn event(&self, event: ferroce_connect::Event) {
        if let Some(id) = self.0.upgrade() {
            event::told(&id, event);
        }
    }
}

/// What lies behind the program's structure.
#[repr(C)]
pub(crate) struct IdBlock {
    c: rdma_cm_id,
    id: Arc<Id>,
    /// The device that it is bound to, of whose default domain it is a user.
    device: Option<Device>,
    /// What rdma_get_request(3) makes queue pairs of.
    pub(crate) ep: EpAttr,
}

impl IdBlock {
    /// The block behind a program's pointer. Its fields are used by calls on this id, of which a program makes one at a time.
    ///
    /// # Safety
    /// `id` is null or an id that isn't destroyed.
    pub(crate) unsafe fn block<'a>(id: *mut rdma_cm_id) -> Outcome<&'a mut Self> {
        // SAFETY: the head of a block has the block's address.
        unsafe { id.cast::<Self>().as_mut() }.ok_or_else(|| Refusal::invalid("id is NULL"))
    }

    /// What the library knows of an id.
    ///
    /// # Safety
    /// As [`IdBlock::block`].
    pub(crate) unsafe fn of(id: *mut rdma_cm_id) -> Outcome<Arc<Id>> {
        // SAFETY: the caller's promise.
        Ok(unsafe { Self::block(id) }?.id.clone())
    }

    /// Makes an id; without a channel, a synchronous one with a channel of its own.
    ///
    /// # Safety
    /// `channel` is null or a channel.
    pub(crate) unsafe fn allocate(
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        space: c_int,
        qp_type: c_int,
    ) -> Outcome<*mut rdma_cm_id> {
        let known = match space {
            RDMA_PS_IPOIB => None,
            _ => Some(u16::try_from(space).ok().and_then(PortSpace::of).ok_or_else(|| {
                Refusal::invalid(format!("port space {space:#x}: RDMA_PS_TCP, _UDP, _IB and _IPOIB"))
            })?),
        };
        let is_sync = channel.is_null();
        let channel = if is_sync { channel::allocate()? } else { channel };
        let queue = channel::queue_of(channel)?;
        let id = Arc::new(Id {
            program: AtomicPtr::new(null_mut()),
            space: known,
            is_sync: AtomicBool::new(is_sync),
            unacked: Unacked::default(),
            unread: AtomicUsize::new(0),
            state: Mutex::new(State {
                step: Step::Idle,
                queue,
                options: Options::default(),
                port: None,
                place: Place::default(),
                connection: None,
                kept_back: None,
                early: None,
                agreed: Agreed::Nothing,
                connect_failed: false,
                own_ece: Ece::default(),
                groups: Vec::new(),
                answers: Answers::default(),
            }),
        });
        // SAFETY: numbers and pointers, for all of which zeros are valid.
        let mut c: rdma_cm_id = unsafe { zeroed() };
        c.channel = channel;
        c.context = context;
        c.ps = space;
        c.qp_type = qp_type;
        let block = Box::into_raw(Box::new(Self { c, id: id.clone(), device: None, ep: EpAttr::default() }));
        id.program.store(block.cast(), Ordering::Release);
        Ok(block.cast())
    }

    /// Shows the program that the id is bound to `device`.
    pub(crate) fn attach(&mut self, device: Device) -> Outcome<()> {
        if self.device.is_none() {
            self.c.pd = device.take_pd()?;
            self.c.verbs = device.verbs;
            self.c.port_num = 1;
            self.device = Some(device);
            device.attach(&self.id);
        }
        Ok(())
    }

    /// The device that it is bound to.
    ///
    /// # Errors
    /// EINVAL when it isn't.
    pub(crate) fn device(&self) -> Outcome<Device> {
        self.device.ok_or_else(|| {
            Refusal::invalid(
                "the id isn't bound to a device yet: bind it to an address of one, or resolve one",
            )
        })
    }

    /// Ends the id, for a call of the program.
    ///
    /// # Safety
    /// `id` is an id that the caller gives up.
    pub(crate) unsafe fn destroy(id: *mut rdma_cm_id, call: &'static str) -> Outcome<()> {
        // SAFETY: the caller's promise.
        let (block, shared) = unsafe { (Self::block(id)?, Self::of(id)?) };
        let mut state = shared.state.lock();
        state.step = Step::Ending;
        let queue = state.queue.clone();
        let (connection, port) = (state.connection.take(), state.port.take());
        let groups = std::mem::take(&mut state.groups);
        drop(state);
        // Requests that nobody has fetched are rejected, a connected peer is told, and the port is free again.
        drop(channel::withdraw(&queue, &shared));
        drop((connection, port));
        for group in groups {
            group.leave();
        }
        // SAFETY: the event of a synchronous id is the library's.
        unsafe { event::acknowledge(std::mem::replace(&mut block.c.event, null_mut())) };
        shared.unacked.wait(|| shared.named(call, id));
        shared.program.store(null_mut(), Ordering::Release);
        if shared.is_sync() {
            channel::free(block.c.channel);
        }
        // SAFETY: made by `allocate` and by `event` as boxes.
        unsafe {
            if !block.c.route.path_rec.is_null() {
                drop(Box::from_raw(block.c.route.path_rec));
            }
            if let Some(device) = block.device {
                Device::detach(&shared);
                device.give_pd();
            }
            drop(Box::from_raw(id.cast::<Self>()));
        }
        Ok(())
    }
}

/// The kind of queue pair of a port space.
pub(crate) fn qp_type_of(space: c_int) -> c_int {
    if matches!(space, RDMA_PS_UDP | RDMA_PS_IPOIB) { IBV_QPT_UD } else { IBV_QPT_RC }
}

entry! {
    fn rdma_create_id(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        context: *mut c_void,
        ps: c_int,
    ) -> minus_one {
        devices::need_one()?;
        if id.is_null() {
            return Err(Refusal::invalid("id is NULL"));
        }
        // SAFETY: by the man page NULL or a channel, and the caller's variable.
        unsafe { put(id, "id", IdBlock::allocate(channel, context, ps, qp_type_of(ps))?)? };
        Ok(0)
    }
}

entry! {
    fn rdma_destroy_id(id: *mut rdma_cm_id) -> minus_one {
        // SAFETY: by the man page an id that the caller gives up.
        unsafe { IdBlock::destroy(id, "rdma_destroy_id") }.map(|()| 0)
    }
}
