//! Addresses whose UDP port 4791 another user holds, and of which this process is a *guest*.
//!
//! A guest sends from sockets of its own, as every process does. It has no socket that receives: processes of the holder pass
//! on what comes for a guest's slot, to the slot's name. A guest takes that only from the user that has the port now; the
//! kernel reports the users of both. One process of the holder, the *attendant*, is asked to read the sockets to which packets
//! for this process come. When no process has the port any more, the guest takes it.

use super::epoll::GUESTS_TIMER;
use super::forward;
use super::group::{self, OpenSocket, SocketGroup};
use super::names::{self, Name};
use super::notice::{Notice, NoticeKind};
use super::process::{GuestAddress, Host};
use super::slots::shuffled;
use super::{handover, watch};
use ferroce_os::sys;
use ferroce_os::throttle::OncePerSecond;
use ferroce_types::{HostAddr, first_qpn, steering_of};
use ferroce_wire::cm::GSI_QPN;
use std::io;
use std::sync::Once;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Between two requests to an attendant.
const INTERVAL: Duration = Duration::from_millis(250);
/// How long a process that may become a guest waits for an attendant, if no process that could be one runs, and if one does; and
/// after which time it asks all again.
const PATIENCE: Duration = Duration::from_secs(1);
const BUSY_PATIENCE: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(100);
/// Processes that are asked at a time.
const CROWD: usize = 8;
/// How long it waits in any case.
const LEAST_PATIENCE: Duration = Duration::from_millis(100);
/// What those of a crowd have to answer.
const HEDGE: Duration = Duration::from_millis(5);
/// What the processes of this user have to answer, one of which has the port.
const OWN_PATIENCE: Duration = Duration::from_millis(20);
/// Between two lookups of the port's holder, while packets come from another user.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// After so many intervals without an answer the program gets an event.
const SILENCE: u32 = 8;

/// The process that has a slot.
///
/// # Errors
/// Those of `connect(2)`. EAGAIN: too many wait to ask it.
fn peer_at(slot: u16) -> io::Result<libc::ucred> {
    sys::peer_credentials(Name::slot(slot).connect()?.raw())
}

/// A slot is one of user `holder`'s. Any user can fill its queue of connections, and then it may be the holder's.
fn may_be_of(slot: u16, holder: u32) -> bool {
    peer_at(slot).map_or_else(|error| error.kind() == io::ErrorKind::WouldBlock, |peer| peer.uid == holder)
}

/// The processes of user `holder` that have these slots and can be seen; `None` if too many wait to ask one of them.
fn visible_processes(slots: &[u16], holder: u32) -> Option<Vec<i32>> {
    let mut pids = Vec::new();
    for &slot in slots {
        match peer_at(slot) {
            Ok(peer) if peer.uid == holder && peer.pid != 0 => pids.push(peer.pid),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Ok(_) | Err(_) => {}
        }
    }
    pids.sort_unstable();
    pids.dedup();
    Some(pids)
}

impl Host {
    /// Becomes a guest at an address whose port `holder` has, if one of the holder's processes attends. `waited` as in [`Host::sockets`].
    pub(super) fn become_guest(
        &self,
        address: HostAddr,
        open: OpenSocket,
        holder: u32,
        waited: Duration,
    ) -> bool {
        if self.user.is_ambiguous() || !self.trust.knows(holder) {
            return false;
        }
        let mut candidates = self.possible_attendants(holder);
        if candidates.is_empty() {
            return false;
        }
        let begun = Instant::now();
        let guest =
            GuestAddress { open, holder, looked: begun, attendant: None, answered: false, silence: 0 };
        self.guests.addresses.lock().insert(address, guest);
        self.guests.some.store(true, Ordering::Relaxed);
        let mut left = candidates.clone();
        let mut next = begun;
        let mut patience = PATIENCE;
        while !self.is_attended(address) {
            if begun.elapsed() >= patience.saturating_sub(waited).max(LEAST_PATIENCE) {
                let mut has_answered = || {
                    self.serve_meanwhile();
                    self.is_attended(address)
                };
                if patience == BUSY_PATIENCE
                    || visible_processes(&candidates, holder)
                        .is_some_and(|pids| watch::are_held_up(pids, &mut has_answered))
                {
                    break;
                }
                patience = BUSY_PATIENCE;
            }
            if Instant::now() >= next {
                if left.is_empty() {
                    // Some have ended, others have come, and another user may have the port now, or none.
                    candidates = self.possible_attendants(holder);
                    left.clone_from(&candidates);
                    if left.is_empty() || group::holder(address).uid != Some(holder) {
                        break;
                    }
                }
                let crowd = left.split_off(left.len().saturating_sub(CROWD));
                crowd.into_iter().for_each(|slot| drop(self.ask(address, slot, 0)));
                next = Instant::now() + if left.is_empty() { AGAIN } else { HEDGE };
            }
            self.serve_meanwhile();
            sys::pause(Duration::from_micros(200));
        }
        if self.is_attended(address) && self.keep_asking() {
            tracing::debug!(%address, holder, "a guest: another user has UDP port 4791");
            self.warn_of(holder, address);
            return true;
        }
        self.leave(address);
        false
    }

    /// Answers requests and takes notices while this process waits for an attendant.
    fn serve_meanwhile(&self) {
        self.answer_requests();
        // What comes for QPs at other addresses meanwhile is lost, as on a wire.
        self.recv_forwarded(&mut |_| ());
    }

    /// The holder of a port reads what it passes on. Its user may be any one.
    fn warn_of(&self, holder: u32, address: HostAddr) {
        static SAID: Once = Once::new();
        if SAID.is_completed() || holder == 0 || holder == self.user.uid() {
            return;
        }
        let connections = self.possible_attendants(holder).into_iter();
        let mut connections = connections.filter_map(|slot| Name::slot(slot).connect().ok());
        if !connections.next().is_some_and(|connection| self.trust.includes(connection.raw())) {
            SAID.call_once(|| {
                tracing::warn!(
                    "UDP port 4791 of {address} is held by user {holder}, whom FERROCE_TRUST doesn't name: this user can read, \
                     lose and change the packets that come to this process there"
                );
            });
        }
    }

    fn is_attended(&self, address: HostAddr) -> bool {
        self.guests.addresses.lock().get(&address).is_some_and(|guest| guest.attendant.is_some())
    }

    /// Whether this process is a guest at an address.
    pub fn is_guest(&self, address: HostAddr) -> bool {
        self.guests.are_some() && self.guests.addresses.lock().contains_key(&address)
    }

    /// From now on attendants are asked again and again.
    fn keep_asking(&self) -> bool {
        let mut timer = self.guests.timer.lock();
        if timer.is_none()
            && let Ok(new) = sys::periodic_timer(INTERVAL)
            && self.epoll.watch(new.raw(), GUESTS_TIMER).is_ok()
        {
            *timer = Some(new);
        }
        timer.is_some()
    }

    fn leave(&self, address: HostAddr) {
        let mut guests = self.guests.addresses.lock();
        guests.remove(&address);
        let some = !guests.is_empty();
        self.guests.some.store(some, Ordering::Relaxed);
        drop(guests);
        if !some {
            *self.guests.timer.lock() = None;
        }
    }

    /// Slots of the holder's processes, in random order. The kernel reports their users: in its list or, where that has no users, at
    /// the other end of a connection.
    fn possible_attendants(&self, holder: u32) -> Vec<u16> {
        let (own, seed) = (self.slots(), sys::random());
        let mut taken = names::taken_slots().unwrap_or_default();
        taken.retain(|slot, owner| {
            let is_holders = || owner.uid.map_or_else(|| may_be_of(*slot, holder), |uid| uid == holder);
            !own.contains(slot) && is_holders()
        });
        let mut slots: Vec<u16> = taken.into_keys().collect();
        slots.sort_unstable_by_key(|slot| shuffled(seed, *slot));
        slots
    }

    /// Asks who has a slot to read what comes for this process.
    fn ask(&self, address: HostAddr, slot: u16, steerings: u64) -> io::Result<()> {
        self.send_notice(slot, |own| Notice { kind: NoticeKind::Ask, address, slot: own, steerings })
    }

    fn send_notice(&self, to: u16, notice: impl FnOnce(u16) -> Notice) -> io::Result<()> {
        let own = self.slots.read().first().cloned();
        let own = own.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTCONN))?;
        forward::send(own.inbox.raw(), self.user, &Name::slot(to), &notice(own.number).emit())
    }

    /// The sockets to which packets for this process come.
    fn steerings(&self) -> u64 {
        let of_slots = self.slots().into_iter().map(|slot| steering_of(first_qpn(slot)));
        of_slots.chain([steering_of(GSI_QPN)]).fold(0, |all, steering| all | 1 << steering)
    }

    /// Executes a notice of user `sender`; whether `bytes` are one.
    pub(super) fn take_notice(&self, sender: Option<u32>, bytes: &[u8]) -> bool {
        let Some(Notice { kind, address, slot, steerings }) = Notice::parse(bytes) else { return false };
        match kind {
            NoticeKind::Ask => {
                if let Some(group) = self.group(address) {
                    self.attendance.attend(address, &group, steerings, &self.epoll);
                    // Fails for a guest that has ended, or that has too much to read and asks again.
                    let have = |own| Notice { kind: NoticeKind::Have, address, slot: own, steerings };
                    let _ = self.send_notice(slot, have);
                }
            }
            NoticeKind::Have => {
                let mut guests = self.guests.addresses.lock();
                let Some(guest) = guests.get_mut(&address).filter(|guest| Some(guest.holder) == sender)
                else {
                    return true;
                };
                (guest.answered, guest.silence) = (true, 0);
                let is_new = guest.attendant.is_none();
                guest.attendant.get_or_insert(slot);
                drop(guests);
                if is_new {
                    // Should this be lost: it is asked again.
                    let _ = self.ask(address, slot, self.steerings());
                }
            }
        }
        true
    }

    /// Whether a packet that user `sender` has passed on is to be believed: the kernel gives what is sent to `destination` to
    /// that user.
    pub(super) fn is_of_holder(&self, sender: Option<u32>, destination: HostAddr) -> bool {
        let is_known = || {
            let guests = self.guests.addresses.lock();
            guests.get(&destination).is_some_and(|guest| Some(guest.holder) == sender)
        };
        let believed = is_known() || self.look_at_holder(destination) && is_known();
        if !believed {
            static BRAKE: OncePerSecond = OncePerSecond::new();
            self.stats().refused.fetch_add(1, Ordering::Relaxed);
            if BRAKE.allows_now() {
                tracing::debug!(?sender, %destination, "packets refused: the process that passed them on doesn't have the address's port");
            }
        }
        believed
    }

    /// Finds out anew who has the port, unless that was done a moment ago; whether it was done.
    fn look_at_holder(&self, address: HostAddr) -> bool {
        let mut guests = self.guests.addresses.lock();
        let Some(guest) = guests.get_mut(&address).filter(|guest| guest.looked.elapsed() >= LOOK_INTERVAL)
        else {
            return false;
        };
        guest.looked = Instant::now();
        drop(guests);
        let holder = group::holder(address).uid.filter(|&holder| self.trust.knows(holder));
        let mut guests = self.guests.addresses.lock();
        if let (Some(holder), Some(guest)) = (holder, guests.get_mut(&address))
            && std::mem::replace(&mut guest.holder, holder) != holder
        {
            drop(guests);
            self.warn_of(holder, address);
        }
        true
    }

    /// Has the attendants read what comes for a new slot.
    pub(super) fn ask_for_new_slot(&self) {
        if !self.guests.are_some() {
            return;
        }
        let attendants: Vec<(HostAddr, u16)> = {
            let guests = self.guests.addresses.lock();
            guests.iter().filter_map(|(&address, guest)| Some((address, guest.attendant?))).collect()
        };
        for (address, attendant) in attendants {
            // Should this be lost: it is asked again.
            let _ = self.ask(address, attendant, self.steerings());
        }
    }

    /// Asks the attendants anew. Where one has gone, looks for another; where no process has the port, takes it.
    pub(super) fn ask_attendants(&self) {
        if let Some(timer) = &*self.guests.timer.lock() {
            timer.end_period();
        }
        let addresses: Vec<HostAddr> = self.guests.addresses.lock().keys().copied().collect();
        for address in addresses {
            let (attendant, answered) = match self.guests.addresses.lock().get_mut(&address) {
                Some(guest) => (guest.attendant, std::mem::take(&mut guest.answered)),
                None => continue,
            };
            let asked = |slot: u16| self.ask(address, slot, self.steerings());
            let is_there = attendant.is_some_and(|slot| match asked(slot) {
                Err(error) => error.raw_os_error() != Some(libc::ECONNREFUSED),
                Ok(()) => true,
            });
            if !(is_there && answered) {
                self.replace_attendant(address);
            }
        }
    }

    /// The attendant doesn't answer: it is gone, or stopped, or very busy.
    fn replace_attendant(&self, address: HostAddr) {
        // A thread that joins just now does this itself.
        let Some(_joining) = self.joining.try_lock() else { return };
        let Some(open) = self.guests.addresses.lock().get(&address).map(|guest| guest.open) else { return };
        if let Ok(Some(group)) = group::create(address, open) {
            tracing::info!(%address, "this process has UDP port 4791 now: its holder is gone");
            return self.stop_being_guest(address, group);
        }
        self.look_at_holder(address);
        let Some((holder, silence)) = self.guests.addresses.lock().get_mut(&address).map(|guest| {
            (guest.attendant, guest.silence) = (None, guest.silence + 1);
            (guest.holder, guest.silence)
        }) else {
            return;
        };
        if holder == self.user.uid() {
            // Another process of this user was faster.
            let (mut unanswered, pace) = (handover::UnansweredHolders::default(), (OWN_PATIENCE, false));
            let found = handover::ask(&self.others(), &mut unanswered, address, self.user, pace, &mut || {
                self.answer_requests();
            });
            if let Ok(handover::SocketSearch::Group(group)) = found {
                return self.stop_being_guest(address, group);
            }
        }
        if silence == SILENCE {
            tracing::warn!(
                "UDP port 4791 of {address} is held by user {holder}, none of whose processes answers (stopped?): until one \
                 does, or all have ended, nothing reaches this process there"
            );
        }
        for slot in self.possible_attendants(holder).into_iter().take(CROWD) {
            // Fails for a process that has ended meanwhile.
            let _ = self.ask(address, slot, 0);
        }
    }

    fn stop_being_guest(&self, address: HostAddr, group: Box<SocketGroup>) {
        self.groups.write().insert(address, group.into());
        self.leave(address);
        self.changed.store(true, Ordering::Release);
    }
}
