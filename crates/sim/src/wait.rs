//! Programs, as the world sees them, and what they wait for.

use ferroce_types::Instant;
use std::fmt;
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
    /// The next look at exposed memory.
    Look(Instant),
    /// A point in time.
    Sleep(Instant),
    /// The end of another program.
    End(usize),
    /// The end of the programs of a host that has crashed.
    Gone(usize),
    /// A message.
    Mail(Arc<MailBox>),
}

#[derive(Debug)]
pub(crate) struct ProgramState {
    pub(crate) name: String,
    /// The host that it runs on. `None`: the test.
    pub(crate) host: Option<usize>,
    pub(crate) wait: Option<Wait>,
    /// Its host has crashed: it unwinds.
    pub(crate) killed: bool,
    pub(crate) ended: bool,
}

impl ProgramState {
    pub(crate) const fn new(name: String, host: Option<usize>) -> Self {
        Self { name, host, wait: None, killed: false, ended: false }
    }
}

/// A program that a host starts by itself.
#[derive(Clone)]
pub(crate) struct Boot(pub(crate) Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for Boot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Boot")
    }
}
