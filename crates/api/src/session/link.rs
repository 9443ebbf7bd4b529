//! The communication manager, on each backend.
#![cfg_attr(
    not(all(feature = "native", feature = "sim", feature = "system")),
    allow(unused_imports, unused_variables, reason = "the arms of a missing backend use them")
)]

use crate::session::Driver;
use crate::verbs::backend::RawDomain;
use ferroce_buffers::{Error, Kind, ManagedPeer, ManagedQp, ManagerNews, Result};
#[cfg(feature = "native")]
use ferroce_native::{NativeConnection, NativeListener};
#[cfg(feature = "sim")]
use ferroce_sim::{SimConnection, SimListener};
#[cfg(feature = "system")]
use std::convert::Infallible;
use std::net::SocketAddr;
use std::task::Waker;

/// A connection of the communication manager. Its drop ends it at the peer too.
pub(crate) enum Link {
    #[cfg(feature = "native")]
    Native(NativeConnection),
    #[cfg(feature = "sim")]
    Sim(SimConnection),
    #[cfg(feature = "system")]
    #[expect(dead_code, reason = "without another backend the type needs a variant")]
    System(Infallible),
}

#[cfg(feature = "system")]
fn unsupported<T>(verb: &'static str) -> Result<T> {
    let why =
        "`Device::system` makes no connections by address yet: exchange the endpoints and use `Driver::join`";
    Err(Error::new(Kind::Unsupported, verb, why))
}

impl Link {
    /// Asks for a connection.
    ///
    /// # Errors
    /// The backend has no communication manager, or refuses.
    pub(crate) fn ask(driver: &Driver, to: SocketAddr, qp: &ManagedQp, private_data: &[u8]) -> Result<Self> {
        match &driver.domain().inner {
            #[cfg(feature = "native")]
            RawDomain::Native(domain) => Ok(Self::Native(domain.ask(to, qp, private_data)?)),
            #[cfg(feature = "sim")]
            RawDomain::Sim(domain) => match to {
                SocketAddr::V4(to) => Ok(Self::Sim(domain.host().ask(to, qp, private_data)?)),
                SocketAddr::V6(to) => Err(Error::new(
                    Kind::Unreachable,
                    "connect",
                    format!("{} isn't a simulated host", to.ip()),
                )),
            },
            #[cfg(feature = "system")]
            RawDomain::System(_) => unsupported("connect"),
        }
    }

    /// What has happened. If nothing has, `waker` is woken when it is worth another look.
    pub(crate) fn poll(&self, driver: &Driver, waker: &Waker) -> Option<ManagerNews> {
        match self {
            #[cfg(feature = "native")]
            Self::Native(connection) => connection.poll(waker),
            #[cfg(feature = "sim")]
            Self::Sim(connection) => {
                let news = connection.next();
                if news.is_none() {
                    driver.wake_after_turn(waker);
                }
                news
            }
            #[cfg(feature = "system")]
            Self::System(never) => match *never {},
        }
    }

    /// As [`Link::poll`], of a connection that is made. The queue pair of a simulated one fails by itself.
    pub(crate) fn watch(&self, waker: &Waker) -> Option<ManagerNews> {
        match self {
            #[cfg(feature = "native")]
            Self::Native(connection) => connection.poll(waker),
            #[cfg(feature = "sim")]
            Self::Sim(_) => {
                let _ = waker;
                None
            }
            #[cfg(feature = "system")]
            Self::System(never) => match *never {},
        }
    }

    pub(crate) fn accept(&self, qp: &ManagedQp, private_data: &[u8]) -> Result<()> {
        match self {
            #[cfg(feature = "native")]
            Self::Native(connection) => connection.accept(qp, private_data),
            #[cfg(feature = "sim")]
            Self::Sim(connection) => connection.accept(qp, private_data),
            #[cfg(feature = "system")]
            Self::System(never) => match *never {},
        }
    }

    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<()> {
        match self {
            #[cfg(feature = "native")]
            Self::Native(connection) => connection.reject(private_data),
            #[cfg(feature = "sim")]
            Self::Sim(connection) => connection.reject(private_data),
            #[cfg(feature = "system")]
            Self::System(never) => match *never {},
        }
    }

    pub(crate) fn establish(&self) -> Result<()> {
        match self {
            #[cfg(feature = "native")]
            Self::Native(connection) => connection.establish(),
            #[cfg(feature = "sim")]
            Self::Sim(connection) => connection.establish(),
            #[cfg(feature = "system")]
            Self::System(never) => match *never {},
        }
    }
}

/// A listener of the communication manager.
pub(crate) enum LinkListener {
    #[cfg(feature = "native")]
    Native(NativeListener),
    #[cfg(feature = "sim")]
    Sim(SimListener),
    #[cfg(feature = "system")]
    #[expect(dead_code, reason = "without another backend the type needs a variant")]
    System(Infallible),
}

impl LinkListener {
    pub(crate) fn bind(driver: &Driver, address: SocketAddr) -> Result<Self> {
        match &driver.domain().inner {
            #[cfg(feature = "native")]
            RawDomain::Native(domain) => Ok(Self::Native(domain.listen(address)?)),
            #[cfg(feature = "sim")]
            RawDomain::Sim(domain) => {
                let host = domain.host();
                let ip = address.ip();
                if !ip.is_unspecified() && !ip.is_loopback() && ip != host.ip() {
                    let why = format!("{ip} isn't an address of this host, which has {}", host.ip());
                    return Err(Error::new(Kind::NotFound, "bind", why));
                }
                Ok(Self::Sim(host.listen(address.port())?))
            }
            #[cfg(feature = "system")]
            RawDomain::System(_) => unsupported("bind"),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            #[cfg(feature = "native")]
            Self::Native(listener) => listener.address(),
            #[cfg(feature = "sim")]
            Self::Sim(listener) => listener.address().into(),
            #[cfg(feature = "system")]
            Self::System(never) => match *never {},
        }
    }

    /// The oldest request. Without one, `waker` is woken when it is worth another look.
    pub(crate) fn poll(&self, driver: &Driver, waker: &Waker) -> Option<(Link, SocketAddr, ManagedPeer)> {
        match (self, &driver.domain().inner) {
            #[cfg(feature = "native")]
            (Self::Native(listener), RawDomain::Native(domain)) => {
                let (connection, from, peer) = listener.poll(domain, waker)?;
                Some((Link::Native(connection), from, peer))
            }
            #[cfg(feature = "sim")]
            (Self::Sim(listener), _) => {
                let Some((connection, from, peer)) = listener.next() else {
                    driver.wake_after_turn(waker);
                    return None;
                };
                Some((Link::Sim(connection), from.into(), peer))
            }
            #[cfg(feature = "system")]
            (Self::System(never), _) => match *never {},
            #[cfg(all(feature = "native", any(feature = "sim", feature = "system")))]
            (Self::Native(_), _) => None,
        }
    }
}
