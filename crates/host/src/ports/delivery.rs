//! MADs for ports and slots of other processes of the host.

use super::{name_of, uid_of};
use crate::encoding::{RECORD_HEADER, encode};
use crate::exposed::ExposedSocket;
use crate::names::{Name, USABLE};
use crate::port_address::PortAddress;
use crate::port_table::OwnPort;
use crate::process::Host;
use crate::{forward, frame};
use ferroce_os::clock;
use ferroce_os::sys::{self, EngineFd};
use ferroce_types::{Datagram, HostAddr, first_qpn};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a slot that was this user's is taken for one. A mistake costs a MAD, which is repeated.
const STILL_OWN: Duration = Duration::from_secs(1);

/// A process as MADs are sent to it: by what it has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Destination {
    of: HolderName,
    /// The MADs came from the network: another user's process may have it.
    from_network: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum HolderName {
    Port(PortAddress),
    Slot(u16),
}

/// What has become of a MAD for a process of this host.
#[derive(Debug)]
pub enum Delivery {
    /// It is for this process.
    Own,
    /// The process that it is for gets it. `Some`: it lies at a port until that process has seen to it.
    Sent(Option<AtPort>),
    /// It is for a process of another user of this host, and hasn't been sent.
    OtherUser,
    /// That process has too much to read: later, perhaps.
    Busy(Destination),
    /// No process here has what it is for.
    Nobody,
}

/// MADs at a port of this user: the connection over which they went.
#[derive(Debug)]
pub struct AtPort {
    connection: EngineFd,
    port: PortAddress,
}

impl AtPort {
    /// The connection, which is readable when the process at its other end has closed it, or has died.
    #[must_use]
    pub fn raw(&self) -> RawFd {
        self.connection.raw()
    }

    /// Both lie at one port.
    #[must_use]
    pub fn is_beside(&self, other: &Self) -> bool {
        self.port == other.port
    }

    /// Whether the connection, which has ended, has ended with its process: the kernel reports ECONNRESET for what was unread, and the MADs lie
    /// there until the process has asked for what it needs to know about their sender ([`Host::end_heard`]).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let error = sys::int_option(self.connection.checked(), libc::SOL_SOCKET, libc::SO_ERROR);
        error.is_ok_and(|error| error == libc::ECONNRESET)
    }
}

/// The user whom a sender of MADs found at a port.
enum ReachedPort {
    /// A process of this user.
    Own(EngineFd),
    /// A process of the other user who has the port's number.
    Others(ExposedSocket),
    /// Too many connections wait there.
    Busy,
    /// No process is there whose user has the port.
    Nobody,
}
/// The user of the process that has a slot or a port number, as the kernel reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameHolder {
    /// This process's user.
    Own,
    /// Another user. All that have no number in this process's user namespace have the same one.
    Other(u32),
    /// No process has it.
    Nobody,
    /// That can't be determined now: too many processes wait to ask there, or this one has no descriptor left.
    Unknown,
}

impl Host {
    /// Whether [`NameHolder`] can be determined: no other user has this user's number here.
    #[must_use]
    pub fn knows_users(&self) -> bool {
        !self.user.is_ambiguous()
    }

    /// The user who has a slot.
    #[must_use]
    pub fn holder_of_slot(&self, slot: u16) -> NameHolder {
        if self.owns(first_qpn(slot)) {
            return NameHolder::Own;
        }
        if USABLE.contains(&slot) { self.holder_of(&Name::slot(slot)) } else { NameHolder::Nobody }
    }

    /// The user who has the number of a port.
    #[must_use]
    pub fn holder_of_port(&self, space: u16, port: u16) -> NameHolder {
        self.holder_of(&Name::port_number(space, port))
    }

    fn holder_of(&self, name: &Name) -> NameHolder {
        match name.connect() {
            Ok(connection) if self.user.check_peer(connection.raw()).is_ok() => NameHolder::Own,
            Ok(connection) => uid_of(connection.raw()).map_or(NameHolder::Unknown, NameHolder::Other),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => NameHolder::Nobody,
            Err(_) => NameHolder::Unknown,
        }
    }

    /// Takes MADs to the process that has a port, all together: few enough for one message between processes. To one of another
    /// user only if they are `from_network`.
    pub fn deliver_to_port(
        &self,
        space: u16,
        port: u16,
        destination: HostAddr,
        mads: &[Datagram<'_>],
        from_network: bool,
    ) -> Delivery {
        let is_it = |own: &Arc<OwnPort>| {
            (own.address.space, own.address.port) == (space, port) && own.address.takes(destination)
        };
        if self.ports.all.read().ports.iter().any(is_it) {
            return Delivery::Own;
        }
        let wide: &[(&str, bool)] = if destination.is_ipv6() {
            &[("::", false), ("::", true), ("::1", false), ("::1", true)]
        } else {
            &[("0.0.0.0", false), ("127.0.0.1", false), ("::", false)]
        };
        let wide =
            wide.iter().filter_map(|&(ip, v6_only)| Some((HostAddr::new(ip.parse().ok()?, 0), v6_only)));
        let exact = [(destination, false), (destination, true)];
        let mut nothing = Delivery::Nobody;
        for (address, v6_only) in exact.into_iter().chain(wide) {
            let port = PortAddress { space, port, address, v6_only };
            let reached = self.reach_port(port);
            // Any user's process may have a name at which it doesn't answer: it delays no MAD for another one.
            let is_uncertain = matches!(reached, ReachedPort::Busy);
            match self.deliver_over(reached, port, mads, from_network) {
                busy if is_uncertain => nothing = busy,
                // The process has given the port up just now, or none has it.
                Delivery::Nobody => {}
                delivery => return delivery,
            }
        }
        nothing
    }

    /// A connection to the process that has a port, and proof that it has.
    fn reach_port(&self, address: PortAddress) -> ReachedPort {
        let connection = match name_of(address, None).connect() {
            Ok(connection) => connection,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return ReachedPort::Nobody,
            // Also without a descriptor: later.
            Err(_) => return ReachedPort::Busy,
        };
        let is_own = self.user.check_peer(connection.raw());
        if is_own.is_ok() {
            return connection.proven(is_own).map_or(ReachedPort::Nobody, ReachedPort::Own);
        }
        // Where several users have one number here, it proves nothing.
        let uid = uid_of(connection.raw()).filter(|&uid| self.trust.knows(uid));
        match Name::port_number(address.space, address.port).connect() {
            Ok(number) if uid.is_some() && uid_of(number.raw()) == uid => ReachedPort::Others(connection),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ReachedPort::Busy,
            Ok(_) | Err(_) => ReachedPort::Nobody,
        }
    }

    /// As [`Host::deliver_to_port`], to the process that has a slot.
    pub fn deliver_to_slot(&self, slot: u16, mads: &[Datagram<'_>], from_network: bool) -> Delivery {
        let Some(own_until) = self.ports.own_until.0.get(usize::from(slot)) else { return Delivery::Nobody };
        if self.owns(first_qpn(slot)) {
            return Delivery::Own;
        }
        if !USABLE.contains(&slot) {
            return Delivery::Nobody;
        }
        let to = Destination { of: HolderName::Slot(slot), from_network };
        let now = clock::now();
        if !from_network && own_until.load(Ordering::Relaxed) <= now.0 {
            match self.dial(slot) {
                Ok(_) => own_until.store(now.after(STILL_OWN).0, Ordering::Relaxed),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Delivery::Nobody,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Delivery::OtherUser,
                // Also without a descriptor: later.
                Err(_) => return Delivery::Busy(to),
            }
        }
        let Some(own) = self.slots.read().first().map(Arc::clone) else { return Delivery::Nobody };
        self.send_mads(own.inbox.raw(), Some(&Name::slot(slot)), to, mads)
    }

    /// Takes MADs to the process that was [busy](Delivery::Busy), all together: few enough for one message between processes.
    pub fn deliver_to(&self, to: &Destination, mads: &[Datagram<'_>]) -> Delivery {
        match to.of {
            HolderName::Port(port) => self.deliver_over(self.reach_port(port), port, mads, to.from_network),
            HolderName::Slot(slot) => self.deliver_to_slot(slot, mads, to.from_network),
        }
    }

    fn deliver_over(
        &self,
        reached: ReachedPort,
        port: PortAddress,
        mads: &[Datagram<'_>],
        from_network: bool,
    ) -> Delivery {
        let to = Destination { of: HolderName::Port(port), from_network };
        match reached {
            ReachedPort::Others(_) if !from_network => Delivery::OtherUser,
            ReachedPort::Others(connection) => self.send_mads(connection.raw(), None, to, mads),
            ReachedPort::Own(connection) => match self.send_mads(connection.raw(), None, to, mads) {
                Delivery::Sent(_) => Delivery::Sent(Some(AtPort { connection, port })),
                delivery => delivery,
            },
            ReachedPort::Busy => Delivery::Busy(to),
            ReachedPort::Nobody => Delivery::Nobody,
        }
    }

    /// Sends MADs over a connection, or to a name.
    fn send_mads(&self, fd: RawFd, name: Option<&Name>, to: Destination, mads: &[Datagram<'_>]) -> Delivery {
        let length: usize = mads.iter().map(|mad| RECORD_HEADER + mad.bytes.len()).sum();
        let mut blob = Vec::with_capacity(forward::MAGIC.len() + length);
        blob.extend_from_slice(&forward::MAGIC);
        mads.iter().for_each(|mad| encode(mad, &mut blob));
        let sent = match name {
            Some(name) => forward::send(fd, self.user, name, &blob),
            None => frame::send(fd, &mut blob, &[]),
        };
        match sent {
            Ok(()) => Delivery::Sent(None),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Delivery::Busy(to),
            Err(error) => {
                if !matches!(error.raw_os_error(), Some(libc::ECONNREFUSED | libc::EPIPE | libc::ECONNRESET))
                {
                    tracing::debug!(%error, "a MAD for another process is lost");
                }
                Delivery::Nobody
            }
        }
    }
}
