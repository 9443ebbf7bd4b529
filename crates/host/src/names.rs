//! The abstract UNIX names by which processes of a host find each other: what they are, and which are taken.
//!
//! A name is exclusive per socket type and network namespace, and it is free again once its last descriptor is closed. Any
//! user can bind any free name, so a name alone proves nothing. A process believes
//! - a *common name*, which carries no user: one process has it, so it makes a slot or a port exclusive among all users;
//! - any other name only if the kernel says that a process of the expected user listens there ([`User::check_peer`]).
//!
//! [`User::check_peer`]: super::user::User::check_peer

use ferroce_os::sys::{self, AbstractName, EngineFd};
use std::collections::BTreeMap;
use std::io;

/// Version of names, handover and forwarding. Frozen: a change gets a new number, and processes of different numbers
/// don't know of one another (the second finds the port taken).
pub(super) const VERSION: u32 = 2;
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

    /// Its holder is asked first by processes that join. The kernel says of which user the holder is.
    pub(super) fn leader(uid: u32) -> Self {
        Self::new(&format!("ferroce-{VERSION}-u{uid}-leader"))
    }

    /// The common name of a slot: its holder owns the slot. Datagrams to it are packets for the slot; connections to its
    /// listener are requests.
    pub(super) fn slot(slot: u16) -> Self {
        Self::new(&format!("{}{slot}", slot_prefix()))
    }

    /// Lists a slot as one of a user's, for readers of the table of names. Nothing is sent to it.
    pub(super) fn listed_slot(uid: u32, slot: u16) -> Self {
        Self::new(&format!("{}{slot}", listed_slot_prefix(uid)))
    }

    /// The common name of a port's number in a port space: the user whose processes hold its listener has the number, at
    /// whichever addresses.
    pub(super) fn port_number(space: u16, port: u16) -> Self {
        Self::new(&format!("{}{space:04x}-{port}", port_prefix()))
    }

    /// The name of a port at an address, both in `port`: MADs for it are sent to its listener, which the user of the
    /// port's number has.
    pub(super) fn port(port: &str) -> Self {
        Self::new(&format!("{}{port}", port_prefix()))
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

fn slot_prefix() -> String {
    format!("ferroce-{VERSION}-slot-")
}

fn listed_slot_prefix(uid: u32) -> String {
    format!("ferroce-{VERSION}-u{uid}-slot-")
}

fn port_prefix() -> String {
    format!("ferroce-{VERSION}-port-")
}

/// Ports at addresses, as their names say them, of all users; the number of a port alone is none. `None` where the names
/// can't be read.
pub(super) fn taken_ports() -> Option<Vec<String>> {
    let prefix = format!("@{}", port_prefix());
    let name_of = |line: &[u8]| {
        let name = line.rsplit(|&b| b == b' ').next()?.strip_prefix(prefix.as_bytes())?;
        std::str::from_utf8(name).ok().map(str::to_owned)
    };
    Some(table()?.split(|&b| b == b'\n').filter_map(name_of).collect())
}

/// Slots that may be a user's, in order: those that are listed as its own, and those that no user lists. `None` where the
/// names can't be read (a container without /proc).
pub(super) fn slots_of(uid: u32) -> Option<Vec<u16>> {
    Some(slots_of_in(&table()?, uid))
}

fn slots_of_in(table: &[u8], uid: u32) -> Vec<u16> {
    let listed = listed_slots(table);
    let may_be_its = |slot: &u16| {
        let mut listings = listed.iter().filter(|(_, listed)| listed == slot).map(|(uid, _)| *uid).peekable();
        listings.peek().is_none() || listings.any(|of| of == uid)
    };
    let mut slots = slots_in(table);
    slots.retain(may_be_its);
    slots
}

/// Slots that some process has, of any user, in order. `None` where the names can't be read.
pub(super) fn taken_slots() -> Option<Vec<u16>> {
    Some(slots_in(&table()?))
}

/// Taken slots in order, each with the inode of one of its sockets.
pub(super) fn slots_with_inodes() -> Option<BTreeMap<u16, u64>> {
    Some(entries(&table()?).collect())
}

/// Users and slots, as the users list them.
fn listed_slots(table: &[u8]) -> Vec<(u32, u16)> {
    let prefix = format!("@ferroce-{VERSION}-u");
    let slot_of = |line: &[u8]| {
        let name = line.rsplit(|&b| b == b' ').next()?.strip_prefix(prefix.as_bytes())?;
        let (uid, slot) = std::str::from_utf8(name).ok()?.split_once("-slot-")?;
        let slot = slot.parse().ok().filter(|slot| USABLE.contains(slot))?;
        Some((uid.parse().ok()?, slot))
    };
    table.split(|&b| b == b'\n').filter_map(slot_of).collect()
}

fn table() -> Option<Vec<u8>> {
    sys::read_file(c"/proc/thread-self/net/unix", PROC_LIMIT).ok()
}

fn slots_in(table: &[u8]) -> Vec<u16> {
    let mut slots: Vec<u16> = entries(table).map(|(slot, _)| slot).collect();
    slots.sort_unstable();
    slots.dedup();
    slots
}

/// Slot and inode of each socket with a slot's common name.
fn entries(table: &[u8]) -> impl Iterator<Item = (u16, u64)> + use<'_> {
    let prefix = format!("@{}", slot_prefix());
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
    fn the_table_gives_taken_slots_and_those_that_may_be_a_users() {
        let table = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 1 @ferroce-2-slot-17\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 2 @ferroce-2-slot-17\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 3 @ferroce-2-u7-slot-17\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 4 @ferroce-2-u77-slot-18\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 5 @ferroce-3-slot-19\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 6 @ferroce-2-slot-0\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 7 @ferroce-2-slot-99999\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 8 @ferroce-2-slot-\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 9 @ferroce-2-slot-4094\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 10 @ferroce-2-slot-18\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 11 @ferroce-2-u7-slot-20\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 12\n";
        assert_eq!(slots_in(table), [17, 18, 4094]);
        assert_eq!(entries(table).collect::<Vec<_>>(), [(17, 1), (17, 2), (4094, 9), (18, 10)]);
        assert_eq!(listed_slots(table), [(7, 17), (77, 18), (7, 20)]);
        // A listing without a slot is nothing, and a slot that no user lists may be any user's.
        assert_eq!(slots_of_in(table, 7), [17, 4094]);
        assert_eq!(slots_of_in(table, 77), [18, 4094]);
        assert_eq!(slots_in(b""), [0_u16; 0]);
        assert_eq!(slots_in(b"\xff\xfe @\n\n "), [0_u16; 0]);
    }

    #[test]
    fn a_name_is_held_once_per_type_and_free_after_the_drop() {
        // A user nobody has, so that nothing real is disturbed.
        let name = Name::listed_slot(4_000_000_000 + std::process::id() % 1000, 5);
        let first = name.bind(libc::SOCK_DGRAM).unwrap();
        assert!(first.is_some());
        assert!(name.bind(libc::SOCK_DGRAM).unwrap().is_none());
        assert!(name.listen().unwrap().is_some(), "the other type is another name");
        drop(first);
        assert!(name.bind(libc::SOCK_DGRAM).unwrap().is_some());
    }
}
