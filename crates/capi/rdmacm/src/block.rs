//! The program's structure of an id, and what the library keeps behind it: rdma_create_id(3), rdma_destroy_id(3).

use std::borrow::Cow;
use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::Arc;

use ferroce_abi::verbs::{IBV_QPT_RC, IBV_QPT_UD, ibv_pd, ibv_qp_init_attr};
use ferroce_connect::PortSpace;
use ferroce_entry::call::{Outcome, Refusal, put};
use ferroce_entry::entry;

use crate::abi::*;
use crate::channel;
use crate::devices::{self, SharedDevice};
use crate::event;
use crate::id::{self, CmId, IdStep};

/// What rdma_create_ep(3) keeps.
#[derive(Default)]
pub(crate) struct EpAttr {
    /// What the queue pairs of requests are made of.
    pub(crate) qp: Option<ibv_qp_init_attr>,
    /// The domain that the program has passed with it.
    pub(crate) pd: Option<*mut ibv_pd>,
    /// Goes before the program's private data.
    pub(crate) connect: Vec<u8>,
}

impl EpAttr {
    /// The private data of a request: that of the address information, and then the program's.
    pub(crate) fn private_data<'a>(&self, given: &'a [u8]) -> Outcome<Cow<'a, [u8]>> {
        Ok(if self.connect.is_empty() {
            Cow::Borrowed(given)
        } else {
            [&self.connect, given].concat().into()
        })
    }
}

/// What lies behind the program's structure.
#[repr(C)]
pub(crate) struct IdBlock {
    c: rdma_cm_id,
    id: Arc<CmId>,
    /// The device that it is bound to, of whose default domain it is a user.
    device: Option<SharedDevice>,
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
    pub(crate) unsafe fn of(id: *mut rdma_cm_id) -> Outcome<Arc<CmId>> {
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
        let id = Arc::new(CmId::new(known, is_sync, queue));
        // SAFETY: numbers and pointers, for all of which zeros are valid.
        let mut c: rdma_cm_id = unsafe { zeroed() };
        c.channel = channel;
        c.context = context;
        c.ps = space;
        c.qp_type = qp_type;
        let block = Box::into_raw(Box::new(Self { c, id: id.clone(), device: None, ep: EpAttr::default() }));
        id.set_program(block.cast());
        Ok(block.cast())
    }

    /// Shows the program that the id is bound to `device`.
    pub(crate) fn attach(&mut self, device: SharedDevice) -> Outcome<()> {
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
    pub(crate) fn device(&self) -> Outcome<SharedDevice> {
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
        state.step = IdStep::Ending;
        let queue = state.queue.clone();
        let (connection, port) = (state.connection.take(), state.port.take());
        let groups = std::mem::take(&mut state.groups);
        drop(state);
        // Unfetched requests are rejected, the connection ends with a message to the peer, and the port becomes free.
        drop(id::withdraw(&queue, &shared));
        drop((connection, port));
        for group in groups {
            group.leave();
        }
        // SAFETY: the event of a synchronous id is the library's.
        unsafe { event::acknowledge(std::mem::replace(&mut block.c.event, null_mut())) };
        shared.unacked.wait(|| shared.named(call, id));
        shared.set_program(null_mut());
        if shared.is_sync() {
            channel::free(block.c.channel);
        }
        // SAFETY: made by `allocate` and by `event` as boxes.
        unsafe {
            if !block.c.route.path_rec.is_null() {
                drop(Box::from_raw(block.c.route.path_rec));
            }
            if let Some(device) = block.device {
                SharedDevice::detach(&shared);
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
