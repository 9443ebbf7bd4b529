//! Hosts, adapters and a network in one process and in virtual time, for tests.
//!
//! A [`World`] begins with a seed, which decides on everything that is random in it. [`Device::simulated`] is a host's adapter.
//! Time stands still while a program runs. It moves on while all programs wait: in [`Cq::wait`] and [`Cq::next`], in an empty
//! [`Cq::poll`], in [`World::sleep`], in [`Receiver::recv`], in a read of a stream, in a look at
//! [exposed memory](crate::Exposed::load), in [`Program::join`], or in the calls of [`session`](crate::session) that block.
//!
//! A wait for something that will never happen panics. The message contains what each program and each queue pair waits for,
//! and the last packets.
//!
//! Programs that block run as threads which take turns. Channels or a stream take the place of their sockets:
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
//! # Faults
//!
//! The network loses, repeats, delays and damages packets ([`Faults`], for the world or for a [`Link`]). Hosts [crash](Host::crash),
//! [restart](Host::restart) and [pause](Host::pause), at once or at a [moment](World::at) of virtual time. Adapters use their
//! [`Licences`]: what the specification permits and most adapters don't do.
//!
//! [`explore`] runs a test by many seeds. It prints the first seed that fails, the faults that suffice for the failure, what each queue pair
//! waited for, and the name of a capture for Wireshark.
//!
//! ```
//! use ferroce::Status;
//! use ferroce::sim::{Disturbance, Licences, explore};
//! use ferroce::verbs::{Device, Send};
//! use std::time::Duration;
//!
//! # fn main() {
//! explore(0..20, |world| {
//!     let (client, server) = (world.host("client"), world.host("server"));
//!     server.licences(Licences::all());
//!     world.at(world.draw(Duration::ZERO..Duration::from_micros(20)), Disturbance::Crash(&server));
//!     let [a, b] = [&client, &server].map(|host| Device::simulated(host).open().unwrap());
//!     let (mut a_cq, b_cq) = (a.cq(16).unwrap(), b.cq(16).unwrap());
//!     let (a_setup, mut b_setup) = (a.rc(&a_cq).build().unwrap(), b.rc(&b_cq).build().unwrap());
//!     b_setup.recv(1, b.alloc(64).unwrap()).unwrap();
//!     let (a_end, b_end) = (a_setup.endpoint(), b_setup.endpoint());
//!     let (mut a_qp, _b_qp) = (a_setup.connect(&b_end).unwrap(), b_setup.connect(&a_end).unwrap());
//!     world.sleep(Duration::from_micros(10));
//!     a_qp.post(2, Send::new(())).unwrap();
//!     // Whether the server was there or not, the request ends, and its memory comes back.
//!     if let Err(fault) = a_cq.next(None).unwrap().unwrap().result() {
//!         assert_eq!(fault.status(), Status::RetriesExceeded);
//!     }
//! });
//! # }
//! ```
//!
//! # Other clocks
//!
//! [`World::driven`] makes a world whose time is that of a runtime: tokio's paused clock, or turmoil. Its programs are tasks.
//!
//! ```
//! use ferroce::rights;
//! use ferroce::sim::World;
//! use ferroce::verbs::{Device, Write};
//! use std::time::Duration;
//!
//! # fn main() {
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
//! runtime.block_on(async {
//!     let start = tokio::time::Instant::now();
//!     let world = World::driven(7, move || start.elapsed());
//!     let network = world.clone();
//!     tokio::spawn(async move { network.drive(tokio::time::sleep).await });
//!
//!     let [a, b] = ["a", "b"].map(|name| Device::simulated(&world.host(name)).open().unwrap());
//!     let (mut a_cq, b_cq) = (a.cq(16).unwrap(), b.cq(16).unwrap());
//!     let (a_setup, b_setup) = (a.rc(&a_cq).build().unwrap(), b.rc(&b_cq).build().unwrap());
//!     let (a_end, b_end) = (a_setup.endpoint(), b_setup.endpoint());
//!     let (mut a_qp, _b_qp) = (a_setup.connect(&b_end).unwrap(), b_setup.connect(&a_end).unwrap());
//!     let memory = b.alloc(64).unwrap().expose(rights::Write).unwrap();
//!     a_qp.post(1, Write::new(a.alloc(64).unwrap(), memory.token())).unwrap();
//!     loop {
//!         let changed = world.changed();
//!         if let Some(done) = a_cq.poll().unwrap().next() {
//!             done.result().unwrap();
//!             break;
//!         }
//!         changed.await;
//!     }
//!     tokio::time::sleep(Duration::from_secs(3600)).await; // at once
//!     assert!(world.now() >= Duration::from_secs(3600));
//! });
//! # }
//! ```
//!
//! [`Device::simulated`]: crate::verbs::Device::simulated
//! [`Cq::wait`]: crate::verbs::Cq::wait
//! [`Cq::next`]: crate::verbs::Cq::next
//! [`Cq::poll`]: crate::verbs::Cq::poll

pub use ferroce_sim::{
    Changed, Disturbance, Drive, Faults, Host, Licences, Link, Program, Receiver, Sender, Stream, Trace,
    TraceEvent, What, World, explore,
};
