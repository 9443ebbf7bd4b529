//! Memory that is lent to the peer of a queue pair, by a memory window.

use crate::verbs::backend::{RawDomain, RawWindow};
use crate::verbs::slots::Queue;
use ferroce_buffers::rights::Right;
use ferroce_buffers::{Buffer, Held, Remote, Result, Rights};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The windows of a queue pair.
pub(crate) struct Windows {
    domain: RawDomain,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Windows that aren't bound, with their last keys.
    free: Vec<(RawWindow, u32)>,
    /// By key.
    lent: BTreeMap<u32, Weak<Lent>>,
    /// Keys that a completion which hasn't been polled may name, although their loans were recalled. Those are the completions
    /// of receives before the numbers here; of any receive if there is no number.
    recalled: BTreeMap<u32, Option<u32>>,
    /// The queue pair is destroyed.
    ended: bool,
}

impl Windows {
    pub(crate) fn new(domain: &RawDomain) -> Arc<Self> {
        Arc::new(Self { domain: domain.clone(), state: Mutex::default() })
    }

    /// A window for this memory, with a key that no completion of the past names.
    pub(crate) fn lend(self: &Arc<Self>, receives: &Queue, what: Loaned) -> Result<Arc<Lent>> {
        let mut state = lock(&self.state);
        if let Some((oldest, _)) = receives.ends() {
            let is_past = |before: u32| oldest.wrapping_sub(before) as i32 >= 0;
            state.recalled.retain(|_, before| !before.is_some_and(is_past));
        }
        let mut unusable = Vec::new();
        let (window, key) = loop {
            let (window, last) = match state.free.pop() {
                Some(free) => free,
                None => {
                    let window = self.domain.window()?;
                    let key = window.key();
                    (window, key)
                }
            };
            let mut keys = (1..=256).map(|more: u32| (last & !0xff) | (last.wrapping_add(more) & 0xff));
            match keys.find(|key| !state.recalled.contains_key(key)) {
                Some(key) => break (window, key),
                // The next one has another number.
                None => unusable.push(window),
            }
        };
        let lent = Arc::new(Lent {
            number: window.number(),
            window: Mutex::new(Some(window)),
            key,
            what,
            returned: AtomicBool::new(false),
            windows: Arc::downgrade(self),
        });
        state.lent.insert(key, Arc::downgrade(&lent));
        drop(state);
        drop(unusable);
        Ok(lent)
    }

    /// The peer has invalidated a key. The receive whose completion contains this hasn't retired yet.
    pub(crate) fn note_returned(&self, key: u32) {
        let lent = lock(&self.state).lent.remove(&key).and_then(|lent| lent.upgrade());
        if let Some(lent) = lent {
            lent.returned.store(true, Ordering::Release);
        }
    }

    /// The queue pair is about to be destroyed: its windows end before.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.state);
        state.ended = true;
        let (free, lent) = (std::mem::take(&mut state.free), std::mem::take(&mut state.lent));
        drop(state);
        drop(free);
        lent.into_values().filter_map(|lent| lent.upgrade()).for_each(|lent| lent.end(None));
    }
}

/// What is lent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loaned {
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) rights: Rights,
}

/// A window that is bound, or about to be.
pub(crate) struct Lent {
    number: u64,
    /// `None` once it has ended. Locked until nothing is reached through it.
    window: Mutex<Option<RawWindow>>,
    key: u32,
    what: Loaned,
    /// The peer has invalidated the key.
    returned: AtomicBool,
    windows: Weak<Windows>,
}

impl Lent {
    /// The window's number and key, as a request names them.
    pub(crate) const fn named(&self) -> (u64, u32) {
        (self.number, self.key)
    }

    /// Deallocates the window, unless it has ended: the memory isn't reached through it any more. `receives` are those of the
    /// queue pair, if it goes on.
    pub(crate) fn end(&self, receives: Option<&Queue>) {
        let mut window = lock(&self.window);
        let Some(ended) = window.take() else { return };
        let windows = self.windows.upgrade();
        if let Some(windows) = &windows {
            lock(&windows.state).recalled.insert(self.key, None);
        }
        drop(ended);
        let next = receives.and_then(Queue::ends).map(|(_, next)| next);
        if let Some(windows) = &windows {
            let mut state = lock(&windows.state);
            // Only now: the end of the queue pair waits for the windows of all loans that it finds.
            state.lent.remove(&self.key);
            if next.is_some() {
                state.recalled.insert(self.key, next);
            }
        }
    }

    pub(crate) const fn rights(&self) -> Rights {
        self.what.rights
    }

    /// Whether the memory isn't reached any more.
    fn is_over(&self) -> bool {
        self.returned.load(Ordering::Acquire) || lock(&self.window).is_none()
    }

    /// Keeps the window of a loan that has returned for another one.
    fn keep(&self) {
        let Some(window) = lock(&self.window).take() else { return };
        if let Some(windows) = self.windows.upgrade() {
            let mut state = lock(&windows.state);
            if !state.ended {
                state.free.push((window, self.key));
            }
        }
    }
}

/// A loan without the type of its rights.
pub(crate) struct RawLoan {
    lent: Arc<Lent>,
    receives: Arc<Queue>,
    /// `None` once the memory is taken out.
    held: Option<Held>,
}

impl RawLoan {
    pub(crate) const fn new(lent: Arc<Lent>, receives: Arc<Queue>, held: Held) -> Self {
        Self { lent, receives, held: Some(held) }
    }

    fn end(&mut self) -> Option<Held> {
        if self.lent.returned.load(Ordering::Acquire) {
            self.lent.keep();
        } else {
            self.lent.end(Some(&self.receives));
        }
        self.held.take()
    }

    fn into_buffer(mut self) -> Buffer {
        let held = self.end().expect("the memory is taken out once");
        let mut buffer = held.settle(None).buffer().expect("a loan has a buffer");
        buffer.set_len(buffer.capacity());
        buffer
    }
}

impl Drop for RawLoan {
    fn drop(&mut self) {
        drop(self.end());
    }
}

/// A buffer that is lent to the peer of a queue pair, with the rights `A`.
///
/// [`Lend`](crate::verbs::Lend) makes it. The peer returns it by a message
/// ([`Send::returning`](crate::verbs::Send::returning)). Once `Cq::poll` or `Cq::wait` has found the completion of the
/// message's receive, [`Loan::returned`] gives the buffer back without a system call. Loans also return when the queue pair is destroyed. A loan that
/// is dropped is recalled.
///
/// ```
/// # use ferroce::{Inline, Remote, rights, sim::World, verbs::{Device, Lend, Send, Write}};
/// # fn main() -> ferroce::Result<()> {
/// # let world = World::new(1);
/// # let [a, b] = ["a", "b"].map(|name| Device::simulated(&world.host(name)).open().unwrap());
/// # let (mut a_cq, b_cq) = (a.cq(32)?, b.cq(32)?);
/// # let (a_setup, b_setup) = (a.rc(&a_cq).build()?, b.rc(&b_cq).build()?);
/// # let (a_end, b_end) = (a_setup.endpoint(), b_setup.endpoint());
/// # let (mut a_qp, mut b_qp) = (a_setup.connect(&b_end)?, b_setup.connect(&a_end)?);
/// // The server lends a block, and sends its token.
/// a_qp.recv(1, a.alloc(8)?)?;
/// a_qp.post(2, Lend::new(a.alloc(4096)?, rights::Write))?;
/// let loan = a_cq.next(None)?.unwrap().loan::<rights::Write>()?;
/// let token = loan.token();
///
/// // The client writes to it, and returns it.
/// b_qp.post(3, Write::new(Inline::from(b"written"), token.slice(..7)))?;
/// b_qp.post(4, Send::new(()).returning(token))?;
///
/// let received = a_cq.next(None)?.unwrap();
/// received.result()?;
/// assert_eq!(received.returned(), Some(token.key()));
/// let block = loan.returned().unwrap(); // a buffer again
/// assert_eq!(&block[..7], b"written");
/// # Ok(())
/// # }
/// ```
pub struct Loan<A> {
    raw: RawLoan,
    rights: PhantomData<A>,
}

impl<A: Right> Loan<A> {
    pub(crate) const fn new(raw: RawLoan) -> Self {
        Self { raw, rights: PhantomData }
    }

    /// The token that lets the peer access the memory.
    #[must_use]
    pub fn token(&self) -> Remote<A> {
        let Loaned { address, len, .. } = self.raw.lent.what;
        Remote::new(self.raw.lent.key, address, len)
    }
}

impl<A> Loan<A> {
    /// Whether the peer has returned it, or the queue pair is destroyed.
    #[must_use]
    pub fn is_returned(&self) -> bool {
        self.raw.lent.is_over()
    }

    /// The buffer, with its length at the capacity, if the loan [has returned](Loan::is_returned). No peer accesses it any more.
    ///
    /// # Errors
    /// It hasn't: it comes back.
    #[allow(clippy::result_large_err)] // The loan comes back by value, as it came.
    pub fn returned(self) -> Result<Buffer, Self> {
        if self.is_returned() { Ok(self.raw.into_buffer()) } else { Err(self) }
    }

    /// Takes the buffer back, with its length at the capacity. No peer accesses it after that. A peer that uses or returns the token
    /// later fails the connection.
    #[must_use]
    pub fn recall(self) -> Buffer {
        self.raw.into_buffer()
    }
}

impl<A> fmt::Debug for Loan<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Loan").field(&self.raw.lent.what).finish()
    }
}
