//! What keys allow.

use crate::adapter::{Key, User};
use ferroce_buffers::{Rights, Tap};
use ferroce_explain::KeyFault;
use ferroce_types::RemoteAccess;
use std::collections::BTreeMap;

/// What is wrong with a key.
pub(crate) fn key_fault(
    keys: &BTreeMap<u32, Key>,
    (key, user): (u32, User),
    (address, len): (u64, u64),
    needs: Option<RemoteAccess>,
) -> Result<(&Tap, usize), KeyFault> {
    let found = keys.get(&key).ok_or(KeyFault::Unknown)?;
    if found.domain != user.domain {
        return Err(KeyFault::OtherDomain);
    }
    if found.of_qp.is_some_and(|qpn| qpn != user.qpn) {
        return Err(KeyFault::Unbound);
    }
    match (found.remote, needs) {
        (None, None) => {}
        (Some(rights), Some(access)) => permits(rights, access)?,
        _ => return Err(KeyFault::OtherKind),
    }
    let region = (found.address, found.tap.len() as u64);
    let outside = KeyFault::Outside { region };
    let start = address.checked_sub(found.address).ok_or(outside)?;
    if start.checked_add(len).is_none_or(|end| end > region.1) {
        return Err(outside);
    }
    Ok((&found.tap, start as usize))
}

fn permits(rights: Rights, access: RemoteAccess) -> Result<(), KeyFault> {
    let (has, needs) = match access {
        RemoteAccess::Read => (rights.read, "REMOTE_READ"),
        RemoteAccess::Write | RemoteAccess::Store => (rights.write, "REMOTE_WRITE"),
        RemoteAccess::Atomic => (rights.atomic, "REMOTE_ATOMIC"),
        RemoteAccess::Flush(_) => (false, "FLUSH_GLOBAL"),
    };
    let rights = ferroce_explain::Rights {
        local_write: true,
        remote_read: rights.read,
        remote_write: rights.write,
        remote_atomic: rights.atomic,
    };
    if has { Ok(()) } else { Err(KeyFault::Rights { needs, has: rights }) }
}
