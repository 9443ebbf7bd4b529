//! Ports: who on this host listens at which.

use crate::{PortSpace, Sink, Transport};
use ferroce_types::Result;
use std::net::SocketAddr;
use std::sync::Arc;

/// What a port is wanted for (rdma_bind_addr(3)).
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// The port space.
    pub space: PortSpace,
    /// Address, perhaps the unspecified or a loopback one, which both stand for all of this host's; port 0 has one chosen.
    pub address: SocketAddr,
    /// Others that say so too may have the port as well, as long as nobody listens (`RDMA_OPTION_ID_REUSEADDR`).
    pub reuse: bool,
    /// `::` doesn't stand for IPv4 addresses (`RDMA_OPTION_ID_AFONLY`).
    pub v6_only: bool,
    /// The port is only shown to peers: nobody is kept from it, and it can't be listened at. For rdma_resolve_addr(3) of an id that
    /// isn't bound: connections without number need neither names nor descriptors.
    pub label: bool,
}

/// A bound port. It is free again when this is dropped, or when the process dies.
#[derive(Debug)]
pub struct Port {
    address: SocketAddr,
}

/// Takes a port.
///
/// # Errors
/// EADDRINUSE when somebody on this host has it with this address, EADDRNOTAVAIL when somebody has it and one of the two addresses
/// stands for all; EADDRNOTAVAIL also when no port is left to choose, EACCES for a port below 1024 without CAP_NET_BIND_SERVICE.
pub fn bind(wanted: &Bind) -> Result<Port> {
    unimplemented!("{wanted:?}")
}

impl Port {
    /// Address and port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes requests from now on: `sink` gets [`Event::Request`](crate::Event::Request)s for `transport`, and
    /// [`Event::Lookup`](crate::Event::Lookup)s when it is `None`. Once `backlog` of them haven't been
    /// [taken](crate::Connection::take), further ones are dropped silently: the peer asks again.
    ///
    /// # Errors
    /// EINVAL when it listens already, EADDRINUSE when the port is shared.
    pub fn listen(&self, transport: Option<Transport>, backlog: u32, sink: Arc<dyn Sink>) -> Result<()> {
        let _ = (transport, backlog, sink);
        unimplemented!()
    }
}
