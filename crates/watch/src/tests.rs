use super::*;

#[test]
fn what_is_told_is_what_is_read() {
    let pair = QueuePair {
        number: 0x12_3456,
        service: "RC".into(),
        peer: Some(Peer { number: 7, address: "10.0.0.1".into(), process: Some(12) }),
        counters: Counters { sent_pkts: u64::MAX, ..Counters::default() },
        ..QueuePair::default()
    };
    let process = Process { slots: vec![1, 4094], queue_pairs: vec![pair], ..Process::default() };
    assert_eq!(Process::from_bytes(&process.to_bytes()), Some(process));
}

#[test]
fn an_account_of_another_version_is_read_as_far_as_it_is_known() {
    let newer = br#"{"version":"9","colour":"blue","devices":[{"name":"a","weight":3}]}"#;
    let process = Process::from_bytes(newer).unwrap();
    assert_eq!((process.version.as_str(), process.devices[0].name.as_str()), ("9", "a"));
}

#[test]
fn letters_that_a_terminal_acts_upon_are_not_shown() {
    let hostile = "{\"version\":\"a\\u001b[2J\\u009b1m\\r\\n\\u202eb\\u200bc\\u0007\"}";
    let version = Process::from_bytes(hostile.as_bytes()).unwrap().version;
    assert_eq!(version, "a?[2J?1m???b?c?");
    let long = format!("{{\"version\":\"{}\"}}", "x".repeat(100_000));
    assert_eq!(Process::from_bytes(long.as_bytes()).unwrap().version.as_str().len(), LONGEST_TEXT);
}

#[test]
fn what_is_out_of_bounds_is_not_believed() {
    let many = |n: usize| format!("{{\"queue_pairs\":[{}]}}", vec!["{}"; n].join(","));
    assert!(Process::from_bytes(many(MOST).as_bytes()).is_some());
    assert!(Process::from_bytes(many(MOST + 1).as_bytes()).is_none());
    let deep = format!("{{\"x\":{}", "[".repeat(200_000));
    for nonsense in ["", "null", "[1]", "{\"slots\":[70000]}", "{\"registered\":-1}", &deep] {
        assert!(Process::from_bytes(nonsense.as_bytes()).is_none(), "{:.40}", nonsense);
    }
    assert!(Process::from_bytes(&vec![b' '; LONGEST + 1]).is_none());
}

#[test]
fn counters_add_up_and_have_their_names() {
    let one = Counters { sent_pkts: 3, rcvd_bytes: 400, ..Counters::default() };
    let mut sum = one;
    sum.add(&one);
    assert_eq!((sum.sent_pkts, sum.since(&one)), (6, one));
    assert_eq!(one.each().len(), Counters::NAMES.len());
    assert_eq!((port_counter("port_rcv_data", &one), port_counter("port_xmit_packets", &one)), (100, 3));
}
