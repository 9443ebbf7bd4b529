//! Ports of the communication manager: which process has which, and the way of MADs to it.
//!
//! A process has a port while it holds the port's two abstract names, its user's and the common one, and takes the MADs for it from
//! their sockets. Two names may stand for addresses that overlap; who binds the second one sees the first in the table of names, and
//! gives its own up.

use super::Host;
use super::encoding::{RECORD_HEADER, encode};
use super::forward;
use super::names::{self, Name, USABLE};
use ferroce_os::sys::EngineFd;
use ferroce_types::{Datagram, HostAddr, first_qpn};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A port at an address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PortAddress {
    /// The number of the port space.
    pub space: u16,
    /// The port.
    pub port: u16,
    /// The address; the unspecified and the loopback ones stand for all.
    pub address: HostAddr,
    /// `::` doesn't stand for IPv4 addresses.
    pub v6_only: bool,
}

impl PortAddress {
    /// The address stands for all that it could be.
    #[must_use]
    pub fn is_wide(&self) -> bool {
        self.address.ip().is_unspecified() || self.address.ip().is_loopback()
    }

    /// It takes requests of the other family as well.
    fn is_dual(&self) -> bool {
        self.address.is_ipv6() && self.address.ip().is_unspecified() && !self.v6_only
    }

    /// Requests for `destination` may be for this port.
    fn takes(&self, destination: HostAddr) -> bool {
        if self.address.is_ipv6() == destination.is_ipv6() {
            self.is_wide() || self.address == destination
        } else {
            self.is_dual()
        }
    }

    /// It is of its own address family alone, as IPv4 always is.
    fn is_of_one_family(&self) -> bool {
        !self.address.is_ipv6() || self.v6_only
    }

    /// How two that nobody may have at the same time collide. The order is the kernel's: a wide address on either side comes first.
    fn collision(&self, other: &Self) -> Option<PortError> {
        let apart = self.is_of_one_family()
            && other.is_of_one_family()
            && self.address.is_ipv6() != other.address.is_ipv6();
        if (self.space, self.port) != (other.space, other.port) || apart {
            None
        } else if self.is_wide() || other.is_wide() {
            Some(PortError::Overlaps)
        } else {
            (self.address == other.address).then_some(PortError::Taken)
        }
    }
}

impl fmt::Display for PortAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let only = if self.v6_only { "!" } else { "" };
        write!(f, "{:04x}-{}-{}{only}", self.space, self.port, self.address)
    }
}

impl FromStr for PortAddress {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(3, '-');
        let mut next = || parts.next().ok_or(());
        let space = u16::from_str_radix(next()?, 16).map_err(drop)?;
        let port = next()?.parse().map_err(drop)?;
        let address = next()?;
        let v6_only = address.ends_with('!');
        let (ip, scope) = address.trim_end_matches('!').split_once('%').unwrap_or((address, "0"));
        let ip: IpAddr = ip.trim_end_matches('!').parse().map_err(drop)?;
        Ok(Self { space, port, address: HostAddr::new(ip, scope.parse().map_err(drop)?), v6_only })
    }
}

/// Why a port can't be had.
#[derive(Debug)]
pub enum PortError {
    /// Somebody has it with this address.
    Taken,
    /// Somebody has it, and one of the two addresses stands for all.
    Overlaps,
    /// The system refused.
    System(io::Error),
}

/// Between the address and what tells apart those that share it.
const SHARED: char = '~';

/// A port as the table of names has it.
struct Listed {
    address: PortAddress,
    /// Of one that may be shared: what tells it from the others.
    share: Option<String>,
}

/// The ports that somebody has, of this user or of another one.
fn listed(uid: u32) -> Vec<Listed> {
    let Some(names) = names::taken_ports(uid) else {
        tracing::debug!("the table of names can't be read: ports whose addresses overlap aren't noticed");
        return Vec::new();
    };
    let parse = |name: String| {
        let (address, share) = match name.split_once(SHARED) {
            Some((address, share)) => (address, Some(share.to_owned())),
            None => (name.as_str(), None),
        };
        Some(Listed { address: address.parse().ok()?, share })
    };
    names.into_iter().filter_map(parse).collect()
}

/// A port of this process, and the socket that MADs for it come to.
#[derive(Debug)]
pub(super) struct OwnPort {
    pub(super) number: u16,
    address: PortAddress,
    pub(super) socket: EngineFd,
    /// That of the common name: other users' processes send to it.
    pub(super) common: EngineFd,
}

/// The sockets of a port's two names.
#[derive(Debug)]
struct Names {
    own: EngineFd,
    common: EngineFd,
}

impl Names {
    /// # Errors
    /// [`PortError::Taken`] when somebody has one of them.
    fn take(uid: u32, port: &str) -> Result<Self, PortError> {
        let take =
            |name: Name| name.bind(libc::SOCK_DGRAM).map_err(PortError::System)?.ok_or(PortError::Taken);
        Ok(Self { own: take(Name::port(uid, port))?, common: take(Name::common_port(port))? })
    }
}

/// A port that this process has until this is dropped.
#[derive(Debug)]
pub struct HeldPort {
    host: Arc<Host>,
    address: PortAddress,
    kind: Held,
}

#[derive(Debug)]
enum Held {
    /// Shared with others of whom none listens.
    Shared(#[expect(dead_code, reason = "they hold the names")] Names, String),
    /// MADs come to it.
    Alone(u16),
}

impl HeldPort {
    /// The port and its address.
    #[must_use]
    pub const fn address(&self) -> PortAddress {
        self.address
    }

    /// MADs come to a port that was shared until now.
    ///
    /// # Errors
    /// [`PortError::Taken`] while others have it as well.
    pub fn stop_sharing(&mut self) -> Result<(), PortError> {
        let Held::Shared(_, share) = &self.kind else { return Ok(()) };
        let number = self.host.hold_port(self.address, Some(share))?;
        self.kind = Held::Alone(number);
        Ok(())
    }
}

impl Drop for HeldPort {
    fn drop(&mut self) {
        if let Held::Alone(number) = self.kind {
            let mut ports = self.host.ports.write();
            let at = ports.iter().position(|port| port.number == number);
            let port = at.map(|at| ports.swap_remove(at));
            drop(ports);
            drop(port);
        }
    }
}

/// A process as MADs are sent to it: by one of the names that it holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Destination {
    of: Place,
    /// The name that carries no user.
    is_common: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Place {
    Port(PortAddress),
    Slot(u16),
}

impl Destination {
    fn name(&self, uid: u32) -> Name {
        match (self.of, self.is_common) {
            (Place::Port(port), false) => Name::port(uid, &port.to_string()),
            (Place::Port(port), true) => Name::common_port(&port.to_string()),
            (Place::Slot(slot), false) => Name::slot(uid, slot),
            (Place::Slot(slot), true) => Name::common_slot(slot),
        }
    }
}

/// What has become of a MAD for a process of this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// It is for this process.
    Own,
    /// The process that it is for gets it.
    Sent,
    /// It is for a process of another user of this host, and hasn't been sent.
    OtherUser,
    /// That process has too much to read: later, perhaps.
    Busy(Destination),
    /// It is for nobody here.
    Nobody,
}

impl Host {
    /// Takes a port. `shared`: others that say so too may have it as well.
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn take_port(self: &Arc<Self>, address: PortAddress, shared: bool) -> Result<HeldPort, PortError> {
        static SHARES: AtomicU64 = AtomicU64::new(0);
        let kind = if shared {
            let slot = self.slots().first().copied().unwrap_or_default();
            let share = format!("{slot}.{}", SHARES.fetch_add(1, Ordering::Relaxed));
            let names = Names::take(self.user.uid(), &format!("{address}{SHARED}{share}"))?;
            self.check_port(address, Some(&share), true)?;
            Held::Shared(names, share)
        } else {
            Held::Alone(self.hold_port(address, None)?)
        };
        Ok(HeldPort { host: self.clone(), address, kind })
    }

    /// Takes a port's names and lets MADs come to them. `own_share` is this process's among those that share the port.
    fn hold_port(&self, address: PortAddress, own_share: Option<&str>) -> Result<u16, PortError> {
        let Names { own: socket, common } = Names::take(self.user.uid(), &address.to_string())?;
        self.check_port(address, own_share, false)?;
        for socket in [&socket, &common] {
            forward::expect_credentials(socket).map_err(PortError::System)?;
        }
        let mut ports = self.ports.write();
        let is_free = |number: &u16| ports.iter().all(|port| port.number != *number);
        let number = (0..=u16::MAX).find(is_free);
        let number = number.ok_or_else(|| PortError::System(io::ErrorKind::OutOfMemory.into()))?;
        let watched = [(socket.raw(), super::PORT), (common.raw(), super::COMMON_PORT)];
        ports.push(Arc::new(OwnPort { number, address, socket, common }));
        drop(ports);
        for (fd, kind) in watched {
            self.watch(fd, kind | u64::from(number))
                .map_err(|error| PortError::System(io::Error::from_raw_os_error(error.errno())))?;
        }
        Ok(number)
    }

    /// Whether nobody else has a port, now that this process has its name.
    fn check_port(
        &self,
        address: PortAddress,
        own_share: Option<&str>,
        shared: bool,
    ) -> Result<(), PortError> {
        let is_own = |listed: &Listed| {
            listed.address == address && listed.share.as_deref() == if shared { own_share } else { None }
                || own_share.is_some() && listed.share.as_deref() == own_share
        };
        let others = listed(self.user.uid());
        let others = others.iter().filter(|&listed| !is_own(listed));
        let mut rivals = others.filter(|listed| !(shared && listed.share.is_some()));
        match rivals.find_map(|listed| listed.address.collision(&address)) {
            Some(collision) => Err(collision),
            None => Ok(()),
        }
    }

    /// The socket that the MADs for a port of this process come to.
    pub(super) fn port(&self, number: u16) -> Option<Arc<OwnPort>> {
        self.ports.read().iter().find(|port| port.number == number).map(Arc::clone)
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
        if self.ports.read().iter().any(is_it) {
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
        for (address, v6_only) in exact.into_iter().chain(wide) {
            let port = PortAddress { space, port, address, v6_only };
            match self.deliver_to_either(Place::Port(port), mads, from_network) {
                Delivery::Nobody => {}
                delivery => return delivery,
            }
        }
        Delivery::Nobody
    }

    /// As [`Host::deliver_to_port`], to the process that has a slot.
    pub fn deliver_to_slot(&self, slot: u16, mads: &[Datagram<'_>], from_network: bool) -> Delivery {
        if self.owns(first_qpn(slot)) {
            Delivery::Own
        } else if USABLE.contains(&slot) {
            self.deliver_to_either(Place::Slot(slot), mads, from_network)
        } else {
            Delivery::Nobody
        }
    }

    /// To the process of this user that holds a name, or to that which holds the common one.
    fn deliver_to_either(&self, of: Place, mads: &[Datagram<'_>], from_network: bool) -> Delivery {
        let [own, common] = [false, true].map(|is_common| Destination { of, is_common });
        match self.deliver_to(&own, mads) {
            Delivery::Nobody if from_network => self.deliver_to(&common, mads),
            Delivery::Nobody if common.name(self.user.uid()).is_held() => Delivery::OtherUser,
            delivery => delivery,
        }
    }

    /// Takes MADs to the process that was [busy](Delivery::Busy), all together, if it still holds the name: few enough for one message
    /// between processes.
    pub fn deliver_to(&self, to: &Destination, mads: &[Datagram<'_>]) -> Delivery {
        let Some(own) = self.slots.read().first().map(Arc::clone) else { return Delivery::Nobody };
        let length: usize = mads.iter().map(|mad| RECORD_HEADER + mad.bytes.len()).sum();
        let mut blob = Vec::with_capacity(forward::MAGIC.len() + length);
        blob.extend_from_slice(&forward::MAGIC);
        mads.iter().for_each(|mad| encode(mad, &mut blob));
        match forward::send(own.forwarded.raw(), self.user, &to.name(self.user.uid()), &blob) {
            Ok(()) => Delivery::Sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Delivery::Busy(*to),
            Err(error) => {
                if error.raw_os_error() != Some(libc::ECONNREFUSED) {
                    tracing::debug!(%error, "a MAD for another process is lost");
                }
                Delivery::Nobody
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str, port: u16, v6_only: bool) -> PortAddress {
        PortAddress { space: 0x106, port, address: HostAddr::new(address.parse().unwrap(), 3), v6_only }
    }

    #[test]
    fn addresses_come_back_from_their_names() {
        for (address, only) in
            [("10.0.0.1", false), ("0.0.0.0", false), ("fe80::2", true), ("fd00::1", false), ("::", true)]
        {
            let address = at(address, 7000, only);
            assert_eq!(address.to_string().parse(), Ok(address));
        }
        for nonsense in ["", "0106", "0106-1", "0106-1-", "xyz-1-::", "0106-70000-::", "0106-1-1.2.3"] {
            assert!(nonsense.parse::<PortAddress>().is_err(), "{nonsense}");
        }
    }

    #[test]
    fn wide_addresses_overlap_and_equal_ones_are_taken() {
        let collide = |a: (&str, bool), b: (&str, bool)| match at(a.0, 1, a.1).collision(&at(b.0, 1, b.1)) {
            None => "no",
            Some(PortError::Taken) => "taken",
            Some(_) => "overlaps",
        };
        assert_eq!(collide(("10.0.0.1", false), ("10.0.0.1", false)), "taken");
        assert_eq!(collide(("10.0.0.1", false), ("10.0.0.2", false)), "no");
        assert_eq!(collide(("10.0.0.1", false), ("0.0.0.0", false)), "overlaps");
        assert_eq!(collide(("127.0.0.1", false), ("10.0.0.1", false)), "overlaps");
        assert_eq!(collide(("::", false), ("0.0.0.0", false)), "overlaps");
        assert_eq!(collide(("::", true), ("0.0.0.0", false)), "no");
        assert_eq!(collide(("::", true), ("::", false)), "overlaps");
        assert_eq!(collide(("::", true), ("fd00::1", false)), "overlaps");
        assert_eq!(collide(("0.0.0.0", false), ("0.0.0.0", false)), "overlaps");
        assert_eq!(collide(("127.0.0.1", false), ("127.0.0.1", false)), "overlaps");
        assert_eq!(collide(("fd00::1", false), ("10.0.0.1", false)), "no");
        assert_eq!(collide(("fd00::1", false), ("0.0.0.0", false)), "overlaps");
        assert_eq!(collide(("::1", false), ("10.0.0.1", false)), "overlaps");
        assert_eq!(collide(("fd00::1", true), ("0.0.0.0", false)), "no");
        assert_eq!(collide(("fd00::1", true), ("fd00::1", false)), "taken");
        assert!(at("::", 1, false).collision(&at("::", 2, false)).is_none());
    }
}
