//! Protection domains and memory regions: ibv_alloc_pd(3), ibv_reg_mr(3), ibv_rereg_mr(3).

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, OnceLock};

use libc::size_t;

use ferroce_abi::verbs::*;
use ferroce_check as check;
use ferroce_entry::call::{self, Outcome, Refusal, entry};
use ferroce_objects::{ContextBlock, Headed, MrBlock, PdBlock};

entry! {
    pub fn ibv_alloc_pd(context: *mut ibv_context) -> pointer ibv_pd, {
        // SAFETY: by the man page an open context.
        let nic = ferroce_mem::Pd::alloc(unsafe { ContextBlock::of(context) }?.nic())?;
        PdBlock::allocate(|_| Ok(PdBlock::new(context, nic, None)))
    }
}

entry! {
    pub fn ibv_dealloc_pd(pd: *mut ibv_pd) -> errno {
        // SAFETY: by the man page a domain that the caller gives up.
        unsafe {
            PdBlock::ending(pd)?.nic().dealloc()?;
            PdBlock::free(pd);
        }
        Ok(())
    }
}

/// The rights that memory of any kind can have.
pub(crate) const PLAIN_ACCESS: c_uint =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/// All access flags of a region, besides hints.
pub(crate) const KNOWN_ACCESS: c_uint = PLAIN_ACCESS
    | IBV_ACCESS_MW_BIND
    | IBV_ACCESS_ZERO_BASED
    | IBV_ACCESS_ON_DEMAND
    | IBV_ACCESS_HUGETLB
    | IBV_ACCESS_FLUSH_GLOBAL
    | IBV_ACCESS_FLUSH_PERSISTENT;

/// Rights as the adapter takes them, and whether addresses count from zero.
pub(crate) fn rights(access: c_uint) -> Outcome<(ferroce_mem::MrAccess, bool)> {
    // The optional bits are hints by definition, and that pages are huge is a promise of the program's.
    let unknown = access & !(KNOWN_ACCESS | IBV_ACCESS_OPTIONAL_RANGE);
    if unknown != 0 {
        return Err(Refusal::invalid(format!("unknown access bits {unknown:#x}")));
    }
    let has = |bit: c_uint| access & bit != 0;
    let rights = ferroce_mem::MrAccess {
        local_write: has(IBV_ACCESS_LOCAL_WRITE),
        remote_write: has(IBV_ACCESS_REMOTE_WRITE),
        remote_read: has(IBV_ACCESS_REMOTE_READ),
        remote_atomic: has(IBV_ACCESS_REMOTE_ATOMIC),
        flush: ferroce_types::Placement {
            global: has(IBV_ACCESS_FLUSH_GLOBAL),
            persistent: has(IBV_ACCESS_FLUSH_PERSISTENT),
        },
        bind_windows: has(IBV_ACCESS_MW_BIND),
        on_demand: has(IBV_ACCESS_ON_DEMAND),
    };
    Ok((rights, has(IBV_ACCESS_ZERO_BASED)))
}

/// # Safety
/// `pd` is null or a domain.
pub(crate) unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_uint,
) -> Outcome<*mut ibv_mr> {
    // SAFETY: the caller's promise.
    let domain = unsafe { PdBlock::checked(pd) }?;
    if access & IBV_ACCESS_HUGETLB != 0 && length == size_t::MAX {
        return Err(Refusal::invalid("the pages of a whole address space aren't all huge"));
    }
    let (access, zero_based) = rights(access)?;
    let init = ferroce_mem::MrInit {
        addr: addr as u64,
        length: length as u64,
        iova: if zero_based { 0 } else { iova },
        access,
    };
    // SAFETY: what the adapter does with the memory, the program answers for, as the man page has it.
    let nic = unsafe { ferroce_mem::Mr::register(domain.nic(), init) }?;
    let mr = describe(pd, domain, addr, nic)?;
    if !access.on_demand {
        check::pinned(mr as usize, init.addr, init.length);
    }
    Ok(mr)
}

/// The C structure of a region.
pub(crate) fn describe(
    pd: *mut ibv_pd,
    domain: &PdBlock,
    addr: *mut c_void,
    nic: Arc<ferroce_mem::Mr>,
) -> Outcome<*mut ibv_mr> {
    let init = nic.init()?;
    MrBlock::allocate(|_| {
        let c = ibv_mr {
            context: domain.context(),
            pd,
            addr,
            length: init.length as size_t,
            handle: nic.handle(),
            lkey: nic.key(),
            rkey: nic.rkey(),
        };
        Ok(MrBlock { c, nic, dmah: OnceLock::new() })
    })
}

entry! {
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: size_t, access: c_int) -> pointer ibv_mr, {
        // SAFETY: by the man page a domain.
        unsafe { register(pd, addr, length, addr as u64, access as c_uint) }
    }
}

entry! {
    fn ibv_reg_mr_iova(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: size_t,
        iova: u64,
        access: c_int,
    ) -> pointer ibv_mr, {
        // SAFETY: by the man page a domain.
        unsafe { register(pd, addr, length, iova, access as c_uint) }
    }
}

entry! {
    /// What the macros of the header call when optional rights may be among `access`.
    fn ibv_reg_mr_iova2(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: size_t,
        iova: u64,
        access: c_uint,
    ) -> pointer ibv_mr, {
        // SAFETY: by the man page a domain.
        unsafe { register(pd, addr, length, iova, access) }
    }
}

/// The slot behind ibv_alloc_null_mr(3).
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    call::pointer("ibv_alloc_null_mr", || {
        // SAFETY: by the man page a domain.
        let domain = unsafe { PdBlock::checked(pd) }?;
        let mr = describe(pd, domain, std::ptr::null_mut(), ferroce_mem::Mr::null(domain.nic())?)?;
        // SAFETY: just made. By the man page it isn't exposed to peers.
        unsafe { (*mr).rkey = 0 };
        Ok(mr)
    })
}

entry! {
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> errno {
        // SAFETY: by the man page a region that the caller gives up.
        unsafe {
            let block = MrBlock::ending(mr)?;
            check_unused(mr, block);
            block.nic().deregister()?;
            MrBlock::free(mr);
        }
        Ok(())
    }
}

/// Reports outstanding requests that use a region that is to be deregistered.
///
/// # Safety
/// `mr` is a region's.
unsafe fn check_unused(mr: *mut ibv_mr, block: &MrBlock) {
    if !check::is_on() {
        return;
    }
    // SAFETY: the caller's promise: the region's context is open.
    let context = unsafe { ContextBlock::of((*mr).context) };
    if let Ok(context) = context
        && let Some((qpn, count)) = context.nic().sends_naming(block.nic())
    {
        check::region_in_use(block.nic().key(), qpn, count);
    }
}

/// What ibv_rereg_mr(3) refuses before it asks the adapter (IBV_REREG_MR_ERR_INPUT).
fn check_input(flags: c_int, addr: *mut c_void, length: size_t, access: c_uint) -> Outcome<()> {
    let known = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    if flags & !known != 0 || flags == 0 {
        return Err(Refusal::invalid(format!("flags {flags:#x}: one or more of IBV_REREG_MR_CHANGE_*")));
    }
    if flags & IBV_REREG_MR_CHANGE_ACCESS == 0 && access != 0 {
        return Err(Refusal::invalid("access rights without IBV_REREG_MR_CHANGE_ACCESS"));
    }
    if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 && (addr.is_null() || length == 0) {
        return Err(Refusal::invalid("a new translation needs an address and a length"));
    }
    Ok(())
}

/// What a region becomes: what the flags name is replaced, the rest stays.
fn changed(
    old: ferroce_mem::MrInit,
    flags: c_int,
    addr: *mut c_void,
    length: size_t,
    access: c_uint,
) -> Outcome<ferroce_mem::MrInit> {
    let mut new = old;
    if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
        new.addr = addr as u64;
        new.length = length as u64;
        new.iova = addr as u64;
    }
    if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 {
        let (rights, zero_based) = rights(access)?;
        new.access = rights;
        if zero_based {
            new.iova = 0;
        }
    }
    Ok(new)
}

/// ibv_rereg_mr(3). The keys stay. On an error errno is set, and the region is as it was: also after IBV_REREG_MR_ERR_CMD, which a program
/// takes for the adapter's refusal and after which it may expect anything.
#[unsafe(export_name = "ferroce_c_ibv_rereg_mr")]
unsafe extern "C" fn rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> c_int {
    let mut asked = false;
    let outcome = call::guard("ibv_rereg_mr", || {
        check_input(flags, addr, length, access as c_uint)?;
        // SAFETY: by the man page a region, and a domain if the flags have its bit.
        unsafe {
            let block = MrBlock::checked(mr)?;
            asked = true;
            let old = block.nic().init()?;
            let new = changed(old, flags, addr, length, access as c_uint)?;
            let move_to =
                if flags & IBV_REREG_MR_CHANGE_PD != 0 { Some(PdBlock::checked(pd)?.nic()) } else { None };
            block.nic().reregister(move_to, old, new)?;
            // The program owns the structure.
            if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
                (*mr).addr = new.addr as *mut c_void;
                (*mr).length = new.length as usize;
            }
            if move_to.is_some() {
                (*mr).pd = pd;
            }
        }
        Ok(())
    });
    match outcome {
        Ok(()) => 0,
        Err(refusal) => {
            call::set_errno(refusal.errno);
            if asked { IBV_REREG_MR_ERR_CMD } else { IBV_REREG_MR_ERR_INPUT }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_access_bits_are_accepted_and_unknown_ones_are_einval() {
        let relaxed_ordering = 1 << 20;
        let (access, _) = rights(IBV_ACCESS_LOCAL_WRITE | relaxed_ordering).expect("a hint");
        assert!(access.local_write && !access.remote_write);
        assert_eq!(rights(1 << 12).expect_err("unknown").errno, libc::EINVAL);
        assert!(rights(IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB).expect("ODP").0.on_demand);
    }

    #[test]
    fn rereg_replaces_what_the_flags_name() {
        let old = ferroce_mem::MrInit {
            addr: 0x1000,
            length: 16,
            iova: 0,
            access: ferroce_mem::MrAccess::default(),
        };
        let new = changed(old, IBV_REREG_MR_CHANGE_ACCESS, 8 as *mut c_void, 99, IBV_ACCESS_LOCAL_WRITE)
            .expect("valid");
        assert!(new.access.local_write);
        assert_eq!((new.addr, new.length, new.iova), (0x1000, 16, 0));
        let new = changed(old, IBV_REREG_MR_CHANGE_TRANSLATION, 0x2000 as *mut c_void, 99, 0).expect("valid");
        assert_eq!((new.addr, new.length, new.iova), (0x2000, 99, 0x2000));
        let somewhere = 0x2000 as *mut c_void;
        for (flags, addr, length, access) in [
            (0, somewhere, 99, 0),
            (8, somewhere, 99, 0),
            (IBV_REREG_MR_CHANGE_TRANSLATION, somewhere, 0, 0),
            (IBV_REREG_MR_CHANGE_TRANSLATION, std::ptr::null_mut(), 99, 0),
            (IBV_REREG_MR_CHANGE_PD, somewhere, 99, IBV_ACCESS_LOCAL_WRITE),
        ] {
            assert_eq!(check_input(flags, addr, length, access).expect_err("input").errno, libc::EINVAL);
        }
    }
}
