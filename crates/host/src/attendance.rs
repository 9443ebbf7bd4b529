//! The holder's side of guests: sockets that this process reads because a guest has asked for it.
//!
//! The processes of a user read the sockets that packets for their own slots come to. A guest's slot may steer to one that nobody
//! of them reads: the guest asks one of them to, again and again, and it does for two seconds each time. Anybody may ask, since nobody
//! gets anything by it: a packet goes to who holds the name of its slot.

use super::{ATTENDED, Host, LEASES_TIMER};
use ferroce_os::sync::{Mutex, class};
use ferroce_os::sys::{self, EngineFd};
use ferroce_types::{GROUP_SIZE, HostAddr};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// How long a socket is read after a guest has asked for it.
const LEASE: Duration = Duration::from_secs(2);

/// Sockets that are read for guests.
#[derive(Default)]
pub(super) struct Attendance(Mutex<class::Attendance, Attended>);

#[derive(Default)]
struct Attended {
    /// Until when each socket of an address is read. An address keeps its place.
    addresses: Vec<(HostAddr, [Option<Instant>; GROUP_SIZE])>,
    /// Runs while there are any.
    timer: Option<EngineFd>,
}

impl Host {
    /// Reads these sockets of an address for a while. Whether this process has the address's sockets.
    pub(super) fn attend(&self, address: HostAddr, steerings: u64) -> bool {
        let Some(group) = self.groups.read().get(&address).cloned() else { return false };
        let mut attended = self.attendance.0.lock();
        let known = attended.addresses.iter().position(|(at, _)| *at == address);
        let place = known.unwrap_or_else(|| {
            attended.addresses.push((address, [None; GROUP_SIZE]));
            attended.addresses.len() - 1
        });
        let until = Instant::now() + LEASE;
        for (steering, lease) in attended.addresses[place].1.iter_mut().enumerate() {
            if steerings & 1 << steering == 0 {
                continue;
            }
            let data = (place as u64) << 32 | ATTENDED | steering as u64;
            if lease.is_some() || self.watch(group[steering].raw(), data).is_ok() {
                *lease = Some(until);
            }
        }
        if attended.timer.is_none()
            && steerings != 0
            && let Ok(timer) = sys::periodic_timer(LEASE)
            && self.watch(timer.raw(), LEASES_TIMER).is_ok()
        {
            attended.timer = Some(timer);
        }
        true
    }

    /// Ends the reading of sockets that no guest has asked for lately.
    pub(super) fn end_leases(&self) {
        let mut attended = self.attendance.0.lock();
        if let Some(timer) = &attended.timer {
            timer.end_period();
        }
        let (now, groups) = (Instant::now(), self.groups.read());
        let mut left = false;
        for (address, leases) in &mut attended.addresses {
            let fd = |steering: usize| -> Option<RawFd> { Some(groups.get(address)?[steering].raw()) };
            for (steering, lease) in leases.iter_mut().enumerate() {
                if lease.take_if(|until| *until < now).is_some()
                    && let Some(fd) = fd(steering)
                {
                    // Fails only if the program has closed it.
                    let _ = sys::epoll_control(self.epoll.raw(), libc::EPOLL_CTL_DEL, fd, 0, 0);
                }
                left |= lease.is_some();
            }
        }
        if !left {
            attended.timer = None;
        }
    }

    /// The address of an attended socket that is readable.
    pub(super) fn attended_address(&self, place: usize) -> Option<HostAddr> {
        self.attendance.0.lock().addresses.get(place).map(|(address, _)| *address)
    }
}
