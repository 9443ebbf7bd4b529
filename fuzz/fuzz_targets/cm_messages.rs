//! Arbitrary messages of the communication manager, at arbitrary times: nothing panics, and what is kept is bounded.
#![no_main]

use ferroce_cm::{Accept, Cm, Config, Event, Listen};
use ferroce_types::HostAddr;
use ferroce_wire::cm::{Ece, MAD_LEN, Mad, PortSpace, TransportService};
use libfuzzer_sys::fuzz_target;
use std::time::Duration;

fuzz_target!(|data: &[u8]| {
    let address = |last| HostAddr::new([10, 0, 0, last].into(), 0);
    let config = Config { id_prefix: 0x1230_0000, id_bits: 4, first_id: 0, max_connections: 16 };
    let mut cm = Cm::new(config);
    cm.listen(Listen {
        space: PortSpace::Tcp,
        port: 7174,
        address: [0, 0, 0, 0].into(),
        v6_only: false,
        transport: Some(TransportService::Rc),
        backlog: 4,
    });
    let mut now = Duration::ZERO;
    for step in data.chunks(MAD_LEN) {
        let mut mad = [0; MAD_LEN];
        mad[..step.len()].copy_from_slice(step);
        // The first four bytes of a MAD are always the same: they contain the time here.
        now += Duration::from_millis(u64::from(u16::from_le_bytes([mad[0], mad[1]])));
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        cm.handle_timeout(now);
        if let Ok(mad) = Mad::parse(&mad) {
            cm.handle(now, address(2), address(1), &mad);
        }
        while let Some(event) = cm.poll_event() {
            if let Event::Request { handle, request, .. } = event {
                let accept = Accept {
                    ca_guid: 1,
                    qpn: request.qpn,
                    eecn: 0,
                    srq: false,
                    starting_psn: 0,
                    responder_resources: 0,
                    initiator_depth: 0,
                    flow_control: false,
                    rnr_retry_count: 0,
                    target_ack_delay: 0,
                    ece: Ece::default(),
                    private_data: &[],
                };
                let _ = cm.accept(now, handle, &accept);
            }
        }
        while cm.poll_transmit().is_some() {}
        assert!(cm.count() <= 16);
    }
});
