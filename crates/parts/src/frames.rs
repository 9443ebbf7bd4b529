//! Queue pairs of Ethernet frames, which a crate above makes: what the adapter asks of them.

use ferroce_engine::Source;
use ferroce_mem::Owner;
use ferroce_os::fork::InChild;
use ferroce_types::Instant;
use std::sync::OnceLock;

/// All raw packet queue pairs of the process, and their sockets.
pub trait FrameQps: Sync {
    /// There is a socket to read.
    fn has_sockets(&self) -> bool;

    /// Takes what has arrived. Returns whether there was anything.
    fn receive(&self) -> bool;

    /// The deadline of the queue pair with this number has come. Returns whether there was anything to do.
    fn due(&self, number: u32) -> bool;

    /// The device context `owner` is closed (ibv_close_device(3)): its queue pairs send and receive nothing any more. Returns how many
    /// it has.
    fn end_with(&self, owner: &dyn Owner) -> usize;

    /// The sockets are lost: no queue pair can go on.
    fn give_up(&self);

    /// In the child of a fork: frees critical regions from threads that aren't here.
    fn after_fork(&self, child: &InChild);
}

static FRAME_QPS: OnceLock<&'static dyn FrameQps> = OnceLock::new();

/// Gives the raw packet queue pairs their turns from here on.
pub fn drive_frames(qps: &'static dyn FrameQps) {
    FRAME_QPS.get_or_init(|| qps);
}

/// The raw packet queue pairs, once there has been one.
#[inline]
pub fn frame_qps() -> Option<&'static dyn FrameQps> {
    FRAME_QPS.get().copied()
}

/// Their sockets as a source.
pub struct FrameSource;

impl Source for FrameSource {
    #[inline]
    fn poll(&self, _now: Instant) -> bool {
        frame_qps().is_some_and(|qps| qps.has_sockets() && qps.receive())
    }

    #[inline]
    fn is_beyond_memory(&self) -> bool {
        frame_qps().is_some_and(FrameQps::has_sockets)
    }

    fn poll_all(&self, _now: Instant) {
        if let Some(qps) = frame_qps() {
            qps.receive();
        }
    }
}
