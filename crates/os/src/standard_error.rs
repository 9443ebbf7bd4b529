//! Lines on standard error, whose reader may have stopped reading: a pager that shows its first page, a terminal after ^S, a stopped
//! process at the other end of a pipe.

use crate::sys;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a line waits for room. A thread that has something to report may hold locks that others need.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where lines go.
struct ErrorLines {
    fd: RawFd,
    patience: Duration,
    /// The last line found no room: the next one doesn't wait.
    is_unread: AtomicBool,
}

static STANDARD_ERROR: ErrorLines =
    ErrorLines { fd: libc::STDERR_FILENO, patience: PATIENCE, is_unread: AtomicBool::new(false) };

/// Writes to standard error. A line that finds no room within a second is lost, and so are the next ones, at once, until there is room.
///
/// It takes no lock, allocates nothing and isn't a cancellation point.
pub fn write(bytes: &[u8]) {
    STANDARD_ERROR.write(bytes);
}

impl ErrorLines {
    fn write(&self, mut bytes: &[u8]) {
        let patience = if self.is_unread.load(Ordering::Relaxed) { Duration::ZERO } else { self.patience };
        let until = Instant::now() + patience;
        while !bytes.is_empty() {
            if !self.has_room(until) {
                return self.is_unread.store(true, Ordering::Relaxed);
            }
            // What is ready takes so much without a wait (pipe(7)).
            let piece = &bytes[..bytes.len().min(libc::PIPE_BUF)];
            match write_piece(self.fd, piece) {
                Ok(written) => bytes = &bytes[written.min(bytes.len())..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Another thread, or another process, was faster.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {}
                // It may be closed.
                Err(_) => return,
            }
        }
        self.is_unread.store(false, Ordering::Relaxed);
    }

    fn has_room(&self, until: Instant) -> bool {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut fds = [libc::pollfd { fd: self.fd, events: libc::POLLOUT, revents: 0 }];
            match sys::poll(&mut fds, left) {
                // Interrupted, or too late.
                Ok(0) if !left.is_zero() => {}
                Ok(0) => return false,
                // Where it can't be asked (a seccomp profile), the line goes out all the same.
                Ok(_) | Err(_) => return true,
            }
        }
    }
}

/// Writes to what had room just now. Another process may fill a pipe or socket meanwhile: the kernel then waits for no reader, from Linux 6.4.
fn write_piece(fd: RawFd, piece: &[u8]) -> io::Result<usize> {
    // A regular file isn't waited for, and may refuse to be written at once.
    if !matches!(sys::file_kind(fd), Ok(libc::S_IFIFO | libc::S_IFSOCK)) {
        return sys::write(fd, piece);
    }
    match sys::write_at_once(fd, piece) {
        // The kernel doesn't have it for this file, or a sandbox refuses the call.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EOPNOTSUPP | libc::ESPIPE | libc::ENOSYS | libc::EPERM)
            ) =>
        {
            sys::write(fd, piece)
        }
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{BufRead, BufReader, Read};
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    fn pipe() -> (File, File) {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors, which are new and not owned.
        let [reader, writer] = unsafe {
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
            ends.map(|end| File::from_raw_fd(end))
        };
        (reader, writer)
    }

    fn lines(writer: &File, patience: Duration) -> ErrorLines {
        ErrorLines { fd: writer.as_raw_fd(), patience, is_unread: AtomicBool::new(false) }
    }

    #[test]
    fn lines_that_are_not_read_are_lost_and_later_ones_come_again() {
        let (mut reader, writer) = pipe();
        let lines = lines(&writer, Duration::from_millis(20));
        let line = [b'x'; 1000];
        // A pipe has room for 64 KiB.
        for _ in 0..1000 {
            lines.write(&line);
        }
        assert!(lines.is_unread.load(Ordering::Relaxed));
        let mut read = vec![0; 60_000];
        reader.read_exact(&mut read).expect("what had room");
        lines.write(b"again\n");
        assert!(!lines.is_unread.load(Ordering::Relaxed));
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).expect("the rest");
        assert!(rest.ends_with("again\n"), "{rest}");
    }

    #[test]
    fn room_that_another_process_takes_after_the_look_is_not_waited_for() {
        let pipes = pipe();
        let sockets = std::os::unix::net::UnixStream::pair().expect("sockets");
        let sockets = (File::from(OwnedFd::from(sockets.0)), File::from(OwnedFd::from(sockets.1)));
        for (_reader, writer) in [pipes, sockets] {
            let (ended, end) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                // As after a look that has found room.
                let errors = std::iter::repeat_with(|| write_piece(writer.as_raw_fd(), &[b'x'; 1000]))
                    .find_map(Result::err);
                ended.send(errors.map(|error| error.kind())).expect("the test");
            });
            let end = end.recv_timeout(Duration::from_secs(30)).expect("no wait for a reader");
            assert_eq!(end, Some(io::ErrorKind::WouldBlock));
        }
    }

    #[test]
    fn lines_that_are_read_slowly_come_whole() {
        const LINES: usize = 300;
        let (reader, writer) = pipe();
        // A machine may leave the reader alone for a while.
        let lines = lines(&writer, Duration::from_secs(60));
        let reads = std::thread::spawn(move || {
            let all = BufReader::with_capacity(500, reader).lines().inspect(|_| {
                std::thread::sleep(Duration::from_micros(100));
            });
            all.map(|line| line.expect("text").len()).collect::<Vec<_>>()
        });
        let line = [&[b'x'; 9_999][..], b"\n"].concat();
        (0..LINES).for_each(|_| lines.write(&line));
        drop(writer);
        assert_eq!(reads.join().expect("the reader"), [9_999; LINES]);
    }

    #[test]
    fn a_closed_descriptor_takes_no_line_and_none_waits() {
        let (reader, writer) = pipe();
        let lines = lines(&writer, Duration::from_secs(60));
        drop((reader, writer));
        lines.write(b"lost\n");
        assert!(!lines.is_unread.load(Ordering::Relaxed));
    }
}
