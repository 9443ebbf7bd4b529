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

#[cfg(test)]
mod tests {
    use super::super::group;
    use super::*;

    /// The sockets of an address, and the ends by which they get something.
    fn sockets() -> (Arc<SocketGroup>, Vec<EngineFd>) {
        let pairs = (0..GROUP_SIZE).map(|_| sys::socket_pair(libc::SOCK_DGRAM).unwrap());
        let (own, peers): (Vec<_>, Vec<_>) = pairs.map(|[own, peer]| (own, peer)).unzip();
        (group::boxed(own).expect("as many as there are").into(), peers)
    }

    /// What is readable, but for the timer.
    fn readable(epoll: &Epoll) -> Vec<u64> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let ready = sys::epoll_wait(epoll.raw(), &mut events, Some(Duration::ZERO)).unwrap();
        let mut readable: Vec<u64> = events[..ready].iter().map(|event| event.u64).collect();
        readable.retain(|&data| data != LEASES_TIMER);
        readable.sort_unstable();
        readable
    }

    #[test]
    fn sockets_are_read_that_a_guest_has_asked_for_and_until_its_lease_ends() {
        let (attendance, epoll) = (Attendance::default(), Epoll::new().unwrap());
        let addresses = ["10.0.0.1", "10.0.0.2"].map(|ip| HostAddr::new(ip.parse().unwrap(), 0));
        let groups = [(); 2].map(|()| sockets());
        groups.iter().flat_map(|(_, peers)| peers).for_each(|peer| sys::send_byte(peer.raw()));
        let group = |address| {
            let at = addresses.iter().position(|known| *known == address)?;
            Some(groups[at].0.clone())
        };
        let attend =
            |at: usize, steerings| attendance.attend(addresses[at], &groups[at].0, steerings, &epoll);
        attend(0, 0);
        assert!(readable(&epoll).is_empty() && attendance.0.lock().timer.is_none());
        let expected = |at: u64, steering: u64| at << 32 | ATTENDED | steering;
        attend(0, 1 << 3 | 1 << 63);
        attend(1, 1 << 5);
        let all = [expected(0, 3), expected(0, 63), expected(1, 5)];
        assert_eq!(readable(&epoll), all);
        assert_eq!(
            [0, 1, 2].map(|place| attendance.address(place)),
            [Some(addresses[0]), Some(addresses[1]), None]
        );
        let age = |at: usize, steering: usize| {
            let mut attended = attendance.0.lock();
            let lease = &mut attended.addresses[at].1[steering];
            *lease =
                Some(lease.expect("a lease").checked_sub(2 * LEASE).expect("the machine runs for longer"));
        };
        // A lease that is renewed begins anew.
        age(0, 63);
        attend(0, 1 << 63);
        age(0, 3);
        attendance.end_leases(&group, &epoll);
        assert_eq!(readable(&epoll), all[1..]);
        assert!(attendance.0.lock().timer.is_some());
        age(0, 63);
        age(1, 5);
        attendance.end_leases(&group, &epoll);
        assert!(readable(&epoll).is_empty() && attendance.0.lock().timer.is_none());
        // One that has ended is given again.
        attend(0, 1 << 3);
        assert_eq!(readable(&epoll), all[..1]);
    }
}
