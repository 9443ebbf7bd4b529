//! What the network says of packets that were sent (ICMP), for whoever wants to know why nothing comes back. Nothing is decided by it:
//! anybody can send such a message.

use ferroce_os::sys;
use ferroce_types::{HostAddr, Unreachable};
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// Destinations of which it's kept.
const KEPT: usize = 64;

/// The last word on each destination.
#[derive(Debug, Default)]
pub(super) struct Heard(Vec<(IpAddr, Unreachable, Instant)>);

impl Heard {
    /// Takes what there is of a sending socket's packets. False: nothing.
    pub(super) fn take(&mut self, fd: RawFd) -> bool {
        for taken in 0..KEPT {
            let Ok(returned) = sys::receive_returned(fd) else { return taken > 0 };
            let said = returned.and_then(|returned| {
                let said = match returned.origin {
                    libc::SO_EE_ORIGIN_ICMP => Unreachable::of_icmp(returned.kind, returned.code),
                    libc::SO_EE_ORIGIN_ICMP6 => Unreachable::of_icmpv6(returned.kind, returned.code),
                    _ => None,
                };
                Some((HostAddr::from(returned.to).ip(), said?, Instant::now()))
            });
            if let Some(said) = said {
                self.note(said);
            }
        }
        true
    }

    fn note(&mut self, said: (IpAddr, Unreachable, Instant)) {
        self.0.retain(|(of, ..)| *of != said.0);
        if self.0.len() == KEPT {
            self.0.remove(0);
        }
        self.0.push(said);
    }

    /// What was said of a destination in the last time.
    pub(super) fn of(&self, ip: IpAddr, within: Duration) -> Option<Unreachable> {
        let last = self.0.iter().find(|(of, _, at)| *of == ip && at.elapsed() <= within);
        last.map(|(_, said, _)| *said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn the_last_word_on_a_destination_counts_and_the_oldest_gives_way() {
        let mut heard = Heard::default();
        let ip = |n: usize| IpAddr::from(Ipv4Addr::new(10, 0, 0, n as u8));
        for n in 0..=KEPT {
            heard.note((ip(n), Unreachable::Host, Instant::now()));
        }
        heard.note((ip(5), Unreachable::Port, Instant::now()));
        let of = |n| heard.of(ip(n), Duration::from_secs(60));
        assert_eq!([of(0), of(1), of(5)], [None, Some(Unreachable::Host), Some(Unreachable::Port)]);
        assert_eq!(heard.of(ip(5), Duration::ZERO), None);
        assert_eq!(heard.0.len(), KEPT);
    }
}
