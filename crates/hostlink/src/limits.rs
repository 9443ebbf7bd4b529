//! How many links a process has: each takes descriptors and memory.

use super::link::Link;
use ferroce_os::sys;
use std::sync::Arc;

/// Links with one process, at most: each side may make one for each of the other's slots that it finds first.
const MAX_LINKS: usize = 8;
/// Links with processes of other PID namespaces, which can't be distinguished.
const MAX_UNSEEN: usize = 256;
/// Links that processes of one other user have made.
const MAX_OF_OTHER_USER: usize = 64;
/// Descriptors of a link: connection, process, memory, directory.
const DESCRIPTORS: usize = 4;
/// Links that processes of other users have made take this part of all descriptors.
const PART_OF_OTHERS: usize = 4;

/// Whether one more link finds its place among those that there are.
pub(super) fn has_room(links: &[Arc<Link>], link: &Link) -> bool {
    let count = |counts: &dyn Fn(&Link) -> bool| links.iter().filter(|other| counts(other)).count();
    if count(&|other| other.pid == link.pid) >= if link.pid == 0 { MAX_UNSEEN } else { MAX_LINKS } {
        return false;
    }
    if !link.is_made_by_other_user() {
        return true;
    }
    let of_others = count(&Link::is_made_by_other_user);
    let of_user = count(&|other| other.is_made_by_other_user() && other.other_user == link.other_user);
    let descriptors = usize::try_from(sys::descriptor_limit()).unwrap_or(usize::MAX);
    of_user < MAX_OF_OTHER_USER && of_others < descriptors / (PART_OF_OTHERS * DESCRIPTORS)
}
