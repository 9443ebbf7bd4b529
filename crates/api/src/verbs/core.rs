//! What a queue pair consists of, before and after it is connected.

use crate::verbs::backend::RawQp;
use crate::verbs::cq::{Cq, Entry, Operated, Queue, Shared};
use crate::verbs::device::Domain;
use crate::verbs::endpoint::Endpoint;
use crate::verbs::ops::sealed::Described;
use crate::verbs::{Operation, Transport};
use ferroce_buffers::slots::{Poster, ring};
use ferroce_buffers::{
    Buffer, Error, Failed, Kind, Parts, PayloadMut, Pool, QpAttributes, Result, Segment, Segments,
};
use ferroce_proto::{DataRef, SendRequest, Sge, SgeList, one_sge};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// Bytes of an atomic's result.
const RESULT: usize = 8;

/// One direction of a queue pair: the slots, and where its completions go.
struct Half {
    poster: Poster<Entry>,
    queue: Arc<Queue>,
    cq: Arc<Shared>,
    depth: u32,
}

impl Half {
    fn new(cq: &Arc<Shared>, depth: u32) -> Result<Self> {
        cq.reserve(depth)?;
        let (poster, retirer) = ring(depth);
        let queue = cq.join(retirer);
        Ok(Self { poster, queue, cq: cq.clone(), depth })
    }

    /// The number of the next request.
    fn next(&self) -> u64 {
        u64::from(self.queue.number()) << 32 | u64::from(self.poster.next())
    }

    fn push(&mut self, entry: Entry) {
        // The caller has seen that there is room, and only it adds entries.
        assert!(self.poster.push(entry).is_ok(), "a slot for a request");
    }

    fn full(&self, verb: &'static str) -> Error {
        let why = format!("{} requests are outstanding or wait to be polled", self.depth);
        Error::new(Kind::Full, verb, why)
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        self.cq.leave(&self.queue, self.depth);
    }
}

pub(crate) struct Core {
    /// `None` once it is destroyed. It ends before the slots: nothing accesses memory for it after that.
    inner: Option<RawQp>,
    sends: Half,
    recvs: Half,
    /// For the results of atomics.
    results: Pool,
    /// Quiet requests since the last that wasn't.
    quiet: u32,
    attributes: QpAttributes,
}

impl Core {
    pub(crate) fn new(
        domain: &Domain,
        send_cq: &Cq,
        recv_cq: &Cq,
        attributes: &QpAttributes,
    ) -> Result<Self> {
        let sends = Half::new(send_cq.shared(), attributes.send_depth)?;
        let recvs = Half::new(recv_cq.shared(), attributes.recv_depth)?;
        let results = domain.pool(attributes.send_depth.max(1) as usize, RESULT)?;
        let inner = domain.inner.rc(send_cq.inner(), recv_cq.inner(), attributes)?;
        Ok(Self { inner: Some(inner), sends, recvs, results, quiet: 0, attributes: *attributes })
    }

    fn inner(&self) -> &RawQp {
        self.inner.as_ref().expect("only the destruction takes it")
    }

    pub(crate) fn number(&self) -> u32 {
        self.inner().qpn()
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        self.inner().endpoint(&self.attributes)
    }

    pub(crate) fn connect(&self, endpoint: &Endpoint, first: Option<u32>) -> Result<()> {
        self.inner().connect(endpoint, first)
    }

    pub(crate) fn room(&self) -> (u32, u32) {
        (self.sends.poster.room(), self.recvs.poster.room())
    }

    /// Whether its completions go to this queue alone.
    pub(crate) fn completes_in(&self, cq: &Cq) -> bool {
        [&self.sends.cq, &self.recvs.cq].iter().all(|of| Arc::ptr_eq(of, cq.shared()))
    }

    pub(crate) const fn attributes(&self) -> &QpAttributes {
        &self.attributes
    }

    pub(crate) fn abort(&self) {
        self.inner().abort();
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.inner().is_dead()
    }

    /// The segments that a request names, without empty ones.
    fn segments(&self, verb: &'static str, describe: impl FnOnce(&mut Segments)) -> Result<Segments> {
        let mut segments = Segments::new();
        describe(&mut segments);
        segments.retain(|segment| segment.length > 0);
        if segments.len() > self.attributes.parts as usize {
            let why =
                format!("{} parts; the queue pair was built for {}", segments.len(), self.attributes.parts);
            return Err(Error::invalid(verb, why));
        }
        Ok(segments)
    }

    pub(crate) fn recv<P: PayloadMut>(&mut self, tag: u64, memory: P) -> Result<(), Failed<P>> {
        let segments = match self.segments("recv", |into| memory.room(into)) {
            _ if self.recvs.poster.room() == 0 => Err(self.recvs.full("recv")),
            segments => segments,
        };
        let segments = match segments {
            Ok(segments) => segments,
            Err(error) => return Err(Failed { error, back: memory }),
        };
        let wr_id = self.recvs.next();
        self.recvs.push(Entry { tag, what: Operated::Received, len: 0, held: memory.hold_for_writing() });
        self.inner().receive(wr_id, sges(&segments));
        Ok(())
    }

    pub(crate) fn post<T: Transport, O: Operation<T>>(
        &mut self,
        tag: u64,
        operation: O,
    ) -> Result<(), Failed<O>> {
        match self.try_post(tag, operation) {
            Ok(()) => Ok(()),
            Err((error, back)) => Err(Failed { error, back }),
        }
    }

    fn try_post<T: Transport, O: Operation<T>>(&mut self, tag: u64, operation: O) -> Result<(), (Error, O)> {
        if self.sends.poster.room() == 0 {
            return Err((self.sends.full("post"), operation));
        }
        let described = operation.describe();
        let Described { op, flags, what, inline, error } = described;
        let inline: Option<SmallVec<[u8; 64]>> = inline.map(Into::into);
        if let Some(error) = error.or_else(|| self.too_long(inline.as_deref())) {
            return Err((error, operation));
        }
        let mut segments = match self.segments("post", |into| operation.segments(into)) {
            Ok(segments) => segments,
            Err(error) => return Err((error, operation)),
        };
        let result = if what == Operated::Atomic { self.result_buffer(&mut segments) } else { None };
        let sges = sges(&segments);
        // A queue of quiet requests alone would never drain.
        let signaled = !flags.quiet || self.quiet + 1 >= self.sends.depth.div_ceil(2);
        let request = SendRequest {
            wr_id: self.sends.next(),
            op,
            data: inline.as_deref().map_or(DataRef::Sges(&sges), DataRef::Inline),
            signaled,
            solicited: flags.solicited,
            fence: flags.fence,
            ud: None,
            remote_srqn: 0,
        };
        if let Err(error) = self.inner().check(&request) {
            return Err((error, operation));
        }
        self.quiet = if signaled { 0 } else { self.quiet + 1 };
        let held = match result {
            Some(result) => result.hold_for_writing(),
            None => operation.hold(),
        };
        let len = if what == Operated::Read { sges.iter().map(|sge| sge.length).sum() } else { 0 };
        self.sends.push(Entry { tag, what, len, held });
        self.inner().post(&request);
        Ok(())
    }

    fn too_long(&self, inline: Option<&[u8]>) -> Option<Error> {
        let len = inline.map_or(0, <[u8]>::len);
        (len > self.attributes.inline as usize).then(|| {
            let why = format!("{len} inline bytes; the queue pair was built for {}", self.attributes.inline);
            Error::new(Kind::TooLong, "post", why)
        })
    }

    fn result_buffer(&self, segments: &mut Segments) -> Option<Buffer> {
        let result = self.results.try_take().expect("as many results as slots");
        result.room(segments);
        Some(result)
    }

    /// Ends the queue pair, and returns what was outstanding.
    pub(crate) fn destroy(&mut self) -> Vec<(u64, Parts)> {
        self.inner = None;
        let mut outstanding = self.sends.queue.drain();
        outstanding.extend(self.recvs.queue.drain());
        outstanding
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        drop(self.destroy());
    }
}

/// Segments as the transport names them.
fn sges(segments: &[Segment]) -> SgeList {
    let sge = |s: &Segment| Sge { addr: s.address, length: s.length, lkey: s.key };
    match segments {
        [segment] => one_sge(sge(segment)),
        _ => segments.iter().map(sge).collect(),
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Qp").field(&self.inner.as_ref().map(RawQp::qpn)).finish()
    }
}
