//! The accounts that a watcher keeps: of other users' processes a bounded amount, since any user can start processes that report what
//! they like.

use super::ProcessAnswer;
use ferroce_watch::{CompletionQueue, DeviceSnapshot, Process, QueuePair, Region, SharedReceiveQueue};
use std::collections::BTreeMap;
use std::mem::size_of;

/// Bytes that the accounts of another user's processes may take, as they come and as they are kept.
const OF_A_USER: usize = 64 << 20;
/// Bytes that those of all other users may take.
const OF_ALL: usize = 512 << 20;

/// How much has been read.
pub struct KeptAccounts {
    own: u32,
    of_users: BTreeMap<u32, usize>,
    of_all: usize,
}

impl KeptAccounts {
    /// For a watcher of user `own`.
    pub fn new(own: u32) -> Self {
        Self { own, of_users: BTreeMap::new(), of_all: 0 }
    }

    /// Reads an account of a process of user `uid`.
    pub fn read(&mut self, uid: u32, bytes: &[u8]) -> ProcessAnswer {
        let of_user = self.of_users.entry(uid).or_default();
        if uid != self.own && (*of_user >= OF_A_USER || self.of_all >= OF_ALL) {
            return ProcessAnswer::TooMuch;
        }
        let account = Process::from_bytes(bytes);
        let taken = bytes.len() + account.as_ref().map_or(0, size_of_entries);
        *of_user += taken;
        if uid != self.own {
            self.of_all += taken;
        }
        account.map_or(ProcessAnswer::Strange, |account| ProcessAnswer::Account(Box::new(account)))
    }
}

/// Bytes of an account's lists, without their texts.
fn size_of_entries(account: &Process) -> usize {
    account.devices.len() * size_of::<DeviceSnapshot>()
        + account.queue_pairs.len() * size_of::<QueuePair>()
        + account.completion_queues.len() * size_of::<CompletionQueue>()
        + account.shared_receive_queues.len() * size_of::<SharedReceiveQueue>()
        + account.regions.len() * size_of::<Region>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_watch::MOST;

    /// The accounts that are kept of so many that a user's processes report.
    fn kept(uid: u32, account: &Process) -> usize {
        let (mut kept, bytes) = (KeptAccounts::new(7), account.to_bytes());
        (0..1000).filter(|_| matches!(kept.read(uid, &bytes), ProcessAnswer::Account(_))).count()
    }

    #[test]
    fn of_another_user_a_bounded_amount_is_kept() {
        let small = Process::default();
        assert_eq!(kept(8, &small), 1000);
        let large = Process { queue_pairs: vec![QueuePair::default(); MOST], ..Process::default() };
        let (bytes, entries) = (large.to_bytes().len(), MOST * size_of::<QueuePair>());
        assert_eq!(kept(8, &large), OF_A_USER.div_ceil(bytes + entries));

        let mut kept = KeptAccounts::new(7);
        let nonsense = vec![b' '; 16 << 20];
        for _ in 0..4 {
            assert!(matches!(kept.read(8, &nonsense), ProcessAnswer::Strange));
        }
        assert!(matches!(kept.read(8, &small.to_bytes()), ProcessAnswer::TooMuch));
        assert!(
            matches!(kept.read(9, &small.to_bytes()), ProcessAnswer::Account(_)),
            "another user has room"
        );
        for uid in 10..100 {
            kept.read(uid, &nonsense);
        }
        assert!(
            matches!(kept.read(9, &small.to_bytes()), ProcessAnswer::TooMuch),
            "and all users together have a bound"
        );
        assert!(
            matches!(kept.read(7, &small.to_bytes()), ProcessAnswer::Account(_)),
            "which isn't the watcher's own"
        );
    }
}
