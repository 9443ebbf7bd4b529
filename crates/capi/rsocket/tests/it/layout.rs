//! What is used of the C interfaces has the layout that C compilers give the headers of rdma-core.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};

use ferroce_rsocket::abi::*;

use crate::headers::{Layout, field_key, layouts, run_c};

const HEADERS: &[&str] = &["rdma/rdma_cma.h", "infiniband/verbs.h"];

/// Structures of which only the beginning is used.
const PARTS: [&str; 6] =
    ["ibv_device", "ibv_context", "ibv_cq", "ibv_device_attr", "ibv_port_attr", "ibv_srq"];

#[rustfmt::skip] // one line a structure
fn layouts() -> Vec<Layout> {
    layouts! {
        ibv_device { node_type, transport_type, name }
        ibv_context_ops { poll_cq, req_notify_cq, post_send, post_recv }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_ah { context, pd, handle }
        ibv_comp_channel { context, fd, refcnt }
        ibv_cq { context, channel, cq_context, handle, cqe }
        ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
            events_completed }
        ibv_sge { addr, length, lkey }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr.rdma.remote_addr,
            wr.rdma.rkey, wr.ud.ah, wr.ud.remote_qpn, wr.ud.remote_qkey }
        ibv_wc { wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index,
            slid, sl, dlid_path_bits }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_sa_path_rec { dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit, traffic_class, reversible,
            numb_path, pkey, sl, mtu_selector, mtu, rate_selector, rate, packet_life_time_selector,
            packet_life_time, preference }
        ibv_device_attr { fw_ver, node_guid, max_qp, max_qp_wr, device_cap_flags, max_cqe }
        ibv_port_attr { state, max_mtu, active_mtu }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        rdma_addr { src_addr, dst_addr, sgid, dgid, pkey }
        rdma_route { addr, path_rec, num_paths }
        rdma_event_channel { fd }
        rdma_cm_id { verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq,
            recv_cq_channel, recv_cq, srq, pd, qp_type }
        rdma_conn_param { private_data, private_data_len, responder_resources, initiator_depth, flow_control,
            retry_count, rnr_retry_count, srq, qp_num }
        rdma_cm_event { id, listen_id, event, status, param }
    }
}

/// The C spelling of a field.
fn c_field(structure: &str, field: &str) -> String {
    match (structure, field) {
        ("rdma_addr", "sgid" | "dgid" | "pkey") => format!("addr.ibaddr.{field}"),
        _ => field_key(field),
    }
}

#[test]
fn every_structure_has_the_layout_of_the_installed_headers() {
    let layouts = layouts();
    let mut body = String::new();
    for Layout { name, fields, .. } in &layouts {
        writeln!(body, "printf(\"{name} %zu\\n\", sizeof(struct {name}));").expect("string");
        for (field, _) in fields {
            let (key, c_field) = (field_key(field), c_field(name, field));
            writeln!(body, "printf(\"{name}.{key} %zu\\n\", offsetof(struct {name}, {c_field}));")
                .expect("string");
        }
    }
    let found = run_c("rsocket-layout", HEADERS, &body);
    for Layout { name, size, fields } in layouts {
        if !PARTS.contains(&name) {
            assert_eq!(size as i64, found[name], "size of {name}");
        }
        for (field, offset) in fields {
            let key = format!("{name}.{}", field_key(field));
            assert_eq!(offset as i64, found[&key], "offset of {key}");
        }
    }
}

#[test]
fn what_is_filled_has_room_enough() {
    let body = "printf(\"device %zu\\n\", sizeof(struct ibv_device_attr));\n\
                printf(\"port %zu\\n\", sizeof(struct ibv_port_attr));\n";
    let found = run_c("rsocket-room", HEADERS, body);
    // The port's has grown by four bytes since v44, and the library fills what it knows.
    assert!(size_of::<ibv_device_attr>() as i64 >= found["device"]);
    assert!(size_of::<ibv_port_attr>() as i64 >= found["port"] + 4);
}
