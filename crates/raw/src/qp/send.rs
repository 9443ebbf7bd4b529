//! Frames that QPs send: gathered, padded, given their checksums, and handed to the packet socket in batches.

use super::{RawQp, RawState};
use crate::receive::VnetHeader;
use crate::tso::{MAX_TSO, Tso};
use ferroce_mem::Denied;
use ferroce_nic::qp::gather;
use ferroce_os::{
    clock,
    sys::{Outgoing, SendBatch},
};
use ferroce_proto::Data;
use ferroce_types::{Completion, Error, Instant, QpState, Result, WcOpcode, WcStatus, invalid};
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
    /// `data` are bytes of a TCP connection, to be sent in segments.
    pub tso: Option<Box<Tso>>,
}

impl RawSend {
    /// Frames that it makes.
    fn frames(&self) -> usize {
        self.tso.as_ref().map_or(1, |tso| tso.count(self.data.len() as usize))
    }

    /// Bytes of one of its frames, before padding.
    fn frame_len(&self, index: usize) -> usize {
        let length = self.data.len() as usize;
        self.tso.as_ref().map_or(length, |tso| tso.header_len() + tso.part(length, index).1)
    }

    /// Writes one of its frames, of just that length.
    fn write(&self, pd: u32, index: usize, frame: &mut [u8]) -> std::result::Result<(), Denied> {
        let length = self.data.len() as usize;
        let (offset, header) = match &self.tso {
            Some(tso) => (tso.part(length, index).0, tso.header_len()),
            None => (0, 0),
        };
        let to = &mut frame[header..];
        match &self.data {
            Data::Inline(bytes) => to.copy_from_slice(&bytes[offset..offset + to.len()]),
            Data::Sges(sges) => gather(pd, sges, offset as u64, to)?,
        }
        if let Some(tso) = &self.tso {
            tso.write(frame, length, index);
        }
        Ok(())
    }
}

/// Frames that have been gathered.
struct Frames {
    /// Where each ends, and whether it is the last of its request.
    ends: Vec<(usize, bool)>,
    /// Why there aren't more, if something is in the way.
    stop: Option<Stop>,
}

enum Stop {
    /// The next can't be read.
    Unreadable,
    /// The next has to wait until then.
    Later(Instant),
}

/// The buffers of one socket.
pub(super) struct FrameSender {
    frames: Box<[u8]>,
    messages: SendBatch<BATCH, 2, 0>,
}

/// A header that asks the kernel for nothing.
const NOTHING: &[u8] = &[0; VnetHeader::SIZE];

/// How a batch went.
enum BatchOutcome {
    /// This many frames.
    All(usize),
    /// The socket has no room for the next.
    Blocked,
    /// The next can't be sent.
    Failed(WcStatus),
}

impl FrameSender {
    pub(super) fn new() -> Self {
        Self { frames: vec![0; BYTES].into_boxed_slice(), messages: SendBatch::new() }
    }

    /// Gathers frames from `requests`, of the first of which `gone` have been sent, as long as `may` lets one of such a length go.
    fn gather<'a>(
        &mut self,
        pd: u32,
        requests: impl Iterator<Item = &'a RawSend>,
        mut gone: usize,
        mut may: impl FnMut(usize) -> std::result::Result<(), Instant>,
    ) -> Frames {
        let mut ends = Vec::with_capacity(BATCH);
        let mut at = 0;
        for request in requests {
            let count = request.frames();
            for index in std::mem::take(&mut gone)..count {
                let length = request.frame_len(index);
                let Some(frame) = self.frames.get_mut(at..at + length.max(SHORTEST)) else {
                    return Frames { ends, stop: None };
                };
                if ends.len() == BATCH {
                    return Frames { ends, stop: None };
                }
                if let Err(later) = may(frame.len()) {
                    return Frames { ends, stop: Some(Stop::Later(later)) };
                }
                if request.write(pd, index, &mut frame[..length]).is_err() {
                    return Frames { ends, stop: Some(Stop::Unreadable) };
                }
                frame[length..].fill(0);
                if request.checksums
                    && let Some(parsed) = Frame::parse(frame)
                {
                    checksum::fill(frame, &parsed.outer);
                }
                at += frame.len();
                ends.push((at, index + 1 == count));
            }
        }
        Frames { ends, stop: None }
    }

    fn send(&mut self, fd: i32, ends: &[(usize, bool)]) -> BatchOutcome {
        let frames = &*self.frames;
        let mut start = 0;
        let sent = self.messages.send(fd, ends, |&(end, _), _| {
            let frame = &frames[std::mem::replace(&mut start, end)..end];
            Outgoing::new([NOTHING, frame])
        });
        match sent {
            Ok(n) => BatchOutcome::All(n),
            Err(error) => match error.raw_os_error() {
                // No room in the socket, or in the interface's queue.
                Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => BatchOutcome::Blocked,
                Some(libc::EMSGSIZE) => BatchOutcome::Failed(WcStatus::LocLenErr),
                // The interface is down or gone: lost, as on a wire that ends.
                Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => BatchOutcome::All(1),
                _ => {
                    tracing::debug!(%error, "sending through a packet socket");
                    BatchOutcome::Failed(WcStatus::LocQpOpErr)
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
            state => return invalid!("a send request in state {state}"),
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
        if let Some(tso) = &request.tso {
            self.check_segments(tso, length)?;
        } else if length < ETHERNET_LEN {
            return invalid!("{length} bytes are less than an Ethernet header");
        }
        let frame = request.frame_len(0);
        let header = if self.port.fits(frame, ETHERNET_LEN) { 0 } else { self.header_length(&request) };
        if header > 0 && !self.port.fits(frame, header) {
            return invalid!("a frame of {frame} bytes is longer than the interface's MTU");
        }
        request.signaled |= self.sq_sig_all;
        Ok(request)
    }

    fn check_segments(&self, tso: &Tso, length: usize) -> Result<()> {
        if tso.header_len() > usize::from(self.max_tso_header) {
            return invalid!(
                "{} bytes of headers, the queue takes {}",
                tso.header_len(),
                self.max_tso_header
            );
        }
        if length > MAX_TSO as usize {
            return invalid!("{length} bytes to segment: at most {MAX_TSO}");
        }
        Ok(())
    }

    /// Bytes of the Ethernet header with a VLAN tag, which don't count as the interface's payload.
    fn header_length(&self, request: &RawSend) -> usize {
        if let Some(tso) = &request.tso {
            return tso.ethernet_len();
        }
        let mut header = [0; ETHERNET_LEN];
        let read = match &request.data {
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
            let sender = sender.get_or_insert_with(FrameSender::new);
            let now = clock::now();
            let mut ahead = send.pace;
            let may = |length| ahead.take(now, length);
            let Frames { ends, stop } = sender.gather(self.pd.id(), send.queue.iter(), send.gone, may);
            let sent = match (ends.first(), stop) {
                (Some(_), _) => sender.send(self.port.checked_fd(), &ends),
                (None, Some(Stop::Later(at))) => return self.go_on_at(at),
                (None, Some(Stop::Unreadable)) => BatchOutcome::Failed(WcStatus::LocProtErr),
                (None, None) => BatchOutcome::Failed(WcStatus::LocLenErr),
            };
            match sent {
                BatchOutcome::All(count) => {
                    let mut start = 0;
                    for &(end, last) in &ends[..count] {
                        // It was let go a moment ago.
                        let _ = send.pace.take(now, end - start);
                        self.port.sent(&sender.frames[start..end], self.qpn);
                        start = end;
                        send.gone += 1;
                        if last {
                            self.end_first(send);
                        }
                    }
                }
                BatchOutcome::Blocked => return self.port.block(self),
                BatchOutcome::Failed(status) => {
                    if let Some(request) = send.queue.pop_front() {
                        let _ = self.sent(&request, status);
                    }
                    send.gone = 0;
                    send.state = QpState::Err;
                }
            }
        }
        if self.state_of(send) == QpState::Err {
            self.fail(send);
        }
    }

    /// The first request has been sent in full.
    fn end_first(&self, send: &mut RawState) {
        send.gone = 0;
        if let Some(request) = send.queue.pop_front()
            && !self.sent(&request, WcStatus::Success)
        {
            send.state = QpState::Err;
            self.raise_fatal();
        }
    }

    /// Ends the QP for good: its socket has been lost.
    pub(super) fn give_up(&self) {
        self.fail(&mut self.send.lock());
        self.raise_fatal();
    }

    /// Flushes both queues.
    pub(super) fn fail(&self, send: &mut RawState) {
        send.state = QpState::Err;
        send.gone = 0;
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
        let opcode = if request.tso.is_some() { WcOpcode::Tso } else { WcOpcode::Send };
        cq.push(Completion { qp_num: self.qpn, ..Completion::new(request.wr_id, status, opcode) })
    }

    /// Goes on when the socket has room again; whether anything was sent.
    pub(super) fn resume(self: &Arc<Self>) -> bool {
        if self.port.is_inherited() {
            return false;
        }
        let mut send = self.send.lock();
        let before = (send.queue.len(), send.gone);
        self.transmit(&mut send);
        (send.queue.len(), send.gone) != before
    }
}
