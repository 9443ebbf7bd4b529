//! The GID table: ibv_query_gid(3), ibv_query_gid_ex(3), ibv_query_gid_table(3).

use std::ffi::c_int;
use std::ptr;

use ferroce_netdev::LinkLayer;
use ferroce_nic as nic;
use libc::{size_t, ssize_t};

use super::{check_port, write_prefix};
use ferroce_abi::verbs::*;
use ferroce_entry::call::{Outcome, Refusal, at, entry, guard, put, set_errno};
use ferroce_objects::ContextBlock;

/// `enum ibv_gid_type_sysfs`, by which the private function counts: InfiniBand and RoCE v1 are one type.
fn sysfs_type() -> c_int {
    match LinkLayer::current() {
        LinkLayer::InfiniBand => 0,
        LinkLayer::Ethernet => 1,
    }
}
/// Bytes of an entry of a caller's table, at most: the limit of the kernel's calls.
const LARGEST_ENTRY: size_t = u16::MAX as size_t;

/// Entry `index` of the GID table; `None` where it is empty.
fn gid(context: &nic::Context, port_num: u32, index: i64) -> Outcome<Option<ferroce_netdev::GidEntry>> {
    check_port(port_num)?;
    let length = i64::from(context.port().gid_tbl_len);
    if !(0..length).contains(&index) {
        return Err(Refusal::invalid(format!("GID index {index}: the table has {length} entries")));
    }
    Ok(context.gid(index as usize))
}

entry! {
    fn ibv_query_gid(context: *mut ibv_context, port_num: u8, index: c_int, to: *mut ibv_gid) -> minus_one {
        // SAFETY: by the man page an open context.
        let entry = gid(unsafe { ContextBlock::of(context) }?.nic(), u32::from(port_num), i64::from(index))?;
        let raw = entry.map_or([0; 16], |entry| entry.gid);
        // SAFETY: by the man page the caller's variable.
        unsafe { put(to, "gid", ibv_gid { raw }) }?;
        Ok(0)
    }
}

fn gid_entry(index: usize, entry: &ferroce_netdev::GidEntry) -> ibv_gid_entry {
    let link_layer = LinkLayer::current();
    ibv_gid_entry {
        gid: ibv_gid { raw: entry.gid },
        gid_index: index as u32,
        port_num: 1,
        gid_type: link_layer.gid_type(),
        // A GID of InfiniBand belongs to a port, and to no interface of the network.
        ndev_ifindex: if link_layer.is_infiniband() { 0 } else { entry.ifindex },
    }
}

fn check_gid_query(flags: u32, entry_size: size_t) -> Outcome<()> {
    if flags != 0 {
        return Err(Refusal::invalid(format!("flags {flags:#x}: none is defined")));
    }
    if entry_size == 0 || entry_size > LARGEST_ENTRY {
        return Err(Refusal::invalid(format!("entries of {entry_size} bytes: 1 to {LARGEST_ENTRY}")));
    }
    Ok(())
}

entry! {
    fn _ibv_query_gid_ex(
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
        entry_size: size_t,
    ) -> errno {
        check_gid_query(flags, entry_size)?;
        // SAFETY: by the man page an open context and the caller's structure.
        let (context, to) = unsafe { (ContextBlock::of(context)?, at(entry.cast::<u8>(), "entry")?) };
        let found = gid(context.nic(), port_num, i64::from(gid_index))?;
        let Some(found) = found else {
            // Programs walk the table and skip the holes; no refusal worth a word.
            return Err(Refusal::new(libc::ENODATA, format!("GID index {gid_index} is empty")));
        };
        // SAFETY: inline code of the header passes the size of the program's structure.
        unsafe {
            write_prefix(ptr::from_ref(to).cast_mut(), &gid_entry(gid_index as usize, &found), entry_size);
        }
        Ok(())
    }
}

/// ibv_query_gid_table(3): the number of entries, or minus the errno.
#[unsafe(export_name = "ferroce_c__ibv_query_gid_table")]
unsafe extern "C" fn query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: size_t,
    flags: u32,
    entry_size: size_t,
) -> ssize_t {
    let outcome = guard("ibv_query_gid_table", || {
        check_gid_query(flags, entry_size)?;
        // SAFETY: by the man page an open context.
        let gids = unsafe { ContextBlock::of(context) }?.nic().gids();
        let n = gids.len();
        if n > max_entries {
            return Err(Refusal::invalid(format!("room for {max_entries} entries, and {n} are in use")));
        }
        if n > 0 && entries.is_null() {
            return Err(Refusal::invalid("entries is NULL"));
        }
        for (place, (index, entry)) in gids.iter().enumerate() {
            // SAFETY: the caller has `max_entries` structures of `entry_size` bytes.
            unsafe {
                write_prefix(
                    entries.cast::<u8>().add(place * entry_size),
                    &gid_entry(*index, entry),
                    entry_size,
                )
            };
        }
        Ok(n as ssize_t)
    });
    outcome.unwrap_or_else(|refusal| {
        set_errno(refusal.errno);
        -(refusal.errno as ssize_t)
    })
}

entry! {
    /// Private, but ibv_devinfo and pyverbs use it.
    fn ibv_query_gid_type(context: *mut ibv_context, port_num: u8, index: u32, to: *mut c_int) -> minus_one {
        // SAFETY: an open context.
        let entry = gid(unsafe { ContextBlock::of(context) }?.nic(), u32::from(port_num), i64::from(index))?;
        // SAFETY: the caller's variable.
        unsafe { put(to, "type", if entry.is_some() { sysfs_type() } else { 0 }) }?;
        Ok(0)
    }
}
