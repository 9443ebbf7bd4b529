//! Address handles: ibv_create_ah(3), ibv_init_ah_from_wc(3), ibv_create_ah_from_wc(3).

use std::mem::zeroed;
use std::net::Ipv4Addr;

use ferroce_netdev::ip_of;
use ferroce_nic as nic;
use ferroce_parts::AddressVector;
use ferroce_types::HostAddr;
use nic::OfContext as _;

use ferroce_abi::verbs::*;
use ferroce_entry::call::{Outcome, Refusal, at, entry, put};
use ferroce_objects::{AhBlock, ContextBlock, Headed, PdBlock, next_handle};

pub(crate) fn vector_of(attr: &ibv_ah_attr) -> AddressVector {
    AddressVector {
        is_global: attr.is_global != 0,
        dgid: attr.grh.dgid.bytes(),
        sgid_index: attr.grh.sgid_index,
        flow_label: attr.grh.flow_label,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        sl: attr.sl,
        dlid: attr.dlid,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        port_num: attr.port_num,
    }
}

pub(crate) fn attr_of(vector: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: vector.dgid },
            flow_label: vector.flow_label,
            sgid_index: vector.sgid_index,
            hop_limit: vector.hop_limit,
            traffic_class: vector.traffic_class,
        },
        dlid: vector.dlid,
        sl: vector.sl,
        src_path_bits: vector.src_path_bits,
        static_rate: vector.static_rate,
        is_global: u8::from(vector.is_global),
        port_num: vector.port_num,
    }
}

fn create(pd: *mut ibv_pd, domain: &PdBlock, attr: &ibv_ah_attr) -> Outcome<*mut ibv_ah> {
    let nic = nic::create_ah(domain.nic(), vector_of(attr))?;
    AhBlock::allocate(|_| {
        Ok(AhBlock { c: ibv_ah { context: domain.context(), pd, handle: next_handle() }, nic })
    })
}

entry! {
    fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> pointer ibv_ah, {
        // SAFETY: by the man page a domain and the caller's attributes.
        unsafe { create(pd, PdBlock::checked(pd)?, at(attr, "attr")?) }
    }
}

entry! {
    fn ibv_destroy_ah(ah: *mut ibv_ah) -> errno {
        // SAFETY: by the man page a handle that the caller gives up.
        unsafe {
            AhBlock::ending(ah)?.nic().destroy();
            AhBlock::free(ah);
        }
        Ok(())
    }
}

/// The first 40 bytes of a UD receive: an IPv6 header, or 20 bytes of nothing and an IPv4 header (annex A17.4.5.2); on
/// InfiniBand a GRH.
struct NetworkHeader {
    source: [u8; 16],
    destination: HostAddr,
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
}

impl NetworkHeader {
    /// `None` for what is neither.
    fn parse(bytes: &[u8; 40]) -> Option<Self> {
        const UDP: u8 = 17;
        const IBA: u8 = 0x1b;
        let ipv4 = &bytes[20..];
        if bytes[0] >> 4 != 6 {
            let mapped = |from: usize| {
                let ip: [u8; 4] = ipv4[from..from + 4].try_into().expect("four bytes");
                Ipv4Addr::from(ip).to_ipv6_mapped().octets()
            };
            return (ipv4[0] >> 4 == 4).then(|| Self {
                source: mapped(12),
                destination: HostAddr::new(ip_of(mapped(16)), 0),
                traffic_class: ipv4[1],
                hop_limit: ipv4[8],
                flow_label: 0,
            });
        }
        let first = u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"));
        matches!(bytes[6], UDP | IBA).then(|| Self {
            source: bytes[8..24].try_into().expect("16 bytes"),
            destination: HostAddr::new(ip_of(bytes[24..].try_into().expect("16 bytes")), 0),
            traffic_class: (first >> 20) as u8,
            hop_limit: bytes[7],
            flow_label: first & 0xf_ffff,
        })
    }
}

/// The address that answers go to: as global as the completion.
///
/// # Safety
/// `wc` and `grh` are null or valid.
unsafe fn address_of_sender(
    context: &nic::Context,
    port_num: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
) -> Outcome<ibv_ah_attr> {
    // SAFETY: the caller's promise.
    let wc = unsafe { at(wc, "wc") }?;
    if port_num != 1 {
        return Err(Refusal::invalid(format!("port {port_num}: the device has port 1")));
    }
    // SAFETY: numbers only.
    let mut attr: ibv_ah_attr = unsafe { zeroed() };
    attr.dlid = wc.slid;
    attr.sl = wc.sl;
    attr.src_path_bits = wc.dlid_path_bits;
    attr.port_num = port_num;
    if wc.wc_flags & IBV_WC_GRH == 0 {
        return Ok(attr);
    }
    // SAFETY: the caller's promise; both are 40 bytes of plain data.
    let header = NetworkHeader::parse(unsafe { at(grh.cast::<[u8; 40]>(), "grh") }?);
    let Some(header) = header else {
        return Err(Refusal::new(
            libc::EPROTONOSUPPORT,
            "the GRH is neither a network header of RoCE v2 nor one of InfiniBand",
        ));
    };
    if header.destination.is_group() {
        return Err(Refusal::invalid(
            "the message went to a multicast group, which can't be the source of an answer",
        ));
    }
    let sgid_index = context.gids().into_iter().find(|(_, entry)| entry.ip == header.destination.ip());
    let Some((sgid_index, _)) = sgid_index else {
        return Err(Refusal::invalid("the message went to an address that isn't in the GID table"));
    };
    attr.is_global = 1;
    attr.grh = ibv_global_route {
        dgid: ibv_gid { raw: header.source },
        flow_label: header.flow_label,
        sgid_index: sgid_index as u8,
        hop_limit: header.hop_limit,
        traffic_class: header.traffic_class,
    };
    Ok(attr)
}

entry! {
    fn ibv_init_ah_from_wc(
        context: *mut ibv_context,
        port_num: u8,
        wc: *mut ibv_wc,
        grh: *mut ibv_grh,
        ah_attr: *mut ibv_ah_attr,
    ) -> minus_one {
        // SAFETY: by the man page an open context and the caller's structures.
        unsafe {
            let attr = address_of_sender(ContextBlock::of(context)?.nic(), port_num, wc, grh)?;
            put(ah_attr, "ah_attr", attr)?;
        }
        Ok(0)
    }
}

entry! {
    fn ibv_create_ah_from_wc(pd: *mut ibv_pd, wc: *mut ibv_wc, grh: *mut ibv_grh, port_num: u8) -> pointer ibv_ah, {
        // SAFETY: by the man page a domain and the caller's structures.
        unsafe {
            let domain = PdBlock::checked(pd)?;
            let attr = address_of_sender(&domain.nic().context(), port_num, wc, grh)?;
            create(pd, domain, &attr)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_header_in_the_second_half_gives_mapped_addresses() {
        let mut bytes = [0u8; 40];
        bytes[20..].copy_from_slice(&[0x45, 0x68, 0, 0, 0, 0, 0, 0, 63, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let header = NetworkHeader::parse(&bytes).unwrap();
        assert_eq!(header.source, Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets());
        assert_eq!(header.destination.ip(), Ipv4Addr::new(10, 0, 0, 2));
        assert_eq!((header.traffic_class, header.hop_limit), (0x68, 63));
    }

    #[test]
    fn an_ipv6_header_is_read_even_if_its_middle_looks_like_ipv4() {
        let mut bytes = [0u8; 40];
        bytes[..8].copy_from_slice(&[0x6a, 0xb1, 0x23, 0x45, 0, 0, 17, 5]);
        bytes[8..24].fill(0x11);
        bytes[20] = 0x45;
        bytes[24..].fill(0x22);
        let header = NetworkHeader::parse(&bytes).unwrap();
        assert_eq!(header.destination.gid(), [0x22; 16]);
        assert_eq!((header.traffic_class, header.hop_limit, header.flow_label), (0xab, 5, 0x1_2345));
    }

    #[test]
    fn what_is_neither_is_no_header() {
        assert!(NetworkHeader::parse(&[0; 40]).is_none());
        let mut tcp = [0u8; 40];
        (tcp[0], tcp[6]) = (0x60, 6);
        assert!(NetworkHeader::parse(&tcp).is_none());
    }
}
