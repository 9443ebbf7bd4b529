//! Stream sockets: their life from rsocket(3) to rclose(3).
//!
//! A socket's number is a set ([`Set`]) of the descriptors that tell of its events, so one descriptor wakes who waits for it,
//! whatever it does. Whoever calls makes progress; connections that nobody waits for are attended by the service thread
//! ([`crate::service`]): requests at listeners, and what connects without blocking.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use crate::abi::*;
use crate::address;
use crate::call::{Outcome, Refusal, zero};
use crate::connection::{Connection, Piece, Prepared};
use crate::options::{About, Options};
use crate::service;
use crate::settings::settings;
use crate::verbs::{Event, Id};
use crate::waiting::{Set, Waiters, own_waker, readable, sleep};
use crate::wire::ConnectionData;

/// How often addresses and routes are asked for again, each time with twice the time.
const RETRIES: u32 = 6;
/// How long the first attempt may take, in milliseconds.
const FIRST_ATTEMPT: c_int = 1000;
/// How long rclose waits until the peer has everything, unless SO_LINGER says so.
const FAREWELL: Duration = Duration::from_secs(60);
/// Requests that may wait for raccept, as listen(2) has it.
const LONGEST_BACKLOG: usize = 4096;

/// A stream socket.
#[derive(Debug)]
pub(crate) struct Stream {
    inner: Mutex<Inner>,
    nonblocking: AtomicBool,
    me: Weak<Stream>,
    /// Goes last: it has descriptors of what goes before.
    set: Set,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) domain: c_int,
    pub(crate) options: Options,
    phase: Phase,
    /// Goes after the queue pair, which `phase` has.
    id: Option<Id>,
    waiters: Waiters,
    /// What SO_ERROR tells next.
    error: c_int,
    /// Grows with each change that may make it ready.
    changes: u64,
}

#[derive(Debug)]
enum Phase {
    Fresh,
    Listening(Listening),
    Connecting(Box<Connecting>),
    /// The peer hasn't confirmed; the listener gets the socket then.
    Accepting(Box<Connection>, Weak<Stream>),
    Open(Box<Connection>),
    Failed(c_int),
    Closed,
}

#[derive(Debug)]
struct Listening {
    backlog: usize,
    /// Connections that the peer hasn't confirmed.
    unconfirmed: Vec<Arc<Stream>>,
    ready: VecDeque<Arc<Stream>>,
    /// The channel isn't looked at because there are enough connections.
    full: bool,
}

#[derive(Debug)]
struct Connecting {
    destination: libc::sockaddr_storage,
    attempt: u32,
    prepared: Option<Prepared>,
}

/// What rpoll tells of a socket, and a number that grows with each change.
pub(crate) type Readiness = (libc::c_short, u64);

impl Stream {
    pub(crate) fn new(domain: c_int, nonblocking: bool) -> Outcome<Arc<Self>> {
        let id = Id::new(RDMA_PS_TCP)?;
        Self::with(domain, nonblocking, id, Options::new(), Phase::Fresh)
    }

    fn with(domain: c_int, nonblocking: bool, id: Id, options: Options, phase: Phase) -> Outcome<Arc<Self>> {
        let set = Set::new()?;
        set.add(id.fd(), 0)?;
        if let Phase::Accepting(connection, _) = &phase {
            set.add(connection.fd(), 0)?;
        }
        let inner =
            Inner { domain, options, phase, id: Some(id), waiters: Waiters::default(), error: 0, changes: 0 };
        Ok(Arc::new_cyclic(|me| Self {
            inner: Mutex::new(inner),
            nonblocking: AtomicBool::new(nonblocking),
            me: me.clone(),
            set,
        }))
    }

    /// The socket's number.
    pub(crate) fn fd(&self) -> RawFd {
        self.set.fd()
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    pub(crate) fn lock(&self) -> Outcome<MutexGuard<'_, Inner>> {
        self.inner
            .lock()
            .map_err(|_| Refusal::new(libc::EIO, "an earlier call has failed within; close the socket"))
    }

    /// Waits until `ready` has an answer.
    fn wait<T>(
        &self,
        nonblocking: bool,
        until: Option<Instant>,
        mut ready: impl FnMut(&mut Inner) -> Option<Outcome<T>>,
    ) -> Outcome<T> {
        let mut inner = self.lock()?;
        loop {
            let mut polling = None;
            loop {
                self.progress(&mut inner);
                if let Some(answer) = ready(&mut inner) {
                    return answer;
                }
                if nonblocking {
                    return Err(Refusal::would_block());
                }
                let now = Instant::now();
                if now >= *polling.get_or_insert_with(|| now + settings().polling) {
                    break;
                }
                std::hint::spin_loop();
            }
            self.progress_armed(&mut inner);
            if let Some(answer) = ready(&mut inner) {
                return answer;
            }
            let waker = own_waker()?;
            waker.clear();
            inner.waiters.add(&waker);
            drop(inner);
            let slept = sleep(&mut [readable(waker.fd()), readable(self.fd())], until);
            inner = self.lock()?;
            inner.waiters.remove(&waker);
            match slept {
                Ok(0) => return Err(Refusal::would_block()),
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Deals with what has happened; what happens from now on is told by the set.
    fn progress_armed(&self, inner: &mut Inner) {
        loop {
            inner.arm();
            self.progress(inner);
            // Else dealing with it has taken the notification.
            if inner.is_armed() {
                return;
            }
        }
    }

    /// Deals with what has happened.
    fn progress(&self, inner: &mut Inner) {
        let mut changed = false;
        // What has arrived before the end of the connection counts.
        if let Phase::Open(connection) | Phase::Accepting(connection, _) = &mut inner.phase {
            changed |= connection.progress();
        }
        while !inner.is_full() {
            let Some(id) = &mut inner.id else { break };
            match id.next_event() {
                Ok(Some(event)) => self.happened(inner, &event),
                Ok(None) => break,
                Err(refusal) => inner.fail(refusal.errno),
            }
            changed = true;
            if matches!(inner.phase, Phase::Failed(_)) {
                break;
            }
        }
        if changed {
            inner.changed();
        }
    }

    fn happened(&self, inner: &mut Inner, event: &Event) {
        let (domain, options) = (inner.domain, inner.options.clone());
        match &mut inner.phase {
            Phase::Listening(listening) if event.kind == RDMA_CM_EVENT_CONNECT_REQUEST => {
                // SAFETY: the id of a request that has been acknowledged, which nobody else knows.
                let accepted = unsafe { Id::of_request(event.id) }
                    .and_then(|id| Self::accept_request(id, event, domain, &options, self.me.clone()));
                match accepted {
                    Ok(stream) => {
                        listening.unconfirmed.push(stream);
                        listening.full = listening.is_full();
                        if listening.full {
                            // Else who waits would be woken again and again.
                            self.set.remove(inner.id.as_ref().map_or(-1, Id::fd));
                        }
                    }
                    Err(refusal) => crate::log::refused("raccept", &refusal),
                }
            }
            Phase::Connecting(connecting) => {
                let Some(id) = &inner.id else { return };
                match connecting.happened(id, event, &options, &self.set) {
                    Ok(None) => {}
                    Ok(Some(mut connection)) => {
                        connection.give_credits();
                        inner.phase = Phase::Open(connection);
                    }
                    Err(refusal) => {
                        crate::log::refused("rconnect", &refusal);
                        inner.fail(refusal.errno);
                    }
                }
            }
            Phase::Accepting(..) => match event.kind {
                RDMA_CM_EVENT_ESTABLISHED => inner.open(),
                _ => inner.fail(event.errno()),
            },
            Phase::Open(connection)
                if matches!(event.kind, RDMA_CM_EVENT_DISCONNECTED | RDMA_CM_EVENT_DEVICE_REMOVAL) =>
            {
                connection.progress();
                connection.ends.fail(libc::ECONNRESET);
            }
            _ => {}
        }
    }

    /// Accepts a request at the listener `listener`.
    fn accept_request(
        id: Id,
        event: &Event,
        domain: c_int,
        options: &Options,
        listener: Weak<Stream>,
    ) -> Outcome<Arc<Self>> {
        let Some(peer) = ConnectionData::parse(event.data()) else {
            // SAFETY: a live id.
            unsafe { rdma_reject(id.raw(), std::ptr::null(), 0) };
            return Err(Refusal::new(libc::EPROTO, "a peer that is no rsocket wants to connect"));
        };
        let prepared = Prepared::new(&id, &options.choices)?;
        let data = prepared.data();
        let mut parameters = parameters(&data);
        parameters.flow_control = event.flow_control;
        parameters.retry_count = event.retry_count;
        parameters.rnr_retry_count = event.rnr_retry_count;
        let connection = Box::new(Connection::new(prepared, peer));
        // SAFETY: a live id with a queue pair; data that is copied.
        zero(unsafe { rdma_accept(id.raw(), &mut parameters) }, "a request can't be accepted")?;
        let stream = Self::with(domain, false, id, options.clone(), Phase::Accepting(connection, listener))?;
        service::watch(&stream, stream.fd());
        Ok(stream)
    }

    pub(crate) fn bind(&self, mut name: libc::sockaddr_storage) -> Outcome<()> {
        let mut inner = self.lock()?;
        if !matches!(inner.phase, Phase::Fresh) {
            return Err(Refusal::new(libc::EINVAL, "the socket is in use"));
        }
        inner.apply_options()?;
        // SAFETY: a live id, an address.
        zero(unsafe { rdma_bind_addr(inner.id()?.raw(), (&raw mut name).cast()) }, "rdma_bind_addr")
    }

    pub(crate) fn listen(&self, backlog: c_int) -> Outcome<()> {
        let mut inner = self.lock()?;
        let backlog = usize::try_from(backlog).unwrap_or(0).clamp(1, LONGEST_BACKLOG);
        match &mut inner.phase {
            Phase::Listening(listening) => {
                listening.backlog = backlog;
                return Ok(());
            }
            Phase::Fresh => {}
            _ => return Err(Refusal::new(libc::EINVAL, "the socket is in use")),
        }
        inner.apply_options()?;
        let id = inner.id()?.raw();
        // SAFETY: a live id.
        zero(unsafe { rdma_listen(id, c_int::try_from(backlog).unwrap_or(c_int::MAX)) }, "rdma_listen")?;
        inner.phase = Phase::Listening(Listening {
            backlog,
            unconfirmed: Vec::new(),
            ready: VecDeque::new(),
            full: false,
        });
        drop(inner);
        self.watch();
        Ok(())
    }

    /// An option may want the service thread.
    pub(crate) fn options_have_changed(&self) {
        if self
            .lock()
            .is_ok_and(|inner| inner.options.keep_alive_interval().is_some() && inner.about().connected)
        {
            self.watch();
        }
    }

    /// What SO_ERROR tells.
    pub(crate) fn take_error(&self) -> Outcome<c_int> {
        let mut inner = self.lock()?;
        self.progress(&mut inner);
        Ok(inner.take_error())
    }

    fn watch(&self) {
        if let Some(me) = self.me.upgrade() {
            service::watch(&me, self.fd());
        }
    }

    pub(crate) fn accept(&self) -> Outcome<Arc<Self>> {
        let until = self.lock()?.options.receive_deadline();
        self.wait(self.is_nonblocking(), until, |inner| {
            let Phase::Listening(listening) = &mut inner.phase else {
                return Some(Err(Refusal::new(libc::EINVAL, "the socket doesn't listen")));
            };
            let stream = listening.ready.pop_front()?;
            if std::mem::take(&mut listening.full)
                && let Some(id) = &inner.id
                && let Err(error) = self.set.add(id.fd(), 0)
            {
                return Some(Err(error.into()));
            }
            Some(Ok(stream))
        })
    }

    /// A connection of this listener is confirmed, or has failed.
    fn confirmed(&self, stream: &Arc<Stream>, works: bool) {
        let Ok(mut inner) = self.lock() else { return };
        let Phase::Listening(listening) = &mut inner.phase else { return };
        let Some(at) = listening.unconfirmed.iter().position(|s| Arc::ptr_eq(s, stream)) else { return };
        let stream = listening.unconfirmed.swap_remove(at);
        if works {
            listening.ready.push_back(stream);
        }
        inner.changed();
    }

    pub(crate) fn connect(&self, destination: libc::sockaddr_storage) -> Outcome<()> {
        {
            let mut inner = self.lock()?;
            match inner.phase {
                Phase::Fresh => {}
                Phase::Connecting(_) => return Err(Refusal::plain(libc::EALREADY)),
                Phase::Open(_) | Phase::Accepting(..) => return Err(Refusal::plain(libc::EISCONN)),
                Phase::Failed(_) => {
                    // An id that has failed is spent.
                    if let Some(old) = &inner.id {
                        self.set.remove(old.fd());
                    }
                    let id = Id::new(RDMA_PS_TCP)?;
                    self.set.add(id.fd(), 0)?;
                    inner.phase = Phase::Fresh;
                    inner.id = Some(id);
                }
                Phase::Listening(_) | Phase::Closed => return Err(Refusal::plain(libc::EINVAL)),
            }
            inner.apply_options()?;
            let mut connecting = Box::new(Connecting { destination, attempt: 0, prepared: None });
            connecting.resolve(inner.id()?)?;
            inner.phase = Phase::Connecting(connecting);
        }
        if self.is_nonblocking() {
            self.watch();
            return Err(Refusal::plain(libc::EINPROGRESS));
        }
        let until = self.lock()?.options.send_deadline();
        let connected = self.wait(false, until, |inner| match inner.phase {
            Phase::Connecting(_) => None,
            Phase::Open(_) => Some(Ok(())),
            Phase::Failed(errno) => {
                inner.error = 0;
                Some(Err(Refusal::plain(errno)))
            }
            _ => Some(Err(Refusal::plain(libc::EBADF))),
        });
        self.options_have_changed();
        if matches!(&connected, Err(refusal) if matches!(refusal.errno, libc::EAGAIN | libc::EINTR)) {
            // It goes on without the caller.
            self.watch();
        }
        connected.map_err(|refusal| match refusal.errno {
            libc::EAGAIN => Refusal::plain(libc::EINPROGRESS),
            _ => refusal,
        })
    }

    /// Sends from `pieces` of memory.
    ///
    /// # Safety
    /// They are readable.
    pub(crate) unsafe fn send(&self, pieces: &[libc::iovec], flags: c_int) -> Outcome<usize> {
        let total: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let nonblocking = self.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        let until = if nonblocking { None } else { self.lock()?.options.send_deadline() };
        let (mut done, mut piece) = (0, Piece::new());
        let sent = self.wait(nonblocking, until, |inner| {
            let connection = match inner.connection() {
                Ok(connection) => connection?,
                Err(refusal) => return Some(Err(refusal)),
            };
            if !connection.ends.is_writable() {
                let errno = match connection.ends.broken() {
                    Some(errno) => errno,
                    None if connection.ends.is_over() => libc::ECONNRESET,
                    None => libc::EPIPE,
                };
                return Some(Err(Refusal::plain(errno)));
            }
            let mut skipped = done;
            for memory in pieces {
                if skipped >= memory.iov_len {
                    skipped -= memory.iov_len;
                    continue;
                }
                let left = memory.iov_len - skipped;
                // SAFETY: the caller's promise.
                let now =
                    unsafe { connection.send(memory.iov_base.cast::<u8>().add(skipped), left, &mut piece) };
                done += now;
                if now < left {
                    break;
                }
                skipped = 0;
            }
            (done == total).then_some(Ok(()))
        });
        match sent {
            Err(refusal) if done == 0 => Err(refusal),
            _ => Ok(done),
        }
    }

    /// Receives into `pieces` of memory.
    ///
    /// # Safety
    /// They are writable.
    pub(crate) unsafe fn receive(&self, pieces: &[libc::iovec], flags: c_int) -> Outcome<usize> {
        let total: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let nonblocking = self.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        let until = if nonblocking { None } else { self.lock()?.options.receive_deadline() };
        let peek = flags & libc::MSG_PEEK != 0;
        let all = flags & libc::MSG_WAITALL != 0 && !peek;
        let mut done = 0;
        let received = self.wait(nonblocking, until, |inner| {
            let connection = match inner.connection() {
                Ok(connection) => connection?,
                Err(refusal) => return Some(Err(refusal)),
            };
            if connection.readable() == 0 {
                return match connection.ends.broken() {
                    Some(errno) => Some(Err(Refusal::plain(errno))),
                    None if !connection.ends.is_readable() || total == 0 => Some(Ok(())),
                    None => None,
                };
            }
            let mut skipped = done;
            let mut taken = 0;
            for memory in pieces {
                if skipped >= memory.iov_len {
                    skipped -= memory.iov_len;
                    continue;
                }
                let left = memory.iov_len - skipped;
                // SAFETY: the caller's promise.
                let now = unsafe { connection.copy(memory.iov_base.cast::<u8>().add(skipped), left, taken) };
                taken += now;
                if now < left {
                    break;
                }
                skipped = 0;
            }
            done += taken;
            if !peek {
                connection.consume(taken);
            }
            (!all || done == total).then_some(Ok(()))
        });
        match received {
            Err(refusal) if done == 0 => Err(refusal),
            _ => Ok(done),
        }
    }

    pub(crate) fn shutdown(&self, how: c_int) -> Outcome<()> {
        let (reading, writing) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(Refusal::new(libc::EINVAL, "no such end")),
        };
        let mut inner = self.lock()?;
        self.progress(&mut inner);
        match &mut inner.phase {
            Phase::Open(connection) => connection.shut(reading, writing),
            // Who waits in raccept or rpoll is told.
            Phase::Listening(_) => inner.phase = Phase::Failed(libc::EINVAL),
            _ => return Err(Refusal::plain(libc::ENOTCONN)),
        }
        inner.changed();
        Ok(())
    }

    /// Tells the peer that all is over, waits until it has everything, and ends the connection.
    pub(crate) fn close(&self) {
        let linger = self.lock().ok().and_then(|inner| inner.options.linger);
        let patience = linger.unwrap_or(FAREWELL);
        let until = Instant::now() + patience;
        if !patience.is_zero()
            && let Ok(mut inner) = self.lock()
        {
            if let Phase::Open(connection) = &mut inner.phase {
                connection.shut(true, true);
            }
            drop(inner);
            loop {
                let over = self.wait(false, Some(until), |inner| match &inner.phase {
                    Phase::Open(connection) if !connection.ends.is_over() => None,
                    _ => Some(Ok(())),
                });
                // A signal doesn't end the farewell.
                if !matches!(over, Err(refusal) if refusal.errno == libc::EINTR) {
                    break;
                }
            }
        }
        service::forget(self.fd());
        let ended = match self.inner.lock() {
            Ok(mut inner) => self.end(&mut inner),
            Err(poisoned) => self.end(&mut poisoned.into_inner()),
        };
        // Objects end without the lock.
        drop(ended);
    }

    fn end(&self, inner: &mut Inner) -> (Phase, Option<Id>) {
        if let Phase::Open(connection) | Phase::Accepting(connection, _) = &inner.phase {
            self.set.remove(connection.fd());
        }
        if let Some(id) = &inner.id {
            self.set.remove(id.fd());
        }
        let ended = (std::mem::replace(&mut inner.phase, Phase::Closed), inner.id.take());
        inner.changed();
        ended
    }

    /// What the socket is ready for, of `events`.
    pub(crate) fn readiness(&self, events: libc::c_short) -> Readiness {
        match self.lock() {
            Ok(mut inner) => {
                self.progress(&mut inner);
                (inner.ready_for(events), inner.changes)
            }
            Err(_) => (libc::POLLERR, 0),
        }
    }

    /// The same; if it isn't ready, `waker` is woken when it may be.
    pub(crate) fn readiness_or_wake(
        &self,
        events: libc::c_short,
        waker: &Arc<crate::waiting::Waker>,
    ) -> Readiness {
        match self.lock() {
            Ok(mut inner) => {
                self.progress_armed(&mut inner);
                inner.waiters.add(waker);
                (inner.ready_for(events), inner.changes)
            }
            Err(_) => (libc::POLLERR, 0),
        }
    }

    /// It isn't to be woken any more.
    pub(crate) fn dont_wake(&self, waker: &Arc<crate::waiting::Waker>) {
        if let Ok(mut inner) = self.lock() {
            inner.waiters.remove(waker);
        }
    }

    pub(crate) fn local_name(&self) -> Outcome<libc::sockaddr_storage> {
        let inner = self.lock()?;
        let mut name = inner.id()?.source();
        if name.ss_family == 0 {
            name = address::nothing(inner.domain);
        }
        Ok(name)
    }

    pub(crate) fn peer_name(&self) -> Outcome<libc::sockaddr_storage> {
        let mut inner = self.lock()?;
        self.progress(&mut inner);
        match inner.phase {
            Phase::Open(_) => Ok(inner.id()?.destination()),
            _ => Err(Refusal::plain(libc::ENOTCONN)),
        }
    }

    pub(crate) fn map(&self, memory: (usize, usize), write: bool, offset: Option<u64>) -> Outcome<u64> {
        let (mut mapped, until) = (None, self.lock()?.options.send_deadline());
        let told = self.wait(false, until, |inner| {
            let pd = match inner.id() {
                Ok(id) => id.pd(),
                Err(refusal) => return Some(Err(refusal)),
            };
            let connection = match inner.connection() {
                Ok(connection) => connection?,
                Err(refusal) => return Some(Err(refusal)),
            };
            if mapped.is_none() {
                match connection.map(pd, memory, write, offset) {
                    Ok(offset) => mapped = Some(offset),
                    Err(refusal) => return Some(Err(refusal)),
                }
            }
            (connection.has_told_mapped() || connection.ends.is_over()).then_some(Ok(()))
        });
        mapped.ok_or_else(|| told.err().unwrap_or_else(|| Refusal::plain(libc::EIO)))
    }

    pub(crate) fn unmap(&self, memory: (usize, usize)) -> Outcome<()> {
        let mut inner = self.lock()?;
        self.progress(&mut inner);
        match inner.connection()? {
            Some(connection) => connection.unmap(memory),
            None => Err(Refusal::plain(libc::ENOTCONN)),
        }
    }

    /// Writes memory that the peer has mapped.
    ///
    /// # Safety
    /// `from` is readable for `length` bytes.
    pub(crate) unsafe fn write_mapped(
        &self,
        from: *const u8,
        length: usize,
        offset: u64,
        flags: c_int,
    ) -> Outcome<usize> {
        let nonblocking = self.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        let until = if nonblocking { None } else { self.lock()?.options.send_deadline() };
        let (mut done, mut piece) = (0, Piece::new());
        let written = self.wait(nonblocking, until, |inner| {
            let connection = match inner.connection() {
                Ok(connection) => connection?,
                Err(refusal) => return Some(Err(refusal)),
            };
            if !connection.ends.is_writable() {
                return Some(Err(Refusal::plain(connection.ends.broken().unwrap_or(libc::ECONNRESET))));
            }
            let at = offset.wrapping_add(done as u64);
            // SAFETY: the caller's promise.
            match unsafe { connection.write_mapped(from.add(done), length - done, at, &mut piece) } {
                Ok(now) => done += now,
                Err(refusal) => return Some(Err(refusal)),
            }
            (done == length).then_some(Ok(()))
        });
        match written {
            Err(refusal) if done == 0 => Err(refusal),
            _ => Ok(done),
        }
    }
}

impl service::Attended for Stream {
    fn attend(self: Arc<Self>) -> service::Next {
        let (listener, works, next) = {
            let Ok(mut inner) = self.lock() else { return service::Next::NEVER };
            let listener = match &inner.phase {
                Phase::Accepting(_, listener) => Some(listener.clone()),
                _ => None,
            };
            self.progress(&mut inner);
            let next = inner.next_attention();
            match inner.phase {
                Phase::Open(_) => (listener, true, next),
                Phase::Failed(_) | Phase::Closed => (listener, false, next),
                _ => return next,
            }
        };
        if let Some(listener) = listener.and_then(|listener| listener.upgrade()) {
            listener.confirmed(&self, works);
        }
        next
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        service::forget(self.fd());
    }
}

impl Inner {
    fn id(&self) -> Outcome<&Id> {
        self.id.as_ref().ok_or_else(|| Refusal::plain(libc::EBADF))
    }

    fn changed(&mut self) {
        self.changes += 1;
        self.waiters.wake();
    }

    fn fail(&mut self, errno: c_int) {
        self.error = errno;
        self.phase = Phase::Failed(errno);
    }

    fn open(&mut self) {
        self.phase = match std::mem::replace(&mut self.phase, Phase::Closed) {
            Phase::Accepting(mut connection, _) => {
                connection.give_credits();
                Phase::Open(connection)
            }
            other => other,
        };
    }

    /// What options depend on.
    pub(crate) fn about(&self) -> About {
        let id = self.id.as_ref().filter(|_| matches!(self.phase, Phase::Open(_)));
        About {
            kind: libc::SOCK_STREAM,
            domain: self.domain,
            connected: matches!(self.phase, Phase::Connecting(_) | Phase::Accepting(..) | Phase::Open(_)),
            listening: matches!(self.phase, Phase::Listening(_)),
            segment: id.and_then(Id::path_mtu),
        }
    }

    /// Options that librdmacm must know before the socket has an address.
    fn apply_options(&mut self) -> Outcome<()> {
        let id = self.id.as_ref().ok_or_else(|| Refusal::plain(libc::EBADF))?;
        self.options.apply(id, self.domain)
    }

    /// The connection; none while it isn't there yet.
    fn connection(&mut self) -> Outcome<Option<&mut Connection>> {
        match &mut self.phase {
            Phase::Open(connection) => Ok(Some(connection)),
            Phase::Connecting(_) | Phase::Accepting(..) => Ok(None),
            Phase::Failed(errno) => Err(Refusal::plain(*errno)),
            Phase::Closed => Err(Refusal::plain(libc::EBADF)),
            Phase::Fresh | Phase::Listening(_) => Err(Refusal::plain(libc::ENOTCONN)),
        }
    }

    /// Whether no request is to be taken now.
    fn is_full(&self) -> bool {
        matches!(&self.phase, Phase::Listening(listening) if listening.full)
    }

    fn arm(&mut self) {
        if let Phase::Open(connection) | Phase::Accepting(connection, _) = &mut self.phase {
            connection.arm();
        }
    }

    fn is_armed(&self) -> bool {
        match &self.phase {
            Phase::Open(connection) | Phase::Accepting(connection, _) => connection.is_armed(),
            _ => true,
        }
    }

    /// What poll(2) would say.
    fn ready_for(&self, events: libc::c_short) -> libc::c_short {
        let (read, write) =
            (events & (libc::POLLIN | libc::POLLRDNORM), events & (libc::POLLOUT | libc::POLLWRNORM));
        match &self.phase {
            Phase::Listening(listening) => {
                if listening.ready.is_empty() {
                    0
                } else {
                    read
                }
            }
            Phase::Connecting(_) | Phase::Accepting(..) => 0,
            Phase::Open(connection) => {
                let ends = &connection.ends;
                let mut ready = 0;
                if connection.readable() > 0 || !ends.is_readable() {
                    ready |= read;
                }
                if connection.can_send() || !ends.is_writable() {
                    ready |= write;
                }
                if !ends.is_readable() {
                    ready |= events & libc::POLLRDHUP;
                }
                // Programs that look for these first would miss what has arrived before the end.
                if connection.readable() == 0 {
                    if ends.broken().is_some() {
                        ready |= libc::POLLERR;
                    }
                    if !ends.is_readable() && !ends.is_writable() {
                        ready |= libc::POLLHUP;
                    }
                }
                ready
            }
            Phase::Fresh => write | libc::POLLHUP,
            Phase::Failed(_) => read | write | libc::POLLERR,
            Phase::Closed => libc::POLLNVAL,
        }
    }

    /// Whether the service thread must look after the socket, and when.
    fn next_attention(&mut self) -> service::Next {
        match &mut self.phase {
            Phase::Listening(_) | Phase::Connecting(_) | Phase::Accepting(..) => service::Next::EVENT,
            Phase::Open(connection) => match self.options.keep_alive_interval() {
                Some(interval) if !connection.ends.is_over() => {
                    let now = Instant::now();
                    let due = *self.options.keep_alive_due.get_or_insert(now + interval);
                    if now < due {
                        return service::Next::at(due);
                    }
                    connection.keep_alive();
                    self.options.keep_alive_due = Some(now + interval);
                    service::Next::at(now + interval)
                }
                _ => service::Next::NEVER,
            },
            Phase::Fresh | Phase::Failed(_) | Phase::Closed => service::Next::NEVER,
        }
    }

    /// What broke the socket, once.
    fn take_error(&mut self) -> c_int {
        match &self.phase {
            Phase::Open(connection) => connection.ends.broken().unwrap_or(0),
            _ => std::mem::take(&mut self.error),
        }
    }
}

impl Listening {
    fn is_full(&self) -> bool {
        self.unconfirmed.len() + self.ready.len() >= self.backlog
    }
}

impl Connecting {
    fn timeout(&self) -> c_int {
        FIRST_ATTEMPT << self.attempt
    }

    fn resolve(&mut self, id: &Id) -> Outcome<()> {
        // SAFETY: a live id, an address.
        zero(
            unsafe {
                rdma_resolve_addr(
                    id.raw(),
                    std::ptr::null_mut(),
                    (&raw mut self.destination).cast(),
                    self.timeout(),
                )
            },
            "rdma_resolve_addr",
        )
    }

    fn resolve_route(&self, id: &Id) -> Outcome<()> {
        // SAFETY: a live id.
        zero(unsafe { rdma_resolve_route(id.raw(), self.timeout()) }, "rdma_resolve_route")
    }

    /// The next step, and the connection after the last.
    fn happened(
        &mut self,
        id: &Id,
        event: &Event,
        options: &Options,
        set: &Set,
    ) -> Outcome<Option<Box<Connection>>> {
        match event.kind {
            RDMA_CM_EVENT_ADDR_RESOLVED => {
                self.attempt = 0;
                if options.set_route(id)? {
                    self.request(id, options, set)?;
                } else {
                    self.resolve_route(id)?;
                }
            }
            RDMA_CM_EVENT_ADDR_ERROR | RDMA_CM_EVENT_ROUTE_ERROR
                if event.errno() == libc::ETIMEDOUT && self.attempt < RETRIES =>
            {
                self.attempt += 1;
                if event.kind == RDMA_CM_EVENT_ADDR_ERROR {
                    self.resolve(id)?;
                } else {
                    self.resolve_route(id)?;
                }
            }
            RDMA_CM_EVENT_ROUTE_RESOLVED => self.request(id, options, set)?,
            RDMA_CM_EVENT_ESTABLISHED => {
                let peer = ConnectionData::parse(event.data())
                    .ok_or_else(|| Refusal::new(libc::ENOTSUP, "the peer is no rsocket of version 1"))?;
                let prepared = self.prepared.take().ok_or_else(|| Refusal::plain(libc::EIO))?;
                return Ok(Some(Box::new(Connection::new(prepared, peer))));
            }
            _ => return Err(Refusal::plain(event.errno())),
        }
        Ok(None)
    }

    fn request(&mut self, id: &Id, options: &Options, set: &Set) -> Outcome<()> {
        let prepared = Prepared::new(id, &options.choices)?;
        set.add(prepared.fd(), 0)?;
        let data = prepared.data();
        self.prepared = Some(prepared);
        // SAFETY: a live id with a queue pair; data that is copied.
        zero(unsafe { rdma_connect(id.raw(), &mut parameters(&data)) }, "rdma_connect")
    }
}

/// What both sides say of their queue pairs.
fn parameters(data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: data.as_ptr().cast(),
        private_data_len: data.len() as u8,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    }
}
