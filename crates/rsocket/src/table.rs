//! The sockets of the process, by number, and its sets of repoll_create.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::core::{Core, SocketState};
use crate::datagram::DatagramSocket;
use crate::stream::StreamSocket;
use ferroce_rsocket_calls::call::{Outcome, SocketRefusal};

/// A socket.
#[derive(Clone, Debug)]
pub(crate) enum Socket {
    Stream(Arc<StreamSocket>),
    Datagram(Arc<DatagramSocket>),
}

static SOCKETS: RwLock<Option<BTreeMap<RawFd, Socket>>> = RwLock::new(None);

/// Sets that rclose closes.
static SETS: Mutex<Option<BTreeSet<RawFd>>> = Mutex::new(None);

/// Makes a socket known; its number.
pub(crate) fn add(socket: Socket) -> c_int {
    let fd = socket.core().fd();
    forget_set(fd);
    SOCKETS.write().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(fd, socket);
    fd
}

/// A new set.
pub(crate) fn add_set(fd: RawFd) {
    SETS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(fd);
}

/// The number isn't a set's any more. False: it wasn't.
pub(crate) fn forget_set(fd: RawFd) -> bool {
    SETS.lock().unwrap_or_else(PoisonError::into_inner).as_mut().is_some_and(|sets| sets.remove(&fd))
}

/// The socket with this number, if it is one.
pub(crate) fn find(fd: c_int) -> Option<Socket> {
    SOCKETS.read().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(&fd).cloned()
}

/// The same for a call that needs one.
pub(crate) fn get(fd: c_int) -> Outcome<Socket> {
    find(fd).ok_or_else(|| SocketRefusal::new(libc::EBADF, "no rsocket has this number"))
}

/// The stream socket with this number.
pub(crate) fn get_stream(fd: c_int) -> Outcome<Arc<StreamSocket>> {
    match get(fd)? {
        Socket::Stream(stream) => Ok(stream),
        Socket::Datagram(_) => Err(SocketRefusal::new(libc::EOPNOTSUPP, "a datagram socket can't do this")),
    }
}

/// Forgets a socket.
pub(crate) fn remove(fd: c_int) -> Outcome<Socket> {
    let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    let socket = sockets.as_mut().and_then(|sockets| sockets.remove(&fd));
    socket.ok_or_else(|| SocketRefusal::new(libc::EBADF, "no rsocket has this number"))
}

impl Socket {
    /// The number shows from now on what the socket is ready for.
    pub(crate) fn show(&self) -> Outcome<()> {
        match self {
            Self::Stream(stream) => stream.show(),
            Self::Datagram(datagram) => datagram.show(),
        }
    }

    /// What does not depend on the kind.
    pub(crate) fn core(&self) -> &Core<dyn SocketState> {
        match self {
            Self::Stream(stream) => &stream.core,
            Self::Datagram(datagram) => &datagram.core,
        }
    }
}
