//! What a device, its port and its tables are: ibv_query_device(3), ibv_query_device_ex(3), ibv_query_port(3),
//! ibv_query_gid(3), ibv_query_gid_ex(3), ibv_query_gid_table(3), ibv_query_pkey(3), ibv_get_pkey_index(3).

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;

use ferroce_nic as nic;
use libc::{size_t, ssize_t};

use crate::abi::*;
use crate::call::{self, Outcome, Refusal, at, at_mut, entry, guard, put, set_errno};
use crate::context::ContextBlock;

/// The one partition key, that of the default partition with full membership.
const PKEY: u16 = 0xffff;
/// `IBV_QPF_GRH_REQUIRED`.
const GRH_REQUIRED: u8 = 1;
/// Bytes of `ibv_port_attr` that the symbol `ibv_query_port` writes: programs from before the slot have no more.
const OLD_PORT_ATTR: size_t = 48;
/// `IBV_GID_TYPE_SYSFS_ROCE_V2`: the private function counts in its own way.
const SYSFS_ROCE_V2: c_int = 1;
/// NDR: what a faster lane is called where there are 8 bits for its speed.
const FASTEST_OF_8_BITS: u16 = 128;
/// 134 ms: what a busy host may take to answer, as 4.096 µs × 2^n.
const ACK_DELAY: u8 = 15;

fn device_attr(context: &nic::Context) -> ibv_device_attr {
    let limits = nic::LIMITS;
    let guid = u64::from_ne_bytes(context.device().info().node_guid);
    // SAFETY: numbers only.
    let mut attr: ibv_device_attr = unsafe { zeroed() };
    for (to, from) in attr.fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *to = from as _;
    }
    attr.node_guid = guid;
    attr.sys_image_guid = guid;
    attr.max_mr_size = limits.max_mr_size;
    // Every page size the system may have.
    attr.page_size_cap = !0xfff;
    attr.vendor_id = nic::VENDOR_ID;
    attr.vendor_part_id = nic::VENDOR_PART_ID;
    attr.max_qp = limits.max_qp as c_int;
    attr.max_qp_wr = limits.max_qp_wr as c_int;
    attr.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_PORT_ACTIVE_EVENT
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RC_RNR_NAK_GEN
        | IBV_DEVICE_SRQ_RESIZE
        | IBV_DEVICE_XRC
        | IBV_DEVICE_RAW_IP_CSUM
        | IBV_DEVICE_MANAGED_FLOW_STEERING
        | IBV_DEVICE_MEM_WINDOW
        | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    attr.max_sge = limits.max_sge as c_int;
    attr.max_sge_rd = limits.max_sge as c_int;
    attr.max_cq = limits.max_cq as c_int;
    attr.max_cqe = limits.max_cqe as c_int;
    attr.max_mr = limits.max_mr as c_int;
    attr.max_mw = limits.max_mw as c_int;
    attr.max_pd = limits.max_pd as c_int;
    attr.max_qp_rd_atom = limits.max_qp_rd_atom as c_int;
    attr.max_qp_init_rd_atom = limits.max_qp_rd_atom as c_int;
    attr.max_res_rd_atom =
        limits.max_qp_rd_atom.saturating_mul(limits.max_qp).min(c_int::MAX as u32) as c_int;
    attr.atomic_cap = IBV_ATOMIC_HCA;
    attr.max_ah = limits.max_ah as c_int;
    attr.max_srq = limits.max_srq as c_int;
    attr.max_srq_wr = limits.max_srq_wr as c_int;
    attr.max_srq_sge = limits.max_srq_sge as c_int;
    attr.max_mcast_grp = limits.max_mcast_grp as c_int;
    attr.max_mcast_qp_attach = limits.max_mcast_qp_attach as c_int;
    attr.max_total_mcast_qp_attach = limits.max_mcast_grp.saturating_mul(limits.max_mcast_qp_attach) as c_int;
    attr.max_raw_ethy_qp = limits.max_qp as c_int;
    attr.max_pkeys = 1;
    attr.local_ca_ack_delay = ACK_DELAY;
    attr.phys_port_cnt = 1;
    attr
}

entry! {
    fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> errno {
        // SAFETY: by the man page an open context and the caller's variable.
        unsafe { put(attr, "device_attr", device_attr(ContextBlock::of(context)?.nic())) }
    }
}

/// The slot behind `ibv_query_device_ex`. A program built with other headers has a shorter or longer structure.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: size_t,
) -> c_int {
    call::errno_value("ibv_query_device_ex", || {
        // SAFETY: null or the caller's structure.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
            return Err(Refusal::invalid("the input's comp_mask isn't 0"));
        }
        if attr.is_null() || attr_size < size_of::<ibv_device_attr>() {
            return Err(Refusal::invalid("no room for the attributes"));
        }
        // SAFETY: by the man page an open context.
        let context = unsafe { ContextBlock::of(context) }?;
        // SAFETY: numbers only.
        let mut full: ibv_device_attr_ex = unsafe { zeroed() };
        full.orig_attr = device_attr(context.nic());
        full.completion_timestamp_mask = nic::clock::MASK;
        full.hca_core_clock = nic::clock::KHZ;
        full.cq_mod_caps = ibv_cq_moderation_caps { max_cq_count: u16::MAX, max_cq_period: u16::MAX };
        full.odp_caps = odp_caps();
        // A target's receives come from SRQs alone.
        full.xrc_odp_caps = full.odp_caps.per_transport_caps.rc_odp_caps & !IBV_ODP_SUPPORT_RECV;
        full.device_cap_flags_ex = u64::from(full.orig_attr.device_cap_flags)
            | IB_UVERBS_DEVICE_FLUSH_GLOBAL
            | IB_UVERBS_DEVICE_FLUSH_PERSISTENT
            | IB_UVERBS_DEVICE_ATOMIC_WRITE;
        full.packet_pacing_caps = ibv_packet_pacing_caps {
            qp_rate_limit_min: 1,
            qp_rate_limit_max: nic::qp::MAX_RATE,
            supported_qpts: 1 << IBV_QPT_RC | 1 << IBV_QPT_UC | 1 << IBV_QPT_UD | 1 << IBV_QPT_XRC_SEND,
        };
        full.rss_caps = ibv_rss_caps {
            supported_qpts: 1 << IBV_QPT_RAW_PACKET,
            max_rwq_indirection_tables: nic::raw::MAX_TABLES,
            max_rwq_indirection_table_size: nic::raw::MAX_TABLE,
            rx_hash_fields_mask: nic::raw::fields::ALL,
            rx_hash_function: IBV_RX_HASH_FUNC_TOEPLITZ,
        };
        full.max_wq_type_rq = nic::LIMITS.max_qp;
        full.raw_packet_caps = IBV_RAW_PACKET_CAP_CVLAN_STRIPPING | IBV_RAW_PACKET_CAP_IP_CSUM;
        full.phys_port_cnt_ex = 1;
        full.max_dm_size = nic::LIMITS.max_dm_size;
        // SAFETY: the caller says how much room there is.
        unsafe { write_prefix(attr.cast(), &full, attr_size) };
        Ok(())
    })
}

/// Every transport works with regions that are paged on demand, as with any other.
const fn odp_caps() -> ibv_odp_caps {
    let datagrams = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    let connected = datagrams | IBV_ODP_SUPPORT_WRITE;
    ibv_odp_caps {
        general_caps: IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT,
        per_transport_caps: ibv_odp_transport_caps {
            rc_odp_caps: connected | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC,
            uc_odp_caps: connected,
            ud_odp_caps: datagrams,
        },
    }
}

/// Writes as much of `value` as the caller has room for, and zeros behind it.
///
/// # Safety
/// `to` is valid for `room` bytes. `T` is plain data.
unsafe fn write_prefix<T: Copy>(to: *mut u8, value: &T, room: size_t) {
    let n = room.min(size_of::<T>());
    // SAFETY: `n` bytes are within both, and the rest within `room`.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), to, n);
        ptr::write_bytes(to.add(n), 0, room - n);
    }
}

/// The slot behind ibv_query_rt_values_ex(3). The clock is a number of ticks: programs take `tv_nsec` for it, as with
/// adapters, and `tv_sec` is 0.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    call::errno_value("ibv_query_rt_values_ex", || {
        // SAFETY: by the man page an open context and the caller's structure.
        let values = unsafe {
            ContextBlock::of(context)?;
            at_mut(values, "values")?
        };
        values.comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
        if values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
            let ticks = nic::clock::now().0;
            values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: ticks as libc::c_long };
        }
        Ok(())
    })
}

/// `enum ibv_mtu` of a number of bytes.
fn mtu(bytes: u32) -> c_int {
    bytes.ilog2() as c_int - 7
}

fn check_port(port_num: u32) -> Outcome<()> {
    match port_num {
        1 => Ok(()),
        other => Err(Refusal::invalid(format!("port {other}: the device has port 1"))),
    }
}

/// # Safety
/// `attr` is null or valid for `room` bytes; `context` is null or open.
unsafe fn query_port(context: *mut ibv_context, port_num: u8, attr: *mut u8, room: size_t) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let context = unsafe { ContextBlock::of(context) }?;
    check_port(u32::from(port_num))?;
    if attr.is_null() {
        return Err(Refusal::invalid("port_attr is NULL"));
    }
    let port = context.nic().port();
    let [bad_pkey_cntr, qkey_viol_cntr] = context.nic().violations();
    let full = ibv_port_attr {
        state: port.state as c_int,
        max_mtu: mtu(port.max_mtu),
        active_mtu: mtu(port.active_mtu),
        gid_tbl_len: port.gid_tbl_len as c_int,
        port_cap_flags: IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
        max_msg_sz: nic::MAX_MESSAGE,
        bad_pkey_cntr,
        qkey_viol_cntr,
        pkey_tbl_len: port.pkey_tbl_len,
        lid: port.lid,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width: port.speed.width,
        active_speed: port.speed.speed.min(FASTEST_OF_8_BITS) as u8,
        phys_state: port.phys_state,
        link_layer: port.link_layer,
        flags: GRH_REQUIRED,
        port_cap_flags2: 0,
        active_speed_ex: u32::from(port.speed.speed),
    };
    // SAFETY: the caller's promise.
    unsafe { write_prefix(attr, &full, room) };
    Ok(())
}

/// The slot behind `ibv_query_port` of the present header.
pub(crate) unsafe extern "C" fn query_port_sized(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    attr_len: size_t,
) -> c_int {
    // SAFETY: inline code of the header passes the size of the program's structure.
    call::errno_value("ibv_query_port", || unsafe { query_port(context, port_num, attr.cast(), attr_len) })
}

entry! {
    /// The rate in units of 100 Mbit/s.
    fn ibv_query_port_speed(context: *mut ibv_context, port_num: u32, port_speed: *mut u64) -> errno {
        // SAFETY: by the man page an open context.
        let context = unsafe { ContextBlock::of(context) }?;
        check_port(port_num)?;
        let hundreds = context.nic().port().mbps.div_ceil(100);
        // SAFETY: by the man page the caller's variable.
        unsafe { put(port_speed, "port_speed", hundreds.into()) }
    }
}

entry! {
    fn ibv_query_port(context: *mut ibv_context, port_num: u8, attr: *mut ibv_port_attr) -> errno {
        // SAFETY: by the man page an open context; programs that use this symbol have at least that much room.
        unsafe { query_port(context, port_num, attr.cast(), OLD_PORT_ATTR) }
    }
}

/// Entry `index` of the GID table; `None` where it is empty.
fn gid(context: &nic::Context, port_num: u32, index: i64) -> Outcome<Option<nic::net::GidEntry>> {
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

fn gid_entry(index: usize, entry: &nic::net::GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: entry.gid },
        gid_index: index as u32,
        port_num: 1,
        gid_type: IBV_GID_TYPE_ROCE_V2 as u32,
        ndev_ifindex: entry.ifindex,
    }
}

fn check_gid_query(flags: u32, entry_size: size_t) -> Outcome<()> {
    if flags != 0 {
        return Err(Refusal::invalid(format!("flags {flags:#x}: none is defined")));
    }
    if entry_size == 0 {
        return Err(Refusal::invalid("no room for an entry"));
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
        unsafe { put(to, "type", if entry.is_some() { SYSFS_ROCE_V2 } else { 0 }) }?;
        Ok(0)
    }
}

entry! {
    fn ibv_query_pkey(context: *mut ibv_context, port_num: u8, index: c_int, pkey: *mut u16) -> minus_one {
        // SAFETY: by the man page an open context.
        unsafe { ContextBlock::of(context) }?;
        check_port(u32::from(port_num))?;
        if index != 0 {
            return Err(Refusal::invalid(format!("P_Key index {index}: the table has entry 0")));
        }
        // SAFETY: by the man page the caller's variable.
        unsafe { put(pkey, "pkey", PKEY.to_be()) }?;
        Ok(0)
    }
}

entry! {
    fn ibv_get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: u16) -> minus_one {
        // SAFETY: by the man page an open context.
        unsafe { ContextBlock::of(context) }?;
        check_port(u32::from(port_num))?;
        match u16::from_be(pkey) {
            PKEY => Ok(0),
            other => Err(Refusal::invalid(format!("P_Key {other:#06x}: the table has {PKEY:#06x} only"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_structure_is_written_to_its_end_and_no_further() {
        let mut room = [0xaau8; 8];
        // SAFETY: five of eight bytes.
        unsafe { write_prefix(room.as_mut_ptr(), &0x0807_0605_0403_0201u64.to_le(), 5) };
        assert_eq!(room, [1, 2, 3, 4, 5, 0xaa, 0xaa, 0xaa]);
    }

    #[test]
    fn a_longer_structure_ends_in_zeros() {
        let mut room = [0xaau8; 8];
        // SAFETY: eight bytes.
        unsafe { write_prefix(room.as_mut_ptr(), &0x0201u16.to_le(), 8) };
        assert_eq!(room, [1, 2, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn mtu_codes_are_those_of_the_header() {
        let codes = [IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096];
        assert_eq!([256, 512, 1024, 2048, 4096].map(mtu), codes);
    }
}
