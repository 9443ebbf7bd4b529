//! Messages of the communication manager: those of Linux 6.1's `rdma_cm` on two hosts, and any others.

use ferroce_wire::cm::{
    CommIds, ConnectPath, DisconnectRequest, Ece, IpHeader, MAD_LEN, Mad, MadError, Message, Mra, PortSpace,
    Reject, RejectReason, Rejected, Reply, Request, ServiceId, SidrReply, SidrRequest, SidrStatus,
    TransportService,
};
use proptest::prelude::*;

/// REQ from 10.77.0.2 port 0x40a9 to 10.77.0.3 port 7000, with "CLIDATA".
const REQ_IPV4: &str = "0107020300000000000000027979303c00100000000000003c307979000000000000000001061b58505400fffe770002\
    00000000000000000000120700000005000000a1009a5ea4ffff33f0ffffffff00000000000000000000ffff0a4d0002\
    00000000000000000000ffff0a4d00034946700000400098000000000000000000000000000000000000000000000000\
    00000000000000000000000000000000000000000040a9110000000000000000000000000a4d00020000000000000000\
    000000000a4d0003434c4944415441";

/// REQ from fd77::2 to fd77::3 port 7175, without data.
const REQ_IPV6: &str = "0107020300000000000000027979302e00100000000000002e307979000000000000000001061c07505400fffe770002\
    000000000000000000001a0100000001000000a0fdee29a7ffff37f0fffffffffd770000000000000000000000000002\
    fd77000000000000000000000000000320d7a00000400098000000000000000000000000000000000000000000000000\
    00000000000000000000000000000000000000000060942dfd770000000000000000000000000002fd77000000000000\
    0000000000000003";

/// REP with "SRVDATA".
const REP: &str = "0107020300000000000000027979303c00130000000000001bd8da243c30797900000000000012000000000087647800\
    030278c0505400fffe77000353525644415441";

/// RTU.
const RTU: &str = "0107020300000000000000027979303c00140000000000003c3079791bd8da24";

/// DREQ.
const DREQ: &str = "0107020300000000000000027979303c00150000000000003c3079791bd8da24000012";

/// DREP.
const DREP: &str = "0107020300000000000000027979303c00160000000000001bd8da243c307979";

/// REJ of a consumer, with "NOTODAY".
const REJ_CONSUMER: &str = "0107020300000000000000027979303e001200000000000019d8da243e3079790000001c000000000000000000000000\
    000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000\
    0000000000000000000000004e4f544f444159";

/// REJ: there is no listener.
const REJ_NOBODY: &str = "010702030000000000000002797930390012000000000000000000003930797900000008";

/// REJ: the requester has given up.
const REJ_TIMEOUT: &str =
    "0107020300000000000000027979303b00120000000000003b3079790000000080100004505400fffe770002";

/// SIDR_REQ with "CLIDATA".
const SIDR_REQ: &str = "01070203000000000000000279793037001700000000000037307979ffff00000000000001111b5c0040c3b600000000\
    00000000000000000a4d00020000000000000000000000000a4d0003434c4944415441";

/// SIDR_REP with QPN, Q_Key and "SRVDATA".
const SIDR_REP: &str = "0107020300000000000000027979303400180000000000003430797900000000000014000000000001111b5b01234567\
    000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000\
    00000000000000000000000000000000000000000000000053525644415441";

/// SIDR_REP: there is no listener.
const SIDR_REP_NOBODY: &str =
    "0107020300000000000000027979303600180000000000003630797901000000000000000000000001111f3e";

/// MRA of a REP.
const MRA: &str = "010702030000000000000002797930570011000000000000573079790a0a000e40c0";

/// The bytes of a MAD of which trailing zeros are left out.
fn bytes(hex: &str) -> [u8; MAD_LEN] {
    let mut bytes = [0; MAD_LEN];
    for (byte, at) in bytes.iter_mut().zip((0..hex.len()).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
    }
    bytes
}

fn message(hex: &str) -> Message {
    Mad::parse(&bytes(hex)).expect("a message").message
}

fn text(data: &[u8]) -> &str {
    let end = data.iter().position(|&b| b == 0).unwrap_or(data.len());
    std::str::from_utf8(&data[..end]).expect("text")
}

/// A GID with an IPv4 address.
fn mapped(ip: [u8; 4]) -> [u8; 16] {
    std::net::Ipv4Addr::from(ip).to_ipv6_mapped().octets()
}

#[test]
fn messages_of_the_kernel_come_out_as_they_went_in() {
    for hex in [
        REQ_IPV4,
        REQ_IPV6,
        REP,
        RTU,
        DREQ,
        DREP,
        REJ_CONSUMER,
        REJ_NOBODY,
        REJ_TIMEOUT,
        SIDR_REQ,
        SIDR_REP,
        SIDR_REP_NOBODY,
        MRA,
    ] {
        let mad = Mad::parse(&bytes(hex)).expect("a message");
        assert_eq!(mad.emit(), bytes(hex), "{mad:?}");
    }
}

#[test]
fn a_request_of_the_kernel_is_read() {
    let Message::Request(request) = message(REQ_IPV4) else { panic!("a request") };
    let primary = ConnectPath {
        local_lid: 0xffff,
        remote_lid: 0xffff,
        local_gid: mapped([10, 77, 0, 2]),
        remote_gid: mapped([10, 77, 0, 3]),
        flow_label: 0x49467,
        hop_limit: 64,
        ack_timeout: 19,
        ..ConnectPath::NONE
    };
    let wanted = Request {
        local_comm_id: 0x3c30_7979,
        service_id: ServiceId::of_port(PortSpace::Tcp, 7000),
        ca_guid: 0x5054_00ff_fe77_0002,
        qkey: 0,
        qpn: 0x12,
        responder_resources: 7,
        initiator_depth: 5,
        local_eecn: 0,
        remote_eecn: 0,
        remote_response_timeout: 20,
        transport: TransportService::Rc,
        flow_control: true,
        starting_psn: 0x9a5e,
        local_response_timeout: 20,
        retry_count: 4,
        pkey: 0xffff,
        path_mtu: 3,
        rdc_exists: false,
        rnr_retry_count: 3,
        max_cm_retries: 15,
        srq: false,
        primary,
        alternate: ConnectPath::NONE,
        ece: Ece::default(),
        private_data: request.private_data,
    };
    assert_eq!(request, wanted);
    let header = IpHeader::parse(&request.private_data).expect("a header");
    let addresses =
        ("10.77.0.2:43281".parse().expect("an address"), "10.77.0.3".parse().expect("an address"));
    assert_eq!((header.source, header.destination), addresses);
    assert_eq!(header.emit(), request.private_data[..36]);
    assert_eq!(text(&request.private_data[36..]), "CLIDATA");
    assert_eq!(request.service_id.port(), Some((PortSpace::Tcp, 7000)));
}

#[test]
fn an_ipv6_request_of_the_kernel_is_read() {
    let Message::Request(request) = message(REQ_IPV6) else { panic!("a request") };
    let header = IpHeader::parse(&request.private_data).expect("a header");
    assert_eq!(header.source, "[fd77::2]:37933".parse().expect("an address"));
    assert_eq!(header.destination, "fd77::3".parse::<std::net::IpAddr>().expect("an address"));
    assert_eq!(header.emit(), request.private_data[..36]);
    assert_eq!(request.primary.flow_label, 0x20d7a);
}

#[test]
fn answers_of_the_kernel_are_read() {
    let Message::Reply(reply) = message(REP) else { panic!("a reply") };
    let wanted = Reply {
        local_comm_id: 0x1bd8_da24,
        remote_comm_id: 0x3c30_7979,
        qkey: 0,
        qpn: 0x12,
        eecn: 0,
        starting_psn: 0x87_6478,
        responder_resources: 3,
        initiator_depth: 2,
        target_ack_delay: 15,
        failover_accepted: 0,
        flow_control: false,
        rnr_retry_count: 6,
        srq: false,
        ca_guid: 0x5054_00ff_fe77_0003,
        ece: Ece::default(),
        private_data: reply.private_data,
    };
    assert_eq!(reply, wanted);
    assert_eq!(text(&reply.private_data), "SRVDATA");

    let ids = CommIds { local: 0x3c30_7979, remote: 0x1bd8_da24 };
    assert_eq!(message(RTU), Message::ReadyToUse(ids));
    assert_eq!(message(DREQ), Message::DisconnectRequest(DisconnectRequest { ids, remote_qpn: 0x12 }));
    assert_eq!(message(DREP), Message::DisconnectReply(CommIds { local: ids.remote, remote: ids.local }));
    let ids = CommIds { local: 0x5730_7979, remote: 0x0a0a_000e };
    assert_eq!(message(MRA), Message::Mra(Mra { ids, received: Rejected::Reply, service_timeout: 24 }));
}

#[test]
fn rejections_of_the_kernel_are_read() {
    let rejections = [REJ_CONSUMER, REJ_NOBODY, REJ_TIMEOUT].map(|hex| match message(hex) {
        Message::Reject(reject) => reject,
        other => panic!("{other:?}"),
    });
    let [consumer, nobody, timeout] = rejections;
    assert_eq!((consumer.reason, consumer.rejected), (RejectReason::CONSUMER, Rejected::Request));
    assert_eq!(text(&consumer.private_data), "NOTODAY");
    assert_eq!((nobody.reason, nobody.local_comm_id), (RejectReason::INVALID_SERVICE_ID, 0));
    assert_eq!(nobody.remote_comm_id, 0x3930_7979);
    assert_eq!((timeout.reason, timeout.rejected), (RejectReason::TIMEOUT, Rejected::Other));
    assert_eq!((timeout.remote_comm_id, timeout.info_length), (0, 8));
    assert_eq!(timeout.info[..8], 0x5054_00ff_fe77_0002_u64.to_be_bytes());
}

#[test]
fn lookups_of_the_kernel_are_read() {
    let Message::SidrRequest(request) = message(SIDR_REQ) else { panic!("a lookup") };
    assert_eq!((request.request_id, request.pkey), (0x3730_7979, 0xffff));
    assert_eq!(request.service_id.port(), Some((PortSpace::Udp, 7004)));
    assert_eq!(text(&request.private_data[36..]), "CLIDATA");
    let Message::SidrReply(reply) = message(SIDR_REP) else { panic!("an answer") };
    assert_eq!((reply.status, reply.qpn, reply.qkey), (SidrStatus::SUCCESS, 0x14, 0x0123_4567));
    assert_eq!(reply.service_id.port(), Some((PortSpace::Udp, 7003)));
    assert_eq!(text(&reply.private_data), "SRVDATA");
    let Message::SidrReply(reply) = message(SIDR_REP_NOBODY) else { panic!("an answer") };
    assert_eq!(reply.status, SidrStatus::UNSUPPORTED);
}

#[test]
fn what_is_no_message_is_refused() {
    let good = bytes(RTU);
    let with = |at: usize, value| {
        let mut bytes = good;
        bytes[at] = value;
        Mad::parse(&bytes)
    };
    // Base version, class, class version, method.
    for (at, value) in [(0, 0), (1, 3), (2, 1), (3, 0x83)] {
        assert_eq!(with(at, value), Err(MadError::Class), "byte {at}");
    }
    for attribute in [0x01, 0x0f, 0x19, 0x1a, 0xff] {
        assert_eq!(with(17, attribute), Err(MadError::Attribute(u16::from(attribute))));
    }
    for length in [0, 23, 24, 255] {
        assert_eq!(Mad::parse(&good[..length]), Err(MadError::Length));
    }
    assert_eq!(Mad::parse(&[0; 257]), Err(MadError::Length));
    // Status, class-specific and reserved fields are ignored.
    assert_eq!(with(5, 9), Mad::parse(&good));
}

#[test]
fn headers_of_other_versions_are_none() {
    let Message::Request(request) = message(REQ_IPV4) else { panic!("a request") };
    let with = |at: usize, value| {
        let mut data = request.private_data;
        data[at] = value;
        IpHeader::parse(&data)
    };
    assert!(with(2, 1).is_some());
    for (at, value) in [(0, 1), (1, 0), (1, 0x50)] {
        assert_eq!(with(at, value), None);
    }
    assert_eq!(IpHeader::parse(&request.private_data[..35]), None);
}

#[test]
fn service_ids_beyond_the_port_spaces_are_no_ports() {
    for (id, port) in [
        (0x0106_1b58, Some((PortSpace::Tcp, 7000))),
        (0x0111_0000, Some((PortSpace::Udp, 0))),
        (0x013f_ffff, Some((PortSpace::Ib, 0xffff))),
        (0x0002_1b58, None),
        (0x1_0106_1b58, None),
        (0, None),
    ] {
        assert_eq!(ServiceId(id).port(), port);
    }
}

proptest! {
    /// Whatever can be read is written as what is read again: reserved bits alone get lost.
    #[test]
    fn any_bytes_are_read_and_written_without_a_loss(
        attribute in 0x10_u8..=0x18,
        mut data in proptest::collection::vec(any::<u8>(), MAD_LEN),
    ) {
        let _ = Mad::parse(&data);
        data[..4].copy_from_slice(&[1, 7, 2, 3]);
        data[16..18].copy_from_slice(&[0, attribute]);
        let mad = Mad::parse(&data).expect("a message");
        let again = mad.emit();
        prop_assert_eq!(Mad::parse(&again), Ok(mad));
        prop_assert_eq!(&again[16..18], &data[16..18]);
    }

    #[test]
    fn any_bytes_are_a_header_or_none(data in proptest::collection::vec(any::<u8>(), 0..64)) {
        if let Some(header) = IpHeader::parse(&data) {
            prop_assert_eq!(IpHeader::parse(&header.emit()), Some(header));
        }
    }
}

/// The parts of messages that only few peers use.
#[test]
fn rare_fields_are_where_they_belong() {
    let Message::Request(mut request) = message(REQ_IPV4) else { panic!("a request") };
    request.transport = TransportService::Xrc;
    request.ece = Ece { vendor_id: 0x1_0203, options: 0x0405_0607 };
    request.srq = true;
    let emitted = Mad { transaction: 1, message: Message::Request(request) }.emit();
    assert_eq!(emitted[24 + 43] & 6, 6);
    assert_eq!(emitted[24 + 51] & 0xf, 9);
    assert_eq!(emitted[20..24], [4, 5, 6, 7]);
    assert_eq!(emitted[24 + 5..24 + 8], [1, 2, 3]);
    let Message::Reply(mut reply) = message(REP) else { panic!("a reply") };
    reply.eecn = 0xa_0b0c;
    reply.ece = request.ece;
    let emitted = Mad { transaction: 1, message: Message::Reply(reply) }.emit();
    assert_eq!(emitted[24 + 15..24 + 20], [1, 0x0a, 0x0b, 0x0c, 2]);
    assert_eq!(emitted[24 + 23], 3);
    let reject = Reject {
        local_comm_id: 1,
        remote_comm_id: 2,
        rejected: Rejected::Reply,
        info_length: 72,
        reason: RejectReason::CONSUMER,
        info: [7; 72],
        private_data: [8; 148],
    };
    let emitted = Mad { transaction: 1, message: Message::Reject(reject) }.emit();
    assert_eq!(emitted[24 + 8..24 + 12], [0x40, 144, 0, 28]);
    let sidr = SidrReply {
        request_id: 1,
        status: SidrStatus::REJECT,
        qpn: 2,
        service_id: ServiceId(3),
        qkey: 4,
        ece: request.ece,
        info_length: 5,
        info: [6; 72],
        private_data: [7; 136],
    };
    let emitted = Mad { transaction: 1, message: Message::SidrReply(sidr) }.emit();
    assert_eq!(emitted[24 + 4..24 + 12], [2, 5, 1, 2, 0, 0, 2, 3]);
    let lookup =
        SidrRequest { request_id: 1, pkey: 0x7fff, service_id: ServiceId(3), private_data: [9; 216] };
    let emitted = Mad { transaction: 1, message: Message::SidrRequest(lookup) }.emit();
    assert_eq!(emitted[24..24 + 9], [0, 0, 0, 1, 0x7f, 0xff, 0, 0, 0]);
}
