//! Joining the other processes of the host: a slot, the leader's name, and the sockets of an address.

use super::attendance::Attendance;
use super::epoll::{Epoll, INBOX, LEADER, LISTENER};
use super::error::{Holder, HostError};
use super::forward::{ForwardReceiver, Forwarder};
use super::group::{self, OpenSocket, SocketGroup};
use super::handover::{self, SocketSearch, UnansweredHolders};
use super::names::Name;
use super::port_table::Ports;
use super::process::{Guests, Host};
use super::services::Services;
use super::slots;
use super::trust::Trust;
use super::user::User;
use ferroce_os::sync::{Mutex, RwLock};
use ferroce_types::{HostAddr, SLOTS};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the processes that are asked for a group have to answer after the last of them was asked, the first time and at most: each
/// time it is twice as long.
const ANSWER_PATIENCE: Duration = Duration::from_millis(100);
const MOST_ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// How long a join goes on while a process of this user that runs doesn't answer: a processor that is busy with other programs
/// keeps it waiting …
const BUSY_PATIENCE: Duration = Duration::from_secs(15);
/// … while the port's sockets are this user's, and no process that could answer has them: one that ends lets go of them, or one
/// that starts is about to have them …
const ENDING_PATIENCE: Duration = Duration::from_secs(3);
/// … when all that don't answer are stopped, or the port is another user's …
const JOIN_PATIENCE: Duration = Duration::from_secs(1);
/// … and when no other process of this user is there, and the port's sockets aren't this user's.
const LONELY_PATIENCE: Duration = Duration::from_millis(100);
/// How often a process that was late asks another holder of the port.
const MOST_OTHERS: u32 = 10;
/// How often a holder of the port may have ended before its user is looked up.
const MOST_VANISHED: u32 = 3;

impl Host {
    /// Joins, and claims the first slot.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn join() -> Result<Arc<Self>, HostError> {
        Self::join_trusting(Trust::default())
    }

    /// Joins, and claims the first slot. Processes of users whom `trust` includes may share memory with this one.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn join_trusting(trust: Trust) -> Result<Arc<Self>, HostError> {
        let user = User::current();
        let this = Arc::new(Self {
            user,
            trust,
            epoll: Epoll::new()?,
            slots: RwLock::default(),
            owned: [const { AtomicU64::new(0) }; SLOTS as usize / 64],
            leader: RwLock::default(),
            groups: RwLock::default(),
            joining: Mutex::default(),
            forwarder: Forwarder::new(user),
            inbox: Mutex::new(ForwardReceiver::new()),
            services: Services::default(),
            guests: Guests::default(),
            attendance: Attendance::default(),
            changed: AtomicBool::new(false),
            making: AtomicBool::new(false),
            ports: Ports::default(),
        });
        this.claim_slot()?;
        this.lead();
        this.services.keep_spare();
        Ok(this)
    }

    /// Takes one more slot (4,096 QPNs), and returns its number.
    ///
    /// # Errors
    /// [`HostError::NoFreeSlot`], or a system call's.
    pub fn claim_slot(&self) -> Result<u16, HostError> {
        let mut slots = self.slots.write();
        let own: Vec<u16> = slots.iter().map(|s| s.number).collect();
        let slot = slots::claim(self.user.uid(), &own)?;
        let number = slot.number;
        self.epoll.watch(slot.listener.raw(), LISTENER | u64::from(number))?;
        self.epoll.watch(slot.inbox.raw(), INBOX | u64::from(number))?;
        self.owned[usize::from(number) / 64].fetch_or(1 << (number % 64), Ordering::Release);
        slots.push(Arc::new(slot));
        drop(slots);
        tracing::debug!(slot = number, "claimed a slot of the QPN space");
        self.ask_for_new_slot();
        Ok(number)
    }

    /// The sockets of a local address: this process's already, or another's, or new ones, which `open` makes. `None`: another user's
    /// processes have them, and pass on what comes for this one, as for a guest. `waited` is how long this process has waited in vain for the
    /// holders of other addresses, which are those of this one as a rule: it waits for so much less, but asks each of them.
    ///
    /// # Errors
    /// See [`HostError`]. After at most 15 s without `waited`, and a second or so more.
    pub fn sockets(
        &self,
        address: HostAddr,
        open: OpenSocket,
        waited: Duration,
    ) -> Result<Option<Arc<SocketGroup>>, HostError> {
        if let Some(group) = self.group(address) {
            return Ok(Some(group));
        }
        let _joining = self.joining.lock();
        if let Some(group) = self.group(address) {
            return Ok(Some(group));
        }
        if self.is_guest(address) {
            return Ok(None);
        }
        let group = self.obtain(address, open, waited)?;
        if group.is_some() {
            tracing::debug!(%address, "has the sockets of UDP port 4791");
        }
        Ok(group)
    }

    /// Makes the sockets of an address. Processes that ask for them meanwhile get the answer that they are coming.
    fn make_group(&self, address: HostAddr, open: OpenSocket) -> Result<Option<Arc<SocketGroup>>, HostError> {
        self.making.store(true, Ordering::Release);
        let made = group::create(address, open);
        let made = made.map(|made| made.map(|group| self.keep_group(address, group)));
        self.making.store(false, Ordering::Release);
        made
    }

    /// `None`: as a guest.
    fn obtain(
        &self,
        address: HostAddr,
        open: OpenSocket,
        waited: Duration,
    ) -> Result<Option<Arc<SocketGroup>>, HostError> {
        let begun = Instant::now();
        let elapsed = || waited + begun.elapsed();
        let (mut answer_patience, mut unanswered) = (ANSWER_PATIENCE, UnansweredHolders::default());
        let mut vanished = 0;
        // The user whose processes were asked to attend, and has the port since; how often others were asked after the time was up.
        let (mut asked, mut other_holders) = (None, 0);
        loop {
            self.lead();
            let names = self.others();
            let lonely = names.is_empty();
            // Processes that are all stopped aren't waited for beyond the time that they have.
            let left = JOIN_PATIENCE.saturating_sub(elapsed());
            let patience = if left.is_zero() { answer_patience } else { answer_patience.min(left) };
            let mut idle = || self.answer_requests();
            let pace = (patience, left.is_zero());
            let answer = handover::ask(&names, &mut unanswered, address, self.user, pace, &mut idle)?;
            if let SocketSearch::Group(group) = answer {
                return Ok(Some(self.keep_group(address, group)));
            }
            if let Some(group) = self.make_group(address, open)? {
                return Ok(Some(group));
            }
            answer_patience = (2 * answer_patience).min(MOST_ANSWER_PATIENCE);
            let is_late = elapsed() >= if lonely { LONELY_PATIENCE } else { JOIN_PATIENCE };
            let holder = group::holder(address);
            let same = holder.uid == Some(self.user.uid());
            // A process of the same user doesn't know of those in another user namespace, who have other numbers there.
            // A holder may end, and a process of a third user be faster than this one.
            if let Some(uid) = holder.uid
                && (!same || is_late && lonely)
                && (!is_late || asked != holder.uid && other_holders < MOST_OTHERS)
            {
                other_holders += u32::from(is_late);
                if self.become_guest(address, open, uid, waited) {
                    return Ok(None);
                }
                // The port may have changed hands more than once.
                asked = holder.uid.filter(|_| group::holder(address).uid == holder.uid);
                if is_late {
                    continue;
                }
            }
            if is_late {
                let indistinct =
                    holder.uid.is_some_and(|uid| self.user.is_ambiguous() && same || !self.trust.knows(uid));
                // A process of ours that has no name yet, or none any more, and that a busy machine keeps waiting; or one
                // that has let go of it since.
                let is_gone = holder.uid.is_none() && !holder.kernel_rxe && vanished < MOST_VANISHED;
                vanished += u32::from(is_gone);
                let patience = match answer {
                    _ if indistinct || !(same || is_gone) => Duration::ZERO,
                    SocketSearch::Silence => BUSY_PATIENCE,
                    SocketSearch::Nobody if same => ENDING_PATIENCE,
                    _ => JOIN_PATIENCE,
                };
                // What the last holder has let go of is tried once more, however long other holders were waited for.
                if elapsed() >= patience && !is_gone {
                    let holder = Holder { indistinct, is_own: same, ..holder };
                    let foreign = holder.uid.is_some() && !same;
                    return Err(match answer {
                        SocketSearch::Silence if !foreign => {
                            HostError::Unresponsive { address, stopped: false }
                        }
                        SocketSearch::Stopped if !foreign => {
                            HostError::Unresponsive { address, stopped: true }
                        }
                        _ => HostError::AddressInUse { address, holder },
                    });
                }
            }
            // Another process is just making the group, or closing it.
            self.answer_requests();
            group::pause();
        }
    }

    /// Takes the leader's name if it is free.
    fn lead(&self) {
        if self.is_leader() {
            return;
        }
        if let Ok(Some(listener)) = Name::leader(self.user.uid()).listen() {
            let mut leader = self.leader.write();
            if leader.is_none() && self.epoll.watch(listener.raw(), LEADER).is_ok() {
                *leader = Some(Arc::new(listener));
                tracing::debug!("leader of this host");
            }
        }
    }
}
