//! DMA handles: ibv_alloc_dmah(3). Their hints concern PCIe transactions, which an adapter in the process doesn't make;
//! they are checked, and then there is nothing more to do for them.

use std::mem::{MaybeUninit, size_of};
use std::sync::Arc;

use ferroce_abi::verbs::*;
use ferroce_entry::call::{Outcome, Refusal, at, entry};
use ferroce_objects::{ContextBlock, DmahBlock, Headed};

/// Processing hints are two bits.
const MAX_PH: u8 = 3;

fn check(attr: &ibv_dmah_init_attr) -> Outcome<()> {
    const STEERING: u32 = IBV_DMAH_INIT_ATTR_MASK_CPU_ID | IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE;
    let has = |bit: u32| attr.comp_mask & bit != 0;
    if attr.comp_mask & !(STEERING | IBV_DMAH_INIT_ATTR_MASK_PH) != 0 {
        return Err(Refusal::unsupported(format!("comp_mask {:#x} of ibv_dmah_init_attr", attr.comp_mask)));
    }
    if !has(IBV_DMAH_INIT_ATTR_MASK_PH) || attr.ph > MAX_PH {
        return Err(Refusal::invalid(format!("processing hints are needed, of 0 to {MAX_PH}")));
    }
    if !matches!(attr.comp_mask & STEERING, 0 | STEERING) {
        return Err(Refusal::invalid("a CPU and a type of memory are named together, or neither is"));
    }
    if !has(IBV_DMAH_INIT_ATTR_MASK_CPU_ID) {
        return Ok(());
    }
    if attr.tph_mem_type > IBV_TPH_MEM_TYPE_PM {
        return Err(Refusal::invalid(format!(
            "tph_mem_type {}: volatile or persistent memory",
            attr.tph_mem_type
        )));
    }
    // SAFETY: the C library writes to a set of this size.
    let (cpus, configured) = unsafe {
        let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr());
        (set.assume_init(), libc::sysconf(libc::_SC_NPROCESSORS_CONF))
    };
    if i64::from(attr.cpu_id) >= configured || attr.cpu_id as usize >= libc::CPU_SETSIZE as usize {
        return Err(Refusal::invalid(format!("CPU {}: the machine has {configured}", attr.cpu_id)));
    }
    // SAFETY: within the set.
    if !unsafe { libc::CPU_ISSET(attr.cpu_id as usize, &cpus) } {
        return Err(Refusal::new(libc::EPERM, format!("the thread may not run on CPU {}", attr.cpu_id)));
    }
    Ok(())
}

entry! {
    pub(crate) fn ibv_alloc_dmah(
        context: *mut ibv_context,
        attr: *mut ibv_dmah_init_attr,
    ) -> pointer ibv_dmah, {
        // SAFETY: by the man page an open context and the caller's attributes.
        unsafe {
            ContextBlock::of(context)?;
            check(at(attr, "attr")?)?;
        }
        DmahBlock::allocate(|_| Ok(DmahBlock { c: ibv_dmah { context }, users: Arc::default() }))
    }
}

entry! {
    pub(crate) fn ibv_dealloc_dmah(dmah: *mut ibv_dmah) -> errno {
        // SAFETY: by the man page a handle that the caller gives up.
        unsafe {
            if Arc::strong_count(&DmahBlock::ending(dmah)?.users) > 1 {
                return Err(Refusal::new(libc::EBUSY, "regions of the DMA handle are registered"));
            }
            DmahBlock::free(dmah);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ibv_alloc_dmah_takes() {
        let all = IBV_DMAH_INIT_ATTR_MASK_CPU_ID
            | IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE
            | IBV_DMAH_INIT_ATTR_MASK_PH;
        // SAFETY: takes no pointer.
        let cpu_id = unsafe { libc::sched_getcpu() } as u32;
        let good = ibv_dmah_init_attr { comp_mask: all, cpu_id, ph: 3, tph_mem_type: IBV_TPH_MEM_TYPE_PM };
        check(&good).expect("all");
        check(&ibv_dmah_init_attr { comp_mask: IBV_DMAH_INIT_ATTR_MASK_PH, ..good }).expect("hints alone");
        for (attr, errno) in [
            (ibv_dmah_init_attr { comp_mask: 8 | all, ..good }, libc::EOPNOTSUPP),
            (ibv_dmah_init_attr { comp_mask: all & !IBV_DMAH_INIT_ATTR_MASK_PH, ..good }, libc::EINVAL),
            (ibv_dmah_init_attr { comp_mask: all & !IBV_DMAH_INIT_ATTR_MASK_CPU_ID, ..good }, libc::EINVAL),
            (ibv_dmah_init_attr { ph: 4, ..good }, libc::EINVAL),
            (ibv_dmah_init_attr { tph_mem_type: 2, ..good }, libc::EINVAL),
            (ibv_dmah_init_attr { cpu_id: 0xffff, ..good }, libc::EINVAL),
        ] {
            assert_eq!(check(&attr).expect_err("refused").errno, errno, "{attr:?}");
        }
    }
}
