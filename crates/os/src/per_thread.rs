//! What each thread has of its own, found by a few instructions. A shared library's `thread_local!` asks the dynamic linker each time, by
//! a call; each call of verbs would do that several times.
//!
//! The bytes lie in the part of a thread's memory that is laid out when a library is loaded (the TLS model *initial-exec*). There is
//! little room in it for libraries that come later with dlopen(3), so it is for what data paths use.

/// Types of which zeros are a value, and that need no destructor.
///
/// # Safety
/// All bytes zero are a value of the type, its alignment is 16 at most, and nothing has to be done when a thread ends. Each field is a
/// [`Cell`](std::cell::Cell): no reference to a part of the value may be sent to another thread, which could outlive this one.
pub unsafe trait Zeroed {}

/// The name of a symbol with the version of the crate: two versions of it may be in one program.
#[doc(hidden)]
#[macro_export]
macro_rules! versioned {
    ($symbol:literal) => {
        concat!(
            $symbol,
            "_",
            env!("CARGO_PKG_VERSION_MAJOR"),
            "_",
            env!("CARGO_PKG_VERSION_MINOR"),
            "_",
            env!("CARGO_PKG_VERSION_PATCH")
        )
    };
}

/// `per_thread! { fn name() -> Type = "symbol"; }` declares a function that gives the value of the thread that calls it: zeros at first.
/// The type is [`Zeroed`](crate::per_thread::Zeroed) and isn't `Sync`; the symbol is one that no other declaration has.
/// The version is added to it.
#[macro_export]
macro_rules! per_thread {
    ($(#[$about:meta])* $vis:vis fn $name:ident() -> $type:ty = $symbol:literal;) => {
        #[cfg(not(miri))]
        std::arch::global_asm!(
            concat!(".pushsection .tbss.", $crate::versioned!($symbol), ",\"awT\",%nobits"),
            ".balign 16",
            concat!(".hidden ", $crate::versioned!($symbol)),
            concat!(".globl ", $crate::versioned!($symbol)),
            concat!(".type ", $crate::versioned!($symbol), ",%object"),
            concat!(".size ", $crate::versioned!($symbol), ",{size}"),
            concat!($crate::versioned!($symbol), ":"),
            ".zero {size}",
            ".popsection",
            size = const size_of::<$type>(),
        );

        // The type isn't `Sync`: if it were, both implementations would fit.
        const _: fn() = || {
            trait OfOneThread<Which> {
                fn is() {}
            }
            impl<T> OfOneThread<()> for T {}
            struct OfAll;
            impl<T: Sync> OfOneThread<OfAll> for T {}
            let _ = <$type as OfOneThread<_>>::is;
        };

        $(#[$about])*
        #[cfg(not(miri))]
        #[inline(always)]
        $vis fn $name() -> &'static $type {
            const { $crate::per_thread::check::<$type>() };
            let at: *const $type;
            // SAFETY: the address of this thread's bytes, which is constant within the thread. The words read to find it, the
            // thread's first word and the loader's table, aren't written once the thread runs: so `nomem` holds for all that Rust
            // can reach.
            unsafe {
                #[cfg(target_arch = "x86_64")]
                std::arch::asm!(
                    "mov {at}, qword ptr fs:[0]",
                    concat!("add {at}, qword ptr [rip + ", $crate::versioned!($symbol), "@GOTTPOFF]"),
                    at = out(reg) at,
                    options(pure, nomem, nostack),
                );
                #[cfg(target_arch = "aarch64")]
                std::arch::asm!(
                    "mrs {at}, tpidr_el0",
                    concat!("adrp {offset}, :gottprel:", $crate::versioned!($symbol)),
                    concat!("ldr {offset}, [{offset}, :gottprel_lo12:", $crate::versioned!($symbol), "]"),
                    "add {at}, {at}, {offset}",
                    at = out(reg) at,
                    offset = out(reg) _,
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
            // SAFETY: zeros are a value, and only this thread has it, by `Zeroed`. It stays for as long as the thread.
            unsafe { &*at }
        }

        $(#[$about])*
        #[cfg(miri)]
        $vis fn $name() -> &'static $type {
            const { $crate::per_thread::check::<$type>() };
            thread_local! {
                // SAFETY: zeros are a value.
                static VALUE: $type = const { unsafe { std::mem::zeroed() } };
            }
            // SAFETY: it stays for as long as the thread, since it has no destructor; no other thread gets it.
            VALUE.with(|value| unsafe { &*std::ptr::from_ref(value) })
        }
    };
}

/// Checks the alignment and the missing destructor that [`Zeroed`] requires.
#[doc(hidden)]
pub const fn check<T: Zeroed>() {
    assert!(align_of::<T>() <= 16 && !std::mem::needs_drop::<T>());
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    #[derive(Default)]
    struct Counted {
        first: Cell<u64>,
        second: Cell<*const u8>,
    }

    // SAFETY: numbers and null.
    unsafe impl super::Zeroed for Counted {}

    per_thread! { fn counted() -> Counted = "ferroce_test_counted"; }
    per_thread! { fn other() -> Counted = "ferroce_test_other"; }

    #[test]
    fn each_thread_has_its_own_zeros_at_first() {
        let threads: Vec<_> = (0..8u64)
            .map(|number| {
                std::thread::spawn(move || {
                    assert!(counted().first.get() == 0 && counted().second.get().is_null());
                    for round in 0..1000 {
                        counted().first.set(number << 32 | round);
                        other().first.set(!round);
                        std::thread::yield_now();
                        assert_eq!(counted().first.get(), number << 32 | round);
                        assert!(counted().second.get().is_null() && other().first.get() == !round);
                    }
                    std::ptr::from_ref(counted()).addr()
                })
            })
            .collect();
        let own = std::ptr::from_ref(counted());
        assert!(own.is_aligned() && std::ptr::eq(own, counted()) && !std::ptr::eq(own, other()));
        for thread in threads {
            assert_ne!(thread.join().unwrap(), own.addr());
        }
    }
}
