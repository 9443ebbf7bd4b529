//! Answers of the peer that have arrived in a ring and that no thread has read yet: the ACK timer doesn't count meanwhile.

use ferroce_hostlink::Link;
use ferroce_proto::Unanswered;
use std::sync::{Arc, Weak};

/// What was found unread when the ACK timer ran out. Records that come later aren't waited for, so traffic of other QPs can't keep a
/// request alive.
#[derive(Default)]
pub struct UnreadRecords {
    oldest: Unanswered,
    /// Ring positions that must be consumed before the timer counts.
    ends: Vec<(Weak<Link>, u64)>,
}

impl UnreadRecords {
    /// An answer to `oldest`, or to a packet after it, may lie in the rings of `links`, which lead to the peer.
    pub fn may_be_in_rings(&mut self, links: &[Arc<Link>], oldest: Unanswered) -> bool {
        if self.ends.is_empty() || self.oldest != oldest {
            let unread = |link: &Arc<Link>| Some((Arc::downgrade(link), link.unread()?));
            *self = Self { oldest, ends: links.iter().filter_map(unread).collect() };
        }
        // The ring of a dead link has been read, or can't be read any more.
        let is_left =
            |link: &Weak<Link>, end| link.upgrade().is_some_and(|link| !link.is_dead() && !link.is_read(end));
        self.ends.retain(|(link, end)| is_left(link, *end));
        !self.ends.is_empty()
    }
}
