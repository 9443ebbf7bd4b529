//! How a queue pair is made.

use crate::verbs::core::Core;
use crate::verbs::cq::{AnyCq, CqCore};
use crate::verbs::device::{Domain, LIMITS};
use crate::verbs::endpoint::is_mtu;
use crate::verbs::srq::Srq;
use crate::verbs::{Reliable, Setup, Transport};
use ferroce_buffers::{Error, QpAttributes, Result};
use std::marker::PhantomData;
use std::time::Duration;

/// The attributes of a queue pair that is to be made.
#[derive(Debug)]
#[must_use = "`build` makes the queue pair"]
pub struct Builder<'q, T> {
    domain: &'q Domain,
    parameters: Parameters<'q>,
    transport: PhantomData<T>,
}

/// What a queue pair is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameters<'q> {
    pub(crate) send_cq: &'q CqCore,
    pub(crate) recv_cq: &'q CqCore,
    pub(crate) srq: Option<&'q Srq>,
    pub(crate) attributes: QpAttributes,
}

impl<'q, T: Transport> Builder<'q, T> {
    pub(crate) const fn new(domain: &'q Domain, cq: &'q CqCore) -> Self {
        let parameters = Parameters {
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            attributes: QpAttributes {
                service: T::SERVICE,
                send_depth: 8,
                recv_depth: 8,
                parts: 4,
                inline: 64,
                mtu: 1024,
                reads: LIMITS.reads,
                peer_reads: LIMITS.reads,
                rnr_timer: 12,
                timeout: 14,
                retries: 7,
                rnr_retries: 6,
            },
        };
        Self { domain, parameters, transport: PhantomData }
    }

    /// Completions of receives go to this queue.
    pub fn recv_cq(mut self, cq: &'q impl AnyCq) -> Self {
        self.parameters.recv_cq = cq.core();
        self
    }

    /// Requests that the send queue holds, until their completions are polled. The default is 8.
    pub const fn send_depth(mut self, depth: u32) -> Self {
        self.parameters.attributes.send_depth = depth;
        self
    }

    /// Receives that the receive queue holds, until their completions are polled. The default is 8.
    pub const fn recv_depth(mut self, depth: u32) -> Self {
        self.parameters.attributes.recv_depth = depth;
        self
    }

    /// Pieces of memory in a request. The default is 4.
    pub const fn parts(mut self, parts: u32) -> Self {
        self.parameters.attributes.parts = parts;
        self
    }

    /// Bytes of [`Inline`](crate::Inline) data in a request. The default is 64.
    pub const fn inline(mut self, bytes: u32) -> Self {
        self.parameters.attributes.inline = bytes;
        self
    }

    /// Bytes of payload in a packet: 256, 512, 1024, 2048 or 4096. The connection uses the smaller of the two
    /// sides' values. The default is 1024.
    pub const fn mtu(mut self, bytes: u32) -> Self {
        self.parameters.attributes.mtu = bytes;
        self
    }

    /// Makes the queue pair. It accepts receives, and requests after [`Setup::connect`] or [`Setup::activate`].
    ///
    /// # Errors
    /// An attribute is out of its range, or a completion queue is of another device ([`Kind::Invalid`](crate::Kind::Invalid)); the
    /// completion queues have no room for the completions of all requests that fit ([`Kind::Full`](crate::Kind::Full)); or a
    /// limit of the device is reached.
    pub fn build(self) -> Result<Setup<T>> {
        let QpAttributes { send_depth, recv_depth, parts, inline, mtu, .. } = self.parameters.attributes;
        let QpAttributes { reads, peer_reads, retries, .. } = self.parameters.attributes;
        let wrong = |why: String| Err(Error::invalid("build", why));
        if send_depth > LIMITS.send_depth || recv_depth > LIMITS.recv_depth {
            return wrong(format!(
                "queues of {send_depth} requests and {recv_depth} receives; the limits are {} and {}",
                LIMITS.send_depth, LIMITS.recv_depth
            ));
        }
        if parts == 0 || parts > LIMITS.parts || inline > LIMITS.inline {
            return wrong(format!(
                "requests of {parts} parts and {inline} inline bytes; the limits are {} and {}",
                LIMITS.parts, LIMITS.inline
            ));
        }
        if !is_mtu(mtu) {
            return wrong(format!("an MTU of {mtu}; it is 256, 512, 1024, 2048 or 4096"));
        }
        if reads > LIMITS.reads || peer_reads > LIMITS.reads || retries > 7 {
            return wrong(format!(
                "{reads} and {peer_reads} READs and {retries} retries; the limits are {} and 7",
                LIMITS.reads
            ));
        }
        Ok(Setup::new(Core::new(self.domain, &self.parameters)?))
    }
}

/// What only reliable connections have.
impl<'q> Builder<'q, Reliable> {
    /// Takes receives from this queue instead of one of its own. The completion queue of receives has room for all that fit into it,
    /// once for all queue pairs.
    pub const fn srq(mut self, srq: &'q Srq) -> Self {
        self.parameters.srq = Some(srq);
        self.parameters.attributes.recv_depth = 0;
        self
    }

    /// READs and atomics that this side has outstanding, and that it accepts from the peer. The default is 16 for both.
    pub const fn reads(mut self, outstanding: u8, accepted: u8) -> Self {
        (self.parameters.attributes.reads, self.parameters.attributes.peer_reads) = (outstanding, accepted);
        self
    }

    /// The local ACK timeout, and how often a request is sent again. The adapter rounds the time up to 4.096 µs × 2^n, and
    /// waits up to four times as long; that of [`Device::native`](crate::verbs::Device::native) waits at least 4.2 ms. The
    /// defaults are 67 ms and 7 retries. 7 is the most.
    pub fn timeout(mut self, timeout: Duration, retries: u8) -> Self {
        let code = (1..31).find(|code| Duration::from_nanos(4096 << code) >= timeout);
        (self.parameters.attributes.timeout, self.parameters.attributes.retries) =
            (code.unwrap_or(31), retries);
        self
    }

    /// `wait` is how long the peer waits when this side has no receive, rounded up to a time that the specification has. `retries` is
    /// how often this side sends again when the peer has none: `Some(0)` to `Some(6)`, or `None` for without end. (`Some(7)` and
    /// more are the same as `None`.) The defaults are 0.64 ms and `Some(6)`: a send fails after about 4 ms.
    pub fn receiver_not_ready(mut self, wait: Duration, retries: Option<u8>) -> Self {
        // Code 0 is the longest time.
        let code = (1..32).find(|code| ferroce_proto::rnr_delay(*code) >= wait);
        self.parameters.attributes.rnr_timer = code.unwrap_or(0);
        self.parameters.attributes.rnr_retries = retries.map_or(7, |retries| retries.min(7));
        self
    }
}
