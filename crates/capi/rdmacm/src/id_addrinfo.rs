//! Names that are looked up for an id, by a thread: rdma_resolve_addrinfo(3), rdma_query_addrinfo(3).

use std::ffi::{CStr, CString, c_char};
use std::mem::zeroed;
use std::sync::Arc;

use ferroce_entry::call::{Outcome, Refusal, last_errno, put};
use ferroce_entry::entry;

use crate::abi::*;
use crate::addrinfo::{AddrInfoLookup, Failed, find, string};
use crate::block::IdBlock;
use crate::id::CmId;
use crate::news::IdNews;
use crate::sync;

/// Refuses flags that ask for services of the subnet: Ethernet has none.
fn check_flags(hints: Option<&rdma_addrinfo>) -> Outcome<()> {
    match hints.map_or(0, |hints| hints.ai_flags) & (RAI_SA | RAI_DNS) {
        both if both == RAI_SA | RAI_DNS => {
            Err(Refusal::new(libc::EOPNOTSUPP, "RAI_SA and RAI_DNS: one of them"))
        }
        RAI_SA => {
            Err(Refusal::new(libc::ENOENT, "RAI_SA: a network of Ethernet has no subnet administration"))
        }
        _ => Ok(()),
    }
}

/// The hints as another thread can have them.
struct Hints(rdma_addrinfo);

// SAFETY: numbers; the pointers are cleared.
unsafe impl Send for Hints {}

/// Looks the name up, and gives the answer to the id.
fn answer(id: &Arc<CmId>, node: Option<&CStr>, service: Option<&CStr>, hints: Option<&rdma_addrinfo>) {
    // SAFETY: hints without addresses.
    let found = unsafe { find(node, service, hints) };
    let (answers, status) = match found {
        Ok(info) => (AddrInfoLookup::Found(info), 0),
        Err(Failed::Name(libc::EAI_MEMORY)) => (AddrInfoLookup::None, -libc::ENOMEM),
        Err(Failed::Name(libc::EAI_SYSTEM)) => (AddrInfoLookup::None, -last_errno()),
        Err(Failed::Name(_)) => (AddrInfoLookup::None, -libc::ENOENT),
        Err(Failed::Refused(refusal)) => (AddrInfoLookup::None, -refusal.errno),
    };
    id.state.lock().answers = answers;
    id.push(IdNews::AddrInfo(status));
}

/// Of the thread: the C library's resolver takes a good part.
const STACK: usize = 1 << 20;

entry! {
    fn rdma_resolve_addrinfo(
        id: *mut rdma_cm_id,
        node: *const c_char,
        service: *const c_char,
        hints: *const rdma_addrinfo,
    ) -> minus_one {
        // SAFETY: by the man page an id, strings and hints.
        unsafe {
            let shared = IdBlock::of(id)?;
            check_flags(hints.as_ref())?;
            let owned = |text: *const c_char| string(text).map(CString::from);
            let (node, service) = (owned(node), owned(service));
            if node.is_none() && service.is_none() {
                return Err(Refusal::invalid("node and service are NULL"));
            }
            let hints = hints.as_ref().map(|hints| {
                let mut copy: rdma_addrinfo = zeroed();
                copy.ai_flags = hints.ai_flags;
                copy.ai_family = hints.ai_family;
                copy.ai_qp_type = hints.ai_qp_type;
                copy.ai_port_space = hints.ai_port_space;
                Hints(copy)
            });
            {
                let mut state = shared.state.lock();
                if matches!(state.answers, AddrInfoLookup::Awaited) {
                    return Err(Refusal::new(libc::EBUSY, "the id looks for a name already"));
                }
                state.answers = AddrInfoLookup::Awaited;
            }
            let for_thread = shared.clone();
            let run = move || {
                let Ok(_inside) = ferroce_os::fork::enter_library() else { return };
                let hints = hints;
                answer(&for_thread, node.as_deref(), service.as_deref(), hints.as_ref().map(|hints| &hints.0));
            };
            if let Err(error) = ferroce_os::sys::start_thread("ferroce-name", STACK, run) {
                shared.state.lock().answers = AddrInfoLookup::None;
                return Err(Refusal::new(libc::ENOMEM, format!("no thread to ask for a name: {error}")));
            }
            sync::complete(id, "rdma_resolve_addrinfo")
        }
    }
}

entry! {
    fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> minus_one {
        // SAFETY: by the man page an id and the caller's variable.
        unsafe {
            let shared = IdBlock::of(id)?;
            if info.is_null() {
                return Err(Refusal::invalid("info is NULL"));
            }
            let mut state = shared.state.lock();
            match std::mem::take(&mut state.answers) {
                AddrInfoLookup::Found(found) => {
                    put(info, "info", found.0)?;
                    std::mem::forget(found);
                    Ok(0)
                }
                other => {
                    state.answers = other;
                    Err(Refusal::new(libc::ENOENT, "no name was resolved, or its answer was queried before"))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethernet_has_no_subnet_administration() {
        // SAFETY: numbers and pointers.
        let mut hints: rdma_addrinfo = unsafe { zeroed() };
        hints.ai_flags = RAI_SA;
        assert_eq!(check_flags(Some(&hints)).expect_err("no SA").errno, libc::ENOENT);
    }
}
