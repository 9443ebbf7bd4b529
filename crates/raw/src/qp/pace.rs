//! The rate that a program sets for what a raw QP sends (ibv_modify_qp_rate_limit(3)): of frames with their check sequences.

use super::RawQp;
use ferroce_parts::check_rate;
use ferroce_proto::{RateLimit, Throttle};
use ferroce_types::{Instant, QpState, Result, invalid};
use std::sync::Arc;

/// Bytes of a frame's check sequence.
const CHECK: u64 = 4;

/// The limit, and what has gone under it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SendPace {
    rate: Option<RateLimit>,
    throttle: Throttle,
}

impl SendPace {
    pub(super) fn limit(&mut self, kbps: u32, burst: u32) {
        self.rate = RateLimit::new(kbps, burst);
    }

    pub(super) fn kbps(&self) -> u32 {
        self.rate.map_or(0, |rate| rate.kbps.get())
    }

    /// May a frame of this length go now?
    ///
    /// # Errors
    /// When to ask again.
    pub(super) fn take(&mut self, now: Instant, length: usize) -> std::result::Result<(), Instant> {
        self.throttle.ask(now, self.rate)?;
        self.throttle.spent(now, length as u64 + CHECK, self.rate);
        Ok(())
    }
}

impl RawQp {
    /// Limits what the QP sends (ibv_modify_qp_rate_limit(3)): thousands of bits a second, 0 for no limit, and bytes at
    /// once, 0 for the adapter's choice.
    ///
    /// # Errors
    /// [`Error::Invalid`](ferroce_types::Error::Invalid) for a rate above [`MAX_RATE`](ferroce_parts::MAX_RATE), a burst without a rate,
    /// and in a state where nothing is sent; [`Error::NotSupported`](ferroce_types::Error::NotSupported) with receive-side scaling.
    pub fn limit_rate(self: &Arc<Self>, rate_limit: u32, max_burst: u32) -> Result<()> {
        self.queue()?;
        check_rate(rate_limit, max_burst)?;
        let mut send = self.send.lock();
        let state = self.state_of(&send);
        if !matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            return invalid!("a rate limit in state {state}");
        }
        send.pace.limit(rate_limit, max_burst);
        // What waited for the old limit waits no longer.
        self.transmit(&mut send);
        Ok(())
    }
}
