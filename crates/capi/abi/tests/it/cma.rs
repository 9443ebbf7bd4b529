//! The structures have the layout that C compilers give the headers of rdma-core.

use std::mem::{offset_of, size_of};

use ferroce_abi::cma::*;

use crate::headers::{Layout, expect_numbers, field_key, layouts, measure};

const HEADERS: &[&str] = &["rdma/rdma_cma.h", "infiniband/ib.h", "infiniband/sa.h"];

#[rustfmt::skip] // one line a structure
fn layouts() -> Vec<Layout> {
    layouts! {
        rdma_ib_addr { sgid, dgid, pkey }
        rdma_addr { src_storage, dst_storage, ibaddr }
        rdma_route { addr, path_rec, num_paths }
        rdma_event_channel { fd }
        rdma_cm_id { verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq,
            recv_cq_channel, recv_cq, srq, pd, qp_type }
        rdma_conn_param { private_data, private_data_len, responder_resources, initiator_depth, flow_control,
            retry_count, rnr_retry_count, srq, qp_num }
        rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey }
        rdma_cm_event { id, listen_id, event, status, param }
        rdma_addrinfo { ai_flags, ai_family, ai_qp_type, ai_port_space, ai_src_len, ai_dst_len, ai_src_addr,
            ai_dst_addr, ai_src_canonname, ai_dst_canonname, ai_route_len, ai_route, ai_connect_len, ai_connect,
            ai_next }
        rdma_cm_join_mc_attr_ex { comp_mask, join_flags, addr }
        sockaddr_ib { sib_family, sib_pkey, sib_flowinfo, sib_addr, sib_sid, sib_sid_mask, sib_scope_id }
        ibv_path_record { service_id, dgid, sgid, dlid, slid, flowlabel_hoplimit, tclass, reversible_numpath,
            pkey, qosclass_sl, mtu, rate, packetlifetime, preference }
        ibv_path_data { flags, path }
    }
}

/// How C spells a structure and its field.
fn spelled(structure: &str, field: &str) -> (String, String) {
    let field =
        if (structure, field) == ("rdma_addr", "ibaddr") { "addr.ibaddr".into() } else { field_key(field) };
    (format!("struct {structure}"), field)
}

#[test]
fn every_structure_has_the_layout_of_the_installed_headers() {
    let layouts = layouts();
    let found = measure("rdmacm-layout", HEADERS, &layouts, spelled);
    for Layout { name, size, fields } in layouts {
        assert_eq!(size as i64, found[name], "size of {name}");
        for (field, offset) in fields {
            let key = format!("{name}.{}", field_key(field));
            assert_eq!(offset as i64, found[&key], "offset of {key}");
        }
    }
}

#[test]
fn constants_have_the_values_of_the_installed_headers() {
    expect_numbers("rdmacm-numbers", HEADERS, CMA_NUMBERS);
}
