//! Socket options: the values of each socket, and those that librdmacm gets.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::time::{Duration, Instant};

use libc::socklen_t;

use crate::abi::*;
use crate::connection::Choices;
use crate::verbs::ConnectionId;
use ferroce_rsocket_calls::call::{Outcome, SocketRefusal};
use ferroce_rsocket_calls::settings::{LARGEST_QUEUE, SMALLEST_QUEUE, settings};

/// The level of options that ordinary sockets don't have.
pub(crate) const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;
const RDMA_ROUTE: c_int = 4;
/// The length of an element of RDMA_ROUTE.
const PATH_DATA: usize = 72;
/// The value of TCP_CONGESTION.
const CONGESTION_CONTROL: &[u8] = b"rdma\0";

/// The options of a socket.
#[derive(Clone, Debug)]
pub(crate) struct SocketOptions {
    pub(crate) choices: Choices,
    /// SO_LINGER.
    pub(crate) linger: Option<Duration>,
    /// When the service thread sends the next keep-alive.
    pub(crate) keep_alive_due: Option<Instant>,
    flags: Vec<(c_int, c_int)>,
    keep_idle: Option<c_int>,
    keep_interval: c_int,
    keep_count: c_int,
    type_of_service: Option<u8>,
    route: Vec<u8>,
    receive_timeout: Option<Duration>,
    send_timeout: Option<Duration>,
}

/// Options of SOL_SOCKET that are flags which change nothing but what is read back, or are looked at elsewhere.
const SOCKET_FLAGS: [c_int; 4] =
    [libc::SO_REUSEADDR, libc::SO_KEEPALIVE, libc::SO_OOBINLINE, libc::SO_BROADCAST];
/// Where TCP_NODELAY stands among the flags, whose numbers are those of SOL_SOCKET.
const NO_DELAY: c_int = -1;
/// Likewise IPV6_V6ONLY.
const V6_ONLY: c_int = -2;

/// What the options can't know of a socket.
pub(crate) struct About {
    pub(crate) kind: c_int,
    pub(crate) domain: c_int,
    pub(crate) connected: bool,
    pub(crate) listening: bool,
    /// The longest message of the path, if there is one.
    pub(crate) segment: Option<c_int>,
}

impl About {
    /// Whether the UDP socket of a datagram socket has the option as well.
    pub(crate) fn is_of_udp_too(&self, level: c_int, name: c_int) -> bool {
        match level {
            libc::SOL_SOCKET => !matches!(name, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO),
            libc::IPPROTO_IP | libc::IPPROTO_IPV6 => true,
            _ => false,
        }
    }
}

/// A value that a program passes.
struct Given {
    value: *const c_void,
    length: usize,
}

impl Given {
    fn read<T: Copy>(&self) -> Outcome<T> {
        if self.length < size_of::<T>() || self.value.is_null() {
            return Err(SocketRefusal::new(libc::EINVAL, "the option's value is too short"));
        }
        // SAFETY: readable for `length` bytes, by the promise of `SocketOptions::set`; `T` is made of integers.
        Ok(unsafe { ptr::read_unaligned(self.value.cast()) })
    }

    fn int(&self) -> Outcome<c_int> {
        self.read()
    }
}

fn unknown() -> SocketRefusal {
    SocketRefusal::new(libc::ENOTSUP, "rsockets have no such option")
}

impl SocketOptions {
    pub(crate) fn new() -> Self {
        let defaults = settings();
        Self {
            choices: Choices {
                send_queue: defaults.send_queue,
                receive_queue: defaults.receive_queue,
                inline: defaults.inline,
                send_buffer: defaults.send_buffer,
                receive_buffer: defaults.receive_buffer,
                io_map_size: defaults.io_map_size,
            },
            linger: None,
            keep_alive_due: None,
            flags: Vec::new(),
            keep_idle: None,
            keep_interval: 75,
            keep_count: 9,
            type_of_service: None,
            route: Vec::new(),
            receive_timeout: None,
            send_timeout: None,
        }
    }

    fn flag(&self, name: c_int) -> c_int {
        self.flags.iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| *value)
    }

    fn set_flag(&mut self, name: c_int, value: c_int) {
        self.flags.retain(|(n, _)| *n != name);
        self.flags.push((name, c_int::from(value != 0)));
    }

    pub(crate) fn receive_deadline(&self) -> Option<Instant> {
        self.receive_timeout.map(|timeout| Instant::now() + timeout)
    }

    pub(crate) fn send_deadline(&self) -> Option<Instant> {
        self.send_timeout.map(|timeout| Instant::now() + timeout)
    }

    /// After how long without traffic the peer is probed.
    pub(crate) fn keep_alive_interval(&self) -> Option<Duration> {
        if self.flag(libc::SO_KEEPALIVE) == 0 {
            return None;
        }
        let seconds = self.keep_idle.unwrap_or_else(|| {
            let file = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_keepalive_time");
            file.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(7200)
        });
        Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0).max(1)))
    }

    /// Sets the options of librdmacm that it needs before the id has an address.
    pub(crate) fn apply(&self, id: &ConnectionId, domain: c_int) -> Outcome<()> {
        if self.flag(libc::SO_REUSEADDR) != 0 {
            id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, 1 as c_int)?;
        }
        if domain == libc::AF_INET6 && self.flag(V6_ONLY) != 0 {
            id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, 1 as c_int)?;
        }
        if let Some(tos) = self.type_of_service {
            id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, tos)?;
        }
        Ok(())
    }

    /// Gives the id the path that the program has set; whether there is one.
    pub(crate) fn set_route(&self, id: &ConnectionId) -> Outcome<bool> {
        if self.route.is_empty() {
            return Ok(false);
        }
        // SAFETY: a live id; a value of this length, which is only read.
        let done = unsafe {
            rdma_set_option(
                id.raw(),
                RDMA_OPTION_IB,
                RDMA_OPTION_IB_PATH,
                self.route.as_ptr().cast_mut().cast(),
                self.route.len(),
            )
        };
        if done == 0 { Ok(true) } else { Err(SocketRefusal::last("the path")) }
    }

    /// Sets an option.
    ///
    /// # Safety
    /// `value` is null or readable for `length` bytes.
    pub(crate) unsafe fn set(
        &mut self,
        about: &About,
        level: c_int,
        name: c_int,
        value: *const c_void,
        length: socklen_t,
    ) -> Outcome<()> {
        let given = Given { value, length: length as usize };
        let before_connecting = || {
            if about.connected {
                // Programs set them on accepted sockets, too, and don't mind.
                return Err(SocketRefusal::plain(libc::EINVAL));
            }
            Ok(())
        };
        let size = |value: c_int| u32::try_from(value).ok().filter(|v| *v > 0);
        let doubled = |value: c_int| {
            size(value)
                .map(|v| v.saturating_mul(2).min(1 << 29))
                .ok_or_else(|| SocketRefusal::new(libc::EINVAL, "no size"))
        };
        let queue = |value: c_int| -> Outcome<u16> {
            let places = size(value).ok_or_else(|| SocketRefusal::new(libc::EINVAL, "no size"))?;
            Ok(places.clamp(SMALLEST_QUEUE.into(), LARGEST_QUEUE.into()) as u16)
        };
        match (level, name) {
            (libc::SOL_SOCKET, name) if SOCKET_FLAGS.contains(&name) => {
                self.set_flag(name, given.int()?);
                self.keep_alive_due = None;
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => {
                let bytes = doubled(given.int()?)?;
                // Afterwards the buffers stay as they are, and programs don't expect a refusal.
                if !about.connected && name == libc::SO_RCVBUF {
                    self.choices.receive_buffer = bytes;
                } else if !about.connected {
                    self.choices.send_buffer = bytes;
                }
            }
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let linger: libc::linger = given.read()?;
                let seconds = u64::try_from(linger.l_linger).unwrap_or(0);
                self.linger = (linger.l_onoff != 0).then(|| Duration::from_secs(seconds));
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => self.receive_timeout = duration(given.read()?)?,
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => self.send_timeout = duration(given.read()?)?,
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                let tos = match given.length {
                    1..=3 => given.read::<u8>()?,
                    _ => given.int()? as u8,
                };
                self.type_of_service = Some(tos);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => self.set_flag(V6_ONLY, given.int()?),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => self.set_flag(NO_DELAY, given.int()?),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
                let seconds = given.int()?;
                if seconds <= 0 {
                    return Err(SocketRefusal::new(libc::EINVAL, "no time"));
                }
                self.keep_idle = Some(seconds);
                self.keep_alive_due = None;
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => self.keep_interval = given.int()?,
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => self.keep_count = given.int()?,
            // The network decides.
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG | libc::TCP_CONGESTION) => {}
            (SOL_RDMA, RDMA_SQSIZE | RDMA_RQSIZE | RDMA_INLINE | RDMA_IOMAPSIZE | RDMA_ROUTE) => {
                before_connecting()?;
                match name {
                    RDMA_SQSIZE => self.choices.send_queue = queue(given.int()?)?,
                    RDMA_RQSIZE => self.choices.receive_queue = queue(given.int()?)?,
                    RDMA_INLINE => self.choices.inline = u32::try_from(given.int()?).unwrap_or(0),
                    RDMA_IOMAPSIZE => {
                        let entries = u16::try_from(given.int()?).unwrap_or(u16::MAX);
                        self.choices.io_map_size = ferroce_rsocket_protocol::wire::told_in_8_bits(entries);
                    }
                    _ => {
                        if given.length == 0 || !given.length.is_multiple_of(PATH_DATA) || value.is_null() {
                            return Err(SocketRefusal::new(libc::EINVAL, "no array of struct ibv_path_data"));
                        }
                        // SAFETY: the caller's promise.
                        self.route =
                            unsafe { std::slice::from_raw_parts(value.cast::<u8>(), given.length) }.to_vec();
                    }
                }
            }
            _ => return Err(unknown()),
        }
        Ok(())
    }

    /// What an option is set to, but for SO_ERROR.
    pub(crate) fn get(&self, about: &About, level: c_int, name: c_int) -> Outcome<Vec<u8>> {
        let int = |value: c_int| value.to_ne_bytes().to_vec();
        let time = |timeout: Option<Duration>| {
            let timeout = timeout.unwrap_or_default();
            let mut bytes = (timeout.as_secs() as libc::time_t).to_ne_bytes().to_vec();
            bytes.extend(libc::suseconds_t::from(timeout.subsec_micros()).to_ne_bytes());
            bytes
        };
        Ok(match (level, name) {
            (libc::SOL_SOCKET, name) if SOCKET_FLAGS.contains(&name) => int(self.flag(name)),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => int(self.choices.receive_buffer as c_int),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => int(self.choices.send_buffer as c_int),
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let on = c_int::from(self.linger.is_some());
                let seconds = self.linger.map_or(0, |linger| linger.as_secs() as c_int);
                [int(on), int(seconds)].concat()
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => time(self.receive_timeout),
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => time(self.send_timeout),
            (libc::SOL_SOCKET, libc::SO_TYPE) => int(about.kind),
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => int(about.domain),
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => {
                int(if about.kind == libc::SOCK_STREAM { libc::IPPROTO_TCP } else { libc::IPPROTO_UDP })
            }
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => int(about.listening.into()),
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                int(self.type_of_service.unwrap_or(0).into())
            }
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => int(self.flag(V6_ONLY)),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => int(self.flag(NO_DELAY)),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => int(self.keep_idle.unwrap_or_else(|| {
                self.keep_alive_interval().map_or(7200, |interval| interval.as_secs() as c_int)
            })),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => int(self.keep_interval),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => int(self.keep_count),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => int(about.segment.unwrap_or(1024)),
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => CONGESTION_CONTROL.to_vec(),
            // What TCP counts isn't counted.
            (libc::IPPROTO_TCP, libc::TCP_INFO) => vec![0; TCP_INFO_LENGTH],
            (SOL_RDMA, RDMA_SQSIZE) => int(self.choices.send_queue.into()),
            (SOL_RDMA, RDMA_RQSIZE) => int(self.choices.receive_queue.into()),
            (SOL_RDMA, RDMA_INLINE) => int(self.choices.inline as c_int),
            (SOL_RDMA, RDMA_IOMAPSIZE) => int(self.choices.io_map_size.into()),
            (SOL_RDMA, RDMA_ROUTE) => self.route.clone(),
            _ => return Err(unknown()),
        })
    }
}

/// The length of `struct tcp_info` of Linux 2.6.
const TCP_INFO_LENGTH: usize = 104;

/// A timeout; none for zero, as socket(7) has it.
fn duration(time: libc::timeval) -> Outcome<Option<Duration>> {
    let (seconds, micros) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_usec));
    match (seconds, micros) {
        (Ok(seconds), Ok(micros)) if micros < 1_000_000 => {
            let whole = Duration::new(seconds.min(u32::MAX.into()), micros * 1000);
            Ok((!whole.is_zero()).then_some(whole))
        }
        _ => Err(SocketRefusal::new(libc::EDOM, "no time")),
    }
}

/// Writes a value to a program's memory, as much of it as there is room for.
///
/// # Safety
/// `length` is null or valid, and `value` is null or writable for `*length` bytes.
pub(crate) unsafe fn tell(from: &[u8], value: *mut c_void, length: *mut socklen_t) -> Outcome<()> {
    if value.is_null() || length.is_null() {
        return Err(SocketRefusal::new(libc::EFAULT, "no room for the option's value"));
    }
    // SAFETY: the caller's promise.
    unsafe {
        let told = from.len().min(*length as usize);
        ptr::copy_nonoverlapping(from.as_ptr(), value.cast(), told);
        *length = told as socklen_t;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: About = About {
        kind: libc::SOCK_STREAM,
        domain: libc::AF_INET,
        connected: false,
        listening: false,
        segment: None,
    };

    fn set(
        options: &mut SocketOptions,
        about: &About,
        level: c_int,
        name: c_int,
        value: c_int,
    ) -> Result<(), c_int> {
        // SAFETY: an integer of this length.
        let done = unsafe { options.set(about, level, name, (&raw const value).cast(), 4) };
        done.map_err(|refusal| refusal.errno)
    }

    fn get(options: &SocketOptions, level: c_int, name: c_int) -> c_int {
        let bytes = options.get(&FRESH, level, name).expect("an option");
        c_int::from_ne_bytes(bytes[..4].try_into().expect("four bytes"))
    }

    #[test]
    fn buffers_are_twice_what_is_asked_and_only_before_connecting() {
        let mut options = SocketOptions::new();
        assert_eq!(set(&mut options, &FRESH, libc::SOL_SOCKET, libc::SO_RCVBUF, 1 << 19), Ok(()));
        assert_eq!(get(&options, libc::SOL_SOCKET, libc::SO_RCVBUF), 1 << 20);
        let connected = About { connected: true, ..FRESH };
        let before = get(&options, libc::SOL_SOCKET, libc::SO_SNDBUF);
        assert_eq!(set(&mut options, &connected, libc::SOL_SOCKET, libc::SO_SNDBUF, 4096), Ok(()));
        assert_eq!(get(&options, libc::SOL_SOCKET, libc::SO_SNDBUF), before);
        assert_eq!(set(&mut options, &connected, SOL_RDMA, RDMA_SQSIZE, 64), Err(libc::EINVAL));
    }

    #[test]
    fn queues_are_kept_within_their_limits() {
        let mut options = SocketOptions::new();
        for (asked, got) in [(1, 16), (500, 500), (1 << 20, 0xfffe)] {
            assert_eq!(set(&mut options, &FRESH, SOL_RDMA, RDMA_SQSIZE, asked), Ok(()));
            assert_eq!(get(&options, SOL_RDMA, RDMA_SQSIZE), got);
        }
        assert_eq!(set(&mut options, &FRESH, SOL_RDMA, RDMA_RQSIZE, 0), Err(libc::EINVAL));
    }

    #[test]
    fn unknown_options_are_not_supported() {
        let mut options = SocketOptions::new();
        assert_eq!(set(&mut options, &FRESH, libc::SOL_SOCKET, libc::SO_MARK, 1), Err(libc::ENOTSUP));
        assert!(options.get(&FRESH, libc::IPPROTO_TCP, libc::TCP_CORK).is_err());
    }

    #[test]
    fn a_timeout_of_zero_is_none() {
        assert_eq!(duration(libc::timeval { tv_sec: 0, tv_usec: 0 }).expect("a time"), None);
        let half = duration(libc::timeval { tv_sec: 0, tv_usec: 500_000 }).expect("a time");
        assert_eq!(half, Some(Duration::from_millis(500)));
        assert!(duration(libc::timeval { tv_sec: 0, tv_usec: 1_000_000 }).is_err());
    }
}
