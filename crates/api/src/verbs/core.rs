//! What a queue pair consists of, before and after it is connected.

use crate::verbs::address::Address;
use crate::verbs::backend::{RawDomain, RawQp};
use crate::verbs::builder::Parameters;
use crate::verbs::cq::Operated;
use crate::verbs::device::Domain;
use crate::verbs::endpoint::{Endpoint, GRH};
use crate::verbs::loans::{Loaned, Windows};
use crate::verbs::ops::sealed::{Described, Flags};
use crate::verbs::posting::{Plan, Receive, SendSlot, Slot};
use crate::verbs::slots::{Entry, Kept, Queue, Shared};
use crate::verbs::srq::Srq;
use crate::verbs::{Operation, Transport};
use ferroce_buffers::slots::{Poster, ring};
use ferroce_buffers::{
    Buffer, Error, Failed, Held, Inline, Kind, Parts, PayloadMut, Pool, QpAttributes, QpService, Result,
    Results, Rights, Segments,
};
use ferroce_proto::{DataRef, SendOp};
use ferroce_types::{Access, BindMw};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// One direction of a queue pair: the slots, and where its completions go.
struct Half {
    poster: Poster<Box<Entry>>,
    queue: Arc<Queue>,
    cq: Arc<Shared>,
    depth: u32,
}

impl Half {
    fn new(cq: &Arc<Shared>, depth: u32) -> Result<Self> {
        let (poster, retirer) = ring(depth);
        let queue = cq.join(retirer, depth)?;
        Ok(Self { poster, queue, cq: cq.clone(), depth })
    }

    /// The slot of the next request, in which there is nothing, and the queue. The caller has seen that there is room, and only it adds
    /// requests.
    #[inline(always)]
    fn next(&mut self) -> (Slot<'_>, &Queue) {
        (self.poster.place().expect("a slot for a request"), &self.queue)
    }

    #[cold]
    fn full(&self, verb: &'static str) -> Error {
        let why = format!("{} requests are outstanding or wait to be polled", self.depth);
        Error::new(Kind::Full, verb, why)
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        self.cq.leave(&self.queue);
    }
}

/// Where receives come from.
enum Receives {
    Own(Half),
    /// The shared queue, and where completions go.
    Shared(Srq, Arc<Shared>),
}

impl Receives {
    fn new(srq: Option<&Srq>, cq: &Arc<Shared>, depth: u32) -> Result<Self> {
        let Some(srq) = srq else { return Ok(Self::Own(Half::new(cq, depth)?)) };
        cq.join_shared(srq.queue(), srq.depth())?;
        Ok(Self::Shared(srq.clone(), cq.clone()))
    }

    fn queue(&self) -> &Arc<Queue> {
        match self {
            Self::Own(half) => &half.queue,
            Self::Shared(srq, _) => srq.queue(),
        }
    }

    fn cq(&self) -> &Arc<Shared> {
        match self {
            Self::Own(Half { cq, .. }) | Self::Shared(_, cq) => cq,
        }
    }
}

impl Drop for Receives {
    fn drop(&mut self) {
        if let Self::Shared(srq, cq) = self {
            cq.leave(srq.queue());
        }
    }
}

/// A request that can be posted. It owns its memory.
pub(crate) struct Prepared {
    tag: u64,
    plan: Plan,
    kept: Option<Kept>,
    segments: Segments,
    inline: Option<Inline>,
    held: Held,
}

pub(crate) struct Core {
    /// `None` once it is destroyed. It ends before the slots: nothing accesses memory for it after that.
    inner: Option<RawQp>,
    domain: RawDomain,
    qpn: u32,
    sends: Half,
    receives: Receives,
    /// For the results of atomics.
    results: Option<Arc<Results>>,
    /// For the GRHs of datagrams.
    headers: Option<Pool>,
    qkey: Arc<AtomicU32>,
    windows: Arc<Windows>,
    /// Quiet requests since the last that wasn't.
    quiet: u32,
    /// The device has refused a request, which keeps its slot. No later one may retire it.
    refused: bool,
    attributes: QpAttributes,
}

impl Core {
    pub(crate) fn new(domain: &Domain, parameters: &Parameters<'_>) -> Result<Self> {
        let &Parameters { send_cq, recv_cq, srq, mut attributes } = parameters;
        let sends = Half::new(send_cq.shared(), attributes.send_depth)?;
        let receives = Receives::new(srq, recv_cq.shared(), attributes.recv_depth)?;
        let (mut results, mut headers) = (None, None);
        match attributes.service {
            QpService::Reliable => {
                let words = domain.alloc(Results::bytes(attributes.send_depth))?;
                results = Some(Arc::new(Results::new(words)?));
            }
            // One more: a completion that is being taken has left its slot, and still has its memory.
            QpService::Datagram => headers = Some(domain.pool(attributes.recv_depth as usize + 1, GRH)?),
            QpService::Unreliable => {}
        }
        // A receive has one more part for the GRH.
        attributes.parts += u32::from(headers.is_some());
        let cqs = [send_cq.inner(), recv_cq.inner()];
        let inner = domain.inner.qp(cqs, srq.map(Srq::raw), &attributes)?;
        let windows = Windows::new(&domain.inner);
        if attributes.service == QpService::Reliable {
            recv_cq.shared().set_windows(inner.qpn(), Some(windows.clone()));
        }
        let (domain, qpn) = (domain.inner.clone(), inner.qpn());
        let (inner, qkey) = (Some(inner), Arc::default());
        Ok(Self {
            inner,
            domain,
            qpn,
            sends,
            receives,
            results,
            headers,
            qkey,
            windows,
            quiet: 0,
            refused: false,
            attributes,
        })
    }

    /// The queue pair of a [`Setup`](crate::verbs::Setup), or for a request that was checked.
    #[inline]
    fn inner(&self) -> &RawQp {
        self.inner.as_ref().expect("it isn't destroyed")
    }

    /// # Errors
    /// A scope has destroyed the queue pair, or the device has refused a request.
    #[inline]
    pub(crate) fn check(&self, verb: &'static str) -> Result<()> {
        if self.inner.is_some() && !self.refused { Ok(()) } else { Err(self.ended(verb)) }
    }

    #[cold]
    fn ended(&self, verb: &'static str) -> Error {
        let why = if self.refused {
            "the device has refused a request"
        } else {
            "the queue pair was destroyed at the end of a scope"
        };
        Error::new(Kind::Dead, verb, why)
    }

    pub(crate) const fn number(&self) -> u32 {
        self.qpn
    }

    pub(crate) const fn domain(&self) -> &RawDomain {
        &self.domain
    }

    /// Whether both sends and receives complete there.
    pub(crate) fn completes_in(&self, cq: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.sends.cq, cq) && Arc::ptr_eq(self.receives.cq(), cq)
    }

    /// All its receives can be posted: none is outstanding, and they aren't shared.
    pub(crate) fn has_all_receives(&self) -> bool {
        matches!(&self.receives, Receives::Own(half) if half.poster.room() == half.depth)
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        self.inner().endpoint(self.attributes.peer_reads, self.qkey.load(Ordering::Relaxed))
    }

    pub(crate) fn connect(&self, endpoint: &Endpoint, first: Option<u32>) -> Result<()> {
        self.inner().connect(endpoint, first)
    }

    pub(crate) fn activate(&self, qkey: u32) -> Result<()> {
        self.inner().activate(qkey)?;
        self.qkey.store(qkey, Ordering::Relaxed);
        Ok(())
    }

    /// Requests that can be posted now.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.sends.poster.room()
    }

    /// Receives that can be posted now.
    #[inline]
    pub(crate) fn recv_room(&self) -> u32 {
        match &self.receives {
            Receives::Own(half) => half.poster.room(),
            Receives::Shared(srq, _) => srq.room(),
        }
    }

    pub(crate) const fn attributes(&self) -> &QpAttributes {
        &self.attributes
    }

    pub(crate) fn abort(&self) {
        if let Some(inner) = &self.inner {
            inner.abort();
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.inner.as_ref().is_none_or(RawQp::is_dead)
    }

    pub(crate) fn recv<P: PayloadMut>(&mut self, tag: u64, memory: P) -> Result<(), Failed<P>> {
        let (mut segments, mut header) = (memory.room(), None);
        if let Err(error) = self.plan_recv(&mut segments, &mut header) {
            return Err(Failed { error, back: memory });
        }
        let mut slot = self.next_receive();
        if let Some(header) = header {
            header.hold_for_writing(&mut slot.entry.held);
            slot.entry.kept = Some(Kept::Grh(slot.qkey.clone()));
        }
        memory.hold_for_writing(&mut slot.entry.held);
        slot.post(tag, segments);
        Ok(())
    }

    /// The slot of the next receive. The caller has seen that there is room.
    #[inline(always)]
    fn next_receive(&mut self) -> Receive<'_> {
        let Self { receives: Receives::Own(half), inner: Some(qp), qkey, refused, .. } = self else {
            unreachable!("the caller has looked")
        };
        let (entry, queue) = half.next();
        Receive { entry, queue, qp, qkey, refused }
    }

    /// Checks a receive of this memory, and adds that of a datagram's GRH.
    #[inline(always)]
    fn plan_recv(&mut self, segments: &mut Segments, header: &mut Option<Buffer>) -> Result<()> {
        self.check("recv")?;
        let Receives::Own(half) = &mut self.receives else {
            let why = "the queue pair takes its receives from a shared receive queue: post there";
            return Err(Error::invalid("recv", why));
        };
        if !half.poster.has_room() {
            return Err(half.full("recv"));
        }
        if let Some(pool) = &self.headers {
            // A completion that is being taken has one.
            let taken = pool.try_take().ok_or_else(|| half.full("recv"))?;
            let of_memory = std::mem::replace(segments, taken.room());
            segments.append(&of_memory);
            *header = Some(taken);
        }
        within(segments, self.attributes.parts, "recv")
    }

    /// Posts a receive of borrowed memory.
    pub(crate) fn recv_borrowed(&mut self, segments: Segments, held: Held, kept: Kept) -> Result<()> {
        self.check("recv")?;
        let Receives::Own(half) = &self.receives else {
            return Err(Error::invalid("recv", "a scope has no shared receives"));
        };
        if half.poster.room() == 0 {
            return Err(half.full("recv"));
        }
        let mut slot = self.next_receive();
        slot.entry.held.put(held);
        slot.entry.kept = Some(kept);
        slot.post(0, segments);
        Ok(())
    }

    /// Checks a request on borrowed memory.
    pub(crate) fn prepare_borrowed(
        &self,
        op: SendOp,
        flags: Flags,
        what: Operated,
        segments: Segments,
        held: Held,
        kept: Kept,
    ) -> Result<Prepared> {
        self.check("post")?;
        if self.sends.poster.room() == 0 {
            return Err(self.sends.full("post"));
        }
        self.check_length(self.attributes.service, DataRef::Sges(&segments).len())?;
        let plan = Plan { op, flags, what, region: 0 };
        Ok(Prepared { tag: 0, plan, kept: Some(kept), segments, inline: None, held })
    }

    #[inline]
    fn check_length(&self, service: QpService, len: u64) -> Result<()> {
        let most = self.inner().longest(service);
        if len > most { Err(Self::too_long(len, most)) } else { Ok(()) }
    }

    #[cold]
    fn too_long(len: u64, most: u64) -> Error {
        Error::new(Kind::TooLong, "post", format!("{len} bytes, at most {most} fit a message"))
    }

    pub(crate) fn post<T: Transport, O: Operation<T>>(
        &mut self,
        tag: u64,
        operation: O,
    ) -> Result<(), Failed<O>> {
        let has_room = self.sends.poster.has_room();
        let (plan, segments) = match self.plan(&operation, 0, has_room) {
            Ok(planned) => planned,
            Err(error) => return Err(Failed { error, back: operation }),
        };
        if matches!(plan.op, SendOp::BindMw(_)) {
            let prepared = self.prepare(tag, operation, 0)?;
            self.commit(prepared);
            return Ok(());
        }
        let number = self.sends.poster.next();
        let mut slot = self.next_send();
        // Only into the slot: for an operation that keeps nothing, nothing is left of this.
        let to = operation.to().map(|to| to.raw().clone());
        if plan.what == Operated::Atomic {
            slot.entry.kept = Some(Kept::Result(results_of(slot.results).clone(), number));
        } else if let Some(to) = &to {
            slot.entry.kept = Some(Kept::Address(to.clone()));
        }
        let inline = operation.hold(&mut slot.entry.held);
        slot.post(tag, plan, to, &segments, inline.as_ref());
        Ok(())
    }

    /// Checks a request that comes after `before` others which aren't posted yet.
    pub(crate) fn prepare<T: Transport, O: Operation<T>>(
        &self,
        tag: u64,
        operation: O,
        before: u32,
    ) -> Result<Prepared, Failed<O>> {
        let has_room = self.sends.poster.room() > before;
        let planned = self.plan(&operation, before, has_room);
        let planned = planned.and_then(|(plan, segments)| self.keep(plan, segments, operation.to(), before));
        let (plan, segments, kept) = match planned {
            Ok(planned) => planned,
            Err(error) => return Err(Failed { error, back: operation }),
        };
        let mut held = Held::default();
        let inline = operation.hold(&mut held);
        Ok(Prepared { tag, plan, kept, segments, inline, held })
    }

    /// Checks a request that comes after `before` others which aren't posted yet. Returns the memory that it names.
    #[inline(always)]
    fn plan<T: Transport, O: Operation<T>>(
        &self,
        operation: &O,
        before: u32,
        has_room: bool,
    ) -> Result<(Plan, Segments)> {
        self.check("post")?;
        if !has_room {
            return Err(self.sends.full("post"));
        }
        let Described { op, flags, what, inline, region, error } = operation.describe();
        if let Some(error) = error.or_else(|| self.refuse(inline, operation.to())) {
            return Err(error);
        }
        if matches!(op, SendOp::SendWithInvalidate { .. }) && T::SERVICE != QpService::Reliable {
            let why = "only a reliable connection returns loans";
            return Err(Error::new(Kind::Unsupported, "post", why));
        }
        let mut segments = operation.segments();
        within(&segments, self.attributes.parts, "post")?;
        if what == Operated::Atomic {
            let number = self.sends.poster.next().wrapping_add(before);
            segments = results_of(&self.results).segments(number);
        }
        self.check_length(T::SERVICE, inline.map_or(DataRef::Sges(&segments), DataRef::Inline).len())?;
        Ok((Plan { op, flags, what, region }, segments))
    }

    /// Adds what the slot of a request keeps besides its memory.
    fn keep(
        &self,
        mut plan: Plan,
        segments: Segments,
        to: Option<&Address>,
        before: u32,
    ) -> Result<(Plan, Segments, Option<Kept>)> {
        let kept = match plan.op {
            SendOp::BindMw(bind) => {
                let (bind, window) = self.lend(bind, plan.region)?;
                plan.op = SendOp::BindMw(bind);
                Some(window)
            }
            _ if plan.what == Operated::Atomic => {
                let number = self.sends.poster.next().wrapping_add(before);
                Some(Kept::Result(results_of(&self.results).clone(), number))
            }
            _ => to.map(|to| Kept::Address(to.raw().clone())),
        };
        Ok((plan, segments, kept))
    }

    /// A window for memory that is lent, whose number and key the request gets.
    #[cold]
    fn lend(&self, mut bind: BindMw, region: u64) -> Result<(BindMw, Kept)> {
        if !self.inner().lends(region) {
            return Err(Error::invalid("post", "the buffer was registered in another domain"));
        }
        let Access { remote_read: read, remote_write: write, remote_atomic: atomic, .. } = bind.access;
        let rights = Rights { read, write, atomic };
        let what = Loaned { address: bind.va, len: bind.length, rights };
        let lent = self.windows.lend(self.receives.queue(), what)?;
        (bind.window, bind.rkey) = lent.named();
        Ok((bind, Kept::Window(lent, self.receives.queue().clone())))
    }

    /// Posts a request. There is room for it.
    pub(crate) fn commit(&mut self, Prepared { tag, plan, kept, segments, inline, held }: Prepared) {
        let mut slot = self.next_send();
        slot.entry.held.put(held);
        let to = match &kept {
            Some(Kept::Address(to)) => Some(to.clone()),
            _ => None,
        };
        slot.entry.kept = kept;
        slot.post(tag, plan, to, &segments, inline.as_ref());
    }

    /// The slot of the next request. The caller has seen that there is room.
    #[inline(always)]
    fn next_send(&mut self) -> SendSlot<'_> {
        let Self { sends, inner: Some(qp), results, quiet, refused, .. } = self else {
            unreachable!("the caller has looked")
        };
        let depth = sends.depth;
        let (entry, queue) = sends.next();
        SendSlot { entry, queue, depth, qp, results, quiet, refused }
    }

    /// Why a request can't be posted.
    #[inline]
    fn refuse(&self, inline: Option<&[u8]>, to: Option<&Address>) -> Option<Error> {
        let len = inline.map_or(0, <[u8]>::len);
        if len > self.attributes.inline as usize {
            return Some(self.more_than_inline(len));
        }
        let foreign = to.is_some_and(|to| !self.inner().takes(to.raw()));
        foreign.then(|| Error::invalid("post", "the address was made by another domain"))
    }

    #[cold]
    fn more_than_inline(&self, len: usize) -> Error {
        let why = format!("{len} inline bytes; the queue pair was built for {}", self.attributes.inline);
        Error::new(Kind::TooLong, "post", why)
    }

    /// Ends the queue pair, and returns what was outstanding.
    pub(crate) fn destroy(&mut self) -> Vec<(u64, Parts)> {
        if let Some(inner) = self.inner.take() {
            // A device may refuse to destroy a queue pair with windows.
            self.windows.end();
            self.receives.cq().set_windows(inner.qpn(), None);
        }
        let mut outstanding = self.sends.queue.drain();
        if let Receives::Own(half) = &self.receives {
            outstanding.extend(half.queue.drain());
        }
        outstanding
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        drop(self.destroy());
    }
}

/// The words for the results of atomics, which reliable connections alone carry out.
#[inline]
fn results_of(results: &Option<Arc<Results>>) -> &Arc<Results> {
    results.as_ref().expect("a reliable connection carries out atomics")
}

/// An error if there are more than `parts`.
#[inline]
pub(crate) fn within(segments: &Segments, parts: u32, verb: &'static str) -> Result<()> {
    if segments.len() > parts as usize { Err(too_many(segments.len(), parts, verb)) } else { Ok(()) }
}

#[cold]
fn too_many(len: usize, parts: u32, verb: &'static str) -> Error {
    Error::invalid(verb, format!("{len} parts; the queue was built for {parts}"))
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Qp").field(&self.inner.as_ref().map(RawQp::qpn)).finish()
    }
}
