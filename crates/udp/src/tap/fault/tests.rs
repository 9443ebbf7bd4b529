use super::*;
use proptest::prelude::*;

fn fault(text: &str) -> FaultInjection {
    text.parse().unwrap()
}

/// Puts in packets 0, 1, 2 … at a microsecond each, takes out what is due, then lets time pass.
fn run(text: &str, direction: Direction, count: u64) -> (Vec<(u64, Vec<u8>, u64)>, Counts) {
    let mut queue = fault(text).queue(direction);
    let mut out = Vec::new();
    let mut now = 0;
    for i in 0..count {
        now = i * 1000;
        queue.push(now, i, &i.to_le_bytes());
        out.extend(std::iter::from_fn(|| queue.pop_due(now)).map(|(m, p)| (m, p, now)));
    }
    while let Some(due) = queue.next_due() {
        now = now.max(due);
        let before = out.len();
        out.extend(std::iter::from_fn(|| queue.pop_due(now)).map(|(m, p)| (m, p, now)));
        // Holding ends before the delay begins, so one round may only move a packet on.
        assert!(
            out.len() > before || queue.next_due() > Some(now),
            "next_due named a time when nothing is due"
        );
    }
    (out, queue.counts())
}

#[test]
fn a_full_description_is_understood() {
    let f = fault(" drop=1%, dup=0.5% ,reorder=0.25,corrupt=.001,delay=1ms..3ms,seed=18446744073709551615");
    let expected = FaultInjection {
        drop: 0.01,
        dup: 0.005,
        reorder: 0.25,
        corrupt: 0.001,
        delay: 1_000_000..=3_000_000,
        seed: u64::MAX,
    };
    assert_eq!(f, expected);
    for (text, ns) in
        [("2ms", 2_000_000), ("0.5us", 500), ("7µs", 7000), ("10s", MAX_DELAY), ("3ns", 3), ("0s", 0)]
    {
        assert_eq!(fault(&format!("delay={text}")).delay, ns..=ns);
    }
    assert_eq!(fault("drop=100%").drop, 1.0);
}

#[test]
fn wrong_descriptions_are_refused_with_the_reason() {
    let error = |text: &str| text.parse::<FaultInjection>().unwrap_err();
    assert_eq!(error(""), FaultError::Form("".into()));
    assert_eq!(error("drop=1%,"), FaultError::Form("".into()));
    assert_eq!(error("drop"), FaultError::Form("drop".into()));
    assert_eq!(error("loss=1%"), FaultError::Key("loss".into()));
    assert_eq!(error("drop=1%,drop=1%"), FaultError::Repeated("drop".into()));
    for value in ["5", "101%", "-1%", "", "%", "1e-3", "nan", "inf", "+0.1", "1 %%", "0x1", "1.2.3"] {
        let wrong = FaultError::Probability("dup".into(), value.into());
        assert_eq!(error(&format!("dup={value}")), wrong, "{value}");
    }
    for value in ["2", "ms", "-1ms", "11s", "3ms..1ms", "1ms..", "..1ms", "1ms..2ms..3ms", "1min", "nans"] {
        assert_eq!(error(&format!("delay={value}")), FaultError::Delay(value.into()), "{value}");
    }
    for value in ["-1", "x", "18446744073709551616", ""] {
        assert_eq!(error(&format!("seed={value}")), FaultError::Seed(value.into()));
    }
    assert!(error("drop=5").to_string().starts_with("drop=5: a probability is a percentage"));
}

#[test]
fn without_faults_everything_passes_at_once_and_in_order() {
    let (out, counts) = run("drop=0%", Direction::Out, 1000);
    assert_eq!(counts, Counts { packets: 1000, ..Counts::default() });
    for (i, (meta, packet, at)) in out.iter().enumerate() {
        let i = i as u64;
        assert_eq!((*meta, &packet[..], *at), (i, &i.to_le_bytes()[..], i * 1000));
    }
}

#[test]
fn the_same_seed_gives_the_same_course_and_another_another() {
    let text = "drop=5%,dup=5%,reorder=5%,corrupt=5%,delay=1us..9us,seed=";
    let course = |seed, direction| run(&format!("{text}{seed}"), direction, 2000).0;
    assert_eq!(course(7, Direction::Out), course(7, Direction::Out));
    assert_ne!(course(7, Direction::Out), course(8, Direction::Out));
    assert_ne!(course(7, Direction::Out), course(7, Direction::In));
}

#[test]
fn rates_are_what_was_asked_for() {
    let n = 100_000;
    let (out, c) = run("drop=1%,dup=2%,reorder=3%,corrupt=4%,seed=3", Direction::In, n);
    // Five standard deviations of a binomial distribution.
    let near = |count: u64, of: u64, p: f64| {
        let (mean, deviation) = (of as f64 * p, (of as f64 * p * (1.0 - p)).sqrt());
        assert!((count as f64 - mean).abs() < 5.0 * deviation, "{count} of {of}, not about {mean}");
    };
    near(c.dropped, n, 0.01);
    near(c.duplicated, n - c.dropped, 0.02);
    near(c.reordered, out.len() as u64, 0.03);
    near(c.corrupted, out.len() as u64, 0.04);
    let damaged = out.iter().filter(|(i, packet, _)| packet[..] != i.to_le_bytes()).count();
    assert_eq!(damaged as u64, c.corrupted);
}

#[test]
fn the_rate_of_one_fault_does_not_move_another() {
    let lost = |text: &str| {
        let (out, _) = run(text, Direction::Out, 5000);
        let arrived: std::collections::HashSet<u64> = out.into_iter().map(|(i, ..)| i).collect();
        (0..5000).filter(|i| !arrived.contains(i)).collect::<Vec<_>>()
    };
    assert_eq!(lost("drop=2%,seed=9"), lost("drop=2%,dup=10%,corrupt=10%,reorder=10%,delay=5us,seed=9"));
}

#[test]
fn corruption_reaches_every_byte() {
    let mut queue = fault("corrupt=100%").queue(Direction::Out);
    let mut hit = [false; 64];
    for _ in 0..2000 {
        queue.push(0, (), &[0; 64]);
        let (_, packet) = queue.pop_due(0).unwrap();
        assert!(packet.iter().any(|b| *b != 0));
        packet.iter().zip(&mut hit).filter(|(b, _)| **b != 0).for_each(|(_, h)| *h = true);
    }
    assert!(hit.iter().all(|h| *h));
}

#[test]
fn a_packet_is_passed_by_at_most_eight_others_or_a_millisecond() {
    let (out, counts) = run("reorder=10%,seed=4", Direction::Out, 10_000);
    assert!(counts.reordered > 0);
    let mut late = 0;
    for (place, (i, _, at)) in out.iter().enumerate() {
        let passed_by = out[..place].iter().rev().take(40).filter(|(j, ..)| j > i).count();
        // Others that were held back too may be let go in between, before it.
        assert!(passed_by <= 8 && *at <= i * 1000 + 1_000_000);
        late += u64::from(passed_by > 0);
    }
    assert!(late > counts.reordered * 9 / 10, "{late} of {} held back were passed", counts.reordered);

    let mut alone = fault("reorder=100%").queue(Direction::Out);
    alone.push(5, (), b"packet");
    assert_eq!(alone.pop_due(5), None);
    assert_eq!(alone.next_due(), Some(1_000_005));
    assert_eq!(alone.pop_due(1_000_004), None);
    assert_eq!(alone.pop_due(1_000_005), Some(((), b"packet".to_vec())));
    assert_eq!((alone.next_due(), alone.pop_due(u64::MAX)), (None, None));
}

#[test]
fn a_delayed_packet_arrives_on_time() {
    let mut queue = fault("delay=2ms").queue(Direction::In);
    queue.push(10, 'a', b"1");
    queue.push(20, 'b', b"2");
    assert_eq!(queue.next_due(), Some(2_000_010));
    assert_eq!(queue.pop_due(2_000_009), None);
    assert_eq!(queue.pop_due(2_000_019).unwrap().0, 'a');
    assert_eq!(queue.pop_due(2_000_019), None);
    assert_eq!(queue.pop_due(2_000_020).unwrap().0, 'b');
}

#[test]
fn a_queue_is_bounded_and_still_loses_nothing() {
    let mut queue = fault("delay=10s").queue(Direction::In);
    let mut out = 0;
    for i in 0..3000 {
        queue.push(i, i, &[0; 64 << 10]);
        while let Some((meta, _)) = queue.pop_due(i) {
            assert_eq!(meta, out);
            out += 1;
        }
        assert!(queue.bytes <= QUEUE_LIMIT);
    }
    assert!(out > 0 && queue.next_due().is_some());
    while queue.pop_due(u64::MAX).is_some() {
        out += 1;
    }
    assert_eq!(out, 3000);
}

proptest! {
    #[test]
    fn nothing_is_lost_but_by_drop(
        (drop, dup, reorder) in (0.0..0.5, 0.0..1.0, 0.0..=1.0),
        (shortest, longest) in (0u64..2000, 0u64..2000),
        seed: u64,
        count in 0u64..400,
    ) {
        let (shortest, longest) = (shortest.min(longest), shortest.max(longest));
        let text = format!("drop={drop:.6},dup={dup:.6},reorder={reorder:.6},delay={shortest}us..{longest}us,seed={seed}");
        let (out, counts) = run(&text, Direction::Out, count);
        prop_assert_eq!(out.len() as u64, count - counts.dropped + counts.duplicated);
        let mut copies = vec![0; count as usize];
        for (i, packet, at) in &out {
            prop_assert_eq!(&packet[..], &i.to_le_bytes()[..]);
            prop_assert!(*at >= i * 1000 + shortest * 1000);
            prop_assert!(*at <= i * 1000 + REORDER_LIMIT + longest * 1000 + 1000);
            copies[*i as usize] += 1;
        }
        prop_assert!(copies.iter().all(|c| *c <= 2));
        prop_assert_eq!(copies.iter().filter(|c| **c == 0).count() as u64, counts.dropped);
        prop_assert_eq!(copies.iter().filter(|c| **c == 2).count() as u64, counts.duplicated);
    }

    #[test]
    fn any_text_is_understood_or_refused_without_a_panic(text in "[a-z=,.%0-9µ -]{0,40}") {
        let _ = text.parse::<FaultInjection>();
    }
}
