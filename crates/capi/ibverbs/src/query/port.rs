//! The port: ibv_query_port(3), ibv_query_pkey(3), ibv_get_pkey_index(3).

use std::ffi::c_int;

use ferroce_nic as nic;
use libc::size_t;

use super::{check_port, write_prefix};
use ferroce_abi::verbs::*;
use ferroce_entry::call::{self, Outcome, Refusal, entry, put};
use ferroce_objects::ContextBlock;

/// The one partition key, that of the default partition with full membership.
const PKEY: u16 = 0xffff;
/// `IBV_QPF_GRH_REQUIRED`.
const GRH_REQUIRED: u8 = 1;
/// Bytes of `ibv_port_attr` that the symbol `ibv_query_port` writes: programs from before the slot have no more.
const OLD_PORT_ATTR: size_t = 48;

/// NDR: what a faster lane is called where there are 8 bits for its speed.
const FASTEST_OF_8_BITS: u16 = 128;

/// `enum ibv_mtu` of a number of bytes.
fn mtu(bytes: u32) -> c_int {
    bytes.ilog2() as c_int - 7
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
        port_cap_flags: port.capabilities(),
        max_msg_sz: nic::MAX_MESSAGE,
        bad_pkey_cntr,
        qkey_viol_cntr,
        pkey_tbl_len: port.pkey_tbl_len,
        lid: port.lid(),
        sm_lid: port.sm_lid(),
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width: port.speed.width,
        active_speed: port.speed.speed.min(FASTEST_OF_8_BITS) as u8,
        phys_state: port.phys_state,
        link_layer: port.link_layer as u8,
        flags: if port.link_layer.is_infiniband() { 0 } else { GRH_REQUIRED },
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
    fn mtu_codes_are_those_of_the_header() {
        let codes = [IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096];
        assert_eq!([256, 512, 1024, 2048, 4096].map(mtu), codes);
    }
}
