//! The C library's own functions, errno, and what keeps ours from harming the thread they run on.

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the next library that has it. It is looked up when ours is loaded (`next_definition`), since a lookup takes
/// the loader's lock. A thread may hold that lock when its signal handler calls close(2), and in a fork's child the lock may
/// belong to a thread that doesn't exist there. If a constructor of another library calls earlier, that call looks it up.
pub struct Real<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

// SAFETY: `F` is a function pointer's type, of which no value is kept.
unsafe impl<F> Sync for Real<F> {}

/// Functions of which the C library has an older version too, which behaves differently. Before glibc 2.36 dlsym(3) finds that one
/// behind us.
const NEWEST: [(&CStr, &CStr); 3] =
    [(c"realpath", c"GLIBC_2.3"), (c"glob", c"GLIBC_2.27"), (c"glob64", c"GLIBC_2.27")];

impl<F: Copy> Real<F> {
    /// # Safety
    /// `F` is an `extern "C-unwind"` function pointer of the named function's type.
    pub const unsafe fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(ptr::null_mut()), kind: PhantomData }
    }

    /// `None` where the C library is too old to have it.
    #[inline]
    pub fn get(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            address = self.look_up()?;
        }
        // SAFETY: the address of a function whose type is `F` (`new`).
        Some(unsafe { std::mem::transmute_copy(&address) })
    }

    #[cold]
    fn look_up(&self) -> Option<*mut c_void> {
        // SAFETY: the names are NUL-terminated.
        let address = unsafe {
            let newest = NEWEST
                .iter()
                .find(|(name, _)| *name == self.name)
                .map_or(ptr::null_mut(), |(name, version)| {
                    libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr())
                });
            if newest.is_null() { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } else { newest }
        };
        self.address.store(address, Ordering::Relaxed);
        (!address.is_null()).then_some(address)
    }
}

/// Declares a [`Real`], and its look-up among the constructors.
macro_rules! next_definition {
    ($real:ident: $function:ty = $name:literal) => {
        // SAFETY: the type is the one that the C library's header gives the function.
        static $real: $crate::real::Real<$function> = unsafe { $crate::real::Real::new($name) };
        const _: () = {
            extern "C" fn look_up() {
                $real.get();
            }
            #[used]
            // SAFETY: the section is a list of functions that the loader calls.
            #[unsafe(link_section = ".init_array")]
            static LOOK_UP: extern "C" fn() = look_up;
        };
    };
}
pub(crate) use next_definition;

/// Calls the next definition of a C function; an ancient C library without it gives ENOSYS.
macro_rules! real {
    ($name:literal, fn($($ty:ty),*) -> $ret:ty, ($($arg:expr),*)) => {{
        type Function = unsafe extern "C-unwind" fn($($ty),*) -> $ret;
        $crate::real::next_definition!(REAL: Function = $name);
        match REAL.get() {
            // SAFETY: the caller's own arguments, or as good ones.
            Some(function) => unsafe { function($($arg),*) },
            None => {
                $crate::real::set_errno(libc::ENOSYS);
                <$ret as $crate::real::FailureValue>::FAILED
            }
        }
    }};
}
pub(crate) use real;

/// What a C function returns when it fails.
pub trait FailureValue: Copy {
    /// −1 or NULL.
    const FAILED: Self;
    /// Whether it is that.
    fn failed(self) -> bool;
}

macro_rules! minus_one {
    ($($ty:ty)*) => {$(
        impl FailureValue for $ty {
            const FAILED: Self = -1;
            fn failed(self) -> bool {
                self == Self::FAILED
            }
        }
    )*};
}
minus_one!(c_int isize);

impl FailureValue for () {
    const FAILED: Self = ();
    fn failed(self) -> bool {
        false
    }
}

impl<T> FailureValue for *mut T {
    const FAILED: Self = ptr::null_mut();
    fn failed(self) -> bool {
        self.is_null()
    }
}

/// The thread's errno.
pub fn errno() -> c_int {
    // SAFETY: the C library's address of this thread's errno.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
pub fn set_errno(value: c_int) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = value };
}

unsafe extern "C-unwind" {
    /// A thread that was cancelled ends in it where its cancellation is asynchronous.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// Runs our own code within a call of the program: without cancellation, without a panic that leaves it, and with errno
/// unchanged unless there is an error. `None` after a panic: the caller then behaves as if this library weren't loaded.
pub fn sheltered<R>(work: impl FnOnce() -> Result<R, c_int>) -> Option<Result<R, c_int>> {
    let before = errno();
    let mut cancellation = PTHREAD_CANCEL_DISABLE;
    // SAFETY: the address of a local variable.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut cancellation) };
    let outcome = catch_unwind(AssertUnwindSafe(work));
    // SAFETY: NULL: the old state isn't wanted.
    unsafe { pthread_setcancelstate(cancellation, ptr::null_mut()) };
    set_errno(match &outcome {
        Ok(Err(error)) => *error,
        _ => before,
    });
    outcome.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_looked_up_before_the_first_call() {
        next_definition!(NEVER_CALLED: unsafe extern "C-unwind" fn(c_int) -> c_int = c"close");
        assert!(!NEVER_CALLED.address.load(Ordering::Relaxed).is_null());
    }
}
