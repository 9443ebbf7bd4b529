//! Answers that have come and that nobody has had the time to read: the ACK timer doesn't count meanwhile.

use crate::fabric::LocalPacket;
use ferroce_engine::Inbox;
use ferroce_hostlink::Link;
use ferroce_proto::Unanswered;
use std::sync::{Arc, Weak};

/// What was found unread when the ACK timer ran out. Records that come later aren't waited for, so traffic of other QPs can't keep a
/// request alive.
#[derive(Default)]
pub(super) struct Unread {
    oldest: Unanswered,
    /// Ring positions that must be consumed before the timer counts.
    ends: Vec<(Weak<Link>, u64)>,
    /// How many packets have to be taken out of the inbox.
    packets: Option<usize>,
}

impl Unread {
    /// An answer to `oldest`, or to a packet after it, may lie in the rings of `links`, which lead to the peer.
    pub(super) fn may_be_in_rings(&mut self, links: &[Arc<Link>], oldest: Unanswered) -> bool {
        if self.ends.is_empty() || self.oldest != oldest {
            let unread = |link: &Arc<Link>| Some((Arc::downgrade(link), link.unread()?));
            *self = Self { oldest, ends: links.iter().filter_map(unread).collect(), packets: None };
        }
        // What a peer has left that is gone has been read, or can't be.
        let is_left =
            |link: &Weak<Link>, end| link.upgrade().is_some_and(|link| !link.is_dead() && !link.is_read(end));
        self.ends.retain(|(link, end)| is_left(link, *end));
        !self.ends.is_empty()
    }

    /// The same of the inbox of the QP.
    pub(super) fn may_be_in_inbox(&mut self, inbox: &Inbox<LocalPacket>, oldest: Unanswered) -> bool {
        if self.packets.is_none() || self.oldest != oldest {
            *self = Self { oldest, ends: Vec::new(), packets: Some(inbox.sent()) };
        }
        let is_left = |&packets: &usize| packets.wrapping_sub(inbox.taken()).cast_signed() > 0;
        self.packets = self.packets.filter(is_left);
        self.packets.is_some()
    }
}
