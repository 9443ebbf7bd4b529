//! The adapter's clock: CLOCK_MONOTONIC in nanoseconds. Completions are stamped with it (ibv_create_cq_ex(3)), and
//! ibv_query_rt_values_ex(3) reads it.

use ferroce_types::Instant;

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

/// A count of the processor that goes on at a steady rate: cheaper than the clock.
#[must_use]
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every such processor has the instruction; a thread that may not use it may not read the clock either.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: reads a register.
        unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
        ticks
    }
}

/// Ticks of half a millisecond at most: the time-stamp counters of x86-64 have 1 to 5 GHz, which makes 0.5 to 0.1 ms.
#[must_use]
#[inline]
pub fn ticks_of_half_millisecond_at_most() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        500_000
    }
    #[cfg(target_arch = "aarch64")]
    {
        let frequency: u64;
        // SAFETY: reads a register.
        unsafe { std::arch::asm!("mrs {}, cntfrq_el0", out(reg) frequency, options(nomem, nostack, pure)) };
        frequency / 2000
    }
}

#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid timespec to write to; both clocks always exist.
    unsafe { libc::clock_gettime(clock, &raw mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}
