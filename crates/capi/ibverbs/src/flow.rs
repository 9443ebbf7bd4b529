//! Flow steering: ibv_create_flow(3), ibv_destroy_flow(3), and the flow actions that there aren't
//! (ibv_flow_action_esp(3)).

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use ferroce_raw::{FlowCounters, FlowInit, FlowKind, Masked, Match, Spec, SteeringFlow};

use ferroce_abi::verbs::*;
use ferroce_entry::call::{self, Outcome, Refusal, at};
use ferroce_objects::{CountersBlock, FlowBlock, Headed, QpBlock, next_handle};

/// What a list of specifications asks for.
#[derive(Default)]
struct FlowRule {
    specs: Vec<Spec>,
    tag: Option<u32>,
    drop: bool,
    counters: Vec<Arc<FlowCounters>>,
}

/// A specification of this type.
///
/// # Safety
/// `at` is readable for `size` bytes.
unsafe fn read<T: Copy>(at: *const u8, size: usize) -> Outcome<T> {
    if size != size_of::<T>() {
        return Err(Refusal::invalid(format!(
            "a flow specification of {size} bytes: its type has {}",
            size_of::<T>()
        )));
    }
    // SAFETY: the caller's promise; programs pack what they put together.
    Ok(unsafe { at.cast::<T>().read_unaligned() })
}

/// Value and mask of a field, from network order.
macro_rules! masked {
    ($spec:ident.$field:ident) => {
        Masked { value: $spec.val.$field, mask: $spec.mask.$field }
    };
    ($ty:ident $spec:ident.$field:ident) => {
        Masked { value: $ty::from_be($spec.val.$field), mask: $ty::from_be($spec.mask.$field) }
    };
}

/// An IPv4 address, which is in network order as it stands.
fn address(value: u32, mask: u32) -> Masked<[u8; 4]> {
    Masked { value: value.to_ne_bytes(), mask: mask.to_ne_bytes() }
}

/// In filters "don't fragment" is 2 and "more fragments" 4; the header's bits are 2 and 1.
fn fragment_flags(value: u8, mask: u8) -> Outcome<Masked<u8>> {
    let bits = |flags: u8| flags & 2 | flags >> 2 & 1;
    if mask & !6 != 0 {
        return Err(Refusal::invalid(format!("IPv4 flags with mask {mask:#x}: only 2 and 4 are known")));
    }
    Ok(Masked { value: bits(value), mask: bits(mask) })
}

/// The header that a specification describes; `None` for an action.
///
/// # Safety
/// As [`read`].
unsafe fn header(kind: c_int, at: *const u8, size: usize) -> Outcome<Option<Match>> {
    // SAFETY: the caller's promise.
    unsafe {
        Ok(Some(match kind {
            IBV_FLOW_SPEC_ETH => {
                let s: ibv_flow_spec_eth = read(at, size)?;
                Match::Ethernet {
                    dst: masked!(s.dst_mac),
                    src: masked!(s.src_mac),
                    ether_type: masked!(u16 s.ether_type),
                    vlan: masked!(u16 s.vlan_tag),
                }
            }
            IBV_FLOW_SPEC_IPV4 => {
                let s: ibv_flow_spec_ipv4 = read(at, size)?;
                Match::Ipv4 {
                    src: address(s.val.src_ip, s.mask.src_ip),
                    dst: address(s.val.dst_ip, s.mask.dst_ip),
                    protocol: Masked::default(),
                    tos: Masked::default(),
                    ttl: Masked::default(),
                    flags: Masked::default(),
                }
            }
            IBV_FLOW_SPEC_IPV4_EXT => {
                let s: ibv_flow_spec_ipv4_ext = read(at, size)?;
                Match::Ipv4 {
                    src: address(s.val.src_ip, s.mask.src_ip),
                    dst: address(s.val.dst_ip, s.mask.dst_ip),
                    protocol: masked!(s.proto),
                    tos: masked!(s.tos),
                    ttl: masked!(s.ttl),
                    flags: fragment_flags(s.val.flags, s.mask.flags)?,
                }
            }
            IBV_FLOW_SPEC_IPV6 => {
                let s: ibv_flow_spec_ipv6 = read(at, size)?;
                Match::Ipv6 {
                    src: masked!(s.src_ip),
                    dst: masked!(s.dst_ip),
                    protocol: masked!(s.next_hdr),
                    traffic_class: masked!(s.traffic_class),
                    hop_limit: masked!(s.hop_limit),
                    flow_label: masked!(u32 s.flow_label),
                }
            }
            IBV_FLOW_SPEC_TCP => {
                let s: ibv_flow_spec_tcp_udp = read(at, size)?;
                Match::Tcp { src: masked!(u16 s.src_port), dst: masked!(u16 s.dst_port) }
            }
            IBV_FLOW_SPEC_UDP => {
                let s: ibv_flow_spec_tcp_udp = read(at, size)?;
                Match::Udp { src: masked!(u16 s.src_port), dst: masked!(u16 s.dst_port) }
            }
            IBV_FLOW_SPEC_ESP => {
                let s: ibv_flow_spec_esp = read(at, size)?;
                Match::Esp { spi: masked!(u32 s.spi), seq: masked!(u32 s.seq) }
            }
            IBV_FLOW_SPEC_VXLAN_TUNNEL => {
                let s: ibv_flow_spec_tunnel = read(at, size)?;
                Match::Vxlan { vni: masked!(u32 s.tunnel_id) }
            }
            IBV_FLOW_SPEC_GRE => {
                let s: ibv_flow_spec_gre = read(at, size)?;
                Match::Gre {
                    flags: masked!(u16 s.c_ks_res0_ver),
                    protocol: masked!(u16 s.protocol),
                    key: masked!(u32 s.key),
                }
            }
            IBV_FLOW_SPEC_MPLS => {
                let s: ibv_flow_spec_mpls = read(at, size)?;
                Match::Mpls { entry: masked!(u32 s.label) }
            }
            _ => return Ok(None),
        }))
    }
}

/// Takes one specification into account.
///
/// # Safety
/// As [`read`]; counters that it names are valid.
unsafe fn take(rule: &mut FlowRule, kind: c_int, at: *const u8, size: usize) -> Outcome<()> {
    let inner = kind & IBV_FLOW_SPEC_INNER != 0;
    // SAFETY: the caller's promise.
    if let Some(header) = unsafe { header(kind & !IBV_FLOW_SPEC_INNER, at, size) }? {
        rule.specs.push(Spec { inner, header });
        return Ok(());
    }
    // SAFETY: as above.
    unsafe {
        match kind {
            IBV_FLOW_SPEC_ACTION_TAG => {
                let tag = read::<ibv_flow_spec_action_tag>(at, size)?.tag_id;
                if rule.tag.replace(tag).is_some() {
                    return Err(Refusal::invalid("two flow tags"));
                }
            }
            IBV_FLOW_SPEC_ACTION_DROP => {
                read::<ibv_flow_spec_action_drop>(at, size)?;
                rule.drop = true;
            }
            IBV_FLOW_SPEC_ACTION_COUNT => {
                let counters = read::<ibv_flow_spec_counter_action>(at, size)?.counters;
                rule.counters.push(CountersBlock::checked(counters)?.nic().clone());
            }
            IBV_FLOW_SPEC_ACTION_HANDLE => {
                read::<ibv_flow_spec_action_handle>(at, size)?;
                return Err(Refusal::unsupported("flow actions"));
            }
            other => return Err(Refusal::invalid(format!("flow specification type {other:#x}"))),
        }
    }
    Ok(())
}

/// # Safety
/// `attr` is as ibv_create_flow(3) asks, with its specifications behind it.
unsafe fn rule(attr: *const ibv_flow_attr) -> Outcome<FlowRule> {
    let mut rule = FlowRule::default();
    // SAFETY: the caller's promise: `num_of_specs` specifications, each with its size, lie behind the attributes.
    unsafe {
        let mut at = attr.cast::<u8>().add(size_of::<ibv_flow_attr>());
        for _ in 0..(*attr).num_of_specs {
            let head = at.cast::<ibv_flow_spec_action_drop>().read_unaligned();
            take(&mut rule, head.r#type, at, head.size.into())?;
            at = at.add(head.size.into());
        }
    }
    Ok(rule)
}

/// The slot behind `ibv_create_flow`.
pub(crate) unsafe extern "C" fn create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow {
    call::pointer("ibv_create_flow", || {
        // SAFETY: by the man page a queue pair and the caller's attributes.
        let (block, init) = unsafe { (QpBlock::checked(qp)?, at(attr, "flow_attr")?) };
        let kind = match init.r#type {
            IBV_FLOW_ATTR_NORMAL => FlowKind::Normal,
            IBV_FLOW_ATTR_ALL_DEFAULT => FlowKind::AllDefault,
            IBV_FLOW_ATTR_MC_DEFAULT => FlowKind::McDefault,
            IBV_FLOW_ATTR_SNIFFER => FlowKind::Sniffer,
            other => return Err(Refusal::invalid(format!("flow type {other}"))),
        };
        if init.comp_mask != 0 {
            return Err(Refusal::invalid("the comp_mask of ibv_flow_attr isn't 0"));
        }
        if init.port != 1 {
            return Err(Refusal::invalid(format!("port {}: the device has port 1", init.port)));
        }
        if init.flags & !(IBV_FLOW_ATTR_FLAGS_DONT_TRAP | IBV_FLOW_ATTR_FLAGS_EGRESS) != 0 {
            return Err(Refusal::invalid(format!("flags {:#x}: unknown bits", init.flags)));
        }
        if init.flags & IBV_FLOW_ATTR_FLAGS_EGRESS != 0 {
            return Err(Refusal::unsupported("flows of sent packets"));
        }
        let raw = block.raw()?;
        // SAFETY: by the man page the specifications lie behind the attributes.
        let rule = unsafe { rule(attr) }?;
        let nic = SteeringFlow::create(
            raw,
            FlowInit {
                kind,
                priority: init.priority,
                dont_trap: init.flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0,
                specs: rule.specs,
                tag: rule.tag.unwrap_or(0),
                drop: rule.drop,
                counters: rule.counters,
            },
        )?;
        // SAFETY: by the man page a queue pair.
        let c = ibv_flow { comp_mask: 0, context: unsafe { (*qp).context }, handle: next_handle() };
        FlowBlock::allocate(|_| Ok(FlowBlock { c, nic }))
    })
}

/// The slot behind `ibv_destroy_flow`.
pub(crate) unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    call::errno_value("ibv_destroy_flow", || {
        // SAFETY: by the man page a flow that the caller gives up.
        unsafe {
            FlowBlock::ending(flow)?.nic().destroy();
            FlowBlock::free(flow);
        }
        Ok(())
    })
}

/// The slot behind `ibv_create_flow_action_esp`.
pub(crate) unsafe extern "C" fn create_flow_action_esp(
    _context: *mut ibv_context,
    _attr: *mut c_void,
) -> *mut c_void {
    call::pointer("ibv_create_flow_action_esp", || Err(Refusal::unsupported("flow actions")))
}
