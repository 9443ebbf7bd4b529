//! Completions that were taken together.

use ferroce_buffers::{Fault, Polled, Stamp, Status};
use ferroce_types::{Completion, WcOpcode, WcStatus};

fn completion(wr_id: u64, status: WcStatus) -> Completion {
    Completion::new(wr_id, status, WcOpcode::Recv)
}

fn fault(completion: &Completion) -> Fault {
    Fault::new(Status::Flushed, completion.wr_id as u32, None, None)
}

#[test]
fn each_failure_has_its_fault_and_no_other_completion_has_one() {
    let mut polled = Polled::default();
    for (wr_id, status) in [(1, WcStatus::Success), (2, WcStatus::WrFlushErr), (3, WcStatus::Success)] {
        polled.push(&completion(wr_id, status), Stamp::default());
    }
    polled.explain(0, fault);
    let first = polled.len();
    polled.push(&completion(4, WcStatus::WrFlushErr), Stamp::default());
    polled.explain(first, fault);
    let failed = completion(5, WcStatus::GeneralErr);
    polled.push(&failed, Stamp::default());
    polled.fail(fault(&failed));
    let faults: Vec<_> = (0..polled.len()).map(|place| polled.fault(place).map(Fault::vendor)).collect();
    assert_eq!(faults, [None, Some(2), None, Some(4), Some(5)]);
    assert!(polled.is_unusual());
    polled.clear();
    polled.push(&completion(6, WcStatus::Success), Stamp::default());
    polled.explain(0, fault);
    assert!(!polled.is_unusual() && polled.fault(0).is_none());
}

#[test]
fn a_key_that_a_message_invalidates_is_unusual() {
    let mut polled = Polled::default();
    polled.push(&completion(1, WcStatus::Success).with_value(None, Some(7)), Stamp::default());
    assert!(polled.is_unusual() && polled.fault(0).is_none());
    assert_eq!(polled.get(0).and_then(|ended| ended.completion.invalidated_rkey()), Some(7));
}
