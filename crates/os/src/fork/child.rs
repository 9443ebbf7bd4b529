//! What other crates do in the child of a fork.

use crate::atomics::Ordering;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

/// The steps in the child of a fork, in their order: each finds what those before it have put right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChildStep {
    /// The directory that the host's other processes read is the parent's.
    Directory,
    /// The engine is the parent's, and critical regions are those of threads that the child doesn't have.
    Engine,
}

/// Proof that the code runs in the child of a fork, which has one thread, this one.
#[derive(Debug)]
pub struct InChild(());

const STEPS: usize = ChildStep::Engine as usize + 1;

/// A `fn(&InChild)`, or null. Neither a lock nor a "once": a child could find it held.
static REGISTERED: [AtomicPtr<()>; STEPS] = [const { AtomicPtr::new(null_mut()) }; STEPS];

/// Registers `run`, which every child of a fork calls from now on. A step has one function: the one that was registered last.
///
/// `run` is called in a child that has one thread, while the fork gate is closed, also where the fork has come in the middle
/// of a call. So it takes no lock but by trying, allocates nothing, and makes only calls that are async-signal-safe.
pub fn register(step: ChildStep, run: fn(&InChild)) {
    REGISTERED[step as usize].store(run as *mut (), Ordering::Release);
}

/// Takes the steps that are registered.
pub(super) fn run_steps() {
    for run in &REGISTERED {
        let run = run.load(Ordering::Acquire);
        if !run.is_null() {
            // SAFETY: what `register` has stored.
            let run: fn(&InChild) = unsafe { std::mem::transmute(run) };
            run(&InChild(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn a_child_takes_the_steps_in_their_order_and_its_parent_none() {
        static TAKEN: AtomicU32 = AtomicU32::new(0);
        fn take<const STEP: u32>(_: &InChild) {
            TAKEN.store(TAKEN.load(Ordering::Relaxed) << 4 | STEP, Ordering::Relaxed);
        }
        super::super::install();
        register(ChildStep::Engine, take::<2>);
        register(ChildStep::Directory, take::<1>);
        let before = super::super::generation();
        // SAFETY: the child looks at words and leaves by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let generation = super::super::generation();
            let usable = super::super::enter_library().is_ok();
            let good = TAKEN.load(Ordering::Relaxed) == 0x12 && generation == before + 1 && usable;
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, TAKEN.load(Ordering::Relaxed)), (0, 0));
    }
}
