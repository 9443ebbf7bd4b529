//! ICMP errors for packets that were sent, to explain why no answer comes. They are a hint only and decide nothing: any host can
//! send one.

use ferroce_os::sys;
use ferroce_types::{HostAddr, Unreachable};
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// The most destinations whose errors are kept.
const KEPT: usize = 64;

/// The last ICMP error of each destination.
#[derive(Debug, Default)]
pub(super) struct Heard(Vec<(IpAddr, Unreachable, Instant)>);

impl Heard {
    /// Reads the errors that wait at a sending socket. False: there was none.
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

    /// The destination's last error, if it isn't older than `within`.
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
