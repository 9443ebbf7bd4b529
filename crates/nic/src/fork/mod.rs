//! fork(2): the parent notices nothing; in the child contexts, domains and regions go on to work, with a new engine at
//! the first use, and inherited QPs are in ERR.
//!
//! A fork waits until no thread is in the library (the fork gate, `gate`), so its child finds no lock held and nothing half done.
//! In here: the handlers around fork(3). Out of here: what each part does with what a child can't use.

mod barrier;
mod gate;
mod words;

pub(crate) use gate::is_unusable;
pub use gate::{Inside, Unusable, enter, outside};

use crate::mem::copy;
use crate::sync::{AtomicU32, Ordering};
use gate::Found;

/// Counts forks on the child's side.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between the first process and this one.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Sees to it that the handlers run. Handlers of others that are registered later run before ours do (and after ours, once
/// the fork is over): whatever these wait for, the library isn't closed yet. So the earlier the better.
pub fn install() {
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    gate::install(|| unsafe {
        libc::pthread_atfork(Some(prepare), Some(parent), Some(child));
    });
}

extern "C" fn prepare() {
    gate::freeze();
    // Where somebody takes too long over it, the child has a descriptor too many.
    crate::sys::hold_openings();
}

extern "C" fn parent() {
    crate::sys::resume_openings();
    gate::thaw();
}

extern "C" fn child() {
    in_child();
}

/// Makes this child a process of its own. Takes no lock that could be held, whatever was found.
fn in_child() {
    let found = gate::found();
    if found == Found::NoFork {
        return;
    }
    GENERATION.fetch_add(1, Ordering::Relaxed);
    crate::sys::close_all_after_fork();
    copy::after_fork();
    crate::shm::forget_after_fork();
    crate::engine::forget_after_fork();
    gate::begin_child(found);
}
