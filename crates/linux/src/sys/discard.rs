//! UNIX sockets to which processes of any user can send, and what comes over them unasked.
//!
//! A message can have descriptors with it. Where no process takes them the kernel closes them: in the thread that takes the message without
//! them, or that closes the socket in which it lies unread. The last close of a file waits as long as its maker likes: that of a TCP
//! connection with SO_LINGER and data that its peer doesn't read waits for an hour. The kernel has no such wait for a thread that
//! is ending. So another thread, with a table of descriptors of its own, holds such files when they are closed here, and then ends.
//!
//! From Linux 6.16 a socket can refuse them at the sender.

use super::control::{ControlBuffer, space};
use super::messages::peek_message;
use super::{
    EngineFd, check, close, receive_message, set_option, shutdown, start_thread, wait_for, with_forks_held,
};
use std::io;
use std::os::fd::RawFd;
use std::sync::mpsc;
use std::time::Duration;

const STACK: usize = 64 << 10;
/// As many as a message can have with it (SCM_MAX_FD), and the sender's credentials.
const MOST_CONTROL: usize = space(253 * size_of::<RawFd>()) + CREDENTIALS;
const CREDENTIALS: usize = space(size_of::<libc::ucred>());
const SO_PASSRIGHTS: libc::c_int = 83;

/// Has the kernel refuse messages with descriptors, to this socket and to the connections that are made to it from now on: their sender
/// gets EPERM. False: the kernel can't (before Linux 6.16).
#[must_use]
pub fn refuse_descriptors(fd: RawFd) -> bool {
    set_option(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, &0_i32).is_ok()
}

/// Lets messages with descriptors through to this socket again.
pub fn accept_descriptors(fd: RawFd) {
    // A kernel without the option lets them through anyway.
    let _ = set_option(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, &1_i32);
}

/// Closes a socket, and what lies unread in it. Of a listener, with the connections that wait there. Ends it first, also for the processes
/// that have duplicates.
pub fn discard(socket: EngineFd) {
    let fd = socket.checked();
    let is_empty = !wait_for(fd, libc::POLLIN, Duration::ZERO);
    shutdown(fd);
    // With credentials, so that a message differs from the end of the connection.
    let _ = set_option(fd, libc::SOL_SOCKET, libc::SO_PASSCRED, &1_i32);
    // A listener can't be looked at, and neither can a connection whose peer has closed it with unread data.
    if peek(fd).is_ok_and(|next| !next.is_message) {
        return;
    }
    // Where no thread can be started and nothing lay there a moment ago, it is closed here.
    if let Err(open) = close_beside(socket)
        && !is_empty
    {
        std::mem::forget(open);
    }
}

/// Closes a socket of which other processes have duplicates, and what lies unread in it if this is the last. Where no thread can be
/// started the socket stays open until this process ends.
pub fn leave(socket: EngineFd) {
    if let Err(open) = close_beside(socket) {
        std::mem::forget(open);
    }
}

/// Closes a socket while another thread holds what lies in it. Returns the socket if no thread can be started.
fn close_beside(socket: EngineFd) -> Result<(), EngineFd> {
    let (holds, is_held) = mpsc::channel();
    let (closed, is_closed) = mpsc::channel::<()>();
    let fd = socket.raw();
    let holder = move || {
        if holds.send(unshare(fd)).is_ok() {
            // Fails when the other end is dropped, which is what is waited for.
            let _ = is_closed.recv();
        }
    };
    if start_thread("ferroce-discard", STACK, holder).is_err() {
        return Err(socket);
    }
    let _ = is_held.recv();
    drop(socket);
    drop(closed);
    Ok(())
}

/// Whether the next message of a socket has descriptors with it. The message stays where it is.
#[must_use]
pub fn brings_descriptors(fd: RawFd) -> bool {
    peek(fd).is_ok_and(|next| next.has_descriptors)
}

/// Takes the next message of a socket, and closes what is with it.
///
/// # Errors
/// No thread can be started. The message stays where it is.
pub fn discard_message(fd: RawFd) -> io::Result<()> {
    let (takes, is_taken) = mpsc::channel();
    let taker = move || {
        if unshare(fd) {
            // Into this thread's table, where there is room for all of them.
            let _ = receive_message(fd, &mut [], &mut ControlBuffer::<MOST_CONTROL>::new());
        } else {
            let _ = receive_message(fd, &mut [], &mut ControlBuffer::<CREDENTIALS>::new());
        }
        let _ = takes.send(());
    };
    start_thread("ferroce-discard", STACK, taker)?;
    let _ = is_taken.recv();
    Ok(())
}

struct NextMessage {
    is_message: bool,
    has_descriptors: bool,
}

fn peek(fd: RawFd) -> io::Result<NextMessage> {
    with_forks_held(|| {
        let mut control = ControlBuffer::<CREDENTIALS>::new();
        let next = peek_message(fd, &mut [], &mut control)?;
        let mut has_descriptors = next.control_truncated;
        for message in control.received(next.control) {
            if (message.level, message.kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                has_descriptors = true;
                // Duplicates of those that stay with the message.
                message.descriptors().for_each(close);
            }
        }
        Ok(NextMessage { is_message: next.control > 0 || has_descriptors, has_descriptors })
    })
}

/// Gives this thread a table of descriptors of its own, with those up to `fd` alone, which is beyond the program's: so there is room. None is
/// closed before the thread ends, since a close may write what the program has written to a file (NFS).
fn unshare(fd: RawFd) -> bool {
    let (first, last) = ((fd as libc::c_uint).wrapping_add(1), libc::c_uint::MAX);
    // SAFETY: numbers.
    let unshared =
        check(unsafe { libc::syscall(libc::SYS_close_range, first, last, libc::CLOSE_RANGE_UNSHARE) });
    // SAFETY: a number.
    unshared.is_ok() || check(unsafe { libc::syscall(libc::SYS_unshare, libc::CLONE_FILES) }).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Outgoing, pause, send_message, socket, socket_pair};
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};

    /// Longer than a test may take.
    const LINGER: libc::c_int = 3600;

    /// A TCP connection whose last close waits for an hour: its peer, the second of both, doesn't read what has been sent.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (silent, _) = listener.accept().unwrap();
        sender.set_nonblocking(true).unwrap();
        while sender.write(&[0; 1 << 16]).is_ok() {}
        let linger = libc::linger { l_onoff: 1, l_linger: LINGER };
        set_option(sender.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &linger).unwrap();
        (sender, silent)
    }

    /// Sends a message of one byte with a lingering connection, of which the message has the only descriptor then; the connection's peer.
    fn send_lingering(fd: RawFd) -> TcpStream {
        let (lingers, silent) = lingering();
        let mut control = ControlBuffer::<{ space(4) }>::new();
        control.push(libc::SOL_SOCKET, libc::SCM_RIGHTS, &lingers.as_raw_fd().to_ne_bytes());
        send_message(fd, &Outgoing::new([b"x"]), &mut control).unwrap();
        silent
    }

    /// The work is done, and the connection closed: its peer finds the end, or a reset, behind what has been sent.
    fn expect_closed(silent: &TcpStream, work: impl FnOnce()) {
        work();
        silent.set_nonblocking(true).unwrap();
        let begun = Instant::now();
        let mut bytes = vec![0; 1 << 20];
        loop {
            match io::Read::read(&mut &*silent, &mut bytes) {
                Ok(0) => return,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => pause(Duration::from_millis(1)),
                Err(_) => return,
                Ok(_) => {}
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "the connection is open still");
        }
    }

    #[test]
    fn a_socket_is_closed_without_a_wait_for_descriptors_that_lie_unread_in_it() {
        let [own, peer] = socket_pair(libc::SOCK_SEQPACKET).unwrap();
        // A message before it that has none, and no byte.
        send_message(peer.raw(), &Outgoing::new([b""]), &mut ControlBuffer::<0>::new()).unwrap();
        let silent = send_lingering(peer.raw());
        expect_closed(&silent, || discard(own));
    }

    #[test]
    fn a_listener_is_closed_without_a_wait_for_connections_that_wait_there() {
        let name = crate::sys::AbstractName::new(&format!("ferroce-test-discard-{}", std::process::id()));
        for way in [discard, leave] {
            let listener = socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK).unwrap();
            crate::sys::bind(listener.raw(), &name).unwrap();
            crate::sys::listen(listener.raw(), 4).unwrap();
            let client = socket(libc::AF_UNIX, libc::SOCK_SEQPACKET).unwrap();
            crate::sys::connect(client.raw(), &name).unwrap();
            let silent = send_lingering(client.raw());
            expect_closed(&silent, || way(listener));
        }
    }

    /// The thread's table has a duplicate of the file, and closes it. The kernel ends the locks of the table alone.
    #[test]
    fn record_locks_of_the_program_outlive_a_socket_that_is_left() {
        let path = std::env::temp_dir().join(format!("ferroce-test-locks-{}", std::process::id()));
        let (own, other) = (std::fs::File::create(&path).unwrap(), std::fs::File::create(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        let call = |file: &std::fs::File, how: libc::c_int| {
            // SAFETY: all-zero bytes are a valid flock.
            let mut lock: libc::flock = unsafe { std::mem::zeroed() };
            lock.l_type = libc::F_WRLCK as _;
            // SAFETY: the kernel reads and writes the lock.
            check(unsafe { libc::syscall(libc::SYS_fcntl, file.as_raw_fd(), how, &raw mut lock) }).unwrap();
            libc::c_int::from(lock.l_type)
        };
        call(&own, libc::F_SETLK);
        let [left, peer] = socket_pair(libc::SOCK_SEQPACKET).unwrap();
        let silent = send_lingering(peer.raw());
        // The connection is closed after all of the thread's table.
        expect_closed(&silent, || leave(left));
        assert_eq!(call(&other, libc::F_OFD_GETLK), libc::F_WRLCK);
        drop(own);
        assert_eq!(call(&other, libc::F_OFD_GETLK), libc::F_UNLCK);
    }

    /// Linux 6.16 can: then nothing comes with a message, be it sent to the socket itself or to a connection that waits there.
    #[test]
    fn descriptors_are_refused_at_their_sender() {
        let name = crate::sys::AbstractName::new(&format!("ferroce-test-refuse-{}", std::process::id()));
        let listener = socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK).unwrap();
        if !refuse_descriptors(listener.raw()) {
            return;
        }
        crate::sys::bind(listener.raw(), &name).unwrap();
        crate::sys::listen(listener.raw(), 4).unwrap();
        let client = socket(libc::AF_UNIX, libc::SOCK_SEQPACKET).unwrap();
        crate::sys::connect(client.raw(), &name).unwrap();
        let [own, peer] = socket_pair(libc::SOCK_DGRAM).unwrap();
        assert!(refuse_descriptors(own.raw()));
        for sender in [client, peer] {
            let mut control = ControlBuffer::<{ space(4) }>::new();
            control.push(libc::SOL_SOCKET, libc::SCM_RIGHTS, &listener.raw().to_ne_bytes());
            let sent = send_message(sender.raw(), &Outgoing::new([b"x"]), &mut control);
            assert_eq!(sent.unwrap_err().raw_os_error(), Some(libc::EPERM));
            assert_eq!(
                send_message(sender.raw(), &Outgoing::new([b"x"]), &mut ControlBuffer::<0>::new()).unwrap(),
                1
            );
        }
    }

    #[test]
    fn a_message_is_taken_without_a_wait_for_the_descriptors_that_come_with_it() {
        let [own, peer] = socket_pair(libc::SOCK_DGRAM).unwrap();
        assert!(!brings_descriptors(own.raw()));
        let silent = send_lingering(peer.raw());
        send_message(peer.raw(), &Outgoing::new([b"next"]), &mut ControlBuffer::<0>::new()).unwrap();
        assert!(brings_descriptors(own.raw()));
        expect_closed(&silent, || discard_message(own.raw()).unwrap());
        assert!(!brings_descriptors(own.raw()));
        let mut bytes = [0; 8];
        let next = receive_message(own.raw(), &mut bytes, &mut ControlBuffer::<0>::new()).unwrap();
        assert_eq!(&bytes[..next.length], b"next");
    }
}
