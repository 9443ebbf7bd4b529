//! The messages between a process that has a target QP and a process that has opened it.

use crate::DomainFile;
use crate::message::NAME;
use ferroce_host::frame;
use ferroce_parts::{AddressVector, QpAttr};
use ferroce_types::{Access, AsyncEvent, Error, Placement, QpState};

/// The kind of a request for a handle of a target.
pub const KIND: u8 = 5;
/// The first message: frame, QPN, four bytes that are zero, the file's device number and inode, the RDMA device's name.
const OPEN: usize = 8 + 8 + 16 + NAME;
const QUERY: u8 = 1;
const MODIFY: u8 = 2;
const CLOSE: u8 = 3;
const QUERIED: u8 = 4;
const DONE: u8 = 5;
const EVENT: u8 = 6;
const CARRY_OUT: u8 = 7;
const READY: u8 = 8;
/// Bytes of an error's text.
const LONGEST_TEXT: usize = 200;

/// The first message: a process wants a handle of a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Open {
    /// The target.
    pub qpn: u32,
    /// Its domain.
    pub file: DomainFile,
}

impl Open {
    pub(crate) fn to_bytes(&self) -> [u8; OPEN] {
        let mut bytes = [0; OPEN];
        bytes[..8].copy_from_slice(&frame::header(KIND));
        bytes[8..12].copy_from_slice(&self.qpn.to_ne_bytes());
        self.file.put(&mut bytes[16..]);
        bytes
    }

    /// Reads it; `None`: it is none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; OPEN] = bytes.try_into().ok()?;
        let qpn = u32::from_ne_bytes(*bytes[8..].first_chunk()?);
        Some(Self { qpn, file: DomainFile::parse(&bytes[16..])? })
    }
}

/// What is written in a message, and checked when it is read.
trait Field: Sized {
    fn put(&self, to: &mut Vec<u8>);
    fn take(from: &mut &[u8]) -> Option<Self>;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Field for $number {
            fn put(&self, to: &mut Vec<u8>) {
                to.extend(self.to_ne_bytes());
            }

            fn take(from: &mut &[u8]) -> Option<Self> {
                from.take_bytes().map(Self::from_ne_bytes)
            }
        }
    )*};
}

/// Takes bytes from the front.
trait TakeBytes {
    fn take_bytes<const N: usize>(&mut self) -> Option<[u8; N]>;
}

impl TakeBytes for &[u8] {
    fn take_bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.split_first_chunk()?;
        *self = rest;
        Some(*first)
    }
}

numbers!(u8, u16, u32);

impl Field for bool {
    fn put(&self, to: &mut Vec<u8>) {
        to.push((*self).into());
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        match u8::take(from)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Field for [u8; 16] {
    fn put(&self, to: &mut Vec<u8>) {
        to.extend(self);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        from.take_bytes()
    }
}

impl Field for QpState {
    fn put(&self, to: &mut Vec<u8>) {
        to.push(*self as u8);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
        [Reset, Init, Rtr, Rts, Sqd, Sqe, Err].get(usize::from(u8::take(from)?)).copied()
    }
}

macro_rules! structure {
    ($type:ty: $($field:ident),*) => {
        impl Field for $type {
            fn put(&self, to: &mut Vec<u8>) {
                $(self.$field.put(to);)*
            }

            fn take(from: &mut &[u8]) -> Option<Self> {
                Some(Self { $($field: Field::take(from)?),* })
            }
        }
    };
}

structure!(Placement: global, persistent);
structure!(Access: remote_write, remote_read, remote_atomic, flush);
structure!(
    AddressVector: is_global, dgid, sgid_index, flow_label, hop_limit, traffic_class, sl, dlid, src_path_bits,
    static_rate, port_num
);
structure!(
    QpAttr: state, cur_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qpn, access, av, pkey_index,
    en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt,
    rnr_retry, rate_limit, max_burst
);

/// What the opener asks for. Its number comes back with the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    Query,
    /// A change of attributes, to be made when the opener confirms it by `CarryOut`: it may have given up waiting meanwhile.
    Modify(QpAttr, u32),
    /// The change with this number is to be made.
    CarryOut,
    Close,
}

pub(crate) fn call(number: u32, call: &Call) -> Vec<u8> {
    let mut bytes = Vec::new();
    match call {
        Call::Query => QUERY.put(&mut bytes),
        Call::Modify(..) => MODIFY.put(&mut bytes),
        Call::CarryOut => CARRY_OUT.put(&mut bytes),
        Call::Close => CLOSE.put(&mut bytes),
    }
    number.put(&mut bytes);
    if let Call::Modify(attr, bits) = call {
        attr.put(&mut bytes);
        bits.put(&mut bytes);
    }
    bytes
}

pub(crate) fn parse_call(mut bytes: &[u8]) -> Option<(u32, Call)> {
    let from = &mut bytes;
    let (kind, number) = (u8::take(from)?, u32::take(from)?);
    let call = match kind {
        QUERY => Call::Query,
        MODIFY => Call::Modify(QpAttr::take(from)?, u32::take(from)?),
        CARRY_OUT => Call::CarryOut,
        CLOSE => Call::Close,
        _ => return None,
    };
    from.is_empty().then_some((number, call))
}

/// The messages of the process with the QP.
#[derive(Debug)]
pub(crate) enum News {
    Queried(u32, QpAttr),
    /// A change can be made.
    Ready(u32),
    Done(u32, Result<(), Error>),
    /// Made with the user handle of the handle.
    Event(fn(usize) -> AsyncEvent),
}

pub(crate) fn queried(number: u32, attr: &QpAttr) -> Vec<u8> {
    let mut bytes = vec![QUERIED];
    number.put(&mut bytes);
    attr.put(&mut bytes);
    bytes
}

pub(crate) fn ready(number: u32) -> Vec<u8> {
    let mut bytes = vec![READY];
    number.put(&mut bytes);
    bytes
}

pub(crate) fn done(number: u32, result: &Result<(), Error>) -> Vec<u8> {
    let mut bytes = vec![DONE];
    number.put(&mut bytes);
    let errno = result.as_ref().map_or_else(Error::errno, |()| 0);
    errno.unsigned_abs().put(&mut bytes);
    if let Err(error) = result {
        bytes.extend(error.to_string().bytes().take(LONGEST_TEXT));
    }
    bytes
}

/// Events of targets; their places are their numbers.
const EVENTS: [fn(usize) -> AsyncEvent; 6] = [
    AsyncEvent::QpFatal,
    AsyncEvent::QpRequestError,
    AsyncEvent::QpAccessError,
    AsyncEvent::CommunicationEstablished,
    AsyncEvent::SqDrained,
    AsyncEvent::QpLastWqeReached,
];

pub(crate) fn event(event: AsyncEvent) -> Option<[u8; 2]> {
    let place = EVENTS.iter().position(|of| event.object().map(of) == Some(event))?;
    Some([EVENT, u8::try_from(place).ok()?])
}

pub(crate) fn parse_news(mut bytes: &[u8]) -> Option<News> {
    let from = &mut bytes;
    let news = match u8::take(from)? {
        QUERIED => News::Queried(u32::take(from)?, QpAttr::take(from)?),
        READY => News::Ready(u32::take(from)?),
        DONE => {
            let (number, errno) = (u32::take(from)?, u32::take(from)?);
            let text = std::mem::take(from);
            if text.len() > LONGEST_TEXT {
                return None;
            }
            News::Done(number, if errno == 0 { Ok(()) } else { Err(error(errno, text)?) })
        }
        EVENT => News::Event(*EVENTS.get(usize::from(u8::take(from)?))?),
        _ => return None,
    };
    from.is_empty().then_some(news)
}

/// The error of another process.
fn error(errno: u32, text: &[u8]) -> Option<Error> {
    let errno = i32::try_from(errno).ok().filter(|errno| *errno < 4096)?;
    let text = format!("the process that has the queue pair: {}", String::from_utf8_lossy(text));
    Some(match errno {
        libc::EINVAL => Error::Invalid(text),
        libc::ENOMEM => Error::NoMemory(text),
        libc::EBUSY => Error::Busy(text),
        libc::EOPNOTSUPP => Error::NotSupported(text),
        libc::EPERM => Error::Permission(text),
        libc::EIO => Error::Dead(text),
        _ => Error::Os {
            what: "the process that has the queue pair",
            source: std::io::Error::from_raw_os_error(errno),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_others_are_refused() {
        let file = DomainFile { device: "ferroce0".into(), dev: 7, ino: 1 << 40 };
        let open = Open { qpn: 0x12_3456, file };
        assert_eq!(Open::parse(&open.to_bytes()), Some(open.clone()));
        assert_eq!(Open::parse(&open.to_bytes()[1..]), None);

        let attr = QpAttr { state: QpState::Rtr, max_burst: 9, rq_psn: 3, ..QpAttr::default() };
        for sent in [Call::Query, Call::Modify(attr, 0x55), Call::CarryOut, Call::Close] {
            let mut bytes = call(5, &sent);
            assert_eq!(parse_call(&bytes), Some((5, sent)));
            for len in 0..bytes.len() {
                assert_eq!(parse_call(&bytes[..len]), None, "{len} bytes of {sent:?}");
            }
            bytes.push(0);
            assert_eq!(parse_call(&bytes), None, "{sent:?} and a byte");
        }
        let mut bad = call(5, &Call::Modify(attr, 0));
        bad[5] = 7;
        assert_eq!(parse_call(&bad), None, "no such state");

        assert!(matches!(parse_news(&queried(6, &attr)), Some(News::Queried(6, got)) if got == attr));
        assert!(matches!(parse_news(&ready(6)), Some(News::Ready(6))));
        assert!(matches!(parse_news(&done(6, &Ok(()))), Some(News::Done(6, Ok(())))));
        let refused = done(6, &Err(Error::Invalid("x".repeat(1000))));
        assert!(matches!(parse_news(&refused), Some(News::Done(6, Err(Error::Invalid(_))))));
        let raised = event(AsyncEvent::QpAccessError(0)).unwrap();
        assert!(
            matches!(parse_news(&raised), Some(News::Event(of)) if of(5) == AsyncEvent::QpAccessError(5))
        );
        assert!(event(AsyncEvent::PortError(1)).is_none());
        for bad in
            [&[][..], &[EVENT, 6], &[EVENT, 0, 0], &[DONE, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], &[0; 9]]
        {
            assert!(parse_news(bad).is_none(), "{bad:?}");
        }
    }
}
