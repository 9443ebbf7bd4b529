//! A slot of the QPN space: its sockets, and which to take.

use super::error::HostError;
use super::exposed::ExposedSocket;
use super::foreign_holders::foreign_holders;
use super::forward::expect_credentials;
use super::names::{Name, USABLE, taken_slots};
use ferroce_os::sys;
use ferroce_types::{GROUP_SIZE, SLOTS, slot_of};
use ferroce_wire::cm::GSI_QPN;

/// A slot this process owns: while these sockets are open, QPNs `slot << 12 ..` are its own.
pub(super) struct OwnSlot {
    pub(super) number: u16,
    /// DGRAM: packets that other processes pass on.
    pub(super) inbox: ExposedSocket,
    /// SEQPACKET: requests.
    pub(super) listener: ExposedSocket,
    /// Names the user in the table of names. Nothing comes to it. `None`: another process has the name.
    #[expect(dead_code, reason = "it holds the name")]
    listed: Option<ExposedSocket>,
}

/// The steering class of QP 1, whose socket all processes read that make connections: what they read of this process's packets they have to
/// pass on. It is taken when there is no slot of another class.
const CLASS_OF_GSI: usize = class(slot_of(GSI_QPN));
/// More than there are slots of a class.
const CROWDED: u16 = SLOTS;

/// So often a slot is given up because another process has taken one of its steering class at the same time.
const MOST_MOVES: u32 = 8;

/// Takes a free slot: at random, in a steering class that fewest other processes use. A second
/// slot in a class of our own (`own` are our slots) costs no further socket to read, so those come first.
pub(super) fn claim(uid: u32, own: &[u16]) -> Result<OwnSlot, HostError> {
    let mut moves = 0;
    loop {
        let slot = claim_at_once(uid, &Crowd::of(own))?;
        // Packets that the other process reads are forwarded, later than what this one reads itself.
        if moves == MOST_MOVES || !Crowd::of(&[own, &[slot.number]].concat()).is_avoidable(slot.number) {
            return Ok(slot);
        }
        moves += 1;
    }
}

fn claim_at_once(uid: u32, crowd: &Crowd) -> Result<OwnSlot, HostError> {
    // All slots, best class first, at random within a class: a restarted process isn't taken for its predecessor. Those that
    // the list has as taken come last: it is the bind that proves it.
    let seed = sys::random();
    let mut candidates: Vec<(bool, u16, bool, u64, u16)> = USABLE
        .map(|slot| {
            let is_taken = crowd.taken.binary_search(&slot).is_ok();
            (is_taken, crowd.others(slot), !crowd.is_own_class(slot), shuffled(seed, slot), slot)
        })
        .collect();
    candidates.sort_unstable();
    for (.., number) in candidates {
        if let Some(slot) = take(uid, number)? {
            return Ok(slot);
        }
    }
    Err(HostError::NoFreeSlot(foreign_holders()))
}

/// How many processes use each steering class.
struct Crowd {
    /// The slots that have an owner, in order.
    taken: Vec<u16>,
    /// How many slots of each class other processes have.
    others: [u16; GROUP_SIZE],
    own_classes: [bool; GROUP_SIZE],
}

impl Crowd {
    fn of(own: &[u16]) -> Self {
        Self::among(taken_slots().unwrap_or_default().into_keys().collect(), own)
    }

    fn among(taken: Vec<u16>, own: &[u16]) -> Self {
        let mut others = [0; GROUP_SIZE];
        others[CLASS_OF_GSI] = CROWDED;
        for slot in taken.iter().filter(|slot| !own.contains(slot)) {
            others[class(*slot)] += 1;
        }
        let mut own_classes = [false; GROUP_SIZE];
        own.iter().for_each(|&slot| own_classes[class(slot)] = true);
        Self { taken, others, own_classes }
    }

    fn others(&self, slot: u16) -> u16 {
        self.others[class(slot)]
    }

    fn is_own_class(&self, slot: u16) -> bool {
        self.own_classes[class(slot)]
    }

    /// Fewer other processes use another class.
    fn is_avoidable(&self, slot: u16) -> bool {
        self.others.iter().any(|&others| others < self.others(slot))
    }
}

const fn class(slot: u16) -> usize {
    slot as usize % GROUP_SIZE
}

/// `Ok(None)`: another process has one of the slot's names.
fn take(uid: u32, number: u16) -> Result<Option<OwnSlot>, HostError> {
    debug_assert!(number < SLOTS);
    let name = Name::slot(number);
    let Some(inbox) = name.bind(libc::SOCK_DGRAM).map_err(HostError::system("bind of a slot's name"))? else {
        return Ok(None);
    };
    let Some(listener) = name.listen().map_err(HostError::system("listen on a slot's name"))? else {
        return Ok(None);
    };
    let listed = Name::listed_slot(uid, number).bind(libc::SOCK_DGRAM);
    let listed = listed.map_err(HostError::system("bind of a name that lists a slot"))?;
    // Nothing is sent to it.
    listed.iter().for_each(|listed| sys::shutdown(listed.raw()));
    expect_credentials(inbox.raw()).map_err(HostError::system("SO_PASSCRED"))?;
    sys::large_buffer(inbox.raw(), libc::SO_SNDBUFFORCE, libc::SO_SNDBUF);
    Ok(Some(OwnSlot { number, inbox, listener, listed }))
}

/// A place in a random order.
pub(super) fn shuffled(seed: u64, slot: u16) -> u64 {
    let mut x = (seed ^ u64::from(slot)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_given_up_if_another_class_has_fewer_processes() {
        let class_of_all: Vec<u16> = (65..128).collect();
        assert!(!Crowd::among(vec![70], &[70]).is_avoidable(70));
        assert!(Crowd::among(vec![70, 134], &[70]).is_avoidable(70));
        // Each class has one already, and then another.
        let with_own = |others: &[u16]| {
            let mut taken = [&class_of_all[..], others].concat();
            taken.sort_unstable();
            Crowd::among(taken, &[134])
        };
        assert!(!with_own(&[134]).is_avoidable(134));
        assert!(with_own(&[134, 198]).is_avoidable(134));
    }

    #[test]
    fn a_slot_that_is_listed_as_taken_and_is_free_is_claimed() {
        let uid = 3_200_000_000 + std::process::id() % 1000;
        let all_taken = Crowd::among(USABLE.collect(), &[]);
        assert!(claim_at_once(uid, &all_taken).is_ok());
    }

    /// It costs no further socket to read.
    #[test]
    fn a_second_slot_is_of_the_steering_class_of_the_first_unless_others_have_one_there() {
        let uid = 3_300_000_000 + std::process::id() % 1000;
        let claimed =
            |taken: Vec<u16>| claim_at_once(uid, &Crowd::among(taken, &[70])).map(|slot| slot.number);
        assert!((0..4).all(|_| claimed(vec![70]).is_ok_and(|slot| class(slot) == class(70))));
        assert!((0..4).all(|_| claimed(vec![70, 134]).is_ok_and(|slot| class(slot) != class(70))));
    }

    /// Two that choose at the same time choose of the same.
    #[test]
    fn processes_that_claim_at_once_have_a_class_each() {
        let uid = 3_100_000_000 + std::process::id() % 1000;
        for _ in 0..20 {
            let threads = [(); 16].map(|()| std::thread::spawn(move || claim(uid, &[]).unwrap()));
            let slots = threads.map(|thread| thread.join().unwrap());
            let mut classes = slots.map(|slot| class(slot.number));
            classes.sort_unstable();
            assert!(classes.windows(2).all(|two| two[0] != two[1]), "{classes:?}");
            assert!(!classes.contains(&CLASS_OF_GSI), "{classes:?}");
        }
    }
}
