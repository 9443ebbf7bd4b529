//! On-demand paging (ibv_advise_mr(3)). A copy faults pages in as it goes: what is left to do is to bring them in
//! before they are needed.

use super::keys::{KeyTable, Keyed};
use super::pd::Pd;
use ferroce_access::{NotedRanges, mapped};
use ferroce_os::sys;
use ferroce_types::{Error, Result, Sge, invalid};
use std::io;

/// MADV_POPULATE_READ and MADV_POPULATE_WRITE (Linux 5.14).
const POPULATE_READ: i32 = 22;
const POPULATE_WRITE: i32 = 23;

/// How pages are brought in (enum ibv_advise_mr_advice).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prefetch {
    /// To be read.
    Read,
    /// To be written.
    Write,
    /// Those that are there already: with the program's own page tables nothing is left to do.
    NoFault,
}

impl Prefetch {
    /// Brings in the pages of `elements`, which are parts of regions of `pd` that are paged on demand. When this returns,
    /// it is done.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a key that isn't of such a region, [`Error::Invalid`] for one of a window,
    /// [`Error::Permission`] for one of another domain, or to write where the region doesn't allow it; [`Error::Fault`] for
    /// a range outside of the region or not mapped; [`Error::NoMemory`].
    pub fn run(self, pd: &Pd, elements: &[Sge]) -> Result<()> {
        for element in elements {
            let key = element.lkey;
            let region = match KeyTable::global().at(key) {
                Some(Keyed::Region(region)) if region.key() == key => region,
                Some(Keyed::Window(window)) if window.rkey() == key => {
                    return invalid!("key {key:#x} is that of a memory window");
                }
                _ => return Err(Error::NotFound(format!("no memory region has lkey {key:#x}"))),
            };
            let addr = region.pageable(pd, element, self == Self::Write)?;
            self.bring_in(addr, u64::from(element.length))?;
        }
        Ok(())
    }

    fn bring_in(self, addr: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let advice = match self {
            Self::Read => POPULATE_READ,
            Self::Write => POPULATE_WRITE,
            Self::NoFault => return check(addr, len, false),
        };
        let page = sys::page_size();
        let first = addr - addr % page;
        let end = addr.saturating_add(len).checked_next_multiple_of(page).unwrap_or(u64::MAX - page + 1);
        // SAFETY: pages are brought in; no byte is read or changed.
        let done = unsafe { libc::syscall(libc::SYS_madvise, first, end - first, advice) };
        if done == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        check(addr, len, self == Self::Write)?;
        match error.raw_os_error() {
            Some(libc::ENOMEM | libc::EAGAIN) => Err(Error::NoMemory(format!("bringing pages in: {error}"))),
            Some(libc::EFAULT | libc::EHWPOISON) => Err(Error::Fault(format!("bringing pages in: {error}"))),
            // An old kernel, or memory of a device, which is always there.
            _ => Ok(()),
        }
    }
}

/// Is it all mapped?
fn check(addr: u64, len: u64, write: bool) -> Result<()> {
    if addr.checked_add(len).is_none() {
        return invalid!("the range {addr:#x}+{len:#x} wraps around");
    }
    match mapped(addr, len, write, &mut NotedRanges::default()).map(|mapped| mapped.permitted) {
        Ok(false) => Err(Error::Fault(format!("{addr:#x}+{len:#x} isn't part of the address space"))),
        Ok(true) | Err(_) => Ok(()),
    }
}
