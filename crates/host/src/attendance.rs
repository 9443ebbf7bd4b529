//! The holder's side of guests: sockets that this process reads at the request of a guest.
//!
//! The processes of a user read the sockets to which their own slots steer. A guest's slot may steer to a socket that none of them
//! reads. So the guest repeats a request to one of them, which reads the socket for two seconds each time. A process of any user
//! may send the request and gains nothing by it: a packet goes to the holder of its slot's name.

use super::epoll::{ATTENDED, Epoll, LEASES_TIMER};
use super::group::SocketGroup;
use ferroce_os::sync::{Mutex, class};
use ferroce_os::sys::{self, EngineFd};
use ferroce_types::{GROUP_SIZE, HostAddr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a socket is read after a guest has asked for it.
const LEASE: Duration = Duration::from_secs(2);

/// Sockets that are read for guests.
#[derive(Default)]
pub(super) struct Attendance(Mutex<class::Attendance, AttendedSockets>);

#[derive(Default)]
struct AttendedSockets {
    /// Until when each socket of an address is read. An address keeps its place.
    addresses: Vec<(HostAddr, [Option<Instant>; GROUP_SIZE])>,
    /// Runs while there are any.
    timer: Option<EngineFd>,
}

impl Attendance {
    /// Reads these sockets of an address, which are in `group`, for a while.
    pub(super) fn attend(&self, address: HostAddr, group: &SocketGroup, steerings: u64, epoll: &Epoll) {
        let mut attended = self.0.lock();
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
            if lease.is_some() || epoll.watch(group[steering].raw(), data).is_ok() {
                *lease = Some(until);
            }
        }
        if attended.timer.is_none()
            && steerings != 0
            && let Ok(timer) = sys::periodic_timer(LEASE)
            && epoll.watch(timer.raw(), LEASES_TIMER).is_ok()
        {
            attended.timer = Some(timer);
        }
    }

    /// Ends the reading of sockets that no guest has asked for lately.
    pub(super) fn end_leases(&self, group: &dyn Fn(HostAddr) -> Option<Arc<SocketGroup>>, epoll: &Epoll) {
        let mut attended = self.0.lock();
        if let Some(timer) = &attended.timer {
            timer.end_period();
        }
        let now = Instant::now();
        let mut left = false;
        for (address, leases) in &mut attended.addresses {
            let fd = |steering: usize| -> Option<RawFd> { Some(group(*address)?[steering].raw()) };
            for (steering, lease) in leases.iter_mut().enumerate() {
                if lease.take_if(|until| *until < now).is_some()
                    && let Some(fd) = fd(steering)
                {
                    // Fails only if the program has closed it.
                    let _ = epoll.unwatch(fd);
                }
                left |= lease.is_some();
            }
        }
        if !left {
            attended.timer = None;
        }
    }

    /// The address of an attended socket that is readable.
    pub(super) fn address(&self, place: usize) -> Option<HostAddr> {
        self.0.lock().addresses.get(place).map(|(address, _)| *address)
    }
}
