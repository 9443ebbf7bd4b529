//! The services that answer requests of the host's other processes.
//!
//! One SEQPACKET connection per request. A request names its kind; a [`RequestHandler`] that is registered for the kind gets the
//! connection with it, and a request that no service knows is refused. Connections of other users are closed, except those of root, and of
//! trusted users where a service answers them. No connection is waited for: a client may lose its processor between connecting and
//! asking, and is served when its request arrives. The client that has been silent for longest is cut off when too many connect after it.

use super::epoll::Epoll;
use super::exposed::ExposedSocket;
use super::frame;
use super::trust::Trust;
use super::user::{self, User};
use ferroce_os::sync::{Mutex, RwLock, class};
use ferroce_os::sys::{self, EngineFd};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

/// No request is longer.
const LONGEST: usize = 128;
/// Connections over which nothing has been asked yet, at most: the oldest is cut off for one more.
const MOST_SILENT: usize = 32;
/// Connections of processes that have leave to send memory and haven't sent it, at most, likewise. All ranks of a job may start at once.
const MOST_WITH_LEAVE: usize = 256;
/// Connections taken from a listener before other work has its turn.
pub(super) const TURN: usize = 16;
/// How long a process that has leave to send memory is waited for, where what it has sent counts: one of this user …
const MEMORY_PATIENCE: Duration = Duration::from_millis(200);
/// … and one of another user, who may have leave given again and again.
const OTHERS_MEMORY_PATIENCE: Duration = Duration::from_millis(20);
/// How long a client that has connected may take to ask where no descriptor is left to keep the connection.
const PATIENCE: Duration = Duration::from_millis(2);

/// Answers the requests of one kind.
pub trait RequestHandler: Send + Sync {
    /// Answers `message` with what came along, at once, and keeps the connection if it likes. The other end is a process
    /// of this user, or root's or a trusted user's where the service answers them, and nothing else is known of it.
    fn serve(&self, connection: EngineFd, message: &[u8], fds: Vec<EngineFd>);

    /// A process of root's is answered too.
    fn answers_root(&self) -> bool {
        false
    }

    /// A process of a user who is trusted is answered too.
    fn answers_trusted(&self) -> bool {
        false
    }
}

/// The services of a process, by kind of request.
#[derive(Default)]
pub struct Services {
    registered: RwLock<class::Services, Vec<Registered>>,
    /// Over which nothing has been asked yet, oldest first. All are in the `epoll` of the [`Reception`].
    silent: Mutex<class::SilentClients, VecDeque<SilentClient>>,
    /// What is given up for a connection when the process has no other descriptor left.
    spare: Mutex<class::SpareDescriptor, Option<EngineFd>>,
    /// Threads that may have taken a connection or a request that isn't answered yet.
    answering: AtomicUsize,
}

/// A connection over which nothing has been asked yet, or for leave to send memory alone.
#[derive(Debug)]
struct SilentClient {
    connection: EngineFd,
    leave: Option<MemoryLeave>,
}

/// Leave to send memory.
#[derive(Clone, Copy, Debug)]
struct MemoryLeave {
    /// When the thread that gave it began to take requests.
    begun: Instant,
    /// How long its process is waited for.
    patience: Duration,
}

/// A service, and the kind of request that it answers.
type Registered = (u8, Arc<dyn RequestHandler>);

/// The users that are served, the `epoll` of silent clients, and the answer to requests without a registered service.
pub(super) struct Reception<'a> {
    pub(super) user: User,
    pub(super) trust: &'a Trust,
    /// Silent clients are in there, each with [`Reception::spoken`].
    pub(super) epoll: &'a Epoll,
    pub(super) spoken: u64,
    pub(super) rest: &'a dyn Fn(&EngineFd, &[u8]) -> io::Result<()>,
}

impl Services {
    /// From now on `service` answers the requests of this kind, which has no service yet.
    pub fn register(&self, kind: u8, service: Arc<dyn RequestHandler>) {
        let mut services = self.registered.write();
        debug_assert!(services.iter().all(|(known, _)| *known != kind), "two services of kind {kind}");
        services.push((kind, service));
    }

    fn of_kind(&self, kind: u8) -> Option<Arc<dyn RequestHandler>> {
        self.registered.read().iter().find(|(known, _)| *known == kind).map(|(_, service)| service.clone())
    }

    /// A thread has taken a request that isn't answered yet.
    pub(super) fn is_answering(&self) -> bool {
        // SYNC: pairs with `Answering::drop`: what the thread has done for the request is seen.
        self.answering.load(Ordering::Acquire) > 0
    }

    /// A process has leave to send memory, and will do so in a moment. A thread that began to take requests before `since` has given it: all that
    /// was asked until then was taken by such a thread, if the caller has found no request since. Leave that others give doesn't count: there may be
    /// more of it without end. To be asked before [`Self::is_answering`]: a request that another thread takes is counted there first.
    pub(super) fn expects_memory(&self, since: Instant) -> bool {
        let is_expected = |leave: MemoryLeave| leave.begun <= since && leave.begun.elapsed() < leave.patience;
        self.silent.lock().iter().any(|client| client.leave.is_some_and(is_expected))
    }

    /// Takes the connections that wait at a listener, at most 16. A request that has arrived already is answered.
    pub(super) fn serve(&self, listener: &ExposedSocket, reception: &Reception<'_>) {
        let answering = Answering::begin(&self.answering);
        // The program may have closed it, and have a listener of its own with the number.
        if listener.checked() < 0 {
            return;
        }
        for _ in 0..TURN {
            let connection = match listener.accept() {
                Ok(connection) => {
                    // Another thread may have taken the number, the last time that it was given up.
                    if self.spare.lock().is_none() {
                        self.keep_spare();
                    }
                    connection
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.serve_with_spare(listener, &answering, reception),
            };
            let Ok(connection) = reception.let_in(connection) else { continue };
            let client = SilentClient { connection, leave: None };
            if has_spoken(&client.connection) {
                self.answer(client, &answering, reception);
            } else {
                self.keep(client, reception);
            }
        }
    }

    /// No descriptor is left. One client is answered all the same: without its answer no process of the host may be able to start.
    #[cold]
    fn serve_with_spare(
        &self,
        listener: &ExposedSocket,
        answering: &Answering<'_>,
        reception: &Reception<'_>,
    ) {
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            tracing::warn!(
                "the process has no descriptor left (RLIMIT_NOFILE): other processes of the host, which ask it for sockets, wait for their turn"
            );
        });
        let silent = std::mem::take(&mut *self.silent.lock());
        drop(silent);
        self.give_up_spare();
        match listener.accept() {
            Ok(connection) => {
                if let Ok(connection) = reception.let_in(connection)
                    && sys::wait_for(connection.raw(), libc::POLLIN, PATIENCE)
                {
                    self.answer(SilentClient { connection, leave: None }, answering, reception);
                }
            }
            // The listener stays readable, and the caller would spin on it.
            Err(_) => sys::pause(Duration::from_millis(1)),
        }
        self.keep_spare();
    }

    fn give_up_spare(&self) {
        let spare = self.spare.lock().take();
        drop(spare);
    }

    /// Has a descriptor to give up from now on, if there is one.
    pub(super) fn keep_spare(&self) {
        let spare = sys::epoll_create().ok();
        let old = std::mem::replace(&mut *self.spare.lock(), spare);
        drop(old);
    }

    /// Answers those who had connected and have asked since.
    pub(super) fn serve_silent(&self, reception: &Reception<'_>) {
        let answering = Answering::begin(&self.answering);
        let spoken: VecDeque<SilentClient> = {
            let mut silent = self.silent.lock();
            let (spoken, still) = silent.drain(..).partition(|client| has_spoken(&client.connection));
            *silent = still;
            spoken
        };
        for client in spoken {
            // The service may keep the connection. Fails for one that has ended meanwhile.
            let _ = reception.epoll.unwatch(client.connection.raw());
            self.answer(client, &answering, reception);
        }
    }

    fn keep(&self, client: SilentClient, reception: &Reception<'_>) {
        let fd = client.connection.raw();
        let has_leave = client.leave.is_some();
        let most = if has_leave { MOST_WITH_LEAVE } else { MOST_SILENT };
        let is_alike = |other: &SilentClient| other.leave.is_some() == has_leave;
        let mut silent = self.silent.lock();
        let is_full = silent.iter().filter(|other| is_alike(other)).count() >= most;
        let oldest = silent.iter().position(is_alike).filter(|_| is_full).and_then(|at| silent.remove(at));
        // In the list first: a request that arrives at once is found there.
        silent.push_back(client);
        let watched = reception.epoll.watch(fd, reception.spoken);
        let unwatched = if watched.is_err() { silent.pop_back() } else { None };
        drop(silent);
        drop((oldest, unwatched));
    }

    fn answer(&self, client: SilentClient, answering: &Answering<'_>, reception: &Reception<'_>) {
        if let Err(error) = self.try_answer(client, answering.begun, reception) {
            tracing::debug!(%error, "a request of another process was not answered");
        }
    }

    /// By a thread that has `begun` to take requests then.
    fn try_answer(&self, client: SilentClient, begun: Instant, reception: &Reception<'_>) -> io::Result<()> {
        let SilentClient { connection, leave } = client;
        let mut bytes = [0; LONGEST];
        let (length, received) = frame::receive(connection.raw(), &mut bytes)?;
        // No request has anything else with it, and the process may be of another user.
        if !received.iter().all(frame::is_memory) {
            frame::discard(received);
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let message = &bytes[..length];
        let kind = frame::kind_of(message);
        if kind == Some(frame::KIND_MEMORY) {
            // Leave that is renewed would make each revocation wait for its end.
            if leave.is_some() {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            reception.permits_memory(&connection)?;
            sys::accept_descriptors(connection.raw());
            frame::send(connection.raw(), &mut frame::header(frame::GRANTED), &[])?;
            let patience = match reception.user.check_peer(connection.raw()) {
                Ok(()) => MEMORY_PATIENCE,
                Err(_) => OTHERS_MEMORY_PATIENCE,
            };
            let leave = Some(MemoryLeave { begun, patience });
            self.keep(SilentClient { connection, leave }, reception);
            return Ok(());
        }
        let service = kind.and_then(|kind| self.of_kind(kind));
        reception.permits(&connection, service.as_deref())?;
        match service {
            Some(service) => {
                service.serve(connection, message, received);
                Ok(())
            }
            None => (reception.rest)(&connection, message),
        }
    }
}

/// Counts a thread that takes and answers requests. It is counted before it takes one: another thread that finds none to take, and
/// nothing counted, knows that all are answered. (The kernel's lock of the listener orders the two.)
struct Answering<'a> {
    count: &'a AtomicUsize,
    begun: Instant,
}

impl<'a> Answering<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self { count, begun: Instant::now() }
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        // SYNC: pairs with `Services::is_answering`.
        self.count.fetch_sub(1, Ordering::Release);
    }
}

impl Reception<'_> {
    /// A connection, if there is anything that the process at its other end may ask for.
    fn let_in(&self, connection: ExposedSocket) -> io::Result<EngineFd> {
        let fd = connection.raw();
        let proof = self.user.check_peer(fd).or_else(|refused| {
            if user::is_root(fd) || self.trust.includes(fd) { Ok(()) } else { Err(refused) }
        });
        connection.proven(proof)
    }

    /// Whether the process at the other end may send memory: as a service that answers trusted users.
    fn permits_memory(&self, connection: &EngineFd) -> io::Result<()> {
        let fd = connection.raw();
        self.user
            .check_peer(fd)
            .or_else(|refused| if self.trust.includes(fd) { Ok(()) } else { Err(refused) })
    }

    /// Whether a service, or what answers the rest, answers the process at the other end.
    fn permits(&self, connection: &EngineFd, service: Option<&dyn RequestHandler>) -> io::Result<()> {
        let fd = connection.raw();
        self.user.check_peer(fd).or_else(|refused| {
            let answers = service.is_some_and(|service| {
                (service.answers_root() && user::is_root(fd))
                    || (service.answers_trusted() && self.trust.includes(fd))
            });
            if answers { Ok(()) } else { Err(refused) }
        })
    }
}

/// Something can be read, or the other end has closed.
fn has_spoken(connection: &EngineFd) -> bool {
    sys::wait_for(connection.raw(), libc::POLLIN, Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::super::handover;
    use super::super::names::Name;
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Default)]
    struct Counting(AtomicU32);

    impl RequestHandler for Counting {
        fn serve(&self, connection: EngineFd, message: &[u8], _: Vec<EngineFd>) {
            assert_eq!(message[frame::HEADER..], *b"please");
            self.0.fetch_add(1, Ordering::Relaxed);
            frame::send(connection.raw(), &mut frame::header(frame::GRANTED), &[]).unwrap();
        }
    }

    /// A listener with a name, and the services that answer requests there.
    struct Desk {
        name: Name,
        listener: ExposedSocket,
        services: Services,
        epoll: Epoll,
        trust: Trust,
        user: User,
    }

    impl Desk {
        /// With a service for the requests of a kind.
        fn of(kind: u8, service: Arc<dyn RequestHandler>) -> Self {
            // The number of no user, so that no process is disturbed.
            let name = Name::leader(3_000_000_000 + 1000 * u32::from(kind) + std::process::id() % 1000);
            let listener = name.listen().unwrap().expect("a free name");
            let services = Services::default();
            services.register(kind, service);
            let epoll = Epoll::new().unwrap();
            Self { name, listener, services, epoll, trust: Trust::default(), user: User::current() }
        }

        /// What no service knows is refused.
        fn reception(&self) -> Reception<'_> {
            let Self { user, trust, epoll, .. } = self;
            Reception {
                user: *user,
                trust,
                epoll,
                spoken: 0,
                rest: &|connection, message| {
                    handover::answer(connection, message, &mut |_| handover::OwnSockets::Nothing)
                },
            }
        }

        fn dial(&self) -> EngineFd {
            self.user.dial(&self.name).unwrap()
        }

        fn serve(&self) {
            self.services.serve(&self.listener, &self.reception());
        }

        fn serve_silent(&self) {
            self.services.serve_silent(&self.reception());
        }
    }

    /// Where the kernel has it, a process sends memory to a slot's holder only after it has been given leave.
    #[test]
    fn descriptors_come_with_a_request_after_leave_was_given() {
        const KIND: u8 = 78;
        #[derive(Default)]
        struct Taking(AtomicU32);
        impl RequestHandler for Taking {
            fn serve(&self, _: EngineFd, _: &[u8], fds: Vec<EngineFd>) {
                self.0.fetch_add(fds.len() as u32, Ordering::Relaxed);
            }
        }
        let taking = Arc::new(Taking::default());
        let desk = Desk::of(KIND, taking.clone());
        let client = desk.dial();
        let memory = sys::memfd(c"test", 4096).unwrap();
        let send = || frame::send(client.raw(), &mut frame::header(KIND), &[memory.raw()]);

        if sys::refuse_descriptors(sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET).unwrap().raw()) {
            assert_eq!(send().unwrap_err().raw_os_error(), Some(libc::EPERM));
        }
        frame::send(client.raw(), &mut frame::header(frame::KIND_MEMORY), &[]).unwrap();
        let before = Instant::now();
        desk.serve();
        let (length, _) = frame::receive(client.raw(), &mut [0; LONGEST]).unwrap();
        assert_eq!(length, frame::HEADER);
        assert!(!desk.services.expects_memory(before), "a wait that has begun doesn't get longer");
        assert!(desk.services.expects_memory(Instant::now()));
        send().unwrap();
        desk.serve_silent();
        assert!(!desk.services.expects_memory(Instant::now()));
        assert_eq!(taking.0.load(Ordering::Relaxed), 1);
    }

    /// A thread takes a request, another one finds no request any more, and the first gives leave then.
    #[test]
    fn memory_is_expected_from_a_process_whose_request_was_taken_before() {
        let desk = Desk::of(80, Arc::new(Counting::default()));
        let client = desk.dial();
        frame::send(client.raw(), &mut frame::header(frame::KIND_MEMORY), &[]).unwrap();
        let answering = Answering::begin(&desk.services.answering);
        let connection = desk.reception().let_in(desk.listener.accept().unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        let since = Instant::now();
        assert!(desk.services.is_answering());
        desk.services.answer(SilentClient { connection, leave: None }, &answering, &desk.reception());
        drop(answering);
        assert!(desk.services.expects_memory(since));
    }

    /// All processes of a job may make a link to one of them at once.
    #[test]
    fn many_processes_have_leave_at_once_and_each_gets_it_once() {
        const KIND: u8 = 79;
        let counting = Arc::new(Counting::default());
        let desk = Desk::of(KIND, counting.clone());
        let ask = |client: &EngineFd| {
            frame::send(client.raw(), &mut frame::header(frame::KIND_MEMORY), &[]).unwrap();
        };
        let length_of_answer = |client: &EngineFd| {
            frame::receive(client.raw(), &mut [0; LONGEST]).map_or(0, |(length, _)| length)
        };

        let mut clients = Vec::new();
        while clients.len() < 3 * MOST_SILENT {
            let client = desk.dial();
            ask(&client);
            desk.serve();
            clients.push(client);
        }
        for client in &clients {
            assert_eq!(length_of_answer(client), frame::HEADER);
            let mut request = [&frame::header(KIND)[..], b"please"].concat();
            frame::send(client.raw(), &mut request, &[]).unwrap();
        }
        desk.serve_silent();
        assert_eq!(counting.0.load(Ordering::Relaxed) as usize, clients.len());

        let again = desk.dial();
        ask(&again);
        desk.serve();
        assert_eq!(length_of_answer(&again), frame::HEADER);
        ask(&again);
        desk.serve_silent();
        assert_eq!(length_of_answer(&again), 0, "the connection has ended");
        assert!(!desk.services.expects_memory(Instant::now()));
    }

    #[test]
    fn requests_go_to_the_service_of_their_kind_whenever_they_come() {
        const KIND: u8 = 77;
        let counting = Arc::new(Counting::default());
        let desk = Desk::of(KIND, counting.clone());
        let speak = |client: &EngineFd, kind| {
            let mut request = [&frame::header(kind)[..], b"please"].concat();
            frame::send(client.raw(), &mut request, &[]).unwrap();
        };
        let answer_to = |client: &EngineFd| {
            let mut answer = [0; LONGEST];
            let (length, _) = frame::receive(client.raw(), &mut answer).unwrap();
            frame::kind_of(&answer[..length])
        };
        for (kind, answer) in [(KIND, frame::GRANTED), (KIND + 1, frame::REFUSED)] {
            let client = desk.dial();
            speak(&client, kind);
            desk.serve();
            assert_eq!(answer_to(&client), Some(answer));
        }
        assert_eq!(counting.0.load(Ordering::Relaxed), 1);

        // A client that asks later is served later, and no thread waits for it.
        let clients = [(); 2].map(|()| desk.dial());
        let before = std::time::Instant::now();
        desk.serve();
        desk.serve_silent();
        assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
        assert!(!sys::wait_for(desk.epoll.raw(), libc::POLLIN, Duration::ZERO));
        speak(&clients[1], KIND);
        assert!(sys::wait_for(desk.epoll.raw(), libc::POLLIN, Duration::from_secs(10)));
        desk.serve_silent();
        assert_eq!(answer_to(&clients[1]), Some(frame::GRANTED));
        assert!(!sys::wait_for(desk.epoll.raw(), libc::POLLIN, Duration::ZERO));

        // The client that has been silent for longest is cut off for one more.
        let others: Vec<_> = (0..MOST_SILENT).map(|_| desk.dial()).collect();
        for _ in 0..=MOST_SILENT / TURN {
            desk.serve();
        }
        let cut_off = frame::send(clients[0].raw(), &mut frame::header(KIND), &[]).unwrap_err();
        assert_eq!(cut_off.raw_os_error(), Some(libc::EPIPE));
        for client in &others {
            speak(client, KIND);
        }
        desk.serve_silent();
        assert!(others.iter().all(|client| answer_to(client) == Some(frame::GRANTED)));
        assert!(desk.services.silent.lock().is_empty());
    }
}
