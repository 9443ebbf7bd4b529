//! What completions contain besides.

use ferroce_buffers::{Stamp, Stamped};
use sealed::Sealed;

/// What the completions of a queue contain besides: nothing, a [`Timestamp`], a [`WallClock`], or two of these.
/// [`Domain::cq_with`](crate::verbs::Domain::cq_with) makes a queue with it.
pub trait Extra: Sealed + Copy + Send + Sync + 'static {}

mod sealed {
    use super::{Stamp, Stamped};

    pub trait Sealed {
        const STAMPED: Stamped;
        fn of(stamp: Stamp) -> Self;
    }
}

impl Extra for () {}

impl Sealed for () {
    const STAMPED: Stamped = Stamped { clock: false, wall_clock: false };

    fn of(_: Stamp) -> Self {}
}

/// When a request ended, by the clock of the device, in its units: nanoseconds on Ferroce, virtual ones in a simulation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Timestamp(pub u64);

impl Extra for Timestamp {}

impl Sealed for Timestamp {
    const STAMPED: Stamped = Stamped { clock: true, wall_clock: false };

    fn of(stamp: Stamp) -> Self {
        Self(stamp.clock)
    }
}

/// When a request ended, in nanoseconds since 1970; in a simulation, since its beginning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WallClock(pub u64);

impl Extra for WallClock {}

impl Sealed for WallClock {
    const STAMPED: Stamped = Stamped { clock: false, wall_clock: true };

    fn of(stamp: Stamp) -> Self {
        Self(stamp.wall_clock)
    }
}

impl<A: Extra, B: Extra> Extra for (A, B) {}

impl<A: Extra, B: Extra> Sealed for (A, B) {
    const STAMPED: Stamped = Stamped {
        clock: A::STAMPED.clock || B::STAMPED.clock,
        wall_clock: A::STAMPED.wall_clock || B::STAMPED.wall_clock,
    };

    fn of(stamp: Stamp) -> Self {
        (A::of(stamp), B::of(stamp))
    }
}
