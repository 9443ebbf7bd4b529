//! A raw QP's beginning.

use super::pace::SendPace;
use super::ports::RAW_QPS;
use super::{FrameTarget, PacketPort, RawQp, RawState};
use crate::rss::Rss;
use crate::tso::MAX_TSO_HEADER;
use crate::wq::{Wq, WqInit, WqOwner};
use ferroce_engine::Deadline;
use ferroce_mem::{Pd, is_same};
use ferroce_nic::qp::{QpCap, WrSession};
use ferroce_nic::{Adapter, OfContext as _};
use ferroce_os::sync::Mutex;
use ferroce_queues::{Cq, Limits, Unacked};
use ferroce_types::{QpState, Result, Users, invalid};
use std::collections::VecDeque;
use std::sync::Arc;

/// What a new raw QP is made of.
#[derive(Clone, Debug)]
pub struct RawInit {
    /// Where send completions go; not with `rss`.
    pub send_cq: Option<Arc<Cq>>,
    /// Where receive completions go; not with `rss`.
    pub recv_cq: Option<Arc<Cq>>,
    /// It receives into the queues of a table, and sends nothing.
    pub rss: Option<Rss>,
    /// Sizes.
    pub cap: QpCap,
    /// Every send request is signaled.
    pub sq_sig_all: bool,
    /// Takes the first VLAN tag out of received frames (IBV_QP_CREATE_CVLAN_STRIPPING).
    pub cvlan_stripping: bool,
    /// Its own multicast frames don't come back to it (IBV_QP_CREATE_BLOCK_SELF_MCAST_LB).
    pub block_self_multicast: bool,
    /// Bytes of headers that a request to segment may have.
    pub max_tso_header: u16,
    /// Comes back with events.
    pub user_handle: usize,
}

impl RawQp {
    /// A new QP in RESET. One with `rss` has no states: it receives from the beginning.
    ///
    /// # Errors
    /// [`Error::Permission`](ferroce_types::Error::Permission) without CAP_NET_RAW; [`Error::Invalid`](ferroce_types::Error::Invalid) for sizes out of bounds, missing completion queues or
    /// objects of another device context; [`Error::NotSupported`](ferroce_types::Error::NotSupported) for an interface without Ethernet frames.
    pub fn create(pd: &Arc<Pd>, init: RawInit) -> Result<Arc<Self>> {
        let context = pd.context();
        let adapter = context.adapter()?;
        let port = RAW_QPS.port(adapter, &context.device().info().netdev)?;
        check_sizes(&init)?;
        if init.send_cq.as_ref().is_some_and(|cq| !cq.shares_context_with(pd)) {
            return invalid!("a completion queue of another device context");
        }
        let qpn = adapter.reserve_qpn()?;
        Self::with_number(pd, init, adapter, port, qpn).inspect_err(|_| adapter.free_qpn(qpn))
    }

    fn with_number(
        pd: &Arc<Pd>,
        init: RawInit,
        adapter: &'static Adapter,
        port: Arc<PacketPort>,
        qpn: u32,
    ) -> Result<Arc<Self>> {
        let RawInit {
            send_cq,
            recv_cq,
            rss,
            cap,
            sq_sig_all,
            cvlan_stripping,
            block_self_multicast,
            max_tso_header,
            user_handle,
        } = init;
        let (receive, send_cq) = match (rss, recv_cq) {
            (Some(rss), _) => {
                if rss.table.wqs().iter().any(|wq| !is_same(&**wq.pd().owner(), &**pd.owner())) {
                    return invalid!("an indirection table of another device context");
                }
                rss.table.hold();
                (FrameTarget::Spread(rss), None)
            }
            (None, Some(cq)) => {
                let (max_wr, max_sge) = (cap.max_recv_wr, cap.max_recv_sge);
                let init = WqInit { cq, max_wr, max_sge, cvlan_stripping, user_handle };
                (FrameTarget::Queue(Wq::new(pd, init, WqOwner::Qp(qpn))?), send_cq)
            }
            (None, None) => return invalid!("recv_cq is NULL"),
        };
        pd.hold();
        if let Some(cq) = &send_cq {
            cq.hold();
        }
        let state = RawState {
            state: QpState::Reset,
            port_num: 0,
            queue: VecDeque::new(),
            gone: 0,
            pace: SendPace::default(),
        };
        let qp = Arc::new(Self {
            qpn,
            pd: pd.clone(),
            send_cq,
            receive,
            port,
            cap,
            sq_sig_all,
            block_self_multicast,
            max_tso_header,
            user_handle,
            adapter,
            send: Mutex::new(state),
            wr_session: WrSession::default(),
            deadline: Deadline::default(),
            flows: Users::default(),
            unacked_async: Unacked::default(),
        });
        RAW_QPS.add(&qp);
        Ok(qp)
    }
}

fn check_sizes(init: &RawInit) -> Result<()> {
    let cap = init.cap;
    if init.rss.is_some() {
        return Ok(());
    }
    if init.send_cq.is_none() {
        return invalid!("send_cq is NULL");
    }
    let Limits { wr, sge, inline, .. } = *Limits::get();
    if cap.max_send_wr > wr || cap.max_send_sge > sge {
        return invalid!(
            "a send queue of {} work requests with {} elements: at most {wr} with {sge}",
            cap.max_send_wr,
            cap.max_send_sge
        );
    }
    if init.max_tso_header > MAX_TSO_HEADER {
        return invalid!("{} bytes of headers to segment: at most {MAX_TSO_HEADER}", init.max_tso_header);
    }
    if cap.max_inline_data > inline {
        return invalid!("{} bytes inline: at most {inline}", cap.max_inline_data);
    }
    Ok(())
}
