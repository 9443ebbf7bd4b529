//! The structures have the layout that C compilers give the headers of rdma-core: those installed here (v44 on Debian
//! 12), and by a table of numbers those of v65.

use std::mem::{offset_of, size_of};

use ferroce_abi::verbs::*;

use crate::headers::{Layout, expect_numbers, field_key, layouts, measure};

const HEADERS: &[&str] =
    &["infiniband/verbs.h", "infiniband/sa.h", "rdma/ib_user_verbs.h", "rdma/ib_user_sa.h"];

/// Name of a structure, its size, and fields with their offsets.
type Known = (&'static str, usize, &'static [(&'static str, usize)]);

/// What programs built with v44 don't know.
const V65: &[Known] = &[
    (
        "verbs_context",
        696,
        &[
            ("free_buf", 0),
            ("alloc_buf", 8),
            ("dm_export_dmabuf_fd", 16),
            ("reg_mr_ex", 24),
            ("dealloc_dmah", 32),
            ("alloc_dmah", 40),
        ],
    ),
    ("ibv_port_attr", 56, &[("active_speed_ex", 52)]),
    ("ibv_qp_ex", 360, &[("wr_flush", 352)]),
    (
        "ibv_mr_init_attr",
        72,
        &[
            ("length", 0),
            ("access", 8),
            ("comp_mask", 16),
            ("iova", 24),
            ("addr", 32),
            ("fd", 40),
            ("fd_offset", 48),
            ("dmah", 56),
            ("buf", 64),
        ],
    ),
    ("ibv_dmah", 8, &[("context", 0)]),
    ("ibv_dmah_init_attr", 12, &[("comp_mask", 0), ("cpu_id", 4), ("ph", 8), ("tph_mem_type", 9)]),
];

/// Structures that v44's headers don't have.
const NEWER: [&str; 3] = ["ibv_mr_init_attr", "ibv_dmah", "ibv_dmah_init_attr"];

#[rustfmt::skip] // one line a structure
fn layouts() -> Vec<Layout> {
    layouts! {
        ibv_gid { raw, global }
        _ibv_device_ops { _dummy1, _dummy2 }
        ibv_device { _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_context_ops { _compat_query_device, _compat_query_port, _compat_alloc_pd, _compat_dealloc_pd,
            _compat_reg_mr, _compat_rereg_mr, _compat_dereg_mr, alloc_mw, bind_mw, dealloc_mw,
            _compat_create_cq, poll_cq, req_notify_cq, _compat_cq_event, _compat_resize_cq, _compat_destroy_cq,
            _compat_create_srq, _compat_modify_srq, _compat_query_srq, _compat_destroy_srq, post_srq_recv,
            _compat_create_qp, _compat_query_qp, _compat_modify_qp, _compat_destroy_qp, post_send, post_recv,
            _compat_create_ah, _compat_destroy_ah, _compat_attach_mcast, _compat_detach_mcast,
            _compat_async_event }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        verbs_context { free_buf, alloc_buf, dm_export_dmabuf_fd, reg_mr_ex, dealloc_dmah, alloc_dmah,
            query_port, advise_mr, alloc_null_mr, read_counters, attach_counters_point_flow, create_counters,
            destroy_counters, reg_dm_mr, alloc_dm, free_dm, modify_flow_action_esp, destroy_flow_action,
            create_flow_action_esp, modify_qp_rate_limit, alloc_parent_domain, dealloc_td, alloc_td, modify_cq,
            post_srq_ops, destroy_rwq_ind_table, create_rwq_ind_table, destroy_wq, modify_wq, create_wq,
            query_rt_values, create_cq_ex, r#priv, query_device_ex, ibv_destroy_flow, ABI_placeholder2,
            ibv_create_flow, ABI_placeholder1, open_qp, create_qp_ex, get_srq_num, create_srq_ex, open_xrcd,
            close_xrcd, _ABI_placeholder3, sz, context }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_mw { context, pd, rkey, handle, r#type }
        ibv_ah { context, pd, handle }
        ibv_comp_channel { context, fd, refcnt }
        ibv_cq { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
            async_events_completed }
        ibv_cq_ex { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
            async_events_completed, comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode,
            read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_slid,
            read_sl, read_dlid_path_bits, read_completion_ts, read_cvlan, read_flow_tag, read_tm_info,
            read_completion_wallclock_ns }
        ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
        ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex,
            cond, events_completed }
        ibv_qp_ex { qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw,
            wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv,
            wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list,
            wr_set_sge, wr_set_sge_list, wr_start, wr_complete, wr_abort, wr_atomic_write, wr_flush }
        ibv_wq { context, wq_context, pd, cq, wq_num, handle, state, wq_type, post_recv, mutex, cond,
            events_completed, comp_mask }
        ibv_flow { comp_mask, context, handle }
        ibv_flow_attr { comp_mask, r#type, size, priority, num_of_specs, port, flags }
        ibv_flow_spec_eth { r#type, size, val, mask, val.dst_mac, val.src_mac, val.ether_type, val.vlan_tag }
        ibv_flow_spec_ipv4 { r#type, size, val, mask, val.src_ip, val.dst_ip }
        ibv_flow_spec_ipv4_ext { r#type, size, val, mask, val.src_ip, val.dst_ip, val.proto, val.tos, val.ttl,
            val.flags }
        ibv_flow_spec_ipv6 { r#type, size, val, mask, val.src_ip, val.dst_ip, val.flow_label, val.next_hdr,
            val.traffic_class, val.hop_limit }
        ibv_flow_spec_esp { r#type, size, val, mask, val.spi, val.seq }
        ibv_flow_spec_tcp_udp { r#type, size, val, mask, val.dst_port, val.src_port }
        ibv_flow_spec_gre { r#type, size, val, mask, val.c_ks_res0_ver, val.protocol, val.key }
        ibv_flow_spec_mpls { r#type, size, val, mask, val.label }
        ibv_flow_spec_tunnel { r#type, size, val, mask, val.tunnel_id }
        ibv_flow_spec_action_tag { r#type, size, tag_id }
        ibv_flow_spec_action_drop { r#type, size }
        ibv_flow_spec_action_handle { r#type, size, action }
        ibv_flow_spec_counter_action { r#type, size, counters }
        ibv_counters { context }
        ibv_counters_init_attr { comp_mask }
        ibv_counter_attach_attr { counter_desc, index, comp_mask }
        ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask, handle }
        ibv_xrcd { context }
        ibv_td { context }
        ibv_dmah { context }
        ibv_rwq_ind_table { context, ind_tbl_handle, ind_tbl_num, comp_mask }
        ibv_device_attr { fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id,
            vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe,
            max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom,
            max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp,
            max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr,
            max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt }
        ibv_query_device_ex_input { comp_mask }
        ibv_odp_caps { general_caps, per_transport_caps, per_transport_caps.ud_odp_caps }
        ibv_tso_caps { max_tso, supported_qpts }
        ibv_rss_caps { supported_qpts, max_rwq_indirection_tables, max_rwq_indirection_table_size,
            rx_hash_fields_mask, rx_hash_function }
        ibv_packet_pacing_caps { qp_rate_limit_min, qp_rate_limit_max, supported_qpts }
        ibv_tm_caps { max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge }
        ibv_cq_moderation_caps { max_cq_count, max_cq_period }
        ibv_pci_atomic_caps { fetch_add, swap, compare_swap }
        ibv_device_attr_ex { orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock,
            device_cap_flags_ex, tso_caps, rss_caps, max_wq_type_rq, packet_pacing_caps, raw_packet_caps,
            tm_caps, cq_mod_caps, max_dm_size, pci_atomic_caps, xrc_odp_caps, phys_port_cnt_ex }
        ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
            qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply,
            active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2, active_speed_ex }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_values_ex { comp_mask, raw_clock }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_grh { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_rx_hash_conf { rx_hash_function, rx_hash_key_len, rx_hash_key, rx_hash_fields_mask }
        ibv_qp_init_attr_ex { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd,
            xrcd, create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags }
        ibv_qp_open_attr { comp_mask, qp_num, xrcd, qp_context, qp_type }
        ibv_qp_attr { qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify,
            sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt,
            rnr_retry, alt_port_num, alt_timeout, rate_limit }
        ibv_qp_rate_limit_attr { rate_limit, max_burst_sz, typical_pkt_sz, comp_mask }
        ibv_ece { vendor_id, options, comp_mask }
        ibv_srq_attr { max_wr, max_sge, srq_limit }
        ibv_srq_init_attr { srq_context, attr }
        ibv_tm_cap { max_num_tags, max_ops }
        ibv_srq_init_attr_ex { srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap }
        ibv_wq_init_attr { wq_context, wq_type, max_wr, max_sge, pd, cq, comp_mask, create_flags }
        ibv_wq_attr { attr_mask, wq_state, curr_wq_state, flags, flags_mask }
        ibv_rwq_ind_table_init_attr { log_ind_tbl_size, ind_tbl, comp_mask }
        ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags,
            parent_domain }
        ibv_moderate_cq { cq_count, cq_period }
        ibv_modify_cq_attr { attr_mask, moderate }
        ibv_td_init_attr { comp_mask }
        ibv_parent_domain_init_attr { pd, td, comp_mask, alloc, free, pd_context }
        ibv_xrcd_init_attr { comp_mask, fd, oflags }
        ibv_alloc_dm_attr { length, log_align_req, comp_mask }
        ibv_mr_init_attr { length, access, comp_mask, iova, addr, fd, fd_offset, dmah, buf }
        ibv_dmah_init_attr { comp_mask, cpu_id, ph, tph_mem_type }
        ibv_sge { addr, length, lkey }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        ibv_mw_bind { wr_id, send_flags, bind_info }
        ibv_data_buf { addr, length }
        ibv_poll_cq_attr { comp_mask }
        ibv_wc_tm_info { tag, r#priv }
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, wr.rdma.remote_addr,
            wr.rdma.rkey, wr.atomic.compare_add, wr.atomic.swap, wr.atomic.rkey, wr.ud.ah, wr.ud.remote_qpn,
            wr.ud.remote_qkey, remote_srqn, last.bind_mw, last.tso }
        ibv_wc { wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags,
            pkey_index, slid, sl, dlid_path_bits }
        ibv_ops_wr { wr_id, next, opcode, flags, tm, tm.handle, tm.add.tag, tm.add.num_sge }
        ibv_async_event { element, event_type }
        ib_uverbs_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class, reserved }
        ib_uverbs_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num, reserved }
        ib_uverbs_qp_attr { qp_attr_mask, qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn,
            sq_psn, dest_qp_num, qp_access_flags, ah_attr, alt_ah_attr, max_send_wr, max_recv_wr, max_send_sge,
            max_recv_sge, max_inline_data, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining,
            max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry,
            alt_port_num, alt_timeout, reserved }
        ibv_sa_path_rec { dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit, traffic_class,
            reversible, numb_path, pkey, sl, mtu_selector, mtu, rate_selector, rate, packet_life_time_selector,
            packet_life_time, preference }
        ib_user_path_rec { dgid, sgid, dlid, slid, raw_traffic, flow_label, reversible, mtu, pkey,
            hop_limit, traffic_class, numb_path, sl, mtu_selector, rate_selector, rate,
            packet_life_time_selector, packet_life_time, preference }
    }
}

fn is_new(name: &str, field: &str) -> bool {
    V65.iter().any(|(n, _, fields)| *n == name && fields.iter().any(|(f, _)| *f == field))
}

/// How C spells a structure and its field.
fn spelled(structure: &str, field: &str) -> (String, String) {
    let key = field_key(field);
    let field = match key.as_str() {
        "remote_srqn" => "qp_type.xrc.remote_srqn",
        // Unnamed in C.
        _ => key.strip_prefix("last.").unwrap_or(&key),
    };
    // The only union with a name of its own.
    let kind = if structure == "ibv_gid" { "union" } else { "struct" };
    (format!("{kind} {structure}"), field.to_owned())
}

#[test]
fn every_structure_has_the_layout_of_the_installed_headers() {
    let mut old = layouts();
    old.retain(|layout| !NEWER.contains(&layout.name));
    for layout in &mut old {
        layout.fields.retain(|(field, _)| !is_new(layout.name, field));
    }
    let found = measure("layout", HEADERS, &old, spelled);
    // v65 has grown the context at its front: what counts is the distance to the `ibv_context` at its end.
    let front = offset_of!(verbs_context, context) as i64 - found["verbs_context.context"];
    for layout in old {
        let grown = V65.iter().any(|(n, ..)| *n == layout.name);
        let (ours, theirs) = (layout.size as i64, found[layout.name]);
        assert!(ours == theirs || grown && ours > theirs, "{}: {ours} bytes, {theirs} in C", layout.name);
        let shift = if layout.name == "verbs_context" { front } else { 0 };
        for (field, offset) in layout.fields {
            let key = format!("{}.{}", layout.name, field_key(field));
            assert_eq!(offset as i64, found[&key] + shift, "offset of {key}");
        }
    }
}

#[test]
fn structures_that_grew_since_have_the_newest_layout() {
    let layouts = layouts();
    for (name, size, fields) in V65 {
        let ours = layouts.iter().find(|l| l.name == *name).expect("in the list");
        assert_eq!(ours.size, *size, "size of {name}");
        for (field, offset) in *fields {
            let at = ours.fields.iter().find(|(f, _)| f == field).map(|(_, o)| *o);
            assert_eq!(at, Some(*offset), "offset of {name}.{field}");
        }
    }
}

#[test]
fn slots_lie_where_inline_functions_look_for_them() {
    let context = offset_of!(verbs_context, context);
    assert_eq!(context - offset_of!(verbs_context, sz), 8);
    assert_eq!(context - offset_of!(verbs_context, create_qp_ex), 56);
    assert_eq!(context - offset_of!(verbs_context, query_device_ex), 104);
    assert_eq!(context - offset_of!(verbs_context, create_cq_ex), 120);
    assert_eq!(context - offset_of!(verbs_context, query_port), 320);
    assert_eq!(context - offset_of!(verbs_context, free_buf), 368);
}

#[test]
fn constants_have_the_values_of_the_installed_headers() {
    expect_numbers("numbers", HEADERS, NUMBERS);
}
