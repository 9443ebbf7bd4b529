//! Completions that were taken together.

use ferroce_buffers::{Ended, Fault, Polled, Stamp, Status};
use ferroce_types::{Completion, WcOpcode, WcStatus};

fn ended(wr_id: u64, status: WcStatus) -> Ended {
    Ended::of(&Completion::new(wr_id, status, WcOpcode::Recv))
}

fn fault(ended: &Ended) -> Fault {
    Fault::new(Status::Flushed, ended.wr_id as u32, None, None)
}

#[test]
fn each_failure_has_its_fault_and_no_other_completion_has_one() {
    let mut polled = Polled::default();
    for (wr_id, status) in [(1, WcStatus::Success), (2, WcStatus::WrFlushErr), (3, WcStatus::Success)] {
        polled.push(ended(wr_id, status));
    }
    polled.explain(fault);
    let failed = ended(4, WcStatus::GeneralErr);
    polled.push(failed);
    polled.fail(fault(&failed));
    let faults: Vec<_> = (0..polled.len()).map(|place| polled.fault(place).map(Fault::vendor)).collect();
    assert_eq!(faults, [None, Some(2), None, Some(4)]);
    assert!(polled.is_unusual());
    polled.clear();
    polled.push(ended(6, WcStatus::Success));
    polled.explain(fault);
    assert!(!polled.is_unusual() && polled.fault(0).is_none());
}

#[test]
fn a_key_that_a_message_invalidates_is_unusual() {
    let mut polled = Polled::default();
    polled.push(Ended::of(&Completion::new(1, WcStatus::Success, WcOpcode::Recv).with_value(None, Some(7))));
    assert!(polled.is_unusual() && polled.fault(0).is_none());
    assert_eq!(polled.get(0).and_then(Ended::invalidated_rkey), Some(7));
}

#[test]
fn flags_of_what_is_not_a_message_mean_nothing() {
    let sent = Completion::new(1, WcStatus::Success, WcOpcode::Send);
    let ended = Ended::of(&sent.with_value(None, Some(7)));
    assert_eq!((ended.invalidated_rkey(), ended.immediate()), (None, None));
    assert_eq!(Ended::of(&sent.with_value(Some([1; 4]), None)).immediate(), None);
}

#[test]
fn a_library_fills_what_there_is_room_for_and_no_more() {
    let mut polled = Polled::default();
    let write = |places: &mut [Ended; Polled::MOST]| {
        places[0] = ended(1, WcStatus::WrFlushErr);
        places[1] = ended(2, WcStatus::Success);
        2
    };
    polled.fill(write).unwrap();
    polled.explain(fault);
    let found: Vec<_> = (0..3).map(|place| polled.get(place).map(|ended| ended.wr_id)).collect();
    assert_eq!(found, [Some(1), Some(2), None]);
    assert_eq!(polled.fault(0).map(Fault::vendor), Some(1));
    polled.clear();
    for wrong in [-1, Polled::MOST as i32 + 1] {
        assert_eq!(polled.fill(|_| wrong), Err(wrong));
        assert!(polled.is_empty());
    }
    polled.fill(|places| places.len() as i32).unwrap();
    assert_eq!(polled.len(), Polled::MOST);
}

#[test]
fn of_a_failure_its_numbers_count() {
    let mut failed = ended(1, WcStatus::WrFlushErr);
    (failed.qp_num, failed.byte_len, failed.wc_flags) = (2, 3, u32::MAX);
    let counts = failed.of_failure();
    assert_eq!((counts.wr_id, counts.status, counts.qp_num), (1, WcStatus::WrFlushErr as u32, 2));
    assert_eq!((counts.byte_len, counts.immediate(), counts.has_grh()), (0, None, false));
}

#[test]
fn completions_of_a_queue_without_times_have_none() {
    let mut polled = Polled::default();
    polled.push(ended(1, WcStatus::Success));
    assert!(polled.stamp_of(0).is_none());
    polled.stamp(Stamp { clock: 5, wall_clock: 6 });
    assert_eq!(polled.stamp_of(0).map(|stamp| (stamp.clock, stamp.wall_clock)), Some((5, 6)));
    polled.clear();
    assert!(polled.is_empty() && polled.stamp_of(0).is_none());
}
