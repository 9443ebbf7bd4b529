//! The sockets of the `udp` fabric, and packets that other processes of the host have passed on.

use crate::adapter::Adapter;
use ferroce_engine::Source;
use ferroce_os::clock;
use ferroce_types::{Datagram, Instant, steering_of};
use ferroce_udp::{Endpoint, RecvOutcome};
use ferroce_wire::cm::GSI_QPN;
use std::sync::atomic::Ordering;

/// Bytes of a socket's buffer that the shortest packet takes, at least.
const LEAST_OF_BUFFER: usize = 256;

/// How many batches of forwarded packets a thread reads that wants none to be left.
const FORWARDED_BATCHES: usize = 64;

/// The RoCE sockets of this process's slots as a source.
pub(crate) struct SocketSource(pub(crate) &'static Adapter);

impl Source for SocketSource {
    #[inline]
    fn poll(&self, now: Instant) -> bool {
        self.0.addresses.have_users() && self.0.read_sockets(false, now)
    }

    fn poll_all(&self, now: Instant) {
        self.0.read_sockets(true, now);
    }

    fn serve(&self) {
        if self.0.gsi.is_read() {
            let Self(adapter) = *self;
            let now = clock::now();
            adapter.for_gsi_sockets(|endpoint, steering| _ = adapter.read_socket(endpoint, steering, now));
        }
    }

    fn has_impatient(&self) -> bool {
        self.0.addresses.have_users()
    }

    #[inline]
    fn is_beyond_memory(&self) -> bool {
        self.0.addresses.have_users()
    }

    /// Of all packets that come from the kernel, forwarded ones too.
    fn has_arrived(&self) -> bool {
        self.0.has_arrived.load(Ordering::Relaxed) && self.0.has_arrived.swap(false, Ordering::Relaxed)
    }
}

/// Forwarded packets as a source, with the requests of the host's other processes.
pub(crate) struct ForwardSource(pub(crate) &'static Adapter);

impl Source for ForwardSource {
    #[inline]
    fn poll(&self, now: Instant) -> bool {
        self.0.forwarding.happened_lately(now) && self.0.read_forwarded() == Some(true)
    }

    fn poll_neglected(&self, _now: Instant) -> bool {
        false
    }

    fn serve(&self) {
        let Self(adapter) = self;
        let mut forwarded = |datagrams: &[Datagram<'_>]| {
            adapter.forwarding.happened(clock::now());
            adapter.arrived(datagrams, clock::now());
        };
        let served = adapter.host.service(&mut forwarded, &mut |address, steering| {
            if let Some(endpoint) = adapter.addresses.endpoint(address) {
                adapter.read_socket(&endpoint, steering, clock::now());
            }
        });
        if adapter.host.has_changed() {
            adapter.take_over();
        }
        if let Err(error) = served {
            tracing::debug!(%error, "serving the host's other processes");
        }
    }
}

impl Adapter {
    /// Reads the sockets of this process's slots; those of addresses that no QP uses only with `all`.
    fn read_sockets(&'static self, all: bool, now: Instant) -> bool {
        let mut done = false;
        for address in self.addresses.snapshot().iter() {
            if !all && address.users.load(Ordering::Relaxed) == 0 {
                continue;
            }
            for &steering in &address.steerings {
                done |= self.read_socket(&address.endpoint, steering, now);
            }
        }
        done
    }

    /// Gives the sockets that packets to QP 1 come to to `f`: their endpoints, and the value that steers to them.
    pub(crate) fn for_gsi_sockets(&self, f: impl Fn(&Endpoint, u8)) {
        for address in self.addresses.snapshot().iter() {
            f(&address.endpoint, steering_of(GSI_QPN));
        }
    }

    fn read_socket(&'static self, endpoint: &Endpoint, steering: u8, now: Instant) -> bool {
        // The packets of the sockets before may have taken long.
        match endpoint.recv(steering, self.engine.lately(), &mut |datagrams| self.arrived(datagrams, now)) {
            Ok(RecvOutcome::Busy) => false,
            Ok(received) => received.count() > 0,
            Err(error) => {
                tracing::debug!(%error, "reading a RoCE socket");
                false
            }
        }
    }

    /// Takes all that lies in sockets for a QP now: of each socket as much as its buffer holds, since more may come all the time.
    /// `waits` is that of [`Adapter::empty_rings`].
    pub(crate) fn empty_sockets(&'static self, qpn: u32, waits: &mut dyn FnMut() -> bool) {
        for address in self.addresses.snapshot().iter() {
            let mut left = address.endpoint.receive_buffer() as usize;
            loop {
                let now = clock::now();
                let outcome = address.endpoint.recv(steering_of(qpn), now, &mut |datagrams| {
                    let taken: usize = datagrams.iter().map(|d| d.bytes.len().max(LEAST_OF_BUFFER)).sum();
                    left = left.saturating_sub(taken);
                    self.arrived(datagrams, now);
                });
                let goes_on = match outcome {
                    Ok(RecvOutcome::Busy) => waits(),
                    Ok(RecvOutcome::Packets { more, .. }) => more && left > 0,
                    Err(_) => false,
                };
                if !goes_on {
                    break;
                }
            }
        }
        let mut batches = 0;
        while batches < FORWARDED_BATCHES {
            match self.read_forwarded() {
                Some(true) => batches += 1,
                None if waits() => {}
                Some(false) | None => break,
            }
        }
    }

    /// Takes the packets that other processes have passed on. Whether there was one; `None` when another thread is at it.
    fn read_forwarded(&'static self) -> Option<bool> {
        let taken = self.host.recv_forwarded(&mut |datagrams| {
            self.forwarding.happened(clock::now());
            self.arrived(datagrams, clock::now());
        })?;
        Some(taken > 0)
    }
}
