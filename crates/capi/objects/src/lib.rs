//! How C objects and the adapter's objects belong together: a C structure is the head of a block that holds the
//! adapter's object behind it, and the block's address is the user handle that comes back with events.

mod context;
mod memory;
mod qp;
mod queues;
mod small;

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use ferroce_abi::verbs::ibv_context;
use ferroce_check as check;
use ferroce_entry::call::{Outcome, Refusal};

pub use context::ContextBlock;
pub use memory::{DmBlock, DmahBlock, MrBlock, PdBlock, TdBlock, TdHold};
pub use qp::{QpBlock, QpObject, QpWork};
pub use queues::{ChannelBlock, CqBlock, SrqBlock, WqBlock};
pub use small::{AhBlock, CountersBlock, FlowBlock, XrcdBlock};

/// What an object is known by: the open device it was made on, and its number there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ObjectIdentity {
    /// The open device.
    pub context: *mut ibv_context,
    /// 0 for kinds of objects whose C structure has none.
    pub handle: u32,
}

/// A block, and what its object was known by when it was made. The program may write to the C structure.
#[repr(C)]
struct IdentifiedBlock<T> {
    block: T,
    identity: ObjectIdentity,
}

/// Implemented by blocks whose head is the C structure `Self::C`.
///
/// # Safety
/// `Self` is `repr(C)` and its first field is a `Self::C`.
pub unsafe trait Headed: Sized {
    /// The structure that programs see.
    type C;
    /// What it is called in messages.
    const WHAT: &'static str;

    /// The block behind a program's pointer.
    ///
    /// # Safety
    /// `pointer` is null or was returned by [`Headed::allocate`] and not yet given to [`Headed::free`].
    unsafe fn of<'a>(pointer: *mut Self::C) -> Outcome<&'a Self> {
        // SAFETY: the head of a block has the block's address; blocks are only shared, never borrowed mutably.
        unsafe { pointer.cast::<Self>().as_ref() }
            .ok_or_else(|| Refusal::invalid(format!("{} is NULL", Self::WHAT)))
    }

    /// The identity in the program's structure.
    fn identity(c: &Self::C) -> ObjectIdentity;

    /// As [`Headed::of`], for what isn't in a hurry: the structure has to name the object that it was made for. The
    /// kernel, which goes by what it names, refuses one that names none.
    ///
    /// # Safety
    /// As [`Headed::of`].
    unsafe fn checked<'a>(pointer: *mut Self::C) -> Outcome<&'a Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::known(pointer, libc::EINVAL) }
    }

    /// As [`Headed::checked`], for an object that the caller gives up. One that has been given up before is often found
    /// out, which isn't promised: its memory may be another object's by now.
    ///
    /// # Safety
    /// As [`Headed::of`].
    unsafe fn ending<'a>(pointer: *mut Self::C) -> Outcome<&'a Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::known(pointer, libc::ENOENT) }
    }

    /// # Safety
    /// As [`Headed::of`].
    #[doc(hidden)]
    unsafe fn known<'a>(pointer: *mut Self::C, otherwise: c_int) -> Outcome<&'a Self> {
        // SAFETY: the caller's promise; `allocate` has made the block as a part of a `IdentifiedBlock`.
        unsafe {
            let block = Self::of(pointer)?;
            if Self::identity(&*pointer) != (*pointer.cast::<IdentifiedBlock<Self>>()).identity {
                let why =
                    "its context or handle aren't those that it was made with, or it was destroyed before";
                return Err(Refusal::new(
                    otherwise,
                    format!("{} isn't an object of the device: {why}", Self::WHAT),
                ));
            }
            Ok(block)
        }
    }

    /// Makes a block. `make` gets the user handle, the block's future address.
    fn allocate(make: impl FnOnce(usize) -> Outcome<Self>) -> Outcome<*mut Self::C> {
        let mut place: Box<MaybeUninit<IdentifiedBlock<Self>>> = Box::new_uninit();
        let block = make(place.as_mut_ptr() as usize)?;
        // SAFETY: by the trait's contract the head of a block is its C structure.
        let identity = Self::identity(unsafe { &*(&raw const block).cast::<Self::C>() });
        check::made(Self::WHAT, identity.context, place.as_ptr() as usize);
        place.write(IdentifiedBlock { block, identity });
        Ok(Box::into_raw(place).cast())
    }

    /// Frees a block.
    ///
    /// # Safety
    /// As [`Headed::of`], with a pointer that isn't null and isn't used any more.
    unsafe fn free(pointer: *mut Self::C) {
        check::gone(pointer as usize);
        let known = pointer.cast::<IdentifiedBlock<Self>>();
        // SAFETY: `allocate` made it as a `Box<IdentifiedBlock<Self>>`; the caller gives it up. The write makes a second call
        // fail: no object has this identity.
        unsafe {
            (&raw mut (*known).identity)
                .write_volatile(ObjectIdentity { context: ptr::null_mut(), handle: u32::MAX });
            drop(Box::from_raw(known));
        }
    }
}

/// Defines a block: its head, the name of its kind in messages, and the context and handle of its head, then the adapter's object
/// (`=>`) and further fields.
#[macro_export]
macro_rules! block {
    ($(#[$meta:meta])* $name:ident: $head:ident $(as $pointer:ident)?, $what:literal, |$c:ident| ($context:expr, $handle:expr);
     $(=> $nic:ty;)? $($(#[$field_meta:meta])* $field:ident: $ty:ty,)*) => {
        #[doc = concat!("The block of a `", stringify!($head), "`.")]
        $(#[doc = ""] #[$meta])*
        #[repr(C)]
        pub struct $name {
            /// The structure that programs see.
            pub c: $head,
            $(/// The adapter's object.
            pub nic: ::std::sync::Arc<$nic>,)?
            $($(#[$field_meta])* pub $field: $ty,)*
        }

        // SAFETY: `repr(C)` with the head first. A head that isn't the pointer's structure begins with all fields of it (the layout test
        // compares both with the header).
        unsafe impl $crate::Headed for $name {
            type C = $crate::block!(@pointer $head $($pointer)?);
            const WHAT: &'static str = $what;

            fn identity($c: &Self::C) -> $crate::ObjectIdentity {
                $crate::ObjectIdentity { context: $context, handle: $handle }
            }
        }

        $(impl $name {
            /// The adapter's object.
            pub fn nic(&self) -> &::std::sync::Arc<$nic> {
                &self.nic
            }
        })?
    };
    (@pointer $head:ident) => { $head };
    (@pointer $head:ident $pointer:ident) => { $pointer };
}

/// A number for the `handle` field: unique in the process, of no further meaning.
pub fn next_handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Adds to a counter in a C structure, which other threads may be reading or counting.
///
/// # Safety
/// `counter` is valid and only ever changed by this function.
pub unsafe fn count(counter: *mut u32, by: u32) {
    // SAFETY: the caller's promise; the field is aligned as a `u32`.
    unsafe { AtomicU32::from_ptr(counter) }.fetch_add(by, Ordering::Relaxed);
}
