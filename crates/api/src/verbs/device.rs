//! Devices and protection domains.

use crate::verbs::backend::{RawDevice, RawDomain};
use crate::verbs::cq::{AnyCq, Cq};
use crate::verbs::{Address, Builder, Datagram, Endpoint, Events, Extra, Reliable, Srq, Unreliable};
use ferroce_buffers::{Buffer, Error, Failed, Memory, Pool, Result};
#[cfg(feature = "native")]
use ferroce_native::NativeDevice;
#[cfg(feature = "sim")]
use ferroce_sim::Host;
#[cfg(feature = "system")]
use ferroce_system::SystemDevice;
use std::time::Duration;

/// The most that this crate asks of a device; a simulated adapter may have less. For [`Device::system`] these aren't the adapter's own
/// limits: one with lower limits refuses in `cq`, `srq` or `build`.
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
    inner: RawDevice,
}

impl Device {
    /// Ferroce's adapter in this process, on the interface of the default route if there is one. It needs no hardware, no kernel module
    /// and no privilege. Its peers are queue pairs of this process, of other processes of the host, and of other hosts,
    /// over UDP port 4791: on Ferroce or on RoCEv2 adapters.
    ///
    /// Each call finds the devices anew. Completion queues and queue pairs work together if their domains were opened from one
    /// `Device` or its clones.
    ///
    /// # Errors
    /// The network namespace has no interface that can be used ([`Kind::NotFound`](crate::Kind::NotFound)), or it can't be read.
    ///
    /// ```no_run
    /// # use ferroce::verbs::Device;
    /// let domain = Device::native()?.open()?;
    /// # Ok::<_, ferroce::Error>(())
    /// ```
    #[cfg(feature = "native")]
    pub fn native() -> Result<Self> {
        let first = Self::all()?.into_iter().next();
        first.ok_or_else(|| {
            Error::new(ferroce_buffers::Kind::NotFound, "native", "no network interface can be used")
        })
    }

    /// All devices of this process's network namespace, that of [`Device::native`] first.
    ///
    /// # Errors
    /// The interfaces can't be read, or the environment variable `FERROCE_DEVICES` is wrong.
    #[cfg(feature = "native")]
    pub fn all() -> Result<Vec<Self>> {
        let devices = NativeDevice::all()?;
        Ok(devices.into_iter().map(|device| Self { inner: RawDevice::Native(device) }).collect())
    }

    /// The device with this name.
    ///
    /// # Errors
    /// There is none ([`Kind::NotFound`](crate::Kind::NotFound)), or as [`Device::all`].
    #[cfg(feature = "native")]
    pub fn named(name: &str) -> Result<Self> {
        let all = Self::all()?;
        let names: Vec<_> = all.iter().map(Self::name).collect();
        all.into_iter().find(|device| device.name() == name).ok_or_else(|| {
            Error::new(
                ferroce_buffers::Kind::NotFound,
                "named",
                format!("{name:?}; there are: {}", names.join(", ")),
            )
        })
    }

    /// The first device of the machine's `libibverbs.so.1`: an adapter, `rdma_rxe`, or what `ferroce run` puts there. The library is loaded
    /// by this call, and the binary starts without it. `FERROCE_LIBIBVERBS` names another file.
    ///
    /// # Errors
    /// The library isn't there, or the machine has no device ([`Kind::NotFound`](crate::Kind::NotFound)).
    ///
    /// ```no_run
    /// # use ferroce::verbs::Device;
    /// let domain = Device::system()?.open()?;
    /// # Ok::<_, ferroce::Error>(())
    /// ```
    #[cfg(feature = "system")]
    pub fn system() -> Result<Self> {
        let first = Self::all_of_system()?.into_iter().next();
        first.ok_or_else(|| {
            let why = "libibverbs has found no device: see `ibv_devices`, or use `Device::native`";
            Error::new(ferroce_buffers::Kind::NotFound, "system", why)
        })
    }

    /// All devices of the machine's `libibverbs.so.1`, in its order.
    ///
    /// # Errors
    /// The library isn't there, or can't list the devices.
    #[cfg(feature = "system")]
    pub fn all_of_system() -> Result<Vec<Self>> {
        let devices = SystemDevice::all()?;
        Ok(devices.into_iter().map(|device| Self { inner: RawDevice::System(device) }).collect())
    }

    /// The adapter of a simulated host.
    #[cfg(feature = "sim")]
    #[must_use]
    pub fn simulated(host: &Host) -> Self {
        Self { inner: RawDevice::Sim(host.clone()) }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        self.inner.name()
    }

    /// The time of its host: virtual in a simulation.
    pub(crate) fn now(&self) -> Duration {
        self.inner.now()
    }

    /// Lets time pass.
    pub(crate) fn pause(&self, time: Duration) {
        self.inner.pause(time);
    }

    /// What it can do.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let cq_entries =
            self.inner.most_cq_entries().map_or(LIMITS.cq_entries, |most| most.min(LIMITS.cq_entries));
        Limits { cq_entries, ..LIMITS }
    }

    /// Makes a protection domain on it.
    ///
    /// # Errors
    /// On [`Device::native`]: UDP port 4791 belongs to another program, or a limit of the system is reached. On [`Device::system`]: the
    /// device's link layer is InfiniBand ([`Kind::Unsupported`](crate::Kind::Unsupported)).
    pub fn open(&self) -> Result<Domain> {
        Ok(Domain { device: self.clone(), inner: self.inner.open()? })
    }
}

/// A protection domain: memory and queue pairs that belong together. Clones are handles of the same domain.
#[derive(Clone, Debug)]
pub struct Domain {
    device: Device,
    pub(crate) inner: RawDomain,
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
    /// # let domain = Device::simulated(&World::new(0).host("a")).open()?;
    /// let mut buffer = domain.register(vec![1, 2, 3]).map_err(|failed| failed.error)?;
    /// buffer[0] = 4;
    /// assert_eq!(buffer.reclaim::<Vec<u8>>().unwrap(), [4, 2, 3]);
    /// # Ok::<_, ferroce::Error>(())
    /// ```
    pub fn register<M: Memory>(&self, memory: M) -> Result<Buffer, Failed<M>> {
        self.inner.register(memory)
    }

    /// Allocates and registers `len` zeroed bytes. The length of the buffer is its capacity.
    ///
    /// # Errors
    /// `len` is 0, or the device refuses.
    pub fn alloc(&self, len: usize) -> Result<Buffer> {
        self.inner.alloc(len)
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
        self.cq_with(entries)
    }

    /// Makes a completion queue whose completions contain an [`Extra`] besides.
    ///
    /// # Errors
    /// As [`Domain::cq`]. Or the device hasn't what completions are to contain ([`Kind::Unsupported`](crate::Kind::Unsupported)).
    ///
    /// ```
    /// # use ferroce::{sim::World, verbs::{Cq, Device, Send, Timestamp}};
    /// # fn main() -> ferroce::Result<()> {
    /// # let world = World::new(1);
    /// # let [a, b] = ["a", "b"].map(|name| Device::simulated(&world.host(name)).open().unwrap());
    /// # let b_cq = b.cq(16)?;
    /// let mut cq: Cq<Timestamp> = a.cq_with(16)?;
    /// let setup = a.rc(&cq).build()?;
    /// # let mut b_setup = b.rc(&b_cq).build()?;
    /// # b_setup.recv(1, b.alloc(8)?)?;
    /// # let (end, peer) = (setup.endpoint(), b_setup.endpoint());
    /// # let _b_qp = b_setup.connect(&end)?;
    /// let mut qp = setup.connect(&peer)?;
    /// qp.post(1, Send::new(()))?;
    /// let sent = cq.next(None)?.unwrap();
    /// println!("sent at {} ns", sent.extra().0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn cq_with<X: Extra>(&self, entries: u32) -> Result<Cq<X>> {
        if entries == 0 || entries > LIMITS.cq_entries {
            let why = format!("{entries} entries; a completion queue has 1 to {}", LIMITS.cq_entries);
            return Err(Error::invalid("cq", why));
        }
        Ok(Cq::new(self.inner.cq(entries, X::STAMPED)?, entries))
    }

    /// Begins a queue pair of a reliable connection. Its completions go to `cq`.
    pub fn rc<'q>(&'q self, cq: &'q impl AnyCq) -> Builder<'q, Reliable> {
        Builder::new(self, cq.core())
    }

    /// Begins a queue pair of an unreliable connection: it has SENDs and WRITEs, and what the network loses is lost. Its completions go
    /// to `cq`.
    pub fn uc<'q>(&'q self, cq: &'q impl AnyCq) -> Builder<'q, Unreliable> {
        Builder::new(self, cq.core())
    }

    /// Begins a queue pair for datagrams. Its completions go to `cq`.
    ///
    /// ```
    /// # use ferroce::{sim::World, verbs::{Device, SendTo}};
    /// # fn main() -> ferroce::Result<()> {
    /// # let world = World::new(1);
    /// # let [a, b] = ["a", "b"].map(|name| Device::simulated(&world.host(name)).open().unwrap());
    /// let (mut a_cq, mut b_cq) = (a.cq(16)?, b.cq(16)?);
    /// let mut a_qp = a.ud(&a_cq).build()?.activate(0x1234).map_err(|failed| failed.error)?;
    /// let mut b_setup = b.ud(&b_cq).build()?;
    /// b_setup.recv(1, b.alloc(1024)?)?;
    /// let mut b_qp = b_setup.activate(0x1234).map_err(|failed| failed.error)?;
    ///
    /// // The endpoint has the address, the number and the Q_Key, for 64 bytes of another connection.
    /// let to_b = a.address(&b_qp.endpoint())?;
    /// let mut hello = a.alloc(64)?;
    /// hello.fill(b"hello");
    /// a_qp.post(2, SendTo::new(hello, &to_b))?;
    ///
    /// let mut received = b_cq.next(None)?.unwrap();
    /// received.result()?;
    /// let to_a = b.address(received.source().unwrap())?;
    /// let message = received.take().buffer().unwrap();
    /// assert_eq!(&message[..], b"hello");
    /// b_qp.post(3, SendTo::new(message, &to_a))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn ud<'q>(&'q self, cq: &'q impl AnyCq) -> Builder<'q, Datagram> {
        Builder::new(self, cq.core())
    }

    /// Makes a shared receive queue for so many receives.
    ///
    /// # Errors
    /// `depth` is 0 or more than the device's limit, or the device refuses.
    pub fn srq(&self, depth: u32) -> Result<Srq> {
        if depth == 0 || depth > LIMITS.recv_depth {
            let why = format!("{depth} receives; a shared receive queue has 1 to {}", LIMITS.recv_depth);
            return Err(Error::invalid("srq", why));
        }
        Srq::new(self, depth)
    }

    /// What the device reports besides completions.
    ///
    /// # Errors
    /// The device can't be used any more.
    pub fn events(&self) -> Result<Events> {
        Events::new(self)
    }

    /// Finds the way to a queue pair that receives datagrams, for queue pairs of this domain.
    ///
    /// # Errors
    /// This device can't reach it.
    pub fn address(&self, of: &Endpoint) -> Result<Address> {
        Ok(Address::new(self.inner.address(of)?, *of))
    }
}
