//! What is planned for a later moment.

use crate::adapter::CompletedRequest;

/// What befalls hosts and the network, by the hosts' numbers.
#[derive(Clone, Debug)]
pub(crate) enum Planned {
    Crash(usize),
    Restart(usize),
    Pause(usize),
    Resume(usize),
    Partition(Vec<usize>, Vec<usize>),
    Heal,
}

/// What happens at a moment, beside packets and the timers of queue pairs.
#[derive(Debug)]
pub(crate) enum Due {
    /// A queue pair places some of the bytes that it has received.
    Place { host: usize, qpn: u32 },
    /// A queue pair goes on after a pause.
    Turn { host: usize, qpn: u32 },
    /// A completion that was late.
    Completion { host: usize, cq: u32, ended: CompletedRequest },
    /// Something befalls hosts, unless the run leaves out what the seed has planned.
    Planned(Planned),
}
