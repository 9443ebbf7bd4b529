//! What ibv_reg_mr(3) refuses.

use crate::persist;
use crate::rights::{MAX_MR_SIZE, MrInit};
use ferroce_access::{MappedRange, NotedRanges, mapped};
use ferroce_types::{Error, Result, invalid};

/// Bytes of a page, which the kernel counts regions in.
const PAGE: u64 = 4096;

/// What the checks have found of a range.
#[derive(Debug)]
pub(crate) struct CheckedRange {
    /// All of it is memory that processes can share.
    pub(crate) shared: bool,
    /// Those of its pages that can come late.
    pub(crate) noted: NotedRanges,
}

impl CheckedRange {
    /// Nothing of it is the program's memory.
    pub(crate) fn unshared() -> Self {
        Self { shared: false, noted: NotedRanges::default() }
    }
}

/// The checks of ibv_reg_mr(3).
pub(crate) fn check(init: &MrInit) -> Result<CheckedRange> {
    let a = init.access;
    if (a.remote_write || a.remote_atomic) && !a.local_write {
        return invalid!("remote write or atomic access needs local write access as well");
    }
    // As the kernel counts: at another address it is a region of the page that the address is in.
    if init.length == 0 && init.addr.is_multiple_of(PAGE) {
        return invalid!("a memory region of length 0 at an address that begins a page: it has no page");
    }
    if init.addr.checked_add(init.length).is_none() || init.iova.checked_add(init.length).is_none() {
        return invalid!("the range {:#x}+{:#x} wraps around", init.addr, init.length);
    }
    if a.flush.persistent && !persist::outlives_power(init.addr, init.length) {
        return invalid!("what isn't a shared mapping of a file on a disk can't be flushed to persistence");
    }
    let implicit = init.addr == 0 && init.length == u64::MAX;
    if a.on_demand && implicit && init.iova != 0 {
        return invalid!("the whole address space begins at 0, not at {:#x}", init.iova);
    }
    if init.length > MAX_MR_SIZE && !(a.on_demand && implicit) {
        return invalid!("a memory region of {:#x} bytes: at most {MAX_MR_SIZE:#x}", init.length);
    }
    let mut noted = NotedRanges::default();
    if a.on_demand {
        // What is there is found out at each access.
        noted.add_on_demand(init.addr, init.length);
        return Ok(CheckedRange { shared: false, noted });
    }
    let writable = a.local_write;
    match mapped(init.addr, init.length.max(1), writable, &mut noted) {
        Ok(MappedRange { permitted: true, shared }) => Ok(CheckedRange { shared, noted }),
        Ok(_) => Err(Error::Fault(format!(
            "{:#x}+{:#x} isn't mapped{} throughout",
            init.addr,
            init.length,
            if writable { " writable" } else { "" }
        ))),
        // Without /proc the check is left to the copies, which fail safely.
        Err(_) => Ok(CheckedRange { shared: false, noted }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MrAccess;
    use ferroce_access::pages;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    const RW: MrAccess = MrAccess::ALL;

    fn init(addr: u64, length: u64, access: MrAccess) -> MrInit {
        MrInit { addr, length, iova: addr, access }
    }

    #[test]
    fn what_ibv_reg_mr_refuses() {
        let page = vec![0u8; 8192];
        let at = page.as_ptr() as u64;
        let remote_only = MrAccess { remote_write: true, ..MrAccess::default() };
        assert_eq!(check(&init(at, 8192, remote_only)).unwrap_err().errno(), libc::EINVAL);
        let first = at.next_multiple_of(PAGE);
        assert_eq!(check(&init(first, 0, RW)).unwrap_err().errno(), libc::EINVAL);
        check(&init(first + 1, 0, RW)).unwrap();
        assert_eq!(check(&init(0x10, 0, RW)).unwrap_err().errno(), libc::EFAULT);
        assert_eq!(check(&init(u64::MAX - 5, 10, RW)).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(check(&init(0x10, 10, RW)).unwrap_err().errno(), libc::EFAULT);
        let text = what_ibv_reg_mr_refuses as fn() as usize as u64;
        assert_eq!(check(&init(text, 4, RW)).unwrap_err().errno(), libc::EFAULT);
        check(&init(text, 4, MrAccess::default())).unwrap();
        check(&init(at, 8192, RW)).unwrap();

        let atomics_only = MrAccess { remote_atomic: true, ..MrAccess::default() };
        assert_eq!(check(&init(at, 8192, atomics_only)).unwrap_err().errno(), libc::EINVAL);
        let refused = |init: MrInit| check(&init).unwrap_err().errno();
        assert_eq!(refused(MrInit { iova: u64::MAX - 5, ..init(at, 8192, RW) }), libc::EINVAL);
        // What isn't there is found out at each access.
        let on_demand = MrAccess { on_demand: true, ..RW };
        let at_most = init(0x1000, MAX_MR_SIZE, on_demand);
        check(&at_most).unwrap();
        assert_eq!(refused(MrInit { length: MAX_MR_SIZE + 1, ..at_most }), libc::EINVAL);
        let everything = init(0, u64::MAX, on_demand);
        check(&everything).unwrap();
        assert_eq!(refused(MrInit { access: RW, ..everything }), libc::EINVAL);
    }

    /// A mapped file that has no page in memory.
    fn absent_pages(len: usize) -> (File, u64) {
        let path = std::env::temp_dir().join(format!("ferroce-check-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(len as u64).unwrap();
        let (rights, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, libc::MAP_SHARED, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        (file, at as u64)
    }

    #[test]
    fn pages_of_a_file_can_come_late_while_it_is_registered() {
        const LEN: usize = 4 << 20;
        let (_file, file) = absent_pages(LEN);
        let on_demand = MrAccess { on_demand: true, ..RW };
        let everything = MrInit { length: u64::MAX, ..init(0, 0, on_demand) };
        let plain = vec![0u8; 4 << 20];
        // Each look is at a page that wasn't looked at before.
        let mut number = 0;
        let mut look = || {
            number += 1;
            [file, plain.as_ptr() as u64].map(|at| pages::are_present(at + number * 0x2_0000, 8))
        };
        for region in [init(file, LEN as u64, RW), init(file, LEN as u64, on_demand), everything] {
            assert_eq!(look(), [true; 2], "before {region:?}");
            let [range, again] = [(); 2].map(|()| check(&region).unwrap());
            assert_eq!(look(), [false, true], "{region:?}");
            drop(range);
            assert_eq!(look(), [false, true], "{region:?}");
            drop(again);
            assert_eq!(look(), [true; 2], "after {region:?}");
        }
        for number in 0..1000 {
            drop(check(&init(file + number * 4096, 4096, RW)).unwrap());
        }
        assert_eq!(look(), [true; 2]);
        // SAFETY: the test's mapping.
        unsafe { libc::munmap(file as *mut _, LEN) };
    }
}
