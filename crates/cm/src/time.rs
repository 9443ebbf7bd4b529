//! Times of the communication manager.

use std::time::Duration;

/// The time of a 5-bit field of a message, roughly 4.096 µs · 2^n, in the whole milliseconds that Linux takes for it.
pub(crate) const fn of_code(code: u8) -> Duration {
    Duration::from_millis(1 << (if code > 31 { 31 } else { code }).saturating_sub(8))
}

/// How long this side may take for an answer, a field of its requests: 4 s.
pub(crate) const RESPONSE_TIMEOUT: u8 = 20;
/// How often a message is sent again.
pub(crate) const MAX_RETRIES: u8 = 15;
/// What a message of acknowledgement (MRA) asks for: 65 s.
pub(crate) const SERVICE_TIMEOUT: u8 = 24;
/// The longest time of a peer's message that is believed: 65 s.
const LONGEST: u8 = 24;
/// Packet lifetime of paths that nothing is known about: 1 s.
pub(crate) const PACKET_LIFE: u8 = 18;

/// How long a process that dies may still have its sockets when others know, and its last words be under way.
pub(crate) const LAST_BREATH: Duration = Duration::from_millis(100);

/// A time that a peer's message asks for, at most 65 s.
pub(crate) fn granted(code: u8) -> Duration {
    of_code(code.min(LONGEST))
}

/// How long an MRA with this service timeout defers the next repetition.
pub(crate) fn deferred(service_timeout: u8) -> Duration {
    granted(service_timeout) + 2 * of_code(PACKET_LIFE)
}

/// The bound of the wait for an answer to a message that is sent again `retries` times, whatever the peer sends meanwhile: each of
/// them is deferred by one MRA at most.
pub(crate) fn longest_wait(interval: Duration, retries: u8) -> Duration {
    (u32::from(retries) + 1) * interval.max(deferred(LONGEST))
}

/// How long to wait for the answer to a message: there, the peer's time for it, and back.
pub(crate) fn round_trip(packet_life: u8, response_timeout: u8) -> Duration {
    2 * of_code(packet_life) + of_code(response_timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_linux() {
        let ms = |code| of_code(code).as_millis();
        assert_eq!([0, 8, 10, 18, 20, 22].map(ms), [1, 1, 4, 1024, 4096, 16384]);
        assert_eq!(round_trip(18, 20).as_millis(), 6144);
        assert_eq!(of_code(255), of_code(31));
        assert_eq!(granted(31), of_code(24));
        assert_eq!(longest_wait(of_code(24), 15).as_secs(), 16 * 67 + 9);
    }
}
