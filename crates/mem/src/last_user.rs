//! Waiting for those that use something which isn't found any more.

use ferroce_os::fork::{OwnTurn, Turn};
use ferroce_os::{Patience, sys};
use ferroce_types::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// The longest wait: a page of the program's memory (userfaultfd(2), FUSE) can hold a thread up for any time.
const LIMIT: Duration = Duration::from_secs(1);
const ROUND: Duration = Duration::from_micros(50);
/// Looks before the wait sleeps in between.
const YIELDS: u32 = 100;

/// Takes the turn of a change. A thread that has it waits for accesses, so this waits as long.
///
/// # Errors
/// [`Error::Busy`] when another thread has it for longer than a second.
pub(crate) fn wait_for_turn<'a>(turn: &'a Turn, what: &str) -> Result<OwnTurn<'a>> {
    turn.wait(LIMIT, sys::pause)
        .ok_or_else(|| Error::Busy(format!("another thread changes the {what}, or ends it")))
}

/// Waits until `used` is the only reference. No other thread can make one more.
///
/// # Errors
/// [`Error::Busy`] when a thread is in the middle of an access and doesn't end it within a second.
pub(crate) fn wait_for_last<T>(used: &mut Arc<T>) -> Result<()> {
    let mut patience = Patience::new(LIMIT, ROUND);
    let mut rounds = 0;
    // Acquire: the accesses that have ended are complete.
    while Arc::get_mut(used).is_none() {
        rounds += 1;
        if rounds <= YIELDS {
            sys::yield_processor();
        } else if patience.has_ended() {
            return Err(Error::Busy(
                "a thread of this process is held up in the middle of an access to memory".into(),
            ));
        } else {
            sys::pause(ROUND);
        }
    }
    Ok(())
}
