//! What queue pairs have counted, by the names of Linux, and the counters of those that are gone.

use ferroce_os::sync::{Mutex, class};
use ferroce_watch::Counters;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Counters that are kept.
pub struct Past {
    /// Of queue pairs that are gone, by device.
    pub gone: BTreeMap<String, Counters>,
    /// Of the queue pairs in the last account, by serial number: the values in that account.
    pub told: Option<Arc<BTreeMap<u64, Counters>>>,
}

/// What is kept.
pub static PAST: Mutex<class::PastCounters, Past> = Mutex::new(Past { gone: BTreeMap::new(), told: None });

/// Keeps what a queue pair of `device` has counted that is being destroyed.
#[cold]
pub fn keep(device: &str, counted: &ferroce_proto::Counters) {
    let counted = named(counted);
    let mut past = PAST.lock();
    match past.gone.get_mut(device) {
        Some(kept) => kept.add(&counted),
        None => drop(past.gone.insert(device.into(), counted)),
    }
}

/// A queue pair's counters by the names that Linux gives them.
pub fn named(counted: &ferroce_proto::Counters) -> Counters {
    Counters {
        sent_pkts: counted.requests_sent + counted.responses_sent,
        rcvd_pkts: counted.packets_received,
        duplicate_request: counted.duplicates,
        out_of_seq_request: counted.out_of_order,
        rcvd_rnr_err: counted.rnr_naks,
        send_rnr_err: counted.rnr_naks_sent,
        rcvd_seq_err: counted.seq_naks,
        retry_exceeded_err: counted.retries_exceeded,
        retry_rnr_exceeded_err: counted.rnr_retries_exceeded,
        completer_retry_err: counted.timeouts,
        rdma_sends: counted.requests_ended,
        rdma_recvs: counted.messages_received,
        implied_nak_seq_err: counted.implied_naks,
        rp_cnp_handled: counted.cnps,
        rcvd_err: counted.malformed
            + counted.wrong_state
            + counted.pkey_violations
            + counted.qkey_violations
            + counted.dropped_messages,
        sent_bytes: counted.bytes_posted,
        rcvd_bytes: counted.bytes_received,
        ..Counters::default()
    }
}
