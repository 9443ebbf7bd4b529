//! The adapter's clock: CLOCK_MONOTONIC in nanoseconds. Completions are stamped with it (ibv_create_cq_ex(3)), and
//! ibv_query_rt_values_ex(3) reads it.

use ferroce_proto::Instant;

/// Its frequency in kHz (`hca_core_clock` of ibv_query_device_ex(3)).
pub const KHZ: u64 = 1_000_000;
/// The bits of a stamp that count (`completion_timestamp_mask`).
pub const MASK: u64 = u64::MAX;

/// The present.
#[must_use]
#[inline]
pub fn now() -> Instant {
    Instant(read(libc::CLOCK_MONOTONIC))
}

/// Nanoseconds since 1970.
#[must_use]
pub fn wall_clock() -> u64 {
    read(libc::CLOCK_REALTIME)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid timespec to write to; both clocks always exist.
    unsafe { libc::clock_gettime(clock, &raw mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}
