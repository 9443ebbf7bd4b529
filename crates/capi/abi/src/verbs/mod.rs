//! The structures of `<infiniband/verbs.h>` as C code sees them, in the newest layout (rdma-core v65); the older ones are
//! prefixes of these. Names are the header's, so that the two can be read side by side, and the fields' meaning is the
//! man pages'.
//!
//! In here: layout and numbers. Out of here: any behaviour. `tests/it/verbs.rs` compares all of it with the headers.
#![allow(missing_docs, non_camel_case_types, non_snake_case)] // both as in the header

mod attr;
mod flow;
mod kernel;
mod numbers;
mod objects;
mod query;
mod work;

pub use attr::*;
pub use flow::*;
pub use kernel::*;
pub use numbers::*;
pub use objects::*;
pub use query::*;
pub use work::*;

/// A GID, in network order.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_gid {
    pub raw: [u8; 16],
    pub global: ibv_gid_global,
}

/// `global` of a GID: two big-endian numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_gid_global {
    pub subnet_prefix: u64,
    pub interface_id: u64,
}

impl ibv_gid {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; 16] {
        // SAFETY: both views are 16 initialised bytes of plain data.
        unsafe { self.raw }
    }
}

impl Default for ibv_gid {
    fn default() -> Self {
        Self { raw: [0; 16] }
    }
}

impl std::fmt::Debug for ibv_gid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::net::Ipv6Addr::from(self.bytes()).fmt(f)
    }
}
