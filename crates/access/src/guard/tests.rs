//! Each scene is played in a child, which may end by a signal.

use super::action::SIGNALS;
use super::*;
use ferroce_os::clock;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU32, AtomicUsize};

const SWAP: AtomicOp = AtomicOp::CompareSwap { compare: 1, swap: 2 };
const ALL: [AtomicOp; 3] = [AtomicOp::FetchAdd { add: 1 }, SWAP, AtomicOp::Store { value: 1 }];
/// A page that is never mapped.
pub(super) const NOWHERE: u64 = 0x1000;

/// Plays a scene in a child, which ends with status 0 behind it.
pub(super) fn played(scene: impl FnOnce()) -> ExitStatus {
    // SAFETY: the child has one thread and ends here; the parent waits for it.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            libc::alarm(20);
            let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(scene));
            libc::_exit(if end.is_ok() { 0 } else { 101 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        ExitStatus::from_raw(status)
    }
}

pub(super) fn ends(scene: impl FnOnce()) -> Option<i32> {
    played(scene).code()
}

fn is_killed_by(signal: i32, scene: impl FnOnce()) {
    let status = played(scene);
    assert_eq!(status.signal(), Some(signal), "{status}");
}

/// All guarded atomics fault and fail.
fn use_atomics() {
    let _guard = FaultGuard::hold().expect("a guard");
    for op in ALL {
        // SAFETY: nothing is there.
        assert_eq!(unsafe { execute(NOWHERE, op) }, Err(Fault));
    }
}

/// All guarded instructions fault and fail.
fn use_guard() {
    assert!(handler::arm());
    use_atomics();
    let word = 0u64;
    // SAFETY: nothing is there.
    unsafe {
        assert_eq!(copy(&raw const word as u64, NOWHERE, 8), Err(Fault));
        assert_eq!(copy(NOWHERE, &raw const word as u64, 8), Err(Fault));
    }
}

/// A fault that isn't the guard's.
fn crash() {
    // SAFETY: not sound; that is the point.
    unsafe { std::hint::black_box(std::ptr::read_volatile(std::hint::black_box(NOWHERE as *const u32))) };
}

fn set(handler: usize, flags: i32) -> libc::sigaction {
    set_with_mask(handler, flags, None)
}

fn set_with_mask(handler: usize, flags: i32, masked: Option<i32>) -> libc::sigaction {
    // SAFETY: plain data, and handlers of this file.
    unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        let mut old: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = handler;
        new.sa_flags = flags;
        if let Some(signal) = masked {
            libc::sigaddset(&raw mut new.sa_mask, signal);
        }
        assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const new, &raw mut old), 0);
        old
    }
}

type Three = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::ucontext_t);

static CALLS: AtomicU32 = AtomicU32::new(0);
static CHAINED: AtomicUsize = AtomicUsize::new(0);

fn end(status: i32) -> ! {
    // SAFETY: ends the process, from a handler too.
    unsafe { libc::_exit(status) }
}

extern "C" fn ends_42(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::ucontext_t) {
    // SAFETY: the kernel's description of a fault.
    let right = signal == libc::SIGSEGV && unsafe { (*info).si_addr() as u64 == NOWHERE };
    end(if right { 42 } else { 1 })
}

/// The second call is one too many.
extern "C" fn returns_once(_: i32) {
    if CALLS.fetch_add(1, Ordering::Relaxed) > 0 {
        end(7);
    }
}

/// Calls the action before it, once.
extern "C" fn chains(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    returns_once(signal);
    // SAFETY: the handler that was there before.
    unsafe { std::mem::transmute::<usize, Three>(CHAINED.load(Ordering::Relaxed))(signal, info, context) };
}

extern "C" fn faults(_: i32) {
    returns_once(0);
    crash();
}

fn plain() -> usize {
    returns_once as *const () as usize
}

#[test]
fn a_fault_of_a_guarded_instruction_is_an_error() {
    use_guard();
    let _guard = FaultGuard::hold().expect("a guard");
    let word = 5u64;
    // SAFETY: an address that no process has, and a word.
    unsafe {
        assert_eq!(execute(1 << 63, SWAP), Err(Fault));
        assert_eq!(execute(&raw const word as u64, AtomicOp::FetchAdd { add: 3 }), Ok(5));
        assert_eq!(execute(&raw const word as u64, AtomicOp::CompareSwap { compare: 8, swap: 1 }), Ok(8));
        assert_eq!(execute(&raw const word as u64, AtomicOp::CompareSwap { compare: 8, swap: 2 }), Ok(1));
        assert_eq!(execute(&raw const word as u64, AtomicOp::Store { value: 9 }), Ok(1));
    }
    assert_eq!(word, 9);
}

#[test]
fn without_a_handler_a_fault_has_the_default_action() {
    for disposition in [libc::SIG_DFL, libc::SIG_IGN] {
        is_killed_by(libc::SIGSEGV, || {
            set(disposition, 0);
            use_guard();
            crash();
        });
    }
}

#[test]
fn a_handler_gets_the_programs_faults_before_and_after_the_guard() {
    let handler = ends_42 as *const () as usize;
    for later in [false, true] {
        let ended = ends(|| {
            if later {
                use_guard();
            }
            set(handler, libc::SA_SIGINFO);
            use_guard();
            crash();
        });
        assert_eq!(ended, Some(42), "{later}");
    }
}

#[test]
fn the_guard_is_back_within_a_millisecond() {
    let ended = ends(|| {
        use_guard();
        set(ends_42 as *const () as usize, libc::SA_SIGINFO);
        let end = clock::now().0 + 1_000_000;
        while clock::now().0 <= end {}
        let _guard = FaultGuard::hold().expect("a guard");
        // SAFETY: nothing is there.
        assert_eq!(unsafe { execute(NOWHERE, SWAP) }, Err(Fault));
    });
    assert_eq!(ended, Some(0));
}

#[test]
fn a_handler_that_chains_is_called_once() {
    for again in [false, true] {
        is_killed_by(libc::SIGSEGV, || {
            let handler = chains as *const () as usize;
            use_guard();
            CHAINED.store(set(handler, libc::SA_SIGINFO).sa_sigaction, Ordering::Relaxed);
            use_guard();
            if again {
                // What it chains to is now a guard that stands in front of itself.
                CHAINED.store(set(handler, libc::SA_SIGINFO).sa_sigaction, Ordering::Relaxed);
                use_guard();
            }
            crash();
        });
    }
}

/// As [`chains`], with a copy of the description.
extern "C" fn chains_a_copy(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    if CALLS.fetch_add(1, Ordering::Relaxed) > 2 {
        end(7);
    }
    // SAFETY: the kernel's description, and a handler that was installed for this signal.
    unsafe {
        let mut copy = *info;
        let next: Three = std::mem::transmute(CHAINED.load(Ordering::Relaxed));
        next(signal, &raw mut copy, context);
    }
}

#[test]
fn a_handler_may_pass_on_a_copy_of_the_description() {
    is_killed_by(libc::SIGSEGV, || {
        let handler = chains_a_copy as *const () as usize;
        use_guard();
        for _ in 0..2 {
            // The second time it chains to a guard that stands in front of itself.
            CHAINED.store(set(handler, libc::SA_SIGINFO).sa_sigaction, Ordering::Relaxed);
            use_guard();
        }
        crash();
    });
}

/// Leaves for a context once, and ends the process when it is called again.
extern "C" fn leaves_once(_: i32) {
    if CALLS.fetch_add(1, Ordering::Relaxed) == 1 {
        end(7);
    }
    // SAFETY: a context of a function that runs still.
    unsafe { libc::setcontext(LEFT_FOR.load(Ordering::Relaxed) as *const libc::ucontext_t) };
}

/// Faults with this handler, and again where the handler leaves for, each time after `before` with the count of calls so far.
fn faults_again(handler: extern "C" fn(i32), before: impl Fn(u32)) -> Option<i32> {
    ends(|| {
        set(handler as *const () as usize, 0);
        use_guard();
        // SAFETY: plain data, which the call fills in.
        let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
        LEFT_FOR.store(&raw mut context as usize, Ordering::Relaxed);
        // SAFETY: goes on here once more for each call of the handler; nothing but the count of calls differs.
        unsafe { libc::getcontext(&raw mut context) };
        before(CALLS.load(Ordering::Relaxed));
        crash();
    })
}

/// The kernel calls the second handler without the guard, and its description lies where that of a signal lay which is over.
#[test]
fn a_handler_that_has_left_is_called_for_what_another_passes_on() {
    let ended = faults_again(leaves_once, |calls| {
        if calls == 1 {
            let before = set(passes_on as *const () as usize, libc::SA_SIGINFO);
            CHAINED.store(before.sa_sigaction, Ordering::Relaxed);
        }
    });
    assert_eq!(ended, Some(7));
}

/// Calls the action before it.
extern "C" fn passes_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: a handler that was installed for this signal.
    let next: Three = unsafe { std::mem::transmute(CHAINED.load(Ordering::Relaxed)) };
    next(signal, info, context);
}

static LEFT_FOR: AtomicUsize = AtomicUsize::new(0);

/// Leaves for a context, twice.
extern "C" fn leaves(_: i32) {
    if CALLS.fetch_add(1, Ordering::Relaxed) == 2 {
        end(7);
    }
    // SAFETY: a context of a function that runs still.
    unsafe { libc::setcontext(LEFT_FOR.load(Ordering::Relaxed) as *const libc::ucontext_t) };
}

#[test]
fn a_handler_that_leaves_gets_the_next_fault_too() {
    assert_eq!(faults_again(leaves, |_| ()), Some(7));
}

#[test]
fn a_description_may_have_anything_behind_what_is_described() {
    let ended = ends(|| {
        set(ends_42 as *const () as usize, libc::SA_SIGINFO);
        use_guard();
        let mut words = [u64::MAX; 16];
        // SEGV_MAPERR.
        let head = [libc::SIGSEGV as u64, 1, NOWHERE];
        words[..3].copy_from_slice(&head);
        let guard = action::query(libc::SIGSEGV).unwrap().handler;
        // SAFETY: the guard's handler, called as the kernel calls it; its length is that of a description.
        unsafe {
            std::mem::transmute::<usize, Three>(guard)(
                libc::SIGSEGV,
                words.as_mut_ptr().cast(),
                std::ptr::null_mut(),
            )
        };
    });
    assert_eq!(ended, Some(42));
}

#[test]
fn a_handler_that_is_taken_back_is_not_called() {
    is_killed_by(libc::SIGSEGV, || {
        use_guard();
        let old = set(plain(), 0);
        use_guard();
        // SAFETY: the action that was there.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const old, std::ptr::null_mut()) };
        use_guard();
        CALLS.store(1, Ordering::Relaxed);
        crash();
    });
}

#[test]
fn sa_resethand_gives_a_handler_one_signal() {
    for flags in [libc::SA_RESETHAND, libc::SA_RESETHAND | libc::SA_NODEFER | libc::SA_ONSTACK] {
        is_killed_by(libc::SIGSEGV, || {
            set(plain(), flags);
            use_guard();
            crash();
        });
        is_killed_by(libc::SIGSEGV, || {
            set(plain(), flags);
            use_guard();
            // SAFETY: sends a signal.
            unsafe { libc::raise(libc::SIGSEGV) };
            assert_eq!(CALLS.load(Ordering::Relaxed), 1);
            use_guard();
            // SAFETY: as before.
            unsafe { libc::raise(libc::SIGSEGV) };
        });
    }
}

#[test]
fn a_handler_that_faults_ends_the_process_without_sa_nodefer() {
    let faults = faults as *const () as usize;
    is_killed_by(libc::SIGSEGV, || {
        set(faults, 0);
        use_guard();
        crash();
    });
    let nested = ends(|| {
        set(faults, libc::SA_NODEFER);
        use_guard();
        crash();
    });
    assert_eq!(nested, Some(7));
}

extern "C" fn ends_with_its_mask(_: i32) {
    let blocked = action::blocked().unwrap_or(0);
    let bits =
        [libc::SIGSEGV, libc::SIGUSR1, libc::SIGUSR2].map(|s| i32::from(blocked & action::bit(s) != 0));
    end(bits[0] | bits[1] << 1 | bits[2] << 2)
}

#[test]
fn a_handler_runs_with_the_mask_that_it_wants() {
    for (flags, masked, expected) in
        [(0, None, 1), (libc::SA_NODEFER, Some(libc::SIGUSR1), 2), (0, Some(libc::SIGUSR2), 5)]
    {
        let ended = ends(|| {
            set_with_mask(ends_with_its_mask as *const () as usize, flags, masked);
            use_guard();
            crash();
        });
        assert_eq!(ended, Some(expected));
    }
}

static ALTERNATE: AtomicUsize = AtomicUsize::new(0);

extern "C" fn ends_with_its_stack(_: i32) {
    let here = 0u8;
    let distance = (&raw const here as usize).wrapping_sub(ALTERNATE.load(Ordering::Relaxed));
    end(if distance < 1 << 20 { 2 } else { 3 })
}

#[test]
fn a_handler_runs_on_the_stack_that_it_wants() {
    // SAFETY: asks for a number: what the kernel needs on this processor. The rest is for the handlers.
    let least = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) as usize }.max(libc::MINSIGSTKSZ) + 2048;
    for (flags, expected) in [(libc::SA_ONSTACK, 2), (0, 3)] {
        let ended = ends(|| {
            let memory = Box::leak(vec![0u8; least].into_boxed_slice());
            ALTERNATE.store(memory.as_ptr() as usize, Ordering::Relaxed);
            let stack =
                libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.len() };
            // SAFETY: memory that stays.
            assert_eq!(unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) }, 0);
            set(ends_with_its_stack as *const () as usize, flags);
            use_guard();
            crash();
        });
        assert_eq!(ended, Some(expected));
    }
}

extern "C" fn ends_with_its_value(_: i32, info: *mut libc::siginfo_t, _: *mut libc::ucontext_t) {
    // SAFETY: the kernel's description of a signal with a value.
    let (code, value) = unsafe { ((*info).si_code, (*info).si_value().sival_ptr as i32) };
    end(if code == libc::SI_QUEUE { value } else { 1 })
}

#[test]
fn a_signal_that_is_sent_takes_the_programs_action() {
    let handled = ends(|| {
        set(ends_with_its_value as *const () as usize, libc::SA_SIGINFO);
        use_guard();
        let value = libc::sigval { sival_ptr: 99 as *mut _ };
        // SAFETY: sends a signal.
        unsafe { libc::sigqueue(libc::getpid(), libc::SIGSEGV, value) };
    });
    assert_eq!(handled, Some(99));
    // SAFETY: sends signals.
    let send = || unsafe { libc::raise(libc::SIGSEGV) };
    let ignored = ends(|| {
        set(libc::SIG_IGN, 0);
        use_guard();
        send();
        use_guard();
    });
    assert_eq!(ignored, Some(0));
    for signal in SIGNALS {
        is_killed_by(signal, || {
            // SAFETY: takes away the handler of Rust's runtime, which lets a signal that was sent go by.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            use_guard();
            // SAFETY: sends a signal.
            unsafe { libc::raise(signal) };
        });
    }
}

#[test]
fn a_thread_that_blocks_the_signals_has_a_guard_and_keeps_its_mask() {
    let ended = ends(|| {
        let all = !0;
        action::block(all);
        let before = action::blocked();
        use_guard();
        assert_eq!(action::blocked(), before);
        // SAFETY: sends a signal, which waits.
        unsafe { libc::raise(libc::SIGSEGV) };
        assert!(FaultGuard::hold().is_none(), "the signal would be delivered");
        assert_eq!(action::blocked(), before);
    });
    assert_eq!(ended, Some(0));
}

/// A copy of a word within this function.
fn copied() -> Result<(), Fault> {
    let (from, mut to) = (7u64, 0u64);
    // SAFETY: words of this function.
    unsafe { copy(&raw mut to as u64, &raw const from as u64, 8) }
}

#[test]
fn a_thread_of_the_adapters_is_open_to_its_faults_from_its_second_copy_on() {
    let ended = ends(|| {
        action::block(!0);
        let before = action::blocked();
        assert_eq!(copied(), Err(Fault));
        for copies in 0..4 {
            let open = OwnFaults::of_this_thread();
            for n in 0..copies {
                assert_eq!(copied(), if n == 0 { Err(Fault) } else { Ok(()) });
            }
            assert_eq!(action::blocked() == before, copies < 2);
            use_guard();
            // Another thread too.
            let other = || {
                let _open = OwnFaults::of_this_thread();
                assert_eq!([copied(), copied()], [Err(Fault), Ok(())]);
            };
            std::thread::scope(|scope| scope.spawn(other).join().unwrap());
            drop(open);
            assert_eq!(action::blocked(), before);
            assert_eq!(copied(), Err(Fault));
        }
        // SAFETY: sends a signal, which waits.
        unsafe { libc::raise(libc::SIGSEGV) };
        let _open = OwnFaults::of_this_thread();
        assert_eq!([copied(), copied()], [Err(Fault); 2], "the signal would be delivered");
        assert_eq!(action::blocked(), before);
    });
    assert_eq!(ended, Some(0));
}

#[test]
fn a_thread_of_the_adapters_is_open_to_its_faults_from_its_second_atomic_on() {
    let ended = ends(|| {
        action::block(!0);
        let before = action::blocked();
        for atomics in 0..4 {
            let open = OwnFaults::of_this_thread();
            (0..atomics).for_each(|_| use_atomics());
            assert_eq!(action::blocked() == before, atomics < 2);
            drop(open);
            assert_eq!(action::blocked(), before);
        }
        // A thread of the program's keeps its mask, however many it makes.
        for _ in 0..=PATIENCE {
            use_atomics();
            assert_eq!(action::blocked(), before);
        }
    });
    assert_eq!(ended, Some(0));
}

#[test]
fn a_signal_that_comes_to_a_thread_of_the_adapters_waits_for_the_program() {
    let ended = ends(|| {
        action::block(action::FAULTS);
        let open = OwnFaults::of_this_thread();
        assert_eq!([copied(), copied()], [Err(Fault), Ok(())]);
        let value = libc::sigval { sival_ptr: 99 as *mut _ };
        // SAFETY: plain data, filled in by the calls; the signal is sent to the process, where this thread alone takes it.
        unsafe {
            libc::sigqueue(libc::getpid(), libc::SIGSEGV, value);
            assert_ne!(action::pending().unwrap() & action::bit(libc::SIGSEGV), 0);
            assert_eq!(copied(), Err(Fault), "the signal would be delivered");
            let (mut set, mut info): (libc::sigset_t, libc::siginfo_t) =
                (std::mem::zeroed(), std::mem::zeroed());
            libc::sigaddset(&raw mut set, libc::SIGSEGV);
            assert_eq!(libc::sigwaitinfo(&raw const set, &raw mut info), libc::SIGSEGV);
            assert_eq!((info.si_code, info.si_value().sival_ptr as i32), (libc::SI_QUEUE, 99));
        }
        for _ in 0..PATIENCE {
            // Any of them may be the first that succeeds.
            let _ = copied();
        }
        assert_eq!(copied(), Ok(()), "open again");
        drop(open);
        assert_eq!(action::blocked().unwrap() & action::FAULTS, action::FAULTS);
    });
    assert_eq!(ended, Some(0));
}

#[test]
fn many_handlers_share_the_last_place() {
    let ended = ends(|| {
        for address in 0..50 {
            set(0x10_0000 + address, libc::SA_SIGINFO);
            use_guard();
        }
        set(ends_42 as *const () as usize, libc::SA_SIGINFO);
        use_guard();
        crash();
    });
    assert_eq!(ended, Some(42));
}

#[test]
fn threads_that_set_actions_lose_none_to_the_guard() {
    let ended = ends(|| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert!(handler::arm());
                }
            });
            for address in 0..20_000 {
                set(plain() + address % 2, 0);
            }
            set(ends_42 as *const () as usize, libc::SA_SIGINFO);
            stop.store(true, Ordering::Relaxed);
        });
        crash();
    });
    assert_eq!(ended, Some(42));
}
