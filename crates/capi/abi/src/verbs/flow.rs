//! Flows and counters: ibv_create_flow(3), ibv_create_counters(3).

use std::ffi::{c_int, c_void};

use super::ibv_context;

#[repr(C)]
pub struct ibv_flow {
    pub comp_mask: u32,
    pub context: *mut ibv_context,
    pub handle: u32,
}

#[repr(C)]
pub struct ibv_flow_attr {
    pub comp_mask: u32,
    pub r#type: c_int,
    pub size: u16,
    pub priority: u16,
    pub num_of_specs: u8,
    pub port: u8,
    pub flags: u32,
}

macro_rules! specs {
    ($($spec:ident of $filter:ident { $($field:ident: $ty:ty),* })*) => {$(
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $filter {
            $(pub $field: $ty),*
        }

        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $spec {
            pub r#type: c_int,
            pub size: u16,
            pub val: $filter,
            pub mask: $filter,
        }
    )*};
}

// All numbers of filters are in network order.
specs! {
    ibv_flow_spec_eth of ibv_flow_eth_filter { dst_mac: [u8; 6], src_mac: [u8; 6], ether_type: u16, vlan_tag: u16 }
    ibv_flow_spec_ipv4 of ibv_flow_ipv4_filter { src_ip: u32, dst_ip: u32 }
    ibv_flow_spec_ipv4_ext of ibv_flow_ipv4_ext_filter {
        src_ip: u32, dst_ip: u32, proto: u8, tos: u8, ttl: u8, flags: u8
    }
    ibv_flow_spec_ipv6 of ibv_flow_ipv6_filter {
        src_ip: [u8; 16], dst_ip: [u8; 16], flow_label: u32, next_hdr: u8, traffic_class: u8, hop_limit: u8
    }
    ibv_flow_spec_esp of ibv_flow_esp_filter { spi: u32, seq: u32 }
    ibv_flow_spec_tcp_udp of ibv_flow_tcp_udp_filter { dst_port: u16, src_port: u16 }
    ibv_flow_spec_gre of ibv_flow_gre_filter { c_ks_res0_ver: u16, protocol: u16, key: u32 }
    ibv_flow_spec_mpls of ibv_flow_mpls_filter { label: u32 }
    ibv_flow_spec_tunnel of ibv_flow_tunnel_filter { tunnel_id: u32 }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_flow_spec_action_tag {
    pub r#type: c_int,
    pub size: u16,
    pub tag_id: u32,
}

/// What all specifications begin with, and all of this one.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_flow_spec_action_drop {
    pub r#type: c_int,
    pub size: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_flow_spec_action_handle {
    pub r#type: c_int,
    pub size: u16,
    pub action: *const c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_flow_spec_counter_action {
    pub r#type: c_int,
    pub size: u16,
    pub counters: *mut ibv_counters,
}

#[repr(C)]
pub struct ibv_counters {
    pub context: *mut ibv_context,
}

#[repr(C)]
pub struct ibv_counters_init_attr {
    pub comp_mask: u32,
}

#[repr(C)]
pub struct ibv_counter_attach_attr {
    pub counter_desc: c_int,
    pub index: u32,
    pub comp_mask: u32,
}
