//! Answers that have come through shared memory and that nobody has had the time to read: the ACK timer doesn't count for them.

use ferroce_hostlink::Link;
use ferroce_proto::Unanswered;
use std::sync::Arc;

/// What was found unread when the ACK timer ran out.
#[derive(Default)]
pub(super) struct Unread {
    oldest: Unanswered,
    /// Where what was unread ended, in the rings that aren't known to have been read up to there.
    ends: Vec<(Arc<Link>, u64)>,
}

impl Unread {
    /// An answer to `oldest`, or to a packet after it, may lie in the rings of `links`, which lead to the peer. Whatever comes there
    /// for other QPs, that is over when what was there at the first call with this `oldest` has been dealt with.
    pub(super) fn may_hold_answer(&mut self, links: &[Arc<Link>], oldest: Unanswered) -> bool {
        if self.ends.is_empty() || self.oldest != oldest {
            let unread = |link: &Arc<Link>| Some((link.clone(), link.unread()?));
            *self = Self { oldest, ends: links.iter().filter_map(unread).collect() };
        }
        // What a peer has left that is gone has been read, or can't be.
        self.ends.retain(|(link, end)| !link.is_dead() && !link.is_read(*end));
        !self.ends.is_empty()
    }
}
