//! Where datagrams go.

use crate::verbs::backend::RawAddress;
use crate::verbs::endpoint::Endpoint;
use std::fmt;
use std::sync::Arc;

/// The way to a queue pair that receives datagrams. [`Domain::address`](crate::verbs::Domain::address) makes it of an endpoint.
/// Clones are handles of the same address.
#[derive(Clone)]
pub struct Address {
    raw: Arc<RawAddress>,
    endpoint: Endpoint,
}

impl Address {
    pub(crate) fn new(raw: RawAddress, endpoint: Endpoint) -> Self {
        Self { raw: Arc::new(raw), endpoint }
    }

    pub(crate) const fn raw(&self) -> &Arc<RawAddress> {
        &self.raw
    }

    /// The queue pair.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Address").field(&self.endpoint).finish()
    }
}
