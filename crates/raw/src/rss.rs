//! Receive-side scaling: indirection tables (ibv_create_rwq_ind_table(3)) and the hash that picks an entry.

use super::frame::IncomingFrame;
use super::wq::Wq;
use ferroce_types::{Quota, QuotaPlace, Result, Users, invalid};
use ferroce_wire::frame::{IpLayer, Layer, Transport};
use ferroce_wire::toeplitz;
use smallvec::SmallVec;
use std::sync::Arc;

/// Entries an indirection table may have.
pub const MAX_TABLE: u32 = 512;
/// Indirection tables a process may have.
pub const MAX_TABLES: u32 = 4096;
static TABLES: Quota = Quota::new("indirection tables", MAX_TABLES);

/// Bytes of a hash key.
pub const HASH_KEY_LEN: usize = toeplitz::KEY_LEN;

/// Fields that a hash may cover (`enum ibv_rx_hash_fields`).
#[allow(missing_docs)]
pub mod fields {
    pub const SRC_IPV4: u64 = 1 << 0;
    pub const DST_IPV4: u64 = 1 << 1;
    pub const SRC_IPV6: u64 = 1 << 2;
    pub const DST_IPV6: u64 = 1 << 3;
    pub const SRC_PORT_TCP: u64 = 1 << 4;
    pub const DST_PORT_TCP: u64 = 1 << 5;
    pub const SRC_PORT_UDP: u64 = 1 << 6;
    pub const DST_PORT_UDP: u64 = 1 << 7;
    pub const IPSEC_SPI: u64 = 1 << 8;
    /// Of what a tunnel carries.
    pub const INNER: u64 = 1 << 31;
    /// All of them.
    pub const ALL: u64 = 0x1ff | INNER;
}

/// A table of work queues.
#[derive(Debug)]
pub struct IndTable {
    wqs: Box<[Arc<Wq>]>,
    users: Users,
    _held: QuotaPlace,
}

impl IndTable {
    /// A table of these queues, in this order; one may stand there more than once.
    ///
    /// # Errors
    /// [`ferroce_types::Error::Invalid`] for a number of entries that isn't a power of two or is above [`MAX_TABLE`];
    /// [`ferroce_types::Error::NoMemory`] when there are [`MAX_TABLES`].
    pub fn create(wqs: Vec<Arc<Wq>>) -> Result<Arc<Self>> {
        if !wqs.len().is_power_of_two() || wqs.len() > MAX_TABLE as usize {
            return invalid!(
                "an indirection table of {} entries: a power of two up to {MAX_TABLE}",
                wqs.len()
            );
        }
        let held = TABLES.take()?;
        wqs.iter().for_each(|wq| wq.hold());
        Ok(Arc::new(Self { wqs: wqs.into_boxed_slice(), users: Users::default(), _held: held }))
    }

    pub(super) fn wqs(&self) -> &[Arc<Wq>] {
        &self.wqs
    }

    pub(super) fn hold(&self) {
        self.users.hold();
    }

    pub(super) fn release(&self) {
        self.users.release();
    }

    /// Ends the table (ibv_destroy_rwq_ind_table(3)).
    ///
    /// # Errors
    /// [`ferroce_types::Error::Busy`] while a QP uses it.
    pub fn destroy(&self) -> Result<()> {
        self.users.check_none("the indirection table still has queue pairs")?;
        self.wqs.iter().for_each(|wq| wq.release());
        Ok(())
    }
}

/// How a QP spreads frames over a table (`struct ibv_rx_hash_conf`): by the Toeplitz hash.
#[derive(Clone, Debug)]
pub struct Rss {
    /// Over which queues.
    pub table: Arc<IndTable>,
    /// The hash's key.
    pub key: [u8; HASH_KEY_LEN],
    /// What it covers, of [`fields`].
    pub fields: u64,
}

impl Rss {
    /// The queue for a frame. One without any of the fields goes to the first.
    pub(super) fn pick(&self, frame: &IncomingFrame<'_>) -> &Arc<Wq> {
        let layer = if self.fields & fields::INNER != 0 {
            frame.headers.inner.unwrap_or_default()
        } else {
            frame.headers.outer
        };
        let input = self.input(&layer);
        let hash = if input.is_empty() { 0 } else { toeplitz::hash(&self.key, &input) };
        &self.table.wqs[hash as usize % self.table.wqs.len()]
    }

    fn input(&self, layer: &Layer) -> SmallVec<[u8; toeplitz::MAX_INPUT]> {
        let mut input = SmallVec::new();
        let mut take = |field: u64, bytes: &[u8]| {
            if self.fields & field != 0 {
                input.extend_from_slice(bytes);
            }
        };
        match &layer.network {
            Some(IpLayer::V4 { src, dst, .. }) => {
                take(fields::SRC_IPV4, src);
                take(fields::DST_IPV4, dst);
            }
            Some(IpLayer::V6 { src, dst, .. }) => {
                take(fields::SRC_IPV6, src);
                take(fields::DST_IPV6, dst);
            }
            None => {}
        }
        match &layer.transport {
            Some(Transport::Tcp { src, dst }) => {
                take(fields::SRC_PORT_TCP, &src.to_be_bytes());
                take(fields::DST_PORT_TCP, &dst.to_be_bytes());
            }
            Some(Transport::Udp { src, dst }) => {
                take(fields::SRC_PORT_UDP, &src.to_be_bytes());
                take(fields::DST_PORT_UDP, &dst.to_be_bytes());
            }
            Some(Transport::Esp { spi, .. }) => take(fields::IPSEC_SPI, &spi.to_be_bytes()),
            None => {}
        }
        input
    }
}
