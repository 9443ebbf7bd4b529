//! The messages that the process reports to a tracer (`ferroce trace PID`).
//!
//! The tracer asks again and again over one connection. From each question on, messages that end are noted until there is no room for
//! more ([`BURST`](ferroce_watch::BURST)), and handed over at the next question. At the end of a message, one byte of its queue pair is read, which contains
//! bits for the observers of the queue pair: the tracer, completion counters. The tracer's bits are zero without a tracer, and when
//! there is no room.

use crate::adapter::{self, Adapter};
use crate::qp::Qp;
use ferroce_access::SharedMemory;
use ferroce_engine::Source;
use ferroce_host::{KIND_TRACE, RequestHandler, Services, frame};
use ferroce_os::sys::{self, EngineFd};
use ferroce_parts::traced::{Noted, TraceLevel, Tracer, wanted};
use ferroce_watch::Filter;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes of the longest question.
const LONGEST: usize = 128;

/// Answers processes that want to trace this one.
pub(crate) fn register(services: &Services) {
    services.register(KIND_TRACE, Arc::new(TraceService));
}

struct TraceService;

impl RequestHandler for TraceService {
    fn serve(&self, connection: EngineFd, message: &[u8], _: Vec<EngineFd>) {
        let Some(adapter) = adapter::current() else { return };
        let Some(filter) = filter_of(message) else { return };
        // One at a time: two would share what is noted.
        if adapter.tracing.attached.swap(true, Ordering::AcqRel) {
            let _ = frame::send(connection.raw(), &mut frame::header(frame::REFUSED), &[]);
            return;
        }
        let watched = adapter.engine.watch_control(connection.raw()).is_ok();
        *adapter.tracing.tracer.lock() = Some(Tracer::new(connection, filter.clone()));
        if !watched || adapter.answer_tracer(filter).is_err() {
            adapter.detach_tracer();
        }
    }

    fn answers_root(&self) -> bool {
        true
    }
}

fn filter_of(message: &[u8]) -> Option<Filter> {
    (frame::kind_of(message)? == KIND_TRACE).then_some(())?;
    Filter::from_bytes(message.get(frame::HEADER..)?)
}

impl Adapter {
    /// Hands over the messages that were noted, and has more noted.
    fn answer_tracer(&self, filter: Filter) -> io::Result<()> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let (mut trace, noted) = self.tracing.tracer.lock().as_mut().ok_or_else(gone)?.take(filter.clone());
        trace_each(|qp| wanted(&filter, qp.qpn()));
        trace.messages.extend(noted.iter().map(Noted::to_message));
        let bytes = trace.to_bytes();
        let memory = SharedMemory::create(bytes.len(), true)?;
        memory.write(0, &bytes);
        let tracer = self.tracing.tracer.lock();
        let connection = &tracer.as_ref().ok_or_else(gone)?.connection;
        frame::send(connection.raw(), &mut frame::header(frame::GRANTED), &[memory.fd()])
    }

    /// Forgets the tracer. Each queue pair finds out when its next message ends.
    fn detach_tracer(&self) {
        let gone = self.tracing.tracer.lock().take();
        trace_each(|_| TraceLevel::None);
        // From here on there may be another tracer, and queue pairs keep the bits that it sets.
        self.tracing.attached.store(false, Ordering::Release);
        drop(gone);
    }

    /// Takes the tracer's next question, if there is one; `None` if the tracer is gone or sends something else.
    fn next_question(&self) -> Option<Option<Filter>> {
        let tracer = self.tracing.tracer.lock();
        let Some(tracer) = &*tracer else { return Some(None) };
        let fd = tracer.connection.raw();
        if !sys::wait_for(fd, libc::POLLIN, Duration::ZERO) {
            return Some(None);
        }
        let mut bytes = [0; LONGEST];
        let (length, _) = frame::receive(fd, &mut bytes).ok()?;
        filter_of(&bytes[..length]).map(Some)
    }
}

/// The tracer as a source. Threads that poll do none of its work.
pub(crate) struct TraceSource(pub(crate) &'static Adapter);

impl Source for TraceSource {
    fn serve(&self) {
        let answered = match self.0.next_question() {
            Some(None) => return,
            Some(Some(filter)) => self.0.answer_tracer(filter).is_ok(),
            None => false,
        };
        if !answered {
            self.0.detach_tracer();
        }
    }
}

/// Sets which messages are noted from now on, for each queue pair.
fn trace_each(traced: impl Fn(&Qp) -> TraceLevel) {
    for context in adapter::contexts() {
        for qp in adapter::qps_of(&context) {
            qp.observers.trace(traced(&qp));
        }
    }
}
