//! The abstract UNIX names by which processes of a host find each other: what they are, and which are taken.
//!
//! A name is exclusive per socket type and network namespace, and it is free again once its last descriptor is closed. Any
//! user can bind any free name, so a name alone proves nothing. A process believes
//! - a *common name*, which carries no user: one process has it, so it makes a slot or a port exclusive among all users;
//! - any other name only if a process of the expected user listens there, by the kernel's report ([`User::check_peer`]).
//!
//! [`User::check_peer`]: super::user::User::check_peer

use super::exposed::ExposedSocket;
use ferroce_netdev::named_sockets;
use ferroce_os::Patience;
use ferroce_os::sys::{self, AbstractName};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

/// Version of names, handover and forwarding. Frozen: a change gets a new number, and processes of different numbers
/// don't know of one another (the second finds the port taken).
pub(super) const VERSION: u32 = 2;
/// First and last slot a process can own.
pub(super) const USABLE: std::ops::RangeInclusive<u16> = 1..=4094;
/// More than any sane host has; a bound on what joining reads.
const PROC_LIMIT: usize = 32 << 20;
/// Connections that may wait at a listener; the kernel lets one more wait.
pub(super) const BACKLOG: usize = 64;
/// Between two attempts to connect to a name whose queue of connections is full.
const ROUND: Duration = Duration::from_micros(100);

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

    /// Its holder is asked first by processes that join. The kernel reports the holder's user.
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

    /// Binds a new socket of this type to the name, which takes no descriptors; `Ok(None)` when it is taken.
    pub(super) fn bind(&self, kind: i32) -> io::Result<Option<ExposedSocket>> {
        let socket =
            ExposedSocket::without_descriptors(sys::socket(libc::AF_UNIX, kind | libc::SOCK_NONBLOCK)?);
        match sys::bind(socket.raw(), &self.0) {
            Ok(()) => Ok(Some(socket)),
            Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// A connection to its holder, of whichever user.
    pub(super) fn connect(&self) -> io::Result<ExposedSocket> {
        let socket = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK)?;
        sys::connect(socket.raw(), self.address())?;
        Ok(ExposedSocket::new(socket))
    }

    /// As [`Name::connect`], again and again for `within` at most while the queue of connections is full: a process of any user may fill it,
    /// so that isn't an answer of the holder. `idle` is called between two attempts. A `within` of zero is one attempt, however long that takes.
    pub(super) fn connect_within(
        &self,
        within: Duration,
        idle: &mut dyn FnMut(),
    ) -> io::Result<ExposedSocket> {
        let mut patience = Patience::new(within, ROUND);
        loop {
            match self.connect() {
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock
                        && !within.is_zero()
                        && !patience.has_ended() =>
                {
                    idle();
                    sys::pause(ROUND);
                }
                result => return result,
            }
        }
    }

    /// Binds a SEQPACKET listener to the name, which takes no descriptors; `Ok(None)` when it is taken.
    pub(super) fn listen(&self) -> io::Result<Option<ExposedSocket>> {
        let Some(socket) = self.bind(libc::SOCK_SEQPACKET)? else { return Ok(None) };
        sys::listen(socket.raw(), BACKLOG as i32)?;
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

/// The number of a slot or a user as names have it: without a sign, and without zeros before it.
fn number<T: std::str::FromStr + ToString>(digits: &str) -> Option<T> {
    digits.parse::<T>().ok().filter(|number| number.to_string() == digits)
}

fn usable_slot(digits: &str) -> Option<u16> {
    number(digits).filter(|slot| USABLE.contains(slot))
}

/// A socket with a name of Ferroce's.
struct AbstractSocket {
    name: String,
    /// It isn't one of datagrams.
    seqpacket: bool,
    /// Its number in `/proc/PID/fd`, and the user who made it, as far as the kernel lists them.
    inode: Option<u32>,
    uid: Option<u32>,
}

/// The sockets whose names begin with `prefix`. `None` where they can't be read (a container without sock_diag and /proc).
fn sockets(prefix: &str) -> Option<Vec<AbstractSocket>> {
    if let Ok(found) = named_sockets(prefix.as_bytes()) {
        let known = found.into_iter().filter_map(|socket| {
            let name = String::from_utf8(socket.name).ok()?;
            Some(AbstractSocket {
                name,
                seqpacket: socket.seqpacket,
                inode: Some(socket.inode),
                uid: socket.uid,
            })
        });
        return Some(known.collect());
    }
    let table = sys::read_file(c"/proc/thread-self/net/unix", PROC_LIMIT).ok()?;
    Some(sockets_in(&table, prefix))
}

/// The sockets in the text of `/proc/net/unix`. The kernel prints names as they are, with their blanks and newlines, so any user can
/// add rows, one for each name. Such a row is believed as far as its name goes: its inode may be that of another process.
fn sockets_in(table: &[u8], prefix: &str) -> Vec<AbstractSocket> {
    let lines = table.split(|&byte| byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    lines.filter_map(row).filter(|socket| socket.name.starts_with(prefix)).collect()
}

/// Address, references, protocol, flags, type, state, inode, and the name.
fn row(line: &str) -> Option<AbstractSocket> {
    let (head, name) = line.split_once(" @")?;
    let fields: Vec<&str> = head.split(' ').filter(|field| !field.is_empty()).collect();
    let [address, references, protocol, flags, kind, state, inode] = fields[..] else { return None };
    let is_hex =
        |text: &str, length: usize| text.len() >= length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_right = is_hex(address.strip_suffix(':')?, 8)
        && [references, protocol, flags].iter().all(|field| is_hex(field, 8))
        && inode.bytes().all(|byte| byte.is_ascii_digit());
    // DGRAM, or SEQPACKET that isn't a connection.
    let seqpacket = match (kind, state) {
        ("0002", _) => false,
        ("0005", "01") => true,
        _ => return None,
    };
    is_right.then(|| AbstractSocket { name: name.to_owned(), seqpacket, inode: None, uid: None })
}

/// Ports at addresses, as in their names, of all users; the number of a port alone is none. `None` where the names
/// can't be read.
pub(super) fn taken_ports() -> Option<Vec<String>> {
    let prefix = port_prefix();
    let name_of = |socket: AbstractSocket| socket.name.strip_prefix(&prefix).map(str::to_owned);
    Some(sockets(&prefix)?.into_iter().filter_map(name_of).collect())
}

/// The user of the SEQPACKET socket that has a name, as the kernel lists it.
pub(super) fn user_of(name: &Name) -> Option<u32> {
    let text = name.address().text();
    let all = named_sockets(&text).ok()?;
    all.into_iter().find(|socket| socket.seqpacket && socket.name == text)?.uid
}

/// The numbers in `/proc/PID/fd` of the sockets that listen at names, as far as the kernel lists them.
pub(super) fn listeners_of(names: &[Name]) -> BTreeMap<Vec<u8>, u32> {
    let wanted: BTreeSet<Vec<u8>> = names.iter().map(|name| name.address().text()).collect();
    let listed = sockets(&format!("ferroce-{VERSION}-")).unwrap_or_default().into_iter();
    let listeners = listed.filter(|socket| socket.seqpacket && wanted.contains(socket.name.as_bytes()));
    listeners.filter_map(|socket| Some((socket.name.into_bytes(), socket.inode?))).collect()
}

/// The process that has a slot, as far as the kernel lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NameOwner {
    /// Its user.
    pub(super) uid: Option<u32>,
    /// A socket of it.
    pub(super) inode: Option<u32>,
}

/// The slots that some process has, of any user. `None` where the names can't be read.
pub(super) fn taken_slots() -> Option<BTreeMap<u16, NameOwner>> {
    Some(taken_among(&sockets(&slot_prefix())?))
}

fn taken_among(sockets: &[AbstractSocket]) -> BTreeMap<u16, NameOwner> {
    let prefix = slot_prefix();
    let mut taken = BTreeMap::new();
    for socket in sockets {
        let Some(slot) = socket.name.strip_prefix(&prefix).and_then(usable_slot) else { continue };
        // The listener names the process, where it has both.
        if socket.seqpacket || !taken.contains_key(&slot) {
            taken.insert(slot, NameOwner { uid: socket.uid, inode: socket.inode });
        }
    }
    taken
}

/// Slots of a user. Where the kernel lists no users: slots that may be the user's, which are those that are listed as its own, and
/// those that no user lists. `None` where the names can't be read.
pub(super) fn slots_of(uid: u32) -> Option<BTreeMap<u16, NameOwner>> {
    Some(slots_among(&sockets(&format!("ferroce-{VERSION}-"))?, uid))
}

fn slots_among(sockets: &[AbstractSocket], uid: u32) -> BTreeMap<u16, NameOwner> {
    let listings: Vec<ListedSlots> = sockets.iter().filter_map(ListedSlots::of).collect();
    let listed: BTreeSet<u16> = listings.iter().map(|listing| listing.slot).collect();
    let as_its: BTreeSet<u16> =
        listings.iter().filter(|listing| listing.uid == uid).map(|listing| listing.slot).collect();
    let mut taken = taken_among(sockets);
    taken.retain(|slot, owner| match owner.uid {
        Some(of) => of == uid,
        None => as_its.contains(slot) || !listed.contains(slot),
    });
    taken
}

/// A name that lists a slot as a user's, of whichever version of the names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ListedSlots {
    /// The version of the protocol between processes.
    pub version: u32,
    /// The user who has made it; where the kernel lists no users, the one that it names.
    pub uid: u32,
    /// The part of the QPN space.
    pub slot: u16,
}

impl ListedSlots {
    /// `ferroce-VERSION-uUID-slot-N`
    fn of(socket: &AbstractSocket) -> Option<Self> {
        let (version, rest) = socket.name.strip_prefix("ferroce-")?.split_once("-u")?;
        let (uid, slot) = rest.split_once("-slot-")?;
        let named = number(uid)?;
        Some(Self { version: number(version)?, uid: socket.uid.unwrap_or(named), slot: usable_slot(slot)? })
    }
}

/// The names that list slots, of all users and versions, in order. None where they can't be read.
#[must_use]
pub fn listings() -> Vec<ListedSlots> {
    let sockets = sockets("ferroce-").unwrap_or_default();
    let mut all: Vec<_> = sockets.iter().filter_map(ListedSlots::of).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
        0000000000000000: 00000002 00000000 00000000 0002 01 1 @ferroce-2-slot-17\n\
        0000000000000000: 00000002 00000000 00010000 0005 01     2 @ferroce-2-slot-17\n\
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

    fn slots(owners: &BTreeMap<u16, NameOwner>) -> Vec<u16> {
        owners.keys().copied().collect()
    }

    #[test]
    fn the_table_gives_taken_slots_and_those_that_may_be_a_users() {
        let sockets = sockets_in(TABLE, "ferroce-");
        assert_eq!(slots(&taken_among(&sockets)), [17, 18, 4094]);
        let listings: Vec<_> = sockets.iter().filter_map(ListedSlots::of).collect();
        let listing = |uid, slot| ListedSlots { version: 2, uid, slot };
        assert_eq!(listings, [listing(7, 17), listing(77, 18), listing(7, 20)]);
        // A listing without a slot is nothing, and a slot that no user lists may be any user's.
        assert_eq!(slots(&slots_among(&sockets, 7)), [17, 4094]);
        assert_eq!(slots(&slots_among(&sockets, 77)), [18, 4094]);
        assert!(sockets_in(b"", "").is_empty());
        assert!(sockets_in(b"\xff\xfe @\n\n ", "").is_empty());
    }

    #[test]
    fn a_row_of_another_form_is_no_socket_and_one_with_a_forged_inode_accuses_no_process() {
        for forged in [
            "77 @ferroce-2-slot-5",
            "0: 2 0 0 0002 01 77 @ferroce-2-slot-5",
            "0000000000000000: 00000002 00000000 00000000 0002 01 77 78 @ferroce-2-slot-5",
            "0000000000000000: 00000002 00000000 00000000 0001 01 77 @ferroce-2-slot-5",
            "0000000000000000: 00000003 00000000 00000000 0005 03 77 @ferroce-2-slot-5",
        ] {
            assert!(sockets_in(forged.as_bytes(), "").is_empty(), "{forged}");
        }
        let sockets = sockets_in(TABLE, "ferroce-");
        assert!(taken_among(&sockets).values().all(|owner| owner.inode.is_none()));
        for other in ["+5", "05", "-5", "5 ", ""] {
            assert_eq!(usable_slot(other), None, "{other}");
        }
    }

    #[test]
    fn a_slot_is_the_users_whom_the_kernel_lists_whatever_names_list_it_as() {
        let socket = |name: &str, seqpacket, uid| AbstractSocket {
            name: format!("ferroce-2-{name}"),
            seqpacket,
            inode: Some(uid),
            uid: Some(uid),
        };
        let sockets = [
            socket("slot-17", true, 7),
            socket("slot-17", false, 7),
            socket("u7-slot-17", false, 7),
            socket("slot-18", false, 9),
            socket("u7-slot-18", false, 9),
            socket("u9-slot-19", false, 9),
            socket("slot-19", true, 7),
        ];
        assert_eq!(slots(&slots_among(&sockets, 7)), [17, 19]);
        assert_eq!(slots(&slots_among(&sockets, 9)), [18]);
        assert_eq!(taken_among(&sockets)[&18], NameOwner { uid: Some(9), inode: Some(9) });
    }

    #[test]
    fn names_are_read_byte_for_byte_with_their_user() {
        let (uid, process) = (sys::user_id(), std::process::id());
        // A user without processes, so that nothing real is disturbed.
        let listed = 4_000_000_000 + process % 1000;
        let rows = Name::new(&format!("x{process}\n1 @{}7", listed_slot_prefix(listed)));
        let _rows = rows.bind(libc::SOCK_DGRAM).unwrap().unwrap();
        let name = Name::listed_slot(listed, 5);
        let _listener = name.listen().unwrap().unwrap();
        let found = sockets(&listed_slot_prefix(listed)).unwrap();
        let found: Vec<_> = found.iter().map(|socket| (socket.name.as_bytes(), socket.seqpacket)).collect();
        assert_eq!(found, [(&*name.address().text(), true)]);
        assert!(user_of(&name).is_none_or(|of| of == uid));
    }

    #[test]
    fn a_name_is_held_once_per_type_and_free_after_the_drop() {
        // A user without processes, so that nothing real is disturbed.
        let name = Name::listed_slot(4_000_000_000 + std::process::id() % 1000, 6);
        let first = name.bind(libc::SOCK_DGRAM).unwrap();
        assert!(first.is_some());
        assert!(name.bind(libc::SOCK_DGRAM).unwrap().is_none());
        assert!(name.listen().unwrap().is_some(), "the other type is another name");
        drop(first);
        assert!(name.bind(libc::SOCK_DGRAM).unwrap().is_some());
    }
}
