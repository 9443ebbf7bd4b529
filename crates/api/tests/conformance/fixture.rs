//! Two devices, and pairs of connected queue pairs on them.

use ferroce::Status;
use ferroce::sim::{Faults, Licences, World};
use ferroce::verbs::{Builder, Cq, Device, Domain, RcQp, Reliable};
use std::time::Duration;

/// A large number; a smaller one under Miri, which is slow.
pub const fn large(number: usize) -> usize {
    if cfg!(miri) { number / 16 } else { number }
}

/// Two devices that reach each other.
pub trait Fixture {
    /// The devices.
    fn devices(&self) -> [&Device; 2];
    /// The IP address that leads to the second device. `None`: the backend makes no connections by address.
    fn address(&self) -> Option<String> {
        None
    }
    /// A number that random cases begin with.
    fn seed(&self) -> u64;
    /// The device isn't Ferroce's: its faults have no reason.
    fn is_foreign(&self) -> bool {
        false
    }

    /// How an error of this side is reported: `rdma_rxe` has one status for all.
    fn local(&self, status: Status) -> Status {
        if self.is_foreign() { Status::LocalOperation } else { status }
    }

    /// The network loses packets.
    fn loses(&self) -> bool {
        false
    }

    /// A request may be over as soon as it is posted.
    fn is_quick(&self) -> bool {
        false
    }
}

/// Devices of two hosts of a simulated network.
pub struct Simulated {
    devices: [Device; 2],
    address: String,
    seed: u64,
}

impl Simulated {
    /// On networks without faults, with some, and with many, and with adapters that use all licences.
    pub fn all() -> impl Iterator<Item = Self> {
        let micros = Duration::from_micros;
        let some = Faults {
            loss: 0.02,
            duplicate: 0.02,
            reorder: 0.05,
            delay: micros(1)..micros(50),
            ..Faults::default()
        };
        let many = Faults { loss: 0.15, duplicate: 0.1, reorder: 0.2, ..some.clone() };
        let friendly = Licences::default;
        let all = [
            (1, Faults::default(), Licences::all()),
            (11, many, friendly()),
            (5, some.clone(), friendly()),
            (6, some, Licences::all()),
            (1, Faults::default(), friendly()),
        ];
        all.into_iter().take(if cfg!(miri) { 2 } else { 5 }).map(|(seed, faults, licences)| {
            let world = World::new(seed);
            world.faults(faults);
            let hosts = ["a", "b"].map(|name| world.host(name));
            hosts.iter().for_each(|host| host.licences(licences.clone()));
            let address = hosts[1].ip().to_string();
            Self { devices: hosts.map(|host| Device::simulated(&host)), address, seed }
        })
    }
}

impl Fixture for Simulated {
    fn devices(&self) -> [&Device; 2] {
        [&self.devices[0], &self.devices[1]]
    }

    fn address(&self) -> Option<String> {
        Some(self.address.clone())
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn loses(&self) -> bool {
        self.seed != 1
    }
}

/// One device of this process, twice.
#[cfg(feature = "native")]
pub struct Native(Device);

#[cfg(feature = "native")]
impl Native {
    pub fn new() -> Self {
        Self(Device::native().unwrap())
    }

    /// All packets go over UDP, as between hosts. For a process that hasn't used the device yet.
    pub fn over_udp() -> Self {
        // SAFETY: the test's own process has one more thread, which sleeps until the time limit.
        unsafe { std::env::set_var("FERROCE_FABRIC", "udp") };
        Self::new()
    }
}

#[cfg(feature = "native")]
impl Fixture for Native {
    fn devices(&self) -> [&Device; 2] {
        [&self.0, &self.0]
    }

    fn address(&self) -> Option<String> {
        Some("127.0.0.1".into())
    }

    fn seed(&self) -> u64 {
        1
    }

    fn is_quick(&self) -> bool {
        true
    }
}

/// The first device of a libibverbs, twice: of Ferroce's own.
#[cfg(feature = "system")]
pub struct System(Device);

#[cfg(feature = "system")]
impl System {
    /// Names the library. To be called outside of the test's namespaces.
    pub fn choose() {
        const FILE: &str = "FERROCE_LIBIBVERBS";
        if std::env::var_os(FILE).is_none() {
            let library = ferroce_tests::Artifacts::get().library_dir().join("libibverbs.so.1");
            // SAFETY: the test's process has no other thread that uses the environment.
            unsafe { std::env::set_var(FILE, library) };
        }
    }

    pub fn new() -> Self {
        Self(Device::system().unwrap())
    }

    /// All packets go over UDP, as between hosts. For a process that hasn't used the device yet.
    pub fn over_udp() -> Self {
        // SAFETY: as above.
        unsafe { std::env::set_var("FERROCE_FABRIC", "udp") };
        Self::new()
    }
}

#[cfg(feature = "system")]
impl Fixture for System {
    fn devices(&self) -> [&Device; 2] {
        [&self.0, &self.0]
    }

    fn is_foreign(&self) -> bool {
        self.0.name().starts_with("rxe")
    }

    fn seed(&self) -> u64 {
        1
    }

    fn is_quick(&self) -> bool {
        true
    }
}

/// One side of a connection.
pub struct Side {
    pub domain: Domain,
    pub cq: Cq,
    pub qp: RcQp,
}

/// Two connected queue pairs, each in a domain and with a completion queue of its own.
pub fn connected(fixture: &impl Fixture) -> [Side; 2] {
    connected_with(fixture, |builder| builder.send_depth(16).recv_depth(16))
}

pub fn connected_with(
    fixture: &impl Fixture,
    build: impl Fn(Builder<'_, Reliable>) -> Builder<'_, Reliable>,
) -> [Side; 2] {
    let [a, b] = fixture.devices().map(|device| device.open().unwrap());
    let (a_cq, b_cq) = (a.cq(128).unwrap(), b.cq(128).unwrap());
    let a_setup = build(a.rc(&a_cq)).build().unwrap();
    let b_setup = build(b.rc(&b_cq)).build().unwrap();
    let (a_end, b_end) = (a_setup.endpoint(), b_setup.endpoint());
    let (a_qp, b_qp) = (a_setup.connect(&b_end).unwrap(), b_setup.connect(&a_end).unwrap());
    [Side { domain: a, cq: a_cq, qp: a_qp }, Side { domain: b, cq: b_cq, qp: b_qp }]
}
