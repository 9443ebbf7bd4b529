//! The messages that end and that the tracer of the process wants.

use ferroce_os::clock;
use ferroce_os::sync::{Mutex, class};
use ferroce_os::sys::EngineFd;
use ferroce_types::WcStatus;
use ferroce_watch::{BURST, Filter, TraceBatch, TracedMessage};
use std::sync::atomic::{AtomicBool, Ordering};

/// Which messages are noted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceLevel {
    /// No message.
    None,
    /// Those that fail.
    Errors,
    /// Every message.
    All,
}

/// The tracer of this process, if there is one.
#[derive(Default)]
pub struct Tracing {
    /// The tracer.
    pub tracer: Mutex<class::Tracer, Option<Tracer>>,
    /// There is a tracer: queue pairs that are made from now on are traced from the beginning.
    pub attached: AtomicBool,
}

/// A process that asks for the messages that end.
pub struct Tracer {
    /// By which it asks.
    pub connection: EngineFd,
    filter: Filter,
    noted: Vec<Noted>,
    /// When the tracer asked last, in ns.
    asked: u64,
    /// When there was no room any more.
    full: Option<u64>,
}

/// A message that has ended.
pub struct Noted {
    /// The queue pair's number.
    pub number: u32,
    /// It was received, not sent.
    pub received: bool,
    /// Its operation, in words.
    pub operation: &'static str,
    /// Bytes of its payload.
    pub bytes: u64,
    /// The work request's ID.
    pub wr_id: u64,
    /// How it has ended.
    pub status: WcStatus,
    /// When it has ended, in ns.
    pub at: u64,
}

impl Noted {
    /// It has ended now.
    pub fn now(number: u32, operation: &'static str, wr_id: u64, status: WcStatus) -> Self {
        let at = clock::now().0;
        Self { number, received: false, operation, bytes: 0, wr_id, status, at }
    }
}

impl Tracing {
    /// Which messages are noted of a queue pair that is being made.
    pub fn of_new(&self, number: u32) -> TraceLevel {
        if !self.attached.load(Ordering::Acquire) {
            return TraceLevel::None;
        }
        self.tracer.lock().as_ref().map_or(TraceLevel::None, |tracer| wanted(&tracer.filter, number))
    }

    /// Notes a message. Calls `stop` if there is no tracer or no room: messages of its queue pair needn't be noted until the next question.
    /// The tracer is locked meanwhile, so that question comes after `stop`.
    pub fn note(&self, noted: Noted, stop: impl FnOnce()) {
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
pub fn wanted(filter: &Filter, number: u32) -> TraceLevel {
    match filter {
        Filter { numbers, .. } if !numbers.is_empty() && !numbers.contains(&number) => TraceLevel::None,
        Filter { errors: true, .. } => TraceLevel::Errors,
        Filter { errors: false, .. } => TraceLevel::All,
    }
}

impl Tracer {
    /// One that asks now.
    pub fn new(connection: EngineFd, filter: Filter) -> Self {
        Self { connection, filter, noted: Vec::new(), asked: clock::now().0, full: None }
    }

    /// Takes the messages that were noted. From now on those that match `filter` are noted.
    pub fn take(&mut self, filter: Filter) -> (TraceBatch, Vec<Noted>) {
        let now = clock::now().0;
        let passed = now.saturating_sub(self.asked);
        let unseen = self.full.map_or(0, |full| now.saturating_sub(full));
        (self.filter, self.asked, self.full) = (filter, now, None);
        // The room is allocated here: threads that note a message allocate nothing.
        let noted = std::mem::replace(&mut self.noted, Vec::with_capacity(BURST));
        (TraceBatch { messages: Vec::new(), passed, unseen }, noted)
    }
}

impl Noted {
    /// As the tracer gets it.
    pub fn to_message(&self) -> TracedMessage {
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
