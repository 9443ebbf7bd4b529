//! The abstract UNIX names by which processes find each other: what they are, and which are taken.
//!
//! A name is exclusive per socket type and network namespace and goes when the last descriptor does. It carries the
//! protocol's version and the user, so that neither another version nor another user is ever talked to by accident.
//! A *common name* carries no user: it makes a slot or a port exclusive among all users, and packets from other users'
//! processes come to it.

use ferroce_os::sys::{self, AbstractName, EngineFd};
use std::collections::BTreeMap;
use std::io;

/// Version of names, handover and forwarding. Frozen: a change gets a new number, and processes of different numbers
/// don't know of one another (the second finds the port taken).
pub(super) const VERSION: u32 = 1;
/// First and last slot a process can own.
pub(super) const USABLE: std::ops::RangeInclusive<u16> = 1..=4094;
/// More than any sane host has; a bound on what joining reads.
const PROC_LIMIT: usize = 32 << 20;

/// A name in the kernel's form.
#[derive(Clone, Copy)]
pub(super) struct Name(AbstractName);

impl Name {
    /// Ours are under 100 bytes, which an abstract name has room for.
    fn new(text: &str) -> Self {
        Self(AbstractName::new(text))
    }

    /// For connecting and sending.
    pub(super) fn address(&self) -> &AbstractName {
        &self.0
    }

    /// Whoever holds it is asked first by those who join.
    pub(super) fn leader(uid: u32) -> Self {
        Self::new(&format!("ferroce-{VERSION}-u{uid}-leader"))
    }

    /// Whoever holds it owns the slot.
    pub(super) fn slot(uid: u32, slot: u16) -> Self {
        Self::new(&format!("{}{slot}", slot_prefix(uid)))
    }

    /// Whoever holds it has the port that `port` says.
    pub(super) fn port(uid: u32, port: &str) -> Self {
        Self::new(&format!("{}{port}", port_prefix(uid)))
    }

    /// The common name of a slot.
    pub(super) fn common_slot(slot: u16) -> Self {
        Self::new(&format!("{COMMON_SLOT}{slot}"))
    }

    /// The common name of the port that `port` says.
    pub(super) fn common_port(port: &str) -> Self {
        Self::new(&format!("{COMMON_PORT}{port}"))
    }

    /// Whether somebody holds the name for datagrams.
    pub(super) fn is_held(&self) -> bool {
        // Who listens for nothing takes no connection of this kind, and says so.
        sys::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK)
            .and_then(|socket| sys::connect(socket.raw(), &self.0))
            .map_or_else(|error| error.raw_os_error() != Some(libc::ECONNREFUSED), |()| true)
    }

    /// Binds a new socket of this type to the name; `Ok(None)` when somebody has it.
    pub(super) fn bind(&self, kind: i32) -> io::Result<Option<EngineFd>> {
        let socket = sys::socket(libc::AF_UNIX, kind | libc::SOCK_NONBLOCK)?;
        match sys::bind(socket.raw(), &self.0) {
            Ok(()) => Ok(Some(socket)),
            Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Binds a SEQPACKET listener to the name; `Ok(None)` when somebody has it.
    pub(super) fn listen(&self) -> io::Result<Option<EngineFd>> {
        let Some(socket) = self.bind(libc::SOCK_SEQPACKET)? else { return Ok(None) };
        sys::listen(socket.raw(), 64)?;
        Ok(Some(socket))
    }
}

/// What the common names of slots and of ports begin with.
const COMMON_SLOT: &str = "ferroce-1-slot-";
const COMMON_PORT: &str = "ferroce-1-port-";

fn slot_prefix(uid: u32) -> String {
    format!("ferroce-{VERSION}-u{uid}-slot-")
}

fn port_prefix(uid: u32) -> String {
    format!("ferroce-{VERSION}-u{uid}-port-")
}

/// Ports that this user or another one has, as their names say them, each perhaps twice. `None` where the names can't be read.
pub(super) fn taken_ports(uid: u32) -> Option<Vec<String>> {
    let (own, common) = (format!("@{}", port_prefix(uid)), format!("@{COMMON_PORT}"));
    let name_of = |line: &[u8]| {
        let name = line.rsplit(|&b| b == b' ').next()?;
        let name = name.strip_prefix(own.as_bytes()).or_else(|| name.strip_prefix(common.as_bytes()))?;
        std::str::from_utf8(name).ok().map(str::to_owned)
    };
    Some(table()?.split(|&b| b == b'\n').filter_map(name_of).collect())
}

/// Slots that are taken, in no order, from `/proc/net/unix` of this thread's network namespace. `None` where that
/// can't be read (a container without /proc).
pub(super) fn taken_slots(uid: u32) -> Option<Vec<u16>> {
    Some(slots_in(&table()?, &slot_prefix(uid)))
}

/// Slots that this user or another one has, in order.
pub(super) fn slots_of_anybody(uid: u32) -> Option<Vec<u16>> {
    let table = table()?;
    let mut slots = slots_in(&table, &slot_prefix(uid));
    slots.extend(slots_in(&table, COMMON_SLOT));
    slots.sort_unstable();
    slots.dedup();
    Some(slots)
}

/// Slots whose common names are taken, in order.
pub(super) fn common_slots() -> Option<Vec<u16>> {
    Some(slots_in(&table()?, COMMON_SLOT))
}

/// Slots with a common name that no user's process has as its own, with the inode of their sockets.
pub(super) fn unowned_common_slots() -> Option<BTreeMap<u16, u64>> {
    let table = table()?;
    let owned = slots_of_all(&table);
    let is_owned = |slot: &u16| owned.iter().any(|(_, own)| own == slot);
    Some(entries(&table, COMMON_SLOT).filter(|(slot, _)| !is_owned(slot)).collect())
}

/// This user's slots in order, each with the inode of one of its sockets.
pub(super) fn slots_with_inodes(uid: u32) -> Option<BTreeMap<u16, u64>> {
    Some(entries(&table()?, &slot_prefix(uid)).collect())
}

/// Users and slots that are taken, of all users. `None` where the names can't be read.
pub(super) fn all_taken_slots() -> Option<Vec<(u32, u16)>> {
    Some(slots_of_all(&table()?))
}

fn slots_of_all(table: &[u8]) -> Vec<(u32, u16)> {
    let prefix = format!("@ferroce-{VERSION}-u");
    let slot_of = |line: &[u8]| {
        let name = line.rsplit(|&b| b == b' ').next()?.strip_prefix(prefix.as_bytes())?;
        let (uid, slot) = std::str::from_utf8(name).ok()?.split_once("-slot-")?;
        let slot = slot.parse().ok().filter(|slot| USABLE.contains(slot))?;
        Some((uid.parse().ok()?, slot))
    };
    let mut slots: Vec<_> = table.split(|&b| b == b'\n').filter_map(slot_of).collect();
    slots.sort_unstable();
    slots.dedup();
    slots
}

fn table() -> Option<Vec<u8>> {
    sys::read_file(c"/proc/thread-self/net/unix", PROC_LIMIT).ok()
}

fn slots_in(table: &[u8], prefix: &str) -> Vec<u16> {
    let mut slots: Vec<u16> = entries(table, prefix).map(|(slot, _)| slot).collect();
    slots.sort_unstable();
    slots.dedup();
    slots
}

/// Slot and inode of each socket with a slot's name that begins so.
fn entries<'a>(table: &'a [u8], prefix: &str) -> impl Iterator<Item = (u16, u64)> + use<'a> {
    let prefix = format!("@{prefix}");
    table.split(|&b| b == b'\n').filter_map(move |line| {
        let mut from_the_end = line.rsplit(|&b| b == b' ');
        let digits = std::str::from_utf8(from_the_end.next()?.strip_prefix(prefix.as_bytes())?).ok()?;
        let slot = digits.parse().ok().filter(|slot| USABLE.contains(slot))?;
        Some((slot, std::str::from_utf8(from_the_end.next()?).ok()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_gives_our_users_slots_and_no_others() {
        let table = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 1 @ferroce-1-u7-slot-17\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 2 @ferroce-1-u7-slot-17\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 3 @ferroce-1-u77-slot-18\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 4 @ferroce-2-u7-slot-19\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 5 @ferroce-1-u7-slot-0\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 6 @ferroce-1-u7-slot-99999\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 7 @ferroce-1-u7-slot-\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 8 @ferroce-1-u7-slot-4094\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 10 @ferroce-1-slot-18\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 9\n";
        let own = slot_prefix(7);
        assert_eq!(slots_in(table, &own), [17, 4094]);
        assert_eq!(entries(table, &own).collect::<Vec<_>>(), [(17, 1), (17, 2), (4094, 8)]);
        assert_eq!(slots_in(table, COMMON_SLOT), [18]);
        assert_eq!(slots_of_all(table), [(7, 17), (7, 4094), (77, 18)]);
        assert_eq!(slots_in(b"", &own), [0_u16; 0]);
        assert_eq!(slots_in(b"\xff\xfe @\n\n ", &own), [0_u16; 0]);
    }

    #[test]
    fn a_name_is_held_once_per_type_and_free_after_the_drop() {
        // A user nobody has, so that nothing real is disturbed.
        let name = Name::slot(4_000_000_000 + std::process::id() % 1000, 5);
        let first = name.bind(libc::SOCK_DGRAM).unwrap();
        assert!(first.is_some());
        assert!(name.bind(libc::SOCK_DGRAM).unwrap().is_none());
        assert!(name.listen().unwrap().is_some(), "the other type is another name");
        drop(first);
        assert!(name.bind(libc::SOCK_DGRAM).unwrap().is_some());
    }
}
