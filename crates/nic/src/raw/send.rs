//! Frames that QPs send: gathered, padded, given their checksums, and handed to the packet socket in batches.

use super::receive::VnetHeader;
use super::{RawQp, RawState};
use crate::cq::Wc;
use crate::engine;
use crate::error::{Error, Result, invalid};
use crate::mem::arena::Staging;
use crate::qp::gather;
use crate::sys;
use ferroce_proto::{Completion, Data, QpState, TagFlags, WcOpcode, WcStatus};
use ferroce_wire::checksum;
use ferroce_wire::frame::{ETHERNET_LEN, Frame};
use std::sync::Arc;

/// Frames handed over at once, and bytes for them.
const BATCH: usize = 32;
const BYTES: usize = 256 << 10;
/// The shortest frame on a wire, without its check sequence.
const SHORTEST: usize = 60;
const TAGGED: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];

/// A request to send a frame.
#[derive(Clone, Debug)]
pub struct RawSend {
    /// Comes with the completion.
    pub wr_id: u64,
    /// The frame, from the destination on.
    pub data: Data,
    /// It wants a completion.
    pub signaled: bool,
    /// Checksums of IPv4, TCP and UDP are to be computed (IBV_SEND_IP_CSUM).
    pub checksums: bool,
}

/// The buffers of one socket.
pub(super) struct Sender {
    frames: Staging,
    headers: [libc::mmsghdr; BATCH],
    parts: [[libc::iovec; 2]; BATCH],
    vnet: Box<VnetHeader>,
}

// SAFETY: the pointers lead to buffers that the same value owns.
unsafe impl Send for Sender {}

/// How a batch went.
enum Sent {
    /// This many frames.
    All(usize),
    /// The socket has no room for the next.
    Blocked,
    /// The next can't be sent.
    Failed(WcStatus),
}

impl Sender {
    pub(super) fn new() -> Self {
        Self {
            frames: Staging::new(BYTES),
            // SAFETY: numbers and null pointers.
            headers: unsafe { std::mem::zeroed() },
            // SAFETY: as above.
            parts: unsafe { std::mem::zeroed() },
            vnet: Box::default(),
        }
    }

    /// Gathers frames from `requests`; where each ends, and whether the one after them can't be read.
    fn gather<'a>(&mut self, pd: u32, requests: impl Iterator<Item = &'a RawSend>) -> (Vec<usize>, bool) {
        let mut ends = Vec::with_capacity(BATCH);
        let mut at = 0;
        for request in requests.take(BATCH) {
            let length = request.data.len() as usize;
            let Some(frame) = self.frames.get_mut(at..at + length.max(SHORTEST)) else { break };
            let gathered = match &request.data {
                Data::Inline(bytes) => {
                    frame[..length].copy_from_slice(bytes);
                    Ok(())
                }
                Data::Sges(sges) => gather(pd, sges, 0, &mut frame[..length]),
            };
            if gathered.is_err() {
                return (ends, true);
            }
            frame[length..].fill(0);
            if request.checksums
                && let Some(parsed) = Frame::parse(frame)
            {
                checksum::fill(frame, &parsed.outer);
            }
            at += frame.len();
            ends.push(at);
        }
        (ends, false)
    }

    fn send(&mut self, fd: i32, ends: &[usize]) -> Sent {
        let mut start = 0;
        for ((&end, parts), header) in ends.iter().zip(&mut self.parts).zip(&mut self.headers) {
            let frame = &mut self.frames[start..end];
            start = end;
            *parts = [
                libc::iovec {
                    iov_base: std::ptr::from_mut(&mut *self.vnet).cast(),
                    iov_len: size_of::<VnetHeader>(),
                },
                libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() },
            ];
            header.msg_hdr.msg_iov = parts.as_mut_ptr();
            header.msg_hdr.msg_iovlen = parts.len();
        }
        // SAFETY: every pointer was just set, to buffers that this value owns.
        match unsafe { sys::send_messages(fd, &mut self.headers[..ends.len()]) } {
            Ok(n) => Sent::All(n),
            Err(error) => match error.raw_os_error() {
                // No room in the socket, or in the interface's queue.
                Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => Sent::Blocked,
                Some(libc::EMSGSIZE) => Sent::Failed(WcStatus::LocLenErr),
                // The interface is down or gone: lost, as on a wire that ends.
                Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => Sent::All(1),
                _ => {
                    tracing::debug!(%error, "sending through a packet socket");
                    Sent::Failed(WcStatus::LocQpOpErr)
                }
            },
        }
    }
}

impl RawQp {
    /// Posts send requests, as many as `next` gives (ibv_post_send(3)).
    ///
    /// # Errors
    /// The first request that wasn't taken; those before it are posted.
    pub fn post_send(self: &Arc<Self>, mut next: impl FnMut() -> Option<Result<RawSend>>) -> Result<()> {
        let mut send = self.send.lock();
        let mut result = Ok(());
        while let Some(request) = next() {
            let posted = request.and_then(|request| self.check_send(&send, request)).map(|request| {
                send.queue.push_back(request);
            });
            if posted.is_err() {
                result = posted;
                break;
            }
        }
        self.transmit(&mut send);
        result
    }

    pub(super) fn check_send(&self, send: &RawState, mut request: RawSend) -> Result<RawSend> {
        let Some(queue_size) = self.send_cq.as_ref().map(|_| self.cap.max_send_wr) else {
            return invalid!("a queue pair with an indirection table only receives");
        };
        match self.state_of(send) {
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => {}
            state => return invalid!("a send request in state {state:?}"),
        }
        if send.queue.len() >= queue_size as usize {
            return Err(Error::NoMemory(format!("the send queue of {queue_size} work requests is full")));
        }
        let length = request.data.len() as usize;
        match &request.data {
            Data::Sges(sges) if sges.len() > self.cap.max_send_sge as usize => {
                return invalid!("{} gather elements, the queue takes {}", sges.len(), self.cap.max_send_sge);
            }
            Data::Inline(_) if length > self.cap.max_inline_data as usize => {
                return invalid!("{length} bytes inline, the queue takes {}", self.cap.max_inline_data);
            }
            _ => {}
        }
        if length < ETHERNET_LEN {
            return invalid!("{length} bytes are less than an Ethernet header");
        }
        let header = if self.port.fits(length, ETHERNET_LEN) { 0 } else { self.header_length(&request.data) };
        if header > 0 && !self.port.fits(length, header) {
            return invalid!("a frame of {length} bytes is longer than the interface's MTU");
        }
        request.signaled |= self.sq_sig_all;
        Ok(request)
    }

    /// Bytes of the Ethernet header with a VLAN tag, which don't count as the interface's payload.
    fn header_length(&self, data: &Data) -> usize {
        let mut header = [0; ETHERNET_LEN];
        let read = match data {
            Data::Inline(bytes) => {
                bytes.get(..ETHERNET_LEN).map(|bytes| header.copy_from_slice(bytes)).is_some()
            }
            Data::Sges(sges) => gather(self.pd.id(), sges, 0, &mut header).is_ok(),
        };
        ETHERNET_LEN + if read && TAGGED.iter().any(|tag| header[12..] == *tag) { 4 } else { 0 }
    }

    /// Sends what the socket takes.
    pub(super) fn transmit(self: &Arc<Self>, send: &mut RawState) {
        if self.port.is_inherited() {
            send.state = QpState::Err;
        }
        while self.state_of(send) == QpState::Rts && !send.queue.is_empty() {
            let mut sender = self.port.sender.lock();
            let sender = sender.get_or_insert_with(Sender::new);
            let (ends, unreadable) = sender.gather(self.pd.id(), send.queue.iter());
            let sent = match ends.first() {
                Some(_) => sender.send(self.port.fd(), &ends),
                None if unreadable => Sent::Failed(WcStatus::LocProtErr),
                None => Sent::Failed(WcStatus::LocLenErr),
            };
            match sent {
                Sent::All(count) => {
                    let mut start = 0;
                    for &end in &ends[..count] {
                        self.port.sent(&sender.frames[start..end], self.qpn);
                        start = end;
                        if let Some(request) = send.queue.pop_front()
                            && !self.sent(&request, WcStatus::Success)
                        {
                            send.state = QpState::Err;
                            self.raise_fatal();
                        }
                    }
                }
                Sent::Blocked => return self.port.block(self),
                Sent::Failed(status) => {
                    if let Some(request) = send.queue.pop_front() {
                        let _ = self.sent(&request, status);
                    }
                    send.state = QpState::Err;
                }
            }
        }
        if self.state_of(send) == QpState::Err {
            self.fail(send);
        }
    }

    /// Flushes both queues.
    pub(super) fn fail(&self, send: &mut RawState) {
        send.state = QpState::Err;
        for request in send.queue.drain(..) {
            let _ = self.sent(&request, WcStatus::WrFlushErr);
        }
        self.fail_receive_queue();
    }

    /// Reports a request that has ended; false when the completion queue has overrun.
    fn sent(&self, request: &RawSend, status: WcStatus) -> bool {
        let (true, Some(cq)) = (request.signaled || status != WcStatus::Success, &self.send_cq) else {
            return true;
        };
        let completion = Completion {
            wr_id: request.wr_id,
            status,
            opcode: WcOpcode::Send,
            byte_len: 0,
            immediate: None,
            invalidated_rkey: None,
            src_qp: 0,
            grh: false,
            solicited: false,
            tags: TagFlags::default(),
        };
        cq.push(Wc { qp_num: self.qpn, completion, network: None, checksums_ok: false })
    }

    /// Goes on when the socket has room again; whether anything was sent.
    pub(super) fn resume(self: &Arc<Self>) -> bool {
        if self.port.is_inherited() || engine::current().is_none() {
            return false;
        }
        let mut send = self.send.lock();
        let before = send.queue.len();
        self.transmit(&mut send);
        send.queue.len() < before
    }
}
