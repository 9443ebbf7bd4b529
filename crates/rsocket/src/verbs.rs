//! Objects of librdmacm and libibverbs that end themselves.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};

use crate::abi::*;
use ferroce_rsocket_calls::call::{Outcome, SocketRefusal, errno, zero};
use ferroce_rsocket_calls::waiting::make_nonblocking;

/// A channel of connection events, whose reads never wait.
#[derive(Debug)]
struct Channel(NonNull<rdma_event_channel>);

impl Channel {
    fn new() -> Outcome<Self> {
        // SAFETY: no memory is passed.
        let channel = unsafe { rdma_create_event_channel() };
        let channel = Self(NonNull::new(channel).ok_or_else(|| SocketRefusal::last("no event channel"))?);
        make_nonblocking(channel.fd())?;
        Ok(channel)
    }

    fn fd(&self) -> RawFd {
        // SAFETY: a live channel.
        unsafe { (*self.0.as_ptr()).fd }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: a live channel, whose id has gone.
        unsafe { rdma_destroy_event_channel(self.0.as_ptr()) };
    }
}

/// What has happened to an id.
pub(crate) struct IdEvent {
    pub(crate) kind: c_int,
    pub(crate) status: c_int,
    /// Of a request: the id of the new connection.
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) flow_control: u8,
    data: [u8; 128],
    data_length: usize,
}

impl IdEvent {
    /// The private data that came with it, its beginning at least.
    pub(crate) fn data(&self) -> &[u8] {
        &self.data[..self.data_length]
    }

    /// The errno of an event that reports a failure.
    pub(crate) fn errno(&self) -> c_int {
        match (self.kind, self.status) {
            (RDMA_CM_EVENT_REJECTED, _) => libc::ECONNREFUSED,
            (_, status) if status < 0 => -status,
            (RDMA_CM_EVENT_UNREACHABLE, _) => libc::ENETUNREACH,
            (RDMA_CM_EVENT_DEVICE_REMOVAL, _) => libc::ENODEV,
            _ => libc::EIO,
        }
    }
}

/// A connection identifier with a channel of its own.
#[derive(Debug)]
pub(crate) struct ConnectionId {
    id: NonNull<rdma_cm_id>,
    channel: Option<Channel>,
}

// SAFETY: librdmacm's and libibverbs' calls may come from any thread.
unsafe impl Send for ConnectionId {}

impl ConnectionId {
    pub(crate) fn new(space: c_int) -> Outcome<Self> {
        let channel = Channel::new()?;
        let mut id = ptr::null_mut();
        // SAFETY: a live channel and a place for the id.
        let made = unsafe { rdma_create_id(channel.0.as_ptr(), &mut id, ptr::null_mut(), space) };
        zero(made, "no connection identifier")?;
        let id = NonNull::new(id).ok_or_else(|| SocketRefusal::plain(libc::EIO))?;
        Ok(Self { id, channel: Some(channel) })
    }

    /// The id of a request, which is moved from its listener's channel to one of its own.
    ///
    /// # Safety
    /// `id` is the id of a request whose event has been acknowledged, and is given up by the caller.
    pub(crate) unsafe fn of_request(id: *mut rdma_cm_id) -> Outcome<Self> {
        let id = NonNull::new(id).ok_or_else(|| SocketRefusal::plain(libc::EIO))?;
        // The listener's channel is the listener's to destroy.
        let mut new = Self { id, channel: None };
        let channel = Channel::new()?;
        // SAFETY: a live id and a live channel.
        zero(unsafe { rdma_migrate_id(id.as_ptr(), channel.0.as_ptr()) }, "moving a request")?;
        new.channel = Some(channel);
        Ok(new)
    }

    /// The descriptor that is readable while there is an event.
    pub(crate) fn fd(&self) -> RawFd {
        self.channel.as_ref().map_or(-1, Channel::fd)
    }

    pub(crate) fn raw(&self) -> *mut rdma_cm_id {
        self.id.as_ptr()
    }

    /// The next event, which is acknowledged.
    pub(crate) fn next_event(&mut self) -> Outcome<Option<IdEvent>> {
        let Some(channel) = &self.channel else { return Ok(None) };
        let mut event = ptr::null_mut();
        // SAFETY: a live channel, a place for the event.
        if unsafe { rdma_get_cm_event(channel.0.as_ptr(), &mut event) } != 0 {
            return match errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                _ => Err(SocketRefusal::last("no event")),
            };
        }
        // SAFETY: an event that stays until it is acknowledged. Both members of the union may be read as `conn`, whose
        // beginning they share.
        let copy = unsafe {
            let conn = (*event).param.conn;
            let mut copy = IdEvent {
                kind: (*event).event,
                status: (*event).status,
                id: (*event).id,
                retry_count: conn.retry_count,
                rnr_retry_count: conn.rnr_retry_count,
                flow_control: conn.flow_control,
                data: [0; 128],
                data_length: usize::from(conn.private_data_len).min(128),
            };
            if conn.private_data.is_null() {
                copy.data_length = 0;
            }
            ptr::copy_nonoverlapping(conn.private_data.cast(), copy.data.as_mut_ptr(), copy.data_length);
            copy
        };
        // SAFETY: the event that has just been fetched.
        unsafe { rdma_ack_cm_event(event) };
        Ok(Some(copy))
    }

    /// The device, once the id is bound to one.
    pub(crate) fn context(&self) -> Outcome<*mut ibv_context> {
        // SAFETY: a live id.
        let context = unsafe { (*self.raw()).verbs };
        if context.is_null() {
            return Err(SocketRefusal::new(libc::ENODEV, "the address belongs to no device"));
        }
        Ok(context)
    }

    pub(crate) fn pd(&self) -> *mut ibv_pd {
        // SAFETY: a live id.
        unsafe { (*self.raw()).pd }
    }

    /// The local address, as librdmacm keeps it.
    pub(crate) fn source(&self) -> libc::sockaddr_storage {
        // SAFETY: a live id.
        unsafe { (*self.raw()).route.addr.src_storage }
    }

    /// The peer's.
    pub(crate) fn destination(&self) -> libc::sockaddr_storage {
        // SAFETY: a live id.
        unsafe { (*self.raw()).route.addr.dst_storage }
    }

    /// The MTU of the path to the peer.
    pub(crate) fn path_mtu(&self) -> Option<c_int> {
        // SAFETY: a live id, whose path stays as long as it lives.
        let path = unsafe { (*self.raw()).route.path_rec.as_ref() }?;
        Some(128 << c_int::from(path.mtu & 0x3f).clamp(1, 5))
    }

    pub(crate) fn set_option<T>(&self, level: c_int, name: c_int, mut value: T) -> Outcome<()> {
        // SAFETY: a live id; a value of this length.
        zero(
            unsafe { rdma_set_option(self.raw(), level, name, (&raw mut value).cast(), size_of::<T>()) },
            "rdma_set_option",
        )
    }
}

impl Drop for ConnectionId {
    fn drop(&mut self) {
        // SAFETY: a live id, whose QP has gone and whose events are acknowledged.
        unsafe { rdma_destroy_id(self.raw()) };
    }
}

/// The sizes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) send: u32,
    pub(crate) receive: u32,
    pub(crate) inline: u32,
}

/// The most that the device allows, instead of what is asked.
fn limit(context: *mut ibv_context, sizes: Sizes) -> Sizes {
    // SAFETY: integers only, of which any bits are a value.
    let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
    // SAFETY: a live device and a place for its attributes.
    if unsafe { ibv_query_device(context, &mut attr) } != 0 {
        return sizes;
    }
    let places = u32::try_from(attr.max_qp_wr).unwrap_or(0).max(1);
    Sizes { send: sizes.send.min(places), receive: sizes.receive.min(places), ..sizes }
}

/// A queue pair of an id, with one completion queue for both directions and a channel for it.
///
/// It ends before its id, which its owner sees to by the order of fields.
#[derive(Debug)]
pub(crate) struct IdQp {
    id: *mut rdma_cm_id,
    qp: *mut ibv_qp,
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    sizes: Sizes,
    /// Events of the queue that aren't acknowledged.
    unacknowledged: c_uint,
    armed: bool,
}

// SAFETY: as for `ConnectionId`.
unsafe impl Send for IdQp {}

impl IdQp {
    pub(crate) fn new(id: &ConnectionId, kind: c_int, sizes: Sizes) -> Outcome<Self> {
        let context = id.context()?;
        let sizes = limit(context, sizes);
        let mut new = Self {
            id: id.raw(),
            qp: ptr::null_mut(),
            cq: ptr::null_mut(),
            channel: ptr::null_mut(),
            sizes,
            unacknowledged: 0,
            armed: false,
        };
        // SAFETY: a live device. What has been made is ended by `new`, also if the next step fails.
        unsafe {
            new.channel = ibv_create_comp_channel(context);
            if new.channel.is_null() {
                return Err(SocketRefusal::last("no completion channel"));
            }
            make_nonblocking((*new.channel).fd)?;
            let entries = c_int::try_from(sizes.send + sizes.receive).unwrap_or(c_int::MAX);
            new.cq = ibv_create_cq(context, entries, ptr::null_mut(), new.channel, 0);
            if new.cq.is_null() {
                return Err(SocketRefusal::last("no completion queue"));
            }
        }
        // A device may have no room for payloads in requests.
        for inline in [sizes.inline, 0] {
            let mut attr = ibv_qp_init_attr {
                qp_context: ptr::null_mut(),
                send_cq: new.cq,
                recv_cq: new.cq,
                srq: ptr::null_mut(),
                cap: ibv_qp_cap {
                    max_send_wr: sizes.send,
                    max_recv_wr: sizes.receive,
                    max_send_sge: 2,
                    max_recv_sge: 2,
                    max_inline_data: inline,
                },
                qp_type: kind,
                sq_sig_all: 1,
            };
            // SAFETY: a live id, bound to the device of the queue.
            if unsafe { rdma_create_qp(id.raw(), ptr::null_mut(), &mut attr) } == 0 {
                new.sizes.inline = inline;
                // SAFETY: as above; the id has the queue pair now.
                new.qp = unsafe { (*id.raw()).qp };
                return Ok(new);
            }
        }
        Err(SocketRefusal::last("no queue pair"))
    }

    pub(crate) fn sizes(&self) -> Sizes {
        self.sizes
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: a live queue pair.
        unsafe { (*self.qp).qp_num }
    }

    /// The descriptor that is readable while there is an event.
    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: a live channel.
        unsafe { (*self.channel).fd }
    }

    /// Posts a send request.
    pub(crate) fn post_send(&self, request: &mut ibv_send_wr) -> Outcome<()> {
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair; its device has the function; a request whose list is valid during the call.
        let result = unsafe {
            let post = (*(*self.qp).context).ops.post_send.ok_or_else(|| SocketRefusal::plain(libc::EIO))?;
            post(self.qp, request, &mut bad)
        };
        if result == 0 { Ok(()) } else { Err(SocketRefusal::new(result.abs(), "a request can't be posted")) }
    }

    /// Posts a receive request.
    pub(crate) fn post_receive(&self, id: u64, list: &mut [ibv_sge]) -> Outcome<()> {
        let mut bad = ptr::null_mut();
        let mut request = ibv_recv_wr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: list.as_mut_ptr(),
            num_sge: list.len() as c_int,
        };
        // SAFETY: as in `post_send`.
        let result = unsafe {
            let post = (*(*self.qp).context).ops.post_recv.ok_or_else(|| SocketRefusal::plain(libc::EIO))?;
            post(self.qp, &mut request, &mut bad)
        };
        if result == 0 { Ok(()) } else { Err(SocketRefusal::new(result.abs(), "a receive can't be posted")) }
    }

    /// The next completions.
    pub(crate) fn poll<'a>(&self, room: &'a mut [ibv_wc]) -> Outcome<&'a [ibv_wc]> {
        // SAFETY: a live queue; its device has the function; an array of this length.
        let found = unsafe {
            let poll = (*(*self.cq).context).ops.poll_cq.ok_or_else(|| SocketRefusal::plain(libc::EIO))?;
            poll(self.cq, room.len() as c_int, room.as_mut_ptr())
        };
        match usize::try_from(found) {
            Ok(found) => Ok(&room[..found]),
            Err(_) => Err(SocketRefusal::new(libc::EIO, "the completion queue has failed")),
        }
    }

    /// Requests a notification of the next completion. Earlier completions must be polled afterwards.
    pub(crate) fn arm(&mut self) -> Outcome<()> {
        if self.armed {
            return Ok(());
        }
        // SAFETY: as in `poll`.
        let result = unsafe {
            let arm =
                (*(*self.cq).context).ops.req_notify_cq.ok_or_else(|| SocketRefusal::plain(libc::EIO))?;
            arm(self.cq, 0)
        };
        self.armed = result == 0;
        if self.armed { Ok(()) } else { Err(SocketRefusal::new(result.abs(), "no notification")) }
    }

    /// Whether a notification is requested.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed
    }

    /// Takes the channel's events. True: there was one. It no longer wakes other threads.
    pub(crate) fn take_events(&mut self) -> bool {
        const TOGETHER: c_uint = 64;
        if !self.armed {
            return false;
        }
        let (mut cq, mut context): (*mut ibv_cq, *mut c_void) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: a live channel, which doesn't wait, and places for the results.
        while unsafe { ibv_get_cq_event(self.channel, &mut cq, &mut context) } == 0 {
            self.armed = false;
            self.unacknowledged += 1;
        }
        if self.unacknowledged >= TOGETHER {
            self.acknowledge();
        }
        !self.armed
    }

    fn acknowledge(&mut self) {
        if self.unacknowledged > 0 {
            // SAFETY: a live queue, and the number of its events.
            unsafe { ibv_ack_cq_events(self.cq, self.unacknowledged) };
            self.unacknowledged = 0;
        }
    }
}

impl Drop for IdQp {
    fn drop(&mut self) {
        // SAFETY: each object is live and owned here, and goes before what it is made of.
        unsafe {
            if !self.qp.is_null() {
                rdma_destroy_qp(self.id);
            }
            if !self.cq.is_null() {
                self.acknowledge();
                ibv_destroy_cq(self.cq);
            }
            if !self.channel.is_null() {
                ibv_destroy_comp_channel(self.channel);
            }
        }
    }
}

/// Memory of ours that is registered.
#[derive(Debug)]
pub(crate) struct RegisteredMemory {
    memory: NonNull<u8>,
    length: usize,
    mr: *mut ibv_mr,
}

// SAFETY: it is memory, and a region that any thread may use.
unsafe impl Send for RegisteredMemory {}

impl RegisteredMemory {
    pub(crate) fn new(pd: *mut ibv_pd, length: usize, access: c_uint) -> Outcome<Self> {
        let length = length.max(1);
        // SAFETY: a new mapping.
        let memory = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(SocketRefusal::last("no memory for buffers"));
        }
        let memory = NonNull::new(memory.cast::<u8>()).ok_or_else(|| SocketRefusal::plain(libc::ENOMEM))?;
        let mut new = Self { memory, length, mr: ptr::null_mut() };
        // SAFETY: a live domain, memory of this length.
        new.mr = unsafe { ibv_reg_mr(pd, memory.as_ptr().cast(), length, access) };
        if new.mr.is_null() {
            return Err(SocketRefusal::last("the buffers can't be registered"));
        }
        Ok(new)
    }

    pub(crate) fn address(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: a live region.
        unsafe { (*self.mr).lkey }
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: a live region.
        unsafe { (*self.mr).rkey }
    }

    /// A list entry for a part of it.
    pub(crate) fn entry(&self, offset: usize, length: usize) -> ibv_sge {
        ibv_sge { addr: self.address() + offset as u64, length: length as u32, lkey: self.lkey() }
    }

    /// Copies into it, around its end if need be.
    ///
    /// # Safety
    /// `from` is readable for `length` bytes, which is no more than the region's length.
    pub(crate) unsafe fn put(&self, offset: usize, from: *const u8, length: usize) {
        debug_assert!(offset < self.length && length <= self.length, "within the region");
        let before_end = length.min(self.length - offset);
        // SAFETY: both parts lie in the mapping; the caller's promise.
        unsafe {
            ptr::copy_nonoverlapping(from, self.memory.as_ptr().add(offset), before_end);
            ptr::copy_nonoverlapping(from.add(before_end), self.memory.as_ptr(), length - before_end);
        }
    }

    /// Copies out of it.
    ///
    /// # Safety
    /// `to` is writable for `length` bytes.
    pub(crate) unsafe fn get(&self, offset: usize, to: *mut u8, length: usize) {
        assert!(offset + length <= self.length, "within the region");
        // SAFETY: the part lies in the mapping; the caller's promise. A peer may write to it meanwhile only if it breaks the
        // protocol, and then gets its own bytes wrong.
        unsafe { ptr::copy_nonoverlapping(self.memory.as_ptr().add(offset), to, length) };
    }

    /// Some bytes of it.
    pub(crate) fn bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        // SAFETY: an array of this length.
        unsafe { self.get(offset, bytes.as_mut_ptr(), N) };
        bytes
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        // SAFETY: the region is live and the mapping is ours.
        unsafe {
            if !self.mr.is_null() {
                ibv_dereg_mr(self.mr);
            }
            libc::munmap(self.memory.as_ptr().cast(), self.length);
        }
    }
}

/// A request without payload, to be filled in.
pub(crate) fn request(id: u64, opcode: c_int) -> ibv_send_wr {
    ibv_send_wr {
        wr_id: id,
        next: ptr::null_mut(),
        sg_list: ptr::null_mut(),
        num_sge: 0,
        opcode,
        send_flags: 0,
        imm_data: 0,
        wr: ibv_send_wr_wr { rdma: ibv_send_wr_rdma { remote_addr: 0, rkey: 0 } },
        remote_srqn: 0,
        last: ibv_send_wr_last { tso: ibv_send_wr_tso { hdr: ptr::null_mut(), hdr_sz: 0, mss: 0 } },
    }
}

/// No completion yet.
pub(crate) const NO_COMPLETION: ibv_wc = ibv_wc {
    wr_id: 0,
    status: 0,
    opcode: 0,
    vendor_err: 0,
    byte_len: 0,
    imm_data: 0,
    qp_num: 0,
    src_qp: 0,
    wc_flags: 0,
    pkey_index: 0,
    slid: 0,
    sl: 0,
    dlid_path_bits: 0,
};
