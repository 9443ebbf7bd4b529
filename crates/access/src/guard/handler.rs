//! The handler of SIGSEGV and SIGBUS, and how it stands in front of the program's.
//!
//! **Levels.** Each action that the guard is put in front of has a *level*: an entry point of the handler of its own, and the
//! program's handler behind it. If a program saves the guard as "the action before mine", and later calls it or puts it
//! back, it gets the action before its own handler, also if the guard has been put in front of its own handler meanwhile.
//! There are [`LEVELS`] of them for each signal; where a program has more handlers than that, the last level stands in
//! front of the handler that was installed last.
//!
//! **Passing on.** The guard is installed with the flags and the mask of the handler behind it. The kernel therefore blocks
//! what the program wants blocked, takes the stack that the program wants, and restarts the calls that it wants restarted;
//! the guard calls the program's handler with the kernel's arguments, which may end it by `siglongjmp`. SA_RESETHAND is done
//! here: one delivery takes the handler, and what is left is the default action. The default action itself is left to the
//! kernel: it gets the signal back as it was, at the very instruction.
//!
//! **Chains.** A handler of the program that calls the action before it may come back to the guard. The guard notes for the
//! thread which levels have passed the signal on, and goes on with a lower one. A handler may pass on a copy of the signal's
//! description, or leave by `siglongjmp`, which leaves a stale note. So each signal gets a number, which the
//! guard notes in the unused end of the description, too. The kernel clears that end for the next signal. Where it doesn't (before
//! Linux 4.20, qemu-user), the next description at the same place still has the number, and the stack distinguishes the signals: a
//! call by a handler comes from further down than one by the kernel ([`Passing`]).

use super::action::{self, Action, SIGNALS, bit};
use super::{arch, own_faults};
use ferroce_os::per_thread;
use ferroce_os::per_thread::Zeroed;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Actions of the program, for each signal, that the guard can stand in front of at a time.
const LEVELS: usize = 8;
/// Of a handler with SA_RESETHAND; no address has it.
const ONE_SHOT: u64 = 1 << 63;
/// A level without an action.
const FREE: u64 = u64::MAX;

/// The program's action behind one entry of the handler: its address, with [`ONE_SHOT`].
struct HandlerLevel {
    /// The action that the level is for.
    of: AtomicU64,
    /// What is left of it.
    next: AtomicU64,
}

static PROGRAM: [[HandlerLevel; LEVELS]; SIGNALS.len()] = [const {
    [const { HandlerLevel { of: AtomicU64::new(FREE), next: AtomicU64::new(libc::SIG_DFL as u64) } }; LEVELS]
}; SIGNALS.len()];

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::ucontext_t);

const ENTRIES: [Handler; LEVELS] = [
    on_fault::<0>,
    on_fault::<1>,
    on_fault::<2>,
    on_fault::<3>,
    on_fault::<4>,
    on_fault::<5>,
    on_fault::<6>,
    on_fault::<7>,
];

per_thread! { fn passing() -> Passing = "ferroce_guard_passing"; }

/// The signal that this thread passes on.
struct Passing {
    /// Its number, unlike that of any other; 0: there is none.
    number: Cell<usize>,
    /// Where its description is.
    info: Cell<usize>,
    /// The stack pointer of the guard that the kernel has called.
    stack: Cell<usize>,
    /// A bit for each level that has passed it on.
    levels: Cell<usize>,
}

// SAFETY: cells of numbers, and no signal.
unsafe impl Zeroed for Passing {}

/// The number of the last signal that was passed on.
static NUMBER: AtomicUsize = AtomicUsize::new(0);

/// How often the guard has stepped aside.
static DISARMED: AtomicU64 = AtomicU64::new(0);

/// How often the guard has stepped aside by itself, for the default action to happen.
#[inline]
pub(super) fn disarmed() -> u64 {
    DISARMED.load(Ordering::Acquire)
}

/// Puts the guard in front for both signals, unless it is there. Whether it is there now.
pub(super) fn arm() -> bool {
    SIGNALS.into_iter().all(arm_signal)
}

fn arm_signal(signal: i32) -> bool {
    let Some(mut shown) = action::query(signal) else { return false };
    if is_guard(&shown) {
        return true;
    }
    let mut before = None;
    // To give up halfway would lose the action that was displaced last. Each further round takes another thread's
    // sigaction(2) in between.
    loop {
        let guard = in_front_of(signal, &shown);
        // SAFETY: `on_fault` does what a handler may.
        let Some(displaced) = (unsafe { action::exchange(signal, guard) }) else { return false };
        if displaced == shown || displaced == guard || Some(displaced) == before {
            return true;
        }
        // Another thread has set an action meanwhile; `guard` is in front of the one before.
        before = Some(guard);
        shown = displaced;
    }
}

/// The guard in front of an action; a guard as it is.
fn in_front_of(signal: i32, action: &Action) -> Action {
    let level = level_of(action).unwrap_or_else(|| level_for(signal, key_of(action)));
    action.with_guard(ENTRIES[level] as usize)
}

fn is_guard(action: &Action) -> bool {
    // `signal(2)` puts a handler back without its flags.
    let flags = action.flags & (libc::SA_SIGINFO | libc::SA_RESETHAND) as u64;
    level_of(action).is_some() && flags == libc::SA_SIGINFO as u64
}

fn level_of(action: &Action) -> Option<usize> {
    ENTRIES.iter().position(|&entry| entry as usize == action.handler)
}

fn key_of(action: &Action) -> u64 {
    let one_shot = action.is_handler() && action.flags & libc::SA_RESETHAND as u64 != 0;
    action.handler as u64 | if one_shot { ONE_SHOT } else { 0 }
}

/// The level for an action of the program's: the one that it had, or a free one.
fn level_for(signal: i32, key: u64) -> usize {
    let levels = levels(signal);
    let taken = levels.iter().position(|level| {
        let taken = level.of.compare_exchange(FREE, key, Ordering::AcqRel, Ordering::Acquire);
        taken.is_ok() || taken == Err(key)
    });
    let at = taken.unwrap_or_else(|| {
        tracing::debug!(
            "the program has had {LEVELS} handlers of signal {signal}: the last ones share a place"
        );
        levels[LEVELS - 1].of.store(key, Ordering::Release);
        LEVELS - 1
    });
    levels[at].next.store(key, Ordering::Release);
    at
}

fn levels(signal: i32) -> &'static [HandlerLevel; LEVELS] {
    &PROGRAM[usize::from(signal != SIGNALS[0])]
}

extern "C" fn on_fault<const LEVEL: usize>(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) {
    // SAFETY: the kernel, or a handler of the program that passes its own arguments on, calls with a description and the
    // context of the interrupted thread; a handler without SA_SIGINFO has neither.
    unsafe {
        if let (Some(description), Some(context)) = (info.as_ref(), context.as_mut())
            && description.si_code > 0
            && !is_late(signal, description.si_code)
            && let Some(recovery) = super::recovery(arch::instruction(context))
        {
            arch::set_instruction(context, recovery);
            return;
        }
        if let (Some(description), Some(context)) = (info.as_ref(), context.as_mut())
            && description.si_code <= 0
            && own_faults::give_back(signal, description, context)
        {
            return;
        }
        pass_on(LEVEL, signal, info, context);
    }
}

/// These two codes report errors that were found some time ago, not at the interrupted instruction.
const fn is_late(signal: i32, code: i32) -> bool {
    const SEGV_MTEAERR: i32 = 8;
    signal == libc::SIGBUS && code == libc::BUS_MCEERR_AO || signal == libc::SIGSEGV && code == SEGV_MTEAERR
}

/// Does what would have been done without the guard.
///
/// # Safety
/// The arguments are those of the handler.
unsafe fn pass_on(level: usize, signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    let (passing, stack) = (passing(), arch::stack());
    let before = [passing.number.get(), passing.info.get(), passing.stack.get(), passing.levels.get()];
    let note = |[number, info, stack, levels]: [usize; 4]| {
        passing.number.set(number);
        passing.info.set(info);
        passing.stack.set(stack);
        passing.levels.set(levels);
    };
    // A handler that calls with the number alone leaves anything in the other two.
    // SAFETY: as the caller's.
    let numbered = unsafe { if info.is_aligned() { info.as_mut() } else { None } }
        .filter(|description| description.si_signo == signal)
        .map(number_of);
    let is_same = numbered.as_ref().is_some_and(|number| **number != 0 && **number == before[0]);
    let chained = is_same && (before[1] != info as usize || stack < before[2]);
    if !chained {
        let new = NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        note([new, info as usize, stack, 0]);
        if let Some(number) = numbered {
            *number = new;
        }
    }
    let passed = passing.levels.get();
    // Without a description the handler is one that calls the action before it with the number alone.
    let next =
        if info.is_null() { Some(0) } else { (0..=level).rev().find(|level| passed & 1 << level == 0) };
    passing.levels.set(passed | next.map_or(0, |level| 1 << level));
    match next.map_or(libc::SIG_DFL, |level| take(signal, level)) {
        // SAFETY: as the caller's.
        next @ (libc::SIG_DFL | libc::SIG_IGN) => unsafe { leave_to_kernel(signal, info, context, next) },
        handler => {
            // SAFETY: the program has installed this address as a handler for the signal. One that takes the number alone
            // ignores the rest.
            let handler: Handler = unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
            if !chained {
                note(before);
            }
        }
    }
}

/// Where the guard notes a signal's number in the description; 0 there if it hasn't.
fn number_of(info: &mut libc::siginfo_t) -> &mut usize {
    // The kernel describes these signals in the first 48 bytes. Behind them are four pairs, each of a copy of this library, named by an
    // address in it, and the number that it has given.
    const NOTES: std::ops::Range<usize> = 8..16;
    let owner = &raw const PROGRAM as usize;
    // SAFETY: a description has 128 bytes, aligned to 8.
    let words: &mut [usize; 16] = unsafe { &mut *std::ptr::from_mut(info).cast() };
    let (notes, _) = words[NOTES].as_chunks_mut::<2>();
    let at = |of: usize| notes.iter().position(|note| note[0] == of);
    let index = at(owner).or_else(|| at(0)).unwrap_or(notes.len() - 1);
    let [noted, number] = &mut notes[index];
    if std::mem::replace(noted, owner) != owner {
        *number = 0;
    }
    number
}

/// What stands behind a level, for one signal.
fn take(signal: i32, level: usize) -> usize {
    let next = &levels(signal)[level].next;
    let key = next.load(Ordering::Acquire);
    // The kernel resets what it calls, not what a handler of the program calls.
    let delivered = || action::query(signal).is_some_and(|action| level_of(&action) == Some(level));
    if key & ONE_SHOT != 0 && delivered() {
        return match next.compare_exchange(key, libc::SIG_DFL as u64, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => (key & !ONE_SHOT) as usize,
            Err(key) => (key & !ONE_SHOT) as usize,
        };
    }
    (key & !ONE_SHOT) as usize
}

/// Leaves a signal without a handler to the kernel, which ignores it or ends the process with it.
///
/// # Safety
/// The arguments are those of the handler.
unsafe fn leave_to_kernel(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
    disposition: usize,
) {
    // SAFETY: null, or the kernel's description of the signal.
    let code = unsafe { info.as_ref() }.map_or(libc::SI_USER, |info| info.si_code);
    let sent = code <= 0 || is_late(signal, code);
    if sent && disposition == libc::SIG_IGN {
        return;
    }
    // A fault can't be ignored: the kernel takes the default action then. The guard is armed again at its next use, if
    // there is one.
    DISARMED.fetch_add(1, Ordering::AcqRel);
    // SAFETY: the default action.
    unsafe { action::exchange(signal, Action::default()) };
    // The instruction faults again, unless it isn't what has failed: one was sent, or the kernel found no room for the
    // frame of another handler.
    if sent || code == libc::SI_KERNEL {
        // To be delivered when this handler returns, where it has come.
        action::block(bit(signal));
        // SAFETY: the kernel's description; its mask is the first 8 bytes of the context's.
        unsafe {
            if let Some(context) = context.as_mut() {
                *(&raw mut context.uc_sigmask).cast::<u64>() &= !bit(signal);
            }
            action::send_again(signal, info);
        }
    }
}
