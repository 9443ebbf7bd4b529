//! Connections by address, as the side that asks makes them.

use crate::session::Driver;
use crate::session::connection::Connection;
use crate::session::join::Joining;
use crate::session::link::Link;
use crate::verbs::Endpoint;
use ferroce_buffers::{Error, Kind, ManagedQp, ManagerNews, Pool, Result};
use std::fmt;
use std::future::{IntoFuture, poll_fn};
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::task::Poll;

/// The attributes of the queue pair of a connection by address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes {
    pub(crate) send_depth: u32,
    pub(crate) recv_depth: u32,
    pub(crate) inline: u32,
    pub(crate) reads: Option<(u8, u8)>,
}

impl Default for Wishes {
    fn default() -> Self {
        Self { send_depth: 8, recv_depth: 8, inline: 64, reads: None }
    }
}

impl Wishes {
    /// A queue pair with receives. Its packets carry at most `mtu` bytes.
    pub(crate) fn prepare(self, driver: &Driver, pool: &Pool, mtu: Option<u32>) -> Result<Joining> {
        let Self { send_depth, recv_depth, inline, reads } = self;
        let mut builder = driver.rc().send_depth(send_depth).recv_depth(recv_depth).inline(inline);
        if let Some((outstanding, accepted)) = reads {
            builder = builder.reads(outstanding, accepted);
        }
        if let Some(mtu) = mtu {
            builder = builder.mtu(mtu);
        }
        driver.prepare(builder.build()?, pool)
    }
}

/// The methods that set attributes of a connection's queue pair.
macro_rules! wishes {
    () => {
        /// Requests that the send queue holds. The default is 8.
        pub const fn send_depth(mut self, depth: u32) -> Self {
            self.wishes.send_depth = depth;
            self
        }

        /// Receives that the receive queue holds. The default is 8.
        pub const fn recv_depth(mut self, depth: u32) -> Self {
            self.wishes.recv_depth = depth;
            self
        }

        /// Bytes of [`Inline`](crate::Inline) data in a request. The default is 64.
        pub const fn inline(mut self, bytes: u32) -> Self {
            self.wishes.inline = bytes;
            self
        }

        /// READs and atomics that this side has outstanding, and that it accepts from the peer. The default is 16 for both.
        pub const fn reads(mut self, outstanding: u8, accepted: u8) -> Self {
            self.wishes.reads = Some((outstanding, accepted));
            self
        }
    };
}
pub(crate) use wishes;

/// A connection by address that is to be made. Waiting for it makes it.
#[must_use = "waiting for it makes the connection"]
pub struct Connecting {
    driver: Driver,
    address: String,
    pool: Pool,
    wishes: Wishes,
    private_data: Vec<u8>,
}

impl Connecting {
    pub(crate) fn new(driver: &Driver, address: &str, pool: &Pool) -> Self {
        Self {
            driver: driver.clone(),
            address: address.to_owned(),
            pool: pool.clone(),
            wishes: Wishes::default(),
            private_data: Vec::new(),
        }
    }

    wishes!();

    /// Sends this with the request, for the peer's program: at most 56 bytes.
    pub fn private_data(mut self, data: &[u8]) -> Self {
        self.private_data = data.to_vec();
        self
    }

    async fn make(self) -> Result<Connection> {
        let Self { driver, address, pool, wishes, private_data } = self;
        let to = resolve("connect", &address)?;
        // Receives are posted before the request leaves.
        let joining = wishes.prepare(&driver, &pool, None)?;
        let mine = joining.managed();
        let link = Link::ask(&driver, to, &mine, &private_data)?;
        match next(&driver, &link).await {
            ManagerNews::Accepted(peer) => {
                let ManagedQp { qpn, starting_psn, peer_reads: reads, .. } = peer.qp;
                let theirs =
                    Endpoint { gid: peer.gid, qpn, psn: mine.starting_psn, mtu: mine.mtu, reads, qkey: 0 };
                let managed = Managed { link, peer: to, private_data: peer.private_data };
                let connection = joining.connect_managed(&theirs, starting_psn, managed)?;
                connection.establish()?;
                Ok(connection)
            }
            news => Err(not_made("connect", to, &news)),
        }
    }
}

impl IntoFuture for Connecting {
    type Output = Result<Connection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Connection>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.make())
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connecting").field(&self.address).finish()
    }
}

/// What a connection has of the communication manager.
pub(crate) struct Managed {
    pub(crate) link: Link,
    pub(crate) peer: SocketAddr,
    pub(crate) private_data: Vec<u8>,
}

/// The first address of a name.
pub(crate) fn resolve(verb: &'static str, address: &str) -> Result<SocketAddr> {
    let why = |why: String| Error::new(Kind::NotFound, verb, format!("{address}: {why}"));
    let mut all = address.to_socket_addrs().map_err(|error| why(error.to_string()))?;
    all.next().ok_or_else(|| why("no address".into()))
}

/// What happens next.
pub(crate) async fn next(driver: &Driver, link: &Link) -> ManagerNews {
    poll_fn(|context| link.poll(driver, context.waker()).map_or(Poll::Pending, Poll::Ready)).await
}

/// The number of the reason if a program rejects.
const BY_THE_PROGRAM: u16 = 28;
/// There is no listener.
const NO_LISTENER: u16 = 8;

pub(crate) fn not_made(verb: &'static str, peer: SocketAddr, news: &ManagerNews) -> Error {
    match news {
        ManagerNews::Rejected { reason: BY_THE_PROGRAM, .. } => {
            Error::new(Kind::Rejected, verb, format!("{peer}: its program rejects the connection"))
        }
        ManagerNews::Rejected { reason: NO_LISTENER, .. } => {
            Error::new(Kind::Rejected, verb, format!("{peer}: no program listens at the port"))
        }
        ManagerNews::Rejected { reason, .. } => {
            Error::new(Kind::Rejected, verb, format!("{peer} rejects the connection, for reason {reason}"))
        }
        ManagerNews::Unreachable => Error::new(Kind::TimedOut, verb, format!("{peer} hasn't answered")),
        _ => Error::new(Kind::Dead, verb, format!("{peer} has ended the connection")),
    }
}
