//! Thread domains and parent domains: ibv_alloc_td(3), ibv_alloc_parent_domain(3).

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferroce_abi::verbs::*;
use ferroce_entry::call::{self, Outcome, Refusal, at};
use ferroce_objects::{ContextBlock, Headed, PdBlock, TdBlock, TdHold};

/// What an allocator returns to leave it to the adapter (`IBV_ALLOCATOR_USE_DEFAULT`).
const USE_DEFAULT: usize = usize::MAX;

/// The slot behind `ibv_alloc_td`.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    call::pointer("ibv_alloc_td", || {
        // SAFETY: by the man page an open context and the caller's attributes.
        unsafe {
            ContextBlock::of(context)?;
            if at(attr, "init_attr")?.comp_mask != 0 {
                return Err(Refusal::invalid("the comp_mask of ibv_td_init_attr isn't 0"));
            }
        }
        TdBlock::allocate(|_| Ok(TdBlock { c: ibv_td { context }, users: AtomicUsize::new(0) }))
    })
}

/// The slot behind `ibv_dealloc_td`.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    call::errno_value("ibv_dealloc_td", || {
        // SAFETY: by the man page a thread domain that the caller gives up.
        unsafe {
            let users = TdBlock::ending(td)?.users.load(Ordering::Acquire);
            if users != 0 {
                return Err(Refusal::new(
                    libc::EBUSY,
                    format!("{users} parent domains still use the thread domain"),
                ));
            }
            TdBlock::free(td);
        }
        Ok(())
    })
}

/// The program's allocator of a parent domain.
#[derive(Debug)]
struct Allocator {
    pd: *mut ibv_pd,
    pd_context: *mut c_void,
    alloc: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void,
    free: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64),
}

// SAFETY: the pointers are the program's and are only passed back to it; its functions are called in calls of its own.
unsafe impl Send for Allocator {}
// SAFETY: as above.
unsafe impl Sync for Allocator {}

impl ferroce_mem::QueueMemory for Allocator {
    fn alloc(&self, size: usize, align: usize, kind: ferroce_mem::QueueKind) -> ferroce_mem::AllocatorAnswer {
        // The upper half, the kernel's number of a driver, is 0: none.
        // SAFETY: by the man page a function of this kind.
        let memory = ferroce_os::fork::outside_library(|| unsafe {
            (self.alloc)(self.pd, self.pd_context, size, align, kind as u64)
        });
        match NonNull::new(memory.cast()) {
            _ if memory.addr() == USE_DEFAULT => ferroce_mem::AllocatorAnswer::Default,
            Some(memory) => ferroce_mem::AllocatorAnswer::Memory(memory),
            None => ferroce_mem::AllocatorAnswer::None,
        }
    }

    fn free(&self, memory: NonNull<u8>, kind: ferroce_mem::QueueKind) {
        // SAFETY: by the man page a function of this kind; the memory is what `alloc` gave.
        ferroce_os::fork::outside_library(|| unsafe {
            (self.free)(self.pd, self.pd_context, memory.as_ptr().cast(), kind as u64);
        });
    }
}

fn allocator(
    attr: &ibv_parent_domain_init_attr,
    pd: *mut ibv_pd,
) -> Outcome<Option<Arc<dyn ferroce_mem::QueueMemory>>> {
    if attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS == 0 {
        return Ok(None);
    }
    let (Some(alloc), Some(free)) = (attr.alloc, attr.free) else {
        return Err(Refusal::invalid("an allocator needs both alloc and free"));
    };
    let has_context = attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT != 0;
    let pd_context = if has_context { attr.pd_context } else { ptr::null_mut() };
    Ok(Some(Arc::new(Allocator { pd, pd_context, alloc, free })))
}

/// The slot behind `ibv_alloc_parent_domain`.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const KNOWN: u32 = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
    call::pointer("ibv_alloc_parent_domain", || {
        // SAFETY: by the man page an open context and the caller's attributes, which name valid objects.
        unsafe {
            ContextBlock::of(context)?;
            let attr = at(attr, "attr")?;
            if attr.comp_mask & !KNOWN != 0 {
                return Err(Refusal::invalid(format!(
                    "comp_mask {:#x} of ibv_parent_domain_init_attr",
                    attr.comp_mask
                )));
            }
            let base = PdBlock::checked(attr.pd)?;
            let of_td = attr.td.as_ref().map(|td| td.context);
            if base.context() != context || of_td.is_some_and(|of_td| of_td != context) {
                return Err(Refusal::invalid("the domains are of another device context"));
            }
            PdBlock::allocate(|block| {
                let queues = allocator(attr, ptr::with_exposed_provenance_mut(block))?;
                let nic = ferroce_mem::Pd::parent(base.nic(), queues)?;
                Ok(PdBlock::new(context, nic, TdHold::new(attr.td)))
            })
        }
    })
}
