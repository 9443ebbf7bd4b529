//! Exports whose feature this adapter doesn't have: each says so as its man page documents, EOPNOTSUPP. Arguments aren't
//! looked at, so they aren't declared.

use libc::c_int;

use crate::call::{self, Refusal};

fn refusal() -> Refusal {
    Refusal::unsupported("not supported by this adapter")
}

macro_rules! unsupported {
    (errno: $($name:ident)*) => {$(
        #[unsafe(export_name = concat!("ferroce_c_", stringify!($name)))]
        extern "C" fn $name() -> c_int {
            call::errno_value(stringify!($name), || Err(refusal()))
        }
    )*};
    (minus_one: $($name:ident)*) => {$(
        #[unsafe(export_name = concat!("ferroce_c_", stringify!($name)))]
        extern "C" fn $name() -> c_int {
            call::minus_one(stringify!($name), || Err(refusal()))
        }
    )*};
    (pointer: $($name:ident)*) => {$(
        #[unsafe(export_name = concat!("ferroce_c_", stringify!($name)))]
        extern "C" fn $name() -> *mut u8 {
            call::pointer(stringify!($name), || Err(refusal()))
        }
    )*};
    (nothing: $($name:ident)*) => {$(
        #[unsafe(export_name = concat!("ferroce_c_", stringify!($name)))]
        extern "C" fn $name() {
            call::errno_value(stringify!($name), || Err(refusal()));
        }
    )*};
}

unsupported!(errno:
    _ibv_query_comp_cntr_caps ibv_attach_mcast ibv_dealloc_dmah ibv_destroy_comp_cntr ibv_detach_mcast
    ibv_inc_comp_cntr ibv_inc_err_comp_cntr ibv_qp_attach_comp_cntr ibv_query_port_speed ibv_read_comp_cntr
    ibv_read_err_comp_cntr ibv_set_comp_cntr ibv_set_err_comp_cntr
);
unsupported!(minus_one: ibv_dm_export_dmabuf_fd ibv_export_buf_dmabuf_fd);
unsupported!(pointer:
    ibv_alloc_buf ibv_alloc_dmah ibv_create_comp_cntr ibv_import_device ibv_import_dm ibv_import_mr ibv_import_pd
    ibv_reg_buf_mr ibv_reg_dmabuf_mr ibv_reg_mr_ex
);
unsupported!(nothing: ibv_free_buf ibv_unimport_dm ibv_unimport_mr ibv_unimport_pd);

// What vendor libraries ask of libibverbs when they drive a kernel device. They are loaded because programs link them;
// without a device of theirs none of this is called, but the loader wants the names.

/// A command that failed: returns the errno value.
#[unsafe(export_name = "ferroce_c_private_errno")]
extern "C" fn private_errno() -> c_int {
    call::errno_value("private function for vendor libraries", || Err(refusal()))
}

/// An object that couldn't be made.
#[unsafe(export_name = "ferroce_c_private_null")]
extern "C" fn private_null() -> *mut u8 {
    call::pointer("private function for vendor libraries", || Err(refusal()))
}

/// Accepted, without effect: a vendor library announces itself when it is loaded, and none of its devices is here.
#[unsafe(export_name = "ferroce_c_private_ignore")]
extern "C" fn private_ignore() {}

/// A count of nothing.
#[unsafe(export_name = "ferroce_c_private_zero")]
extern "C" fn private_zero() -> u32 {
    0
}
unsupported!(errno: _ibv_query_gid_ex _ibv_query_gid_table ibv_ack_async_event ibv_ack_cq_events ibv_close_device ibv_copy_ah_attr_from_kern ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern ibv_copy_qp_attr_from_kern ibv_dealloc_pd ibv_dereg_mr ibv_destroy_ah ibv_destroy_comp_channel ibv_destroy_cq ibv_destroy_qp ibv_destroy_srq ibv_dofork_range ibv_dontfork_range ibv_fork_init ibv_get_async_event ibv_get_cq_event ibv_get_device_guid ibv_get_device_index ibv_get_pkey_index ibv_init_ah_from_wc ibv_is_fork_initialized ibv_modify_qp ibv_modify_srq ibv_query_device ibv_query_ece ibv_query_gid ibv_query_gid_type ibv_query_pkey ibv_query_port ibv_query_qp ibv_query_qp_data_in_order ibv_query_srq ibv_read_ibdev_sysfs_file ibv_read_sysfs_file ibv_register_driver ibv_rereg_mr ibv_resize_cq ibv_resolve_eth_l2_from_gid ibv_set_ece);
unsupported!(pointer: ibv_alloc_pd ibv_create_ah ibv_create_ah_from_wc ibv_create_comp_channel ibv_create_cq ibv_create_qp ibv_create_srq ibv_get_device_name ibv_get_sysfs_path ibv_open_device ibv_qp_to_qp_ex ibv_reg_mr ibv_reg_mr_iova ibv_reg_mr_iova2);
