//! Messages of gigabytes, with payloads that are lengths only.

use ferroce_proto::{
    Buffer, Data, Env, NoReceive, Payload, PayloadSource, PlaceError, QpEvent, QpParams, QpProtocol,
    SendEnds, SendOp, SendWr, TransmitError,
};
use ferroce_types::{
    Access, AtomicOp, BindMw, Completion, Instant, Placement, QpState, RecvWqe, RemoteAccess, RemoteError,
    Sge, WcStatus,
};
use ferroce_wire::{Headers, Service};

#[derive(Clone, Copy)]
struct Length(u32);

impl Payload for Length {
    fn len(&self) -> usize {
        self.0 as usize
    }

    fn copy(&self, _: &mut [u8]) -> Result<(), PlaceError> {
        Err(PlaceError)
    }

    fn copy_first(&self, _: &mut [u8]) -> Result<(), PlaceError> {
        Err(PlaceError)
    }
}

/// Counts bytes and insists that they come in order.
#[derive(Default)]
struct Counter {
    out: Vec<(Headers, u32)>,
    placed: u64,
    written: u64,
    statuses: Vec<(WcStatus, u32)>,
    receives: u32,
}

const VA: u64 = 0xffff_ffff_0000_0000;

impl SendEnds for Counter {
    type Address = ();

    fn complete_send(&mut self, completion: Completion) {
        self.statuses.push((completion.status, completion.byte_len));
    }
}

impl Env for Counter {
    type Payload<'p> = Length;

    fn payload_of(bytes: &[u8]) -> Self::Payload<'_> {
        Length(bytes.len() as u32)
    }

    fn transmit(
        &mut self,
        headers: &Headers,
        source: PayloadSource<'_>,
        _: Option<&()>,
    ) -> Result<(), TransmitError> {
        let len = match source {
            PayloadSource::None => 0,
            PayloadSource::Bytes(bytes) => bytes.len() as u32,
            PayloadSource::Local { len, .. } | PayloadSource::Remote { len, .. } => len,
        };
        self.out.push((*headers, len));
        Ok(())
    }

    fn is_ecn_capable(&self) -> bool {
        false
    }

    fn window(&self) -> u32 {
        8 << 20
    }

    fn select_srq(&mut self, _srqn: u32) -> ferroce_proto::SrqPlace {
        ferroce_proto::SrqPlace::Nowhere
    }

    fn next_recv(&mut self) -> Option<RecvWqe> {
        self.receives = self.receives.checked_sub(1)?;
        let half = Sge { addr: 0, length: 1 << 30, lkey: 1 };
        Some(RecvWqe { wr_id: 0, sges: [half, half].into_iter().collect() })
    }

    fn next_recv_for(&mut self, _: u64) -> Result<RecvWqe, NoReceive> {
        self.next_recv().ok_or(NoReceive::Empty)
    }

    fn flush_recv_queue(&mut self) {}

    fn place(
        &mut self,
        _: Buffer,
        _: &[Sge],
        offset: u64,
        payload: &Length,
        _: usize,
    ) -> Result<(), PlaceError> {
        assert_eq!(offset, self.placed);
        self.placed += u64::from(payload.0);
        Ok(())
    }

    fn place_bytes(&mut self, _: &[Sge], _: u64, _: &[u8]) -> Result<(), ()> {
        Err(())
    }

    fn place_grh(&mut self, _: &[Sge]) -> Result<bool, ()> {
        Err(())
    }

    fn check_remote(&mut self, _: u32, va: u64, _: u64, _: RemoteAccess) -> Result<(), RemoteError> {
        if va >= VA { Ok(()) } else { Err(RemoteError::Access) }
    }

    fn write_remote(&mut self, _: u32, va: u64, payload: &Length) -> Result<(), RemoteError> {
        assert_eq!(va, VA + self.written);
        self.written += u64::from(payload.0);
        Ok(())
    }

    fn atomic_remote(&mut self, _: u32, _: u64, _: AtomicOp) -> Result<u64, RemoteError> {
        Err(RemoteError::Access)
    }

    fn flush_remote(&mut self, _: u32, _: Option<(u64, u64)>, _: Placement) -> Result<(), RemoteError> {
        Err(RemoteError::Access)
    }

    fn invalidate(&mut self, _: u32) -> Result<(), RemoteError> {
        Err(RemoteError::Access)
    }

    fn bind_window(&mut self, _: &BindMw) -> Result<(), ()> {
        Err(())
    }

    fn complete_recv(&mut self, completion: Completion, _: u64) {
        self.statuses.push((completion.status, completion.byte_len));
    }

    fn event(&mut self, event: QpEvent) {
        panic!("{event:?}");
    }
}

fn exchange(op: SendOp, mtu: u32) -> (Counter, Counter) {
    let params = QpParams {
        access: Access { remote_read: true, remote_write: true, remote_atomic: true, ..Access::default() },
        path_mtu: mtu,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        sq_psn: 0xff_0000,
        rq_psn: 0xff_0000,
        lossless: mtu == u32::MAX,
        ..QpParams::default()
    };
    let mut now = Instant(0);
    let mut sides = [(); 2].map(|()| (QpProtocol::new(Service::Rc, 1, 8), Counter::default()));
    for (qp, env) in &mut sides {
        *qp.params_mut() = params;
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            qp.set_state(state, env);
        }
    }
    let [(a, ea), (b, eb)] = &mut sides;
    eb.receives = 1;
    let half = Sge { addr: 0, length: 1 << 30, lkey: 1 };
    let data = Data::Sges([half, half].into_iter().collect());
    let wr = SendWr {
        wr_id: 1,
        op,
        data,
        signaled: true,
        solicited: false,
        fence: false,
        ud: None,
        remote_srqn: 0,
    };
    a.post_send(&wr.request()).unwrap();
    while a.sq_len() > 0 {
        now.0 += 10_000;
        let before = a.counters().requests_sent + b.counters().responses_sent;
        while a.transmit(now, ea, 1 << 20) {}
        for (headers, len) in ea.out.drain(..) {
            b.handle_packet(now, &headers, Length(len), eb);
        }
        b.flush_acks(eb);
        while b.transmit(now, eb, 1 << 20) {}
        for (headers, len) in eb.out.drain(..) {
            a.handle_packet(now, &headers, Length(len), ea);
        }
        assert!(a.counters().requests_sent + b.counters().responses_sent > before, "stuck");
    }
    assert_eq!(a.counters().retransmissions, 0);
    let [(_, ea), (_, eb)] = sides;
    (ea, eb)
}

#[test]
fn messages_of_two_gibibytes_arrive() {
    for mtu in [1024, 4096, u32::MAX] {
        let (a, b) = exchange(SendOp::Write { va: VA, rkey: 1 }, mtu);
        assert_eq!((a.statuses, b.written), (vec![(WcStatus::Success, 0)], 1 << 31));
        let (a, b) = exchange(SendOp::Send, mtu);
        assert_eq!(a.statuses, [(WcStatus::Success, 0)]);
        assert_eq!((b.statuses, b.placed), (vec![(WcStatus::Success, 1 << 31)], 1 << 31));
        let (a, _) = exchange(SendOp::Read { va: VA, rkey: 1 }, mtu);
        assert_eq!((a.statuses, a.placed), (vec![(WcStatus::Success, 1 << 31)], 1 << 31));
    }
}
