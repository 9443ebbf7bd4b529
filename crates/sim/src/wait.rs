//! What programs wait for.

use ferroce_proto::Instant;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What the world sees of a channel.
#[derive(Debug, Default)]
pub(crate) struct MailBox {
    /// Messages that haven't been received.
    pub(crate) messages: AtomicUsize,
    pub(crate) senders: AtomicUsize,
}

impl MailBox {
    pub(crate) fn has_news(&self) -> bool {
        self.messages.load(Ordering::Relaxed) > 0 || self.senders.load(Ordering::Relaxed) == 0
    }
}

/// What a program waits for.
#[derive(Clone, Debug)]
pub(crate) enum Wait {
    /// Its first turn.
    Start,
    /// A completion, at most until then.
    Cq { host: usize, cq: u32, until: Option<Instant>, long: bool },
    /// An event of an adapter, at most until then.
    Event { host: usize, until: Option<Instant>, long: bool },
    /// A point in time.
    Sleep(Instant),
    /// The end of another program.
    End(usize),
    /// A message.
    Mail(Arc<MailBox>),
}

#[derive(Debug)]
pub(crate) struct ProgramState {
    pub(crate) name: String,
    pub(crate) wait: Option<Wait>,
    pub(crate) ended: bool,
}

impl ProgramState {
    pub(crate) const fn new(name: String) -> Self {
        Self { name, wait: None, ended: false }
    }
}
