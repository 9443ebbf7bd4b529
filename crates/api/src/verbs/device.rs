//! Devices and protection domains.

use crate::verbs::cq::Cq;
use crate::verbs::{Builder, Reliable};
use ferroce_buffers::{Buffer, Error, Failed, Memory, Pool, Result};
use ferroce_sim::{Host, SimDomain};

/// What a device can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Requests in a send queue.
    pub send_depth: u32,
    /// Receives in a receive queue.
    pub recv_depth: u32,
    /// Entries of a completion queue.
    pub cq_entries: u32,
    /// Pieces of memory in a request.
    pub parts: u32,
    /// Bytes of [`Inline`](crate::Inline) data in a request.
    pub inline: u32,
    /// READs and atomics that a queue pair has outstanding, in each direction.
    pub reads: u8,
}

pub(crate) const LIMITS: Limits = Limits {
    send_depth: 1 << 14,
    recv_depth: 1 << 14,
    cq_entries: 1 << 16,
    parts: 16,
    inline: 512,
    reads: 16,
};

/// An RDMA device. Clones are handles of the same device.
#[derive(Clone, Debug)]
pub struct Device {
    host: Host,
}

impl Device {
    /// The adapter of a simulated host.
    #[must_use]
    pub fn simulated(host: &Host) -> Self {
        Self { host: host.clone() }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        format!("sim_{}", self.host.name())
    }

    /// What it can do.
    #[must_use]
    pub const fn limits(&self) -> Limits {
        LIMITS
    }

    /// Makes a protection domain on it.
    #[must_use]
    pub fn open(&self) -> Domain {
        Domain { device: self.clone(), inner: self.host.domain() }
    }
}

/// A protection domain: memory and queue pairs that belong together. Clones are handles of the same domain.
#[derive(Clone, Debug)]
pub struct Domain {
    device: Device,
    pub(crate) inner: SimDomain,
}

impl Domain {
    /// The device.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// Registers memory of the program. [`Buffer::reclaim`] gives it back.
    ///
    /// # Errors
    /// The device refuses: the memory comes back.
    ///
    /// ```
    /// # use ferroce::{sim::World, verbs::Device};
    /// # let domain = Device::simulated(&World::new(0).host("a")).open();
    /// let mut buffer = domain.register(vec![1, 2, 3]).map_err(|failed| failed.error)?;
    /// buffer[0] = 4;
    /// assert_eq!(buffer.reclaim::<Vec<u8>>().unwrap(), [4, 2, 3]);
    /// # Ok::<_, ferroce::Error>(())
    /// ```
    pub fn register<M: Memory>(&self, memory: M) -> Result<Buffer, Failed<M>> {
        ferroce_buffers::register(memory, |tap| self.inner.register(tap))
    }

    /// Allocates and registers `len` zeroed bytes. The length of the buffer is its capacity.
    ///
    /// # Errors
    /// `len` is 0, or the device refuses.
    pub fn alloc(&self, len: usize) -> Result<Buffer> {
        ferroce_buffers::alloc(len, |tap| self.inner.register(tap))
    }

    /// Allocates `count` buffers of `size` bytes in one registration.
    ///
    /// # Errors
    /// There would be no byte, or the device refuses.
    pub fn pool(&self, count: usize, size: usize) -> Result<Pool> {
        let len = count.checked_mul(size);
        let len = len.ok_or_else(|| Error::invalid("pool", "more bytes than there are addresses"))?;
        Pool::new(self.alloc(len)?, size)
    }

    /// Makes a completion queue.
    ///
    /// # Errors
    /// `entries` is 0 or more than the device's limit.
    pub fn cq(&self, entries: u32) -> Result<Cq> {
        if entries == 0 || entries > LIMITS.cq_entries {
            let why = format!("{entries} entries; a completion queue has 1 to {}", LIMITS.cq_entries);
            return Err(Error::invalid("cq", why));
        }
        Ok(Cq::new(self.inner.cq(entries), entries))
    }

    /// Begins a queue pair of a reliable connection. Its completions go to `cq`.
    pub fn rc<'q>(&'q self, cq: &'q Cq) -> Builder<'q, Reliable> {
        Builder::new(self, cq)
    }
}
