//! Hosts, adapters and a network in one process and in virtual time, for tests.
//!
//! A [`World`] begins with a seed, which decides on everything that is random in it. [`Device::simulated`] is a host's adapter.
//! Time stands still while a program runs. It moves on while all programs wait: in [`Cq::wait`], in an empty [`Cq::poll`], in
//! [`World::sleep`], in [`Receiver::recv`], or in [`Program::join`].
//!
//! A wait for something that will never happen panics. The message contains what each program and each queue pair waits for,
//! and the last packets.
//!
//! Two programs that know nothing of the simulation run as threads which take turns:
//!
//! ```
//! use ferroce::rights;
//! use ferroce::sim::World;
//! use ferroce::verbs::{Device, Read};
//! use ferroce::Remote;
//!
//! # fn main() -> ferroce::Result<()> {
//! let world = World::new(7);
//! let (client, server) = (world.host("client"), world.host("server"));
//! let (to_server, at_server) = world.channel();
//! let (to_client, at_client) = world.channel();
//! let device = Device::simulated(&server);
//! let server = server.spawn(move || -> ferroce::Result<()> {
//!     let domain = device.open()?;
//!     let mut memory = domain.alloc(4096)?;
//!     memory[..5].copy_from_slice(b"hello");
//!     let exposed = memory.expose(rights::Read)?;
//!     let cq = domain.cq(16)?;
//!     let setup = domain.rc(&cq).build()?;
//!     to_client.send((setup.endpoint(), exposed.token().to_bytes()));
//!     let _qp = setup.connect(&at_server.recv().unwrap())?;
//!     at_server.recv();
//!     Ok(())
//! });
//!
//! let domain = Device::simulated(&client).open()?;
//! let mut cq = domain.cq(16)?;
//! let setup = domain.rc(&cq).build()?;
//! to_server.send(setup.endpoint());
//! let (endpoint, token) = at_client.recv().unwrap();
//! let mut qp = setup.connect(&endpoint)?;
//! let from = Remote::<rights::Read>::from_bytes(token)?;
//! qp.post(1, Read::new(domain.alloc(64)?, from.slice(..5)))?;
//! let mut read = cq.next(None)?.unwrap();
//! read.result()?;
//! assert_eq!(&read.take().buffer().unwrap()[..], b"hello");
//! drop(to_server);
//! server.join()?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Device::simulated`]: crate::verbs::Device::simulated
//! [`Cq::wait`]: crate::verbs::Cq::wait
//! [`Cq::poll`]: crate::verbs::Cq::poll

pub use ferroce_sim::{
    Changed, Disturbance, Drive, Faults, Host, Licences, Link, Program, Receiver, Sender, Trace, TraceEvent,
    What, World, explore,
};
