//! The device: ibv_query_device(3), ibv_query_device_ex(3), ibv_query_rt_values_ex(3).

use std::ffi::c_int;
use std::mem::zeroed;

use ferroce_nic as nic;
use libc::size_t;

use super::write_prefix;
use ferroce_abi::verbs::*;
use ferroce_entry::call::{self, Refusal, at_mut, entry, put};
use ferroce_objects::ContextBlock;
use ferroce_work::tags;

/// 134 ms: what a busy host may take to answer, as 4.096 µs × 2^n.
const ACK_DELAY: u8 = 15;

fn device_attr(context: &nic::Context) -> ibv_device_attr {
    let limits = nic::limits();
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
    attr.vendor_id = ferroce_netdev::VENDOR_ID;
    attr.vendor_part_id = ferroce_netdev::VENDOR_PART_ID;
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
        full.completion_timestamp_mask = ferroce_os::clock::MASK;
        full.hca_core_clock = ferroce_os::clock::KHZ;
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
            qp_rate_limit_max: ferroce_parts::MAX_RATE,
            supported_qpts: 1 << IBV_QPT_RC
                | 1 << IBV_QPT_UC
                | 1 << IBV_QPT_UD
                | 1 << IBV_QPT_XRC_SEND
                | 1 << IBV_QPT_RAW_PACKET,
        };
        full.tso_caps =
            ibv_tso_caps { max_tso: ferroce_raw::MAX_TSO, supported_qpts: 1 << IBV_QPT_RAW_PACKET };
        full.rss_caps = ibv_rss_caps {
            supported_qpts: 1 << IBV_QPT_RAW_PACKET,
            max_rwq_indirection_tables: ferroce_raw::MAX_TABLES,
            max_rwq_indirection_table_size: ferroce_raw::MAX_TABLE,
            rx_hash_fields_mask: ferroce_raw::fields::ALL,
            rx_hash_function: IBV_RX_HASH_FUNC_TOEPLITZ,
        };
        full.max_wq_type_rq = nic::limits().max_qp;
        full.raw_packet_caps = IBV_RAW_PACKET_CAP_CVLAN_STRIPPING | IBV_RAW_PACKET_CAP_IP_CSUM;
        full.tm_caps = tags::CAPS;
        full.phys_port_cnt_ex = 1;
        full.max_dm_size = nic::limits().max_dm_size;
        // SAFETY: the caller passes the size of its structure.
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
            rc_odp_caps: connected
                | IBV_ODP_SUPPORT_READ
                | IBV_ODP_SUPPORT_ATOMIC
                | IBV_ODP_SUPPORT_FLUSH
                | IBV_ODP_SUPPORT_ATOMIC_WRITE,
            uc_odp_caps: connected,
            ud_odp_caps: datagrams,
        },
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
            let ticks = ferroce_os::clock::now().0;
            values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: ticks as libc::c_long };
        }
        Ok(())
    })
}
