//! Listening for connections by address.
//!
//! A listener gets requests of peers on this crate, and of C programs that use librdmacm. The other side is
//! [`Connection::connect`].
//!
//! ```
//! use ferroce::cm::Listener;
//! use ferroce::session::{Connection, Driver};
//! use ferroce::sim::World;
//! use ferroce::verbs::Device;
//! use ferroce::Inline;
//!
//! # fn main() -> ferroce::Result<()> {
//! let world = World::new(1);
//! let (client, server) = (world.host("client"), world.host("server"));
//! let device = Device::simulated(&server);
//! let served = server.spawn(move || -> ferroce::Result<()> {
//!     let driver = Driver::manual(&device.open()?)?;
//!     let pool = driver.domain().pool(16, 4096)?;
//!     let mut listener = Listener::bind(&driver, "0.0.0.0:7471")?;
//!     driver.run(async {
//!         let peer = listener.accept().await?.accept(&pool).await?;
//!         assert_eq!(&peer.recv().await?[..], b"hello");
//!         peer.closed().await; // the client ends the connection
//!         Ok(())
//!     })
//! });
//!
//! world.sleep(std::time::Duration::from_millis(1)); // until the server listens
//! let driver = Driver::manual(&Device::simulated(&client).open()?)?;
//! let pool = driver.domain().pool(16, 4096)?;
//! driver.run(async {
//!     let peer = Connection::connect(&driver, &format!("{}:7471", server.ip()), &pool).await?;
//!     peer.send(Inline::from(b"hello")).await?;
//!     Ok::<_, ferroce::Error>(())
//! })?;
//! served.join()?;
//! # Ok(())
//! # }
//! ```

use crate::session::connecting::{Managed, Wishes, not_made, resolve, wishes};
use crate::session::link::{Link, LinkListener};
use crate::session::{Connection, Driver};
use crate::verbs::Endpoint;
use ferroce_buffers::{ManagedPeer, ManagedQp, ManagerNews, Pool, Result};
use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::Poll;

/// A port at which requests for connections arrive.
pub struct Listener {
    driver: Driver,
    inner: LinkListener,
}

impl Listener {
    /// Listens at an address and port, as `0.0.0.0:7471`. With port 0 a free port is chosen: see
    /// [`Listener::local_addr`].
    ///
    /// # Errors
    /// The port is taken ([`Kind::InUse`](crate::Kind::InUse)), the address isn't of this host, or the device makes no connections by address
    /// ([`Kind::Unsupported`](crate::Kind::Unsupported)).
    pub fn bind(driver: &Driver, address: &str) -> Result<Self> {
        let inner = LinkListener::bind(driver, resolve("bind", address)?)?;
        Ok(Self { driver: driver.clone(), inner })
    }

    /// The address and port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.address()
    }

    /// Waits for a request.
    ///
    /// # Errors
    /// None in this version.
    pub async fn accept(&mut self) -> Result<Incoming> {
        let Self { driver, inner } = self;
        let poll = poll_fn(|context| inner.poll(driver, context.waker()).map_or(Poll::Pending, Poll::Ready));
        let (link, from, peer) = poll.await;
        Ok(Incoming {
            driver: driver.clone(),
            link,
            from,
            peer,
            wishes: Wishes::default(),
            private_data: Vec::new(),
        })
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.local_addr()).finish()
    }
}

/// A request for a connection. Dropping it rejects it.
#[must_use = "dropping it rejects it"]
pub struct Incoming {
    driver: Driver,
    link: Link,
    from: SocketAddr,
    peer: ManagedPeer,
    wishes: Wishes,
    private_data: Vec<u8>,
}

impl Incoming {
    /// The peer's address and port.
    #[must_use]
    pub const fn peer(&self) -> SocketAddr {
        self.from
    }

    /// What the peer's program has sent with the request, with zeros behind it: 56 bytes.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.peer.private_data
    }

    wishes!();

    /// Sends this with the answer, for the peer's program: at most 196 bytes.
    pub fn answer(mut self, data: &[u8]) -> Self {
        self.private_data = data.to_vec();
        self
    }

    /// Accepts it. The future ends when the peer is ready, and the connection uses the pool for its receives.
    ///
    /// # Errors
    /// The peer has gone meanwhile, the data of [`Incoming::answer`] is too long, or there is no room for a queue pair.
    pub fn accept(self, pool: &Pool) -> impl Future<Output = Result<Connection>> + Send + use<> {
        let pool = pool.clone();
        async move {
            let Self { driver, link, from, peer, wishes, private_data } = self;
            let ManagedPeer { gid, qp: asked, .. } = &peer;
            let ManagedQp { qpn, starting_psn, mtu, peer_reads: reads, .. } = *asked;
            // Receives are posted before the answer leaves.
            let joining = wishes.prepare(&driver, &pool, Some(mtu))?;
            let mut mine = joining.managed();
            let theirs = Endpoint { gid: *gid, qpn, psn: mine.starting_psn, mtu, reads, qkey: 0 };
            mine.reads = mine.reads.min(asked.peer_reads);
            mine.peer_reads = mine.peer_reads.min(asked.reads);
            let managed = Managed { link, peer: from, private_data: peer.private_data };
            let connection = joining.connect_managed(&theirs, starting_psn, managed)?;
            connection.with_link(|link| link.accept(&mine, &private_data))?;
            match connection.news().await {
                ManagerNews::Ready => {
                    connection.watch();
                    Ok(connection)
                }
                news => Err(not_made("accept", from, &news)),
            }
        }
    }

    /// Rejects it, with data for the peer's program: at most 148 bytes.
    ///
    /// # Errors
    /// The peer has gone meanwhile, or there is too much data.
    pub fn reject(self, data: &[u8]) -> Result<()> {
        self.link.reject(data)
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Incoming").field(&self.from).finish()
    }
}
