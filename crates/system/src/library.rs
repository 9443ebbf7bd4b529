//! Loading the library, and what surrounds its calls.

use ferroce_abi::verbs::*;
use ferroce_buffers::{Error, Kind};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The file that is loaded instead of `libibverbs.so.1`.
const FILE: &str = "FERROCE_LIBIBVERBS";

macro_rules! library {
    ($($name:ident @ $version:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of the library. Each has the version of its symbol: plain names are those of old structures.
        #[derive(Clone, Copy)]
        pub(crate) struct Library {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// Missing before rdma-core 33.
            pub(crate) gid_table: Option<GidTable>,
        }

        impl Library {
            fn of(handle: *mut c_void) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        let found = symbol(handle, stringify!($name), $version);
                        let found = found.ok_or_else(|| format!("it has no {}@{}", stringify!($name), $version))?;
                        // SAFETY: the function of this name and version has this signature.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>(found)
                        }
                    },)*
                    gid_table: symbol(handle, "_ibv_query_gid_table", "IBVERBS_1.11").map(|found| {
                        // SAFETY: the function of this name and version has this signature.
                        unsafe { std::mem::transmute::<*mut c_void, GidTable>(found) }
                    }),
                })
            }
        }
    };
}

type GidTable = unsafe extern "C" fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;

library! {
    ibv_get_device_list @ "IBVERBS_1.1": fn(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list @ "IBVERBS_1.1": fn(*mut *mut ibv_device) -> ();
    ibv_get_device_name @ "IBVERBS_1.1": fn(*mut ibv_device) -> *const c_char;
    ibv_open_device @ "IBVERBS_1.1": fn(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device @ "IBVERBS_1.1": fn(*mut ibv_context) -> c_int;
    ibv_query_device @ "IBVERBS_1.1": fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_get_async_event @ "IBVERBS_1.1": fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ibv_ack_async_event @ "IBVERBS_1.1": fn(*mut ibv_async_event) -> ();
    ibv_query_port @ "IBVERBS_1.1": fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    ibv_query_gid @ "IBVERBS_1.1": fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    ibv_alloc_pd @ "IBVERBS_1.1": fn(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd @ "IBVERBS_1.1": fn(*mut ibv_pd) -> c_int;
    ibv_reg_mr @ "IBVERBS_1.1": fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr @ "IBVERBS_1.1": fn(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel @ "IBVERBS_1.0": fn(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel @ "IBVERBS_1.0": fn(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq @ "IBVERBS_1.1": fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_destroy_cq @ "IBVERBS_1.1": fn(*mut ibv_cq) -> c_int;
    ibv_get_cq_event @ "IBVERBS_1.1": fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events @ "IBVERBS_1.1": fn(*mut ibv_cq, c_uint) -> ();
    ibv_create_qp @ "IBVERBS_1.1": fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp @ "IBVERBS_1.1": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_query_qp @ "IBVERBS_1.1": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    ibv_create_srq @ "IBVERBS_1.1": fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibv_modify_srq @ "IBVERBS_1.1": fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
    ibv_destroy_srq @ "IBVERBS_1.1": fn(*mut ibv_srq) -> c_int;
    ibv_create_ah @ "IBVERBS_1.1": fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    ibv_destroy_ah @ "IBVERBS_1.1": fn(*mut ibv_ah) -> c_int;
    ibv_destroy_qp @ "IBVERBS_1.1": fn(*mut ibv_qp) -> c_int;
}

fn symbol(handle: *mut c_void, name: &str, version: &str) -> Option<*mut c_void> {
    let [name, version] = [name, version].map(|text| CString::new(text).expect("no zero byte"));
    // SAFETY: an open library, and two strings.
    let found = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// The library, which stays loaded.
///
/// # Errors
/// It isn't there, or isn't one.
pub(crate) fn library() -> Result<&'static Library, Error> {
    static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        let path = file();
        // SAFETY: a string. The library's initialisers run, as the user of a library accepts.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(format!("{}: install rdma-core's libibverbs1, or set {FILE}", last_dl_error()));
        }
        // SAFETY: the handler is a function of this program, which stays.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        Library::of(handle).map_err(|why| format!("{}: {why}", path.to_string_lossy()))
    });
    loaded.as_ref().map_err(|why| Error::new(Kind::NotFound, "system", why.clone()))
}

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// The file to load. A privileged program (setuid) takes no other from its user.
fn file() -> CString {
    let name = CString::new(FILE).expect("no zero byte");
    // SAFETY: a string.
    let chosen = unsafe { secure_getenv(name.as_ptr()) };
    if chosen.is_null() {
        return c"libibverbs.so.1".into();
    }
    // SAFETY: a string of the environment, which other threads don't change meanwhile: to do so is unsafe.
    unsafe { CStr::from_ptr(chosen) }.into()
}

fn last_dl_error() -> String {
    // SAFETY: a string until the thread's next call of its kind, or null.
    let error = unsafe { libc::dlerror() };
    if error.is_null() {
        return "libibverbs can't be loaded".to_owned();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned()
}

/// How many forks lie between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The process that has made an object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Maker(u32);

impl Maker {
    #[inline]
    pub(crate) fn this() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether that is this process, and not one from which it was forked.
    #[inline]
    pub(crate) fn is_here(self) -> bool {
        self == Self::this()
    }

    /// # Errors
    /// It is another process.
    #[inline]
    pub(crate) fn check(self, verb: &'static str) -> Result<(), Error> {
        if self.is_here() {
            Ok(())
        } else {
            Err(Error::new(Kind::Dead, verb, "the object is of this process's parent"))
        }
    }
}

/// The error of a call that returns a pointer, or −1, and sets errno.
#[cold]
pub(crate) fn last_error(verb: &'static str, call: &'static str) -> Error {
    error(verb, call, std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// The error of a call that returns errno's value.
#[cold]
pub(crate) fn error(verb: &'static str, call: &'static str, errno: c_int) -> Error {
    let kind = match errno {
        libc::EACCES | libc::EPERM => Kind::Denied,
        libc::EBUSY => Kind::Busy,
        libc::ENOMEM | libc::EMFILE | libc::ENFILE => Kind::NoMemory,
        libc::ENOENT | libc::ENODEV | libc::ENXIO => Kind::NotFound,
        libc::ETIMEDOUT => Kind::TimedOut,
        libc::EHOSTUNREACH | libc::ENETUNREACH => Kind::Unreachable,
        libc::EOPNOTSUPP | libc::ENOSYS => Kind::Unsupported,
        libc::EINVAL | libc::EFAULT => Kind::Invalid,
        libc::EIO => Kind::Dead,
        _ => Kind::Os,
    };
    Error::new(kind, verb, format!("{call}: {}", std::io::Error::from_raw_os_error(errno)))
}

/// The outcome of a call that returns 0 or errno's value. Some providers return −1 and set errno.
pub(crate) fn check(verb: &'static str, call: &'static str, returned: c_int) -> Result<(), Error> {
    match returned {
        0 => Ok(()),
        -1 => Err(last_error(verb, call)),
        errno => Err(error(verb, call, errno)),
    }
}

/// Ends an object on which memory depends. The library must not refuse that: what it goes on accessing would be the program's again.
pub(crate) fn end(call: &'static str, mut end: impl FnMut() -> c_int) {
    /// Between two attempts.
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(10);
    loop {
        match check("destroy", call, end()) {
            Ok(()) => return,
            Err(error) if error.kind() == Kind::Busy => std::thread::sleep(PAUSE),
            // EIO: the device is gone, and with it the object.
            Err(error) if error.kind() == Kind::Dead => return,
            Err(error) => {
                eprintln!(
                    "ferroce: {error}: the adapter may still access memory that is about to be released"
                );
                std::process::abort();
            }
        }
    }
}
