//! Asking the host's other processes for an interface's GID table, of which each keeps the history.

use super::handover::GidQuestion;
use super::names::{self, Name};
use super::user::User;
use std::time::Duration;

/// What the leader has, that is asked for a GID table, before others are asked; what all of them have; and how many.
const LEADER_PATIENCE: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_millis(50);
const ASKED: usize = 8;

/// What the host's processes have to tell of an interface's GID table; `None` when nobody has one. Takes long only when
/// nobody but a stopped process might have.
pub(crate) fn ask_for_gids(interface: u32) -> Option<Vec<u8>> {
    let user = User::current();
    let mut question = GidQuestion::new(interface, user);
    match question.ask(&Name::leader(user.uid())) {
        // Without a leader there is nobody, or somebody is just about to lead.
        Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => return None,
        Ok(()) | Err(_) => {}
    }
    if let Some(table) = question.answer(LEADER_PATIENCE) {
        return Some(table);
    }
    for slot in names::taken_slots(user.uid())?.into_iter().take(ASKED) {
        // Who has gone meanwhile has nothing to tell.
        let _ = question.ask(&Name::slot(user.uid(), slot));
    }
    question.answer(PATIENCE)
}
