//! Completions, as each backend reports them.

use crate::Fault;
use ferroce_types::Completion;

/// When a request ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamp {
    /// By the device's clock, in its units.
    pub clock: u64,
    /// In nanoseconds since 1970.
    pub wall_clock: u64,
}

/// What of a [`Stamp`] a completion queue is made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stamped {
    /// [`Stamp::clock`].
    pub clock: bool,
    /// [`Stamp::wall_clock`].
    pub wall_clock: bool,
}

/// A completion of an adapter.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// What the adapter reports. Of a request that has failed, only the numbers of the request and of its queue pair count.
    pub completion: Completion,
    /// When the request ended, if the completion queue was made for that.
    pub stamp: Stamp,
    /// Why the request has failed, if it has.
    pub fault: Option<Fault>,
}
