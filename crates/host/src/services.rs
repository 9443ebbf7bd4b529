//! Who answers which requests of the host's other processes.
//!
//! One SEQPACKET connection per request. A request names its kind; a [`Service`] that is registered for the kind gets the
//! connection with it, and a request that no service knows is refused. What strangers can do is bounded here: who isn't of
//! this user isn't heard, but for root and for users who are trusted where a service answers them, and who connects and says nothing is
//! cut off.

use super::frame;
use super::trust::Trust;
use super::user::{self, User};
use ferroce_os::sync::{RwLock, class};
use ferroce_os::sys::{self, EngineFd};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// No request is longer.
const LONGEST: usize = 128;
/// How long a client that has connected may take to ask.
const REQUEST_PATIENCE: Duration = Duration::from_millis(2);

/// Answers the requests of one kind.
pub trait Service: Send + Sync {
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
pub struct Services(RwLock<class::Services, Vec<Registered>>);

/// A service, and the kind of request that it answers.
type Registered = (u8, Arc<dyn Service>);

impl Services {
    /// From now on `service` answers the requests of this kind, which nobody has answered before.
    pub fn register(&self, kind: u8, service: Arc<dyn Service>) {
        let mut services = self.0.write();
        debug_assert!(services.iter().all(|(known, _)| *known != kind), "two services of kind {kind}");
        services.push((kind, service));
    }

    fn of_kind(&self, kind: u8) -> Option<Arc<dyn Service>> {
        self.0.read().iter().find(|(known, _)| *known == kind).map(|(_, service)| service.clone())
    }

    /// Serves the connections waiting at a listener: at most 16, each given two milliseconds to say what it wants, and not
    /// more than four in all. `rest` answers what no service is registered for.
    pub(super) fn serve(
        &self,
        listener: RawFd,
        user: User,
        trust: &Trust,
        rest: &mut dyn FnMut(&EngineFd, &[u8]) -> io::Result<()>,
    ) {
        let deadline = Instant::now() + 2 * REQUEST_PATIENCE;
        for _ in 0..16 {
            let connection = match sys::accept(listener) {
                Ok(connection) => connection,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // No descriptor left: the listener stays readable, and the caller would spin on it.
                    sys::pause(Duration::from_millis(1));
                    return;
                }
            };
            let left = deadline.saturating_duration_since(Instant::now()).min(REQUEST_PATIENCE);
            if let Err(error) = self.serve_one(connection, (user, trust), left, rest) {
                tracing::debug!(%error, "a request of another process was not answered");
            }
            if left.is_zero() {
                return;
            }
        }
    }

    fn serve_one(
        &self,
        connection: EngineFd,
        (user, trust): (User, &Trust),
        patience: Duration,
        rest: &mut dyn FnMut(&EngineFd, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let fd = connection.raw();
        let of_this_user = user.check_peer(fd);
        let (is_root, is_trusted) = match &of_this_user {
            Ok(()) => (false, false),
            Err(_) => (user::is_root(fd), trust.includes(fd)),
        };
        if of_this_user.is_err() && !is_root && !is_trusted {
            return of_this_user;
        }
        if !sys::wait_for(fd, libc::POLLIN, patience) {
            return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
        }
        let mut bytes = [0; LONGEST];
        let (length, received) = frame::receive(fd, &mut bytes)?;
        let message = &bytes[..length];
        let service = frame::kind_of(message).and_then(|kind| self.of_kind(kind));
        let answers = |service: &Arc<dyn Service>| {
            (is_root && service.answers_root()) || (is_trusted && service.answers_trusted())
        };
        if !service.as_ref().is_some_and(answers) {
            of_this_user?;
        }
        match service {
            Some(service) => {
                service.serve(connection, message, received);
                Ok(())
            }
            None => rest(&connection, message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Default)]
    struct Counting(AtomicU32);

    impl Service for Counting {
        fn serve(&self, connection: EngineFd, message: &[u8], _: Vec<EngineFd>) {
            assert_eq!(message[frame::HEADER..], *b"please");
            self.0.fetch_add(1, Ordering::Relaxed);
            frame::send(connection.raw(), &mut frame::header(frame::GRANTED), &[]).unwrap();
        }
    }

    #[test]
    fn requests_go_to_the_service_of_their_kind_and_the_rest_is_refused() {
        use super::super::handover;
        use super::super::names::Name;

        const KIND: u8 = 77;
        let user = User::current();
        // A user nobody has, so that nothing real is disturbed.
        let name = Name::slot(3_000_000_000 + std::process::id() % 1000, 5);
        let listener = name.listen().unwrap().expect("a free name");
        let (services, counting) = (Services::default(), Arc::new(Counting::default()));
        services.register(KIND, counting.clone());
        let answer_to = |kind| {
            let client = handover::dial(&name, user).unwrap();
            let mut request = [&frame::header(kind)[..], b"please"].concat();
            frame::send(client.raw(), &mut request, &[]).unwrap();
            services.serve(listener.raw(), user, &Trust::default(), &mut |connection, message| {
                handover::answer(connection, message, &mut |_| None)
            });
            let mut answer = [0; LONGEST];
            let (length, _) = frame::receive(client.raw(), &mut answer).unwrap();
            frame::kind_of(&answer[..length])
        };
        assert_eq!(answer_to(KIND), Some(frame::GRANTED));
        assert_eq!(answer_to(KIND + 1), Some(frame::REFUSED));
        assert_eq!(counting.0.load(Ordering::Relaxed), 1);
    }
}
