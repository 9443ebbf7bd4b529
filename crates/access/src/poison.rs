//! Poisons the program's memory for AddressSanitizer, where the program was built with it: an access of the program to poisoned memory
//! is reported with the stack of its thread. The adapter's copies aren't instrumented, so they can access it.

use ferroce_os::sync::MadeOnce;
use std::ffi::CStr;

/// A function of AddressSanitizer's interface (`sanitizer/asan_interface.h`): marks a range of addresses.
type Mark = unsafe extern "C" fn(*const libc::c_void, usize);

struct Sanitizer {
    poison: Mark,
    unpoison: Mark,
}

/// The one in this process.
fn sanitizer() -> Option<&'static Sanitizer> {
    static FOUND: MadeOnce<Sanitizer> = MadeOnce::new();
    let find = |name: &CStr| {
        // SAFETY: a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        // SAFETY: names with two underscores belong to the compiler, whose functions of these names have this type.
        (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut libc::c_void, Mark>(found) })
    };
    FOUND.get(|| {
        let poison = find(c"__asan_poison_memory_region")?;
        Some(Sanitizer { poison, unpoison: find(c"__asan_unpoison_memory_region")? })
    })
}

/// The program isn't to touch the `len` bytes at `addr`, an address of the program's memory.
pub fn poison(addr: u64, len: usize) {
    if let Some(sanitizer) = sanitizer() {
        // SAFETY: the shadow of all memory that a program can have is mapped, and only the sanitizer uses it.
        unsafe { (sanitizer.poison)(addr as *const libc::c_void, len) };
    }
}

/// The program may touch the `len` bytes at `addr` again.
pub fn unpoison(addr: u64, len: usize) {
    if let Some(sanitizer) = sanitizer() {
        // SAFETY: as above.
        unsafe { (sanitizer.unpoison)(addr as *const libc::c_void, len) };
    }
}
