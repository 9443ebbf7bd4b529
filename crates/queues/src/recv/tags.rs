//! Tag-matching shared receive queues: ibv_create_srq_ex(3) with IBV_SRQT_TM and ibv_post_srq_ops(3).
//!
//! In here: the list of tags, and what its operations and messages do to it. Operations end as they are posted.
//! Out of here: the headers of messages and the rendezvous, which are the transport's.

use super::{NewSrq, Srq, SrqAttr, SrqState};
use crate::cq::{Cq, WcTags};
use crate::limits::Limits;
use ferroce_mem::Pd;
use ferroce_proto::{TagInfo, Taken};
use ferroce_types::{Completion, Error, RecvWqe, Result, TagFlags, WcOpcode, WcStatus, invalid};
use ferroce_wire::{TagOperation, Tmh};
use std::sync::Arc;

/// Tags that a queue may hold.
pub const MAX_TAGS: u32 = 4096;
/// Operations on a list that a queue may be made for. None is ever outstanding: they end as they are posted.
pub const MAX_TAG_OPS: u32 = 32_768;
/// When this many unexpected messages haven't been handled, the next ones ask for a synchronization.
const PATIENCE: u32 = 1 << 14;

/// A tag and where the message goes that matches it.
#[derive(Clone, Debug)]
pub struct TagEntry {
    /// A message matches when its tag, masked, is this.
    pub tag: u64,
    /// What of a message's tag is looked at.
    pub mask: u64,
    /// Its buffer, and the number that its completions have.
    pub receive: RecvWqe,
}

/// What is done to a list of tags.
#[derive(Clone, Debug)]
pub enum TagOp {
    /// Appends a tag.
    Add(TagEntry),
    /// Takes the tag with this handle out.
    Remove(u32),
    /// Only sets the number of handled unexpected messages ([`TagRequest::handled`]).
    Sync,
}

/// An operation on a list of tags (`struct ibv_ops_wr`).
#[derive(Clone, Debug)]
pub struct TagRequest {
    /// Comes back in its completion.
    pub wr_id: u64,
    /// What to do.
    pub op: TagOp,
    /// It is reported.
    pub signaled: bool,
    /// How many unexpected messages the program has handled (IBV_OPS_TM_SYNC).
    pub handled: Option<u32>,
}

#[derive(Debug)]
struct ListedTag {
    handle: u32,
    entry: TagEntry,
}

/// The tags of one queue.
///
/// A message that finds no tag is *unexpected*: the program looks for its tag among those that it is about to add. So a tag
/// that is added before the program has handled all unexpected messages may be one of theirs, and matches nothing until
/// the program and the adapter agree on their number.
#[derive(Debug)]
pub(super) struct TagList {
    /// Those that match come first.
    entries: Vec<ListedTag>,
    /// How many match.
    matching: usize,
    limit: u32,
    /// Tags that were ever added.
    added: u64,
    /// Unexpected messages that came, and those that the program has reported as handled.
    unexpected: u32,
    handled: u32,
}

impl TagList {
    fn new(limit: u32) -> Self {
        Self { entries: Vec::new(), matching: 0, limit, added: 0, unexpected: 0, handled: 0 }
    }

    const fn is_synchronized(&self) -> bool {
        self.unexpected == self.handled
    }

    /// Lets every tag match if nothing speaks against it.
    fn match_all_if_synchronized(&mut self) {
        if self.is_synchronized() {
            self.matching = self.entries.len();
        }
    }

    /// # Errors
    /// [`Error::NoMemory`] when the list is full.
    fn add(&mut self, entry: TagEntry) -> Result<u32> {
        if self.entries.len() >= self.limit as usize {
            return Err(Error::NoMemory(format!("the list of {} tags is full", self.limit)));
        }
        // Never 0, and not the same again for a long time.
        let handle = (self.added % u64::from(u32::MAX)) as u32 + 1;
        self.added += 1;
        self.entries.push(ListedTag { handle, entry });
        Ok(handle)
    }

    /// Whether the tag was still there.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a handle that no tag has had.
    fn remove(&mut self, handle: u32) -> Result<bool> {
        if handle == 0 || u64::from(handle) > self.added {
            return invalid!("the handle {handle} is that of no tag");
        }
        let Some(at) = self.entries.iter().position(|entry| entry.handle == handle) else { return Ok(false) };
        self.take(at);
        Ok(true)
    }

    fn take(&mut self, at: usize) -> TagEntry {
        self.matching -= usize::from(at < self.matching);
        self.entries.remove(at).entry
    }

    /// Takes the first tag that a message's matches.
    fn find(&mut self, tag: u64) -> Option<RecvWqe> {
        let matches = |entry: &ListedTag| tag & entry.entry.mask == entry.entry.tag;
        let at = self.entries[..self.matching].iter().position(matches)?;
        Some(self.take(at).receive)
    }

    /// An unexpected message has come. Returns whether the program should synchronize, since it has left too many unhandled.
    fn note_unexpected(&mut self) -> bool {
        self.unexpected = self.unexpected.wrapping_add(1);
        self.unexpected.wrapping_sub(self.handled) > PATIENCE
    }
}

impl Srq {
    /// A new queue in `pd` that matches up to `max_tags` tags, for RC queue pairs. All its completions go to `cq`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes out of bounds or a completion queue of another device context; [`Error::NoMemory`] when
    /// there are `MAX_SRQ` queues.
    pub fn create_tagged(
        pd: &Arc<Pd>,
        cq: &Arc<Cq>,
        (max_tags, max_ops): (u32, u32),
        attr: SrqAttr,
        user_handle: usize,
    ) -> Result<Arc<Self>> {
        if max_tags > MAX_TAGS || max_ops > MAX_TAG_OPS {
            return invalid!(
                "{max_tags} tags and {max_ops} operations: at most {MAX_TAGS} and {MAX_TAG_OPS} are possible"
            );
        }
        if !cq.shares_context_with(pd) {
            return invalid!("a completion queue of another device context");
        }
        let tags = Box::new(TagList::new(max_tags));
        Ok(NewSrq::new(pd, attr)?.make(user_handle, Some(cq), None, Some(tags)))
    }

    /// Whether its messages begin with a tag-matching header.
    #[must_use]
    #[inline]
    pub fn matches_tags(&self) -> bool {
        self.matches_tags
    }

    /// Carries out an operation on the list of tags (ibv_post_srq_ops(3)), and returns the handle of a tag that was added.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a queue that doesn't match tags, too many elements or a handle that no tag has had;
    /// [`Error::NoMemory`] when the list is full. Nothing has changed then.
    pub fn post_tag(&self, request: TagRequest) -> Result<Option<u32>> {
        let TagRequest { wr_id, op, signaled, handled } = request;
        let mut shared = self.shared.lock();
        let (Some(tags), Some(cq)) = (&mut shared.tags, &self.completes_into) else {
            return invalid!("the shared receive queue doesn't match tags");
        };
        let (opcode, handle, found) = match op {
            TagOp::Add(entry) if entry.receive.sges.len() > Limits::get().srq_sge as usize => {
                let (count, most) = (entry.receive.sges.len(), Limits::get().srq_sge);
                return invalid!("{count} scatter elements, a tag takes {most}");
            }
            TagOp::Add(entry) => (WcOpcode::TmAdd, Some(tags.add(entry)?), true),
            TagOp::Remove(handle) => (WcOpcode::TmDel, None, tags.remove(handle)?),
            TagOp::Sync => (WcOpcode::TmSync, None, true),
        };
        if let Some(handled) = handled {
            tags.handled = handled;
        }
        tags.match_all_if_synchronized();
        if signaled {
            let status = if found { WcStatus::Success } else { WcStatus::TmErr };
            let flags = TagFlags { sync_required: !tags.is_synchronized(), ..TagFlags::default() };
            // While the list is locked: no message matches the tag before its completion is there. An overrun of the completion
            // queue is reported by the queue.
            let _ = cq.push(completion_of(wr_id, status, opcode, flags));
        }
        Ok(handle)
    }

    /// Takes what a message with this header goes to; `None` when no receive is posted.
    pub fn take_for(&self, header: &Tmh) -> Option<Taken> {
        let mut shared = self.shared.lock();
        let expectable = matches!(header.operation, TagOperation::Eager | TagOperation::Rendezvous);
        if expectable && let Some(receive) = shared.tags.as_mut()?.find(header.tag) {
            return Some(Taken { receive, matched: true, sync_required: false });
        }
        let receive = self.pop_from(&mut shared)?;
        let sync_required = expectable && shared.tags.as_mut()?.note_unexpected();
        Some(Taken { receive, matched: false, sync_required })
    }

    /// An unexpected message wasn't received after all.
    pub fn forget_unexpected(&self) {
        let SrqState { tags, .. } = &mut *self.shared.lock();
        if let Some(tags) = tags {
            tags.unexpected = tags.unexpected.wrapping_sub(1);
            tags.match_all_if_synchronized();
        }
    }
}

impl From<TagInfo> for WcTags {
    fn from(tm: TagInfo) -> Self {
        Self { tm, ..Self::default() }
    }
}

/// The completion of an operation, which is of no queue pair.
fn completion_of(wr_id: u64, status: WcStatus, opcode: WcOpcode, tags: TagFlags) -> Completion {
    Completion::new(wr_id, status, opcode).with_tags(tags)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(wr_id: u64, tag: u64, mask: u64) -> TagEntry {
        TagEntry { tag, mask, receive: RecvWqe { wr_id, sges: ferroce_types::SgeList::new() } }
    }

    fn list(entries: &[(u64, u64, u64)]) -> TagList {
        let mut list = TagList::new(4);
        for &(wr_id, tag, mask) in entries {
            list.add(entry(wr_id, tag, mask)).unwrap();
            list.match_all_if_synchronized();
        }
        list
    }

    #[test]
    fn the_first_tag_added_that_matches_is_taken() {
        let mut list = list(&[(1, 0x50, 0xf0), (2, 0x55, u64::MAX), (3, 0, 0)]);
        let mut find = |tag| list.find(tag).map(|receive| receive.wr_id);
        assert_eq!([find(0x55), find(0x55), find(0x55), find(0x55)], [Some(1), Some(2), Some(3), None]);
    }

    #[test]
    fn a_tag_with_bits_outside_of_its_mask_never_matches() {
        let mut list = list(&[(1, 0x15, 0x0f)]);
        assert!(list.find(0x15).is_none() && list.find(0x05).is_none());
    }

    #[test]
    fn tags_added_out_of_step_match_after_the_synchronization_only() {
        let mut list = list(&[(1, 1, u64::MAX)]);
        assert!(!list.note_unexpected());
        list.add(entry(2, 2, u64::MAX)).unwrap();
        list.match_all_if_synchronized();
        assert!(list.find(2).is_none() && list.find(1).is_some(), "only what was there before matches");
        list.handled = 2;
        list.match_all_if_synchronized();
        assert!(list.find(2).is_none(), "a wrong number");
        list.handled = 1;
        list.match_all_if_synchronized();
        assert!(list.find(2).is_some());
    }

    #[test]
    fn a_tag_that_is_gone_cannot_be_removed_and_one_that_never_was_is_an_error() {
        let mut list = list(&[(1, 1, u64::MAX), (2, 2, u64::MAX)]);
        list.find(1);
        assert_eq!(
            [list.remove(1).unwrap(), list.remove(2).unwrap(), list.remove(2).unwrap()],
            [false, true, false]
        );
        assert!(list.remove(3).is_err() && list.remove(0).is_err());
    }

    #[test]
    fn removing_keeps_what_matches_and_what_does_not_apart() {
        let mut list = list(&[(1, 1, u64::MAX), (2, 2, u64::MAX)]);
        list.note_unexpected();
        list.add(entry(3, 3, u64::MAX)).unwrap();
        list.match_all_if_synchronized();
        assert!(list.remove(1).unwrap());
        assert!(list.find(3).is_none() && list.find(2).is_some() && list.find(3).is_none());
    }

    #[test]
    fn a_full_list_takes_no_more() {
        let mut list = list(&[(1, 1, 1); 4]);
        assert_eq!(list.add(entry(5, 1, 1)).unwrap_err().errno(), libc::ENOMEM);
        list.find(1);
        assert!(list.add(entry(5, 1, 1)).is_ok());
    }

    #[test]
    fn many_unexpected_messages_ask_for_a_synchronization() {
        let mut list = list(&[]);
        list.unexpected = PATIENCE - 1;
        assert!(!list.note_unexpected() && list.note_unexpected());
    }
}
