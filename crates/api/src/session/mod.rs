//! Connections whose requests are futures, and can be waited for without a runtime.
//!
//! A [`Driver`] owns a completion queue, and a [`Connection`] a queue pair. They post and poll by [`verbs`](crate::verbs).
//!
//! - **A request is posted by the call that makes it.** [`Connection::try_post`] posts it or returns it as
//!   [`Full`](crate::Kind::Full). [`Connection::ready`] waits for room, and its [`Permit`] can't find the queue full.
//!   [`Connection::send`] and its kind do both: they post at once if there is room.
//! - **An [`Op`] only observes.** Dropping or forgetting it cancels nothing and frees nothing: the memory of the request belongs to
//!   the queue pair until the request has ended.
//! - **Receives are posted by the connection**: as many as its receive queue holds (8 by default) and its pool has buffers for. A
//!   dropped [`Message`] posts its buffer again. Buffers to send come from another pool, or from one with more buffers than that:
//!   otherwise [`Pool::take`](crate::Pool::take) waits for ever.
//! - **There is no flow control between the programs.** If the peer has no receive posted for about 4 ms (6 RNR retries), a send fails
//!   as [`ReceiverNotReady`](crate::Status::ReceiverNotReady), and the connection ends.
//!
//! Some thread has to look for completions:
//!
//! | driver | which thread |
//! |---|---|
//! | [`Driver::manual`] | the threads that wait: in [`Driver::run`], [`Op::wait`], [`Connection::recv_blocking`]; or a loop of the program that calls [`Driver::turn`] |
//! | [`Driver::thread`] | a thread of the driver; futures run on any executor |
//! | `Driver::tokio` (feature `tokio`) | a task of the runtime, which sleeps on the completion queue's descriptor |
//!
//! ```
//! use ferroce::session::Driver;
//! use ferroce::sim::World;
//! use ferroce::verbs::Device;
//!
//! # fn main() -> ferroce::Result<()> {
//! let world = World::new(1);
//! let (client, server) = (world.host("client"), world.host("server"));
//! let ((to_server, at_server), (to_client, at_client)) = (world.channel(), world.channel());
//!
//! let device = Device::simulated(&server);
//! let served = server.spawn(move || -> ferroce::Result<()> {
//!     let driver = Driver::manual(&device.open()?)?;
//!     let pool = driver.domain().pool(16, 4096)?;
//!     let setup = driver.rc().build()?;
//!     // Between hosts, the endpoints go over a connection of another kind.
//!     let exchange = async |mine| { to_client.send(mine); Ok(at_server.recv().unwrap()) };
//!     driver.run(async {
//!         let peer = driver.join(setup, &pool, exchange).await?;
//!         let message = peer.recv().await?;
//!         peer.send(message.into_buffer()).await?; // back to the client
//!         Ok(())
//!     })
//! });
//!
//! let driver = Driver::manual(&Device::simulated(&client).open()?)?;
//! let pool = driver.domain().pool(16, 4096)?;
//! let setup = driver.rc().build()?;
//! let exchange = async |mine| { to_server.send(mine); Ok(at_client.recv().unwrap()) };
//! driver.run(async {
//!     let peer = driver.join(setup, &pool, exchange).await?;
//!     let mut hello = pool.take().await;
//!     hello.fill(b"hello");
//!     let hello = peer.send(hello).await?; // the buffer comes back
//!     assert_eq!(&peer.recv().await?[..], &hello[..]);
//!     Ok::<_, ferroce::Error>(())
//! })?;
//! served.join()?;
//! # Ok(())
//! # }
//! ```

pub(crate) mod connecting;
mod connection;
mod driver;
mod join;
mod line;
pub(crate) mod link;
mod message;
mod op;
mod outcome;
mod permit;
mod shared;
mod slots;
mod table;
#[cfg(feature = "tokio")]
mod tokio;

pub use connecting::Connecting;
pub use connection::Connection;
pub use driver::{Driver, Idle};
pub use message::Message;
pub use op::Op;
pub use outcome::{Ending, Outcome, ReturnedPayload};
pub use permit::{Batch, Permit};
