//! The world that a thread belongs to, and what is noted when it panics.

use crate::report;
use crate::world::Shared;
use std::any::Any;
use std::cell::RefCell;
use std::panic;
use std::sync::{Arc, Once, Weak};

thread_local! {
    /// The world and the program of this thread.
    static PROGRAM: RefCell<Option<(Weak<Shared>, usize)>> = const { RefCell::new(None) };
}

/// This thread is a program of a world.
pub(crate) fn set(world: &Arc<Shared>, program: usize) {
    PROGRAM.set(Some((Arc::downgrade(world), program)));
}

/// This thread belongs to no world.
pub(crate) fn unset() {
    PROGRAM.set(None);
}

/// The program of this thread, if it belongs to this world.
pub(crate) fn program_of(world: &Arc<Shared>) -> Option<usize> {
    PROGRAM.with_borrow(|program| {
        program.as_ref().filter(|(of, _)| of.as_ptr() == Arc::as_ptr(world)).map(|(_, program)| *program)
    })
}

/// The message of a panic.
pub(crate) fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default()
}

/// Has panics of threads of a world note what the world waits for, and print nothing if the world is quiet.
pub(crate) fn watch_panics() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !is_quiet() {
                before(info);
            }
        }));
    });
}

/// Notes the state of this thread's world. True: the panic isn't printed.
fn is_quiet() -> bool {
    let world = PROGRAM.try_with(|program| program.try_borrow().ok()?.as_ref()?.0.upgrade()).ok().flatten();
    // A panic in the middle of the simulation itself has the lock.
    let Some(mut state) = world.as_ref().and_then(|world| world.try_lock()) else { return false };
    if state.at_panic.is_none() {
        state.note_faults();
        let mut text = String::new();
        report::describe(&state, &mut text);
        state.at_panic = Some(text);
    }
    state.quiet
}
