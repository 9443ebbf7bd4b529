//! What every C function has around it: a panic boundary, the errno conventions, and one place where a refusal is
//! reported.
//!
//! A function's body returns `Result<_, Refusal>`; [`entry!`] turns it into what its man page promises: the errno
//! value, −1 and errno, or NULL and errno.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::c_int;

use crate::log;

/// Why a call is refused.
#[derive(Debug)]
pub struct Refusal {
    /// The documented errno.
    pub errno: c_int,
    /// One readable sentence, with the fix where there is one.
    pub why: Cow<'static, str>,
}

/// What a call comes to.
pub type Outcome<T> = Result<T, Refusal>;

impl Refusal {
    /// With an errno and a sentence.
    pub fn new(errno: c_int, why: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, why: why.into() }
    }

    /// EINVAL.
    pub fn invalid(why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(libc::EINVAL, why)
    }

    /// The refusal as an error of the adapter.
    pub fn to_nic(&self) -> ferroce_types::Error {
        let why = self.why.clone().into_owned();
        match self.errno {
            libc::EOPNOTSUPP => ferroce_types::Error::NotSupported(why),
            libc::EPERM => ferroce_types::Error::Permission(why),
            _ => ferroce_types::Error::Invalid(why),
        }
    }

    /// EOPNOTSUPP. Programs probe for features, so this isn't shown to people who didn't ask.
    pub fn unsupported(why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(libc::EOPNOTSUPP, why)
    }
}

impl From<ferroce_types::Error> for Refusal {
    fn from(error: ferroce_types::Error) -> Self {
        Self::new(error.errno(), error.to_string())
    }
}

/// Sets the calling thread's errno.
pub fn set_errno(errno: c_int) {
    // SAFETY: the address is the calling thread's own errno, valid for its lifetime.
    unsafe { *libc::__errno_location() = errno };
}

/// The calling thread's errno.
pub fn last_errno() -> c_int {
    // SAFETY: as in `set_errno`.
    unsafe { *libc::__errno_location() }
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// Holds `pthread_cancel` off while Rust code is on the stack: the standard library makes system calls that are
/// cancellation points, and glibc's forced unwinding must not run through destructors and `catch_unwind`.
struct Uncancellable(c_int);

impl Uncancellable {
    fn new() -> Self {
        let mut old = 0;
        // SAFETY: POSIX; `old` is a valid place, and disabling can't itself cancel.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut old) };
        Self(old)
    }
}

impl Drop for Uncancellable {
    fn drop(&mut self) {
        // SAFETY: as above, with the state that the thread had. With deferred cancellation, the default, this isn't a
        // cancellation point.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

/// Runs `body`; a panic becomes `EIO`, and nothing unwinds into C. Without [`guard`]'s protection against cancellation:
/// for the data path, where the adapter makes raw system calls only.
pub fn contain<T>(call: &'static str, body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    // A fork waits until no thread is inside.
    let _inside = match ferroce_os::fork::enter_library() {
        Ok(inside) => inside,
        Err(ferroce_os::fork::Unusable(why)) => {
            log::unusable(why);
            return Err(Refusal::new(libc::EIO, why));
        }
    };
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        // The stack has unwound: no lock is held any more.
        let _ = catch_unwind(ferroce_nic::fail_devices);
        Err(Refusal::new(libc::EIO, "an internal error; the adapter can't be trusted any more"))
    });
    if let Err(refusal) = &outcome {
        log::refused(call, refusal.errno, &refusal.why);
    }
    outcome
}

/// Prints, under `ferroce run`, why something failed that isn't a call: the line has cause and fix.
pub fn explained(line: &str) {
    log::explained(line);
}

/// As [`contain`], and cancellation waits.
pub fn guard<T>(call: &'static str, body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let _uncancellable = Uncancellable::new();
    contain(call, body)
}

/// 0, or the errno value.
pub fn to_errno(outcome: Outcome<()>) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(refusal) => {
            set_errno(refusal.errno);
            refusal.errno
        }
    }
}

/// The number, or −1 with errno set.
pub fn to_minus_one(outcome: Outcome<c_int>) -> c_int {
    outcome.unwrap_or_else(|refusal| {
        set_errno(refusal.errno);
        -1
    })
}

/// For functions that return 0 or the errno value.
pub fn errno_value(call: &'static str, body: impl FnOnce() -> Outcome<()>) -> c_int {
    to_errno(guard(call, body))
}

/// For functions that return a number, or −1 and set errno.
pub fn minus_one(call: &'static str, body: impl FnOnce() -> Outcome<c_int>) -> c_int {
    to_minus_one(guard(call, body))
}

/// For functions that return an object, or NULL and set errno.
pub fn pointer<T>(call: &'static str, body: impl FnOnce() -> Outcome<*mut T>) -> *mut T {
    guard(call, body).unwrap_or_else(|refusal| {
        set_errno(refusal.errno);
        std::ptr::null_mut()
    })
}

/// For functions that can't fail; `otherwise` is returned after a panic.
pub fn value<T>(call: &'static str, otherwise: T, body: impl FnOnce() -> T) -> T {
    guard(call, || Ok(body())).unwrap_or(otherwise)
}

/// The object behind a pointer that a program passed.
///
/// # Safety
/// `pointer` is null or points to a live `T` that isn't changed during `'a`.
pub unsafe fn at<'a, T>(pointer: *const T, what: &'static str) -> Outcome<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| Refusal::invalid(format!("{what} is NULL")))
}

/// Likewise, to write to it.
///
/// # Safety
/// `pointer` is null or points to a live `T` that isn't used elsewhere during `'a`.
pub unsafe fn at_mut<'a, T>(pointer: *mut T, what: &'static str) -> Outcome<&'a mut T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or_else(|| Refusal::invalid(format!("{what} is NULL")))
}

/// Writes a result to where a program wants it.
///
/// # Safety
/// `place` is null or valid for writing a `T`, initialised or not.
pub unsafe fn put<T>(place: *mut T, what: &'static str, value: T) -> Outcome<()> {
    if place.is_null() {
        return Err(Refusal::invalid(format!("{what} is NULL")));
    }
    // SAFETY: not null, and the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

/// Defines the function behind an export (`symbols.tsv` gives it its name and versions). After the arrow stands how it
/// reports: `errno`, `minus_one`, `pointer T`, or `value T = x` with what a panic returns.
#[macro_export]
macro_rules! entry {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> errno $body:block) => {
        $(#[$meta])*
        #[allow(missing_docs, clippy::missing_safety_doc)] // the man page's
        #[unsafe(export_name = concat!("ferroce_c_", stringify!($name)))]
        $vis unsafe extern "C" fn $name($($arg: $ty),*) -> ::libc::c_int {
            $crate::call::errno_value(stringify!($name), || -> $crate::call::Outcome<()> { $body })
        }
    };
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> minus_one $body:block) => {
        $(#[$meta])*
        #[allow(missing_docs, clippy::missing_safety_doc)] // the man page's
        #[unsafe(export_name = concat!("ferroce_c_", stringify!($name)))]
        $vis unsafe extern "C" fn $name($($arg: $ty),*) -> ::libc::c_int {
            $crate::call::minus_one(stringify!($name), || -> $crate::call::Outcome<::libc::c_int> { $body })
        }
    };
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> pointer $ret:ty, $body:block) => {
        $(#[$meta])*
        #[allow(missing_docs, clippy::missing_safety_doc)] // the man page's
        #[unsafe(export_name = concat!("ferroce_c_", stringify!($name)))]
        $vis unsafe extern "C" fn $name($($arg: $ty),*) -> *mut $ret {
            $crate::call::pointer(stringify!($name), || -> $crate::call::Outcome<*mut $ret> { $body })
        }
    };
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> value $ret:ty = $otherwise:expr, $body:block) => {
        $(#[$meta])*
        #[allow(missing_docs, clippy::missing_safety_doc)] // the man page's
        #[unsafe(export_name = concat!("ferroce_c_", stringify!($name)))]
        $vis unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
            $crate::call::value(stringify!($name), $otherwise, || -> $ret { $body })
        }
    };
}
pub use entry;

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const NAME: &str = "call::tests::a_panic_behind_an_export_is_eio_and_fatal_for_the_device";
    const INSIDE: &str = "FERROCE_TEST_INSIDE";

    /// Runs this test again in a network namespace of its own, where it is allowed.
    fn in_own_namespace() -> bool {
        const WORDS: [&str; 6] =
            ["--user", "--map-root-user", "--net", "sh", "-c", "ip link set lo up && exec \"$@\""];
        let mut allowed = Command::new("unshare");
        if !allowed.args(WORDS).args(["sh", "true"]).output().is_ok_and(|output| output.status.success()) {
            return false;
        }
        let this = std::env::current_exe().expect("a program");
        let output = Command::new("unshare")
            .args(WORDS)
            .arg("sh")
            .arg(this)
            .args(["--exact", NAME])
            .env(INSIDE, "1")
            .env_remove("FERROCE_DEVICES")
            .output()
            .expect("unshare ran before");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        true
    }

    #[test]
    fn a_panic_behind_an_export_is_eio_and_fatal_for_the_device() {
        if std::env::var_os(INSIDE).is_none() && in_own_namespace() {
            return;
        }
        let context = ferroce_nic::devices().expect("the network")[0].open().expect("a device");
        for events in [1, 0] {
            let result = errno_value("a_call_of_this_test", || panic!("injected"));
            assert_eq!((result, last_errno()), (libc::EIO, libc::EIO));
            let raised = std::iter::from_fn(|| context.async_events().take());
            assert_eq!(
                raised.filter(|e| matches!(e, ferroce_types::AsyncEvent::DeviceFatal)).count(),
                events
            );
        }
        // Nothing is locked.
        drop(context);
        ferroce_nic::devices().expect("the network")[0].open().expect("a device");
    }
}
