//! fork(2): the parent notices nothing; in the child contexts, domains and regions go on to work, with a new engine at
//! the first use, and inherited QPs are in ERR.
//!
//! A fork waits until no thread is in the library (the fork gate, `gate`), so its child finds no lock held and nothing half done.
//! In here: the handlers around fork(3), the order of what happens in a child, and turns, for what waits in the middle, as no lock may
//! be held through a wait. Out of here: what each part does with what a child can't use.

mod barrier;
mod child;
mod gate;
mod reading;
mod reading_word;
mod turn;
mod using_word;
mod words;

pub(crate) use barrier::{order, order_all};
pub use child::{ChildStep, InChild, register};
pub(crate) use gate::is_unusable;
pub use gate::{InLibrary, Unusable, enter_library, outside_library};
pub use reading::{ForkReader, InUse, wait_for_readers, wait_for_users};
pub use turn::{OwnTurn, Turn};

use crate::atomics::{AtomicU32, Ordering};
use crate::sys;
use gate::ForkPhase;
use std::os::fd::RawFd;

/// Counts forks on the child's side.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between the first process and this one.
#[must_use]
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Installs the handlers. Handlers of others that are registered later run before ours do (and after ours, once the fork is over):
/// whatever these wait for, the library isn't closed yet. So call this early.
pub fn install() {
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    gate::install(|| unsafe {
        libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child));
    });
}

extern "C" fn before() {
    gate::freeze();
    // If a thread takes too long over an opening, the child has a descriptor too many.
    sys::hold_openings();
}

extern "C" fn after_in_parent() {
    sys::resume_openings();
    gate::thaw();
}

extern "C" fn after_in_child() {
    in_child();
}

/// Makes this child a process of its own. Takes no lock that could be held, whatever was found.
///
/// First comes what this crate keeps: from then on the owners of the parent's descriptors neither use nor close them. Then the
/// [steps](ChildStep) of other crates. The gate opens last.
fn in_child() {
    let found = gate::found();
    if found == ForkPhase::NoFork {
        return;
    }
    GENERATION.fetch_add(1, Ordering::Relaxed);
    sys::close_all_after_fork();
    child::run_steps();
    gate::begin_child(found);
}

/// If `libferroce_preload.so` is loaded, has it refuse to close the adapter's descriptors.
pub fn protect_engine_fds() {
    /// A child that can't use verbs has the parent's descriptors (a UDP port among them) and no use for them.
    extern "C" fn is_ours(fd: RawFd) -> bool {
        sys::is_engine_fd(fd) && !is_unusable()
    }
    // SAFETY: a C string.
    let protect = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"ferroce_protect_descriptors".as_ptr()) };
    if !protect.is_null() {
        // SAFETY: the name is ours alone, and the function behind it has this type (`crates/preload/src/close.rs`).
        let protect: extern "C" fn(extern "C" fn(RawFd) -> bool) = unsafe { std::mem::transmute(protect) };
        protect(is_ours);
    }
}
