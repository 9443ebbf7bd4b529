//! The observers of a QP, which note the end of each message: completion counters, and the tracer of the process.

use super::{Qp, operation_of_request};
use ferroce_parts::Ah;
use ferroce_parts::traced::{Noted, TraceLevel};
use ferroce_proto::SendWr;
use ferroce_queues::{CompCntr, CountedOp, QpCntrs};
use ferroce_types::{Completion, Result, WcOpcode, WcStatus};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

/// There are counters.
const COUNTED: u8 = 1;
/// Messages are noted for a tracer.
const TRACED: u8 = 2;
/// … and only those that end with an error.
const ERRORS: u8 = 4;

const fn bits(traced: TraceLevel) -> u8 {
    match traced {
        TraceLevel::None => 0,
        TraceLevel::Errors => TRACED | ERRORS,
        TraceLevel::All => TRACED,
    }
}

/// The observers of a queue pair; most have none.
pub(crate) struct Observers {
    who: AtomicU8,
    counters: OnceLock<Box<QpCntrs>>,
}

impl Observers {
    /// Without counters.
    pub(super) fn new(traced: TraceLevel) -> Self {
        Self { who: AtomicU8::new(bits(traced)), counters: OnceLock::new() }
    }

    /// Attaches a counter ([`Qp::attach_comp_cntr`]).
    pub(super) fn attach(&self, counter: &Arc<CompCntr>, mask: u32) -> Result<()> {
        self.counters.get_or_init(Box::default).attach(counter, mask)?;
        self.who.fetch_or(COUNTED, Ordering::Relaxed);
        Ok(())
    }

    /// Has these messages noted from now on.
    pub(crate) fn trace(&self, traced: TraceLevel) {
        let with = |who: u8| Some(who & COUNTED | bits(traced));
        // `with` always returns a value, so the update can't fail.
        let _ = self.who.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with);
    }

    /// The counters, if there are any.
    #[inline]
    pub(super) fn counters(&self) -> Option<&QpCntrs> {
        self.counters.get().map(|counters| &**counters)
    }

    /// The QP has counters, or messages of it are noted for a tracer.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.who.load(Ordering::Relaxed) != 0
    }

    /// A message that ends with `status` is to be noted for the tracer.
    fn has_tracer(&self, status: WcStatus) -> bool {
        let who = self.who.load(Ordering::Relaxed);
        who & TRACED != 0 && (who & ERRORS == 0 || status != WcStatus::Success)
    }
}

impl Qp {
    /// A send request has ended.
    #[inline]
    pub(super) fn observe_end(&self, wr: &SendWr<Arc<Ah>>, status: WcStatus) {
        if self.observers.any() {
            self.tell_of_end(wr, status);
        }
    }

    /// A receive request has ended.
    #[inline]
    pub(super) fn observe_receive(&self, completion: &Completion) {
        if self.observers.any() {
            self.tell_of_receive(completion);
        }
    }

    #[cold]
    fn tell_of_end(&self, wr: &SendWr<Arc<Ah>>, status: WcStatus) {
        if let (Some(counters), Some(op)) = (self.observers.counters(), CountedOp::of(&wr.op)) {
            counters.count(op, wr.data.len(), status);
        }
        if self.observers.has_tracer(status) {
            let (operation, _) = operation_of_request(&wr.op);
            let noted = Noted::now(self.qpn, operation, wr.wr_id, status);
            self.note(Noted { bytes: wr.data.len(), ..noted });
        }
    }

    #[cold]
    fn tell_of_receive(&self, completion: &Completion) {
        let Completion { wr_id, status, opcode, byte_len, .. } = *completion;
        if let Some(counters) = self.observers.counters() {
            counters.count(CountedOp::Recv, u64::from(byte_len), status);
        }
        if self.observers.has_tracer(status) {
            let operation = match opcode {
                WcOpcode::RecvRdmaWithImm => "receive of RDMA WRITE with immediate",
                _ => "receive",
            };
            let noted = Noted::now(self.qpn, operation, wr_id, status);
            self.note(Noted { bytes: u64::from(byte_len), received: true, ..noted });
        }
    }

    fn note(&self, noted: Noted) {
        self.adapter.tracing.note(noted, || self.observers.trace(TraceLevel::None));
    }
}
