//! The messages that the process reports to a tracer (`ferroce trace PID`).
//!
//! The tracer asks again and again over one connection. From each question on, messages that end are noted until there is no room for
//! more ([`BURST`]), and handed over at the next question. At the end of a message, one byte of its queue pair is read, which contains
//! bits for the observers of the queue pair: the tracer, completion counters. The tracer's bits are zero without a tracer, and when
//! there is no room.

use crate::adapter::{self, Adapter};
use crate::qp::{self, Qp};
use ferroce_access::SharedMemory;
use ferroce_engine::Source;
use ferroce_host::{KIND_TRACE, RequestHandler, Services, frame};
use ferroce_os::clock;
use ferroce_os::sync::{Mutex, class};
use ferroce_os::sys::{self, EngineFd};
use ferroce_types::WcStatus;
use ferroce_watch::{BURST, Filter, TraceBatch, TracedMessage};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Bytes of the longest question.
const LONGEST: usize = 128;

/// The tracer of this process, if there is one.
#[derive(Default)]
pub(crate) struct Tracing {
    tracer: Mutex<class::Tracer, Option<Tracer>>,
    /// There is a tracer: queue pairs that are made from now on are traced from the beginning.
    attached: AtomicBool,
}

struct Tracer {
    connection: EngineFd,
    filter: Filter,
    noted: Vec<Noted>,
    /// When the tracer asked last, in ns.
    asked: u64,
    /// When there was no room any more.
    full: Option<u64>,
}

/// A message that has ended.
pub(crate) struct Noted {
    pub(crate) number: u32,
    pub(crate) received: bool,
    pub(crate) operation: &'static str,
    pub(crate) bytes: u64,
    pub(crate) wr_id: u64,
    pub(crate) status: WcStatus,
    pub(crate) at: u64,
}

impl Noted {
    /// It has ended now.
    pub(crate) fn now(number: u32, operation: &'static str, wr_id: u64, status: WcStatus) -> Self {
        let at = clock::now().0;
        Self { number, received: false, operation, bytes: 0, wr_id, status, at }
    }
}

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
        let (noted, asked) = (Vec::new(), clock::now().0);
        *adapter.tracing.tracer.lock() =
            Some(Tracer { connection, filter: filter.clone(), noted, asked, full: None });
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

impl Tracing {
    /// Which messages are noted of a queue pair that is being made.
    pub(crate) fn of_new(&self, number: u32) -> qp::TraceLevel {
        if !self.attached.load(Ordering::Acquire) {
            return qp::TraceLevel::None;
        }
        self.tracer.lock().as_ref().map_or(qp::TraceLevel::None, |tracer| wanted(&tracer.filter, number))
    }

    /// Notes a message. Calls `stop` if there is no tracer or no room: messages of its queue pair needn't be noted until the next question.
    /// The tracer is locked meanwhile, so that question comes after `stop`.
    pub(crate) fn note(&self, noted: Noted, stop: impl FnOnce()) {
        match &mut *self.tracer.lock() {
            Some(tracer) if tracer.noted.len() < tracer.noted.capacity() => tracer.noted.push(noted),
            Some(tracer) => {
                tracer.full.get_or_insert(noted.at);
                stop();
            }
            None => stop(),
        }
    }
}

/// Which messages of a queue pair are wanted.
fn wanted(filter: &Filter, number: u32) -> qp::TraceLevel {
    match filter {
        Filter { numbers, .. } if !numbers.is_empty() && !numbers.contains(&number) => qp::TraceLevel::None,
        Filter { errors: true, .. } => qp::TraceLevel::Errors,
        Filter { errors: false, .. } => qp::TraceLevel::All,
    }
}

impl Tracer {
    /// Takes the messages that were noted. From now on those that match `filter` are noted.
    fn take(&mut self, filter: Filter) -> (TraceBatch, Vec<Noted>) {
        let now = clock::now().0;
        let passed = now.saturating_sub(self.asked);
        let unseen = self.full.map_or(0, |full| now.saturating_sub(full));
        (self.filter, self.asked, self.full) = (filter, now, None);
        // The room is allocated here: threads that note a message allocate nothing.
        let noted = std::mem::replace(&mut self.noted, Vec::with_capacity(BURST));
        (TraceBatch { messages: Vec::new(), passed, unseen }, noted)
    }
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
        trace_each(|_| qp::TraceLevel::None);
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

impl Noted {
    fn to_message(&self) -> TracedMessage {
        TracedMessage {
            at: self.at,
            number: self.number,
            received: self.received,
            operation: self.operation.into(),
            bytes: self.bytes,
            wr_id: self.wr_id,
            status: self.status as u8,
        }
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
fn trace_each(traced: impl Fn(&Qp) -> qp::TraceLevel) {
    for context in adapter::contexts() {
        for qp in adapter::qps_of(&context) {
            qp.observers.trace(traced(&qp));
        }
    }
}
