//! A slot of the QPN space: its sockets, and which to take.

use super::error::Error;
use super::foreign_holders::foreign_holders;
use super::forward::expect_credentials;
use super::names::{Name, USABLE, slots_of_anybody};
use super::shuffled;
use ferroce_os::sys::{self, EngineFd};
use ferroce_types::{GROUP_SIZE, SLOTS};

/// A slot this process owns: while these sockets are open, QPNs `slot << 12 ..` are its own.
pub(super) struct OwnSlot {
    pub(super) number: u16,
    /// DGRAM: packets that other processes forward.
    pub(super) forwarded: EngineFd,
    /// SEQPACKET: requests.
    pub(super) listener: EngineFd,
    /// DGRAM, with the common name: what other users' processes send.
    pub(super) common: EngineFd,
}

/// Takes a free slot: at random, in a steering class that fewest other processes use. A second
/// slot in a class of our own (`own` are our slots) costs no further socket to read, so those come first.
pub(super) fn claim(uid: u32, own: &[u16]) -> Result<OwnSlot, Error> {
    let taken = slots_of_anybody(uid).unwrap_or_default();
    let mut others = [0_u16; GROUP_SIZE];
    for slot in taken.iter().filter(|slot| !own.contains(slot)) {
        others[usize::from(*slot) % GROUP_SIZE] += 1;
    }
    let is_own =
        |slot: u16| own.iter().any(|&o| usize::from(o) % GROUP_SIZE == usize::from(slot) % GROUP_SIZE);
    // All slots, best class first, at random within a class: a restarted process isn't taken for its predecessor.
    let seed = sys::random();
    let mut candidates: Vec<(u16, bool, u64, u16)> = USABLE
        .filter(|slot| taken.binary_search(slot).is_err())
        .map(|slot| (others[usize::from(slot) % GROUP_SIZE], !is_own(slot), shuffled(seed, slot), slot))
        .collect();
    candidates.sort_unstable();
    for (.., number) in candidates {
        if let Some(slot) = take(uid, number)? {
            return Ok(slot);
        }
    }
    Err(Error::NoFreeSlot(foreign_holders()))
}

/// `Ok(None)`: somebody was faster.
fn take(uid: u32, number: u16) -> Result<Option<OwnSlot>, Error> {
    debug_assert!(number < SLOTS);
    let name = Name::slot(uid, number);
    let Some(forwarded) = name.bind(libc::SOCK_DGRAM).map_err(Error::system("bind of a slot's name"))? else {
        return Ok(None);
    };
    let Some(listener) = name.listen().map_err(Error::system("listen on a slot's name"))? else {
        return Ok(None);
    };
    let common = Name::common_slot(number).bind(libc::SOCK_DGRAM);
    let Some(common) = common.map_err(Error::system("bind of a slot's common name"))? else {
        return Ok(None);
    };
    for inbox in [&forwarded, &common] {
        expect_credentials(inbox).map_err(Error::system("SO_PASSCRED"))?;
    }
    sys::large_buffer(forwarded.raw(), libc::SO_SNDBUFFORCE, libc::SO_SNDBUF);
    Ok(Some(OwnSlot { number, forwarded, listener, common }))
}
